//! What a power cut may do to the log of a killed broker: bytes behind the last acknowledged record are cut off, zeroed, garbled, or old
//! records stand there. Kind, place and length follow from a seed.
use crate::error::BenchError;
use crate::peer::mix;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use uringmq_proto::record::{MAGIC_V1, MAGIC_V2};

/// The damage begins at most so far behind the last acknowledged byte, and is at most so long.
const BEHIND_MAX: u64 = 16 << 10;
const LENGTH_MAX: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    None,
    Cut,
    Zero,
    Garble,
    /// The segment's first records, once more.
    Replay,
}

const KINDS: [Kind; 5] = [Kind::None, Kind::Cut, Kind::Zero, Kind::Garble, Kind::Replay];

/// A segment of the log.
struct Segment {
    path: PathBuf,
    start: u64,
    file: File,
    bytes: u64,
}

/// The segment in `dir` that holds `at`.
fn segment_of(dir: &Path, at: u64) -> Result<Segment, BenchError> {
    let listed = fs::read_dir(dir).map_err(BenchError::io(format!("listing {}", dir.display())))?;
    let starts = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let start = starts.filter(|start| *start <= at).max();
    let start = start.ok_or_else(|| BenchError::Process(format!("{}: no segment that holds {at}", dir.display())))?;
    let path = dir.join(format!("{start:020}"));
    let what = |op: &str| format!("{op} {}", path.display());
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(BenchError::io(what("opening")))?;
    let bytes = file.metadata().map_err(BenchError::io(what("looking at")))?.len();
    Ok(Segment { start, file, bytes, path })
}

/// Damages the log in `dir` behind the record that starts at `newest`; what was done, in words.
pub(super) fn damage(dir: &Path, newest: u64, seed: u64) -> Result<String, BenchError> {
    let segment = segment_of(dir, newest)?;
    let failed = |op: &'static str| {
        let path = segment.path.display().to_string();
        BenchError::io(format!("{op} {path}"))
    };
    let mut head = [0; 8];
    segment.file.read_exact_at(&mut head, newest - segment.start).map_err(failed("reading"))?;
    let [s0, s1, s2, s3, m0, m1, m2, m3] = head;
    if !matches!(u32::from_be_bytes([m0, m1, m2, m3]), MAGIC_V1 | MAGIC_V2) {
        let text =
            format!("the record acknowledged at offset {newest} does not stand there in {}", segment.path.display());
        return Err(BenchError::Wrong(text));
    }
    let end = newest + u64::from(u32::from_be_bytes([s0, s1, s2, s3]));
    let mut state = seed;
    let mut choose = |below: u64| {
        state = mix(state);
        state % below.max(1)
    };
    let mut kind = KINDS[choose(KINDS.len() as u64) as usize];
    let room = (segment.start + segment.bytes).saturating_sub(end);
    if room == 0 {
        kind = Kind::None;
    }
    let from = end + if choose(2) == 0 { 0 } else { choose(room.min(BEHIND_MAX)) };
    let length = 1 + choose((segment.start + segment.bytes).saturating_sub(from).min(LENGTH_MAX));
    let at = from - segment.start;
    let mut bytes = vec![0; length as usize];
    match kind {
        Kind::None => return Ok("nothing".to_owned()),
        Kind::Cut => {
            segment.file.set_len(at).map_err(failed("cutting"))?;
            return Ok(format!("cut at {from}"));
        }
        Kind::Zero => {}
        Kind::Garble => bytes.iter_mut().for_each(|byte| *byte = choose(256) as u8),
        Kind::Replay => {
            let whole = bytes.len().min(at as usize);
            bytes.truncate(whole);
            segment.file.read_exact_at(&mut bytes, 0).map_err(failed("reading"))?;
        }
    }
    segment.file.write_all_at(&bytes, at).map_err(failed("writing"))?;
    let did = match kind {
        Kind::Zero => "zeroed",
        Kind::Garble => "garbled",
        _ => "old records in",
    };
    Ok(format!("{did} {} bytes from {from} on", bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind is chosen, and nothing below the end of the newest record is ever touched.
    #[test]
    fn only_what_was_not_acknowledged_is_damaged() {
        let dir = std::env::temp_dir().join(format!("uringmq-damage-{}", std::process::id()));
        let (start, newest, size) = (1u64 << 20, (1u64 << 20) + 5000, 300usize);
        let mut whole = vec![b'.'; 1 << 17];
        whole[5000..5004].copy_from_slice(&(size as u32).to_be_bytes());
        whole[5004..5008].copy_from_slice(&MAGIC_V1.to_be_bytes());
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(format!("{:020}", 0)), b"older").unwrap();
            let path = dir.join(format!("{start:020}"));
            fs::write(&path, &whole).unwrap();
            let did = damage(&dir, newest, seed).unwrap();
            seen.insert(did.split(' ').next().unwrap().to_owned());
            let left = fs::read(&path).unwrap();
            assert_eq!(left[..5300], whole[..5300], "seed {seed}: {did}");
            assert_eq!(left == whole, did == "nothing", "seed {seed}: {did}");
            assert_eq!(fs::read(dir.join(format!("{:020}", 0))).unwrap(), b"older");
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["cut", "garbled", "nothing", "old", "zeroed"]);
        let error = damage(&dir, newest + 1, 1).unwrap_err().to_string();
        assert!(error.contains("does not stand there"), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
