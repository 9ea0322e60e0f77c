//! What control publishes to every shard: immutable tables behind an `Arc`; the newest wins.
use crate::control::attributes;
use hashbrown::HashMap;
use std::sync::Arc;
use uringmq_filter::Expression;
use uringmq_filter::bloom;
use uringmq_proto::body::filter::ConsumerFilterData;
use uringmq_proto::body::group::SubscriptionGroupConfig;
use uringmq_proto::body::topic::TopicConfig;
use uringmq_proto::types::TopicId;
use uringmq_store::consume_queue::Form;

/// One topic as every shard sees it.
#[derive(Debug)]
pub struct Topic {
    pub id: TopicId,
    pub name: Arc<str>,
    pub config: TopicConfig,
}

impl Topic {
    /// Which kind of queues it has.
    pub fn form(&self) -> Form {
        attributes::form_of(&self.config)
    }
}

/// All topics. A topic deleted and made again has another id.
#[derive(Debug, Default)]
pub struct TopicTable {
    pub by_name: HashMap<Arc<str>, Arc<Topic>>,
    /// Topics of which only queue files were found at the start: they do not exist for clients, but their queues are kept.
    pub unlisted: HashMap<Arc<str>, Arc<Topic>>,
    /// Index = id; `None` for deleted ones.
    pub by_id: Vec<Option<Arc<Topic>>>,
}

impl TopicTable {
    pub fn get(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name)
    }
    /// As the store knows it: a topic that exists, or one of which only queue files are left.
    pub fn stored(&self, name: &str) -> Option<&Arc<Topic>> {
        self.get(name).or_else(|| self.unlisted.get(name))
    }
    pub fn by_id(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.by_id.get(id.0 as usize)?.as_ref()
    }
}

/// What one group subscribes on one topic.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub version: i64,
    /// `TAG` unless the client said otherwise.
    pub expression_type: String,
    pub expression: String,
    /// Tag hashes; empty with `all` unset matches nothing.
    pub codes: Vec<i32>,
    /// The tag says nothing: `*`, empty or absent expression, or another type than `TAG`.
    pub all: bool,
    /// Of type SQL92, where its text compiles.
    pub sql: Option<Sql>,
}

/// A compiled SQL92 subscription.
#[derive(Clone, Debug)]
pub struct Sql {
    pub expression: Arc<Expression>,
    /// The subscription's version when it was compiled. A newer text that does not compile leaves the older expression in place.
    pub version: i64,
}

impl Subscription {
    pub fn everything() -> Self {
        Subscription {
            version: 0,
            expression_type: "TAG".into(),
            expression: "*".into(),
            codes: Vec::new(),
            all: true,
            sql: None,
        }
    }
    /// Whether an entry with this tagsCode may go to the client, who compares the text again.
    pub fn matches(&self, tags_code: i64) -> bool {
        self.all || self.codes.contains(&(tags_code as i32))
    }
}

/// What groups filter by, for the bit maps of messages.
#[derive(Debug, Default)]
pub struct FilterTable {
    pub map_bytes: usize,
    /// Topic, group.
    pub by_topic: HashMap<Arc<str>, HashMap<Arc<str>, Arc<GroupFilter>>>,
}

#[derive(Debug)]
pub struct GroupFilter {
    pub data: ConsumerFilterData,
    pub expression: Arc<Expression>,
}

impl FilterTable {
    pub fn get(&self, topic: &str, group: &str) -> Option<&Arc<GroupFilter>> {
        self.by_topic.get(topic)?.get(group)
    }
    /// The bit map of a message with these properties; empty where nobody filters its topic.
    pub fn map_of<'m>(&self, topic: &str, property: impl Fn(&str) -> Option<&'m str>) -> Box<[u8]> {
        let Some(groups) = self.by_topic.get(topic) else { return Box::default() };
        let mut map = vec![0; self.map_bytes];
        for filter in groups.values().filter(|filter| filter.expression.matches(&property)) {
            bloom::set(&mut map, &filter.data.bloom_filter_data.bit_pos);
        }
        map.into()
    }
}

impl GroupFilter {
    /// Whether a message that was stored at `stored_ms` and has this bit map cannot match. False where the map does not tell: an empty one, one of
    /// another length, one from before the filter.
    pub fn excludes(&self, stored_ms: i64, map: &[u8]) -> bool {
        let bits = &self.data.bloom_filter_data;
        stored_ms > self.data.born_time && map.len() * 8 == bits.bit_num as usize && !bloom::is_set(map, &bits.bit_pos)
    }
}

#[derive(Debug)]
pub struct Group {
    pub name: Arc<str>,
    pub config: SubscriptionGroupConfig,
    /// Some when at least one consumer of the group was heard of (heartbeat).
    pub online: Option<OnlineGroup>,
    /// Topics on which code 353 forbade reading.
    pub forbidden: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct OnlineGroup {
    pub broadcasting: bool,
    /// CONSUME_ACTIVELY.
    pub pulling: bool,
    pub subscriptions: HashMap<Arc<str>, Arc<Subscription>>,
}

#[derive(Debug, Default)]
pub struct GroupTable {
    pub by_name: HashMap<Arc<str>, Arc<Group>>,
}

impl GroupTable {
    pub fn get(&self, name: &str) -> Option<&Arc<Group>> {
        self.by_name.get(name)
    }
}
