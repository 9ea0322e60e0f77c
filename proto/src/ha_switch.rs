//! The frames by which a slave copies its master's log in controller mode (Apache's auto-switch HA), over a TCP connection that the slave
//! makes to the master's haListenPort. Big-endian. Source: replication sheet 7.2, 7.3.
//!
//! Slave to master, first:
//! | at | bytes | field |
//! | 0  | 4     | 1, handshake |
//! | 4  | 2     | 1: an empty log begins at the master's last segment (syncFromLastFile) |
//! | 6  | 2     | 1: never in the SyncStateSet (asyncLearner) |
//! | 8  | 8     | the slave's id at the controller |
//!
//! Master to slave, its answer, then the entries:
//! | 0  | 4     | 1, handshake |
//! | 4  | 4     | bytes of the entries |
//! | 8  | 8     | end of the master's log |
//! | 16 | 4     | master epoch |
//! | 20 | n     | 12 bytes each: epoch (4), where it begins (8) |
//!
//! Slave to master from then on, a report: `| 0 | 4 | 2, transfer |`, `| 4 | 8 | end of the slave's log |`. The first one says where to begin.
//!
//! Master to slave from then on:
//! | 0  | 4     | 2, transfer |
//! | 4  | 4     | bytes of the body; 0: a heartbeat |
//! | 8  | 8     | offset in the log of the body's first byte; of a heartbeat, of the byte that comes next |
//! | 16 | 4     | epoch of the body |
//! | 20 | 8     | where that epoch begins |
//! | 28 | 8     | confirm offset: up to there every member of the SyncStateSet has the log |
//! | 36 | n     | bytes of the log, within one segment and one epoch |
use crate::epochs::{EPOCHS_MAX, Epoch, EpochError, Epochs};
use crate::ha::BODY_BYTES_MAX;
use thiserror::Error;

pub const HANDSHAKE_BYTES: usize = 16;
pub const REPLY_HEAD_BYTES: usize = 20;
pub const REPORT_BYTES: usize = 12;
pub const HEAD_BYTES: usize = 36;
const ENTRY_BYTES: usize = 12;

const HANDSHAKE: i32 = 1;
const TRANSFER: i32 = 2;

/// What no peer of this protocol sends; the connection is of no more use.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SwitchError {
    #[error("a frame of state {got}, not {wanted}")]
    State { got: i32, wanted: i32 },
    #[error("{field} is {value}")]
    Field { field: &'static str, value: i64 },
    #[error("epochs: {0}")]
    Epochs(#[from] EpochError),
}

/// The slave's first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    pub from_last_file: bool,
    pub learner: bool,
    pub broker_id: i64,
}

/// The master's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub end: u64,
    pub master_epoch: i32,
    pub epochs: Epochs,
}

/// The head of a transfer frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub body_bytes: usize,
    pub at: u64,
    pub epoch: Epoch,
    pub confirm: u64,
}

/// Reads fields off the front of bytes that are all there.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (front, rest) = self.0.split_first_chunk::<N>().expect("the length was checked");
        self.0 = rest;
        *front
    }
    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.take())
    }
    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }
    fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.take())
    }
    fn offset(&mut self, field: &'static str) -> Result<u64, SwitchError> {
        let value = self.i64();
        u64::try_from(value).map_err(|_| SwitchError::Field { field, value })
    }
    fn bytes(&mut self, field: &'static str, max: usize) -> Result<usize, SwitchError> {
        let value = self.i32();
        let bytes = usize::try_from(value).ok().filter(|bytes| *bytes <= max);
        bytes.ok_or(SwitchError::Field { field, value: value.into() })
    }
    fn state(&mut self, wanted: i32) -> Result<(), SwitchError> {
        match self.i32() {
            got if got == wanted => Ok(()),
            got => Err(SwitchError::State { got, wanted }),
        }
    }
}

impl Handshake {
    pub fn encode(self) -> [u8; HANDSHAKE_BYTES] {
        let mut out = [0; HANDSHAKE_BYTES];
        out[..4].copy_from_slice(&HANDSHAKE.to_be_bytes());
        out[4..6].copy_from_slice(&i16::from(self.from_last_file).to_be_bytes());
        out[6..8].copy_from_slice(&i16::from(self.learner).to_be_bytes());
        out[8..].copy_from_slice(&self.broker_id.to_be_bytes());
        out
    }

    /// The handshake at the start of `bytes`; `None` when it is not all there yet.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, SwitchError> {
        if bytes.len() < HANDSHAKE_BYTES {
            return Ok(None);
        }
        let mut fields = Fields(bytes);
        fields.state(HANDSHAKE)?;
        let (from_last_file, learner) = (fields.i16() == 1, fields.i16() == 1);
        Ok(Some(Handshake { from_last_file, learner, broker_id: fields.i64() }))
    }
}

impl Reply {
    pub fn encode(&self) -> Vec<u8> {
        let entries = self.epochs.entries();
        let mut out = Vec::with_capacity(REPLY_HEAD_BYTES + entries.len() * ENTRY_BYTES);
        out.extend_from_slice(&HANDSHAKE.to_be_bytes());
        out.extend_from_slice(&((entries.len() * ENTRY_BYTES) as i32).to_be_bytes());
        out.extend_from_slice(&self.end.to_be_bytes());
        out.extend_from_slice(&self.master_epoch.to_be_bytes());
        for entry in entries {
            out.extend_from_slice(&entry.epoch.to_be_bytes());
            out.extend_from_slice(&entry.start.to_be_bytes());
        }
        out
    }

    /// The answer at the start of `bytes`, and how many bytes it has; `None` when it is not all there yet.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, SwitchError> {
        if bytes.len() < REPLY_HEAD_BYTES {
            return Ok(None);
        }
        let mut fields = Fields(bytes);
        fields.state(HANDSHAKE)?;
        let body = fields.bytes("bytes of the epochs", EPOCHS_MAX * ENTRY_BYTES)?;
        let (end, master_epoch) = (fields.offset("end of the master's log")?, fields.i32());
        if fields.0.len() < body {
            return Ok(None);
        }
        let entries: Result<Vec<Epoch>, SwitchError> = (0..body / ENTRY_BYTES)
            .map(|_| Ok(Epoch { epoch: fields.i32(), start: fields.offset("beginning of an epoch")? }))
            .collect();
        let epochs = Epochs::new(entries?)?;
        Ok(Some((Reply { end, master_epoch, epochs }, REPLY_HEAD_BYTES + body)))
    }
}

/// A slave's report that its log ends at `end`.
pub fn report(end: u64) -> [u8; REPORT_BYTES] {
    let mut out = [0; REPORT_BYTES];
    out[..4].copy_from_slice(&TRANSFER.to_be_bytes());
    out[4..].copy_from_slice(&end.to_be_bytes());
    out
}

/// Takes the whole reports off the front of `bytes`: the newest offset, if there is one, and how many bytes they are.
///
/// # Errors
/// A frame that is no report.
pub fn take_reports(bytes: &[u8]) -> Result<(Option<u64>, usize), SwitchError> {
    let whole = bytes.len() - bytes.len() % REPORT_BYTES;
    let mut newest = None;
    for report in bytes[..whole].chunks_exact(REPORT_BYTES) {
        let mut fields = Fields(report);
        fields.state(TRANSFER)?;
        newest = Some(fields.offset("reported end")?);
    }
    Ok((newest, whole))
}

impl Head {
    pub fn encode(self) -> [u8; HEAD_BYTES] {
        assert!(self.body_bytes <= BODY_BYTES_MAX, "a body of {} bytes", self.body_bytes);
        let mut out = [0; HEAD_BYTES];
        out[..4].copy_from_slice(&TRANSFER.to_be_bytes());
        out[4..8].copy_from_slice(&(self.body_bytes as u32).to_be_bytes());
        out[8..16].copy_from_slice(&self.at.to_be_bytes());
        out[16..20].copy_from_slice(&self.epoch.epoch.to_be_bytes());
        out[20..28].copy_from_slice(&self.epoch.start.to_be_bytes());
        out[28..].copy_from_slice(&self.confirm.to_be_bytes());
        out
    }

    /// The head at the start of `bytes`; `None` when it is not all there yet.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, SwitchError> {
        if bytes.len() < HEAD_BYTES {
            return Ok(None);
        }
        let mut fields = Fields(bytes);
        fields.state(TRANSFER)?;
        let body_bytes = fields.bytes("bytes of a body", BODY_BYTES_MAX)?;
        let at = fields.offset("offset of a body")?;
        let epoch = Epoch { epoch: fields.i32(), start: fields.offset("beginning of an epoch")? };
        // Apache's master says -1 before it has a confirm offset.
        let confirm = u64::try_from(fields.i64()).unwrap_or(0);
        Ok(Some(Head { body_bytes, at, epoch, confirm }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_stand_as_apache_writes_them() {
        let shake = Handshake { from_last_file: false, learner: true, broker_id: 0x0203 };
        assert_eq!(shake.encode(), [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 3]);
        let epochs = Epochs::new([Epoch { epoch: 1, start: 0 }, Epoch { epoch: 4, start: 0x0506 }]).unwrap();
        let reply = Reply { end: 0x0708, master_epoch: 4, epochs };
        let wanted = [
            &[0, 0, 0, 1, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 7, 8, 0, 0, 0, 4][..],
            &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 5, 6],
        ];
        assert_eq!(reply.encode(), wanted.concat());
        assert_eq!(report(0x0901), [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 9, 1]);
        let head = Head { body_bytes: 0x0304, at: 5, epoch: Epoch { epoch: 6, start: 7 }, confirm: 8 };
        let wanted = [0, 0, 0, 2, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(head.encode()[..28], wanted);
        assert_eq!(head.encode()[28..], [0, 0, 0, 0, 0, 0, 0, 8]);
    }

    #[test]
    fn a_frame_that_is_not_all_there_waits() {
        let shake = Handshake { from_last_file: true, learner: false, broker_id: 2 };
        let epochs = Epochs::new([Epoch { epoch: 1, start: 0 }]).unwrap();
        let reply = Reply { end: 9, master_epoch: 1, epochs };
        let head = Head { body_bytes: 3, at: 5, epoch: Epoch { epoch: 6, start: 7 }, confirm: 8 };
        let (shake_bytes, reply_bytes, head_bytes) = (shake.encode(), reply.encode(), head.encode());
        for cut in 0..shake_bytes.len() {
            assert_eq!(Handshake::decode(&shake_bytes[..cut]), Ok(None));
        }
        for cut in 0..reply_bytes.len() {
            assert_eq!(Reply::decode(&reply_bytes[..cut]), Ok(None));
        }
        for cut in 0..head_bytes.len() {
            assert_eq!(Head::decode(&head_bytes[..cut]), Ok(None));
        }
        assert_eq!(Handshake::decode(&shake_bytes), Ok(Some(shake)));
        let size = reply_bytes.len();
        assert_eq!(Reply::decode(&[reply_bytes, vec![9]].concat()), Ok(Some((reply, size))));
        assert_eq!(Head::decode(&head_bytes), Ok(Some(head)));
        let two = [report(5), report(7)].concat();
        assert_eq!([take_reports(&two), take_reports(&two[..23])], [Ok((Some(7), 24)), Ok((Some(5), 12))]);
    }

    #[test]
    fn what_no_peer_sends_is_refused_before_memory_is_taken() {
        assert_eq!(Handshake::decode(&[0; 16]), Err(SwitchError::State { got: 0, wanted: 1 }));
        let mut reply = Reply { end: 9, master_epoch: 1, epochs: Epochs::default() }.encode();
        reply[4..8].copy_from_slice(&i32::MAX.to_be_bytes());
        let field = "bytes of the epochs";
        assert_eq!(Reply::decode(&reply), Err(SwitchError::Field { field, value: i32::MAX.into() }));
        let mut head = Head { body_bytes: 3, at: 5, epoch: Epoch { epoch: 6, start: 7 }, confirm: 8 }.encode();
        head[8..16].copy_from_slice(&(-1i64).to_be_bytes());
        assert_eq!(Head::decode(&head), Err(SwitchError::Field { field: "offset of a body", value: -1 }));
        head[4..8].copy_from_slice(&(-1i32).to_be_bytes());
        assert_eq!(Head::decode(&head), Err(SwitchError::Field { field: "bytes of a body", value: -1 }));
        assert_eq!(take_reports(&[0; 12]), Err(SwitchError::State { got: 0, wanted: 2 }));
    }
}
