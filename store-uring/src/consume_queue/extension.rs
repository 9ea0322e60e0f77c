//! A queue's extension: for an entry a *unit* with what its 20 bytes have no room for. Source: store-format sheet 4.5, checked on 5.5.0
//! (`ConsumeQueueExt`).
//!
//! `consumequeue_ext/<topic>/<queue>/<20 digits>`: files of one length, named by their first byte, sparse. Units stand one after the other:
//!
//! | at | bytes | field |
//! | 0  | 2     | length of the unit, 20 + n; -1 behind the last unit of a file; 0 where nothing was written |
//! | 2  | 8     | tagsCode of the entry |
//! | 10 | 8     | store time of the record, ms |
//! | 18 | 2     | n |
//! | 20 | n     | bit map: which subscriptions the message matches |
//!
//! A unit's *address* is its place in the sequence of files less 2^63, and stands where the entry's tagsCode would: no tag has such a low one.
//! Units are written before the entries that lead to them, and synced with them. What stands behind the newest unit that an entry leads to is
//! nobody's: the first unit of a run goes there.
use super::{CREATE, READ, WRITE, file_name, file_start};
use crate::StoreError;
use crate::io::{File, Io, is_unreadable, write_all};
use crate::seeded::{Bug, bug};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;

/// Of a unit without its map.
const HEAD_BYTES: usize = 20;
/// Kept free at a file's end, for the mark that says so.
const END_BYTES: u64 = 4;
/// Length of a unit: Java's field for it is a signed short.
const UNIT_BYTES_MAX: usize = i16::MAX as usize;
pub const MAP_BYTES_MAX: usize = UNIT_BYTES_MAX - HEAD_BYTES;
/// In a shorter file the largest unit has no room.
pub const EXTENSION_FILE_BYTES_MIN: u64 = UNIT_BYTES_MAX as u64 + END_BYTES;
/// At or below, a tagsCode is an address.
const ADDRESS_MAX: i64 = i32::MIN as i64 - 1;
/// Bytes of one read of a file.
const CHUNK_BYTES: u64 = 64 * 1024;
/// Chunks kept.
const CHUNKS: usize = 2;

/// Whether what stands for an entry's tagsCode is the address of its unit.
pub const fn is_address(tags_code: i64) -> bool {
    tags_code <= ADDRESS_MAX
}

/// Where a unit with this address begins in the sequence of files.
pub const fn place_of(address: i64) -> u64 {
    address.wrapping_sub(i64::MIN) as u64
}

fn address_of(place: u64) -> Option<i64> {
    i64::try_from(place).ok().map(|place| i64::MIN + place).filter(|address| is_address(*address))
}

/// What an extension holds of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub tags_code: i64,
    pub stored_ms: i64,
    /// At most [`MAP_BYTES_MAX`]; empty where nobody computed one.
    pub map: Box<[u8]>,
}

impl Unit {
    fn bytes(&self) -> usize {
        HEAD_BYTES + self.map.len()
    }
    fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.map.len() <= MAP_BYTES_MAX, "a bit map of {} bytes", self.map.len());
        out.extend((self.bytes() as i16).to_be_bytes());
        out.extend(self.tags_code.to_be_bytes());
        out.extend(self.stored_ms.to_be_bytes());
        out.extend((self.map.len() as i16).to_be_bytes());
        out.extend(&self.map);
    }
    /// The unit at the front of `bytes`, as it was read.
    pub fn decode(bytes: &[u8]) -> Read<'_> {
        let short = |at: usize| i16::from_be_bytes(bytes[at..at + 2].try_into().expect("2 bytes"));
        let long = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes.len() < 2 {
            return Read::Cut;
        }
        let length = short(0);
        if (length as i64) < HEAD_BYTES as i64 {
            return Read::None;
        }
        if bytes.len() < length as usize {
            return Read::Cut;
        }
        let map = &bytes[HEAD_BYTES..length as usize];
        match short(18) as usize == map.len() {
            true => Read::Unit { tags_code: long(2), stored_ms: long(10), map },
            false => Read::None,
        }
    }
}

/// What stands at a place of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read<'a> {
    Unit {
        tags_code: i64,
        stored_ms: i64,
        map: &'a [u8],
    },
    /// No unit.
    None,
    /// The bytes end before the unit does.
    Cut,
}

/// Where a queue's extension is.
#[derive(Clone, Debug)]
pub struct Place {
    pub dir: PathBuf,
    /// `mappedFileSizeConsumeQueueExt`, at least [`EXTENSION_FILE_BYTES_MIN`] where units are written.
    pub file_bytes: u64,
    /// New entries get units (`enableConsumeQueueExt`); those that have one are read in any case.
    pub writes: bool,
}

/// Units that are to be written: their addresses in order (`None`: no place is left for one), the bytes by the place of the first of them.
pub(super) struct Plan {
    pub addresses: Vec<Option<i64>>,
    pieces: Vec<(u64, Vec<u8>)>,
    end: u64,
}

/// What a sync has to cover.
#[derive(Default)]
pub(super) struct Unsynced {
    files: Vec<u64>,
    names: bool,
}

/// The files of one queue's extension. Whoever changes them has the queue's turn.
pub(super) struct Extension<I: Io> {
    io: I,
    pub place: Place,
    state: RefCell<State<I::File>>,
}

struct State<F: File> {
    /// Where the next unit goes; `None` until [`Extension::begin`].
    end: Option<u64>,
    unsynced: Unsynced,
    writer: Option<(u64, Rc<F>)>,
    reader: Option<(u64, Rc<F>)>,
    /// What was read, by its place; `None` where nothing can be.
    chunks: VecDeque<(u64, Option<F::Buf>)>,
}

impl<I: Io> Extension<I> {
    pub fn new(io: I, place: Place) -> Self {
        let state =
            State { end: None, unsynced: Unsynced::default(), writer: None, reader: None, chunks: VecDeque::new() };
        Extension { io, place, state: RefCell::new(state) }
    }

    /// Whether the end was found.
    pub fn has_begun(&self) -> bool {
        self.state.borrow().end.is_some()
    }

    /// Finds where the next unit goes: behind the newest one that an entry leads to (`last`, its address), else into a file of its own. What
    /// stands behind it is cleared.
    pub async fn begin(&self, last: Option<i64>) -> Result<(), StoreError> {
        let starts = self.file_starts().await?;
        let next_file = starts.last().map_or(0, |start| start + self.place.file_bytes);
        let end = match last {
            Some(address) => self.end_of(address).await?.unwrap_or(next_file),
            None => next_file,
        };
        for start in starts.into_iter().rev().take_while(|start| start + self.place.file_bytes > end) {
            if start >= end {
                self.remove_file(start).await?;
                continue;
            }
            let file = self.io.open(&self.path(start), WRITE).await.map_err(|e| self.failed("open", start, e))?;
            let cleared = file.punch_hole(end - start, self.place.file_bytes).await;
            cleared.map_err(|e| self.failed("zero", start, e))?;
            self.state.borrow_mut().touched(start);
        }
        let mut s = self.state.borrow_mut();
        s.chunks.clear();
        s.end = Some(end);
        Ok(())
    }

    /// Behind the unit with this address; `None` where none is.
    async fn end_of(&self, address: i64) -> Result<Option<u64>, StoreError> {
        self.load(address).await?;
        let length = self.look(address, |read| match read {
            Read::Unit { map, .. } => Some((HEAD_BYTES + map.len()) as u64),
            Read::None | Read::Cut => None,
        });
        Ok(length.flatten().map(|length| place_of(address) + length))
    }

    /// Places units behind the end. Changes nothing.
    pub fn plan<'u>(&self, units: impl Iterator<Item = &'u Unit>) -> Plan {
        let file_bytes = self.place.file_bytes;
        let mut at = self.state.borrow().end.expect("begun before");
        let mut plan = Plan { addresses: Vec::new(), pieces: vec![(at, Vec::new())], end: at };
        for unit in units {
            let length = unit.bytes() as u64;
            if at % file_bytes + length + END_BYTES > file_bytes {
                let (_, piece) = plan.pieces.last_mut().expect("never empty");
                piece.extend((-1i16).to_be_bytes());
                at = at - at % file_bytes + file_bytes;
                plan.pieces.push((at, Vec::new()));
            }
            let address = address_of(at);
            if address.is_some() {
                let (_, piece) = plan.pieces.last_mut().expect("never empty");
                unit.encode(piece);
                at += length;
            }
            plan.addresses.push(address);
        }
        plan.end = at;
        plan
    }

    /// Writes what was planned; nothing may have been planned in between. After an error it may be planned and written again.
    pub async fn write(&self, plan: &Plan) -> Result<(), StoreError> {
        for (at, bytes) in plan.pieces.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let start = at - at % self.place.file_bytes;
            let file = self.writer(start).await?;
            let mut buf = file.buffer(bytes.len());
            buf.as_mut().copy_from_slice(bytes);
            self.state.borrow_mut().touched(start);
            write_all(&*file, at - start, buf).await.0.map_err(|e| self.failed("write", start, e))?;
        }
        self.state.borrow_mut().end = Some(plan.end);
        Ok(())
    }

    /// What stands at an address; `None` when it is not in memory.
    pub fn look<T>(&self, address: i64, f: impl FnOnce(Read<'_>) -> T) -> Option<T> {
        let s = self.state.borrow();
        let place = place_of(address);
        for (from, chunk) in s.chunks.iter().rev() {
            let Some(chunk) = chunk else {
                if place == *from {
                    return Some(f(Read::None));
                }
                continue;
            };
            let Some(bytes) = place.checked_sub(*from).and_then(|skip| chunk.as_ref().get(skip as usize..)) else {
                continue;
            };
            let read = Unit::decode(bytes);
            // From the first byte of a chunk on, the unit is as long as it gets.
            if read != Read::Cut || place == *from {
                return Some(f(read));
            }
        }
        None
    }

    /// Reads what stands at an address and behind it into memory, for [`Extension::look`].
    pub async fn load(&self, address: i64) -> Result<(), StoreError> {
        let (place, file_bytes) = (place_of(address), self.place.file_bytes);
        let start = place - place % file_bytes;
        let to = (start + file_bytes).min(place + CHUNK_BYTES);
        // What will be written behind the end must not be taken from memory as it was before.
        let to = self.state.borrow().end.map_or(to, |end| to.min(end.max(place)));
        let bytes = match to > place {
            true => self.read_file(start, place - start, (to - place) as usize).await?,
            false => None,
        };
        let mut s = self.state.borrow_mut();
        if s.chunks.len() == CHUNKS {
            s.chunks.pop_front();
        }
        s.chunks.push_back((place, bytes));
        Ok(())
    }

    /// `None` where there is no file, or one that the device cannot read: whoever asks does without the unit.
    async fn read_file(&self, start: u64, at: u64, bytes: usize) -> Result<Option<<I::File as File>::Buf>, StoreError> {
        let file = match self.reader(start).await {
            Err(StoreError::File { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match file.read_at(at, bytes).await {
            Err(e) if is_unreadable(&e) => {
                tracing::error!(path = %self.path(start).display(), at, error = %e, "units of a queue cannot be read");
                Ok(None)
            }
            read => Ok(Some(read.map_err(|e| self.failed("read", start, e))?)),
        }
    }

    /// Removes the files whose units all stand before the one with this address, which is the first that an entry leads to.
    pub async fn trim(&self, first: i64) -> Result<(), StoreError> {
        for start in self.file_starts().await? {
            if start + self.place.file_bytes > place_of(first) {
                break;
            }
            self.remove_file(start).await?;
        }
        Ok(())
    }

    /// Removes all files.
    pub async fn clear(&self) -> Result<(), StoreError> {
        for start in self.file_starts().await? {
            self.remove_file(start).await?;
        }
        self.state.borrow_mut().end = None;
        Ok(())
    }

    /// Removes all files and their directories.
    pub async fn destroy(&self) -> Result<(), StoreError> {
        self.clear().await?;
        for dir in self.place.dir.ancestors().take(2) {
            match self.io.remove_dir(dir).await {
                Ok(()) => {}
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {}
                Err(source) => return Err(StoreError::File { op: "remove", path: dir.to_owned(), source }),
            }
        }
        self.state.borrow_mut().unsynced = Unsynced::default();
        Ok(())
    }

    /// The end is to be found again: the queue was cut.
    pub fn forget(&self) {
        let mut s = self.state.borrow_mut();
        s.end = None;
        s.chunks.clear();
    }

    pub fn unsynced(&self) -> bool {
        let s = self.state.borrow();
        !s.unsynced.files.is_empty() || s.unsynced.names
    }

    pub async fn sync(&self) -> Result<(), StoreError> {
        let Unsynced { files, names } = self.take_unsynced();
        if bug(Bug::UnitsNotSynced) {
            return Ok(());
        }
        let outcome = self.sync_files(&files, names).await;
        if outcome.is_err() {
            self.give_back(Unsynced { files, names });
        }
        outcome
    }

    async fn sync_files(&self, files: &[u64], names: bool) -> Result<(), StoreError> {
        for start in files {
            let file = self.io.open(&self.path(*start), WRITE).await.map_err(|e| self.failed("open", *start, e))?;
            file.datasync().await.map_err(|e| self.failed("sync", *start, e))?;
        }
        // Up to the store's root, where the first extension's directory has its name.
        for dir in self.place.dir.ancestors().take(if names { 4 } else { 0 }) {
            match self.io.sync_dir(dir).await {
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    return Err(StoreError::File { op: "sync", path: dir.to_owned(), source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// For a sync of the whole filesystem.
    pub fn take_unsynced(&self) -> Unsynced {
        std::mem::take(&mut self.state.borrow_mut().unsynced)
    }

    /// It failed.
    pub fn give_back(&self, unsynced: Unsynced) {
        let mut s = self.state.borrow_mut();
        unsynced.files.into_iter().for_each(|start| s.touched(start));
        s.unsynced.names |= unsynced.names;
    }

    pub fn holds_files(&self) -> bool {
        let s = self.state.borrow();
        s.writer.is_some() || s.reader.is_some()
    }

    pub fn close(&self) {
        let mut s = self.state.borrow_mut();
        (s.writer, s.reader) = (None, None);
    }

    pub fn shrink(&self) {
        self.state.borrow_mut().chunks = VecDeque::new();
    }

    fn path(&self, start: u64) -> PathBuf {
        self.place.dir.join(file_name(start))
    }

    fn failed(&self, op: &'static str, start: u64, source: std::io::Error) -> StoreError {
        StoreError::File { op, path: self.path(start), source }
    }

    /// Sorted; none when there is no directory.
    async fn file_starts(&self) -> Result<Vec<u64>, StoreError> {
        match self.io.list(&self.place.dir).await {
            Ok(names) => Ok(names.iter().filter_map(|name| file_start(name)).collect()),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(StoreError::File { op: "list", path: self.place.dir.clone(), source }),
        }
    }

    async fn remove_file(&self, start: u64) -> Result<(), StoreError> {
        self.io.remove(&self.path(start)).await.map_err(|e| self.failed("remove", start, e))?;
        let mut s = self.state.borrow_mut();
        s.unsynced.files.retain(|unsynced| *unsynced != start);
        s.unsynced.names = true;
        s.writer.take_if(|(held, _)| *held == start);
        s.reader.take_if(|(held, _)| *held == start);
        s.chunks.clear();
        Ok(())
    }

    async fn reader(&self, start: u64) -> Result<Rc<I::File>, StoreError> {
        let held = self.state.borrow().reader.clone().filter(|(held, _)| *held == start);
        if let Some((_, file)) = held {
            return Ok(file);
        }
        let file = self.io.open(&self.path(start), READ).await.map_err(|e| self.failed("open", start, e))?;
        let file = Rc::new(file);
        self.state.borrow_mut().reader = Some((start, file.clone()));
        Ok(file)
    }

    /// The file that begins at `start`, made at full length when it is missing.
    async fn writer(&self, start: u64) -> Result<Rc<I::File>, StoreError> {
        let held = self.state.borrow().writer.clone().filter(|(held, _)| *held == start);
        if let Some((_, file)) = held {
            return Ok(file);
        }
        let path = self.path(start);
        let opened = match self.io.open(&path, CREATE).await {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let made = self.io.create_dir(&self.place.dir).await;
                made.map_err(|source| StoreError::File { op: "create", path: self.place.dir.clone(), source })?;
                self.io.open(&path, CREATE).await
            }
            other => other,
        };
        let file = Rc::new(opened.map_err(|e| self.failed("open", start, e))?);
        if file.len().await.map_err(|e| self.failed("stat", start, e))? < self.place.file_bytes {
            self.state.borrow_mut().unsynced.names = true;
            file.set_len(self.place.file_bytes).await.map_err(|e| self.failed("extend", start, e))?;
        }
        self.state.borrow_mut().writer = Some((start, file.clone()));
        Ok(file)
    }
}

impl<F: File> State<F> {
    fn touched(&mut self, start: u64) {
        if !self.unsynced.files.contains(&start) {
            self.unsynced.files.push(start);
        }
    }
}
