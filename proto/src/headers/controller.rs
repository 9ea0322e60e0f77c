//! Requests to a controller, and what it tells brokers. Source: wire-protocol sheet 10.2, replication sheet 8. The heartbeat (904) is
//! with the NameServer's requests: one header for both.
use crate::headers::header;

/// In `broker_id` of [`ElectMaster`]: an operator or a controller asks, the controller chooses.
pub const NO_BROKER_ID: i64 = -1;

header! {
    /// 1001; the body is a [`crate::body::controller::SyncStateSet`] with the epoch that it is to replace.
    pub struct AlterSyncStateSet<'c> {
        broker_name: &'c str = "brokerName",
        master_broker_id: i64 = "masterBrokerId",
        master_epoch: i32 = "masterEpoch",
        invoke_ms: Option<i64> = "invokeTime",
    }
    /// 1002.
    pub struct ElectMaster<'c> {
        cluster_name: &'c str = "clusterName" or "",
        broker_name: &'c str = "brokerName",
        /// [`NO_BROKER_ID`] when no broker asks.
        broker_id: i64 = "brokerId" or NO_BROKER_ID,
        /// That broker or none.
        designate_elect: bool = "designateElect" or false,
        invoke_ms: Option<i64> = "invokeTime",
    }
    /// 1003.
    pub struct RegisterToController<'c> {
        cluster_name: &'c str = "clusterName",
        broker_name: &'c str = "brokerName",
        broker_id: i64 = "brokerId",
        broker_address: &'c str = "brokerAddress",
        invoke_ms: Option<i64> = "invokeTime",
    }
    /// 1004.
    pub struct GetReplicaInfo<'c> {
        broker_name: &'c str = "brokerName",
    }
    /// 1008, to a broker, one-way; the body is the SyncStateSet.
    pub struct NotifyBrokerRoleChanged<'c> {
        master_address: Option<&'c str> = "masterAddress",
        master_epoch: Option<i32> = "masterEpoch",
        sync_state_set_epoch: Option<i32> = "syncStateSetEpoch",
        master_broker_id: Option<i64> = "masterBrokerId",
    }
    /// 1011.
    pub struct CleanBrokerData<'c> {
        cluster_name: Option<&'c str> = "clusterName",
        broker_name: &'c str = "brokerName",
        /// Ids separated by `;`; absent: the whole group.
        broker_controller_ids_to_clean: Option<&'c str> = "brokerControllerIdsToClean",
        clean_living_broker: bool = "isCleanLivingBroker" or false,
        invoke_ms: Option<i64> = "invokeTime",
    }
    /// 1012.
    pub struct GetNextBrokerId<'c> {
        cluster_name: &'c str = "clusterName",
        broker_name: &'c str = "brokerName",
    }
    /// 1013.
    pub struct ApplyBrokerId<'c> {
        cluster_name: &'c str = "clusterName",
        broker_name: &'c str = "brokerName",
        applied_broker_id: i64 = "appliedBrokerId",
        /// `address;ms`: made once by the broker, so that it may repeat its request.
        register_check_code: &'c str = "registerCheckCode",
    }
}
