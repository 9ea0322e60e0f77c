//! The table of subscription groups and of the topics they may not read. Plain state of the control role. Source: behaviour sheet
//! 2.9, 3.8, 4.1; wire-protocol sheet 7.2; store-format sheet 8.3.
use crate::control::attributes;
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
use uringmq_proto::body::group::{SubscriptionGroupConfig, SubscriptionGroupWrapper};
use uringmq_proto::body::topic::DataVersion;
use uringmq_proto::codes::response as code;
use uringmq_proto::fastjson;
use uringmq_proto::names;

/// The bit of the forbidden table that takes reading away.
const FORBID_READ: i32 = 1 << 2;

/// Why a group is not made or changed; nothing was changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum GroupError {
    #[error("{0}")]
    Name(#[from] names::NameError),
    #[error("{0}")]
    Attributes(String),
}

impl GroupError {
    pub fn code(&self) -> i32 {
        match self {
            GroupError::Name(_) => code::INVALID_PARAMETER,
            GroupError::Attributes(_) => code::SYSTEM_ERROR,
        }
    }
}

/// Who may come into being by being asked for.
#[derive(Clone, Copy, Debug)]
pub struct AutoCreate {
    /// `autoCreateSubscriptionGroup`.
    pub any: bool,
    /// `enableCreateSysGroup`: names beginning `CID_RMQ_SYS_`.
    pub system: bool,
}

#[derive(Debug)]
pub struct Groups {
    configs: BTreeMap<Arc<str>, SubscriptionGroupConfig>,
    /// Group to topic to forbidden bits.
    forbidden: BTreeMap<String, BTreeMap<String, i32>>,
    version: DataVersion,
    /// Groups with names of light queues come into being without a trace.
    light: bool,
}

/// `subscriptionGroup.json`, or why it is not one.
pub fn parse_file(text: &[u8]) -> Result<SubscriptionGroupWrapper, String> {
    let mut file: SubscriptionGroupWrapper = uringmq_proto::body::parse(text).map_err(|e| e.to_string())?;
    for (name, config) in &mut file.subscription_group_table {
        if config.group_name.is_empty() {
            config.group_name.clone_from(name);
        }
        if config.group_name != *name {
            return Err(format!("group {name} calls itself {}", config.group_name));
        }
    }
    Ok(file)
}

impl Groups {
    /// The groups of a broker that starts: the built-in ones, over them what the file held. The second value says whether the file
    /// is to be written.
    pub fn load(file: Option<SubscriptionGroupWrapper>, now_ms: i64) -> (Self, bool) {
        let fresh = DataVersion { counter: 0, state_version: 0, timestamp: now_ms };
        let (mut version, forbidden, stored) = match file {
            Some(file) => (file.data_version, file.forbidden_table, file.subscription_group_table),
            None => (fresh, BTreeMap::new(), BTreeMap::new()),
        };
        let mut configs: BTreeMap<Arc<str>, SubscriptionGroupConfig> =
            stored.into_iter().map(|(name, config)| (name.into(), config)).collect();
        let mut made = false;
        for (name, broadcast) in names::BOOT_GROUPS {
            configs.entry((*name).into()).or_insert_with(|| {
                made = true;
                let default = SubscriptionGroupConfig::new(*name);
                let consume_broadcast_enable = *broadcast || default.consume_broadcast_enable;
                SubscriptionGroupConfig { consume_broadcast_enable, ..default }
            });
        }
        if made && version != fresh {
            version = version.next(version.state_version, now_ms);
        }
        (Groups { configs, forbidden, version, light: false }, made)
    }

    /// From now on a group with a light queue's name is known as soon as it is asked for, and in no table (`enableLmq`).
    pub fn show_lights(&mut self) {
        self.light = true;
    }

    pub fn get(&self, name: &str) -> Option<&SubscriptionGroupConfig> {
        self.configs.get(name)
    }

    pub fn count(&self) -> usize {
        self.configs.len()
    }

    pub fn all(&self) -> &BTreeMap<Arc<str>, SubscriptionGroupConfig> {
        &self.configs
    }

    pub fn version(&self) -> DataVersion {
        self.version
    }

    /// The text of `subscriptionGroup.json`.
    pub fn file_text(&self) -> Vec<u8> {
        fastjson::to_vec_pretty(&self.wrapper(self.configs.iter()))
    }

    /// A table of some groups with the version and the forbidden topics of all.
    pub fn wrapper<'a>(
        &self,
        groups: impl Iterator<Item = (&'a Arc<str>, &'a SubscriptionGroupConfig)>,
    ) -> SubscriptionGroupWrapper {
        SubscriptionGroupWrapper {
            data_version: self.version,
            forbidden_table: self.forbidden.clone(),
            subscription_group_table: groups
                .filter(|(name, _)| !self.light || !names::is_light_queue(name))
                .map(|(name, config)| (name.to_string(), config.clone()))
                .collect(),
        }
    }

    /// What `wanted` would be stored as. Its attributes carry signed keys.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn check(&self, mut wanted: SubscriptionGroupConfig) -> Result<SubscriptionGroupConfig, GroupError> {
        names::check_group(&wanted.group_name)?;
        let current = self.configs.get(wanted.group_name.as_str()).map(|config| &config.attributes);
        wanted.attributes = attributes::alter_group(current, &wanted.attributes).map_err(GroupError::Attributes)?;
        Ok(wanted)
    }

    /// Makes or replaces a group. False when it is like that already.
    pub fn put(&mut self, wanted: SubscriptionGroupConfig, now_ms: i64) -> Result<bool, GroupError> {
        let config = self.check(wanted)?;
        if self.configs.get(config.group_name.as_str()) == Some(&config) {
            return Ok(false);
        }
        self.configs.insert(config.group_name.as_str().into(), config);
        self.step_version(now_ms);
        Ok(true)
    }

    /// The group, made with the defaults when it is unknown and may come into being: then the second value is true.
    pub fn find_or_make(
        &mut self,
        name: &str,
        auto: AutoCreate,
        now_ms: i64,
    ) -> Option<(&SubscriptionGroupConfig, bool)> {
        let known = self.configs.contains_key(name);
        if !known {
            let light = self.light && names::is_light_queue(name);
            let allowed = light || auto.any || (auto.system && name.starts_with(names::SYSTEM_GROUP_PREFIX));
            if !allowed || names::check_group(name).is_err() {
                return None;
            }
            self.configs.insert(name.into(), SubscriptionGroupConfig::new(name));
            if !light {
                self.step_version(now_ms);
            }
        }
        self.configs.get(name).map(|config| (config, !known))
    }

    /// Takes a group and its forbidden topics out; false when it was not there.
    pub fn delete(&mut self, name: &str, now_ms: i64) -> bool {
        let gone = self.configs.remove(name).is_some() | self.forbidden.remove(name).is_some();
        if gone {
            self.step_version(now_ms);
        }
        gone
    }

    pub fn may_read(&self, group: &str, topic: &str) -> bool {
        self.forbidden.get(group).and_then(|topics| topics.get(topic)).is_none_or(|bits| bits & FORBID_READ == 0)
    }

    /// Topics that the group may not read.
    pub fn unreadable(&self, group: &str) -> Vec<String> {
        let topics = self.forbidden.get(group).into_iter().flatten();
        topics.filter(|(_, bits)| **bits & FORBID_READ != 0).map(|(topic, _)| topic.clone()).collect()
    }

    /// Allows or forbids a group to read a topic. False when it is so already.
    pub fn set_readable(&mut self, group: &str, topic: &str, readable: bool, now_ms: i64) -> bool {
        if self.may_read(group, topic) == readable {
            return false;
        }
        let topics = self.forbidden.entry(group.to_owned()).or_default();
        let bits = topics.entry(topic.to_owned()).or_default();
        *bits = if readable { *bits & !FORBID_READ } else { *bits | FORBID_READ };
        topics.retain(|_, bits| *bits != 0);
        if topics.is_empty() {
            self.forbidden.remove(group);
        }
        self.step_version(now_ms);
        true
    }

    /// Makes the table its master's, version included: the names that changed, came or went.
    pub fn copy(&mut self, table: SubscriptionGroupWrapper) -> Vec<Arc<str>> {
        let configs: BTreeMap<Arc<str>, SubscriptionGroupConfig> =
            table.subscription_group_table.into_iter().map(|(name, config)| (name.into(), config)).collect();
        let names = self.configs.keys().chain(configs.keys());
        let differs = |name: &&Arc<str>| {
            self.configs.get(*name) != configs.get(*name)
                || self.forbidden.get(&***name) != table.forbidden_table.get(&***name)
        };
        let mut changed: Vec<Arc<str>> = names.filter(differs).cloned().collect();
        changed.sort_unstable();
        changed.dedup();
        (self.configs, self.forbidden, self.version) = (configs, table.forbidden_table, table.data_version);
        changed
    }

    fn step_version(&mut self, now_ms: i64) {
        self.version = self.version.next(self.version.state_version, now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTO: AutoCreate = AutoCreate { any: true, system: true };

    fn fresh() -> Groups {
        Groups::load(None, 7).0
    }

    #[test]
    fn the_built_in_groups_are_there_and_a_file_wins_over_them() {
        let (groups, made) = Groups::load(None, 7);
        assert!(made && groups.get("TOOLS_CONSUMER").is_some() && groups.count() == names::BOOT_GROUPS.len());
        assert_eq!(groups.version(), DataVersion { counter: 0, state_version: 0, timestamp: 7 });

        let mut tools = SubscriptionGroupConfig::new("TOOLS_CONSUMER");
        tools.retry_max_times = 3;
        let mut groups = fresh();
        groups.put(tools.clone(), 8).unwrap();
        let file = parse_file(&groups.file_text()).unwrap();
        let (again, made) = Groups::load(Some(file), 9);
        assert!(!made);
        assert_eq!((again.get("TOOLS_CONSUMER"), again.version()), (Some(&tools), groups.version()));
    }

    #[test]
    fn a_slaves_table_becomes_its_masters() {
        let (mut slave, mut master) = (fresh(), fresh());
        slave.put(SubscriptionGroupConfig::new("mine"), 8).unwrap();
        slave.put(SubscriptionGroupConfig::new("both"), 8).unwrap();
        master.put(SubscriptionGroupConfig::new("both"), 9).unwrap();
        master.put(SubscriptionGroupConfig::new("new"), 9).unwrap();
        master.set_readable("both", "t", false, 9);
        let table = master.wrapper(master.all().iter());
        assert_eq!(slave.copy(table.clone()), ["both".into(), "mine".into(), "new".into()]);
        assert_eq!((slave.file_text(), slave.copy(table)), (master.file_text(), vec![]));
    }

    #[test]
    fn a_file_of_fewer_groups_is_completed_as_a_new_version() {
        let file =
            parse_file(br#"{"dataVersion":{"counter":4,"timestamp":1},"subscriptionGroupTable":{"g":{}}}"#).unwrap();
        let (groups, made) = Groups::load(Some(file), 9);
        assert!(made);
        assert_eq!(groups.get("g").unwrap().group_name, "g");
        assert_eq!(groups.version(), DataVersion { counter: 5, state_version: 0, timestamp: 9 });
        assert!(parse_file(br#"{"subscriptionGroupTable":{"g":{"groupName":"h"}}}"#).is_err());
        assert!(parse_file(b"\0\0\0").is_err());
    }

    #[test]
    fn an_unknown_group_comes_into_being_only_where_allowed() {
        let mut groups = fresh();
        let no = AutoCreate { any: false, system: true };
        assert!(groups.find_or_make("g", no, 8).is_none());
        assert!(groups.find_or_make("CID_RMQ_SYS_g", no, 8).unwrap().1);
        assert!(groups.find_or_make("bad name", AUTO, 8).is_none());
        let before = groups.version();
        let (config, made) = groups.find_or_make("g", AUTO, 8).unwrap();
        assert_eq!((config, made), (&SubscriptionGroupConfig::new("g"), true));
        assert!(!groups.find_or_make("g", no, 8).unwrap().1);
        assert_eq!(groups.version().counter, before.counter + 1);
    }

    #[test]
    fn the_same_again_changes_nothing_and_a_bad_one_neither() {
        let mut groups = fresh();
        let config = SubscriptionGroupConfig::new("g");
        assert_eq!(groups.put(config.clone(), 8), Ok(true));
        let before = groups.version();
        assert_eq!(groups.put(config, 9), Ok(false));
        for bad in ["", " ", "a b", "中"] {
            let error = groups.put(SubscriptionGroupConfig::new(bad), 9).unwrap_err();
            assert_eq!(error.code(), code::INVALID_PARAMETER, "{bad}");
        }
        let mut odd = SubscriptionGroupConfig::new("g");
        odd.attributes.insert("+no.such".into(), "1".into());
        assert!(groups.put(odd, 9).unwrap_err().to_string().starts_with("unsupported key: "));
        assert_eq!(groups.version(), before);
        assert!(groups.delete("g", 9) && !groups.delete("g", 9));
    }

    #[test]
    fn reading_is_forbidden_and_allowed_again_and_survives_a_restart() {
        let mut groups = fresh();
        assert!(groups.may_read("g", "t"));
        assert!(groups.set_readable("g", "t", false, 8) && !groups.set_readable("g", "t", false, 8));
        let (mut groups, _) = Groups::load(Some(parse_file(&groups.file_text()).unwrap()), 9);
        assert!(!groups.may_read("g", "t") && groups.may_read("g", "u"));
        assert_eq!(groups.unreadable("g"), ["t"]);
        assert!(groups.set_readable("g", "t", true, 10));
        assert!(groups.may_read("g", "t") && groups.forbidden.is_empty());
    }
}
