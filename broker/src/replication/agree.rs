//! Whether a slave's log can go on where its master's does. The protocol itself never says: a slave whose log is longer would be sent
//! heartbeats until the master's has grown past it, and then other bytes than it is missing. So before it connects, a slave asks the
//! master's broker port (codes 28 and 33) how far its log goes, and for the record that the slave has last. Where the two do not agree,
//! [`super::truncate`] says what becomes of it.
use crate::registration::Master;
use crate::replication::tables::{self, SyncError};
use crate::shard::Shard;
use std::cell::RefCell;
use std::rc::Rc;
use uringmq_proto::body::stats::KvTable;
use uringmq_proto::codes::{request, response};
use uringmq_proto::command::Value;
use uringmq_proto::fastjson;
use uringmq_proto::types::PhyOffset;
use uringmq_remoting::connection::{CallError, Conn, Conns};
use uringmq_store::{StoreError, checkpoint};

/// Why a slave does not follow.
#[derive(Debug, thiserror::Error)]
pub enum Disagreement {
    #[error("this log goes to {own}, the master's only to {master}: it has what the master lost")]
    Ahead { own: u64, master: u64 },
    #[error("this log goes to {own}, the master's begins at {master}: what is between is gone there; {CURE}")]
    Behind { own: u64, master: u64 },
    #[error("the record at {0} is another one than the master's")]
    Diverged(PhyOffset),
    /// What [`super::truncate`] made of one of the two before.
    #[error("{0}")]
    Settled(String),
    /// It cannot be told now.
    #[error("the master cannot be asked: {0}")]
    Unknown(#[from] SyncError),
    #[error("{0}")]
    Store(#[from] StoreError),
}

pub const CURE: &str =
    "stop this slave, move its store away and start it with an empty one, or with a copy of the master's";

/// The master's broker, asked about its log.
pub struct Asked<'a> {
    shard: &'a Rc<Shard>,
    master: &'a Master,
    conns: Rc<Conns>,
    conn: RefCell<Rc<Conn>>,
}

/// Where a log begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub min: u64,
    pub max: u64,
}

impl<'a> Asked<'a> {
    pub async fn connect(shard: &'a Rc<Shard>, master: &'a Master) -> Result<Self, SyncError> {
        let conns = Rc::new(Conns::default());
        let conn = RefCell::new(tables::connect(shard, &conns, &master.broker).await?);
        Ok(Asked { shard, master, conns, conn })
    }

    fn conn(&self) -> Rc<Conn> {
        self.conn.borrow().clone()
    }

    /// Code 28.
    pub async fn bounds(&self) -> Result<Bounds, SyncError> {
        let answer = tables::call(&self.conn(), request::GET_BROKER_RUNTIME_INFO, &[]).await?;
        let unreadable = |why: String| SyncError::Body { code: request::GET_BROKER_RUNTIME_INFO, why };
        let told: KvTable = fastjson::from_slice(&answer.body).map_err(|e| unreadable(e.to_string()))?;
        let number = |key: &str| {
            let text = told.table.get(key).ok_or_else(|| unreadable(format!("no {key}")))?;
            text.parse::<u64>().map_err(|_| unreadable(format!("{key} is {text}")))
        };
        Ok(Bounds { min: number("commitLogMinOffset")?, max: number("commitLogMaxOffset")? })
    }

    /// Code 33: whether the master has this very record at `at`. Where no record of its begins, Apache's master may answer with any bytes,
    /// also with more than a frame may have, which ends the connection; so an answer that ends it twice, while the master answers other
    /// questions in between, is no record either.
    pub async fn has(&self, at: u64, ours: &[u8]) -> Result<bool, SyncError> {
        let ext = [("offset", Value::I64(at as i64))];
        for _ in 0..2 {
            match tables::call(&self.conn(), request::VIEW_MESSAGE_BY_ID, &ext).await {
                Ok(theirs) => return Ok(theirs.body == ours),
                Err(SyncError::Refused { answered: response::SYSTEM_ERROR, .. }) => return Ok(false),
                Err(SyncError::Call(CallError::Closed(_))) => {}
                Err(e) => return Err(e),
            }
            let again = tables::connect(self.shard, &self.conns, &self.master.broker).await?;
            self.conn.replace(again);
            self.bounds().await?;
        }
        Ok(false)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.conns.close_all("asked");
    }
}

/// Asks the master whether a log that ends at `own` can go on there. An empty one always can.
pub async fn check(shard: &Rc<Shard>, master: &Master, own: u64) -> Result<(), Disagreement> {
    if own == 0 {
        return Ok(());
    }
    let asked = Asked::connect(shard, master).await?;
    let there = asked.bounds().await?;
    compare_ends(own, there)?;
    let last = last_record(shard).await?;
    let Some(ours) = shard.stored_record(last, 0).await? else { return Ok(()) }; // nothing here to compare
    if last.0 < there.min {
        return Ok(()); // the master has removed it meanwhile
    }
    if asked.has(last.0, &ours).await? { Ok(()) } else { Err(Disagreement::Diverged(last)) }
}

fn compare_ends(own: u64, there: Bounds) -> Result<(), Disagreement> {
    match own {
        own if own > there.max => Err(Disagreement::Ahead { own, master: there.max }),
        own if own < there.min => Err(Disagreement::Behind { own, master: there.min }),
        _ => Ok(()),
    }
}

/// The last record that this shard has dispatched, or that the checkpoint of the start names.
async fn last_record(shard: &Rc<Shard>) -> Result<PhyOffset, StoreError> {
    let root = shard.config().store_root.clone();
    let noted = checkpoint::read(&shard.io, &root).await?.logics_phy;
    Ok(noted.max(shard.dispatch.last().0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_outside_the_masters_cannot_go_on() {
        let there = Bounds { min: 50, max: 100 };
        assert!(matches!(
            compare_ends(101, Bounds { min: 0, ..there }),
            Err(Disagreement::Ahead { own: 101, master: 100 })
        ));
        assert!(matches!(compare_ends(49, there), Err(Disagreement::Behind { own: 49, master: 50 })));
        assert!(compare_ends(100, there).is_ok() && compare_ends(50, there).is_ok());
    }
}
