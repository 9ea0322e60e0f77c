//! Bodies of a controller's requests and answers (1001 to 1008). Source: wire-protocol sheet 10.2, replication sheet 8.
use super::nullable;
use super::route::BrokerMemberGroup;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The replicas that have all that is acknowledged, by controller id, and how often the set has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SyncStateSet {
    #[serde(deserialize_with = "nullable")]
    pub sync_state_set: BTreeSet<i64>,
    #[serde(deserialize_with = "nullable")]
    pub sync_state_set_epoch: i32,
}

/// Body of the answer to 1002.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Elected {
    /// Absent when nobody was elected because the master lives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_member_group: Option<BrokerMemberGroup>,
    #[serde(deserialize_with = "nullable")]
    pub sync_state_set: BTreeSet<i64>,
}

/// Body of the answer to 1006: by broker name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerReplicasInfo {
    #[serde(deserialize_with = "nullable")]
    pub replicas_info_table: BTreeMap<String, ReplicasInfo>,
}

/// One group. Master fields are absent while there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicasInfo {
    #[serde(deserialize_with = "nullable")]
    pub in_sync_replicas: Vec<Replica>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_broker_id: Option<i64>,
    #[serde(deserialize_with = "nullable")]
    pub master_epoch: i32,
    #[serde(deserialize_with = "nullable")]
    pub not_in_sync_replicas: Vec<Replica>,
    #[serde(deserialize_with = "nullable")]
    pub sync_state_set_epoch: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Replica {
    /// The controller has heard of it within its time.
    pub alive: bool,
    #[serde(deserialize_with = "nullable")]
    pub broker_address: String,
    pub broker_id: i64,
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
}

/// Body of the answer to 1007, by a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EpochCache {
    pub broker_id: i64,
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
    #[serde(deserialize_with = "nullable")]
    pub cluster_name: String,
    #[serde(deserialize_with = "nullable")]
    pub epoch_list: Vec<EpochEntry>,
    pub max_offset: i64,
}

/// The bytes of the log that one master wrote; half-open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EpochEntry {
    pub end_offset: i64,
    pub epoch: i32,
    pub start_offset: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body;
    use crate::fastjson;

    #[test]
    fn texts_as_java_writes_them() {
        let set: SyncStateSet = body::parse(br#"{"syncStateSet":[2,1],"syncStateSetEpoch":7}"#).unwrap();
        assert_eq!((set.sync_state_set.iter().copied().collect::<Vec<_>>(), set.sync_state_set_epoch), (vec![1, 2], 7));
        assert_eq!(fastjson::to_vec(&set), br#"{"syncStateSet":[1,2],"syncStateSetEpoch":7}"#);
        assert_eq!(body::parse::<SyncStateSet>(br#"{"syncStateSet":null}"#).unwrap(), SyncStateSet::default());
        assert!(body::parse::<SyncStateSet>(br#"{"syncStateSet":["x"]}"#).is_err());
        let none = fastjson::to_vec(&Elected { broker_member_group: None, sync_state_set: [1].into() });
        assert_eq!(none, br#"{"syncStateSet":[1]}"#);
        let group = BrokerMemberGroup {
            broker_addrs: [(1, "h:1".to_owned())].into_iter().collect(),
            broker_name: "b".into(),
            cluster: "c".into(),
        };
        let some = fastjson::to_vec(&Elected { broker_member_group: Some(group), sync_state_set: [1].into() });
        assert_eq!(
            String::from_utf8(some).unwrap(),
            r#"{"brokerMemberGroup":{"brokerAddrs":{1:"h:1"},"brokerName":"b","cluster":"c"},"syncStateSet":[1]}"#
        );
        let empty = fastjson::to_vec(&ReplicasInfo::default());
        assert_eq!(
            String::from_utf8(empty).unwrap(),
            r#"{"inSyncReplicas":[],"masterEpoch":0,"notInSyncReplicas":[],"syncStateSetEpoch":0}"#
        );
    }
}
