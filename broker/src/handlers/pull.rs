//! PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): the checks before the queue's owner is asked. Order: behaviour sheet 4.1.
use crate::error::BrokerError;
use crate::handlers::static_topic;
use crate::mesh::Msg;
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use crate::shard::property_filter::PropertyFilter;
use crate::shard::pulls::{PullAsk, SysFlags, pull_refusal};
use crate::snapshot::{Group, Sql, Subscription};
use std::rc::Rc;
use std::sync::Arc;
use uringmq_proto::body::heartbeat::{EXPRESSION_SQL92, EXPRESSION_TAG};
use uringmq_proto::codes::{request, response as code};
use uringmq_proto::command::FAQ;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::pull::{PullMessage, pull_flag};
use uringmq_proto::message;
use uringmq_proto::names::{self, perm};
use uringmq_proto::types::QueueKey;

pub fn pull_message(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let mut h = PullMessage::decode(req.cmd)?;
    let place = match static_topic::for_pull(shard, req.cmd, (h.topic, h.queue_id, h.queue_offset)) {
        Ok(static_topic::PullPlace::Here(place)) => place,
        Ok(static_topic::PullPlace::Elsewhere(part)) => {
            static_topic::forward_pull(shard, req, part, &h);
            return Ok(Answer::Later);
        }
        Err(response) => return Ok(Answer::Now(response)),
    };
    if let Some(place) = place {
        h.queue_id = i32::try_from(place.queue).unwrap_or(i32::MAX);
        h.queue_offset = h.queue_offset.saturating_sub(place.delta);
        h.commit_offset = h.commit_offset.saturating_sub(place.delta).max(0);
    }
    let config = shard.config();
    let forbidden = |remark: String, kind: i32| {
        Ok(Answer::Now(pull_refusal(code::NO_PERMISSION, remark, h.queue_offset).with("forbiddenType", kind)))
    };
    if config.broker_permission as i32 & perm::READ == 0 {
        return forbidden(format!("the broker[{}] pulling message is forbidden", config.broker_ip1), 1);
    }
    if req.cmd.code == request::LITE_PULL_MESSAGE && !config.lite_pull {
        return forbidden(format!("the broker[{}] for lite pull consumer is forbidden", config.broker_ip1), 1);
    }
    let known = shard.groups.borrow().get(h.consumer_group).cloned();
    let group = match known {
        Some(group) => group,
        None if req.retried => return Err(BrokerError::NoGroup(h.consumer_group.into())),
        None => return shard.ask_control(req),
    };
    if !group.config.consume_enable {
        return forbidden(format!("subscription group no permission, {}", h.consumer_group), 2);
    }
    let topic = match shard.topic(h.topic) {
        Some(topic) => topic,
        // It waits there for the first message.
        None if !req.retried && config.light_queues() && names::is_light_queue(h.topic) => {
            return shard.ask_control(req);
        }
        None => return Err(BrokerError::NoTopic(h.topic.into())),
    };
    if topic.config.perm & perm::READ == 0 {
        return forbidden(format!("the topic[{}] pulling message is forbidden", h.topic), 3);
    }
    if h.queue_id < 0 || h.queue_id >= topic.config.read_queue_nums {
        let remark = format!(
            "queueId[{}] is illegal, topic:[{}] topicConfig.readQueueNums:[{}] consumer:[{}]",
            h.queue_id, h.topic, topic.config.read_queue_nums, req.origin.peer
        );
        return Err(BrokerError::refused(code::INVALID_PARAMETER, remark));
    }
    let filter = match subscription_of(shard, &h, &group)? {
        Ok(filter) => filter,
        Err((remark, kind)) => return forbidden(remark, kind),
    };
    if filter.expression_type != "TAG" && !config.property_filter {
        let remark = format!("The broker does not support consumer to filter message by {}", filter.expression_type);
        return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
    }
    let by_properties = match (&filter.sql, h.topic.starts_with(names::RETRY_PREFIX)) {
        (_, true) if config.filter_supports_retry => PropertyFilter::OfOrigin(group.clone()),
        (Some(sql), false) => PropertyFilter::Sql(sql.expression.clone()),
        (_, _) => PropertyFilter::None,
    };
    let key = QueueKey { topic: topic.id, queue: h.queue_id as u32 };
    let suspend_ms = if config.long_polling { h.suspend_timeout_ms.max(0) as u64 } else { config.short_polling_ms };
    let sys_flags = SysFlags { topic: topic.config.topic_sys_flag, group: group.config.group_sys_flag };
    let ask = PullAsk {
        origin: req.origin,
        key,
        sys_flags,
        group,
        offset: h.queue_offset,
        max_count: h.max_msg_nums.max(1) as u32,
        filter,
        by_properties,
        suspend_ms: (h.has(pull_flag::SUSPEND)).then_some(suspend_ms),
        commit: (h.has(pull_flag::COMMIT_OFFSET)).then_some(h.commit_offset),
        delta: place.map(|place| place.delta),
    };
    let owner = shard.owner(key);
    shard.mesh.push(owner, Msg::Pull(Box::new(ask)));
    Ok(Answer::Later)
}

/// The filter of a pull: its own subscription, or the one that the group's heartbeats brought. The inner error is a refusal with
/// its `forbiddenType`.
#[allow(clippy::type_complexity)]
fn subscription_of(
    shard: &Shard,
    h: &PullMessage<'_>,
    group: &Group,
) -> Result<Result<Arc<Subscription>, (String, i32)>, BrokerError> {
    if h.has(pull_flag::SUBSCRIPTION) {
        let parsed = parse(h.subscription.unwrap_or("*"), h.expression_type.unwrap_or("TAG"), h.sub_version);
        let mut parsed = parsed.ok_or_else(|| {
            BrokerError::refused(code::SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
        })?;
        if parsed.expression_type == EXPRESSION_SQL92 {
            // As with Apache's, a pull whose own text does not compile gets every message: 46 is where a client learns of it.
            let compiled = shard.filters.get(&parsed.expression).ok();
            parsed.sql = compiled.map(|expression| Sql { expression, version: h.sub_version });
        }
        return Ok(Ok(Arc::new(parsed)));
    }
    let none = |what: &'static str, code: i32| Err(BrokerError::refused(code, format!("{what}{FAQ}")));
    let Some(online) = &group.online else {
        return none("the consumer's group info not exist", code::SUBSCRIPTION_NOT_EXIST);
    };
    if online.broadcasting && !group.config.consume_broadcast_enable {
        let remark = format!("the consumer group[{}] can not consume by broadcast way", group.name);
        return Ok(Err((remark, 4)));
    }
    if group.forbidden.iter().any(|t| t == h.topic) {
        let remark = format!("the consumer group[{}] is forbidden for topic[{}]", group.name, h.topic);
        return Ok(Err((remark, 5)));
    }
    let Some(subscription) = online.subscriptions.get(h.topic) else {
        return none("the consumer's subscription not exist", code::SUBSCRIPTION_NOT_EXIST);
    };
    if subscription.version < h.sub_version {
        return none("the consumer's subscription not latest", code::SUBSCRIPTION_NOT_LATEST);
    }
    if subscription.expression_type != EXPRESSION_TAG {
        const NONE: &str = "The broker's consumer filter data is not exist!Your expression may be wrong!";
        match &subscription.sql {
            None => return Err(BrokerError::refused(code::FILTER_DATA_NOT_EXIST, NONE)),
            Some(sql) if sql.version < h.sub_version => {
                let remark = "The broker's consumer filter data is not latest";
                return Err(BrokerError::refused(code::FILTER_DATA_NOT_LATEST, remark));
            }
            Some(_) => {}
        }
    }
    Ok(Ok(subscription.clone()))
}

/// A subscription from its text; `None` when a TAG text has separators but no tag. Every other expression type matches all tags, and
/// nothing is compiled here.
pub fn parse(expression: &str, expression_type: &str, version: i64) -> Option<Subscription> {
    let tag = expression_type.is_empty() || expression_type == "TAG";
    let all = !tag || expression.is_empty() || expression == "*";
    let mut codes = Vec::new();
    if !all {
        codes.extend(expression.split("||").map(str::trim).filter(|t| !t.is_empty()).map(|t| message::java_hash(t, 0)));
        if codes.is_empty() {
            return None;
        }
    }
    Some(Subscription {
        version,
        expression_type: if tag { "TAG".into() } else { expression_type.into() },
        expression: expression.into(),
        codes,
        all,
        sql: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_split_and_trimmed_as_in_java() {
        let s = parse(" TagA || TagB", "TAG", 7).unwrap();
        assert_eq!(s.codes, vec![message::java_hash("TagA", 0), message::java_hash("TagB", 0)]);
        assert!(s.matches(message::tags_code(Some("TagB"))));
        assert!(!s.matches(0));
        assert!(parse("||", "TAG", 0).is_none());
        for everything in ["*", ""] {
            assert!(parse(everything, "TAG", 0).unwrap().matches(0));
        }
    }
}
