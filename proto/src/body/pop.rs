//! Server-side balance and pop (400, 401, 402, 200151). Source: wire-protocol sheet 5.10, 6.3, 10.1.
use super::heartbeat::MessageModel;
use super::{MessageQueue, nullable, text_enum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

text_enum! {
    pub enum MessageRequestMode {
        Pull = "PULL",
        Pop = "POP",
    }
}

/// Body of 400.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryAssignmentRequest {
    pub client_id: String,
    pub consumer_group: String,
    #[serde(default)]
    pub message_model: MessageModel,
    #[serde(default, deserialize_with = "nullable")]
    pub strategy_name: String,
    pub topic: String,
}

/// Body of the answer to 400; no set at all makes the client keep what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueryAssignmentResponse {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_queue_assignments: Option<Vec<MessageQueueAssignment>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageQueueAssignment {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachments: Option<BTreeMap<String, String>>,
    pub message_queue: MessageQueue,
    pub mode: MessageRequestMode,
}

/// Body of 401, and an entry of 402.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetMessageRequestMode {
    pub consumer_group: String,
    pub mode: MessageRequestMode,
    #[serde(default, deserialize_with = "nullable")]
    pub pop_share_queue_num: i32,
    pub topic: String,
}

/// Body of the answer to 402 and `messageRequestMode.json`: topic to group to mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageRequestModeTable {
    #[serde(deserialize_with = "nullable")]
    pub message_request_mode_map: BTreeMap<String, BTreeMap<String, SetMessageRequestMode>>,
}

/// Body of 200151.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchAckRequest {
    #[serde(deserialize_with = "nullable")]
    pub acks: Vec<BatchAck>,
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
}

/// Acknowledged offsets of one pop: `so` + i for each bit i set. Long spellings are read as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchAck {
    /// Base64 of the little-endian byte form of the bits.
    #[serde(rename = "b", alias = "bitSet")]
    pub bit_set: String,
    #[serde(rename = "c", alias = "consumerGroup")]
    pub consumer_group: String,
    #[serde(rename = "it", alias = "invisibleTime")]
    pub invisible_ms: i64,
    #[serde(rename = "pt", alias = "popTime")]
    pub pop_ms: i64,
    #[serde(rename = "q", alias = "queueId")]
    pub queue_id: i32,
    #[serde(rename = "r", alias = "retry")]
    pub retry: String,
    #[serde(rename = "rq", alias = "reviveQueueId")]
    pub revive_queue_id: i32,
    #[serde(rename = "so", alias = "startOffset")]
    pub start_offset: i64,
    #[serde(rename = "t", alias = "topic")]
    pub topic: String,
}
