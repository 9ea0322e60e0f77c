//! Pulls (11, 361). Source: wire-protocol sheet 5.3.
use crate::headers::header;

/// Bits of a pull's sysFlag.
pub mod pull_flag {
    /// commitOffset is valid.
    pub const COMMIT_OFFSET: i32 = 0x1;
    /// The pull may be held.
    pub const SUSPEND: i32 = 0x2;
    /// The header carries the subscription.
    pub const SUBSCRIPTION: i32 = 0x4;
    pub const CLASS_FILTER: i32 = 0x8;
    pub const LITE_PULL: i32 = 0x10;
}

header! {
    /// 11, 361.
    pub struct PullMessage<'c> {
        consumer_group: &'c str = "consumerGroup",
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
        queue_offset: i64 = "queueOffset",
        max_msg_nums: i32 = "maxMsgNums",
        sys_flag: i32 = "sysFlag",
        commit_offset: i64 = "commitOffset",
        suspend_timeout_ms: i64 = "suspendTimeoutMillis",
        subscription: Option<&'c str> = "subscription",
        /// Time of the subscription's last change, ms.
        sub_version: i64 = "subVersion",
        /// `TAG` or `SQL92`; absent means TAG.
        expression_type: Option<&'c str> = "expressionType",
        max_msg_bytes: Option<i32> = "maxMsgBytes",
        /// -1 SDK, 0 proxy ordered, 1 proxy broadcast, 2 proxy stream.
        request_source: Option<i32> = "requestSource",
        proxy_forward_client_id: Option<&'c str> = "proxyFrowardClientId",
    }
}

impl PullMessage<'_> {
    pub fn has(&self, flag: i32) -> bool {
        self.sys_flag & flag != 0
    }
}
