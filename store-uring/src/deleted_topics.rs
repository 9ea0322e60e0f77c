//! Which records of the log belong to a topic that was deleted: those before the position at which it was, so that no recovery builds its
//! queues again, also when the topic was made anew since. Source: known fault F05.
//!
//! `<root>/config/deletedTopics.json`: topic and position; those behind which the log begins now are dropped.
use crate::io::Io;
use crate::{StoreError, json_table};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use uringmq_proto::types::PhyOffset;

/// Topic, and where in the log its next life may begin.
pub(crate) type Deleted = BTreeMap<String, u64>;

fn path(root: &Path) -> PathBuf {
    root.join("config").join("deletedTopics.json")
}

/// Without a readable table queues of deleted topics may come back, which is no reason to refuse a start.
pub(crate) async fn read<I: Io>(io: &I, root: &Path) -> Result<Deleted, StoreError> {
    let parse = |text: &[u8]| serde_json::from_slice::<Deleted>(text).map_err(|e| e.to_string());
    match json_table::load(io, &path(root), parse).await {
        Ok(deleted) => Ok(deleted.unwrap_or_default()),
        Err(StoreError::Refused { path, what }) => {
            tracing::warn!(path = %path.display(), what, "positions of deleted topics are ignored");
            Ok(Deleted::default())
        }
        Err(e) => Err(e),
    }
}

async fn write<I: Io>(io: &I, root: &Path, deleted: &Deleted) -> Result<(), StoreError> {
    json_table::save(io, &path(root), &serde_json::to_vec(deleted).expect("strings and numbers")).await
}

/// The records of these topics before `below`, which must be durable, are in no queue any more. The log begins at `log_min`. One call at a
/// time.
pub async fn note<'a, I: Io>(
    io: &I,
    root: &Path,
    topics: impl IntoIterator<Item = &'a str>,
    below: PhyOffset,
    log_min: PhyOffset,
) -> Result<(), StoreError> {
    let mut deleted = read(io, root).await?;
    deleted.retain(|_, at| *at > log_min.0);
    deleted.extend(topics.into_iter().map(|topic| (topic.to_owned(), below.0)));
    write(io, root, &deleted).await
}

/// The log lost its end: what is stored there next is of a topic's next life.
pub(crate) async fn lower<I: Io>(io: &I, root: &Path, deleted: &mut Deleted, end: u64) -> Result<(), StoreError> {
    if deleted.values().all(|at| *at <= end) {
        return Ok(());
    }
    deleted.values_mut().for_each(|at| *at = (*at).min(end));
    write(io, root, deleted).await
}
