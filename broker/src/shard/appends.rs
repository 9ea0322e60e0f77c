//! Records on their way to the writer: gathered per turn into one group, answered per batch.
use crate::mesh::Msg;
use crate::shard::Shard;
use crate::snapshot::Topic;
use crate::stages::Stage;
use slab::Slab;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use uringmq_proto::message::{self, prop};
use uringmq_proto::record::{self, EncodeError, NewRecord, Record};
use uringmq_proto::types::{PhyOffset, QueueKey, QueueOffset};
use uringmq_remoting::connection::Conn;
use uringmq_store::StoreError;
use uringmq_store::consume_queue::Form;
use uringmq_store::dispatch;

/// A group is pushed when it holds so much, or at the end of the turn.
const GROUP_BYTES: usize = 256 * 1024;
/// Records encoded and not yet answered, per shard; beyond it sends are refused as busy.
pub const IN_FLIGHT_BYTES_MAX: usize = 256 * 1024 * 1024;
/// A fresh buffer; one that grew is kept as it is.
const BUFFER_BYTES: usize = 64 * 1024;
/// Digits of the largest queue offset.
const NUMBER_CHARS_MAX: usize = 20;
/// Buffers kept for reuse.
const SPARE_BUFFERS: usize = 16;

/// What the derived files need of one record of a group.
#[derive(Clone, Copy, Debug)]
pub struct RecordMeta {
    pub bytes: u32,
    /// Tag hash; for the schedule topic the delay in ms, to which the store time is added.
    pub tags_code: i64,
    pub delayed: bool,
    /// Its index key hashes: `hashes[hash_from..hash_from + hash_count]` of the group.
    pub hash_from: u32,
    pub hash_count: u16,
}

/// What of a record's properties only the writer can say, at their end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Late {
    /// Bytes that the record holds free for it; 0 when there is nothing to say.
    pub reserved: u32,
    /// Messages of an inner batch; 0 for any other record.
    pub messages: u16,
    /// The light queues that it is in, too: `lights[first_light..first_light + light_count]` of the group.
    pub first_light: u32,
    pub light_count: u16,
}

/// Records that stay together (one message, or a client batch).
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub token: u32,
    pub key: QueueKey,
    pub numbered: bool,
    /// Its answer waits for stable storage under SYNC_FLUSH, and for slaves under SYNC_MASTER.
    pub wait_durable: bool,
    pub first_record: u32,
    pub record_count: u32,
    pub at: u32,
    pub bytes: u32,
    /// Of its only record.
    pub late: Late,
}

/// All records that one shard sends to the writer in one message.
#[derive(Debug)]
pub struct AppendGroup {
    pub from: crate::placement::ShardId,
    pub bytes: Vec<u8>,
    pub lens: Vec<u32>,
    pub records: Vec<RecordMeta>,
    pub hashes: Vec<u32>,
    /// Light queues of all runs, and the offsets there, which the writer gives.
    pub lights: Vec<(QueueKey, QueueOffset)>,
    pub runs: Vec<Run>,
    pub stamps: Stamps,
}

impl AppendGroup {
    /// Takes away the runs from `run` on, with all that is theirs.
    pub fn split_off(&mut self, run: usize) -> AppendGroup {
        let mut runs = self.runs.split_off(run);
        let Run { at, first_record, late, .. } = runs[0];
        for run in &mut runs {
            run.at -= at;
            run.first_record -= first_record;
            run.late.first_light -= late.first_light;
        }
        let mut records = self.records.split_off(first_record as usize);
        let hash_from = records[0].hash_from;
        records.iter_mut().for_each(|record| record.hash_from -= hash_from);
        AppendGroup {
            from: self.from,
            bytes: self.bytes.split_off(at as usize),
            lens: self.lens.split_off(first_record as usize),
            records,
            hashes: self.hashes.split_off(hash_from as usize),
            lights: self.lights.split_off(late.first_light as usize),
            runs,
            stamps: self.stamps,
        }
    }
}

/// When a group passed the stations of its way.
#[derive(Clone, Copy, Debug)]
pub struct Stamps {
    pub begun: Instant,
    pub pushed: Instant,
    pub taken: Instant,
}

/// Where a run went; plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub phy: PhyOffset,
    pub queue_offset: QueueOffset,
    pub store_timestamp_ms: i64,
    /// False when the slaves that it was to wait for did not confirm in time. It is stored all the same.
    pub replicated: bool,
}

/// Why a run was refused; crosses cores, so the store's error is reduced to what the asker needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    TooLarge {
        bytes: usize,
        max: usize,
    },
    NoSpace(PhyOffset),
    Poisoned {
        op: &'static str,
        at: PhyOffset,
    },
    DiskFull,
    Slave,
    /// The SyncStateSet is smaller than minInSyncReplicas.
    TooFewReplicas,
}

impl Refusal {
    pub fn of(e: &StoreError) -> Self {
        match e {
            StoreError::TooLarge { bytes, max } => Refusal::TooLarge { bytes: *bytes, max: *max },
            StoreError::NoSpace(at) => Refusal::NoSpace(*at),
            StoreError::DiskFull => Refusal::DiskFull,
            StoreError::Slave => Refusal::Slave,
            StoreError::TooFewReplicas => Refusal::TooFewReplicas,
            StoreError::Poisoned { op, at } | StoreError::Io { op, at, .. } => Refusal::Poisoned { op, at: *at },
            StoreError::Corrupt { at, .. } | StoreError::OutOfRange(at) => Refusal::Poisoned { op: "append", at: *at },
            StoreError::File { op, .. } => Refusal::Poisoned { op, at: PhyOffset(0) },
            StoreError::Refused { .. } => Refusal::Poisoned { op: "append", at: PhyOffset(0) },
        }
    }
    pub fn to_error(self) -> StoreError {
        match self {
            Refusal::TooLarge { bytes, max } => StoreError::TooLarge { bytes, max },
            Refusal::NoSpace(at) => StoreError::NoSpace(at),
            Refusal::Poisoned { op, at } => StoreError::Poisoned { op, at },
            Refusal::DiskFull => StoreError::DiskFull,
            Refusal::Slave => StoreError::Slave,
            Refusal::TooFewReplicas => StoreError::TooFewReplicas,
        }
    }
}

pub struct Appended {
    /// When the writer sent it.
    pub sent: Instant,
    pub acks: Vec<(u32, Result<Receipt, Refusal>)>,
}

/// A client waiting for its append.
pub struct PendingSend {
    pub conn: Rc<Conn>,
    pub opaque: i32,
    pub oneway: bool,
    /// As asked (or picked), not the schedule topic's.
    pub queue_id: u32,
    /// Of a static topic: what the logical queue's offsets are more.
    pub offset_delta: i64,
    pub uniq_key: SmallVec<[u8; 40]>,
    /// Record lengths of a batch, for its ids; empty for one message.
    pub batch_lens: Box<[u32]>,
    /// Of a message that waits for its time; empty otherwise.
    pub recall: Box<str>,
    /// A batch stored as one record: it is answered with its key.
    pub batch_key: bool,
    pub held_bytes: usize,
}

enum Pending {
    Send(PendingSend),
    Wait(flume::Sender<Result<Receipt, Refusal>>),
}

/// One shard's appends.
pub struct Appends {
    group: RefCell<Option<Box<AppendGroup>>>,
    pending: RefCell<Slab<(Pending, usize)>>,
    in_flight_bytes: Cell<usize>,
    spare: RefCell<Vec<Vec<u8>>>,
    delay_levels_ms: Vec<u64>,
    /// The properties that every single send gets: region, trace switch, cluster.
    stamp: String,
}

impl Appends {
    pub fn new(delay_levels_ms: Vec<u64>, stamp: String) -> Self {
        Appends {
            group: RefCell::default(),
            pending: RefCell::default(),
            in_flight_bytes: Cell::new(0),
            spare: RefCell::default(),
            delay_levels_ms,
            stamp,
        }
    }
    pub fn stamp(&self) -> &str {
        &self.stamp
    }
    pub fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes.get()
    }
    pub fn delay_levels_ms(&self) -> &[u64] {
        &self.delay_levels_ms
    }

    /// Gives a buffer back for reuse (the tail cache dropped its last reference).
    pub fn recycle(&self, mut buffer: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_BUFFERS && (BUFFER_BYTES..=2 * GROUP_BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            spare.push(buffer);
        }
    }

    fn new_group(&self, from: crate::placement::ShardId) -> Box<AppendGroup> {
        let bytes = self.spare.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES));
        let now = Instant::now();
        Box::new(AppendGroup {
            from,
            bytes,
            stamps: Stamps { begun: now, pushed: now, taken: now },
            lens: Vec::with_capacity(64),
            records: Vec::with_capacity(64),
            hashes: Vec::with_capacity(128),
            lights: Vec::new(),
            runs: Vec::with_capacity(64),
        })
    }
}

/// A message that broker code stores (delay, send-back, ...).
#[derive(Clone)]
pub struct NewMessage<'a> {
    pub topic: &'a Arc<Topic>,
    pub queue: u32,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_timestamp_ms: i64,
    pub born_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    pub properties: &'a str,
    /// Under SYNC_FLUSH: answer only once it is on stable storage.
    pub wait_durable: bool,
}

impl<'a> NewMessage<'a> {
    /// What a stored message said of itself, for another place and with other properties. Nobody waits for its sync.
    pub fn copy_of(record: &Record<'a>, topic: &'a Arc<Topic>, queue: u32, properties: &'a str) -> Self {
        NewMessage {
            topic,
            queue,
            flag: record.flag,
            sys_flag: record.sys_flag,
            born_timestamp_ms: record.born_timestamp_ms,
            born_host: record.born_host,
            reconsume_times: record.reconsume_times,
            prepared_transaction_offset: 0,
            body: record.body,
            properties,
            wait_durable: false,
        }
    }
}

/// A message of broker code on its way to the writer.
pub struct Gathered(flume::Receiver<Result<Receipt, Refusal>>);

impl Gathered {
    pub async fn stored(self) -> Result<Receipt, StoreError> {
        match self.0.recv_async().await {
            Ok(outcome) => outcome.map_err(Refusal::to_error),
            Err(_) => Err(StoreError::Poisoned { op: "append while stopping", at: PhyOffset(0) }),
        }
    }
}

/// Fills one run of the shard's current group; nothing is kept when it is dropped without `finish`.
pub struct RunBuilder<'s> {
    appends: &'s Appends,
    /// Some until `drop` puts it back.
    group: Option<Box<AppendGroup>>,
    start: Run,
}

impl<'s> RunBuilder<'s> {
    pub fn new(shard: &'s Shard, key: QueueKey) -> Self {
        let appends = &shard.appends;
        let group = appends.group.borrow_mut().take().unwrap_or_else(|| appends.new_group(shard.id));
        let late = Late { first_light: group.lights.len() as u32, ..Late::default() };
        let start = Run {
            token: 0,
            key,
            numbered: true,
            wait_durable: true,
            first_record: group.records.len() as u32,
            record_count: 0,
            at: group.bytes.len() as u32,
            bytes: 0,
            late,
        };
        RunBuilder { appends, group: Some(group), start }
    }

    fn group(&mut self) -> &mut AppendGroup {
        self.group.as_mut().expect("held until drop")
    }

    /// Adds one record with what its derived entries need. `topic_seed` is the hash of `topic#`.
    pub fn record(&mut self, r: &NewRecord<'_>, keys: &KeyProps<'_>) -> Result<(), EncodeError> {
        let delay_levels = &self.appends.delay_levels_ms;
        let group = self.group.as_mut().expect("held until drop");
        let bytes = record::encode(&mut group.bytes, r)?;
        let hash_from = group.hashes.len() as u32;
        keys.each_hash(r.topic, |h| group.hashes.push(h));
        let delayed = r.topic == uringmq_proto::names::SCHEDULE_TOPIC && keys.delay_level > 0;
        let tags_code = if delayed {
            dispatch::level_delay_ms(keys.delay_level, delay_levels)
        } else {
            message::tags_code(keys.tags)
        };
        group.lens.push(bytes as u32);
        let hash_count = (group.hashes.len() as u32 - hash_from) as u16;
        group.records.push(RecordMeta { bytes: bytes as u32, tags_code, delayed, hash_from, hash_count });
        self.start.record_count += 1;
        self.start.bytes += bytes as u32;
        Ok(())
    }

    /// As `record`, for a run's only record that is an inner batch of so many messages (0: it is none) or in these light queues, too: the
    /// writer puts the numbers behind its properties.
    pub fn record_late(
        &mut self,
        r: &NewRecord<'_>,
        keys: &KeyProps<'_>,
        messages: u16,
        lights: &[QueueKey],
    ) -> Result<(), EncodeError> {
        if messages == 0 && lights.is_empty() {
            return self.record(r, keys);
        }
        let property = |name: &str, numbers: usize| name.len() + 2 + numbers * (NUMBER_CHARS_MAX + 1);
        let mut reserved = 0;
        if messages > 0 {
            reserved += property(prop::INNER_BASE, 1);
        }
        if !lights.is_empty() {
            reserved += property(prop::INNER_MULTI_QUEUE_OFFSET, lights.len());
        }
        let mut more = r.more_properties.to_owned();
        more.extend(std::iter::repeat_n(message::VALUE_END, reserved));
        self.record(&NewRecord { more_properties: &more, ..*r }, keys)?;
        let group = self.group();
        let first_light = group.lights.len() as u32;
        group.lights.extend(lights.iter().map(|key| (*key, QueueOffset(0))));
        let light_count = lights.len() as u16;
        self.start.late = Late { reserved: reserved as u32, messages, first_light, light_count };
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        self.start.bytes as usize
    }
    pub fn lens(&self) -> &[u32] {
        let group = self.group.as_ref().expect("held until drop");
        &group.lens[self.start.first_record as usize..]
    }

    fn finish(mut self, pending: Pending, numbered: bool, wait_durable: bool) -> bool {
        let bytes = self.start.bytes as usize;
        let token = self.appends.pending.borrow_mut().insert((pending, bytes)) as u32;
        self.appends.in_flight_bytes.set(self.appends.in_flight_bytes.get() + bytes);
        let run = Run { token, numbered, wait_durable, ..self.start };
        let group = self.group();
        if group.runs.is_empty() {
            group.stamps.begun = Instant::now();
        }
        group.runs.push(run);
        let (at, first_record) = (group.bytes.len() as u32, group.records.len() as u32);
        let first_light = group.lights.len() as u32;
        self.start.at = at; // nothing to take back in drop
        self.start.first_record = first_record;
        self.start.late.first_light = first_light;
        at as usize >= GROUP_BYTES
    }
}

impl Drop for RunBuilder<'_> {
    fn drop(&mut self) {
        let (at, first_record) = (self.start.at as usize, self.start.first_record as usize);
        let first_light = self.start.late.first_light as usize;
        let group = self.group();
        group.bytes.truncate(at);
        group.records.truncate(first_record);
        group.lens.truncate(first_record);
        group.lights.truncate(first_light);
        *self.appends.group.borrow_mut() = self.group.take();
    }
}

/// The properties that decide about a record's derived entries, found in one pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyProps<'a> {
    pub uniq_key: Option<&'a str>,
    pub keys: Option<&'a str>,
    pub tags: Option<&'a str>,
    /// Of the DELAY property, when it is a number.
    pub delay_level: i32,
    pub indexed: bool,
}

impl<'a> KeyProps<'a> {
    pub fn of(properties: &'a str, indexed: bool) -> Self {
        let mut found = KeyProps { indexed, ..KeyProps::default() };
        for (name, value) in message::properties(properties) {
            match name {
                prop::UNIQ_KEY => found.uniq_key = Some(value),
                prop::KEYS => found.keys = Some(value),
                prop::TAGS => found.tags = Some(value),
                prop::DELAY => found.delay_level = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        found
    }

    fn each_hash(&self, topic: &str, each: impl FnMut(u32)) {
        if self.indexed {
            record::index_hashes(topic, self.uniq_key, self.keys, self.tags, each);
        }
    }
}

impl Shard {
    /// Sends what was gathered this turn to the writer.
    pub fn push_appends(&self) {
        let group = {
            let mut slot = self.appends.group.borrow_mut();
            match &*slot {
                Some(g) if !g.runs.is_empty() => slot.take(),
                _ => None,
            }
        };
        if let Some(mut group) = group {
            group.stamps.pushed = Instant::now();
            self.stages.took(Stage::Gather, group.stamps.pushed - group.stamps.begun);
            self.mesh.push(self.writer_shard, Msg::Append(group));
        }
    }

    /// Queues a finished run whose client is answered when it is stored.
    pub fn append_send(&self, run: RunBuilder<'_>, pending: PendingSend, numbered: bool, wait_durable: bool) {
        if run.finish(Pending::Send(pending), numbered, wait_durable) {
            self.push_appends();
        }
    }

    /// Stores one message for broker code. It goes out at once.
    pub async fn append(&self, m: NewMessage<'_>) -> Result<Receipt, StoreError> {
        let gathered = self.gather(&m)?;
        self.push_appends();
        gathered.stored().await
    }

    /// Leaves one message of broker code in the shard's current group. The caller owes a `push_appends` before it waits.
    pub fn gather(&self, m: &NewMessage<'_>) -> Result<Gathered, StoreError> {
        let key = QueueKey { topic: m.topic.id, queue: m.queue };
        // A copy of what was in light queues is told its own numbers, or none.
        let told = m.properties.contains(prop::INNER_MULTI_QUEUE_OFFSET);
        let stripped = told.then(|| message::without(m.properties, &[prop::INNER_MULTI_QUEUE_OFFSET]));
        let properties = stripped.as_deref().unwrap_or(m.properties);
        let keys = KeyProps::of(properties, true);
        let record = NewRecord {
            topic: &m.topic.name,
            queue_id: m.queue,
            flag: m.flag,
            sys_flag: m.sys_flag,
            born_timestamp_ms: m.born_timestamp_ms,
            born_host: m.born_host,
            store_host: self.store_host,
            reconsume_times: m.reconsume_times,
            prepared_transaction_offset: m.prepared_transaction_offset,
            body: m.body,
            properties,
            more_properties: "",
        };
        let lights = crate::handlers::light::keys_of(self, m);
        let messages = dispatch::inner_count(m.sys_flag, m.properties).filter(|_| m.topic.form() == Form::Batch);
        let (tx, rx) = flume::bounded(1);
        let mut run = RunBuilder::new(self, key);
        run.record_late(&record, &keys, messages.unwrap_or(0), &lights).map_err(|_| StoreError::TooLarge {
            bytes: properties.len() + m.topic.name.len(),
            max: record::PROPERTIES_BYTES_MAX,
        })?;
        if run.finish(Pending::Wait(tx), true, m.wait_durable) {
            self.push_appends();
        }
        Ok(Gathered(rx))
    }

    pub(super) fn on_appended(self: &Rc<Self>, appended: Appended) {
        let arrived = Instant::now();
        self.stages.took(Stage::Back, arrived - appended.sent);
        for (token, outcome) in appended.acks {
            let (pending, bytes) = self.appends.pending.borrow_mut().remove(token as usize);
            self.appends.in_flight_bytes.set(self.appends.in_flight_bytes.get() - bytes);
            match pending {
                Pending::Send(send) => crate::handlers::send::answer(self, send, outcome),
                Pending::Wait(tx) => {
                    let _ = tx.send(outcome);
                }
            }
        }
        self.stages.since(Stage::Answer, arrived);
    }
}
