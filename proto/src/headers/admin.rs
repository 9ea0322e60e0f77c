//! Message look-up, subscription groups, consume state and statistics. Source: wire-protocol sheet 5.5, 7.2, 7.3, 7.5.
//! Groups of 17-like topic requests are in `topic`, connections in `client`; 28, 26, 305, 306, 316, 328, 329 have no header.
use crate::headers::header;

header! {
    /// 12. The end may be `i64::MAX`, so no arithmetic may overflow on it.
    pub struct QueryMessage<'c> {
        topic: &'c str = "topic",
        key: &'c str = "key",
        max_num: i32 = "maxNum",
        begin_timestamp_ms: i64 = "beginTimestamp",
        end_timestamp_ms: i64 = "endTimestamp",
        /// The key is a UNIQ_KEY.
        unique_key: bool = "_UNIQUE_KEY_QUERY" or false,
        index_type: Option<&'c str> = "indexType",
        last_key: Option<&'c str> = "lastKey",
    }
    /// 33.
    pub struct ViewMessage<'c> {
        /// Commit-log offset.
        offset: i64 = "offset",
        topic: Option<&'c str> = "topic",
    }
    /// 207.
    pub struct DeleteSubscriptionGroup<'c> {
        group_name: &'c str = "groupName",
        clean_offset: bool = "cleanOffset" or false,
    }
    /// 201. Without `group_seq` everything is answered at once.
    pub struct GetAllSubscriptionGroup<'c> {
        group_seq: Option<i32> = "groupSeq",
        /// JSON.
        data_version: Option<&'c str> = "dataVersion",
        max_group_num: Option<i32> = "maxGroupNum",
    }
    /// 343, 352: a group and nothing more.
    pub struct GroupOnly<'c> {
        group: &'c str = "group",
    }
    /// 353. Without `readable` it only asks.
    pub struct GroupForbidden<'c> {
        group: &'c str = "group",
        topic: &'c str = "topic",
        readable: Option<bool> = "readable",
    }
    /// 208.
    pub struct GetConsumeStats<'c> {
        consumer_group: &'c str = "consumerGroup",
        /// Absent: all topics that have offsets.
        topic: Option<&'c str> = "topic",
        /// Joined by `;`.
        topic_list: Option<&'c str> = "topicList",
    }
    /// 317.
    pub struct GetBrokerConsumeStats {
        is_order: bool = "isOrder",
    }
    /// 222, and 220 to a client.
    pub struct ResetConsumerOffset<'c> {
        group: &'c str = "group",
        topic: &'c str = "topic",
        timestamp_ms: i64 = "timestamp",
        is_force: bool = "isForce" or false,
        /// -1 means all.
        queue_id: i32 = "queueId" or -1,
        /// -1 means by timestamp.
        offset: i64 = "offset" or -1,
    }
    /// 223.
    pub struct GetConsumerStatus<'c> {
        topic: &'c str = "topic",
        group: &'c str = "group",
        /// A client id; absent means all.
        client_addr: Option<&'c str> = "clientAddr",
    }
    /// 303, 345.
    pub struct TopicAndGroup<'c> {
        topic: &'c str = "topic",
        group: &'c str = "group",
    }
    /// 308.
    pub struct QueryCorrectionOffset<'c> {
        /// Joined by `,`.
        filter_groups: Option<&'c str> = "filterGroups",
        compare_group: &'c str = "compareGroup",
        topic: &'c str = "topic",
    }
    /// 314.
    pub struct CloneGroupOffset<'c> {
        src_group: &'c str = "srcGroup",
        dest_group: &'c str = "destGroup",
        /// Absent: all topics.
        topic: Option<&'c str> = "topic",
        offline: bool = "offline" or false,
    }
    /// 315.
    pub struct ViewBrokerStats<'c> {
        stats_name: &'c str = "statsName",
        stats_key: &'c str = "statsKey",
    }
    /// 908.
    pub struct ResetMasterFlushOffset {
        master_flush_offset: i64 = "masterFlushOffset",
    }
    /// 906. Empty from a slave that asks, filled from a master that tells.
    pub struct ExchangeHaInfo<'c> {
        master_ha_address: Option<&'c str> = "masterHaAddress",
        master_flush_offset: Option<i64> = "masterFlushOffset",
        master_address: Option<&'c str> = "masterAddress",
    }
}
