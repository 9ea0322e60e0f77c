//! Every key that the broker acts on: name, field, type, default, and when a change at run time takes effect. From this one list come
//! the struct, the defaults, reading, printing and the run-time update. Apache's names and defaults (behaviour sheet 2.8, checked
//! against the classes of 5.5.0) unless the row says that the key is ours.
use super::values::{BrokerRole, CpuSet, DelayLevels, FlushDiskType, Hours, NamesrvAddrs, TopicNames};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use uringmq_proto::settings::ConfigValue;

/// When a value set at run time is acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// At the next request that looks at it.
    AtOnce,
    /// When the broker starts again.
    Restart,
    /// Never: the key is Apache's and has no meaning here.
    Inert,
}

/// One row a key; see the module's head.
macro_rules! config_keys {
    ($( $(#[$doc:meta])* $key:literal => $field:ident: $kind:ty = $default:expr, $effect:ident; )*) => {
        /// The broker's configuration with every default filled in. Read once at the start and handed down by value; a run-time
        /// update makes a new one.
        #[derive(Clone, Debug)]
        pub struct BrokerConfig {
            $( $(#[$doc])* pub $field: $kind, )*
            /// The `-c` file, where a run-time update is written back.
            pub path: Option<PathBuf>,
            /// `brokerIP1` resolved: the store host of every record.
            pub store_ip: IpAddr,
            /// Values given for keys that are not in this table: Apache's others and strangers.
            pub(super) others: BTreeMap<String, String>,
            /// Values set at run time that the next start will read.
            pub(super) pending: BTreeMap<String, String>,
        }

        impl Default for BrokerConfig {
            /// Apache's defaults; what depends on the machine is still blank (see `complete`).
            fn default() -> Self {
                BrokerConfig {
                    $( $field: $default, )*
                    path: None,
                    store_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
                    others: BTreeMap::new(),
                    pending: BTreeMap::new(),
                }
            }
        }

        impl BrokerConfig {
            /// Sets a key of the table from trimmed text; `None` when the key is not in it.
            pub(super) fn assign(&mut self, key: &str, text: &str) -> Option<Result<Effect, String>> {
                match key {
                    $( $key => Some(<$kind>::read(text).map(|value| {
                        self.$field = value;
                        Effect::$effect
                    })), )*
                    _ => None,
                }
            }

            /// Key and effective value of every row, in the order of the table.
            pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
                vec![$( ($key, self.$field.show()) ),*]
            }
        }
    };
}

config_keys! {
    // -- identity and addresses
    /// Blank until completed: the host's name.
    "brokerName" => broker_name: String = String::new(), Restart;
    "brokerClusterName" => cluster_name: String = "DefaultCluster".to_owned(), Restart;
    /// 0 for a master.
    "brokerId" => broker_id: i64 = 0, Restart;
    "brokerRole" => role: BrokerRole = BrokerRole::AsyncMaster, Restart;
    /// The address that clients are given: a name or an IP. Blank until completed: the first address that is not loopback.
    "brokerIP1" => broker_ip1: String = String::new(), Restart;
    /// The address that slaves are given.
    "brokerIP2" => broker_ip2: String = String::new(), Restart;
    /// 0 takes a free port (for tests).
    "listenPort" => listen_port: u16 = 10911, Restart;
    /// 0 until completed: the listening port + 1.
    "haListenPort" => ha_listen_port: u16 = 0, Restart;
    "bindAddress" => bind_address: String = "0.0.0.0".to_owned(), Restart;
    "namesrvAddr" => namesrv_addr: NamesrvAddrs = NamesrvAddrs::default(), AtOnce;
    /// Bits: 4 read, 2 write.
    "brokerPermission" => broker_permission: u32 = 6, AtOnce;
    /// Keys, separated by `;`, that a run-time update may not touch, besides the built-in ones.
    "configBlackList" => config_black_list: String = "configBlackList;brokerConfigPath".to_owned(), AtOnce;

    // -- topics and groups
    "defaultTopicQueueNums" => default_topic_queues: u32 = 8, AtOnce;
    "autoCreateTopicEnable" => auto_create_topic: bool = true, AtOnce;
    "autoCreateSubscriptionGroup" => auto_create_group: bool = true, AtOnce;
    "clusterTopicEnable" => cluster_topic: bool = true, Restart;
    "brokerTopicEnable" => broker_topic: bool = true, Restart;
    "traceTopicEnable" => trace_topic: bool = false, Restart;
    "msgTraceTopicName" => trace_topic_name: String = "RMQ_SYS_TRACE_TOPIC".to_owned(), Restart;
    "traceOn" => trace_on: bool = true, AtOnce;
    "regionId" => region_id: String = "DefaultRegion".to_owned(), AtOnce;
    "rejectTransactionMessage" => reject_transaction_message: bool = false, AtOnce;
    "rejectPullConsumerEnable" => reject_pull_consumer: bool = false, AtOnce;
    "enableMixedMessageType" => mixed_message_type: bool = false, AtOnce;
    "validateSystemTopicWhenUpdateTopic" => validate_system_topic: bool = true, AtOnce;
    "clearRetryTopicWhenDeleteTopic" => clear_retry_topic_with_topic: bool = true, AtOnce;
    "enableCreateSysGroup" => create_sys_group: bool = true, AtOnce;
    "storeReplyMessageEnable" => store_reply_message: bool = true, AtOnce;
    /// No send is accepted before this time, ms since the epoch; 0 switches it off.
    "startAcceptSendRequestTimeStamp" => accept_sends_from_ms: i64 = 0, AtOnce;
    /// Bytes of UTF-8.
    "maxTopicLength" => topic_bytes_max: usize = 127, AtOnce;
    /// A queue is locked when most of `totalReplicas` brokers of this name say so.
    "lockInStrictMode" => lock_in_strict_mode: bool = false, AtOnce;
    "totalReplicas" => total_replicas: usize = 1, AtOnce;
    "recallMessageEnable" => recall_message: bool = false, AtOnce;
    "enablePropertyFilter" => property_filter: bool = false, AtOnce;
    "filterSupportRetry" => filter_supports_retry: bool = false, AtOnce;
    /// With enableConsumeQueueExt, new messages get a bit map of the filters that they match, which a pull asks first.
    "enableCalcFilterBitMap" => filter_bit_maps: bool = false, AtOnce;
    /// These two make the length of the map.
    "expectConsumerNumUseFilter" => filter_groups: u32 = 32, Restart;
    "maxErrorRateOfBloomFilter" => filter_error_percent: u32 = 20, Restart;
    "filterDataCleanTimeSpan" => filter_keep_ms: i64 = 86_400_000, AtOnce;

    /// How much a group, and all of them, may read that is not in memory: told by code 2003, and limits nothing here.
    "cgColdReadThreshold" => cold_read_group_bytes: i64 = 3_145_728, AtOnce;
    "globalColdReadThreshold" => cold_read_global_bytes: i64 = 104_857_600, AtOnce;

    // -- pop
    "reviveQueueNum" => revive_queues: u32 = 8, Restart;
    /// Of each hundred pops, those that look at the retry topics first.
    "popFromRetryProbability" => pop_retry_percent: u32 = 20, AtOnce;
    /// The same for pops of a priority topic by priority.
    "popFromRetryProbabilityForPriority" => pop_retry_percent_for_priority: u32 = 0, AtOnce;
    /// The highest queue of a priority topic comes first; else the lowest.
    "priorityOrderAsc" => priority_order_asc: bool = true, AtOnce;
    /// Retry topics named `%RETRY%<group>_<topic>` are read.
    "retrieveMessageFromPopRetryTopicV1" => pop_retry_v1: bool = true, AtOnce;
    /// Retry topics named `%RETRY%<group>+<topic>` are written, and read.
    "enableRetryTopicV2" => pop_retry_v2: bool = false, AtOnce;
    /// Retried messages come under their retry topic's name.
    "popResponseReturnActualRetryTopic" => pop_gives_retry_topic: bool = false, AtOnce;
    /// A new group that asks for the newest messages gets all of a queue whose first is in memory.
    "initPopOffsetByCheckMsgInMem" => pop_from_first_in_memory: bool = true, AtOnce;
    /// Pops that may wait, on each shard; and for one topic, group and queue.
    "maxPopPollingSize" => pop_parked_max: usize = 100_000, AtOnce;
    "popPollingSize" => pop_parked_per_line_max: usize = 1024, AtOnce;
    /// Whether a group with too many messages of a queue in hand gets no more of it, and how many are not too many.
    "enablePopMessageThreshold" => pop_limits_in_flight: bool = false, AtOnce;
    "popInflightMessageThreshold" => pop_in_flight_max: i64 = 10_000, AtOnce;
    /// Nothing is stored for a group that is deleted.
    "popReviveSkipIfGroupAbsent" => pop_revive_needs_group: bool = true, AtOnce;

    // -- timers
    "timerWheelEnable" => timer_wheel: bool = true, Restart;
    /// Width of a slot. Messages come at their very ms whatever it is.
    "timerPrecisionMs" => timer_precision_ms: i64 = 1_000, Restart;
    "timerMaxDelaySec" => timer_max_delay_sec: i64 = 259_200, AtOnce;
    /// Slots; what is further ahead is enqueued anew on its way.
    "timerRollWindowSlot" => timer_roll_window_slots: i64 = 172_800, AtOnce;
    /// Messages on one slot beyond which sends are refused, some at first, from twice as many on all.
    "timerCongestNumEachSlot" => timer_congest_each_slot: i64 = 2_147_483_647, AtOnce;
    "timerFlushIntervalMs" => timer_flush_ms: u64 = 1_000, AtOnce;
    "timerStopEnqueue" => timer_stop_enqueue: bool = false, AtOnce;
    "timerStopDequeue" => timer_stop_dequeue: bool = false, AtOnce;
    "mappedFileSizeTimerLog" => timer_log_file_bytes: u64 = 100 << 20, Restart;
    /// A recall names topic and key of what it takes back, not the key alone.
    "appendTopicForTimerDeleteKey" => timer_delete_key_with_topic: bool = false, AtOnce;
    "allowRecallWhenBrokerNotWriteable" => recall_when_not_writable: bool = true, AtOnce;

    // -- admission and waiting
    "brokerFastFailureEnable" => fast_failure: bool = true, AtOnce;
    "waitTimeMillsInSendQueue" => send_wait_ms: u64 = 200, AtOnce;
    "waitTimeMillsInPullQueue" => pull_wait_ms: u64 = 5_000, AtOnce;
    "sendThreadPoolQueueCapacity" => sends_waiting_max: usize = 10_000, AtOnce;
    "pullThreadPoolQueueCapacity" => pulls_waiting_max: usize = 100_000, AtOnce;
    "longPollingEnable" => long_polling: bool = true, AtOnce;
    "shortPollingTimeMills" => short_polling_ms: u64 = 1_000, AtOnce;
    "slaveReadEnable" => slave_read: bool = false, AtOnce;
    "litePullMessageEnable" => lite_pull: bool = true, AtOnce;
    "notifyConsumerIdsChangedEnable" => notify_consumer_ids_changed: bool = true, AtOnce;
    "channelExpiredTimeout" => client_expiry_ms: u64 = 120_000, Restart;
    "subscriptionExpiredTimeout" => subscription_expiry_ms: u64 = 600_000, AtOnce;
    "serverChannelMaxIdleTimeSeconds" => idle_seconds: u64 = 120, Restart;
    "enableShutdownGracefully" => graceful_shutdown: bool = false, Restart;
    "shutdownWaitTimeSeconds" => shutdown_wait_seconds: u64 = 30, Restart;
    "connectTimeoutMillis" => connect_timeout_ms: u64 = 3_000, Restart;

    // -- offsets
    "useServerSideResetOffset" => server_side_reset_offset: bool = true, AtOnce;
    "flushConsumerOffsetInterval" => flush_consumer_offset_ms: u64 = 5_000, Restart;
    "flushDelayOffsetInterval" => flush_delay_offset_ms: u64 = 10_000, Restart;
    "consumerOffsetUpdateVersionStep" => consumer_offset_version_step: u64 = 500, AtOnce;
    "delayOffsetUpdateVersionStep" => delay_offset_version_step: u64 = 200, AtOnce;
    "offsetCheckInSlave" => offset_check_in_slave: bool = false, AtOnce;

    // -- transactions
    "transactionTimeOut" => transaction_timeout_ms: u64 = 6_000, AtOnce;
    "transactionCheckMax" => transaction_checks_max: u32 = 15, AtOnce;
    "transactionCheckInterval" => transaction_check_ms: u64 = 30_000, AtOnce;
    "transactionOpBatchInterval" => transaction_op_batch_ms: u64 = 3_000, AtOnce;
    "transactionOpMsgMaxSize" => transaction_op_bytes: usize = 4_096, AtOnce;

    // -- registration
    /// How long another broker may take to answer for its part of a static topic's queue.
    "forwardTimeout" => forward_timeout_ms: u64 = 3_000, AtOnce;
    /// Clamped to 10 to 60 s where it is used.
    "registerNameServerPeriod" => register_period_ms: u64 = 30_000, Restart;
    "registerBrokerTimeoutMills" => register_timeout_ms: u64 = 24_000, AtOnce;
    "forceRegister" => force_register: bool = true, AtOnce;
    "compressedRegister" => compressed_register: bool = false, AtOnce;
    "updateNameServerAddrPeriod" => namesrv_resolve_ms: u64 = 120_000, Restart;

    // -- store: files
    /// Blank until completed: `<home>/store`.
    "storePathRootDir" => store_root: PathBuf = PathBuf::new(), Restart;
    /// Blank until completed: `<root>/commitlog`.
    "storePathCommitLog" => commit_log_dir: PathBuf = PathBuf::new(), Restart;
    "mappedFileSizeCommitLog" => segment_bytes: u64 = 1 << 30, Restart;
    /// Rounded up to a multiple of 20.
    "mappedFileSizeConsumeQueue" => queue_file_bytes: u64 = 300_000 * 20, Restart;
    /// Of topics with queue.type=BatchCQ; rounded up to a multiple of 46.
    "mapperFileSizeBatchConsumeQueue" => batch_file_bytes: u64 = 300_000 * 46, Restart;
    /// Entries of queues get a unit in `consumequeue_ext` with their tags, store time and bit map.
    "enableConsumeQueueExt" => extended: bool = false, Restart;
    "mappedFileSizeConsumeQueueExt" => extension_file_bytes: u64 = 48 << 20, Restart;
    /// Light queues (LMQ): with both on, a message is in those that its property INNER_MULTI_DISPATCH names, too.
    "enableLmq" => lmq: bool = false, Restart;
    "enableMultiDispatch" => multi_dispatch: bool = false, Restart;
    /// Most light queues, where enableLmqQuota is on.
    "maxLmqConsumeQueueNum" => lmq_queues_max: usize = 20_000, AtOnce;
    "enableLmqQuota" => lmq_quota: bool = false, AtOnce;
    "messageIndexEnable" => index_enabled: bool = true, Restart;
    "maxHashSlotNum" => index_slots: u32 = 5_000_000, Restart;
    "maxIndexNum" => index_items: u32 = 20_000_000, Restart;
    "messageDelayLevel" => delay_levels: DelayLevels = DelayLevels::default(), Restart;
    "maxMessageSize" => message_bytes_max: usize = 4 << 20, AtOnce;

    // -- store: durability
    "flushDiskType" => flush_disk_type: FlushDiskType = FlushDiskType::AsyncFlush, Restart;
    "flushIntervalCommitLog" => flush_interval_ms: u64 = 500, Restart;
    "syncFlushTimeout" => sync_flush_timeout_ms: u64 = 5_000, AtOnce;

    // -- store: retention
    "fileReservedTime" => file_reserved_hours: u32 = 72, AtOnce;
    "deleteWhen" => delete_when: Hours = Hours(vec![4]), AtOnce;
    "cleanResourceInterval" => clean_interval_ms: u64 = 10_000, Restart;
    /// Pause between two deleted segments.
    "deleteCommitLogFilesInterval" => delete_pause_ms: u64 = 100, AtOnce;
    "deleteFileBatchMax" => delete_files_max: usize = 10, AtOnce;
    "cleanFileForciblyEnable" => clean_forcibly: bool = true, AtOnce;
    /// Clamped to 10 to 95.
    "diskMaxUsedSpaceRatio" => disk_max_used_percent: u8 = 75, AtOnce;
    /// Clamped to 30 to 85.
    "diskSpaceCleanForciblyRatio" => disk_force_percent: u8 = 85, AtOnce;
    /// Clamped to 35 to 90.
    "diskSpaceWarningLevelRatio" => disk_full_percent: u8 = 90, AtOnce;
    /// Ours: with less than this free on the log's disk, unexpired segments go, as over diskSpaceCleanForciblyRatio; 0 = by ratio only.
    "diskCleanForciblyFreeBytes" => disk_force_free_bytes: u64 = 0, AtOnce;
    /// Ours: with less than this free, writes are refused, as over diskSpaceWarningLevelRatio; 0 = by ratio only.
    "diskFullFreeBytes" => disk_full_free_bytes: u64 = 0, AtOnce;
    /// Ours: the oldest segments go when the log has more than this, expired or not; 0 = no limit.
    "commitLogBytesMax" => log_bytes_max: u64 = 0, AtOnce;
    /// Ours: topics, separated by `;`, that are refused when the disk is over diskRefuseEarlyRatio, so that others can go on.
    "diskRefuseEarlyTopics" => disk_early_topics: TopicNames = TopicNames::default(), AtOnce;
    /// Ours: clamped to 10 to 95.
    "diskRefuseEarlyRatio" => disk_early_percent: u8 = 80, AtOnce;
    /// Ours: a warning is logged when the disk will be full in fewer hours at the rate of the last hour; 0 = never.
    "diskFullWarningHours" => disk_warning_hours: u32 = 24, AtOnce;

    // -- store: reading
    "maxTransferBytesOnMessageInMemory" => pull_bytes_max_hot: usize = 256 << 10, AtOnce;
    "maxTransferCountOnMessageInMemory" => pull_count_max_hot: u32 = 32, AtOnce;
    "maxTransferBytesOnMessageInDisk" => pull_bytes_max_cold: usize = 64 << 10, AtOnce;
    "maxTransferCountOnMessageInDisk" => pull_count_max_cold: u32 = 8, AtOnce;
    "pullBatchMaxMessageCount" => pull_batch_max: u32 = 160, AtOnce;
    /// Per cent of the memory behind which a reader is told to go to a slave.
    "accessMessageInMemoryMaxRatio" => hot_percent: u8 = 40, AtOnce;
    /// Most results of a key query.
    "maxMsgsNumBatch" => query_count_max: u32 = 64, AtOnce;
    "defaultQueryMaxNum" => query_count_default: u32 = 32, AtOnce;

    // -- replication
    "haSendHeartbeatInterval" => ha_heartbeat_ms: u64 = 5_000, Restart;
    "haHousekeepingInterval" => ha_housekeeping_ms: u64 = 20_000, Restart;
    "haTransferBatchSize" => ha_transfer_bytes: usize = 32 << 10, Restart;
    "slaveTimeout" => slave_timeout_ms: u64 = 3_000, AtOnce;
    /// Copies of a message, the master's own counted, that SYNC_MASTER acknowledges by.
    "inSyncReplicas" => in_sync_replicas: u32 = 1, AtOnce;
    /// A slave: the master's `brokerIP2:haListenPort`. Blank: as the name servers say.
    "haMasterAddress" => ha_master_address: String = String::new(), Restart;
    /// A slave that is further behind does not count as in step.
    "haMaxGapNotInSync" => ha_gap_bytes_max: u64 = 256 << 20, AtOnce;

    /// Ours: a slave copies offsets and progress so often, topics and groups when they change; ms.
    "slaveTablesPeriodMs" => slave_tables_period_ms: u64 = 5_000, AtOnce;
    /// Ours: most bytes that a slave cuts off the end of its log when they are not its master's, so that it can follow again. 0: none.
    "slaveTruncateBytesMax" => slave_truncate_bytes_max: u64 = 0, AtOnce;

    // -- slave acting master
    /// Registers with signs of life every `brokerHeartbeatInterval`, and as one whose smallest id takes the place of a dead master in
    /// routes (docs/replication.md).
    "enableSlaveActingMaster" => slave_acting_master: bool = false, Restart;
    /// With it: what an acting slave delivers goes to another master of the cluster; without, it waits for the master.
    "enableRemoteEscape" => remote_escape: bool = false, AtOnce;
    /// With it: a NameServer forgets this broker when it gave no sign for so long.
    "brokerNotActiveTimeoutMillis" => broker_not_active_ms: u64 = 10_000, Restart;

    // -- controller mode
    /// The role comes from a controller; `brokerRole` and `brokerId` have no meaning then.
    "enableControllerMode" => controller_mode: bool = false, Restart;
    /// All controllers, separated by `;`.
    "controllerAddr" => controller_addr: NamesrvAddrs = NamesrvAddrs::default(), Restart;
    "brokerHeartbeatInterval" => broker_heartbeat_ms: u64 = 1_000, Restart;
    /// Without a heartbeat for so long the controller takes this broker for dead.
    "controllerHeartBeatTimeoutMills" => controller_heartbeat_timeout_ms: u64 = 10_000, Restart;
    /// How often the controller is asked who is master.
    "syncBrokerMetadataPeriod" => sync_broker_metadata_ms: u64 = 5_000, Restart;
    /// How often it is asked anew which controller leads.
    "syncControllerMetadataPeriod" => sync_controller_metadata_ms: u64 = 10_000, Restart;
    /// Smaller is preferred among logs that go equally far.
    "brokerElectionPriority" => election_priority: i32 = i32::MAX, Restart;
    /// A message is acknowledged when every member of the SyncStateSet has it.
    "allAckInSyncStateSet" => all_ack_in_sync_state_set: bool = false, Restart;
    /// With a smaller SyncStateSet nothing is stored.
    "minInSyncReplicas" => min_in_sync_replicas: u32 = 1, AtOnce;
    /// How often the master looks for members of the SyncStateSet that are behind.
    "checkSyncStateSetPeriod" => check_sync_state_set_ms: u64 = 5_000, Restart;
    /// A member that was behind for longer leaves the SyncStateSet.
    "haMaxTimeSlaveNotCatchup" => ha_not_caught_up_ms: u64 = 15_000, AtOnce;
    /// This broker copies the log, and never joins the SyncStateSet.
    "asyncLearner" => learner: bool = false, Restart;
    /// An empty slave begins at the master's last segment, not at its first.
    "syncFromLastFile" => sync_from_last_file: bool = false, Restart;

    // -- ours
    /// Executors, one a core; 0 means one for each core of `cpuSet`, or of the machine, where of two cores one is left to the kernel and others.
    /// More than cores share them.
    "shards" => shards: usize = 0, Restart;
    /// Ours: the cores to run on, as `0-3,5`.
    "cpuSet" => cpu_set: CpuSet = CpuSet::default(), Restart;
    /// Ours: the core of the writer; -1 chooses (the one that takes the disk's interrupt, where there is one).
    "writerCpu" => writer_cpu: i64 = -1, Restart;
    /// Ours: whether the writer's core serves connections too: 1 yes, 0 no, -1 as long as there are at most 3 shards.
    "writerConnections" => writer_connections: i64 = -1, Restart;
    /// Ours: how long an idle executor spins before it sleeps; takes latency off and power up.
    "spinBeforeParkUs" => spin_before_park_us: u64 = 0, Restart;
    /// Ours: newest records kept in memory for hot pulls, per process.
    "tailCacheBytes" => tail_cache_bytes: usize = 64 << 20, Restart;
    /// Ours: block cache of cold reads, per shard.
    "readCacheBytes" => read_cache_bytes: usize = 32 << 20, Restart;
    /// Ours: how far ahead of the tail a fresh segment is written with zeros; 0 switches it off.
    "warmAheadBytes" => warm_ahead_bytes: u64 = 256 << 20, Restart;
    /// Ours: a table of the store's `config/` of which neither the file nor its backup is good stops the start; with this, for one start,
    /// both are moved to `.broken` and the broker goes on without.
    "startWithoutBrokenTables" => start_without_broken_tables: bool = false, Restart;
    /// Ours: most bytes of one write of the log; rounded up to a multiple of 4096. With its three extra blocks the default fills one
    /// 512 KiB piece of the runtime's registered memory.
    "batchBytesMax" => batch_bytes_max: usize = 125 * 4096, Restart;
    /// Ours, for experiments: the file to which an orderly stop writes what the log's writer did, a line an operation: each write,
    /// sync and acknowledgement in order, up to a million. Empty records nothing.
    "operationLogPath" => operation_log_path: String = String::new(), Restart;
}
