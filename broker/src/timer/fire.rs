//! Delivers what is due: stores each message again under its real topic, or in the timer topic when it rolls.
use super::near::Waiting;
use super::{count, follow, note_failure, note_skip, sleep, sleep_or, sweep};
use crate::delay::{destination, run_all};
use crate::handlers::offset::stopping;
use crate::shard::Shard;
use crate::shard::appends::{Gathered, NewMessage};
use crate::snapshot::Topic;
use std::rc::Rc;
use std::sync::Arc;
use uringmq_proto::message::{self, prop};
use uringmq_proto::names;
use uringmq_proto::record::{self, Found, Record};
use uringmq_proto::types::PhyOffset;
use uringmq_store::StoreError;

/// Copies under way at a time; the bytes are counted without the first one.
const BATCH: usize = 128;
const BATCH_BYTES: usize = 1 << 20;
/// The next due time is compared with the clock this often, should the clock be set.
const CLOCK_CHECK_MS: i64 = 100;
/// Tries of a read that fails for another reason than damage.
const READ_TRIES: u32 = 20;
const TOO_LARGE: &str = "it is larger than this broker stores";

pub async fn run(shard: Rc<Shard>) {
    while !shard.doors.is_closed() {
        if shard.config.borrow().timer_stop_dequeue {
            sleep(&shard, CLOCK_CHECK_MS).await;
            continue;
        }
        let now_ms = shard.now_ms();
        let due = shard.timer.near.borrow_mut().take_due(now_ms, BATCH, BATCH_BYTES);
        if due.is_empty() {
            let next_ms = shard.timer.near.borrow().next_due();
            let wait_ms = next_ms.map_or(CLOCK_CHECK_MS, |due_ms| due_ms.saturating_sub(now_ms));
            sleep_or(&shard, wait_ms.clamp(1, CLOCK_CHECK_MS), &shard.timer.due).await;
            continue;
        }
        deliver(&shard, due).await;
        sweep(&shard, true);
    }
}

/// Delivers all of them, whatever it takes; ends early only when the doors close.
async fn deliver(shard: &Shard, mut open: Vec<(PhyOffset, Waiting)>) {
    let mut tries = 0;
    while !open.is_empty() {
        let failed = deliver_open(shard, &mut open, tries).await;
        let Some(e) = failed else { return };
        if shard.doors.is_closed() {
            return;
        }
        tries += 1;
        note_failure(shard, &e, "due timer messages could not be stored");
        sleep(shard, super::RETRY_MS).await;
    }
}

/// One try of what is open, in order: reads what is not in memory, hands the copies to the writer, waits for its word. What is done is
/// taken off. The first error, if any.
async fn deliver_open(shard: &Shard, open: &mut Vec<(PhyOffset, Waiting)>, tries: u32) -> Option<StoreError> {
    let reads = run_all(open.iter_mut().map(|(phy, waiting)| record_of(shard, *phy, waiting)).collect()).await;
    let (mut failed, mut gathered, mut left) = (None, Vec::with_capacity(open.len()), Vec::new());
    for ((phy, waiting), read) in std::mem::take(open).into_iter().zip(reads) {
        let bytes = match read {
            Ok(Some(bytes)) => bytes,
            Err(e) if tries < READ_TRIES => {
                failed = failed.or(Some(e));
                left.push((phy, waiting));
                continue;
            }
            Ok(None) | Err(_) => {
                skip(shard, phy, &waiting, None, "its record is gone or damaged");
                continue;
            }
        };
        match gather(shard, phy, &bytes, &waiting) {
            Ok(Some(copy)) => gathered.push((phy, waiting, bytes, copy)),
            Ok(None) => {}
            Err(e) => {
                failed = failed.or(Some(e));
                left.push((phy, Waiting { record: Some(bytes), ..waiting }));
            }
        }
    }
    shard.push_appends();
    for (phy, waiting, bytes, copy) in gathered {
        match copy.stored().await {
            Ok(receipt) => {
                let timers = &shard.timer;
                timers.copied_to.set(timers.copied_to.get().max(receipt.phy.0 + 1));
                count(if waiting.rolls { &timers.rolled } else { &timers.delivered });
                timers.near.borrow_mut().done(waiting.slot_ms, counted(&bytes));
            }
            // The limit was lowered since it was sent: no later try would fare better.
            Err(StoreError::TooLarge { .. }) => skip(shard, phy, &waiting, counted(&bytes), TOO_LARGE),
            Err(e) => {
                failed = failed.or(Some(e));
                left.push((phy, Waiting { record: Some(bytes), ..waiting }));
            }
        }
    }
    *open = left;
    failed
}

async fn record_of(shard: &Shard, phy: PhyOffset, waiting: &mut Waiting) -> Result<Option<Box<[u8]>>, StoreError> {
    match waiting.record.take() {
        Some(bytes) => Ok(Some(bytes)),
        None => Ok(shard.stored_record(phy, waiting.bytes).await?.map(Into::into)),
    }
}

fn skip(shard: &Shard, phy: PhyOffset, waiting: &Waiting, topic: Option<&str>, why: &'static str) {
    note_skip(shard, phy, why);
    shard.timer.near.borrow_mut().done(waiting.slot_ms, topic);
}

/// The topic under which a record was counted as waiting; a deletion that rolls was not.
fn counted(bytes: &[u8]) -> Option<&str> {
    let Ok(Found::Record(record)) = record::parse(bytes, false) else { return None };
    let property = |name| message::property(record.properties, name);
    property(prop::REAL_TOPIC).filter(|_| property(prop::TIMER_DEL_UNIQKEY).is_none())
}

/// Leaves the copy of a due message for the writer. `None`: it was taken back, or can never be delivered, and is done.
///
/// # Errors
/// When another try may fare better.
fn gather(shard: &Shard, phy: PhyOffset, bytes: &[u8], waiting: &Waiting) -> Result<Option<Gathered>, StoreError> {
    let give_up = |why| {
        skip(shard, phy, waiting, counted(bytes), why);
        Ok(None)
    };
    let Ok(Found::Record(record)) = record::parse(bytes, false) else { return give_up("it leads to no record") };
    // A record that stands where another one stood must not be delivered for it.
    if let Err(why) = follow::times_of(&record, shard.timer.store().wheel.precision_ms()) {
        return give_up(why);
    }
    let gathered = if waiting.rolls {
        roll(shard, &record)
    } else {
        let property = |name| message::property(record.properties, name).unwrap_or_default();
        let (topic, uniq_key) = (property(prop::REAL_TOPIC), property(prop::UNIQ_KEY));
        let taken_back = shard.timer.near.borrow().is_deleted(waiting.slot_ms, topic, uniq_key);
        if taken_back {
            count(&shard.timer.cancelled);
            shard.timer.near.borrow_mut().done(waiting.slot_ms, Some(topic));
            return Ok(None);
        }
        match destination(&record, names::WHEEL_TIMER_TOPIC, |name| shard.topic(name)) {
            Ok((topic, queue)) => copy(shard, &record, waiting, &topic, queue),
            Err(why) => return give_up(why),
        }
    };
    match gathered {
        Err(StoreError::TooLarge { .. }) => give_up(TOO_LARGE),
        other => other.map(Some),
    }
}

fn copy(
    shard: &Shard,
    record: &Record<'_>,
    waiting: &Waiting,
    topic: &Arc<Topic>,
    queue: u32,
) -> Result<Gathered, StoreError> {
    let text = delivered_text(record.properties, waiting.write_ms, shard.now_ms());
    match shard.gather(&NewMessage::copy_of(record, topic, queue, &text)) {
        // It had no room for the two stamps.
        Err(StoreError::TooLarge { .. }) => {
            let text = message::without(record.properties, &[prop::CRC32]);
            shard.gather(&NewMessage::copy_of(record, topic, queue, &text))
        }
        gathered => gathered,
    }
}

/// The properties of a delivered message: all that it had, and when it was enqueued and delivered.
fn delivered_text(properties: &str, enqueued_ms: i64, now_ms: i64) -> String {
    let mut text = message::without(properties, &[prop::CRC32, prop::TIMER_ENQUEUE_MS, prop::TIMER_DEQUEUE_MS]);
    message::push_property(&mut text, prop::TIMER_ENQUEUE_MS, &enqueued_ms.to_string());
    message::push_property(&mut text, prop::TIMER_DEQUEUE_MS, &now_ms.to_string());
    text
}

fn roll(shard: &Shard, record: &Record<'_>) -> Result<Gathered, StoreError> {
    let topic = shard.topic(names::WHEEL_TIMER_TOPIC).ok_or_else(stopping)?;
    let text = rolled_text(record, shard.timer.store().wheel.precision_ms());
    shard.gather(&NewMessage::copy_of(record, &topic, 0, &text))
}

/// The properties of a message that is enqueued anew; its very time in TIMER_DELIVER_MS, since the copy's store time tells it no more.
fn rolled_text(record: &Record<'_>, precision_ms: i64) -> String {
    let property = |name| message::property(record.properties, name);
    let rolls: u64 = property(prop::TIMER_ROLL_TIMES).and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut dropped = vec![prop::CRC32, prop::TIMER_ROLL_TIMES];
    let times = follow::times_of(record, precision_ms).ok();
    if times.is_some() {
        dropped.push(prop::TIMER_DELIVER_MS);
    }
    let mut text = message::without(record.properties, &dropped);
    message::push_property(&mut text, prop::TIMER_ROLL_TIMES, &(rolls + 1).to_string());
    if let Some(times) = times {
        message::push_property(&mut text, prop::TIMER_DELIVER_MS, &times.due_ms.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crate::timer::put::Wish;

    #[test]
    fn a_delivered_message_keeps_what_it_had() {
        let before = "TAGS\u{1}a\u{2}TIMER_DELAY_SEC\u{1}5\u{2}TIMER_ENQUEUE_MS\u{1}7\u{2}REAL_TOPIC\u{1}T\u{2}";
        let after = "TAGS\u{1}a\u{2}TIMER_DELAY_SEC\u{1}5\u{2}REAL_TOPIC\u{1}T\u{2}TIMER_ENQUEUE_MS\u{1}1000\u{2}\
                     TIMER_DEQUEUE_MS\u{1}6001\u{2}";
        assert_eq!(delivered_text(before, 1000, 6001), after);
    }

    #[test]
    fn a_rolled_message_says_its_very_time() {
        let rolled = |properties: &str| {
            let mut bytes = testing::record(names::WHEEL_TIMER_TOPIC, properties);
            record::patch(&mut bytes, 0, 0, 4250);
            let Ok(Found::Record(record)) = record::parse(&bytes, false) else { panic!("just encoded") };
            rolled_text(&record, 1000)
        };
        let before = "TIMER_DELAY_SEC\u{1}5\u{2}TIMER_OUT_MS\u{1}9000\u{2}";
        let once = rolled(before);
        assert_eq!(once, format!("{before}TIMER_ROLL_TIMES\u{1}1\u{2}TIMER_DELIVER_MS\u{1}9250\u{2}"));
        let twice = rolled(&once);
        assert!(twice.contains("TIMER_ROLL_TIMES\u{1}2\u{2}TIMER_DELIVER_MS\u{1}9250\u{2}"), "{twice}");
        assert_eq!(Wish::of(&twice).due_ms(9000, 8000, true, 1000), 9250);
    }
}
