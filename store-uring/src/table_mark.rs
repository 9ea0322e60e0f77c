//! What a state table held when this store saved it: a side file by which a start tells a table that decayed on the disk (it reads as
//! another table, or as none) from one that somebody else wrote (Apache's broker, or a hand).
//!
//! `<table>.sum`, one line of [`LINE_BYTES`] bytes, written over in place (less than a sector: old or new, never a mix):
//!
//! | at  | bytes | field |
//! | 0   | 8     | CRC32 of the table, hexadecimal |
//! | 9   | 20    | its length; 0: none |
//! | 30  | 20    | its time of change, ms |
//! | 51  | 50    | the same of the table before it |
//! | 102 | 8     | CRC32 of the 102 bytes before |
//! | 110 | 1     | line feed |
//!
//! It is synced before the table takes its name, so that at any moment the table is one of the two. A mark binds to the file that it was
//! written with, by length and time, and not to the checkpoint, which is written far more often: once another has replaced the file, the
//! mark has no say about it.
use crate::checkpoint::write_in_place;
use crate::io::{Access, File, Io, Metadata, Open, is_unreadable};
use crate::json_table::beside;
use crate::{StoreError, file_failed};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const LINE_BYTES: usize = 111;
const SUMMED_BYTES: usize = 102;
const ENDING: &str = ".sum";

/// One content of a table's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    crc: u32,
    bytes: u64,
    modified_ms: i64,
}

impl Content {
    pub fn of(text: &[u8], modified_ms: i64) -> Self {
        Content { crc: crc32fast::hash(text), bytes: text.len() as u64, modified_ms }
    }
    fn has(&self, text: &[u8]) -> bool {
        self.bytes > 0 && self.bytes == text.len() as u64 && self.crc == crc32fast::hash(text)
    }
    fn is_of(&self, meta: &Metadata) -> bool {
        self.bytes > 0 && self.bytes == meta.bytes && self.modified_ms == meta.modified_ms
    }
    fn encode(&self) -> String {
        format!("{:08x} {:020} {:020}", self.crc, self.bytes, self.modified_ms.max(0))
    }
    fn decode(fields: &mut std::str::SplitAsciiWhitespace<'_>) -> Option<Self> {
        Some(Content {
            crc: u32::from_str_radix(fields.next()?, 16).ok()?,
            bytes: fields.next()?.parse().ok()?,
            modified_ms: fields.next()?.parse().ok()?,
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub now: Content,
    pub before: Content,
}

/// What a mark says about a table's file as it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As it was saved, or there is no mark.
    Fine,
    /// Another content: somebody wrote it since.
    Foreign,
    /// Another content in the very file that was saved.
    Decayed,
}

fn path_of(table: &Path) -> PathBuf {
    beside(table, ENDING)
}

impl Mark {
    fn encode(&self) -> String {
        let fields = format!("{} {} ", self.now.encode(), self.before.encode());
        assert_eq!(fields.len(), SUMMED_BYTES, "fields of a fixed width");
        format!("{fields}{:08x}\n", crc32fast::hash(fields.as_bytes()))
    }

    fn decode(line: &[u8]) -> Option<Self> {
        let line = line.get(..LINE_BYTES)?;
        let (fields, sum) = line.split_at(SUMMED_BYTES);
        let sum = std::str::from_utf8(sum).ok()?.trim_end();
        if u32::from_str_radix(sum, 16).ok()? != crc32fast::hash(fields) {
            return None;
        }
        let mut fields = std::str::from_utf8(fields).ok()?.split_ascii_whitespace();
        Some(Mark { now: Content::decode(&mut fields)?, before: Content::decode(&mut fields)? })
    }

    /// Of a table; `None` when there is none, or none that is whole.
    pub async fn read<I: Io>(io: &I, table: &Path) -> Result<Option<Self>, StoreError> {
        let path = path_of(table);
        let file = match io.open(&path, Open { access: Access::Read, direct: false }).await {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(file_failed("open", &path, e)),
        };
        let mark = match file.read_at(0, LINE_BYTES).await {
            Ok(line) => Mark::decode(line.as_ref()),
            Err(e) if is_unreadable(&e) => None,
            Err(e) => return Err(file_failed("read", &path, e)),
        };
        if mark.is_none() {
            tracing::warn!(path = %path.display(), "side mark of a table is unreadable, and ignored");
        }
        Ok(mark)
    }

    /// Durable when it returns.
    pub async fn write<I: Io>(&self, io: &I, table: &Path) -> Result<(), StoreError> {
        let dir = table.parent().unwrap_or(Path::new("."));
        write_in_place(io, dir, &path_of(table), self.encode().as_bytes()).await
    }

    /// About the table's own file.
    pub fn judge(&self, text: &[u8], meta: &Metadata) -> Verdict {
        match self.knows(text) {
            true => Verdict::Fine,
            false if self.is_of(meta) => Verdict::Decayed,
            false => Verdict::Foreign,
        }
    }

    /// Whether the file is still the one that was saved, whatever it holds now.
    pub fn is_of(&self, meta: &Metadata) -> bool {
        self.now.is_of(meta) || self.before.is_of(meta)
    }

    /// Whether it is one of the two contents.
    pub fn knows(&self, text: &[u8]) -> bool {
        self.now.has(text) || self.before.has(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: Metadata = Metadata { bytes: 3, modified_ms: 1_700_000_000_123, is_dir: false };

    fn mark() -> Mark {
        Mark { now: Content::of(b"[2]", META.modified_ms), before: Content::of(b"[10]", 5) }
    }

    #[test]
    fn the_line_comes_back_and_a_flipped_bit_voids_it() {
        let line = mark().encode();
        assert_eq!(line.len(), LINE_BYTES);
        assert_eq!(Mark::decode(line.as_bytes()), Some(mark()));
        let empty = Mark { now: mark().now, before: Content::default() };
        assert_eq!(Mark::decode(empty.encode().as_bytes()), Some(empty));
        for bit in 0..(LINE_BYTES - 1) * 8 {
            let mut flipped = line.clone().into_bytes();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let read = Mark::decode(&flipped);
            assert!(read.is_none() || read == Some(mark()), "bit {bit}"); // a digit's case is no other digit
        }
        assert_eq!(Mark::decode(&line.as_bytes()[..LINE_BYTES - 1]), None);
        assert_eq!(Mark::decode(&[0; 4096]), None);
    }

    #[test]
    fn decay_is_another_content_in_the_file_that_was_saved() {
        assert_eq!(mark().judge(b"[2]", &META), Verdict::Fine);
        assert_eq!(mark().judge(b"[2]", &Metadata { modified_ms: 9, ..META }), Verdict::Fine, "copied");
        assert_eq!(mark().judge(b"[10]", &Metadata { bytes: 4, ..META }), Verdict::Fine, "the one before");
        assert_eq!(mark().judge(b"[3]", &META), Verdict::Decayed);
        assert_eq!(mark().judge(b"[3]", &Metadata { modified_ms: 9, ..META }), Verdict::Foreign);
        assert_eq!(mark().judge(b"[20]", &Metadata { bytes: 4, ..META }), Verdict::Foreign);
        let none = Mark { now: mark().now, before: Content::default() };
        assert_eq!(none.judge(b"", &Metadata { bytes: 0, modified_ms: 0, is_dir: false }), Verdict::Foreign);
    }
}
