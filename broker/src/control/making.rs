//! Topics between being asked for and being there, and between being deleted and being gone. A topic must be on stable storage before
//! a message of it is acknowledged, and requests of one connection must not overtake each other meanwhile; the files of a deleted one
//! must be gone before a topic of the same name makes new ones (known fault F05).
use crate::control::progress::Progress;
use crate::control::{Change, persist};
use crate::error::BrokerError;
use crate::mesh::Forward;
use crate::shard::{Shard, upkeep};
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tracing::warn;
use uringmq_proto::types::PhyOffset;
use uringmq_store::{StoreError, deleted_topics};

#[derive(Default)]
pub struct Making {
    waiting: RefCell<HashMap<String, Vec<Forward>>>,
}

impl Making {
    /// The topic is being made from now on, for this request.
    pub fn begin(&self, topic: &str, request: Forward) {
        self.waiting.borrow_mut().entry(topic.to_owned()).or_default().push(request);
    }

    /// Queues a request behind those that wait for the topic already; gives it back when none does.
    pub fn join(&self, topic: &str, request: Forward) -> Result<(), Forward> {
        match self.waiting.borrow_mut().get_mut(topic) {
            Some(waiting) => waiting.push(request),
            None => return Err(request),
        }
        Ok(())
    }

    /// The topic is there: those that waited, in the order of their coming.
    pub fn end(&self, topic: &str) -> Vec<Forward> {
        self.waiting.borrow_mut().remove(topic).unwrap_or_default()
    }
}

/// Deletions whose files are not gone on every shard yet.
#[derive(Default)]
pub struct Deletions {
    begun: Cell<u64>,
    ended: Progress,
}

/// Held by a deletion until its files are gone.
pub struct Deleting(Rc<Deletions>);

impl Deletions {
    pub fn begin(self: &Rc<Self>) -> Deleting {
        self.begun.set(self.begun.get() + 1);
        Deleting(self.clone())
    }

    pub fn pending(&self) -> bool {
        self.ended.at() < self.begun.get()
    }

    /// Resolves when none is under way; a topic made before the next await cannot meet old files.
    pub async fn over(&self) {
        while self.pending() {
            self.ended.reached(self.begun.get()).await;
        }
    }
}

/// Sees the deletion of topics that are out of the table and published so to its end: on return no shard holds a queue, a waiting pull or
/// an offset of them, and what changed is on stable storage. What is stored under their names from then on is of their next lives, and so
/// is, on a slave, what was already stored at `next_lives`.
///
/// # Errors
/// When the table cannot be saved.
pub async fn bury(
    shard: &Rc<Shard>,
    deleting: Deleting,
    gone: &[Arc<str>],
    change: Option<Change>,
    next_lives: Option<PhyOffset>,
) -> Result<(), BrokerError> {
    // Jobs come after the table that was pushed before them.
    shard.run_on_all(|s| async move { s.queues.deleted().await }).await;
    if let Some(change) = change {
        shard.control().settle(change).await?;
    }
    if let Err(e) = persist::save_offsets(shard).await {
        warn!(error = %e, "the offsets of deleted topics are still in the file");
    }
    if let Err(e) = note(shard, gone, next_lives).await {
        warn!(error = %e, "a restart after a kill may build the queues of deleted topics again");
    }
    drop(deleting);
    Ok(())
}

/// So that no restart builds the queues again from the log, or takes its old records for those of a topic made anew.
async fn note(shard: &Rc<Shard>, topics: &[Arc<str>], next_lives: Option<PhyOffset>) -> Result<(), StoreError> {
    upkeep::write_checkpoint(shard).await?; // syncs the log
    let _turn = shard.control().deleted_turn.take().await;
    let below = next_lives.unwrap_or_else(|| shard.marks.durable());
    let names = topics.iter().map(|topic| &**topic);
    deleted_topics::note(&shard.io, &shard.config().store_root, names, below, shard.marks.min()).await
}

impl Drop for Deleting {
    fn drop(&mut self) {
        self.0.ended.raise(self.0.ended.at() + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::Origin;
    use futures_lite::future::{block_on, poll_once};
    use uringmq_remoting::ConnId;

    fn request(opaque: i32) -> Forward {
        let origin = Origin {
            conn: ConnId { shard: 0, serial: 1 },
            opaque,
            oneway: false,
            peer: "10.0.0.5:4321".parse().unwrap(),
            version: 513,
            language: 0,
            fast: false,
        };
        Forward { frame: vec![], origin }
    }

    #[test]
    fn requests_wait_in_order_until_the_topic_is_there() {
        let making = Making::default();
        assert!(making.join("t", request(1)).is_err(), "nobody makes it");
        making.begin("t", request(1));
        assert!(making.join("t", request(2)).is_ok() && making.join("u", request(3)).is_err());
        let opaques: Vec<i32> = making.end("t").iter().map(|waiting| waiting.origin.opaque).collect();
        assert_eq!(opaques, [1, 2]);
        assert!(making.join("t", request(4)).is_err());
    }

    #[test]
    fn new_topics_wait_for_every_deletion() {
        block_on(async {
            let deletions = Rc::new(Deletions::default());
            deletions.over().await;
            let (first, second) = (deletions.begin(), deletions.begin());
            let mut over = std::pin::pin!(deletions.over());
            assert!(poll_once(&mut over).await.is_none());
            drop(second);
            assert!(poll_once(&mut over).await.is_none() && deletions.pending());
            let third = deletions.begin();
            drop(first);
            assert!(poll_once(&mut over).await.is_none(), "another began meanwhile");
            drop(third);
            assert!(poll_once(&mut over).await.is_some() && !deletions.pending());
        });
    }
}
