//! Apache's default HA protocol, and under a controller its auto-switch HA, both ways: a master feeds its log to the slaves that connect, a
//! slave follows its master. Runs on one
//! shard, not the writer's where there is a choice. To the master it is one more reader of the log and one more condition before an
//! acknowledgement; to a slave it is the writer's only source. Source: replication sheet 2, 3, 4.
pub mod agree;
pub mod epoch_file;
pub mod link;
pub mod master;
pub mod slave;
pub mod sync_set;
pub mod tables;
pub mod truncate;

use crate::placement::ShardId;
use crate::shard::Shard;
use crate::stop_signal::StopHandle;
use master::Slave;
use slave::Following;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use sync_set::Switch;
use uringmq_proto::body::stats::{HaClientRuntimeInfo, HaConnectionInfo, HaRuntimeInfo};

/// The shard for the role: neither the writer's nor control's where there are three, the other one of two.
pub fn shard_of(shards: u16, writer: ShardId) -> ShardId {
    let others = (0..shards).rev().filter(|shard| *shard != writer);
    others.clone().find(|shard| *shard != 0).or(others.clone().next()).unwrap_or(writer)
}

/// State of the role, on its shard.
#[derive(Default)]
pub struct Replication {
    /// A master's: who is connected, in the order of coming.
    pub slaves: RefCell<Vec<Rc<Slave>>>,
    /// A slave's.
    pub following: Following,
    pub truncation: truncate::Truncation,
    /// Controller mode.
    pub switch: Option<Switch>,
    /// A slave whose log is to be cut starts over.
    pub stop: StopHandle,
}

impl Replication {
    pub fn new(stop: StopHandle, switch: Option<Switch>) -> Self {
        Replication { stop, switch, ..Replication::default() }
    }

    /// There is more of the log.
    pub fn ring(&self) {
        self.slaves.borrow().iter().for_each(|slave| slave.bell.set());
    }

    /// A slave reported, came or went: brings the replicated mark up to date, and rings the writer when it moved.
    fn settle(&self, shard: &Shard) {
        let config = shard.config.borrow();
        if !config.awaits_slaves() {
            return;
        }
        let slaves = self.slaves.borrow();
        if let Some(switch) = self.switch.as_ref().filter(|_| config.all_in_sync()) {
            let before = shard.marks.replicated.load(Ordering::Acquire);
            let mark = switch.mark(shard, &slaves, before, shard.marks.readable().0);
            if shard.marks.replicated.swap(mark, Ordering::AcqRel) != mark {
                shard.mesh.push(shard.writer_shard, crate::mesh::Msg::Replicated);
            }
            return;
        }
        let acks = slaves.iter().map(|slave| slave.confirmed(shard)).collect();
        let mark = replicated_mark(acks, config.in_sync_replicas);
        if shard.marks.replicated.fetch_max(mark, Ordering::AcqRel) < mark {
            shard.mesh.push(shard.writer_shard, crate::mesh::Msg::Replicated);
        }
    }

    fn come(&self, shard: &Shard, slave: Rc<Slave>) {
        self.slaves.borrow_mut().push(slave);
        shard.marks.slaves.store(self.slaves.borrow().len() as u64, Ordering::Relaxed);
    }

    fn gone(&self, shard: &Shard, slave: &Rc<Slave>) {
        self.slaves.borrow_mut().retain(|other| !Rc::ptr_eq(other, slave));
        if let (Some(switch), Some(id)) = (&self.switch, slave.replica.get())
            && !self.slaves.borrow().iter().any(|other| other.replica.get() == Some(id))
        {
            switch.note_gone(id);
        }
        shard.marks.slaves.store(self.slaves.borrow().len() as u64, Ordering::Relaxed);
    }
}

impl Replication {
    /// As code 907 answers it.
    pub fn status(&self, shard: &Shard) -> HaRuntimeInfo {
        let end = shard.marks.written.load(Ordering::Acquire) as i64;
        if shard.follows() {
            let client = HaClientRuntimeInfo {
                last_read_timestamp: self.following.last_read_ms.get(),
                last_write_timestamp: self.following.last_write_ms.get(),
                master_addr: self.following.master.borrow().clone(),
                master_flush_offset: 0,
                max_offset: end,
                transferred_byte_in_second: self.following.received.per_second() as i64,
            };
            return HaRuntimeInfo { ha_client_runtime_info: Some(client), master: false, ..HaRuntimeInfo::default() };
        }
        let gap_max = shard.config.borrow().ha_gap_bytes_max as i64;
        let slaves = self.slaves.borrow();
        let connections = slaves.iter().map(|slave| {
            let acked = slave.acked.get() as i64;
            HaConnectionInfo {
                addr: slave.link.peer.to_string(),
                diff: end - acked,
                in_sync: end - acked <= gap_max,
                slave_ack_offset: acked,
                transfer_from_where: slave.next.get().map_or(-1, |next| next as i64),
                transferred_byte_in_second: slave.sent.per_second() as i64,
            }
        });
        let ha_connection_info: Vec<HaConnectionInfo> = connections.collect();
        HaRuntimeInfo {
            ha_client_runtime_info: Some(HaClientRuntimeInfo::default()),
            in_sync_slave_nums: ha_connection_info.iter().filter(|slave| slave.in_sync).count() as i32,
            ha_connection_info,
            master: true,
            master_commit_log_max_offset: end,
        }
    }
}

/// How far `replicas - 1` slaves are, by what each has confirmed; the master's own copy is the other one.
fn replicated_mark(mut confirmed: SmallVec<[u64; 8]>, replicas: u32) -> u64 {
    confirmed.sort_unstable_by(|a, b| b.cmp(a));
    (replicas as usize).checked_sub(2).and_then(|index| confirmed.get(index).copied()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn the_role_keeps_off_the_writer_where_it_can() {
        let at = |shards, writer| shard_of(shards, writer);
        assert_eq!([at(1, 0), at(2, 0), at(2, 1), at(3, 2), at(3, 0), at(8, 3)], [0, 1, 0, 1, 2, 7]);
    }

    #[test]
    fn the_mark_is_what_enough_slaves_have() {
        assert_eq!(replicated_mark(smallvec![], 2), 0);
        assert_eq!(replicated_mark(smallvec![5, 9, 7], 2), 9, "any one slave");
        assert_eq!(replicated_mark(smallvec![5, 9, 7], 3), 7, "any two");
        assert_eq!(replicated_mark(smallvec![5, 9, 7], 5), 0, "four are not there");
    }
}
