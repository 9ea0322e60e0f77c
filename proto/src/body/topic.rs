//! Topic configuration: bodies of 17 to 21, 103, 351 and `topics.json`. Source: wire-protocol sheet 4, 7.1; store-format 8.2, 8.3.
use super::mapping::{TopicQueueMappingDetail, TopicQueueMappingInfo};
use super::{nullable, text_enum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

text_enum! {
    pub enum TopicFilterType {
        SingleTag = "SINGLE_TAG",
        MultiTag = "MULTI_TAG",
    }
}

/// The attribute that says which kind of queues a topic has, and its value for batch queues. Source: store-format sheet 4.9.
pub const QUEUE_TYPE: &str = "queue.type";
pub const QUEUE_TYPE_BATCH: &str = "BatchCQ";

/// Version of a table; two are the same only if all three match. Ordered by state version, counter, timestamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVersion {
    #[serde(deserialize_with = "nullable")]
    pub counter: i64,
    /// Absent from 4.9 peers.
    #[serde(deserialize_with = "nullable")]
    pub state_version: i64,
    /// ms.
    #[serde(deserialize_with = "nullable")]
    pub timestamp: i64,
}

impl DataVersion {
    /// The version after a change at `now_ms`.
    pub fn next(self, state_version: i64, now_ms: i64) -> Self {
        DataVersion { counter: self.counter.wrapping_add(1), state_version, timestamp: now_ms }
    }
}

impl Ord for DataVersion {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |v: &Self| (v.state_version, v.counter, v.timestamp);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for DataVersion {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A topic on a broker. The numbers are as Java's: nothing but their type is checked here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfig {
    #[serde(deserialize_with = "nullable")]
    pub attributes: BTreeMap<String, String>,
    pub order: bool,
    /// Bits of [`crate::names::perm`].
    pub perm: i32,
    pub read_queue_nums: i32,
    pub topic_filter_type: TopicFilterType,
    #[serde(deserialize_with = "nullable")]
    pub topic_name: String,
    /// Bit 0 unit, bit 1 has unit subscribers.
    pub topic_sys_flag: i32,
    pub write_queue_nums: i32,
}

impl Default for TopicConfig {
    fn default() -> Self {
        TopicConfig {
            attributes: BTreeMap::new(),
            order: false,
            perm: 6,
            read_queue_nums: 16,
            topic_filter_type: TopicFilterType::SingleTag,
            topic_name: String::new(),
            topic_sys_flag: 0,
            write_queue_nums: 16,
        }
    }
}

impl TopicConfig {
    /// A readable and writable topic of `queues` read and write queues.
    pub fn new(name: impl Into<String>, queues: i32) -> Self {
        let topic_name = name.into();
        TopicConfig { topic_name, read_queue_nums: queues, write_queue_nums: queues, ..TopicConfig::default() }
    }
}

/// All topics of a broker: body of 21, part of 103. `topics.json` has the members without mapping only: leave those `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfigSerializeWrapper {
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapping_data_version: Option<DataVersion>,
    #[serde(deserialize_with = "nullable")]
    pub topic_config_table: BTreeMap<String, TopicConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_queue_mapping_detail_map: Option<BTreeMap<String, TopicQueueMappingDetail>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_queue_mapping_info_map: Option<BTreeMap<String, TopicQueueMappingInfo>>,
}

/// Body of 18. Attribute keys carry their `+` or `-`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateTopicList {
    pub topic_config_list: Vec<TopicConfig>,
}

/// Body of the answer to 351.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfigAndMapping {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapping_detail: Option<TopicQueueMappingDetail>,
    #[serde(flatten)]
    pub config: TopicConfig,
}
