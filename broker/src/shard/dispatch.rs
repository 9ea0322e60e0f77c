//! The shard's cursor over the log (reput): consume-queue entries of its own queues, and on shard 0 the key index.
//! The writer's hints carry what it needs; a gap between cursor and hint is read from the log.
use crate::mesh::Event;
use crate::shard::Shard;
use crate::shard::queues::Queue;
use crate::stages::Stage;
use crate::writer::committed::{Committed, Entry, Span};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use tracing::{debug, error, warn};
use uringmq_proto::message::{self, sys_flag};
use uringmq_proto::names;
use uringmq_proto::record::{self, Found};
use uringmq_proto::types::{PhyOffset, QueueKey, QueueOffset, TopicId};
use uringmq_store::consume_queue::extension::Unit;
use uringmq_store::consume_queue::{Appended, Entry as QueueEntry, Form};
use uringmq_store::dispatch;

/// Bytes read at a time while catching up.
const CATCH_UP_BYTES: usize = 1024 * 1024;

pub struct Cursor {
    at: Cell<u64>,
    /// Start of the last record dispatched, and its store time: what a checkpoint may claim.
    last: Cell<(PhyOffset, i64)>,
    /// Records that start below are in the key index.
    indexed: Cell<u64>,
    catching_up: Cell<bool>,
    /// Hints that came while catching up.
    waiting: RefCell<VecDeque<Arc<Committed>>>,
    pub moved: Event,
}

impl Cursor {
    pub fn new(at: PhyOffset, last_store_timestamp_ms: i64) -> Self {
        Cursor {
            at: Cell::new(at.0),
            last: Cell::new((PhyOffset(0), last_store_timestamp_ms)),
            indexed: Cell::new(at.0),
            catching_up: Cell::new(false),
            waiting: RefCell::default(),
            moved: Event::default(),
        }
    }
    pub fn at(&self) -> PhyOffset {
        PhyOffset(self.at.get())
    }
    pub fn last(&self) -> (PhyOffset, i64) {
        self.last.get()
    }
}

/// What the derived files need of a record that was read from the log.
pub fn entry_of(d: &dispatch::Dispatch<'_>, topic: TopicId, hash_from: u32, hash_count: u16) -> Entry {
    Entry {
        key: QueueKey { topic, queue: d.queue },
        queue_offset: QueueOffset(d.queue_offset),
        phy: d.phy,
        bytes: d.bytes,
        tags_code: d.tags_code,
        store_timestamp_ms: d.store_timestamp_ms,
        count: d.messages(),
        numbered: d.queued && d.sys_flag & sys_flag::TRANSACTION_PREPARED == 0,
        hash_from,
        hash_count,
    }
}

impl Shard {
    /// Written, and to be read by slaves only as yet.
    pub(super) fn on_written(&self, spans: &[Span]) {
        self.cache(spans);
        self.ring_slaves();
    }

    fn cache(&self, spans: &[Span]) {
        let mut tail = self.tail.borrow_mut();
        for span in spans {
            tail.push(span.clone(), |buffer| self.appends.recycle(buffer));
        }
    }

    fn ring_slaves(&self) {
        if let Some(replication) = &self.replication {
            replication.ring();
        }
    }

    pub(super) fn on_committed(self: &Rc<Self>, c: Arc<Committed>) {
        self.cache(&c.spans);
        self.ring_slaves();
        let cursor = &self.dispatch;
        if cursor.catching_up.get() {
            let mut waiting = cursor.waiting.borrow_mut();
            if waiting.len() < 64 {
                waiting.push_back(c);
            }
            return;
        }
        self.take_hint(&c);
    }

    fn take_hint(self: &Rc<Self>, c: &Arc<Committed>) {
        let cursor = &self.dispatch;
        let at = cursor.at.get();
        if c.to.0 <= at {
            return;
        }
        if c.from.0 > at {
            debug!(shard = self.id, from = at, to = c.from.0, "hints were missed; reading the log");
            self.start_catch_up();
            cursor.waiting.borrow_mut().push_back(c.clone());
            return;
        }
        let mut woken = self.queues.touched();
        for e in &c.entries {
            let hashes = &c.hashes[e.hash_from as usize..][..e.hash_count as usize];
            self.dispatch_one(e, hashes, None, &mut woken);
        }
        cursor.at.set(c.to.0);
        cursor.indexed.set(cursor.indexed.get().max(c.to.0));
        if let Some(e) = c.entries.last() {
            cursor.last.set((e.phy, e.store_timestamp_ms));
        }
        cursor.moved.set();
        self.stages.since(Stage::Dispatch, c.since);
        let any = !woken.is_empty();
        self.wake_held(woken);
        self.ring_timers();
        if any {
            self.stages.since(Stage::Wake, c.since);
        }
    }

    /// `properties` as far as they are at hand; the tail cache has them otherwise.
    fn dispatch_one(&self, e: &Entry, hashes: &[u32], properties: Option<&str>, woken: &mut Vec<QueueKey>) {
        if let Some(index) = self.index.as_ref().filter(|_| e.phy.0 >= self.dispatch.indexed.get()) {
            for h in hashes {
                index.put(*h, e.phy, e.store_timestamp_ms);
            }
        }
        if !e.numbered || self.owner(e.key) != self.id {
            return;
        }
        let Some(queue) = self.queues.get_or_make(e.key, &self.topics.borrow()) else {
            return; // the topic was deleted meanwhile
        };
        if e.queue_offset.0 > 0 && self.follows() {
            queue.cq.begin_at(e.queue_offset); // what was before is older than this slave's log
        }
        let entry = QueueEntry::new(e.phy, e.bytes, e.tags_code);
        let entry = match queue.cq.form() {
            Form::Plain => entry,
            Form::Batch => QueueEntry { count: e.count, stored_ms: e.store_timestamp_ms, ..entry },
        };
        let appended = match self.unit_of(&queue, e, properties) {
            Some(unit) => queue.cq.append_with(e.queue_offset, entry, unit),
            None => queue.cq.append(e.queue_offset, entry),
        };
        match appended {
            Appended::Done => {
                queue.touch(woken);
                self.timer.note(e.key);
            }
            Appended::Known => {}
            Appended::Gap { expected } => {
                error!(topic = %queue.topic.name, queue = e.key.queue, at = %e.queue_offset, %expected, "queue offset gap");
            }
        }
    }

    /// What the queue's extension gets of an entry, where it has one. As with Apache's, entries of light queues have none.
    fn unit_of(&self, queue: &Queue, e: &Entry, properties: Option<&str>) -> Option<Unit> {
        if !queue.cq.makes_units() || names::is_light_queue(&queue.topic.name) {
            return None;
        }
        let filters = self.group_filters.borrow();
        let wanted = self.config.borrow().filter_bit_maps && filters.by_topic.contains_key(&queue.topic.name);
        let map_of = |properties: &str| filters.map_of(&queue.topic.name, |name| message::property(properties, name));
        let map = match (wanted, properties) {
            (false, _) => Box::default(),
            (true, Some(properties)) => map_of(properties),
            (true, None) => {
                let tail = self.tail.borrow();
                let stored = tail.get(e.phy, e.bytes).and_then(|stored| record::parse(stored, false).ok());
                match stored {
                    Some(Found::Record(record)) => map_of(record.properties),
                    // Without a map it is looked at itself.
                    _ => Box::default(),
                }
            }
        };
        Some(Unit { tags_code: e.tags_code, stored_ms: e.store_timestamp_ms, map })
    }

    /// Goes through the log once more, for queues that have to be made anew; to the others all is known. No checkpoint claims anything until it
    /// is through.
    pub(super) fn dispatch_again(self: &Rc<Self>) {
        self.dispatch.at.set(self.marks.min().0);
        let (_, store_timestamp_ms) = self.dispatch.last.get();
        self.dispatch.last.set((PhyOffset(0), store_timestamp_ms));
        self.start_catch_up();
    }

    /// Reads the log from the cursor to the readable mark; also called by the shard's timer, should the last hint have been thinned.
    pub fn start_catch_up(self: &Rc<Self>) {
        if self.dispatch.catching_up.replace(true) {
            return;
        }
        let shard = self.clone();
        glommio::spawn_local(async move {
            shard.catch_up().await;
            shard.dispatch.catching_up.set(false);
            loop {
                let Some(c) = shard.dispatch.waiting.borrow_mut().pop_front() else { break };
                shard.take_hint(&c);
                if shard.dispatch.catching_up.get() {
                    break;
                }
            }
        })
        .detach();
    }

    async fn catch_up(self: &Rc<Self>) {
        let light = self.config.borrow().light_queues();
        loop {
            let limit = self.marks.readable();
            // A slave that had nothing begins where its master's last segment does.
            self.dispatch.at.set(self.dispatch.at.get().max(self.marks.min().0));
            let at = self.dispatch.at();
            if at >= limit {
                return;
            }
            let bytes = match self.reader.read_range(at, CATCH_UP_BYTES, limit).await {
                Ok(bytes) => bytes,
                Err(e) => {
                    error!(shard = self.id, %at, error = %e, "catch-up read failed");
                    return;
                }
            };
            if self.dispatch.at() != at {
                continue; // it begins again
            }
            let mut woken = self.queues.touched();
            let mut hashes = Vec::new();
            let mut last = self.dispatch.last.get();
            let walked = dispatch::walk(&bytes, at, self.appends.delay_levels_ms(), false, |d| {
                let topics = self.topics.borrow().clone();
                let Some(topic) = topics.stored(d.topic) else { return };
                hashes.clear();
                if self.index.is_some() {
                    record::index_key_hashes(d.topic, d.properties, d.sys_flag, |h| hashes.push(h));
                }
                let e = entry_of(&d, topic.id, 0, 0);
                self.dispatch_one(&e, &hashes, Some(d.properties), &mut woken);
                if light {
                    dispatch::light_places(&d, |d| {
                        let Some(topic) = topics.stored(d.topic) else { return };
                        self.dispatch_one(&entry_of(&d, topic.id, 0, 0), &[], Some(d.properties), &mut woken);
                    });
                }
                last = (e.phy, e.store_timestamp_ms);
            });
            self.wake_held(woken);
            self.ring_timers();
            match walked {
                Ok(to) if to > at => {
                    let to = to.0.min(limit.0);
                    self.dispatch.at.set(to);
                    let indexed = self.dispatch.indexed.get();
                    self.dispatch.indexed.set(indexed.max(to));
                    if to >= indexed {
                        self.dispatch.last.set(last);
                    }
                }
                Ok(_) => {
                    warn!(shard = self.id, %at, bytes = bytes.len(), "catch-up made no progress");
                    return;
                }
                Err(e) => {
                    error!(shard = self.id, %at, error = %e, "catch-up stopped");
                    return;
                }
            }
            self.dispatch.moved.set();
            glommio::executor().yield_task_queue_now().await;
        }
    }
}
