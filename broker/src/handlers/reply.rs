//! Replies of request-reply: SEND_REPLY_MESSAGE (324), its short form (325). The reply is pushed to the client that asked (326) and, with
//! `storeReplyMessageEnable`, stored as well, whatever came of the push. On control, which knows the clients.
//! Source: behaviour sheet 3.9, wire-protocol sheet 5.2.
use crate::error::BrokerError;
use crate::handlers::send::{admit, with_region};
use crate::requests::Request;
use crate::responses;
use crate::shard::Shard;
use crate::shard::appends::NewMessage;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tracing::warn;
use uringmq_proto::codes::{request, response as code};
use uringmq_proto::command::{Response, Value};
use uringmq_proto::headers::Header;
use uringmq_proto::headers::send::SendMessage;
use uringmq_proto::message::{self, prop, sys_flag};

/// How long the client that asked may take to take its reply.
const PUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// 324, 325.
pub async fn send_reply(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let answer = try_send(shard, req).await.unwrap_or_else(|e| responses::of_error(&e));
    Ok(with_region(shard, answer))
}

async fn try_send(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = SendMessage::decode(req.cmd)?;
    let config = shard.config();
    let now_ms = shard.now_ms();
    admit(shard, h.topic, now_ms)?;
    let topic = shard.topic(h.topic).ok_or_else(|| BrokerError::NoTopic(h.topic.to_owned()))?;
    if h.queue_id >= topic.config.read_queue_nums.max(topic.config.write_queue_nums) {
        let remark = format!("request queueId[{}] is illegal, topic {:?}", h.queue_id, topic.name);
        return Err(BrokerError::refused(code::INVALID_PARAMETER, remark));
    }
    if req.cmd.body.is_empty() || req.cmd.body.len() > config.message_bytes_max {
        let (bytes, max) = (req.cmd.body.len(), config.message_bytes_max);
        let remark = format!("the message is illegal: a body of {bytes} bytes, limit {max}");
        return Err(BrokerError::refused(code::MESSAGE_ILLEGAL, remark));
    }
    let pushed = push(shard, req, &h, now_ms).await;
    let queue = u32::try_from(h.queue_id).unwrap_or(0);
    let mut stored = None;
    if config.store_reply_message {
        let mut properties = message::without(h.properties, &[prop::MSG_REGION, prop::TRACE_ON, prop::POP_CK]);
        message::push_property(&mut properties, prop::MSG_REGION, &config.region_id);
        message::push_property(&mut properties, prop::TRACE_ON, if config.trace_on { "true" } else { "false" });
        let reply = NewMessage {
            topic: &topic,
            queue,
            flag: h.flag,
            sys_flag: h.sys_flag & !sys_flag::OF_BROKER,
            born_timestamp_ms: h.born_timestamp_ms,
            born_host: req.origin.peer,
            reconsume_times: h.reconsume_times,
            prepared_transaction_offset: 0,
            body: req.cmd.body,
            properties: &properties,
            wait_durable: true,
        };
        match shard.append(reply).await {
            Ok(receipt) => stored = Some(receipt),
            Err(e) => warn!(topic = %topic.name, error = %e, "a reply was not stored; whether it was pushed is told"),
        }
    }
    let answer = pushed.map_or_else(|remark| Response::err(code::SYSTEM_ERROR, remark), |()| Response::ok());
    let (id, offset) = match stored {
        Some(receipt) => {
            let mut id = String::new();
            message::write_offset_id(&mut id, shard.store_host, receipt.phy.0);
            (id, receipt.queue_offset.0)
        }
        None => ("0".to_owned(), 0),
    };
    Ok(answer.with("msgId", id).with("queueId", queue).with("queueOffset", offset))
}

/// Hands the reply to the client that asked. What went wrong is a remark for the one who replied.
async fn push(shard: &Rc<Shard>, req: &Request<'_>, h: &SendMessage<'_>, now_ms: i64) -> Result<(), String> {
    let Some(asker) = message::property(h.properties, prop::REPLY_TO_CLIENT) else {
        return Err("reply message properties[REPLY_TO_CLIENT] is null".to_owned());
    };
    let conn = shard.control().clients.borrow().find_producer(asker).map(|client| client.conn);
    let Some(conn) = conn else {
        return Err(format!("push reply message fail, channel of <{asker}> not found."));
    };
    let mut properties = message::without(h.properties, &[prop::PUSH_REPLY_TIME]);
    message::push_property(&mut properties, prop::PUSH_REPLY_TIME, &now_ms.to_string());
    let text = |text: &str| Value::Str(text.to_owned().into());
    let host = |addr: SocketAddr| Value::Str(addr.to_string().into());
    let ext: Vec<(&'static str, Value<'static>)> = vec![
        ("producerGroup", text(h.producer_group)),
        ("topic", text(h.topic)),
        ("defaultTopic", text(h.default_topic)),
        ("defaultTopicQueueNums", Value::I64(h.default_topic_queue_nums.into())),
        ("queueId", Value::I64(h.queue_id.into())),
        ("sysFlag", Value::I64(h.sys_flag.into())),
        ("bornTimestamp", Value::I64(h.born_timestamp_ms)),
        ("flag", Value::I64(h.flag.into())),
        ("properties", Value::Str(properties.into())),
        ("reconsumeTimes", Value::I64(h.reconsume_times.into())),
        ("unitMode", Value::Bool(h.unit_mode)),
        ("bornHost", host(req.origin.peer)),
        ("storeHost", host(shard.store_host)),
        ("storeTimestamp", Value::I64(now_ms)),
    ];
    let body = req.cmd.body.to_vec();
    let answer = shard.call_client(conn, request::PUSH_REPLY_MESSAGE_TO_CLIENT, ext, body, PUSH_TIMEOUT).await;
    match answer {
        Ok(answer) if answer.code == code::SUCCESS => Ok(()),
        Ok(answer) => Err(format!(
            "push reply message to {asker} fail, code {}: {}",
            answer.code,
            answer.remark.as_deref().unwrap_or_default()
        )),
        Err(e) => Err(format!("push reply message to {asker} fail: {e}")),
    }
}
