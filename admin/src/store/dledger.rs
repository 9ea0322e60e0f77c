//! The log of a broker in DLedger mode (enableDLegerCommitLog, Apache 4.5 and later): each record is the body of an entry. Read so that its
//! messages can be moved; nothing else is done with such a store. Source: replication sheet 11, and files of DLedger 0.3.2.
//!
//! Big-endian. An entry, wherever the entry before it ends:
//! | at | bytes | field |
//! | 0  | 4     | magic: 1 a message, 2 nothing (a new leader's first one), 3 a change of the group; -1: nothing up to the file's end |
//! | 4  | 4     | bytes of the entry, this head counted; with -1, bytes up to the file's end |
//! | 8  | 8     | index |
//! | 16 | 8     | term |
//! | 24 | 8     | position: where this entry starts |
//! | 32 | 4     | channel |
//! | 36 | 4     | chain CRC |
//! | 40 | 4     | body CRC; not set by brokers |
//! | 44 | 4     | bytes of the body |
//! | 48 | n     | body: a record, whose physical offset is where it stands |
use super::ToolError;
use super::bar::Bar;
use super::files::{Part, Parts, names, read_at};
use std::fs::File;
use std::path::{Path, PathBuf};
use uringmq_proto::record::{self, Found, Record, RecordError};

const HEAD_BYTES: usize = 48;
const POSITION_AT: usize = 24;
const BLANK_BYTES_MIN: usize = 8;
const BLANK: i32 = -1;
const MESSAGE: i32 = 1;
const MAGICS: std::ops::RangeInclusive<i32> = 1..=3;
/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;

/// What is met on the way through a log.
pub(crate) enum Met<'a> {
    Record(Record<'a>),
    /// No entry from `at` to `to`, where the next whole one stands, or the next file.
    Bad {
        at: u64,
        to: u64,
        what: &'static str,
    },
}

/// The directories with such a log at `root`: that of a broker (`dledger-n0/data`, one a replica that ran there), of one replica (`data`),
/// or the files themselves.
///
/// # Errors
/// A directory that cannot be listed.
pub(crate) fn data_dirs(root: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let replicas = names(root)?.into_iter().filter(|name| name.starts_with("dledger-"));
    let mut dirs: Vec<PathBuf> = replicas.map(|name| root.join(name).join("data")).filter(|dir| dir.is_dir()).collect();
    if dirs.is_empty() && root.join("data").is_dir() && root.join("index").is_dir() {
        dirs.push(root.join("data"));
    }
    if dirs.is_empty() && root.file_name().is_some_and(|name| name == "data") && !Parts::list(root)?.parts.is_empty() {
        dirs.push(root.to_owned());
    }
    Ok(dirs)
}

/// Gives `take` every record of a log, in its order, until it says false. Those of the last entries may not be committed: a broker that was
/// killed has perhaps not acknowledged them.
///
/// # Errors
/// A file that cannot be read; what `take` says.
pub(crate) fn walk(dir: &Path, mut take: impl FnMut(Met<'_>) -> Result<bool, ToolError>) -> Result<(), ToolError> {
    let log = Parts::list(dir)?;
    let mut bar = Bar::new("DLedger log", log.first(), log.end());
    for (n, part) in log.parts.iter().enumerate() {
        let last = n + 1 == log.parts.len();
        let mut window = Window::open(&log, *part)?;
        let mut at = part.start;
        while at < part.end() {
            bar.at(at);
            let goes_on = match window.look(at)? {
                Look::Record(bytes) => {
                    let record = window.record(at, bytes)?;
                    at += bytes as u64;
                    take(Met::Record(record))?
                }
                Look::Other(bytes) => {
                    at += bytes as u64;
                    true
                }
                Look::Bad(what) => {
                    let to = window.find_next(at)?;
                    if to.is_none() && last {
                        return Ok(());
                    }
                    let bad = Met::Bad { at, to: to.unwrap_or(part.end()), what };
                    at = to.unwrap_or(part.end());
                    take(bad)?
                }
            };
            if !goes_on {
                return Ok(());
            }
        }
    }
    Ok(())
}

enum Look {
    /// An entry with a record, of so many bytes.
    Record(usize),
    /// An entry without, or the rest of the file.
    Other(usize),
    Bad(&'static str),
}

/// A file, and the part of it that was read last.
struct Window {
    part: Part,
    path: PathBuf,
    file: File,
    buf: Vec<u8>,
    buf_at: u64,
}

impl Window {
    fn open(log: &Parts, part: Part) -> Result<Self, ToolError> {
        let (path, file) = log.open(part)?;
        Ok(Window { part, path, file, buf: Vec::new(), buf_at: part.start })
    }

    /// What is read from `at` on: at least `need` bytes, or all up to the file's end.
    fn load(&mut self, at: u64, need: usize) -> Result<&[u8], ToolError> {
        let rest = (self.part.end() - at) as usize;
        let end = at + need.min(rest) as u64;
        if at < self.buf_at || end > self.buf_at + self.buf.len() as u64 {
            self.buf.resize(need.max(READ_BYTES).min(rest), 0);
            let from = at - self.part.start;
            let read = read_at(&mut self.file, from, &mut self.buf).map_err(ToolError::io("read", &self.path))?;
            self.buf.truncate(read);
            self.buf_at = at;
        }
        Ok(&self.buf[(at - self.buf_at) as usize..])
    }

    fn look(&mut self, at: u64) -> Result<Look, ToolError> {
        let rest = (self.part.end() - at) as usize;
        let head = self.load(at, HEAD_BYTES)?;
        if head.len() < BLANK_BYTES_MIN {
            return Ok(Look::Bad("less than an entry"));
        }
        let number = |at: usize| i32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let (magic, bytes) = (number(0), number(4) as u32 as usize);
        if magic == BLANK {
            return Ok(if bytes == rest {
                Look::Other(rest)
            } else {
                Look::Bad("a blank that does not end with its file")
            });
        }
        if !MAGICS.contains(&magic) || head.len() < HEAD_BYTES {
            return Ok(Look::Bad("no entry"));
        }
        if position(head) != at {
            return Ok(Look::Bad("entry of another place"));
        }
        let body_bytes = number(HEAD_BYTES - 4) as u32 as usize;
        if bytes != body_bytes.saturating_add(HEAD_BYTES) || bytes > rest {
            return Ok(Look::Bad("impossible size"));
        }
        if magic != MESSAGE {
            return Ok(Look::Other(bytes));
        }
        let Some(body) = self.load(at, bytes)?.get(HEAD_BYTES..bytes) else {
            return Ok(Look::Bad("an entry longer than its file"));
        };
        Ok(match record::parse(body, true) {
            Ok(Found::Record(r)) if r.bytes == body_bytes && r.phy_offset as u64 == at + HEAD_BYTES as u64 => {
                Look::Record(bytes)
            }
            Ok(Found::Record(_)) => Look::Bad("record of another place"),
            Ok(Found::Blank { .. }) => Look::Bad("an entry without its record"),
            Err(RecordError::Short { .. }) => Look::Bad("a record longer than its entry"),
            Err(RecordError::Bad(what)) => Look::Bad(what),
            Err(RecordError::Crc { .. }) => Look::Bad("body CRC"),
        })
    }

    /// The record of the entry at `at`, which has one.
    fn record(&mut self, at: u64, bytes: usize) -> Result<Record<'_>, ToolError> {
        let body = &self.load(at, bytes)?[HEAD_BYTES..bytes];
        match record::parse(body, false) {
            Ok(Found::Record(record)) => Ok(record),
            other => panic!("no record at {at}, where one was met: {other:?}"),
        }
    }

    /// The next whole entry of the file behind `at`: one says where it stands.
    fn find_next(&mut self, at: u64) -> Result<Option<u64>, ToolError> {
        let mut from = at + 1;
        while from + HEAD_BYTES as u64 <= self.part.end() {
            let bytes = self.load(from, HEAD_BYTES)?;
            if bytes.len() < HEAD_BYTES {
                return Ok(None); // the file was cut since it was listed
            }
            let starts = bytes.len() - HEAD_BYTES + 1;
            let Some(n) = (0..starts).find(|n| position(&bytes[*n..]) == from + *n as u64) else {
                from += starts as u64;
                continue;
            };
            from += n as u64;
            if !matches!(self.look(from)?, Look::Bad(_)) {
                return Ok(Some(from));
            }
            from += 1;
        }
        Ok(None)
    }
}

fn position(head: &[u8]) -> u64 {
    u64::from_be_bytes(head[POSITION_AT..POSITION_AT + 8].try_into().expect("8 bytes"))
}
