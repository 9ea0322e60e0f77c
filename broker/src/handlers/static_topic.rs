//! Static topics: a mapping comes (513), and requests that name a logical queue are led to the physical one, their answers back. Header
//! field `lo=false` says that a request names a physical queue already. Pops, statistics and resets are of physical queues.
//! Source: behaviour sheet 11.2; checked against Apache's broker 5.5.0. What another broker has of a logical queue is refused with 501:
//! nothing is fetched from there.
use crate::control::mappings::{Found, MappingError, Place};
use crate::control::topics::config_of_header;
use crate::error::BrokerError;
use crate::handlers::client::body;
use crate::handlers::offset::stopping;
use crate::handlers::{topic, with_command};
use crate::requests::{Answer, Handler, Home, Origin, Request, Row};
use crate::responses;
use crate::shard::Shard;
use crate::shard::pulls::pull_refusal;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use tracing::info;
use uringmq_proto::body::mapping::TopicQueueMappingDetail;
use uringmq_proto::codes::{request, response as code};
use uringmq_proto::command::{Command, Response, Value, write_request};
use uringmq_proto::headers::Header;
use uringmq_proto::headers::topic::CreateTopic;

fn refused(e: MappingError) -> BrokerError {
    BrokerError::refused(code::SYSTEM_ERROR, e.to_string())
}

/// 513. Without a body it is as 17. A mapping that is refused makes no topic.
pub async fn create(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = CreateTopic::decode(req.cmd)?;
    let config = config_of_header(&h).map_err(topic::refused)?;
    let detail: Option<TopicQueueMappingDetail> = if req.cmd.body.is_empty() { None } else { Some(body(req)?) };
    let control = shard.control();
    if let Some(detail) = &detail {
        control.mappings.borrow().check(h.topic, detail, h.force).map_err(refused)?;
    }
    let made = topic::create_all(shard, req, vec![config]).await?;
    let Some(detail) = detail else { return Ok(made) };
    // Another one may have come meanwhile.
    control.mappings.borrow().check(h.topic, &detail, h.force).map_err(refused)?;
    info!(topic = h.topic, epoch = detail.epoch, queues = detail.total_queues, by = %req.origin.peer, "static topic");
    control.mappings.borrow_mut().put(detail, shard.now_ms());
    control.mappings_changed(shard).await?;
    // NameServers take a mapping with a newer table only.
    control.topics.borrow_mut().step_version(shard.now_ms());
    let change = control.topics_changed(shard, &[h.topic.into()]);
    control.settle(change).await?;
    shard.taken_by_all().await;
    Ok(made)
}

/// Whether the request names a queue of a static topic by its logical number.
fn is_logical(shard: &Shard, cmd: &Command<'_>, topic: &str) -> bool {
    let mappings = shard.mappings.borrow();
    !mappings.is_empty() && mappings.contains_key(topic) && cmd.ext.get("lo").is_none_or(|lo| lo != "false")
}

fn not_here(shard: &Shard, topic: &str, queue: i32) -> BrokerError {
    let broker = &shard.config.borrow().broker_name;
    let remark = format!("{topic}-{queue} does not exit in request process of current broker {broker}");
    BrokerError::refused(code::NOT_LEADER_FOR_QUEUE, remark)
}

/// Where a message for a logical queue goes, and the logical queue; `None` for a topic that is not static. A queue below 0 is any.
///
/// # Errors
/// 501: another broker leads that queue.
pub fn for_send(
    shard: &Shard,
    cmd: &Command<'_>,
    topic: &str,
    queue: i32,
    turn: usize,
) -> Result<Option<(i32, Place)>, BrokerError> {
    if !is_logical(shard, cmd, topic) {
        return Ok(None);
    }
    let mappings = shard.mappings.borrow();
    let mapping = &mappings[topic];
    let found = match queue {
        0.. => mapping.leader(queue).map(|place| (queue, place)),
        _ => {
            let led: Vec<(i32, Place)> = mapping.led().collect();
            led.get(turn % led.len().max(1)).copied()
        }
    };
    found.map(Some).ok_or_else(|| not_here(shard, topic, queue))
}

/// Where a pull looks; `None` for a topic that is not static.
///
/// # Errors
/// The answer: 501 when that part of the queue is another broker's, 21 between two of its parts.
pub fn for_pull(
    shard: &Shard,
    cmd: &Command<'_>,
    (topic, queue, offset): (&str, i32, i64),
) -> Result<Option<Place>, Response> {
    if !is_logical(shard, cmd, topic) {
        return Ok(None);
    }
    let broker = &shard.config.borrow().broker_name;
    let refused = |remark: String| Err(Response::err(code::NOT_LEADER_FOR_QUEUE, remark));
    match shard.mappings.borrow()[topic].at(queue, offset) {
        None => {
            refused(format!("{topic}-{queue} cannot find mapping item in request process of current broker {broker}"))
        }
        Some(Found::Elsewhere(other)) => {
            refused(format!("{topic}-{queue} has offset {offset} on broker {other}, not on {broker}"))
        }
        Some(Found::Behind(next)) => Err(pull_refusal(code::PULL_OFFSET_MOVED, "OFFSET_MOVED", next)),
        Some(Found::Here(place)) => Ok(Some(place)),
    }
}

/// Takes a request about a queue's offsets if it names a logical one; then it is answered from here.
pub fn take(shard: &Rc<Shard>, row: &'static Row, req: &Request<'_>) -> Option<Result<Answer, BrokerError>> {
    if row.home != Home::Owner || shard.mappings.borrow().is_empty() {
        return None;
    }
    let (topic, queue) = (req.cmd.ext.get("topic")?, req.cmd.ext.get("queueId")?.trim().parse::<i32>().ok()?);
    if !is_logical(shard, req.cmd, topic) {
        return None;
    }
    let places = match places_of(shard, req.cmd, (topic, queue)) {
        Ok(places) => places,
        Err(e) => return Some(Err(e)),
    };
    let tries = places.into_iter().map(|place| (place, rewritten(req.cmd, place))).collect();
    let topic: Arc<str> = topic.into();
    glommio::spawn_local(answer(shard.clone(), row, req.origin, topic, tries)).detach();
    Some(Ok(Answer::Later))
}

/// The physical queues that a request is about: the first that knows an answer gives it.
fn places_of(shard: &Shard, cmd: &Command<'_>, (topic, queue): (&str, i32)) -> Result<Vec<Place>, BrokerError> {
    let mappings = shard.mappings.borrow();
    let mapping = &mappings[topic];
    // Who does not lead a queue says nothing of it.
    let leader = mapping.leader(queue).ok_or_else(|| not_here(shard, topic, queue))?;
    let first = || mapping.first(queue).ok_or_else(|| not_here(shard, topic, queue));
    Ok(match cmd.code {
        request::GET_MIN_OFFSET | request::GET_EARLIEST_MSG_STORETIME => vec![first()?],
        request::QUERY_CONSUMER_OFFSET => mapping.places(queue).collect(),
        request::UPDATE_CONSUMER_OFFSET => {
            let offset = cmd.ext.get("commitOffset").and_then(|offset| offset.trim().parse().ok()).unwrap_or(i64::MAX);
            match mapping.at(queue, offset) {
                Some(Found::Here(place)) => vec![place],
                _ => vec![leader],
            }
        }
        _ => vec![leader],
    })
}

/// The request as it is for the physical queue.
fn rewritten(cmd: &Command<'_>, place: Place) -> Vec<u8> {
    let text = |value: &str| Value::Str(Cow::Owned(value.to_owned()));
    let mut ext: Vec<(&str, Value<'_>)> = Vec::with_capacity(cmd.ext.0.len() + 2);
    for (name, value) in &cmd.ext.0 {
        match &**name {
            "lo" | "setZeroIfNotFound" => {}
            "queueId" => ext.push((name, Value::U64(place.queue.into()))),
            // What lies before its beginning is its beginning.
            "commitOffset" => ext.push(match value.trim().parse::<i64>() {
                Ok(offset) => (name, Value::I64(offset.saturating_sub(place.delta).max(0))),
                Err(_) => (name, text(value)),
            }),
            _ => ext.push((name, text(value))),
        }
    }
    // A group that never committed is told so, wherever the physical queue begins.
    ext.extend([("lo", Value::Bool(false)), ("setZeroIfNotFound", Value::Bool(false))]);
    let mut frame = Vec::new();
    write_request(&mut frame, cmd.code, cmd.opaque, false, &ext, cmd.body);
    frame
}

async fn answer(shard: Rc<Shard>, row: &'static Row, origin: Origin, topic: Arc<str>, tries: Vec<(Place, Vec<u8>)>) {
    let mut last = BrokerError::refused(code::QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first");
    for (place, frame) in tries {
        match ask(&shard, row, origin, &topic, place, frame).await {
            Ok(response) if response.code == code::SUCCESS => {
                return shard.respond(origin, translated(response, place));
            }
            Ok(response) if response.code != code::QUERY_NOT_FOUND => return shard.respond(origin, response),
            Ok(_) => {}
            Err(e) => last = e,
        }
    }
    shard.respond(origin, responses::of_error(&last));
}

/// Has the owner of the physical queue handle the request.
async fn ask(
    shard: &Rc<Shard>,
    row: &'static Row,
    origin: Origin,
    topic: &str,
    place: Place,
    frame: Vec<u8>,
) -> Result<Response, BrokerError> {
    let key = crate::handlers::offset::queue_key(shard, topic, place.queue as i32);
    let owner = key.map_or(shard.id, |key| shard.owner(key));
    let handled = shard.run_on(owner, move |owner| async move {
        match row.handler {
            Handler::Task(handler) => handler(owner, Rc::new(frame), origin).await,
            Handler::Sync(handler) => {
                with_command(&frame, async |cmd| {
                    match handler(&owner, &Request { cmd, frame: &frame, origin, retried: true })? {
                        Answer::Now(response) => Ok(response),
                        Answer::Later | Answer::Retry => Err(BrokerError::from(stopping())),
                    }
                })
                .await
            }
        }
    });
    handled.await.unwrap_or_else(|| Err(stopping().into()))
}

fn translated(mut response: Response, place: Place) -> Response {
    for (name, value) in &mut response.ext {
        let offset = match value {
            Value::I64(offset) => *offset,
            Value::U64(offset) => i64::try_from(*offset).unwrap_or(i64::MAX),
            _ => continue,
        };
        if name == "offset" {
            *value = Value::I64(offset.saturating_add(place.delta));
        }
    }
    response
}
