//! Queue locks of ordered consumers (41, 42). Source: wire-protocol sheet 5.7.
use super::{MessageQueue, nullable};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockBatchRequest {
    pub client_id: String,
    pub consumer_group: String,
    #[serde(default, deserialize_with = "nullable")]
    pub mq_set: Vec<MessageQueue>,
    #[serde(default, deserialize_with = "nullable")]
    pub only_this_broker: bool,
}

/// The queues that could be locked; the others are just missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockBatchResponse {
    #[serde(rename = "lockOKMQSet", default, deserialize_with = "nullable")]
    pub lock_ok_mq_set: Vec<MessageQueue>,
}
