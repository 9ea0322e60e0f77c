//! Routes and cluster tables (105, 106, 217, 901). Source: wire-protocol sheet 4, 9.1, 9.3.
use super::mapping::TopicQueueMappingInfo;
use super::{BareMap, nullable};
use crate::fastjson;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Body of the answer to 105. `filter_server_table` is always written, `order_topic_conf` only when set (sheet 18, 8).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicRouteData {
    #[serde(deserialize_with = "nullable")]
    pub broker_datas: Vec<BrokerData>,
    #[serde(deserialize_with = "nullable")]
    pub filter_server_table: BTreeMap<String, Vec<String>>,
    /// `brokerA:4;brokerB:4`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_topic_conf: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub queue_datas: Vec<QueueData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_queue_mapping_by_broker: Option<BTreeMap<String, TopicQueueMappingInfo>>,
}

/// First version that gets strict JSON without asking (4.9.4).
pub const STRICT_VERSION: i32 = 401;

impl TopicRouteData {
    /// The body for a caller of `version` that sent `acceptStandardJsonOnly` or not.
    pub fn encode(&self, version: i32, accept_standard_json_only: bool) -> Vec<u8> {
        if version >= STRICT_VERSION || accept_standard_json_only {
            fastjson::to_vec_strict(self)
        } else {
            fastjson::to_vec(self)
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerData {
    /// By broker id; 0 is the master.
    #[serde(deserialize_with = "nullable")]
    pub broker_addrs: BareMap<i64, String>,
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
    #[serde(deserialize_with = "nullable")]
    pub cluster: String,
    #[serde(deserialize_with = "nullable")]
    pub enable_acting_master: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueData {
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
    pub perm: i32,
    pub read_queue_nums: i32,
    /// Older peers spell it `topicSynFlag`.
    #[serde(alias = "topicSynFlag")]
    pub topic_sys_flag: i32,
    pub write_queue_nums: i32,
}

/// Body of the answer to 106, in fastjson's form for everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInfo {
    #[serde(deserialize_with = "nullable")]
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    #[serde(deserialize_with = "nullable")]
    pub cluster_addr_table: BTreeMap<String, Vec<String>>,
}

/// Body of the answer to 901.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerMemberGroupBody {
    pub broker_member_group: BrokerMemberGroup,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerMemberGroup {
    #[serde(deserialize_with = "nullable")]
    pub broker_addrs: BareMap<i64, String>,
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
    #[serde(deserialize_with = "nullable")]
    pub cluster: String,
}
