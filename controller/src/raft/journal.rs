//! The file under the Raft log: every change of vote and log, in order, each synced before it counts. Knows frames, not Raft's rules.
//!
//! | at | bytes | field                                              |
//! | -- | ----- | -------------------------------------------------- |
//! | 0  | 4     | magic `UQR1`                                       |
//! | 4  | 4     | bytes of the payload, big-endian                   |
//! | 8  | 4     | CRC-32 of the length field and the payload         |
//! | 12 | n     | JSON of a [`Record`]                               |
//!
//! A frame is written and synced before the next one begins, so only the last one can be torn, and nobody was told of it: it is cut.
//! A bad frame with a good one behind it is damage, and no start goes over that.
use super::{Entry, LogId, Vote};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

const MAGIC: &[u8; 4] = b"UQR1";
const HEAD_BYTES: usize = 12;
const NAME: &str = "raft.log";

/// Why the files of a controller cannot be used.
#[derive(Debug, Error)]
pub enum DiskError {
    #[error("{op} {path}: {source}")]
    Io { op: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{path} is damaged at byte {at}: {why}; let this controller start with an empty directory if a majority of the others is whole"
    )]
    Damaged { path: PathBuf, at: usize, why: String },
    #[error("{path} is in use by another controller")]
    InUse { path: PathBuf },
}

pub fn io_error(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
    let path = path.to_owned();
    move |source| DiskError::Io { op, path, source }
}

/// One change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Record {
    Vote(Vote),
    Append(Vec<Entry>),
    /// Entries from this index on are gone.
    Truncate(u64),
    /// Entries up to this one are gone: a snapshot has them.
    Purge(LogId),
}

/// Appends the frame of `value`.
pub fn frame(out: &mut Vec<u8>, value: &impl Serialize) {
    let payload = serde_json::to_vec(value).expect("names, numbers and texts");
    let length = u32::try_from(payload.len()).expect("requests are bounded by frames of 16 MiB").to_be_bytes();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&length);
    out.extend_from_slice(&crc(&length, &payload).to_be_bytes());
    out.extend_from_slice(&payload);
}

fn crc(length: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(length);
    hasher.update(payload);
    hasher.finalize()
}

/// The payload at the start of `bytes`, or what is wrong with it.
pub fn payload(bytes: &[u8]) -> Result<&[u8], &'static str> {
    let head = bytes.get(..HEAD_BYTES).ok_or("a frame's head is cut")?;
    if &head[..4] != MAGIC {
        return Err("no frame begins here");
    }
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let payload = bytes[HEAD_BYTES..].get(..word(4) as usize).ok_or("a frame is cut")?;
    if crc(&head[4..8], payload) == word(8) { Ok(payload) } else { Err("a frame's checksum is wrong") }
}

/// An open journal. After an error of a write nothing more is written: what is on disk is not known.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    broken: bool,
}

/// What a start finds.
#[derive(Debug)]
pub struct Found {
    pub records: Vec<Record>,
    /// Bytes of a torn frame that were cut off the end.
    pub cut: usize,
}

impl Journal {
    /// Opens or makes the journal in `dir`. Blocking.
    ///
    /// # Errors
    /// What the filesystem says; damage before the last frame.
    pub fn open(dir: &Path) -> Result<(Journal, Found), DiskError> {
        let path = dir.join(NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let (records, good) = scan(&path, &bytes)?;
        let open = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let mut file = open.map_err(io_error("open", &path))?;
        if good < bytes.len() {
            file.set_len(good as u64).map_err(io_error("cut", &path))?;
        }
        // Also what an earlier process wrote and did not sync is durable before anybody builds on it.
        file.sync_all().map_err(io_error("sync", &path))?;
        sync_dir(dir)?;
        file.seek(SeekFrom::Start(good as u64)).map_err(io_error("seek", &path))?;
        Ok((Journal { file, path, broken: false }, Found { records, cut: bytes.len() - good }))
    }

    /// Durable when it returns. Blocking.
    pub fn append(&mut self, record: &Record) -> Result<(), DiskError> {
        let mut bytes = Vec::new();
        frame(&mut bytes, record);
        self.unbroken()?;
        let wrote = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        self.broken = wrote.is_err();
        wrote.map_err(io_error("append to", &self.path))
    }

    /// Replaces all by `records`; durable when it returns, and old or new after a crash. Blocking.
    pub fn rewrite(&mut self, records: &[Record]) -> Result<(), DiskError> {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| frame(&mut bytes, record));
        self.unbroken()?;
        self.broken = true;
        self.file = replace(&self.path, &bytes)?;
        self.broken = false;
        Ok(())
    }

    fn unbroken(&self) -> Result<(), DiskError> {
        let refused = || io::Error::other("an earlier write failed");
        if self.broken { Err(io_error("append to", &self.path)(refused())) } else { Ok(()) }
    }
}

/// The records of `bytes` and how many bytes they are.
fn scan(path: &Path, bytes: &[u8]) -> Result<(Vec<Record>, usize), DiskError> {
    let (mut records, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        match payload(&bytes[at..]) {
            Ok(payload) => {
                let unreadable = |error: serde_json::Error| DiskError::Damaged {
                    path: path.to_owned(),
                    at,
                    why: format!("a record of another version? {error}"),
                };
                records.push(serde_json::from_slice(payload).map_err(unreadable)?);
                at += HEAD_BYTES + payload.len();
            }
            Err(why) => {
                let good_behind = (at + 1..bytes.len()).any(|later| payload(&bytes[later..]).is_ok());
                if good_behind {
                    return Err(DiskError::Damaged { path: path.to_owned(), at, why: why.to_owned() });
                }
                break;
            }
        }
    }
    Ok((records, at))
}

/// Puts `bytes` in the place of the file `path`: a new file, synced, renamed, the directory synced. The open new file, at its end.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<File, DiskError> {
    let tmp = path.with_extension("tmp");
    let mut file = File::create(&tmp).map_err(io_error("create", &tmp))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io_error("write", &tmp))?;
    fs::rename(&tmp, path).map_err(io_error("rename to", path))?;
    sync_dir(path.parent().expect("a file in a directory"))?;
    Ok(file)
}

pub fn sync_dir(dir: &Path) -> Result<(), DiskError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error("sync", dir))
}

/// Holds `dir` against a second controller for as long as it lives. Makes the directory.
pub fn lock(dir: &Path) -> Result<File, DiskError> {
    fs::create_dir_all(dir).map_err(io_error("make", dir))?;
    let path = dir.join("lock");
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = open.map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(DiskError::InUse { path: dir.to_owned() }),
        Err(fs::TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn numbers(records: &[Record]) -> Vec<u64> {
        let number = |record: &Record| match record {
            Record::Truncate(index) => *index,
            other => panic!("{other:?}"),
        };
        records.iter().map(number).collect()
    }

    fn written(dir: &Path, count: u64) -> Vec<u8> {
        let (mut journal, _) = Journal::open(dir).unwrap();
        for n in 0..count {
            journal.append(&Record::Truncate(n)).unwrap();
        }
        fs::read(dir.join(NAME)).unwrap()
    }

    #[test]
    fn a_tail_cut_at_any_byte_loses_only_its_last_record() {
        let dir = TestDir::new("journal-torn");
        let whole = written(&dir.0, 3);
        let one = whole.len() / 3;
        for cut in 0..whole.len() {
            fs::write(dir.0.join(NAME), &whole[..cut]).unwrap();
            let (mut journal, found) = Journal::open(&dir.0).unwrap();
            assert_eq!(numbers(&found.records), (0..(cut / one) as u64).collect::<Vec<_>>(), "cut at {cut}");
            assert_eq!(found.cut, cut % one);
            journal.append(&Record::Truncate(9)).unwrap();
            drop(journal);
            let again = numbers(&Journal::open(&dir.0).unwrap().1.records);
            assert_eq!(again.last(), Some(&9), "cut at {cut}");
            assert_eq!(again.len(), cut / one + 1);
        }
    }

    #[test]
    fn damage_before_the_end_is_told_and_never_stepped_over() {
        let dir = TestDir::new("journal-damage");
        let whole = written(&dir.0, 3);
        let one = whole.len() / 3;
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            fs::write(dir.0.join(NAME), &bad).unwrap();
            match Journal::open(&dir.0) {
                Ok((_, found)) => {
                    assert!(at >= 2 * one, "byte {at} of {one}-byte frames");
                    assert_eq!(numbers(&found.records), [0, 1]);
                }
                Err(error) => {
                    assert!(at < 2 * one, "byte {at}: {error}");
                    assert!(error.to_string().contains("damaged at byte"), "{error}");
                    assert_eq!(fs::read(dir.0.join(NAME)).unwrap(), bad, "a start that refuses changes nothing");
                }
            }
        }
    }

    #[test]
    fn a_rewrite_replaces_all_and_is_appended_to() {
        let dir = TestDir::new("journal-rewrite");
        written(&dir.0, 5);
        let (mut journal, _) = Journal::open(&dir.0).unwrap();
        journal.rewrite(&[Record::Truncate(40), Record::Truncate(41)]).unwrap();
        journal.append(&Record::Truncate(42)).unwrap();
        assert_eq!(numbers(&Journal::open(&dir.0).unwrap().1.records), [40, 41, 42]);
    }

    #[test]
    fn a_directory_has_one_user() {
        let dir = TestDir::new("journal-lock");
        let held = lock(&dir.0).unwrap();
        assert!(matches!(lock(&dir.0), Err(DiskError::InUse { .. })));
        drop(held);
        assert!(lock(&dir.0).is_ok());
    }
}
