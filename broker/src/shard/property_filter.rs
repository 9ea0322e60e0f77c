//! What a subscription asks of a message's properties, on the owner of its queue: the record is looked at there, from the tail cache or the
//! log, before its position goes to the connection's shard. Source: behaviour sheet 4.1, 10.4.
use crate::control::filters::UNBORN_MS;
use crate::shard::Shard;
use crate::shard::pulls::PullAsk;
use crate::shard::queues::Queue;
use crate::snapshot::{Group, GroupFilter};
use std::sync::Arc;
use tracing::error;
use uringmq_filter::Expression;
use uringmq_proto::message::{self, prop};
use uringmq_proto::record::{self, Found};
use uringmq_store::StoreError;
use uringmq_store::consume_queue::Entry;

/// Bytes of records that one pull reads from the log to find what matches. It answers with the offset it got to.
const COLD_BYTES: usize = 8 << 20;

#[derive(Clone)]
pub enum PropertyFilter {
    /// Nothing.
    None,
    Sql(Arc<Expression>),
    /// `filterSupportRetry`, on the retry topic of this group: what the group asks of the topic that the message was sent to.
    OfOrigin(Arc<Group>),
}

impl PropertyFilter {
    pub fn is_none(&self) -> bool {
        matches!(self, PropertyFilter::None)
    }

    /// Whether a stored record matches. One that cannot be read matches nothing.
    fn matches(&self, stored: &[u8]) -> bool {
        let Ok(Found::Record(record)) = record::parse(stored, false) else { return false };
        let property = |name: &str| message::property(record.properties, name);
        match self {
            PropertyFilter::None => true,
            PropertyFilter::Sql(expression) => expression.matches(property),
            PropertyFilter::OfOrigin(group) => {
                let online = group.online.as_ref();
                let origin = property(prop::RETRY_TOPIC);
                let asked = online.zip(origin).and_then(|(online, topic)| online.subscriptions.get(topic));
                asked.and_then(|asked| asked.sql.as_ref()).is_none_or(|sql| sql.expression.matches(property))
            }
        }
    }
}

/// Which of the entries that one pull looks at cannot match by their bit maps.
#[derive(Default)]
pub(super) struct Excluded(Vec<bool>);

impl Excluded {
    pub fn has(&self, index: usize) -> bool {
        self.0.get(index).copied().unwrap_or(false)
    }
    fn note(&mut self, filter: &GroupFilter, index: usize, (stored_ms, map): (i64, &[u8])) {
        if filter.excludes(stored_ms, map) {
            self.0.resize(index + 1, false);
            self.0[index] = true;
        }
    }
}

impl Shard {
    /// The filter that the group has had since it was born, when it is the one that the pull asks by.
    fn filter_of_bits(&self, ask: &PullAsk) -> Option<Arc<GroupFilter>> {
        if !matches!(ask.by_properties, PropertyFilter::Sql(_)) {
            return None;
        }
        let topics = self.topics.borrow();
        let filters = self.group_filters.borrow();
        let filter = filters.get(&topics.by_id(ask.key.topic)?.name, &ask.group.name)?;
        let same = filter.data.expression == ask.filter.expression && filter.data.born_time != UNBORN_MS;
        same.then(|| filter.clone())
    }

    /// By the units that are in memory; `None` when one would have to be read.
    pub(super) fn excluded_hot(&self, ask: &PullAsk, queue: &Queue, entries: &[Entry]) -> Option<Excluded> {
        let mut excluded = Excluded::default();
        let Some(filter) = self.filter_of_bits(ask) else { return Some(excluded) };
        let all = queue.cq.units_hot(entries, |index, stored_ms, map| excluded.note(&filter, index, (stored_ms, map)));
        all.then_some(excluded)
    }

    pub(super) async fn excluded_cold(
        &self,
        ask: &PullAsk,
        queue: &Queue,
        entries: &[Entry],
    ) -> Result<Excluded, StoreError> {
        let mut excluded = Excluded::default();
        if let Some(filter) = self.filter_of_bits(ask) {
            let note = |index, stored_ms, map: &[u8]| excluded.note(&filter, index, (stored_ms, map));
            queue.cq.units(entries, note).await?;
        }
        Ok(excluded)
    }

    /// Whether an entry matches; `None` when its record would have to be read from the disk.
    pub(super) fn matches_hot(&self, ask: &PullAsk, entry: &Entry) -> Option<bool> {
        // Without its tags it goes to the client, who looks at them itself.
        if entry.tags().is_some_and(|tags_code| !ask.filter.matches(tags_code)) {
            return Some(false);
        }
        if ask.by_properties.is_none() || entry.phy < self.marks.min() || entry.is_hole() {
            return Some(true);
        }
        self.tail.borrow().get(entry.phy, entry.bytes).map(|stored| ask.by_properties.matches(stored))
    }

    /// Whether each of the first entries matches: up to those that fill an answer, or to a limit of bytes read.
    pub(super) async fn matches_cold(
        &self,
        ask: &PullAsk,
        entries: &[Entry],
        excluded: &Excluded,
    ) -> Result<Vec<bool>, StoreError> {
        let (mut verdicts, mut stored) = (Vec::with_capacity(entries.len()), Vec::new());
        let (mut matched, mut read) = (0, 0);
        for (index, entry) in entries.iter().enumerate() {
            let hot = if excluded.has(index) { Some(false) } else { self.matches_hot(ask, entry) };
            let verdict = match hot {
                Some(verdict) => verdict,
                None if read + entry.bytes as usize > COLD_BYTES && read > 0 => break,
                None => {
                    stored.clear();
                    read += entry.bytes as usize;
                    match self.read_record(entry.phy, entry.bytes, &mut stored).await {
                        Ok(()) => ask.by_properties.matches(&stored),
                        Err(StoreError::OutOfRange(_)) => false,
                        Err(e @ StoreError::Corrupt { .. }) => {
                            error!(error = %e, "damaged record stepped over");
                            false
                        }
                        Err(e) => return Err(e),
                    }
                }
            };
            verdicts.push(verdict);
            matched += usize::from(verdict);
            if matched > ask.max_count as usize {
                break;
            }
        }
        Ok(verdicts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{OnlineGroup, Sql, Subscription};
    use crate::testing;

    fn sql(text: &str) -> Arc<Expression> {
        Arc::new(Expression::parse(text).unwrap())
    }

    fn with(properties: &[(&str, &str)]) -> Vec<u8> {
        let mut text = String::new();
        properties.iter().for_each(|(name, value)| message::push_property(&mut text, name, value));
        testing::record("T", &text)
    }

    #[test]
    fn a_records_properties_decide() {
        let filter = PropertyFilter::Sql(sql("a > 5 AND TAGS = 'x'"));
        assert!(filter.matches(&with(&[("a", "6"), ("TAGS", "x")])));
        assert!(!filter.matches(&with(&[("a", "5"), ("TAGS", "x")])) && !filter.matches(&with(&[])));
        assert!(!filter.matches(b"no record") && PropertyFilter::None.matches(&with(&[])));
        assert!(PropertyFilter::Sql(sql("a = '2'")).matches(&with(&[("a", "1"), ("a", "2")])), "the last one counts");
    }

    #[test]
    fn a_retried_message_is_asked_what_its_first_topic_was() {
        let filtered =
            Subscription { sql: Some(Sql { expression: sql("a > 5"), version: 1 }), ..Subscription::everything() };
        let subscriptions = [("T", filtered), ("U", Subscription::everything())];
        let group = Group {
            name: "g".into(),
            config: Default::default(),
            online: Some(OnlineGroup {
                broadcasting: false,
                pulling: false,
                subscriptions: subscriptions.map(|(topic, s)| (topic.into(), Arc::new(s))).into_iter().collect(),
            }),
            forbidden: Vec::new(),
        };
        let filter = PropertyFilter::OfOrigin(Arc::new(group));
        let matches = |topic: &str, a: &str| filter.matches(&with(&[("a", a), (prop::RETRY_TOPIC, topic)]));
        assert!(matches("T", "6") && !matches("T", "5"));
        assert!(matches("U", "5") && matches("V", "5") && filter.matches(&with(&[("a", "5")])));
    }
}
