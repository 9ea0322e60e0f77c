//! The log on glommio and a real filesystem: direct io, order of operations, removal under a reader.
mod log_files;

use glommio::{LocalExecutorBuilder, Placement};
use log_files::{SEGMENT_BYTES, config, key, record, scan};
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use uringmq_proto::types::PhyOffset;
use uringmq_store::StoreError;
use uringmq_store::commit_log::Appender;
use uringmq_store::io::glommio::{GlommioIo, OpKind, OpLog};
use uringmq_store::io::{Access, File, Io, Open, write_all};
use uringmq_store::log_reader::LogReader;

/// A directory on the disk that holds the build (temporary directories are often in memory), removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs on an executor of its own.
fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send + 'static) {
    LocalExecutorBuilder::new(Placement::Unbound).io_memory(4 << 20).spawn(test).unwrap().join().unwrap();
}

fn place(log: &mut Appender<GlommioIo>, seed: u64, bytes: usize) -> (u64, Vec<u8>) {
    let mut bytes = record(0, seed, bytes);
    let len = bytes.len() as u32;
    (log.place(key(0), true, &mut bytes, &[len]).unwrap().phy.0, bytes)
}

/// Flags of this process's open descriptors of a file, from `/proc`.
fn open_flags(path: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        if std::fs::read_link(entry.path()).is_ok_and(|to| to == path) {
            let number = entry.file_name();
            let info = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(number)).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            found.push(i32::from_str_radix(flags, 8).unwrap());
        }
    }
    found
}

#[test]
fn appends_reopens_and_reads_back() {
    let dir = Dir::new("reopen");
    let root = dir.0.clone();
    run(move || async move {
        let config = config(&root);
        let io = GlommioIo::new();
        let mut log = Appender::open(io.clone(), &config, PhyOffset(0), PhyOffset(0)).await.unwrap();
        let mut kept = Vec::new();
        for round in 0..3 {
            for seed in 0..40 {
                kept.push(place(&mut log, seed, 92 + 331 * seed as usize % 9_000));
                if seed % 4 == 3 {
                    let written = log.write(seed % 8 == 7).await.unwrap();
                    assert_eq!(written.to, log.written());
                    while log.keeper().step().await.unwrap() {}
                }
            }
            let end = log.written();
            drop(log);
            let found = scan(io.clone(), &config, 0).await;
            assert!(found.records == kept, "round {round}");
            assert_eq!(found.end, end.0);
            log = Appender::open(GlommioIo::starting(), &config, PhyOffset(0), end).await.unwrap();
        }
        assert!(log.written().0 > 2 * SEGMENT_BYTES);
        for entry in std::fs::read_dir(&config.commit_log_dir).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().len(), SEGMENT_BYTES);
        }
    });
}

#[test]
fn the_active_segment_is_open_for_direct_io_only() {
    let dir = Dir::new("direct");
    let root = dir.0.clone();
    run(move || async move {
        let config = config(&root);
        let mut log = Appender::open(GlommioIo::new(), &config, PhyOffset(0), PhyOffset(0)).await.unwrap();
        let (at, bytes) = place(&mut log, 1, 500);
        log.write(true).await.unwrap();
        let reader = LogReader::new(GlommioIo::new(), &config);
        let mut out = Vec::new();
        reader.read_record(PhyOffset(at), 500, log.written(), &mut out).await.unwrap();
        assert_eq!(out, bytes);
        let flags = open_flags(&config.commit_log_dir.join(format!("{:020}", 0)));
        assert_eq!(flags.len(), 2, "the appender's and the reader's");
        assert!(flags.iter().all(|flags| flags & libc::O_DIRECT != 0), "{flags:?}");
    });
}

#[test]
fn recorded_operations_show_write_then_sync() {
    let dir = Dir::new("recorded");
    let root = dir.0.clone();
    run(move || async move {
        let config = config(&root);
        let ops = OpLog::default();
        let mut log =
            Appender::open(GlommioIo::recording(ops.clone()), &config, PhyOffset(0), PhyOffset(0)).await.unwrap();
        for seed in 0..30 {
            let (at, bytes) = place(&mut log, seed, 3_000);
            let end = at + bytes.len() as u64;
            let before = ops.ops().len();
            let durable = seed % 2 == 0;
            log.write(durable).await.unwrap();
            let done = ops.ops().split_off(before);
            let segment_end = |op: &uringmq_store::io::glommio::Op| {
                let name = op.file.file_name().unwrap().to_str().unwrap();
                name.parse::<u64>().unwrap() + op.at + op.bytes
            };
            let covered = done.iter().position(|op| op.kind == OpKind::WriteEnd && segment_end(op) >= end).unwrap();
            let synced = done[covered..].iter().any(|op| op.kind == OpKind::SyncStart);
            assert_eq!(synced, durable);
            if durable {
                assert_eq!(done.last().unwrap().kind, OpKind::SyncEnd);
            }
            assert!(ops.ops().iter().enumerate().all(|(index, op)| op.seq == index as u64));
        }
    });
}

#[test]
fn a_synced_flight_writes_by_a_descriptor_that_syncs() {
    let dir = Dir::new("synced");
    let root = dir.0.clone();
    run(move || async move {
        let config = config(&root);
        let ops = OpLog::default();
        let mut log =
            Appender::open(GlommioIo::recording(ops.clone()), &config, PhyOffset(0), PhyOffset(0)).await.unwrap();
        let mut placed = vec![place(&mut log, 0, 300)];
        log.write(true).await.unwrap(); // the first one makes the segment
        for seed in 1..4 {
            placed.push(place(&mut log, seed, 3_000));
            let before = ops.ops().len();
            let landed = log.start(None, true).run().await;
            assert!(log.land(landed).unwrap().durable);
            let kinds: Vec<OpKind> = ops.ops().split_off(before).iter().map(|op| op.kind).collect();
            assert_eq!(kinds, [OpKind::WriteStart, OpKind::WriteEnd, OpKind::SyncStart, OpKind::SyncEnd]);
        }
        let flags = open_flags(&config.commit_log_dir.join(format!("{:020}", 0)));
        let syncing = flags.iter().filter(|flags| *flags & libc::O_DSYNC != 0 && *flags & libc::O_DIRECT != 0).count();
        assert_eq!((flags.len(), syncing), (2, 1), "one descriptor for all synced writes");
        let reader = LogReader::new(GlommioIo::new(), &config);
        for (at, bytes) in placed {
            let mut out = Vec::new();
            reader.read_record(PhyOffset(at), bytes.len() as u32, log.written(), &mut out).await.unwrap();
            assert_eq!(out, bytes);
        }
    });
}

#[test]
fn removal_under_a_reader_is_an_error_or_the_same_bytes() {
    let dir = Dir::new("removal");
    let root = dir.0.clone();
    run(move || async move {
        let config = config(&root);
        let mut log = Appender::open(GlommioIo::new(), &config, PhyOffset(0), PhyOffset(0)).await.unwrap();
        let mut placed = Vec::new();
        for seed in 0..400 {
            placed.push(place(&mut log, seed, 4_000));
            if seed % 3 == 2 {
                log.write(false).await.unwrap();
            }
        }
        log.write(false).await.unwrap();
        let limit = log.written();
        let keeper = log.keeper();
        let removing = glommio::spawn_local(async move {
            while !keeper.closed_segments().await.unwrap().is_empty() {
                keeper.remove_oldest(keeper.written()).await.unwrap();
            }
        });
        let mut gone = 0;
        for (at, bytes) in &placed {
            let reader = LogReader::new(GlommioIo::new(), &config); // a new one opens anew, in the middle of the removal
            let mut out = Vec::new();
            match reader.read_record(PhyOffset(*at), 4_000, limit, &mut out).await {
                Ok(()) => assert_eq!(out, *bytes),
                Err(StoreError::OutOfRange(_) | StoreError::Corrupt { .. }) => gone += 1,
                Err(e) => panic!("{e}"),
            }
        }
        removing.await;
        assert!(gone > 0, "the removal was met");
        assert_eq!(std::fs::read_dir(root.join("commitlog-next")).unwrap().count(), 0);
    });
}

#[test]
fn a_name_removed_while_it_is_opened_is_an_error() {
    let dir = Dir::new("vanishing");
    let root = dir.0.clone();
    run(move || async move {
        let io = GlommioIo::new();
        let path = root.join("file");
        let how = Open { access: Access::Read, direct: true };
        let (mut opened, mut missing) = (0, 0);
        let remover = glommio::spawn_local({
            let path = path.clone();
            let io = io.clone();
            async move {
                for _ in 0..200 {
                    std::fs::write(&path, [1; 8192]).unwrap();
                    glommio::yield_if_needed().await;
                    io.remove(&path).await.unwrap();
                }
            }
        });
        for _ in 0..400 {
            match io.open(&path, how).await {
                Ok(file) => {
                    assert!(file.read_at(0, 4096).await.unwrap().as_ref().iter().all(|byte| *byte == 1));
                    opened += 1;
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
                    missing += 1;
                }
            }
        }
        remover.await;
        assert!(opened + missing == 400 && missing > 0);
    });
}

#[test]
fn both_kinds_of_file_do_what_the_seam_says() {
    let dir = Dir::new("seam");
    let root = dir.0.clone();
    run(move || async move {
        let io = GlommioIo::new();
        for direct in [false, true] {
            let path = root.join(format!("deep/er/file-{direct}"));
            io.create_dir(path.parent().unwrap()).await.unwrap();
            io.create_dir(path.parent().unwrap()).await.unwrap();
            let file = io.open(&path, Open { access: Access::CreateNew, direct }).await.unwrap();
            let again = io.open(&path, Open { access: Access::CreateNew, direct }).await.unwrap_err();
            assert_eq!(again.kind(), ErrorKind::AlreadyExists);
            // Memory that was used before comes back zeroed.
            let mut used = file.buffer_unzeroed(8192);
            used.as_mut().fill(9);
            drop(used);
            assert!(file.buffer(8192).as_ref().iter().all(|byte| *byte == 0));
            file.allocate(65536).await.unwrap();
            assert_eq!(file.len().await.unwrap(), 65536);
            let mut buf = file.buffer(8192);
            buf.as_mut().fill(7);
            let (wrote, back) = write_all(&file, 4096, file.cut(buf, 4096)).await;
            wrote.unwrap();
            assert_eq!(back.as_ref(), [7; 4096]);
            let mut found = file.read_at(0, 12288).await.unwrap();
            assert!(found.as_ref()[..4096].iter().all(|byte| *byte == 0));
            assert!(found.as_ref()[4096..8192].iter().all(|byte| *byte == 7));
            assert!(found.as_ref()[8192..].iter().all(|byte| *byte == 0));
            // What was read can be changed and written back.
            found.as_mut().fill(5);
            file.write_at(0, found).await.0.unwrap();
            file.zero_range(4096, 8192).await.unwrap();
            file.datasync().await.unwrap();
            file.sync().await.unwrap();
            assert_eq!(file.read_at(4096, 4096).await.unwrap().as_ref(), [0; 4096]);
            assert_eq!(file.read_at(8192, 4096).await.unwrap().as_ref(), [5; 4096]);
            // A rename leaves the open file what it was.
            let moved = path.with_extension("moved");
            io.rename(&path, &moved).await.unwrap();
            file.set_len(12288).await.unwrap();
            assert_eq!(file.len().await.unwrap(), 12288);
            assert_eq!(file.read_at(8192, 8192).await.unwrap().as_ref().len(), 4096, "short at the end");
            assert_eq!(io.metadata(&moved).await.unwrap().bytes, 12288);
            assert!((io.now_ms() - io.metadata(&moved).await.unwrap().modified_ms).abs() < 60_000);
            io.sync_dir(moved.parent().unwrap()).await.unwrap();
        }
        let names = io.list(&root.join("deep/er")).await.unwrap();
        assert_eq!(names, [Path::new("file-false.moved"), Path::new("file-true.moved")]);
        assert!(io.metadata(&root.join("deep")).await.unwrap().is_dir);
        assert_eq!(io.list(&root.join("none")).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(io.remove_dir(&root.join("deep/er")).await.unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        let space = io.space(&root).await.unwrap();
        assert!(space.total_bytes > space.free_bytes && space.free_bytes > 0);
    });
}

#[test]
fn a_filesystem_without_direct_io_answers_with_an_error_or_falls_back() {
    // tmpfs: glommio falls back to the page cache, which the start check warns of.
    let root = Path::new("/dev/shm").join(format!("uringmq-tmpfs-{}", std::process::id()));
    if std::fs::create_dir_all(&root).is_err() {
        return;
    }
    let dir = Dir(root.clone());
    run(move || async move {
        let config = config(&root);
        let mut log = Appender::open(GlommioIo::new(), &config, PhyOffset(0), PhyOffset(0)).await.unwrap();
        let placed = place(&mut log, 1, 5_000);
        log.write(true).await.unwrap();
        assert_eq!(scan(GlommioIo::new(), &config, 0).await.records, [placed]);
    });
    drop(dir);
}
