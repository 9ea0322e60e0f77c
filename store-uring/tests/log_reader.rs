//! The shards' reader on the simulated disk: checked records, shared and partial blocks, limits, removal.
#![cfg(feature = "sim")]
mod log_files;

use log_files::{Random, SEGMENT_BYTES, config, join, key, record, seeds};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use uringmq_proto::types::PhyOffset;
use uringmq_store::commit_log::Appender;
use uringmq_store::io::sim::{Faults, SimIo, block_on};
use uringmq_store::log_reader::LogReader;
use uringmq_store::{StoreConfig, StoreError};

/// Segments of two and a half blocks of the reader.
fn large_segments() -> StoreConfig {
    StoreConfig { segment_bytes: 1280 * 1024, read_cache_bytes: 4 << 20, ..config("/store") }
}

/// Appends records of these sizes, each batch as full as it gets.
async fn filled(
    disk: &SimIo,
    config: &StoreConfig,
    sizes: impl IntoIterator<Item = usize>,
) -> (Appender<SimIo>, Vec<(PhyOffset, Vec<u8>)>) {
    let mut log = Appender::open(disk.clone(), config, PhyOffset(0), PhyOffset(0)).await.unwrap();
    let mut placed = Vec::new();
    for (seed, size) in sizes.into_iter().enumerate() {
        let mut bytes = record(0, seed as u64, size);
        if !log.fits(size) {
            log.write(false).await.unwrap();
        }
        let phy = log.place(key(0), true, &mut bytes, &[size as u32]).unwrap().phy;
        placed.push((phy, bytes));
    }
    log.write(false).await.unwrap();
    (log, placed)
}

async fn read(reader: &LogReader<SimIo>, at: PhyOffset, bytes: usize, limit: PhyOffset) -> Result<Vec<u8>, StoreError> {
    let mut out = b"before".to_vec();
    let done = reader.read_record(at, bytes as u32, limit, &mut out).await;
    assert!(out.starts_with(b"before"));
    match done {
        Ok(()) => Ok(out.split_off(6)),
        Err(e) => {
            assert_eq!(out.len(), 6, "nothing is added on an error");
            Err(e)
        }
    }
}

fn segment(config: &StoreConfig, start: u64) -> PathBuf {
    config.commit_log_dir.join(format!("{start:020}"))
}

#[test]
fn every_record_in_any_order_with_any_cache() {
    for seed in seeds().take(12) {
        let mut random = Random::new(seed);
        let config = StoreConfig { read_cache_bytes: [1, 600 * 1024, 64 << 20][seed as usize % 3], ..large_segments() };
        block_on(async {
            let disk = SimIo::new(seed, Faults { yielding: true, ..Faults::none() });
            let sizes: Vec<usize> = (0..600).map(|_| 92 + random.below(9_000) as usize).collect();
            let (log, placed) = filled(&disk, &config, sizes).await;
            assert!(log.written().0 > 2 * config.segment_bytes);
            let reader = LogReader::new(disk.clone(), &config);
            for _ in 0..400 {
                let (at, bytes) = &placed[random.below(placed.len() as u64) as usize];
                let size = if random.below(2) == 0 { 0 } else { bytes.len() };
                assert!(read(&reader, *at, size, log.written()).await.unwrap() == *bytes, "seed {seed}, at {at}");
            }
            // In order, with read-ahead beside.
            for (at, bytes) in &placed {
                let (found, ()) = join(read(&reader, *at, bytes.len(), log.written()), reader.read_ahead()).await;
                assert!(found.unwrap() == *bytes, "seed {seed}, at {at}");
            }
        });
    }
}

#[test]
fn a_tail_reader_follows_the_mark() {
    block_on(async {
        let config = large_segments();
        let disk = SimIo::new(1, Faults::none());
        let (mut log, _) = filled(&disk, &config, [3_000]).await;
        let reader = LogReader::new(disk.clone(), &config);
        for seed in 0..200 {
            let mut bytes = record(0, seed, 3_001);
            let phy = log.place(key(0), true, &mut bytes, &[3_001]).unwrap().phy;
            let outside = read(&reader, phy, bytes.len(), log.written()).await;
            assert!(matches!(outside, Err(StoreError::OutOfRange(at)) if at == phy));
            log.write(false).await.unwrap();
            assert_eq!(read(&reader, phy, bytes.len(), log.written()).await.unwrap(), bytes);
            // Up to the middle of the record is not enough, known or not.
            let middle = PhyOffset(phy.0 + 1_000);
            assert!(matches!(read(&reader, phy, bytes.len(), middle).await, Err(StoreError::OutOfRange(_))));
            assert!(read(&reader, phy, 0, middle).await.is_err());
        }
    });
}

#[test]
fn sequential_reads_cost_one_read_a_block() {
    block_on(async {
        let config = large_segments();
        let disk = SimIo::new(1, Faults::none());
        let (log, placed) = filled(&disk, &config, (0..2_000).map(|_| 2_000)).await;
        let reader = LogReader::new(disk.clone(), &config);
        let before = disk.operations();
        for (at, bytes) in &placed {
            read(&reader, *at, bytes.len(), log.written()).await.unwrap();
        }
        let segments = log.written().0.div_ceil(config.segment_bytes);
        // Per segment an open and three blocks; one more for the first piece.
        let reads = disk.operations() - before;
        assert!(reads <= 4 * segments + 1, "{reads} operations for {segments} segments");
    });
}

#[test]
fn read_ahead_is_wanted_by_sequential_readers_only() {
    block_on(async {
        let config = large_segments();
        let disk = SimIo::new(1, Faults::none());
        let (log, placed) = filled(&disk, &config, (0..1_500).map(|_| 2_000)).await;
        let reader = LogReader::new(disk.clone(), &config);
        let far: Vec<_> = placed.iter().rev().step_by(400).collect();
        for (at, bytes) in far {
            read(&reader, *at, bytes.len(), log.written()).await.unwrap();
        }
        assert_eq!(reader.wants_ahead(), None);
        let reader = LogReader::new(disk.clone(), &config);
        let second_block = placed.iter().take_while(|(at, _)| at.0 < 530 * 1024).count();
        for (at, bytes) in &placed[..second_block] {
            read(&reader, *at, bytes.len(), log.written()).await.unwrap();
        }
        assert_eq!(reader.wants_ahead(), Some(PhyOffset(1024 * 1024)));
        reader.read_ahead().await;
        assert_eq!(reader.wants_ahead(), None);
        let before = disk.operations();
        let third = placed.iter().find(|(at, _)| at.0 >= 1024 * 1024).unwrap();
        read(&reader, third.0, third.1.len(), log.written()).await.unwrap();
        assert_eq!(disk.operations(), before, "it was there");
        // From the last, shorter block of the segment on to the next segment.
        assert_eq!(reader.wants_ahead(), Some(PhyOffset(config.segment_bytes)));
    });
}

#[test]
fn pulls_of_the_same_block_share_one_read() {
    block_on(async {
        let config = large_segments();
        let disk = SimIo::new(1, Faults { yielding: true, ..Faults::none() });
        let (log, placed) = filled(&disk, &config, (0..20).map(|_| 2_000)).await;
        let reader = LogReader::new(disk.clone(), &config);
        let before = disk.operations();
        let (a, b) =
            join(read(&reader, placed[3].0, 2_000, log.written()), read(&reader, placed[5].0, 2_000, log.written()))
                .await;
        assert_eq!((a.unwrap(), b.unwrap()), (placed[3].1.clone(), placed[5].1.clone()));
        assert!(disk.operations() - before <= 2, "one open, one read");
    });
}

#[test]
fn a_dropped_read_does_not_hold_up_the_others() {
    let config = large_segments();
    let disk = SimIo::new(1, Faults { yielding: true, ..Faults::none() });
    let (log, placed) = block_on(filled(&disk, &config, (0..20).map(|_| 2_000)));
    let reader = Rc::new(LogReader::new(disk, &config));
    let mut cx = Context::from_waker(Waker::noop());
    {
        let mut dropped = Box::pin(read(&reader, placed[0].0, 2_000, log.written()));
        assert!(dropped.as_mut().poll(&mut cx).is_pending());
        let mut waiting = pin!(read(&reader, placed[1].0, 2_000, log.written()));
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        drop(dropped);
        assert_eq!(block_on(waiting).unwrap(), placed[1].1);
    }
    assert_eq!(block_on(read(&reader, placed[0].0, 2_000, log.written())).unwrap(), placed[0].1);
}

#[test]
fn damage_is_reported_with_its_place() {
    block_on(async {
        let config = large_segments();
        let disk = SimIo::new(1, Faults::none());
        let (log, placed) = filled(&disk, &config, [500, 600, 700, 800]).await;
        let (second, third) = (placed[1].0, placed[2].0);
        assert!(disk.flip_bit(&segment(&config, 0), second.0 + 300, 3), "a body byte");
        assert!(disk.flip_bit(&segment(&config, 0), third.0 + 35, 0), "its own offset");
        let reader = LogReader::new(disk.clone(), &config);
        let limit = log.written();
        let crc = read(&reader, second, 600, limit).await.unwrap_err();
        assert!(matches!(crc, StoreError::Corrupt { at, what } if at == second && what.contains("CRC")), "{crc}");
        let moved = read(&reader, third, 700, limit).await.unwrap_err();
        assert!(matches!(moved, StoreError::Corrupt { at, what } if at == third && what.contains("offset")), "{moved}");
        // A wrong size, a place inside a record, a size no record has.
        for (at, bytes) in
            [(placed[0].0, 499), (placed[0].0, 501), (placed[0].0 + 1, 0), (placed[0].0, 8), (placed[0].0 + 1, 400)]
        {
            let e = read(&reader, at, bytes, limit).await.unwrap_err();
            assert!(matches!(e, StoreError::Corrupt { at: place, .. } if place == at), "{at} {bytes}: {e}");
        }
        // The others are served.
        assert_eq!(read(&reader, placed[0].0, 0, limit).await.unwrap(), placed[0].1);
        assert_eq!(read(&reader, placed[3].0, 800, limit).await.unwrap(), placed[3].1);
    });
}

#[test]
fn a_read_error_is_told_and_not_kept() {
    block_on(async {
        let config = large_segments();
        let disk = SimIo::new(1, Faults::none());
        let (log, placed) = filled(&disk, &config, [500]).await;
        let limit = log.written();
        let (at, bytes) = &placed[0];
        // A read that fails once is tried again.
        for number in 0..20 {
            disk.set_faults(Faults { read_error_at: Some(number), ..Faults::none() });
            let fresh = LogReader::new(disk.clone(), &config);
            assert_eq!(read(&fresh, *at, 500, limit).await.unwrap(), *bytes);
        }
        let segment = config.commit_log_dir.join(format!("{:020}", at.0 - at.0 % config.segment_bytes));
        let block = at.0 % config.segment_bytes / 4096 * 4096;
        let reader = LogReader::new(disk.clone(), &config);
        assert!(disk.make_unreadable(&segment, block, block + 1));
        let damaged = read(&reader, *at, 500, limit).await;
        assert!(matches!(damaged, Err(StoreError::Corrupt { .. })), "no later try will find it: {damaged:?}");
        // Where nothing can be read any more the disk is gone, and its records are not.
        assert!(disk.make_unreadable(&segment, 0, config.segment_bytes));
        assert!(matches!(read(&reader, *at, 500, limit).await, Err(StoreError::Io { op: "read", .. })));
        let whole = disk.contents(&segment).unwrap();
        disk.plant(&segment, &whole); // good again, in a new file
        assert_eq!(read(&LogReader::new(disk.clone(), &config), *at, 500, limit).await.unwrap(), *bytes);
    });
}

#[test]
fn a_block_that_cannot_be_read_costs_its_neighbours_nothing() {
    block_on(async {
        let config = large_segments();
        let disk = SimIo::new(1, Faults::none());
        let (log, placed) = filled(&disk, &config, [500; 40]).await;
        assert!(disk.make_unreadable(&config.commit_log_dir.join(format!("{:020}", 0)), 8192, 8193));
        let reader = LogReader::new(disk.clone(), &config);
        for (at, bytes) in &placed {
            let touches = at.0 < 12_288 && at.0 + 500 > 8192;
            let found = read(&reader, *at, 500, log.written()).await;
            assert_eq!(matches!(found, Err(StoreError::Corrupt { .. })), touches, "record at {at}");
            assert!(touches || found.unwrap() == *bytes, "record at {at}");
        }
    });
}

#[test]
fn removed_segments_are_out_of_range() {
    block_on(async {
        let config = config("/store");
        let disk = SimIo::new(1, Faults::none());
        let (log, placed) = filled(&disk, &config, (0..30).map(|_| 8_000)).await;
        let limit = log.written();
        let held = LogReader::new(disk.clone(), &config);
        read(&held, placed[0].0, 8_000, limit).await.unwrap();
        let fresh = LogReader::new(disk.clone(), &config);
        let min = log.keeper().remove_oldest(log.written()).await.unwrap();
        assert_eq!(min, PhyOffset(SEGMENT_BYTES));
        // The file is gone before the reader is told.
        let gone = read(&fresh, placed[0].0, 8_000, limit).await.unwrap_err();
        assert!(matches!(gone, StoreError::OutOfRange(at) if at == placed[0].0), "{gone}");
        held.trim(min);
        let gone = read(&held, placed[0].0, 8_000, limit).await.unwrap_err();
        assert!(matches!(gone, StoreError::OutOfRange(_)), "{gone}");
        assert!(matches!(held.read_range(PhyOffset(0), 10, limit).await, Err(StoreError::OutOfRange(_))));
        let (at, bytes) = placed.iter().find(|(at, _)| *at >= min).unwrap();
        assert_eq!(read(&held, *at, 8_000, limit).await.unwrap(), *bytes);
    });
}

#[test]
fn ranges_are_cut_at_the_segment_and_the_limit() {
    block_on(async {
        let config = config("/store");
        let disk = SimIo::new(1, Faults::none());
        let (log, placed) = filled(&disk, &config, (0..12).map(|_| 8_000)).await;
        let limit = log.written();
        let reader = LogReader::new(disk.clone(), &config);
        let whole = reader.read_range(PhyOffset(0), usize::MAX, limit).await.unwrap();
        assert_eq!(whole.len() as u64, SEGMENT_BYTES);
        assert_eq!(whole[8_000..16_000], placed[1].1);
        let some = reader.read_range(PhyOffset(8_000), 100, limit).await.unwrap();
        assert_eq!(some, placed[1].1[..100]);
        let rest = reader.read_range(PhyOffset(SEGMENT_BYTES), usize::MAX, limit).await.unwrap();
        assert_eq!(rest.len() as u64, limit.0 - SEGMENT_BYTES);
        assert!(matches!(reader.read_range(limit, 1, limit).await, Err(StoreError::OutOfRange(_))));
    });
}
