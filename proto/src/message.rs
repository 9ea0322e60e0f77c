//! Message properties, sysFlag, ids and the client batch. Source: wire-protocol sheet 12 and 13.
use std::net::SocketAddr;
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
    pub const MSG_REGION: &str = "MSG_REGION";
    pub const TRACE_ON: &str = "TRACE_ON";
    pub const CLUSTER: &str = "CLUSTER";
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    pub const RECONSUME_TIME: &str = "RECONSUME_TIME";
    pub const MAX_RECONSUME_TIMES: &str = "MAX_RECONSUME_TIMES";
    pub const POP_CK: &str = "POP_CK";
    pub const INNER_NUM: &str = "INNER_NUM";
    pub const INNER_MULTI_DISPATCH: &str = "INNER_MULTI_DISPATCH";
    pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    pub const TIMER_DEL_UNIQKEY: &str = "TIMER_DEL_UNIQKEY";
}

/// `name 0x01 value 0x02` pairs; entries with an empty name or value are skipped. Borrowing, no allocation.
pub fn properties(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let _ = text;
    std::iter::empty()
}

/// The value of one property (the last one given wins, as in Java's map).
pub fn property<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let _ = (text, name);
    todo!()
}

/// Appends one property to encoded text, separator first when the text lacks its final 0x02.
pub fn push_property(text: &mut String, name: &str, value: &str) {
    let _ = (text, name, value);
    todo!()
}

/// Copies `text` without the properties named in `drop`.
pub fn without(text: &str, drop: &[&str]) -> String {
    let _ = (text, drop);
    todo!()
}

/// Java's `String.hashCode`, over UTF-16 units. `seed` continues an earlier hash: hash(a+b) = hash(b, seed = hash(a)).
pub fn java_hash(text: &str, seed: i32) -> i32 {
    let _ = (text, seed);
    todo!()
}

/// What a consume-queue entry holds for TAGS: 0 for none, else the sign-extended hash.
pub fn tags_code(tags: Option<&str>) -> i64 {
    match tags {
        Some(t) if !t.is_empty() => java_hash(t, 0) as i64,
        _ => 0,
    }
}

/// Upper-case hex of host, port and offset: 32 characters for IPv4, 56 for IPv6. Appended to `out`.
pub fn write_offset_id(out: &mut String, store_host: SocketAddr, phy: u64) {
    let _ = (out, store_host, phy);
    todo!()
}

/// The host and commit-log offset of an offset message id.
pub fn parse_offset_id(id: &str) -> Option<(SocketAddr, u64)> {
    let _ = id;
    todo!()
}

/// A UNIQ_KEY in the client's shape (32 hex characters for IPv4), for messages that come without one.
pub struct UniqKeys {
    _private: (),
}
impl UniqKeys {
    /// `ip` of this host, `pid`, and a number that differs between makers in one process.
    pub fn new(ip: std::net::IpAddr, pid: u32, maker: u32) -> Self {
        let _ = (ip, pid, maker);
        todo!()
    }
    pub fn next(&mut self, now_ms: i64) -> String {
        let _ = now_ms;
        todo!()
    }
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum BatchError {
    #[error("batch item {item} at byte {at}: {what}")]
    Item { item: usize, at: usize, what: &'static str },
}

/// One message of a client batch body (sheet 12.4).
#[derive(Clone, Copy, Debug)]
pub struct BatchItem<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a str,
}

/// The items of a client batch in order; the first broken one ends the iteration with an error.
pub fn batch_items(body: &[u8]) -> impl Iterator<Item = Result<BatchItem<'_>, BatchError>> {
    let _ = body;
    std::iter::empty()
}
