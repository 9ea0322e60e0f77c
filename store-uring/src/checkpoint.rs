//! How far the derived files got, and the clean-stop mark. Source: store-format sheet 6.
//!
//! | at | bytes | field of [`Checkpoint`] |
//! | 0  | 8     | `physic_ms`      |
//! | 8  | 8     | `logics_ms`      |
//! | 16 | 8     | `index_ms`       |
//! | 24 | 8     | `master_flushed` |
//! | 32 | 8     | `confirm_phy`    |
//! | 40 | 8     | `logics_phy`     |
//! | 48 | 8     | `lowered_from`, ours: Apache's broker neither reads nor changes it |
//! | 56 | 4040  | zero             |
//!
//! All that is not zero lies in one sector, so a write of it is whole or not at all.
use crate::io::{Access, File, Io, Open, is_unreadable, write_all};
use crate::{StoreError, file_failed as failed};
use std::io::ErrorKind;
use std::path::Path;
use uringmq_proto::types::PhyOffset;

const FILE_BYTES: usize = 4096;
const FIELDS: usize = 7;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Store time of the last record of the log that was synced.
    pub physic_ms: i64,
    /// Store time up to which all queues (and the index) are synced.
    pub logics_ms: i64,
    /// End time of the newest index item that is synced; to be written before the index header that it covers.
    pub index_ms: i64,
    pub master_flushed: u64,
    pub confirm_phy: u64,
    /// Start of the last record whose queue entry (and those of all before it) is synced; 0 = none.
    pub logics_phy: PhyOffset,
    /// What `logics_phy` was before a recovery that has not ended lowered it: records up to there are synced all the same. 0 = nothing of
    /// the kind; it stands only while `logics_ms` is 0, as that recovery left it.
    pub lowered_from: PhyOffset,
}

impl Checkpoint {
    fn encode(&self, out: &mut [u8]) {
        let fields: [i64; FIELDS] = [
            self.physic_ms,
            self.logics_ms,
            self.index_ms,
            self.master_flushed as i64,
            self.confirm_phy as i64,
            self.logics_phy.0 as i64,
            if self.logics_ms == 0 { self.lowered_from.0 as i64 } else { 0 },
        ];
        for (place, field) in out.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
    }
    /// Of the file's bytes, which may be short of it. Negative values, which no broker writes, count as 0.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut fields = [0i64; FIELDS];
        for (field, place) in fields.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..place.len()].copy_from_slice(place);
            *field = i64::from_be_bytes(padded).max(0);
        }
        let [physic_ms, logics_ms, index_ms, master_flushed, confirm_phy, logics_phy, lowered_from] = fields;
        Checkpoint {
            physic_ms,
            logics_ms,
            index_ms,
            master_flushed: master_flushed as u64,
            confirm_phy: confirm_phy as u64,
            logics_phy: PhyOffset(logics_phy as u64),
            lowered_from: PhyOffset(if logics_ms == 0 { lowered_from as u64 } else { 0 }),
        }
    }
}

/// `<root>/checkpoint`; all zero when missing or empty, a shorter file is read as padded with zeros. For a running store, which writes back
/// what it read: a read that fails is an error.
pub async fn read<I: Io>(io: &I, root: &Path) -> Result<Checkpoint, StoreError> {
    let path = root.join("checkpoint");
    let file = match io.open(&path, Open { access: Access::Read, direct: false }).await {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Checkpoint::default()),
        Err(e) => return Err(failed("open", &path, e)),
    };
    let bytes = file.read_at(0, FIELDS * 8).await.map_err(|e| failed("read", &path, e))?;
    Ok(Checkpoint::decode(bytes.as_ref()))
}

/// As `read`, for recovery: all zero, which makes it walk more of the log, when the file cannot be read.
pub async fn read_or_nothing<I: Io>(io: &I, root: &Path) -> Result<Checkpoint, StoreError> {
    match read(io, root).await {
        Err(StoreError::File { path, source, .. }) if is_unreadable(&source) => {
            tracing::error!(path = %path.display(), error = %source, "the checkpoint cannot be read; more of the log is walked");
            Ok(Checkpoint::default())
        }
        read => read,
    }
}

/// Writes the 4096 bytes in place (one sector) and syncs.
pub async fn write<I: Io>(io: &I, root: &Path, checkpoint: &Checkpoint) -> Result<(), StoreError> {
    let path = root.join("checkpoint");
    let mut text = [0; FILE_BYTES];
    checkpoint.encode(&mut text);
    write_in_place(io, root, &path, &text).await
}

/// `abort`: written and synced (directory too) before the first append. On a full disk it is empty: its name is the mark.
pub async fn mark_running<I: Io>(io: &I, root: &Path) -> Result<(), StoreError> {
    let path = root.join("abort");
    match write_in_place(io, root, &path, std::process::id().to_string().as_bytes()).await {
        Err(e) if e.is_no_space() && is_marked_running(io, root).await? => {
            io.sync_dir(root).await.map_err(|e| failed("sync", root, e))
        }
        marked => marked,
    }
}

/// Whether the store was not stopped cleanly (or is running).
pub async fn is_marked_running<I: Io>(io: &I, root: &Path) -> Result<bool, StoreError> {
    let path = root.join("abort");
    match io.metadata(&path).await {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed("stat", &path, e)),
    }
}

/// Removed last at a clean stop.
pub async fn mark_clean<I: Io>(io: &I, root: &Path) -> Result<(), StoreError> {
    let path = root.join("abort");
    match io.remove(&path).await {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(failed("remove", &path, e)),
    }
    io.sync_dir(root).await.map_err(|e| failed("sync", root, e))
}

/// Writes over the start of a file in place, syncs it, and its name when it is new.
/// `dir` holds it.
pub(crate) async fn write_in_place<I: Io>(io: &I, dir: &Path, path: &Path, text: &[u8]) -> Result<(), StoreError> {
    let file =
        io.open(path, Open { access: Access::Create, direct: false }).await.map_err(|e| failed("open", path, e))?;
    let before = file.len().await.map_err(|e| failed("stat", path, e))?;
    let mut buf = file.buffer(text.len());
    buf.as_mut().copy_from_slice(text);
    write_all(&file, 0, buf).await.0.map_err(|e| failed("write", path, e))?;
    file.datasync().await.map_err(|e| failed("sync", path, e))?;
    if before == 0 {
        io.sync_dir(dir).await.map_err(|e| failed("sync", dir, e))?;
    }
    Ok(())
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::io::sim::{Faults, SimIo, block_on};

    fn disk(seed: u64, faults: Faults) -> SimIo {
        let io = SimIo::new(seed, faults);
        io.plant_dir(Path::new("/s"));
        io
    }
    const ROOT: &str = "/s";
    const SOME: Checkpoint = Checkpoint {
        physic_ms: 1,
        logics_ms: 0x0102_0304_0506,
        index_ms: 3,
        master_flushed: 4,
        confirm_phy: 5,
        logics_phy: PhyOffset(0x0A0B_0C0D),
        lowered_from: PhyOffset(0),
    };

    #[test]
    fn the_bytes_are_those_of_the_sheet() {
        let io = disk(1, Faults::none());
        block_on(write(&io, Path::new(ROOT), &SOME)).unwrap();
        let bytes = io.contents(Path::new("/s/checkpoint")).unwrap();
        assert_eq!(bytes.len(), 4096);
        let golden = [
            0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0,
            0, 0, 0, 5, 0, 0, 0, 0, 0x0A, 0x0B, 0x0C, 0x0D,
        ];
        assert_eq!(bytes[..48], golden);
        assert!(bytes[48..].iter().all(|b| *b == 0));
        assert_eq!(block_on(read(&io, Path::new(ROOT))).unwrap(), SOME);
        assert_eq!(block_on(read(&io.after_crash(), Path::new(ROOT))).unwrap(), SOME);
    }

    #[test]
    fn what_cannot_be_read_is_nothing_for_recovery_alone() {
        let io = disk(1, Faults::none());
        block_on(write(&io, Path::new(ROOT), &SOME)).unwrap();
        assert!(io.make_unreadable(Path::new("/s/checkpoint"), 0, 512));
        let failed = block_on(read(&io, Path::new(ROOT)));
        assert!(matches!(failed, Err(StoreError::File { op: "read", .. })), "{failed:?}");
        assert_eq!(block_on(read_or_nothing(&io, Path::new(ROOT))).unwrap(), Checkpoint::default());
    }

    #[test]
    fn what_a_recovery_lowered_is_known_until_the_queues_are_synced_again() {
        let io = disk(1, Faults::none());
        let lowered = Checkpoint { logics_ms: 0, lowered_from: PhyOffset(0x1234), ..SOME };
        block_on(write(&io, Path::new(ROOT), &lowered)).unwrap();
        assert_eq!(block_on(read(&io, Path::new(ROOT))).unwrap(), lowered);
        // As Apache's broker does it: its own fields alone.
        let mut bytes = io.contents(Path::new("/s/checkpoint")).unwrap();
        bytes[15] = 9;
        io.plant(Path::new("/s/checkpoint"), &bytes);
        let read = block_on(read(&io, Path::new(ROOT))).unwrap();
        assert_eq!(read, Checkpoint { logics_ms: 9, lowered_from: PhyOffset(0), ..SOME });
    }

    #[test]
    fn a_missing_an_empty_and_a_short_file_are_read() {
        let io = disk(1, Faults::none());
        let get = |io: &SimIo| block_on(read(io, Path::new(ROOT))).unwrap();
        assert_eq!(get(&io), Checkpoint::default());
        io.plant(Path::new("/s/checkpoint"), b"");
        assert_eq!(get(&io), Checkpoint::default());
        io.plant(Path::new("/s/checkpoint"), &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(get(&io), Checkpoint { physic_ms: 9, logics_ms: 256, ..Checkpoint::default() });
        io.plant(Path::new("/s/checkpoint"), &[0xFF; 48]);
        assert_eq!(get(&io), Checkpoint::default());
    }

    #[test]
    fn a_crash_leaves_the_old_or_the_new_one() {
        let next = Checkpoint { physic_ms: 77, logics_phy: PhyOffset(99), ..SOME };
        for crash_at in 0..2 {
            for seed in 0..20 {
                let io = disk(seed, Faults::none());
                block_on(write(&io, Path::new(ROOT), &SOME)).unwrap();
                io.set_faults(Faults::crash_at(io.operations() + crash_at));
                assert!(block_on(write(&io, Path::new(ROOT), &next)).is_err());
                let found = block_on(read(&io.after_crash(), Path::new(ROOT))).unwrap();
                assert!(found == SOME || found == next, "seed {seed}, crash at {crash_at}");
            }
        }
    }

    #[test]
    fn the_running_mark_is_durable_when_made_and_when_removed() {
        for seed in 0..20 {
            let io = disk(seed, Faults::none());
            let root = Path::new(ROOT);
            assert!(!block_on(is_marked_running(&io, root)).unwrap());
            block_on(mark_clean(&io, root)).unwrap();
            block_on(mark_running(&io, root)).unwrap();
            block_on(mark_running(&io, root)).unwrap();
            assert!(block_on(is_marked_running(&io.after_crash(), root)).unwrap());
            block_on(mark_clean(&io, root)).unwrap();
            assert!(!block_on(is_marked_running(&io.after_crash(), root)).unwrap());
        }
    }
}
