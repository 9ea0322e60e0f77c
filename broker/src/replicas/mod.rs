//! Controller mode, the broker's side of it: who it is at the controller, that it is alive, and what role it has.
//!
//! The agent is a plain thread with blocking sockets. It is there before the shards and after them: roles change by an orderly stop and a
//! start of the whole program (as for a cut of the log's end), and the controller must hear of this broker all the while. So the
//! heartbeats' sockets are handed on to the next start ([`Kept`]). Shards know it by two channels: orders to it, views from it. Source:
//! replication sheet 7 to 9.
mod agent;
mod call;
pub mod identity;
mod kept;

pub use agent::Agent;
pub use kept::Kept;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use thiserror::Error;
use uringmq_proto::in_sync::{Change, Stamp};

/// Orders that wait for the agent; more come only from a controller that repeats itself.
const ORDERS_MAX: usize = 64;

/// What the controller says of the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub master: Option<Master>,
    /// 0 before the first election.
    pub epoch: i32,
    pub set: BTreeSet<i64>,
    pub set_epoch: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    pub id: i64,
    /// Of its broker port.
    pub address: String,
}

/// What a broker is, by the controller's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    Master {
        epoch: i32,
    },
    /// Of whom, is in the view and may change.
    Slave,
}

impl View {
    /// The role of broker `id`; `None` while the group has no master.
    pub fn role_of(&self, id: i64) -> Option<Role> {
        let master = self.master.as_ref()?;
        Some(if master.id == id { Role::Master { epoch: self.epoch } } else { Role::Slave })
    }

    /// How new it is.
    pub fn stamp(&self) -> Stamp {
        Stamp { epoch: self.epoch, set_epoch: self.set_epoch }
    }

    /// Takes what the controller said unless it is older than what is known: answers and notices come by more than one way. Whether it was taken.
    pub fn renew(&mut self, told: View) -> bool {
        let news = told.stamp() >= self.stamp();
        if news {
            *self = told;
        }
        news
    }
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AlterError {
    /// Nor will it be by this change; what the set is now is not known.
    #[error("the SyncStateSet is not altered: {0}")]
    NotMade(String),
    /// It may be either, and may change to the other while the set stands that the change was made from.
    #[error("whether the SyncStateSet is altered is not known: {0}")]
    Unknown(String),
    #[error("the broker stops")]
    Stopping,
}

/// To the agent.
pub enum Order {
    /// Something changed at the controller (1008).
    Look,
    /// The master's: another SyncStateSet (1001). The answer is the set as it is now.
    Alter { change: Change, done: flume::Sender<Result<View, AlterError>> },
    /// Ends the agent, which gives back its heartbeats' sockets.
    End(flume::Sender<Kept>),
}

/// What heartbeats say of the log; the shards keep it true.
#[derive(Debug, Default)]
pub struct Told {
    pub epoch: AtomicI64,
    pub max_offset: AtomicI64,
    pub confirm_offset: AtomicI64,
}

impl Told {
    pub fn set_log(&self, end: u64, confirm: u64) {
        self.max_offset.store(end as i64, Ordering::Relaxed);
        self.confirm_offset.store(confirm as i64, Ordering::Relaxed);
    }
}

/// What the shards have of the agent. Cheap to clone.
#[derive(Clone)]
pub struct Replicas {
    /// This broker's at the controller.
    pub id: i64,
    pub told: Arc<Told>,
    orders: flume::Sender<Order>,
    /// Newest views; read by one task of the replication shard.
    pub views: flume::Receiver<View>,
    /// As the role was decided.
    pub first: View,
}

impl Replicas {
    /// Nothing is lost when the agent has no room: it has as many orders to look already.
    pub fn look(&self) {
        let _ = self.orders.try_send(Order::Look);
    }

    /// Asks to replace the SyncStateSet, of which this broker is the master; what it is afterwards, replaced or not, once that is for good.
    ///
    /// # Errors
    /// [`AlterError`].
    pub async fn alter(&self, change: Change) -> Result<View, AlterError> {
        let (done, answer) = flume::bounded(1);
        self.orders.try_send(Order::Alter { change, done }).map_err(|_| AlterError::Stopping)?;
        answer.recv_async().await.unwrap_or(Err(AlterError::Stopping))
    }

    /// The thread ends; its heartbeats' sockets stay open in what is returned.
    pub fn end(&self) -> Kept {
        let (sender, kept) = flume::bounded(1);
        match self.orders.send(Order::End(sender)) {
            Ok(()) => kept.recv().unwrap_or_default(),
            Err(_) => Kept::default(),
        }
    }
}

/// How this broker is known to the controller.
#[derive(Clone, Debug)]
pub struct Who {
    pub cluster: String,
    pub broker: String,
    pub address: SocketAddr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_is_the_views() {
        let master = |id| Some(Master { id, address: "h:1".into() });
        let view = |master| View { master, epoch: 7, ..View::default() };
        assert_eq!(view(None).role_of(1), None);
        assert_eq!(view(master(1)).role_of(1), Some(Role::Master { epoch: 7 }));
        assert_eq!(view(master(2)).role_of(1), Some(Role::Slave));
    }

    #[test]
    fn an_older_word_of_the_controller_is_passed_over() {
        let view = |epoch, set_epoch, set: &[i64]| View {
            master: Some(Master { id: 1, address: "h:1".into() }),
            epoch,
            set: set.iter().copied().collect(),
            set_epoch,
        };
        let known = view(7, 9, &[1, 2]);
        for older in [view(7, 8, &[1]), view(6, 8, &[3]), view(6, 12, &[3])] {
            let mut now = known.clone();
            assert!(!now.renew(older) && now == known);
        }
        for newer in
            [view(7, 9, &[1, 2]), view(7, 10, &[1]), view(8, 10, &[2]), View { master: None, ..view(8, 9, &[]) }]
        {
            let mut now = known.clone();
            assert!(now.renew(newer.clone()) && now == newer);
        }
    }
}
