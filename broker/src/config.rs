//! The broker's configuration: Apache's properties files, key names and defaults, and a few keys of ours. Every value is read once at
//! the start, checked all together, and handed down by value. Used by the binary (start, `-p`) and by the control role (codes 25 and
//! 26). Source: behaviour sheet 2.2, 2.6 to 2.8; known faults A05, A07, A08, A09.
//!
//! `keys.rs` is the table of what we act on, `accepted.rs` what we only know, `values.rs` how a text becomes a value, `machine.rs` what
//! the defaults take from the machine, `rules.rs` what must hold between values.
mod accepted;
mod keys;
mod machine;
mod rules;
#[cfg(test)]
mod tests;
mod values;

pub use keys::{BrokerConfig, Effect};
pub use machine::{Address, Machine};
pub use uringmq_proto::settings::listed::UpdateError;
pub use uringmq_proto::settings::{ConfigError, ConfigValue, Place};
pub use values::{BrokerRole, CpuSet, DelayLevels, FlushDiskType, HostPort, Hours, NamesrvAddrs};

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use uringmq_proto::properties;
use uringmq_proto::settings::readable;
use uringmq_store::Extensions;

/// Room above `maxMessageSize` for a record's head, topic and properties.
const RECORD_OVERHEAD_BYTES: usize = 64 << 10;
/// No update at run time may name these, whatever `configBlackList` says.
const NEVER_UPDATED: [&str; 3] = ["configBlackList", "brokerConfigPath", "rocketmqHome"];
/// What `-m` prints.
const IMPORTANT: [&str; 15] = [
    "namesrvAddr",
    "listenPort",
    "brokerIP1",
    "recoverConcurrently",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
    "msgTraceTopicName",
    "traceTopicEnable",
    "rejectTransactionMessage",
    "fetchNameSrvAddrByDnsLookup",
    "fetchNamesrvAddrByAddressServer",
    "transactionTimeOut",
    "transactionCheckMax",
    "transactionCheckInterval",
    "aclEnable",
];

/// What a run-time update did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Updated {
    /// Keys set, in the order given.
    pub set: Vec<(String, Effect)>,
    /// Keys that nobody knows; they are not kept.
    pub ignored: Vec<String>,
}

impl BrokerConfig {
    /// Defaults, then the file, then `NAMESRV_ADDR` where the file is silent, then the `-n` flag, which wins wherever it stands on the
    /// command line (known fault A08). The second value holds warnings, to be logged once each.
    pub fn load(
        file: Option<&Path>,
        namesrv_flag: Option<&str>,
        machine: &Machine,
    ) -> Result<(BrokerConfig, Vec<String>), ConfigError> {
        let Some(path) = file else {
            return Self::from_text(None, "", namesrv_flag, machine);
        };
        let bytes = std::fs::read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        // Comments of old files are in any encoding; only a value must be readable, which `Reading::set` checks.
        Self::from_text(Some(path), &String::from_utf8_lossy(&bytes), namesrv_flag, machine)
    }

    /// [`BrokerConfig::load`] with the file's text given.
    pub fn from_text(
        path: Option<&Path>,
        text: &str,
        namesrv_flag: Option<&str>,
        machine: &Machine,
    ) -> Result<(BrokerConfig, Vec<String>), ConfigError> {
        let mut reading = Reading::new(machine.cpus);
        reading.config.path = path.map(Path::to_owned);
        let file = path.unwrap_or(Path::new("-"));
        let pairs = properties::parse(text).map_err(|source| ConfigError::Syntax { path: file.to_owned(), source })?;
        for pair in pairs {
            reading.set(&pair.key, &pair.value, Place::File { path: file.to_owned(), line: pair.line })?;
        }
        let given = |text: &&str| !text.trim().is_empty();
        if let Some(addr) = machine.namesrv_addr.as_deref().filter(given)
            && reading.config.namesrv_addr.0.is_empty()
        {
            reading.set("namesrvAddr", addr, Place::Environment("NAMESRV_ADDR"))?;
        }
        if let Some(addr) = namesrv_flag {
            reading.places.remove("namesrvAddr"); // overriding the file is no duplicate
            reading.set("namesrvAddr", addr, Place::Flag("-n"))?;
        }
        let Reading { mut config, places, mut warnings, .. } = reading;
        config.complete(machine, &mut warnings).and_then(|()| config.check()).map_err(|(key, why)| {
            let place = places.get(key).cloned().unwrap_or(Place::Default);
            let value = config.get(key, machine.cpus).unwrap_or_default();
            ConfigError::Value { place, key: key.to_owned(), value, why }
        })?;
        Ok((config, warnings))
    }

    /// Sets one key as an operator would at run time. The value is trimmed; the text after the value says what is wrong with it.
    /// Keys that take effect at the next start are checked and kept for [`BrokerConfig::effective`] and the file; the running value
    /// stays as it is.
    pub fn set(&mut self, key: &str, value: &str) -> Result<Option<Effect>, String> {
        let value = readable(value)?;
        let mut scratch = self.clone();
        let effect = match scratch.assign(key, value) {
            Some(effect) => effect?,
            None => {
                let known = accepted::default_text(key, 1).or_else(|| self.others.get(key).cloned());
                let Some(known) = known else { return Ok(None) };
                accepted::check_kind(&known, value)?;
                scratch.others.insert(key.to_owned(), value.to_owned());
                scratch.check().map_err(|(_, why)| why)?;
                *self = scratch;
                return Ok(Some(Effect::Inert));
            }
        };
        if effect == Effect::AtOnce {
            scratch.clamp(&mut Vec::new());
        }
        scratch.check().map_err(|(_, why)| why)?;
        match effect {
            Effect::AtOnce => *self = scratch,
            _ => drop(self.pending.insert(key.to_owned(), value.to_owned())),
        }
        Ok(Some(effect))
    }

    /// Applies the body of code 25 to a copy: all of it or nothing. The caller writes [`BrokerConfig::to_text`] to `path`,
    /// raises the configuration's data version, and registers anew when `broker_permission` differs.
    pub fn update(&self, text: &str) -> Result<(BrokerConfig, Updated), UpdateError> {
        let pairs = properties::parse(text).map_err(|_| UpdateError::Syntax)?;
        let listed = |key: &str| self.config_black_list.split(';').any(|item| item.trim() == key);
        if pairs.iter().any(|pair| NEVER_UPDATED.contains(&pair.key.as_str()) || listed(&pair.key)) {
            return Err(UpdateError::BlackList);
        }
        let (mut config, mut updated) = (self.clone(), Updated::default());
        for pair in pairs {
            match config.set(&pair.key, &pair.value) {
                Ok(Some(effect)) => updated.set.push((pair.key, effect)),
                Ok(None) => updated.ignored.push(pair.key),
                Err(why) => return Err(UpdateError::Value { key: pair.key, value: pair.value, why }),
            }
        }
        Ok((config, updated))
    }

    /// Every known key with its effective value (what a run-time update set for the next start included), and the strangers of the
    /// file; sorted by key.
    pub fn effective(&self, cpus: usize) -> Vec<(String, String)> {
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        all.extend(accepted::ACCEPTED.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())));
        all.extend(accepted::POOLS.iter().map(|(key, size)| ((*key).to_owned(), size(cpus).to_string())));
        all.extend(self.others.clone());
        all.extend(self.rows().into_iter().map(|(key, text)| (key.to_owned(), text)));
        all.extend(self.pending.clone());
        all.into_iter().collect()
    }

    /// One effective value.
    pub fn get(&self, key: &str, cpus: usize) -> Option<String> {
        self.effective(cpus).into_iter().find(|row| row.0 == key).map(|row| row.1)
    }

    /// Sorted `key=value` lines: the answer of code 26, the text to write back to `path`, and what `-p` prints; with `important` what
    /// `-m` prints.
    pub fn to_text(&self, cpus: usize, important: bool) -> String {
        let mut rows = self.effective(cpus);
        rows.retain(|row| !important || IMPORTANT.contains(&row.0.as_str()));
        properties::write(&mut rows)
    }

    /// The address given to clients and name servers; an IPv6 literal stands in brackets.
    pub fn broker_addr(&self, port: u16) -> String {
        bracketed(&self.broker_ip1, port)
    }

    /// The address given to slaves.
    pub fn ha_addr(&self) -> String {
        bracketed(&self.broker_ip2, self.ha_listen_port)
    }

    /// The name servers as `namesrvAddr` gives them; empty without one.
    pub fn to_namesrv_text(&self) -> String {
        self.namesrv_addr.show()
    }

    /// The store host of records, also in offset message ids; `port` is the one that is listened on.
    pub fn store_host(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.store_ip, port)
    }

    /// Where the main listener binds.
    pub fn listen_addr(&self) -> SocketAddr {
        SocketAddr::new(self.bind_ip(), self.listen_port)
    }

    /// Where the fast (VIP) listener binds: the listening port - 2.
    pub fn fast_listen_addr(&self) -> SocketAddr {
        SocketAddr::new(self.bind_ip(), self.listen_port.saturating_sub(2))
    }

    fn bind_ip(&self) -> IpAddr {
        self.bind_address.parse().expect("checked when the configuration was read")
    }

    /// Executors to start. With two cores one is left to the kernel's work for network and disk and to whoever else is there: a second
    /// shard would add a hop to half of the messages, and little else (docs/performance.md).
    pub fn shard_count(&self, cpus: usize) -> usize {
        match (self.shards, self.cpu_set.0.len()) {
            (0, 0) => {
                if cpus <= 2 {
                    1
                } else {
                    cpus
                }
            }
            (0, set) => set,
            (shards, _) => shards,
        }
    }

    /// Whether messages may be in light queues beside their own.
    pub fn light_queues(&self) -> bool {
        self.lmq && self.multi_dispatch
    }

    /// Whether an acknowledgement waits for slaves.
    pub fn awaits_slaves(&self) -> bool {
        self.role == BrokerRole::SyncMaster && (self.in_sync_replicas > 1 || self.all_in_sync())
    }

    /// Whether acknowledgements, and what consumers may read, wait for every member of the SyncStateSet.
    pub fn all_in_sync(&self) -> bool {
        self.controller_mode && self.all_ack_in_sync_state_set
    }

    /// Whether consumers see less than what is stored: up to what the SyncStateSet has.
    pub fn confirms(&self) -> bool {
        self.controller_mode && (self.role == BrokerRole::Slave || self.all_ack_in_sync_state_set)
    }

    /// The configuration in the store's words.
    pub fn to_store_config(&self) -> uringmq_store::StoreConfig {
        // A record ends at least 8 bytes before its segment does.
        let record_bytes_room = usize::try_from(self.segment_bytes - 8).unwrap_or(usize::MAX);
        uringmq_store::StoreConfig {
            root: self.store_root.clone(),
            commit_log_dir: self.commit_log_dir.clone(),
            segment_bytes: self.segment_bytes,
            queue_file_bytes: self.queue_file_bytes,
            batch_file_bytes: self.batch_file_bytes,
            extension_file_bytes: self.extension_file_bytes,
            extensions: if self.extended { Extensions::Write } else { Extensions::None },
            topic_forms: Default::default(),
            light_queues: self.light_queues(),
            index_enabled: self.index_enabled,
            index_slots: self.index_slots,
            index_items: self.index_items,
            delay_levels_ms: self.delay_levels.ms.clone(),
            record_bytes_max: (self.message_bytes_max + RECORD_OVERHEAD_BYTES).min(record_bytes_room),
            batch_bytes_max: self.batch_bytes_max,
            warm_ahead_bytes: self.warm_ahead_bytes,
            read_cache_bytes: self.read_cache_bytes,
        }
    }

    /// Which segments may go; re-made after a run-time update.
    pub fn retention_policy(&self) -> uringmq_store::retention::Policy {
        uringmq_store::retention::Policy {
            reserved_ms: i64::from(self.file_reserved_hours) * 3_600_000,
            hours: self.delete_when.0.clone(),
            max_used_percent: self.disk_max_used_percent,
            force_percent: self.disk_force_percent,
            full_percent: self.disk_full_percent,
            early_percent: self.disk_early_percent,
            force_free_bytes: self.disk_force_free_bytes,
            full_free_bytes: self.disk_full_free_bytes,
            log_bytes_max: self.log_bytes_max,
            force_enabled: self.clean_forcibly,
            files_max: self.delete_files_max,
        }
    }
}

fn bracketed(host: &str, port: u16) -> String {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    HostPort { host: bare.to_owned(), port }.to_string()
}

/// A configuration while its sources are read.
struct Reading {
    config: BrokerConfig,
    places: HashMap<String, Place>,
    warnings: Vec<String>,
    cpus: usize,
}

impl Reading {
    fn new(cpus: usize) -> Self {
        Reading { config: BrokerConfig::default(), places: HashMap::new(), warnings: Vec::new(), cpus }
    }

    fn set(&mut self, key: &str, value: &str, place: Place) -> Result<(), ConfigError> {
        let bad = |why: String, place: Place| ConfigError::Value {
            place,
            key: key.to_owned(),
            value: value.trim().to_owned(),
            why,
        };
        let text = readable(value).map_err(|why| bad(why, place.clone()))?;
        if let Some((_, right)) = accepted::MISSPELT.iter().find(|row| row.0 == key) {
            self.warnings.push(format!("{place}: {key} is not a key and was not applied; the right one is {right}"));
            return Ok(());
        }
        if let Some(before) = self.places.insert(key.to_owned(), place.clone()) {
            self.warnings.push(format!("{place}: {key} was already given at {before}; the later value counts"));
        }
        if let Some(outcome) = self.config.assign(key, text) {
            return outcome.map(drop).map_err(|why| bad(why, place));
        }
        match accepted::default_text(key, self.cpus) {
            Some(default) => accepted::check_kind(&default, text).map_err(|why| bad(why, place))?,
            None if self.config.others.contains_key(key) => {}
            None => self.warnings.push(format!("{place}: {key} is not a known key")),
        }
        self.config.others.insert(key.to_owned(), text.to_owned());
        Ok(())
    }
}
