//! `check`: every record of the log, every entry of every consume queue and every item of the key index, against each other, in one walk
//! through the log; and whether the checkpoint can be true. Changes nothing. Source: store-format sheet 3 to 6.
//!
//! After an unclean stop the derived files may be behind what is stored, and the log may end in a torn record: the next start sees to
//! that. What the checkpoint does not vouch for is then no fault, but a note.
mod index;
mod queues;
mod units;

use super::bar::Bar;
use super::files::{Parts, file_name};
use super::log::{Step, Walk};
use super::report::{Fault, Report};
use super::{DAMAGED, Held, Place, ReadConfig, SOUND, ToolError};
use clap::Args;
use index::IndexCheck;
use queues::Queues;
use std::fs;
use std::io::{self, ErrorKind};
use uringmq_proto::record;
use uringmq_proto::types::PhyOffset;
use uringmq_store::checkpoint::Checkpoint;
use uringmq_store::dispatch;

const CHECKPOINT_BYTES: u64 = 4096;

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    place: Place,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) use index::index_layout;

pub(crate) fn main(args: CheckArgs, read_config: ReadConfig) -> Result<i32, ToolError> {
    let held = args.place.hold_to_read(read_config)?;
    let report = check(&held)?;
    let out = io::stdout().lock();
    if args.json { report.json(out) } else { report.text(out) }.map_err(ToolError::Output)?;
    Ok(if report.fault_count == 0 { SOUND } else { DAMAGED })
}

/// What a stop left behind.
struct Stop {
    clean: bool,
    checkpoint: Checkpoint,
    /// Entries of records below are vouched for.
    settled_below: u64,
}

fn check(held: &Held) -> Result<Report, ToolError> {
    let log_dir = held.commit_log_dir();
    let log = Parts::list(&log_dir)?;
    let mut report = Report { min_offset: log.first(), segments: log.parts.len() as u64, ..Report::default() };
    for (name, what) in &log.odd {
        report.fault(Fault { file: format!("commitlog/{name}"), at: 0, what: what.clone() });
    }
    let stop = read_stop(held, &mut report)?;
    report.clean = stop.clean;
    let mut queues = Queues::open(&held.root, log.first(), stop.settled_below, &mut report)?;
    let mut index = IndexCheck::open(held, log.first(), stop.settled_below, &mut report)?;
    let known = stop.checkpoint.logics_phy.0;
    let mut known_met = known == 0 || known < log.first();
    let mut last_ms = None;
    let levels = held.config.as_ref().map_or(&[][..], |config| &config.delay_levels_ms);
    let mut hashes = Vec::new();
    let mut walk = Walk::new(&log, log.first(), true);
    let mut bar = Bar::new("log", log.first(), log.end());
    loop {
        match walk.next()? {
            Step::Record => {
                let (at, r) = (walk.at(), walk.record());
                bar.at(at);
                report.records += 1;
                report.record_bytes += r.bytes as u64;
                known_met |= at == known;
                last_ms = last_ms.max(Some(r.store_timestamp_ms));
                queues.take(&dispatch::of_record(&r, PhyOffset(at), levels), &mut report)?;
                hashes.clear();
                record::index_key_hashes(r.topic, r.properties, r.sys_flag, |hash| hashes.push(hash));
                index.take(at, r.store_timestamp_ms, &hashes, &mut report)?;
            }
            Step::Bad { at, to, what } => {
                report.fault(log_fault(&log, at, format!("{what}: no record up to offset {to}")));
            }
            Step::End { torn } => {
                if let Some(what) = torn {
                    let fault = log_fault(&log, walk.at(), format!("the log ends here, but not in zeros: {what}"));
                    report.remark(format!("{} byte {}: {}", fault.file, fault.at, fault.what));
                }
                break;
            }
        }
    }
    report.end_offset = walk.at();
    drop(bar);
    queues.finish(walk.at(), &mut report)?;
    index.finish(&mut report)?;
    judge_checkpoint(&stop.checkpoint, known_met, last_ms, &mut report);
    Ok(report)
}

fn log_fault(log: &Parts, at: u64, what: String) -> Fault {
    let start = log.part_of(at).map_or(at, |part| part.start);
    Fault { file: format!("commitlog/{}", file_name(start)), at: at - start, what: format!("offset {at}: {what}") }
}

fn read_stop(held: &Held, report: &mut Report) -> Result<Stop, ToolError> {
    let path = held.root.join("checkpoint");
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            report.remark("checkpoint: missing".to_owned());
            Vec::new()
        }
        Err(e) => return Err(ToolError::io("read", &path)(e)),
    };
    if !bytes.is_empty() && bytes.len() as u64 != CHECKPOINT_BYTES {
        report.remark(format!("checkpoint: has {} bytes instead of {CHECKPOINT_BYTES}", bytes.len()));
    }
    let checkpoint = Checkpoint::decode(&bytes);
    let clean = !held.root.join("abort").exists();
    let settled_below = if clean { u64::MAX } else { checkpoint.logics_phy.0 };
    Ok(Stop { clean, checkpoint, settled_below })
}

/// The byte of each field: store-format sheet 6.
fn judge_checkpoint(c: &Checkpoint, known_met: bool, last_ms: Option<i64>, report: &mut Report) {
    let mut fault = |at, what| report.fault(Fault { file: "checkpoint".to_owned(), at, what });
    if !known_met {
        fault(
            40,
            format!("names {} as the start of a record that is in its queue, but no record starts there", c.logics_phy),
        );
    }
    for (at, name, ms) in [
        (0, "physicMsgTimestamp", c.physic_ms),
        (8, "logicsMsgTimestamp", c.logics_ms),
        (16, "indexMsgTimestamp", c.index_ms),
    ] {
        if let Some(last_ms) = last_ms
            && ms > last_ms
        {
            fault(at, format!("{name} is {ms}, later than the newest record of the log, {last_ms}"));
        }
    }
}
