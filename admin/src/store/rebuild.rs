//! `rebuild`: consume queues, key index and checkpoint anew, from the log alone. It is the broker's own recovery, run on the log with an
//! empty store beside it; when that is done, the new files take the place of the old ones.
//!
//! Before the first file moves, the store is marked as running with a checkpoint that vouches for nothing, so that a crash in between
//! only means that the next start builds all again.
use super::bar::Bar;
use super::check;
use super::files::{Parts, has_lights, names, topic_forms};
use super::log::{Step, Walk};
use super::{Held, Place, ReadConfig, SOUND, ToolError};
use clap::Args;
use glommio::{LocalExecutorBuilder, Placement};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use uringmq_proto::types::PhyOffset;
use uringmq_store::checkpoint::{self, Checkpoint};
use uringmq_store::consume_queue::Form;
use uringmq_store::io::glommio::GlommioIo;
use uringmq_store::open::Opened;
use uringmq_store::{EXTENSION_DIR, StoreConfig, open};

/// Where the new files grow; a leftover of a rebuild that was broken off is removed.
const BESIDE: &str = "rebuild.new";
/// Where the old ones go until they are removed.
const OLD: &str = "rebuild.old";
/// An extension is not built again: without its units queues filter by the records themselves.
const DERIVED: [&str; 4] = [Form::Plain.dir(), EXTENSION_DIR, Form::Batch.dir(), "index"];

#[derive(Args, Debug)]
pub(crate) struct RebuildArgs {
    #[command(flatten)]
    place: Place,
}

pub(crate) fn main(args: RebuildArgs, read_config: ReadConfig) -> Result<i32, ToolError> {
    let held = args.place.hold_to_write(read_config)?;
    let log = Parts::list(&held.commit_log_dir())?;
    let config = config(&held, &log, read_config)?;
    let last = last_record(&log)?;
    let executor = LocalExecutorBuilder::new(Placement::Unbound);
    let failed = |e: glommio::GlommioError<()>| ToolError::Unusable(format!("io_uring executor: {e}"));
    let run = executor.spawn(move || async move { rebuild(&held, config, last).await }).map_err(failed)?;
    let opened = run.join().map_err(failed)??;
    let report = &opened.report;
    println!(
        "{} records from {} to {}: {} queues with {} entries; checkpoint and index done",
        report.records,
        opened.min,
        opened.end,
        opened.queues.len(),
        report.queue_entries_rebuilt
    );
    for (from, to) in &report.damaged {
        println!("no record from {from} to {to}: stepped over");
    }
    Ok(SOUND)
}

/// The sizes that the store has now, over Apache's defaults, unless the broker's file says them.
fn config(held: &Held, log: &Parts, read_config: ReadConfig) -> Result<StoreConfig, ToolError> {
    let mut config = match &held.config {
        Some(config) => config.clone(),
        None => {
            let mut config = read_config(None).map_err(ToolError::Unusable)?;
            if let Some(bytes) = queue_file_bytes(&held.root, Form::Plain)? {
                config.queue_file_bytes = bytes;
            }
            if let Some(bytes) = queue_file_bytes(&held.root, Form::Batch)? {
                config.batch_file_bytes = bytes;
            }
            config.light_queues = has_lights(&held.root)?;
            if let Some(layout) = check::index_layout(held)? {
                (config.index_slots, config.index_items) = (layout.slots, layout.items);
            }
            config
        }
    };
    config.topic_forms = topic_forms(&held.root)?.unwrap_or_default();
    for topic in names(&held.root.join(Form::Batch.dir()))? {
        config.topic_forms.entry(topic).or_insert(Form::Batch); // of a topic that is no more
    }
    config.commit_log_dir = held.commit_log_dir();
    config.root = held.root.join(BESIDE);
    config.segment_bytes = log.file_bytes;
    Ok(config)
}

/// The length of the first queue file of this kind that there is.
fn queue_file_bytes(root: &Path, form: Form) -> Result<Option<u64>, ToolError> {
    let dir = root.join(form.dir());
    for topic in names(&dir)? {
        for queue in names(&dir.join(&topic))? {
            let parts = Parts::list(&dir.join(&topic).join(&queue))?;
            if parts.file_bytes > 0 && parts.odd.is_empty() {
                return Ok(Some(parts.file_bytes));
            }
        }
    }
    Ok(None)
}

/// Where the newest whole record of the log starts: damage below it is stepped over.
fn last_record(log: &Parts) -> Result<Option<u64>, ToolError> {
    for part in log.parts.iter().rev() {
        let mut walk = Walk::new(log, part.start, true);
        let mut last = None;
        loop {
            match walk.next()? {
                Step::Record => last = Some(walk.at()),
                Step::Bad { .. } => {}
                Step::End { .. } => break,
            }
        }
        if last.is_some() {
            return Ok(last);
        }
    }
    Ok(None)
}

async fn rebuild(held: &Held, config: StoreConfig, last: Option<u64>) -> Result<Opened, ToolError> {
    let (root, beside, old) = (&held.root, held.root.join(BESIDE), held.root.join(OLD));
    for dir in [&beside, &old] {
        remove_dir(dir)?;
        fs::create_dir(dir).map_err(ToolError::io("create", dir))?;
    }
    let io = GlommioIo::starting();
    let mark = Checkpoint { logics_phy: PhyOffset(last.unwrap_or(0)), ..Checkpoint::default() };
    checkpoint::write(&io, &beside, &mark).await?;
    let mut bar: Option<Bar> = None;
    let opened =
        open::open(io.clone(), &config, |p| bar.get_or_insert_with(|| Bar::new("log", p.from.0, p.to.0)).at(p.at.0))
            .await?;
    drop(bar);
    let clean = !checkpoint::is_marked_running(&io, root).await?;
    // After an unclean stop only what was vouched for before is so again: the next start looks at the rest.
    let vouched = checkpoint::read_or_nothing(&io, if clean { &beside } else { root }).await?;
    checkpoint::mark_running(&io, root).await?;
    checkpoint::write(&io, root, &Checkpoint::default()).await?;
    let kinds = DERIVED.iter().filter(|kind| **kind != "index" || config.index_enabled);
    for kind in kinds {
        move_dir(&root.join(kind), &old.join(kind))?;
        move_dir(&beside.join(kind), &root.join(kind))?;
    }
    for dir in [&beside, &old, root] {
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(ToolError::io("sync", dir))?;
    }
    checkpoint::write(&io, root, &vouched).await?;
    if clean {
        checkpoint::mark_clean(&io, root).await?;
    }
    remove_dir(&beside)?;
    remove_dir(&old)?;
    Ok(opened)
}

fn move_dir(from: &Path, to: &PathBuf) -> Result<(), ToolError> {
    match fs::rename(from, to) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(ToolError::io("rename", from)(e)),
    }
}

fn remove_dir(dir: &Path) -> Result<(), ToolError> {
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(ToolError::io("remove", dir)(e)),
    }
}
