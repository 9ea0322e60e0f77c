//! Subscription groups: bodies of 200, 201, 225, 352, 353 and `subscriptionGroup.json`. Source: wire-protocol sheet 4, 7.2.
use super::topic::DataVersion;
use super::{nullable, text_enum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

text_enum! {
    pub enum RetryPolicyType {
        Customized = "CUSTOMIZED",
        Exponential = "EXPONENTIAL",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionGroupConfig {
    #[serde(deserialize_with = "nullable")]
    pub attributes: BTreeMap<String, String>,
    pub broker_id: i64,
    pub consume_broadcast_enable: bool,
    pub consume_enable: bool,
    pub consume_from_min_enable: bool,
    pub consume_message_orderly: bool,
    pub consume_timeout_minute: i32,
    #[serde(deserialize_with = "nullable")]
    pub group_name: String,
    #[serde(deserialize_with = "nullable")]
    pub group_retry_policy: GroupRetryPolicy,
    pub group_sys_flag: i32,
    pub notify_consumer_ids_changed_enable: bool,
    pub retry_max_times: i32,
    pub retry_queue_nums: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_data_set: Option<Vec<SimpleSubscriptionData>>,
    pub which_broker_when_consume_slowly: i64,
}

impl Default for SubscriptionGroupConfig {
    fn default() -> Self {
        SubscriptionGroupConfig {
            attributes: BTreeMap::new(),
            broker_id: 0,
            consume_broadcast_enable: true,
            consume_enable: true,
            consume_from_min_enable: true,
            consume_message_orderly: false,
            consume_timeout_minute: 15,
            group_name: String::new(),
            group_retry_policy: GroupRetryPolicy::default(),
            group_sys_flag: 0,
            notify_consumer_ids_changed_enable: true,
            retry_max_times: 16,
            retry_queue_nums: 1,
            subscription_data_set: None,
            which_broker_when_consume_slowly: 1,
        }
    }
}

impl SubscriptionGroupConfig {
    pub fn new(name: impl Into<String>) -> Self {
        SubscriptionGroupConfig { group_name: name.into(), ..SubscriptionGroupConfig::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupRetryPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub customized_retry_policy: Option<CustomizedRetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exponential_retry_policy: Option<ExponentialRetryPolicy>,
    #[serde(rename = "type")]
    pub kind: RetryPolicyType,
}

/// Delays of the tries, ms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CustomizedRetryPolicy {
    #[serde(deserialize_with = "nullable")]
    pub next: Vec<i64>,
}

/// Delays in ms: from `initial`, times `multiplier` each time, up to `max`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExponentialRetryPolicy {
    pub initial: i64,
    pub max: i64,
    pub multiplier: i64,
}

impl Default for ExponentialRetryPolicy {
    fn default() -> Self {
        ExponentialRetryPolicy { initial: 5_000, max: 7_200_000, multiplier: 2 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimpleSubscriptionData {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression_type: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub topic: String,
    pub version: i64,
}

/// All groups: body of 201 and `subscriptionGroup.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionGroupWrapper {
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    /// Group to topic to forbidden bits.
    #[serde(deserialize_with = "nullable")]
    pub forbidden_table: BTreeMap<String, BTreeMap<String, i32>>,
    #[serde(deserialize_with = "nullable")]
    pub subscription_group_table: BTreeMap<String, SubscriptionGroupConfig>,
}

/// Body of 225.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionGroupList {
    pub group_config_list: Vec<SubscriptionGroupConfig>,
}

/// Body of the answer to 353.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupForbiddenBody {
    pub group: String,
    pub readable: bool,
    pub topic: String,
}
