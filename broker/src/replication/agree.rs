//! Whether a slave's log can go on where its master's does. The protocol itself never says: a slave whose log is longer would be sent
//! heartbeats until the master's has grown past it, and then other bytes than it is missing. So before it connects, a slave asks the
//! master's broker port (codes 28 and 33) how far its log goes, and for the record that the slave has last.
use crate::registration::Master;
use crate::replication::tables::{self, SyncError};
use crate::shard::Shard;
use std::rc::Rc;
use uringmq_proto::body::stats::KvTable;
use uringmq_proto::codes::{request, response};
use uringmq_proto::command::Value;
use uringmq_proto::fastjson;
use uringmq_proto::types::PhyOffset;
use uringmq_remoting::connection::{Conn, Conns};
use uringmq_store::{StoreError, checkpoint};

/// Why a slave does not follow.
#[derive(Debug, thiserror::Error)]
pub enum Disagreement {
    #[error("this log goes to {own}, the master's only to {master}: it has what the master lost; {CURE}")]
    Ahead { own: u64, master: u64 },
    #[error("this log goes to {own}, the master's begins at {master}: what is between is gone there; {CURE}")]
    Behind { own: u64, master: u64 },
    #[error("the record at {0} is another one than the master's; {CURE}")]
    Diverged(PhyOffset),
    /// It cannot be told now.
    #[error("the master cannot be asked: {0}")]
    Unknown(#[from] SyncError),
    #[error("{0}")]
    Store(#[from] StoreError),
}

const CURE: &str =
    "stop this slave, move its store away and start it with an empty one, or with a copy of the master's";

/// Asks the master whether a log that ends at `own` can go on there. An empty one always can.
pub async fn check(shard: &Rc<Shard>, master: &Master, own: u64) -> Result<(), Disagreement> {
    if own == 0 {
        return Ok(());
    }
    let conns = Rc::new(Conns::default());
    let conn = tables::connect(shard, &conns, &master.broker).await?;
    let agreed = compare(shard, &conn, own).await;
    conn.close("asked");
    agreed
}

async fn compare(shard: &Rc<Shard>, conn: &Conn, own: u64) -> Result<(), Disagreement> {
    let answer = tables::call(conn, request::GET_BROKER_RUNTIME_INFO, &[]).await?;
    let unreadable = |why: String| SyncError::Body { code: request::GET_BROKER_RUNTIME_INFO, why };
    let told: KvTable = fastjson::from_slice(&answer.body).map_err(|e| unreadable(e.to_string()))?;
    let number = |key: &str| {
        let text = told.table.get(key).ok_or_else(|| unreadable(format!("no {key}")))?;
        text.parse::<u64>().map_err(|_| unreadable(format!("{key} is {text}")))
    };
    let (min, max) = (number("commitLogMinOffset")?, number("commitLogMaxOffset")?);
    bounds(own, min, max)?;
    let last = last_record(shard).await?;
    let Some(ours) = shard.stored_record(last, 0).await? else { return Ok(()) }; // nothing here to compare
    if last.0 < min {
        return Ok(()); // the master has removed it meanwhile
    }
    let ext = [("offset", Value::I64(last.0 as i64))];
    match tables::call(conn, request::VIEW_MESSAGE_BY_ID, &ext).await {
        Ok(theirs) if theirs.body == ours => Ok(()),
        Ok(_) | Err(SyncError::Refused { answered: response::SYSTEM_ERROR, .. }) => Err(Disagreement::Diverged(last)),
        Err(e) => Err(e.into()),
    }
}

fn bounds(own: u64, min: u64, max: u64) -> Result<(), Disagreement> {
    match own {
        own if own > max => Err(Disagreement::Ahead { own, master: max }),
        own if own < min => Err(Disagreement::Behind { own, master: min }),
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
        assert!(matches!(bounds(101, 0, 100), Err(Disagreement::Ahead { own: 101, master: 100 })));
        assert!(matches!(bounds(49, 50, 100), Err(Disagreement::Behind { own: 49, master: 50 })));
        assert!(bounds(100, 50, 100).is_ok() && bounds(50, 50, 100).is_ok());
    }
}
