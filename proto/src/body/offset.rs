//! Offset tables: bodies of 43 and 45, `consumerOffset.json` and `delayOffset.json`; resets and corrections (220 to 223, 308).
//! Source: wire-protocol sheet 7.3, 8, 10.1; store-format sheet 8.3.
use super::topic::DataVersion;
use super::{BareMap, MessageQueue, nullable};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Queue id to next offset.
pub type QueueOffsets = BareMap<i32, i64>;

/// Committed offsets. Keys are `topic@group`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerOffsetTable {
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    /// Derived from the offsets; ignored on load.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub group_topic_map: BTreeMap<String, Vec<String>>,
    #[serde(deserialize_with = "nullable")]
    pub offset_table: BTreeMap<String, QueueOffsets>,
    /// Of groups with light queues' names (`lmqConsumerOffset.json` only): the offset in queue 0.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub lmq_offset_table: BTreeMap<String, i64>,
    /// Offsets of pulls that carried no commit; not read back at start.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub pull_offset_table: BTreeMap<String, QueueOffsets>,
}

impl ConsumerOffsetTable {
    /// `topic@group`, queue and offset of each row; rows of negative queues are left out.
    pub fn rows(&self) -> impl Iterator<Item = (&str, u32, i64)> + Clone {
        let plain = self.offset_table.iter().flat_map(|(name, queues)| {
            let queues = queues.iter().filter_map(|(queue, at)| Some((u32::try_from(*queue).ok()?, *at)));
            queues.map(move |(queue, at)| (name.as_str(), queue, at))
        });
        plain.chain(self.lmq_offset_table.iter().map(|(name, at)| (name.as_str(), 0, *at)))
    }
}

/// Progress of the delay levels: level to next queue offset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DelayOffsetTable {
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    #[serde(deserialize_with = "nullable")]
    pub offset_table: BareMap<i32, i64>,
}

/// Body of the answer to 222, and of 220 to a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResetOffsetBody {
    #[serde(deserialize_with = "nullable")]
    pub offset_table: BareMap<MessageQueue, i64>,
}

/// Body of 220 when a CPP client asked for the reset: a list instead of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResetOffsetBodyForC {
    pub offset_table: Vec<MessageQueueForC>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageQueueForC {
    pub broker_name: String,
    pub offset: i64,
    pub queue_id: i32,
    pub topic: String,
}

/// Body of the answers to 221 and 223.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerStatusBody {
    /// By client id.
    #[serde(deserialize_with = "nullable")]
    pub consumer_table: BTreeMap<String, BareMap<MessageQueue, i64>>,
    #[serde(deserialize_with = "nullable")]
    pub message_queue_table: BareMap<MessageQueue, i64>,
}

/// Body of the answer to 308.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorrectionOffsetBody {
    #[serde(deserialize_with = "nullable")]
    pub correction_offsets: QueueOffsets,
}
