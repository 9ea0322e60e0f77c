//! Balancing by the broker: QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401), GET_ALL_MESSAGE_REQUEST_MODE (402). On control.
//! Source: behaviour sheet 5.6; wire-protocol sheet 5.10.
use crate::control;
use crate::control::assign::{Strategy, pop_share};
use crate::error::BrokerError;
use crate::handlers::client::{body, json_answer, not_blank};
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use std::rc::Rc;
use uringmq_proto::body::MessageQueue;
use uringmq_proto::body::heartbeat::MessageModel;
use uringmq_proto::body::pop::{
    MessageQueueAssignment, MessageRequestMode, QueryAssignmentRequest, QueryAssignmentResponse, SetMessageRequestMode,
};
use uringmq_proto::body::route::TopicRouteData;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;
use uringmq_proto::names::{self, perm};

/// 400. No assignments at all makes the client keep what it has.
pub async fn query_assignment(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let ask: QueryAssignmentRequest = body(req)?;
    not_blank("topic", &ask.topic)?;
    not_blank("consumerGroup", &ask.consumer_group)?;
    let (mode, share_with) = shard.control().modes.borrow().get(&ask.topic, &ask.consumer_group);
    let queues = queues_of(shard, &ask.topic).await;
    let members = shard.control().clients.borrow().group(&ask.consumer_group).map(|group| group.client_ids());
    let shared = share(&ask, queues, members, (mode, share_with));
    let message_queue_assignments = shared.map(|queues| {
        let one = |message_queue| MessageQueueAssignment { message_queue, mode, ..MessageQueueAssignment::default() };
        queues.into_iter().map(one).collect()
    });
    Ok(Response::ok().body(fastjson::to_vec(&QueryAssignmentResponse { message_queue_assignments })))
}

/// All queues of a topic that may be read, on all its brokers as the NameServers know them, or else on this one; sorted. `None` for an
/// unknown topic.
async fn queues_of(shard: &Rc<Shard>, topic: &str) -> Option<Vec<MessageQueue>> {
    if let Some(route) = shard.control().registration.route(topic).await {
        return Some(queues_of_route(topic, &route));
    }
    let known = shard.topic(topic)?;
    let readable = if known.config.perm & perm::READ == 0 { 0 } else { known.config.read_queue_nums };
    Some(queues_on(topic, &shard.config().broker_name, readable).collect())
}

fn queues_on(topic: &str, broker: &str, count: i32) -> impl Iterator<Item = MessageQueue> {
    (0..count).map(move |queue_id| MessageQueue { broker_name: broker.to_owned(), queue_id, topic: topic.to_owned() })
}

fn queues_of_route(topic: &str, route: &TopicRouteData) -> Vec<MessageQueue> {
    let readable = route.queue_datas.iter().filter(|queues| queues.perm & perm::READ != 0);
    let mut all: Vec<MessageQueue> =
        readable.flat_map(|queues| queues_on(topic, &queues.broker_name, queues.read_queue_nums)).collect();
    all.sort_unstable();
    all
}

/// What the asking client gets.
fn share(
    ask: &QueryAssignmentRequest,
    queues: Option<Vec<MessageQueue>>,
    members: Option<Vec<String>>,
    (mode, share_with): (MessageRequestMode, i32),
) -> Option<Vec<MessageQueue>> {
    let queues = queues?;
    if ask.message_model == MessageModel::Broadcasting {
        return Some(queues);
    }
    let members = members?;
    let strategy = Strategy::named(&ask.strategy_name)?;
    let Some(index) = members.iter().position(|member| *member == ask.client_id) else { return Some(Vec::new()) };
    let picked = match mode {
        MessageRequestMode::Pull => Some(strategy.share(queues.len(), members.len(), index)),
        MessageRequestMode::Pop => pop_share(strategy, queues.len(), members.len(), index, share_with),
    };
    Some(match picked {
        Some(picked) => picked.into_iter().map(|at| queues[at].clone()).collect(),
        None => {
            let mut any: Vec<MessageQueue> = queues.into_iter().map(|q| MessageQueue { queue_id: -1, ..q }).collect();
            any.dedup();
            any
        }
    })
}

/// 401.
pub async fn set_request_mode(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let mode: SetMessageRequestMode = body(req)?;
    if mode.topic.starts_with(names::RETRY_PREFIX) {
        return Err(BrokerError::refused(code::NO_PERMISSION, "retry topic is not allowed to set mode"));
    }
    let control = shard.control();
    if control.topics.borrow().get(&mode.topic).is_none() {
        return Err(BrokerError::NoTopic(mode.topic));
    }
    if control::ensure_group(shard, &mode.consumer_group).is_none() {
        return Err(BrokerError::NoGroup(mode.consumer_group));
    }
    control.modes.borrow_mut().set(mode);
    control.modes_changed().await?;
    Ok(Response::ok())
}

/// 402.
pub fn all_request_modes(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    Ok(json_answer(shard.control().modes.borrow().table()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::body::route::QueueData;

    fn ask(client_id: &str) -> QueryAssignmentRequest {
        QueryAssignmentRequest {
            client_id: client_id.into(),
            consumer_group: "g".into(),
            message_model: MessageModel::Clustering,
            strategy_name: "AVG".into(),
            topic: "t".into(),
        }
    }

    fn queues(count: i32) -> Vec<MessageQueue> {
        queues_on("t", "b", count).collect()
    }

    fn ids(queues: Option<Vec<MessageQueue>>) -> Option<Vec<i32>> {
        queues.map(|queues| queues.iter().map(|queue| queue.queue_id).collect())
    }

    #[test]
    fn a_member_gets_its_share_and_a_stranger_nothing() {
        let members = || Some(vec!["a".to_owned(), "b".to_owned()]);
        let pull = (MessageRequestMode::Pull, -1);
        assert_eq!(ids(share(&ask("a"), Some(queues(3)), members(), pull)), Some(vec![0, 1]));
        assert_eq!(ids(share(&ask("b"), Some(queues(3)), members(), pull)), Some(vec![2]));
        assert_eq!(ids(share(&ask("c"), Some(queues(3)), members(), pull)), Some(vec![]));
        assert_eq!(share(&ask("a"), None, members(), pull), None, "unknown topic");
        assert_eq!(share(&ask("a"), Some(queues(3)), None, pull), None, "unknown group");
        let odd = QueryAssignmentRequest { strategy_name: "CONFIG".into(), ..ask("a") };
        assert_eq!(share(&odd, Some(queues(3)), members(), pull), None);
        let all = QueryAssignmentRequest { message_model: MessageModel::Broadcasting, ..ask("nobody") };
        assert_eq!(ids(share(&all, Some(queues(3)), None, pull)), Some(vec![0, 1, 2]));
    }

    #[test]
    fn pop_names_each_broker_once() {
        let both: Vec<_> = queues_on("t", "b", 2).chain(queues_on("t", "c", 2)).collect();
        let got = share(&ask("a"), Some(both), Some(vec!["a".into()]), (MessageRequestMode::Pop, 0)).unwrap();
        let got: Vec<_> = got.iter().map(|queue| (queue.broker_name.as_str(), queue.queue_id)).collect();
        assert_eq!(got, [("b", -1), ("c", -1)]);
    }

    #[test]
    fn a_route_gives_readable_queues_in_order() {
        let data = |broker: &str, perm, read_queue_nums| QueueData {
            broker_name: broker.into(),
            perm,
            read_queue_nums,
            ..QueueData::default()
        };
        let route = TopicRouteData {
            queue_datas: vec![data("b", 6, 1), data("a", 4, 2), data("c", 2, 8)],
            ..Default::default()
        };
        let got = queues_of_route("t", &route);
        let got: Vec<_> = got.iter().map(|queue| (queue.broker_name.as_str(), queue.queue_id)).collect();
        assert_eq!(got, [("a", 0), ("a", 1), ("b", 0)]);
    }
}
