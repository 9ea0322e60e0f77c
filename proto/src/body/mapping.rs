//! Static topics: which logical queue lives where. Carried for peers that use them. Source: wire-protocol sheet 4.
use super::{BareMap, nullable};
use serde::{Deserialize, Serialize};

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
