//! A slave's log: what its master sends is appended as it stands there, by the same direct writes as a master's own records, and told to
//! the shards like any batch. One piece at a time; the follower ([`crate::replication::slave`]) hands them over.
//!
//! A piece may end inside a record. Then the log's end is inside it too, while readers see whole records only: the readable mark, the
//! shards' hints and the tail cache stop at the last whole one.
use crate::control;
use crate::mesh::Msg;
use crate::shard::Shard;
use crate::shard::dispatch::entry_of;
use crate::writer::committed::{Committed, Span};
use crate::writer::unconfirmed::bound;
use crate::writer::{await_checkpoint, sync, tell_all};
use crate::{Log, config::FlushDiskType};
use smallvec::smallvec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use uringmq_proto::record;
use uringmq_proto::types::PhyOffset;
use uringmq_store::consume_queue::Form;
use uringmq_store::dispatch::Dispatch;
use uringmq_store::turn::Turn;
use uringmq_store::{StoreError, dispatch};

pub struct Copier {
    /// Missing while a piece is being written, and once it is closed.
    log: RefCell<Option<Log>>,
    turn: Turn,
    /// What stands between `walked` and the log's end: a record not yet whole.
    partial: RefCell<Vec<u8>>,
    /// Records below were told to the shards; above the log's end inside the filler of a segment.
    walked: Cell<u64>,
    /// Records below were handed on, to be shown once they are confirmed.
    handed_on: Cell<u64>,
}

impl Copier {
    /// `end` of the log is where a record ends: recovery cut what was not whole.
    pub fn new(log: Log, end: PhyOffset) -> Self {
        Copier {
            log: RefCell::new(Some(log)),
            turn: Turn::default(),
            partial: RefCell::default(),
            walked: Cell::new(end.0),
            handed_on: Cell::new(end.0),
        }
    }

    /// Where the log ends, once no piece is being written.
    pub async fn end(&self) -> Option<PhyOffset> {
        let _turn = self.turn.take().await;
        self.log.borrow().as_ref().map(Log::written)
    }

    /// No piece is taken any more.
    pub async fn close(&self) {
        let _turn = self.turn.take().await;
        self.log.take();
    }

    /// Appends what stands in the master's log at `at`; gives the end of this log, which is then written (SYNC_FLUSH: durable). An empty log
    /// begins at the first piece, wherever that is.
    /// Errors: `OutOfRange` when `at` is not this log's end, `Corrupt` when it is no log (then nothing of it was written), those of a write.
    async fn append(&self, shard: &Rc<Shard>, at: PhyOffset, bytes: Vec<u8>) -> Result<PhyOffset, StoreError> {
        let _turn = self.turn.take().await;
        let stopping = || StoreError::Poisoned { op: "append while stopping", at };
        let mut log = self.log.take().ok_or_else(stopping)?;
        let done = self.append_piece(shard, &mut log, at, bytes).await;
        self.log.replace(Some(log));
        done
    }

    async fn append_piece(
        &self,
        shard: &Rc<Shard>,
        log: &mut Log,
        at: PhyOffset,
        bytes: Vec<u8>,
    ) -> Result<PhyOffset, StoreError> {
        if log.written() == PhyOffset(0) && at != PhyOffset(0) {
            self.begin(shard, log, at).await?;
        }
        if log.written() != at {
            return Err(StoreError::OutOfRange(at));
        }
        let (from, buffer) = self.take_partial(at, &bytes);
        let walked = self.look(shard, from, &buffer).await;
        let to = match walked {
            Ok(to) => to,
            Err(e) => {
                self.put_back(from, buffer, at);
                return Err(e);
            }
        };
        if let Err(e) = self.write(shard, log, at, &bytes).await {
            self.put_back(from, buffer, at);
            return Err(e);
        }
        self.tell(shard, from, to, buffer);
        let writer = shard.writer.as_ref().expect("runs on the writer shard");
        writer.tail_moved.set();
        await_checkpoint(shard, writer).await;
        Ok(log.written())
    }

    /// The first piece that an empty log gets stands at `start`.
    async fn begin(&self, shard: &Rc<Shard>, log: &mut Log, start: PhyOffset) -> Result<(), StoreError> {
        log.start_at(start).await?;
        self.walked.set(start.0);
        self.handed_on.set(start.0);
        let marks = &shard.marks;
        for mark in [&marks.min, &marks.written, &marks.durable, &marks.readable] {
            mark.store(start.0, Ordering::Release);
        }
        Ok(())
    }

    /// What is to be walked now, and where it begins: the unfinished record and the new bytes, without what is left of a filler.
    fn take_partial(&self, at: PhyOffset, bytes: &[u8]) -> (u64, Vec<u8>) {
        let mut buffer = self.partial.take();
        let from = self.walked.get();
        let filler = from.saturating_sub(at.0).min(bytes.len() as u64) as usize;
        buffer.extend_from_slice(&bytes[filler..]);
        (from, buffer)
    }

    /// Undoes [`Copier::take_partial`].
    fn put_back(&self, from: u64, mut buffer: Vec<u8>, at: PhyOffset) {
        buffer.truncate(at.0.saturating_sub(from) as usize);
        self.partial.replace(buffer);
    }

    /// Checks the whole records of `buffer` and sees that every topic they name is known; gives the end of the last one.
    async fn look(&self, shard: &Rc<Shard>, from: u64, buffer: &[u8]) -> Result<u64, StoreError> {
        let mut unknown: BTreeMap<String, (u32, Form)> = BTreeMap::new();
        let topics = shard.topics.borrow().clone();
        let light = shard.config.borrow().light_queues();
        let to = dispatch::walk(buffer, PhyOffset(from), shard.appends.delay_levels_ms(), true, |d| {
            let mut look = |d: Dispatch<'_>| {
                if d.queued && topics.stored(d.topic).is_none() {
                    let (queues, form) = unknown.entry(d.topic.to_owned()).or_default();
                    *queues = (*queues).max(d.queue.saturating_add(1));
                    // Until the master's table comes, an inner batch alone tells what the topic is.
                    *form = if d.count.is_some() { Form::Batch } else { *form };
                }
            };
            look(d);
            if light {
                dispatch::light_places(&d, look);
            }
        })?;
        if !unknown.is_empty() {
            let adopted = shard.run_on(0, move |control| async move { control::adopt_topics(&control, unknown).await });
            adopted.await.ok_or(StoreError::Poisoned { op: "append while stopping", at: to })?;
        }
        Ok(to.0)
    }

    async fn write(&self, shard: &Rc<Shard>, log: &mut Log, at: PhyOffset, bytes: &[u8]) -> Result<(), StoreError> {
        let config = shard.config();
        let mut at = at;
        for piece in bytes.chunks(config.batch_bytes_max) {
            log.place_copy(at, piece)?;
            at = log.write(false).await?.to;
            shard.marks.written.store(at.0, Ordering::Release);
        }
        if config.flush_disk_type == FlushDiskType::SyncFlush {
            sync(shard).await?;
        }
        Ok(())
    }

    /// Shows what is whole by now (`from..to`) to the shards and keeps the rest of the buffer.
    fn tell(&self, shard: &Rc<Shard>, from: u64, to: u64, mut buffer: Vec<u8>) {
        let end = from + buffer.len() as u64;
        let whole = (to.min(end) - from) as usize;
        self.partial.replace(buffer.split_off(whole));
        self.walked.set(to);
        let readable = PhyOffset(to.min(shard.marks.written.load(Ordering::Acquire)));
        let before = self.handed_on.replace(readable.0);
        if readable.0 == before {
            return;
        }
        let light = shard.config.borrow().light_queues();
        let (mut entries, mut hashes) = (Vec::new(), Vec::new());
        let topics = shard.topics.borrow().clone();
        let walked = dispatch::walk(&buffer, PhyOffset(from), shard.appends.delay_levels_ms(), false, |d| {
            let Some(topic) = topics.stored(d.topic) else { return };
            let hash_from = hashes.len();
            record::index_key_hashes(d.topic, d.properties, d.sys_flag, |hash| hashes.push(hash));
            entries.push(entry_of(&d, topic.id, hash_from as u32, (hashes.len() - hash_from) as u16));
            if light {
                dispatch::light_places(&d, |d| {
                    let Some(topic) = topics.stored(d.topic) else { return };
                    entries.push(entry_of(&d, topic.id, 0, 0));
                });
            }
        });
        walked.expect("these records were walked before they were written");
        let bytes = buffer.len() as u32;
        let span = Span { phy: PhyOffset(from), at: 0, bytes, buffer: Arc::new(buffer) };
        let spans = if bytes > 0 { smallvec![span] } else { smallvec![] };
        let (from, since) = (PhyOffset(before), Instant::now());
        let committed = Committed { since, from, to: readable, spans, entries, hashes };
        if shard.config.borrow().confirms() {
            let unconfirmed = &shard.writer.as_ref().expect("runs on the writer shard").unconfirmed;
            unconfirmed.hold(committed);
            return unconfirmed.release(shard, bound(shard));
        }
        shard.marks.readable.store(readable.0, Ordering::Release);
        tell_all(shard, committed);
    }
}

/// Hands a piece over to the copier, from any shard; the answer comes when it is appended, also when nobody waits for it any more.
pub fn submit(shard: &Rc<Shard>, at: PhyOffset, bytes: Vec<u8>) -> flume::Receiver<Result<PhyOffset, StoreError>> {
    let (done, answer) = flume::bounded(1);
    let job = move |shard: Rc<Shard>| {
        glommio::spawn_local(async move {
            let copier = shard.writer.as_ref().and_then(|writer| writer.copier.as_ref());
            let copier = copier.expect("pieces go to a slave's writer");
            let _ = done.send(copier.append(&shard, at, bytes).await); // the connection is gone already
        })
        .detach();
    };
    shard.mesh.push(shard.writer_shard, Msg::Run(Box::new(job)));
    answer
}
