//! Reads the slots that are near: the chain of each from the timer log, and the records, by which the messages are put in order.
use super::near::Waiting;
use super::{follow, note_failure, note_skip, sleep, sleep_or};
use crate::delay::run_all;
use crate::shard::Shard;
use std::rc::Rc;
use tracing::error;
use uringmq_proto::message::{self, prop};
use uringmq_proto::record::{self, Found};
use uringmq_store::StoreError;
use uringmq_store::timer_log::{Unit, Window};
use uringmq_store::timer_wheel::Slot;

/// A slot is read so long before it begins, and longer the more hangs on it.
pub const LEAD_MS: i64 = 1000;
pub const LEAD_MS_MAX: i64 = 60_000;
/// Messages read per ms of lead, at least.
const PACE: i64 = 10;
/// Records read at a time.
const READS: usize = 64;
/// With so many in memory, a slot that has passed is read no further until some are delivered.
const NEAR_MAX: usize = 65_536;
const IDLE_MS: i64 = 500;
/// Tries of a read that fails for another reason than damage.
const TRIES: u32 = 5;

pub async fn run(shard: Rc<Shard>) {
    while !shard.doors.is_closed() {
        match next(&shard) {
            Some((slot_ms, slot)) => load(&shard, slot_ms, slot).await,
            None => sleep_or(&shard, IDLE_MS, &shard.timer.slot).await,
        }
    }
}

/// The first slot that is to be read now.
fn next(shard: &Shard) -> Option<(i64, Slot)> {
    let (wheel, near) = (&shard.timer.store().wheel, shard.timer.near.borrow());
    let (now_ms, mut from) = (shard.now_ms(), 0);
    loop {
        let (slot_ms, slot) = wheel.next_from(from)?;
        if slot_ms > now_ms + LEAD_MS_MAX {
            return None;
        }
        let lead_ms = LEAD_MS_MAX.min(LEAD_MS + IDLE_MS + i64::from(slot.num.max(0)) / PACE);
        if slot_ms <= now_ms + lead_ms && !near.has(slot_ms) {
            return Some((slot_ms, slot));
        }
        from = slot_ms + wheel.precision_ms();
    }
}

async fn load(shard: &Rc<Shard>, slot_ms: i64, slot: Slot) {
    let timers = &shard.timer;
    timers.near.borrow_mut().begin(slot_ms, true);
    let mut chain = Chain { window: Window::default(), next: Some(slot.last) };
    while !shard.doors.is_closed() {
        let units = chain.take(shard, slot_ms).await;
        if units.is_empty() {
            break;
        }
        let reads = run_all(units.iter().map(|unit| read(shard, unit)).collect()).await;
        for (unit, bytes) in units.iter().zip(reads) {
            match bytes {
                Some(bytes) => add(shard, slot_ms, unit, bytes),
                None => note_skip(shard, unit.phy, "its record is gone or damaged"),
            }
        }
        timers.due.set();
        let passed = slot_ms + timers.store().wheel.precision_ms() <= shard.now_ms();
        while passed && timers.near.borrow().count() > NEAR_MAX && !shard.doors.is_closed() {
            sleep(shard, 10).await;
        }
    }
    timers.near.borrow_mut().loaded(slot_ms);
}

/// Of a unit's record; `None` where no try finds it.
async fn read(shard: &Shard, unit: &Unit) -> Option<Vec<u8>> {
    let mut tries = 0;
    loop {
        tries += 1;
        match shard.stored_record(unit.phy, unit.bytes).await {
            Ok(bytes) => return bytes,
            Err(e) if tries < TRIES => {
                note_failure(shard, &e, "a timer message could not be read");
                sleep(shard, super::RETRY_MS).await;
            }
            Err(_) => return None,
        }
    }
}

fn add(shard: &Shard, slot_ms: i64, unit: &Unit, bytes: Vec<u8>) {
    let timers = &shard.timer;
    let Ok(Found::Record(record)) = record::parse(&bytes, false) else {
        return note_skip(shard, unit.phy, "it leads to no record");
    };
    let times = match follow::times_of(&record, timers.store().wheel.precision_ms()) {
        Ok(times) => times,
        Err(why) => return note_skip(shard, unit.phy, why),
    };
    let mut near = timers.near.borrow_mut();
    if unit.deletes() && !unit.rolls() {
        if let Some(key) = message::property(record.properties, prop::TIMER_DEL_UNIQKEY) {
            near.delete(slot_ms, key);
        }
        return;
    }
    let due_ms = if unit.rolls() { slot_ms } else { times.due_ms };
    let waiting = Waiting {
        slot_ms,
        bytes: unit.bytes,
        write_ms: unit.write_ms,
        rolls: unit.rolls(),
        record: Some(bytes.into()),
    };
    near.add(due_ms, unit.phy, waiting);
}

/// What is left of a slot's chain.
struct Chain<F: uringmq_store::io::File> {
    window: Window<F>,
    next: Option<u64>,
}

impl<F: uringmq_store::io::File> Chain<F>
where
    crate::Io: uringmq_store::io::Io<File = F>,
{
    /// The next units, newest first; none at the end.
    async fn take(&mut self, shard: &Shard, slot_ms: i64) -> Vec<Unit> {
        let log = &shard.timer.store().log;
        let mut units = Vec::with_capacity(READS);
        let mut tries = 0;
        // Where a file is gone, the records of its units are gone too.
        while let Some(at) = self.next.filter(|at| *at >= log.first())
            && units.len() < READS
        {
            let unit: Result<Option<Unit>, StoreError> = log.unit(at, &mut self.window).await;
            match unit {
                // A unit of another slot, or one that leads forward, is none of this chain.
                Ok(Some(unit)) if unit.slot_ms() == slot_ms && unit.prev.is_none_or(|prev| prev < at) => {
                    units.push(unit);
                    self.next = unit.prev;
                }
                Ok(_) => {
                    error!(at, slot_ms, "the timer log has no unit where one of this slot should be");
                    self.next = None;
                }
                Err(e) => {
                    tries += 1;
                    note_failure(shard, &e, "the timer log could not be read");
                    sleep(shard, super::RETRY_MS).await;
                    if tries == TRIES || shard.doors.is_closed() {
                        error!(at, slot_ms, error = %e, "what the rest of this slot's chain leads to is not delivered");
                        self.next = None;
                    }
                }
            }
        }
        units
    }
}
