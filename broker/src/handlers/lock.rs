//! Queue locks of orderly consumers: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42). Source: behaviour sheet 5.7; wire-protocol sheet 5.7.
use crate::delay::run_all;
use crate::error::BrokerError;
use crate::handlers::client::{body, not_blank};
use crate::requests::Request;
use crate::shard::Shard;
use std::rc::Rc;
use std::time::Duration;
use tracing::debug;
use uringmq_proto::body::MessageQueue;
use uringmq_proto::body::lock::{LockBatchRequest, LockBatchResponse};
use uringmq_proto::codes::{request, response};
use uringmq_proto::command::{OwnedCommand, Response};
use uringmq_proto::fastjson;

/// For each of the other brokers of this name, which are asked at the same time.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(1);

/// 41, on control. What could not be locked is just missing from the answer. In strict mode a queue is locked when more than half of
/// `totalReplicas` say so; where they do not, this broker's lock stays until it expires, as with Apache's.
pub async fn lock_batch(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let ask = asked(req)?;
    let LockBatchRequest { client_id, consumer_group, mq_set, .. } = &ask;
    let mut locked = shard.control().locks.borrow_mut().lock(consumer_group, client_id, mq_set, shard.now_ms());
    let quorum = shard.config().total_replicas / 2 + 1;
    if is_strict(shard, &ask) && quorum > 1 {
        let answers = of_replicas(shard, request::LOCK_BATCH_MQ, ask).await;
        let theirs: Vec<Vec<MessageQueue>> = answers.iter().map(locked_of).collect();
        locked.retain(|queue| 1 + theirs.iter().filter(|set| set.contains(queue)).count() >= quorum);
    }
    Ok(Response::ok().body(fastjson::to_vec(&LockBatchResponse { lock_ok_mq_set: locked })))
}

/// 42, on control; in strict mode at the other brokers of this name, too.
pub async fn unlock_batch(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let ask = asked(req)?;
    shard.control().locks.borrow_mut().unlock(&ask.consumer_group, &ask.client_id, &ask.mq_set);
    if is_strict(shard, &ask) {
        of_replicas(shard, request::UNLOCK_BATCH_MQ, ask).await;
    }
    Ok(Response::ok())
}

fn asked(req: &Request<'_>) -> Result<LockBatchRequest, BrokerError> {
    let request: LockBatchRequest = body(req)?;
    not_blank("clientId", &request.client_id)?;
    not_blank("consumerGroup", &request.consumer_group)?;
    Ok(request)
}

fn is_strict(shard: &Shard, ask: &LockBatchRequest) -> bool {
    shard.config().lock_in_strict_mode && !ask.only_this_broker
}

/// What the other brokers of this name answer, those that do in time.
async fn of_replicas(shard: &Rc<Shard>, code: i32, mut ask: LockBatchRequest) -> Vec<OwnedCommand> {
    ask.only_this_broker = true;
    let (control, config, body) = (shard.control(), shard.config(), fastjson::to_vec(&ask));
    let replicas = control.registration.replicas_of(&config.broker_name).await.unwrap_or_default();
    let others = replicas.into_iter().filter(|(id, _)| *id != config.broker_id);
    let calls = others.map(|(_, addr)| {
        let (body, name) = (&body, &config.broker_name);
        async move { control.peers.call(name, &addr, (code, &[], body), REPLICA_TIMEOUT).await }
    });
    let answers = run_all(calls.collect()).await;
    answers
        .into_iter()
        .filter_map(|answer| answer.inspect_err(|e| debug!(code, error = %e, "no answer")).ok())
        .collect()
}

fn locked_of(answer: &OwnedCommand) -> Vec<MessageQueue> {
    if answer.code != response::SUCCESS {
        return Vec::new();
    }
    fastjson::from_slice(&answer.body).map(|body: LockBatchResponse| body.lock_ok_mq_set).unwrap_or_default()
}
