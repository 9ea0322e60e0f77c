//! What becomes of popped messages: ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053). Source: behaviour
//! sheet 9.5, wire-protocol sheet 6.3, checked against Apache's broker 5.5.0.
use crate::error::BrokerError;
use crate::handlers::offset::{bounds, stopping};
use crate::pop::log::Key;
use crate::pop::order::Acked;
use crate::requests::{Origin, Request};
use crate::responses;
use crate::shard::Shard;
use crate::snapshot::Topic;
use std::rc::Rc;
use std::sync::Arc;
use uringmq_proto::body;
use uringmq_proto::body::pop::{BatchAck, BatchAckRequest, CheckPoint};
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::pop::{AckMessage, ChangeInvisibleTime};
use uringmq_proto::names;
use uringmq_proto::receipt::{ORDER_REVIVE_QUEUE, Receipt, ReceiptError, Source};
use uringmq_proto::types::QueueKey;

/// Bits of one batch acknowledgement at most; a pop has 32 messages.
const BITS_MAX: usize = 1024;

fn bad_handle(e: ReceiptError) -> BrokerError {
    BrokerError::refused(code::SYSTEM_ERROR, e.to_string())
}

/// The queue whose message it is. Clients name a retried message's retry topic, or, with their handle's mark, the topic that it was sent to.
struct Place {
    topic: Arc<Topic>,
    queue_id: i32,
}

impl Place {
    fn find(shard: &Shard, topic: &str, group: &str, source: Source, queue_id: i32) -> Result<Self, BrokerError> {
        let named = shard.topic(topic).ok_or_else(|| BrokerError::NoTopic(topic.into()))?;
        let retry = match source {
            _ if topic.starts_with(names::RETRY_PREFIX) => None,
            Source::Topic => None,
            Source::RetryV1 => shard.topic(&names::pop_retry_topic(group, topic, false)),
            Source::RetryV2 => shard.topic(&names::pop_retry_topic(group, topic, true)),
        };
        Ok(Place { topic: retry.unwrap_or(named), queue_id })
    }

    fn check_queue(&self, origin: Origin) -> Result<QueueKey, BrokerError> {
        let count = self.topic.config.read_queue_nums;
        match u32::try_from(self.queue_id) {
            Ok(queue) if self.queue_id < count => Ok(QueueKey { topic: self.topic.id, queue }),
            _ => {
                let remark = format!(
                    "queueId[{}] is illegal, topic:[{}] topicConfig.readQueueNums:[{count}] consumer:[{}]",
                    self.queue_id, self.topic.name, origin.peer
                );
                Err(BrokerError::refused(code::MESSAGE_ILLEGAL, remark))
            }
        }
    }

    /// That the queue has, or had, a message at this offset; `one_more` allows its end too.
    async fn check_offset(
        &self,
        shard: &Rc<Shard>,
        key: QueueKey,
        offset: i64,
        one_more: i64,
    ) -> Result<(), BrokerError> {
        let bounds = shard.run_on(shard.owner(key), move |owner| async move { bounds(&owner, key) });
        let (min, max) = bounds.await.ok_or_else(stopping)?;
        if offset < min as i64 || offset >= max as i64 + one_more {
            let remark = format!(
                "offset is illegal, key:{}@{}, commit:{offset}, store:{min}~{max}",
                self.topic.name, self.queue_id
            );
            return Err(BrokerError::refused(code::NO_MESSAGE, remark));
        }
        Ok(())
    }

    fn key(&self, group: &str, receipt: &Receipt<'_>) -> Key {
        Key {
            topic: self.topic.name.to_string(),
            queue_id: self.queue_id,
            start_offset: receipt.start_offset,
            group: group.to_owned(),
            pop_ms: receipt.pop_ms,
            broker_name: receipt.broker_name.to_owned(),
        }
    }
}

/// 200051: answered when the acknowledgement is stored.
pub async fn ack_message(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = AckMessage::decode(req.cmd)?;
    let source = Receipt::parse(h.extra_info).map_or(Source::Topic, |receipt| receipt.source);
    let place = Place::find(shard, h.topic, h.consumer_group, source, h.queue_id)?;
    let key = place.check_queue(req.origin)?;
    place.check_offset(shard, key, h.offset, 1).await?;
    let receipt = Receipt::parse(h.extra_info).map_err(bad_handle)?;
    if receipt.revive_queue == ORDER_REVIVE_QUEUE {
        let (group, offset, pop_ms): (Arc<str>, _, _) = (h.consumer_group.into(), h.offset, receipt.pop_ms);
        let done = shard
            .run_on(shard.owner(key), move |owner| async move { ack_ordered(&owner, key, &group, offset, pop_ms) });
        return match done.await.ok_or_else(stopping)? {
            true => Ok(Response::ok()),
            false => {
                let remark = format!("offset is illegal, key:{}@{}, commit:{offset}", place.topic.name, place.queue_id);
                Err(BrokerError::refused(code::MESSAGE_ILLEGAL, remark))
            }
        };
    }
    let visible_ms = receipt.pop_ms.saturating_add(receipt.invisible_ms);
    let named = place.key(h.consumer_group, &receipt);
    let gathered = shard.gather_ack(receipt.revive_queue, &named, &[h.offset], visible_ms)?;
    shard.push_appends();
    gathered.stored().await?;
    shard.pop.note_acked(1);
    settle(shard, key, h.consumer_group, vec![h.offset]).await;
    Ok(Response::ok())
}

/// These messages are no longer in the group's hands. Does nothing unless that is limited.
async fn settle(shard: &Rc<Shard>, key: QueueKey, group: &str, offsets: Vec<i64>) {
    if !shard.config.borrow().pop_limits_in_flight {
        return;
    }
    let group: Arc<str> = group.into();
    let settled = shard.run_on(shard.owner(key), move |owner| async move {
        let was_full = owner.pop_full_to_ms(key, &group).is_some();
        owner.pop.in_flight.settle(key, &group, &offsets);
        if was_full && owner.pop_full_to_ms(key, &group).is_none() {
            owner.ring_pollers(key);
        }
    });
    settled.await; // a broker that stops has nobody to limit
}

/// On the queue's owner: moves the group's offset over what is settled of its last ordered pop. False when that pop did not give the message.
fn ack_ordered(shard: &Rc<Shard>, key: QueueKey, group: &Arc<str>, offset: i64, pop_ms: i64) -> bool {
    let committed = shard.offsets.get(key, group);
    if committed.is_some_and(|committed| offset < committed) {
        return true; // settled before
    }
    match shard.pop.orders.ack(key, group, offset, pop_ms) {
        Acked::Next { offset: next, all } => {
            if committed.is_none_or(|committed| next > committed) {
                shard.offsets.commit(key, group, next);
            }
            if all {
                shard.ring_pollers(key);
            }
            shard.pop.note_acked(1);
            true
        }
        Acked::Stale => true,
        Acked::Unknown => false,
    }
}

/// 200151: answered when all acknowledgements are stored.
pub async fn batch_ack(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let nothing = || BrokerError::refused(code::NO_MESSAGE, "no acknowledgements");
    if req.cmd.body.is_empty() {
        return Err(nothing());
    }
    let request: BatchAckRequest = body::parse(req.cmd.body).map_err(|e| BrokerError::Body(e.to_string()))?;
    if request.acks.is_empty() {
        return Err(nothing());
    }
    let mut all = Vec::with_capacity(request.acks.len());
    for ack in &request.acks {
        all.push((ack, offsets_of(ack)?));
    }
    let mut gathered = Vec::with_capacity(all.len());
    for (ack, offsets) in all {
        let source = Source::of_mark(&ack.retry).unwrap_or(Source::Topic);
        // What names no queue has no check point either.
        let Ok(place) = Place::find(shard, &ack.topic, &ack.consumer_group, source, ack.queue_id) else { continue };
        if offsets.is_empty() {
            continue;
        }
        let Ok(queue) = place.check_queue(req.origin) else { continue };
        let key = Key {
            topic: place.topic.name.to_string(),
            queue_id: ack.queue_id,
            start_offset: ack.start_offset,
            group: ack.consumer_group.clone(),
            pop_ms: ack.pop_ms,
            broker_name: request.broker_name.clone(),
        };
        let visible_ms = ack.pop_ms.saturating_add(ack.invisible_ms);
        let stored = shard.gather_ack(ack.revive_queue_id, &key, &offsets, visible_ms)?;
        gathered.push((stored, queue, &ack.consumer_group, offsets));
    }
    shard.push_appends();
    for (gathered, queue, group, offsets) in gathered {
        gathered.stored().await?;
        shard.pop.note_acked(offsets.len());
        settle(shard, queue, group, offsets).await;
    }
    Ok(Response::ok())
}

/// The offsets whose bits are set.
fn offsets_of(ack: &BatchAck) -> Result<Vec<i64>, BrokerError> {
    let bad = |what: String| BrokerError::Body(format!("the bit set of {}@{} {what}", ack.topic, ack.queue_id));
    let bytes = ack.bits().ok_or_else(|| bad("is missing or no base64".into()))?;
    let set = bytes.iter().enumerate().flat_map(|(at, byte)| {
        let bits = (0..8).filter(move |bit| byte >> bit & 1 != 0);
        bits.map(move |bit| at * 8 + bit)
    });
    let set: Vec<usize> = set.collect();
    match set.last() {
        Some(last) if *last >= BITS_MAX => Err(bad(format!("has bit {last}, limit {BITS_MAX}"))),
        _ => Ok(set.into_iter().map(|bit| ack.start_offset.saturating_add(bit as i64)).collect()),
    }
}

/// 200053: a new check point for the one message, then the acknowledgement of the old one; answered when both are stored.
pub async fn change_invisible_time(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = ChangeInvisibleTime::decode(req.cmd)?;
    let changed = change(shard, req, &h).await;
    let (response, c) = match changed {
        Ok(changed) => (Response::ok(), changed),
        Err(e) => (responses::of_error(&e), Changed::NOTHING),
    };
    Ok(response.with("popTime", c.pop_ms).with("invisibleTime", c.invisible_ms).with("reviveQid", c.revive_queue))
}

/// What the new handle of a message is made of.
struct Changed {
    pop_ms: i64,
    invisible_ms: i64,
    revive_queue: i32,
}

impl Changed {
    const NOTHING: Changed = Changed { pop_ms: 0, invisible_ms: 0, revive_queue: 0 };
}

async fn change(shard: &Rc<Shard>, req: &Request<'_>, h: &ChangeInvisibleTime<'_>) -> Result<Changed, BrokerError> {
    let receipt = Receipt::parse(h.extra_info);
    let source = receipt.as_ref().map_or(Source::Topic, |receipt| receipt.source);
    let place = Place::find(shard, h.topic, h.consumer_group, source, h.queue_id)?;
    let queue = place.check_queue(req.origin)?;
    place.check_offset(shard, queue, h.offset, 0).await?;
    let receipt = receipt.map_err(bad_handle)?;
    if h.invisible_ms < 0 {
        let remark = format!("invisibleTime is {} ms, not 0 or more", h.invisible_ms);
        return Err(BrokerError::refused(code::INVALID_PARAMETER, remark));
    }
    let pop_ms = shard.now_ms();
    if receipt.revive_queue == ORDER_REVIVE_QUEUE {
        let group: Arc<str> = h.consumer_group.into();
        let (offset, was_ms, visible_ms) = (h.offset, receipt.pop_ms, pop_ms.saturating_add(h.invisible_ms));
        let changed = shard.run_on(shard.owner(queue), move |owner| async move {
            let settled = owner.offsets.get(queue, &group).is_some_and(|committed| offset < committed);
            if !settled {
                owner.pop.orders.change(queue, &group, offset, was_ms, visible_ms);
                owner.ring_pollers(queue);
            }
            !settled
        });
        return Ok(match changed.await.ok_or_else(stopping)? {
            true => Changed {
                pop_ms: was_ms,
                invisible_ms: visible_ms.saturating_sub(was_ms),
                revive_queue: ORDER_REVIVE_QUEUE,
            },
            false => Changed::NOTHING,
        });
    }
    let old = place.key(h.consumer_group, &receipt);
    let renewed = CheckPoint {
        broker_name: shard.config.borrow().broker_name.clone(),
        group: h.consumer_group.to_owned(),
        diffs: vec![0],
        invisible_ms: h.invisible_ms,
        count: 1,
        pop_ms,
        queue_id: h.queue_id,
        revive_ms: pop_ms.saturating_add(h.invisible_ms),
        start_offset: h.offset,
        suspended: h.suspend,
        topic: old.topic.clone(),
        ..CheckPoint::default()
    };
    let system_error = |e: BrokerError| BrokerError::refused(code::SYSTEM_ERROR, e.to_string());
    // In one group, so in this order in the log: the message is never without a check point.
    let renewed = shard.gather_check_point(receipt.revive_queue, &renewed).map_err(system_error)?;
    let old_visible_ms = receipt.pop_ms.saturating_add(receipt.invisible_ms);
    let ack = shard.gather_ack(receipt.revive_queue, &old, &[h.offset], old_visible_ms);
    shard.push_appends();
    renewed.stored().await?;
    ack.map_err(system_error)?.stored().await?;
    if shard.config.borrow().pop_limits_in_flight {
        let (group, offset, until_ms): (Arc<str>, _, _) =
            (h.consumer_group.into(), h.offset, pop_ms.saturating_add(h.invisible_ms));
        let prolonged = shard.run_on(shard.owner(queue), move |owner| async move {
            owner.pop.in_flight.prolong(queue, &group, until_ms, offset);
        });
        prolonged.await; // a broker that stops has nobody to limit
    }
    Ok(Changed { pop_ms, invisible_ms: h.invisible_ms, revive_queue: receipt.revive_queue })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(bits: &str) -> Result<Vec<i64>, BrokerError> {
        offsets_of(&BatchAck { bit_set: bits.into(), start_offset: 100, topic: "T".into(), ..BatchAck::default() })
    }

    #[test]
    fn bits_are_offsets_from_the_start() {
        assert_eq!(offsets("BQI=").unwrap(), [100, 102, 109]);
        assert_eq!(offsets("AA==").unwrap(), [0i64; 0]);
        let mut long = "A".repeat(4 * 50);
        long.push_str("AQ==");
        for bad in ["", "!!", &long] {
            assert!(offsets(bad).is_err(), "{bad}");
        }
    }
}
