//! NameServer requests. Source: wire-protocol sheet 9.
use crate::headers::header;

header! {
    /// 100.
    pub struct PutKvConfig<'c> {
        namespace: &'c str = "namespace",
        key: &'c str = "key",
        value: &'c str = "value",
    }
    /// 101, 102.
    pub struct KvKey<'c> {
        namespace: &'c str = "namespace",
        key: &'c str = "key",
    }
    /// 219.
    pub struct KvNamespace<'c> {
        namespace: &'c str = "namespace",
    }
    /// 103.
    pub struct RegisterBroker<'c> {
        broker_name: &'c str = "brokerName",
        broker_addr: &'c str = "brokerAddr",
        cluster_name: &'c str = "clusterName",
        ha_server_addr: &'c str = "haServerAddr" or "",
        /// 0 is the master.
        broker_id: i64 = "brokerId",
        heartbeat_timeout_ms: Option<i64> = "heartbeatTimeoutMillis",
        /// Absent: an old broker, which counts as false.
        enable_acting_master: Option<bool> = "enableActingMaster",
        compressed: bool = "compressed" or false,
        /// CRC-32 of the body as sent, lower 31 bits; 0 is unchecked.
        body_crc32: i32 = "bodyCrc32" or 0,
        zone_name: Option<&'c str> = "__ZONE_NAME",
    }
    /// 104.
    pub struct UnregisterBroker<'c> {
        broker_name: &'c str = "brokerName",
        broker_addr: &'c str = "brokerAddr",
        cluster_name: &'c str = "clusterName",
        broker_id: i64 = "brokerId",
    }
    /// 105.
    pub struct GetRouteInfo<'c> {
        topic: &'c str = "topic",
        accept_standard_json_only: bool = "acceptStandardJsonOnly" or false,
        zone_mode: Option<&'c str> = "__ZONE_MODE",
        zone_name: Option<&'c str> = "__ZONE_NAME",
    }
    /// 205, 327.
    pub struct BrokerNameOnly<'c> {
        broker_name: &'c str = "brokerName",
    }
    /// 216.
    pub struct DeleteTopicInNamesrv<'c> {
        topic: &'c str = "topic",
        cluster_name: Option<&'c str> = "clusterName",
    }
    /// 217.
    pub struct RegisterTopic<'c> {
        topic: &'c str = "topic",
    }
    /// 224.
    pub struct GetTopicsByCluster<'c> {
        cluster: &'c str = "cluster",
    }
    /// 322.
    pub struct QueryDataVersion<'c> {
        broker_name: &'c str = "brokerName",
        broker_addr: &'c str = "brokerAddr",
        cluster_name: &'c str = "clusterName",
        broker_id: i64 = "brokerId",
    }
    /// 901.
    pub struct GetBrokerMemberGroup<'c> {
        cluster_name: &'c str = "clusterName",
        broker_name: &'c str = "brokerName",
    }
    /// 904. The fields from `broker_id` on are for controllers.
    pub struct BrokerHeartbeat<'c> {
        cluster_name: &'c str = "clusterName",
        broker_addr: &'c str = "brokerAddr",
        broker_name: &'c str = "brokerName",
        broker_id: Option<i64> = "brokerId",
        epoch: Option<i32> = "epoch",
        max_offset: Option<i64> = "maxOffset",
        confirm_offset: Option<i64> = "confirmOffset",
        /// Java spells it so, in the controller's requests only.
        heartbeat_timeout_ms: Option<i64> = "heartbeatTimeoutMills",
        election_priority: Option<i32> = "electionPriority",
    }
    /// 905 to a broker.
    pub struct NotifyMinBrokerIdChange<'c> {
        min_broker_id: Option<i64> = "minBrokerId",
        broker_name: Option<&'c str> = "brokerName",
        min_broker_addr: Option<&'c str> = "minBrokerAddr",
        offline_broker_addr: Option<&'c str> = "offlineBrokerAddr",
        ha_broker_addr: Option<&'c str> = "haBrokerAddr",
    }
}
