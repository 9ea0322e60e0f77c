//! The stored record: layout, encode, patch, check. Big-endian. Disk and pull responses share it.
//! Source: store-format sheet 3.2 (the field table belongs in this head).
use std::net::SocketAddr;
use thiserror::Error;

pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
/// Smallest record: V1, IPv4 hosts, everything else empty.
pub const RECORD_BYTES_MIN: usize = 91;
pub const PROPERTIES_BYTES_MAX: usize = 32767;
/// Length of the blank record's head; a record never touches the last 8 bytes of a segment.
pub const BLANK_BYTES_MIN: usize = 8;

/// Everything of a record but what only the writer knows (queue offset, physical offset, store time).
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    pub topic: &'a str,
    pub queue_id: u32,
    pub flag: i32,
    /// The IPv6 bits are set by `encode` from the hosts.
    pub sys_flag: i32,
    pub born_timestamp_ms: i64,
    pub born_host: SocketAddr,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    /// Encoded properties. Concatenated without change: the second part is what the broker adds (may be empty). A separator
    /// 0x02 is put between when the first lacks it.
    pub properties: &'a str,
    pub more_properties: &'a str,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum EncodeError {
    #[error("topic of {bytes} bytes, limit {max}")]
    Topic { bytes: usize, max: usize },
    #[error("properties of {bytes} bytes, limit {PROPERTIES_BYTES_MAX}")]
    Properties { bytes: usize },
}

/// Appends the record to `out` with its body CRC, leaving queue offset, physical offset and store time zero. Returns its size.
/// V2 only when the topic is longer than 127 bytes.
pub fn encode(out: &mut Vec<u8>, r: &NewRecord<'_>) -> Result<usize, EncodeError> {
    let _ = (out, r);
    todo!()
}

/// Writes what only the writer knows into an encoded record.
pub fn patch(record: &mut [u8], queue_offset: u64, phy_offset: u64, store_timestamp_ms: i64) {
    let _ = (record, queue_offset, phy_offset, store_timestamp_ms);
    todo!()
}

/// A parsed record, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub bytes: usize,
    pub body_crc: u32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub phy_offset: i64,
    pub sys_flag: i32,
    pub born_timestamp_ms: i64,
    pub born_host: SocketAddr,
    pub store_timestamp_ms: i64,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    pub topic: &'a str,
    pub properties: &'a str,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// `bytes` says how long the record claims to be, when its head could be read.
    #[error("record cut short: has {has}, wants {wants}")]
    Short { has: usize, wants: usize },
    #[error("not a record: {0}")]
    Bad(&'static str),
    #[error("body CRC {found:#x}, stored {stored:#x}")]
    Crc { found: u32, stored: u32 },
}

/// What stands at the start of `buf`.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a> {
    Record(Record<'a>),
    /// The rest of the segment is filler; `bytes` to its end.
    Blank { bytes: usize },
}

/// Parses one record; the body CRC is checked when `check_crc` (an empty body never is). All lengths are checked against each
/// other and against the total: the sum must be exact. Never panics, never allocates.
pub fn parse(buf: &[u8], check_crc: bool) -> Result<Found<'_>, RecordError> {
    let _ = (buf, check_crc);
    todo!()
}

/// Store time of an encoded record without parsing the rest (search by time). `record` holds at least its first 84 bytes.
pub fn store_timestamp_ms(record: &[u8]) -> Option<i64> {
    let _ = record;
    todo!()
}

/// The index key strings' hashes of a record, as Java's index computes them: `abs(hash(topic#key))` for UNIQ_KEY, each piece of
/// KEYS, and `topic#T#tags` for the tag; i32 minimum becomes 0. Nothing for a rollback record. Source: store-format sheet 5.2.
pub fn index_key_hashes(topic: &str, properties: &str, sys_flag: i32, mut each: impl FnMut(u32)) {
    let _ = (topic, properties, sys_flag, &mut each);
    todo!()
}

/// Hash of one index key string `topic#key` (or `topic#T#tag`).
pub fn index_hash(topic: &str, key: &str) -> u32 {
    let _ = (topic, key);
    todo!()
}
