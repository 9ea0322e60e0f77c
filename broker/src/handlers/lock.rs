//! Queue locks of orderly consumers: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42). Source: behaviour sheet 5.7; wire-protocol sheet 5.7.
use crate::error::BrokerError;
use crate::handlers::client::{body, not_blank};
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use std::rc::Rc;
use uringmq_proto::body::lock::{LockBatchRequest, LockBatchResponse};
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;

/// 41, on control. What could not be locked is just missing from the answer.
pub fn lock_batch(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let LockBatchRequest { client_id, consumer_group, mq_set, .. } = request(req)?;
    let mut locks = shard.control().locks.borrow_mut();
    let lock_ok_mq_set = locks.lock(&consumer_group, &client_id, &mq_set, shard.now_ms());
    Ok(Response::ok().body(fastjson::to_vec(&LockBatchResponse { lock_ok_mq_set })).into())
}

/// 42, on control.
pub fn unlock_batch(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let LockBatchRequest { client_id, consumer_group, mq_set, .. } = request(req)?;
    shard.control().locks.borrow_mut().unlock(&consumer_group, &client_id, &mq_set);
    Ok(Response::ok().into())
}

fn request(req: &Request<'_>) -> Result<LockBatchRequest, BrokerError> {
    let request: LockBatchRequest = body(req)?;
    not_blank("clientId", &request.client_id)?;
    not_blank("consumerGroup", &request.consumer_group)?;
    Ok(request)
}
