//! Walks the log from record to record and steps over damage. Source: store-format sheet 2, 3.1.
//!
//! A record says where it stands, so the next whole one behind damage is found for sure: its head, its CRC and its own offset are right.
use super::ToolError;
use super::files::{Part, Parts, read_at};
use memchr::memmem::Finder;
use std::fs::File;
use std::path::PathBuf;
use uringmq_proto::record::{self, BLANK_BYTES_MIN, Found, MAGIC_V1, MAGIC_V2, Record, RecordError};

/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;
/// A size above this is taken for damage.
const RECORD_BYTES_MAX: usize = 256 << 20;
/// From the start of a record to its magic.
const MAGIC_AT: usize = 4;

/// What a step of the walk met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A whole record: [`Walk::record`].
    Record,
    /// No record from `at` to `to`, where the next whole one stands.
    Bad { at: u64, to: u64, what: &'static str },
    /// Nothing more. `torn` says what stands at the end instead of zeros.
    End { torn: Option<&'static str> },
}

enum Look {
    Record(usize),
    Blank(u64),
    Zeros,
    Bad(&'static str),
    /// The end of the file.
    FileEnd,
}

pub(crate) struct Walk<'a> {
    log: &'a Parts,
    check_crc: bool,
    at: u64,
    /// Length of the record at `at`, once it was met.
    met: usize,
    /// The open file.
    part: Option<Part>,
    file: Option<(PathBuf, File)>,
    buf: Vec<u8>,
    buf_at: u64,
    finder: Finder<'static>,
    ended: bool,
}

impl<'a> Walk<'a> {
    /// From `at`, which is where a record starts, or the start of a file.
    pub(crate) fn new(log: &'a Parts, at: u64, check_crc: bool) -> Self {
        const COMMON: &[u8] = &[0xDA, 0xA3, 0x20];
        Walk {
            log,
            check_crc,
            at: at.max(log.first()),
            met: 0,
            part: None,
            file: None,
            buf: Vec::new(),
            buf_at: 0,
            finder: Finder::new(COMMON),
            ended: false,
        }
    }

    /// Where the walk is: at the record that was met, or at the end.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The record that [`Walk::next`] met.
    ///
    /// # Panics
    /// When it met something else.
    pub(crate) fn record(&self) -> Record<'_> {
        let from = (self.at - self.buf_at) as usize;
        match record::parse(&self.buf[from..from + self.met], false) {
            Ok(Found::Record(record)) => record,
            other => panic!("no record at {}, where one was met: {other:?}", self.at),
        }
    }

    pub(crate) fn next(&mut self) -> Result<Step, ToolError> {
        self.at += std::mem::take(&mut self.met) as u64;
        if self.ended {
            return Ok(Step::End { torn: None });
        }
        loop {
            if !self.enter()? {
                self.ended = true;
                return Ok(Step::End { torn: None });
            }
            match self.look()? {
                Look::Record(bytes) => {
                    self.met = bytes;
                    return Ok(Step::Record);
                }
                Look::Blank(to) => self.at = to,
                Look::FileEnd => match self.log.part_after(self.at - 1) {
                    Some(next) => self.at = next.start,
                    None => {
                        self.ended = true;
                        return Ok(Step::End { torn: None });
                    }
                },
                Look::Zeros => return self.step_over("zeros", true),
                Look::Bad(what) => return self.step_over(what, false),
            }
        }
    }

    /// Opens the file that holds `at`, or the next one; false behind the last.
    fn enter(&mut self) -> Result<bool, ToolError> {
        if self.part.is_some_and(|part| part.start <= self.at && self.at < part.end()) {
            return Ok(true);
        }
        let Some(part) = self.log.part_of(self.at).or_else(|| self.log.part_after(self.at)) else { return Ok(false) };
        self.at = self.at.max(part.start);
        self.file = Some(self.log.open(part)?);
        self.part = Some(part);
        self.buf.clear();
        self.buf_at = self.at;
        Ok(true)
    }

    fn part(&self) -> Part {
        self.part.expect("entered")
    }

    /// Where the file should end: a file that was cut short still has its place.
    fn place_end(&self) -> u64 {
        let part = self.part();
        part.start + part.bytes.max(self.log.file_bytes)
    }

    /// Has at least `need` bytes from `at` in the buffer, or all up to the file's end.
    fn load(&mut self, need: usize) -> Result<&[u8], ToolError> {
        let part = self.part();
        if self.at < self.buf_at || self.at > self.buf_at + self.buf.len() as u64 {
            self.buf.clear();
            self.buf_at = self.at;
        }
        let have = (self.buf_at + self.buf.len() as u64 - self.at) as usize;
        let rest = (part.end() - self.at) as usize;
        if have < need.min(rest) {
            self.buf.drain(..(self.at - self.buf_at) as usize);
            self.buf_at = self.at;
            let wanted = need.max(READ_BYTES).min(rest);
            self.buf.resize(wanted, 0);
            let (path, file) = self.file.as_mut().expect("opened with the part");
            let from = self.at + have as u64 - part.start;
            let read = read_at(file, from, &mut self.buf[have..]).map_err(ToolError::io("read", path))?;
            self.buf.truncate(have + read);
        }
        Ok(&self.buf[(self.at - self.buf_at) as usize..])
    }

    fn look(&mut self) -> Result<Look, ToolError> {
        let (part, place_end, at, check_crc) = (self.part(), self.place_end(), self.at, self.check_crc);
        let rest = (part.end() - at) as usize;
        if rest == 0 {
            return Ok(Look::FileEnd);
        }
        let mut need = BLANK_BYTES_MIN;
        loop {
            let bytes = self.load(need)?;
            return Ok(match record::parse(bytes, check_crc) {
                Ok(Found::Record(r)) if r.phy_offset as u64 != at => Look::Bad("record of another place"),
                Ok(Found::Record(r)) => Look::Record(r.bytes),
                Ok(Found::Blank { bytes }) if at + bytes as u64 == place_end => Look::Blank(place_end),
                Ok(Found::Blank { .. }) => Look::Bad("a blank that does not end with its file"),
                Err(RecordError::Short { wants, .. }) if wants > RECORD_BYTES_MAX => Look::Bad("impossible size"),
                Err(RecordError::Short { wants, has }) if has < wants.min(rest) => {
                    need = wants;
                    continue;
                }
                Err(RecordError::Short { .. }) if bytes.iter().all(|b| *b == 0) => Look::Zeros,
                Err(RecordError::Short { .. }) => Look::Bad("longer than its file"),
                Err(_) if bytes.iter().take(BLANK_BYTES_MIN).all(|b| *b == 0) => Look::Zeros,
                Err(RecordError::Bad(what)) => Look::Bad(what),
                Err(RecordError::Crc { .. }) => Look::Bad("body CRC"),
            });
        }
    }

    /// To the next whole record; without one the log ends here.
    fn step_over(&mut self, what: &'static str, zeros: bool) -> Result<Step, ToolError> {
        let bad = self.at;
        let crc = std::mem::replace(&mut self.check_crc, true); // a record of chance must not be taken
        let found = self.find_next()?;
        self.check_crc = crc;
        if found {
            return Ok(Step::Bad { at: bad, to: self.at, what });
        }
        self.at = bad;
        self.ended = true;
        Ok(Step::End { torn: (!zeros).then_some(what) })
    }

    fn find_next(&mut self) -> Result<bool, ToolError> {
        self.at += 1;
        while self.enter()? {
            let part = self.part();
            let finder = self.finder.clone();
            let here = self.at;
            let bytes = self.load(READ_BYTES)?;
            let seen = bytes.len();
            match finder.find(bytes).filter(|found| *found >= MAGIC_AT) {
                Some(found) => {
                    let magic = bytes.get(found..found + 4).map(|m| u32::from_be_bytes(m.try_into().expect("4 bytes")));
                    self.at = here + (found - MAGIC_AT) as u64;
                    if matches!(magic, Some(MAGIC_V1 | MAGIC_V2)) && matches!(self.look()?, Look::Record(_)) {
                        return Ok(true);
                    }
                    self.at = here + (found - MAGIC_AT) as u64 + 1;
                }
                // Too near to the front for a head: its first bytes were passed already.
                None if finder.find(bytes).is_some() => self.at += 1,
                None if here + seen as u64 >= part.end() => self.at = part.end(),
                // The last bytes may be a head that goes on in the next read.
                None => self.at += seen.saturating_sub(2 * MAGIC_AT).max(1) as u64,
            }
        }
        Ok(false)
    }
}
