//! The aligned buffer being filled and the tail block carried to the next batch. Used by the appender; knows offsets, not files' names.
//!
//! Direct writes are whole 4 KiB blocks, the log's end is not: the unfinished last block stays in memory, and the next batch writes it
//! again with the same bytes in front, so a torn sector cannot lose acknowledged bytes. What is behind the records in the last block
//! is zeros, which is what recovery (Apache's too) takes for the end.
use crate::io::{ALIGN, File};
use crate::seeded::{Bug, bug};
use std::ops::Range;
use uringmq_proto::record::{BLANK_BYTES_MIN, MAGIC_BLANK};

pub(crate) const BLOCK: u64 = ALIGN as u64;

pub(crate) fn align_down(at: u64) -> u64 {
    at & !(BLOCK - 1)
}

pub(crate) fn align_up(at: u64) -> u64 {
    align_down(at + BLOCK - 1)
}

/// What a batch puts into one segment: `buf[..fill]` belongs at `from` in the log. Always one write.
pub(crate) struct Part<F: File> {
    /// Aligned offset in the log of the buffer's first byte.
    pub(crate) from: u64,
    /// Where the segment ends.
    pub(crate) segment_end: u64,
    /// Only missing while it is being written.
    buf: Option<F::Buf>,
    fill: usize,
}

impl<F: File> Part<F> {
    fn new(file: &F, capacity: usize, from: u64, segment_end: u64, tail: &[u8]) -> Self {
        let mut buf = file.buffer_unzeroed(capacity);
        buf.as_mut()[..tail.len()].copy_from_slice(tail);
        Part { from, segment_end, buf: Some(buf), fill: tail.len() }
    }

    /// Where the next byte goes.
    pub(crate) fn at(&self) -> u64 {
        self.from + self.fill as u64
    }

    /// Where its write ends.
    pub(crate) fn written_to(&self) -> u64 {
        align_up(self.at())
    }

    fn bytes(&self) -> &[u8] {
        let buf = self.buf.as_ref().expect("only missing during a write");
        &buf.as_ref()[..self.fill]
    }

    fn push(&mut self, file: &F, bytes: &[u8]) {
        let buf = self.buf.as_mut().expect("only missing during a write");
        let end = self.fill + bytes.len();
        // A block to spare, so that padding never grows it.
        if end + ALIGN > buf.as_ref().len() {
            let capacity = (end + ALIGN).max(buf.as_ref().len() * 2).next_multiple_of(ALIGN);
            let mut larger = file.buffer_unzeroed(capacity);
            larger.as_mut()[..self.fill].copy_from_slice(&buf.as_ref()[..self.fill]);
            *buf = larger;
        }
        buf.as_mut()[self.fill..end].copy_from_slice(bytes);
        self.fill = end;
    }

    /// The buffer to write at `from`, padded with zeros to whole blocks.
    pub(crate) fn take_padded(&mut self, file: &F) -> F::Buf {
        let mut buf = self.buf.take().expect("only missing during a write");
        let padded = self.fill.next_multiple_of(ALIGN);
        if !bug(Bug::PaddingNotCleared) {
            buf.as_mut()[self.fill..padded].fill(0);
        }
        file.cut(buf, padded)
    }

    pub(crate) fn put_back(&mut self, buf: F::Buf) {
        self.buf = Some(buf);
    }
}

/// Records waiting for the next write, in as many parts as segments they touch (more than one only at a roll).
pub(crate) struct Batch<F: File> {
    parts: Vec<Part<F>>,
    /// Bytes of the first part that are in the log already.
    kept: usize,
    /// Bytes of records placed.
    placed: usize,
    /// Of a new buffer: what the last batch makes expect. Full batches are rare, and registered memory is scarce.
    capacity: usize,
    capacity_max: usize,
    segment_bytes: u64,
}

const CAPACITY_MIN: usize = 64 * 1024;

impl<F: File> Batch<F> {
    /// `end` is the log's end and `tail` the bytes from its block's start up to it.
    pub(crate) fn new(file: &F, end: u64, tail: &[u8], segment_bytes: u64, batch_bytes_max: usize) -> Self {
        // The tail block in front, a block of padding and the blank record behind.
        let capacity_max = (batch_bytes_max + 3 * ALIGN).next_multiple_of(ALIGN);
        let capacity = CAPACITY_MIN.min(capacity_max);
        let segment_end = end - end % segment_bytes + segment_bytes;
        let part = Part::new(file, capacity, align_down(end), segment_end, tail);
        Batch { parts: vec![part], kept: tail.len(), placed: 0, capacity, capacity_max, segment_bytes }
    }

    pub(crate) fn placed(&self) -> usize {
        self.placed
    }

    pub(crate) fn parts_mut(&mut self) -> &mut [Part<F>] {
        &mut self.parts
    }

    pub(crate) fn parts(&self) -> &[Part<F>] {
        &self.parts
    }

    /// Where the log will end once the batch is written.
    pub(crate) fn end(&self) -> u64 {
        self.last().at()
    }

    fn last(&self) -> &Part<F> {
        self.parts.last().expect("there is always one")
    }

    /// Where a run of `bytes` goes: here when it leaves 8 bytes of the segment, otherwise the segment is closed by a blank record and
    /// the next one begun. The caller has checked that it fits an empty segment.
    pub(crate) fn make_room(&mut self, file: &F, bytes: usize) -> u64 {
        let last = self.parts.last_mut().expect("there is always one");
        let rest = last.segment_end - last.at();
        if (bytes + BLANK_BYTES_MIN) as u64 > rest {
            assert!(rest >= BLANK_BYTES_MIN as u64, "a record reached into the last 8 bytes of a segment");
            let mut blank = [0; BLANK_BYTES_MIN];
            blank[..4].copy_from_slice(&(rest as u32).to_be_bytes());
            blank[4..].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
            last.push(file, &blank); // its filler is on the disk already: zeros
            let from = last.segment_end;
            self.parts.push(Part::new(file, self.capacity, from, from + self.segment_bytes, &[]));
        }
        self.end()
    }

    pub(crate) fn push(&mut self, file: &F, records: &[u8]) {
        self.parts.last_mut().expect("there is always one").push(file, records);
        self.placed += records.len();
    }

    /// Takes bytes as they stand in another log behind this one's end; where a segment is full it goes on in the next.
    pub(crate) fn push_copy(&mut self, file: &F, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let last = self.parts.last_mut().expect("there is always one");
            let rest = last.segment_end - last.at();
            if rest == 0 {
                let from = last.segment_end;
                self.parts.push(Part::new(file, self.capacity, from, from + self.segment_bytes, &[]));
                continue;
            }
            let (now, later) = bytes.split_at(bytes.len().min(rest as usize));
            last.push(file, now);
            self.placed += now.len();
            bytes = later;
        }
    }

    /// Where the bytes end that are in the log already.
    pub(crate) fn kept_to(&self) -> u64 {
        self.parts[0].from + self.kept as u64
    }

    /// The next buffer is for a batch like this one.
    fn expect_alike(&mut self) {
        self.capacity = (2 * self.placed).next_power_of_two().max(CAPACITY_MIN).min(self.capacity_max);
    }

    /// Takes the only part out to be written beside what comes next: up to its last whole block, whose rest stays placed, or all of it;
    /// then its last block is begun anew with the same bytes.
    pub(crate) fn take_off(&mut self, file: &F, whole_blocks: bool) -> Part<F> {
        let mut part = self.parts.pop().expect("there is always one");
        assert!(self.parts.is_empty(), "a batch that rolls is written alone");
        let from = align_down(part.at());
        let rest = (from - part.from) as usize..part.fill;
        self.expect_alike();
        self.parts.push(Part::new(file, self.capacity, from, part.segment_end, &part.bytes()[rest.clone()]));
        (self.kept, self.placed) = if whole_blocks { (0, rest.len()) } else { (rest.len(), 0) };
        if whole_blocks {
            part.fill = rest.start;
        }
        part
    }

    /// The batch is in the log: begins the next one with the unfinished block.
    pub(crate) fn advance(&mut self, file: &F) {
        let last = self.last();
        let from = align_down(last.at());
        let kept = last.at() - from;
        let begin = (from - last.from) as usize;
        self.expect_alike();
        self.begin_again(file, self.parts.len() - 1, begin..begin + kept as usize);
    }

    /// The batch is not in the log: back to what the log had before.
    pub(crate) fn rewind(&mut self, file: &F) {
        self.begin_again(file, 0, 0..self.kept);
    }

    /// Goes on behind `tail`, a range of the part's bytes within one block.
    fn begin_again(&mut self, file: &F, part: usize, tail: Range<usize>) {
        let old = &self.parts[part];
        let from = old.from + tail.start as u64;
        let segment_end = from - from % self.segment_bytes + self.segment_bytes; // the next one's, after a copy that filled its own
        let mut block = [0; ALIGN];
        self.kept = tail.len();
        block[..tail.len()].copy_from_slice(&old.bytes()[tail]);
        self.placed = 0;
        self.parts.clear(); // first, so that the new buffer can have the same memory
        self.parts.push(Part::new(file, self.capacity, from, segment_end, &block[..self.kept]));
    }

    /// The unfinished block as it is in the log.
    pub(crate) fn tail(&self) -> &[u8] {
        &self.parts[0].bytes()[..self.kept]
    }
}
