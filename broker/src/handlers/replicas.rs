//! What controllers, slaves and operators ask of a broker in controller mode. Source: replication sheet 6.2, 8.
use crate::error::BrokerError;
use crate::handlers::offset::stopping;
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use uringmq_proto::body::controller::{EpochCache, EpochEntry};
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::epochs::Epochs;
use uringmq_proto::fastjson;

/// 1007: who wrote which part of this log.
pub async fn epochs(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Response, BrokerError> {
    if shard.replicas.is_none() {
        return Err(BrokerError::refused(code::SYSTEM_ERROR, "this request only for controllerMode"));
    }
    let epochs = shard.run_on(shard.ha_shard, |s| async move {
        let switch = s.replication.as_ref().and_then(|replication| replication.switch.as_ref());
        switch.map(|switch| switch.epochs.borrow().clone()).unwrap_or_default()
    });
    let epochs = epochs.await.ok_or_else(stopping)?;
    let end = shard.marks.written.load(Ordering::Acquire);
    let config = shard.config();
    let cache = EpochCache {
        broker_id: config.broker_id,
        broker_name: config.broker_name.clone(),
        cluster_name: config.cluster_name.clone(),
        epoch_list: listed(&epochs, end),
        max_offset: end as i64,
    };
    Ok(Response::ok().body(fastjson::to_vec(&cache)))
}

/// The last one ends with the log.
fn listed(epochs: &Epochs, end: u64) -> Vec<EpochEntry> {
    let entries = epochs.entries();
    let end_of = |index: usize| entries.get(index + 1).map_or(end, |next| next.start);
    let entry = |(index, entry): (usize, &uringmq_proto::epochs::Epoch)| EpochEntry {
        end_offset: end_of(index) as i64,
        epoch: entry.epoch,
        start_offset: entry.start as i64,
    };
    entries.iter().enumerate().map(entry).collect()
}

/// 1008: there is another master. What it is, is asked of the controller itself: anybody can send this. Without a controller nothing follows from it.
pub fn role_changed(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    if let Some(replicas) = &shard.replicas {
        replicas.look();
    }
    Ok(Response::ok().into())
}

/// 906: where this broker's log is copied from, asked by its slaves. A slave says nothing of that.
pub fn exchange_ha_info(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    if shard.follows() {
        return Ok(Response::ok().into());
    }
    let config = shard.config();
    let flushed = shard.marks.durable.load(Ordering::Acquire) as i64;
    let response = Response::ok().with("masterHaAddress", config.ha_addr()).with("masterFlushOffset", flushed);
    Ok(response.with("masterAddress", shard.store_host.to_string()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::epochs::Epoch;

    #[test]
    fn each_epoch_ends_where_the_next_begins_and_the_last_with_the_log() {
        let epochs = Epochs::new([Epoch { epoch: 1, start: 0 }, Epoch { epoch: 4, start: 70 }]).unwrap();
        let all: Vec<_> = listed(&epochs, 99).iter().map(|e| (e.epoch, e.start_offset, e.end_offset)).collect();
        assert_eq!(all, [(1, 0, 70), (4, 70, 99)]);
    }
}
