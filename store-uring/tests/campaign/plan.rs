//! What a seed decides: file sizes, flush mode, the disk's manners, and each step.
use crate::ONCE_FAILED;
use std::path::Path;
use uringmq_proto::names::SCHEDULE_TOPIC;
use uringmq_store::consume_queue::Form;
use uringmq_store::{Extensions, StoreConfig};

pub const ROOT: &str = "/s";
/// Topic and number of queues. One is delayed, so that its tag codes depend on store times.
pub const TOPICS: [(&str, u32); 5] =
    [("A", 2), ("B", 1), ("%RETRY%group-with-a-long-name", 1), (BATCH_TOPIC, 1), (SCHEDULE_TOPIC, 2)];
/// Its queues have an entry a record, which may hold many messages.
pub const BATCH_TOPIC: &str = "Batch";
/// Of them, those that are no system topics.
pub const DELETABLE: [&str; 4] = [TOPICS[0].0, TOPICS[1].0, TOPICS[2].0, TOPICS[3].0];
/// Its records are numbered in no queue.
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
pub const DELAY_LEVELS_MS: [u64; 2] = [1000, 5000];

/// Light queues, in which records of other topics are, too.
pub const LIGHTS: [&[&str]; 3] = [&["%LMQ%a"], &["%LMQ%b"], &["%LMQ%b", "%LMQ%a"]];

/// Of a topic's queues.
pub fn form_of(topic: &str) -> Form {
    if topic == BATCH_TOPIC { Form::Batch } else { Form::Plain }
}

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A run's fixed part.
#[derive(Clone, Debug)]
pub struct Plan {
    pub config: StoreConfig,
    /// SYNC_FLUSH.
    pub sync_flush: bool,
    pub yielding: bool,
    pub short_write_every: Option<u64>,
    /// Errors and full disks happen too.
    pub faults: bool,
}

impl Plan {
    /// `seed` decides what came later than the seeds that once failed: these go on as they were.
    pub fn new(random: &mut Random, seed: u64) -> Self {
        let mut later = Random::new(seed ^ 0x5EED_01A7);
        let (extended, light_queues) = match ONCE_FAILED.contains(&seed) {
            true => (false, false),
            false => (later.one_in(2), later.one_in(2)),
        };
        let extension_file_bytes = later.pick(&[100, 400]);
        let segment_bytes = random.pick(&[8192, 8192, 16_384, 32_768]);
        let config = StoreConfig {
            root: ROOT.into(),
            commit_log_dir: Path::new(ROOT).join("commitlog"),
            segment_bytes,
            queue_file_bytes: random.pick(&[100, 200, 400]),
            batch_file_bytes: random.pick(&[92, 230, 460]),
            extension_file_bytes,
            extensions: if extended { Extensions::Write } else { Extensions::None },
            topic_forms: TOPICS.iter().map(|(name, _)| ((*name).to_owned(), form_of(name))).collect(),
            light_queues,
            index_enabled: !random.one_in(8),
            index_slots: random.pick(&[3, 17, 64]),
            index_items: random.pick(&[12, 40]),
            delay_levels_ms: DELAY_LEVELS_MS.to_vec(),
            record_bytes_max: segment_bytes as usize,
            batch_bytes_max: random.pick(&[4096, 16_384]),
            warm_ahead_bytes: random.pick(&[0, 8192, 24_576]),
            read_cache_bytes: 1 << 20,
        };
        Plan {
            config,
            sync_flush: random.one_in(2),
            yielding: random.one_in(2),
            short_write_every: random.one_in(3).then(|| random.pick(&[3, 7])),
            faults: random.one_in(2),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Place runs, write, acknowledge; with the keeper's and the shards' work beside it.
    Send,
    /// A shard's cursor reads on.
    Dispatch,
    Flush,
    Checkpoint,
    SaveTable,
    Retain,
    Keep,
    /// An error or a full disk soon; or the end of the full disk.
    Fault,
    /// A bit of a table, of its backup or of its mark flips.
    Decay,
    /// Part of the log below the synced mark goes bad.
    Rot,
    /// A topic is deleted; the next send to it makes it anew.
    Delete,
    Stop,
    Kill,
    CutPower,
}

impl Step {
    pub fn next(random: &mut Random) -> Self {
        match random.below(70) {
            0..=27 => Step::Send,
            28..=37 => Step::Dispatch,
            38..=41 => Step::Flush,
            42..=46 => Step::Checkpoint,
            47..=49 => Step::SaveTable,
            50..=52 => Step::Retain,
            53..=55 => Step::Keep,
            56..=59 => Step::Fault,
            60 => Step::Stop,
            61 | 62 => Step::Kill,
            63 => Step::CutPower,
            64 | 65 => Step::Decay,
            66 | 67 => Step::Delete,
            _ => Step::Rot,
        }
    }
}
