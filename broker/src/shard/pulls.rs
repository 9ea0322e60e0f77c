//! A pull, from its owner's side (positions, or held there) and from its connection's side (bytes, the answer).
use crate::config::BrokerRole;
use crate::mesh::Msg;
use crate::requests::Origin;
use crate::shard::Shard;
use crate::shard::property_filter::{Excluded, PropertyFilter};
use crate::shard::queues::Queue;
use crate::snapshot::{Group, Subscription};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use tracing::error;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::{FLAG_RESPONSE, Head, Response, Value, write_frame};
use uringmq_proto::types::{PhyOffset, QueueKey, QueueOffset};
use uringmq_store::StoreError;
use uringmq_store::consume_queue::Entry;

/// Entries looked at by one pull with a filter (`maxFilterMessageSize` 16000 / 20).
const FILTERED_ENTRIES: usize = 800;
/// A held pull that new entries do not match is answered with the moved offset after so long (Java's hold service period).
const RECHECK_MS: i64 = 5000;

/// shard of the connection -> owner of the queue.
pub struct PullAsk {
    pub origin: Origin,
    pub key: QueueKey,
    pub group: Arc<Group>,
    pub offset: i64,
    pub max_count: u32,
    pub filter: Arc<Subscription>,
    pub by_properties: PropertyFilter,
    /// How long it may be held when there is nothing.
    pub suspend_ms: Option<u64>,
    /// An offset to store for the group, once.
    pub commit: Option<i64>,
    /// Of a static topic: what the logical queue's offsets are more than those here.
    pub delta: Option<i64>,
    pub sys_flags: SysFlags,
}

/// The topic's and the group's, which every answer to a pull tells (checked on 5.5.0).
#[derive(Clone, Copy, Debug)]
pub struct SysFlags {
    pub topic: i32,
    pub group: i32,
}

/// A pull waiting for messages, on the queue's owner.
pub struct Held {
    pub ask: PullAsk,
    /// Entries before this one were looked at and do not match.
    pub looked_to: i64,
    pub until_ms: i64,
    pub recheck_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullStatus {
    Found,
    NoMatchedMessage,
    NoMessageInQueue,
    OffsetFoundNull,
    OffsetOverflowOne,
    OffsetOverflowBadly,
    OffsetTooSmall,
    OffsetReset,
    MessageWasRemoving,
}

impl PullStatus {
    /// The remark that clients print. Source: behaviour sheet 4.2.
    pub fn name(self) -> &'static str {
        match self {
            PullStatus::Found => "FOUND",
            PullStatus::NoMatchedMessage => "NO_MATCHED_MESSAGE",
            PullStatus::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
            PullStatus::OffsetFoundNull => "OFFSET_FOUND_NULL",
            PullStatus::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
            PullStatus::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
            PullStatus::OffsetTooSmall => "OFFSET_TOO_SMALL",
            PullStatus::OffsetReset => "OFFSET_RESET",
            PullStatus::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
        }
    }
    fn code(self, asked: i64) -> i32 {
        match self {
            PullStatus::Found => code::SUCCESS,
            PullStatus::NoMatchedMessage | PullStatus::MessageWasRemoving => code::PULL_RETRY_IMMEDIATELY,
            PullStatus::NoMessageInQueue if asked != 0 => code::PULL_OFFSET_MOVED,
            PullStatus::NoMessageInQueue | PullStatus::OffsetFoundNull | PullStatus::OffsetOverflowOne => {
                code::PULL_NOT_FOUND
            }
            PullStatus::OffsetOverflowBadly | PullStatus::OffsetTooSmall | PullStatus::OffsetReset => {
                code::PULL_OFFSET_MOVED
            }
        }
    }
}

/// Place in the log, size, and how far its (first) message is from the offset that was looked from.
pub type Positions = SmallVec<[(PhyOffset, u32, u32); 32]>;

/// owner of the queue -> shard of the connection.
pub struct PullFound {
    pub origin: Origin,
    pub status: PullStatus,
    pub code: i32,
    pub next: i64,
    pub min: i64,
    pub max: i64,
    /// The id of the broker that the client had better ask next.
    pub suggested: i64,
    pub positions: Positions,
    /// As asked.
    pub delta: Option<i64>,
    pub sys_flags: SysFlags,
}

/// What one look at the queue gave.
pub struct Look {
    pub status: PullStatus,
    pub next: i64,
    /// The reader is so far behind that a slave should serve it.
    slow: bool,
    pub positions: Positions,
    /// In the records at these positions: more than one in an inner batch.
    pub messages: u64,
}

impl Look {
    fn nothing(status: PullStatus, next: i64) -> Self {
        Look { status, next, slow: false, positions: Positions::new(), messages: 0 }
    }
}

/// Limits of one answer (`maxTransferCountOnMessageInMemory` and its siblings).
#[derive(Clone, Copy)]
struct Caps {
    count: usize,
    bytes: usize,
}

impl Shard {
    pub(super) fn on_pull(self: &Rc<Self>, ask: PullAsk) {
        if let Some(to) = self.offsets.take_reset(ask.key, &ask.group.name) {
            let found = Look::nothing(PullStatus::OffsetReset, to);
            return self.answer_pull(&ask, found);
        }
        self.look_and_answer(ask, true);
    }

    /// Looks once; what needs the queue's files goes on in a task. `first`: it may be held, and its commit counts.
    fn look_and_answer(self: &Rc<Self>, mut ask: PullAsk, first: bool) {
        match self.look_hot(&ask, ask.offset) {
            Some(look) => {
                if first {
                    self.commit_of(&mut ask);
                }
                self.hold_or_answer(ask, look, first);
            }
            None => {
                let shard = self.clone();
                glommio::spawn_local(async move {
                    let outcome = shard.look_cold(&ask).await;
                    if first {
                        shard.commit_of(&mut ask);
                    }
                    match outcome {
                        Ok(look) => shard.hold_or_answer(ask, look, first),
                        Err(e) => {
                            error!(queue = ?ask.key, error = %e, "consume queue unreadable");
                            shard.respond(ask.origin, crate::responses::of_error(&e.into()));
                        }
                    }
                })
                .detach();
            }
        }
    }

    fn commit_of(&self, ask: &mut PullAsk) {
        if let Some(offset) = ask.commit.take() {
            self.offsets.commit(ask.key, &ask.group.name, offset);
        }
    }

    fn bounds(&self, key: QueueKey) -> (Option<Rc<Queue>>, i64, i64) {
        match self.queues.get(key) {
            Some(q) => {
                let (min, max) = (q.cq.min().0 as i64, q.cq.max().0 as i64);
                (Some(q), min, max)
            }
            None => (None, 0, 0),
        }
    }

    /// The checks before any entry is read; what they give is final. A slave's bounds are not the master's: without `offsetCheckInSlave`
    /// it sends no reader elsewhere in the queue (replication sheet 5). Apache's slave has such a reader ask again at once, for ever when the
    /// master is gone; here it is held like one at the end.
    fn outside(&self, offset: i64, min: i64, max: i64) -> Option<Look> {
        let uncorrected = self.follows() && !self.config.borrow().offset_check_in_slave;
        let (status, next) = if uncorrected && (offset < min || offset > max) {
            (PullStatus::OffsetFoundNull, offset)
        } else if max == 0 {
            (PullStatus::NoMessageInQueue, 0)
        } else if offset < min {
            (PullStatus::OffsetTooSmall, min)
        } else if offset == max {
            (PullStatus::OffsetOverflowOne, offset)
        } else if offset > max {
            (PullStatus::OffsetOverflowBadly, max)
        } else {
            return None;
        };
        Some(Look::nothing(status, next))
    }

    fn wanted(ask: &PullAsk, from: i64, max: i64) -> usize {
        let plain = ask.filter.all && ask.by_properties.is_none();
        let most = if plain { (ask.max_count as usize).max(1) } else { FILTERED_ENTRIES.max(ask.max_count as usize) };
        most.min((max - from).max(0) as usize)
    }

    /// Looks from the asked offset on.
    pub async fn look(&self, ask: &PullAsk) -> Result<Look, StoreError> {
        match self.look_hot(ask, ask.offset) {
            Some(look) => Ok(look),
            None => self.look_cold(ask).await,
        }
    }

    /// Looks from `from` on, at or behind the asked offset. `None` when the entries, or records that must be looked at, are not in memory.
    fn look_hot(&self, ask: &PullAsk, from: i64) -> Option<Look> {
        let (queue, min, max) = self.bounds(ask.key);
        if let Some(look) = self.outside(ask.offset, min, max) {
            return Some(look);
        }
        let queue = queue?;
        let mut entries = Vec::new();
        if !queue.cq.read_hot(QueueOffset(from as u64), Self::wanted(ask, from, max), &mut entries) {
            return None;
        }
        let excluded = self.excluded_hot(ask, &queue, &entries)?;
        let matches = |index, entry: &Entry| match excluded.has(index) {
            true => Some(false),
            false => self.matches_hot(ask, entry),
        };
        let look = self.choose(ask, from, &entries, matches)?;
        self.count_excluded(&excluded, &entries, look.next);
        Some(look)
    }

    async fn look_cold(&self, ask: &PullAsk) -> Result<Look, StoreError> {
        let (queue, min, max) = self.bounds(ask.key);
        if let Some(look) = self.outside(ask.offset, min, max) {
            return Ok(look);
        }
        let Some(queue) = queue else { return Ok(Look::nothing(PullStatus::NoMessageInQueue, 0)) };
        let mut entries = Vec::new();
        queue.cq.read(QueueOffset(ask.offset as u64), Self::wanted(ask, ask.offset, max), &mut entries).await?;
        if entries.is_empty() {
            return Ok(Look::nothing(PullStatus::OffsetFoundNull, queue.cq.min().0.max(ask.offset as u64) as i64));
        }
        let excluded = self.excluded_cold(ask, &queue, &entries).await?;
        let verdicts = self.matches_cold(ask, &entries, &excluded).await?;
        entries.truncate(verdicts.len());
        let look = self.choose(ask, ask.offset, &entries, |index, _| Some(verdicts[index]));
        let look = look.expect("every entry has its verdict");
        self.count_excluded(&excluded, &entries, look.next);
        Ok(look)
    }

    /// Counts those that the pull has passed over, up to the offset `next`.
    fn count_excluded(&self, excluded: &Excluded, entries: &[Entry], next: i64) {
        let passed = entries.iter().enumerate().filter(|(index, e)| excluded.has(*index) && (e.base as i64) < next);
        let count = &self.counters.bits_excluded;
        count.set(count.get() + passed.count() as u64);
    }

    /// Picks the entries that match, up to the caps. The first one is taken however large it is. `entries` begin at the offset `from`;
    /// `None` when `matches` cannot tell.
    fn choose(
        &self,
        ask: &PullAsk,
        from: i64,
        entries: &[Entry],
        matches: impl Fn(usize, &Entry) -> Option<bool>,
    ) -> Option<Look> {
        let config = self.config.borrow();
        let log_min = self.marks.min();
        let mut positions = Positions::new();
        let (mut bytes, mut messages) = (0usize, 0usize);
        let mut next = from;
        let mut last = None;
        for (index, e) in entries.iter().enumerate() {
            // A record is given whole, the first one however many messages it holds.
            let count = messages + e.count as usize;
            if !positions.is_empty() && count > (ask.max_count as usize).max(1) {
                break;
            }
            if e.phy >= log_min && !e.is_hole() && matches(index, e)? {
                let caps = self.caps(&config, e.phy);
                let over = count > caps.count || bytes + e.bytes as usize > caps.bytes;
                if over && !positions.is_empty() {
                    break;
                }
                positions.push((e.phy, e.bytes, (e.base as i64 - from).max(0) as u32));
                bytes += e.bytes as usize;
                messages = count;
            }
            next = e.end() as i64;
            last = Some(e);
        }
        let status = if !positions.is_empty() {
            PullStatus::Found
        } else if entries.iter().all(|e| e.phy < log_min) {
            PullStatus::MessageWasRemoving
        } else {
            PullStatus::NoMatchedMessage
        };
        let slow = last.is_some_and(|e| !self.is_hot(&config, e.phy));
        Some(Look { status, next, slow, positions, messages: messages as u64 })
    }

    /// Whom the client had better ask next. Where slaves are not read it is always the master. A slave sends whoever is in step back to
    /// its master, as long as that is there.
    fn suggested(&self, ask: &PullAsk, slow: bool) -> i64 {
        let config = self.config.borrow();
        match config.role {
            _ if !config.slave_read => 0,
            BrokerRole::Slave if !self.master_is_there() => config.broker_id,
            _ if slow => ask.group.config.which_broker_when_consume_slowly,
            BrokerRole::Slave => 0,
            _ => ask.group.config.broker_id,
        }
    }

    /// Java's test for "in memory" is the distance from the end of the log, against a share of the machine's memory.
    pub fn is_hot(&self, config: &crate::config::BrokerConfig, phy: PhyOffset) -> bool {
        self.marks.readable().0.saturating_sub(phy.0) <= self.memory_bytes / 100 * config.hot_percent as u64
    }

    fn caps(&self, config: &crate::config::BrokerConfig, phy: PhyOffset) -> Caps {
        if self.is_hot(config, phy) {
            Caps { count: config.pull_count_max_hot as usize, bytes: config.pull_bytes_max_hot }
        } else {
            Caps { count: config.pull_count_max_cold as usize, bytes: config.pull_bytes_max_cold }
        }
    }

    fn hold_or_answer(self: &Rc<Self>, mut ask: PullAsk, look: Look, first: bool) {
        let nothing = look.status.code(ask.offset) == code::PULL_NOT_FOUND;
        // A slave holds nobody who can go to its master.
        let elsewhere = self.doors.is_closed() || (self.follows() && self.master_is_there());
        if let Some(suspend_ms) = ask.suspend_ms.filter(|_| nothing && first && !elsewhere) {
            ask.commit = None;
            let now = self.now_ms();
            let (until_ms, recheck_ms) = (now.saturating_add(suspend_ms as i64), now + RECHECK_MS);
            let held = Held { looked_to: ask.offset, until_ms, recheck_ms, ask };
            return self.hold(held);
        }
        self.answer_pull(&ask, look);
    }

    fn hold(self: &Rc<Self>, held: Held) {
        let topics = self.topics.borrow().clone();
        match self.queues.get_or_make(held.ask.key, &topics) {
            Some(queue) => {
                self.queues.holding(held.ask.key);
                queue.held.borrow_mut().push(held);
            }
            None => self.answer_pull(&held.ask, Look::nothing(PullStatus::NoMessageInQueue, 0)),
        }
    }

    /// Entries came for these queues.
    pub(super) fn wake_held(self: &Rc<Self>, woken: Vec<QueueKey>) {
        for key in &woken {
            let Some(queue) = self.queues.get(*key) else { continue };
            queue.untouch();
            self.ring_pollers_of(&queue);
            let all = std::mem::take(&mut *queue.held.borrow_mut());
            for held in all {
                self.wake_one(&queue, held);
            }
        }
        self.queues.recycle(woken);
    }

    fn wake_one(self: &Rc<Self>, queue: &Rc<Queue>, mut held: Held) {
        if held.looked_to == queue.cq.max().0 as i64 {
            return queue.held.borrow_mut().push(held); // it has seen what it is woken for
        }
        match self.look_hot(&held.ask, held.looked_to) {
            Some(look) if look.status.code(held.ask.offset) == code::PULL_NOT_FOUND => {
                queue.held.borrow_mut().push(held);
            }
            // Nothing that it wants: it waits on, and the timer answers with the moved offset.
            Some(look) if look.status == PullStatus::NoMatchedMessage && look.next == queue.cq.max().0 as i64 => {
                held.looked_to = look.next;
                queue.held.borrow_mut().push(held);
            }
            Some(look) => self.answer_pull(&held.ask, look),
            None => self.look_and_answer(held.ask, false),
        }
    }

    /// The timer's look at held pulls: expired ones are answered as they stand, the others looked at again every 5 s without filter.
    pub fn check_held(self: &Rc<Self>, now_ms: i64) {
        for queue in self.queues.all_holding() {
            let due: Vec<Held> = {
                let mut held = queue.held.borrow_mut();
                let max = queue.cq.max().0 as i64;
                held.extract_if(.., |h| {
                    let expired = h.until_ms <= now_ms;
                    let moved = h.recheck_ms <= now_ms && max > h.ask.offset;
                    if h.recheck_ms <= now_ms {
                        h.recheck_ms = now_ms + RECHECK_MS;
                    }
                    expired || moved
                })
                .collect()
            };
            for h in due {
                self.look_and_answer(h.ask, false);
            }
        }
    }

    /// Answers every held pull as it stands: the topic is going, or the broker stops.
    pub fn release_held(self: &Rc<Self>, queue: &Rc<Queue>) {
        for h in std::mem::take(&mut *queue.held.borrow_mut()) {
            self.look_and_answer(h.ask, false);
        }
    }

    fn answer_pull(self: &Rc<Self>, ask: &PullAsk, look: Look) {
        let (_, min, max) = self.bounds(ask.key);
        let suggested = self.suggested(ask, look.slow);
        let plain = look.status.code(ask.offset);
        let corrects = plain == code::PULL_OFFSET_MOVED && self.config.borrow().offset_check_in_slave;
        let code = match look.status {
            PullStatus::Found => plain,
            _ if !corrects && self.follows() && suggested != self.config.borrow().broker_id => {
                code::PULL_RETRY_IMMEDIATELY
            }
            _ => plain,
        };
        let found = PullFound {
            origin: ask.origin,
            status: look.status,
            code,
            suggested,
            next: look.next,
            min,
            max,
            positions: look.positions,
            delta: ask.delta,
            sys_flags: ask.sys_flags,
        };
        if look.status == PullStatus::Found {
            self.counters.get_messages.set(self.counters.get_messages.get() + look.messages);
        } else {
            self.counters.get_missed.set(self.counters.get_missed.get() + 1);
        }
        self.offsets.pulled(ask.key, &ask.group.name, found.next);
        if ask.origin.conn.shard == self.id {
            self.on_pull_found(found);
        } else {
            self.mesh.push(ask.origin.conn.shard, Msg::PullFound(Box::new(found)));
        }
    }

    /// On the connection's shard: fetch the bytes, answer.
    pub(super) fn on_pull_found(self: &Rc<Self>, found: PullFound) {
        if found.origin.oneway {
            return;
        }
        let tail = self.tail.borrow();
        let mut chunks: SmallVec<[&[u8]; 32]> = SmallVec::new();
        for (phy, bytes, _) in &found.positions {
            match tail.get(*phy, *bytes) {
                Some(chunk) => chunks.push(chunk),
                None => break,
            }
        }
        if chunks.len() == found.positions.len() {
            return self.write_found(&found, &chunks);
        }
        drop(chunks);
        drop(tail);
        let shard = self.clone();
        glommio::spawn_local(async move { shard.answer_cold(found).await }).detach();
    }

    async fn answer_cold(self: &Rc<Self>, mut found: PullFound) {
        let mut body = Vec::with_capacity(found.positions.iter().map(|p| p.1 as usize).sum());
        for (phy, bytes, _) in &found.positions {
            match self.read_record(*phy, *bytes, &mut body).await {
                Ok(()) | Err(StoreError::OutOfRange(_)) => {}
                Err(e @ StoreError::Corrupt { .. }) => error!(error = %e, "damaged record stepped over"),
                Err(e) => return self.respond(found.origin, crate::responses::of_error(&e.into())),
            }
        }
        if body.is_empty() {
            found.status = PullStatus::MessageWasRemoving;
            found.code = code::PULL_RETRY_IMMEDIATELY;
        }
        self.read_ahead();
        self.write_found(&found, &[&body]);
    }

    /// Reads the block behind the last one, so that a sequential reader finds it there.
    fn read_ahead(self: &Rc<Self>) {
        if self.reader.wants_ahead().is_some() {
            let shard = self.clone();
            glommio::spawn_local(async move { shard.reader.read_ahead().await }).detach();
        }
    }

    fn write_found(&self, found: &PullFound, chunks: &[&[u8]]) {
        let Some(conn) = self.conns.get(found.origin.conn) else { return };
        let bytes: usize = chunks.iter().map(|c| c.len()).sum();
        self.counters.get_bytes.set(self.counters.get_bytes.get() + bytes as u64);
        let delta = found.delta.unwrap_or(0);
        let ext: [(Cow<'_, str>, Value<'_>); 7] = [
            (Cow::Borrowed("suggestWhichBrokerId"), Value::I64(found.suggested)),
            (Cow::Borrowed("nextBeginOffset"), Value::I64(found.next.saturating_add(delta))),
            (Cow::Borrowed("minOffset"), Value::I64(found.min.saturating_add(delta))),
            (Cow::Borrowed("maxOffset"), Value::I64(found.max.saturating_add(delta))),
            (Cow::Borrowed("topicSysFlag"), Value::I64(found.sys_flags.topic.into())),
            (Cow::Borrowed("groupSysFlag"), Value::I64(found.sys_flags.group.into())),
            // The records in the body have the offsets of the physical queue: the client adds it.
            (Cow::Borrowed("offsetDelta"), Value::I64(delta)),
        ];
        let ext = if found.delta.is_some() { &ext[..] } else { &ext[..6] };
        let head = Head {
            code: found.code,
            opaque: found.origin.opaque,
            flag: FLAG_RESPONSE,
            remark: Some(found.status.name()),
            ext,
        };
        conn.write(|out| write_frame(out, &head, chunks));
    }

    /// Appends the stored bytes of one record to `out`: tail cache first, then the log. `bytes` 0 = unknown.
    pub async fn read_record(&self, phy: PhyOffset, bytes: u32, out: &mut Vec<u8>) -> Result<(), StoreError> {
        if let Some(chunk) = self.tail.borrow().get(phy, bytes) {
            out.extend_from_slice(chunk);
            return Ok(());
        }
        self.reader.read_record(phy, bytes, self.marks.readable(), out).await
    }

    /// The stored bytes of one record; `None` when it is gone, damaged or cannot be read: no later try would find it. `bytes` 0 = unknown.
    pub async fn stored_record(&self, phy: PhyOffset, bytes: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let mut out = Vec::with_capacity(bytes as usize);
        match self.read_record(phy, bytes, &mut out).await {
            Ok(()) => Ok(Some(out)),
            Err(StoreError::OutOfRange(_) | StoreError::Corrupt { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// An answer with the four fields that clients unbox without a look.
pub fn pull_refusal(code: i32, remark: impl Into<Cow<'static, str>>, next: i64) -> Response {
    Response::err(code, remark)
        .with("suggestWhichBrokerId", 0i64)
        .with("nextBeginOffset", next)
        .with("minOffset", 0i64)
        .with("maxOffset", 0i64)
}
