//! Clients and their groups: heartbeats (34), unregistering (35), member lists (38), the check of a subscription (46), who is connected
//! (203, 204, 328). All on control. Source: behaviour sheet 5.1, 5.2; wire-protocol sheet 5.6, 5.7, 7.4; known faults N05, P06.
use crate::control::clients::Beat;
use crate::control::{self, topics};
use crate::error::BrokerError;
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use serde::de::DeserializeOwned;
use std::rc::Rc;
use std::sync::Arc;
use tracing::warn;
use uringmq_proto::body::heartbeat::{CheckClientRequest, ConsumeType, ConsumerData, EXPRESSION_SQL92, HeartbeatData};
use uringmq_proto::body::stats::{ConsumerConnection, ConsumerIdList, ProducerConnection, ProducerTable};
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::client::{ConsumerGroupOnly, ProducerGroupOnly, UnregisterClient};
use uringmq_proto::names;

/// The request's body, which must be a JSON object (known fault P06).
pub fn body<T: DeserializeOwned>(req: &Request<'_>) -> Result<T, BrokerError> {
    uringmq_proto::body::parse(req.cmd.body).map_err(|e| BrokerError::refused(code::SYSTEM_ERROR, e.to_string()))
}

/// Refuses a blank member of a body.
pub fn not_blank(member: &str, text: &str) -> Result<(), BrokerError> {
    match text.trim().is_empty() {
        true => Err(BrokerError::refused(code::SYSTEM_ERROR, format!("the request body's {member} is blank"))),
        false => Ok(()),
    }
}

/// An object as the answer's body.
pub fn json_answer<T: serde::Serialize>(value: &T) -> Answer {
    Response::ok().body(fastjson::to_vec(value)).into()
}

/// What the parts of one heartbeat changed.
#[derive(Default)]
struct Changes {
    topics: Vec<Arc<str>>,
    groups: Vec<Arc<str>>,
    notify: Vec<Arc<str>>,
    send_all: bool,
}

/// 34. Answered at once: neither the disk nor a NameServer delays it (known fault N06).
pub fn heart_beat(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let data: HeartbeatData = body(req)?;
    not_blank("clientID", &data.client_id)?;
    let beat = Beat {
        client_id: &data.client_id,
        conn: req.origin.conn,
        peer: req.origin.peer,
        language: req.origin.language,
        version: req.origin.version,
        fingerprint: data.heartbeat_fingerprint,
        without_sub: data.heartbeat_fingerprint != 0 && data.without_sub,
    };
    let reject_pulling = shard.config.borrow().reject_pull_consumer;
    let mut changes = Changes::default();
    for said in &data.consumer_data_set {
        if !(reject_pulling && said.consume_type == ConsumeType::Actively) {
            hear_consumer(shard, &beat, said, &mut changes);
        }
    }
    let control = shard.control();
    let now_ms = shard.now_ms();
    for producer in data.producer_data_set.iter().filter(|producer| !producer.group_name.trim().is_empty()) {
        control.clients.borrow_mut().hear_producer(&beat, &producer.group_name, now_ms);
    }
    if !changes.topics.is_empty() {
        let _ = control.topics_changed(shard, &changes.topics);
    }
    if !changes.groups.is_empty() {
        control.publish_groups(shard, &changes.groups);
    }
    changes.notify.iter().for_each(|group| control::notify_members(shard, group, true));
    let sub_change = beat.fingerprint == 0 || changes.send_all;
    Ok(Response::ok().with("IS_SUPPORT_HEART_BEAT_V2", true).with("IS_SUB_CHANGE", sub_change).into())
}

/// One consumer of a heartbeat. A group that may not come into being is skipped.
fn hear_consumer(shard: &Rc<Shard>, beat: &Beat<'_>, said: &ConsumerData, changes: &mut Changes) {
    let control = shard.control();
    let Some(config) = control::ensure_group(shard, &said.group_name) else { return };
    let now_ms = shard.now_ms();
    let ordered = |topic: &str| control.topics.borrow().get(topic).is_some_and(|topic| topic.config.order);
    // A light heartbeat names no topics: it says nothing about order.
    let order = (!beat.without_sub).then(|| said.subscription_data_set.iter().any(|sub| ordered(&sub.topic)));
    let flag = if said.unit_mode { topics::UNIT_SUB } else { 0 };
    let retry_topic = names::retry_topic(&said.group_name);
    let ensured = control.topics.borrow_mut().ensure(&retry_topic, config.retry_queue_nums, flag, order, now_ms);
    match ensured {
        Ok((topic, true)) => changes.topics.push(topic.name.clone()),
        Ok((_, false)) => {}
        Err(e) => warn!(group = said.group_name, error = %e, "no retry topic"),
    }
    let heard = control.clients.borrow_mut().hear_consumer(beat, said, now_ms);
    if !beat.without_sub {
        control.filters_heard(said, now_ms);
    }
    changes.send_all |= heard.send_all;
    if heard.visible {
        changes.groups.push(said.group_name.as_str().into());
    }
    if heard.notify {
        changes.notify.push(said.group_name.as_str().into());
    }
}

/// 35. Whoever is not registered, or was unregistered before, succeeds as well (known fault N05).
pub fn unregister_client(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = UnregisterClient::decode(req.cmd)?;
    let control = shard.control();
    if let Some(group) = h.producer_group {
        control.clients.borrow_mut().leave_producer(req.origin.conn, group);
    }
    if let Some(group) = h.consumer_group {
        let left = control.clients.borrow_mut().leave_consumer(req.origin.conn, group);
        control::members_left(shard, left.as_slice(), true);
    }
    Ok(Response::ok().into())
}

/// 38.
pub fn consumer_list(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = ConsumerGroupOnly::decode(req.cmd)?;
    let clients = shard.control().clients.borrow();
    let Some(group) = clients.group(h.consumer_group) else {
        let remark = format!("no consumer for this group, {}", h.consumer_group);
        return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
    };
    Ok(json_answer(&ConsumerIdList { consumer_id_list: group.client_ids() }))
}

/// 46. Tags are always served, expressions where they are enabled and compile (known fault L03).
pub fn check_client_config(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let request: CheckClientRequest = body(req)?;
    let Some(sub) = request.subscription_data.filter(|sub| !sub.is_tag()) else { return Ok(Response::ok().into()) };
    let kind = &sub.expression_type;
    if !shard.config.borrow().property_filter {
        let remark = format!("The broker does not support consumer to filter message by {kind}");
        return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
    }
    let compiled = match kind == EXPRESSION_SQL92 {
        true => shard.filters.get(&sub.sub_string).map_err(|e| e.to_string()),
        false => Err(format!("the expression type {kind} is unknown")),
    };
    compiled.map_err(|remark| BrokerError::refused(code::SUBSCRIPTION_PARSE_FAILED, remark))?;
    Ok(Response::ok().into())
}

/// 203.
pub fn consumer_connections(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = ConsumerGroupOnly::decode(req.cmd)?;
    let clients = shard.control().clients.borrow();
    let Some(group) = clients.group(h.consumer_group) else {
        let remark = format!("the consumer group[{}] not online", h.consumer_group);
        return Err(BrokerError::refused(code::CONSUMER_NOT_ONLINE, remark));
    };
    Ok(json_answer(&ConsumerConnection {
        connection_set: group.members().map(|client| client.connection()).collect(),
        consume_from_where: group.from_where,
        consume_type: group.consume_type,
        message_model: group.model,
        subscription_table: group.subscriptions.clone(),
    }))
}

/// 204.
pub fn producer_connections(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = ProducerGroupOnly::decode(req.cmd)?;
    let clients = shard.control().clients.borrow();
    let Some(members) = clients.producers(h.producer_group) else {
        let remark = format!("the producer group[{}] not exist", h.producer_group);
        return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
    };
    Ok(json_answer(&ProducerConnection { connection_set: members.map(|client| client.connection()).collect() }))
}

/// 328.
pub fn all_producers(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    Ok(json_answer(&ProducerTable { data: shard.control().clients.borrow().producer_infos() }))
}
