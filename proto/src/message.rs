//! Message properties, sysFlag, ids and the client batch. Source: wire-protocol sheet 12 and 13.
//!
//! A property string is `name 0x01 value 0x02` repeated, its last 0x02 optional. It is passed through as it came: the broker only
//! looks names up, appends some, or drops some.
//!
//! An item of a client batch body (all big-endian):
//!
//! | bytes | field                                              |
//! | ----- | -------------------------------------------------- |
//! | 4     | size of the item, this field included              |
//! | 4     | magic, ignored                                     |
//! | 4     | body CRC, ignored                                  |
//! | 4     | flag                                               |
//! | 4 + n | body length, body                                  |
//! | 2 + n | properties length (signed), properties             |
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use thiserror::Error;

pub mod sys_flag {
    pub const COMPRESSED: i32 = 0x1;
    pub const MULTI_TAGS: i32 = 0x2;
    pub const TRANSACTION_MASK: i32 = 0xC;
    pub const TRANSACTION_NONE: i32 = 0;
    pub const TRANSACTION_PREPARED: i32 = 0x4;
    pub const TRANSACTION_COMMIT: i32 = 0x8;
    pub const TRANSACTION_ROLLBACK: i32 = 0xC;
    pub const BORN_HOST_V6: i32 = 0x10;
    pub const STORE_HOST_V6: i32 = 0x20;
    pub const NEED_UNWRAP: i32 = 0x40;
    pub const INNER_BATCH: i32 = 0x80;
    /// What a client's request cannot set: the broker does, by what it knows of the message.
    pub const OF_BROKER: i32 = BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_MASK;
}

/// Property names (sheet 13); every name the broker reads or writes is here once.
pub mod prop {
    pub const KEYS: &str = "KEYS";
    pub const TAGS: &str = "TAGS";
    pub const WAIT: &str = "WAIT";
    pub const DELAY: &str = "DELAY";
    pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    pub const REAL_QID: &str = "REAL_QID";
    pub const TRAN_MSG: &str = "TRAN_MSG";
    pub const PGROUP: &str = "PGROUP";
    pub const UNIQ_KEY: &str = "UNIQ_KEY";
    pub const TRANSACTION_ID: &str = "__transactionId__";
    pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
    pub const CHECK_IMMUNITY_TIME_IN_SECONDS: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
    pub const TRAN_PREPARED_QUEUE_OFFSET: &str = "TRAN_PREPARED_QUEUE_OFFSET";
    pub const MSG_REGION: &str = "MSG_REGION";
    pub const TRACE_ON: &str = "TRACE_ON";
    pub const CLUSTER: &str = "CLUSTER";
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    pub const ORIGIN_GROUP: &str = "ORIGIN_GROUP";
    pub const RECONSUME_TIME: &str = "RECONSUME_TIME";
    pub const MAX_RECONSUME_TIMES: &str = "MAX_RECONSUME_TIMES";
    pub const CORRELATION_ID: &str = "CORRELATION_ID";
    pub const REPLY_TO_CLIENT: &str = "REPLY_TO_CLIENT";
    pub const PUSH_REPLY_TIME: &str = "PUSH_REPLY_TIME";
    pub const MSG_TYPE: &str = "MSG_TYPE";
    pub const POP_CK: &str = "POP_CK";
    pub const FIRST_POP_TIME: &str = "1ST_POP_TIME";
    pub const INNER_NUM: &str = "INNER_NUM";
    pub const INNER_BASE: &str = "INNER_BASE";
    pub const INNER_MULTI_DISPATCH: &str = "INNER_MULTI_DISPATCH";
    pub const INNER_MULTI_QUEUE_OFFSET: &str = "INNER_MULTI_QUEUE_OFFSET";
    /// From 0: the queue of a message that is nothing else but a plain one.
    pub const PRIORITY: &str = "_SYS_MSG_PRIORITY_";
    /// Which messages of a topic are to stay in order.
    pub const SHARDING_KEY: &str = "__SHARDINGKEY";
    pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    pub const TIMER_OUT_MS: &str = "TIMER_OUT_MS";
    pub const TIMER_ENQUEUE_MS: &str = "TIMER_ENQUEUE_MS";
    pub const TIMER_DEQUEUE_MS: &str = "TIMER_DEQUEUE_MS";
    pub const TIMER_ROLL_TIMES: &str = "TIMER_ROLL_TIMES";
    pub const TIMER_DEL_UNIQKEY: &str = "TIMER_DEL_UNIQKEY";
    pub const TIMER_DELAY_LEVEL: &str = "TIMER_DELAY_LEVEL";
    pub const CRC32: &str = "__CRC32#";
}

/// Between a property's name and its value.
pub const NAME_END: char = '\u{1}';
/// Behind a property's value.
pub const VALUE_END: char = '\u{2}';

fn split_property(item: &str) -> Option<(&str, &str)> {
    let at = memchr::memchr(1, item.as_bytes())?;
    let (name, value) = (&item[..at], &item[at + 1..]);
    (!name.is_empty() && !value.is_empty()).then_some((name, value))
}

/// `name 0x01 value 0x02` pairs; entries with an empty name or value are skipped. Borrowing, no allocation.
pub fn properties(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(VALUE_END).filter_map(split_property)
}

/// The value of one property (the last one given wins, as in Java's map).
pub fn property<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.rsplit(VALUE_END).filter_map(split_property).find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// A property that should be a whole number: `None` when absent, the text itself when it is no number (known fault S08), so that
/// the caller refuses or ignores it as a whole and never works on half of it.
pub fn number_property<'a>(text: &'a str, name: &str) -> Option<Result<i64, &'a str>> {
    property(text, name).map(|value| value.parse().map_err(|_| value))
}

/// Appends one property to encoded text, separator first when the text lacks its final 0x02.
pub fn push_property(text: &mut String, name: &str, value: &str) {
    if !text.is_empty() && !text.ends_with(VALUE_END) {
        text.push(VALUE_END);
    }
    text.push_str(name);
    text.push(NAME_END);
    text.push_str(value);
    text.push(VALUE_END);
}

/// Copies `text` without the properties named in `drop`; what cannot be read as a property is dropped too.
pub fn without(text: &str, drop: &[&str]) -> String {
    let mut out = String::with_capacity(text.len() + 1);
    for (name, value) in properties(text) {
        if !drop.contains(&name) {
            push_property(&mut out, name, value);
        }
    }
    out
}

/// Java's `String.hashCode`, over UTF-16 units. `seed` continues an earlier hash: hash(a+b) = hash(b, seed = hash(a)).
pub fn java_hash(text: &str, seed: i32) -> i32 {
    let add = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(unit as i32);
    if text.is_ascii() { text.bytes().map(u16::from).fold(seed, add) } else { text.encode_utf16().fold(seed, add) }
}

/// What a consume-queue entry holds for TAGS: 0 for none, else the sign-extended hash.
pub fn tags_code(tags: Option<&str>) -> i64 {
    match tags {
        Some(t) if !t.is_empty() => java_hash(t, 0) as i64,
        _ => 0,
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

fn push_hex(out: &mut String, bytes: &[u8]) {
    for b in bytes {
        out.push(HEX[(b >> 4) as usize] as char);
        out.push(HEX[(b & 15) as usize] as char);
    }
}

fn push_ip_hex(out: &mut String, ip: IpAddr) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => push_hex(out, &ip.octets()),
        IpAddr::V6(ip) => push_hex(out, &ip.octets()),
    }
}

/// Upper-case hex of host, port and offset: 32 characters for IPv4, 56 for IPv6. Appended to `out`.
pub fn write_offset_id(out: &mut String, store_host: SocketAddr, phy: u64) {
    out.reserve(56);
    push_ip_hex(out, store_host.ip());
    push_hex(out, &(store_host.port() as u32).to_be_bytes());
    push_hex(out, &phy.to_be_bytes());
}

/// The host and commit-log offset of an offset message id; `None` for text of another shape or a port above 65535.
pub fn parse_offset_id(id: &str) -> Option<(SocketAddr, u64)> {
    let mut bytes = [0u8; 28];
    let count = id.len() / 2;
    if id.len() != 32 && id.len() != 56 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(id.as_bytes().chunks_exact(2)) {
        let digit = |d: u8| (d as char).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    let (host, tail) = bytes[..count].split_at(count - 12);
    let ip = match host.first_chunk::<16>() {
        Some(v6) => IpAddr::V6(Ipv6Addr::from(*v6)),
        None => IpAddr::V4(Ipv4Addr::from(*host.first_chunk::<4>()?)),
    };
    let port = u32::from_be_bytes(*tail.first_chunk()?).try_into().ok()?;
    Some((SocketAddr::new(ip, port), u64::from_be_bytes(*tail.last_chunk()?)))
}

/// A UNIQ_KEY in the client's shape (32 hex characters for IPv4), for messages that come without one: IP, low 16 bits of the
/// process id, 4 bytes that tell makers apart, milliseconds since the month began (UTC), counter.
pub struct UniqKeys {
    prefix: String,
    month_start_ms: i64,
    month_end_ms: i64,
    counter: u16,
}

impl UniqKeys {
    /// `ip` of this host, `pid`, and a number that differs between makers in one process.
    pub fn new(ip: IpAddr, pid: u32, maker: u32) -> Self {
        let mut prefix = String::with_capacity(44);
        push_ip_hex(&mut prefix, ip);
        push_hex(&mut prefix, &(pid as u16).to_be_bytes());
        push_hex(&mut prefix, &maker.to_be_bytes());
        UniqKeys { prefix, month_start_ms: 0, month_end_ms: 0, counter: 0 }
    }

    /// The next key. Keys differ as long as one maker makes at most 65536 of them in a millisecond.
    pub fn next(&mut self, now_ms: i64) -> String {
        if !(self.month_start_ms..self.month_end_ms).contains(&now_ms) {
            (self.month_start_ms, self.month_end_ms) = month_of(now_ms);
        }
        let mut key = String::with_capacity(self.prefix.len() + 12);
        key.push_str(&self.prefix);
        push_hex(&mut key, &((now_ms - self.month_start_ms) as u32).to_be_bytes());
        push_hex(&mut key, &self.counter.to_be_bytes());
        self.counter = self.counter.wrapping_add(1);
        key
    }
}

/// First millisecond of the UTC month of `now_ms`, and of the next. By the proleptic Gregorian calendar in 400-year cycles of
/// 146097 days whose years begin in March, so that the leap day comes last.
fn month_of(now_ms: i64) -> (i64, i64) {
    const DAY_MS: i64 = 86_400_000;
    let day = now_ms.div_euclid(DAY_MS) + 719_468; // since 1 March of year 0
    let day_of_cycle = day.rem_euclid(146_097);
    let year = (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153; // 0 = March
    let starts = |month: i64| (153 * month + 2) / 5; // day of the year on which a month begins
    let first = day - (day_of_year - starts(month));
    let leap = (year + 1) % 4 == 0 && ((year + 1) % 100 != 0 || (year + 1) % 400 == 0);
    let days = if month == 11 { 28 + leap as i64 } else { starts(month + 1) - starts(month) };
    let start = (first - 719_468) * DAY_MS;
    (start, start + days * DAY_MS)
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum BatchError {
    #[error("batch item {item} at byte {at}: {what}")]
    Item { item: usize, at: usize, what: &'static str },
}

/// One message of a client batch body (sheet 12.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchItem<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a str,
}

/// The items of a client batch in order; the first broken one ends the iteration with an error. An empty body has no items.
pub fn batch_items(body: &[u8]) -> impl Iterator<Item = Result<BatchItem<'_>, BatchError>> {
    let (mut at, mut item) = (0, 0);
    std::iter::from_fn(move || {
        if at >= body.len() {
            return None;
        }
        match batch_item(&body[at..]) {
            Ok((found, bytes)) => {
                at += bytes;
                item += 1;
                Some(Ok(found))
            }
            Err(what) => {
                let error = BatchError::Item { item, at, what };
                at = body.len();
                Some(Err(error))
            }
        }
    })
}

/// Head of an item: size, magic, CRC, flag, body length.
const BATCH_HEAD_BYTES: usize = 20;

fn batch_item(buf: &[u8]) -> Result<(BatchItem<'_>, usize), &'static str> {
    let word = |at: usize| buf.get(at..at + 4).and_then(|b| b.first_chunk()).map(|b| i32::from_be_bytes(*b));
    let (Some(size), Some(flag), Some(body_bytes)) = (word(0), word(12), word(16)) else { return Err("cut short") };
    let size = usize::try_from(size).map_err(|_| "negative size")?;
    let item = buf.get(..size).ok_or("size reaches beyond the batch")?;
    let rest = item.get(BATCH_HEAD_BYTES..).ok_or("size is smaller than an item")?;
    let body_bytes = usize::try_from(body_bytes).map_err(|_| "negative body length")?;
    let (body, rest) = rest.split_at_checked(body_bytes).ok_or("body reaches beyond the item")?;
    let (length, properties) = rest.split_first_chunk::<2>().ok_or("no room for the properties length")?;
    let length = usize::try_from(i16::from_be_bytes(*length)).map_err(|_| "negative properties length")?;
    if properties.len() != length {
        return Err("size is not the sum of its parts");
    }
    let properties = std::str::from_utf8(properties).map_err(|_| "properties are not UTF-8")?;
    Ok((BatchItem { flag, body, properties }, size))
}

/// Appends one item to a client batch body: what a producer does.
///
/// # Panics
/// When body or properties are longer than their length fields can tell (2 GiB, 32767): a caller's bug.
pub fn push_batch_item(out: &mut Vec<u8>, item: &BatchItem<'_>) {
    let body_bytes = i32::try_from(item.body.len()).expect("a batch body below 2 GiB");
    let properties_bytes = i16::try_from(item.properties.len()).expect("properties below 32 KiB");
    let size = BATCH_HEAD_BYTES + item.body.len() + 2 + item.properties.len();
    out.extend_from_slice(&(size as u32).to_be_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&item.flag.to_be_bytes());
    out.extend_from_slice(&body_bytes.to_be_bytes());
    out.extend_from_slice(item.body);
    out.extend_from_slice(&properties_bytes.to_be_bytes());
    out.extend_from_slice(item.properties.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_read_as_java_reads_them() {
        let text = "TAGS\u{1}A\u{2}KEYS\u{1}k1 k2\u{2}\u{1}x\u{2}E\u{1}\u{2}none\u{2}TAGS\u{1}B\u{1}C";
        let all: Vec<_> = properties(text).collect();
        assert_eq!(all, [("TAGS", "A"), ("KEYS", "k1 k2"), ("TAGS", "B\u{1}C")]);
        assert_eq!(property(text, "TAGS"), Some("B\u{1}C"));
        assert_eq!(property(text, "E"), None);
        assert_eq!(property("", "TAGS"), None);
    }

    /// Known fault S08.
    #[test]
    fn number_properties_are_whole_or_refused() {
        let delay = |value: &str| {
            number_property(&format!("DELAY\u{1}{value}\u{2}"), prop::DELAY).map(|n| n.map_err(str::to_owned))
        };
        assert_eq!(delay("4"), Some(Ok(4)));
        assert_eq!(delay("-1"), Some(Ok(-1)));
        assert_eq!(delay("99999999999"), Some(Ok(99_999_999_999)));
        assert_eq!(delay(""), None);
        for wrong in ["4x", "4Pinpoint", " 4", "1e3", "9223372036854775808", "4\u{1}5"] {
            assert_eq!(delay(wrong), Some(Err(wrong.to_owned())));
        }
        // A separator inside a value ends it, and one inside a name ends the name.
        let text = "DELAY\u{1}4\u{2}x\u{2}A\u{1}B\u{1}C\u{2}";
        assert_eq!(number_property(text, prop::DELAY), Some(Ok(4)));
        assert_eq!(property(text, "A"), Some("B\u{1}C"));
    }

    /// Known fault S07: what the broker adds must not be glued to a value that came without its separator.
    #[test]
    fn pushing_and_dropping_keeps_the_others_whole() {
        for text in ["A\u{1}1\u{2}TAGS\u{1}t", "A\u{1}1\u{2}TAGS\u{1}t\u{2}"] {
            let mut more = text.to_owned();
            push_property(&mut more, "MSG_REGION", "r");
            assert_eq!(more, "A\u{1}1\u{2}TAGS\u{1}t\u{2}MSG_REGION\u{1}r\u{2}");
            assert_eq!(without(&more, &["A", "MSG_REGION"]), "TAGS\u{1}t\u{2}");
        }
        let mut fresh = String::new();
        push_property(&mut fresh, "a", "b");
        assert_eq!(fresh, "a\u{1}b\u{2}");
    }

    /// Vectors: store-format sheet 4.2.
    #[test]
    fn hashes_are_java_s() {
        for (text, hash) in [("TagA", 2598919), ("a", 97), ("order-cancelled", 441731474), ("中文", 646394), ("", 0)]
        {
            assert_eq!(tags_code(Some(text)), hash, "{text}");
        }
        assert_eq!(java_hash("polygenelubricants", 0), i32::MIN);
        assert_eq!(tags_code(Some("polygenelubricants")), i32::MIN as i64);
        assert_eq!(tags_code(None), 0);
        assert_eq!(java_hash("中文", java_hash("order-", 0)), java_hash("order-中文", 0));
        assert_eq!(java_hash("\u{1F600}", 0), 0xD83D * 31 + 0xDE00);
    }

    /// Vectors: wire-protocol sheet 12.5 and store-format sheet 3.2.
    #[test]
    fn offset_ids_go_both_ways() {
        for (host, phy, id) in [
            ("10.0.0.1:10911", 1024, "0A00000100002A9F0000000000000400"),
            ("10.0.0.9:10911", 1000, "0A00000900002A9F00000000000003E8"),
            ("[2001:db8::1]:80", u64::MAX, "20010DB800000000000000000000000100000050FFFFFFFFFFFFFFFF"),
        ] {
            let host: SocketAddr = host.parse().unwrap();
            let mut text = String::new();
            write_offset_id(&mut text, host, phy);
            assert_eq!(text, id);
            assert_eq!(parse_offset_id(id), Some((host, phy)));
            assert_eq!(parse_offset_id(&id.to_lowercase()), Some((host, phy)));
        }
        for bad in ["", "0A", "0A00000100012A9F0000000000000400", "0A00000100002A9F000000000000040G", &"é".repeat(16)]
        {
            assert_eq!(parse_offset_id(bad), None, "{bad}");
        }
    }

    #[test]
    fn uniq_keys_have_the_client_s_shape() {
        let mut keys = UniqKeys::new("10.0.0.1".parse().unwrap(), 0x1_0002, 3);
        // 14 November 2023 22:13:20 UTC is 13 d 22:13:20 into its month.
        let into_month = (13 * 86_400 + 22 * 3600 + 13 * 60 + 20) * 1000u32;
        assert_eq!(keys.next(1_700_000_000_000), format!("0A000001000200000003{into_month:08X}0000"));
        assert_eq!(keys.next(1_700_000_000_001), format!("0A000001000200000003{:08X}0001", into_month + 1));
        assert_eq!(UniqKeys::new("::1".parse().unwrap(), 1, 1).next(0).len(), 56);
    }

    #[test]
    fn months_begin_where_the_calendar_says() {
        const DAY: i64 = 86_400_000;
        // Days since 1970 of: 1 Feb 2024 and 1 Mar 2024 (leap), 1 Feb and 1 Mar 2023, 1 Dec 2023 and 1 Jan 2024, 1 Feb and 1 Mar 2100.
        for (first, next) in
            [(19754, 19783), (19389, 19417), (19692, 19723), (47513, 47541), (0, 31), (-31, 0), (10988, 11017)]
        {
            for now in [first * DAY, first * DAY + 12_345, next * DAY - 1] {
                assert_eq!(month_of(now), (first * DAY, next * DAY));
            }
        }
    }

    fn batch(items: &[BatchItem<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        items.iter().for_each(|item| push_batch_item(&mut out, item));
        out
    }

    /// Known fault S07: entries with and without the trailing 0x02 keep their text as it came.
    #[test]
    fn batch_items_come_back_as_they_were_put() {
        let items = [
            BatchItem { flag: 1, body: b"one", properties: "TAGS\u{1}A\u{2}" },
            BatchItem { flag: -1, body: b"", properties: "" },
            BatchItem { flag: 0, body: &[0; 300], properties: "KEYS\u{1}k\u{2}TAGS\u{1}A" },
        ];
        let found: Result<Vec<_>, _> = batch_items(&batch(&items)).map(|i| i.map(|i| (i.flag, i.body.len()))).collect();
        assert_eq!(found.unwrap(), [(1, 3), (-1, 0), (0, 300)]);
        let body = batch(&items);
        let all: Vec<_> = batch_items(&body).map(Result::unwrap).collect();
        assert_eq!(all, items);
        assert_eq!(property(all[2].properties, prop::TAGS), Some("A"));
        assert_eq!(batch_items(b"").count(), 0);
    }

    #[test]
    fn a_broken_item_is_named_and_ends_the_batch() {
        let good = BatchItem { flag: 0, body: b"body", properties: "a\u{1}b\u{2}" };
        let whole = batch(&[good, good, good]);
        let size = whole.len() / 3;
        let broken = |at: usize, bytes: &[u8]| {
            let mut body = whole.clone();
            body[size + at..size + at + bytes.len()].copy_from_slice(bytes);
            let mut items = batch_items(&body);
            assert!(items.next().unwrap().is_ok());
            let BatchError::Item { item, at, what } = items.next().unwrap().unwrap_err();
            assert_eq!((item, at), (1, size));
            assert!(items.next().is_none());
            what
        };
        assert_eq!(broken(0, &[255; 4]), "negative size");
        assert_eq!(broken(0, &[127, 0, 0, 0]), "size reaches beyond the batch");
        assert_eq!(broken(0, &[0, 0, 0, 0]), "size is smaller than an item");
        assert_eq!(broken(0, &(size as u32 - 1).to_be_bytes()), "size is not the sum of its parts");
        assert_eq!(broken(0, &(size as u32 + 1).to_be_bytes()), "size is not the sum of its parts");
        assert_eq!(broken(16, &[255; 4]), "negative body length");
        assert_eq!(broken(16, &[127, 255, 255, 255]), "body reaches beyond the item");
        assert_eq!(broken(16, &[0, 0, 0, 10]), "no room for the properties length");
        assert_eq!(broken(24, &[255, 255]), "negative properties length");
        assert_eq!(broken(26, &[255]), "properties are not UTF-8");
        for cut in 1..size {
            assert!(batch_items(&whole[..cut]).next().unwrap().is_err(), "cut at {cut}");
        }
    }
}
