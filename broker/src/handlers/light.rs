//! Light queues (LMQ): which of them a message is in beside its own queue. A light queue is in no table: it comes into being when a message
//! or a reader names it, and has queue 0 alone. Source: store-format sheet 4.8; behaviour sheet 11.3; known fault S14.
use crate::config::BrokerConfig;
use crate::control;
use crate::error::BrokerError;
use crate::shard::Shard;
use crate::shard::appends::NewMessage;
use crate::snapshot::TopicTable;
use smallvec::SmallVec;
use tracing::warn;
use uringmq_proto::codes::response as code;
use uringmq_proto::message::{self, prop};
use uringmq_proto::names;
use uringmq_proto::types::QueueKey;

/// Light queues of one message.
pub type LightKeys = SmallVec<[QueueKey; 2]>;

/// Most of them.
const COUNT_MAX: usize = 1000;

/// What property INNER_MULTI_DISPATCH asks for, where it is asked for and counts.
pub fn wanted<'a>(config: &BrokerConfig, topic: &str, lights: Option<&'a str>) -> Option<&'a str> {
    lights.filter(|_| config.light_queues() && names::may_dispatch(topic))
}

/// # Errors
/// A name that is no light queue's, or that stands twice; too many.
pub fn check(lights: &str) -> Result<(), BrokerError> {
    let refused = |what: String| {
        let remark = format!("the message is illegal: INNER_MULTI_DISPATCH {what}");
        Err(BrokerError::refused(code::MESSAGE_ILLEGAL, remark))
    };
    let mut all: Vec<&str> = lights.split(',').collect();
    if all.len() > COUNT_MAX {
        return refused(format!("names {} queues, limit {COUNT_MAX}", all.len()));
    }
    if let Some(name) = all.iter().find(|name| !names::is_light_queue(name)) {
        return refused(format!("names '{name}', which is no light queue (%LMQ% and a name like a topic's)"));
    }
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => refused(format!("names '{}' twice", pair[0])),
        None => Ok(()),
    }
}

/// Messages of a client batch are in no light queue; one that says its numbers there would be put into them by whoever reads the log.
///
/// # Errors
/// INNER_MULTI_QUEUE_OFFSET in its properties.
pub fn check_item(config: &BrokerConfig, properties: &str) -> Result<(), BrokerError> {
    if !config.light_queues() || !properties.contains(prop::INNER_MULTI_QUEUE_OFFSET) {
        return Ok(());
    }
    let remark = "the message is illegal: INNER_MULTI_QUEUE_OFFSET in a batch, whose messages are in no light queue";
    Err(BrokerError::refused(code::MESSAGE_ILLEGAL, remark))
}

/// The queues that a checked list names; `None` when one is not known here yet.
pub fn keys(topics: &TopicTable, lights: &str) -> Option<LightKeys> {
    lights.split(',').map(|name| Some(QueueKey { topic: topics.get(name)?.id, queue: 0 })).collect()
}

/// The light queues of a message that the broker stores itself: one that waited, when it comes to its own topic.
pub fn keys_of(shard: &Shard, m: &NewMessage<'_>) -> LightKeys {
    let config = shard.config();
    if !config.light_queues() {
        return LightKeys::new();
    }
    let lights = message::property(m.properties, prop::INNER_MULTI_DISPATCH);
    let Some(lights) = wanted(&config, &m.topic.name, lights).filter(|lights| check(lights).is_ok()) else {
        return LightKeys::new();
    };
    let known = keys(&shard.topics.borrow(), lights);
    if known.is_none() && shard.control.is_some() {
        if let Err(e) = control::make_lights(shard, lights.split(',')) {
            warn!(error = %e, topic = %m.topic.name, lights, "a message is in none of its light queues");
        }
        return keys(&shard.topics.borrow(), lights).unwrap_or_default();
    }
    known.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known fault S14.
    #[test]
    fn names_that_are_no_light_queues_are_refused() {
        for bad in ["", "%LMQ%", "a", "%LMQ%a,b", "%LMQ%a/1", "%LMQ%../../x", "%LMQ%a,", "%LMQ%a,%LMQ%a", "%LMQ%a b"] {
            let error = check(bad).expect_err(bad).to_string();
            assert!(error.contains("INNER_MULTI_DISPATCH"), "{error}");
        }
        assert!(check(&format!("%LMQ%{}", "x".repeat(300))).is_err());
        assert!(check(&(0..1001).map(|n| format!("%LMQ%{n}")).collect::<Vec<_>>().join(",")).is_err());
        for good in ["%LMQ%a", "%LMQ%a,%LMQ%b", "%LMQ%a|b-c_%"] {
            assert!(check(good).is_ok(), "{good}");
        }
    }
}
