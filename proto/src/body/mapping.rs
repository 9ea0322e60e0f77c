//! Static topics: which logical queue lives where. Source: wire-protocol sheet 4; store-format sheet 8.3.
use super::topic::DataVersion;
use super::{BareMap, nullable};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `topicQueueMapping.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicQueueMappingFile {
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    #[serde(deserialize_with = "nullable")]
    pub topic_queue_mapping_info_map: BTreeMap<String, TopicQueueMappingDetail>,
}

/// What a route tells of a broker's part in a static topic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicQueueMappingInfo {
    #[serde(deserialize_with = "nullable")]
    pub bname: String,
    /// Logical queue id to physical queue id.
    #[serde(deserialize_with = "nullable")]
    pub curr_id_map: BareMap<i32, i32>,
    pub dirty: bool,
    pub epoch: i64,
    #[serde(deserialize_with = "nullable")]
    pub scope: String,
    #[serde(deserialize_with = "nullable")]
    pub topic: String,
    pub total_queues: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicQueueMappingDetail {
    #[serde(deserialize_with = "nullable")]
    pub bname: String,
    #[serde(deserialize_with = "nullable")]
    pub curr_id_map: BareMap<i32, i32>,
    pub dirty: bool,
    pub epoch: i64,
    #[serde(deserialize_with = "nullable")]
    pub hosted_queues: BareMap<i32, Vec<LogicQueueMappingItem>>,
    #[serde(deserialize_with = "nullable")]
    pub scope: String,
    #[serde(deserialize_with = "nullable")]
    pub topic: String,
    pub total_queues: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LogicQueueMappingItem {
    #[serde(deserialize_with = "nullable")]
    pub bname: String,
    pub end_offset: i64,
    #[serde(rename = "gen")]
    pub generation: i32,
    pub logic_offset: i64,
    pub queue_id: i32,
    pub start_offset: i64,
    pub time_of_end: i64,
    pub time_of_start: i64,
}

impl LogicQueueMappingItem {
    /// From logical to physical offsets: subtract it.
    pub fn delta(&self) -> i64 {
        self.logic_offset.saturating_sub(self.start_offset)
    }

    /// The logical offset behind its last message; `None` while it still grows.
    pub fn end(&self) -> Option<i64> {
        (self.end_offset >= 0).then(|| self.end_offset.saturating_add(self.delta()))
    }
}
