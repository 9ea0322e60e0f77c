//! Heartbeats (34) and the subscription check (46). Source: wire-protocol sheet 4, 5.6.
use super::{nullable, text_enum};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

text_enum! {
    /// How a consumer gets its messages.
    pub enum ConsumeType {
        Passively = "CONSUME_PASSIVELY",
        Actively = "CONSUME_ACTIVELY",
        Pop = "CONSUME_POP",
    }
    pub enum MessageModel {
        Clustering = "CLUSTERING",
        Broadcasting = "BROADCASTING",
    }
    pub enum ConsumeFromWhere {
        LastOffset = "CONSUME_FROM_LAST_OFFSET",
        FirstOffset = "CONSUME_FROM_FIRST_OFFSET",
        Timestamp = "CONSUME_FROM_TIMESTAMP",
        LastOffsetAndFromMinWhenBootFirst = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        MinOffset = "CONSUME_FROM_MIN_OFFSET",
        MaxOffset = "CONSUME_FROM_MAX_OFFSET",
    }
}

pub const EXPRESSION_TAG: &str = "TAG";
pub const EXPRESSION_SQL92: &str = "SQL92";
pub const SUB_ALL: &str = "*";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatData {
    #[serde(rename = "clientID")]
    pub client_id: String,
    #[serde(default, deserialize_with = "nullable")]
    pub consumer_data_set: Vec<ConsumerData>,
    /// 0: an ordinary heartbeat.
    #[serde(default, deserialize_with = "nullable")]
    pub heartbeat_fingerprint: i32,
    #[serde(default, deserialize_with = "nullable")]
    pub producer_data_set: Vec<ProducerData>,
    /// Subscriptions were left out and must not be erased.
    #[serde(default, deserialize_with = "nullable")]
    pub without_sub: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerData {
    #[serde(default)]
    pub consume_from_where: ConsumeFromWhere,
    #[serde(default)]
    pub consume_type: ConsumeType,
    pub group_name: String,
    #[serde(default)]
    pub message_model: MessageModel,
    #[serde(default, deserialize_with = "nullable")]
    pub subscription_data_set: Vec<SubscriptionData>,
    #[serde(default, deserialize_with = "nullable")]
    pub unit_mode: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProducerData {
    pub group_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionData {
    #[serde(default, deserialize_with = "nullable")]
    pub class_filter_mode: bool,
    /// Java hashes of `tags_set`. The Go client sends them as text.
    #[serde(default, deserialize_with = "numbers")]
    pub code_set: Vec<i32>,
    #[serde(default = "tag", deserialize_with = "tag_if_null")]
    pub expression_type: String,
    #[serde(default, deserialize_with = "nullable")]
    pub sub_string: String,
    /// Time of its last change, ms by the client's clock.
    #[serde(default, deserialize_with = "nullable")]
    pub sub_version: i64,
    #[serde(default, deserialize_with = "nullable")]
    pub tags_set: Vec<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub topic: String,
}

fn tag() -> String {
    EXPRESSION_TAG.to_owned()
}

fn tag_if_null<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_else(tag))
}

fn numbers<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<i32>, D::Error> {
    let number = |value: Value| match value {
        Value::Number(n) => n.as_i64().map(|n| n as i32),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let values = Option::<Vec<Value>>::deserialize(d)?.unwrap_or_default();
    let wrong = || serde::de::Error::custom("codeSet holds what is no number");
    values.into_iter().map(|value| number(value).ok_or_else(wrong)).collect()
}

impl Default for SubscriptionData {
    fn default() -> Self {
        SubscriptionData {
            class_filter_mode: false,
            code_set: Vec::new(),
            expression_type: tag(),
            sub_string: String::new(),
            sub_version: 0,
            tags_set: Vec::new(),
            topic: String::new(),
        }
    }
}

impl SubscriptionData {
    /// Takes every message without looking at its tag.
    pub fn takes_all(&self) -> bool {
        self.sub_string == SUB_ALL
    }

    pub fn is_tag(&self) -> bool {
        self.expression_type.is_empty() || self.expression_type == EXPRESSION_TAG
    }
}

/// Body of 46.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckClientRequest {
    #[serde(deserialize_with = "nullable")]
    pub client_id: String,
    #[serde(deserialize_with = "nullable")]
    pub group: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub subscription_data: Option<SubscriptionData>,
}
