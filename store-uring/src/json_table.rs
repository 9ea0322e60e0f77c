//! Saves small tables (topics, groups, offsets, ...) atomically and reads them back: temporary file, sync, rename, directory sync; the
//! previous one is kept as `.bak`, and what was saved is noted beside it ([`crate::table_mark`]). Source: store-format sheet 8.1.
//!
//! Order of a save: `<name>.tmp` written and synced; a synced copy of `<name>` becomes `<name>.bak`; the mark `<name>.sum` is written and
//! synced; `<name>.tmp` becomes `<name>`; directory synced. At each point `<name>` is there, is a whole table that was once saved, and is
//! known to the mark.
//!
//! A load takes `<name>` if it can be read, parsed, and is what was saved, or what somebody else wrote (with a warning). Else it takes
//! `.bak`, and `<name>` is moved to `<name>.broken`, so that the next save does not put it over the good `.bak`. With both bad it is
//! refused, unless the operator said to start without ([`Broken`]).
use crate::io::{Access, File, Io, Metadata, Open, is_unreadable, write_all};
use crate::seeded::{Bug, bug};
use crate::table_mark::{Content, Mark, Verdict};
use crate::{StoreError, file_failed as failed};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// More than any table; a longer file is not read into memory.
const TABLE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of one read or write.
const PIECE_BYTES: usize = 512 * 1024;

pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    PathBuf::from(name)
}

fn dir_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// What becomes of a table of which neither file is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The start is refused.
    Refuse,
    /// Both are moved to `.broken`; what of them can be parsed at all is used, or an empty table (`startWithoutBrokenTables`).
    StartWithout,
}

/// Durable when it returns. The directory must be there. One save of a table at a time.
pub async fn save<I: Io>(io: &I, path: &Path, text: &[u8]) -> Result<(), StoreError> {
    let dir = dir_of(path);
    // A rename that an earlier, failed save left behind must not come back after a crash: the mark would not know it any more.
    io.sync_dir(dir).await.map_err(|e| failed("sync", dir, e))?;
    let tmp = beside(path, ".tmp");
    let modified_ms = write_synced(io, &tmp, text, !bug(Bug::TableRenamedBeforeSync)).await?;
    let before = keep_previous(io, path).await?;
    let mark = Mark { now: Content::of(text, modified_ms), before };
    mark.write(io, path).await?;
    put(io, &tmp, path).await
}

/// As `save` for a file that people edit: with neither mark nor backup of what they wrote.
pub async fn save_unmarked<I: Io>(io: &I, path: &Path, text: &[u8]) -> Result<(), StoreError> {
    let tmp = beside(path, ".tmp");
    write_synced(io, &tmp, text, true).await?;
    keep_previous(io, path).await?;
    put(io, &tmp, path).await
}

/// As `save` for what must not come back once it is gone: with neither mark nor backup.
pub async fn save_alone<I: Io>(io: &I, path: &Path, text: &[u8]) -> Result<(), StoreError> {
    let tmp = beside(path, ".tmp");
    write_synced(io, &tmp, text, true).await?;
    put(io, &tmp, path).await
}

async fn put<I: Io>(io: &I, tmp: &Path, path: &Path) -> Result<(), StoreError> {
    io.rename(tmp, path).await.map_err(|e| failed("rename", tmp, e))?;
    let dir = dir_of(path);
    io.sync_dir(dir).await.map_err(|e| failed("sync", dir, e))
}

/// Makes the present table the backup. Where that is missing, unreadable or decayed, the backup stays. What the backup holds now.
async fn keep_previous<I: Io>(io: &I, path: &Path) -> Result<Content, StoreError> {
    let backup = beside(path, ".bak");
    let mark = Mark::read(io, path).await?;
    let decayed = |text: &[u8], meta: &Metadata| mark.is_some_and(|mark| mark.judge(text, meta) == Verdict::Decayed);
    if let Some(Ok(previous)) = read_or_fault(io, path).await? {
        let meta = io.metadata(path).await.map_err(|e| failed("stat", path, e))?;
        if !decayed(&previous, &meta) {
            let backup_tmp = beside(path, ".bak.tmp");
            write_synced(io, &backup_tmp, &previous, true).await?;
            io.rename(&backup_tmp, &backup).await.map_err(|e| failed("rename", &backup_tmp, e))?;
            return Ok(Content::of(&previous, meta.modified_ms));
        }
    }
    let Some(Ok(kept)) = read_or_fault(io, &backup).await? else { return Ok(Content::default()) };
    Ok(match mark {
        // It decayed, and must stay known for that.
        Some(mark) if !mark.knows(&kept) => mark.before,
        _ => Content::of(&kept, 0),
    })
}

/// Makes the file `path` with these contents, synced (`sync` is false only for a seeded bug). Its time of change, ms.
async fn write_synced<I: Io>(io: &I, path: &Path, text: &[u8], sync: bool) -> Result<i64, StoreError> {
    let file =
        io.open(path, Open { access: Access::Create, direct: false }).await.map_err(|e| failed("open", path, e))?;
    file.set_len(0).await.map_err(|e| failed("truncate", path, e))?;
    for (i, piece) in text.chunks(PIECE_BYTES).enumerate() {
        let mut buf = file.buffer(piece.len());
        buf.as_mut().copy_from_slice(piece);
        write_all(&file, (i * PIECE_BYTES) as u64, buf).await.0.map_err(|e| failed("write", path, e))?;
    }
    if sync {
        file.sync().await.map_err(|e| failed("sync", path, e))?;
    }
    Ok(io.metadata(path).await.map_err(|e| failed("stat", path, e))?.modified_ms)
}

/// A table file as a load finds it; `None` when there is none.
type Found<T> = Option<Result<T, Fault<T>>>;

struct Fault<T> {
    what: String,
    /// It can be parsed all the same.
    parsed: Option<T>,
    /// The file is the one that was saved: the mark is about it, and about its backup.
    ours: bool,
}

/// [`load_or`] that refuses.
pub async fn load<I: Io, T>(
    io: &I,
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, StoreError> {
    load_or(io, path, Broken::Refuse, parse).await
}

/// The main file if it is good, else `.bak` (with a warning); see the module's head. `None` when neither exists; `Refused`, naming the file,
/// when there is one and none is good.
pub async fn load_or<I: Io, T>(
    io: &I,
    path: &Path,
    broken: Broken,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, StoreError> {
    let mark = Mark::read(io, path).await?;
    let main = main_file(io, path, mark, &parse).await?;
    let fault = match main {
        Some(Ok(table)) => return Ok(Some(table)),
        Some(Err(fault)) => Some(fault),
        None => None,
    };
    let mark = mark.filter(|_| fault.as_ref().is_some_and(|fault| fault.ours));
    let backup = backup_file(io, path, mark, &parse).await?;
    match (backup, fault) {
        (Some(Ok(table)), None) => {
            tracing::warn!(path = %path.display(), "table is missing, its backup is used");
            Ok(Some(table))
        }
        (Some(Ok(table)), Some(Fault { what, .. })) => {
            let kept = move_away(io, path).await?;
            tracing::warn!(path = %path.display(), what, kept_as = %kept.display(), "table is unreadable, its backup is used");
            Ok(Some(table))
        }
        (None, None) => Ok(None),
        (backup, fault) => both_bad(io, path, broken, fault, backup.and_then(Result::err)).await,
    }
}

async fn main_file<I: Io, T>(
    io: &I,
    path: &Path,
    mark: Option<Mark>,
    parse: &impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Found<T>, StoreError> {
    let Some(text) = read_or_fault(io, path).await? else { return Ok(None) };
    let meta = io.metadata(path).await.map_err(|e| failed("stat", path, e))?;
    let ours = mark.is_some_and(|mark| mark.is_of(&meta));
    let parsed = text.and_then(|text| parse(&text).map(|table| (table, text)));
    let (table, text) = match parsed {
        Err(what) => return Ok(Some(Err(Fault { what, parsed: None, ours }))),
        Ok(parsed) => parsed,
    };
    Ok(Some(match mark.map_or(Verdict::Fine, |mark| mark.judge(&text, &meta)) {
        Verdict::Fine => Ok(table),
        Verdict::Foreign => {
            tracing::warn!(path = %path.display(), "table was written by another since it was saved here; it is used as it is");
            Ok(table)
        }
        Verdict::Decayed => {
            let what = "its checksum is not that of what was saved, and nobody wrote it since".to_owned();
            Err(Fault { what, parsed: Some(table), ours })
        }
    }))
}

/// With a `mark`, it must be what that knows.
async fn backup_file<I: Io, T>(
    io: &I,
    path: &Path,
    mark: Option<Mark>,
    parse: &impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Found<T>, StoreError> {
    let Some(text) = read_or_fault(io, &beside(path, ".bak")).await? else { return Ok(None) };
    let parsed = text.and_then(|text| parse(&text).map(|table| (table, text)));
    let unknown = "its checksum is not that of what was saved";
    Ok(Some(match parsed {
        Err(what) => Err(Fault { what, parsed: None, ours: false }),
        Ok((table, text)) if mark.is_none_or(|mark| mark.knows(&text)) => Ok(table),
        Ok((table, _)) => Err(Fault { what: unknown.to_owned(), parsed: Some(table), ours: false }),
    }))
}

async fn both_bad<I: Io, T>(
    io: &I,
    path: &Path,
    broken: Broken,
    main: Option<Fault<T>>,
    backup: Option<Fault<T>>,
) -> Result<Option<T>, StoreError> {
    let text = |fault: &Option<Fault<T>>| fault.as_ref().map(|fault| fault.what.clone());
    let what = match (text(&main), text(&backup)) {
        (Some(main), Some(backup)) => format!("unreadable: {main}; and so is its backup: {backup}"),
        (Some(main), None) => format!("unreadable, and there is no backup: {main}"),
        (None, backup) => format!("missing, and its backup is unreadable: {}", backup.unwrap_or_default()),
    };
    if broken == Broken::Refuse {
        return Err(refused(path, what));
    }
    tracing::error!(path = %path.display(), what, "starting without a table, as startWithoutBrokenTables says");
    for (there, path) in [(main.is_some(), path.to_owned()), (backup.is_some(), beside(path, ".bak"))] {
        if there {
            move_away(io, &path).await?;
        }
    }
    Ok(main.and_then(|fault| fault.parsed).or_else(|| backup.and_then(|fault| fault.parsed)))
}

/// `<path>.broken`, where it is now.
async fn move_away<I: Io>(io: &I, path: &Path) -> Result<PathBuf, StoreError> {
    let broken = beside(path, ".broken");
    io.rename(path, &broken).await.map_err(|e| failed("rename", path, e))?;
    Ok(broken)
}

fn refused(path: &Path, what: String) -> StoreError {
    let cure = "restore one of the two files (a hand-made one is taken when its .sum is removed), or set startWithoutBrokenTables=true \
                for one start";
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
    fn a_backup_that_decayed_is_not_blessed_by_a_save_that_must_keep_it() {
        let io = disk(1);
        for text in ["[1]", "[2]", "[3]"] {
            put(&io, text).unwrap();
        }
        assert!(io.flip_bit(Path::new(BACKUP), 1, 2), "[2] becomes [6]");
        assert!(io.make_unreadable(Path::new(PATH), 0, 3));
        put(&io, "[4]").unwrap();
        assert_eq!(io.contents(Path::new(BACKUP)).unwrap(), b"[6]");
        assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([4]));
        assert!(io.flip_bit(Path::new(PATH), 1, 0), "[4] becomes [5]");
        let error = get(&io).unwrap_err().to_string();
        assert!(error.contains("so is its backup"), "{error}");
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

    const MARK: &str = "/s/config/topics.json.sum";

    /// Saved twice, a while apart.
    fn saved_twice() -> SimIo {
        let io = disk(1);
        put(&io, "[17]").unwrap();
        io.advance_ms(1000);
        put(&io, "[2345]").unwrap();
        io.advance_ms(1000);
        io
    }
    fn flip(io: &SimIo, path: &str, bit: u64) {
        assert!(io.flip_bit(Path::new(path), bit / 8, (bit % 8) as u8));
    }

    #[test]
    fn a_flipped_bit_never_makes_another_table() {
        for bit in 0..6 * 8 {
            let io = saved_twice();
            flip(&io, PATH, bit);
            assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([17]), "bit {bit} of the table");
            put(&io, "[99]").unwrap();
            assert_eq!(io.contents(Path::new(BACKUP)).unwrap(), b"[17]", "what decayed is not kept as the backup");
            flip(&io, PATH, bit % 32);
            assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([17]), "and again");

            let io = saved_twice();
            flip(&io, PATH, bit); // while it runs: no start looked at it
            put(&io, "[99]").unwrap();
            assert_eq!(io.contents(Path::new(BACKUP)).unwrap(), b"[17]");
            assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([99]));
        }
        for bit in 0..111 * 8 {
            let io = saved_twice();
            flip(&io, MARK, bit);
            assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([2345]), "bit {bit} of the mark");
        }
        for bit in 0..4 * 8 {
            let io = saved_twice();
            flip(&io, BACKUP, bit);
            assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([2345]), "bit {bit} of the backup");
            flip(&io, PATH, 9);
            let error = get(&io).unwrap_err().to_string();
            assert!(error.contains(PATH) && error.contains("so is its backup"), "{error}");
        }
    }

    #[test]
    fn what_another_wrote_is_used() {
        for text in ["[2344]", "[1, 2, 3]"] {
            let io = saved_twice();
            io.plant(Path::new(PATH), text.as_bytes()); // another time, the same or another length
            let found = get(&io).unwrap().unwrap();
            assert_eq!(found, serde_json::from_str::<serde_json::Value>(text).unwrap());
            io.plant(Path::new(PATH), b"rubbish");
            assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([17]));
            let io = saved_twice();
            io.plant(Path::new(BACKUP), text.as_bytes());
            io.plant(Path::new(PATH), b"rubbish");
            assert_eq!(get(&io).unwrap().unwrap(), found, "a backup that another made");
        }
        let io = saved_twice();
        assert!(io.make_unreadable(Path::new(MARK), 0, 512));
        assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([2345]));
        block_on(io.remove(Path::new(MARK))).unwrap();
        assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([2345]));
    }

    #[test]
    fn with_both_bad_only_the_operators_word_lets_it_start() {
        let parse = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).map_err(|e| e.to_string());
        let without = |io: &SimIo| block_on(load_or(io, Path::new(PATH), Broken::StartWithout, parse)).unwrap();
        let io = saved_twice();
        for path in [PATH, BACKUP] {
            io.plant(Path::new(path), b"{");
        }
        assert!(get(&io).unwrap_err().to_string().contains("startWithoutBrokenTables"));
        assert_eq!(io.contents(Path::new(PATH)).unwrap(), b"{", "a refusal changes nothing");
        assert_eq!(without(&io), None);
        for path in [PATH, BACKUP] {
            assert_eq!(io.contents(Path::new(path)), None);
            assert_eq!(io.contents(&beside(Path::new(path), ".broken")).unwrap(), b"{", "kept for who can mend it");
        }
        put(&io, "[3]").unwrap();
        assert_eq!(get(&io).unwrap().unwrap(), serde_json::json!([3]));

        let io = disk(1);
        put(&io, "[17]").unwrap();
        flip(&io, PATH, 9);
        assert!(get(&io).unwrap_err().to_string().contains("no backup"));
        assert_eq!(without(&io), Some(serde_json::json!([37])), "what can be parsed is better than nothing");
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
