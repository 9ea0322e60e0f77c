//! What must hold between the values of a configuration, and the values that depend on others or on the machine.
use super::{BrokerConfig, BrokerRole, HostPort, Machine};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use uringmq_filter::bloom::Bloom;
use uringmq_proto::ha;
use uringmq_store::consume_queue::extension;

/// A key and what is wrong with its value.
type Fault = (&'static str, String);

/// Bytes of a file offset in Apache's format are a Java int.
const FILE_BYTES_MAX: u64 = i32::MAX as u64;
const PAGE_BYTES: u64 = 4096;
const QUEUE_ENTRY_BYTES: u64 = 20;
const BATCH_ENTRY_BYTES: u64 = 46;
/// More executors than this is a slip of the pen; each takes 512 KiB of locked memory.
const SHARDS_MAX: usize = 1024;

impl BrokerConfig {
    /// Fills in what depends on other keys and on the machine, and brings values into their range.
    pub(super) fn complete(&mut self, machine: &Machine, warnings: &mut Vec<String>) -> Result<(), Fault> {
        if self.broker_name.is_empty() {
            self.broker_name = machine.host_name.clone();
        }
        self.complete_addresses(machine, warnings)?;
        if self.ha_listen_port == 0 && self.listen_port != 0 {
            self.ha_listen_port =
                self.listen_port.checked_add(1).ok_or(("listenPort", "leaves no port for haListenPort".to_owned()))?;
        }
        if self.store_root.as_os_str().is_empty() {
            self.store_root = machine.home.join("store");
        }
        if self.commit_log_dir.as_os_str().is_empty() {
            self.commit_log_dir = self.store_root.join("commitlog");
        }
        if self.controller_mode {
            // Until the controller says otherwise.
            (self.role, self.broker_id) = (BrokerRole::SyncMaster, 0);
        }
        if self.role == BrokerRole::Slave && self.broker_id <= 0 {
            return Err(("brokerId", "must be above 0 where brokerRole is SLAVE".to_owned()));
        }
        if self.role != BrokerRole::Slave && self.broker_id != 0 {
            warnings.push(format!("brokerId {} is not used: a master has 0", self.broker_id));
            self.broker_id = 0;
        }
        if self.role == BrokerRole::SyncMaster && !self.awaits_slaves() && !self.controller_mode {
            warnings.push(
                "brokerRole is SYNC_MASTER, but with inSyncReplicas=1 no message waits for a slave; set inSyncReplicas=2 to have each \
                 on a slave before it is acknowledged"
                    .to_owned(),
            );
        }
        self.clamp(warnings);
        Ok(())
    }

    fn complete_addresses(&mut self, machine: &Machine, warnings: &mut Vec<String>) -> Result<(), Fault> {
        let own = machine.own_address();
        let resolve = |key: &'static str, host: &str| {
            (machine.resolve)(host)
                .map_err(|error| (key, format!("does not resolve ({error}); give an address of this machine")))
        };
        if self.broker_ip1.is_empty() {
            self.broker_ip1 = own.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)).to_string();
        }
        self.store_ip = resolve("brokerIP1", &self.broker_ip1)?;
        if self.store_ip.is_loopback() {
            warnings.push(format!(
                "brokerIP1 is {}: clients on other machines cannot reach this broker; set brokerIP1 to an address that they can reach",
                self.broker_ip1
            ));
        }
        match (self.broker_ip2.is_empty(), own) {
            (true, Some(own)) => self.broker_ip2 = own.to_string(),
            (true, None) => self.broker_ip2 = self.broker_ip1.clone(),
            (false, _) => drop(resolve("brokerIP2", &self.broker_ip2)?),
        }
        Ok(())
    }

    /// Brings values that Apache's broker clamps, and sizes that the store rounds, into their range.
    pub(super) fn clamp(&mut self, warnings: &mut Vec<String>) {
        let ratios = [
            ("diskMaxUsedSpaceRatio", &mut self.disk_max_used_percent, 10, 95),
            ("diskSpaceCleanForciblyRatio", &mut self.disk_force_percent, 30, 85),
            ("diskSpaceWarningLevelRatio", &mut self.disk_full_percent, 35, 90),
            ("diskRefuseEarlyRatio", &mut self.disk_early_percent, 10, 95),
        ];
        for (key, percent, low, high) in ratios {
            let clamped = (*percent).clamp(low, high);
            if clamped != *percent {
                warnings.push(format!("{key} = {percent} is outside {low} to {high}; {clamped} is used"));
                *percent = clamped;
            }
        }
        self.queue_file_bytes = self.queue_file_bytes.next_multiple_of(QUEUE_ENTRY_BYTES).max(QUEUE_ENTRY_BYTES);
        self.batch_file_bytes = self.batch_file_bytes.next_multiple_of(BATCH_ENTRY_BYTES).max(BATCH_ENTRY_BYTES);
        self.batch_bytes_max = self.batch_bytes_max.next_multiple_of(PAGE_BYTES as usize).max(PAGE_BYTES as usize);
    }

    /// What must hold of a complete configuration, at the start and after each update.
    pub(super) fn check(&self) -> Result<(), Fault> {
        self.check_identity()?;
        self.check_store()?;
        self.check_periods()?;
        self.check_unsupported()
    }

    fn check_identity(&self) -> Result<(), Fault> {
        let fault = |key, why: &str| Err((key, why.to_owned()));
        if self.broker_name.is_empty() {
            return fault("brokerName", "is blank");
        }
        if self.cluster_name.is_empty() {
            return fault("brokerClusterName", "is blank");
        }
        if self.bind_address.parse::<IpAddr>().is_err() {
            return fault("bindAddress", "is not an IP address");
        }
        if matches!(self.listen_port, 1 | 2) {
            return fault("listenPort", "leaves no port for the fast listener, which takes listenPort - 2");
        }
        if self.broker_permission > 7 {
            return fault("brokerPermission", "is more than the bits 4 (read), 2 (write) and 1 (inherit)");
        }
        if self.default_topic_queues == 0 {
            return fault("defaultTopicQueueNums", "must be at least 1");
        }
        if self.shards > SHARDS_MAX {
            return Err(("shards", format!("is more than {SHARDS_MAX}")));
        }
        if self.in_sync_replicas == 0 {
            return fault("inSyncReplicas", "must be at least 1: the master's own copy counts");
        }
        if self.controller_mode && self.controller_addr.0.is_empty() {
            return fault("controllerAddr", "is blank; with enableControllerMode it names the controllers");
        }
        if self.min_in_sync_replicas == 0 {
            return fault("minInSyncReplicas", "must be at least 1: the master's own copy counts");
        }
        if !(1..=ha::BODY_BYTES_MAX).contains(&self.ha_transfer_bytes) {
            return Err(("haTransferBatchSize", format!("must be from 1 to {}", ha::BODY_BYTES_MAX)));
        }
        if !self.ha_master_address.is_empty()
            && let Err(why) = HostPort::read(&self.ha_master_address)
        {
            return Err(("haMasterAddress", why));
        }
        if self.writer_cpu < -1 {
            return fault("writerCpu", "is neither a core nor -1");
        }
        if !(-1..=1).contains(&self.writer_connections) {
            return fault("writerConnections", "must be -1, 0 or 1");
        }
        Ok(())
    }

    fn check_store(&self) -> Result<(), Fault> {
        let fault = |key, why: &str| Err((key, why.to_owned()));
        let name = self.commit_log_dir.as_os_str().to_string_lossy();
        if name.contains(',') {
            return fault("storePathCommitLog", "names several directories; this broker keeps its log in one");
        }
        if same_dir(&self.commit_log_dir, &self.store_root) {
            return fault(
                "storePathCommitLog",
                "is storePathRootDir itself; give a directory of its own, such as commitlog in it",
            );
        }
        if !self.segment_bytes.is_multiple_of(PAGE_BYTES) || self.segment_bytes < 2 * PAGE_BYTES {
            return fault("mappedFileSizeCommitLog", "is not a multiple of 4096 from 8192 on, which direct I/O needs");
        }
        if self.segment_bytes > FILE_BYTES_MAX {
            return fault("mappedFileSizeCommitLog", "is more than 2147479552");
        }
        if self.batch_file_bytes > FILE_BYTES_MAX {
            return fault("mapperFileSizeBatchConsumeQueue", "is more than 2147483640");
        }
        if self.queue_file_bytes > FILE_BYTES_MAX {
            return fault("mappedFileSizeConsumeQueue", "is more than 2147483640");
        }
        self.check_extension()?;
        if self.index_slots == 0 || self.index_slots > i32::MAX as u32 {
            return fault("maxHashSlotNum", "must be from 1 to 2147483647");
        }
        if self.index_items < 2 || self.index_items > i32::MAX as u32 {
            return fault("maxIndexNum", "must be from 2 to 2147483647");
        }
        if self.message_bytes_max == 0 || self.message_bytes_max as u64 > FILE_BYTES_MAX {
            return fault("maxMessageSize", "must be from 1 to 2147483647");
        }
        if !(1..=60_000).contains(&self.timer_precision_ms) {
            return fault("timerPrecisionMs", "must be from 1 to 60000");
        }
        if !(68..=FILE_BYTES_MAX).contains(&self.timer_log_file_bytes) {
            return fault("mappedFileSizeTimerLog", "must be from 68 to 2147483647");
        }
        if !(2..=604_740).contains(&self.timer_roll_window_slots) {
            return fault("timerRollWindowSlot", "must be from 2 to 604740");
        }
        if !(0..=i64::from(i32::MAX)).contains(&self.timer_max_delay_sec) {
            return fault("timerMaxDelaySec", "must be from 0 to 2147483647");
        }
        if !(1..=127).contains(&self.topic_bytes_max) {
            return fault("maxTopicLength", "must be from 1 to 127");
        }
        Ok(())
    }

    fn check_extension(&self) -> Result<(), Fault> {
        let Some(bloom) = Bloom::new(self.filter_groups, self.filter_error_percent) else {
            return match (1..100).contains(&self.filter_error_percent) {
                true => {
                    Err(("expectConsumerNumUseFilter", "is 0, or so many that no bit map can serve them".to_owned()))
                }
                false => Err(("maxErrorRateOfBloomFilter", "must be from 1 to 99".to_owned())),
            };
        };
        let range = extension::EXTENSION_FILE_BYTES_MIN..=FILE_BYTES_MAX;
        if self.extended && !range.contains(&self.extension_file_bytes) {
            let (least, most) = (range.start(), range.end());
            return Err(("mappedFileSizeConsumeQueueExt", format!("must be from {least} to {most}")));
        }
        if self.extended && bloom.map_bytes() > extension::MAP_BYTES_MAX {
            let (bytes, most) = (bloom.map_bytes(), extension::MAP_BYTES_MAX);
            let why = format!("makes a bit map of {bytes} bytes for each message; a unit has room for {most}");
            return Err(("expectConsumerNumUseFilter", why));
        }
        Ok(())
    }

    /// A period of 0 would be a loop without rest.
    fn check_periods(&self) -> Result<(), Fault> {
        let periods = [
            ("flushConsumerOffsetInterval", self.flush_consumer_offset_ms),
            ("flushDelayOffsetInterval", self.flush_delay_offset_ms),
            ("flushIntervalCommitLog", self.flush_interval_ms),
            ("cleanResourceInterval", self.clean_interval_ms),
            ("registerNameServerPeriod", self.register_period_ms),
            ("updateNameServerAddrPeriod", self.namesrv_resolve_ms),
            ("serverChannelMaxIdleTimeSeconds", self.idle_seconds),
            ("connectTimeoutMillis", self.connect_timeout_ms),
            ("channelExpiredTimeout", self.client_expiry_ms),
            ("transactionCheckInterval", self.transaction_check_ms),
            ("transactionOpBatchInterval", self.transaction_op_batch_ms),
            ("timerFlushIntervalMs", self.timer_flush_ms),
            ("haSendHeartbeatInterval", self.ha_heartbeat_ms),
            ("haHousekeepingInterval", self.ha_housekeeping_ms),
            ("brokerHeartbeatInterval", self.broker_heartbeat_ms),
            ("brokerNotActiveTimeoutMillis", self.broker_not_active_ms),
            ("controllerHeartBeatTimeoutMills", self.controller_heartbeat_timeout_ms),
            ("syncBrokerMetadataPeriod", self.sync_broker_metadata_ms),
            ("syncControllerMetadataPeriod", self.sync_controller_metadata_ms),
            ("checkSyncStateSetPeriod", self.check_sync_state_set_ms),
        ];
        match periods.iter().find(|(_, period)| *period == 0) {
            Some((key, _)) => Err((key, "must be above 0".to_owned())),
            None => Ok(()),
        }
    }

    /// Settings whose silence would break a promise (copies, checks of identity) are refused, not ignored.
    fn check_unsupported(&self) -> Result<(), Fault> {
        let on = |key: &str| self.others.get(key).is_some_and(|text| text.eq_ignore_ascii_case("true"));
        let switches = [
            (
                "enableDLegerCommitLog",
                "this broker has no DLedger log; what took its place is controller mode (docs/controller.md), and \
                 `uringmq store export` reads its messages",
            ),
            ("fetchControllerAddrByDnsLookup", "name the controllers in controllerAddr"),
            ("authenticationEnabled", "this broker cannot check who calls, and would let everybody in"),
            ("authorizationEnabled", "this broker cannot check who may do what, and would allow everything"),
        ];
        if let Some((key, why)) = switches.into_iter().find(|(key, _)| on(key)) {
            return Err((key, format!("is not supported: {why}")));
        }
        match self.others.get("storeType") {
            Some(kind) if kind != "default" => Err(("storeType", "is not supported: use default (files)".to_owned())),
            _ => Ok(()),
        }
    }
}

/// Whether two paths name one directory, by their text where they do not exist yet.
fn same_dir(a: &Path, b: &Path) -> bool {
    let plain = |path: &Path| path.components().collect::<std::path::PathBuf>();
    plain(a) == plain(b)
}
