//! POP_MESSAGE (200050), PEEK_MESSAGE (200052), NOTIFICATION (200054) and POLLING_INFO (200055): the checks before the queues' owners are
//! asked. Order: behaviour sheet 9.1, wire-protocol sheet 6.1, checked against Apache's broker 5.5.0; known fault O01.
use crate::error::BrokerError;
use crate::handlers::pull;
use crate::pop::ask::{Job, no_pop};
use crate::pop::park::{self, Waiter, notified};
use crate::pop::take::Mode;
use crate::requests::{Answer, Request};
use crate::responses;
use crate::shard::Shard;
use crate::shard::property_filter::PropertyFilter;
use crate::snapshot::{Group, Subscription, Topic};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use uringmq_proto::body::heartbeat::{EXPRESSION_SQL92, EXPRESSION_TAG};
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::pop::{Notification, PeekMessage, PollingInfo, PopMessage};
use uringmq_proto::names::perm;

/// Messages of one pop at most: a check point has a bit for each.
const MESSAGES_MAX: i32 = 32;
/// A request that is later than its own waiting time by more than this is not worth an answer.
const LATE_MS: i64 = 500;

/// What a request of this family names.
struct Named<'a> {
    what: &'static str,
    topic: &'a str,
    group: &'a str,
    queue_id: i32,
}

enum Found {
    Both(Arc<Topic>, Arc<Group>),
    /// Control makes the group.
    Asked(Answer),
}

/// Topic and group, both readable, and a queue that may be.
fn find(shard: &Rc<Shard>, req: &Request<'_>, named: &Named<'_>) -> Result<Found, BrokerError> {
    let Named { what, topic: name, group: group_name, queue_id } = *named;
    let forbidden = |remark: String| Err(BrokerError::refused(code::NO_PERMISSION, remark));
    let topic = shard.topic(name).ok_or_else(|| BrokerError::NoTopic(name.into()))?;
    if topic.config.perm & perm::READ == 0 {
        return forbidden(format!("the topic[{name}] {what} is forbidden"));
    }
    if queue_id >= topic.config.read_queue_nums {
        let remark = format!(
            "queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{}] consumer:[{}]",
            topic.config.read_queue_nums, req.origin.peer
        );
        return Err(BrokerError::refused(code::INVALID_PARAMETER, remark));
    }
    let known = shard.groups.borrow().get(group_name).cloned();
    let group = match known {
        Some(group) => group,
        None if req.retried => return Err(BrokerError::NoGroup(group_name.into())),
        None => return shard.ask_control(req).map(Found::Asked),
    };
    if !group.config.consume_enable {
        return forbidden(format!("subscription group no permission, {group_name}"));
    }
    Ok(Found::Both(topic, group))
}

fn readable(shard: &Shard, what: &str) -> Result<(), BrokerError> {
    let config = shard.config.borrow();
    match config.broker_permission as i32 & perm::READ {
        0 => {
            let remark = format!("the broker[{}] {what} is forbidden", config.broker_ip1);
            Err(BrokerError::refused(code::NO_PERMISSION, remark))
        }
        _ => Ok(()),
    }
}

/// What is wanted of the messages; everything where nothing is said.
fn filter_of(
    shard: &Shard,
    expression: Option<&str>,
    kind: Option<&str>,
) -> Result<(Arc<Subscription>, PropertyFilter), BrokerError> {
    let refused = || BrokerError::refused(code::SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed");
    let Some(text) = expression.filter(|text| !text.is_empty()) else {
        return Ok((Arc::new(Subscription::everything()), PropertyFilter::None));
    };
    let parsed = pull::parse(text, kind.unwrap_or(EXPRESSION_TAG), 0).ok_or_else(refused)?;
    let by_properties = match parsed.expression_type.as_str() {
        EXPRESSION_SQL92 => PropertyFilter::Sql(shard.filters.get(text).map_err(|_| refused())?),
        EXPRESSION_TAG => PropertyFilter::None,
        _ => return Err(refused()),
    };
    Ok((Arc::new(parsed), by_properties))
}

/// 200050.
pub fn pop_message(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = PopMessage::decode(req.cmd)?;
    // The fields that clients unbox without a look.
    try_pop(shard, req, &h).or_else(|e| Ok(no_pop(responses::of_error(&e), 0).into()))
}

fn try_pop(shard: &Rc<Shard>, req: &Request<'_>, h: &PopMessage<'_>) -> Result<Answer, BrokerError> {
    const WHAT: &str = "pop message";
    let config = shard.config();
    let now_ms = shard.now_ms();
    let born_ms = if h.born_ms == 0 { now_ms } else { h.born_ms };
    let until_ms = born_ms.saturating_add(h.poll_ms);
    if now_ms.saturating_sub(until_ms) > LATE_MS {
        let remark = format!("the broker[{}] {WHAT} is timeout too much", config.broker_ip1);
        return Err(BrokerError::refused(code::POLLING_TIMEOUT, remark));
    }
    readable(shard, WHAT)?;
    let invalid = |what: String| {
        let remark = format!("the broker[{}] {WHAT}'s {what}", config.broker_ip1);
        Err(BrokerError::refused(code::INVALID_PARAMETER, remark))
    };
    if h.max_msg_nums > MESSAGES_MAX {
        return invalid(format!("num is greater than {MESSAGES_MAX}"));
    }
    if h.max_msg_nums <= 0 {
        return invalid(format!("num is {}, not 1 to {MESSAGES_MAX}", h.max_msg_nums));
    }
    if !config.timer_wheel {
        let remark = format!("the broker[{}] {WHAT} is forbidden because timerWheelEnable is false", config.broker_ip1);
        return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
    }
    let invisible_max = config.timer_max_delay_sec.saturating_mul(1000);
    if !(0..=invisible_max).contains(&h.invisible_ms) {
        return invalid(format!("invisible time is {} ms, not 0 to {invisible_max}", h.invisible_ms));
    }
    let named = Named { what: WHAT, topic: h.topic, group: h.consumer_group, queue_id: h.queue_id };
    let (topic, group) = match find(shard, req, &named)? {
        Found::Both(topic, group) => (topic, group),
        Found::Asked(answer) => return Ok(answer),
    };
    let (filter, by_properties) = filter_of(shard, h.exp, h.exp_type)?;
    let job = Job {
        origin: req.origin,
        mode: if h.order { Mode::Ordered } else { Mode::Pop },
        attempt: h.attempt_id.map(Arc::from),
        group,
        topic: RefCell::new(topic),
        queue_id: h.queue_id,
        max: h.max_msg_nums as usize,
        from_min: h.init_mode == 0,
        invisible_ms: h.invisible_ms,
        until_ms: if h.poll_ms > 0 { until_ms } else { 0 },
        filter,
        by_properties,
    };
    let shard = shard.clone();
    glommio::spawn_local(async move {
        match job.run(&shard).await {
            Ok(outcome) if !outcome.found && job.until_ms > shard.now_ms() && !shard.doors.is_closed() => {
                let origin = job.origin;
                if !shard.park(Rc::new(Waiter::Pop(job))) {
                    shard.respond(origin, Response { code: code::POLLING_FULL, ..outcome.response });
                }
            }
            Ok(outcome) => shard.respond(job.origin, outcome.response),
            Err(e) => shard.respond(job.origin, no_pop(responses::of_error(&e), 0)),
        }
    })
    .detach();
    Ok(Answer::Later)
}

/// 200052.
pub fn peek_message(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = PeekMessage::decode(req.cmd)?;
    try_peek(shard, req, &h).or_else(|e| Ok(no_pop(responses::of_error(&e), 0).into()))
}

fn try_peek(shard: &Rc<Shard>, req: &Request<'_>, h: &PeekMessage<'_>) -> Result<Answer, BrokerError> {
    const WHAT: &str = "peek message";
    readable(shard, WHAT)?;
    if !(1..=MESSAGES_MAX).contains(&h.max_msg_nums) {
        let remark = format!("{WHAT}'s num is {}, not 1 to {MESSAGES_MAX}", h.max_msg_nums);
        return Err(BrokerError::refused(code::INVALID_PARAMETER, remark));
    }
    let named = Named { what: WHAT, topic: h.topic, group: h.consumer_group, queue_id: h.queue_id };
    let (topic, group) = match find(shard, req, &named)? {
        Found::Both(topic, group) => (topic, group),
        Found::Asked(answer) => return Ok(answer),
    };
    let job = Job {
        origin: req.origin,
        mode: Mode::Peek,
        attempt: None,
        group,
        topic: RefCell::new(topic),
        queue_id: h.queue_id,
        max: h.max_msg_nums as usize,
        from_min: true,
        invisible_ms: 0,
        until_ms: 0,
        filter: Arc::new(Subscription::everything()),
        by_properties: PropertyFilter::None,
    };
    let shard = shard.clone();
    glommio::spawn_local(async move {
        let response = match job.run(&shard).await {
            Ok(outcome) => outcome.response,
            Err(e) => no_pop(responses::of_error(&e), 0),
        };
        shard.respond(job.origin, response);
    })
    .detach();
    Ok(Answer::Later)
}

/// 200054.
pub fn notification(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = Notification::decode(req.cmd)?;
    let refused = |e: BrokerError| responses::of_error(&e).with("hasMsg", false).with("pollingFull", false);
    try_notify(shard, req, &h).or_else(|e| Ok(refused(e).into()))
}

fn try_notify(shard: &Rc<Shard>, req: &Request<'_>, h: &Notification<'_>) -> Result<Answer, BrokerError> {
    const WHAT: &str = "notification";
    readable(shard, WHAT)?;
    let named = Named { what: WHAT, topic: h.topic, group: h.consumer_group, queue_id: h.queue_id };
    let (topic, group) = match find(shard, req, &named)? {
        Found::Both(topic, group) => (topic, group),
        Found::Asked(answer) => return Ok(answer),
    };
    let job = Job {
        origin: req.origin,
        mode: if h.order { Mode::Ordered } else { Mode::Pop },
        attempt: h.attempt_id.map(Arc::from),
        group,
        topic: RefCell::new(topic),
        queue_id: h.queue_id,
        max: 1,
        from_min: true,
        invisible_ms: 0,
        until_ms: if h.poll_ms > 0 { h.born_ms.saturating_add(h.poll_ms) } else { 0 },
        filter: Arc::new(Subscription::everything()),
        by_properties: PropertyFilter::None,
    };
    let shard = shard.clone();
    glommio::spawn_local(async move {
        let response = match park::available(&shard, &job).await {
            Some(false) if job.until_ms > shard.now_ms() && !shard.doors.is_closed() => {
                let origin = job.origin;
                match shard.park(Rc::new(Waiter::Notify(job))) {
                    true => return,
                    false => return shard.respond(origin, notified(false, true)),
                }
            }
            found => notified(found == Some(true), false),
        };
        shard.respond(job.origin, response);
    })
    .detach();
    Ok(Answer::Later)
}

/// 200055: how many wait, on all shards.
pub async fn polling_info(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = PollingInfo::decode(req.cmd)?;
    let found = readable(shard, "polling info").and_then(|()| {
        let topic = shard.topic(h.topic).ok_or_else(|| BrokerError::NoTopic(h.topic.into()))?;
        if h.queue_id >= topic.config.read_queue_nums {
            let remark = format!("queueId[{}] is illegal, topic:[{}]", h.queue_id, h.topic);
            return Err(BrokerError::refused(code::INVALID_PARAMETER, remark));
        }
        Ok(topic)
    });
    let topic = match found {
        Ok(topic) => topic,
        Err(e) => return Ok(responses::of_error(&e).with("pollingNum", 0)),
    };
    let (group, queue_id): (Arc<str>, i32) = (h.consumer_group.into(), h.queue_id);
    let counts = shard.run_on_all(move |s| {
        let (topic, group) = (topic.name.clone(), group.clone());
        async move { s.parked(&topic, &group, queue_id) }
    });
    let sum: usize = counts.await.into_iter().sum();
    Ok(Response::ok().with("pollingNum", sum as i64))
}
