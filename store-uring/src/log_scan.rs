//! Reads the log from front to back before anything runs: lists its segments, steps from record to record, finds the next whole one
//! behind damage. Used by recovery only. Source: store-format sheet 2, 3.1, 13.4.
use crate::io::{ALIGN, Access, File, Io, Open, is_unreadable};
use crate::{StoreConfig, StoreError};
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use uringmq_proto::record::{self, Found, MAGIC_V1, MAGIC_V2, Record, RecordError};
use uringmq_proto::types::PhyOffset;

/// One read; larger ones have hung older kernels.
const READ_BYTES: u64 = 512 * 1024;
/// Reads in flight at once when the walk goes on and on: one alone leaves the device idle half of the time.
const READS_MAX: u64 = 4;
/// The first read somewhere; each following one fetches twice as much.
const FIRST_BYTES: u64 = 64 * 1024;
/// A size above this is taken for damage, whatever the configuration says today.
const RECORD_BYTES_MAX: usize = 256 << 20;
/// What a disk writes whole or not at all.
const SECTOR_BYTES: u64 = 512;
/// Neither a record nor the end.
const UNREADABLE: u8 = 0xFF;
/// A read that fails may succeed at once when it is tried again.
const READ_TRIES: usize = 3;
/// Passed bytes are dropped from the buffer in steps of this.
const DROP_BYTES: usize = 1 << 20;

/// The segments that make up the log: contiguous, each of the configured length.
#[derive(Debug)]
pub(crate) struct Segments {
    dir: PathBuf,
    bytes: u64,
    starts: Vec<u64>,
}

impl Segments {
    /// Lists them. An empty last file is removed; names that are none are noted; after a missing file the log starts anew. After an
    /// unclean stop, a file that lost its end is filled up, when nothing is stored behind it.
    /// Error: `Refused` for a file of another length.
    pub async fn list<I: Io>(
        io: &I,
        config: &StoreConfig,
        clean: bool,
        notes: &mut Vec<String>,
    ) -> Result<Self, StoreError> {
        let dir = &config.commit_log_dir;
        let failed = |op, path: PathBuf| move |source| StoreError::File { op, path, source };
        let names = io.list(dir).await.map_err(failed("list", dir.clone()))?;
        let mut files = Vec::new();
        for name in names.into_iter().filter(|name| name != Path::new(crate::lock::GUARD)) {
            let path = dir.join(&name);
            let meta = io.metadata(&path).await.map_err(failed("stat", path.clone()))?;
            match crate::consume_queue::file_start(&name) {
                _ if meta.is_dir => {}
                Some(start) => files.push((start, path, meta.bytes)),
                None => notes.push(format!("{}: not a name of a segment, ignored", path.display())),
            }
        }
        if let Some((_, path, 0)) = files.last() {
            io.remove(path).await.map_err(failed("remove", path.clone()))?;
            io.sync_dir(dir).await.map_err(failed("sync", dir.clone()))?;
            notes.push(format!("{}: empty, removed", path.display()));
            files.pop();
        }
        if !clean {
            fill_up(io, config.segment_bytes, &mut files, notes).await?;
        }
        let mut starts: Vec<u64> = Vec::new();
        for (start, path, bytes) in files {
            if bytes != config.segment_bytes || start % config.segment_bytes != 0 {
                let what = format!(
                    "has {bytes} bytes and starts at {start}, but mappedFileSizeCommitLog is {}; set that key to the \
                     length of the existing files, or restore this file",
                    config.segment_bytes
                );
                return Err(StoreError::Refused { path, what });
            }
            if let Some(last) = starts.last()
                && last + bytes != start
            {
                notes.push(format!("segments from {} to {start} are missing; the log starts at {start}", last + bytes));
                starts.clear();
            }
            starts.push(start);
        }
        Ok(Segments { dir: dir.clone(), bytes: config.segment_bytes, starts })
    }
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }
    pub fn starts(&self) -> &[u64] {
        &self.starts
    }
    /// First offset stored.
    pub fn min(&self) -> u64 {
        self.starts.first().copied().unwrap_or(0)
    }
    /// Where the last file ends.
    pub fn limit(&self) -> u64 {
        self.starts.last().map_or(0, |start| start + self.bytes)
    }
    pub fn start_of(&self, at: u64) -> u64 {
        at - at % self.bytes
    }
    /// Makes the segments that hold `from..to` durable.
    pub async fn sync<I: Io>(&self, io: &I, from: u64, to: u64) -> Result<(), StoreError> {
        for start in self.starts.iter().filter(|s| **s < to && **s + self.bytes > from) {
            let path = self.dir.join(crate::consume_queue::file_name(*start));
            let how = Open { access: Access::Write, direct: true };
            let at = PhyOffset(*start);
            let file = io.open(&path, how).await.map_err(|source| StoreError::Io { op: "open", at, source })?;
            file.datasync().await.map_err(|source| StoreError::Io { op: "sync", at, source })?;
        }
        Ok(())
    }
}

/// A segment is made at its full length and synced before a record enters it; one that is shorter lost its end. It is told from a file
/// of another configuration by the others, which are long enough, or by a length that none can have.
async fn fill_up<I: Io>(
    io: &I,
    segment_bytes: u64,
    files: &mut [(u64, PathBuf, u64)],
    notes: &mut Vec<String>,
) -> Result<(), StoreError> {
    let others = files.iter().any(|(_, _, bytes)| *bytes == segment_bytes);
    for at in 0..files.len() {
        let (start, path, bytes) = files[at].clone();
        let short = bytes < segment_bytes && start % segment_bytes == 0;
        if !short || !(others || bytes % ALIGN as u64 != 0) {
            continue;
        }
        for (_, later, _) in &files[at + 1..] {
            if !begins_with_zeros(io, later).await? {
                return Ok(());
            }
        }
        let failed = |op| {
            let path = path.clone();
            move |source| StoreError::File { op, path, source }
        };
        let file = io.open(&path, Open { access: Access::Write, direct: true }).await.map_err(failed("open"))?;
        file.allocate(segment_bytes).await.map_err(failed("allocate"))?;
        file.datasync().await.map_err(failed("sync"))?;
        notes.push(format!("{}: cut off at {bytes} bytes, filled up with zeros", path.display()));
        files[at].2 = segment_bytes;
    }
    Ok(())
}

async fn begins_with_zeros<I: Io>(io: &I, path: &Path) -> Result<bool, StoreError> {
    let failed = |op| move |source| StoreError::File { op, path: path.to_owned(), source };
    let file = io.open(path, Open { access: Access::Read, direct: true }).await.map_err(failed("open"))?;
    let head = file.read_at(0, ALIGN).await.map_err(failed("read"))?;
    Ok(head.as_ref().iter().all(|b| *b == 0))
}

/// What stands at the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// A whole record of this many bytes.
    Record(usize),
    /// Zeros, or the last file's end: nothing was written here.
    End,
    Bad(&'static str),
}

/// A place in the log, and the bytes around it.
pub(crate) struct Cursor<'a, I: Io> {
    io: I,
    segments: &'a Segments,
    at: u64,
    file: Option<(u64, Rc<I::File>)>,
    buf: Vec<u8>,
    /// Offset of the first byte of `buf`; it never spans two segments.
    buf_at: u64,
    /// Bytes of the next read.
    ahead: u64,
    /// Blocks that the device cannot read, by their offset; [`UNREADABLE`] stands in their place.
    unreadable: BTreeSet<u64>,
}

impl<'a, I: Io> Cursor<'a, I> {
    pub fn new(io: I, segments: &'a Segments, at: u64) -> Self {
        let mut cursor = Cursor {
            io,
            segments,
            at,
            file: None,
            buf: Vec::new(),
            buf_at: 0,
            ahead: FIRST_BYTES,
            unreadable: BTreeSet::new(),
        };
        cursor.seek(at);
        cursor
    }
    pub fn at(&self) -> u64 {
        self.at
    }
    pub fn seek(&mut self, at: u64) {
        self.at = at;
        let inside = at >= self.buf_at && at <= self.buf_at + self.buf.len() as u64;
        if !inside || self.segments.start_of(at) != self.segments.start_of(self.buf_at) {
            // Going on in the next segment is no jump.
            if at != self.buf_at + self.buf.len() as u64 {
                self.ahead = FIRST_BYTES;
            }
            self.buf.clear();
            self.buf_at = at - at % ALIGN as u64;
        }
    }
    /// Steps over what `look` found.
    pub fn pass(&mut self, bytes: usize) {
        self.at += bytes as u64;
    }
    /// What stands here; a blank is passed when another segment follows it. What touches an unreadable block is bad. A record's body CRC is right, and it says that it stands here.
    pub async fn look(&mut self) -> Result<At, StoreError> {
        let found = self.look_at_bytes().await?;
        let bytes = match found {
            At::Record(bytes) => bytes as u64,
            At::Bad(_) => ALIGN as u64,
            At::End => return Ok(found),
        };
        let touched = self.unreadable.range(self.at - self.at % ALIGN as u64..self.at + bytes).next();
        Ok(if touched.is_some() { At::Bad("the device cannot read it") } else { found })
    }
    async fn look_at_bytes(&mut self) -> Result<At, StoreError> {
        let mut need = ALIGN;
        loop {
            if self.at >= self.segments.limit() {
                return Ok(At::End);
            }
            self.seek(self.at);
            let segment_end = self.segments.start_of(self.at) + self.segments.bytes;
            let rest = (segment_end - self.at) as usize;
            self.load(need.min(rest)).await?;
            let bytes = &self.buf[(self.at - self.buf_at) as usize..];
            match record::parse(bytes, true) {
                Ok(Found::Record(r)) if r.phy_offset as u64 != self.at => {
                    return Ok(At::Bad("record of another place"));
                }
                Ok(Found::Record(r)) => return Ok(At::Record(r.bytes)),
                Ok(Found::Blank { .. }) if segment_end == self.segments.limit() => return Ok(At::End),
                Ok(Found::Blank { .. }) => self.seek(segment_end),
                Err(RecordError::Short { wants, .. }) if wants > rest => return Ok(At::Bad("longer than its segment")),
                Err(RecordError::Short { wants, .. }) if wants > RECORD_BYTES_MAX => {
                    return Ok(At::Bad("impossible size"));
                }
                Err(RecordError::Short { wants, has }) if has < rest => need = wants,
                Err(RecordError::Short { .. }) => return Ok(At::Bad("longer than its segment")),
                Err(_) if bytes.iter().take(8).all(|b| *b == 0) => return Ok(At::End),
                Err(RecordError::Bad(what)) => return Ok(At::Bad(what)),
                Err(RecordError::Crc { .. }) => return Ok(At::Bad("body CRC")),
            }
        }
    }
    /// Whether the record that `look` found lacks sectors behind its body, which the CRC does not cover: its write was cut off, so nobody
    /// was told of it. A sector that was not written reads as zeros, since the log's end lies in zeros.
    pub fn is_torn(&self) -> bool {
        let record = self.record();
        let base = self.buf[(self.at - self.buf_at) as usize..].as_ptr() as usize;
        let topic = record.topic.as_ptr() as usize - base;
        let properties = topic + record.topic.len() + size_of::<i16>();
        let lacks = |from: usize, to: usize| {
            let (mut from, end) = (self.at + from as u64, self.at + to as u64);
            while from < end {
                let to = (from - from % SECTOR_BYTES + SECTOR_BYTES).min(end);
                let part = &self.buf[(from - self.buf_at) as usize..(to - self.buf_at) as usize];
                if part.iter().all(|b| *b == 0) {
                    return true;
                }
                from = to;
            }
            false
        };
        lacks(topic, topic + record.topic.len()) || lacks(properties, record.bytes)
    }
    /// The record that `look` found.
    pub fn record(&self) -> Record<'_> {
        match record::parse(&self.buf[(self.at - self.buf_at) as usize..], false) {
            Ok(Found::Record(record)) => record,
            other => panic!("no record at {}, where one was found: {other:?}", self.at),
        }
    }
    /// Its stored bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[(self.at - self.buf_at) as usize..][..self.record().bytes]
    }
    /// Moves to the next whole record behind here, in this segment or a later one; false (and anywhere) when there is none.
    pub async fn find_next(&mut self) -> Result<bool, StoreError> {
        self.at += 1;
        while self.at < self.segments.limit() {
            let segment_end = self.segments.start_of(self.at) + self.segments.bytes;
            if self.at.is_multiple_of(self.segments.bytes) && matches!(self.look().await?, At::Record(_)) {
                return Ok(true);
            }
            // `look` may have passed a blank to the next segment; then that one's start is looked at next.
            if self.at >= segment_end {
                continue;
            }
            self.load(READ_BYTES.min(segment_end - self.at) as usize).await?;
            let bytes = &self.buf[(self.at - self.buf_at) as usize..];
            match find_magic(bytes) {
                Some(found) => {
                    let here = self.at + found as u64;
                    self.seek(here);
                    if matches!(self.look().await?, At::Record(_)) {
                        return Ok(true);
                    }
                    self.seek(here + 1);
                }
                // The last bytes may be a head that goes on in the next read.
                None if self.at + bytes.len() as u64 >= segment_end => self.seek(segment_end),
                None => self.seek(self.at + (bytes.len() - 7) as u64),
            }
        }
        Ok(false)
    }
    /// Has at least `need` bytes from here in the buffer, or all up to the segment's end.
    async fn load(&mut self, need: usize) -> Result<(), StoreError> {
        let segment = self.segments.start_of(self.at);
        let segment_end = segment + self.segments.bytes;
        let wanted = (self.at + need as u64).min(segment_end);
        if self.buf_at + self.buf.len() as u64 >= wanted {
            return Ok(());
        }
        let passed = ((self.at - self.buf_at) as usize) / ALIGN * ALIGN;
        if passed >= DROP_BYTES || passed == self.buf.len() {
            self.buf.drain(..passed.min(self.buf.len()));
            self.buf_at += passed as u64;
        }
        let file = self.file(segment).await?;
        while self.buf_at + (self.buf.len() as u64) < wanted {
            let from = self.buf_at + self.buf.len() as u64;
            let ahead = self.ahead.max(wanted - from).min(READ_BYTES * READS_MAX).next_multiple_of(ALIGN as u64);
            let to = (from + ahead).min(segment_end);
            self.ahead = (self.ahead * 2).min(READ_BYTES * READS_MAX);
            let starts = (from..to).step_by(READ_BYTES as usize);
            let reads = starts.map(|at| {
                let file = file.clone();
                async move { file.read_at(at - segment, READ_BYTES.min(to - at) as usize).await }
            });
            for (at, read) in (from..).step_by(READ_BYTES as usize).zip(all(reads.map(Box::pin).collect()).await) {
                let failed = |source| StoreError::Io { op: "read", at: PhyOffset(at), source };
                let read = match read {
                    Err(e) if is_unreadable(&e) => {
                        self.read_by_blocks(&file, segment, at, READ_BYTES.min(to - at)).await?;
                        continue;
                    }
                    read => read.map_err(failed)?,
                };
                let whole = read.as_ref().len() / ALIGN * ALIGN;
                self.buf.extend_from_slice(&read.as_ref()[..whole]);
                if whole < READ_BYTES.min(to - at) as usize {
                    if whole == 0 {
                        return Err(failed(ErrorKind::UnexpectedEof.into()));
                    }
                    break; // the rest is read again from here
                }
            }
        }
        Ok(())
    }
    /// Adds `bytes` from `from` on to the buffer: of what cannot be read as a whole, all but the blocks that cannot be read.
    async fn read_by_blocks(&mut self, file: &I::File, segment: u64, from: u64, bytes: u64) -> Result<(), StoreError> {
        for at in (from..from + bytes).step_by(ALIGN) {
            let mut read = file.read_at(at - segment, ALIGN).await;
            for _ in 1..READ_TRIES {
                if read.is_ok() {
                    break;
                }
                read = file.read_at(at - segment, ALIGN).await;
            }
            match read {
                Ok(block) if block.as_ref().len() == ALIGN => self.buf.extend_from_slice(block.as_ref()),
                Err(e) if !is_unreadable(&e) => {
                    return Err(StoreError::Io { op: "read", at: PhyOffset(at), source: e });
                }
                _ => {
                    self.buf.resize(self.buf.len() + ALIGN, UNREADABLE);
                    if self.unreadable.insert(at) {
                        tracing::error!(at, segment, "a block of the log cannot be read");
                    }
                }
            }
        }
        Ok(())
    }
    async fn file(&mut self, segment: u64) -> Result<Rc<I::File>, StoreError> {
        if let Some((start, file)) = &self.file
            && *start == segment
        {
            return Ok(file.clone());
        }
        let path = self.segments.dir.join(crate::consume_queue::file_name(segment));
        let file = self.io.open(&path, Open { access: Access::Read, direct: true }).await;
        let file = file.map_err(|source| StoreError::Io { op: "open", at: PhyOffset(segment), source })?;
        let file = Rc::new(file);
        self.file = Some((segment, file.clone()));
        Ok(file)
    }
}

/// Runs the futures together; their results in order.
async fn all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(out) = Pin::new(future).poll(cx)
            {
                *result = Some(out);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().map(|result| result.expect("all are there")).collect()
}

/// Where a record's head may begin: 4 bytes before a magic.
fn find_magic(bytes: &[u8]) -> Option<usize> {
    let (v1, v2) = (MAGIC_V1.to_be_bytes(), MAGIC_V2.to_be_bytes());
    bytes.get(4..)?.windows(4).position(|w| w[0] == v1[0] && (w == v1 || w == v2))
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::io::sim::{Faults, SimIo, block_on};
    use uringmq_proto::record::{MAGIC_BLANK, NewRecord};

    const SEGMENT_BYTES: usize = 5 << 18;

    fn config() -> StoreConfig {
        StoreConfig {
            root: "/s".into(),
            commit_log_dir: "/s/commitlog".into(),
            segment_bytes: SEGMENT_BYTES as u64,
            queue_file_bytes: 200,
            batch_file_bytes: 460,
            extension_file_bytes: 40_000,
            extensions: crate::Extensions::None,
            topic_forms: Default::default(),
            light_queues: false,
            index_enabled: false,
            index_slots: 0,
            index_items: 0,
            delay_levels_ms: vec![],
            record_bytes_max: SEGMENT_BYTES,
            batch_bytes_max: 4096,
            warm_ahead_bytes: 0,
            read_cache_bytes: 0,
        }
    }
    fn record(phy: usize, body_bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let new = NewRecord {
            topic: "T",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 0,
            born_host: "127.0.0.1:1".parse().unwrap(),
            store_host: "127.0.0.1:2".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &vec![b'.'; body_bytes],
            properties: "a\u{1}b\u{2}",
            more_properties: "",
        };
        record::encode(&mut out, &new).unwrap();
        record::patch(&mut out, 0, phy as u64, 5);
        out
    }
    /// Two segments, the first ending in a blank; where the records start, and the end.
    fn log() -> (SimIo, Vec<usize>, usize) {
        let mut bytes = vec![0; 2 * SEGMENT_BYTES];
        let (mut at, mut starts) = (0, Vec::new());
        let sizes = [1usize, 300_000, 0, 900_000, 300, 4000, 4096, 200_000, 500_000, 10, 77];
        for size in sizes.into_iter().cycle().take(14) {
            let rest = SEGMENT_BYTES - at % SEGMENT_BYTES;
            if size + 200 > rest {
                bytes[at..at + 4].copy_from_slice(&(rest as u32).to_be_bytes());
                bytes[at + 4..at + 8].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
                at += rest;
            }
            let record = record(at, size);
            bytes[at..at + record.len()].copy_from_slice(&record);
            starts.push(at);
            at += record.len();
        }
        assert!((SEGMENT_BYTES..2 * SEGMENT_BYTES).contains(&at));
        let io = SimIo::new(1, Faults::none());
        for n in 0..2 {
            let path = Path::new("/s/commitlog").join(crate::consume_queue::file_name((n * SEGMENT_BYTES) as u64));
            io.plant(&path, &bytes[n * SEGMENT_BYTES..(n + 1) * SEGMENT_BYTES]);
        }
        (io, starts, at)
    }
    fn segments(io: &SimIo) -> Segments {
        block_on(Segments::list(io, &config(), true, &mut Vec::new())).unwrap()
    }
    /// What is found from `at` on, stepping over damage.
    fn walk(io: &SimIo, at: usize) -> (Vec<usize>, Vec<usize>, usize) {
        let segments = segments(io);
        let mut cursor = Cursor::new(io.clone(), &segments, at as u64);
        let (mut records, mut bad) = (Vec::new(), Vec::new());
        loop {
            match block_on(cursor.look()).unwrap() {
                At::Record(bytes) => {
                    records.push(cursor.at() as usize);
                    assert_eq!(cursor.record().phy_offset as u64, cursor.at());
                    assert!(!cursor.is_torn());
                    cursor.pass(bytes);
                }
                At::End => return (records, bad, cursor.at() as usize),
                At::Bad(_) => {
                    let here = cursor.at() as usize;
                    bad.push(here);
                    if !block_on(cursor.find_next()).unwrap() {
                        return (records, bad, here);
                    }
                }
            }
        }
    }

    #[test]
    fn every_record_is_found_from_every_start() {
        let (io, starts, end) = log();
        for (i, start) in starts.iter().enumerate() {
            assert_eq!(walk(&io, *start), (starts[i..].to_vec(), vec![], end));
        }
        assert_eq!(walk(&io, end), (vec![], vec![], end));
    }

    #[test]
    fn damage_anywhere_costs_the_records_it_is_in() {
        let (_, starts, end) = log();
        for (i, start) in starts.iter().enumerate().take(starts.len() - 1) {
            for inside in [3, 6, 30] {
                let (io, ..) = log();
                let path = |at: usize| {
                    let start = at - at % SEGMENT_BYTES;
                    Path::new("/s/commitlog").join(crate::consume_queue::file_name(start as u64))
                };
                assert!(io.flip_bit(&path(start + inside), ((start + inside) % SEGMENT_BYTES) as u64, 6));
                let mut left = starts.clone();
                left.remove(i);
                let (records, bad, found_end) = walk(&io, 0);
                assert_eq!((records, bad, found_end), (left, vec![*start], end), "record {i}, byte {inside}");
            }
        }
    }

    #[test]
    fn a_segment_that_lost_its_end_is_filled_up_after_an_unclean_stop_only() {
        let path =
            |n: usize| Path::new("/s/commitlog").join(crate::consume_queue::file_name((n * SEGMENT_BYTES) as u64));
        let list = |io: &SimIo, clean| block_on(Segments::list(io, &config(), clean, &mut Vec::new()));
        for (lengths, heals) in [
            (&[SEGMENT_BYTES, 5000][..], true),
            (&[SEGMENT_BYTES, 8192], true),
            (&[5000], true),
            (&[8192], false), // may be of another mappedFileSizeCommitLog
            (&[8192, 8192], false),
            (&[SEGMENT_BYTES, 2 * SEGMENT_BYTES], false),
            (&[8192, SEGMENT_BYTES], false), // records follow
        ] {
            let (io, starts, end) = log();
            for n in 0..2 {
                match lengths.get(n) {
                    Some(bytes) => {
                        let mut contents = io.contents(&path(n)).unwrap();
                        contents.resize(*bytes, 0);
                        io.plant(&path(n), &contents);
                    }
                    None => block_on(io.remove(&path(n))).unwrap(),
                }
            }
            assert!(list(&io, true).is_err(), "{lengths:?}");
            assert_eq!(list(&io, false).is_ok(), heals, "{lengths:?}");
            if heals {
                let cut = (lengths.len() - 1) * SEGMENT_BYTES + lengths[lengths.len() - 1];
                let whole = starts.iter().zip(starts.iter().skip(1).chain([&end])).filter(|(_, to)| **to <= cut);
                let whole: Vec<usize> = whole.map(|(start, _)| *start).collect();
                assert_eq!(walk(&io, 0).0, whole, "{lengths:?}");
            }
        }
        // A next segment, made ready and empty, may follow.
        let (io, ..) = log();
        io.plant(&path(1), &[0; SEGMENT_BYTES]);
        io.plant(&path(0), &io.contents(&path(0)).unwrap()[..9000]);
        assert_eq!(list(&io, false).unwrap().starts().len(), 2);
    }

    #[test]
    fn a_missing_sector_behind_the_body_is_seen() {
        let (io, ..) = log();
        let segments = segments(&io);
        for body in (0..600).step_by(7) {
            let mut bytes = record(0, body);
            let whole = bytes.clone();
            for sector in 1..bytes.len().div_ceil(512) {
                let end = (sector * 512 + 512).min(bytes.len());
                bytes[sector * 512..end].fill(0);
                let mut file = bytes.clone();
                file.resize(SEGMENT_BYTES, 0);
                io.plant(Path::new("/s/commitlog/00000000000000000000"), &file);
                let mut cursor = Cursor::new(io.clone(), &segments, 0);
                let found = block_on(cursor.look()).unwrap();
                let torn = matches!(found, At::Bad(_)) || cursor.is_torn();
                assert!(torn, "body of {body}, without sector {sector}: {found:?}");
                bytes.copy_from_slice(&whole);
            }
        }
    }
}
