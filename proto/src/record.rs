//! The stored record: layout, encode, patch, check. Big-endian. Disk and pull responses share it.
//! Source: store-format sheet 3.1, 3.2, 5.2.
//!
//! B and S are 8 or 20: an IPv4 or IPv6 address and an i32 port, by sysFlag bits 4 and 5.
//!
//! | at       | bytes  | field                        | set by                                           |
//! | -------- | ------ | ---------------------------- | ------------------------------------------------ |
//! | 0        | 4      | total size                   | shard                                            |
//! | 4        | 4      | magic (V1, V2)               | shard; V2 only for topics above 127 bytes        |
//! | 8        | 4      | body CRC-32, lower 31 bits   | shard                                            |
//! | 12       | 4      | queue id                     | shard                                            |
//! | 16       | 4      | flag                         | client                                           |
//! | 20       | 8      | queue offset                 | writer                                           |
//! | 28       | 8      | physical offset              | writer                                           |
//! | 36       | 4      | sysFlag                      | client, host bits by the shard                   |
//! | 40       | 8      | born timestamp, ms           | client                                           |
//! | 48       | B      | born host                    | shard                                            |
//! | 48+B     | 8      | store timestamp, ms          | writer                                           |
//! | 56+B     | S      | store host                   | shard                                            |
//! | 56+B+S   | 4      | reconsume times              | client                                           |
//! | 60+B+S   | 8      | prepared transaction offset  | shard                                            |
//! | 68+B+S   | 4 + n  | body length, body            | client                                           |
//! | ...      | 1 + n  | topic length (2 in V2), topic| client                                           |
//! | ...      | 2 + n  | properties length, properties| client, then shard                               |
//!
//! A blank record (size to the end of the segment, magic, filler) closes a segment.
use crate::message::{java_hash, prop, properties, sys_flag};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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

/// Longest topic of a V1 record; Java reads the length byte as signed.
const TOPIC_V1_BYTES_MAX: usize = 127;
/// Longest topic of all.
pub const TOPIC_BYTES_MAX: usize = 255;

const QUEUE_OFFSET_AT: usize = 20;
const PHY_OFFSET_AT: usize = 28;
const SYS_FLAG_AT: usize = 36;
const BORN_HOST_AT: usize = 48;
/// `0x02`, which ends a property.
const SEPARATOR: u8 = 2;

/// Appends the record to `out` with its body CRC, leaving queue offset, physical offset and store time zero. Returns its size.
/// V2 only when the topic is longer than 127 bytes. On an error `out` is as before.
pub fn encode(out: &mut Vec<u8>, r: &NewRecord<'_>) -> Result<usize, EncodeError> {
    if r.topic.len() > TOPIC_BYTES_MAX {
        return Err(EncodeError::Topic { bytes: r.topic.len(), max: TOPIC_BYTES_MAX });
    }
    let first = r.properties.as_bytes();
    let separator = !first.is_empty() && !r.more_properties.is_empty() && first.last() != Some(&SEPARATOR);
    let properties_bytes = first.len() + separator as usize + r.more_properties.len();
    if properties_bytes > PROPERTIES_BYTES_MAX {
        return Err(EncodeError::Properties { bytes: properties_bytes });
    }
    let (born_ip, store_ip) = (r.born_host.ip().to_canonical(), r.store_host.ip().to_canonical());
    let mut sys_flag = r.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6);
    sys_flag |= if born_ip.is_ipv6() { sys_flag::BORN_HOST_V6 } else { 0 };
    sys_flag |= if store_ip.is_ipv6() { sys_flag::STORE_HOST_V6 } else { 0 };
    let v2 = r.topic.len() > TOPIC_V1_BYTES_MAX;
    let hosts_more = 12 * (born_ip.is_ipv6() as usize + store_ip.is_ipv6() as usize);
    let bytes = RECORD_BYTES_MIN + hosts_more + v2 as usize + r.body.len() + r.topic.len() + properties_bytes;

    out.reserve(bytes);
    let start = out.len();
    put(out, (bytes as u32).to_be_bytes());
    put(out, if v2 { MAGIC_V2 } else { MAGIC_V1 }.to_be_bytes());
    put(out, body_crc(r.body).to_be_bytes());
    put(out, r.queue_id.to_be_bytes());
    put(out, r.flag.to_be_bytes());
    put(out, [0; 16]); // queue offset and physical offset
    put(out, sys_flag.to_be_bytes());
    put(out, r.born_timestamp_ms.to_be_bytes());
    put_host(out, born_ip, r.born_host.port());
    put(out, [0; 8]); // store timestamp
    put_host(out, store_ip, r.store_host.port());
    put(out, r.reconsume_times.to_be_bytes());
    put(out, r.prepared_transaction_offset.to_be_bytes());
    put(out, (r.body.len() as u32).to_be_bytes());
    out.extend_from_slice(r.body);
    if v2 {
        put(out, (r.topic.len() as u16).to_be_bytes());
    } else {
        put(out, [r.topic.len() as u8]);
    }
    out.extend_from_slice(r.topic.as_bytes());
    put(out, (properties_bytes as u16).to_be_bytes());
    out.extend_from_slice(first);
    if separator {
        put(out, [SEPARATOR]);
    }
    out.extend_from_slice(r.more_properties.as_bytes());
    assert_eq!(out.len() - start, bytes, "the size field tells what was written");
    Ok(bytes)
}

fn put<const N: usize>(out: &mut Vec<u8>, bytes: [u8; N]) {
    out.extend_from_slice(&bytes);
}

fn put_host(out: &mut Vec<u8>, ip: IpAddr, port: u16) {
    match ip {
        IpAddr::V4(ip) => put(out, ip.octets()),
        IpAddr::V6(ip) => put(out, ip.octets()),
    }
    put(out, (port as u32).to_be_bytes());
}

/// CRC-32 (zip polynomial) of a stored body, its top bit cleared.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

/// Writes what only the writer knows into an encoded record.
///
/// # Panics
/// When `record` is shorter than a record: it comes from [`encode`].
pub fn patch(record: &mut [u8], queue_offset: u64, phy_offset: u64, store_timestamp_ms: i64) {
    assert!(record.len() >= RECORD_BYTES_MIN, "an encoded record");
    let store_at = store_timestamp_at(record).expect("the length was just checked");
    record[QUEUE_OFFSET_AT..QUEUE_OFFSET_AT + 8].copy_from_slice(&queue_offset.to_be_bytes());
    record[PHY_OFFSET_AT..PHY_OFFSET_AT + 8].copy_from_slice(&phy_offset.to_be_bytes());
    record[store_at..store_at + 8].copy_from_slice(&store_timestamp_ms.to_be_bytes());
}

/// Puts the last of a record's properties, which only the writer knows, in the place of the `reserved` bytes that [`encode`] was given for
/// them at the properties' end. Returns the record's size, which may be smaller now.
///
/// # Panics
/// When `record` is not the whole record, or `text` is longer than what is reserved.
pub fn finish(record: &mut [u8], reserved: usize, text: &str) -> usize {
    assert!(text.len() <= reserved && reserved < record.len(), "{} bytes for {}", reserved, text.len());
    let (at, less) = (record.len() - reserved, reserved - text.len());
    record[at..at + text.len()].copy_from_slice(text.as_bytes());
    let bytes = record.len() - less;
    record[..4].copy_from_slice(&(bytes as u32).to_be_bytes());
    let length_at = properties_length_at(record);
    let length = u16::from_be_bytes([record[length_at], record[length_at + 1]]);
    let length = length.checked_sub(less as u16).expect("the reserved bytes are properties");
    record[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Where the length of the properties stands in a record of [`encode`].
fn properties_length_at(record: &[u8]) -> usize {
    let number = |at: usize| i32::from_be_bytes(*record[at..].first_chunk().expect("an encoded record"));
    let sys_flag = number(SYS_FLAG_AT);
    let hosts =
        host_bytes(sys_flag & sys_flag::BORN_HOST_V6 != 0) + host_bytes(sys_flag & sys_flag::STORE_HOST_V6 != 0);
    let body_at = BORN_HOST_AT + hosts + 20;
    let topic_at = body_at + 4 + number(body_at) as usize;
    let v2 = number(4) as u32 == MAGIC_V2;
    match v2 {
        true => topic_at + 2 + u16::from_be_bytes([record[topic_at], record[topic_at + 1]]) as usize,
        false => topic_at + 1 + record[topic_at] as usize,
    }
}

fn store_timestamp_at(record: &[u8]) -> Option<usize> {
    let sys_flag = i32::from_be_bytes(*record.get(SYS_FLAG_AT..)?.first_chunk()?);
    Some(BORN_HOST_AT + host_bytes(sys_flag & sys_flag::BORN_HOST_V6 != 0))
}

fn host_bytes(v6: bool) -> usize {
    if v6 { 20 } else { 8 }
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
    Blank {
        bytes: usize,
    },
}

/// Reads fields in order; the caller's total says that they are all there, and each read checks it again.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(RecordError::Bad("fields reach beyond its size"))?;
        self.0 = rest;
        Ok(*array)
    }
    fn i32(&mut self) -> Result<i32, RecordError> {
        Ok(i32::from_be_bytes(self.array()?))
    }
    fn i64(&mut self) -> Result<i64, RecordError> {
        Ok(i64::from_be_bytes(self.array()?))
    }
    /// The lower 16 bits of the port field: Java writes no others.
    fn host(&mut self, v6: bool) -> Result<SocketAddr, RecordError> {
        let ip = if v6 {
            IpAddr::V6(Ipv6Addr::from(self.array::<16>()?))
        } else {
            IpAddr::V4(Ipv4Addr::from(self.array::<4>()?))
        };
        Ok(SocketAddr::new(ip, self.i32()? as u16))
    }
    fn bytes(&mut self, bytes: impl TryInto<usize>, what: &'static str) -> Result<&'a [u8], RecordError> {
        let bytes = bytes.try_into().ok().and_then(|bytes| self.0.split_at_checked(bytes));
        let (taken, rest) = bytes.ok_or(RecordError::Bad(what))?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Parses one record; the body CRC is checked when `check_crc` (an empty body never is). All lengths are checked against each
/// other and against the total: the sum must be exact. Never panics, never allocates.
///
/// `Short` is only answered to a plausible head, so that its `wants` is worth reading; it may still be larger than any segment.
/// A property text that is not UTF-8 throughout (some clients' batches) is given up to where it stops being so.
pub fn parse(buf: &[u8], check_crc: bool) -> Result<Found<'_>, RecordError> {
    let Some(head) = buf.first_chunk::<BLANK_BYTES_MIN>() else {
        return Err(RecordError::Short { has: buf.len(), wants: BLANK_BYTES_MIN });
    };
    let [s0, s1, s2, s3, m0, m1, m2, m3] = *head;
    let bytes = usize::try_from(i32::from_be_bytes([s0, s1, s2, s3])).map_err(|_| RecordError::Bad("negative size"))?;
    let magic = u32::from_be_bytes([m0, m1, m2, m3]);
    match magic {
        MAGIC_BLANK if bytes >= BLANK_BYTES_MIN => return Ok(Found::Blank { bytes }),
        MAGIC_V1 | MAGIC_V2 if bytes >= RECORD_BYTES_MIN => {}
        MAGIC_BLANK | MAGIC_V1 | MAGIC_V2 => return Err(RecordError::Bad("size is too small")),
        _ => return Err(RecordError::Bad("unknown magic")),
    }
    let whole = buf.get(..bytes).ok_or(RecordError::Short { has: buf.len(), wants: bytes })?;
    let mut f = Fields(&whole[BLANK_BYTES_MIN..]);
    let body_crc = u32::from_be_bytes(f.array()?);
    let queue_id = f.i32()?;
    let flag = f.i32()?;
    let queue_offset = f.i64()?;
    let phy_offset = f.i64()?;
    let sys_flag = f.i32()?;
    let born_timestamp_ms = f.i64()?;
    let born_host = f.host(sys_flag & sys_flag::BORN_HOST_V6 != 0)?;
    let store_timestamp_ms = f.i64()?;
    let store_host = f.host(sys_flag & sys_flag::STORE_HOST_V6 != 0)?;
    let reconsume_times = f.i32()?;
    let prepared_transaction_offset = f.i64()?;
    let length = f.i32()?;
    let body = f.bytes(length, "body length")?;
    let topic_bytes = if magic == MAGIC_V1 { f.array::<1>()?[0] as i8 as i16 } else { i16::from_be_bytes(f.array()?) };
    let topic = f.bytes(topic_bytes, "topic length")?;
    let topic = std::str::from_utf8(topic).map_err(|_| RecordError::Bad("topic is not UTF-8"))?;
    let length = i16::from_be_bytes(f.array()?);
    let properties = f.bytes(length, "properties length")?;
    if !f.0.is_empty() {
        return Err(RecordError::Bad("size is not the sum of its parts"));
    }
    if check_crc && !body.is_empty() {
        let found = self::body_crc(body);
        if found != body_crc {
            return Err(RecordError::Crc { found, stored: body_crc });
        }
    }
    Ok(Found::Record(Record {
        bytes,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        phy_offset,
        sys_flag,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body,
        topic,
        properties: utf8_prefix(properties),
    }))
}

fn utf8_prefix(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("valid up to there, by the error's own word")
        }
    }
}

/// Store time of an encoded record without parsing the rest (search by time). `record` holds at least its first 84 bytes;
/// `None` when it is too short for the field.
pub fn store_timestamp_ms(record: &[u8]) -> Option<i64> {
    let at = store_timestamp_at(record)?;
    Some(i64::from_be_bytes(*record.get(at..)?.first_chunk()?))
}

/// The index key strings' hashes of a record, as Java's index computes them: `abs(hash(topic#key))` for UNIQ_KEY, each piece of
/// KEYS, and `topic#T#tags` for the tag; i32 minimum becomes 0. Nothing for a rollback record. Source: store-format sheet 5.2.
pub fn index_key_hashes(topic: &str, properties: &str, sys_flag: i32, each: impl FnMut(u32)) {
    if sys_flag & sys_flag::TRANSACTION_MASK == sys_flag::TRANSACTION_ROLLBACK {
        return;
    }
    let (mut uniq_key, mut keys, mut tags) = (None, None, None);
    for (name, value) in self::properties(properties) {
        match name {
            prop::UNIQ_KEY => uniq_key = Some(value),
            prop::KEYS => keys = Some(value),
            prop::TAGS => tags = Some(value),
            _ => {}
        }
    }
    index_hashes(topic, uniq_key, keys, tags, each);
}

/// As [`index_key_hashes`], of properties that were looked up already. Empty ones count as absent.
pub fn index_hashes(
    topic: &str,
    uniq_key: Option<&str>,
    keys: Option<&str>,
    tags: Option<&str>,
    mut each: impl FnMut(u32),
) {
    if uniq_key.or(keys).or(tags).is_none() {
        return;
    }
    let topic_hash = java_hash("#", java_hash(topic, 0));
    let pieces = keys.into_iter().flat_map(|keys| keys.split(' '));
    for key in uniq_key.into_iter().chain(pieces).filter(|key| !key.is_empty()) {
        each(positive(java_hash(key, topic_hash)));
    }
    if let Some(tags) = tags.filter(|tags| !tags.is_empty()) {
        each(positive(java_hash(tags, java_hash("T#", topic_hash))));
    }
}

/// Hash of one index key string `topic#key` (or `topic#T#tag`, for the key `T#tag`).
pub fn index_hash(topic: &str, key: &str) -> u32 {
    positive(java_hash(key, java_hash("#", java_hash(topic, 0))))
}

/// Java's `Math.abs`, whose one negative answer becomes 0.
fn positive(hash: i32) -> u32 {
    hash.checked_abs().unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_properties_come_when_they_are_known() {
        for (host, topic) in [("127.0.0.1:1", "T"), ("[::1]:1", "T"), ("127.0.0.1:1", &*"T".repeat(130))] {
            for properties in ["", "A\u{1}b\u{2}", "A\u{1}b"] {
                let free = "\u{2}".repeat(33);
                let host = host.parse().unwrap();
                let record = NewRecord { born_host: host, topic, more_properties: &free, ..new(topic, properties) };
                let mut bytes = Vec::new();
                encode(&mut bytes, &record).unwrap();
                let size = finish(&mut bytes, 33, "INNER_BASE\u{1}12\u{2}");
                bytes.truncate(size);
                let known = NewRecord { more_properties: "INNER_BASE\u{1}12\u{2}", ..record };
                let mut same = Vec::new();
                encode(&mut same, &known).unwrap();
                assert_eq!(bytes, same, "{host} {properties:?}");
            }
        }
    }

    fn new<'a>(topic: &'a str, properties: &'a str) -> NewRecord<'a> {
        NewRecord {
            topic,
            queue_id: 3,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 1_700_000_000_000,
            born_host: "127.0.0.1:50001".parse().unwrap(),
            store_host: "10.0.0.9:10911".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"hi",
            properties,
            more_properties: "",
        }
    }

    fn encoded(r: &NewRecord<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        assert_eq!(encode(&mut out, r), Ok(out.len()));
        patch(&mut out, 7, 1000, 1_700_000_000_123);
        out
    }

    fn record(buf: &[u8]) -> Record<'_> {
        match parse(buf, true).unwrap() {
            Found::Record(record) => record,
            blank => panic!("{blank:?}"),
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    /// Vector: store-format sheet 3.2.
    const V101: &str = "00000065 daa320a7 58932aac 00000003 00000000 0000000000000007 00000000000003e8 00000000
        0000018bcfe56800 7f000001 0000c351 0000018bcfe5687b 0a000009 00002a9f 00000000 0000000000000000
        00000002 6869 01 54 0007 54414753 01 41 02";
    /// Vector: wire-protocol sheet 12.1.
    const V107: &str = "0000006b daa320a7 3610a686 00000003 00000000 0000000000000005 0000000000000400 00000000
        0000018bcfe56800 0a000001 0000c350 0000018bcfe56801 0a000001 00002a9f 00000000 0000000000000000
        00000005 68656c6c6f 01 54 000a 54414753 01 54616741 02";

    #[test]
    fn the_sheets_vectors_encode_and_parse() {
        assert_eq!(encoded(&new("T", "TAGS\u{1}A\u{2}")), hex(V101));
        let bytes = hex(V107);
        let r = record(&bytes);
        assert_eq!((r.bytes, r.queue_id, r.queue_offset, r.phy_offset), (107, 3, 5, 1024));
        assert_eq!((r.topic, r.body, r.properties), ("T", &b"hello"[..], "TAGS\u{1}TagA\u{2}"));
        assert_eq!(
            (r.born_host.to_string(), r.store_host.to_string()),
            ("10.0.0.1:50000".into(), "10.0.0.1:10911".into())
        );
        assert_eq!(store_timestamp_ms(&bytes[..84]), Some(1_700_000_000_001));
        assert_eq!(store_timestamp_ms(&bytes[..63]), None);
        let mut again = Vec::new();
        encode(
            &mut again,
            &NewRecord { born_host: r.born_host, store_host: r.store_host, body: r.body, ..new(r.topic, r.properties) },
        )
        .unwrap();
        patch(&mut again, 5, 1024, 1_700_000_000_001);
        assert_eq!(again, bytes);
    }

    /// Vectors: store-format sheet 3.5.
    #[test]
    fn body_crcs() {
        assert_eq!(body_crc(b"123456789"), 1_274_296_614);
        assert_eq!(body_crc(b"hi"), 1_486_039_724);
    }

    #[test]
    fn hosts_of_both_kinds_and_every_topic_length() {
        let v6 = "[2001:db8::7]:1".parse().unwrap();
        let v4 = "10.0.0.9:10911".parse().unwrap();
        let mapped = "[::ffff:10.0.0.9]:10911".parse().unwrap();
        for (born, store, more) in [(v4, v4, 0), (v6, v4, 12), (v4, v6, 12), (v6, v6, 24), (mapped, mapped, 0)] {
            for length in [0, 1, 127, 128, 255] {
                let topic = "t".repeat(length);
                let r = NewRecord { born_host: born, store_host: store, sys_flag: 0x31, ..new(&topic, "a\u{1}b\u{2}") };
                let bytes = encoded(&r);
                assert_eq!(bytes.len(), RECORD_BYTES_MIN + more + 2 + length + 4 + (length > 127) as usize);
                let back = record(&bytes);
                assert_eq!(back.topic, topic);
                assert_eq!(back.born_host.ip(), born.ip().to_canonical());
                assert_eq!(back.store_host.ip(), store.ip().to_canonical());
                assert_eq!(store_timestamp_ms(&bytes), Some(1_700_000_000_123));
                assert_eq!((back.queue_offset, back.phy_offset, back.store_timestamp_ms), (7, 1000, 1_700_000_000_123));
                assert_eq!(back.sys_flag & 1, 1);
            }
        }
    }

    #[test]
    fn limits_refuse_before_anything_is_written() {
        let mut out = vec![1, 2, 3];
        let topic = "t".repeat(256);
        assert_eq!(encode(&mut out, &new(&topic, "")), Err(EncodeError::Topic { bytes: 256, max: 255 }));
        let text = format!("a\u{1}{}", "x".repeat(PROPERTIES_BYTES_MAX - 5));
        let fits = NewRecord { more_properties: "bc", ..new("T", &text) };
        let over = NewRecord { more_properties: "bcd", ..fits };
        assert_eq!(encode(&mut out, &over), Err(EncodeError::Properties { bytes: PROPERTIES_BYTES_MAX + 1 }));
        assert_eq!(out, [1, 2, 3]);
        assert!(encode(&mut out, &fits).is_ok());
        assert_eq!(record(&out[3..]).properties.len(), PROPERTIES_BYTES_MAX);
    }

    #[test]
    fn added_properties_are_separated_once() {
        for (first, more, whole) in [
            ("a\u{1}b", "c\u{1}d\u{2}", "a\u{1}b\u{2}c\u{1}d\u{2}"),
            ("a\u{1}b\u{2}", "c\u{1}d\u{2}", "a\u{1}b\u{2}c\u{1}d\u{2}"),
            ("a\u{1}b", "", "a\u{1}b"),
            ("", "c\u{1}d\u{2}", "c\u{1}d\u{2}"),
        ] {
            assert_eq!(record(&encoded(&NewRecord { more_properties: more, ..new("T", first) })).properties, whole);
        }
    }

    #[test]
    fn cut_and_damaged_records_are_errors() {
        let whole = hex(V101);
        for cut in 0..whole.len() {
            let wants = if cut < 8 { 8 } else { 101 };
            assert_eq!(parse(&whole[..cut], true), Err(RecordError::Short { has: cut, wants }));
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bad = whole.clone();
                bad[at] ^= 1 << bit;
                let _ = parse(&bad, true);
                if (88..90).contains(&at) {
                    assert!(matches!(parse(&bad, true), Err(RecordError::Crc { .. })));
                    assert!(parse(&bad, false).is_ok());
                }
                if [0, 1, 2, 3, 4, 5, 6, 84, 85, 86, 87, 90, 92, 93].contains(&at) {
                    assert!(parse(&bad, false).is_err(), "byte {at} bit {bit}");
                }
            }
        }
        assert_eq!(parse(&[0; 100], true), Err(RecordError::Bad("unknown magic")));
        let mut not_utf8 = whole.clone();
        not_utf8[91] = 0xFF;
        assert_eq!(parse(&not_utf8, true), Err(RecordError::Bad("topic is not UTF-8")));
    }

    #[test]
    fn odd_property_bytes_do_not_lose_the_record() {
        let mut bytes = encoded(&new("T", "TAGS\u{1}A\u{2}x\u{1}yz"));
        let last = bytes.len() - 1;
        bytes[last] = 0xFF;
        assert_eq!(record(&bytes).properties, "TAGS\u{1}A\u{2}x\u{1}y");
    }

    #[test]
    fn blanks_close_a_segment() {
        let mut blank = 4096u32.to_be_bytes().to_vec();
        blank.extend_from_slice(&MAGIC_BLANK.to_be_bytes());
        assert_eq!(parse(&blank, true), Ok(Found::Blank { bytes: 4096 }));
        blank[..4].copy_from_slice(&7u32.to_be_bytes());
        assert!(matches!(parse(&blank, true), Err(RecordError::Bad(_))));
        blank[..4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(parse(&blank, true), Err(RecordError::Bad(_))));
    }

    /// Vectors: store-format sheet 5.2; known fault S04: blanks in KEYS.
    #[test]
    fn index_hashes_in_java_s_order() {
        assert_eq!(index_hash("TopicTest", "key1"), 1_655_984_460);
        assert_eq!(index_hash("T", "k"), 81_916);
        assert_eq!(index_hash("Norm", "T#TagA"), 1_472_600_413);
        let text = "TAGS\u{1}TagA\u{2}KEYS\u{1} k1  k2 k1 \u{2}UNIQ_KEY\u{1}U\u{2}";
        let hashes = |sys_flag| {
            let mut all = Vec::new();
            index_key_hashes("Norm", text, sys_flag, |hash| all.push(hash));
            all
        };
        let [u, k1, k2, tag] = ["U", "k1", "k2", "T#TagA"].map(|key| index_hash("Norm", key));
        for indexed in [0, 4, 8] {
            assert_eq!(hashes(indexed), [u, k1, k2, k1, tag]);
        }
        assert!(hashes(0xC).is_empty());
        assert_eq!(positive(i32::MIN), 0);
        // Known fault S01: these two collide, so a finder must compare the text.
        assert_eq!(index_hash("AaTopic", "BB"), index_hash("BBTopic", "Aa"));
    }
}
