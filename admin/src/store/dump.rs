//! `dump` and `export`: records as lines of JSON, in log order. What is damaged is told on standard error and stepped over. `export` reads
//! DLedger's logs as well.
use super::bar::Bar;
use super::dledger::{self, Met};
use super::files::Parts;
use super::filter::Filter;
use super::log::{Step, Walk};
use super::{DAMAGED, Held, Place, ReadConfig, SOUND, ToolError};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use uringmq_proto::message::{properties, write_offset_id};
use uringmq_proto::record::Record;
use uringmq_store::lock;

#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    place: Place,
    /// Begin at this physical offset, where a record must start
    #[arg(long, value_name = "N")]
    offset: Option<u64>,
    #[command(flatten)]
    filter: Filter,
    /// At most so many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// How bodies are printed, as they are stored (a client may have compressed them)
    #[arg(long, value_enum, default_value_t = Body::None)]
    body: Body,
}

#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    place: Place,
    /// The topic
    #[arg(long)]
    topic: String,
    /// The file to write; it must not exist yet. Complete when it has its name: until then it ends in .part
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// How bodies are written, as they are stored
    #[arg(long, value_enum, default_value_t = Body::Base64)]
    body: Body,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// Not at all
    None,
    /// As text; as base64 where it is no UTF-8
    Utf8,
    /// As base64
    Base64,
}

/// A record as it is printed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    offset: u64,
    bytes: usize,
    topic: &'a str,
    queue: i32,
    queue_offset: i64,
    msg_id: String,
    store_timestamp: i64,
    store_host: String,
    born_timestamp: i64,
    born_host: String,
    flag: i32,
    sys_flag: i32,
    reconsume_times: i32,
    prepared_transaction_offset: i64,
    properties: BTreeMap<&'a str, &'a str>,
    body_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

fn line<'a>(record: &Record<'a>, body: Body) -> Line<'a> {
    let mut msg_id = String::new();
    write_offset_id(&mut msg_id, record.store_host, record.phy_offset as u64);
    let text = if body == Body::Utf8 { std::str::from_utf8(record.body).ok() } else { None };
    Line {
        offset: record.phy_offset as u64,
        bytes: record.bytes,
        topic: record.topic,
        queue: record.queue_id,
        queue_offset: record.queue_offset,
        msg_id,
        store_timestamp: record.store_timestamp_ms,
        store_host: record.store_host.to_string(),
        born_timestamp: record.born_timestamp_ms,
        born_host: record.born_host.to_string(),
        flag: record.flag,
        sys_flag: record.sys_flag,
        reconsume_times: record.reconsume_times,
        prepared_transaction_offset: record.prepared_transaction_offset,
        properties: properties(record.properties).collect(),
        body_bytes: record.body.len(),
        body: text,
        body_base64: (body != Body::None && text.is_none()).then(|| base64(record.body)),
    }
}

/// The alphabet of RFC 4648, padded.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for n in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * n)) as usize & 63] as char;
            out.push(if n <= chunk.len() { digit } else { '=' });
        }
    }
    out
}

/// Prints the records that a filter takes.
struct Printer<'a, W> {
    filter: &'a Filter,
    body: Body,
    limit: u64,
    out: W,
    records: u64,
    /// Stretches of the log that hold no record.
    damaged: u64,
}

impl<'a, W: Write> Printer<'a, W> {
    fn new(filter: &'a Filter, body: Body, limit: u64, out: W) -> Self {
        Printer { filter, body, limit, out, records: 0, damaged: 0 }
    }

    fn goes_on(&self) -> bool {
        self.records < self.limit
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), ToolError> {
        if self.filter.takes(record) {
            let line = line(record, self.body);
            serde_json::to_writer(&mut self.out, &line).map_err(|e| ToolError::Output(e.into()))?;
            self.out.write_all(b"\n").map_err(ToolError::Output)?;
            self.records += 1;
        }
        Ok(())
    }

    fn bad(&mut self, at: u64, to: u64, what: &str) {
        self.damaged += 1;
        eprintln!("uringmq store: no record from offset {at} to {to}: {what}");
    }

    /// The shell's status.
    fn status(&self) -> i32 {
        if self.damaged == 0 { SOUND } else { DAMAGED }
    }
}

fn print<W: Write>(held: &Held, from: Option<u64>, printer: &mut Printer<'_, W>) -> Result<(), ToolError> {
    let log = Parts::list(&held.commit_log_dir())?;
    let start = match from {
        Some(at) if log.part_of(at).is_none() && at != log.end() => {
            let (first, end) = (log.first(), log.end());
            return Err(ToolError::Unusable(format!(
                "--offset {at} is outside the log, which is from {first} to {end}"
            )));
        }
        Some(at) => at,
        None => skipped_by_time(&log, printer.filter)?,
    };
    let mut walk = Walk::new(&log, start, true);
    let mut bar = Bar::new("log", start, log.end());
    while printer.goes_on() {
        match walk.next()? {
            Step::Record => {
                bar.at(walk.at());
                printer.record(&walk.record())?;
            }
            Step::Bad { at, to, what } => printer.bad(at, to, what),
            Step::End { .. } => break,
        }
    }
    printer.out.flush().map_err(ToolError::Output)
}

/// A log of DLedger's.
fn print_dledger<W: Write>(dir: &Path, printer: &mut Printer<'_, W>) -> Result<(), ToolError> {
    dledger::walk(dir, |met| {
        match met {
            Met::Record(record) => printer.record(&record)?,
            Met::Bad { at, to, what } => printer.bad(at, to, what),
        }
        Ok(printer.goes_on())
    })?;
    printer.out.flush().map_err(ToolError::Output)
}

/// Where the walk may start: files whose next one begins before the wanted time hold nothing of it.
fn skipped_by_time(log: &Parts, filter: &Filter) -> Result<u64, ToolError> {
    let mut start = log.first();
    let Some(from_ms) = filter.from else { return Ok(start) };
    for part in log.parts.iter().skip(1) {
        let mut walk = Walk::new(log, part.start, true);
        if walk.next()? != Step::Record || walk.record().store_timestamp_ms >= from_ms {
            break;
        }
        start = part.start;
    }
    Ok(start)
}

pub(crate) fn main(args: DumpArgs, read_config: ReadConfig) -> Result<i32, ToolError> {
    let held = args.place.hold_to_read(read_config)?;
    let out = BufWriter::new(io::stdout().lock());
    let mut printer = Printer::new(&args.filter, args.body, args.limit.unwrap_or(u64::MAX), out);
    print(&held, args.offset, &mut printer)?;
    Ok(printer.status())
}

pub(crate) fn export(args: ExportArgs, read_config: ReadConfig) -> Result<i32, ToolError> {
    let dledger = dledger::data_dirs(&args.place.root)?;
    if dledger.len() > 1 {
        let all: Vec<String> = dledger.iter().map(|dir| dir.display().to_string()).collect();
        return Err(ToolError::Unusable(format!("logs of several DLedger replicas: name one of {}", all.join(", "))));
    }
    let held = match dledger.is_empty() {
        true => args.place.hold_to_read(read_config)?,
        false => args.place.hold_any_to_read(read_config)?,
    };
    // Of a replica's own directory the lock is in the store around it.
    let _around = match dledger.first().and_then(|dir| dir.parent()?.parent()) {
        Some(store) if store != args.place.root => lock::lock_to_read(store)?,
        _ => None,
    };
    if args.output.exists() {
        return Err(ToolError::Unusable(format!("{} exists already", args.output.display())));
    }
    let mut name = args.output.clone().into_os_string();
    name.push(".part");
    let part = PathBuf::from(name);
    let create = OpenOptions::new().write(true).create(true).truncate(true).open(&part);
    let out = BufWriter::new(create.map_err(ToolError::io("create", &part))?);
    let filter = Filter { topic: Some(args.topic.clone()), ..Filter::default() };
    let mut printer = Printer::new(&filter, args.body, u64::MAX, out);
    print(&held, None, &mut printer)?; // with DLedger: what is older than it
    for dir in &dledger {
        print_dledger(dir, &mut printer)?;
    }
    let (records, status) = (printer.records, printer.status());
    let file: File = printer.out.into_inner().map_err(|e| ToolError::Output(e.into_error()))?;
    file.sync_all().map_err(ToolError::io("sync", &part))?;
    fs::rename(&part, &args.output).map_err(ToolError::io("rename", &part))?;
    println!("{records} messages of {} in {}", args.topic, args.output.display());
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_rfc() {
        let pairs =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")];
        for (text, coded) in pairs {
            assert_eq!(base64(text.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xFB, 0xFF]), "+/8=");
    }
}
