//! Where each consume queue ended at a clean stop: a side mark of our own, by which the next start sees that a queue lost entries or all
//! its files. Without it (or after Apache's broker ran) such a loss shows only when a newer record of the queue is met.
//!
//! `<root>/config/queueEnds.json`: the checkpoint it belongs to, and the queues' ends. Marks of another checkpoint are ignored.
use crate::checkpoint::Checkpoint;
use crate::io::Io;
use crate::{StoreError, json_table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use uringmq_proto::types::QueueOffset;

pub(crate) type Ends = BTreeMap<String, BTreeMap<u32, u64>>;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Marks {
    physic_ms: i64,
    logics_ms: i64,
    index_ms: i64,
    logics_phy: u64,
    /// Topic, queue, next offset.
    queues: Ends,
}

fn path(root: &Path) -> PathBuf {
    root.join("config").join("queueEnds.json")
}

/// Written at a clean stop, after the last checkpoint and before the clean mark. `queues`: topic, queue id and end of every queue.
pub async fn write<'a, I: Io>(
    io: &I,
    root: &Path,
    checkpoint: &Checkpoint,
    queues: impl IntoIterator<Item = (&'a str, u32, QueueOffset)>,
) -> Result<(), StoreError> {
    let mut ends = Ends::new();
    for (topic, queue, max) in queues.into_iter().filter(|(_, _, max)| max.0 > 0) {
        ends.entry(topic.to_owned()).or_default().insert(queue, max.0);
    }
    let marks = Marks {
        physic_ms: checkpoint.physic_ms,
        logics_ms: checkpoint.logics_ms,
        index_ms: checkpoint.index_ms,
        logics_phy: checkpoint.logics_phy.0,
        queues: ends,
    };
    let text = serde_json::to_vec(&marks).expect("strings and numbers");
    json_table::save(io, &path(root), &text).await
}

/// The ends noted with this checkpoint; `None` when there are none, or none that can be read.
pub(crate) async fn read<I: Io>(io: &I, root: &Path, checkpoint: &Checkpoint) -> Result<Option<Ends>, StoreError> {
    let parse = |text: &[u8]| serde_json::from_slice::<Marks>(text).map_err(|e| e.to_string());
    let marks = match json_table::load(io, &path(root), parse).await {
        Ok(marks) => marks,
        Err(StoreError::Refused { path, what }) => {
            tracing::warn!(path = %path.display(), what, "side mark ignored");
            None
        }
        Err(e) => return Err(e),
    };
    Ok(marks
        .filter(|m| {
            (m.physic_ms, m.logics_ms, m.index_ms, m.logics_phy)
                == (checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.index_ms, checkpoint.logics_phy.0)
        })
        .map(|m| m.queues))
}
