//! Brings queues, index and checkpoint in line with the log, and finds its end. Source: store-format sheet 13, and the rules of
//! bounded recovery: what the checkpoint says is synced is trusted, the rest is built again from the log.
//!
//! 1. Where to start: after an unclean stop at the checkpoint's last synced record (L), else at the newest record that is known.
//!    Queue entries of records below L are trusted, others are cut off and come again. A queue whose files are damaged, or an index
//!    that lost a file, moves the start back to where that one's good part ends.
//! 2. The walk, record by record. Its rules for an entry are in [`Recovery::take`]. If it meets an offset whose predecessors lie before
//!    the start, it is made once more from there.
//! 3. What is not decodable ends the log; below L it is damage, and is stepped over when whole records follow.
//! 4. All is flushed and synced, then the checkpoint is written. Before a change that the checkpoint on disk would not cover, a lower
//!    one is written and the store marked as running, so that a crash in here only makes the next start do the same again.
mod lost_queues;
mod renumbered;

use crate::checkpoint::{self, Checkpoint};
use crate::consume_queue::{Appended, BATCH_COUNT_MAX, Bounds, ConsumeQueue, Entry, Form};
use crate::deleted_topics::{self, Deleted};
use crate::derived;
use crate::dispatch::{self, Dispatch};
use crate::index::{Index, Lost};
use crate::io::Io;
use crate::log_scan::{At, Cursor, Segments};
use crate::open::{Opened, Progress, QueueState, RepairReport};
use crate::queue_scan::{self, QueueFiles, QueueFound, Trust};
use crate::seeded::{Bug, bug};
use crate::{StoreConfig, StoreError};
use hashbrown::HashMap;
use std::path::PathBuf;
use uringmq_proto::record;
use uringmq_proto::types::{PhyOffset, QueueOffset};

/// Log bytes between two flushes of what was rebuilt, and between two looks at the clock.
const FLUSH_EVERY_BYTES: u64 = 32 << 20;
const LOOK_EVERY_BYTES: u64 = 1 << 20;
/// Queues between two looks at it; also so many do not keep their files while more are written.
const LOOK_EVERY_QUEUES: usize = 500;
/// How often a long recovery says how far it is.
const TELL_EVERY_MS: i64 = 1000;
/// A record that stands further ahead of its queue's end than this says so by damage.
const HOLES_MAX: u64 = 1_000_000;

pub(crate) struct Recovery<'a, I: Io> {
    io: I,
    config: &'a StoreConfig,
    segments: &'a Segments,
    clean: bool,
    report: RepairReport,
    queues: Vec<Queue<I>>,
    /// Position in `queues`.
    by_name: HashMap<String, HashMap<u32, usize>>,
    index: Option<Index<I>>,
    /// Keys of records below are in the index; and so they were before the walk.
    index_from: u64,
    keys_from: u64,
    /// The checkpoint as it is on the disk.
    checkpoint: Checkpoint,
    deleted: Deleted,
    /// Where the present walk began.
    walk_from: u64,
    /// Where the next one has to begin, when this one found predecessors missing.
    deeper: Option<u64>,
    last_record: Option<(u64, i64)>,
    told_ms: i64,
    /// The disk is full: entries wait in memory, for whoever takes the queues over.
    full: bool,
}

struct Queue<I: Io> {
    found: QueueFound,
    /// Made when it is first changed.
    open: Option<ConsumeQueue<I>>,
    bounds: Bounds,
    /// Behind its last message.
    max: u64,
    last_phy: Option<u64>,
    /// Its predecessors are missing: the next walk brings them.
    waiting: bool,
    /// Records of a numbering that began anew, until a second one proves it.
    renumbered: Vec<(u64, Entry)>,
    /// Entries for which there was no room on the disk.
    pending: Vec<Entry>,
}

/// Where the walk starts, which entries are trusted, below what a bad record is damage (0: nowhere).
#[derive(Clone, Copy, Debug)]
struct Start {
    at: u64,
    trust_below: u64,
    mark: u64,
}

impl<'a, I: Io> Recovery<'a, I> {
    pub fn new(io: I, config: &'a StoreConfig, segments: &'a Segments, clean: bool, report: RepairReport) -> Self {
        Recovery {
            io,
            config,
            segments,
            clean,
            report,
            queues: Vec::new(),
            by_name: HashMap::new(),
            index: None,
            index_from: 0,
            keys_from: 0,
            checkpoint: Checkpoint::default(),
            deleted: Deleted::default(),
            walk_from: 0,
            deeper: None,
            last_record: None,
            told_ms: 0,
            full: false,
        }
    }

    pub async fn run(mut self, mut progress: impl FnMut(Progress)) -> Result<Opened, StoreError> {
        self.told_ms = self.io.now_ms();
        self.checkpoint = checkpoint::read_or_nothing(&self.io, &self.config.root).await?;
        self.deleted = deleted_topics::read(&self.io, &self.config.root).await?;
        self.lower_to_cut().await?;
        let start = self.choose_start().await?;
        self.scan_queues(&start).await?;
        if self.segments.is_empty() {
            return self.without_log();
        }
        self.compare_queue_ends().await?;
        let start = self.refine_start(start).await?;
        let mut from = self.damaged_queues(start.at).await?;
        if !self.has_queue_of_last_synced().await? {
            from = self.segments.min();
        }
        from = self.open_index(&start, from).await?;
        let end = loop {
            self.walk_from = from;
            self.cover(from, start.mark).await?;
            self.cut_index().await?;
            let end = self.walk(from, start.mark, &mut progress).await?;
            match self.deeper.take() {
                Some(deeper) if deeper < from => from = deeper,
                _ => break end,
            }
            self.queues.iter_mut().for_each(|q| q.waiting = false);
        };
        self.finish(end).await
    }

    /// Nothing in the log: then there must be nothing else either.
    fn without_log(self) -> Result<Opened, StoreError> {
        if let Some(queue) = self.queues.iter().find(|q| q.last_phy.is_some()) {
            let what = format!(
                "no segment of the log, but {} has entries; set storePathCommitLog to where the log is, or \
                 remove consumequeue, batchconsumequeue, index and checkpoint to start anew",
                queue.found.name()
            );
            return Err(StoreError::Refused { path: self.config.commit_log_dir.clone(), what });
        }
        Ok(self.opened(0))
    }

    /// With an order to cut, the checkpoint must not name what is cut.
    async fn lower_to_cut(&mut self) -> Result<(), StoreError> {
        let Some(cut) = &self.report.ordered_cut else { return Ok(()) };
        let (last, before) = (PhyOffset(cut.last), self.checkpoint);
        let checkpoint = &mut self.checkpoint;
        if checkpoint.logics_phy > last {
            (checkpoint.logics_phy, checkpoint.logics_ms) = (last, 0);
        }
        checkpoint.lowered_from = checkpoint.lowered_from.min(last);
        checkpoint.confirm_phy = checkpoint.confirm_phy.min(cut.at);
        if *checkpoint != before {
            checkpoint::write(&self.io, &self.config.root, checkpoint).await?;
        }
        Ok(())
    }

    fn ordered_end(&self) -> Option<u64> {
        self.report.ordered_cut.as_ref().map(|cut| cut.at)
    }

    async fn choose_start(&mut self) -> Result<Start, StoreError> {
        let known = self.checkpoint.logics_phy.0;
        let min = self.segments.min();
        let mut cursor = Cursor::new(self.io.clone(), self.segments, min);
        if known > 0 && known >= min && known < self.segments.limit() {
            cursor.seek(known);
            if matches!(cursor.look().await?, At::Record(_)) && cursor.at() == known {
                let trust_all = self.clean || bug(Bug::EntriesTrustedAfterCrash);
                let trust_below = if trust_all { u64::MAX } else { known };
                return Ok(Start { at: known, trust_below, mark: known + 1 });
            }
            self.report.note(format!(
                "no record at {known}, which the checkpoint names; its segment is walked from its start"
            ));
        }
        if self.clean && known == 0 {
            return Ok(Start { at: min, trust_below: u64::MAX, mark: 0 }); // refined by the queues
        }
        let at = self.segment_to_start_at(&mut cursor, known).await?;
        let mark = if known > 0 { known + 1 } else { 0 };
        Ok(Start { at, trust_below: if self.clean { u64::MAX } else { at }, mark })
    }

    /// The start of the newest segment whose first record is below what is known to be synced: by position if there is one, by time
    /// otherwise (of two records of one millisecond the later one may not be synced); the oldest segment if there is none.
    async fn segment_to_start_at(&self, cursor: &mut Cursor<'_, I>, known: u64) -> Result<u64, StoreError> {
        let last = self.report.ordered_cut.as_ref().map_or(u64::MAX, |cut| cut.last);
        for start in self.segments.starts().iter().rev().filter(|start| **start <= last) {
            cursor.seek(*start);
            if !matches!(cursor.look().await?, At::Record(_)) || cursor.at() != *start {
                continue;
            }
            let stored_ms = cursor.record().store_timestamp_ms;
            let below =
                if known > 0 { *start <= known } else { stored_ms > 0 && stored_ms < self.checkpoint.logics_ms };
            if below {
                return Ok(*start);
            }
        }
        Ok(self.segments.min())
    }

    async fn scan_queues(&mut self, start: &Start) -> Result<(), StoreError> {
        let trust = Trust { below: start.trust_below, log_min: self.segments.min() };
        let mut notes = Vec::new();
        let mut all = Vec::new();
        for form in Form::ALL {
            let kind = (form, self.config.file_bytes_of(form));
            all.extend(queue_scan::scan(&self.io, &self.config.root, kind, trust, &mut notes).await?);
        }
        notes.into_iter().for_each(|note| self.report.note(note));
        for mut found in all {
            if found.form != self.form_of(&found.topic, found.form == Form::Batch) {
                self.drop_foreign(found).await?;
                continue;
            }
            if self.is_left_by_deletion(&found) {
                let QueueFound { form, topic, queue, damage, bad_files, .. } = found;
                found = QueueFound { form, topic, queue, damage, bad_files, tail: true, ..QueueFound::default() };
            }
            self.add_queue(found);
        }
        Ok(())
    }

    /// Whether a deletion that was cut off left these files. Without a good entry their names tell only how far the topic counted before,
    /// as long as the log has every record of its next life.
    fn is_left_by_deletion(&self, found: &QueueFound) -> bool {
        let before = |below: &u64| found.last_phy.map_or(*below > self.segments.min(), |last| last < *below);
        self.deleted.get(&found.topic).is_some_and(before)
    }

    /// Which kind of queues a topic has: what is configured, else (a topic that is no more) what is found of it.
    fn form_of(&self, topic: &str, found_batch: bool) -> Form {
        match self.config.topic_forms.get(topic) {
            Some(form) => *form,
            None if found_batch => Form::Batch,
            None => Form::Plain,
        }
    }

    /// Files of the other kind than the topic's queues are: of an earlier topic of that name. The queue is built from the log.
    async fn drop_foreign(&mut self, found: QueueFound) -> Result<(), StoreError> {
        self.report.note(format!("{}: not of the topic's queue.type; built again in the other form", found.name()));
        let io = self.io.clone();
        let files = self.config.queue(io, found.form, &found.topic, found.queue, Bounds::default(), &[]);
        files.destroy().await?;
        let form = if found.form == Form::Plain { Form::Batch } else { Form::Plain };
        if self.by_name.get(&found.topic).is_none_or(|queues| !queues.contains_key(&found.queue)) {
            let QueueFound { topic, queue, .. } = found;
            let damage = Some("its files were of the other queue.type");
            self.add_queue(QueueFound { form, topic, queue, damage, ..QueueFound::default() });
        }
        Ok(())
    }

    fn add_queue(&mut self, found: QueueFound) -> usize {
        let at = self.queues.len();
        self.by_name.entry(found.topic.clone()).or_default().insert(found.queue, at);
        let (bounds, last_phy) = (found.bounds, found.last_phy);
        self.queues.push(Queue {
            found,
            open: None,
            bounds,
            max: bounds.max.0,
            last_phy,
            waiting: false,
            renumbered: Vec::new(),
            pending: Vec::new(),
        });
        at
    }

    /// After a clean stop, the newest record that any queue knows is a better start and mark than an old checkpoint.
    async fn refine_start(&mut self, start: Start) -> Result<Start, StoreError> {
        if !self.clean {
            return Ok(start);
        }
        let Some(newest) = self.queues.iter().filter_map(|q| q.last_phy).max() else {
            return Ok(Start { at: if self.queues.is_empty() { self.segments.min() } else { start.at }, ..start });
        };
        let mark = start.mark.max(newest + 1);
        if self.checkpoint.logics_phy.0 > 0 {
            return Ok(Start { mark, ..start });
        }
        let mut cursor = Cursor::new(self.io.clone(), self.segments, newest);
        let stands = newest >= self.segments.min()
            && newest < self.segments.limit()
            && matches!(cursor.look().await?, At::Record(_))
            && cursor.at() == newest;
        let at = if stands { newest } else { self.segment_to_start_at(&mut cursor, newest).await? };
        Ok(Start { at, mark, ..start })
    }

    async fn open_index(&mut self, start: &Start, from: u64) -> Result<u64, StoreError> {
        if !self.config.index_enabled {
            return Ok(from);
        }
        let (index, Lost { replay_from, notes }) = Index::open_checked(self.io.clone(), self.config).await?;
        notes.into_iter().for_each(|note| self.report.note(note));
        self.index = Some(index);
        self.index_from = start.at;
        let Some(PhyOffset(lost_from)) = replay_from else { return Ok(from) };
        let lost_from = lost_from.max(self.segments.min());
        if lost_from < self.index_from {
            self.report.note(format!("index: built again from {lost_from} on"));
            self.index_from = lost_from;
        }
        Ok(from.min(self.index_from))
    }

    async fn cut_index(&mut self) -> Result<(), StoreError> {
        match &self.index {
            // Not again in a second walk: it would put the same records once more.
            Some(index) if self.report.records == 0 => {
                self.keys_from = self.index_from;
                index.cut(PhyOffset(self.index_from)).await
            }
            _ => Ok(()),
        }
    }

    /// A crash from here on must start at `from` or before, and know that what is below `mark` was synced.
    async fn cover(&mut self, from: u64, mark: u64) -> Result<(), StoreError> {
        let root = &self.config.root;
        let lower =
            from < self.checkpoint.logics_phy.0 || (self.checkpoint.logics_phy.0 == 0 && self.deeper_than_times(from));
        if lower {
            let known = self.checkpoint.logics_phy.0.max(mark.saturating_sub(1));
            self.checkpoint.lowered_from = self.checkpoint.lowered_from.max(PhyOffset(known));
            self.checkpoint.logics_phy = PhyOffset(from);
            self.checkpoint.logics_ms = 0;
            checkpoint::write(&self.io, root, &self.checkpoint).await?;
        }
        if lower && self.clean {
            checkpoint::mark_running(&self.io, root).await?;
        }
        Ok(())
    }

    /// Whether a start chosen by time could lie above `from`.
    fn deeper_than_times(&self, from: u64) -> bool {
        self.checkpoint.logics_ms > 0 && from < self.segments.limit()
    }

    /// Returns where the log ends.
    async fn walk(&mut self, from: u64, mark: u64, progress: &mut impl FnMut(Progress)) -> Result<u64, StoreError> {
        let segments = self.segments;
        let mut cursor = Cursor::new(self.io.clone(), segments, from);
        let (mut flushed, mut looked) = (from, from);
        let mut told = from;
        self.report.scanned_from = from;
        self.report.records = 0;
        self.report.damaged.clear();
        (self.report.cut_at, self.report.cut_why) = (None, None);
        loop {
            if let Some(end) = self.ordered_end().filter(|end| cursor.at() >= *end) {
                cursor.seek(end);
                self.note_ordered_cut();
                break;
            }
            let bytes = match cursor.look().await? {
                At::Record(_)
                    if !self.clean && cursor.at() >= mark && cursor.is_torn() && !bug(Bug::TornRecordKept) =>
                {
                    self.cut_log(cursor.at(), "its last sectors are missing");
                    break;
                }
                At::Record(bytes) => bytes,
                At::End => break,
                At::Bad(what) => {
                    let bad = cursor.at();
                    if self.is_damage(bad, mark, &mut cursor).await? {
                        let to = cursor.at();
                        self.report.note(format!("log {bad}..{to}: {what}; stepped over, all around it is kept"));
                        self.report.damaged.push((bad, to));
                        continue;
                    }
                    cursor.seek(bad);
                    self.cut_log(bad, what);
                    break;
                }
            };
            let at = cursor.at();
            let record = cursor.record();
            let d = dispatch::of_record(&record, PhyOffset(at), &self.config.delay_levels_ms);
            self.take(d).await?;
            if self.config.light_queues && !bug(Bug::LightQueuesForgotten) {
                let mut lights = Vec::new();
                dispatch::light_places(&d, |light| lights.push(light));
                for light in lights {
                    self.take(light).await?;
                }
            }
            self.last_record = Some((at, record.store_timestamp_ms));
            self.report.records += 1;
            cursor.pass(bytes);
            if at - flushed >= FLUSH_EVERY_BYTES {
                flushed = at;
                self.flush().await?;
            }
            if at - looked >= LOOK_EVERY_BYTES {
                looked = at;
                let passed_ms = self.time_to_tell();
                if let Some(passed_ms) = passed_ms {
                    let bytes_per_s = (at - told) * 1000 / passed_ms;
                    told = at;
                    let (from, to) = (PhyOffset(from), PhyOffset(segments.limit()));
                    progress(Progress { at: PhyOffset(at), from, to, bytes_per_s });
                }
            }
        }
        self.report.scanned_bytes = cursor.at() - from;
        self.settle_renumbered().await?;
        Ok(cursor.at())
    }

    /// Whether a bad stretch lies below what was synced, and whole records follow, at the first of which the cursor is then.
    async fn is_damage(&self, bad: u64, mark: u64, cursor: &mut Cursor<'_, I>) -> Result<bool, StoreError> {
        let synced = bad < mark || bad <= self.checkpoint.lowered_from.0 && self.checkpoint.lowered_from.0 > 0;
        Ok(synced && !bug(Bug::DamageEndsLog) && cursor.find_next().await?)
    }

    /// How long ago the last word was, ms, when it is time for the next.
    fn time_to_tell(&mut self) -> Option<u64> {
        let now_ms = self.io.now_ms();
        let passed_ms = now_ms - self.told_ms;
        (passed_ms >= TELL_EVERY_MS).then(|| {
            self.told_ms = now_ms;
            passed_ms as u64
        })
    }

    fn note_ordered_cut(&mut self) {
        let Some(cut) = self.report.ordered_cut.clone() else { return };
        let kept = cut.kept.as_ref().map_or(String::new(), |kept| format!(", kept in {kept}"));
        let (bytes, records) = (cut.end - cut.at, cut.records);
        self.cut_log(cut.at, &format!("{}; {bytes} bytes with {records} whole records are taken off{kept}", cut.why));
    }

    fn cut_log(&mut self, at: u64, what: &str) {
        self.report.note(format!("log cut at {at}: {what}"));
        self.report.cut_at = Some(at);
        self.report.cut_why = Some(what.to_owned());
    }

    /// One record of the walk. The log is the order: an entry is there already when its record starts at or below the queue's last
    /// one; the next offset is appended; a lower one means that the topic was made anew; a higher one that entries are missing.
    async fn take(&mut self, d: Dispatch<'_>) -> Result<(), StoreError> {
        if let Some(index) = &self.index
            && d.phy.0 >= self.index_from
        {
            record::index_key_hashes(d.topic, d.properties, d.sys_flag, |hash| {
                index.put(hash, d.phy, d.store_timestamp_ms);
            });
            self.index_from = d.phy.0 + 1;
        }
        if !d.queued || self.is_of_deleted_topic(&d) {
            return Ok(());
        }
        let Some(i) = self.position(&d) else { return Ok(()) };
        let q = &self.queues[i];
        if q.waiting || q.last_phy.is_some_and(|last| d.phy.0 <= last) {
            return Ok(());
        }
        let entry = d.entry(q.found.form);
        if d.queue_offset == q.max {
            self.drop_renumbered(i);
            return self.append(i, d.queue_offset, entry).await;
        }
        if d.queue_offset < q.max && q.last_phy.is_none() {
            // Of a queue without a good entry only a file's name told the number, and files before it may be gone.
            self.restart(i, d.queue_offset).await?;
            return self.append(i, d.queue_offset, entry).await;
        }
        if d.queue_offset < q.max {
            return self.renumber(i, d.queue_offset, entry).await;
        }
        if let Some((last, of)) = q.renumbered.last()
            && last + of.count as u64 == d.queue_offset
        {
            return self.renumber(i, d.queue_offset, entry).await;
        }
        self.gap(i, d.queue_offset, entry).await
    }

    fn is_of_deleted_topic(&self, d: &Dispatch<'_>) -> bool {
        self.deleted.get(d.topic).is_some_and(|below| d.phy.0 < *below)
    }

    fn position(&mut self, d: &Dispatch<'_>) -> Option<usize> {
        if let Some(&i) = self.by_name.get(d.topic).and_then(|queues| queues.get(&d.queue)) {
            return Some(i);
        }
        let name_ok = !d.topic.is_empty() && d.topic != "." && d.topic != ".." && !d.topic.contains(['/', '\0']);
        if !name_ok || d.topic.len() > 255 {
            self.report.note(format!("record at {}: its topic cannot be a directory's name; in no queue", d.phy));
            return None;
        }
        let form = self.form_of(d.topic, d.count.is_some());
        Some(self.add_queue(QueueFound { form, topic: d.topic.to_owned(), queue: d.queue, ..QueueFound::default() }))
    }

    async fn append(&mut self, i: usize, at: u64, entry: Entry) -> Result<(), StoreError> {
        self.open_queue(i).await?;
        let q = &mut self.queues[i];
        let open = q.open.as_ref().expect("opened above");
        let appended = open.append(QueueOffset(at), entry);
        assert_eq!(appended, Appended::Done, "queue {}/{} at {at}", q.found.topic, q.found.queue);
        q.max = at + entry.count as u64;
        q.last_phy = Some(entry.phy.0);
        self.report.queue_entries_rebuilt += 1;
        Ok(())
    }

    /// Entries between the queue's end and `at` are missing.
    async fn gap(&mut self, i: usize, at: u64, entry: Entry) -> Result<(), StoreError> {
        let min = self.segments.min();
        let q = &mut self.queues[i];
        let name = q.found.name();
        let known_to = q.last_phy.filter(|last| *last >= min);
        let reach = known_to.unwrap_or(min);
        if reach < self.walk_from {
            q.waiting = true;
            self.deeper = Some(self.deeper.map_or(reach, |d| d.min(reach)));
            self.report.note(format!("{name}: entries before {at} are missing; the log is walked from {reach}"));
            return Ok(());
        }
        if known_to.is_none() {
            // All before it left with the log's older segments: the queue starts here.
            self.restart(i, at).await?;
            return self.append(i, at, entry).await;
        }
        let (max, missing) = (q.max, at - q.max);
        if missing > HOLES_MAX {
            self.report.note(format!(
                "{name}: record at {} says it has queue offset {at}, next is {max}; in no queue",
                entry.phy
            ));
            return Ok(());
        }
        self.report.note(format!("{name}: no record in the log for offsets {max}..{at}"));
        let most = if self.queues[i].found.form == Form::Plain { 1 } else { BATCH_COUNT_MAX as u64 };
        let mut hole = max;
        while hole < at {
            let count = most.min(at - hole);
            self.append(i, hole, Entry { count: count as u16, ..Entry::hole(PhyOffset(reach)) }).await?;
            hole += count;
        }
        self.append(i, at, entry).await
    }

    /// A queue without a usable entry begins at `at`.
    async fn restart(&mut self, i: usize, at: u64) -> Result<(), StoreError> {
        if let Some(open) = self.queues[i].open.take() {
            open.destroy().await?;
        } else {
            self.remove_files(i).await?;
        }
        let q = &mut self.queues[i];
        let QueueFound { form, topic, queue, .. } = &q.found;
        q.bounds = Bounds::empty(*form, QueueOffset(at));
        q.open = Some(self.config.queue(self.io.clone(), *form, topic, *queue, q.bounds, &[]));
        (q.max, q.last_phy, q.found.tail) = (at, None, false);
        Ok(())
    }

    fn dir(&self, i: usize) -> PathBuf {
        let found = &self.queues[i].found;
        self.config.queue_dir(found.form, &found.topic, found.queue)
    }

    /// Opens a queue that is to be changed, its files freed of what follows the end.
    async fn open_queue(&mut self, i: usize) -> Result<(), StoreError> {
        if self.queues[i].open.is_some() {
            return Ok(());
        }
        self.remove_bad_files(i).await?;
        let q = &mut self.queues[i];
        let io = self.io.clone();
        let open = self.config.queue(io, q.found.form, &q.found.topic, q.found.queue, q.bounds, &[]);
        if q.found.tail || !self.clean {
            open.cut(QueueOffset(q.max)).await?;
            q.found.tail = false;
        }
        q.open = Some(open);
        Ok(())
    }

    async fn remove_bad_files(&mut self, i: usize) -> Result<(), StoreError> {
        let bad = std::mem::take(&mut self.queues[i].found.bad_files);
        for path in &bad {
            let removed = self.io.remove(path).await;
            removed.map_err(|source| StoreError::File { op: "remove", path: path.clone(), source })?;
        }
        if !bad.is_empty() {
            let dir = self.dir(i);
            let synced = self.io.sync_dir(&dir).await;
            synced.map_err(|source| StoreError::File { op: "sync", path: dir, source })?;
        }
        Ok(())
    }

    /// All files of a queue, so that it can begin anywhere.
    async fn remove_files(&mut self, i: usize) -> Result<(), StoreError> {
        self.remove_bad_files(i).await?;
        let (io, q) = (self.io.clone(), &self.queues[i]);
        let bounds = Bounds { min: QueueOffset(0), first: 0, ..q.bounds };
        let all = self.config.queue(io, q.found.form, &q.found.topic, q.found.queue, bounds, &[]);
        all.cut(QueueOffset(0)).await
    }

    async fn flush(&mut self) -> Result<(), StoreError> {
        if self.full {
            return Ok(());
        }
        match self.flush_all().await {
            Err(e) if e.is_no_space() => {
                self.report.note(format!("{e}; what is built again waits in memory until there is room"));
                self.full = true;
                Ok(())
            }
            flushed => flushed,
        }
    }

    async fn flush_all(&mut self) -> Result<(), StoreError> {
        let dirty = |q: &Queue<I>| q.open.as_ref().is_some_and(ConsumeQueue::dirty);
        let dirty: Vec<usize> = (0..self.queues.len()).filter(|i| dirty(&self.queues[*i])).collect();
        for (n, piece) in dirty.chunks(LOOK_EVERY_QUEUES).enumerate() {
            let open: Vec<_> = piece.iter().filter_map(|i| self.queues[*i].open.as_ref()).collect();
            derived::flush_queues(&open, 1, open.len()).await?;
            open.iter().for_each(|queue| queue.close_idle());
            if self.time_to_tell().is_some() {
                tracing::info!(written = n * LOOK_EVERY_QUEUES + piece.len(), of = dirty.len(), "queues built again");
            }
        }
        match &self.index {
            Some(index) => index.flush().await,
            None => Ok(()),
        }
    }

    async fn finish(mut self, end: u64) -> Result<Opened, StoreError> {
        for i in 0..self.queues.len() {
            self.cut_at_log_end(i, end).await?;
            self.keep_number(i).await?;
            let q = &self.queues[i];
            if q.found.tail || !q.found.bad_files.is_empty() {
                self.report.queues_cut += q.found.tail as u64;
                self.open_queue(i).await?;
            }
        }
        deleted_topics::lower(&self.io, &self.config.root, &mut self.deleted, end).await?;
        self.flush().await?;
        let open: Vec<_> = self.queues.iter().filter_map(|q| q.open.as_ref()).collect();
        ConsumeQueue::sync_many(&self.io, &self.config.root, &open).await?;
        for q in &mut self.queues {
            if let Some(open) = q.open.take() {
                q.bounds = open.bounds();
                q.pending = open.pending();
                if q.found.gone_to > q.bounds.min.0 {
                    (q.bounds.min, q.bounds.first) = open.place_of(QueueOffset(q.found.gone_to)).await?;
                }
            }
        }
        self.commit_index().await?;
        self.segments.sync(&self.io, self.walk_from, end).await?;
        if !self.full {
            self.write_checkpoint().await?;
        }
        Ok(self.opened(end))
    }

    async fn commit_index(&mut self) -> Result<(), StoreError> {
        let (Some(index), Some((phy, ms)), false) = (&self.index, self.last_record, self.full) else { return Ok(()) };
        index.mark_indexed(PhyOffset(phy), ms);
        let (io, root, checkpoint) = (&self.io, &self.config.root, &mut self.checkpoint);
        let committed = async {
            let index_ms = index.prepare().await?;
            derived::commit_index(io, root, checkpoint, index, index_ms).await
        };
        match committed.await {
            Err(e) if e.is_no_space() => {
                self.report.note(format!("{e}; keys built again wait in memory until there is room"));
                self.full = true;
                Ok(())
            }
            committed => committed,
        }
    }

    /// A queue that had to be built again, and of which the log has no record any more, goes on with the number it had.
    async fn keep_number(&mut self, i: usize) -> Result<(), StoreError> {
        let q = &self.queues[i];
        let (gone_to, known) = (q.found.gone_to, q.max);
        if known >= gone_to || q.open.is_some() {
            return Ok(());
        }
        self.report.note(format!("{}: no record of it is left in the log; it goes on at {gone_to}", q.found.name()));
        self.restart(i, gone_to - 1).await?;
        self.append(i, gone_to - 1, Entry::hole(PhyOffset(0))).await?;
        self.queues[i].last_phy = None;
        Ok(())
    }

    /// Trusted entries may lead beyond the end when the log lost synced bytes.
    async fn cut_at_log_end(&mut self, i: usize, end: u64) -> Result<(), StoreError> {
        let q = &self.queues[i];
        if q.last_phy.is_none_or(|last| last < end) {
            return Ok(());
        }
        assert!(q.open.is_none(), "what the walk appended lies below the end");
        let (form, from, to) = (q.found.form, q.bounds.first, q.bounds.end);
        let kind = (form, self.config.file_bytes_of(form));
        let mut files = QueueFiles::list(&self.io, self.dir(i), kind, &mut Vec::new()).await?;
        let (to, last_phy) = files.end_below(from, to, end).await?;
        let bounds = files.bounds(from, to).await?;
        let q = &mut self.queues[i];
        self.report.note(format!("{}: cut to {}, the log ends at {end}", q.found.name(), bounds.max));
        (q.bounds, q.max, q.last_phy, q.found.tail) = (bounds, bounds.max.0, last_phy, true);
        Ok(())
    }

    async fn write_checkpoint(&mut self) -> Result<(), StoreError> {
        let before = self.checkpoint;
        if let Some((phy, ms)) = self.last_record {
            self.checkpoint.logics_phy = PhyOffset(phy);
            self.checkpoint.logics_ms = ms;
            self.checkpoint.physic_ms = ms;
        }
        if self.checkpoint != before {
            checkpoint::write(&self.io, &self.config.root, &self.checkpoint).await?;
        }
        Ok(())
    }

    fn opened(self, end: u64) -> Opened {
        let queues = self.queues.into_iter().map(|q| QueueState {
            form: q.found.form,
            topic: q.found.topic,
            queue: q.found.queue,
            bounds: q.bounds,
            pending: q.pending,
        });
        Opened {
            min: PhyOffset(self.segments.min()),
            end: PhyOffset(end),
            clean: self.clean,
            queues: queues.collect(),
            last_store_timestamp_ms: self.last_record.map_or(0, |(_, ms)| ms),
            covered: self.checkpoint.logics_phy,
            index_behind: (self.full && self.index.is_some()).then_some(PhyOffset(self.keys_from)),
            report: self.report,
        }
    }
}
