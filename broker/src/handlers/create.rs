//! What a request on a connection's shard lacks and only control can make: a topic from the default topic it names, a group, a retry
//! topic. Also what control alone can say about sends to retry topics. Source: behaviour sheet 3.3, 3.4, 4.1 row 3, 6.1.
use crate::control::topics::Template;
use crate::control::{self, topics};
use crate::error::BrokerError;
use crate::handlers::light;
use crate::handlers::send::{make_uniq_key, with_region};
use crate::mesh::{Forward, Msg};
use crate::pop::ask::no_pop;
use crate::requests::{Answer, Origin, Request};
use crate::responses;
use crate::shard::Shard;
use crate::shard::appends::NewMessage;
use crate::snapshot::Topic;
use crate::timer::put;
use std::rc::Rc;
use std::sync::Arc;
use tracing::{info, warn};
use uringmq_proto::body::group::SubscriptionGroupConfig;
use uringmq_proto::codes::{request, response as code};
use uringmq_proto::command::Response;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::pull::PullMessage;
use uringmq_proto::headers::send::{ConsumerSendMsgBack, SendMessage};
use uringmq_proto::message::{self, prop, sys_flag};
use uringmq_proto::names;

/// Clients older than this (3.4.9) do not mean what their maxReconsumeTimes says.
const OWN_LIMIT_FROM_VERSION: i32 = 121;

/// Makes what the request lacks and has it run again where it came in; at once, or (a new topic) when it is on stable storage and
/// told to the NameServers that answer.
///
/// # Errors
/// What the client is told when it may not be made.
pub fn make_missing(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    match req.cmd.code {
        request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => {
            let h = PullMessage::decode(req.cmd)?;
            if shard.config.borrow().light_queues() {
                control::make_lights(shard, std::iter::once(h.topic))?;
            }
            group(shard, h.consumer_group).map(|_| Answer::Retry)
        }
        request::POP_MESSAGE | request::PEEK_MESSAGE | request::NOTIFICATION => {
            let name = req.cmd.ext.get("consumerGroup").unwrap_or_default();
            let refused = |e: BrokerError| match req.cmd.code {
                request::NOTIFICATION => responses::of_error(&e).with("hasMsg", false).with("pollingFull", false),
                _ => no_pop(responses::of_error(&e), 0),
            };
            group(shard, name).map(|_| Answer::Retry).or_else(|e| Ok(refused(e).into()))
        }
        request::CONSUMER_SEND_MSG_BACK => {
            let h = ConsumerSendMsgBack::decode(req.cmd)?;
            let config = group(shard, h.group)?;
            match config.retry_queue_nums > 0 {
                true => {
                    topic_for_retries(shard, req, &names::retry_topic(h.group), config.retry_queue_nums, h.unit_mode)
                }
                false => Ok(Answer::Retry),
            }
        }
        _ => {
            let h = SendMessage::decode(req.cmd)?;
            let lights = message::property(h.properties, prop::INNER_MULTI_DISPATCH);
            let lights = light::wanted(&shard.config(), h.topic, lights).unwrap_or_default();
            let lights = control::make_lights(shard, lights.split(','));
            let made = lights.and_then(|()| put::check_congestion(shard, h.properties)).and_then(|()| {
                match h.topic.strip_prefix(names::RETRY_PREFIX) {
                    Some(rest) => retry_send(shard, req, &h, rest),
                    None => first_send(shard, req, &h),
                }
            });
            made.or_else(|e| Ok(Answer::Now(with_region(shard, responses::of_error(&e)))))
        }
    }
}

fn group(shard: &Shard, name: &str) -> Result<SubscriptionGroupConfig, BrokerError> {
    control::ensure_group(shard, name).ok_or_else(|| BrokerError::NoGroup(name.to_owned()))
}

fn refused(e: topics::TopicError) -> BrokerError {
    BrokerError::refused(e.code(), e.to_string())
}

fn forward_of(req: &Request<'_>) -> Forward {
    Forward { frame: req.frame.to_vec(), origin: req.origin }
}

/// A send to a topic that its connection's shard does not know.
fn first_send(shard: &Rc<Shard>, req: &Request<'_>, h: &SendMessage<'_>) -> Result<Answer, BrokerError> {
    let enabled = shard.config.borrow().auto_create_topic;
    let template =
        Template { default_topic: h.default_topic, queues: h.default_topic_queue_nums, unit: h.unit_mode, enabled };
    let now_ms = shard.now_ms();
    with_topic(shard, req, h.topic, |topics| topics.auto_create(h.topic, template, now_ms))
}

fn topic_for_retries(
    shard: &Rc<Shard>,
    req: &Request<'_>,
    name: &str,
    queues: i32,
    unit: bool,
) -> Result<Answer, BrokerError> {
    let (flag, now_ms) = (if unit { topics::UNIT_SUB } else { 0 }, shard.now_ms());
    with_topic(shard, req, name, |topics| topics.ensure(name, queues, flag, None, now_ms).map(|(topic, _)| Some(topic)))
}

/// Has the request run again once the topic that `make` gives is there.
fn with_topic(
    shard: &Rc<Shard>,
    req: &Request<'_>,
    name: &str,
    make: impl FnOnce(&mut topics::Topics) -> Result<Option<Arc<Topic>>, topics::TopicError>,
) -> Result<Answer, BrokerError> {
    let control = shard.control();
    if control.making.join(name, forward_of(req)).is_ok() {
        return Ok(Answer::Later);
    }
    if control.topics.borrow().get(name).is_some() {
        return Ok(Answer::Retry);
    }
    if control.deletions.pending() {
        let (shard, again) = (shard.clone(), forward_of(req));
        glommio::spawn_local(async move {
            shard.control().deletions.over().await;
            shard.mesh.push(shard.id, Msg::Forward(Box::new(again)));
        })
        .detach();
        return Ok(Answer::Later);
    }
    let made = make(&mut control.topics.borrow_mut()).map_err(refused)?;
    let Some(topic) = made else { return Err(BrokerError::NoTopic(name.to_owned())) };
    info!(topic = %topic.name, queues = topic.config.write_queue_nums, by = %req.origin.peer, "topic made for a send");
    control.making.begin(name, forward_of(req));
    let (saved, shard) = (control.topics_made(), shard.clone());
    glommio::spawn_local(async move {
        let control = shard.control();
        // A table that cannot be saved does not stop the sends: it stays changed, and is tried again.
        if let Err(e) = control.topics_saved(saved).await {
            warn!(topic = %topic.name, error = %e, "a new topic is not saved yet");
        }
        let change = control.topics_changed(&shard, std::slice::from_ref(&topic.name));
        let _ = control.settle(change).await; // as above
        for waiting in control.making.end(&topic.name) {
            shard.mesh.push(waiting.origin.conn.shard, Msg::Retry(Box::new(waiting)));
        }
    })
    .detach();
    Ok(Answer::Later)
}

/// A send to a retry topic, by a consumer whose send-back failed. `rest` is the topic's name without its prefix.
fn retry_send(shard: &Rc<Shard>, req: &Request<'_>, h: &SendMessage<'_>, rest: &str) -> Result<Answer, BrokerError> {
    let name = rest.split_once('+').map_or(rest, |(group, _)| group);
    let config = group(shard, name)?;
    let limit = h.max_reconsume_times.filter(|_| req.origin.version >= OWN_LIMIT_FROM_VERSION);
    let limit = limit.unwrap_or(config.retry_max_times);
    if h.reconsume_times > limit || shard.control().is_locked(name, shard.now_ms()) {
        return bury(shard, req, h, name);
    }
    topic_for_retries(shard, req, h.topic, 1, h.unit_mode)
}

/// Stores a message that was tried too often, or of a group that consumes orderly just now, as a dead letter.
fn bury(shard: &Rc<Shard>, req: &Request<'_>, h: &SendMessage<'_>, group: &str) -> Result<Answer, BrokerError> {
    let max = shard.config.borrow().message_bytes_max;
    if req.cmd.body.is_empty() || req.cmd.body.len() > max {
        let remark = format!("the message is illegal: a body of {} bytes, limit {max}", req.cmd.body.len());
        return Err(BrokerError::refused(code::MESSAGE_ILLEGAL, remark));
    }
    let mut properties = message::without(h.properties, &[prop::DELAY]);
    message::push_property(&mut properties, prop::DELAY, "-1");
    properties += shard.appends.stamp();
    if message::property(h.properties, prop::UNIQ_KEY).is_none() {
        message::push_property(&mut properties, prop::UNIQ_KEY, &make_uniq_key(shard, shard.now_ms()));
    }
    let letter = DeadLetter {
        topic: control::ensure_topic(shard, &names::dlq_topic(group), 1, 0)?,
        flag: h.flag,
        sys_flag: h.sys_flag & !sys_flag::OF_BROKER,
        born_timestamp_ms: h.born_timestamp_ms,
        reconsume_times: h.reconsume_times,
        body: req.cmd.body.to_vec(),
        properties,
    };
    let (shard, origin) = (shard.clone(), req.origin);
    glommio::spawn_local(async move {
        let response = letter.store(&shard, origin).await.unwrap_or_else(|e| responses::of_error(&e));
        let response = with_region(&shard, response);
        shard.respond(origin, response);
    })
    .detach();
    Ok(Answer::Later)
}

struct DeadLetter {
    topic: Arc<Topic>,
    flag: i32,
    sys_flag: i32,
    born_timestamp_ms: i64,
    reconsume_times: i32,
    body: Vec<u8>,
    properties: String,
}

impl DeadLetter {
    async fn store(&self, shard: &Rc<Shard>, origin: Origin) -> Result<Response, BrokerError> {
        let receipt = shard
            .append(NewMessage {
                topic: &self.topic,
                queue: 0,
                flag: self.flag,
                sys_flag: self.sys_flag,
                born_timestamp_ms: self.born_timestamp_ms,
                born_host: origin.peer,
                reconsume_times: self.reconsume_times,
                prepared_transaction_offset: 0,
                body: &self.body,
                properties: &self.properties,
                wait_durable: true,
            })
            .await?;
        let mut id = String::new();
        message::write_offset_id(&mut id, shard.store_host, receipt.phy.0);
        let answer = Response::ok().with("msgId", id).with("queueId", 0).with("queueOffset", receipt.queue_offset.0);
        Ok(match message::property(&self.properties, prop::UNIQ_KEY) {
            Some(key) => answer.with("transactionId", key.to_owned()),
            None => answer,
        })
    }
}
