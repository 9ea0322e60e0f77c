//! The consume queues against the log. Each record must have its entry, and each entry its record. Source: store-format sheet 4.
use crate::store::ToolError;
use crate::store::check::units::Units;
use crate::store::files::{Parts, data_from, file_name, has_lights, names, read_at, topic_forms};
use crate::store::report::{Fault, Report};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use uringmq_proto::names::SCHEDULE_TOPIC;
use uringmq_proto::types::PhyOffset;
use uringmq_store::EXTENSION_DIR;
use uringmq_store::consume_queue::extension::place_of;
use uringmq_store::consume_queue::{Entry, Form};
use uringmq_store::dispatch::{self, Dispatch};

/// Entries read at once.
const WINDOW: u64 = 204;
/// Entries read at once when a whole file is walked.
const WIDE_WINDOW: u64 = 16 * 1024;
/// Faults of one queue that are kept until it is known whether its topic was made anew.
const KEPT_MAX: usize = 100;

pub(super) struct Queues {
    root: PathBuf,
    log_min: u64,
    settled_below: u64,
    /// Of `topics.json`; `None` when it cannot be read.
    topics: Option<HashSet<String>>,
    /// Topics whose queues are batch queues.
    batch: HashSet<String>,
    /// There are light queues.
    lights: bool,
    by_topic: BTreeMap<String, HashMap<u32, Queue>>,
}

struct Queue {
    form: Form,
    /// Below the store.
    dir: String,
    files: Parts,
    /// `None` in a batch queue.
    units: Option<Units>,
    /// Entries as they were read, from this one on.
    window_from: u64,
    window: Vec<u8>,
    first: Option<u64>,
    next: u64,
    /// Slots of the entries that these have, which are their offsets but in a batch queue.
    first_slot: u64,
    next_slot: u64,
    /// Offsets whose entry is not there: from, to, the first one's record and slot.
    absent: Option<(u64, u64, u64, u64)>,
    /// Faults with their record's place; dropped when the numbering begins anew.
    found: Vec<(u64, Fault)>,
    records: u64,
}

impl Queue {
    fn open(root: &Path, form: Form, topic: &str, queue: u32) -> Result<Queue, ToolError> {
        let dir = format!("{}/{topic}/{queue}", form.dir());
        let files = Parts::list(&root.join(&dir))?;
        let slot = files.first().div_ceil(form.entry_bytes() as u64);
        Ok(Queue {
            form,
            first_slot: slot,
            next_slot: slot,
            dir,
            files,
            units: (form == Form::Plain).then(|| Units::open(root, topic, queue)).transpose()?,
            window_from: 0,
            window: Vec::new(),
            first: None,
            next: 0,
            absent: None,
            found: Vec::new(),
            records: 0,
        })
    }

    fn entry_bytes(&self) -> u64 {
        self.form.entry_bytes() as u64
    }

    /// The bytes of a slot; `None` where no file has it.
    fn entry(&mut self, at: u64, window: u64) -> Result<Option<Vec<u8>>, ToolError> {
        let size = self.entry_bytes();
        let have = self.window.len() as u64 / size;
        if at < self.window_from || at >= self.window_from + have {
            let Some(part) = self.files.part_of(at * size) else { return Ok(None) };
            let count = window.min((part.end() - at * size) / size);
            self.window.resize((count * size) as usize, 0);
            let (path, mut file) = self.files.open(part)?;
            let read = read_at(&mut file, at * size - part.start, &mut self.window);
            let read = read.map_err(ToolError::io("read", &path))?;
            self.window.truncate(read - read % size as usize);
            self.window_from = at;
        }
        let from = ((at - self.window_from) * size) as usize;
        Ok(self.window.get(from..from + size as usize).map(<[u8]>::to_vec))
    }

    /// The slot in which the entry of a record with this offset is, or would be.
    fn slot_of(&mut self, offset: u64) -> Result<u64, ToolError> {
        if self.form == Form::Plain {
            return Ok(offset);
        }
        let mut slot = self.next_slot;
        // What comes before leads to records that left with the log's older segments, or to none.
        while let Some(bytes) = self.entry(slot, WIDE_WINDOW)?
            && self.form.decode(slot, &bytes).is_some_and(|entry| entry.end() <= offset)
        {
            slot += 1;
        }
        Ok(slot)
    }

    /// Offsets that a record takes here.
    fn messages(&self, d: &Dispatch<'_>) -> u64 {
        if self.form == Form::Batch { d.messages() as u64 } else { 1 }
    }

    /// At the place of slot `at`.
    fn fault(&self, at: u64, what: String) -> Fault {
        let byte = at * self.entry_bytes();
        let named = self.files.part_of(byte).map(|part| part.start);
        match named.or_else(|| byte.checked_rem(self.files.file_bytes).map(|within| byte - within)) {
            Some(start) => Fault { file: format!("{}/{}", self.dir, file_name(start)), at: byte - start, what },
            None => Fault { file: self.dir.clone(), at: byte, what },
        }
    }

    fn keep(&mut self, phy: u64, fault: Fault) {
        if self.found.len() < KEPT_MAX {
            self.found.push((phy, fault));
        }
    }

    /// The run of absent entries is over.
    fn settle_absent(&mut self) {
        if let Some((from, to, phy, slot)) = self.absent.take() {
            let what = match to - from {
                1 => format!("no entry for queue offset {from}, whose record is in the log at {phy}"),
                _ => format!(
                    "no entries for queue offsets {from} to {}, whose records are in the log from {phy} on",
                    to - 1
                ),
            };
            let fault = self.fault(slot, what);
            self.keep(phy, fault);
        }
    }

    /// Compares the entry of a record that is in order.
    fn compare(&mut self, d: &Dispatch<'_>) -> Result<(), ToolError> {
        let at = d.queue_offset;
        let slot = self.slot_of(at)?;
        let bytes = self.entry(slot, WINDOW)?;
        let entry = bytes.as_ref().and_then(|bytes| self.form.decode(slot, bytes)).filter(|entry| entry.base <= at);
        let Some(entry) = entry else {
            let end = at + self.messages(d);
            match (&mut self.absent, bytes.as_deref()) {
                (Some((_, to, ..)), None | Some([0, ..])) if *to == at => *to = end,
                _ => {
                    self.settle_absent();
                    self.absent = Some((at, end, d.phy.0, slot));
                }
            }
            return Ok(());
        };
        self.settle_absent();
        if self.next_slot == self.first_slot {
            self.first_slot = slot;
        }
        self.next_slot = slot + 1;
        let expected = d.entry(self.form);
        let numbers = |e: &Entry| (e.count, e.stored_ms);
        if self.form == Form::Batch && (entry.base != at || numbers(&entry) != numbers(&expected)) {
            let shown = |e: &Entry, base| format!("{} messages from {base} on, stored at {} ms", e.count, e.stored_ms);
            let what = format!(
                "entry of queue offset {at} says {}; its record says {}",
                shown(&entry, entry.base),
                shown(&expected, at)
            );
            let fault = self.fault(slot, what);
            self.keep(d.phy.0, fault);
        }
        let mut entry = entry;
        if let (None, Some(units)) = (entry.tags(), &mut self.units) {
            match units.unit(entry.unit)? {
                Some((tags_code, stored_ms)) if stored_ms == d.store_timestamp_ms => entry.tags_code = tags_code,
                found => {
                    let (dir, place) = (self.dir.replacen(Form::Plain.dir(), EXTENSION_DIR, 1), place_of(entry.unit));
                    let what = match found {
                        Some((_, ms)) => format!("leads to a unit of {dir}, at {place}, that was stored at {ms} ms"),
                        None => format!("leads to {dir}, at {place}, where no unit is"),
                    };
                    let fault = self.fault(slot, format!("entry of queue offset {at} {what}"));
                    self.keep(d.phy.0, fault);
                }
            }
        }
        let tags_right = entry.tags().is_none_or(|tags| tags == d.tags_code) || d.topic == SCHEDULE_TOPIC;
        if entry.phy != d.phy || entry.bytes != d.bytes || !tags_right {
            let shown = |phy: PhyOffset, bytes, tags| format!("offset {phy}, {bytes} bytes, tagsCode {tags}");
            let what = format!(
                "entry of queue offset {at} says {}; its record says {}",
                shown(entry.phy, entry.bytes, entry.tags_code),
                shown(d.phy, d.bytes, d.tags_code)
            );
            let fault = self.fault(slot, what);
            self.keep(d.phy.0, fault);
        }
        Ok(())
    }
}

impl Queues {
    pub(super) fn open(root: &Path, log_min: u64, settled_below: u64, report: &mut Report) -> Result<Self, ToolError> {
        let forms = topic_forms(root)?;
        let topics: Option<HashSet<String>> = forms.as_ref().map(|forms| forms.keys().cloned().collect());
        if topics.is_none() {
            report.remark("config/topics.json: missing or not readable".to_owned());
        }
        let mut batch: HashSet<String> = names(&root.join(Form::Batch.dir()))?.into_iter().collect();
        batch.extend(forms.into_iter().flatten().filter(|(_, form)| *form == Form::Batch).map(|(name, _)| name));
        let lights = has_lights(root)?;
        let by_topic = BTreeMap::new();
        let mut queues = Queues { root: root.to_owned(), log_min, settled_below, topics, batch, lights, by_topic };
        for kind in Form::ALL.map(Form::dir) {
            for topic in names(&root.join(kind))? {
                for name in names(&root.join(kind).join(&topic))? {
                    match name.parse::<u32>().ok().filter(|n| n.to_string() == name) {
                        Some(_) if kind != queues.form(&topic).dir() => {
                            report.remark(format!("{kind}/{topic}/{name}: the topic has queues of the other kind"));
                        }
                        Some(queue) => queues.add(&topic, queue, report)?,
                        None => report.remark(format!("{kind}/{topic}/{name}: not a queue's number")),
                    }
                }
            }
        }
        queues.compare_lengths(report);
        Ok(queues)
    }

    fn form(&self, topic: &str) -> Form {
        if self.batch.contains(topic) { Form::Batch } else { Form::Plain }
    }

    /// The files of all queues of a kind have one length.
    fn compare_lengths(&mut self, report: &mut Report) {
        Form::ALL.into_iter().for_each(|form| self.compare_lengths_of(form, report));
    }

    fn compare_lengths_of(&mut self, form: Form, report: &mut Report) {
        let mut lengths: BTreeMap<u64, usize> = BTreeMap::new();
        let queues = || self.by_topic.values().flat_map(HashMap::values).filter(|q| q.form == form);
        queues().filter(|q| q.files.file_bytes > 0).for_each(|q| *lengths.entry(q.files.file_bytes).or_default() += 1);
        let Some((usual, _)) = lengths.into_iter().max_by_key(|(_, count)| *count) else { return };
        for queue in self.by_topic.values_mut().flat_map(HashMap::values_mut).filter(|q| q.form == form) {
            for part in
                queue.files.parts.iter().filter(|part| part.bytes != usual && part.bytes == queue.files.file_bytes)
            {
                let what = format!("has {} bytes, those of other queues {usual}", part.bytes);
                report.fault(Fault { file: format!("{}/{}", queue.dir, file_name(part.start)), at: 0, what });
            }
            queue.files.file_bytes = usual;
        }
    }

    fn add(&mut self, topic: &str, queue: u32, report: &mut Report) -> Result<(), ToolError> {
        let opened = Queue::open(&self.root, self.form(topic), topic, queue)?;
        for (name, what) in &opened.files.odd {
            report.fault(Fault { file: format!("{}/{name}", opened.dir), at: 0, what: what.clone() });
        }
        if !self.by_topic.contains_key(topic) {
            self.by_topic.insert(topic.to_owned(), HashMap::new());
        }
        self.by_topic.get_mut(topic).expect("it is there now").insert(queue, opened);
        Ok(())
    }

    /// The next record of the log.
    pub(super) fn take(&mut self, d: &Dispatch<'_>, report: &mut Report) -> Result<(), ToolError> {
        let mut lights = Vec::new();
        if self.lights {
            dispatch::light_places(d, |light| lights.push(light));
        }
        self.take_one(d, report)?;
        lights.iter().try_for_each(|light| self.take_one(light, report))
    }

    /// The entry that a record has in one queue.
    fn take_one(&mut self, d: &Dispatch<'_>, report: &mut Report) -> Result<(), ToolError> {
        if !d.queued {
            return Ok(());
        }
        if !self.by_topic.get(d.topic).is_some_and(|queues| queues.contains_key(&d.queue)) {
            self.add(d.topic, d.queue, report)?;
        }
        let queue = self.by_topic.get_mut(d.topic).and_then(|queues| queues.get_mut(&d.queue)).expect("added above");
        let (at, phy) = (d.queue_offset, d.phy.0);
        queue.records += 1;
        if queue.first.is_some() && at < queue.next {
            if at > 0 {
                let what = format!(
                    "the record at {phy} says it has queue offset {at}, as one before it; next is {}",
                    queue.next
                );
                let fault = queue.fault(queue.next_slot, what);
                queue.keep(phy, fault);
                return Ok(());
            }
            let (dir, next) = (&queue.dir, queue.next);
            report.remark(format!(
                "{dir}: numbered anew by the record at {phy}, after {next}: its topic was deleted and made again"
            ));
            queue.found.clear();
            queue.absent = None;
            queue.first = None;
            queue.next_slot = queue.files.first().div_ceil(queue.entry_bytes());
            queue.first_slot = queue.next_slot;
        }
        if queue.first.is_none() {
            queue.first = Some(at);
            queue.next = at;
        }
        if at > queue.next {
            queue.settle_absent();
            let what = format!("no records in the log for queue offsets {} to {}", queue.next, at - 1);
            let fault = queue.fault(queue.next_slot, what);
            queue.keep(phy, fault);
        }
        queue.next = at + queue.messages(d);
        queue.compare(d)
    }

    /// The log ends at `end`: what is left in the queues must lead below it.
    pub(super) fn finish(&mut self, end: u64, report: &mut Report) -> Result<(), ToolError> {
        let (log_min, settled_below) = (self.log_min, self.settled_below);
        for (topic, queues) in std::mem::take(&mut self.by_topic) {
            let gone = self.topics.as_ref().is_some_and(|known| !known.contains(&topic));
            let mut in_no_queue = 0;
            for (_, mut queue) in queues {
                if gone && queue.files.parts.is_empty() {
                    in_no_queue += queue.records;
                    continue;
                }
                report.queues += 1;
                report.queue_entries += queue.records;
                queue.settle_absent();
                for (phy, fault) in std::mem::take(&mut queue.found) {
                    report.found(phy >= settled_below, fault);
                }
                queue.rest(log_min, end, settled_below, report)?;
            }
            if in_no_queue > 0 {
                report.remark(format!("{in_no_queue} records of {topic}, a topic that is no more: in no queue"));
            }
        }
        Ok(())
    }
}

impl Queue {
    /// Entries outside of those that records of the log have.
    fn rest(&mut self, log_min: u64, end: u64, settled_below: u64, report: &mut Report) -> Result<(), ToolError> {
        let has = self.first.map(|first| match self.form {
            Form::Plain => first..self.next,
            Form::Batch => self.first_slot..self.next_slot,
        });
        let size = self.entry_bytes();
        for part in self.files.parts.clone() {
            let (mut at, to) = (part.start.div_ceil(size), part.end() / size);
            while at < to {
                if let Some(has) = has.as_ref().filter(|has| has.contains(&at)) {
                    at = has.end;
                    continue;
                }
                let (path, file) = self.files.open(part)?;
                let data = data_from(&file, at * size - part.start).map_err(ToolError::io("seek", &path))?;
                let data_at = data.map_or(to, |data| (part.start + data) / size).max(at);
                let upto = has.as_ref().map_or(to, |has| if at < has.start { has.start.min(to) } else { to });
                at = data_at.min(upto);
                let window_to = (at + WIDE_WINDOW).min(upto);
                while at < window_to {
                    let Some(bytes) = self.entry(at, WIDE_WINDOW)? else { break };
                    match self.form.decode(at, &bytes) {
                        None if bytes.iter().all(|b| *b == 0) => {}
                        None => self.stray(at, "not an entry".to_owned(), u64::MAX, settled_below, report),
                        Some(entry) if entry.is_hole() || entry.phy.0 < log_min => {}
                        Some(entry) => {
                            let phy = entry.phy.0;
                            let place =
                                if phy >= end { "behind the end of the log" } else { "where no such record stands" };
                            let what = format!("entry of queue offset {} leads to offset {phy}, {place}", entry.base);
                            self.stray(at, what, phy, settled_below, report);
                        }
                    }
                    at += 1;
                }
                if at < window_to {
                    break;
                }
            }
        }
        Ok(())
    }

    fn stray(&self, at: u64, what: String, phy: u64, settled_below: u64, report: &mut Report) {
        report.found(phy >= settled_below && settled_below != u64::MAX, self.fault(at, what));
    }
}
