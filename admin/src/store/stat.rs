//! `stat`: what is in a store, by topic and queue.
use super::bar::Bar;
use super::files::{Parts, has_lights, names, topic_forms};
use super::log::{Step, Walk};
use super::{Place, ReadConfig, SOUND, ToolError};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use uringmq_proto::types::PhyOffset;
use uringmq_store::EXTENSION_DIR;
use uringmq_store::consume_queue::Form;
use uringmq_store::dispatch::{self, Dispatch};

#[derive(Args, Debug)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    place: Place,
    /// Tell of each queue, too
    #[arg(long)]
    queues: bool,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize, Default)]
struct Count {
    messages: u64,
    /// Of records, whole.
    bytes: u64,
    oldest_ms: i64,
    newest_ms: i64,
}

impl Count {
    fn add(&mut self, (messages, bytes): (u64, usize), store_ms: i64) {
        if self.messages == 0 || store_ms < self.oldest_ms {
            self.oldest_ms = store_ms;
        }
        self.newest_ms = self.newest_ms.max(store_ms);
        self.messages += messages;
        self.bytes += bytes as u64;
    }
}

#[derive(Serialize, Default)]
struct Queue {
    #[serde(flatten)]
    count: Count,
    /// Of the messages that are in the log.
    min_offset: i64,
    max_offset: i64,
}

#[derive(Serialize, Default)]
struct Topic {
    #[serde(flatten)]
    count: Count,
    queues: BTreeMap<i32, Queue>,
}

#[derive(Serialize, Default)]
struct Stat {
    clean: bool,
    segments: usize,
    segment_bytes: u64,
    min_offset: u64,
    end_offset: u64,
    /// Bytes of the log that hold no record and should.
    damaged_bytes: u64,
    index_files: usize,
    /// Of the queues' extensions.
    extension_files: usize,
    #[serde(flatten)]
    count: Count,
    topics: BTreeMap<String, Topic>,
}

impl Stat {
    /// A record in one queue.
    fn add(&mut self, d: &Dispatch<'_>, queue_id: i32, batch: bool) {
        if !self.topics.contains_key(d.topic) {
            self.topics.insert(d.topic.to_owned(), Topic::default());
        }
        let messages = if batch { d.messages() } else { 1 };
        let (of, stored_ms) = ((messages as u64, d.bytes as usize), d.store_timestamp_ms);
        let topic = self.topics.get_mut(d.topic).expect("it is there now");
        topic.count.add(of, stored_ms);
        let queue = topic.queues.entry(queue_id).or_default();
        if queue.count.messages == 0 {
            queue.min_offset = d.queue_offset as i64;
        }
        queue.max_offset = d.queue_offset as i64 + messages as i64;
        queue.count.add(of, stored_ms);
    }
}

pub(crate) fn main(args: StatArgs, read_config: ReadConfig) -> Result<i32, ToolError> {
    let held = args.place.hold_to_read(read_config)?;
    let log = Parts::list(&held.commit_log_dir())?;
    let mut stat = Stat {
        clean: !held.root.join("abort").exists(),
        segments: log.parts.len(),
        segment_bytes: log.file_bytes,
        min_offset: log.first(),
        index_files: names(&held.root.join("index"))?.len(),
        extension_files: extension_files(&held.root.join(EXTENSION_DIR))?,
        ..Stat::default()
    };
    // What is in a light queue, too, counts there as well, but once in all.
    let lights = has_lights(&held.root)?;
    let forms = topic_forms(&held.root)?.unwrap_or_default();
    let mut walk = Walk::new(&log, log.first(), false);
    let mut bar = Bar::new("log", log.first(), log.end());
    loop {
        match walk.next()? {
            Step::Record => {
                let r = walk.record();
                bar.at(walk.at());
                let d = dispatch::of_record(&r, PhyOffset(walk.at()), &[]);
                // Only in a batch queue such a record stands for all of its messages.
                let batch = d.count.is_some() && forms.get(d.topic) != Some(&Form::Plain);
                let messages = if batch { d.messages() as u64 } else { 1 };
                stat.count.add((messages, r.bytes), r.store_timestamp_ms);
                stat.add(&d, r.queue_id, batch);
                if lights {
                    dispatch::light_places(&d, |light| stat.add(&light, 0, false));
                }
            }
            Step::Bad { at, to, .. } => stat.damaged_bytes += to - at,
            Step::End { .. } => break,
        }
    }
    stat.end_offset = walk.at();
    drop(bar);
    let out = io::stdout().lock();
    if args.json { json(&stat, out) } else { text(&stat, args.queues, out) }.map_err(ToolError::Output)?;
    Ok(SOUND)
}

/// Files of all queues below `dir`.
fn extension_files(dir: &Path) -> Result<usize, ToolError> {
    let mut files = 0;
    for topic in names(dir)? {
        for queue in names(&dir.join(&topic))? {
            files += names(&dir.join(&topic).join(&queue))?.len();
        }
    }
    Ok(files)
}

fn json(stat: &Stat, mut out: impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut out, stat)?;
    out.write_all(b"\n")
}

fn text(stat: &Stat, queues: bool, mut out: impl Write) -> io::Result<()> {
    let stop = if stat.clean { "stopped cleanly" } else { "not stopped cleanly" };
    writeln!(
        out,
        "log      {} to {}, {} segments of {} bytes, {stop}",
        stat.min_offset, stat.end_offset, stat.segments, stat.segment_bytes
    )?;
    if stat.damaged_bytes > 0 {
        writeln!(out, "damaged  {} bytes of the log hold no record: see uringmq store check", stat.damaged_bytes)?;
    }
    writeln!(out, "index    {} files", stat.index_files)?;
    if stat.extension_files > 0 {
        writeln!(out, "units    {} files", stat.extension_files)?;
    }
    let all = &stat.count;
    writeln!(
        out,
        "stored   {} messages, {} bytes, from {} to {} ms",
        all.messages, all.bytes, all.oldest_ms, all.newest_ms
    )?;
    writeln!(out, "\n{:>12} {:>16} {:>14} {:>14}  topic", "messages", "bytes", "oldest ms", "newest ms")?;
    for (name, topic) in &stat.topics {
        let c = &topic.count;
        writeln!(out, "{:>12} {:>16} {:>14} {:>14}  {name}", c.messages, c.bytes, c.oldest_ms, c.newest_ms)?;
        for (id, queue) in topic.queues.iter().filter(|_| queues) {
            let c = &queue.count;
            writeln!(
                out,
                "{:>12} {:>16} {:>14} {:>14}    queue {id}: {} to {}",
                c.messages, c.bytes, c.oldest_ms, c.newest_ms, queue.min_offset, queue.max_offset
            )?;
        }
    }
    Ok(())
}
