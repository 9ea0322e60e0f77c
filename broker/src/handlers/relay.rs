//! Requests that only a client can answer: its running information (307), consuming one message by hand (309), how far it is (223 by
//! 221), and resetting offsets the old way, by telling every client (220). All on control, which knows the clients.
//! Source: behaviour sheet 5.4, 5.7; wire-protocol sheet 7.3, 7.4, 8.
use crate::error::BrokerError;
use crate::handlers::offset::{reset_body, stopping, time_target};
use crate::handlers::query;
use crate::requests::Request;
use crate::shard::Shard;
use crate::snapshot::Topic;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tracing::info;
use uringmq_proto::body::offset::{ConsumerStatusBody, MessageQueueForC, ResetOffsetBodyForC};
use uringmq_proto::codes::{request, response as code};
use uringmq_proto::command::{OwnedCommand, Response, Value};
use uringmq_proto::fastjson;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::admin::{GetConsumerStatus, ResetConsumerOffset};
use uringmq_proto::headers::client::{ConsumeMessageDirectly, GetConsumerRunningInfo};
use uringmq_proto::message;
use uringmq_proto::types::QueueKey;
use uringmq_remoting::ConnId;
use uringmq_remoting::connection::CallError;

const RELAY_TIMEOUT: Duration = Duration::from_secs(10);
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// 3.1.8-SNAPSHOT: the first client that answers 307 and 309.
const RELAY_FROM_VERSION: i32 = 62;
/// 3.0.7-SNAPSHOT: the first client that understands 220 and 221.
const RESET_FROM_VERSION: i32 = 28;
/// Language code of clients that take the list form of 220.
const LANGUAGE_CPP: u8 = 1;

/// A member of a consumer group, as much as a relay needs.
#[derive(Clone, Debug)]
struct Member {
    client_id: Arc<str>,
    conn: ConnId,
    version: i32,
}

fn members(shard: &Shard, group: &str) -> Vec<Member> {
    let clients = shard.control().clients.borrow();
    let members = clients.group(group).into_iter().flat_map(|group| group.members());
    members.map(|c| Member { client_id: c.client_id.clone(), conn: c.conn, version: c.version }).collect()
}

/// The newest connection of one client, or of any when none is named.
fn find_member(shard: &Shard, group: &str, client_id: Option<&str>) -> Result<Member, BrokerError> {
    let wanted = |member: &Member| client_id.is_none_or(|id| *member.client_id == *id);
    let found = members(shard, group).into_iter().filter(wanted).max_by_key(|member| member.conn.serial);
    let id = client_id.unwrap_or("");
    let member = found
        .ok_or_else(|| BrokerError::refused(code::SYSTEM_ERROR, format!("The Consumer <{group}> <{id}> not online")))?;
    if member.version < RELAY_FROM_VERSION {
        let remark = format!(
            "The Consumer <{id}> Version <{}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT",
            member.version
        );
        return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
    }
    Ok(member)
}

/// Fields that outlive the request they come from.
fn owned(ext: Vec<(&'static str, Value<'_>)>) -> Vec<(&'static str, Value<'static>)> {
    let own = |value| match value {
        Value::Str(text) => Value::Str(text.into_owned().into()),
        Value::I64(n) => Value::I64(n),
        Value::U64(n) => Value::U64(n),
        Value::Bool(b) => Value::Bool(b),
    };
    ext.into_iter().map(|(key, value)| (key, own(value))).collect()
}

/// The client's answer for the asker, unchanged.
pub fn passed_on(answer: OwnedCommand) -> Response {
    let ext = answer.ext.into_iter().map(|(key, value)| (key.into(), Value::from(value))).collect();
    Response { code: answer.code, remark: answer.remark.map(Into::into), ext, body: answer.body }
}

async fn relay(
    shard: &Rc<Shard>,
    (group, member): (&str, Member),
    code: i32,
    ext: Vec<(&'static str, Value<'_>)>,
    body: Vec<u8>,
) -> Result<Response, BrokerError> {
    match shard.call_client(member.conn, code, owned(ext), body, RELAY_TIMEOUT).await {
        Ok(answer) => Ok(passed_on(answer)),
        Err(e @ CallError::Timeout { .. }) => {
            let remark = format!("consumer <{group}> <{}> Timeout: {e}", member.client_id);
            Err(BrokerError::refused(code::CONSUME_MSG_TIMEOUT, remark))
        }
        Err(e) => {
            let remark = format!("invoke consumer <{group}> <{}> Exception: {e}", member.client_id);
            Err(BrokerError::refused(code::SYSTEM_ERROR, remark))
        }
    }
}

/// 307.
pub async fn consumer_running_info(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = GetConsumerRunningInfo::decode(req.cmd)?;
    let member = find_member(shard, h.consumer_group, Some(h.client_id))?;
    relay(shard, (h.consumer_group, member), request::GET_CONSUMER_RUNNING_INFO, h.ext(), Vec::new()).await
}

/// 309: the client gets the stored bytes of the message that `msgId` (an offset id) names.
pub async fn consume_directly(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let mut h = ConsumeMessageDirectly::decode(req.cmd)?;
    let member = find_member(shard, h.consumer_group, h.client_id)?;
    let mut body = Vec::new();
    if let Some(id) = h.msg_id {
        let offset = message::parse_offset_id(id).and_then(|(_, offset)| i64::try_from(offset).ok());
        let found = match offset {
            Some(offset) => query::read_at(shard, offset).await?,
            None => None,
        };
        let missing = || BrokerError::refused(code::SYSTEM_ERROR, format!("can not find message by the id, {id}"));
        body = found.ok_or_else(missing)?;
    }
    let (broker, groups) = (shard.config().broker_name.clone(), shard.groups.borrow().clone());
    h.broker_name = Some(&broker);
    h.topic_sys_flag = h.topic.and_then(|name| shard.topic(name)).map(|topic| topic.config.topic_sys_flag);
    h.group_sys_flag = groups.get(h.consumer_group).map(|group| group.config.group_sys_flag);
    relay(shard, (h.consumer_group, member), request::CONSUME_MESSAGE_DIRECTLY, h.ext(), body).await
}

/// 223: asks the members (one of them when it is named) how far they are on a topic.
pub async fn consumer_status(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = GetConsumerStatus::decode(req.cmd)?;
    let members = members(shard, h.group);
    if members.is_empty() {
        let remark = format!("No Any Consumer online in the consumer group: [{}]", h.group);
        return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
    }
    let mut body = ConsumerStatusBody::default();
    for member in members.into_iter().filter(|m| h.client_addr.is_none_or(|id| *m.client_id == *id)) {
        if member.version < RESET_FROM_VERSION {
            return Err(too_old(&member));
        }
        let ext = owned(vec![("topic", Value::from(h.topic)), ("group", Value::from(h.group))]);
        let code = request::GET_CONSUMER_STATUS_FROM_CLIENT;
        let answer = shard.call_client(member.conn, code, ext, Vec::new(), STATUS_TIMEOUT).await;
        // One that does not answer is left out, as Apache's broker does.
        let answer = answer.ok().filter(|answer| answer.code == code::SUCCESS && !answer.body.is_empty());
        if let Some(said) = answer.and_then(|a| fastjson::from_slice::<ConsumerStatusBody>(&a.body).ok()) {
            body.consumer_table.insert(member.client_id.to_string(), said.message_queue_table);
        }
    }
    Ok(Response::ok().body(fastjson::to_vec(&body)))
}

fn too_old(member: &Member) -> BrokerError {
    let remark = format!("the client does not support this feature. version={}", member.version);
    BrokerError::refused(code::SYSTEM_ERROR, remark)
}

/// Where one queue is told to go the old way: never ahead of where the group is, unless forced.
fn old_target(by_time: u64, committed: i64, force: bool) -> u64 {
    if force { by_time } else { by_time.min(committed.max(0) as u64) }
}

/// 222 with useServerSideResetOffset off: every member is told (220) where to go on.
pub async fn reset_by_clients(
    shard: &Rc<Shard>,
    topic: &Arc<Topic>,
    h: &ResetConsumerOffset<'_>,
    language: u8,
) -> Result<Response, BrokerError> {
    let mut offsets = BTreeMap::new();
    for queue in 0..topic.config.write_queue_nums.max(0) as u32 {
        let key = QueueKey { topic: topic.id, queue };
        let (group, timestamp_ms) = (h.group.to_owned(), h.timestamp_ms);
        let asked = shard.run_on(shard.owner(key), move |owner| async move {
            let by_time = time_target(&owner, key, timestamp_ms).await?;
            Ok((by_time, owner.offsets.get(key, &group)))
        });
        let (by_time, committed) = asked.await.unwrap_or_else(|| Err(stopping()))?;
        let committed = committed.ok_or_else(|| {
            BrokerError::refused(code::SYSTEM_ERROR, format!("The consumer group <{}> not exist", h.group))
        })?;
        offsets.insert(queue, old_target(by_time, committed, h.is_force));
    }
    let members = members(shard, h.group);
    if members.is_empty() {
        let remark = format!(
            "Consumer not online, so can not reset offset, Group: [{}] Topic: [{}] Timestamp: [{}]",
            h.group, h.topic, h.timestamp_ms
        );
        return Err(BrokerError::refused(code::CONSUMER_NOT_ONLINE, remark));
    }
    if let Some(member) = members.iter().find(|member| member.version < RESET_FROM_VERSION) {
        return Err(too_old(member));
    }
    let answer = reset_body(shard, topic, &offsets);
    let told = if language == LANGUAGE_CPP { list_body(shard, topic, &offsets) } else { answer.clone() };
    let header = ResetConsumerOffset { queue_id: -1, offset: -1, ..*h };
    for member in &members {
        shard.push_oneway(member.conn, request::RESET_CONSUMER_CLIENT_OFFSET, owned(header.ext()), told.clone());
    }
    info!(topic = h.topic, group = h.group, members = members.len(), "clients were told to reset their offsets");
    Ok(Response::ok().body(answer))
}

fn list_body(shard: &Shard, topic: &Topic, offsets: &BTreeMap<u32, u64>) -> Vec<u8> {
    let broker = shard.config().broker_name.clone();
    let row = |(queue, offset): (&u32, &u64)| MessageQueueForC {
        broker_name: broker.clone(),
        offset: *offset as i64,
        queue_id: *queue as i32,
        topic: topic.name.to_string(),
    };
    fastjson::to_vec(&ResetOffsetBodyForC { offset_table: offsets.iter().map(row).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_way_goes_forward_only_by_force() {
        assert_eq!((old_target(5, 9, false), old_target(50, 9, false)), (5, 9));
        assert_eq!(old_target(50, 9, true), 50);
        assert_eq!(old_target(50, -1, false), 0);
    }

    #[test]
    fn a_clients_answer_is_passed_on_whole() {
        let answer = OwnedCommand {
            code: 1,
            remark: Some("why".to_owned()),
            ext: vec![("a".to_owned(), "b".to_owned())],
            body: b"{}".to_vec(),
            opaque: 77,
            ..OwnedCommand::default()
        };
        let response = passed_on(answer);
        assert_eq!((response.code, response.remark.as_deref(), response.body.as_slice()), (1, Some("why"), &b"{}"[..]));
        assert_eq!(response.ext, [("a".into(), Value::from("b".to_owned()))]);
    }

    #[test]
    fn relayed_fields_are_those_of_the_request() {
        let h = GetConsumerRunningInfo { consumer_group: "g", client_id: "c", jstack_enable: true };
        let fields = owned(h.ext());
        assert_eq!(
            fields,
            [("consumerGroup", Value::from("g")), ("clientId", Value::from("c")), ("jstackEnable", Value::Bool(true)),]
        );
    }
}
