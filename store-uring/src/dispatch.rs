//! Turns a range of records into [`Dispatch`] entries. Recovery and catch-up call it; the live path must agree with it.
use crate::StoreError;
use crate::consume_queue::{BATCH_COUNT_MAX, Entry, Form};
use uringmq_proto::message::{self, prop, sys_flag};
use uringmq_proto::names::{self, SCHEDULE_TOPIC};
use uringmq_proto::record::{self, Found, Record, RecordError};
use uringmq_proto::types::PhyOffset;

/// What a level waits when the table has none at all. Source: store-format sheet 4.2.
const UNKNOWN_LEVEL_DELAY_MS: i64 = 1000;

/// What the derived files need of one record. Borrowed from the record's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch<'a> {
    pub phy: PhyOffset,
    pub bytes: u32,
    pub topic: &'a str,
    pub queue: u32,
    pub queue_offset: u64,
    /// Tag hash, or the deliver time in the schedule topic (store-format sheet 4.2).
    pub tags_code: i64,
    pub store_timestamp_ms: i64,
    pub sys_flag: i32,
    pub properties: &'a str,
    /// Messages in an inner batch; `None` for every other record, which is one message.
    pub count: Option<u16>,
    /// False for prepared and rollback records (and for a queue id or offset that no broker writes): no consume-queue entry.
    pub queued: bool,
}

impl Dispatch<'_> {
    /// Messages in the record.
    pub fn messages(&self) -> u16 {
        self.count.unwrap_or(1)
    }
    /// Its entry in a queue of this kind.
    pub fn entry(&self, form: Form) -> Entry {
        let plain = Entry::new(self.phy, self.bytes, self.tags_code);
        match form {
            Form::Plain => plain,
            Form::Batch => Entry { count: self.messages(), stored_ms: self.store_timestamp_ms, ..plain },
        }
    }
}

/// Calls `each` for the light queues (LMQ) that a record is in beside its own: name, always queue 0, and the offset there, as its properties
/// say it. Source: store-format sheet 4.8.
pub fn light_places<'a>(d: &Dispatch<'a>, mut each: impl FnMut(Dispatch<'a>)) {
    if !d.queued || !names::may_dispatch(d.topic) || !d.properties.contains(prop::INNER_MULTI_QUEUE_OFFSET) {
        return;
    }
    let list = |name| message::property(d.properties, name).unwrap_or_default();
    let (queues, offsets) = (list(prop::INNER_MULTI_DISPATCH), list(prop::INNER_MULTI_QUEUE_OFFSET));
    if queues.split(',').count() != offsets.split(',').count() {
        return;
    }
    for (topic, offset) in queues.split(',').zip(offsets.split(',')) {
        if let (true, Ok(queue_offset)) = (names::is_light_queue(topic), offset.parse::<u64>()) {
            each(Dispatch { topic, queue: 0, queue_offset, count: None, ..*d });
        }
    }
}

/// Messages in a record with this flag and these properties, when it is an inner batch. Source: store-format sheet 3.7.
pub fn inner_count(flags: i32, properties: &str) -> Option<u16> {
    if flags & sys_flag::INNER_BATCH == 0 {
        return None;
    }
    let count = message::property(properties, prop::INNER_NUM)?.parse::<u16>().ok();
    count.filter(|count| (1..=BATCH_COUNT_MAX).contains(count))
}

/// What one parsed record means for the derived files.
pub fn of_record<'a>(r: &Record<'a>, at: PhyOffset, delay_levels_ms: &[u64]) -> Dispatch<'a> {
    let transaction = r.sys_flag & sys_flag::TRANSACTION_MASK;
    let numbered = matches!(transaction, sys_flag::TRANSACTION_NONE | sys_flag::TRANSACTION_COMMIT);
    Dispatch {
        phy: at,
        bytes: r.bytes as u32,
        topic: r.topic,
        queue: r.queue_id as u32,
        queue_offset: r.queue_offset as u64,
        tags_code: tags_code(r.topic, r.properties, r.store_timestamp_ms, delay_levels_ms),
        store_timestamp_ms: r.store_timestamp_ms,
        sys_flag: r.sys_flag,
        properties: r.properties,
        count: inner_count(r.sys_flag, r.properties),
        queued: numbered && r.queue_id >= 0 && r.queue_offset >= 0,
    }
}

/// tagsCode of a record of `topic` with these properties, stored at `store_ms`. The live path, before it knows the store time, asks
/// [`delay_ms`] first.
pub fn tags_code(topic: &str, properties: &str, store_ms: i64, delay_levels_ms: &[u64]) -> i64 {
    match delay_ms(topic, properties, delay_levels_ms) {
        Some(delay_ms) => store_ms.saturating_add(delay_ms),
        None => message::tags_code(message::property(properties, prop::TAGS)),
    }
}

/// For a delayed record of the schedule topic, how long after its store time it is due: its tagsCode is their sum. `None` for all
/// others, whose tagsCode does not depend on the store time.
pub fn delay_ms(topic: &str, properties: &str, delay_levels_ms: &[u64]) -> Option<i64> {
    if topic != SCHEDULE_TOPIC {
        return None;
    }
    let level = message::property(properties, prop::DELAY)?.parse::<i32>().ok().filter(|level| *level > 0)?;
    Some(level_delay_ms(level, delay_levels_ms))
}

/// The delay of a level (1 is the first); a level above the table is its last.
pub fn level_delay_ms(level: i32, delay_levels_ms: &[u64]) -> i64 {
    let index = (level as usize).min(delay_levels_ms.len()).checked_sub(1);
    index.map_or(UNKNOWN_LEVEL_DELAY_MS, |i| i64::try_from(delay_levels_ms[i]).unwrap_or(i64::MAX))
}

/// Walks `bytes`, which stand in the log at `base`: calls `each` per record, and returns the offset behind the last whole one (a blank
/// counts to the end of its segment). Stops without error at a record cut by the end of `bytes`.
/// Error: `Corrupt` at a record that is none, or that says it belongs elsewhere; those before it were given to `each`.
pub fn walk(
    bytes: &[u8],
    base: PhyOffset,
    delay_levels_ms: &[u64],
    check_crc: bool,
    mut each: impl FnMut(Dispatch<'_>),
) -> Result<PhyOffset, StoreError> {
    let mut done = 0;
    while done < bytes.len() {
        let at = base + done as u64;
        match record::parse(&bytes[done..], check_crc) {
            Ok(Found::Record(r)) if r.phy_offset as u64 != at.0 => {
                return Err(StoreError::Corrupt { at, what: "record of another place" });
            }
            Ok(Found::Record(r)) => {
                each(of_record(&r, at, delay_levels_ms));
                done += r.bytes;
            }
            Ok(Found::Blank { bytes }) => done += bytes,
            Err(RecordError::Short { .. }) => break,
            Err(RecordError::Bad(what)) => return Err(StoreError::Corrupt { at, what }),
            Err(RecordError::Crc { .. }) => return Err(StoreError::Corrupt { at, what: "body CRC" }),
        }
    }
    Ok(base + done as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::record::NewRecord;

    const LEVELS: [u64; 3] = [1000, 5000, 10_000];

    fn record(topic: &str, properties: &str, sys_flag: i32, queue_offset: u64, phy: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let new = NewRecord {
            topic,
            queue_id: 3,
            flag: 0,
            sys_flag,
            born_timestamp_ms: 5,
            born_host: "127.0.0.1:50001".parse().unwrap(),
            store_host: "10.0.0.9:10911".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"hi",
            properties,
            more_properties: "",
        };
        record::encode(&mut out, &new).unwrap();
        record::patch(&mut out, queue_offset, phy, 1_700_000_000_123);
        out
    }

    #[test]
    fn the_vectors_of_the_sheet() {
        let code = |tags: &str| tags_code("T", &format!("TAGS\u{1}{tags}\u{2}"), 9, &LEVELS);
        assert_eq!(code("TagA"), 2_598_919);
        assert_eq!(code("a"), 97);
        assert_eq!(code("order-cancelled"), 441_731_474);
        assert_eq!(code("中文"), 646_394);
        assert_eq!(tags_code("T", "", 9, &LEVELS), 0);
    }

    #[test]
    fn an_inner_batch_has_its_flag_and_a_number() {
        let count = |flags, text: &str| inner_count(flags, &format!("INNER_NUM\u{1}{text}\u{2}"));
        assert_eq!(count(sys_flag::INNER_BATCH, "3"), Some(3));
        assert_eq!(count(sys_flag::INNER_BATCH, "32767"), Some(32_767));
        for none in ["0", "-1", "32768", "x", ""] {
            assert_eq!(count(sys_flag::INNER_BATCH, none), None, "{none}");
        }
        assert_eq!(count(0, "3"), None);
    }

    /// Source: store-format sheet 4.8.
    #[test]
    fn a_record_says_in_which_light_queues_it_is() {
        let places = |topic: &str, queues: &str, offsets: &str| {
            let properties = format!(
                "INNER_MULTI_DISPATCH\u{1}{queues}\u{2}INNER_MULTI_QUEUE_OFFSET\u{1}{offsets}\u{2}TAGS\u{1}a\u{2}"
            );
            let bytes = record(topic, &properties, 0, 7, 100);
            let Ok(Found::Record(r)) = record::parse(&bytes, true) else { panic!("just encoded") };
            let d = of_record(&r, PhyOffset(100), &LEVELS);
            let mut found = Vec::new();
            light_places(&d, |l| {
                assert_eq!((l.phy, l.bytes, l.tags_code), (d.phy, d.bytes, d.tags_code));
                found.push((l.topic.to_owned(), l.queue, l.queue_offset));
            });
            found
        };
        let (a, b) = (("%LMQ%a".to_owned(), 0, 4), ("%LMQ%b".to_owned(), 0, 0));
        assert_eq!(places("T", "%LMQ%a,%LMQ%b", "4,0"), [a.clone(), b.clone()]);
        assert_eq!(places("T", "%LMQ%a,other", "4,"), [a], "a name that is no light queue is passed over");
        for (topic, queues, offsets) in [
            ("T", "%LMQ%a,%LMQ%b", "4"),
            ("T", "%LMQ%a", "x"),
            ("T", "", "4"),
            (SCHEDULE_TOPIC, "%LMQ%a", "4"),
            ("%RETRY%g", "%LMQ%a", "4"),
        ] {
            assert_eq!(places(topic, queues, offsets), [], "{topic} {queues} {offsets}");
        }
    }

    #[test]
    fn a_delayed_record_is_coded_by_its_time() {
        let code = |delay: &str, levels: &[u64]| {
            tags_code(SCHEDULE_TOPIC, &format!("DELAY\u{1}{delay}\u{2}TAGS\u{1}a\u{2}"), 100, levels)
        };
        assert_eq!(code("1", &LEVELS), 1100);
        assert_eq!(code("3", &LEVELS), 10_100);
        assert_eq!(code("99", &LEVELS), 10_100, "clamped to the highest level");
        assert_eq!(code("2", &[]), 1100, "unknown to the table");
        for other in ["0", "-1", "4x", "99999999999"] {
            assert_eq!(code(other, &LEVELS), 97, "{other} is no delay");
        }
        assert_eq!(tags_code("T", "DELAY\u{1}1\u{2}TAGS\u{1}a\u{2}", 100, &LEVELS), 97, "only in the schedule topic");
        assert_eq!(tags_code(SCHEDULE_TOPIC, "DELAY\u{1}1\u{2}", i64::MAX, &[u64::MAX]), i64::MAX);
    }

    #[test]
    fn a_walk_gives_whole_records_and_stops_at_a_cut_one() {
        let base = 5000;
        let mut log = record("T", "TAGS\u{1}A\u{2}", 0, 7, base);
        let second = base + log.len() as u64;
        log.extend(record("T", "", sys_flag::TRANSACTION_PREPARED, 0, second));
        let third = base + log.len() as u64;
        log.extend(record("T", "", 0, 8, third));
        let end = base + log.len() as u64;
        let mut seen = Vec::new();
        let mut walk = |bytes: &[u8]| {
            seen.clear();
            let end = walk(bytes, PhyOffset(base), &LEVELS, true, |d| {
                seen.push((d.phy.0, d.queue, d.queue_offset, d.queued, d.tags_code));
            });
            (end.map_err(|e| e.to_string()), seen.clone())
        };
        let (whole, all) = walk(&log);
        assert_eq!(whole, Ok(PhyOffset(end)));
        assert_eq!(all, [(base, 3, 7, true, 65), (second, 3, 0, false, 0), (third, 3, 8, true, 0)]);
        for cut in third - base..end - base {
            assert_eq!(walk(&log[..cut as usize]), (Ok(PhyOffset(third)), all[..2].to_vec()));
        }
        let mut blank = log.clone();
        blank.extend(100u32.to_be_bytes());
        blank.extend(record::MAGIC_BLANK.to_be_bytes());
        assert_eq!(walk(&blank).0, Ok(PhyOffset(end + 100)), "a blank counts whole");
        let mut bad = log.clone();
        bad[(third - base) as usize + 88] ^= 1;
        assert_eq!(walk(&bad), (Err(format!("record at {third}: body CRC")), all[..2].to_vec()));
        log[(second - base) as usize + 35] ^= 1;
        assert_eq!(walk(&log), (Err(format!("record at {second}: record of another place")), all[..1].to_vec()));
    }
}
