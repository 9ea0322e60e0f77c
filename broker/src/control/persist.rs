//! Saving the tables of `<root>/config/` as Apache's JSON files. Topics, groups and request modes are saved as soon as they change:
//! one save at a time, what comes meanwhile is the next one. Consumer offsets are gathered from all shards every
//! flushConsumerOffsetInterval. Source: store-format sheet 8; behaviour sheet 2.5, 5.3.
use crate::config::BrokerConfig;
use crate::control::progress::Progress;
use crate::control::{Control, is_stopping, make_lights};
use crate::error::BrokerError;
use crate::handlers::offset::stopping;
use crate::mesh::Event;
use crate::shard::Shard;
use crate::{Io, delay};
use futures_lite::future;
use glommio::timer::Timer;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};
use uringmq_proto::body::offset::ConsumerOffsetTable;
use uringmq_proto::body::topic::DataVersion;
use uringmq_proto::codes::response as code;
use uringmq_proto::fastjson;
use uringmq_proto::names;
use uringmq_store::StoreError;
use uringmq_store::io::Io as _;
use uringmq_store::json_table::{self, Broken};

/// After a failed save, even when nothing else changes; also how often a file is compared with what was saved.
const RETRY: Duration = Duration::from_secs(5);
/// Before the first save of offsets (Apache's broker waits as long).
const OFFSETS_FIRST: Duration = Duration::from_secs(10);
const OFFSETS_FILE: &str = "consumerOffset.json";
/// Instead of it where light queues are on; then with the offsets of their groups.
const LIGHT_OFFSETS_FILE: &str = "lmqConsumerOffset.json";

fn offsets_file(config: &BrokerConfig) -> &'static str {
    if config.light_queues() { LIGHT_OFFSETS_FILE } else { OFFSETS_FILE }
}

/// The path of a table.
pub fn path(store_root: &Path, file: &str) -> PathBuf {
    store_root.join("config").join(file)
}

/// Reads a table; `None` when it was never written, or is not readable and `startWithoutBrokenTables` is set.
pub async fn read<T>(
    io: &Io,
    config: &BrokerConfig,
    file: &str,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, StoreError> {
    let broken = if config.start_without_broken_tables { Broken::StartWithout } else { Broken::Refuse };
    json_table::load_or(io, &path(&config.store_root, file), broken, parse).await
}

/// As `read`, of a table that the broker can do without: an unreadable one counts as none.
pub async fn read_if_any<T>(
    io: &Io,
    config: &BrokerConfig,
    file: &str,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, StoreError> {
    json_table::load_or(io, &path(&config.store_root, file), Broken::StartWithout, parse).await
}

/// Sees that a table's file is no longer the one that was read or saved last. Nobody else has a business with it, but an Apache broker
/// started on this store by mistake rewrites tables, some of them emptied, even when the store is refused to it.
#[derive(Default)]
pub struct Watch {
    /// Time and length of the file; `None` where there is none.
    seen: Cell<Option<(i64, u64)>>,
}

impl Watch {
    async fn look(shard: &Shard, file: &str) -> Option<(i64, u64)> {
        let meta = shard.io.metadata(&path(&shard.config().store_root, file)).await.ok()?;
        Some((meta.modified_ms, meta.bytes))
    }

    /// The file as it is now is ours.
    pub async fn note(&self, shard: &Shard, file: &str) {
        self.seen.set(Watch::look(shard, file).await);
    }

    /// Whether it has to be written again.
    pub async fn is_foreign(&self, shard: &Shard, file: &str) -> bool {
        let foreign = Watch::look(shard, file).await != self.seen.get();
        if foreign {
            warn!(file, "a table was changed by another process while this one has the store; it is written again");
        }
        foreign
    }
}

/// Saves one table whenever it is told that the table changed.
pub struct Saver {
    file: &'static str,
    watch: Watch,
    wanted: Cell<u64>,
    /// The last change that was saved, or could not be.
    done: Progress,
    /// What the last save failed of.
    failed: RefCell<Option<String>>,
    bell: Event,
}

impl Saver {
    pub fn new(file: &'static str) -> Self {
        Saver {
            file,
            watch: Watch::default(),
            wanted: Cell::new(0),
            done: Progress::default(),
            failed: RefCell::default(),
            bell: Event::default(),
        }
    }

    /// The table changed; the ticket is for [`Saver::saved`].
    pub fn want(&self) -> u64 {
        self.wanted.set(self.wanted.get() + 1);
        self.bell.set();
        self.wanted.get()
    }

    /// Resolves when the change is on stable storage.
    ///
    /// # Errors
    /// When it could not be saved; it stays changed in memory and is tried again.
    pub async fn saved(&self, ticket: u64) -> Result<(), BrokerError> {
        self.done.reached(ticket).await;
        match &*self.failed.borrow() {
            None => Ok(()),
            Some(why) => {
                let remark = format!("{} cannot be saved: {why}", self.file);
                Err(BrokerError::refused(code::SYSTEM_ERROR, remark))
            }
        }
    }

    /// Waits for a change, or until a failed save is to be tried again.
    async fn due(&self) {
        if self.wanted.get() > self.done.at() {
            return;
        }
        if self.failed.borrow().is_none() {
            return self.bell.wait().await;
        }
        let retry = async {
            Timer::new(RETRY).await;
        };
        future::or(self.bell.wait(), retry).await;
    }

    fn finish(&self, ticket: u64, outcome: Result<(), StoreError>) {
        let why = outcome.err().map(|e| e.to_string());
        if let Some(why) = &why {
            error!(file = self.file, error = why, "a table cannot be saved; trying again");
        }
        *self.failed.borrow_mut() = why;
        self.done.raise(ticket);
    }
}

/// Runs a saver until the executor ends.
pub async fn run(shard: Rc<Shard>, saver: fn(&Control) -> &Saver, text: fn(&Control) -> Vec<u8>) {
    let control = shard.control();
    let saver = saver(control);
    let path = path(&shard.config().store_root, saver.file);
    saver.watch.note(&shard, saver.file).await;
    loop {
        let due = async {
            saver.due().await;
            true
        };
        let looked_at = async {
            Timer::new(RETRY).await;
            saver.watch.is_foreign(&shard, saver.file).await
        };
        if !future::or(due, looked_at).await {
            continue;
        }
        let (ticket, table) = (saver.wanted.get(), text(control));
        let outcome = json_table::save(&shard.io, &path, &table).await;
        saver.watch.note(&shard, saver.file).await;
        saver.finish(ticket, outcome);
    }
}

/// What the control role remembers of `consumerOffset.json`.
#[derive(Default)]
pub struct OffsetsFile {
    watch: Watch,
    version: Cell<DataVersion>,
    /// Changes counted into the version so far.
    counted: Cell<u64>,
    saving: Cell<bool>,
    saved: Progress,
}

/// Reads `consumerOffset.json` and gives every shard its part. On shard 0, before anything is served.
pub async fn load_offsets(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let parse = |text: &[u8]| uringmq_proto::body::parse::<ConsumerOffsetTable>(text).map_err(|e| e.to_string());
    let (config, name) = (shard.config(), offsets_file(&shard.config()));
    let mut stored = read(&shard.io, &config, name, parse).await?;
    if stored.is_none() && name != OFFSETS_FILE {
        stored = read(&shard.io, &config, OFFSETS_FILE, parse).await?; // light queues were switched on since
    }
    let stored = stored.unwrap_or_default();
    let file = &shard.control().offsets_file;
    file.watch.note(shard, name).await;
    file.version.set(stored.data_version.next(stored.data_version.state_version, shard.now_ms()));
    if config.light_queues() {
        // One without a message has no files, and its offsets count all the same.
        let topics = stored.rows().filter_map(|(name, ..)| Some(name.split_once('@')?.0));
        if let Err(e) = make_lights(shard, topics) {
            warn!(error = %e, "offsets of light queues wait until there are fewer");
        }
    }
    let stored = Arc::new(stored);
    let count: usize = stored.offset_table.values().map(|queues| queues.len()).sum();
    let import = move |s: Rc<Shard>| {
        let stored = stored.clone();
        async move {
            let topics = s.topics.borrow().clone();
            s.offsets.import(s.id, s.shards, &topics, stored.rows());
        }
    };
    if shard.run_on_all(import).await.len() < shard.shards as usize {
        return Err(stopping());
    }
    info!(entries = count, version = file.version.get().counter, "consumer offsets loaded");
    Ok(())
}

/// Rows as shards export them: `topic@group`, queue, offset.
type Rows = Vec<(String, u32, i64)>;

/// Saves the consumer offsets of all shards if any changed. Saves never overlap: a call waits for the one under way and then does its
/// own, so what was committed before the call is saved when it returns.
pub async fn save_offsets(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let file = &shard.control().offsets_file;
    while file.saving.replace(true) {
        file.saved.reached(file.saved.at() + 1).await;
    }
    let outcome = gather_and_save(shard, file).await;
    file.saving.set(false);
    file.saved.raise(file.saved.at() + 1);
    if outcome.is_err() {
        shard.offsets.mark_dirty();
    }
    outcome
}

async fn gather_and_save(shard: &Rc<Shard>, file: &OffsetsFile) -> Result<(), StoreError> {
    let name = offsets_file(&shard.config());
    let dirty = shard.run_on_all(|s| async move { s.offsets.dirty() }).await;
    let changed = dirty.len() < shard.shards as usize || dirty.contains(&true);
    if !changed && !file.watch.is_foreign(shard, name).await {
        return Ok(());
    }
    let export = |s: Rc<Shard>| async move {
        let topics = s.topics.borrow().clone();
        (s.offsets.export(&topics), s.offsets.commits())
    };
    let parts = shard.run_on_all(export).await;
    if parts.len() < shard.shards as usize {
        return Err(stopping()); // a part of the table must not replace the whole
    }
    let commits = parts.iter().map(|(_, commits)| commits).sum();
    step_version(file, commits, shard.config().consumer_offset_version_step, shard.now_ms());
    let rows: Rows = parts.into_iter().flat_map(|(rows, _)| rows).collect();
    let entries = rows.len();
    let text = fastjson::to_vec_pretty(&table_of(file.version.get(), rows, name == LIGHT_OFFSETS_FILE));
    json_table::save(&shard.io, &path(&shard.config().store_root, name), &text).await?;
    file.watch.note(shard, name).await;
    info!(entries, version = file.version.get().counter, commits, "consumer offsets saved");
    Ok(())
}

/// One step for each `step` commits.
fn step_version(file: &OffsetsFile, commits: u64, step: u64, now_ms: i64) {
    let step = step.max(1);
    let steps = (commits - file.counted.get()) / step;
    if steps > 0 {
        file.counted.set(file.counted.get() + steps * step);
        let version = file.version.get();
        let counter = version.counter + steps as i64;
        file.version.set(DataVersion { counter, timestamp: now_ms, ..version });
    }
}

/// The stored form.
fn table_of(version: DataVersion, rows: Rows, light: bool) -> ConsumerOffsetTable {
    let mut table = ConsumerOffsetTable { data_version: version, ..ConsumerOffsetTable::default() };
    let mut topics: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, queue, offset) in rows {
        if light && queue == 0 && name.split_once('@').is_some_and(|(_, group)| names::is_light_queue(group)) {
            table.lmq_offset_table.insert(name, offset);
            continue;
        }
        let Ok(queue) = i32::try_from(queue) else { continue };
        if let Some(queues) = table.offset_table.get_mut(&name) {
            queues.insert(queue, offset);
            continue;
        }
        if let Some((topic, group)) = name.split_once('@') {
            topics.entry(group.to_owned()).or_default().push(topic.to_owned());
        }
        table.offset_table.entry(name).or_default().insert(queue, offset);
    }
    table.group_topic_map = topics;
    table
}

/// The table as it stands, for code 43.
pub async fn offsets_table(shard: &Rc<Shard>) -> ConsumerOffsetTable {
    let look = |s: Rc<Shard>| async move {
        let topics = s.topics.borrow().clone();
        let dirty = s.offsets.dirty();
        let rows = s.offsets.export(&topics);
        if dirty {
            s.offsets.mark_dirty();
        }
        rows
    };
    let rows = shard.run_on_all(look).await.into_iter().flatten().collect();
    table_of(shard.control().offsets_file.version.get(), rows, shard.config().light_queues())
}

/// Saves offsets now and then, until the broker stops.
pub async fn save_offsets_periodically(shard: Rc<Shard>) {
    let period = Duration::from_millis(shard.config().flush_consumer_offset_ms.max(1));
    Timer::new(OFFSETS_FIRST.min(period)).await;
    while !is_stopping(&shard) {
        if let Err(e) = save_offsets(&shard).await {
            warn!(error = %e, "consumer offsets not saved; trying again");
        }
        Timer::new(period).await;
    }
}

/// Saves how far the delay levels are, until the broker stops.
pub async fn save_delay_periodically(shard: Rc<Shard>) {
    let period = Duration::from_millis(shard.config().flush_delay_offset_ms.max(1));
    loop {
        Timer::new(period).await;
        if is_stopping(&shard) {
            return;
        }
        if let Err(e) = delay::save(&shard).await {
            warn!(error = %e, "delay offsets not saved; trying again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    fn refused() -> StoreError {
        StoreError::Refused { path: "topics.json".into(), what: "no space".into() }
    }

    #[test]
    fn a_change_is_saved_when_its_own_ticket_is_done() {
        block_on(async {
            let saver = Saver::new("topics.json");
            let first = saver.want();
            let second = saver.want();
            saver.due().await;
            saver.finish(first, Ok(()));
            assert!(poll_once(saver.saved(first)).await.is_some_and(|r| r.is_ok()));
            assert!(poll_once(saver.saved(second)).await.is_none(), "it came while the first was being saved");
            saver.due().await;
            saver.finish(second, Err(refused()));
            let error = saver.saved(second).await.unwrap_err().to_string();
            assert!(error.starts_with("topics.json cannot be saved: ") && error.ends_with("no space"), "{error}");
        });
    }

    #[test]
    fn nothing_is_due_until_something_changes() {
        block_on(async {
            let saver = Saver::new("topics.json");
            assert!(poll_once(saver.due()).await.is_none());
            let ticket = saver.want();
            assert!(poll_once(saver.due()).await.is_some());
            saver.finish(ticket, Ok(()));
            saver.bell.wait().await; // the ring of `want` is still there
            assert!(poll_once(saver.due()).await.is_none());
        });
    }

    #[test]
    fn the_offsets_file_has_apaches_shape_and_is_read_back() {
        let rows = vec![("T@G".into(), 1, 3), ("T@G".into(), 0, 12), ("%RETRY%G@G".into(), 0, 1)];
        let version = DataVersion { counter: 4, state_version: 0, timestamp: 9 };
        let table = table_of(version, rows, false);
        let text = String::from_utf8(fastjson::to_vec_pretty(&table)).unwrap();
        let flat: String = text.split_whitespace().collect();
        assert_eq!(
            flat,
            "{\"dataVersion\":{\"counter\":4,\"stateVersion\":0,\"timestamp\":9},\"groupTopicMap\":{\"G\":[\"T\",\"%RETRY%G\"]},\
             \"offsetTable\":{\"%RETRY%G@G\":{0:1},\"T@G\":{0:12,1:3}}}"
        );
        assert_eq!(uringmq_proto::body::parse::<ConsumerOffsetTable>(text.as_bytes()).unwrap(), table);
    }

    #[test]
    fn the_version_steps_once_for_so_many_commits() {
        let file = OffsetsFile::default();
        step_version(&file, 499, 500, 1);
        assert_eq!(file.version.get().counter, 0);
        step_version(&file, 1_700, 500, 2);
        assert_eq!(file.version.get(), DataVersion { counter: 3, state_version: 0, timestamp: 2 });
        step_version(&file, 2_000, 500, 3);
        assert_eq!(file.version.get().counter, 4, "the 200 left over count");
    }
}
