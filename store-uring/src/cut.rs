//! An order to cut the log's end off: given while the broker runs, carried out by the next start. What is behind the place leaves the log,
//! the queues, the index and the checkpoint as if it had never been stored.
//!
//! A start that finds the order lets recovery end the log there ([`crate::open`]); [`crate::commit_log::Appender::open`] then makes zeros of
//! what is behind; [`done`] takes the order away. Until then every start begins with it again, so it does not matter where a crash comes.
//!
//! `<root>/config/cutOrder.json`; without a backup, which could bring back an order that was carried out.
use crate::io::{Access, File, Io, Open, write_all};
use crate::log_reader::LogReader;
use crate::log_scan::{At, Cursor, Segments};
use crate::{StoreError, file_failed as failed, json_table};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use uringmq_proto::types::PhyOffset;

/// Read of the log at a time.
const PIECE_BYTES: usize = 1 << 20;

/// What is to be cut, in bytes of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CutOrder {
    /// Where the last record that stays begins, and where it ends: the log's new end.
    pub last: u64,
    pub at: u64,
    /// Where the log ended when the order was given; so many whole records are cut.
    pub end: u64,
    pub records: u64,
    /// CRC-32 of the first whole record that is cut, if there is one. Another record there says that the log went on since.
    pub first_crc: Option<u32>,
    /// Why; for the log and the report.
    pub why: String,
    /// Where the cut bytes are kept.
    pub kept: Option<String>,
}

fn path(root: &Path) -> PathBuf {
    root.join("config").join("cutOrder.json")
}

/// Durable when it returns: the next start cuts.
pub async fn order<I: Io>(io: &I, root: &Path, order: &CutOrder) -> Result<(), StoreError> {
    json_table::save_alone(io, &path(root), &serde_json::to_vec_pretty(order).expect("numbers and strings")).await
}

/// The CRC of a stored record, as an order names it.
pub fn crc_of(record: &[u8]) -> u32 {
    crc32fast::hash(record)
}

/// Copies `at..end` of the log to `<root>/cut/<at>-<end>`, as it stands; durable when it returns. Its path.
pub async fn keep<I: Io>(io: &I, root: &Path, reader: &LogReader<I>, at: u64, end: u64) -> Result<PathBuf, StoreError> {
    let dir = root.join("cut");
    io.create_dir(&dir).await.map_err(|e| failed("create", &dir, e))?;
    let path = dir.join(format!("{at:020}-{end:020}"));
    let file = io.open(&path, Open { access: Access::Create, direct: false }).await;
    let file = file.map_err(|e| failed("open", &path, e))?;
    let mut from = at;
    while from < end {
        let bytes = reader.read_range(PhyOffset(from), PIECE_BYTES, PhyOffset(end)).await?;
        let mut buf = file.buffer(bytes.len());
        buf.as_mut().copy_from_slice(&bytes);
        write_all(&file, from - at, buf).await.0.map_err(|e| failed("write", &path, e))?;
        from += bytes.len() as u64;
    }
    file.sync().await.map_err(|e| failed("sync", &path, e))?;
    for dir in [dir.as_path(), root] {
        io.sync_dir(dir).await.map_err(|e| failed("sync", dir, e))?;
    }
    Ok(path)
}

/// The order that is not carried out yet. One that cannot be read is `Refused`: half of it may be done.
pub async fn read<I: Io>(io: &I, root: &Path) -> Result<Option<CutOrder>, StoreError> {
    let path = path(root);
    let file = match io.open(&path, Open { access: Access::Read, direct: false }).await {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed("open", &path, e)),
    };
    let bytes = file.len().await.map_err(|e| failed("stat", &path, e))?;
    let text = file.read_at(0, bytes as usize).await.map_err(|e| failed("read", &path, e))?;
    match serde_json::from_slice(text.as_ref()) {
        Ok(order) => Ok(Some(order)),
        Err(e) => {
            let what = format!(
                "an order to cut the log's end off cannot be read: {e}; remove the file to keep the log as it is"
            );
            Err(StoreError::Refused { path, what })
        }
    }
}

/// The order is carried out, or not wanted any more. No error when there is none.
pub async fn done<I: Io>(io: &I, root: &Path) -> Result<(), StoreError> {
    let (path, dir) = (path(root), root.join("config"));
    match io.remove(&path).await {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        removed => removed.map_err(|e| failed("remove", &path, e))?,
    }
    io.sync_dir(&dir).await.map_err(|e| failed("sync", &dir, e))
}

/// Whether the order is about the log as it is: the record before the place is there, and behind it stands what was to be cut, or less.
/// Why not, otherwise.
pub(crate) async fn fits<I: Io>(
    io: &I,
    segments: &Segments,
    order: &CutOrder,
) -> Result<Result<(), String>, StoreError> {
    if order.last < segments.min() || order.at > segments.limit() {
        return Ok(Err(format!("the log is {}..{} now", segments.min(), segments.limit())));
    }
    let mut cursor = Cursor::new(io.clone(), segments, order.last);
    let stays = match cursor.look().await? {
        At::Record(bytes) if cursor.at() == order.last => order.last + bytes as u64 == order.at,
        _ => false,
    };
    if !stays {
        return Ok(Err(format!("no record at {} ends there", order.last)));
    }
    cursor.seek(order.at);
    match cursor.look().await? {
        At::Record(_) if order.first_crc.is_some_and(|crc| crc != crc_of(cursor.bytes())) => {
            Ok(Err(format!("another record stands at {} now", cursor.at())))
        }
        _ => Ok(Ok(())),
    }
}
