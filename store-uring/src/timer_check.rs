//! How far the timers are: `config/timercheck`, also the body of request 60. Source: store-format sheet 10.
//!
//! | at | bytes | field of a [`TimerCheck`] |
//! | 0  | 8     | `read_ms` |
//! | 8  | 8     | `log_at` |
//! | 16 | 8     | `queue_offset` |
//! | 24 | 8     | `master_queue_offset` |
//! | 32 | 24    | `version`: state version, timestamp, counter |
//! | 56 | 4040  | zero |
use crate::StoreError;
use crate::io::{Access, File, Io, Open, write_all};
use std::io::ErrorKind;
use std::path::Path;
use uringmq_proto::body::topic::DataVersion;

const FILE_BYTES: usize = 4096;
pub const CHECK_BYTES: usize = 56;
const FIELDS: usize = CHECK_BYTES / 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerCheck {
    /// All slots before it are done.
    pub read_ms: i64,
    /// The timer log is synced up to here.
    pub log_at: i64,
    /// Next entry of the timer topic to be enqueued; all before it hang on the synced wheel, or are done.
    pub queue_offset: i64,
    /// As the master has it; on the master the same.
    pub master_queue_offset: i64,
    pub version: DataVersion,
}

impl TimerCheck {
    pub fn encode(&self) -> [u8; CHECK_BYTES] {
        let v = &self.version;
        let fields: [i64; FIELDS] = [
            self.read_ms,
            self.log_at,
            self.queue_offset,
            self.master_queue_offset,
            v.state_version,
            v.timestamp,
            v.counter,
        ];
        let mut out = [0; CHECK_BYTES];
        for (place, field) in out.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        out
    }

    /// Of the file's bytes, which may be short of it. Negative values, which no broker writes, count as 0.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut fields = [0i64; FIELDS];
        for (field, place) in fields.iter_mut().zip(bytes.chunks_exact(8)) {
            *field = i64::from_be_bytes(place.try_into().expect("8 bytes")).max(0);
        }
        let [read_ms, log_at, queue_offset, master_queue_offset, state_version, timestamp, counter] = fields;
        let version = DataVersion { counter, state_version, timestamp };
        TimerCheck { read_ms, log_at, queue_offset, master_queue_offset, version }
    }
}

fn failed(op: &'static str, path: &Path, source: std::io::Error) -> StoreError {
    StoreError::File { op, path: path.to_owned(), source }
}

/// `None` when it was never written.
pub async fn read<I: Io>(io: &I, path: &Path) -> Result<Option<TimerCheck>, StoreError> {
    let file = match io.open(path, Open { access: Access::Read, direct: false }).await {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed("open", path, e)),
    };
    let bytes = file.read_at(0, CHECK_BYTES).await.map_err(|e| failed("read", path, e))?;
    Ok((bytes.as_ref().len() == CHECK_BYTES).then(|| TimerCheck::decode(bytes.as_ref())))
}

/// Writes it in place (one sector) and syncs. The directory must be there.
pub async fn write<I: Io>(io: &I, path: &Path, check: &TimerCheck) -> Result<(), StoreError> {
    let file =
        io.open(path, Open { access: Access::Create, direct: false }).await.map_err(|e| failed("open", path, e))?;
    let before = file.len().await.map_err(|e| failed("stat", path, e))?;
    let mut buf = file.buffer(FILE_BYTES);
    buf.as_mut()[..CHECK_BYTES].copy_from_slice(&check.encode());
    write_all(&file, 0, buf).await.0.map_err(|e| failed("write", path, e))?;
    file.datasync().await.map_err(|e| failed("sync", path, e))?;
    if before == 0 {
        let dir = path.parent().unwrap_or(Path::new("."));
        io.sync_dir(dir).await.map_err(|e| failed("sync", dir, e))?;
    }
    Ok(())
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::io::sim::{Faults, SimIo, block_on};

    /// What Apache's broker 5.5.0 wrote.
    const GOLDEN: &str = "000001a22c94868800000000000002a4000000000000000d000000000000000d\
                          0000000000000000000001a22c948953000000000000001e";

    #[test]
    fn the_bytes_are_apaches() {
        let golden: Vec<u8> =
            (0..GOLDEN.len()).step_by(2).map(|at| u8::from_str_radix(&GOLDEN[at..at + 2], 16).unwrap()).collect();
        let check = TimerCheck::decode(&golden);
        let version = DataVersion { counter: 30, state_version: 0, timestamp: 1_796_044_261_715 };
        let want =
            TimerCheck { read_ms: 1_796_044_261_000, log_at: 676, queue_offset: 13, master_queue_offset: 13, version };
        assert_eq!((check, check.encode().as_slice()), (want, golden.as_slice()));
        let io = SimIo::new(1, Faults::none());
        io.plant_dir(Path::new("/c"));
        let path = Path::new("/c/timercheck");
        assert_eq!(block_on(read(&io, path)).unwrap(), None);
        block_on(write(&io, path, &check)).unwrap();
        assert_eq!(io.contents(path).unwrap().len(), 4096);
        assert_eq!(block_on(read(&io.after_crash(), path)).unwrap(), Some(check));
        io.plant(path, &[0xFF; 4096]);
        assert_eq!(block_on(read(&io, path)).unwrap(), Some(TimerCheck::default()));
        io.plant(path, &[1; 30]);
        assert_eq!(block_on(read(&io, path)).unwrap(), None, "a torn one");
    }
}
