//! The log and everything derived from it. Never spawns, never sees a channel, never sees a socket; all files through [`io::Io`].
pub mod batch;
pub mod checkpoint;
pub mod commit_log;
pub mod consume_queue;
pub mod cut;
pub mod deleted_topics;
pub mod derived;
pub mod dispatch;
mod event;
pub mod index;
pub mod index_file;
pub mod io;
pub mod json_table;
pub mod late_writes;
pub mod lock;
pub mod log_reader;
mod log_scan;
pub mod open;
pub mod queue_ends;
mod queue_scan;
mod recovery;
pub mod retention;
#[cfg(not(feature = "seeded-bugs"))]
mod seeded;
#[cfg(feature = "seeded-bugs")]
pub mod seeded;
pub mod segment;
mod table_mark;
pub mod timer;
pub mod timer_check;
pub mod timer_log;
pub mod timer_wheel;
mod together;
pub mod turn;

use consume_queue::{Bounds, ConsumeQueue, Entry, Form, extension};
use io::Io;
use std::collections::HashMap;
use std::path::PathBuf;
use thiserror::Error;
use uringmq_proto::types::PhyOffset;

#[derive(Debug, Error)]
pub enum StoreError {
    #[error("record of {bytes} bytes, limit {max}")]
    TooLarge { bytes: usize, max: usize },
    #[error("no space for segment {0}")]
    NoSpace(PhyOffset),
    /// Retention's word: it takes writes again when use has fallen.
    #[error("the disk is nearly full (diskSpaceWarningLevelRatio, diskFullFreeBytes)")]
    DiskFull,
    /// It follows a master's log, which alone adds to it.
    #[error("the broker is a slave: nothing is stored here but what its master sends")]
    Slave,
    /// Controller mode: too few copies would be there.
    #[error("the SyncStateSet has fewer replicas than minInSyncReplicas")]
    TooFewReplicas,
    #[error("writes stopped after a failed {op} at {at}")]
    Poisoned { op: &'static str, at: PhyOffset },
    #[error("record at {at}: {what}")]
    Corrupt { at: PhyOffset, what: &'static str },
    /// The log no longer (or not yet) holds this offset.
    #[error("offset {0} is outside the log")]
    OutOfRange(PhyOffset),
    #[error("{op} at {at}: {source}")]
    Io {
        op: &'static str,
        at: PhyOffset,
        #[source]
        source: std::io::Error,
    },
    #[error("{op} {path}: {source}")]
    File {
        op: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A file that recovery must not guess about; the text says what and the cure.
    #[error("{path}: {what}")]
    Refused { path: PathBuf, what: String },
}

impl StoreError {
    /// Whether it heals by itself when the disk (or the quota) has room again.
    pub fn is_no_space(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            StoreError::NoSpace(_) => true,
            StoreError::Io { source, .. } | StoreError::File { source, .. } => {
                matches!(source.kind(), StorageFull | QuotaExceeded)
            }
            _ => false,
        }
    }
}

fn file_failed(op: &'static str, path: &std::path::Path, source: std::io::Error) -> StoreError {
    StoreError::File { op, path: path.to_owned(), source }
}

/// Of the queues' extensions, below the store's root.
pub const EXTENSION_DIR: &str = "consumequeue_ext";

/// Whether queues have extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extensions {
    /// There are none, and so none is looked for.
    None,
    /// Units that an earlier run wrote are read.
    Read,
    /// New entries get units, too (`enableConsumeQueueExt`).
    Write,
}

/// Where the store lies and how big its files are; the broker's configuration in the store's words.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// `storePathRootDir`.
    pub root: PathBuf,
    /// `storePathCommitLog`.
    pub commit_log_dir: PathBuf,
    /// `mappedFileSizeCommitLog`; a multiple of 4096.
    pub segment_bytes: u64,
    /// `mappedFileSizeConsumeQueue`, rounded up to a multiple of 20.
    pub queue_file_bytes: u64,
    /// `mapperFileSizeBatchConsumeQueue`, rounded up to a multiple of 46.
    pub batch_file_bytes: u64,
    /// `mappedFileSizeConsumeQueueExt`; at least [`extension::EXTENSION_FILE_BYTES_MIN`] where units are written.
    pub extension_file_bytes: u64,
    pub extensions: Extensions,
    /// The kinds of the queues of all topics that exist: recovery builds them so.
    pub topic_forms: HashMap<String, Form>,
    /// Records may be in light queues beside their own (`enableLmq` and `enableMultiDispatch`).
    pub light_queues: bool,
    /// `messageIndexEnable`.
    pub index_enabled: bool,
    /// `maxHashSlotNum` and `maxIndexNum`.
    pub index_slots: u32,
    pub index_items: u32,
    /// `messageDelayLevel` in ms, level 1 first.
    pub delay_levels_ms: Vec<u64>,
    /// `maxMessageSize` + 64 KiB: the largest record.
    pub record_bytes_max: usize,
    /// Most bytes of one write of the log.
    pub batch_bytes_max: usize,
    /// How far ahead of the tail a fresh segment is written with zeros; 0 switches it off.
    pub warm_ahead_bytes: u64,
    /// Most bytes of a reader's block cache (cold reads), per shard.
    pub read_cache_bytes: usize,
}

impl StoreConfig {
    /// Length of a queue's files.
    pub fn file_bytes_of(&self, form: Form) -> u64 {
        match form {
            Form::Plain => self.queue_file_bytes,
            Form::Batch => self.batch_file_bytes,
        }
    }
    /// Where a queue's files are.
    pub fn queue_dir(&self, form: Form, topic: &str, queue: u32) -> PathBuf {
        self.root.join(form.dir()).join(topic).join(queue.to_string())
    }
    /// A queue as it stands, with its extension; `pending` as [`ConsumeQueue::with_pending`].
    pub fn queue<I: Io>(
        &self,
        io: I,
        form: Form,
        topic: &str,
        queue: u32,
        at: Bounds,
        pending: &[Entry],
    ) -> ConsumeQueue<I> {
        let dir = self.queue_dir(form, topic, queue);
        let made = ConsumeQueue::with_pending(form, io, dir, self.file_bytes_of(form), at, pending);
        if form == Form::Batch || self.extensions == Extensions::None {
            return made;
        }
        let dir = self.root.join(EXTENSION_DIR).join(topic).join(queue.to_string());
        let writes = self.extensions == Extensions::Write;
        made.extended(extension::Place { dir, file_bytes: self.extension_file_bytes, writes })
    }
}
