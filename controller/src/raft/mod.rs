//! The Raft library's seams: what an entry is, the durable log, the state machine with its snapshots, the way to the peers. Consensus
//! itself is openraft's.
use crate::state::{Ask, Outcome};
use openraft::BasicNode;
use std::io::Cursor;

pub mod journal;
pub mod log_store;
pub mod machine;
pub mod network;

openraft::declare_raft_types!(
    /// Requests as entries, their outcomes as answers; a node is the number in its id (`n2` is 2).
    pub Types:
        D = Ask,
        R = Outcome,
        NodeId = u64,
        Node = BasicNode,
        SnapshotData = Cursor<Vec<u8>>,
);

pub type Raft = openraft::Raft<Types>;
pub type LogId = openraft::LogId<u64>;
pub type Entry = openraft::Entry<Types>;
pub type Vote = openraft::Vote<u64>;
pub type StorageError = openraft::StorageError<u64>;
pub type StorageIoError = openraft::StorageIOError<u64>;
