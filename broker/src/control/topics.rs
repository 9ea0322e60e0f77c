//! The table of topics: which there are, under which ids, and what may be done to them. Plain state of the control role; it knows no
//! file, no connection and no other core. Source: behaviour sheet 2.9, 3.3, 3.8; store-format sheet 8.3.
//!
//! An id is never reused while the process lives. A topic of which only queue files are known at the start (its configuration is
//! gone) is *unlisted*: it has an id, so that its queues can be loaded and are kept, but it does not exist for clients and stands in
//! no file. When it is made again it gets the same id and with it its queues.
use crate::control::attributes::{self, Attributes};
use crate::snapshot::{Topic, TopicTable};
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use thiserror::Error;
use uringmq_proto::body::topic::{
    DataVersion, QUEUE_TYPE, QUEUE_TYPE_BATCH, TopicConfig, TopicConfigSerializeWrapper, TopicFilterType,
};
use uringmq_proto::codes::response as code;
use uringmq_proto::fastjson;
use uringmq_proto::names::{self, BootTopic, perm};
use uringmq_proto::types::TopicId;
use uringmq_store::consume_queue::Form;

/// topicSysFlag: has unit subscribers.
pub const UNIT_SUB: i32 = 2;
/// topicSysFlag: a unit topic.
pub const UNIT: i32 = 1;
const READ_WRITE: i32 = perm::READ | perm::WRITE;

/// Why a topic is not made, changed or deleted; nothing was changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TopicError {
    #[error("{0}")]
    Name(#[from] names::NameError),
    #[error("The topic[{0}] is conflict with system topic.")]
    System(String),
    #[error("MIXED message type is not supported.")]
    Mixed,
    #[error("{what} is illegal: {value}")]
    Number { what: &'static str, value: i32 },
    #[error("unknown topic filter type: {0}")]
    FilterType(String),
    #[error("{0}")]
    Attributes(String),
}

impl TopicError {
    /// The response code.
    pub fn code(&self) -> i32 {
        match self {
            TopicError::Name(_) | TopicError::System(_) | TopicError::Mixed | TopicError::Number { .. } => {
                code::INVALID_PARAMETER
            }
            TopicError::FilterType(_) | TopicError::Attributes(_) => code::SYSTEM_ERROR,
        }
    }
}

/// What the configuration says about making topics.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// `validateSystemTopicWhenUpdateTopic`.
    pub guard_system_topics: bool,
    /// `enableMixedMessageType`.
    pub mixed: bool,
}

/// The template of an auto-created topic, as a send names it.
#[derive(Clone, Copy, Debug)]
pub struct Template<'a> {
    pub default_topic: &'a str,
    /// `defaultTopicQueueNums` of the client.
    pub queues: i32,
    pub unit: bool,
    /// `autoCreateTopicEnable`.
    pub enabled: bool,
}

#[derive(Debug)]
pub struct Topics {
    /// By name, as lists are asked for in pages.
    listed: BTreeMap<Arc<str>, Arc<Topic>>,
    unlisted: BTreeMap<Arc<str>, Arc<Topic>>,
    by_id: Vec<Option<Arc<Topic>>>,
    version: DataVersion,
    /// Names that this broker made at its start.
    boot: HashSet<String>,
    /// Clients may read light queues.
    light: bool,
}

/// `topics.json`, or why it is not one.
pub fn parse_file(text: &[u8]) -> Result<TopicConfigSerializeWrapper, String> {
    let mut file: TopicConfigSerializeWrapper = uringmq_proto::body::parse(text).map_err(|e| e.to_string())?;
    for (name, config) in &mut file.topic_config_table {
        if config.topic_name.is_empty() {
            config.topic_name.clone_from(name);
        }
        if config.topic_name != *name {
            return Err(format!("topic {name} calls itself {}", config.topic_name));
        }
    }
    Ok(file)
}

impl Topics {
    /// The topics of a broker that starts: the built-in ones, over them what `topics.json` held, and as unlisted what has queue files
    /// only (`on_disk`: name and number of queues). The second value says whether the file is to be written.
    pub fn load(
        boot: &[BootTopic],
        file: Option<TopicConfigSerializeWrapper>,
        on_disk: impl IntoIterator<Item = (String, u32, Form)>,
        now_ms: i64,
    ) -> (Self, bool) {
        let mut topics = Topics {
            listed: BTreeMap::new(),
            unlisted: BTreeMap::new(),
            by_id: Vec::new(),
            version: DataVersion { counter: 0, state_version: 0, timestamp: now_ms },
            boot: boot.iter().map(|topic| topic.name.clone()).collect(),
            light: false,
        };
        let file = file.map(|file| (file.data_version, file.topic_config_table));
        let (version, stored) = file.map_or((None, BTreeMap::new()), |(version, stored)| (Some(version), stored));
        let mut made = false;
        for topic in boot.iter().filter(|topic| !stored.contains_key(&topic.name)) {
            let config = TopicConfig { perm: topic.perm, ..TopicConfig::new(&topic.name, topic.queues as i32) };
            topics.insert(config);
            made = true;
        }
        stored.into_values().for_each(|config| topics.insert(config));
        match version {
            Some(version) if made => topics.version = version.next(version.state_version, now_ms),
            Some(version) => topics.version = version,
            None => {}
        }
        for (name, queues, form) in on_disk {
            topics.insert_unlisted(&name, queues, form);
        }
        (topics, made)
    }

    /// From now on light queues are shown to clients (`enableLmq`).
    pub fn show_lights(&mut self) {
        self.light = true;
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Topic>> {
        self.listed.get(name)
    }

    pub fn count(&self) -> usize {
        self.listed.len()
    }

    /// In the order of names.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.listed.values()
    }

    pub fn version(&self) -> DataVersion {
        self.version
    }

    /// A name that this broker made at its start, or that every broker knows as its own.
    pub fn is_system(&self, name: &str) -> bool {
        names::is_system_topic(name) || self.boot.contains(name)
    }

    /// The system topics, sorted (code 305).
    pub fn system_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.boot.iter().cloned().collect();
        // Those that are not made yet too, as Apache's list (checked on 5.5.0).
        names.extend(names::SYSTEM_TOPICS.iter().map(ToString::to_string));
        names.extend(self.listed.keys().filter(|name| names::is_system_topic(name)).map(|name| name.to_string()));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What every shard gets to see.
    pub fn snapshot(&self) -> Arc<TopicTable> {
        let by_name = |table: &BTreeMap<Arc<str>, Arc<Topic>>| -> HashMap<Arc<str>, Arc<Topic>> {
            table.values().map(|t| (t.name.clone(), t.clone())).collect()
        };
        let mut named = by_name(&self.listed);
        if self.light {
            named.extend(self.lights().map(|(name, topic)| (name.clone(), topic.clone())));
        }
        Arc::new(TopicTable { by_name: named, unlisted: by_name(&self.unlisted), by_id: self.by_id.clone() })
    }

    /// The text of `topics.json`.
    pub fn file_text(&self) -> Vec<u8> {
        fastjson::to_vec_pretty(&self.wrapper(self.listed.values()))
    }

    /// A table of some topics with the version of all.
    pub fn wrapper<'a>(&self, topics: impl Iterator<Item = &'a Arc<Topic>>) -> TopicConfigSerializeWrapper {
        TopicConfigSerializeWrapper {
            data_version: self.version,
            topic_config_table: topics.map(|topic| (topic.name.to_string(), topic.config.clone())).collect(),
            ..TopicConfigSerializeWrapper::default()
        }
    }

    /// Makes or changes a topic (codes 17 and 18). `wanted.attributes` carries signed keys. `None` when it is like that already.
    ///
    /// # Errors
    /// [`TopicError`].
    pub fn put(&mut self, wanted: TopicConfig, policy: Policy, now_ms: i64) -> Result<Option<Arc<Topic>>, TopicError> {
        let config = self.check(wanted, policy)?;
        if self.light && names::is_light_queue(&config.topic_name) {
            return Ok(None); // light queues are in no table
        }
        if self.listed.get(config.topic_name.as_str()).is_some_and(|topic| topic.config == config) {
            return Ok(None);
        }
        Ok(Some(self.store(config, now_ms)))
    }

    /// What `wanted` would be stored as; the one rule for names is also that of sends (known fault A01).
    pub fn check(&self, mut wanted: TopicConfig, policy: Policy) -> Result<TopicConfig, TopicError> {
        let name = &wanted.topic_name;
        names::check_topic(name)?;
        if policy.guard_system_topics && self.is_system(name) {
            return Err(TopicError::System(name.clone()));
        }
        for (what, value) in [("readQueueNums", wanted.read_queue_nums), ("writeQueueNums", wanted.write_queue_nums)] {
            if value < 0 {
                return Err(TopicError::Number { what, value });
            }
        }
        if !policy.mixed && attributes::asks_mixed(&wanted.attributes) {
            return Err(TopicError::Mixed);
        }
        let current = self.listed.get(name.as_str()).map(|topic| &topic.config.attributes);
        wanted.attributes = attributes::alter_topic(current, &wanted.attributes).map_err(TopicError::Attributes)?;
        Ok(wanted)
    }

    /// Makes the topic that a send names, from the default topic it names. `None` when that is not allowed.
    ///
    /// # Errors
    /// The name, or a queue count from which no usable topic could be made.
    pub fn auto_create(
        &mut self,
        name: &str,
        template: Template<'_>,
        now_ms: i64,
    ) -> Result<Option<Arc<Topic>>, TopicError> {
        names::check_topic(name)?;
        if let Some(topic) = self.listed.get(name) {
            return Ok(Some(topic.clone()));
        }
        let Some(default) = self.listed.get(template.default_topic) else { return Ok(None) };
        let switched_off = template.default_topic == names::AUTO_CREATE_TOPIC && !template.enabled;
        if switched_off || default.config.perm & perm::INHERIT == 0 {
            return Ok(None);
        }
        if template.queues <= 0 {
            return Err(TopicError::Number { what: "defaultTopicQueueNums", value: template.queues });
        }
        let queues = template.queues.min(default.config.write_queue_nums);
        let config = TopicConfig {
            perm: default.config.perm & !perm::INHERIT,
            topic_filter_type: default.config.topic_filter_type,
            topic_sys_flag: if template.unit { UNIT } else { 0 },
            ..TopicConfig::new(name, queues)
        };
        Ok(Some(self.store(config, now_ms)))
    }

    /// A topic that the broker itself needs (retry, dead letters, ...): made readable and writable when missing; when there, only its
    /// order flag is brought up to `order`, if given. The second value says whether anything changed.
    pub fn ensure(
        &mut self,
        name: &str,
        queues: i32,
        sys_flag: i32,
        order: Option<bool>,
        now_ms: i64,
    ) -> Result<(Arc<Topic>, bool), TopicError> {
        let config = match self.listed.get(name) {
            Some(topic) if order.is_none_or(|order| topic.config.order == order) => return Ok((topic.clone(), false)),
            Some(topic) => TopicConfig { order: order.unwrap_or_default(), ..topic.config.clone() },
            None => {
                names::check_topic(name)?;
                let order = order.unwrap_or_default();
                let perm = READ_WRITE;
                TopicConfig { order, perm, topic_sys_flag: sys_flag, ..TopicConfig::new(name, queues.max(1)) }
            }
        };
        Ok((self.store(config, now_ms), true))
    }

    /// Sets the order flag on those of `names` that exist, and clears none. The changed ones.
    pub fn set_order<'a>(&mut self, names: impl Iterator<Item = &'a str>, now_ms: i64) -> Vec<Arc<Topic>> {
        let unordered = names.filter_map(|name| self.listed.get(name).filter(|topic| !topic.config.order).cloned());
        let unordered: Vec<Arc<Topic>> = unordered.collect();
        let changed = unordered.iter().map(|t| TopicConfig { order: true, ..t.config.clone() });
        changed.map(|config| self.store(config, now_ms)).collect()
    }

    /// Whether a client may delete it; a blank name and a system topic may not.
    pub fn check_delete(&self, name: &str, policy: Policy) -> Result<(), TopicError> {
        if name.trim().is_empty() {
            return Err(names::NameError::Blank("topic").into());
        }
        if policy.guard_system_topics && self.is_system(name) {
            return Err(TopicError::System(name.to_owned()));
        }
        Ok(())
    }

    /// Takes topics out of the table; their ids are spent. Names not in it are skipped. The topics that went.
    pub fn delete<'a>(&mut self, names: impl IntoIterator<Item = &'a str>, now_ms: i64) -> Vec<Arc<Topic>> {
        let light = self.light;
        let take = |name: &str| match light && names::is_light_queue(name) {
            true => self.unlisted.remove(name),
            false => self.listed.remove(name),
        };
        let gone: Vec<Arc<Topic>> = names.into_iter().filter_map(take).collect();
        for topic in &gone {
            self.by_id[topic.id.0 as usize] = None;
        }
        if !gone.is_empty() {
            self.step_version(now_ms);
        }
        gone
    }

    /// Gives up the unlisted topics (code 316) but light queues: their queue files go with their ids. Which there were.
    pub fn delete_unlisted(&mut self) -> Vec<Arc<str>> {
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.unlisted).into_iter().partition(|(name, _)| names::is_light_queue(name));
        self.unlisted = kept;
        for topic in gone.values() {
            self.by_id[topic.id.0 as usize] = None;
        }
        gone.into_keys().collect()
    }

    /// The pop retry topics of `topic` for `groups`. The older form `%RETRY%<group>_<topic>` is also the ordinary retry topic of a
    /// group named so: such a one is left alone.
    pub fn pop_retry_topics(
        &self,
        topic: &str,
        groups: impl Iterator<Item = Arc<str>>,
        is_group: impl Fn(&str) -> bool,
    ) -> Vec<Arc<str>> {
        let mut found = Vec::new();
        for group in groups {
            for v2 in [false, true] {
                let name = names::pop_retry_topic(&group, topic, v2);
                let of_a_group = name.strip_prefix(names::RETRY_PREFIX).is_some_and(&is_group);
                if !of_a_group && let Some((name, _)) = self.listed.get_key_value(name.as_str()) {
                    found.push(name.clone());
                }
            }
        }
        found
    }

    /// Marks all topics as changed (the broker's own permission did).
    pub fn step_version(&mut self, now_ms: i64) {
        self.version = self.version.next(self.version.state_version, now_ms);
    }

    /// Under a new master epoch the table is newer than any of an earlier one, whoever tells it to the NameServers.
    pub fn begin_epoch(&mut self, epoch: i32, now_ms: i64) {
        if self.version.state_version != i64::from(epoch) {
            self.version = self.version.next(epoch.into(), now_ms);
        }
    }

    fn store(&mut self, config: TopicConfig, now_ms: i64) -> Arc<Topic> {
        let name: Arc<str> = config.topic_name.as_str().into();
        self.insert(config);
        self.step_version(now_ms);
        self.listed[&name].clone()
    }

    /// Into the listed ones, with the id that the name has or had at the start.
    fn insert(&mut self, config: TopicConfig) {
        let known = self.listed.get_key_value(config.topic_name.as_str());
        let known = known.map(|(name, topic)| (name.clone(), topic.id));
        let known =
            known.or_else(|| self.unlisted.remove_entry(config.topic_name.as_str()).map(|(name, t)| (name, t.id)));
        let (name, id) = known.unwrap_or_else(|| {
            self.by_id.push(None);
            (config.topic_name.as_str().into(), TopicId(self.by_id.len() as u32 - 1))
        });
        let topic = Arc::new(Topic { id, name: name.clone(), config });
        self.by_id[id.0 as usize] = Some(topic.clone());
        self.listed.insert(name, topic);
    }

    /// Makes the table its master's, version included: the names that changed or came, and those that went.
    pub fn copy(&mut self, table: TopicConfigSerializeWrapper) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let gone = self.listed.keys().filter(|name| !table.topic_config_table.contains_key(&***name)).cloned();
        let gone: Vec<Arc<str>> = gone.collect();
        for name in &gone {
            let topic = self.listed.remove(name).expect("one of its keys");
            self.by_id[topic.id.0 as usize] = None;
        }
        let mut changed: Vec<Arc<str>> = Vec::new();
        for (name, config) in table.topic_config_table {
            if self.listed.get(name.as_str()).is_none_or(|topic| topic.config != config) {
                self.insert(config);
                changed.push(name.into());
            }
        }
        self.version = table.data_version;
        (changed, gone)
    }

    /// Sees that each of these names has an id; one that is new is unlisted until its configuration comes. True when there was one.
    pub fn adopt(&mut self, names: impl IntoIterator<Item = (String, u32, Form)>) -> bool {
        let before = self.by_id.len();
        names.into_iter().for_each(|(name, queues, form)| self.insert_unlisted(&name, queues, form));
        self.by_id.len() > before
    }

    /// Sees that a light queue has an id, which is all that it needs: it is in no table. True when it is new. Nothing, and false, when there are
    /// `max` of them already.
    pub fn make_light(&mut self, name: &str, max: usize) -> bool {
        if self.unlisted.contains_key(name)
            || !names::is_light_queue(name)
            || (max < usize::MAX && self.lights().count() >= max)
        {
            return false;
        }
        self.insert_unlisted(name, 1, Form::Plain);
        true
    }

    pub fn has_light(&self, name: &str) -> bool {
        self.unlisted.contains_key(name)
    }

    fn lights(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Topic>)> {
        let from = (Bound::Included(names::LMQ_PREFIX), Bound::Unbounded);
        self.unlisted.range::<str, _>(from).take_while(|(name, _)| name.starts_with(names::LMQ_PREFIX))
    }

    fn insert_unlisted(&mut self, name: &str, queues: u32, form: Form) {
        if self.listed.contains_key(name) || self.unlisted.contains_key(name) {
            return;
        }
        let id = TopicId(self.by_id.len() as u32);
        let mut config = TopicConfig::new(name, i32::try_from(queues).unwrap_or(i32::MAX));
        if form == Form::Batch {
            config.attributes.insert(QUEUE_TYPE.to_owned(), QUEUE_TYPE_BATCH.to_owned());
        }
        let topic = Arc::new(Topic { id, name: name.into(), config });
        self.by_id.push(Some(topic.clone()));
        self.unlisted.insert(topic.name.clone(), topic);
    }
}

/// One page of a table in the order of names, as callers of codes 21 and 201 ask for it: how many entries to skip and to take.
/// Without `seq` all; else at most `max` (the server's 2000 when absent or larger) from index `seq`.
pub fn page_range(seq: Option<i32>, max: Option<i32>) -> (usize, usize) {
    const PAGE_MAX: usize = 2000;
    match seq {
        None => (0, usize::MAX),
        Some(seq) => {
            let max = max.and_then(|max| usize::try_from(max).ok()).filter(|max| (1..=PAGE_MAX).contains(max));
            (usize::try_from(seq).unwrap_or(0), max.unwrap_or(PAGE_MAX))
        }
    }
}

/// A topic configuration from the header of code 17.
///
/// # Errors
/// The filter type, or the attributes' text.
pub fn config_of_header(h: &uringmq_proto::headers::topic::CreateTopic<'_>) -> Result<TopicConfig, TopicError> {
    let filter = TopicFilterType::from_name(h.topic_filter_type);
    let attributes: Attributes = attributes::parse(h.attributes.unwrap_or_default()).map_err(TopicError::Attributes)?;
    Ok(TopicConfig {
        attributes,
        order: h.order,
        perm: h.perm,
        read_queue_nums: h.read_queue_nums,
        topic_filter_type: filter.ok_or_else(|| TopicError::FilterType(h.topic_filter_type.to_owned()))?,
        topic_name: h.topic.to_owned(),
        topic_sys_flag: h.topic_sys_flag,
        write_queue_nums: h.write_queue_nums,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { guard_system_topics: true, mixed: false };

    fn boot() -> Vec<BootTopic> {
        let topic = |name: &str, queues, perm| BootTopic { name: name.into(), queues, perm };
        vec![
            topic("TBW102", 8, 7),
            topic("DefaultCluster", 16, 7),
            topic("broker-a", 1, 1),
            topic("SELF_TEST_TOPIC", 1, 6),
        ]
    }

    fn fresh() -> Topics {
        Topics::load(&boot(), None, [], 7).0
    }

    fn template(default_topic: &str, queues: i32) -> Template<'_> {
        Template { default_topic, queues, unit: false, enabled: true }
    }

    fn names(topics: &Topics) -> Vec<String> {
        topics.all().map(|topic| topic.name.to_string()).collect()
    }

    #[test]
    fn a_slaves_table_becomes_its_masters_and_a_topic_met_before_keeps_its_id() {
        let (mut topics, _) = Topics::load(&boot(), None, [], 7);
        topics.put(TopicConfig::new("old", 4), POLICY, 8).unwrap();
        assert!(
            topics.adopt([("new".to_owned(), 2, Form::Plain)]) && !topics.adopt([("new".to_owned(), 3, Form::Plain)])
        );
        let (met, old) = (topics.snapshot().stored("new").unwrap().id, topics.get("old").unwrap().id);
        let (mut master, _) = Topics::load(&boot(), None, [], 9);
        master.put(TopicConfig::new("new", 8), POLICY, 10).unwrap();
        let table = master.wrapper(master.all());
        let (changed, gone) = topics.copy(table.clone());
        assert_eq!((&changed[..], &gone[..]), (&["new".into()][..], &["old".into()][..]));
        let snapshot = topics.snapshot();
        assert_eq!((snapshot.get("new").unwrap().id, snapshot.by_id(old).is_none()), (met, true));
        assert_eq!((topics.version(), topics.get("new").unwrap().config.read_queue_nums), (master.version(), 8));
        assert_eq!(topics.copy(table), (vec![], vec![]));
    }

    #[test]
    fn a_new_broker_has_the_built_in_topics_and_a_file_wins_over_them() {
        let (topics, made) = Topics::load(&boot(), None, [], 7);
        assert!(made);
        assert_eq!(topics.version(), DataVersion { counter: 0, state_version: 0, timestamp: 7 });
        assert_eq!(topics.get("TBW102").map(|t| (t.config.perm, t.config.write_queue_nums)), Some((7, 8)));

        let file = parse_file(&topics.file_text()).unwrap();
        let (same, made) = Topics::load(&boot(), Some(file), [], 99);
        assert!(!made);
        assert_eq!((names(&same), same.version()), (names(&topics), topics.version()));

        let text = br#"{"dataVersion":{"counter":3,"timestamp":1},"topicConfigTable":{"TBW102":{"perm":6,"writeQueueNums":4},"T":{}}}"#;
        let (old, made) = Topics::load(&boot(), Some(parse_file(text).unwrap()), [], 9);
        assert!(made, "others were missing");
        assert_eq!(old.version(), DataVersion { counter: 4, state_version: 0, timestamp: 9 });
        assert_eq!(old.get("TBW102").map(|t| (t.config.perm, t.config.write_queue_nums)), Some((6, 4)));
        assert_eq!(old.get("T").map(|t| t.config.clone()), Some(TopicConfig::new("T", 16)));
    }

    #[test]
    fn a_file_that_is_none_is_refused() {
        for bad in
            ["", "null", "[]", "{\"topicConfigTable\":{\"a\":{\"topicName\":\"b\"}}}", "{\"topicConfigTable\":[1]}"]
        {
            assert!(parse_file(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    /// Known fault A01: one rule for names, and a refusal changes nothing.
    #[test]
    fn odd_names_are_refused_and_leave_the_file_as_it_was() {
        let mut topics = fresh();
        let before = topics.file_text();
        let long = "x".repeat(128);
        for bad in [
            "",
            " a",
            "a b",
            "中",
            "a.b",
            "../x",
            &long,
            "DefaultCluster",
            "broker-a",
            "SCHEDULE_TOPIC_XXXX",
            "rmq_sys_x",
        ] {
            let error = topics.put(TopicConfig::new(bad, 4), POLICY, 8).unwrap_err();
            assert_eq!(error.code(), code::INVALID_PARAMETER, "{bad}");
            let error = topics.auto_create(bad, template("TBW102", 4), 8);
            assert!(names::check_topic(bad).is_ok() || error.is_err(), "{bad}");
        }
        let mut fresh = fresh();
        for (key, value) in [("+message.type", "MIXED"), ("+no.such", "1"), ("-message.type", "")] {
            let mut config = TopicConfig::new("T", 4);
            config.attributes.insert(key.into(), value.into());
            assert!(fresh.put(config, POLICY, 8).is_err(), "{key}");
        }
        assert!(fresh.put(TopicConfig::new("T", -1), POLICY, 8).is_err());
        assert_eq!(fresh.file_text(), before);
        assert!(fresh.put(TopicConfig::new("x".repeat(127), 4), POLICY, 8).unwrap().is_some());
    }

    #[test]
    fn the_same_again_is_no_new_version() {
        let mut topics = fresh();
        let mut config = TopicConfig::new("T", 4);
        config.attributes.insert("+message.type".into(), "FIFO".into());
        let made = topics.put(config.clone(), POLICY, 8).unwrap().unwrap();
        let version = topics.version();
        assert_eq!(version.counter, 1);
        assert!(topics.put(config, POLICY, 9).unwrap().is_none());
        assert!(topics.put(TopicConfig::new("T", 4), POLICY, 9).unwrap().is_none(), "attributes not named stay");
        assert_eq!(topics.version(), version);
        let wider =
            topics.put(TopicConfig { perm: 99, ..TopicConfig::new("T", 5_000_000) }, POLICY, 9).unwrap().unwrap();
        assert_eq!((wider.id, wider.config.attributes["message.type"].as_str()), (made.id, "FIFO"));
        assert!(!Arc::ptr_eq(&made, &wider), "what shards hold never changes under them");
    }

    #[test]
    fn auto_creation_follows_the_default_topic() {
        let mut topics = fresh();
        let made = topics.auto_create("T", template("TBW102", 4), 8).unwrap().unwrap();
        assert_eq!((made.config.write_queue_nums, made.config.read_queue_nums, made.config.perm), (4, 4, 6));
        let again = topics.auto_create("T", template("nobody", 4), 8).unwrap().unwrap();
        assert!(Arc::ptr_eq(&made, &again), "it exists");
        let wide = topics.auto_create("U", template("TBW102", 100), 8).unwrap().unwrap();
        assert_eq!(wide.config.write_queue_nums, 8, "at most the default topic's");
        let other =
            topics.auto_create("V", Template { unit: true, ..template("DefaultCluster", 9) }, 8).unwrap().unwrap();
        assert_eq!((other.config.write_queue_nums, other.config.topic_sys_flag), (9, UNIT));
        for refused in [
            template("nobody", 4),
            template("SELF_TEST_TOPIC", 4),
            Template { enabled: false, ..template("TBW102", 4) },
        ] {
            assert!(topics.auto_create("W", refused, 8).unwrap().is_none(), "{refused:?}");
        }
        for queues in [0, -1] {
            assert_eq!(topics.auto_create("W", template("TBW102", queues), 8).unwrap_err().code(), 29);
        }
        assert!(topics.get("W").is_none());
    }

    #[test]
    fn needed_topics_are_made_once_and_keep_their_order_flag_current() {
        let mut topics = fresh();
        let (made, new) = topics.ensure("%RETRY%g", 2, UNIT_SUB, Some(false), 8).unwrap();
        assert!(
            new && made.config.write_queue_nums == 2 && made.config.topic_sys_flag == UNIT_SUB && made.config.perm == 6
        );
        assert!(!topics.ensure("%RETRY%g", 9, 0, Some(false), 8).unwrap().1);
        assert!(!topics.ensure("%RETRY%g", 9, 0, None, 8).unwrap().1);
        let (ordered, changed) = topics.ensure("%RETRY%g", 9, 0, Some(true), 8).unwrap();
        assert!(changed && ordered.config.order && ordered.config.write_queue_nums == 2 && ordered.id == made.id);
        assert_eq!(topics.ensure("%DLQ%g", 0, 0, None, 8).unwrap().0.config.write_queue_nums, 1);
        assert!(topics.ensure("%DLQ%a b", 1, 0, None, 8).is_err());
    }

    #[test]
    fn order_is_set_and_never_cleared() {
        let mut topics = fresh();
        topics.put(TopicConfig::new("T", 4), POLICY, 8).unwrap();
        let set = topics.set_order(["T", "nobody", ""].into_iter(), 9);
        assert_eq!(set.iter().map(|t| &*t.name).collect::<Vec<_>>(), ["T"]);
        let version = topics.version();
        assert!(topics.set_order(["T"].into_iter(), 9).is_empty());
        assert!(topics.get("T").unwrap().config.order && topics.version() == version);
    }

    /// Known fault F05: a topic made anew is another one.
    #[test]
    fn a_deleted_topic_comes_back_under_another_id() {
        let mut topics = fresh();
        let first = topics.put(TopicConfig::new("T", 4), POLICY, 8).unwrap().unwrap();
        assert!(topics.check_delete("T", POLICY).is_ok());
        assert_eq!(topics.delete(["T", "nobody"], 9).len(), 1);
        let table = topics.snapshot();
        assert!(table.get("T").is_none() && table.stored("T").is_none() && table.by_id(first.id).is_none());
        let second = topics.put(TopicConfig::new("T", 4), POLICY, 9).unwrap().unwrap();
        assert_ne!(first.id, second.id);
        assert!(topics.snapshot().by_id(first.id).is_none());
        let version = topics.version();
        assert!(topics.delete(["nobody"], 10).is_empty() && topics.version() == version);
        for bad in ["", " ", "TBW102", "broker-a", "rmq_sys_x"] {
            assert_eq!(topics.check_delete(bad, POLICY).unwrap_err().code(), code::INVALID_PARAMETER, "{bad}");
        }
    }

    #[test]
    fn queue_files_without_a_topic_keep_their_id_for_the_day_it_is_made_again() {
        let on_disk = [("lost".to_owned(), 3, Form::Plain), ("TBW102".to_owned(), 1, Form::Plain)];
        let (mut topics, _) = Topics::load(&boot(), None, on_disk, 7);
        let table = topics.snapshot();
        let lost = table.stored("lost").unwrap().clone();
        assert!(table.get("lost").is_none() && table.by_id(lost.id).is_some());
        assert_eq!(lost.config.read_queue_nums, 3);
        assert!(!String::from_utf8(topics.file_text()).unwrap().contains("lost"));
        let made = topics.auto_create("lost", template("TBW102", 4), 8).unwrap().unwrap();
        assert_eq!(made.id, lost.id);
        assert!(topics.delete_unlisted().is_empty());

        let (mut topics, _) = Topics::load(&boot(), None, [("lost".to_owned(), 3, Form::Plain)], 7);
        assert_eq!(topics.delete_unlisted(), ["lost".into()]);
        let table = topics.snapshot();
        assert!(table.stored("lost").is_none() && table.by_id(lost.id).is_none());
    }

    #[test]
    fn only_retry_topics_of_pop_go_with_their_topic() {
        let mut topics = fresh();
        for name in ["%RETRY%g_T", "%RETRY%g+T", "%RETRY%h_T", "%RETRY%g"] {
            topics.ensure(name, 1, 0, None, 8).unwrap();
        }
        let groups = || ["g", "h", "i"].into_iter().map(Arc::from);
        let found = topics.pop_retry_topics("T", groups(), |group| group == "h_T");
        assert_eq!(found, ["%RETRY%g_T".into(), "%RETRY%g+T".into()] as [Arc<str>; 2]);
    }

    #[test]
    fn pages() {
        assert_eq!(page_range(None, Some(3)), (0, usize::MAX), "older callers get all at once");
        assert_eq!(page_range(Some(4), Some(3)), (4, 3));
        assert_eq!(page_range(Some(-4), Some(0)), (0, 2000));
        assert_eq!(page_range(Some(0), Some(9999)), (0, 2000));
    }

    #[test]
    fn system_names_are_the_boot_topics_and_the_well_known_ones() {
        let mut topics = fresh();
        topics.ensure("rmq_sys_wheel_timer", 1, 0, None, 8).unwrap();
        topics.put(TopicConfig::new("T", 1), POLICY, 8).unwrap();
        let names = topics.system_names();
        for name in
            ["DefaultCluster", "SELF_TEST_TOPIC", "TBW102", "broker-a", "rmq_sys_wheel_timer", "CHECKPOINT_TOPIC"]
        {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
        assert!(!names.iter().any(|name| name == "T") && names.is_sorted());
    }
}
