//! A pop on the owner of queues. Of each queue one pop of a group is under way at a time: it looks from the group's offset on, stores the
//! check point of what it found, and only then moves the offset. Source: behaviour sheet 9.2.
use crate::error::BrokerError;
use crate::handlers::offset::base_at;
use crate::pop::{Busy, count};
use crate::requests::Origin;
use crate::shard::Shard;
use crate::shard::property_filter::PropertyFilter;
use crate::shard::pulls::{Look, Positions, PullAsk, PullStatus, SysFlags};
use crate::snapshot::{Group, Subscription, Topic};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use uringmq_proto::body::pop::CheckPoint;
use uringmq_proto::receipt::Source;
use uringmq_proto::types::{QueueKey, QueueOffset};
use uringmq_store::StoreError;
use uringmq_store::consume_queue::Form;

/// Looks at one queue, should the group's offset lie outside it.
const LOOKS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pop,
    /// In the order of the queue: nothing more of it until what was given is settled. Has no check point.
    Ordered,
    /// Looks and changes nothing.
    Peek,
}

/// What one pop asks of every queue.
pub struct Ask {
    pub origin: Origin,
    pub mode: Mode,
    /// Of an ordered pop.
    pub attempt: Option<Arc<str>>,
    pub group: Arc<Group>,
    pub filter: Arc<Subscription>,
    pub by_properties: PropertyFilter,
    /// A group that never popped a queue begins at its first message, else at its last.
    pub from_min: bool,
    pub pop_ms: i64,
    pub invisible_ms: i64,
    pub revive_queue: i32,
}

/// A queue to be popped.
#[derive(Clone)]
pub struct Target {
    pub source: Source,
    pub topic: Arc<Topic>,
    pub queue: u32,
}

impl Target {
    pub fn key(&self) -> QueueKey {
        QueueKey { topic: self.topic.id, queue: self.queue }
    }
}

/// What one queue gave.
pub struct Part {
    pub source: Source,
    pub queue: u32,
    /// Where the pop began to look.
    pub start: i64,
    pub positions: Positions,
    /// In the records there.
    pub messages: u64,
    /// Of an ordered pop: how often each was given before, and the least when all were.
    pub counts: Option<(BTreeMap<i64, i32>, i32)>,
}

impl Part {
    /// Of each message.
    pub fn offsets(&self) -> impl Iterator<Item = i64> {
        self.positions.iter().map(|(_, _, nth)| self.start + i64::from(*nth))
    }
}

#[derive(Default)]
pub struct Taken {
    pub parts: Vec<Part>,
    /// Messages behind what was taken.
    pub rest: i64,
    /// What went wrong with a queue; the parts are good all the same.
    pub failed: Option<BrokerError>,
}

impl Taken {
    pub fn count(&self) -> usize {
        self.parts.iter().map(|part| part.messages as usize).sum()
    }
}

/// Takes up to `want` messages from these queues, in their order. On their owner.
pub async fn take(shard: Rc<Shard>, ask: Arc<Ask>, targets: Vec<Target>, want: usize) -> Taken {
    let mut taken = Taken::default();
    for target in targets {
        let left = want - taken.count().min(want);
        let outcome = match left {
            0 => shard.pop_rest(&ask, &target).await,
            left => shard.take_one(&ask, &target, left, &mut taken.parts).await,
        };
        match outcome {
            Ok(rest) => taken.rest += rest,
            Err(e) => {
                taken.failed = Some(e);
                break;
            }
        }
    }
    taken
}

impl Shard {
    /// Messages behind the group's offset.
    async fn pop_rest(self: &Rc<Self>, ask: &Ask, target: &Target) -> Result<i64, BrokerError> {
        let offset = self.pop_offset(ask, target).await?;
        Ok(self.behind(target.key(), offset))
    }

    /// Until when an ordered pop gets nothing from this queue.
    fn blocked(&self, ask: &Ask, key: QueueKey) -> Option<i64> {
        self.pop.orders.blocked_to_ms(key, &ask.group.name, ask.attempt.as_deref(), ask.pop_ms)
    }

    /// When the group, which has too much of this queue in hand, may get more; `None`: now.
    pub fn pop_full_to_ms(&self, key: QueueKey, group: &Arc<str>) -> Option<i64> {
        let config = self.config.borrow();
        match config.pop_limits_in_flight {
            true => {
                let limit = usize::try_from(config.pop_in_flight_max).unwrap_or(0);
                self.pop.in_flight.full_to_ms(key, group, limit, self.now_ms())
            }
            false => None,
        }
    }

    fn behind(&self, key: QueueKey, offset: i64) -> i64 {
        self.queues.get(key).map_or(0, |queue| (queue.cq.max().0 as i64 - offset).max(0))
    }

    /// Takes up to `want` messages from a queue; what is left behind them.
    async fn take_one(
        self: &Rc<Self>,
        ask: &Ask,
        target: &Target,
        want: usize,
        parts: &mut Vec<Part>,
    ) -> Result<i64, BrokerError> {
        let (key, group) = (target.key(), &ask.group.name);
        let _busy = match ask.mode {
            Mode::Peek => None,
            Mode::Pop | Mode::Ordered => match Busy::take(self, key, group) {
                Some(busy) => Some(busy),
                None => return self.pop_rest(ask, target).await,
            },
        };
        let mut offset = self.pop_offset(ask, target).await?;
        if ask.mode != Mode::Peek {
            if let Some(to) = self.offsets.take_reset(key, group) {
                self.pop.orders.forget(key, group);
                offset = to;
            } else if self.offsets.get(key, group).is_none() {
                self.offsets.set(key, group, offset);
            }
        }
        match ask.mode {
            Mode::Ordered if self.blocked(ask, key).is_some() => return Ok(0),
            Mode::Pop if self.pop_full_to_ms(key, group).is_some() => return Ok(self.behind(key, offset)),
            Mode::Pop | Mode::Ordered | Mode::Peek => {}
        }
        let first = offset;
        for _ in 0..LOOKS {
            offset = self.whole(key, offset).await?;
            let look = self.look(&pull_of(ask, key, offset, want)).await?;
            let outside = matches!(
                look.status,
                PullStatus::OffsetTooSmall | PullStatus::OffsetOverflowBadly | PullStatus::OffsetFoundNull
            );
            let (start, next, status) = (offset, look.next, look.status);
            if status == PullStatus::Found {
                self.note_taken(ask, target, start, look, parts).await?;
            }
            let moves = outside || matches!(status, PullStatus::NoMatchedMessage | PullStatus::MessageWasRemoving);
            if moves || status == PullStatus::Found {
                offset = next;
                match ask.mode {
                    Mode::Peek => {}
                    // The first of what is given is not settled.
                    Mode::Ordered if status == PullStatus::Found => drop(self.offsets.commit(key, group, start)),
                    Mode::Pop | Mode::Ordered => drop(self.offsets.commit(key, group, next)),
                }
            }
            if !outside {
                break;
            }
        }
        // What is only looked at is left there.
        Ok(self.behind(key, if ask.mode == Mode::Peek { first } else { offset }))
    }

    /// Stores the check point of what was found; it is taken then.
    async fn note_taken(
        &self,
        ask: &Ask,
        target: &Target,
        start: i64,
        look: Look,
        parts: &mut Vec<Part>,
    ) -> Result<(), BrokerError> {
        let (source, queue) = (target.source, target.queue);
        let (positions, messages) = (look.positions, look.messages);
        let mut part = Part { source, queue, start, positions, messages, counts: None };
        if ask.mode == Mode::Ordered {
            let (of, offsets) = ((target.key(), &ask.group.name), part.offsets().collect());
            let counts = self.pop.orders.give(of, ask.attempt.as_deref(), (ask.pop_ms, ask.invisible_ms), offsets);
            part.counts = Some(counts);
            count(&self.pop.popped, part.positions.len());
        }
        if ask.mode == Mode::Pop {
            let check_point = CheckPoint {
                broker_name: self.config.borrow().broker_name.clone(),
                group: ask.group.name.to_string(),
                diffs: part.positions.iter().map(|(_, _, nth)| *nth as i32).collect(),
                invisible_ms: ask.invisible_ms,
                count: part.positions.len() as i32,
                pop_ms: ask.pop_ms,
                queue_id: target.queue as i32,
                revive_ms: ask.pop_ms.saturating_add(ask.invisible_ms),
                start_offset: start,
                topic: target.topic.name.to_string(),
                ..CheckPoint::default()
            };
            let gathered = self.gather_check_point(ask.revive_queue, &check_point)?;
            self.push_appends();
            gathered.stored().await?;
            count(&self.pop.popped, part.positions.len());
            if self.config.borrow().pop_limits_in_flight {
                let of = (target.key(), &ask.group.name);
                self.pop.in_flight.note(of.0, of.1, check_point.visible_ms(), part.offsets());
            }
        }
        self.counters.get_messages.set(self.counters.get_messages.get() + messages);
        parts.push(part);
        Ok(())
    }

    /// The offset where the record begins that holds this one.
    async fn whole(&self, key: QueueKey, offset: i64) -> Result<i64, BrokerError> {
        match self.queues.get(key).filter(|queue| queue.cq.form() == Form::Batch) {
            Some(queue) => Ok(base_at(&queue, offset.max(0) as u64).await?.map_or(offset, |base| base as i64)),
            None => Ok(offset),
        }
    }

    /// Where the group goes on, or would begin. Changes nothing.
    async fn pop_offset(&self, ask: &Ask, target: &Target) -> Result<i64, BrokerError> {
        let key = target.key();
        if let Some(offset) = self.offsets.get(key, &ask.group.name) {
            return Ok(offset);
        }
        let Some(queue) = self.queues.get(key) else { return Ok(0) };
        let (min, max) = (queue.cq.min().0, queue.cq.max().0);
        if ask.from_min || target.source != Source::Topic {
            return Ok(min as i64);
        }
        // The last message, unless the queue is young: its first one is in memory, by Java's measure.
        let mut first = Vec::new();
        if min == 0 && max > 0 && self.config.borrow().pop_from_first_in_memory {
            queue.cq.read(QueueOffset(0), 1, &mut first).await.map_err(|e: StoreError| BrokerError::from(e))?;
        }
        let config = self.config.borrow();
        match first.first() {
            Some(entry) if self.is_hot(&config, entry.phy) => Ok(0),
            _ => Ok(max.saturating_sub(1) as i64),
        }
    }
}

fn pull_of(ask: &Ask, key: QueueKey, offset: i64, want: usize) -> PullAsk {
    PullAsk {
        origin: ask.origin,
        key,
        group: ask.group.clone(),
        offset,
        max_count: want as u32,
        filter: ask.filter.clone(),
        by_properties: ask.by_properties.clone(),
        suspend_ms: None,
        commit: None,
        delta: None,
        sys_flags: SysFlags { topic: 0, group: 0 },
    }
}
