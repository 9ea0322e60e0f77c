//! Saves small tables (topics, groups, offsets, ...) atomically and reads them back: temporary file, sync, rename, directory sync; the
//! previous one is kept as `.bak`. Source: store-format sheet 8.1.
//!
//! Order of a save: `<name>.tmp` written and synced; a synced copy of `<name>` becomes `<name>.bak`; `<name>.tmp` becomes `<name>`;
//! directory synced. At each point `<name>` is there and is a whole table that was once saved. An unreadable `<name>` is moved to
//! `<name>.broken` when `.bak` is used in its place, so that the next save does not put it over the good `.bak`.
use crate::StoreError;
use crate::io::{Access, File, Io, Open, is_unreadable, write_all};
use crate::seeded::{Bug, bug};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// More than any table; a longer file is not read into memory.
const TABLE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of one read or write.
const PIECE_BYTES: usize = 512 * 1024;

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    PathBuf::from(name)
}

fn failed(op: &'static str, path: &Path, source: std::io::Error) -> StoreError {
    StoreError::File { op, path: path.to_owned(), source }
}

/// Durable when it returns. The directory must be there. One save of a table at a time.
pub async fn save<I: Io>(io: &I, path: &Path, text: &[u8]) -> Result<(), StoreError> {
    let tmp = beside(path, ".tmp");
    write_synced(io, &tmp, text, !bug(Bug::TableRenamedBeforeSync)).await?;
    if let Some(Ok(previous)) = read_or_fault(io, path).await? {
        let backup_tmp = beside(path, ".bak.tmp");
        write_synced(io, &backup_tmp, &previous, true).await?;
        let backup = beside(path, ".bak");
        io.rename(&backup_tmp, &backup).await.map_err(|e| failed("rename", &backup_tmp, e))?;
    }
    io.rename(&tmp, path).await.map_err(|e| failed("rename", &tmp, e))?;
    let dir = path.parent().unwrap_or(Path::new("."));
    io.sync_dir(dir).await.map_err(|e| failed("sync", dir, e))
}

/// Makes the file `path` with these contents, synced (`sync` is false only for a seeded bug).
async fn write_synced<I: Io>(io: &I, path: &Path, text: &[u8], sync: bool) -> Result<(), StoreError> {
    let file =
        io.open(path, Open { access: Access::Create, direct: false }).await.map_err(|e| failed("open", path, e))?;
    file.set_len(0).await.map_err(|e| failed("truncate", path, e))?;
    for (i, piece) in text.chunks(PIECE_BYTES).enumerate() {
        let mut buf = file.buffer(piece.len());
        buf.as_mut().copy_from_slice(piece);
        write_all(&file, (i * PIECE_BYTES) as u64, buf).await.0.map_err(|e| failed("write", path, e))?;
    }
    if !sync {
        return Ok(());
    }
    file.sync().await.map_err(|e| failed("sync", path, e))
}

/// The main file if `parse` accepts it, else `.bak` (with a warning); `None` when neither exists; `Refused` when there is one and none
/// is readable.
pub async fn load<I: Io, T>(
    io: &I,
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, StoreError> {
    let parse = |text: Result<Vec<u8>, String>| parse(&text?);
    let main = read_or_fault(io, path).await?;
    let main_fault = match main.map(&parse) {
        Some(Ok(table)) => return Ok(Some(table)),
        Some(Err(what)) => Some(what),
        None => None,
    };
    let backup_path = beside(path, ".bak");
    let backup = read_or_fault(io, &backup_path).await?;
    match (backup.map(&parse), main_fault) {
        (Some(Ok(table)), None) => {
            tracing::warn!(path = %path.display(), "table is missing, its backup is used");
            Ok(Some(table))
        }
        (Some(Ok(table)), Some(what)) => {
            let broken = beside(path, ".broken");
            tracing::warn!(path = %path.display(), what, kept_as = %broken.display(), "table is unreadable, its backup is used");
            io.rename(path, &broken).await.map_err(|e| failed("rename", path, e))?;
            Ok(Some(table))
        }
        (None, None) => Ok(None),
        (Some(Err(backup)), None) => Err(refused(path, format!("missing, and its backup is unreadable: {backup}"))),
        (None, Some(main)) => Err(refused(path, format!("unreadable, and there is no backup: {main}"))),
        (Some(Err(backup)), Some(main)) => {
            Err(refused(path, format!("unreadable: {main}; and so is its backup: {backup}")))
        }
    }
}

fn refused(path: &Path, what: String) -> StoreError {
    let cure = "restore one of the two files, or remove both to start with an empty table";
    StoreError::Refused { path: path.to_owned(), what: format!("{what}; {cure}") }
}

/// As `read`; that the device cannot read it is a fault of the text.
async fn read_or_fault<I: Io>(io: &I, path: &Path) -> Result<Option<Result<Vec<u8>, String>>, StoreError> {
    match read(io, path).await {
        Err(StoreError::File { op, source, .. }) if is_unreadable(&source) => Ok(Some(Err(format!("{op}: {source}")))),
        text => Ok(text?.map(Ok)),
    }
}

/// The whole of a file, `None` when it is missing.
async fn read<I: Io>(io: &I, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let file = match io.open(path, Open { access: Access::Read, direct: false }).await {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed("open", path, e)),
    };
    let bytes = file.len().await.map_err(|e| failed("stat", path, e))?;
    if bytes > TABLE_BYTES_MAX {
        return Err(refused(path, format!("{bytes} bytes are no table")));
    }
    let mut text = Vec::with_capacity(bytes as usize);
    while (text.len() as u64) < bytes {
        let wanted = PIECE_BYTES.min(bytes as usize - text.len());
        let piece = file.read_at(text.len() as u64, wanted).await.map_err(|e| failed("read", path, e))?;
        if piece.as_ref().is_empty() {
            break;
        }
        text.extend_from_slice(piece.as_ref());
    }
    Ok(Some(text))
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::io::sim::{Faults, SimIo, block_on};

    const PATH: &str = "/s/config/topics.json";
    const BACKUP: &str = "/s/config/topics.json.bak";

    fn disk(seed: u64) -> SimIo {
        let io = SimIo::new(seed, Faults::none());
        io.plant_dir(Path::new("/s/config"));
        io
    }
    fn put(io: &SimIo, text: &str) -> Result<(), StoreError> {
        block_on(save(io, Path::new(PATH), text.as_bytes()))
    }
    /// As the broker would: JSON, and nothing behind it.
    fn get(io: &SimIo) -> Result<Option<serde_json::Value>, StoreError> {
        block_on(load(io, Path::new(PATH), |text| serde_json::from_slice(text).map_err(|e| e.to_string())))
    }

    #[test]
    fn saved_tables_come_back_and_the_previous_one_is_kept() {
        let io = disk(1);
        assert_eq!(get(&io).unwrap(), None);
        put(&io, "[1]").unwrap();
        put(&io, "[2, \"long\"]").unwrap();
        put(&io, "[3]").unwrap();
        assert_eq!(get(&io.after_crash()).unwrap().unwrap(), serde_json::json!([3]));
        assert_eq!(io.contents(Path::new(BACKUP)).unwrap(), b"[2, \"long\"]");
        let long = format!("\"{}\"", "x".repeat(2 * PIECE_BYTES));
        put(&io, &long).unwrap();
        assert_eq!(get(&io).unwrap().unwrap().as_str().unwrap().len(), 2 * PIECE_BYTES);
    }

    #[test]
    fn a_broken_main_file_gives_way_to_its_backup() {
        let broken: [&[u8]; 5] = [b"", &[0; 600], b"{\"a\":", b"[1] rubbish", b"\xFF\xFE"];
        for text in broken {
            let io = disk(1);
            io.plant(Path::new(PATH), text);
            assert!(matches!(get(&io), Err(StoreError::Refused { .. })), "no backup: {text:?}");
            io.plant(Path::new(BACKUP), b"[7]");
            assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([7]), "{text:?}");
            put(&io, "[8]").unwrap();
            assert_eq!(io.contents(Path::new(BACKUP)).unwrap(), b"[7]", "the broken one is not kept as the backup");
            assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([8]));
            for backup in broken {
                let io = disk(1);
                io.plant(Path::new(PATH), text);
                io.plant(Path::new(BACKUP), backup);
                let error = get(&io).unwrap_err().to_string();
                assert!(error.contains(PATH) && error.contains("so is its backup"), "{error}");
            }
            let io = disk(1);
            io.plant(Path::new(BACKUP), text);
            assert!(matches!(get(&io), Err(StoreError::Refused { .. })), "only a broken backup");
        }
    }

    #[test]
    fn the_main_file_wins_over_a_backup_of_any_age() {
        let io = disk(1);
        io.plant(Path::new(PATH), b"[1]");
        io.advance_ms(1000);
        io.plant(Path::new(BACKUP), b"[2]");
        assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([1]));
        let io = disk(1);
        io.plant(Path::new(BACKUP), b"[2]");
        assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([2]));
    }

    #[test]
    fn a_crash_anywhere_leaves_the_last_table_or_the_one_before() {
        for seed in 0..10 {
            let calm = disk(seed);
            put(&calm, "[1]").unwrap();
            put(&calm, "[2]").unwrap();
            let before = calm.operations();
            put(&calm, "[3]").unwrap();
            for crash_at in before..calm.operations() {
                let io = disk(seed);
                io.set_faults(Faults::crash_at(crash_at));
                put(&io, "[1]").unwrap();
                put(&io, "[2]").unwrap();
                assert!(put(&io, "[3]").is_err());
                for after in [io.after_crash(), io.after_kill()] {
                    let table = get(&after).unwrap().unwrap();
                    let known = [serde_json::json!([2]), serde_json::json!([3])];
                    assert!(known.contains(&table), "seed {seed}, crash at {crash_at}: {table}");
                    put(&after, "[4]").unwrap();
                    assert_eq!(get(&after.after_crash()).unwrap().unwrap(), serde_json::json!([4]));
                }
            }
        }
    }

    #[test]
    fn a_full_disk_costs_nothing_that_was_saved() {
        let io = disk(1);
        put(&io, "[1]").unwrap();
        io.set_faults(Faults { capacity_bytes: Some(512), ..Faults::none() });
        assert!(put(&io, "[2]").is_err());
        assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([1]));
        io.set_faults(Faults::none());
        put(&io, "[3]").unwrap();
        assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([3]));
    }
}
