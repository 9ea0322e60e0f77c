//! Pop consumption (200050 to 200055) and recall (370). Source: wire-protocol sheet 5.12, 6.1, 6.3.
use crate::headers::header;

header! {
    /// 200050.
    pub struct PopMessage<'c> {
        consumer_group: &'c str = "consumerGroup",
        topic: &'c str = "topic",
        /// -1 means any.
        queue_id: i32 = "queueId",
        max_msg_nums: i32 = "maxMsgNums",
        invisible_ms: i64 = "invisibleTime",
        /// How long the broker may hold it.
        poll_ms: i64 = "pollTime",
        /// By the client's clock; 0 means now.
        born_ms: i64 = "bornTime" or 0,
        /// First pop of the group: 0 from the start, 1 from the end.
        init_mode: i32 = "initMode",
        exp_type: Option<&'c str> = "expType",
        exp: Option<&'c str> = "exp",
        order: bool = "order" or false,
        attempt_id: Option<&'c str> = "attemptId",
    }
    /// 200051.
    pub struct AckMessage<'c> {
        consumer_group: &'c str = "consumerGroup",
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
        extra_info: &'c str = "extraInfo",
        offset: i64 = "offset",
    }
    /// 200052.
    pub struct PeekMessage<'c> {
        consumer_group: &'c str = "consumerGroup",
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
        max_msg_nums: i32 = "maxMsgNums",
    }
    /// 200053.
    pub struct ChangeInvisibleTime<'c> {
        consumer_group: &'c str = "consumerGroup",
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
        extra_info: &'c str = "extraInfo",
        offset: i64 = "offset",
        invisible_ms: i64 = "invisibleTime",
        /// 5.5.0.
        suspend: bool = "suspend" or false,
    }
    /// 200054.
    pub struct Notification<'c> {
        consumer_group: &'c str = "consumerGroup",
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
        poll_ms: i64 = "pollTime",
        born_ms: i64 = "bornTime",
        order: bool = "order" or false,
        attempt_id: Option<&'c str> = "attemptId",
        exp_type: Option<&'c str> = "expType",
        exp: Option<&'c str> = "exp",
    }
    /// 200055.
    pub struct PollingInfo<'c> {
        consumer_group: &'c str = "consumerGroup",
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
    }
    /// 370.
    pub struct RecallMessage<'c> {
        producer_group: Option<&'c str> = "producerGroup",
        topic: &'c str = "topic",
        recall_handle: &'c str = "recallHandle",
    }
}
