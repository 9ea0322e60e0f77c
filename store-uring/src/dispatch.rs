//! Turns a range of records into [`Dispatch`] entries. Recovery and catch-up call it; the live path must agree with it.
use crate::StoreError;
use uringmq_proto::record::Record;
use uringmq_proto::types::PhyOffset;

/// What the derived files need of one record. Borrowed from the record's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    pub phy: PhyOffset,
    pub bytes: u32,
    pub topic: &'a str,
    pub queue: u32,
    pub queue_offset: u64,
    /// Tag hash, or the deliver time in the schedule topic (store-format sheet 4.2).
    pub tags_code: i64,
    pub store_timestamp_ms: i64,
    pub sys_flag: i32,
    pub properties: &'a str,
    /// False for prepared and rollback records: no consume-queue entry.
    pub queued: bool,
}

/// The entry of one parsed record.
pub fn of_record<'a>(r: &Record<'a>, at: PhyOffset, delay_levels_ms: &[u64]) -> Dispatch<'a> {
    let _ = (r, at, delay_levels_ms);
    todo!()
}

/// tagsCode of a record of `topic` with these properties, stored at `store_ms` (also used by the live path before the store time
/// is known: pass `None` and get what to add to it).
pub fn tags_code(topic: &str, properties: &str, store_ms: i64, delay_levels_ms: &[u64]) -> i64 {
    let _ = (topic, properties, store_ms, delay_levels_ms);
    todo!()
}

/// Walks `bytes`, which stand in the log at `base`: calls `each` per record, and returns the offset behind the last whole one (a blank
/// counts to the end of its segment). Stops without error at a record cut by the end of `bytes`.
pub fn walk(
    bytes: &[u8],
    base: PhyOffset,
    delay_levels_ms: &[u64],
    check_crc: bool,
    each: impl FnMut(Dispatch<'_>),
) -> Result<PhyOffset, StoreError> {
    let _ = (bytes, base, delay_levels_ms, check_crc, each);
    todo!()
}
