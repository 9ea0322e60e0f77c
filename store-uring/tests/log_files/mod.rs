//! What the tests of the log share: records, a configuration of small files, and a judge that scans files by itself.
#![allow(dead_code)] // each test binary uses its part

use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::task::Poll;
use uringmq_proto::record::{Found, NewRecord, encode, parse};
use uringmq_proto::types::{PhyOffset, QueueKey, TopicId};
use uringmq_store::io::Io;
use uringmq_store::log_reader::LogReader;
use uringmq_store::{StoreConfig, StoreError};

pub const SEGMENT_BYTES: u64 = 64 * 1024;

pub fn config(root: impl Into<PathBuf>) -> StoreConfig {
    let root = root.into();
    StoreConfig {
        commit_log_dir: root.join("commitlog"),
        root,
        segment_bytes: SEGMENT_BYTES,
        queue_file_bytes: 6_000_000,
        batch_file_bytes: 460,
        extension_file_bytes: 40_000,
        extensions: uringmq_store::Extensions::None,
        topic_forms: Default::default(),
        light_queues: false,
        index_enabled: false,
        index_slots: 0,
        index_items: 0,
        delay_levels_ms: Vec::new(),
        record_bytes_max: 24 * 1024,
        batch_bytes_max: 16 * 1024,
        warm_ahead_bytes: 40 * 1024,
        read_cache_bytes: 256 * 1024,
    }
}

pub fn key(queue: u32) -> QueueKey {
    QueueKey { topic: TopicId(1), queue }
}

/// A record of exactly `bytes` (at least 92) whose body tells `seed`.
pub fn record(queue: u32, seed: u64, bytes: usize) -> Vec<u8> {
    let body: Vec<u8> = (0..bytes - 92).map(|at| (seed as usize * 31 + at * 7) as u8 | 1).collect();
    let new = NewRecord {
        topic: "T",
        queue_id: queue,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: 1,
        born_host: ([127, 0, 0, 1], 1).into(),
        store_host: ([127, 0, 0, 1], 2).into(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &body,
        properties: "",
        more_properties: "",
    };
    let mut out = Vec::new();
    encode(&mut out, &new).unwrap();
    assert_eq!(out.len(), bytes);
    out
}

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }
}

/// The fixed seeds, or `SEEDS=n` of them.
pub fn seeds() -> impl Iterator<Item = u64> {
    let count = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    1..=count
}

/// What a log holds from `min` on, found as Apache's recovery does: records and blanks until something else stands there. The CRC
/// covers the body alone, so a record torn behind its body by a power cut is known by the zeros in its topic.
pub struct Scan {
    pub records: Vec<(u64, Vec<u8>)>,
    pub end: u64,
    /// The rest of the last segment is zeros.
    pub zeros_behind: bool,
}

pub async fn scan<I: Io>(io: I, config: &StoreConfig, min: u64) -> Scan {
    let mut found = Scan { records: Vec::new(), end: min, zeros_behind: true };
    loop {
        let reader = LogReader::new(io.clone(), config); // its cache would hide changes of bytes behind the end
        let at = found.end;
        let bytes = match reader.read_range(PhyOffset(at), config.segment_bytes as usize, PhyOffset(u64::MAX / 2)).await
        {
            Ok(bytes) => bytes,
            Err(StoreError::OutOfRange(_)) => return found,
            Err(e) => panic!("scan at {at}: {e}"),
        };
        let mut inside = 0;
        while inside < bytes.len() {
            match parse(&bytes[inside..], true) {
                Ok(Found::Record(record)) if record.phy_offset as u64 == at + inside as u64 && record.topic == "T" => {
                    found.records.push((at + inside as u64, bytes[inside..inside + record.bytes].to_vec()));
                    inside += record.bytes;
                }
                Ok(Found::Blank { bytes: rest }) => {
                    assert_eq!(inside + rest, bytes.len(), "a blank goes to the end of its segment");
                    inside += rest;
                }
                _ => {
                    found.zeros_behind = bytes[inside..].iter().all(|byte| *byte == 0);
                    found.end = at + inside as u64;
                    return found;
                }
            }
        }
        found.end = at + bytes.len() as u64;
    }
}

/// Queue offset of an encoded record.
pub fn queue_offset(record: &[u8]) -> u64 {
    match parse(record, true).unwrap() {
        Found::Record(record) => record.queue_offset as u64,
        Found::Blank { .. } => panic!("a blank"),
    }
}

/// Both, by turns.
pub async fn join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut a_done, mut b_done) = (None, None);
    poll_fn(|cx| {
        if a_done.is_none()
            && let Poll::Ready(out) = a.as_mut().poll(cx)
        {
            a_done = Some(out);
        }
        if b_done.is_none()
            && let Poll::Ready(out) = b.as_mut().poll(cx)
        {
            b_done = Some(out);
        }
        if a_done.is_some() && b_done.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (a_done.unwrap(), b_done.unwrap())
}
