//! Transactions: half messages wait in the half topic until their producer says commit or rollback; what was ended is noted in the op topic,
//! and producers that say nothing are asked. Runs on shard 0, where the clients are; the halves are ordinary records of an ordinary queue.
//! Source: behaviour sheet 8, store-format sheet 11, wire-protocol sheet 5.9, 8; known faults T01, T03, T04.
//!
//! One pass over the half queue each `transactionCheckInterval`, from where the last one got to: an ended half is passed over, a young one
//! ends the pass, any other is put back at the queue's end with one check more and its producer is asked. So the queue is never blocked by
//! one half, and progress is one number. Where Apache's broker differs:
//! - the copy says in TRAN_PREPARED_QUEUE_OFFSET where its first one was, so that an end by an older offset ends the half, and copies that a
//!   crash left are one half; Apache's ends the named copy only and may commit the other;
//! - a half that is ended a second time is not stored a second time while the service still knows of it;
//! - waiting for an immune half costs it no check (known fault T01).
pub mod halves;

use crate::control;
use crate::delay::{self, Fetched};
use crate::handlers::offset::{bounds, stopping};
use crate::mesh::Event;
use crate::placement::ShardId;
use crate::shard::Shard;
use crate::shard::appends::{NewMessage, Receipt};
use crate::snapshot::Topic;
use futures_lite::future;
use halves::{Claim, Halves, State};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};
use uringmq_proto::codes::request;
use uringmq_proto::command::Value;
use uringmq_proto::message::{self, prop, sys_flag};
use uringmq_proto::names;
use uringmq_proto::record::{self, Found, NewRecord, Record};
use uringmq_proto::types::QueueKey;
use uringmq_store::StoreError;
use uringmq_store::consume_queue::Entry;

/// What the tag of an op message is.
const OP_TAG: &str = "d";
/// Pause before op messages that could not be stored are tried again.
const RETRY: Duration = Duration::from_secs(1);

/// State of the service, on shard 0.
#[derive(Default)]
pub struct HalfMessages {
    halves: RefCell<Halves>,
    /// Enough ended halves for an op message.
    full: Event,
    /// Spreads checks over the producers of a group.
    turn: Cell<usize>,
    checks: Cell<u64>,
    discarded: Cell<u64>,
}

impl HalfMessages {
    /// Claims a half to be ended. One that is [`Claim::Open`] must be ended or given back.
    pub fn claim(&self, offset: u64) -> Claim {
        self.halves.borrow_mut().claim(offset)
    }

    pub fn give_back(&self, offset: u64) {
        self.halves.borrow_mut().give_back(offset);
    }

    /// Ends a claimed half. `op_bytes`: an op message of so much text is written at once.
    pub fn end(&self, offset: u64, op_bytes: usize) {
        let mut halves = self.halves.borrow_mut();
        halves.end(offset);
        // A lower bound of the text: two bytes each.
        if halves.unwritten() * 2 > op_bytes {
            self.full.set();
        }
    }
}

/// Queue 0 of one of the service's topics, and its owner.
fn queue_of(shard: &Shard, topic: &str) -> Result<(Arc<Topic>, ShardId, QueueKey), StoreError> {
    // The boot topics cannot be deleted, so this is a broker that stops.
    let topic = shard.topic(topic).ok_or_else(stopping)?;
    let key = QueueKey { topic: topic.id, queue: 0 };
    Ok((topic, shard.owner(key), key))
}

async fn fetch(shard: &Rc<Shard>, (owner, key): (ShardId, QueueKey), from: u64) -> Result<Fetched, StoreError> {
    shard.run_on(owner, move |owner| delay::fetch(owner, key, from)).await.unwrap_or_else(|| Err(stopping()))
}

/// The half that stands at the start of `bytes`.
pub fn half_in(bytes: &[u8]) -> Option<Record<'_>> {
    match record::parse(bytes, false) {
        Ok(Found::Record(record)) if record.topic == names::TRANS_HALF_TOPIC => Some(record),
        _ => None,
    }
}

/// Learns what was ended and what was put back before this start, then starts the tasks; they end when the shard's doors close. On shard 0
/// of a master, once every shard has its queues and offsets and before any client is served.
pub async fn start(shard: &Rc<Shard>) -> Result<(), StoreError> {
    if shard.config().broker_id != 0 {
        return Ok(());
    }
    let (half, op) = (queue_of(shard, names::TRANS_HALF_TOPIC)?, queue_of(shard, names::TRANS_OP_HALF_TOPIC)?);
    let half_at = stored_progress(shard, (half.1, half.2)).await?;
    let op_at = stored_progress(shard, (op.1, op.2)).await?;
    *shard.half_messages.halves.borrow_mut() = Halves::starting_at(half_at, op_at);
    let ops = each_record(shard, (op.1, op.2), op_at, |halves, at, record| {
        halves.written(at, &named_in(record.body));
    })
    .await?;
    let halves = each_record(shard, (half.1, half.2), half_at, |halves, at, record| {
        if let Some(first) = number_of(record, prop::TRAN_PREPARED_QUEUE_OFFSET) {
            halves.found_copy(first, at);
        }
    })
    .await?;
    if ops + halves > 0 {
        info!(from = half_at, halves, ops, "half messages looked through");
    }
    glommio::spawn_local(write_ops(shard.clone())).detach();
    glommio::spawn_local(check_periodically(shard.clone())).detach();
    Ok(())
}

/// Where the service's group stands on a queue, brought into the queue's bounds; its first offset when nothing is stored.
async fn stored_progress(shard: &Rc<Shard>, (owner, key): (ShardId, QueueKey)) -> Result<u64, StoreError> {
    let asked = shard.run_on(owner, move |owner| async move {
        let (min, max) = bounds(&owner, key);
        let stored = owner.offsets.get(key, names::TRANS_CONSUMER).and_then(|offset| u64::try_from(offset).ok());
        stored.map_or(min, |offset| offset.clamp(min, max))
    });
    asked.await.ok_or_else(stopping)
}

/// Hands every readable record of a queue from an offset on to `each`; how many entries there were.
async fn each_record(
    shard: &Rc<Shard>,
    queue: (ShardId, QueueKey),
    from: u64,
    each: impl Fn(&mut Halves, u64, &Record<'_>),
) -> Result<u64, StoreError> {
    let mut at = from;
    loop {
        let fetched = fetch(shard, queue, at).await?;
        if fetched.entries.is_empty() {
            return Ok(at - from);
        }
        for entry in &fetched.entries {
            if !entry.is_hole()
                && let Some(bytes) = shard.stored_record(entry.phy, entry.bytes).await?
                && let Ok(Found::Record(record)) = record::parse(&bytes, false)
            {
                each(&mut shard.half_messages.halves.borrow_mut(), at, &record);
            }
            at += 1;
        }
    }
}

/// The half offsets in the body of an op message: numbers with commas behind them. Anything else names none.
fn named_in(body: &[u8]) -> Vec<u64> {
    let text = std::str::from_utf8(body).unwrap_or_default();
    text.split(',').filter_map(|number| number.trim().parse().ok()).collect()
}

fn op_body(offsets: &[u64]) -> String {
    offsets.iter().fold(String::new(), |text, offset| text + &offset.to_string() + ",")
}

fn number_of(record: &Record<'_>, name: &str) -> Option<u64> {
    message::property(record.properties, name).and_then(|text| text.parse().ok())
}

/// Writes op messages: when there is enough for one, else each `transactionOpBatchInterval`.
async fn write_ops(shard: Rc<Shard>) {
    while !shard.doors.is_closed() {
        let period = Duration::from_millis(shard.config.borrow().transaction_op_batch_ms.max(1));
        future::or(shard.sleep(period), shard.half_messages.full.wait()).await;
        if let Err(e) = flush_ops(&shard).await {
            error!(error = %e, "op messages could not be stored; they are tried again");
            shard.sleep(RETRY).await;
        }
    }
}

/// Notes in the op topic what was ended so far. Also the last thing before the writer stops, so that a clean stop forgets nothing.
pub async fn flush_ops(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let bytes = shard.config.borrow().transaction_op_bytes;
    loop {
        let offsets = shard.half_messages.halves.borrow_mut().take_unwritten(bytes);
        if offsets.is_empty() {
            return Ok(());
        }
        match store_op(shard, &op_body(&offsets)).await {
            Ok(at) => shard.half_messages.halves.borrow_mut().written(at, &offsets),
            Err(e) => {
                shard.half_messages.halves.borrow_mut().put_back_unwritten(offsets);
                return Err(e);
            }
        }
    }
}

async fn store_op(shard: &Rc<Shard>, body: &str) -> Result<u64, StoreError> {
    let (topic, ..) = queue_of(shard, names::TRANS_OP_HALF_TOPIC)?;
    let mut properties = String::new();
    message::push_property(&mut properties, prop::TAGS, OP_TAG);
    let op = NewMessage {
        topic: &topic,
        queue: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: shard.now_ms(),
        born_host: shard.store_host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: body.as_bytes(),
        properties: &properties,
        wait_durable: false,
    };
    shard.append(op).await.map(|receipt| receipt.queue_offset.0)
}

async fn check_periodically(shard: Rc<Shard>) {
    loop {
        let period = Duration::from_millis(shard.config.borrow().transaction_check_ms.max(1));
        shard.sleep(period).await;
        if shard.doors.is_closed() {
            return;
        }
        if let Err(e) = pass(&shard).await {
            error!(error = %e, "the pass over half messages stopped; the next one goes on");
        }
        if let Err(e) = save_progress(&shard).await {
            warn!(error = %e, "progress of half messages not noted");
        }
    }
}

/// Commits how far the service is, for its group, on both queues.
async fn save_progress(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let (half, op) = {
        let mut halves = shard.half_messages.halves.borrow_mut();
        (halves.next(), halves.op_progress())
    };
    for (topic, offset) in [(names::TRANS_HALF_TOPIC, half), (names::TRANS_OP_HALF_TOPIC, op)] {
        let (_, owner, key) = queue_of(shard, topic)?;
        let commit = shard.run_on(owner, move |owner| async move {
            // A queue that nobody used has no progress.
            if offset > 0 {
                owner.offsets.commit(key, names::TRANS_CONSUMER, offset as i64);
            }
        });
        commit.await.ok_or_else(stopping)?;
    }
    Ok(())
}

/// What a half needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// It is young, and so is every one behind it.
    Nothing,
    /// Its producer asked for more time: it is put back.
    Time,
    Check,
    /// It can never be ended, or was checked often enough.
    Discard(&'static str),
}

/// Limits of the service.
#[derive(Clone, Copy)]
struct Policy {
    timeout_ms: i64,
    checks_max: u64,
    reserved_ms: i64,
}

fn need_of(half: &Record<'_>, now_ms: i64, policy: &Policy) -> Need {
    let property = |name| message::property(half.properties, name);
    if property(prop::REAL_TOPIC).is_none_or(str::is_empty) || number_of(half, prop::REAL_QID).is_none() {
        return Need::Discard("it does not say for which queue it is");
    }
    if number_of(half, prop::TRANSACTION_CHECK_TIMES).unwrap_or(0) >= policy.checks_max {
        return Need::Discard("its producer was asked often enough");
    }
    let age_ms = now_ms.saturating_sub(half.born_timestamp_ms);
    if age_ms > policy.reserved_ms {
        return Need::Discard("it is older than fileReservedTime");
    }
    // A clock that was set back makes it older than it seems.
    let young = |limit_ms: i64| (0..=limit_ms).contains(&age_ms);
    match property(prop::CHECK_IMMUNITY_TIME_IN_SECONDS) {
        Some(text) if young(immunity_ms(text, policy.timeout_ms)) => Need::Time,
        None if young(policy.timeout_ms) => Need::Nothing,
        _ => Need::Check,
    }
}

/// How long a half is immune by its own property; the general limit where that is no number of seconds.
pub fn immunity_ms(text: &str, timeout_ms: i64) -> i64 {
    match text.trim().parse::<i64>() {
        Ok(-1) | Err(_) => timeout_ms,
        Ok(seconds) => seconds.saturating_mul(1000),
    }
}

/// Looks at every half from where the last pass ended, up to what there was when this one began.
async fn pass(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let (_, owner, key) = queue_of(shard, names::TRANS_HALF_TOPIC)?;
    let began_ms = shard.now_ms();
    let end = shard.run_on(owner, move |owner| async move { bounds(&owner, key).1 }).await.ok_or_else(stopping)?;
    let service = &shard.half_messages;
    loop {
        let mut at = service.halves.borrow().next();
        let fetched = fetch(shard, (owner, key), at).await?;
        if at < fetched.min {
            warn!(from = at, to = fetched.min, "half messages were removed with the oldest log files");
            (at..fetched.min).for_each(|gone| service.halves.borrow_mut().pass(gone));
            continue;
        }
        if fetched.entries.is_empty() {
            return Ok(());
        }
        for entry in &fetched.entries {
            if at >= end || shard.doors.is_closed() || !visit(shard, at, entry, began_ms).await? {
                return Ok(());
            }
            service.halves.borrow_mut().pass(at);
            at += 1;
        }
    }
}

/// Looks at one half; whether the pass goes on behind it.
async fn visit(shard: &Rc<Shard>, offset: u64, entry: &Entry, began_ms: i64) -> Result<bool, StoreError> {
    let service = &shard.half_messages;
    let state = || service.halves.borrow().state(offset);
    match state() {
        _ if entry.is_hole() => return Ok(true),
        State::Settled => return Ok(true),
        State::Claimed => return Ok(false),
        State::Open => {}
    }
    let bytes = shard.stored_record(entry.phy, entry.bytes).await?;
    let Some(half) = bytes.as_deref().and_then(half_in) else {
        warn!(offset, phy = %entry.phy, "half message is gone or damaged; it is passed over");
        return Ok(true);
    };
    if half.store_timestamp_ms > began_ms {
        return Ok(false);
    }
    let need = {
        let config = shard.config.borrow();
        let policy = Policy {
            timeout_ms: config.transaction_timeout_ms as i64,
            checks_max: config.transaction_checks_max.into(),
            reserved_ms: i64::from(config.file_reserved_hours) * 3_600_000,
        };
        need_of(&half, shard.now_ms(), &policy)
    };
    match need {
        // While it was read.
        _ if state() == State::Settled => {}
        _ if state() == State::Claimed => return Ok(false),
        Need::Nothing => return Ok(false),
        Need::Time => drop(put_back(shard, &half, 0).await?),
        Need::Check => {
            let (receipt, properties) = put_back(shard, &half, 1).await?;
            if service.halves.borrow().state(receipt.queue_offset.0) == State::Open {
                ask_producer(shard, &half, &properties, &receipt);
            }
        }
        Need::Discard(why) => {
            warn!(offset, phy = %entry.phy, properties = half.properties, why, "half message is set aside");
            discard(shard, &half).await?;
            // An end that came meanwhile still counts, and what is claimed is not passed.
            return Ok(state() != State::Claimed);
        }
    }
    Ok(true)
}

/// Stores a half again at the end of its queue, its checks raised by `more`.
async fn put_back(shard: &Rc<Shard>, half: &Record<'_>, more: u64) -> Result<(Receipt, String), StoreError> {
    let first = number_of(half, prop::TRAN_PREPARED_QUEUE_OFFSET).unwrap_or(half.queue_offset as u64);
    let checks = number_of(half, prop::TRANSACTION_CHECK_TIMES).unwrap_or(0) + more;
    let mut properties = with_checks(half.properties, checks);
    message::push_property(&mut properties, prop::TRAN_PREPARED_QUEUE_OFFSET, &first.to_string());
    let receipt = store_half(shard, half, &properties).await?;
    shard.half_messages.halves.borrow_mut().moved(half.queue_offset as u64, receipt.queue_offset.0);
    Ok((receipt, properties))
}

/// A half's properties with so many checks, and without what holds for one copy alone.
fn with_checks(properties: &str, checks: u64) -> String {
    let replaced = [prop::TRANSACTION_CHECK_TIMES, prop::TRAN_PREPARED_QUEUE_OFFSET, prop::CRC32];
    let mut text = message::without(properties, &replaced);
    if checks > 0 {
        message::push_property(&mut text, prop::TRANSACTION_CHECK_TIMES, &checks.to_string());
    }
    text
}

async fn store_half(shard: &Rc<Shard>, half: &Record<'_>, properties: &str) -> Result<Receipt, StoreError> {
    let (topic, ..) = queue_of(shard, names::TRANS_HALF_TOPIC)?;
    let copy = copy_of(half, &topic, 0, properties);
    shard.append(copy).await
}

/// A half's copy, which is no half by its flags: only its topic says so.
fn copy_of<'a>(half: &Record<'a>, topic: &'a Arc<Topic>, queue: u32, properties: &'a str) -> NewMessage<'a> {
    let sys_flag = half.sys_flag & !sys_flag::TRANSACTION_MASK;
    NewMessage { sys_flag, ..NewMessage::copy_of(half, topic, queue, properties) }
}

/// Stores a half where operators find it and [`resume`] takes it from.
async fn discard(shard: &Rc<Shard>, half: &Record<'_>) -> Result<(), StoreError> {
    let topic = match control::ensure_topic(shard, names::TRANS_CHECK_MAX_TIME_TOPIC, 1, 0) {
        Ok(topic) => topic,
        Err(e) => {
            error!(error = %e, "no topic for half messages that are set aside");
            return Err(stopping());
        }
    };
    let properties = message::without(half.properties, &[prop::CRC32]);
    shard.append(copy_of(half, &topic, 0, &properties)).await?;
    shard.half_messages.discarded.set(shard.half_messages.discarded.get() + 1);
    Ok(())
}

/// Puts a half that was set aside back into its queue, as one that was never checked.
pub async fn resume(shard: &Rc<Shard>, half: &Record<'_>) -> Result<(), StoreError> {
    store_half(shard, half, &with_checks(half.properties, 0)).await.map(drop)
}

/// Asks some producer of the half's group what became of it; the answer is an end (37) by the copy's offsets.
fn ask_producer(shard: &Rc<Shard>, half: &Record<'_>, properties: &str, copy: &Receipt) {
    let property = |name| message::property(properties, name);
    let service = &shard.half_messages;
    let clients = shard.control().clients.borrow();
    let producers: Vec<_> = property(prop::PGROUP)
        .and_then(|group| clients.producers(group))
        .map(|members| members.map(|member| member.conn).collect())
        .unwrap_or_default();
    let turn = service.turn.get();
    service.turn.set(turn.wrapping_add(1));
    let Some(conn) = producers.get(turn % producers.len().max(1)) else { return };
    let Some(body) = question(shard, half, properties, copy) else { return };
    service.checks.set(service.checks.get() + 1);
    let mut offset_id = String::new();
    message::write_offset_id(&mut offset_id, shard.store_host, copy.phy.0);
    let key = property(prop::UNIQ_KEY).unwrap_or_default().to_owned();
    let ext: Vec<(&'static str, Value<'static>)> = vec![
        ("topic", names::TRANS_HALF_TOPIC.into()),
        ("tranStateTableOffset", copy.queue_offset.0.into()),
        ("commitLogOffset", copy.phy.0.into()),
        ("msgId", key.clone().into()),
        ("transactionId", key.into()),
        ("offsetMsgId", offset_id.into()),
        ("bname", shard.config.borrow().broker_name.clone().into()),
    ];
    shard.push_oneway(*conn, request::CHECK_TRANSACTION_STATE, ext, body);
}

/// The body of a check: the copy's record, as if it stood in the queue that it is for.
fn question(shard: &Shard, half: &Record<'_>, properties: &str, copy: &Receipt) -> Option<Vec<u8>> {
    let real = NewRecord {
        topic: message::property(properties, prop::REAL_TOPIC)?,
        queue_id: number_of(half, prop::REAL_QID)? as u32,
        flag: half.flag,
        sys_flag: half.sys_flag & !sys_flag::TRANSACTION_MASK,
        born_timestamp_ms: half.born_timestamp_ms,
        born_host: half.born_host,
        store_host: shard.store_host,
        reconsume_times: half.reconsume_times,
        prepared_transaction_offset: 0,
        body: half.body,
        properties,
        more_properties: "",
    };
    let mut bytes = Vec::new();
    record::encode(&mut bytes, &real).ok()?;
    record::patch(&mut bytes, copy.queue_offset.0, copy.phy.0, copy.store_timestamp_ms);
    Some(bytes)
}

/// Logged once at a stop.
pub fn log_totals(shard: &Shard) {
    let service = &shard.half_messages;
    if service.checks.get() + service.discarded.get() > 0 {
        info!(checks = service.checks.get(), discarded = service.discarded.get(), "half messages of this run");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const POLICY: Policy = Policy { timeout_ms: 6000, checks_max: 3, reserved_ms: 3_600_000 };

    /// What a half of these properties, born at 1, needs at `now_ms`.
    fn need(now_ms: i64, properties: &[(&str, &str)]) -> Need {
        let mut text = String::new();
        let given = |name| properties.iter().any(|(known, _)| *known == name);
        let usual = [("REAL_TOPIC", "T"), ("REAL_QID", "0")].into_iter().filter(|(name, _)| !given(*name));
        for (name, value) in usual.chain(properties.iter().copied()) {
            message::push_property(&mut text, name, value);
        }
        let bytes = testing::record(names::TRANS_HALF_TOPIC, &text);
        need_of(&half_in(&bytes).expect("a half"), now_ms, &POLICY)
    }

    #[test]
    fn a_half_is_checked_when_it_is_old_enough() {
        for (now, want) in [(1, Need::Nothing), (6001, Need::Nothing), (6002, Need::Check), (0, Need::Check)] {
            assert_eq!(need(now, &[]), want, "{now}");
        }
        assert!(matches!(need(3_600_002, &[]), Need::Discard(_)));
    }

    #[test]
    fn immunity_is_counted_in_seconds_and_costs_no_check() {
        let immune = |seconds, now| need(now, &[(prop::CHECK_IMMUNITY_TIME_IN_SECONDS, seconds)]);
        for (seconds, now, want) in [
            ("30", 1, Need::Time),
            ("30", 30_001, Need::Time),
            ("30", 30_002, Need::Check),
            ("0", 2, Need::Check),
            ("-1", 6001, Need::Time),
            ("-1", 6002, Need::Check),
            ("abc", 6001, Need::Time),
            ("abc", 6002, Need::Check),
            ("-5", 2, Need::Check),
            ("9223372036854775807", 1_000_000, Need::Time),
        ] {
            assert_eq!(immune(seconds, now), want, "{seconds} s, {now}");
        }
    }

    /// Known fault T03.
    #[test]
    fn what_can_never_be_ended_is_set_aside() {
        for odd in [
            [("REAL_TOPIC", ""), ("REAL_QID", "0")],
            [("REAL_TOPIC", "T"), ("REAL_QID", "-1")],
            [("REAL_TOPIC", "T"), ("REAL_QID", "abc")],
        ] {
            assert!(matches!(need(7000, &odd), Need::Discard(_)), "{odd:?}");
        }
        for (times, want) in [("2", true), ("3", false), ("999", false), ("x", true)] {
            let checked = need(7000, &[(prop::TRANSACTION_CHECK_TIMES, times)]) == Need::Check;
            assert_eq!(checked, want, "{times}");
        }
        assert!(half_in(b"").is_none() && half_in(&testing::record("T", "")).is_none());
    }

    #[test]
    fn op_messages_are_read_as_they_are_written() {
        assert_eq!(op_body(&[0, 7, 12]), "0,7,12,");
        assert_eq!(named_in(b"0,7,12,"), [0, 7, 12]);
        assert_eq!(named_in(b"7, 8,,x,-1,9"), [7, 8, 9]);
        assert!(named_in(b"\xff").is_empty());
    }
}
