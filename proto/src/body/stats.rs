//! What operators look at: lists, statistics, connections. Source: wire-protocol sheet 4, 5.7, 7.
use super::heartbeat::{ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData};
use super::{BareMap, MessageQueue, nullable};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Declares bodies: serde's derives, defaults for what is absent, camel case.
macro_rules! bodies {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$note:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $($(#[$note])* pub $field: $type,)*
        }
    )*};
}

bodies! {
    /// Body of the answers to 28, 219 and 103.
    pub struct KvTable {
        #[serde(deserialize_with = "nullable")]
        table: BTreeMap<String, String>,
    }
    /// Body of the answers to 206, 224, 304, 305, 311 to 313, 343.
    pub struct TopicList {
        #[serde(skip_serializing_if = "Option::is_none")]
        broker_addr: Option<String>,
        #[serde(deserialize_with = "nullable")]
        topic_list: Vec<String>,
    }
    /// Body of the answer to 300.
    pub struct GroupList {
        #[serde(deserialize_with = "nullable")]
        group_list: Vec<String>,
    }
    /// Body of the answer to 38.
    pub struct ConsumerIdList {
        #[serde(deserialize_with = "nullable")]
        consumer_id_list: Vec<String>,
    }
    pub struct Connection {
        /// `ip:port`
        client_addr: String,
        client_id: String,
        /// Name of a language code.
        language: String,
        version: i32,
    }
    /// Body of the answer to 203; message model and consume type must be there.
    pub struct ConsumerConnection {
        #[serde(deserialize_with = "nullable")]
        connection_set: Vec<Connection>,
        consume_from_where: ConsumeFromWhere,
        consume_type: ConsumeType,
        message_model: MessageModel,
        #[serde(deserialize_with = "nullable")]
        subscription_table: BTreeMap<String, SubscriptionData>,
    }
    /// Body of the answer to 204.
    pub struct ProducerConnection {
        #[serde(deserialize_with = "nullable")]
        connection_set: Vec<Connection>,
    }
    /// Body of the answer to 328, by group.
    pub struct ProducerTable {
        #[serde(deserialize_with = "nullable")]
        data: BTreeMap<String, Vec<ProducerInfo>>,
    }
    pub struct ProducerInfo {
        client_id: String,
        language: String,
        last_update_timestamp: i64,
        /// `/ip:port`
        #[serde(rename = "remoteIP")]
        remote_ip: String,
        version: i32,
    }
    /// Body of the answer to 345.
    pub struct QuerySubscriptionBody {
        group: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        subscription_data: Option<SubscriptionData>,
        topic: String,
    }
    /// Body of the answer to 208.
    pub struct ConsumeStats {
        consume_tps: f64,
        #[serde(deserialize_with = "nullable")]
        offset_table: BareMap<MessageQueue, OffsetWrapper>,
    }
    pub struct OffsetWrapper {
        broker_offset: i64,
        consumer_offset: i64,
        /// Store time of the message before `consumer_offset`, ms; 0 when unknown.
        last_timestamp: i64,
        pull_offset: i64,
    }
    /// Body of the answer to 317: a table per group, in it statistics per topic.
    pub struct BrokerConsumeStats {
        broker_addr: String,
        #[serde(deserialize_with = "nullable")]
        consume_stats_list: Vec<BTreeMap<String, Vec<ConsumeStats>>>,
        total_diff: i64,
        total_inflight_diff: i64,
    }
    /// Body of the answer to 202.
    pub struct TopicStatsTable {
        #[serde(deserialize_with = "nullable")]
        offset_table: BareMap<MessageQueue, TopicOffset>,
        topic_put_tps: f64,
    }
    pub struct TopicOffset {
        last_update_timestamp: i64,
        max_offset: i64,
        min_offset: i64,
    }
    /// Body of the answer to 303.
    pub struct ConsumeTimeSpanBody {
        #[serde(deserialize_with = "nullable")]
        consume_time_span_set: Vec<ConsumeTimeSpan>,
    }
    /// Times in ms, -1 when unknown.
    pub struct ConsumeTimeSpan {
        consume_time_stamp: i64,
        delay_time: i64,
        max_time_stamp: i64,
        message_queue: MessageQueue,
        min_time_stamp: i64,
    }
    /// Body of the answer to 315.
    pub struct BrokerStatsData {
        stats_day: BrokerStatsItem,
        stats_hour: BrokerStatsItem,
        stats_minute: BrokerStatsItem,
    }
    pub struct BrokerStatsItem {
        avgpt: f64,
        sum: i64,
        tps: f64,
    }
    /// Body of the answer to 321.
    pub struct QueryConsumeQueueBody {
        #[serde(skip_serializing_if = "Option::is_none")]
        filter_data: Option<String>,
        max_queue_index: i64,
        min_queue_index: i64,
        #[serde(deserialize_with = "nullable")]
        queue_data: Vec<ConsumeQueueData>,
        #[serde(skip_serializing_if = "Option::is_none")]
        subscription_data: Option<SubscriptionData>,
    }
    pub struct ConsumeQueueData {
        #[serde(skip_serializing_if = "Option::is_none")]
        bit_map: Option<String>,
        eval: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        extend_data_json: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        msg: Option<String>,
        physic_offset: i64,
        physic_size: i32,
        tags_code: i64,
    }
    /// Body of the answer to 907.
    pub struct HaRuntimeInfo {
        #[serde(skip_serializing_if = "Option::is_none")]
        ha_client_runtime_info: Option<HaClientRuntimeInfo>,
        #[serde(deserialize_with = "nullable")]
        ha_connection_info: Vec<HaConnectionInfo>,
        in_sync_slave_nums: i32,
        master: bool,
        master_commit_log_max_offset: i64,
    }
    pub struct HaClientRuntimeInfo {
        last_read_timestamp: i64,
        last_write_timestamp: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        master_addr: Option<String>,
        master_flush_offset: i64,
        max_offset: i64,
        transferred_byte_in_second: i64,
    }
    pub struct HaConnectionInfo {
        addr: String,
        diff: i64,
        in_sync: bool,
        slave_ack_offset: i64,
        transfer_from_where: i64,
        transferred_byte_in_second: i64,
    }
}
