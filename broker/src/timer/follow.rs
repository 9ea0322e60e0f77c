//! Enqueues: follows the timer topic's queue and hangs each message on the slot of its time, in the timer log and on the wheel.
use super::load;
use super::near::Waiting;
use super::put::Wish;
use super::{count, fetch, note_failure, note_skip, sleep, sleep_or};
use crate::delay::run_all;
use crate::handlers::offset::stopping;
use crate::shard::Shard;
use std::collections::HashMap;
use std::rc::Rc;
use tracing::warn;
use uringmq_proto::message::{self, prop};
use uringmq_proto::names;
use uringmq_proto::record::{self, Found, Record};
use uringmq_store::StoreError;
use uringmq_store::consume_queue::Entry;
use uringmq_store::timer::floor_ms;
use uringmq_store::timer_log::{DELETE, PLAIN, ROLL, Unit};

/// Records read at a time.
const READS: usize = 64;
/// A master's timers are taken to be at most so far behind its sends.
const LATE_MS: i64 = 10_000;
/// How often the queue is looked at without a ring.
const IDLE_MS: i64 = 500;

pub async fn run(shard: Rc<Shard>) {
    while !shard.doors.is_closed() {
        if shard.config.borrow().timer_stop_enqueue {
            sleep(&shard, IDLE_MS).await;
            continue;
        }
        match step(&shard).await {
            Ok(true) => {}
            Ok(false) => sleep_or(&shard, IDLE_MS, &shard.timer.arrived).await,
            Err(_) if shard.doors.is_closed() => return,
            Err(e) => {
                note_failure(&shard, &e, "timer messages could not be enqueued");
                sleep(&shard, super::RETRY_MS).await;
            }
        }
    }
}

/// Enqueues what the queue has next; false when it has nothing.
async fn step(shard: &Rc<Shard>) -> Result<bool, StoreError> {
    let timers = &shard.timer;
    let from = timers.queue_offset.get();
    let fetched = fetch(shard, from).await?;
    let corrected = from.clamp(fetched.min, fetched.max);
    if corrected != from {
        warn!(from, corrected, "the timers' place in their queue was corrected");
        timers.queue_offset.set(corrected);
        return Ok(true);
    }
    for entries in fetched.entries.chunks(READS) {
        let reads = run_all(entries.iter().map(|entry| read(shard, *entry)).collect()).await;
        let mut batch = Batch::new(shard);
        for (entry, bytes) in entries.iter().zip(reads) {
            match bytes? {
                Some(bytes) => batch.take(entry, &bytes),
                None => note_skip(shard, entry.phy, "its record is gone or damaged"),
            }
        }
        batch.write().await?;
        timers.queue_offset.set(timers.queue_offset.get() + entries.len() as u64);
        if shard.doors.is_closed() {
            return Err(stopping());
        }
    }
    Ok(!fetched.entries.is_empty())
}

async fn read(shard: &Shard, entry: Entry) -> Result<Option<Vec<u8>>, StoreError> {
    if entry.is_hole() {
        return Ok(None);
    }
    shard.stored_record(entry.phy, entry.bytes).await
}

/// A waiting record's own times.
pub struct Times {
    pub out_ms: i64,
    pub due_ms: i64,
}

/// When a waiting record is due, or why that cannot be told.
pub fn times_of(record: &Record<'_>, precision_ms: i64) -> Result<Times, &'static str> {
    if record.topic != names::WHEEL_TIMER_TOPIC {
        return Err("its record is of another topic");
    }
    let out_ms = message::property(record.properties, prop::TIMER_OUT_MS).and_then(|text| text.parse().ok());
    // A batch with timer properties, in a store of Apache's broker, has none.
    let out_ms: i64 = out_ms.ok_or("it has no TIMER_OUT_MS")?;
    let rolled = message::property(record.properties, prop::TIMER_ROLL_TIMES).is_some();
    let due_ms = Wish::of(record.properties).due_ms(out_ms, record.store_timestamp_ms, rolled, precision_ms);
    Ok(Times { out_ms, due_ms })
}

/// The slot for a message of the slot `out_ms`: that one, unless it was read already or lies behind the window; whether it rolls.
fn slot_for(out_ms: i64, write_ms: i64, read_ms: i64, window_ms: i64) -> (i64, bool) {
    let ahead_ms = out_ms.saturating_sub(write_ms);
    if ahead_ms < window_ms {
        return (out_ms.max(read_ms), false);
    }
    // Not so that it hangs just behind the window a second time.
    let step_ms = if ahead_ms - window_ms < window_ms / 3 { window_ms / 2 } else { window_ms };
    (write_ms + step_ms, true)
}

/// On which slot a master hung a message that it stored then, or a later one: what was due about when it was stored may have come late.
fn slot_then(out_ms: i64, stored_ms: i64, window_ms: i64) -> i64 {
    slot_for(out_ms, stored_ms, stored_ms.saturating_add(LATE_MS), window_ms).0
}

/// Some messages on their way to the wheel.
struct Batch<'s> {
    shard: &'s Shard,
    write_ms: i64,
    /// The newest unit of each slot that the batch touches.
    ends: HashMap<i64, u64>,
    hung: Vec<Hung>,
}

struct Hung {
    at: u64,
    unit: Unit,
    slot_ms: i64,
    due_ms: i64,
    topic: String,
    delete_key: Option<String>,
    record: Box<[u8]>,
}

impl<'s> Batch<'s> {
    fn new(shard: &'s Shard) -> Self {
        let write_ms = floor_ms(shard.now_ms(), shard.timer.store().wheel.precision_ms());
        Batch { shard, write_ms, ends: HashMap::new(), hung: Vec::new() }
    }

    fn take(&mut self, entry: &Entry, bytes: &[u8]) {
        let timers = &self.shard.timer;
        if timers.known.borrow_mut().remove(&entry.phy) {
            return; // it hangs already
        }
        let store = timers.store();
        let precision_ms = store.wheel.precision_ms();
        let Ok(Found::Record(record)) = record::parse(bytes, false) else {
            return note_skip(self.shard, entry.phy, "it leads to no record");
        };
        let times = match times_of(&record, precision_ms) {
            Ok(times) => times,
            Err(why) => return note_skip(self.shard, entry.phy, why),
        };
        let window_ms = self.shard.config.borrow().timer_roll_window_slots.saturating_mul(precision_ms);
        let out_ms = floor_ms(times.out_ms, precision_ms);
        let (enqueued_to, done_ms) = timers.inherited.get();
        let stored_ms = floor_ms(record.store_timestamp_ms, precision_ms);
        if record.queue_offset < enqueued_to && slot_then(out_ms, stored_ms, window_ms) < done_ms {
            return; // delivered by the master whose slave this was
        }
        // Where the clock was set back and no sweep came since, slots before the read time are to be read again.
        let passed_ms = floor_ms(self.shard.now_ms(), precision_ms).saturating_add(precision_ms);
        let read_ms = timers.read_ms.get().min(passed_ms);
        let (slot_ms, rolls) = slot_for(out_ms, self.write_ms, read_ms, window_ms);
        let Ok(delay_ms) = i32::try_from(slot_ms - self.write_ms) else {
            return note_skip(self.shard, entry.phy, "its time is too far away");
        };
        let property = |name| message::property(record.properties, name);
        let (topic, delete_key) = (property(prop::REAL_TOPIC).unwrap_or_default(), property(prop::TIMER_DEL_UNIQKEY));
        let mut magic = PLAIN;
        magic |= if rolls { ROLL } else { 0 } | if delete_key.is_some() { DELETE } else { 0 };
        let prev = self.ends.get(&slot_ms).copied().or_else(|| store.wheel.get(slot_ms).map(|slot| slot.last));
        let unit = Unit {
            prev,
            magic,
            write_ms: self.write_ms,
            delay_ms,
            phy: entry.phy,
            bytes: entry.bytes,
            topic_hash: message::java_hash(topic, 0),
        };
        let first = timers.writing_from_ms.get().map_or(slot_ms, |from| from.min(slot_ms));
        timers.writing_from_ms.set(Some(first));
        let at = store.log.append(&unit);
        self.ends.insert(slot_ms, at);
        let due_ms = if rolls { slot_ms } else { times.due_ms };
        let (topic, delete_key) = (topic.to_owned(), delete_key.map(str::to_owned));
        self.hung.push(Hung { at, unit, slot_ms, due_ms, topic, delete_key, record: bytes.into() });
    }

    /// Writes the units, then hangs them on the wheel.
    async fn write(self) -> Result<(), StoreError> {
        let timers = &self.shard.timer;
        let written = self.write_units().await;
        for hung in self.hung {
            hang(self.shard, hung);
        }
        timers.writing_from_ms.set(None);
        written
    }

    /// Until they are written: the queue's place does not move before.
    async fn write_units(&self) -> Result<(), StoreError> {
        while let Err(e) = self.shard.timer.store().log.write().await {
            note_failure(self.shard, &e, "the timer log could not be written");
            sleep(self.shard, super::RETRY_MS).await;
            if self.shard.doors.is_closed() {
                return Err(e);
            }
        }
        Ok(())
    }
}

fn hang(shard: &Shard, hung: Hung) {
    let timers = &shard.timer;
    let wheel = &timers.store().wheel;
    let unit = hung.unit;
    let fresh = wheel.get(hung.slot_ms).is_none();
    wheel.add(hung.slot_ms, hung.at, if unit.deletes() { -1 } else { 1 });
    count(&timers.enqueued);
    if !unit.deletes() {
        timers.counts.add(&hung.topic, 1, shard.now_ms());
    }
    let mut near = timers.near.borrow_mut();
    if !near.has(hung.slot_ms) {
        let ahead_ms = hung.slot_ms - shard.now_ms();
        if !fresh || ahead_ms > load::LEAD_MS {
            // The loader finds it, now or later.
            if ahead_ms <= load::LEAD_MS_MAX {
                timers.slot.set();
            }
            return;
        }
        near.begin(hung.slot_ms, false);
    }
    if let (Some(key), false) = (&hung.delete_key, unit.rolls()) {
        return near.delete(hung.slot_ms, key);
    }
    let earlier = near.next_due().is_none_or(|due_ms| hung.due_ms < due_ms);
    let waiting = Waiting {
        slot_ms: hung.slot_ms,
        bytes: unit.bytes,
        write_ms: unit.write_ms,
        rolls: unit.rolls(),
        record: Some(hung.record),
    };
    near.add(hung.due_ms, unit.phy, waiting);
    if earlier {
        timers.due.set();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn times(topic: &str, pairs: &[(&str, &str)]) -> Result<(i64, i64), &'static str> {
        let mut text = String::new();
        pairs.iter().for_each(|(name, value)| message::push_property(&mut text, name, value));
        let mut bytes = testing::record(topic, &text);
        record::patch(&mut bytes, 0, 0, 4250);
        let Ok(Found::Record(record)) = record::parse(&bytes, false) else { panic!("just encoded") };
        times_of(&record, 1000).map(|times| (times.out_ms, times.due_ms))
    }

    #[test]
    fn what_cannot_be_timed_is_told_from_what_can() {
        let timer = names::WHEEL_TIMER_TOPIC;
        assert_eq!(times(timer, &[("TIMER_OUT_MS", "9000"), ("TIMER_DELAY_SEC", "5")]), Ok((9000, 9250)));
        assert_eq!(times(timer, &[("TIMER_OUT_MS", "9000"), ("TIMER_DELIVER_MS", "9001")]), Ok((9000, 9001)));
        assert_eq!(times(timer, &[("TIMER_OUT_MS", "9000")]), Ok((9000, 10_000)));
        assert!(times(timer, &[("TIMER_DELAY_SEC", "5")]).is_err());
        assert!(times(timer, &[("TIMER_OUT_MS", "soon")]).is_err());
        assert!(times("T", &[("TIMER_OUT_MS", "9000")]).is_err());
    }

    #[test]
    fn where_a_master_hung_a_message_is_told_from_when_it_stored_it() {
        let window = 172_800_000;
        assert_eq!(slot_then(90_000, 50_000, window), 90_000);
        assert_eq!(slot_then(52_000, 50_000, window), 50_000 + LATE_MS, "it may have come late");
        assert_eq!(slot_then(50_000 + 2 * window, 50_000, window), 50_000 + window, "it rolled");
    }

    #[test]
    fn a_message_hangs_on_its_slot_or_rolls() {
        let window = 172_800_000;
        assert_eq!(slot_for(9000, 5000, 5000, window), (9000, false));
        assert_eq!(slot_for(4000, 5000, 5000, window), (5000, false), "its slot was read");
        assert_eq!(slot_for(5000 + window - 1000, 5000, 5000, window), (5000 + window - 1000, false));
        assert_eq!(slot_for(5000 + window, 5000, 5000, window), (5000 + window / 2, true));
        assert_eq!(slot_for(5000 + window + window / 3, 5000, 5000, window), (5000 + window, true));
        assert_eq!(slot_for(i64::MAX, 5000, 5000, window), (5000 + window, true));
    }
}
