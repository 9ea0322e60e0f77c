//! SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320). Check order: behaviour sheet 3.2.
use crate::control::attributes;
use crate::error::BrokerError;
use crate::handlers::light::{self, LightKeys};
use crate::handlers::static_topic;
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use crate::shard::appends::{KeyProps, PendingSend, Receipt, Refusal, RunBuilder};
use crate::snapshot::{Topic, TopicTable};
use crate::timer::put::{self, Fate, Wish};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use uringmq_proto::body::topic::TopicFilterType;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::{FLAG_RESPONSE, Head, Response, Value, write_frame};
use uringmq_proto::headers::Header;
use uringmq_proto::headers::send::SendMessage;
use uringmq_proto::message::{self, UniqKeys, prop, sys_flag};
use uringmq_proto::names;
use uringmq_proto::recall;
use uringmq_proto::record::{EncodeError, NewRecord};
use uringmq_proto::types::QueueKey;
use uringmq_store::consume_queue::{BATCH_COUNT_MAX, Form};

/// What a message's properties decide, found in one pass.
#[derive(Default)]
struct SendProps<'a> {
    keys: KeyProps<'a>,
    delay: Option<&'a str>,
    wait: bool,
    /// TRAN_MSG is true.
    half: bool,
    timer: Wish<'a>,
    /// POP_CK, or something the broker sets itself: the text is copied without them.
    to_drop: bool,
    /// INNER_NUM.
    inner_num: Option<&'a str>,
    /// INNER_MULTI_DISPATCH: light queues that it is to be in, too; and those that it will be in.
    lights: Option<&'a str>,
    priority: Option<&'a str>,
    /// It has a property of a message that waits for a time, whatever its value; or one of messages that stay in order.
    timed: bool,
    in_order: bool,
    light_keys: LightKeys,
    /// Of an inner batch; else 0.
    messages: u16,
    /// For the answer, when it waits for its time; empty otherwise.
    recall: String,
}

/// What of a half message only the broker says.
const SET_ON_HALVES: &[&str] = &[
    prop::REAL_TOPIC,
    prop::REAL_QID,
    prop::TRANSACTION_ID,
    prop::TRANSACTION_CHECK_TIMES,
    prop::TRAN_PREPARED_QUEUE_OFFSET,
];

const SET_BY_BROKER: &[&str] =
    &[prop::POP_CK, prop::MSG_REGION, prop::TRACE_ON, prop::CLUSTER, prop::INNER_BASE, prop::INNER_MULTI_QUEUE_OFFSET];

impl<'a> SendProps<'a> {
    fn of(text: &'a str, indexed: bool) -> Self {
        let mut p = SendProps { wait: true, ..SendProps::default() };
        p.keys.indexed = indexed;
        for (name, value) in message::properties(text) {
            match name {
                prop::UNIQ_KEY => p.keys.uniq_key = Some(value),
                prop::KEYS => p.keys.keys = Some(value),
                prop::TAGS => p.keys.tags = Some(value),
                prop::WAIT => p.wait = !value.eq_ignore_ascii_case("false"),
                prop::DELAY => (p.delay, p.timed) = (Some(value), true),
                prop::PRIORITY => p.priority = Some(value),
                prop::SHARDING_KEY => p.in_order = true,
                prop::TRAN_MSG => p.half = value.eq_ignore_ascii_case("true"),
                prop::TIMER_DELAY_SEC
                | prop::TIMER_DELAY_MS
                | prop::TIMER_DELIVER_MS
                | prop::TIMER_OUT_MS
                | prop::TIMER_DEL_UNIQKEY => {
                    p.timed |= matches!(name, prop::TIMER_DELAY_SEC | prop::TIMER_DELAY_MS | prop::TIMER_DELIVER_MS);
                    p.timer.take(name, value);
                }
                prop::INNER_NUM => p.inner_num = Some(value),
                prop::INNER_MULTI_DISPATCH => p.lights = Some(value),
                name if SET_BY_BROKER.contains(&name) => p.to_drop = true,
                _ => {}
            }
        }
        p
    }
}

/// Where a message with a priority goes. Source: Apache's broker 5.5.0, asked.
enum Priority {
    /// It has none that counts.
    None,
    Queue(u32),
    /// It is a message of another kind, which has no priority: the property goes.
    Dropped,
}

impl SendProps<'_> {
    fn priority_of(&self, topic: &Topic) -> Priority {
        let asked = self.priority.and_then(|text| text.parse::<i32>().ok());
        match asked.and_then(|asked| u32::try_from(asked).ok()) {
            None => Priority::None,
            Some(_) if self.half || self.timed || self.in_order => Priority::Dropped,
            Some(asked) => match u32::try_from(topic.config.write_queue_nums) {
                Ok(queues @ 1..) => Priority::Queue(asked.min(queues - 1)),
                _ => Priority::None,
            },
        }
    }
}

pub fn send_message(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let outcome = try_send(shard, req);
    match outcome {
        Ok(answer) => Ok(answer),
        // Refusals carry the region and trace switch too (sheet 5.1).
        Err(e) => {
            shard.counters.put_failed.set(shard.counters.put_failed.get() + 1);
            Ok(Answer::Now(with_region(shard, crate::responses::of_error(&e))))
        }
    }
}

/// Answers to sends, refusals too, tell region and trace switch (wire-protocol sheet 5.1).
pub(super) fn with_region(shard: &Shard, response: Response) -> Response {
    let config = shard.config.borrow();
    response.with(prop::MSG_REGION, config.region_id.clone()).with(prop::TRACE_ON, config.trace_on)
}

/// Whether anything may be sent now, and to a topic of this name. Source: behaviour sheet 3.2, rows 4, 6 and 7.
pub(super) fn admit(shard: &Shard, topic: &str, now_ms: i64) -> Result<(), BrokerError> {
    let until = shard.config.borrow().accept_sends_from_ms;
    if now_ms < until {
        return Err(BrokerError::refused(code::SYSTEM_ERROR, format!("broker unable to service, until {until}")));
    }
    names::check_topic(topic).map_err(|e| BrokerError::refused(code::INVALID_PARAMETER, e.to_string()))?;
    if shard.config.borrow().light_queues() && names::is_light_queue(topic) {
        let remark = format!("topic[{topic}] is a light queue: send to a topic with property INNER_MULTI_DISPATCH");
        return Err(BrokerError::refused(code::NO_PERMISSION, remark));
    }
    if names::is_send_forbidden(topic) || topic.starts_with(names::SYSTEM_TOPIC_PREFIX) {
        let remark = format!("Sending message to topic[{topic}] is forbidden.");
        return Err(BrokerError::refused(code::NO_PERMISSION, remark));
    }
    Ok(())
}

fn try_send(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let mut h = SendMessage::decode(req.cmd)?;
    let config = shard.config();
    let now = shard.now_ms();
    let logical = match static_topic::for_send(shard, req.cmd, h.topic, h.queue_id, now as usize) {
        Ok(logical) => logical,
        // Before anything else is looked at, so it tells no region.
        Err(e) => return Ok(Answer::Now(crate::responses::of_error(&e))),
    };
    if let Some((_, place)) = logical {
        h.queue_id = i32::try_from(place.queue).unwrap_or(i32::MAX);
    }
    admit(shard, h.topic, now)?;
    // Borrowed, not cloned: a counter that all cores touch would cost more than the rest of the checks.
    let topics = shard.topics.borrow();
    let to_control = h.topic.starts_with(names::RETRY_PREFIX);
    let topic = match topics.get(h.topic) {
        Some(topic) if !to_control || req.retried => topic,
        _ if req.retried => return Err(BrokerError::NoTopic(h.topic.to_owned())),
        // Retry topics need the group's locks and limits, which control knows.
        _ => {
            drop(topics);
            return shard.ask_control(req);
        }
    };
    if shard.marks.disk_early.load(Ordering::Relaxed) != 0 && config.disk_early_topics.0.iter().any(|t| t == h.topic) {
        let remark = format!(
            "service not available now. the disk is filling up, and topic[{}] is one of diskRefuseEarlyTopics",
            h.topic
        );
        return Err(BrokerError::refused(code::SERVICE_NOT_AVAILABLE, remark));
    }
    let queues = topic.config.read_queue_nums.max(topic.config.write_queue_nums);
    if h.queue_id >= queues {
        let remark =
            format!("request queueId[{}] is illegal, {:?} Producer: {}", h.queue_id, topic.name, req.origin.peer);
        return Err(BrokerError::refused(code::INVALID_PARAMETER, remark));
    }
    let queue = if h.queue_id >= 0 { h.queue_id as u32 } else { pick_queue(shard, topic, now) };
    if req.cmd.body.is_empty() {
        return Err(BrokerError::refused(code::SYSTEM_ERROR, "the message body is empty"));
    }
    if req.cmd.body.len() > config.message_bytes_max {
        return Err(illegal(config.message_bytes_max));
    }
    let spot = match logical {
        Some((told, place)) => Spot { queue, told: told.max(0) as u32, delta: place.delta },
        None => Spot { queue, told: queue, delta: 0 },
    };
    if h.batch {
        return send_batch(shard, req, &h, topic, spot);
    }
    send_one(shard, req, &h, (&topics, topic), spot, now)
}

/// The queue that a message goes to, and what the client is told: of a static topic the logical queue, whose offsets are `delta` more.
#[derive(Clone, Copy)]
struct Spot {
    queue: u32,
    told: u32,
    delta: i64,
}

fn pick_queue(shard: &Shard, topic: &Topic, now: i64) -> u32 {
    let spread = shard.counters.put_messages.get().wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(now as u64) >> 33;
    (spread % topic.config.write_queue_nums.max(1) as u64) as u32
}

fn illegal(max: usize) -> BrokerError {
    let remark = format!(
        "the message is illegal, maybe msg body or properties length not matched. msg body length limit {max}B, msg properties length limit 32KB."
    );
    BrokerError::refused(code::MESSAGE_ILLEGAL, remark)
}

fn send_one(
    shard: &Rc<Shard>,
    req: &Request<'_>,
    h: &SendMessage<'_>,
    (topics, topic): (&TopicTable, &Topic),
    spot: Spot,
    now: i64,
) -> Result<Answer, BrokerError> {
    let config = shard.config();
    let indexed = config.index_enabled;
    let cleaned;
    let mut text = h.properties;
    let mut props = SendProps::of(text, indexed);
    if props.to_drop {
        cleaned = message::without(text, SET_BY_BROKER);
        text = &cleaned;
        props = SendProps::of(text, indexed);
    }
    if attributes::is_compaction(&topic.config) && props.keys.keys.is_none_or(|keys| keys.trim().is_empty()) {
        return Err(BrokerError::refused(code::MESSAGE_ILLEGAL, "Required message key is missing"));
    }
    let unranked;
    let spot = match props.priority_of(topic) {
        Priority::None => spot,
        Priority::Queue(queue) => Spot { queue, told: queue, delta: 0 },
        Priority::Dropped => {
            unranked = message::without(text, &[prop::PRIORITY]);
            text = &unranked;
            props = SendProps::of(text, indexed);
            spot
        }
    };
    let queue = spot.queue;
    // Where it waits is no queue of a static topic.
    let waiting = Spot { delta: 0, ..spot };
    let delay = delay_level(shard, &props)?;
    let half = props.half && !(h.reconsume_times > 0 && delay > 0);
    if half && config.reject_transaction_message {
        let remark = format!("the broker[{}] sending transaction message is forbidden", config.broker_ip1);
        return Err(BrokerError::refused(code::NO_PERMISSION, remark));
    }
    let waits = delay > 0 || half || props.timer.has_time();
    props.messages = inner_messages(h.sys_flag, props.inner_num, topic, waits || props.lights.is_some())?;
    if let Some(lights) = light::wanted(&config, &topic.name, props.lights) {
        let Some(keys) = light_keys(shard, req, topics, lights)? else { return Ok(Answer::Later) };
        if !waits {
            props.light_keys = keys; // what waits is in them when it comes to its own topic
        }
    }
    let made_key;
    let mut more = Cow::Borrowed(shard.appends.stamp());
    if props.keys.uniq_key.is_none() {
        made_key = make_uniq_key(shard, now);
        message::push_property(more.to_mut(), prop::UNIQ_KEY, &made_key);
        props.keys.uniq_key = Some(&made_key);
    }
    if half {
        let half_topic =
            topics.get(names::TRANS_HALF_TOPIC).ok_or_else(|| BrokerError::NoTopic(names::TRANS_HALF_TOPIC.into()))?;
        let kept = message::without(text, SET_ON_HALVES);
        message::push_property(more.to_mut(), prop::REAL_TOPIC, &topic.name);
        message::push_property(more.to_mut(), prop::REAL_QID, &queue.to_string());
        message::push_property(more.to_mut(), prop::TRANSACTION_ID, props.keys.uniq_key.unwrap_or_default());
        // Its end is looked up by its place in the log, so it must be readable when the producer hears of it.
        props.wait = true;
        return store_one(shard, req, h, (&kept, &more), &props, (half_topic, Spot { queue: 0, ..waiting }));
    }
    if delay == 0 {
        let Fate::Waits { out_ms } = props.timer.fate(&config, now)? else {
            return store_one(shard, req, h, (text, &more), &props, (topic, spot));
        };
        // How full a slot is only shard 0 knows.
        if !req.retried && put::has_limit(&config) {
            return shard.ask_control(req);
        }
        let timer_topic = topics
            .get(names::WHEEL_TIMER_TOPIC)
            .ok_or_else(|| BrokerError::NoTopic(names::WHEEL_TIMER_TOPIC.into()))?;
        put::push_times(more.to_mut(), out_ms, &topic.name, queue);
        if !topic.name.starts_with(names::RETRY_PREFIX) {
            let uniq_key = props.keys.uniq_key.unwrap_or_default();
            props.recall = recall::handle(&topic.name, &config.broker_name, out_ms + 1, uniq_key);
        }
        return store_one(shard, req, h, (text, &more), &props, (timer_topic, Spot { queue: 0, ..waiting }));
    }
    let schedule =
        topics.get(names::SCHEDULE_TOPIC).ok_or_else(|| BrokerError::NoTopic(names::SCHEDULE_TOPIC.into()))?;
    message::push_property(more.to_mut(), prop::REAL_TOPIC, &topic.name);
    message::push_property(more.to_mut(), prop::REAL_QID, &queue.to_string());
    props.keys.delay_level = delay;
    let place = (&**schedule, Spot { queue: delay as u32 - 1, ..waiting });
    if props.delay.and_then(|d| d.parse::<i32>().ok()) == Some(delay) && !props.timer.has_time() {
        return store_one(shard, req, h, (text, &more), &props, place);
    }
    // A clamped level, and the timer properties that it overrules, are rewritten.
    let kept =
        message::without(text, &[prop::DELAY, prop::TIMER_DELAY_SEC, prop::TIMER_DELAY_MS, prop::TIMER_DELIVER_MS]);
    message::push_property(more.to_mut(), prop::DELAY, &delay.to_string());
    store_one(shard, req, h, (&kept, &more), &props, place)
}

/// The light queues that a message names; `None` when control makes those that are missing first, and has the request run again.
fn light_keys(
    shard: &Shard,
    req: &Request<'_>,
    topics: &TopicTable,
    lights: &str,
) -> Result<Option<LightKeys>, BrokerError> {
    light::check(lights)?;
    let keys = light::keys(topics, lights);
    if keys.is_none() && req.retried {
        return Err(BrokerError::NoTopic(lights.to_owned()));
    }
    if keys.is_none() {
        shard.forward(0, req.frame, req.origin); // not `ask_control`: the topics are borrowed here
    }
    Ok(keys)
}

pub(super) fn make_uniq_key(shard: &Shard, now: i64) -> String {
    UNIQ_KEYS.with(|keys| {
        keys.borrow_mut()
            .get_or_insert_with(|| UniqKeys::new(shard.store_host.ip(), std::process::id(), shard.id as u32))
            .next(now)
    })
}

/// The delay level asked for, clamped; 0 for none. Source: behaviour sheet 3.5 row 5, trap 46.
fn delay_level(shard: &Shard, props: &SendProps<'_>) -> Result<i32, BrokerError> {
    let Some(text) = props.delay else { return Ok(0) };
    let level: i32 = text.trim().parse().map_err(|_| {
        BrokerError::refused(code::MESSAGE_ILLEGAL, format!("property DELAY is not a number: '{text}'"))
    })?;
    Ok(level.clamp(0, shard.appends.delay_levels_ms().len() as i32))
}

thread_local! {
    /// One maker a core; its number keeps the cores' keys apart.
    static UNIQ_KEYS: RefCell<Option<UniqKeys>> = const { RefCell::new(None) };
}

/// Encodes the record and leaves it with the writer. `place`: topic and queue to store in, and what to answer.
fn store_one(
    shard: &Rc<Shard>,
    req: &Request<'_>,
    h: &SendMessage<'_>,
    (text, more): (&str, &str),
    props: &SendProps<'_>,
    (topic, spot): (&Topic, Spot),
) -> Result<Answer, BrokerError> {
    let Some(conn) = shard.conns.get(req.origin.conn) else { return Ok(Answer::Later) };
    let queue = spot.queue;
    let mut run = RunBuilder::new(shard, QueueKey { topic: topic.id, queue });
    let record = NewRecord {
        topic: &topic.name,
        queue_id: queue,
        flag: h.flag,
        sys_flag: sys_flags(h.sys_flag, topic),
        born_timestamp_ms: h.born_timestamp_ms,
        born_host: req.origin.peer,
        store_host: shard.store_host,
        reconsume_times: h.reconsume_times,
        prepared_transaction_offset: 0,
        body: req.cmd.body,
        properties: text,
        more_properties: more,
    };
    let max = shard.config.borrow().message_bytes_max;
    run.record_late(&record, &props.keys, props.messages, &props.light_keys).map_err(|e| encode_refusal(e, max))?;
    if !props.light_keys.is_empty() && run.bytes() > max {
        return Err(illegal(max)); // of these Apache's broker counts the whole record
    }
    let pending = PendingSend {
        conn,
        opaque: req.origin.opaque,
        oneway: req.origin.oneway,
        queue_id: spot.told,
        offset_delta: spot.delta,
        uniq_key: SmallVec::from_slice(props.keys.uniq_key.unwrap_or("").as_bytes()),
        batch_lens: Box::default(),
        recall: props.recall.as_str().into(),
        batch_key: false,
        held_bytes: run.bytes(),
    };
    count_put(shard, 1, run.bytes());
    pending.conn.hold(pending.held_bytes);
    shard.append_send(run, pending, true, props.wait);
    Ok(Answer::Later)
}

/// The client's flags but what only the broker sets.
fn sys_flags(asked: i32, topic: &Topic) -> i32 {
    let mut flags = asked & !sys_flag::OF_BROKER;
    if topic.config.topic_filter_type == TopicFilterType::MultiTag {
        flags |= sys_flag::MULTI_TAGS;
    }
    flags
}

/// How many messages an inner batch with these properties has; 0 for what is none. Source: store-format sheet 3.7.
///
/// # Errors
/// INNER_NUM without the flag or that is no number of messages, the flag on a topic of plain queues, and what no inner batch can do
/// (`elsewhere`): wait for a time or a commit, be in light queues.
fn inner_messages(flags: i32, inner_num: Option<&str>, topic: &Topic, elsewhere: bool) -> Result<u16, BrokerError> {
    let refused =
        |what: String| Err(BrokerError::refused(code::MESSAGE_ILLEGAL, format!("the message is illegal: {what}")));
    if flags & sys_flag::INNER_BATCH == 0 {
        return match inner_num {
            None => Ok(0),
            Some(_) => refused("property INNER_NUM on what is no inner batch (sysFlag 0x80)".to_owned()),
        };
    }
    if topic.form() != Form::Batch {
        return refused(format!("an inner batch (sysFlag 0x80), and topic {} has not queue.type=BatchCQ", topic.name));
    }
    if elsewhere {
        return refused("an inner batch cannot be delayed, half, or in light queues (INNER_MULTI_DISPATCH)".to_owned());
    }
    let count = inner_num.map_or(Some(1), |text| text.parse().ok()).filter(|n| (1..=BATCH_COUNT_MAX).contains(n));
    match count {
        Some(count) => Ok(count),
        None => refused(format!("INNER_NUM is '{}', not from 1 to {BATCH_COUNT_MAX}", inner_num.unwrap_or_default())),
    }
}

/// A batch for a topic of batch queues, named by its own key: stored as one record. Source: behaviour sheet 3.7.
fn send_inner_batch(
    shard: &Rc<Shard>,
    req: &Request<'_>,
    h: &SendMessage<'_>,
    (topic, spot): (&Topic, Spot),
    props: &SendProps<'_>,
) -> Result<Answer, BrokerError> {
    let (config, queue) = (shard.config(), spot.queue);
    let items = message::batch_items(req.cmd.body);
    let count = items.map(|item| item.map_err(|e| BrokerError::refused(code::MESSAGE_ILLEGAL, e.to_string())));
    let count = count.collect::<Result<Vec<_>, _>>()?.len();
    if count == 0 {
        return Err(BrokerError::refused(code::MESSAGE_ILLEGAL, "the batch holds no message"));
    }
    let flags = sys_flags(h.sys_flag, topic) | sys_flag::NEED_UNWRAP | sys_flag::INNER_BATCH;
    let number = count.to_string();
    let messages = inner_messages(flags, Some(&number), topic, props.lights.is_some())?;
    let Some(conn) = shard.conns.get(req.origin.conn) else { return Ok(Answer::Later) };
    let mut dropped = SET_BY_BROKER.to_vec();
    dropped.push(prop::INNER_NUM);
    let text = message::without(h.properties, &dropped);
    let mut more = shard.appends.stamp().to_owned();
    message::push_property(&mut more, prop::INNER_NUM, &number);
    let mut run = RunBuilder::new(shard, QueueKey { topic: topic.id, queue });
    let record = NewRecord {
        topic: &topic.name,
        queue_id: queue,
        flag: h.flag,
        sys_flag: flags,
        born_timestamp_ms: h.born_timestamp_ms,
        born_host: req.origin.peer,
        store_host: shard.store_host,
        reconsume_times: h.reconsume_times,
        prepared_transaction_offset: 0,
        body: req.cmd.body,
        properties: &text,
        more_properties: &more,
    };
    let keys = KeyProps { indexed: config.index_enabled, ..props.keys };
    let max = config.message_bytes_max;
    run.record_late(&record, &keys, messages, &[]).map_err(|e| encode_refusal(e, max))?;
    let pending = PendingSend {
        conn,
        opaque: req.origin.opaque,
        oneway: req.origin.oneway,
        queue_id: spot.told,
        offset_delta: spot.delta,
        uniq_key: SmallVec::from_slice(props.keys.uniq_key.unwrap_or("").as_bytes()),
        batch_lens: Box::default(),
        recall: Box::default(),
        batch_key: true,
        held_bytes: run.bytes(),
    };
    count_put(shard, count, run.bytes());
    pending.conn.hold(pending.held_bytes);
    shard.append_send(run, pending, true, props.wait);
    Ok(Answer::Later)
}

fn encode_refusal(e: EncodeError, max: usize) -> BrokerError {
    match e {
        EncodeError::Topic { .. } => BrokerError::refused(code::MESSAGE_ILLEGAL, e.to_string()),
        EncodeError::Properties { .. } => illegal(max),
    }
}

fn send_batch(
    shard: &Rc<Shard>,
    req: &Request<'_>,
    h: &SendMessage<'_>,
    topic: &Topic,
    spot: Spot,
) -> Result<Answer, BrokerError> {
    let outcome = try_batch(shard, req, h, topic, spot);
    match (outcome, message::property(h.properties, prop::UNIQ_KEY)) {
        // A refused inner batch is told by its key, too.
        (Err(e), Some(key)) if topic.form() == Form::Batch => {
            shard.counters.put_failed.set(shard.counters.put_failed.get() + 1);
            let response = with_region(shard, crate::responses::of_error(&e));
            Ok(Answer::Now(response.with("batchUniqId", key.to_owned())))
        }
        (outcome, _) => outcome,
    }
}

fn try_batch(
    shard: &Rc<Shard>,
    req: &Request<'_>,
    h: &SendMessage<'_>,
    topic: &Topic,
    spot: Spot,
) -> Result<Answer, BrokerError> {
    let (config, queue) = (shard.config(), spot.queue);
    if topic.name.len() > names::PLAIN_TOPIC_BYTES_MAX || topic.name.starts_with(names::RETRY_PREFIX) {
        let remark = format!("batch request does not support retry group {}", topic.name);
        return Err(BrokerError::refused(code::MESSAGE_ILLEGAL, remark));
    }
    let text = h.properties;
    let props = SendProps::of(text, false);
    if h.sys_flag & sys_flag::TRANSACTION_MASK != 0
        || props.timer.has_time()
        || delay_level(shard, &props)? > 0
        || props.half
    {
        return Err(illegal(config.message_bytes_max));
    }
    if topic.form() == Form::Batch && props.keys.uniq_key.is_some() {
        return send_inner_batch(shard, req, h, (topic, spot), &props);
    }
    inner_messages(h.sys_flag, None, topic, true)?;
    let Some(conn) = shard.conns.get(req.origin.conn) else { return Ok(Answer::Later) };
    let mut run = RunBuilder::new(shard, QueueKey { topic: topic.id, queue });
    for item in message::batch_items(req.cmd.body) {
        let item = item.map_err(|e| BrokerError::refused(code::MESSAGE_ILLEGAL, e.to_string()))?;
        let record = NewRecord {
            topic: &topic.name,
            queue_id: queue,
            flag: item.flag,
            sys_flag: sys_flags(h.sys_flag, topic),
            born_timestamp_ms: h.born_timestamp_ms,
            born_host: req.origin.peer,
            store_host: shard.store_host,
            reconsume_times: h.reconsume_times,
            prepared_transaction_offset: 0,
            body: item.body,
            properties: item.properties,
            more_properties: "",
        };
        light::check_item(&config, item.properties)?;
        let mut keys = KeyProps::of(item.properties, config.index_enabled);
        keys.delay_level = 0;
        run.record(&record, &keys).map_err(|e| encode_refusal(e, config.message_bytes_max))?;
        if run.bytes() > config.message_bytes_max {
            let remark = format!("message batch of {} bytes stored, limit {}", run.bytes(), config.message_bytes_max);
            return Err(BrokerError::refused(code::MESSAGE_ILLEGAL, remark));
        }
    }
    if run.lens().is_empty() {
        return Err(BrokerError::refused(code::MESSAGE_ILLEGAL, "the batch holds no message"));
    }
    let pending = PendingSend {
        conn,
        opaque: req.origin.opaque,
        oneway: req.origin.oneway,
        queue_id: spot.told,
        offset_delta: spot.delta,
        uniq_key: SmallVec::from_slice(props.keys.uniq_key.unwrap_or("").as_bytes()),
        batch_lens: run.lens().into(),
        recall: Box::default(),
        batch_key: false,
        held_bytes: run.bytes(),
    };
    count_put(shard, run.lens().len(), run.bytes());
    pending.conn.hold(pending.held_bytes);
    shard.append_send(run, pending, true, props.wait);
    Ok(Answer::Later)
}

fn count_put(shard: &Shard, messages: usize, bytes: usize) {
    let c = &shard.counters;
    c.put_messages.set(c.put_messages.get() + messages as u64);
    c.put_bytes.set(c.put_bytes.get() + bytes as u64);
}

/// The writer's word on a send: the client's answer.
pub fn answer(shard: &Rc<Shard>, send: PendingSend, outcome: Result<Receipt, Refusal>) {
    send.conn.release(send.held_bytes);
    if send.oneway {
        return;
    }
    match outcome {
        Ok(receipt) => {
            let mut ids = String::with_capacity(33 * send.batch_lens.len().max(1));
            let mut phy = receipt.phy.0;
            message::write_offset_id(&mut ids, shard.store_host, phy);
            for bytes in send.batch_lens.iter().take(send.batch_lens.len().saturating_sub(1)) {
                phy += *bytes as u64;
                ids.push(',');
                message::write_offset_id(&mut ids, shard.store_host, phy);
            }
            let config = shard.config.borrow();
            let uniq = std::str::from_utf8(&send.uniq_key).unwrap_or("");
            let ext: [(Cow<'_, str>, Value<'_>); 7] = [
                (Cow::Borrowed("msgId"), Value::Str(Cow::Borrowed(&ids))),
                (Cow::Borrowed("queueId"), Value::U64(send.queue_id as u64)),
                (Cow::Borrowed("queueOffset"), Value::I64(receipt.queue_offset.0 as i64 + send.offset_delta)),
                (Cow::Borrowed(prop::MSG_REGION), Value::Str(Cow::Borrowed(&config.region_id))),
                (Cow::Borrowed(prop::TRACE_ON), Value::Bool(config.trace_on)),
                (Cow::Borrowed("transactionId"), Value::Str(Cow::Borrowed(uniq))),
                match send.batch_key {
                    true => (Cow::Borrowed("batchUniqId"), Value::Str(Cow::Borrowed(uniq))),
                    false => (Cow::Borrowed("recallHandle"), Value::Str(Cow::Borrowed(&send.recall))),
                },
            ];
            let ext = match (uniq.is_empty(), send.recall.is_empty() && !send.batch_key) {
                (true, _) => &ext[..5],
                (false, true) => &ext[..6],
                (false, false) => &ext[..],
            };
            let code = if receipt.replicated { code::SUCCESS } else { code::FLUSH_SLAVE_TIMEOUT };
            let head = Head { code, opaque: send.opaque, flag: FLAG_RESPONSE, remark: None, ext };
            send.conn.write(|out| write_frame(out, &head, &[]));
        }
        Err(refusal) => {
            shard.counters.put_failed.set(shard.counters.put_failed.get() + 1);
            let response = with_region(shard, crate::responses::of_error(&refusal.to_error().into()));
            send.conn.respond(send.opaque, &response);
        }
    }
}
