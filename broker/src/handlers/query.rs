//! Looking messages up: by offset id (33), by key (12), and the entries of a consume queue (321). Source: behaviour sheet 4.6,
//! wire-protocol sheet 5.5, 7.1, store-format sheet 5; known faults S01, S03, S04, S05.
use crate::error::BrokerError;
use crate::handlers::offset::queue_key;
use crate::handlers::stats::subscription_data;
use crate::requests::Request;
use crate::shard::Shard;
use crate::snapshot::Subscription;
use std::rc::Rc;
use std::sync::Arc;
use tracing::warn;
use uringmq_proto::body::stats::{ConsumeQueueData, QueryConsumeQueueBody};
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::admin::{QueryMessage, ViewMessage};
use uringmq_proto::headers::topic::QueryConsumeQueue;
use uringmq_proto::message::{self, prop};
use uringmq_proto::record::{self, Found, Record};
use uringmq_proto::types::{PhyOffset, QueueOffset};
use uringmq_store::StoreError;
use uringmq_store::consume_queue::Entry;

/// Most bytes of messages in one answer, well below the largest frame; the first one goes whatever its size.
const ANSWER_BYTES_MAX: usize = 12 << 20;
/// The index keeps times cut to seconds, so that an item may seem to be older by as much.
const INDEX_STEP_MS: i64 = 1000;
/// Entries that one 321 may ask for.
const ENTRIES_MAX: u64 = 1000;

/// 33, on the connection's shard. The log holds no list of its records' starts, so what is found must say that it stands there.
pub async fn view_message(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = ViewMessage::decode(req.cmd)?;
    match read_at(shard, h.offset).await? {
        Some(bytes) => Ok(Response::ok().body(bytes)),
        None => {
            Err(BrokerError::refused(code::SYSTEM_ERROR, format!("can not find message by the offset, {}", h.offset)))
        }
    }
}

/// The stored bytes of the record that begins at a commit-log offset; `None` when none does.
pub async fn read_at(shard: &Shard, offset: i64) -> Result<Option<Vec<u8>>, StoreError> {
    let Ok(phy) = u64::try_from(offset) else { return Ok(None) };
    let Some(bytes) = shard.stored_record(PhyOffset(phy), 0).await? else { return Ok(None) };
    match record::parse(&bytes, false) {
        Ok(Found::Record(record)) if record.phy_offset == offset => Ok(Some(bytes)),
        _ => Ok(None),
    }
}

/// Which of a message's texts a key query is about. The letters are those of header field `indexType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyKind {
    /// `K`, or nothing: a word of KEYS, or the unique key. The index tells them apart no more than Apache's does.
    Key,
    /// `U`: the unique key.
    Unique,
    /// `T`: TAGS as a whole.
    Tag,
}

impl KeyKind {
    fn of(index_type: Option<&str>, unique: bool) -> Result<Self, BrokerError> {
        match index_type {
            _ if unique => Ok(KeyKind::Unique),
            None | Some("K") => Ok(KeyKind::Key),
            Some("U") => Ok(KeyKind::Unique),
            Some("T") => Ok(KeyKind::Tag),
            Some(other) => Err(BrokerError::refused(
                code::INVALID_PARAMETER,
                format!("header field indexType is none of K, U, T: '{other}'"),
            )),
        }
    }

    fn hash(self, topic: &str, key: &str) -> u32 {
        match self {
            KeyKind::Key | KeyKind::Unique => record::index_hash(topic, key),
            KeyKind::Tag => record::index_hash(topic, &format!("T#{key}")),
        }
    }

    /// Whether the record really has this key: equal hashes are not enough (known fault S01).
    fn matches(self, record: &Record<'_>, topic: &str, key: &str) -> bool {
        let has = |name| message::property(record.properties, name);
        let unique = || has(prop::UNIQ_KEY) == Some(key);
        record.topic == topic
            && match self {
                KeyKind::Unique => unique(),
                KeyKind::Tag => has(prop::TAGS) == Some(key),
                KeyKind::Key => unique() || has(prop::KEYS).is_some_and(|keys| keys.split(' ').any(|word| word == key)),
            }
    }
}

/// Most results: what was asked for, in 0..=cap; a unique key always gets its own default.
fn wanted(max_num: i32, kind: KeyKind, cap: u32, default: u32) -> usize {
    let asked = if kind == KeyKind::Unique { default } else { max_num.max(0) as u32 };
    asked.min(cap) as usize
}

/// 12, on control, where the index is.
pub async fn query_message(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = QueryMessage::decode(req.cmd)?;
    let kind = KeyKind::of(h.index_type, h.unique_key)?;
    let config = shard.config();
    let most = wanted(h.max_num, kind, config.query_count_max, config.query_count_default);
    let (found, (last_ms, last_phy)) = match &shard.index {
        Some(index) if most > 0 && !h.key.is_empty() => {
            let range = (h.begin_timestamp_ms, h.end_timestamp_ms);
            (find(shard, kind, h.topic, h.key, most, range).await?, index.last())
        }
        Some(index) => (Vec::new(), index.last()),
        None => Default::default(),
    };
    let mut body = Vec::new();
    for bytes in &found {
        if !body.is_empty() && body.len() + bytes.len() > ANSWER_BYTES_MAX {
            break;
        }
        body.extend_from_slice(bytes);
    }
    // As Apache's, which looks no further when the index has nothing.
    let (answer, last_ms, last_phy) = match body.is_empty() {
        true => {
            let remark = "can not find message, maybe time range not correct";
            (Response::err(code::QUERY_NOT_FOUND, remark), 0, PhyOffset(0))
        }
        false => (Response::ok().body(body), last_ms, last_phy),
    };
    Ok(answer.with("indexLastUpdateTimestamp", last_ms).with("indexLastUpdatePhyoffset", last_phy.0))
}

/// The newest `most` records with this key whose store time lies in the range, in log order.
async fn find(
    shard: &Shard,
    kind: KeyKind,
    topic: &str,
    key: &str,
    most: usize,
    (begin_ms, end_ms): (i64, i64),
) -> Result<Vec<Vec<u8>>, StoreError> {
    let Some(index) = &shard.index else { return Ok(Vec::new()) };
    let hash = kind.hash(topic, key);
    // The index holds seconds, hashes and repeated words: more is asked for until enough is found, or there is no more.
    let mut candidates = most.saturating_mul(2);
    loop {
        let mut offsets = index.query(hash, candidates, begin_ms.saturating_sub(INDEX_STEP_MS), end_ms).await?;
        let all = offsets.len() < candidates;
        let mut found = Vec::new();
        offsets.sort_unstable_by(|a, b| b.cmp(a));
        offsets.dedup();
        for phy in offsets {
            if found.len() == most {
                break;
            }
            if let Some(bytes) = read_match(shard, phy, kind, topic, key, (begin_ms, end_ms)).await? {
                found.push(bytes);
            }
        }
        if all || found.len() == most {
            found.reverse();
            return Ok(found);
        }
        candidates = candidates.saturating_mul(4);
    }
}

async fn read_match(
    shard: &Shard,
    phy: PhyOffset,
    kind: KeyKind,
    topic: &str,
    key: &str,
    (begin_ms, end_ms): (i64, i64),
) -> Result<Option<Vec<u8>>, StoreError> {
    let mut bytes = Vec::new();
    match shard.read_record(phy, 0, &mut bytes).await {
        Ok(()) => {}
        Err(StoreError::OutOfRange(_)) => return Ok(None),
        Err(StoreError::Corrupt { at, what }) => {
            warn!(%at, what, "a damaged record was left out of a key query");
            return Ok(None);
        }
        Err(e) => return Err(e),
    }
    match record::parse(&bytes, false) {
        Ok(Found::Record(r)) if (begin_ms..=end_ms).contains(&r.store_timestamp_ms) && kind.matches(&r, topic, key) => {
            Ok(Some(bytes))
        }
        _ => Ok(None),
    }
}

/// 321, on the owner.
pub async fn query_consume_queue(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = QueryConsumeQueue::decode(req.cmd)?;
    let queue = queue_key(shard, h.topic, h.queue_id).and_then(|key| shard.queues.get(key));
    let range = queue.as_ref().map_or(0..0, |queue| queue.cq.min().0..queue.cq.max().0);
    if shard.topic(h.topic).is_none() {
        let remark = format!("{}@{} is not exist!", h.queue_id, h.topic);
        return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
    }
    let index = u64::try_from(h.index).ok().filter(|index| range.contains(index));
    let (Some(queue), Some(index)) = (queue, index) else {
        let remark = format!("Index {} of {}-{} is not exist!", h.index, h.topic, h.queue_id);
        return Ok(Response { remark: Some(remark.into()), ..Response::ok() });
    };
    let count = u64::try_from(h.count).unwrap_or(0).min(ENTRIES_MAX).min(range.end - index) as usize;
    let mut entries = Vec::with_capacity(count);
    while entries.len() < count {
        let (had, from) = (entries.len(), entries.last().map_or(index, Entry::end));
        queue.cq.read(QueueOffset(from), count - had, &mut entries).await?;
        if entries.len() == had {
            break; // trimmed meanwhile
        }
    }
    let group = h.consumer_group.and_then(|group| shard.groups.borrow().get(group).cloned());
    let online = group.as_ref().and_then(|group| group.online.as_ref());
    let subscription = online.and_then(|online| online.subscriptions.get(h.topic));
    let filters = shard.group_filters.borrow().clone();
    let filter = h.consumer_group.and_then(|group| filters.get(h.topic, group));
    let mut queue_data: Vec<ConsumeQueueData> = entries.iter().map(|entry| shown(entry, subscription)).collect();
    queue
        .cq
        .units(&entries, |index, stored_ms, map| {
            let data = &mut queue_data[index];
            data.eval &= !filter.is_some_and(|filter| filter.excludes(stored_ms, map));
            show_unit(data, stored_ms, map);
        })
        .await?;
    let body = QueryConsumeQueueBody {
        subscription_data: subscription.map(|s| subscription_data(h.topic, s)),
        // Of the group that was named; none is said in Java's way.
        filter_data: h.consumer_group.map(|group| match (subscription, filter) {
            (Some(_), Some(filter)) => String::from_utf8_lossy(&fastjson::to_vec(&filter.data)).into_owned(),
            (Some(_), None) => "null".to_owned(),
            (None, _) => format!("{group}@{} is not online!", h.topic),
        }),
        max_queue_index: range.end as i64,
        min_queue_index: range.start as i64,
        queue_data,
    };
    Ok(Response::ok().body(fastjson::to_vec(&body)))
}

fn shown(entry: &Entry, subscription: Option<&Arc<Subscription>>) -> ConsumeQueueData {
    ConsumeQueueData {
        physic_offset: entry.phy.0 as i64,
        physic_size: entry.bytes as i32,
        tags_code: entry.tags_code,
        eval: subscription.is_some_and(|s| entry.tags().is_none_or(|tags_code| s.matches(tags_code))),
        msg: entry.tags().is_none().then(|| format!("Cq extend not exist!addr:{}", entry.unit)),
        ..ConsumeQueueData::default()
    }
}

/// Adds an entry's unit, in the form of Apache's: the bytes of the map as Java's signed ones, and its bits, the highest first, in lines of eight
/// bytes (checked on 5.5.0, `BitsArray.toString`).
fn show_unit(data: &mut ConsumeQueueData, stored_ms: i64, map: &[u8]) {
    let signed: Vec<String> = map.iter().map(|byte| (*byte as i8).to_string()).collect();
    let bytes = if map.is_empty() { String::new() } else { format!("\"filterBitMap\":[{}],", signed.join(",")) };
    let (size, tags_code) = (map.len() + 20, data.tags_code);
    let text = format!("{{{bytes}\"msgStoreTime\":{stored_ms},\"size\":{size},\"tagsCode\":{tags_code}}}");
    data.extend_data_json = Some(text);
    if !map.is_empty() {
        let lines = map.iter().enumerate().rev();
        let bits = lines.map(|(at, byte)| format!("{byte:08b}{}", if at % 8 == 0 { "\n" } else { "" }));
        data.bit_map = Some(bits.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::record;

    #[test]
    fn a_unit_is_shown_as_apaches() {
        let mut data = ConsumeQueueData { tags_code: 97, ..ConsumeQueueData::default() };
        show_unit(&mut data, 1234, &[1, 2, 255, 0]);
        let text = r#"{"filterBitMap":[1,2,-1,0],"msgStoreTime":1234,"size":24,"tagsCode":97}"#;
        assert_eq!(data.extend_data_json.as_deref(), Some(text));
        assert_eq!(data.bit_map.as_deref(), Some("00000000111111110000001000000001\n"));
        let mut data = ConsumeQueueData { tags_code: 97, ..ConsumeQueueData::default() };
        show_unit(&mut data, 1234, &[]);
        let text = r#"{"msgStoreTime":1234,"size":20,"tagsCode":97}"#;
        assert_eq!((data.extend_data_json.as_deref(), data.bit_map), (Some(text), None));
    }

    fn matches(kind: KeyKind, bytes: &[u8], topic: &str, key: &str) -> bool {
        match record::parse(bytes, true) {
            Ok(Found::Record(r)) => kind.matches(&r, topic, key),
            other => panic!("{other:?}"),
        }
    }

    /// Known fault S01: the crossed pairs have equal hashes.
    #[test]
    fn equal_hashes_do_not_match() {
        let first = record("AaTopic", "KEYS\u{1}Aa\u{2}");
        assert_eq!(KeyKind::Key.hash("AaTopic", "BB"), KeyKind::Key.hash("AaTopic", "Aa"));
        assert_eq!(KeyKind::Key.hash("BBTopic", "Aa"), KeyKind::Key.hash("AaTopic", "Aa"));
        assert!(matches(KeyKind::Key, &first, "AaTopic", "Aa"));
        assert!(!matches(KeyKind::Key, &first, "AaTopic", "BB"));
        assert!(!matches(KeyKind::Key, &first, "BBTopic", "Aa"));
    }

    /// Known fault S04.
    #[test]
    fn keys_are_words_and_kinds_are_apart() {
        let bytes = record("T", "KEYS\u{1} k1  k2 k1 \u{2}UNIQ_KEY\u{1}u1\u{2}TAGS\u{1}a || b\u{2}");
        for (kind, key, want) in [
            (KeyKind::Key, "k1", true),
            (KeyKind::Key, "k2", true),
            (KeyKind::Key, "u1", true),
            (KeyKind::Key, "k1 k2", false),
            (KeyKind::Key, "k", false),
            (KeyKind::Unique, "u1", true),
            (KeyKind::Unique, "k1", false),
            (KeyKind::Tag, "a || b", true),
            (KeyKind::Tag, "a", false),
        ] {
            assert_eq!(matches(kind, &bytes, "T", key), want, "{kind:?} {key}");
        }
        assert_eq!(KeyKind::Tag.hash("Norm", "TagA"), 1_472_600_413, "store-format sheet 5.2");
        assert_eq!(KeyKind::Key.hash("TopicTest", "key1"), 1_655_984_460, "store-format sheet 5.2");
    }

    #[test]
    fn the_index_type_decides_unless_the_old_switch_does() {
        for (index_type, unique, want) in [
            (None, false, KeyKind::Key),
            (None, true, KeyKind::Unique),
            (Some("K"), false, KeyKind::Key),
            (Some("U"), false, KeyKind::Unique),
            (Some("K"), true, KeyKind::Unique),
            (Some("T"), false, KeyKind::Tag),
        ] {
            assert_eq!(KeyKind::of(index_type, unique).expect("a kind"), want, "{index_type:?} {unique}");
        }
        assert!(KeyKind::of(Some("X"), false).is_err());
    }

    /// Known fault S03.
    #[test]
    fn counts_stay_between_nothing_and_the_cap() {
        for (asked, want) in [(-1, 0), (i32::MIN, 0), (0, 0), (1, 1), (64, 64), (65, 64), (i32::MAX, 64)] {
            assert_eq!(wanted(asked, KeyKind::Key, 64, 32), want);
            assert_eq!(wanted(asked, KeyKind::Unique, 64, 32), 32);
        }
    }
}
