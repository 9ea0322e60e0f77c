//! The rules of the SyncStateSet (controller mode), without sockets and clocks: which word of the controller is news, what a change of the set
//! is based on, and whose copies an acknowledgement waits for. The broker runs by them, and so does the model in `controller/tests/model`.
//! Source: replication sheet 7.5, 8.1.
use std::collections::BTreeSet;

/// How new a SyncStateSet is: the controller counts `epoch` up with each change of masters and `set_epoch` with each change of the set, and
/// makes a change only where both are those of the set that it was made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    pub epoch: i32,
    pub set_epoch: i32,
}

/// A change that a master asks for (1001).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Change {
    pub set: BTreeSet<i64>,
    /// Of the set that it was made from: when that is replaced, the change is refused.
    pub of: Stamp,
}
