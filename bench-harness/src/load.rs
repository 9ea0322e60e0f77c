//! The sending engine of `send` and `e2e`: connections that keep a number of requests in flight, or a pacer that sends on time.
//!
//! All of it runs on one executor. An answer is handled where it is read, and in the closed loop the next request is written there and
//! then, so that what one read brought leaves again in one write.
use crate::error::BenchError;
use crate::peer::{Half, Outgoing, dial, mix, write_commit, write_send};
use crate::report::{MEASURING, Tally};
use glommio::timer::Timer;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use uringmq_proto::command::Command;
use uringmq_proto::message::{BatchItem, UniqKeys, prop, push_batch_item, push_property};
use uringmq_remoting::Service;
use uringmq_remoting::client::NoService;
use uringmq_remoting::connection::{Conn, Conns};

/// How long answers are waited for after the last request.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// The open loop stops adding (and catches up later) above this many requests without answers.
const UNANSWERED_MAX: u64 = 500_000;
const WATCH_EVERY: Duration = Duration::from_millis(250);
/// Run id and intended send time (of a timed message: when it is due), in front of a stamped body.
pub(crate) const STAMP_BYTES: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each connection keeps so many requests in flight.
    Closed(u32),
    /// So many messages a second over all connections, whatever the server does.
    Open(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    /// By this level.
    Delayed(u32),
    /// By the clock: so many ms after it was made.
    Timed(u32),
    /// A half message, then its commit.
    Transactional,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// One at least; each message goes to one at random.
    pub(crate) topics: Vec<String>,
    pub(crate) kind: Kind,
    pub(crate) queues: u32,
    pub(crate) size: usize,
    /// Messages in a request.
    pub(crate) batch: u32,
    pub(crate) pace: Pace,
    /// Bodies begin with this number and the intended send time.
    pub(crate) stamp: Option<u64>,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
}

pub(crate) struct Load {
    plan: Plan,
    started: Cell<Instant>,
    tally: RefCell<Tally>,
    making: RefCell<Making>,
    sending: Cell<bool>,
    unanswered: Cell<u64>,
    /// Messages acknowledged since the start, warm-up and end included.
    acknowledged: Cell<u64>,
    broken: Cell<bool>,
}

/// Buffers in which messages are made.
struct Making {
    keys: UniqKeys,
    properties: String,
    body: Vec<u8>,
    batch: Vec<u8>,
    /// Counts messages where topics are drawn.
    turn: u64,
}

impl Load {
    pub(crate) fn new(plan: Plan) -> Rc<Self> {
        let maker = Instant::now().elapsed().as_nanos() as u32 ^ crate::peer::now_ms() as u32;
        let making = Making {
            keys: UniqKeys::new(IpAddr::V4(Ipv4Addr::LOCALHOST), std::process::id(), maker),
            properties: String::new(),
            body: vec![b'x'; plan.size],
            batch: Vec::new(),
            turn: u64::from(maker),
        };
        Rc::new(Load {
            plan,
            started: Cell::new(Instant::now()),
            tally: RefCell::default(),
            making: RefCell::new(making),
            sending: Cell::new(true),
            unanswered: Cell::new(0),
            acknowledged: Cell::new(0),
            broken: Cell::new(false),
        })
    }

    /// Nanoseconds since sending started.
    pub(crate) fn now(&self) -> u64 {
        self.started.get().elapsed().as_nanos() as u64
    }

    /// When a message that is made now and waits so long is due: nanoseconds since sending started, and ms of the wall clock.
    fn due(&self, delay_ms: u32) -> (u64, u64) {
        let now = self.now(); // before the wall clock: where this thread stands still in between, nothing seems early
        let wall_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let deliver_ms = wall_ns / 1_000_000 + u64::from(delay_ms);
        ((now + deliver_ms * 1_000_000).saturating_sub(wall_ns), deliver_ms)
    }

    /// Whether a moment belongs to the measured part.
    pub(crate) fn is_measured(&self, at: u64) -> bool {
        let from = self.plan.warmup.as_nanos() as u64;
        (from..from + self.plan.measured.as_nanos() as u64).contains(&at)
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally.borrow().clone()
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.get()
    }

    /// Sends as planned and waits for the answers. `watch` is called now and then with the phase and the time in it.
    pub(crate) async fn run(
        self: &Rc<Self>,
        broker: SocketAddr,
        conns: u32,
        watch: impl Fn(&str, Duration),
    ) -> Result<(), BenchError> {
        let table = Rc::new(Conns::default());
        let mut lanes = Vec::new();
        for n in 0..conns {
            let lane = Rc::new(Lane { load: self.clone(), slots: RefCell::default(), queue: Cell::new(n) });
            lanes.push((dial(broker, &table, lane.clone()).await?, lane));
        }
        self.started.set(Instant::now());
        match self.plan.pace {
            Pace::Closed(inflight) => {
                for (conn, lane) in &lanes {
                    (0..inflight).for_each(|_| lane.send(conn, self.now()));
                }
            }
            Pace::Open(rate) => {
                let each = self.plan.batch as f64 * 1e9 / rate;
                let (load, lanes) = (self.clone(), lanes.clone());
                glommio::spawn_local(async move { load.pace(&lanes, each).await }).detach();
            }
        }
        self.watch_until_the_end(watch).await?;
        self.sending.set(false);
        let deadline = Instant::now() + DRAIN_MAX;
        while self.unanswered.get() > 0 && Instant::now() < deadline && !self.broken.get() {
            Timer::new(Duration::from_millis(5)).await;
        }
        for (_, lane) in &lanes {
            self.give_up(lane);
        }
        let broken = self.broken.get();
        table.close_all("measured");
        table.emptied().await;
        if broken { Err(BenchError::Closed) } else { Ok(()) }
    }

    async fn watch_until_the_end(&self, watch: impl Fn(&str, Duration)) -> Result<(), BenchError> {
        let (warmup, all) = (self.plan.warmup, self.plan.warmup + self.plan.measured);
        loop {
            let since = Duration::from_nanos(self.now());
            if self.broken.get() {
                return Err(BenchError::Closed);
            }
            match since.checked_sub(warmup) {
                None => watch("warm-up", since),
                Some(measured) if since < all => watch(MEASURING, measured),
                Some(_) => return Ok(()),
            }
            let next = if since < warmup { warmup } else { all };
            Timer::new(WATCH_EVERY.min(next - since)).await;
        }
    }

    /// Sends request n at n * `each_ns`, late rather than never.
    async fn pace(&self, lanes: &[(Rc<Conn>, Rc<Lane>)], each_ns: f64) {
        let mut next = 0u64;
        while self.sending.get() {
            let now = self.now();
            let due = (next as f64 * each_ns) as u64;
            if due > now || self.unanswered.get() >= UNANSWERED_MAX {
                Timer::new(Duration::from_nanos(due.saturating_sub(now).max(1000))).await;
                continue;
            }
            if self.is_measured(due) {
                let mut tally = self.tally.borrow_mut();
                tally.late_ns = tally.late_ns.max(now - due);
            }
            let (conn, lane) = &lanes[next as usize % lanes.len()];
            lane.send(conn, due);
            next += 1;
            if next.is_multiple_of(64) {
                futures_lite::future::yield_now().await;
            }
        }
    }

    /// Counts what was never answered, with the time it was waited for.
    fn give_up(&self, lane: &Lane) {
        let now = self.now();
        let mut tally = self.tally.borrow_mut();
        for sent in lane.slots.borrow().taken() {
            if self.is_measured(sent) {
                tally.took(now - sent);
                tally.missing += 1;
            }
        }
    }

    fn answered(&self, sent: u64, code: i32) {
        let now = self.now();
        let msgs = if code == 0 { self.plan.batch as u64 } else { 0 };
        self.unanswered.set(self.unanswered.get() - 1);
        self.acknowledged.set(self.acknowledged.get() + msgs);
        // The open loop is judged by what should have been sent in time, the closed one by what was answered in time.
        let moment = if matches!(self.plan.pace, Pace::Open(_)) { sent } else { now };
        if self.is_measured(moment) {
            let mut tally = self.tally.borrow_mut();
            tally.took(now - sent);
            tally.msgs += msgs;
            tally.bytes += msgs * self.plan.size as u64;
            *tally.codes.entry(code).or_default() += 1;
        }
    }
}

/// Set in the opaque of a commit, beside the slot that its half message had.
const COMMIT: i32 = 1 << 30;

/// One connection and its requests in flight. The opaque of a request is its slot.
struct Lane {
    load: Rc<Load>,
    slots: RefCell<Slots>,
    queue: Cell<u32>,
}

impl Lane {
    fn send(&self, conn: &Conn, intended: u64) {
        let load = &self.load;
        load.unanswered.set(load.unanswered.get() + 1);
        let opaque = self.slots.borrow_mut().take(intended);
        let queue = self.queue.get();
        self.queue.set((queue + 1) % load.plan.queues);
        let making = &mut *load.making.borrow_mut();
        let topic = match &load.plan.topics[..] {
            [one] => one,
            many => {
                making.turn += 1;
                &many[(mix(making.turn) % many.len() as u64) as usize]
            }
        };
        let (moment, deliver_ms) = match load.plan.kind {
            Kind::Timed(delay_ms) => load.due(delay_ms),
            _ => (intended, 0),
        };
        if let Some(run) = load.plan.stamp {
            making.body[..8].copy_from_slice(&run.to_be_bytes());
            making.body[8..STAMP_BYTES].copy_from_slice(&moment.to_be_bytes());
        }
        let batch = load.plan.batch > 1;
        making.batch.clear();
        for _ in 0..load.plan.batch {
            making.properties.clear();
            let key = making.keys.next(crate::peer::now_ms());
            for (name, value) in [(prop::UNIQ_KEY, &key[..]), (prop::WAIT, "true"), (prop::TAGS, "TagA")] {
                push_property(&mut making.properties, name, value);
            }
            match load.plan.kind {
                Kind::Plain => {}
                Kind::Delayed(level) => push_property(&mut making.properties, prop::DELAY, &level.to_string()),
                Kind::Timed(_) => {
                    push_property(&mut making.properties, prop::TIMER_DELIVER_MS, &deliver_ms.to_string())
                }
                Kind::Transactional => Half::mark(&mut making.properties),
            }
            if batch {
                let item = BatchItem { flag: 0, body: &making.body, properties: &making.properties };
                push_batch_item(&mut making.batch, &item);
            }
        }
        let message = Outgoing {
            topic,
            half: load.plan.kind == Kind::Transactional,
            queue: queue % load.plan.queues,
            properties: if batch { "" } else { &making.properties },
            body: if batch { &making.batch } else { &making.body },
            batch,
        };
        conn.write(|out| write_send(out, opaque, &message));
    }
}

impl Service for Lane {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, frame: &[u8]) {
        NoService.on_request(conn, cmd, frame);
    }

    fn on_answer(&self, conn: &Rc<Conn>, answer: &Command<'_>) {
        if self.load.plan.kind == Kind::Transactional
            && answer.opaque & COMMIT == 0
            && let Some(half) = Half::of(answer)
        {
            return conn.write(|out| write_commit(out, answer.opaque | COMMIT, &half));
        }
        let Some(sent) = self.slots.borrow_mut().give(answer.opaque & !COMMIT) else { return };
        self.load.answered(sent, answer.code);
        if matches!(self.load.plan.pace, Pace::Closed(_)) && self.load.sending.get() {
            self.send(conn, self.load.now());
        }
    }

    fn on_close(&self, _: &Rc<Conn>) {
        if self.load.sending.get() || self.slots.borrow().taken().next().is_some() {
            self.load.broken.set(true);
        }
    }
}

/// Numbers for requests in flight, each with the moment it was to be sent.
#[derive(Default)]
pub(crate) struct Slots {
    sent: Vec<Option<u64>>,
    free: Vec<usize>,
}

impl Slots {
    pub(crate) fn take(&mut self, sent: u64) -> i32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.sent.push(None);
            self.sent.len() - 1
        });
        self.sent[slot] = Some(sent);
        slot as i32
    }

    pub(crate) fn give(&mut self, opaque: i32) -> Option<u64> {
        let slot = usize::try_from(opaque).ok()?;
        let sent = self.sent.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(sent)
    }

    pub(crate) fn taken(&self) -> impl Iterator<Item = u64> {
        self.sent.iter().filter_map(|sent| *sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_unknown_ones_ignored() {
        let mut slots = Slots::default();
        assert_eq!([slots.take(10), slots.take(20)], [0, 1]);
        assert_eq!(slots.give(0), Some(10));
        assert_eq!(slots.give(0), None);
        assert_eq!((slots.give(-1), slots.give(7)), (None, None));
        assert_eq!(slots.take(30), 0);
        assert_eq!(slots.taken().collect::<Vec<_>>(), [30, 20]);
    }
}
