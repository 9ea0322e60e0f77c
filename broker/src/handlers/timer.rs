//! RECALL_MESSAGE (370), GET_TIMER_CHECK_POINT (60), GET_TIMER_METRICS (61). Source: wire-protocol sheet 5.12, behaviour sheet 7.3, checked
//! against Apache's broker 5.5.0.
use crate::error::BrokerError;
use crate::requests::{Answer, Request};
use crate::responses;
use crate::shard::Shard;
use crate::shard::appends::NewMessage;
use crate::timer::put::{self, Fate, Wish};
use std::rc::Rc;
use tracing::debug;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::pop::RecallMessage;
use uringmq_proto::message::{self, prop};
use uringmq_proto::names;
use uringmq_proto::recall::{self, Recall};

const RECALL_TAG: &str = "_RECALL_TAG_";
const RECALL_BODY: &[u8] = b"0";
const WRITABLE: u32 = 2;

fn no_timer() -> BrokerError {
    BrokerError::refused(code::SYSTEM_ERROR, "The timer message store is null")
}

/// 60, on control.
pub fn check_point(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    let check = shard.timer.check().ok_or_else(no_timer)?;
    Ok(Response::ok().body(check.encode().to_vec()).into())
}

/// 61, on control.
pub fn metrics(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    shard.timer.check().ok_or_else(no_timer)?;
    Ok(Response::ok().body(fastjson::to_vec(&shard.timer.metrics())).into())
}

/// 370.
pub async fn recall_message(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let outcome = try_recall(shard, req).await;
    let response = outcome.unwrap_or_else(|e| responses::of_error(&e));
    Ok(response.with(prop::MSG_REGION, shard.config.borrow().region_id.clone()))
}

async fn try_recall(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = RecallMessage::decode(req.cmd)?;
    let config = shard.config();
    let refused = |code, what: &str| Err(BrokerError::refused(code, format!("recall failed, {what}")));
    if !config.recall_message {
        return refused(code::NO_PERMISSION, "operation is forbidden");
    }
    let unavailable = "broker service not available";
    if config.broker_id != 0 {
        return refused(code::SLAVE_NOT_AVAILABLE, unavailable);
    }
    let now_ms = shard.now_ms();
    let writable = config.broker_permission & WRITABLE != 0 || config.recall_when_not_writable;
    if now_ms < config.accept_sends_from_ms || !writable {
        return refused(code::SERVICE_NOT_AVAILABLE, unavailable);
    }
    if shard.topic(h.topic).is_none() {
        return refused(code::TOPIC_NOT_EXIST, &format!("the topic[{}] not exist", h.topic));
    }
    let Some(recall) = recall::parse(h.recall_handle) else {
        return Err(BrokerError::refused(code::ILLEGAL_OPERATION, "recall handle is invalid"));
    };
    if recall.topic != h.topic {
        return refused(code::ILLEGAL_OPERATION, "topic not match");
    }
    if recall.broker_name != config.broker_name {
        return refused(code::ILLEGAL_OPERATION, unavailable);
    }
    let left_ms = recall.time.parse::<i64>().ok().and_then(|time| time.checked_sub(now_ms));
    if !left_ms.is_some_and(|left| (1..config.timer_max_delay_sec.saturating_mul(1000)).contains(&left)) {
        return refused(code::ILLEGAL_OPERATION, "timestamp invalid");
    }
    match store_deletion(shard, req, &h, &recall).await {
        Ok(()) => Ok(Response::ok().with("msgId", recall.uniq_key)),
        Err(e) => {
            debug!(topic = h.topic, error = %e, "a recall was not stored");
            refused(code::SYSTEM_ERROR, "execute error")
        }
    }
}

/// Stores the message that takes the other back, on the way to its slot.
async fn store_deletion(
    shard: &Rc<Shard>,
    req: &Request<'_>,
    h: &RecallMessage<'_>,
    recall: &Recall,
) -> Result<(), BrokerError> {
    let config = shard.config();
    let now_ms = shard.now_ms();
    let delete_key = match config.timer_delete_key_with_topic {
        true => format!("{}+{}", recall.topic, recall.uniq_key),
        false => recall.uniq_key.clone(),
    };
    let mut text = String::new();
    for (name, value) in [
        (prop::TIMER_DEL_UNIQKEY, delete_key.as_str()),
        (prop::UNIQ_KEY, &recall.uniq_key),
        (prop::TIMER_DELIVER_MS, &recall.time),
        (prop::TAGS, RECALL_TAG),
        ("BORN_TIMESTAMP", &now_ms.to_string()),
        (prop::PGROUP, h.producer_group.unwrap_or_default()),
    ] {
        message::push_property(&mut text, name, value);
    }
    let Fate::Waits { out_ms } = Wish::of(&text).fate(&config, now_ms)? else {
        return Err(BrokerError::refused(code::SYSTEM_ERROR, "its time has come"));
    };
    if put::has_limit(&config) {
        let asked = text.clone();
        let full = shard.run_on(0, move |s| async move { put::check_congestion(&s, &asked).is_err() });
        if full.await != Some(false) {
            return Err(BrokerError::refused(code::SYSTEM_ERROR, "its slot is full"));
        }
    }
    put::push_times(&mut text, out_ms, &recall.topic, 0);
    let topic = shard.topic(names::WHEEL_TIMER_TOPIC);
    let topic = topic.ok_or_else(|| BrokerError::NoTopic(names::WHEEL_TIMER_TOPIC.to_owned()))?;
    let deletion = NewMessage {
        topic: &topic,
        queue: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: now_ms,
        born_host: req.origin.peer,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: RECALL_BODY,
        properties: &text,
        wait_durable: true,
    };
    shard.append(deletion).await?;
    Ok(())
}
