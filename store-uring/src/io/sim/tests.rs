use super::*;
use crate::io::write_all;
use std::collections::HashSet;

const CREATE: Open = Open { access: Access::Create, direct: false };

async fn put(io: &SimIo, path: &str, bytes: &[u8]) -> io::Result<SimFile> {
    let file = io.open(Path::new(path), CREATE).await?;
    write_all(&file, 0, bytes.to_vec()).await.0?;
    Ok(file)
}

#[test]
fn synced_bytes_and_names_survive_a_power_cut() {
    for seed in 0..50 {
        let io = SimIo::new(seed, Faults::none());
        block_on(async {
            io.create_dir(Path::new("/d/e")).await.unwrap();
            io.sync_dir(Path::new("/")).await.unwrap();
            io.sync_dir(Path::new("/d")).await.unwrap();
            let file = put(&io, "/d/e/f", b"hello").await.unwrap();
            file.sync().await.unwrap();
            io.sync_dir(Path::new("/d/e")).await.unwrap();
        });
        assert_eq!(io.after_crash().contents(Path::new("/d/e/f")).unwrap(), b"hello");
    }
}

#[test]
fn unsynced_sectors_and_names_are_a_matter_of_the_seed() {
    let (mut lost_name, mut old, mut new, mut mixed) = (0, 0, 0, 0);
    for seed in 0..100 {
        let io = SimIo::new(seed, Faults::none());
        block_on(async {
            let file = put(&io, "/a", &[1; 1024]).await.unwrap();
            file.datasync().await.unwrap();
            io.sync_dir(Path::new("/")).await.unwrap();
            write_all(&file, 0, vec![2; 1024]).await.0.unwrap();
            put(&io, "/b", b"x").await.unwrap();
        });
        let after = io.after_crash();
        lost_name += after.contents(Path::new("/b")).is_none() as u32;
        let a = after.contents(Path::new("/a")).unwrap();
        match (a[0], a[512]) {
            (1, 1) => old += 1,
            (2, 2) => new += 1,
            _ => mixed += 1,
        }
        assert!(a[..512].iter().all(|b| *b == a[0]), "a sector is atomic");
        assert_eq!(io.after_kill().contents(Path::new("/a")).unwrap(), vec![2; 1024]);
    }
    assert!(lost_name > 0 && old > 0 && new > 0 && mixed > 0);
}

#[test]
fn a_rename_is_whole_or_not_at_all() {
    let mut seen = HashSet::new();
    for seed in 0..50 {
        let io = SimIo::new(seed, Faults::none());
        block_on(async {
            for (path, text) in [("/t", b"new"), ("/m", b"old")] {
                put(&io, path, text).await.unwrap().sync().await.unwrap();
            }
            io.sync_dir(Path::new("/")).await.unwrap();
            io.rename(Path::new("/t"), Path::new("/m")).await.unwrap();
        });
        seen.insert(io.after_crash().contents(Path::new("/m")).unwrap());
    }
    assert_eq!(seen, HashSet::from([b"old".to_vec(), b"new".to_vec()]));
}

#[test]
fn the_numbered_faults_happen() {
    let io = SimIo::new(7, Faults { write_error_at: Some(1), capacity_bytes: Some(4096), ..Faults::none() });
    block_on(async {
        let file = put(&io, "/a", &[1; 512]).await.unwrap();
        assert_eq!(file.write_at(0, vec![1; 8]).await.0.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(file.allocate(8192).await.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        file.allocate(4096).await.unwrap();
        assert_eq!(put(&io, "/b", b"x").await.err().unwrap().raw_os_error(), Some(libc::ENOSPC));
        io.remove(Path::new("/a")).await.unwrap();
        put(&io, "/b", b"x").await.unwrap();
    });
    let io = SimIo::new(7, Faults { short_write_every: Some(2), ..Faults::none() });
    block_on(async {
        let file = put(&io, "/a", &[3; 5000]).await.unwrap();
        assert!(file.write_at(0, vec![4; 5000]).await.0.unwrap() < 5000);
    });
    let io = SimIo::new(7, Faults { sync_error_at: Some(0), ..Faults::none() });
    block_on(async {
        let file = put(&io, "/a", &[3; 512]).await.unwrap();
        io.sync_dir(Path::new("/")).await.unwrap();
        assert!(file.sync().await.is_err());
        file.sync().await.unwrap();
    });
    assert!(io.after_crash().contents(Path::new("/a")).unwrap().iter().all(|b| *b == 0), "a failed sync loses it");
}

#[test]
fn what_a_failed_sync_left_in_the_device_is_brought_by_one_of_the_next_process() {
    for direct in [true, false] {
        let io = SimIo::new(7, Faults { sync_error_at: Some(0), ..Faults::none() });
        let how = Open { access: Access::Write, direct };
        let written = block_on(async {
            put(&io, "/a", &[]).await.unwrap();
            io.sync_dir(Path::new("/")).await.unwrap();
            let file = io.open(Path::new("/a"), how).await.unwrap();
            file.write_at(0, vec![3; 4096]).await.0.unwrap();
            assert!(file.sync().await.is_err());
            let next = io.after_kill();
            next.open(Path::new("/a"), how).await.unwrap().sync().await.unwrap();
            next.after_crash().contents(Path::new("/a")).unwrap().first() == Some(&3)
        });
        assert_eq!(written, direct, "through the page cache it is gone");
    }
}

#[test]
fn a_crash_stops_everything() {
    let io = SimIo::new(1, Faults::crash_at(1));
    block_on(async {
        assert!(put(&io, "/a", &[1; 512]).await.is_err());
        assert!(io.list(Path::new("/")).await.is_err());
    });
    assert!(io.has_crashed());
    assert!(block_on(io.after_kill().list(Path::new("/"))).is_ok());
}

#[test]
fn truncation_reads_as_zeros_afterwards() {
    let io = SimIo::new(1, Faults::none());
    block_on(async {
        let file = put(&io, "/a", &[9; 2000]).await.unwrap();
        file.set_len(700).await.unwrap();
        file.set_len(3000).await.unwrap();
        let back = file.read_at(0, 5000).await.unwrap();
        assert_eq!(back.len(), 3000);
        assert!(back[..700].iter().all(|b| *b == 9) && back[700..].iter().all(|b| *b == 0));
        assert!(io.flip_bit(Path::new("/a"), 2999, 3));
        assert_eq!(file.read_at(2999, 1).await.unwrap(), [8]);
    });
}

#[test]
fn a_watcher_sees_what_each_crash_leaves() {
    let io = SimIo::new(3, Faults::none());
    let seen: Rc<RefCell<Vec<SimIo>>> = Rc::default();
    let watched = seen.clone();
    io.watch(Rc::new(move |copy| watched.borrow_mut().push(copy)));
    block_on(async {
        let file = put(&io, "/a", &[1; 1024]).await.unwrap();
        file.sync().await.unwrap();
        io.sync_dir(Path::new("/")).await.unwrap();
        io.rename(Path::new("/a"), Path::new("/b")).await.unwrap();
        assert!(io.rename(Path::new("/c"), Path::new("/d")).await.is_err(), "does nothing, so it is no crash point");
    });
    let seen = seen.borrow();
    assert_eq!(seen.len() as u64, io.operations());
    assert!(seen.iter().all(SimIo::has_crashed) && !io.has_crashed());
    // Each as a run that was told to crash there.
    for (at, copy) in seen.iter().enumerate() {
        let alone = SimIo::new(3, Faults::crash_at(at as u64));
        block_on(async {
            let Ok(file) = put(&alone, "/a", &[1; 1024]).await else { return };
            let Ok(()) = file.sync().await else { return };
            let Ok(()) = alone.sync_dir(Path::new("/")).await else { return };
            alone.rename(Path::new("/a"), Path::new("/b")).await.unwrap_err();
        });
        for choice in 0..20 {
            let (copy, alone) = (copy.after_crash_of(choice), alone.after_crash_of(choice));
            assert_eq!(copy.paths(), alone.paths());
            assert_eq!(copy.contents(Path::new("/a")), alone.contents(Path::new("/a")));
        }
    }
}

#[test]
fn an_unreadable_sector_is_good_again_once_it_is_written() {
    let io = SimIo::new(1, Faults::none());
    block_on(async {
        let file = put(&io, "/a", &[9; 2048]).await.unwrap();
        assert!(io.make_unreadable(Path::new("/a"), 600, 700));
        assert_eq!(file.read_at(0, 2048).await.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(file.read_at(0, 512).await.unwrap(), [9; 512]);
        assert_eq!(file.read_at(1024, 512).await.unwrap(), [9; 512]);
        write_all(&file, 512, vec![7; 512]).await.0.unwrap();
        assert_eq!(file.read_at(0, 2048).await.unwrap()[512..1024], [7; 512]);
    });
}
