//! A pop on its connection's shard: which queues are asked and in what order, and the answer. Source: behaviour sheet 9.2, wire-protocol
//! sheet 6.1.
use crate::control::attributes;
use crate::error::BrokerError;
use crate::handlers::offset::stopping;
use crate::placement::ShardId;
use crate::pop::take::{self, Ask, Mode, Part, Taken, Target};
use crate::requests::Origin;
use crate::shard::Shard;
use crate::shard::property_filter::PropertyFilter;
use crate::snapshot::{Group, Subscription, Topic};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tracing::error;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::message::{self, prop};
use uringmq_proto::names;
use uringmq_proto::receipt::{Infos, ORDER_REVIVE_QUEUE, Receipt, Source};
use uringmq_proto::record::{self, Found, NewRecord, Record};
use uringmq_store::StoreError;

const FOUND: &str = "FOUND";
/// The remark of an answer without messages, whatever the reason.
const NOTHING: &str = "NO_MESSAGE_IN_QUEUE";

/// A pop as it was asked for.
pub struct Job {
    pub origin: Origin,
    pub mode: Mode,
    /// Of an ordered pop.
    pub attempt: Option<Arc<str>>,
    pub group: Arc<Group>,
    pub topic: RefCell<Arc<Topic>>,
    /// Below 0: any.
    pub queue_id: i32,
    pub max: usize,
    pub from_min: bool,
    pub invisible_ms: i64,
    /// It waits for messages until then.
    pub until_ms: i64,
    pub filter: Arc<Subscription>,
    pub by_properties: PropertyFilter,
}

/// What a try of a pop came to.
pub struct Outcome {
    pub response: Response,
    pub found: bool,
}

impl Job {
    pub fn topic(&self) -> Arc<Topic> {
        self.topic.borrow().clone()
    }

    /// The topic may have got another configuration since it was asked, or be gone.
    pub fn refresh(&self, shard: &Shard) -> Result<(), BrokerError> {
        let name = self.topic().name.clone();
        let now = shard.topic(&name).ok_or_else(|| BrokerError::NoTopic(name.to_string()))?;
        *self.topic.borrow_mut() = now;
        Ok(())
    }

    /// The answer of a pop that is not even tried.
    pub fn nothing(&self, shard: &Shard) -> Response {
        let (ask, taken) = (self.ask(shard, shard.pop.next_turn()), Taken::default());
        self.response(&ask, Infos::default(), &taken, false)
    }

    fn ask(&self, shard: &Shard, turn: u32) -> Ask {
        let revive_queues = shard.config.borrow().revive_queues.max(1);
        Ask {
            origin: self.origin,
            mode: self.mode,
            attempt: self.attempt.clone(),
            group: self.group.clone(),
            filter: self.filter.clone(),
            by_properties: self.by_properties.clone(),
            from_min: self.from_min,
            pop_ms: shard.now_ms(),
            invisible_ms: self.invisible_ms,
            revive_queue: match self.mode {
                Mode::Ordered => ORDER_REVIVE_QUEUE,
                Mode::Pop | Mode::Peek => (turn % revive_queues) as i32,
            },
        }
    }

    fn response(&self, ask: &Ask, infos: Infos, taken: &Taken, found: bool) -> Response {
        let response = match (found, self.mode) {
            (true, _) => Response { remark: Some(FOUND.into()), ..Response::ok() },
            (false, Mode::Peek) => Response::err(code::PULL_NOT_FOUND, NOTHING),
            (false, _) => Response::err(code::POLLING_TIMEOUT, NOTHING),
        };
        if self.mode == Mode::Peek {
            return no_pop(response, taken.rest);
        }
        let response = response
            .with("popTime", ask.pop_ms)
            .with("invisibleTime", ask.invisible_ms)
            .with("reviveQid", ask.revive_queue)
            .with("restNum", taken.rest)
            .with("startOffsetInfo", infos.starts)
            .with("msgOffsetInfo", infos.offsets);
        match self.mode {
            Mode::Ordered => response.with("orderCountInfo", infos.counts),
            Mode::Pop | Mode::Peek => response,
        }
    }

    /// Whether this turn looks at the queues in the order of their priority.
    pub fn by_priority(&self, turn: u32) -> bool {
        let factor = || attributes::priority_factor(&self.group.config.attributes);
        self.mode == Mode::Pop && attributes::is_priority(&self.topic().config) && percent(turn) < factor()
    }

    /// The queues of a topic that are meant, from one of them on in a ring; `ranked` says whether from the last one down instead.
    fn queues_of(
        &self,
        topic: &Arc<Topic>,
        source: Source,
        turn: u32,
        ranked: Option<bool>,
    ) -> impl Iterator<Item = Target> {
        let count = topic.config.read_queue_nums.max(0) as u32;
        // A retry topic has queues of its own.
        let one = (self.queue_id >= 0 && source == Source::Topic).then_some(self.queue_id as u32);
        let ring = (0..count).map(move |nth| match ranked {
            Some(true) => count - 1 - nth,
            Some(false) => nth,
            None => (turn % count.max(1) + nth) % count,
        });
        let topic = topic.clone();
        ring.filter(move |queue| one.is_none_or(|one| one == *queue)).map(move |queue| Target {
            source,
            topic: topic.clone(),
            queue,
        })
    }

    /// All queues that are looked at, in the order in which they are. `retry_first`: the retry topics before the topic itself.
    pub fn targets(&self, shard: &Shard, turn: u32, retry_first: bool) -> Vec<Target> {
        let config = shard.config.borrow();
        let (topics, topic) = (shard.topics.borrow(), self.topic());
        let retry = |v2: bool, read: bool| {
            let found = read.then(|| topics.get(&names::pop_retry_topic(&self.group.name, &topic.name, v2)));
            found.flatten().cloned()
        };
        let ranked = self.by_priority(turn).then_some(config.priority_order_asc);
        let own = self.queues_of(&topic, Source::Topic, turn, ranked);
        // What is popped from a retry topic by its own name has no further one, and what is ordered is never retried elsewhere.
        let plain = !topic.name.starts_with(names::RETRY_PREFIX) && self.mode != Mode::Ordered;
        let v1 = retry(false, plain && config.pop_retry_v1);
        let v2 = retry(true, plain && config.pop_retry_v2);
        let v1 = v1.iter().flat_map(|topic| self.queues_of(topic, Source::RetryV1, turn, None));
        let v2 = v2.iter().flat_map(|topic| self.queues_of(topic, Source::RetryV2, turn, None));
        match retry_first {
            true => v1.chain(v2).chain(own).collect(),
            false => own.chain(v1).chain(v2).collect(),
        }
    }

    /// Tries it once.
    ///
    /// # Errors
    /// When nothing was taken because of one.
    pub async fn run(&self, shard: &Rc<Shard>) -> Result<Outcome, BrokerError> {
        let turn = shard.pop.next_turn();
        let ranked = self.by_priority(turn);
        let retry_first = {
            let config = shard.config.borrow();
            percent(turn) < if ranked { config.pop_retry_percent_for_priority } else { config.pop_retry_percent }
        };
        let ask = Arc::new(self.ask(shard, turn));
        let targets = self.targets(shard, turn, retry_first);
        let groups = if ranked { in_their_order(shard, targets) } else { by_owner(shard, targets) };
        let taken = take_all(shard, &ask, groups, self.max).await;
        match taken.failed {
            Some(e) if taken.parts.is_empty() => Err(e),
            _ => self.answer(shard, &ask, taken).await,
        }
    }

    async fn answer(&self, shard: &Rc<Shard>, ask: &Ask, taken: Taken) -> Result<Outcome, BrokerError> {
        let (mut infos, mut body) = (Infos::default(), Vec::new());
        for part in &taken.parts {
            self.write_part(shard, ask, part, &mut infos, &mut body).await?;
        }
        let bytes = shard.counters.get_bytes.get();
        shard.counters.get_bytes.set(bytes + body.len() as u64);
        let found = !body.is_empty();
        Ok(Outcome { response: self.response(ask, infos, &taken, found).body(body), found })
    }

    /// Appends the messages of one queue to the body. What is gone or damaged is left out; its check point settles it.
    async fn write_part(
        &self,
        shard: &Rc<Shard>,
        ask: &Ask,
        part: &Part,
        infos: &mut Infos,
        body: &mut Vec<u8>,
    ) -> Result<(), BrokerError> {
        let as_stored = match self.mode {
            Mode::Peek => true,
            Mode::Pop | Mode::Ordered => part.source == Source::Topic || shard.config.borrow().pop_gives_retry_topic,
        };
        let mut given = Vec::with_capacity(part.positions.len());
        let mut stored = Vec::new();
        for ((phy, bytes, _), offset) in part.positions.iter().zip(part.offsets()) {
            stored.clear();
            let out = if as_stored { &mut *body } else { &mut stored };
            match shard.read_record(*phy, *bytes, out).await {
                Ok(()) => {}
                Err(StoreError::OutOfRange(_)) => continue,
                Err(e @ StoreError::Corrupt { .. }) => {
                    error!(error = %e, "damaged record stepped over");
                    continue;
                }
                Err(e) => return Err(e.into()),
            }
            if !as_stored && !self.write_retried(shard, ask, part, offset, &stored, body) {
                continue;
            }
            given.push(offset);
        }
        if !given.is_empty() {
            infos.push(part.source, part.queue, part.start, given.into_iter());
            if let Some((counts, least)) = &part.counts {
                infos.push_counts(part.queue, counts.iter().map(|(offset, count)| (*offset, *count)), *least);
            }
        }
        Ok(())
    }

    /// A retried message comes under its first topic's name, with its handle; its queue and offset are the retry topic's.
    fn write_retried(
        &self,
        shard: &Shard,
        ask: &Ask,
        part: &Part,
        offset: i64,
        stored: &[u8],
        body: &mut Vec<u8>,
    ) -> bool {
        let Ok(Found::Record(record)) = record::parse(stored, false) else { return false };
        let receipt = Receipt {
            start_offset: part.start,
            pop_ms: ask.pop_ms,
            invisible_ms: ask.invisible_ms,
            revive_queue: ask.revive_queue,
            source: part.source,
            broker_name: &shard.config.borrow().broker_name,
            queue_id: part.queue as i32,
            queue_offset: offset,
        };
        encode_retried(&record, &self.topic().name, &receipt.text(), body)
    }
}

fn encode_retried(record: &Record<'_>, topic: &str, handle: &str, body: &mut Vec<u8>) -> bool {
    let mut properties = message::without(record.properties, &[prop::POP_CK, prop::CRC32]);
    message::push_property(&mut properties, prop::POP_CK, handle);
    let renamed = NewRecord {
        topic,
        queue_id: record.queue_id as u32,
        flag: record.flag,
        sys_flag: record.sys_flag,
        born_timestamp_ms: record.born_timestamp_ms,
        born_host: record.born_host,
        store_host: record.store_host,
        reconsume_times: record.reconsume_times,
        prepared_transaction_offset: record.prepared_transaction_offset,
        body: record.body,
        properties: &properties,
        more_properties: "",
    };
    let at = body.len();
    if record::encode(body, &renamed).is_err() {
        return false; // no room for the handle; it comes again with a new one, or rests with its group's operator
    }
    let (queue_offset, phy) = (record.queue_offset as u64, record.phy_offset as u64);
    record::patch(&mut body[at..], queue_offset, phy, record.store_timestamp_ms);
    true
}

/// A number below 100 for a turn; those of a hundred turns are spread evenly.
fn percent(turn: u32) -> u32 {
    turn.wrapping_mul(37) % 100
}

/// Asks owners for what each has of the targets, one after another.
async fn take_all(shard: &Rc<Shard>, ask: &Arc<Ask>, groups: Vec<(ShardId, Vec<Target>)>, want: usize) -> Taken {
    let mut all = Taken::default();
    for (owner, targets) in groups {
        let (ask, left) = (ask.clone(), want - all.count().min(want));
        let taken = shard.run_on(owner, move |owner| take::take(owner, ask, targets, left)).await;
        let Some(taken) = taken else {
            all.failed = Some(stopping().into());
            break;
        };
        all.parts.extend(taken.parts);
        all.rest += taken.rest;
        if taken.failed.is_some() {
            all.failed = taken.failed;
            break;
        }
    }
    all
}

/// Targets by their owners, the topic's own apart from the retry topics', otherwise in their order.
pub fn by_owner(shard: &Shard, targets: Vec<Target>) -> Vec<(ShardId, Vec<Target>)> {
    let mut groups: Vec<(ShardId, Vec<Target>)> = Vec::new();
    for target in targets {
        let owner = shard.owner(target.key());
        let known = groups.iter_mut().find(|(of, group)| *of == owner && group[0].source == target.source);
        match known {
            Some((_, group)) => group.push(target),
            None => groups.push((owner, vec![target])),
        }
    }
    groups
}

/// Targets by their owners, in their very order.
fn in_their_order(shard: &Shard, targets: Vec<Target>) -> Vec<(ShardId, Vec<Target>)> {
    let mut groups: Vec<(ShardId, Vec<Target>)> = Vec::new();
    for target in targets {
        let owner = shard.owner(target.key());
        match groups.last_mut() {
            Some((of, group)) if *of == owner => group.push(target),
            _ => groups.push((owner, vec![target])),
        }
    }
    groups
}

/// The fields of an answer that belongs to no pop.
pub fn no_pop(response: Response, rest: i64) -> Response {
    response.with("popTime", 0i64).with("invisibleTime", 0i64).with("reviveQid", 0).with("restNum", rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_retried_message_has_its_first_topic_and_a_handle() {
        let mut stored = testing::record("%RETRY%g_T", "TAGS\u{1}a\u{2}POP_CK\u{1}old\u{2}");
        record::patch(&mut stored, 7, 1000, 5);
        let Ok(Found::Record(before)) = record::parse(&stored, true) else { panic!("just encoded") };
        let mut body = b"before".to_vec();
        assert!(encode_retried(&before, "T", "7 1 2 3 1 b 0 7", &mut body));
        let Ok(Found::Record(after)) = record::parse(&body[6..], true) else { panic!("a record") };
        assert_eq!((after.topic, after.queue_offset, after.phy_offset, after.store_timestamp_ms), ("T", 7, 1000, 5));
        assert_eq!(after.properties, "TAGS\u{1}a\u{2}POP_CK\u{1}7 1 2 3 1 b 0 7\u{2}");
        assert_eq!(after.body, before.body);
    }
}
