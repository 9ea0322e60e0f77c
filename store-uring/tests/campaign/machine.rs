//! The store under way, driven as the broker drives it: one appender with its keeper, shards whose cursors read the log and feed their queues
//! (shard 0 the index too), checkpoints, tables, retention, clean stop. All of the store's own code.
use crate::model::{Model, Part, QueueId, Sent, TABLES};
use crate::plan::{DELAY_LEVELS_MS, HALF_TOPIC, LIGHTS, Plan, ROOT, Random, TOPICS, form_of};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use uringmq_proto::message::{java_hash, prop, sys_flag};
use uringmq_proto::names::{self, SCHEDULE_TOPIC};
use uringmq_proto::record::{self, Found, NewRecord};
use uringmq_proto::types::{PhyOffset, QueueKey, QueueOffset, TopicId};
use uringmq_store::commit_log::Appender;
use uringmq_store::consume_queue::extension::Unit;
use uringmq_store::consume_queue::{Appended, Bounds, ConsumeQueue, Form};
use uringmq_store::derived::{self, Synced};
use uringmq_store::dispatch::Dispatch;
use uringmq_store::index::Index;
use uringmq_store::io::sim::SimIo;
use uringmq_store::log_reader::LogReader;
use uringmq_store::open::{self, Opened};
use uringmq_store::{StoreConfig, StoreError, checkpoint, deleted_topics, dispatch, json_table, queue_ends};

pub const SHARDS: usize = 2;
const READ_BYTES: usize = 64 * 1024;
/// Makes the random numbers of flights others than those of the runs.
const FLIGHTS: u64 = 0x5bd1_e995_7a31_44c7;

pub struct Machine {
    pub io: SimIo,
    pub config: StoreConfig,
    pub log: Appender<SimIo>,
    reader: LogReader<SimIo>,
    pub queues: BTreeMap<QueueId, ConsumeQueue<SimIo>>,
    pub index: Index<SimIo>,
    pub opened: Opened,
    shards: [Cursor; SHARDS],
    /// What the last batch, which was refused, was made from: the next one begins alike.
    refused: Option<u64>,
    /// Consumers and dispatch may read up to here.
    readable: u64,
}

#[derive(Clone, Copy)]
struct Cursor {
    at: u64,
    last: (PhyOffset, i64),
}

pub fn key(id: &QueueId) -> QueueKey {
    QueueKey { topic: TopicId(java_hash(&id.0, 0) as u32), queue: id.1 }
}

pub fn queue_dir(id: &QueueId) -> PathBuf {
    Path::new(ROOT).join(form_of(&id.0).dir()).join(&id.0).join(id.1.to_string())
}

pub fn table_path(n: usize) -> PathBuf {
    Path::new(ROOT).join("config").join(["topics.json", "consumerOffset.json"][n])
}

/// Its version, read as the broker reads tables.
pub async fn load_table(io: &SimIo, n: usize) -> Result<Option<u64>, StoreError> {
    let parse = |text: &[u8]| {
        let parsed = serde_json::from_slice::<serde_json::Value>(text).map_err(|e| e.to_string())?;
        parsed["version"].as_u64().ok_or_else(|| "no version".to_owned())
    };
    json_table::load(io, &table_path(n), parse).await
}

fn owner(id: &QueueId) -> usize {
    (java_hash(&id.0, 0) as u32 as usize + id.1 as usize) % SHARDS
}

/// A run of records to be sent to one place, encoded.
struct Run {
    id: QueueId,
    numbered: bool,
    bytes: Vec<u8>,
    lens: Vec<u32>,
    keys: Vec<String>,
    /// Of its only record, an inner batch; else 0.
    messages: u16,
    /// Its only record is in these, too.
    lights: Vec<QueueId>,
}

impl Run {
    /// What its record holds free for what is known when it is placed.
    fn reserved(&self) -> usize {
        match (self.messages, self.lights.len()) {
            (0, 0) => 0,
            (0, lights) => prop::INNER_MULTI_QUEUE_OFFSET.len() + 2 + lights * 21,
            (_, _) => prop::INNER_BASE.len() + 22,
        }
    }
}

/// The map of a record's unit, by which the judge knows it.
pub fn map_of(phy: PhyOffset) -> [u8; 4] {
    (phy.0 as u32).to_be_bytes()
}

impl Machine {
    pub async fn open(io: SimIo, config: &StoreConfig) -> Result<Machine, StoreError> {
        let opened = open::open(io.clone(), config, |_| {}).await?;
        checkpoint::mark_running(&io, &config.root).await?;
        let mut log = Appender::open(io.clone(), config, opened.min, opened.end).await?;
        log.set_store_timestamp_min(opened.last_store_timestamp_ms);
        let mut queues = BTreeMap::new();
        for q in &opened.queues {
            let id = (q.topic.clone(), q.queue);
            log.set_next(key(&id), q.bounds.max);
            let queue = config.queue(io.clone(), q.form, &q.topic, q.queue, q.bounds, &q.pending);
            queues.insert(id, queue);
        }
        for n in 0..TABLES {
            load_table(&io, n).await?;
        }
        let index = Index::open(io.clone(), config).await?;
        open::index_again(&io, config, &opened, &index).await?;
        let cursor = Cursor { at: opened.end.0, last: (PhyOffset(0), opened.last_store_timestamp_ms) };
        let reader = LogReader::new(io.clone(), config);
        reader.trim(opened.min);
        let readable = opened.end.0;
        let config = config.clone();
        Ok(Machine {
            io,
            config,
            log,
            reader,
            queues,
            index,
            opened,
            shards: [cursor; SHARDS],
            refused: None,
            readable,
        })
    }

    /// Places runs and writes them, with other work beside. Acknowledged in the model when it returns `Ok`; on an error the model says what
    /// may be there.
    pub async fn send(
        &mut self,
        plan: &Plan,
        random: &mut Random,
        model: &Rc<RefCell<Model>>,
    ) -> Result<(), StoreError> {
        self.io.advance_ms(random.pick(&[0, 1, 1500]));
        let (shape_seed, alike) = (self.refused.unwrap_or(random.next()), self.refused.take().is_some());
        let mut shape = Random::new(shape_seed);
        let runs = 1 + shape.below(5);
        let runs = if alike { 1 } else { runs };
        let mut ends = Vec::new();
        for n in 0..runs {
            let mut run = self.make_run(&mut shape, random, model, n);
            if n > 0 && !self.log.fits(run.bytes.len()) {
                break;
            }
            ends.push(self.place(&mut run, model)?);
        }
        if let Err(e) = self.fly(&ends, &mut Random::new(shape_seed ^ FLIGHTS), model).await {
            return Err(self.refused(e, shape_seed, model));
        }
        let wait = plan.sync_flush && !random.one_in(6);
        let at_once = random.one_in(2);
        let keeper = self.log.keeper();
        let mut beside_random = Random::new(random.next());
        let first = random.one_in(2);
        let (log, queues, index) = (&mut self.log, &self.queues, &self.index);
        let beside = async {
            for _ in 0..beside_random.below(4) {
                match beside_random.below(6) {
                    0 => drop(keeper.sync().await),
                    1 => {
                        for queue in queues.values() {
                            let _ = queue.flush().await;
                        }
                    }
                    2 => drop(index.flush().await),
                    _ => drop(keeper.step().await),
                }
            }
        };
        let write = log.write(wait && at_once);
        let written = match first {
            true => join(beside, write).await.1,
            false => join(write, beside).await.0,
        };
        if let Err(e) = written {
            return Err(self.refused(e, shape_seed, model));
        }
        model.borrow_mut().all_written();
        if wait && !at_once {
            self.log.keeper().sync().await?;
        }
        if wait {
            model.borrow_mut().all_durable();
        }
        self.readable = self.log.written().0;
        Ok(())
    }

    /// On a full disk the next batch is to begin like the refused one.
    fn refused(&mut self, e: StoreError, shape_seed: u64, model: &Rc<RefCell<Model>>) -> StoreError {
        if matches!(e, StoreError::NoSpace(_)) {
            model.borrow_mut().refused();
            self.refused = Some(shape_seed);
        }
        e
    }

    /// Sometimes: what is placed, in runs with these `ends`, goes in flights, two beside each other where the first ends with a whole
    /// block. What is left is `write`'s.
    async fn fly(&mut self, ends: &[u64], random: &mut Random, model: &Rc<RefCell<Model>>) -> Result<(), StoreError> {
        if random.one_in(2) || !self.log.may_start() {
            return Ok(());
        }
        let whole = ends.iter().rev().find(|end| **end <= self.log.whole_blocks_to().0).map(|end| PhyOffset(*end));
        let first = self.log.start(whole.filter(|_| !random.one_in(8)), random.one_in(2));
        let mut shape = Random::new(random.next());
        for n in 5..5 + random.below(4) {
            let mut run = self.make_run(&mut shape, random, model, n);
            if !self.log.fits(run.bytes.len()) {
                break;
            }
            self.place(&mut run, model)?;
        }
        let mut landed = Vec::new();
        if self.log.may_start() {
            let second = self.log.start(None, random.one_in(2));
            match random.one_in(2) {
                true => {
                    let (second, first) = join(second.run(), first.run()).await;
                    landed.extend([first, second]);
                }
                false => landed.extend(<[_; 2]>::from(join(first.run(), second.run()).await)),
            }
        } else {
            landed.push(first.run().await);
        }
        for landed in landed {
            match self.log.land(landed) {
                Ok(written) => {
                    model.borrow_mut().written_to(written.to.0);
                    if written.durable {
                        model.borrow_mut().all_durable();
                    }
                }
                Err(e) => {
                    self.log.give_up(&e).await;
                    return Err(e);
                }
            }
        }
        self.readable = self.log.written().0;
        Ok(())
    }

    /// As the broker does: the queues go, the table is saved, the log's position is noted.
    pub async fn delete(&mut self, topic: &str, model: &Rc<RefCell<Model>>) -> Result<(), StoreError> {
        model.borrow_mut().deleting = Some(topic.to_owned());
        self.settle().await?;
        let ids: Vec<QueueId> = self.queues.keys().filter(|id| id.0 == topic).cloned().collect();
        for id in ids {
            self.queues[&id].destroy().await?;
            self.queues.remove(&id);
        }
        let queues = TOPICS.iter().find(|(name, _)| *name == topic).map_or(0, |(_, queues)| *queues);
        for queue in 0..queues {
            self.log.set_next(key(&(topic.to_owned(), queue)), QueueOffset(0));
        }
        self.save_table(0, model).await?;
        let below = self.log.keeper().sync().await?;
        deleted_topics::note(&self.io, &self.config.root, [topic], below, self.opened.min).await?;
        let mut model = model.borrow_mut();
        let count = model.log.len();
        model.deleted.insert(topic.to_owned(), count);
        model.deleting = None;
        Ok(())
    }

    /// A bit of a file of a table flips. Of one file at a time, so that the other two can make up for it.
    pub fn decay(&self, random: &mut Random, model: &Rc<RefCell<Model>>) {
        let n = random.below(TABLES as u64) as usize;
        let part = random.pick(&[Part::Main, Part::Main, Part::Backup, Part::Mark]);
        let table = &mut model.borrow_mut().tables[n];
        if table.decayed.is_some() || table.saved == 0 || (table.kept == 0 && part != Part::Mark) {
            return;
        }
        let ending = match part {
            Part::Main => "",
            Part::Backup => ".bak",
            Part::Mark => ".sum",
        };
        let path = table_path(n);
        let path = path.with_file_name(format!("{}{ending}", path.file_name().expect("a name").to_string_lossy()));
        let bytes = self.io.contents(&path).map_or(0, |text| text.len() as u64);
        if bytes > 0 && self.io.flip_bit(&path, random.below(bytes), random.below(8) as u8) {
            table.decayed = Some(part);
        }
    }

    /// Where it goes and how long its records are is `shape`'s, their names are `random`'s.
    fn make_run(&self, shape: &mut Random, random: &mut Random, model: &Rc<RefCell<Model>>, n: u64) -> Run {
        let numbered = !shape.one_in(9);
        let (topic, queues) = shape.pick(&TOPICS);
        let topic = if numbered { topic } else { HALF_TOPIC };
        let id = (topic.to_owned(), shape.below(queues as u64) as u32);
        let most = self.config.segment_bytes as usize - 8;
        let count = if shape.one_in(4) { 1 + shape.below(4) as usize } else { 1 };
        let inner = numbered && form_of(&id.0) == Form::Batch && count == 1 && shape.one_in(2);
        let messages = if inner { 1 + shape.below(5) as u16 } else { 0 };
        let serial = model.borrow().log.len() as u64 * 100 + n * 10;
        let lights = match count == 1 && messages == 0 && numbered && names::may_dispatch(&id.0) {
            true => self.lights_of(serial),
            false => Vec::new(),
        };
        let mut run = Run { id, numbered, bytes: Vec::new(), lens: Vec::new(), keys: Vec::new(), messages, lights };
        let margin = if run.lights.is_empty() { 300 } else { 450 };
        for i in 0..count {
            let room = (most - run.bytes.len()) / (count - i);
            let body = match shape.below(20) {
                0 => room.saturating_sub(margin), // as much as a segment takes
                1..=3 => shape.below(4096) as usize,
                4 => 0,
                _ => shape.below(400) as usize,
            };
            let body = body.min(room.saturating_sub(margin));
            let name = format!("{:010}-{serial:08}-{i}", random.below(1 << 30));
            self.encode(&mut run, &name, body, shape);
        }
        run
    }

    /// Decided by the record alone, so that a life is the same without.
    fn lights_of(&self, serial: u64) -> Vec<QueueId> {
        let mut random = Random::new(serial);
        match self.config.light_queues && random.one_in(2) {
            true => random.pick(&LIGHTS).iter().map(|light| ((*light).to_owned(), 0)).collect(),
            false => Vec::new(),
        }
    }

    fn encode(&self, run: &mut Run, name: &str, body_bytes: usize, random: &mut Random) {
        let mut body = name.as_bytes().to_vec();
        body.resize(body_bytes, 0);
        for (i, byte) in body.iter_mut().enumerate().skip(name.len()) {
            *byte = if i % 700 < 100 { 0 } else { i as u8 }; // zeros too: they must not be taken for the end
        }
        let mut properties = format!("UNIQ_KEY\u{1}{name}\u{2}KEYS\u{1}{name} shared\u{2}");
        if random.one_in(2) {
            properties.push_str("TAGS\u{1}tag\u{2}");
        }
        if run.id.0 == SCHEDULE_TOPIC {
            properties.push_str(random.pick(&["DELAY\u{1}1\u{2}", "DELAY\u{1}2\u{2}"]));
        }
        if run.messages > 0 {
            properties += &format!("INNER_NUM\u{1}{}\u{2}", run.messages);
        }
        if !run.lights.is_empty() {
            let lights: Vec<&str> = run.lights.iter().map(|(light, _)| light.as_str()).collect();
            properties += &format!("INNER_MULTI_DISPATCH\u{1}{}\u{2}", lights.join(","));
        }
        let reserved = "\u{2}".repeat(run.reserved());
        let inner = if run.messages > 0 { sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP } else { 0 };
        let host = if random.one_in(4) { "[::1]:9" } else { "127.0.0.1:9" };
        let new = NewRecord {
            topic: &run.id.0,
            queue_id: run.id.1,
            flag: 0,
            sys_flag: if run.numbered { inner } else { sys_flag::TRANSACTION_PREPARED },
            born_timestamp_ms: 1,
            born_host: host.parse().expect("an address"),
            store_host: "127.0.0.1:2".parse().expect("an address"),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            properties: &properties,
            more_properties: &reserved,
        };
        run.lens.push(record::encode(&mut run.bytes, &new).expect("within all limits") as u32);
        run.keys.push(name.to_owned());
    }

    /// Gives where the run ends.
    fn place(&mut self, run: &mut Run, model: &Rc<RefCell<Model>>) -> Result<u64, StoreError> {
        let next = self.log.next(key(&run.id));
        let lights: Vec<_> = run.lights.iter().map(|id| (id.clone(), self.log.next(key(id)).0)).collect();
        let text = match (run.messages, lights.is_empty()) {
            (0, true) => None,
            (0, false) => {
                let numbers: Vec<String> = lights.iter().map(|(_, at)| at.to_string()).collect();
                Some(format!("INNER_MULTI_QUEUE_OFFSET\u{1}{}\u{2}", numbers.join(",")))
            }
            (_, _) => Some(format!("INNER_BASE\u{1}{}\u{2}", next.0)),
        };
        if let Some(text) = text {
            let reserved = run.reserved();
            let bytes = record::finish(&mut run.bytes, reserved, &text);
            run.bytes.truncate(bytes);
            run.lens[0] = bytes as u32;
        }
        let count = match (run.numbered, run.messages) {
            (false, _) => 0,
            (true, 0) => run.lens.len() as u64,
            (true, messages) => messages as u64,
        };
        let placed = self.log.place_counted((key(&run.id), count), &mut run.bytes, &run.lens)?;
        let mut model = model.borrow_mut();
        for (id, at) in &lights {
            assert_eq!((self.log.take_offsets(key(id), 1), model.next(id)), (*at, *at), "offset of {id:?}");
        }
        if run.numbered {
            let known = model.next(&run.id);
            assert_eq!((placed.queue_offset, next), (QueueOffset(known), QueueOffset(known)), "offset of {:?}", run.id);
        }
        let (mut at, mut phy) = (0, placed.phy.0);
        for (n, len) in run.lens.iter().enumerate() {
            let bytes = run.bytes[at..at + *len as usize].to_vec();
            let Ok(Found::Record(parsed)) = record::parse(&bytes, true) else { panic!("encoded just now") };
            let d = dispatch::of_record(&parsed, PhyOffset(phy), &DELAY_LEVELS_MS);
            let (tags_code, place) =
                (d.tags_code, run.numbered.then(|| (run.id.clone(), placed.queue_offset.0 + n as u64)));
            let (key, topic) = (run.keys[n].clone(), run.id.0.clone());
            let batch = form_of(&topic) == Form::Batch;
            let (count, stored_ms) = (d.messages(), if batch { d.store_timestamp_ms } else { 0 });
            let lights = lights.clone(); // of the only one
            model.log.push(Rc::new(Sent { phy, bytes, at: place, lights, tags_code, count, stored_ms, key, topic }));
            at += *len as usize;
            phy += *len as u64;
        }
        Ok(phy)
    }

    /// One shard's cursor reads up to `bytes` further.
    pub async fn dispatch(&mut self, shard: usize) -> Result<(), StoreError> {
        let cursor = self.shards[shard];
        if cursor.at >= self.readable {
            return Ok(());
        }
        let limit = PhyOffset(self.readable);
        let bytes = self.reader.read_range(PhyOffset(cursor.at), READ_BYTES, limit).await?;
        let (queues, index, config, io) = (&mut self.queues, &self.index, &self.config, &self.io);
        let mut last = cursor.last;
        let to = dispatch::walk(&bytes, PhyOffset(cursor.at), &config.delay_levels_ms, true, |d| {
            last = (d.phy, d.store_timestamp_ms);
            if shard == 0 {
                record::index_key_hashes(d.topic, d.properties, d.sys_flag, |hash| {
                    index.put(hash, d.phy, d.store_timestamp_ms);
                });
            }
            let mut take = |d: Dispatch<'_>, light: bool| {
                let id = (d.topic.to_owned(), d.queue);
                if !d.queued || owner(&id) != shard {
                    return;
                }
                let queue = queues.entry(id).or_insert_with_key(|id| {
                    let form = form_of(&id.0);
                    config.queue(io.clone(), form, &id.0, id.1, Bounds::empty(form, QueueOffset(0)), &[])
                });
                let (at, entry) = (QueueOffset(d.queue_offset), d.entry(queue.form()));
                let appended = match queue.makes_units() && !light {
                    true => {
                        let (tags_code, stored_ms) = (d.tags_code, d.store_timestamp_ms);
                        queue.append_with(at, entry, Unit { tags_code, stored_ms, map: map_of(d.phy).into() })
                    }
                    false => queue.append(at, entry),
                };
                assert_eq!(appended, Appended::Done);
            };
            take(d, false);
            if config.light_queues {
                dispatch::light_places(&d, |light| take(light, true));
            }
        })?;
        assert!(to.0 > cursor.at, "no whole record in {} bytes at {}", bytes.len(), cursor.at);
        self.shards[shard] = Cursor { at: to.0.min(self.readable), last };
        Ok(())
    }

    pub async fn settle(&mut self) -> Result<(), StoreError> {
        for shard in 0..SHARDS {
            while self.shards[shard].at < self.readable {
                self.dispatch(shard).await?;
            }
        }
        Ok(())
    }

    pub async fn flush(&mut self, shard: usize) -> Result<(), StoreError> {
        for (_, queue) in self.queues.iter().filter(|(id, _)| owner(id) == shard) {
            queue.flush().await?;
            if self.shards[shard].at.is_multiple_of(3) {
                queue.shrink();
                queue.close_idle();
            }
        }
        if shard == 0 { self.index.flush().await } else { Ok(()) }
    }

    pub async fn checkpoint(&mut self, model: &Rc<RefCell<Model>>) -> Result<(), StoreError> {
        let mut all = Vec::new();
        let mut index_ms = None;
        for (n, shard) in self.shards.iter().enumerate() {
            let (last, last_ms) = shard.last;
            let queues: Vec<_> = self.queues.iter().filter(|(id, _)| owner(id) == n).map(|(_, q)| q).collect();
            derived::sync_queues(&self.io, &self.config.root, &queues, 2).await?;
            if n == 0 && self.config.index_enabled {
                index_ms = Some(self.index.prepare().await?);
            }
            all.push(Synced { last, last_ms });
        }
        let durable = self.log.keeper().sync().await?;
        let index = index_ms.map(|ms| (&self.index, ms));
        derived::advance(&self.io, &self.config.root, index, &all, durable).await?;
        model.borrow_mut().checkpointed = checkpoint::read(&self.io, &self.config.root).await?.logics_phy.0;
        Ok(())
    }

    /// Recovery may have lowered it, and then written a later one or not.
    pub fn forget_checkpoints_above(&self, known: PhyOffset, model: &Rc<RefCell<Model>>) {
        let mut model = model.borrow_mut();
        model.checkpointed = model.checkpointed.min(known.0);
    }

    pub async fn save_table(&mut self, n: usize, model: &Rc<RefCell<Model>>) -> Result<(), StoreError> {
        let version = {
            let table = &mut model.borrow_mut().tables[n];
            table.tried += 1;
            table.tried
        };
        json_table::save(&self.io, &table_path(n), table_text(version).as_bytes()).await?;
        let table = &mut model.borrow_mut().tables[n];
        let backup = self.io.contents(&table_path(n).with_extension("json.bak"));
        table.saved_now(table.saved > 0 && backup.is_some_and(|text| text == table_text(table.saved).as_bytes()));
        Ok(())
    }

    /// As retention does when the disk is full: the oldest segment goes, then what leads into it.
    pub async fn retain(&mut self, model: &Rc<RefCell<Model>>) -> Result<(), StoreError> {
        let keeper = self.log.keeper();
        let Some((oldest, _)) = keeper.closed_segments().await?.first().copied() else { return Ok(()) };
        let synced = checkpoint::read(&self.io, &self.config.root).await?.logics_phy;
        let before = model.borrow().floor;
        model.borrow_mut().floor = before.max(oldest.0 + self.config.segment_bytes);
        let min = keeper.remove_oldest(synced).await?;
        if min <= oldest {
            model.borrow_mut().floor = before;
        }
        self.reader.trim(min);
        for queue in self.queues.values() {
            queue.trim(min).await?;
        }
        self.index.trim(min).await
    }

    /// The clean stop.
    pub async fn stop(mut self, model: &Rc<RefCell<Model>>) -> Result<(), StoreError> {
        self.settle().await?;
        self.checkpoint(model).await?;
        for n in 0..TABLES {
            self.save_table(n, model).await?;
        }
        let checkpoint = checkpoint::read(&self.io, &self.config.root).await?;
        let ends = self.queues.iter().map(|((topic, queue), q)| (topic.as_str(), *queue, q.max()));
        queue_ends::write(&self.io, &self.config.root, &checkpoint, ends).await?;
        model.borrow_mut().all_durable();
        checkpoint::mark_clean(&self.io, &self.config.root).await
    }
}

fn table_text(version: u64) -> String {
    let filler = "x".repeat((version % 7) as usize * 300);
    format!("{{\"version\":{version},\"filler\":\"{filler}\"}}")
}

/// Both, by turns.
pub async fn join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut a_done, mut b_done) = (None, None);
    poll_fn(|cx| {
        if a_done.is_none()
            && let Poll::Ready(out) = a.as_mut().poll(cx)
        {
            a_done = Some(out);
        }
        if b_done.is_none()
            && let Poll::Ready(out) = b.as_mut().poll(cx)
        {
            b_done = Some(out);
        }
        if a_done.is_some() && b_done.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (a_done.expect("polled to its end"), b_done.expect("polled to its end"))
}
