//! A log that takes another one's bytes over, as a slave does: cut anywhere, over the ends of segments, through kills and power cuts.
#![cfg(feature = "sim")]
mod log_files;

use log_files::{Random, SEGMENT_BYTES, config, key, record, scan, seeds};
use std::path::Path;
use uringmq_proto::types::PhyOffset;
use uringmq_store::commit_log::Appender;
use uringmq_store::io::Io;
use uringmq_store::io::sim::{Faults, SimIo, block_on};
use uringmq_store::{StoreConfig, StoreError};

async fn open(io: &SimIo, config: &StoreConfig, min: u64, end: u64) -> Appender<SimIo> {
    Appender::open(io.clone(), config, PhyOffset(min), PhyOffset(end)).await.unwrap()
}

/// A master's log over some segments: its bytes from 0 to its end.
async fn master(seed: u64) -> Vec<u8> {
    let (io, config, mut random) = (SimIo::new(seed, Faults::none()), config("/m"), Random::new(seed));
    let mut log = open(&io, &config, 0, 0).await;
    while log.written().0 < 3 * SEGMENT_BYTES {
        for _ in 0..=random.below(4) {
            let mut bytes = record(random.below(3) as u32, random.below(99), 92 + random.below(9000) as usize);
            let len = bytes.len() as u32;
            log.place(key(0), true, &mut bytes, &[len]).unwrap();
        }
        log.write(false).await.unwrap();
    }
    let end = log.written().0;
    let mut all = Vec::new();
    for start in (0..end).step_by(SEGMENT_BYTES as usize) {
        all.extend(segment(&io, &config, start));
    }
    all.truncate(end as usize);
    all
}

fn segment(io: &SimIo, config: &StoreConfig, start: u64) -> Vec<u8> {
    let path = config.commit_log_dir.join(format!("{start:020}"));
    io.contents(&path).unwrap_or_else(|| panic!("{}", path.display()))
}

/// Copies from where the log ends up to `to`, in random pieces and writes; what ends at a segment's end too.
async fn copy(log: &mut Appender<SimIo>, source: &[u8], to: u64, random: &mut Random) -> Result<(), StoreError> {
    let keeper = log.keeper();
    let mut at = log.written().0;
    while at < to {
        for _ in 0..=random.below(2) {
            let segment_left = SEGMENT_BYTES - at % SEGMENT_BYTES;
            let piece = match random.below(4) {
                0 => segment_left.min(16 * 1024),
                1 => 1 + random.below(100),
                _ => 1 + random.below(14 * 1024),
            };
            let end = (at + piece).min(to);
            log.place_copy(PhyOffset(at), &source[at as usize..end as usize])?;
            at = end;
        }
        let written = log.write(random.below(3) == 0).await?;
        assert_eq!(written.to.0, at);
        if random.below(2) == 0 {
            keeper.step().await?;
        }
    }
    Ok(())
}

#[test]
fn a_copy_in_random_pieces_is_the_same_log() {
    for seed in seeds() {
        block_on(async {
            let source = master(seed).await;
            let (io, config, mut random) = (SimIo::new(seed, Faults::none()), config("/s"), Random::new(seed + 1000));
            let mut log = open(&io, &config, 0, 0).await;
            copy(&mut log, &source, source.len() as u64, &mut random).await.unwrap();
            for (index, bytes) in source.chunks(SEGMENT_BYTES as usize).enumerate() {
                let copied = segment(&io, &config, index as u64 * SEGMENT_BYTES);
                assert!(copied[..bytes.len()] == *bytes, "seed {seed}: segment {index}");
                assert!(copied[bytes.len()..].iter().all(|b| *b == 0), "seed {seed}: zeros behind the end");
            }
            let found = scan(io.clone(), &config, 0).await;
            assert_eq!(found.end, source.len() as u64, "seed {seed}");
            let wrong = log.place_copy(PhyOffset(5), b"x").unwrap_err();
            assert!(matches!(wrong, StoreError::OutOfRange(PhyOffset(5))), "{wrong}");
        });
    }
}

/// The end that a scan finds is where a record or a blank ends, and the copy goes on from there.
#[test]
fn a_copy_goes_on_after_kills_and_power_cuts() {
    for seed in seeds() {
        block_on(async {
            let source = master(seed).await;
            let (config, mut random) = (config("/s"), Random::new(seed + 2000));
            let mut io = SimIo::new(seed, Faults::none());
            let mut end = 0;
            for round in 0..6 {
                let mut log = open(&io, &config, 0, end).await;
                let to = (end + random.below(SEGMENT_BYTES)).min(source.len() as u64);
                copy(&mut log, &source, to, &mut random).await.unwrap();
                let durable = log.durable().0;
                drop(log);
                let killed = random.below(2) == 0;
                io = if killed { io.after_kill() } else { io.after_crash() };
                end = scan(io.clone(), &config, 0).await.end;
                // A blank says how far it goes: what was not copied of its filler is zeros like all behind the end.
                let filler =
                    end > to && end % SEGMENT_BYTES == 0 && source[to as usize..end as usize].iter().all(|b| *b == 0);
                assert!(end <= to || filler, "seed {seed}, round {round}: end {end}, copied {to}");
                let sure = if killed { to } else { durable };
                let whole = last_record_end(&source, sure);
                assert!(end >= whole, "seed {seed}, round {round}: end {end}, {whole} is sure");
            }
            let mut log = open(&io, &config, 0, end).await;
            copy(&mut log, &source, source.len() as u64, &mut random).await.unwrap();
            let found = scan(io.clone(), &config, 0).await;
            assert_eq!((found.end, found.zeros_behind), (source.len() as u64, true), "seed {seed}");
            for (at, bytes) in found.records {
                assert!(source[at as usize..][..bytes.len()] == bytes, "seed {seed}: record at {at}");
            }
        });
    }
}

/// Where the last whole record (or blank) of `source[..to]` ends.
fn last_record_end(source: &[u8], to: u64) -> u64 {
    use uringmq_proto::record::{Found, parse};
    let mut at = 0;
    while at < to {
        let next = match parse(&source[at as usize..], false) {
            Ok(Found::Record(record)) => at + record.bytes as u64,
            Ok(Found::Blank { .. }) => at - at % SEGMENT_BYTES + SEGMENT_BYTES,
            Err(_) => break,
        };
        if next > to {
            break;
        }
        at = next;
    }
    at
}

#[test]
fn an_empty_log_can_begin_where_a_segment_does() {
    block_on(async {
        let source = master(7).await;
        let (io, config, mut random) = (SimIo::new(1, Faults::none()), config("/s"), Random::new(5));
        let mut log = open(&io, &config, 0, 0).await;
        log.keeper().step().await.unwrap();
        let start = 2 * SEGMENT_BYTES;
        let inside = log.start_at(PhyOffset(start + 4096)).await.unwrap_err();
        assert!(matches!(inside, StoreError::Refused { .. }), "{inside}");
        log.start_at(PhyOffset(start)).await.unwrap();
        copy(&mut log, &source, source.len() as u64, &mut random).await.unwrap();
        assert!(matches!(log.start_at(PhyOffset(start)).await, Err(StoreError::Refused { .. })), "not empty any more");
        let names = io.list(&config.commit_log_dir).await.unwrap();
        assert!(names.iter().all(|name| name.as_path() >= Path::new(&format!("{start:020}"))), "{names:?}");
        let killed = io.after_kill();
        let found = scan(killed.clone(), &config, start).await;
        assert_eq!(found.end, source.len() as u64);
        let again = open(&killed, &config, start, found.end).await;
        assert_eq!(again.keeper().min(), PhyOffset(start));
    });
}
