//! `consumerFilter.json`: what groups filter by, and where each has its places in messages' bit maps. Source: store-format sheet 8; behaviour
//! sheet 10.4.
use super::nullable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerFilterFile {
    #[serde(deserialize_with = "nullable")]
    pub filter_data_by_topic: BTreeMap<String, TopicFilterData>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicFilterData {
    /// By group.
    #[serde(deserialize_with = "nullable")]
    pub group_filter_data: BTreeMap<String, ConsumerFilterData>,
    #[serde(deserialize_with = "nullable")]
    pub topic: String,
}

/// What one group subscribes on one topic. Times in ms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerFilterData {
    #[serde(deserialize_with = "nullable")]
    pub bloom_filter_data: BloomFilterData,
    /// Messages stored later have its places in their maps, if they have a map.
    pub born_time: i64,
    /// Version of the subscription.
    pub client_version: i64,
    #[serde(deserialize_with = "nullable")]
    pub consumer_group: String,
    pub dead: bool,
    /// Since when nobody of the group is there, if that is later than `born_time`.
    pub dead_time: i64,
    #[serde(deserialize_with = "nullable")]
    pub expression: String,
    #[serde(deserialize_with = "nullable")]
    pub expression_type: String,
    #[serde(deserialize_with = "nullable")]
    pub topic: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BloomFilterData {
    pub bit_num: u32,
    #[serde(deserialize_with = "nullable")]
    pub bit_pos: Vec<u32>,
}
