//! A small store on the simulated disk, driven as the broker drives it: records through the appender, entries and keys through the
//! derived files, a checkpoint now and then. The tests judge what a reopened one holds against what was acknowledged.
#![allow(dead_code)] // each test binary uses its part
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use uringmq_proto::message::java_hash;
use uringmq_proto::record::{self, NewRecord};
use uringmq_proto::types::{PhyOffset, QueueKey, QueueOffset, TopicId};
use uringmq_store::checkpoint::{self, Checkpoint};
use uringmq_store::commit_log::Appender;
use uringmq_store::consume_queue::{Appended, ConsumeQueue, Entry};
use uringmq_store::index::Index;
use uringmq_store::io::sim::SimIo;
use uringmq_store::log_reader::LogReader;
use uringmq_store::open::{self, Opened};
use uringmq_store::{StoreConfig, StoreError, cut, dispatch, queue_ends};

pub const ROOT: &str = "/s";
pub const TOPICS: [&str; 2] = ["A", "B"];

/// Small enough that everything rolls soon: 16 records of 400 bytes a segment, 10 entries a queue file, 29 keys an index file.
pub fn config() -> StoreConfig {
    StoreConfig {
        root: ROOT.into(),
        commit_log_dir: Path::new(ROOT).join("commitlog"),
        segment_bytes: 8192,
        queue_file_bytes: 200,
        batch_file_bytes: 460,
        extension_file_bytes: 40_000,
        extensions: uringmq_store::Extensions::None,
        topic_forms: Default::default(),
        light_queues: false,
        index_enabled: true,
        index_slots: 7,
        index_items: 30,
        delay_levels_ms: vec![1000],
        record_bytes_max: 4096,
        batch_bytes_max: 4096,
        warm_ahead_bytes: 0,
        read_cache_bytes: 1 << 20,
    }
}

/// What was put, by topic and queue: bodies in the order of their offsets.
pub type Model = BTreeMap<(String, u32), Vec<Vec<u8>>>;

pub struct Store {
    pub io: SimIo,
    pub config: StoreConfig,
    pub log: Appender<SimIo>,
    pub queues: BTreeMap<(String, u32), ConsumeQueue<SimIo>>,
    pub index: Index<SimIo>,
    pub opened: Opened,
    /// Last record placed: start and store time.
    last: (PhyOffset, i64),
}

fn key(topic: &str, queue: u32) -> QueueKey {
    QueueKey { topic: TopicId(java_hash(topic, 0) as u32), queue }
}

pub fn queue_dir(topic: &str, queue: u32) -> PathBuf {
    Path::new(ROOT).join("consumequeue").join(topic).join(queue.to_string())
}

/// The body of the n-th record of a queue, about 200 bytes.
pub fn body(topic: &str, queue: u32, n: usize) -> Vec<u8> {
    let text = format!("{topic}/{queue}/{n} ");
    text.repeat(200 / text.len()).into_bytes()
}

impl Store {
    pub async fn open(io: SimIo, config: StoreConfig) -> Result<Store, StoreError> {
        let opened = open::open(io.clone(), &config, |_| {}).await?;
        let mut log = Appender::open(io.clone(), &config, opened.min, opened.end).await?;
        let mut queues = BTreeMap::new();
        for q in &opened.queues {
            let dir = queue_dir(&q.topic, q.queue);
            let bytes = config.queue_file_bytes;
            let queue = ConsumeQueue::with_pending(q.form, io.clone(), dir, bytes, q.bounds, &q.pending);
            log.set_next(key(&q.topic, q.queue), q.bounds.max);
            queues.insert((q.topic.clone(), q.queue), queue);
        }
        if opened.report.ordered_cut.is_some() {
            cut::done(&io, &config.root).await?;
        }
        let index = Index::open(io.clone(), &config).await?;
        open::index_again(&io, &config, &opened, &index).await?;
        checkpoint::mark_running(&io, &config.root).await?;
        let last = (PhyOffset(0), opened.last_store_timestamp_ms);
        Ok(Store { io, config, log, queues, index, opened, last })
    }
    /// Places, writes (with sync) and dispatches records of one queue; acknowledged when it returns.
    pub async fn put(&mut self, topic: &str, queue: u32, bodies: &[Vec<u8>], sync: bool) -> Result<(), StoreError> {
        let (mut bytes, mut lens) = (Vec::new(), Vec::new());
        for body in bodies {
            let name = String::from_utf8_lossy(body);
            let name = name.split(' ').next().unwrap_or_default();
            let new = NewRecord {
                topic,
                queue_id: queue,
                flag: 0,
                sys_flag: 0,
                born_timestamp_ms: 1,
                born_host: "127.0.0.1:1".parse().expect("an address"),
                store_host: "127.0.0.1:2".parse().expect("an address"),
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body,
                properties: &format!("UNIQ_KEY\u{1}{name}\u{2}TAGS\u{1}t\u{2}"),
                more_properties: "",
            };
            lens.push(record::encode(&mut bytes, &new).expect("small") as u32);
        }
        self.io.advance_ms(10);
        let placed = self.log.place(key(topic, queue), true, &mut bytes, &lens)?;
        self.log.write(sync).await?;
        let dir = queue_dir(topic, queue);
        let q = self.queues.entry((topic.to_owned(), queue)).or_insert_with(|| {
            ConsumeQueue::new(self.io.clone(), dir, self.config.queue_file_bytes, QueueOffset(0), QueueOffset(0))
        });
        let index = &self.index;
        let mut last = self.last;
        dispatch::walk(&bytes, placed.phy, &self.config.delay_levels_ms, true, |d| {
            let entry = Entry::new(d.phy, d.bytes, d.tags_code);
            assert_eq!(q.append(QueueOffset(d.queue_offset), entry), Appended::Done);
            record::index_key_hashes(d.topic, d.properties, d.sys_flag, |hash| {
                index.put(hash, d.phy, d.store_timestamp_ms);
            });
            last = (d.phy, d.store_timestamp_ms);
        })?;
        self.last = last;
        Ok(())
    }
    /// Flushes and syncs log, queues and index, then says so in the checkpoint.
    pub async fn sync(&mut self) -> Result<(), StoreError> {
        self.log.write(true).await?;
        for q in self.queues.values() {
            q.flush().await?;
            q.sync().await?;
        }
        let before = checkpoint::read(&self.io, &self.config.root).await?;
        let index_ms = self.index.prepare().await?;
        checkpoint::write(&self.io, &self.config.root, &Checkpoint { index_ms, ..before }).await?;
        self.index.commit().await?;
        let (logics_phy, ms) = self.last;
        if logics_phy.0 > 0 {
            let next = Checkpoint { physic_ms: ms, logics_ms: ms, index_ms, logics_phy, ..before };
            checkpoint::write(&self.io, &self.config.root, &next).await?;
        }
        Ok(())
    }
    /// Entries to the page cache only.
    pub async fn flush(&mut self) -> Result<(), StoreError> {
        for q in self.queues.values() {
            q.flush().await?;
        }
        self.index.flush().await
    }
    pub async fn stop(mut self) -> Result<(), StoreError> {
        self.sync().await?;
        let last = checkpoint::read(&self.io, &self.config.root).await?;
        let ends = self.queues.iter().map(|((topic, queue), q)| (topic.as_str(), *queue, q.max()));
        queue_ends::write(&self.io, &self.config.root, &last, ends).await?;
        checkpoint::mark_clean(&self.io, &self.config.root).await
    }
    /// A deleted topic: its numbering starts anew.
    pub fn forget(&mut self, topic: &str, queue: u32) {
        self.log.set_next(key(topic, queue), QueueOffset(0));
    }
    /// All that can be pulled; nothing in the place of a record that is refused.
    pub async fn read_all_but_corrupt(&self) -> Model {
        let reader = LogReader::new(self.io.clone(), &self.config);
        let mut model = Model::new();
        for (id, q) in &self.queues {
            let bodies = model.entry(id.clone()).or_default();
            for at in q.min().0..q.max().0 {
                let (mut entries, mut out) = (Vec::new(), Vec::new());
                q.read(QueueOffset(at), 1, &mut entries).await.expect("readable");
                let entry = entries[0];
                let _ = reader.read_record(entry.phy, entry.bytes, self.log.written(), &mut out).await;
                bodies.push(match record::parse(&out, true) {
                    Ok(record::Found::Record(r)) => r.body.to_vec(),
                    _ => Vec::new(),
                });
            }
        }
        model
    }
    /// All that can be pulled, and that each record is right: its offsets, its place, found by its unique key.
    pub async fn read_all(&self) -> Model {
        let reader = LogReader::new(self.io.clone(), &self.config);
        let limit = self.log.written();
        let mut model = Model::new();
        for ((topic, queue), q) in &self.queues {
            let mut bodies = Vec::new();
            let mut at = q.min().0;
            while at < q.max().0 {
                let mut entries = Vec::new();
                q.read(QueueOffset(at), 32, &mut entries).await.expect("readable");
                assert!(!entries.is_empty(), "{topic}/{queue} at {at}");
                for entry in entries {
                    let mut out = Vec::new();
                    if entry.is_hole() {
                        bodies.push(Vec::new());
                        at += 1;
                        continue;
                    }
                    let read = reader.read_record(entry.phy, entry.bytes, limit, &mut out).await;
                    read.unwrap_or_else(|e| panic!("{topic}/{queue} at {at}: {e}"));
                    let record::Found::Record(r) = record::parse(&out, true).expect("checked") else {
                        panic!("{topic}/{queue} at {at}: a blank");
                    };
                    assert_eq!((r.topic, r.queue_id as u32, r.queue_offset as u64), (topic.as_str(), *queue, at));
                    assert_eq!(r.phy_offset as u64, entry.phy.0);
                    assert_eq!(entry.tags_code, 116);
                    bodies.push(r.body.to_vec());
                    at += 1;
                    let name = String::from_utf8_lossy(r.body);
                    let name = name.split(' ').next().unwrap_or_default();
                    let hash = record::index_hash(topic, name);
                    let found = self.index.query(hash, 64, 0, i64::MAX).await.expect("readable");
                    let times = found.iter().filter(|phy| **phy == entry.phy).count();
                    assert_eq!(
                        times, 1,
                        "{topic}/{queue} at {at}: key {name} leads to {found:?}, not once to {}",
                        entry.phy
                    );
                }
            }
            model.insert((topic.clone(), *queue), bodies);
        }
        model
    }
}

pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Seeds of a run: a few fixed ones, or as many as SEEDS says.
pub fn seeds(few: u64) -> std::ops::Range<u64> {
    0..std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}
