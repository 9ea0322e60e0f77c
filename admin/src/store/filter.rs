//! Which records a command is about.
use clap::Args;
use uringmq_proto::message::{prop, properties};
use uringmq_proto::record::Record;

#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Filter {
    /// Only records of this topic
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Only of this queue
    #[arg(long)]
    pub(crate) queue: Option<u32>,
    /// Only from this offset of its queue on
    #[arg(long, value_name = "N")]
    pub(crate) from_queue_offset: Option<u64>,
    /// Only with this key: one of the message's KEYS, or its UNIQ_KEY
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Only stored at this time or later, ms since the epoch
    #[arg(long, value_name = "MS")]
    pub(crate) from: Option<i64>,
    /// Only stored before this time, ms since the epoch
    #[arg(long, value_name = "MS")]
    pub(crate) to: Option<i64>,
}

impl Filter {
    pub(crate) fn takes(&self, record: &Record<'_>) -> bool {
        self.topic.as_deref().is_none_or(|topic| topic == record.topic)
            && self.queue.is_none_or(|queue| i64::from(queue) == i64::from(record.queue_id))
            && self.from_queue_offset.is_none_or(|from| record.queue_offset >= 0 && record.queue_offset as u64 >= from)
            && self.from.is_none_or(|from| record.store_timestamp_ms >= from)
            && self.to.is_none_or(|to| record.store_timestamp_ms < to)
            && self.key.as_deref().is_none_or(|key| has_key(record, key))
    }
}

fn has_key(record: &Record<'_>, key: &str) -> bool {
    properties(record.properties).any(|(name, value)| match name {
        prop::UNIQ_KEY => value == key,
        prop::KEYS => value.split(' ').any(|piece| piece == key),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(properties: &str) -> Record<'_> {
        let host = "127.0.0.1:1".parse().unwrap();
        Record {
            bytes: 0,
            body_crc: 0,
            queue_id: 3,
            flag: 0,
            queue_offset: 10,
            phy_offset: 0,
            sys_flag: 0,
            born_timestamp_ms: 0,
            born_host: host,
            store_timestamp_ms: 1000,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"",
            topic: "T",
            properties,
        }
    }

    #[test]
    fn each_condition_counts() {
        let record = record("KEYS\u{1}one two\u{2}UNIQ_KEY\u{1}three\u{2}TAGS\u{1}four\u{2}");
        let none = Filter::default();
        let some = |text: &str| Some(text.to_owned());
        for (filter, taken) in [
            (none.clone(), true),
            (Filter { topic: some("T"), ..none.clone() }, true),
            (Filter { topic: some("t"), ..none.clone() }, false),
            (Filter { queue: Some(3), ..none.clone() }, true),
            (Filter { queue: Some(2), ..none.clone() }, false),
            (Filter { from_queue_offset: Some(10), ..none.clone() }, true),
            (Filter { from_queue_offset: Some(11), ..none.clone() }, false),
            (Filter { from: Some(1000), to: Some(1001), ..none.clone() }, true),
            (Filter { to: Some(1000), ..none.clone() }, false),
            (Filter { from: Some(1001), ..none.clone() }, false),
            (Filter { key: some("two"), ..none.clone() }, true),
            (Filter { key: some("three"), ..none.clone() }, true),
            (Filter { key: some("four"), ..none.clone() }, false),
            (Filter { key: some("one two"), ..none }, false),
        ] {
            assert_eq!(filter.takes(&record), taken, "{filter:?}");
        }
    }
}
