//! The timer's files together, and what a start makes of them. Used by shard 0's timers. Source: store-format sheet 10, recovery.
use crate::io::Io;
use crate::timer_check::{self, TimerCheck};
use crate::timer_log::{TimerLog, Unit};
use crate::timer_wheel::{SLOTS_TOTAL, Wheel};
use crate::{StoreError, file_failed};
use std::path::{Path, PathBuf};
use uringmq_proto::types::PhyOffset;

/// A start leaves so many slots of the oldest second of the wheel alone.
const SLOTS_SPARED: i64 = 60;

/// Where the files lie and how they are laid out.
#[derive(Clone, Debug)]
pub struct TimerFiles {
    /// `storePathRootDir`.
    pub root: PathBuf,
    /// `mappedFileSizeTimerLog`.
    pub log_file_bytes: u64,
    /// `timerPrecisionMs`.
    pub precision_ms: i64,
}

pub struct TimerStore<I: Io> {
    pub log: TimerLog<I>,
    pub wheel: Wheel<I>,
    /// The newest unit that was found, with its position.
    pub last: Option<(u64, Unit)>,
    /// All slots before it are done.
    pub read_ms: i64,
    /// Units that the start read: those behind what the saved progress covers.
    pub walked: u64,
}

/// A time down to a multiple of the precision.
pub fn floor_ms(ms: i64, precision_ms: i64) -> i64 {
    ms - ms.rem_euclid(precision_ms)
}

/// Opens the files and brings them into agreement: the wheel with the timer log, both with the commit log, which ends at `log_end`.
pub async fn open<I: Io>(
    io: I,
    files: &TimerFiles,
    check: &TimerCheck,
    log_end: PhyOffset,
) -> Result<TimerStore<I>, StoreError> {
    let now_ms = floor_ms(io.now_ms(), files.precision_ms);
    let oldest_ms = now_ms - (SLOTS_TOTAL - SLOTS_SPARED) * files.precision_ms;
    // A time that is still to come was noted under another clock: what hangs before it would never be looked at. A clean stop notes the
    // end of its own slot.
    let read_ms = floor_ms(check.read_ms, files.precision_ms).clamp(oldest_ms, now_ms + files.precision_ms);
    let log = TimerLog::open(io.clone(), files.root.join("timerlog"), files.log_file_bytes).await?;
    let wheel = Wheel::open(io, files.root.join("timerwheel"), files.precision_ms, read_ms).await?;
    let flushed = u64::try_from(check.log_at).unwrap_or(0);
    // Its record was lost with the end of the log, and another may stand there soon.
    let lost = |unit: &Unit| unit.phy.0.saturating_add(unit.bytes.into()) > log_end.0;
    // What was enqueued before the progress was saved hangs on the saved wheel, and later units are of later records: where the last of them
    // has its record, all have.
    let covered = match wheel.is_missing() {
        true => None,
        false => log.found_before(flushed).await?.filter(|(_, unit)| !lost(unit)),
    };
    let (mut last, mut walked) = (covered, 0);
    let mut keep = |at: u64, unit: &Unit| {
        walked += 1;
        if lost(unit) {
            return false;
        }
        last = Some((at, *unit));
        hang(&wheel, at, unit, read_ms);
        true
    };
    match (covered, wheel.is_missing()) {
        (Some(_), _) => log.recover_from(flushed, &mut keep).await?,
        (None, true) => log.recover(log.first(), &mut keep).await?,
        (None, false) => log.recover(flushed.saturating_sub(log.file_bytes()), &mut keep).await?,
    }
    if let Some(first) = wheel.drop_beyond(log.end()) {
        log.recover(first, &mut keep).await?;
    }
    Ok(TimerStore { log, wheel, last, read_ms, walked })
}

/// The commit log was cut at `log_end`, and the queue of the timer topic at `queue_end`: takes off what was enqueued of the messages behind,
/// durably, so that it leads to none that come to stand there. The wheel is made anew from the timer log. Nothing where no timers ran.
pub async fn cut<I: Io>(
    io: &I,
    files: &TimerFiles,
    check_path: &Path,
    log_end: PhyOffset,
    queue_end: u64,
) -> Result<(), StoreError> {
    let wheel = files.root.join("timerwheel");
    match io.remove(&wheel).await {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        removed => removed.map_err(|e| file_failed("remove", &wheel, e))?,
    }
    let Some(check) = timer_check::read(io, check_path).await? else { return Ok(()) };
    let whole = TimerCheck { log_at: 0, ..check };
    let store = open(io.clone(), files, &whole, log_end).await?;
    store.log.sync().await?;
    store.wheel.flush().await?;
    let queue_end = i64::try_from(queue_end).unwrap_or(i64::MAX);
    let next = TimerCheck {
        log_at: store.log.end() as i64,
        queue_offset: check.queue_offset.min(queue_end),
        master_queue_offset: check.master_queue_offset.min(queue_end),
        ..check
    };
    timer_check::write(io, check_path, &next).await
}

fn hang<I: Io>(wheel: &Wheel<I>, at: u64, unit: &Unit, read_ms: i64) {
    if unit.slot_ms() >= read_ms {
        wheel.add(unit.slot_ms(), at, if unit.deletes() { -1 } else { 1 });
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::io::sim::{Faults, SimIo, block_on};
    use crate::timer_log::{PLAIN, Window};

    const NOW: i64 = 1_800_000_000_500;
    const EVERYTHING: PhyOffset = PhyOffset(u64::MAX);

    fn files() -> TimerFiles {
        TimerFiles { root: "/s".into(), log_file_bytes: 20 * 52 + 16, precision_ms: 1000 }
    }
    fn disk(seed: u64) -> SimIo {
        let io = SimIo::new(seed, Faults::none());
        io.plant_dir(Path::new("/s"));
        io.set_now_ms(NOW);
        io
    }
    fn start(io: &SimIo, check: TimerCheck, log_end: PhyOffset) -> TimerStore<SimIo> {
        block_on(open(io.clone(), &files(), &check, log_end)).unwrap()
    }
    /// Hangs message `n` on the slot `in_s` seconds ahead.
    fn add(store: &TimerStore<SimIo>, n: u64, in_s: i64) {
        let write_ms = floor_ms(NOW, 1000);
        let prev = store.wheel.get(write_ms + in_s * 1000).map(|slot| slot.last);
        let delay_ms = in_s as i32 * 1000;
        let unit = Unit { prev, magic: PLAIN, write_ms, delay_ms, phy: PhyOffset(n * 100), bytes: 100, topic_hash: 0 };
        let at = store.log.append(&unit);
        block_on(store.log.write()).unwrap();
        store.wheel.add(unit.slot_ms(), at, 1);
    }
    /// All that hangs on a store, newest first in each slot.
    fn hanging(store: &TimerStore<SimIo>) -> Vec<(i64, Vec<u64>)> {
        let (mut all, mut from) = (Vec::new(), 0);
        while let Some((time, slot)) = store.wheel.next_from(from) {
            let mut chain = Vec::new();
            let mut at = Some(slot.last);
            let mut window = Window::default();
            while let Some(place) = at {
                let unit = block_on(store.log.unit(place, &mut window)).unwrap().expect("a whole chain");
                assert_eq!(unit.slot_ms(), time);
                chain.push(unit.phy.0 / 100);
                at = unit.prev;
            }
            assert_eq!(slot.num as usize, chain.len());
            all.push(((time - floor_ms(NOW, 1000)) / 1000, chain));
            from = time + 1000;
        }
        all
    }

    #[test]
    fn what_was_written_and_not_flushed_is_found_by_the_log() {
        let io = disk(1);
        let store = start(&io, TimerCheck::default(), EVERYTHING);
        assert_eq!((store.last, store.wheel.is_empty()), (None, true));
        for n in 0..100 {
            add(&store, n, n as i64 % 7);
            if n == 40 {
                block_on(store.wheel.flush()).unwrap();
            }
        }
        let want = hanging(&store);
        assert_eq!(want.iter().map(|(_, chain)| chain.len()).sum::<usize>(), 100);
        let later = io.after_kill();
        let again = start(&later, TimerCheck::default(), EVERYTHING);
        assert_eq!(hanging(&again), want);
        assert_eq!(again.last.map(|(_, unit)| unit.phy.0), Some(9900));
        // The flushed wheel and what the log has behind the file before `log_at` suffice.
        let check = TimerCheck { log_at: again.log.end() as i64, ..TimerCheck::default() };
        block_on(again.wheel.flush()).unwrap();
        assert_eq!(hanging(&start(&later.after_kill(), check, EVERYTHING)), want);
    }

    #[test]
    fn what_the_log_lost_is_taken_off_the_wheel() {
        let io = disk(2);
        let store = start(&io, TimerCheck::default(), EVERYTHING);
        (0..30).for_each(|n| add(&store, n, n as i64 % 3));
        block_on(store.wheel.flush()).unwrap();
        // The commit log ends in the middle of message 24.
        let again = start(&io.after_kill(), TimerCheck::default(), PhyOffset(2450));
        let all: Vec<u64> = hanging(&again).into_iter().flat_map(|(_, chain)| chain).collect();
        assert_eq!((all.len(), all.iter().max()), (24, Some(&23)));
        add(&again, 24, 1);
        assert_eq!(hanging(&start(&io.after_kill(), TimerCheck::default(), EVERYTHING)).len(), 3);
    }

    /// However much waits, a start reads what is behind the saved progress, and all that waits is there.
    #[test]
    fn a_start_reads_only_what_the_saved_progress_does_not_cover() {
        let io = disk(4);
        let store = start(&io, TimerCheck::default(), EVERYTHING);
        (0..500).for_each(|n| add(&store, n, n as i64 % 11));
        block_on(store.log.sync()).unwrap();
        block_on(store.wheel.flush()).unwrap();
        let check = TimerCheck { log_at: store.log.end() as i64, ..TimerCheck::default() };
        let again = start(&io.after_kill(), check, EVERYTHING);
        assert_eq!((again.walked, hanging(&again), again.log.end()), (0, hanging(&store), store.log.end()));
        assert_eq!(again.last.map(|(_, unit)| unit.phy.0), Some(49_900));
        (500..507).for_each(|n| add(&store, n, n as i64 % 11));
        let again = start(&io.after_kill(), check, EVERYTHING);
        assert_eq!((again.walked, hanging(&again)), (7, hanging(&store)));
        assert_eq!(again.last.map(|(_, unit)| unit.phy.0), Some(50_600));
        // The commit log lost the records of covered units, too: then they are looked through.
        let cut = start(&io.after_kill(), check, PhyOffset(49_850));
        assert_eq!(cut.last.map(|(_, unit)| unit.phy.0), Some(49_700));
        assert!(hanging(&cut).iter().all(|(_, chain)| chain.iter().all(|n| *n <= 497)));
        // Without the wheel all of the log is walked.
        let bare = io.after_kill();
        block_on(bare.remove(Path::new("/s/timerwheel"))).unwrap();
        let again = start(&bare, check, EVERYTHING);
        assert_eq!((again.walked, hanging(&again)), (507, hanging(&store)));
        // A place that is none is not trusted.
        let odd = TimerCheck { log_at: check.log_at - 7, ..check };
        assert_eq!(hanging(&start(&io.after_kill(), odd, EVERYTHING)), hanging(&store));
    }

    #[test]
    fn what_was_read_is_not_read_again() {
        let io = disk(3);
        let store = start(&io, TimerCheck::default(), EVERYTHING);
        (0..10).for_each(|n| add(&store, n, n as i64));
        block_on(store.wheel.flush()).unwrap();
        let read = |read_ms| TimerCheck { read_ms, ..TimerCheck::default() };
        let later = io.after_kill();
        later.set_now_ms(NOW + 5000);
        let left = hanging(&start(&later, read(floor_ms(NOW, 1000) + 4000), EVERYTHING));
        assert_eq!(left.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [4, 5, 6, 7, 8, 9]);
        for (noted, want) in [(0, NOW - 604_740_500), (NOW + 1_000_000, NOW + 500), (i64::MAX, NOW + 500)] {
            assert_eq!(start(&io.after_kill(), read(noted), EVERYTHING).read_ms, want, "{noted}");
        }
    }

    /// A power cut at each operation: what was synced is there, and every chain is whole.
    #[test]
    fn a_crash_anywhere_leaves_whole_chains() {
        let work = |io: &SimIo| -> Result<u64, StoreError> {
            let store = block_on(open(io.clone(), &files(), &TimerCheck::default(), EVERYTHING))?;
            let mut synced = 0;
            for n in 0..50u64 {
                let slot_ms = floor_ms(NOW, 1000) + (n as i64 % 4) * 1000;
                let prev = store.wheel.get(slot_ms).map(|slot| slot.last);
                let write_ms = floor_ms(NOW, 1000);
                let delay_ms = (slot_ms - write_ms) as i32;
                let (phy, bytes) = (PhyOffset(n * 100), 100);
                let at = store.log.append(&Unit { prev, magic: PLAIN, write_ms, delay_ms, phy, bytes, topic_hash: 0 });
                let written = block_on(store.log.write());
                store.wheel.add(slot_ms, at, 1);
                written.and_then(|()| if n % 9 == 8 { block_on(store.log.sync()) } else { Ok(()) })?;
                if n % 9 == 8 {
                    block_on(store.wheel.flush())?;
                    synced = n + 1;
                }
            }
            Ok(synced)
        };
        for seed in 0..6 {
            let calm = disk(seed);
            work(&calm).unwrap();
            for crash_at in 0..calm.operations() {
                let io = disk(seed);
                io.set_faults(Faults::crash_at(crash_at));
                assert!(work(&io).is_err());
                let after = io.after_crash();
                let found = start(&after, TimerCheck::default(), EVERYTHING);
                let all: usize = hanging(&found).iter().map(|(_, chain)| chain.len()).sum();
                assert_eq!(all as u64, found.last.map_or(0, |(_, unit)| unit.phy.0 / 100 + 1), "{seed} {crash_at}");
            }
        }
    }

    #[test]
    fn a_cut_takes_off_what_hangs_of_the_messages_behind_it() {
        let io = disk(9);
        let path = Path::new("/s/timercheck");
        block_on(cut(&io, &files(), path, PhyOffset(0), 0)).unwrap(); // where no timers ran
        let store = start(&io, TimerCheck::default(), EVERYTHING);
        (0..60).for_each(|n| add(&store, n, 5 + n as i64 % 7));
        let (want, kept_to) = (hanging(&store), store.log.end() as i64);
        (60..90).for_each(|n| add(&store, n, 5 + n as i64 % 9));
        block_on(store.wheel.flush()).unwrap();
        let (queue_offset, log_at) = (90, store.log.end() as i64);
        let check = TimerCheck { log_at, queue_offset, master_queue_offset: queue_offset, ..TimerCheck::default() };
        block_on(timer_check::write(&io, path, &check)).unwrap();
        for _ in 0..2 {
            block_on(cut(&io, &files(), path, PhyOffset(6000), 60)).unwrap();
        }
        let check = block_on(timer_check::read(&io, path)).unwrap().unwrap();
        assert_eq!((check.queue_offset, check.master_queue_offset, check.log_at), (60, 60, kept_to));
        // Others come to stand where the cut ones stood.
        let store = start(&io.after_crash(), check, EVERYTHING);
        assert_eq!(hanging(&store), want);
        assert_eq!(store.last.map(|(_, unit)| unit.phy.0), Some(5900));
    }
}
