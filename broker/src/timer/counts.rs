//! How many timer messages wait, by topic: `config/timermetrics` and request 61. Source: behaviour sheet 7.4; known fault D06.
//!
//! A message counts from when it is enqueued until its slot is done. A start counts what hangs on the wheel anew, by the hash of the topic in
//! each unit: the saved table gives the names.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use uringmq_proto::body::timer::{TimerMetric, TimerMetrics};
use uringmq_proto::body::topic::DataVersion;
use uringmq_proto::message;

#[derive(Default)]
pub struct Counts {
    topics: RefCell<BTreeMap<String, TimerMetric>>,
    version: Cell<DataVersion>,
    /// What changed since a count of everything began.
    since: RefCell<Option<BTreeMap<String, i64>>>,
}

impl Counts {
    pub fn load(&self, stored: TimerMetrics) {
        self.version.set(stored.data_version);
        *self.topics.borrow_mut() = stored.timing_count;
    }

    /// What waits is being counted; meanwhile the table is as it was saved.
    pub fn begin(&self) {
        *self.since.borrow_mut() = Some(BTreeMap::new());
    }

    /// What waited when the count began, for all counts; what changed since then counts too.
    pub fn finish(&self, counted: &BTreeMap<String, i64>, now_ms: i64) {
        let since = self.since.take();
        self.set(counted, now_ms);
        since.into_iter().flatten().for_each(|(topic, count)| self.add(&topic, count, now_ms));
    }

    /// Replaces all counts.
    fn set(&self, counted: &BTreeMap<String, i64>, now_ms: i64) {
        self.nothing_waits(now_ms);
        counted.iter().for_each(|(topic, count)| self.add(topic, *count, now_ms));
    }

    /// The topic of a hash, among those that were ever counted.
    pub fn topic_of(&self, hash: i32) -> Option<String> {
        self.topics.borrow().keys().find(|topic| message::java_hash(topic, 0) == hash).cloned()
    }

    /// Never below 0, whatever another broker's table said.
    pub fn add(&self, topic: &str, count: i64, now_ms: i64) {
        if let Some(since) = &mut *self.since.borrow_mut() {
            *since.entry(topic.to_owned()).or_default() += count;
        }
        let mut topics = self.topics.borrow_mut();
        let changed =
            |metric: TimerMetric| TimerMetric { count: metric.count.saturating_add(count).max(0), time_stamp: now_ms };
        match topics.get_mut(topic) {
            Some(metric) => *metric = changed(*metric),
            None => drop(topics.insert(topic.to_owned(), changed(TimerMetric::default()))),
        }
        self.version.set(self.version.get().next(0, now_ms));
    }

    /// Nothing waits: what is left of the counts is an error of whoever wrote them.
    fn nothing_waits(&self, now_ms: i64) {
        for metric in self.topics.borrow_mut().values_mut().filter(|metric| metric.count != 0) {
            *metric = TimerMetric { count: 0, time_stamp: now_ms };
        }
    }

    pub fn table(&self) -> TimerMetrics {
        TimerMetrics { data_version: self.version.get(), timing_count: self.topics.borrow().clone() }
    }

    /// The table less what was delivered of slots that are not done.
    pub fn table_less<'a>(&self, done: impl Iterator<Item = (&'a str, i64)>) -> TimerMetrics {
        let mut table = self.table();
        for (topic, count) in done {
            if let Some(metric) = table.timing_count.get_mut(topic) {
                metric.count = (metric.count - count).max(0);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::fastjson;

    /// Known fault D06.
    #[test]
    fn counts_are_never_below_zero() {
        let counts = Counts::default();
        counts.add("T", 1, 5);
        counts.add("T", -3, 6);
        counts.add("U", -1, 7);
        counts.add("U", 2, 8);
        let table = counts.table();
        assert_eq!(table.timing_count["T"], TimerMetric { count: 0, time_stamp: 6 });
        assert_eq!(table.timing_count["U"].count, 2);
        assert_eq!(counts.table_less([("U", 1), ("V", 9)].into_iter()).timing_count["U"].count, 1);
        assert_eq!(table.data_version, DataVersion { counter: 4, state_version: 0, timestamp: 8 });
        assert_eq!(counts.topic_of(84), Some("T".to_owned()));
        counts.set(&BTreeMap::from([("W".to_owned(), 3)]), 9);
        assert_eq!(counts.table().timing_count["W"].count, 3);
        assert_eq!(counts.table().timing_count["U"], TimerMetric { count: 0, time_stamp: 9 });
    }

    #[test]
    fn what_changes_during_a_count_counts() {
        let counts = Counts::default();
        counts.add("T", 9, 1);
        counts.begin();
        counts.add("T", -2, 2);
        counts.add("U", 1, 2);
        assert_eq!(counts.table().timing_count["T"].count, 7);
        counts.finish(&BTreeMap::from([("T".to_owned(), 5)]), 3);
        counts.add("T", 1, 4);
        let table = counts.table().timing_count;
        assert_eq!((table["T"].count, table["U"].count), (4, 1));
    }

    #[test]
    fn the_text_is_apaches() {
        let golden = b"{\"dataVersion\":{\"counter\":20,\"stateVersion\":0,\"timestamp\":1796044247098},\"timingCount\":{\"T\":{\"count\":2,\
                       \"timeStamp\":1796044247098}}}";
        let counts = Counts::default();
        counts.load(fastjson::from_slice(golden).unwrap());
        assert_eq!(fastjson::to_vec(&counts.table()), golden);
    }
}
