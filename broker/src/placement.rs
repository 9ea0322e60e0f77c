//! Which shard owns a queue.
use uringmq_proto::types::QueueKey;

pub type ShardId = u16;

/// Neighbouring queues of a topic go to neighbouring shards, so that a topic of few queues is spread.
pub fn owner(key: QueueKey, shards: u16) -> ShardId {
    ((key.topic.0.wrapping_mul(7).wrapping_add(key.queue)) % shards as u32) as ShardId
}
