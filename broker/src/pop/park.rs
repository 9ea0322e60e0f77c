//! Pops that wait for messages, on their connection's shard. Those of one topic, group and queue stand in a line that one task serves: it tries
//! the first, and when nothing is found asks the owners of the queues to ring when something comes. An owner tells at once what is there
//! already, so nothing falls between a look and the ring. Source: behaviour sheet 9.3, 9.10.
use crate::error::BrokerError;
use crate::mesh::{Event, Msg};
use crate::placement::ShardId;
use crate::pop::ask::{Job, by_owner};
use crate::pop::take::{Mode, Target};
use crate::requests::Origin;
use crate::responses;
use crate::shard::Shard;
use crate::shard::queues::Queue;
use futures_lite::future;
use glommio::timer::Timer;
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uringmq_proto::command::Response;
use uringmq_proto::types::{QueueKey, TopicId};

/// A line is looked at again after so long, whatever rings.
const RECHECK_MS: i64 = 2000;
/// After tries in vain although messages were said to be there.
const PAUSE_MS: i64 = 50;
const VAIN_TRIES: u32 = 2;

/// A request that waits.
pub enum Waiter {
    Pop(Job),
    /// 200054: asks only whether there is something to pop.
    Notify(Job),
}

impl Waiter {
    pub fn job(&self) -> &Job {
        match self {
            Waiter::Pop(job) | Waiter::Notify(job) => job,
        }
    }

    /// The answer when its time is over.
    async fn expired(&self, shard: &Rc<Shard>, stops: bool) -> Response {
        match self {
            Waiter::Pop(job) if stops => job.nothing(shard),
            Waiter::Pop(job) => match job.run(shard).await {
                Ok(outcome) => outcome.response,
                Err(e) => refused(&e),
            },
            Waiter::Notify(_) => notified(false, false),
        }
    }
}

pub fn notified(has_message: bool, full: bool) -> Response {
    Response::ok().with("hasMsg", has_message).with("pollingFull", full)
}

fn refused(e: &BrokerError) -> Response {
    crate::pop::ask::no_pop(responses::of_error(e), 0)
}

/// Topic, group, queue (-1: any).
type LineKey = (Arc<str>, Arc<str>, i32);

struct Line {
    key: LineKey,
    waiting: RefCell<VecDeque<Rc<Waiter>>>,
    rung: Event,
}

#[derive(Default)]
pub struct Parked {
    lines: RefCell<HashMap<LineKey, Rc<Line>>>,
    /// Lines by the topics that they wait for.
    by_topic: RefCell<HashMap<TopicId, Vec<Rc<Line>>>>,
    total: Cell<usize>,
}

/// What the owners say of a line's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Watched {
    /// There is something to pop.
    available: bool,
    /// There may be then.
    again_ms: Option<i64>,
}

impl Watched {
    fn add(&mut self, other: Watched) {
        self.available |= other.available;
        self.again_ms = self.again_ms.into_iter().chain(other.again_ms).min();
    }
}

impl Shard {
    /// Has a request wait; false when too many do (`maxPopPollingSize`, `popPollingSize`; each shard counts its own).
    pub fn park(self: &Rc<Self>, waiter: Rc<Waiter>) -> bool {
        let parked = &self.pop.parked;
        let key: LineKey = {
            let job = waiter.job();
            (job.topic().name.clone(), job.group.name.clone(), job.queue_id.max(-1))
        };
        let (total_max, line_max) = {
            let config = self.config.borrow();
            (config.pop_parked_max, config.pop_parked_per_line_max)
        };
        let known = parked.lines.borrow().get(&key).cloned();
        let full = known.as_ref().is_some_and(|line| line.waiting.borrow().len() > line_max);
        if full || parked.total.get() >= total_max {
            return false;
        }
        parked.total.set(parked.total.get() + 1);
        if let Some(line) = known {
            line.waiting.borrow_mut().push_back(waiter);
            line.rung.set();
            return true;
        }
        let line = Rc::new(Line { key: key.clone(), waiting: RefCell::new([waiter].into()), rung: Event::default() });
        parked.lines.borrow_mut().insert(key, line.clone());
        glommio::spawn_local(serve(self.clone(), line)).detach();
        true
    }

    /// How many wait on this shard.
    pub fn parked(&self, topic: &Arc<str>, group: &str, queue_id: i32) -> usize {
        let key = (topic.clone(), Arc::from(group), queue_id.max(-1));
        self.pop.parked.lines.borrow().get(&key).map_or(0, |line| line.waiting.borrow().len())
    }

    /// On a queue's owner: something changed for whoever waits for it.
    pub fn ring_pollers(&self, key: QueueKey) {
        if let Some(queue) = self.queues.get(key) {
            self.ring_pollers_of(&queue);
        }
    }

    pub fn ring_pollers_of(&self, queue: &Queue) {
        for to in queue.pollers.take() {
            let topic = queue.key.topic;
            if to == self.id {
                self.rung(Some(topic));
            } else {
                self.mesh.push(to, Msg::Run(Box::new(move |shard: Rc<Shard>| shard.rung(Some(topic)))));
            }
        }
    }

    /// On the waiters' shard: a queue of this topic has news; `None`: the topics themselves have.
    pub fn rung(&self, topic: Option<TopicId>) {
        match topic {
            Some(topic) => {
                if let Some(lines) = self.pop.parked.by_topic.borrow().get(&topic) {
                    lines.iter().for_each(|line| line.rung.set());
                }
            }
            None => self.pop.parked.lines.borrow().values().for_each(|line| line.rung.set()),
        }
    }

    fn unpark(&self, count: usize) {
        let total = &self.pop.parked.total;
        total.set(total.get() - count);
    }

    fn answer_waiter(&self, origin: Origin, response: Response) {
        self.unpark(1);
        self.respond(origin, response);
    }
}

/// Serves a line until nobody stands in it.
async fn serve(shard: Rc<Shard>, line: Rc<Line>) {
    let mut watching = Vec::new();
    let (mut try_first, mut vain) = (false, 0);
    loop {
        answer_overdue(&shard, &line).await;
        if line.waiting.borrow().is_empty() {
            break;
        }
        if try_first {
            try_first = try_one(&shard, &line).await;
            vain = if try_first { 0 } else { vain + 1 };
            continue;
        }
        let watched = watch(&shard, &line, &mut watching).await;
        if watched.available && vain < VAIN_TRIES {
            try_first = true;
            continue;
        }
        let pause_ms = if watched.available { PAUSE_MS } else { RECHECK_MS };
        let first_ms = line.waiting.borrow().iter().map(|waiter| waiter.job().until_ms).min();
        let next_ms = first_ms.into_iter().chain(watched.again_ms).min();
        let wait_ms = next_ms.map_or(0, |until| until - shard.now_ms()).clamp(1, pause_ms);
        let timer = async {
            Timer::new(Duration::from_millis(wait_ms as u64)).await;
        };
        future::or(future::or(line.rung.wait(), timer), shard.doors.closed()).await;
        (try_first, vain) = (true, 0);
    }
    shard.pop.parked.lines.borrow_mut().remove(&line.key);
    unwatch(&shard, &line, &watching);
}

/// Answers those whose time is over, or all when the broker stops; forgets those whose connection is gone.
async fn answer_overdue(shard: &Rc<Shard>, line: &Line) {
    let (now_ms, stops) = (shard.now_ms(), shard.doors.is_closed());
    let mut overdue = Vec::new();
    {
        let mut waiting = line.waiting.borrow_mut();
        let before = waiting.len();
        waiting.retain(|waiter| shard.conns.get(waiter.job().origin.conn).is_some());
        shard.unpark(before - waiting.len());
        for _ in 0..waiting.len() {
            let Some(waiter) = waiting.pop_front() else { break };
            match stops || waiter.job().until_ms <= now_ms {
                true => overdue.push(waiter),
                false => waiting.push_back(waiter),
            }
        }
    }
    for waiter in overdue {
        let response = waiter.expired(shard, stops).await;
        shard.answer_waiter(waiter.job().origin, response);
    }
}

/// Tries the first in the line; whether it is answered. Only the line's own task takes from it.
async fn try_one(shard: &Rc<Shard>, line: &Line) -> bool {
    let Some(waiter) = line.waiting.borrow().front().cloned() else { return false };
    let answer = match &*waiter {
        Waiter::Pop(job) => match job.refresh(shard) {
            Err(e) => Some(refused(&e)),
            Ok(()) => match job.run(shard).await {
                Ok(outcome) => outcome.found.then_some(outcome.response),
                Err(e) => Some(refused(&e)),
            },
        },
        Waiter::Notify(job) => match available(shard, job).await {
            Some(true) => Some(notified(true, false)),
            Some(false) => None,
            None => Some(notified(false, false)),
        },
    };
    let Some(response) = answer else { return false };
    line.waiting.borrow_mut().pop_front();
    shard.answer_waiter(waiter.job().origin, response);
    true
}

/// Has the owners of the line's queues ring.
async fn watch(shard: &Rc<Shard>, line: &Rc<Line>, watching: &mut Vec<TopicId>) -> Watched {
    let Some(first) = line.waiting.borrow().front().cloned() else { return Watched::default() };
    let pops = matches!(*first, Waiter::Pop(_));
    look_all(shard, first.job(), pops, Some((line, watching))).await.unwrap_or_default()
}

fn unwatch(shard: &Shard, line: &Rc<Line>, watching: &[TopicId]) {
    let mut by_topic = shard.pop.parked.by_topic.borrow_mut();
    for topic in watching {
        if let Some(lines) = by_topic.get_mut(topic) {
            lines.retain(|known| !Rc::ptr_eq(known, line));
            if lines.is_empty() {
                by_topic.remove(topic);
            }
        }
    }
}

/// Whether there is something to pop for this job; `None` while the broker stops.
pub async fn available(shard: &Rc<Shard>, job: &Job) -> Option<bool> {
    look_all(shard, job, false, None).await.map(|watched| watched.available)
}

/// As [`available`]. `pops`: only what a pop would get now counts. With a line: the owners ring it when that changes.
async fn look_all(
    shard: &Rc<Shard>,
    job: &Job,
    pops: bool,
    ring: Option<(&Rc<Line>, &mut Vec<TopicId>)>,
) -> Option<Watched> {
    let targets = job.targets(shard, 0, false);
    let from = ring.is_some().then_some(shard.id);
    if let Some((line, watching)) = ring {
        for topic in targets.iter().map(|target| target.topic.id) {
            if !watching.contains(&topic) {
                watching.push(topic);
                shard.pop.parked.by_topic.borrow_mut().entry(topic).or_default().push(line.clone());
            }
        }
    }
    let mut all = Watched::default();
    for (owner, targets) in by_owner(shard, targets) {
        let (group, mode, attempt) = (job.group.name.clone(), job.mode, job.attempt.clone());
        let blocked_to = move |owner: &Shard, key| match mode {
            Mode::Ordered => owner.pop.orders.blocked_to_ms(key, &group, attempt.as_deref(), owner.now_ms()),
            // A notification tells of messages that the group has no room for, as Apache's does.
            Mode::Pop if pops => owner.pop_full_to_ms(key, &group),
            Mode::Pop | Mode::Peek => None,
        };
        let group = job.group.name.clone();
        let looked = shard.run_on(owner, move |owner| async move { look(&owner, &group, &targets, from, blocked_to) });
        all.add(looked.await?);
    }
    Some(all)
}

/// On the queues' owner: whether any has messages for the group; `from` is to be rung when one gets some. `blocked_to` says until when a
/// queue gives nothing.
fn look(
    shard: &Rc<Shard>,
    group: &Arc<str>,
    targets: &[Target],
    from: Option<ShardId>,
    blocked_to: impl Fn(&Shard, QueueKey) -> Option<i64>,
) -> Watched {
    let topics = shard.topics.borrow().clone();
    let mut all = Watched::default();
    for target in targets {
        let key = target.key();
        let queue = match from {
            Some(_) => shard.queues.get_or_make(key, &topics),
            None => shard.queues.get(key),
        };
        let Some(queue) = queue else { continue };
        if let Some(from) = from {
            let mut pollers = queue.pollers.borrow_mut();
            if !pollers.contains(&from) {
                pollers.push(from);
            }
        }
        let (min, max) = (queue.cq.min().0 as i64, queue.cq.max().0 as i64);
        let at = shard.offsets.get(key, group).unwrap_or(min);
        let reset = shard.offsets.reset_waits(key, group);
        if !reset && (max <= at || shard.pop.wait_if_busy(key, group)) {
            continue;
        }
        match blocked_to(shard, key).filter(|_| !reset) {
            Some(again_ms) => all.add(Watched { available: false, again_ms: Some(again_ms) }),
            None => all.available = true,
        }
    }
    all
}
