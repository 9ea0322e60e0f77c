//! Opening a store: finds the end of the log, repairs the derived files and hands out plain states that any core can open from.
//! Runs once at the start, on one executor, before the shards. The work is in [`crate::recovery`].
use crate::consume_queue::{Bounds, Entry, Form};
use crate::cut::{self, CutOrder};
use crate::dispatch;
use crate::index::Index;
use crate::io::Io;
use crate::log_scan::{At, Cursor, Segments};
use crate::recovery::Recovery;
use crate::{StoreConfig, StoreError, checkpoint, json_table};
use std::io::ErrorKind;
use std::path::Path;
use uringmq_proto::record;
use uringmq_proto::types::PhyOffset;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    pub form: Form,
    pub topic: String,
    pub queue: u32,
    pub bounds: Bounds,
    /// The last entries, when the disk was too full to write them.
    pub pending: Vec<Entry>,
}

/// A store ready to run; plain data.
#[derive(Clone, Debug)]
pub struct Opened {
    pub min: PhyOffset,
    pub end: PhyOffset,
    /// The last stop was clean.
    pub clean: bool,
    pub queues: Vec<QueueState>,
    pub last_store_timestamp_ms: i64,
    /// The record that the checkpoint on the disk covers.
    pub covered: PhyOffset,
    /// The disk was too full to write keys of records from here on to the index: [`index_again`].
    pub index_behind: Option<PhyOffset>,
    pub report: RepairReport,
}

/// What recovery did; logged, and when there is something to tell kept as JSON: `<root>/config/repairReport.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RepairReport {
    pub scanned_from: u64,
    pub scanned_bytes: u64,
    pub records: u64,
    /// Where the log was cut, and why, when it did not end at a zero tail.
    pub cut_at: Option<u64>,
    pub cut_why: Option<String>,
    /// Stretches below the synced mark that hold no whole record, stepped over.
    pub damaged: Vec<(u64, u64)>,
    pub queue_entries_rebuilt: u64,
    pub queues_cut: u64,
    /// An order to cut the log's end off that this start carries out.
    pub ordered_cut: Option<CutOrder>,
    pub notes: Vec<String>,
}

/// More notes than this are counted only.
const NOTES_MAX: usize = 200;

impl RepairReport {
    /// Whether anything was lost, cut or built again.
    pub fn tells(&self) -> bool {
        self.cut_at.is_some()
            || !self.damaged.is_empty()
            || !self.notes.is_empty()
            || self.queue_entries_rebuilt > 0
            || self.queues_cut > 0
    }
    pub(crate) fn note(&mut self, text: String) {
        tracing::warn!("recovery: {text}");
        if self.notes.len() < NOTES_MAX {
            self.notes.push(text);
        } else if self.notes.len() == NOTES_MAX {
            self.notes.push("more notes stand in the log only".to_owned());
        }
    }
}

/// How far a long recovery is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub at: PhyOffset,
    pub from: PhyOffset,
    pub to: PhyOffset,
    /// Since the last word, about a second ago.
    pub bytes_per_s: u64,
}

/// Makes the directories of an empty store; otherwise recovers. All derived entries are flushed when it returns, but on a full disk:
/// then they are handed out with the queues, the checkpoint stays where it was, and flushes write them when there is room. The log behind `end`
/// is left as it is: [`crate::commit_log::Appender::open`] makes it zeros. With an order to cut the log's end off ([`cut`]) the log ends where
/// that says; the caller takes the order away ([`cut::done`]) once the appender is open and what else leads behind the end is corrected.
///
/// Errors: `Refused` for what recovery must not guess about (a segment of another length, queues without a log), `Io` and `File`.
pub async fn open<I: Io>(io: I, config: &StoreConfig, progress: impl FnMut(Progress)) -> Result<Opened, StoreError> {
    let mut report = RepairReport::default();
    for dir in ["consumequeue", "index", "config"] {
        make_dir(&io, &config.root.join(dir)).await?;
    }
    make_dir(&io, &config.commit_log_dir).await?;
    let stopped_clean = !checkpoint::is_marked_running(&io, &config.root).await?;
    let ordered = cut::read(&io, &config.root).await?;
    // Nothing behind the place may be trusted, as after a kill.
    let clean = stopped_clean && ordered.is_none();
    let mut notes = Vec::new();
    let segments = Segments::list(&io, config, clean, &mut notes).await?;
    notes.into_iter().for_each(|note| report.note(note));
    if let Some(order) = ordered {
        if stopped_clean {
            checkpoint::mark_running(&io, &config.root).await?;
        }
        match cut::fits(&io, &segments, &order).await? {
            Ok(()) => report.ordered_cut = Some(order),
            Err(why) => {
                report.note(format!("the order to cut the log at {} is dropped: {why}", order.at));
                cut::done(&io, &config.root).await?;
            }
        }
    }
    let recovery = Recovery::new(io.clone(), config, &segments, clean, report);
    let opened = recovery.run(progress).await?;
    tracing::info!(
        min = opened.min.0,
        end = opened.end.0,
        clean,
        queues = opened.queues.len(),
        scanned_from = opened.report.scanned_from,
        scanned_bytes = opened.report.scanned_bytes,
        records = opened.report.records,
        rebuilt = opened.report.queue_entries_rebuilt,
        "store opened"
    );
    if opened.report.tells() {
        keep_report(&io, config, &opened).await;
    }
    Ok(opened)
}

/// Puts the keys of `opened.index_behind` into an index that was opened since; in memory, as any keys before they are flushed.
pub async fn index_again<I: Io>(
    io: &I,
    config: &StoreConfig,
    opened: &Opened,
    index: &Index<I>,
) -> Result<(), StoreError> {
    let Some(from) = opened.index_behind else { return Ok(()) };
    let segments = Segments::list(io, config, true, &mut Vec::new()).await?;
    let (_, known) = index.last();
    let mut cursor = Cursor::new(io.clone(), &segments, from.0);
    while cursor.at() < opened.end.0 {
        match cursor.look().await? {
            At::Record(bytes) => {
                let at = PhyOffset(cursor.at());
                let record = cursor.record();
                let d = dispatch::of_record(&record, at, &config.delay_levels_ms);
                if at > known || known == PhyOffset(0) {
                    record::index_key_hashes(d.topic, d.properties, d.sys_flag, |hash| {
                        index.put(hash, at, d.store_timestamp_ms);
                    });
                }
                cursor.pass(bytes);
            }
            At::Bad(_) if cursor.find_next().await? => {}
            At::Bad(_) | At::End => break,
        }
    }
    Ok(())
}

/// A report that cannot be kept stops no start: all of it is in the log.
async fn keep_report<I: Io>(io: &I, config: &StoreConfig, opened: &Opened) {
    #[derive(serde::Serialize)]
    struct Kept<'a> {
        at_ms: i64,
        clean_stop: bool,
        log_min: u64,
        log_end: u64,
        #[serde(flatten)]
        report: &'a RepairReport,
    }
    let kept = Kept {
        at_ms: io.now_ms(),
        clean_stop: opened.clean,
        log_min: opened.min.0,
        log_end: opened.end.0,
        report: &opened.report,
    };
    let text = serde_json::to_vec_pretty(&kept).expect("numbers and strings");
    let path = config.root.join("config").join("repairReport.json");
    if let Err(e) = json_table::save_unmarked(io, &path, &text).await {
        tracing::warn!(error = %e, "the repair report is not kept");
    }
}

/// Makes a directory with its parents, and their names durable.
async fn make_dir<I: Io>(io: &I, dir: &Path) -> Result<(), StoreError> {
    let failed = |op, dir: &Path, source| StoreError::File { op, path: dir.to_owned(), source };
    let mut missing = Vec::new();
    for dir in dir.ancestors().filter(|d| !d.as_os_str().is_empty()) {
        match io.metadata(dir).await {
            Ok(_) => break,
            Err(e) if e.kind() == ErrorKind::NotFound => missing.push(dir),
            Err(e) => return Err(failed("stat", dir, e)),
        }
    }
    if !missing.is_empty() {
        io.create_dir(dir).await.map_err(|e| failed("create", dir, e))?;
    }
    for dir in missing.into_iter().rev() {
        let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        io.sync_dir(parent).await.map_err(|e| failed("sync", parent, e))?;
    }
    Ok(())
}
