//! What groups filter messages' properties by, as the bit maps of queues' extensions need it: who had a filter since when, and where its places
//! in a map are. Plain state of the control role, time given; `consumerFilter.json`. Source: behaviour sheet 10.4; checked on 5.5.0
//! (`ConsumerFilterManager`).
//!
//! A filter may only be asked of the maps of messages that were dispatched when every shard knew it. So it is *unborn* until all have taken it,
//! and born at a time that no message dispatched before was stored after. And the file must never say of a filter that it was born when
//! shards have another one already: it is saved without what changed before they are shown the change (Apache's saves it up to 10 s later, and
//! a kill in between may cost a group messages).
use crate::snapshot::{FilterTable, GroupFilter};
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use tracing::warn;
use uringmq_filter::Expression;
use uringmq_filter::bloom::Bloom;
use uringmq_proto::body::filter::{BloomFilterData, ConsumerFilterData, ConsumerFilterFile, TopicFilterData};
use uringmq_proto::body::heartbeat::{ConsumerData, EXPRESSION_SQL92, SubscriptionData};
use uringmq_proto::fastjson;

/// Whoever was there when the broker stopped counts as gone so long before its start.
const GONE_BEFORE_START_MS: i64 = 30_000;

#[derive(Debug)]
struct Filter {
    /// `born_time` is [`UNBORN_MS`] until it is born.
    data: ConsumerFilterData,
    expression: Arc<Expression>,
    /// Of the change that made it.
    change: u64,
}

/// No message is stored later.
pub const UNBORN_MS: i64 = i64::MAX;

#[derive(Debug)]
pub struct Filters {
    bloom: Bloom,
    /// Topic, group.
    all: BTreeMap<String, BTreeMap<String, Filter>>,
    /// Counts what the shards have to be shown.
    changes: u64,
    shown: u64,
    /// Something else is to be saved.
    unsaved: bool,
}

/// `consumerFilter.json`, or why it is not one.
pub fn parse_file(text: &[u8]) -> Result<ConsumerFilterFile, String> {
    uringmq_proto::body::parse(text).map_err(|e| e.to_string())
}

impl Filters {
    /// Takes over a file whose filters have their places in maps of the same length; otherwise none of them counts, as with Apache's.
    pub fn load(bloom: Bloom, file: Option<ConsumerFilterFile>, now_ms: i64) -> Self {
        let mut filters = Filters { bloom, all: BTreeMap::new(), changes: 0, shown: 0, unsaved: false };
        let stored = file.unwrap_or_default().filter_data_by_topic;
        let mut data: Vec<ConsumerFilterData> =
            stored.into_values().flat_map(|t| t.group_filter_data.into_values()).collect();
        data.retain(|data| data.expression_type == EXPRESSION_SQL92);
        if data.iter().any(|data| !bloom.fits(data.bloom_filter_data.bit_num, &data.bloom_filter_data.bit_pos)) {
            warn!("the filters in consumerFilter.json are of bit maps of another length; they begin anew");
            return filters;
        }
        for mut data in data {
            let Ok(expression) = Expression::parse(&data.expression) else { continue };
            if data.dead_time == 0 {
                data.dead_time = data.born_time.max(now_ms - GONE_BEFORE_START_MS);
            }
            data.dead = data.dead_time >= data.born_time;
            filters.changes += 1;
            filters.put(data, Arc::new(expression));
        }
        filters
    }

    fn put(&mut self, data: ConsumerFilterData, expression: Arc<Expression>) {
        let (topic, group) = (data.topic.clone(), data.consumer_group.clone());
        let filter = Filter { data, expression, change: self.changes };
        self.all.entry(topic).or_default().insert(group, filter);
    }

    /// The file's text: the filters that are born.
    pub fn file_text(&self) -> Vec<u8> {
        let mut file = ConsumerFilterFile::default();
        for (topic, groups) in &self.all {
            let born = groups.iter().filter(|(_, filter)| filter.data.born_time != UNBORN_MS);
            let group_filter_data = born.map(|(group, filter)| (group.clone(), filter.data.clone())).collect();
            let of_topic = TopicFilterData { group_filter_data, topic: topic.clone() };
            file.filter_data_by_topic.insert(topic.clone(), of_topic);
        }
        fastjson::to_vec_pretty(&file)
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What is to be shown to the shards, with its number for [`Filters::born`]; `None` when they know it.
    pub fn to_show(&self) -> Option<(FilterTable, u64)> {
        (self.changes > self.shown).then(|| (self.table(), self.changes))
    }

    /// As it stands.
    pub fn table(&self) -> FilterTable {
        let mut by_topic: HashMap<Arc<str>, HashMap<Arc<str>, Arc<GroupFilter>>> = HashMap::new();
        for (topic, groups) in &self.all {
            let filter =
                |filter: &Filter| GroupFilter { data: filter.data.clone(), expression: filter.expression.clone() };
            let groups = groups.iter().map(|(group, of)| (group.as_str().into(), Arc::new(filter(of))));
            by_topic.insert(topic.as_str().into(), groups.collect());
        }
        FilterTable { map_bytes: self.bloom.map_bytes(), by_topic }
    }

    /// Every shard has what [`Filters::to_show`] gave with this number, and what they dispatched before was stored by `stored_ms`.
    pub fn born(&mut self, shown: u64, stored_ms: i64) {
        self.shown = self.shown.max(shown);
        for filter in self.all.values_mut().flat_map(BTreeMap::values_mut) {
            if filter.data.born_time == UNBORN_MS && filter.change <= shown {
                filter.data.born_time = stored_ms;
                if filter.data.dead {
                    filter.data.dead_time = filter.data.dead_time.max(stored_ms);
                }
            }
        }
        self.unsaved = true;
    }

    /// A full heartbeat of a group. True when the shards have something to be shown.
    pub fn hear(&mut self, said: &ConsumerData, now_ms: i64) -> bool {
        let before = self.changes;
        for sub in &said.subscription_data_set {
            if sub.expression_type == EXPRESSION_SQL92 && !sub.sub_string.is_empty() {
                self.hear_one(&said.group_name, sub);
            }
        }
        let subscribed = |topic: &str| said.subscription_data_set.iter().any(|sub| sub.topic == topic);
        for (topic, groups) in &mut self.all {
            if let Some(filter) = groups.get_mut(&said.group_name).filter(|_| !subscribed(topic)) {
                self.unsaved |= filter.die(now_ms);
            }
        }
        self.changes > before
    }

    fn hear_one(&mut self, group: &str, sub: &SubscriptionData) {
        if let Some(known) = self.all.get_mut(&sub.topic).and_then(|groups| groups.get_mut(group)) {
            let data = &mut known.data;
            if sub.sub_version < data.client_version {
                return;
            }
            if sub.sub_version == data.client_version || sub.sub_string == data.expression {
                if data.dead || data.client_version != sub.sub_version {
                    self.unsaved = true;
                }
                data.client_version = sub.sub_version;
                (data.dead, data.dead_time) = (false, 0);
                return;
            }
        }
        let Ok(expression) = Expression::parse(&sub.sub_string) else {
            // The shards' expression stays what it was; its bits say nothing of what is asked for now, and are not asked.
            return;
        };
        let places = self.bloom.places(group, &sub.topic);
        self.changes += 1;
        let data = ConsumerFilterData {
            bloom_filter_data: BloomFilterData { bit_num: self.bloom.bits(), bit_pos: places },
            born_time: UNBORN_MS,
            client_version: sub.sub_version,
            consumer_group: group.to_owned(),
            dead: false,
            dead_time: 0,
            expression: sub.sub_string.clone(),
            expression_type: sub.expression_type.clone(),
            topic: sub.topic.clone(),
        };
        self.put(data, Arc::new(expression));
    }

    /// Nobody of the group is there any more.
    pub fn left(&mut self, group: &str, now_ms: i64) {
        for groups in self.all.values_mut() {
            if let Some(filter) = groups.get_mut(group) {
                self.unsaved |= filter.die(now_ms);
            }
        }
    }

    /// Takes out the filters of groups that are gone for so long (`filterDataCleanTimeSpan`).
    pub fn clean(&mut self, keep_ms: i64, now_ms: i64) {
        let mut gone = false;
        self.all.retain(|_, groups| {
            let before = groups.len();
            groups.retain(|_, filter| !filter.data.dead || now_ms.saturating_sub(filter.data.dead_time) < keep_ms);
            gone |= groups.len() < before;
            !groups.is_empty()
        });
        self.changes += u64::from(gone);
    }

    /// Whether there is something to save that no change is waiting for; it counts as saved then.
    pub fn take_unsaved(&mut self) -> bool {
        std::mem::take(&mut self.unsaved)
    }
}

impl Filter {
    fn die(&mut self, now_ms: i64) -> bool {
        let dies = !self.data.dead;
        if dies {
            (self.data.dead, self.data.dead_time) = (true, now_ms);
        }
        dies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bloom() -> Bloom {
        Bloom::new(32, 20).unwrap()
    }

    fn said(text: &str, version: i64) -> ConsumerData {
        let sub = SubscriptionData {
            topic: "TopicTest".into(),
            sub_string: text.into(),
            sub_version: version,
            expression_type: EXPRESSION_SQL92.into(),
            ..SubscriptionData::default()
        };
        ConsumerData { group_name: "GroupA".into(), subscription_data_set: vec![sub], ..ConsumerData::default() }
    }

    fn born_ms(filters: &Filters) -> i64 {
        filters.table().by_topic["TopicTest"]["GroupA"].data.born_time
    }

    fn file(filters: &Filters) -> ConsumerFilterFile {
        parse_file(&filters.file_text()).unwrap()
    }

    #[test]
    fn a_filter_is_born_when_all_shards_have_it() {
        let mut filters = Filters::load(bloom(), None, 0);
        assert!(filters.to_show().is_none());
        assert!(filters.hear(&said("a > 1", 1), 5));
        let (table, shown) = filters.to_show().unwrap();
        assert_eq!(table.by_topic["TopicTest"]["GroupA"].data.bloom_filter_data.bit_pos, [105, 17, 70]);
        assert_eq!(born_ms(&filters), UNBORN_MS);
        assert!(file(&filters).filter_data_by_topic["TopicTest"].group_filter_data.is_empty());
        filters.born(shown, 77);
        assert_eq!(born_ms(&filters), 77);
        assert!(filters.to_show().is_none() && filters.take_unsaved() && !filters.take_unsaved());
        assert_eq!(file(&filters).filter_data_by_topic["TopicTest"].group_filter_data["GroupA"].born_time, 77);
        assert!(!filters.hear(&said("a > 1", 2), 5) && born_ms(&filters) == 77, "the same again");
    }

    #[test]
    fn another_expression_is_unborn_until_it_is_shown_itself() {
        let mut filters = Filters::load(bloom(), None, 0);
        filters.hear(&said("a > 1", 1), 5);
        let (_, shown) = filters.to_show().unwrap();
        assert!(filters.hear(&said("a > 2", 2), 6));
        filters.born(shown, 77);
        assert_eq!(born_ms(&filters), UNBORN_MS, "the shards know the one before");
        let (_, shown) = filters.to_show().unwrap();
        filters.born(shown, 80);
        assert_eq!(born_ms(&filters), 80);
        assert!(!filters.hear(&said("a > 3", 1), 7), "older than what is known");
        assert!(!filters.hear(&said("a >", 3), 8), "it does not compile");
        assert_eq!(filters.table().by_topic["TopicTest"]["GroupA"].data.expression, "a > 2");
    }

    #[test]
    fn who_is_gone_for_long_has_no_filter() {
        let mut filters = Filters::load(bloom(), None, 0);
        filters.hear(&said("a > 1", 1), 5);
        filters.left("GroupA", 10);
        let (_, shown) = filters.to_show().unwrap();
        filters.born(shown, 20);
        filters.clean(100, 119);
        assert!(filters.to_show().is_none());
        filters.hear(&said("a > 1", 1), 119);
        filters.clean(100, 500);
        assert!(!filters.is_empty(), "it came back");
        filters.hear(&ConsumerData { subscription_data_set: vec![], ..said("", 0) }, 600);
        filters.clean(100, 699);
        assert!(!filters.is_empty());
        filters.clean(100, 700);
        assert!(filters.is_empty() && filters.to_show().is_some());
    }

    /// The shape is the sheet's.
    #[test]
    fn the_file_is_read_back_unless_the_maps_have_another_length() {
        let text = r#"{ "filterDataByTopic":{ "T":{ "groupFilterData":{ "G":{ "bloomFilterData":{"bitNum":112,"bitPos":[105,17,70]},
            "bornTime":1, "clientVersion":1, "consumerGroup":"G", "dead":false, "deadTime":0, "expression":"a > 1",
            "expressionType":"SQL92", "topic":"T" } }, "topic":"T" } } }"#;
        let stored = || Some(parse_file(text.as_bytes()).unwrap());
        let filters = Filters::load(bloom(), stored(), 100_000);
        let data = filters.table().by_topic["T"]["G"].data.clone();
        assert_eq!((data.born_time, data.dead, data.dead_time), (1, true, 70_000));
        assert!(filters.to_show().is_some());
        assert!(Filters::load(Bloom::new(64, 20).unwrap(), stored(), 100_000).is_empty());
    }
}
