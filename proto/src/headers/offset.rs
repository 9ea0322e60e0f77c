//! Consumer offsets and queue bounds (14, 15, 29 to 32). Source: wire-protocol sheet 5.4.
use crate::headers::header;

header! {
    /// 14.
    pub struct QueryConsumerOffset<'c> {
        consumer_group: &'c str = "consumerGroup",
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
        set_zero_if_not_found: Option<bool> = "setZeroIfNotFound",
    }
    /// 15.
    pub struct UpdateConsumerOffset<'c> {
        consumer_group: &'c str = "consumerGroup",
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
        commit_offset: i64 = "commitOffset",
    }
    /// 29.
    pub struct SearchOffset<'c> {
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
        timestamp_ms: i64 = "timestamp",
        /// `LOWER` or `UPPER`, any case; absent means LOWER.
        boundary_type: Option<&'c str> = "boundaryType",
    }
    /// 30.
    pub struct GetMaxOffset<'c> {
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
        committed: bool = "committed" or true,
    }
    /// 31.
    pub struct GetMinOffset<'c> {
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
    }
    /// 32.
    pub struct GetEarliestMsgStoretime<'c> {
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
    }
}
