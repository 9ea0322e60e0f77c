//! The frames by which a slave copies its master's log (Apache's default HA protocol), over a TCP connection that the slave makes to
//! the master's haListenPort. Big-endian. Source: replication sheet 2.2, 2.3.
//!
//! Slave to master, a report, nothing else: `| 0 | 8 | end of the slave's log |`. The first one says where to begin.
//!
//! Master to slave:
//! | at | bytes | field |
//! | 0  | 8     | offset in the log of the body's first byte; without a body (heartbeat), of the byte that comes next |
//! | 8  | 4     | bytes of the body |
//! | 12 | n     | bytes of the log as they stand there, within one segment, cut anywhere |
use thiserror::Error;

pub const REPORT_BYTES: usize = 8;
pub const HEAD_BYTES: usize = 12;
/// More in one body is no master's: Apache's default is 32 KiB, and its slave has a buffer of 4 MiB.
pub const BODY_BYTES_MAX: usize = 4 << 20;

/// What no peer of this protocol sends; the connection is of no more use.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HaError {
    #[error("offset {0} is below 0")]
    Offset(i64),
    #[error("a body of {bytes} bytes at {at}, limit {BODY_BYTES_MAX}")]
    Body { at: u64, bytes: i32 },
}

/// The head of a transfer frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferHead {
    pub at: u64,
    /// 0: a heartbeat.
    pub body_bytes: usize,
}

impl TransferHead {
    pub fn encode(self) -> [u8; HEAD_BYTES] {
        assert!(self.body_bytes <= BODY_BYTES_MAX, "a body of {} bytes", self.body_bytes);
        let mut out = [0; HEAD_BYTES];
        out[..8].copy_from_slice(&self.at.to_be_bytes());
        out[8..].copy_from_slice(&(self.body_bytes as u32).to_be_bytes());
        out
    }

    /// The head at the start of `bytes`; `None` when it is not all there yet.
    ///
    /// # Errors
    /// [`HaError`].
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, HaError> {
        let Some((at, rest)) = bytes.split_first_chunk::<8>() else { return Ok(None) };
        let Some(body_bytes) = rest.first_chunk::<4>() else { return Ok(None) };
        let at = i64::from_be_bytes(*at);
        let at = u64::try_from(at).map_err(|_| HaError::Offset(at))?;
        let bytes = i32::from_be_bytes(*body_bytes);
        match usize::try_from(bytes) {
            Ok(body_bytes) if body_bytes <= BODY_BYTES_MAX => Ok(Some(TransferHead { at, body_bytes })),
            _ => Err(HaError::Body { at, bytes }),
        }
    }
}

/// Takes the whole reports off the front of `bytes`: the newest offset, if there is one, and how many bytes they are.
///
/// # Errors
/// A negative offset.
pub fn take_reports(bytes: &[u8]) -> Result<(Option<u64>, usize), HaError> {
    let whole = bytes.len() - bytes.len() % REPORT_BYTES;
    let mut newest = None;
    for report in bytes[..whole].chunks_exact(REPORT_BYTES) {
        let offset = i64::from_be_bytes(report.try_into().expect("8 bytes"));
        newest = Some(u64::try_from(offset).map_err(|_| HaError::Offset(offset))?);
    }
    Ok((newest, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_stands_as_apache_writes_it() {
        let head = TransferHead { at: 0x0102_0304_0506, body_bytes: 0x0708 };
        assert_eq!(head.encode(), [0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 7, 8]);
        let mut bytes = head.encode().to_vec();
        bytes.push(9);
        assert_eq!(TransferHead::decode(&bytes), Ok(Some(head)));
        for cut in 0..HEAD_BYTES {
            assert_eq!(TransferHead::decode(&bytes[..cut]), Ok(None), "{cut} bytes");
        }
    }

    #[test]
    fn what_no_master_sends_is_refused_before_memory_is_taken() {
        let head = |at: i64, bytes: i32| [&at.to_be_bytes()[..], &bytes.to_be_bytes()[..]].concat();
        assert_eq!(TransferHead::decode(&head(-1, 0)), Err(HaError::Offset(-1)));
        assert_eq!(TransferHead::decode(&head(5, -1)), Err(HaError::Body { at: 5, bytes: -1 }));
        let large = BODY_BYTES_MAX as i32 + 1;
        assert_eq!(TransferHead::decode(&head(5, large)), Err(HaError::Body { at: 5, bytes: large }));
        assert!(TransferHead::decode(&head(i64::MAX, BODY_BYTES_MAX as i32)).is_ok());
    }

    #[test]
    fn of_several_reports_the_newest_counts_and_a_cut_one_waits() {
        let mut bytes = [7u64.to_be_bytes(), 9u64.to_be_bytes()].concat();
        assert_eq!(take_reports(&bytes), Ok((Some(9), 16)));
        bytes.extend([0; 7]);
        assert_eq!(take_reports(&bytes), Ok((Some(9), 16)));
        assert_eq!(take_reports(&bytes[..7]), Ok((None, 0)));
        assert_eq!(take_reports(&(-2i64).to_be_bytes()), Err(HaError::Offset(-2)));
    }
}
