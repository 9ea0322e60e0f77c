//! Static topics: the queues that clients see are logical, and a mapping says of each which queues of which brokers it was made of, one
//! after another; the last one is written to. Plain state of the control role; `topicQueueMapping.json`. Source: behaviour sheet 11.2;
//! store-format sheet 8.3; checked against Apache's broker 5.5.0.
use hashbrown::HashMap;
use std::collections::BTreeMap;
use thiserror::Error;
use uringmq_proto::body::BareMap;
use uringmq_proto::body::mapping::{
    LogicQueueMappingItem, TopicQueueMappingDetail, TopicQueueMappingFile, TopicQueueMappingInfo,
};
use uringmq_proto::body::topic::DataVersion;
use uringmq_proto::fastjson;

/// Why a mapping is not taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MappingError {
    #[error("the mapping is of topic {found}, and topic {wanted} is asked for")]
    Topic { wanted: String, found: String },
    #[error("Can't accept data with small epoch {new} < {known}")]
    Epoch { new: i64, known: i64 },
    #[error("the mapping's queue {queue} is none of its {total} queues")]
    Queue { queue: i32, total: i32 },
    #[error("the mapping's queue {queue} has no item")]
    Empty { queue: i32 },
    #[error("The gen does not increase monotonically")]
    Generation,
    #[error("The max logic offset does not increase monotonically: queue {queue}")]
    Offsets { queue: i32 },
    #[error("the mapping's queue {queue} has physical queue {physical} or an offset below 0")]
    Negative { queue: i32, physical: i32 },
}

/// Where messages of a logical queue are on this broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub queue: u32,
    /// What the logical offsets are more than the physical ones.
    pub delta: i64,
}

/// A physical queue that a logical one is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// `None`: this one.
    pub broker: Option<String>,
    pub place: Place,
    /// Behind its last message, as a logical offset; `None` while it grows.
    pub end: Option<i64>,
}

/// Where an offset of a logical queue is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Here(Place),
    /// Between two of its queues: nothing is there; it goes on at this offset.
    Behind(i64),
    /// With another broker.
    Elsewhere(Part),
}

/// One topic's, as every shard sees it.
#[derive(Clone, Debug)]
pub struct Mapping {
    queues: BareMap<i32, Vec<LogicQueueMappingItem>>,
    broker: String,
}

/// By topic. Empty on a broker without static topics.
pub type MappingTable = HashMap<String, Mapping>;

impl Mapping {
    fn place(&self, item: &LogicQueueMappingItem) -> Option<Place> {
        let queue = u32::try_from(item.queue_id).ok().filter(|_| item.bname == self.broker)?;
        Some(Place { queue, delta: item.delta() })
    }

    /// Where a logical queue is written to; `None` when not here.
    pub fn leader(&self, queue: i32) -> Option<Place> {
        self.place(self.queues.get(&queue)?.last()?)
    }

    /// The logical queues that are written to here.
    pub fn led(&self) -> impl Iterator<Item = (i32, Place)> {
        self.queues.iter().filter_map(|(queue, items)| Some((*queue, self.place(items.last()?)?)))
    }

    fn part(&self, item: &LogicQueueMappingItem) -> Option<Part> {
        let place = Place { queue: u32::try_from(item.queue_id).ok()?, delta: item.delta() };
        let broker = (item.bname != self.broker).then(|| item.bname.clone());
        Some(Part { broker, place, end: item.end() })
    }

    /// What a logical queue is made of, the oldest first.
    pub fn parts(&self, queue: i32) -> impl DoubleEndedIterator<Item = Part> {
        self.queues.get(&queue).into_iter().flatten().filter_map(|item| self.part(item))
    }

    /// Where an offset of a logical queue is; `None` when there is no such queue.
    pub fn at(&self, queue: i32, offset: i64) -> Option<Found> {
        let items = self.queues.get(&queue)?;
        let index = items.iter().rposition(|item| item.logic_offset <= offset).unwrap_or(0);
        let item = items.get(index)?;
        if let Some(next) = items.get(index + 1)
            && item.end().is_some_and(|end| offset >= end)
        {
            return Some(Found::Behind(next.logic_offset));
        }
        Some(match self.place(item) {
            Some(place) => Found::Here(place),
            None => Found::Elsewhere(self.part(item)?),
        })
    }
}

#[derive(Debug, Default)]
pub struct Mappings {
    file: TopicQueueMappingFile,
}

/// `topicQueueMapping.json`, or why it is not one.
pub fn parse_file(text: &[u8]) -> Result<TopicQueueMappingFile, String> {
    uringmq_proto::body::parse(text).map_err(|e| e.to_string())
}

impl Mappings {
    pub fn load(file: Option<TopicQueueMappingFile>) -> Self {
        Mappings { file: file.unwrap_or_default() }
    }

    pub fn file_text(&self) -> Vec<u8> {
        fastjson::to_vec_pretty(&self.file)
    }

    pub fn version(&self) -> DataVersion {
        self.file.data_version
    }

    pub fn get(&self, topic: &str) -> Option<&TopicQueueMappingDetail> {
        self.file.topic_queue_mapping_info_map.get(topic)
    }

    pub fn all(&self) -> &BTreeMap<String, TopicQueueMappingDetail> {
        &self.file.topic_queue_mapping_info_map
    }

    /// # Errors
    /// [`MappingError`]; an older epoch unless it is forced.
    pub fn check(&self, topic: &str, detail: &TopicQueueMappingDetail, force: bool) -> Result<(), MappingError> {
        if detail.topic != topic {
            return Err(MappingError::Topic { wanted: topic.to_owned(), found: detail.topic.clone() });
        }
        if let Some(known) = self.get(topic).filter(|known| !force && detail.epoch < known.epoch) {
            return Err(MappingError::Epoch { new: detail.epoch, known: known.epoch });
        }
        for (queue, items) in detail.hosted_queues.iter() {
            check_queue(*queue, items, detail.total_queues)?;
        }
        Ok(())
    }

    /// Takes a mapping that was checked.
    pub fn put(&mut self, detail: TopicQueueMappingDetail, now_ms: i64) {
        self.file.topic_queue_mapping_info_map.insert(detail.topic.clone(), detail);
        self.step(now_ms);
    }

    /// Takes a master's, as Apache's slave does, whole and by its version; whether that was another one.
    pub fn copy(&mut self, version: DataVersion, details: BTreeMap<String, TopicQueueMappingDetail>) -> bool {
        if self.file.data_version == version {
            return false;
        }
        self.file.data_version = version;
        self.file.topic_queue_mapping_info_map = details;
        true
    }

    /// The topics are gone; whether one of them was static.
    pub fn remove<'a>(&mut self, topics: impl Iterator<Item = &'a str>, now_ms: i64) -> bool {
        let table = &mut self.file.topic_queue_mapping_info_map;
        let removed = topics.filter(|topic| table.remove(*topic).is_some()).count() > 0;
        if removed {
            self.step(now_ms);
        }
        removed
    }

    fn step(&mut self, now_ms: i64) {
        let version = &mut self.file.data_version;
        *version = version.next(version.state_version, now_ms);
    }

    /// What every shard gets to see.
    pub fn snapshot(&self, broker: &str) -> MappingTable {
        let mapping = |detail: &TopicQueueMappingDetail| Mapping {
            queues: detail.hosted_queues.clone(),
            broker: broker.to_owned(),
        };
        self.all().iter().map(|(topic, detail)| (topic.clone(), mapping(detail))).collect()
    }

    /// What a NameServer is told of a topic: where its logical queues are written to on this broker.
    pub fn info(&self, topic: &str, broker: &str) -> Option<TopicQueueMappingInfo> {
        let detail = self.get(topic)?;
        let led = detail.hosted_queues.iter().filter_map(|(queue, items)| {
            let last = items.last().filter(|item| item.bname == broker)?;
            Some((*queue, last.queue_id))
        });
        Some(TopicQueueMappingInfo {
            bname: detail.bname.clone(),
            curr_id_map: led.collect(),
            dirty: detail.dirty,
            epoch: detail.epoch,
            scope: detail.scope.clone(),
            topic: detail.topic.clone(),
            total_queues: detail.total_queues,
        })
    }
}

fn check_queue(queue: i32, items: &[LogicQueueMappingItem], total: i32) -> Result<(), MappingError> {
    if queue < 0 || queue >= total {
        return Err(MappingError::Queue { queue, total });
    }
    if items.is_empty() {
        return Err(MappingError::Empty { queue });
    }
    if let Some(item) = items.iter().find(|i| i.queue_id < 0 || i.start_offset < 0 || i.logic_offset < 0) {
        return Err(MappingError::Negative { queue, physical: item.queue_id });
    }
    if items.windows(2).any(|pair| pair[0].generation >= pair[1].generation) {
        return Err(MappingError::Generation);
    }
    let most = |item: &LogicQueueMappingItem| item.end().unwrap_or(item.logic_offset).max(item.logic_offset);
    match items.windows(2).all(|pair| most(&pair[0]) < most(&pair[1]) && pair[0].end().is_some()) {
        true => Ok(()),
        false => Err(MappingError::Offsets { queue }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(
        bname: &str,
        queue_id: i32,
        logic_offset: i64,
        (start_offset, end_offset): (i64, i64),
    ) -> LogicQueueMappingItem {
        LogicQueueMappingItem {
            bname: bname.into(),
            queue_id,
            logic_offset,
            start_offset,
            end_offset,
            ..LogicQueueMappingItem::default()
        }
    }

    fn detail(epoch: i64, mut queues: Vec<Vec<LogicQueueMappingItem>>) -> TopicQueueMappingDetail {
        for items in &mut queues {
            (0..).zip(items).for_each(|(generation, item)| item.generation = generation);
        }
        TopicQueueMappingDetail {
            bname: "a".into(),
            epoch,
            topic: "T".into(),
            total_queues: queues.len() as i32,
            hosted_queues: (0..).zip(queues).collect(),
            ..TopicQueueMappingDetail::default()
        }
    }

    fn mappings(queues: Vec<Vec<LogicQueueMappingItem>>) -> Mappings {
        let mut mappings = Mappings::default();
        let detail = detail(3, queues);
        mappings.check("T", &detail, false).unwrap();
        mappings.put(detail, 5);
        mappings
    }

    #[test]
    fn an_offset_is_where_its_item_says() {
        let moved = vec![item("b", 4, 0, (0, 10)), item("a", 1, 100, (7, 27)), item("a", 2, 1000, (0, -1))];
        let mappings = mappings(vec![moved, vec![item("b", 0, 0, (0, -1))]]);
        let table = mappings.snapshot("a");
        let mapping = &table["T"];
        assert_eq!(mapping.leader(0), Some(Place { queue: 2, delta: 1000 }));
        assert_eq!((mapping.leader(1), mapping.leader(2)), (None, None));
        let theirs = Part { broker: Some("b".into()), place: Place { queue: 4, delta: 0 }, end: Some(10) };
        let parts: Vec<Part> = mapping.parts(0).collect();
        assert_eq!(parts[0], theirs);
        let ours: Vec<_> = parts[1..].iter().map(|part| (part.broker.clone(), part.place.queue, part.end)).collect();
        assert_eq!(ours, [(None, 1, Some(120)), (None, 2, None)]);
        assert_eq!(mapping.led().map(|(queue, _)| queue).collect::<Vec<_>>(), [0]);
        let elsewhere = || Some(Found::Elsewhere(theirs.clone()));
        let second = Some(Found::Here(Place { queue: 1, delta: 93 }));
        for (offset, want) in [
            (-1, elsewhere()),
            (9, elsewhere()),
            (10, Some(Found::Behind(100))),
            (100, second.clone()),
            (119, second),
            (120, Some(Found::Behind(1000))),
            (5000, Some(Found::Here(Place { queue: 2, delta: 1000 }))),
        ] {
            assert_eq!(mapping.at(0, offset), want, "{offset}");
        }
        assert_eq!(mapping.at(7, 0), None);
        let info = mappings.info("T", "a").unwrap();
        assert_eq!((info.curr_id_map.len(), info.curr_id_map.get(&0), info.total_queues), (1, Some(&2), 2));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let known = mappings(vec![vec![item("a", 0, 0, (0, -1))]]);
        let check = |topic: &str, detail: &TopicQueueMappingDetail| known.check(topic, detail, false).unwrap_err();
        let one = vec![vec![item("a", 0, 0, (0, -1))]];
        assert_eq!(check("T", &detail(2, one.clone())), MappingError::Epoch { new: 2, known: 3 });
        assert_eq!(known.check("T", &detail(2, one.clone()), true), Ok(()));
        assert!(matches!(check("S", &detail(3, one)), MappingError::Topic { .. }));
        assert_eq!(check("T", &detail(3, vec![vec![]])), MappingError::Empty { queue: 0 });
        let queues = |items| detail(3, vec![items]);
        let twice = queues(vec![item("a", 0, 0, (0, 5)), item("a", 1, 5, (0, -1))]);
        assert_eq!(check("T", &twice), MappingError::Offsets { queue: 0 });
        let mut same = queues(vec![item("a", 0, 0, (0, 5)), item("a", 1, 9, (0, -1))]);
        same.hosted_queues.get_mut(&0).unwrap()[1].generation = 0;
        assert_eq!(check("T", &same), MappingError::Generation);
        assert!(matches!(check("T", &queues(vec![item("a", -1, 0, (0, -1))])), MappingError::Negative { .. }));
        let beyond = TopicQueueMappingDetail { total_queues: 0, ..queues(vec![item("a", 0, 0, (0, -1))]) };
        assert_eq!(check("T", &beyond), MappingError::Queue { queue: 0, total: 0 });
    }

    #[test]
    fn a_restart_knows_the_mappings() {
        let mut mappings = mappings(vec![vec![item("a", 0, 9, (0, -1))]]);
        let again = Mappings::load(Some(parse_file(&mappings.file_text()).unwrap()));
        assert_eq!((again.all(), again.version()), (mappings.all(), mappings.version()));
        assert!(!mappings.remove(["S"].into_iter(), 9) && mappings.remove(["T", "S"].into_iter(), 9));
        assert!(mappings.all().is_empty() && mappings.version().counter == again.version().counter + 1);
        assert!(parse_file(b"[]").is_err());
    }
}
