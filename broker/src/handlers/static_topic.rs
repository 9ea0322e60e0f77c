//! Static topics: a mapping comes (513), and requests that name a logical queue are led to the physical one, their answers back. Header
//! field `lo=false` says that a request names a physical queue already. Pops, statistics and resets are of physical queues.
//! Who leads a logical queue answers for all of it: what older part of it another broker has is asked of that one. Who does not lead it says 501.
//! Source: behaviour sheet 11.2; checked against Apache's broker 5.5.0.
use crate::control::mappings::{Found, MappingError, Part, Place};
use crate::control::topics::config_of_header;
use crate::error::BrokerError;
use crate::handlers::client::body;
use crate::handlers::offset::stopping;
use crate::handlers::{relay, topic, with_command};
use crate::requests::{Answer, Handler, Home, Origin, Request, Row};
use crate::responses;
use crate::shard::Shard;
use crate::shard::pulls::pull_refusal;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tracing::info;
use uringmq_proto::body::mapping::TopicQueueMappingDetail;
use uringmq_proto::codes::{request, response as code};
use uringmq_proto::command::{Command, Response, Value, write_request};
use uringmq_proto::headers::Header;
use uringmq_proto::headers::pull::{PullMessage, pull_flag};
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

/// Where a pull looks.
pub enum PullPlace {
    /// `None` for a topic that is not static.
    Here(Option<Place>),
    Elsewhere(Part),
}

/// Where a pull of this queue and offset looks.
///
/// # Errors
/// The answer: 501 when another broker has that part of the queue and leads it, 21 between two of its parts.
pub fn for_pull(
    shard: &Shard,
    cmd: &Command<'_>,
    (topic, queue, offset): (&str, i32, i64),
) -> Result<PullPlace, Response> {
    if !is_logical(shard, cmd, topic) {
        return Ok(PullPlace::Here(None));
    }
    let broker = &shard.config.borrow().broker_name;
    let refused = |remark: String| Err(Response::err(code::NOT_LEADER_FOR_QUEUE, remark));
    let mapping = &shard.mappings.borrow()[topic];
    match mapping.at(queue, offset) {
        None => {
            refused(format!("{topic}-{queue} cannot find mapping item in request process of current broker {broker}"))
        }
        Some(Found::Elsewhere(part)) if mapping.leader(queue).is_some() => Ok(PullPlace::Elsewhere(part)),
        Some(Found::Elsewhere(part)) => {
            let other = part.broker.unwrap_or_default();
            refused(format!("{topic}-{queue} has offset {offset} on broker {other}, not on {broker}"))
        }
        Some(Found::Behind(next)) => Err(pull_refusal(code::PULL_OFFSET_MOVED, "OFFSET_MOVED", next)),
        Some(Found::Here(place)) => Ok(PullPlace::Here(Some(place))),
    }
}

/// Has the broker that has this part of the queue answer a pull. It is not held there, and commits nothing.
pub fn forward_pull(shard: &Rc<Shard>, req: &Request<'_>, part: Part, h: &PullMessage<'_>) {
    let place = part.place;
    let left = part.end.map_or(i64::from(h.max_msg_nums), |end| end.saturating_sub(h.queue_offset));
    let mut ext = rewritten_ext(req.cmd, place);
    ext.retain(|(name, _)| !matches!(&**name, "queueOffset" | "sysFlag" | "maxMsgNums" | "suspendTimeoutMillis"));
    let flags = h.sys_flag & !(pull_flag::SUSPEND | pull_flag::COMMIT_OFFSET);
    ext.extend([
        ("queueOffset".to_owned(), h.queue_offset.saturating_sub(place.delta).to_string()),
        ("sysFlag".to_owned(), flags.to_string()),
        ("maxMsgNums".to_owned(), left.min(i64::from(h.max_msg_nums)).to_string()),
        ("suspendTimeoutMillis".to_owned(), "0".to_owned()),
    ]);
    let (shard, code, origin) = (shard.clone(), req.cmd.code, req.origin);
    glommio::spawn_local(async move {
        let response = match ask_peer(&shard, part.broker.unwrap_or_default(), code, ext).await {
            Ok(response) => pull_translated(response, place),
            Err(e) => responses::of_error(&e),
        };
        shard.respond(origin, response);
    })
    .detach();
}

/// What another broker answers to a request about a physical queue of its own.
async fn ask_peer(
    shard: &Rc<Shard>,
    broker: String,
    code: i32,
    mut ext: Vec<(String, String)>,
) -> Result<Response, BrokerError> {
    ext.push(("bname".to_owned(), broker.clone()));
    let asked = shard.run_on(0, move |shard| async move {
        let timeout = Duration::from_millis(shard.config.borrow().forward_timeout_ms);
        let answer = shard.control().peers.ask(&shard, &broker, code, ext, timeout).await;
        answer.map_err(|e| BrokerError::refused(code::SYSTEM_ERROR, e.to_string()))
    });
    asked.await.unwrap_or_else(|| Err(stopping().into())).map(relay::passed_on)
}

/// An answer to a pull by physical offsets, as one of the logical queue.
fn pull_translated(mut response: Response, place: Place) -> Response {
    for (name, value) in &mut response.ext {
        if let ("nextBeginOffset" | "minOffset" | "maxOffset", Value::Str(text)) = (&**name, &*value)
            && let Ok(offset) = text.parse::<i64>()
        {
            *value = Value::I64(offset.saturating_add(place.delta));
        }
    }
    response.ext.retain(|(name, _)| name != "offsetDelta");
    response.with("offsetDelta", place.delta)
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
    let tries = places.into_iter().map(|part| (rewritten_ext(req.cmd, part.place), part)).collect();
    let asked = Asked { row, origin: req.origin, topic: topic.into(), code: req.cmd.code };
    glommio::spawn_local(answer(shard.clone(), asked, tries)).detach();
    Some(Ok(Answer::Later))
}

/// The physical queues that a request is about: the first that knows an answer gives it.
fn places_of(shard: &Shard, cmd: &Command<'_>, (topic, queue): (&str, i32)) -> Result<Vec<Part>, BrokerError> {
    let mappings = shard.mappings.borrow();
    let mapping = &mappings[topic];
    // Who does not lead a queue says nothing of it.
    let place = mapping.leader(queue).ok_or_else(|| not_here(shard, topic, queue))?;
    let leader = || vec![Part { broker: None, place, end: None }];
    Ok(match cmd.code {
        request::GET_MIN_OFFSET | request::GET_EARLIEST_MSG_STORETIME => mapping.parts(queue).take(1).collect(),
        request::QUERY_CONSUMER_OFFSET => mapping.parts(queue).rev().collect(),
        request::SEARCH_OFFSET_BY_TIMESTAMP => mapping.parts(queue).collect(),
        request::UPDATE_CONSUMER_OFFSET => {
            let offset = cmd.ext.get("commitOffset").and_then(|offset| offset.trim().parse().ok()).unwrap_or(i64::MAX);
            match mapping.at(queue, offset) {
                Some(Found::Here(place)) => vec![Part { broker: None, place, end: None }],
                _ => leader(),
            }
        }
        _ => leader(),
    })
}

/// The fields of the request as it is for the physical queue.
fn rewritten_ext(cmd: &Command<'_>, place: Place) -> Vec<(String, String)> {
    let mut ext: Vec<(String, String)> = Vec::with_capacity(cmd.ext.0.len() + 2);
    for (name, value) in &cmd.ext.0 {
        let value = match &**name {
            "lo" | "setZeroIfNotFound" => continue,
            "queueId" => place.queue.to_string(),
            // What lies before its beginning is its beginning.
            "commitOffset" => match value.trim().parse::<i64>() {
                Ok(offset) => offset.saturating_sub(place.delta).max(0).to_string(),
                Err(_) => value.to_string(),
            },
            _ => value.to_string(),
        };
        ext.push((name.to_string(), value));
    }
    // A group that never committed is told so, wherever the physical queue begins.
    ext.extend(["lo", "setZeroIfNotFound"].map(|name| (name.to_owned(), "false".to_owned())));
    ext
}

/// A request that names a logical queue.
#[derive(Clone)]
struct Asked {
    row: &'static Row,
    origin: Origin,
    topic: Arc<str>,
    code: i32,
}

async fn answer(shard: Rc<Shard>, asked: Asked, tries: Vec<(Vec<(String, String)>, Part)>) {
    let mut last = BrokerError::refused(code::QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first");
    for (ext, part) in tries {
        let answered = match part.broker.clone() {
            Some(broker) => ask_peer(&shard, broker, asked.code, ext).await,
            None => ask(&shard, &asked, part.place, ext).await,
        };
        match answered {
            Ok(response) if response.code == code::SUCCESS => {
                let response = translated(response, part.place);
                // Nothing of this part is as late as what is searched for: the next one tells.
                let passed = asked.code == request::SEARCH_OFFSET_BY_TIMESTAMP
                    && part.end.is_some_and(|end| offset_of(&response).is_none_or(|offset| offset >= end));
                if !passed {
                    return shard.respond(asked.origin, response);
                }
            }
            Ok(response) if response.code != code::QUERY_NOT_FOUND => return shard.respond(asked.origin, response),
            Ok(_) => {}
            Err(e) => {
                let response = responses::of_error(&e);
                // What a part that cannot be asked would have said is not to be passed over.
                if response.code != code::QUERY_NOT_FOUND {
                    return shard.respond(asked.origin, response);
                }
                last = e;
            }
        }
    }
    shard.respond(asked.origin, responses::of_error(&last));
}

fn offset_of(response: &Response) -> Option<i64> {
    let found = response.ext.iter().find(|(name, _)| name == "offset")?;
    if let Value::I64(offset) = found.1 { Some(offset) } else { None }
}

/// Has the owner of the physical queue handle the request.
async fn ask(
    shard: &Rc<Shard>,
    asked: &Asked,
    place: Place,
    ext: Vec<(String, String)>,
) -> Result<Response, BrokerError> {
    let Asked { row, origin, .. } = *asked;
    let ext: Vec<(&str, Value<'_>)> = ext.iter().map(|(name, value)| (&**name, Value::from(&**value))).collect();
    let mut frame = Vec::new();
    write_request(&mut frame, asked.code, 0, false, &ext, b"");
    let key = crate::handlers::offset::queue_key(shard, &asked.topic, place.queue as i32);
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
            // Another broker's.
            Value::Str(text) if name == "offset" => match text.parse() {
                Ok(offset) => offset,
                Err(_) => continue,
            },
            _ => continue,
        };
        if name == "offset" {
            *value = Value::I64(offset.saturating_add(place.delta));
        }
    }
    response
}
