//! Bugs that a test switches on, one at a time and for its thread, to see that the fault campaign catches them. Feature `seeded-bugs`, for
//! tests only; without it [`bug`] is a constant and the code behind it is gone.

/// What goes wrong, where the store does right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A write that was to be durable is acknowledged without a sync.
    AckBeforeSync,
    /// At a roll only the new segment is synced, not the one that the batch closed.
    RollSyncsNewSegmentOnly,
    /// The checkpoint claims queue entries that are only in the page cache.
    CheckpointBeforeQueueSync,
    /// Units of queues' extensions are not synced with the entries that lead to them.
    UnitsNotSynced,
    /// The checkpoint claims keys that the index has only in memory.
    CheckpointBeforeIndexSync,
    /// A new segment's name is not made durable.
    NoDirectorySync,
    /// A segment leaves the log without its name's going being durable before it is cut to pieces.
    RemovalWithoutDirectorySync,
    /// What stood behind the end is not zeroed when the log is opened.
    NoTailZeroing,
    /// What a refused batch left behind the end is not zeroed.
    RefusedBatchLeft,
    /// Segments behind the end stay where they are.
    SegmentsBehindKept,
    /// The last block of a write ends in whatever the buffer held.
    PaddingNotCleared,
    /// A refused batch keeps its queue offsets.
    OffsetKeptAfterRefusal,
    /// A table's new file takes its place before it is synced.
    TableRenamedBeforeSync,
    /// The index counts items before they are synced.
    IndexHeaderBeforeItems,
    /// Queue entries are trusted after a crash, whatever the checkpoint says.
    EntriesTrustedAfterCrash,
    /// Recovery cuts a queue without making zeros of what follows.
    QueueTailKept,
    /// Recovery puts no record into light queues.
    LightQueuesForgotten,
    /// A record without its last sectors counts as whole.
    TornRecordKept,
    /// What decayed below the synced mark ends the log.
    DamageEndsLog,
    /// Segments are removed although the queue entries that lead into them are not synced.
    RetentionBeforeCheckpoint,
    /// Two writes are under way that have a block in common.
    BlockInTwoWrites,
    /// A synced write makes durable what was written before it, too.
    SyncedWriteVouchesForAll,
}

impl Bug {
    #[cfg(feature = "seeded-bugs")]
    pub const ALL: [Bug; 22] = [
        Bug::AckBeforeSync,
        Bug::RollSyncsNewSegmentOnly,
        Bug::CheckpointBeforeQueueSync,
        Bug::UnitsNotSynced,
        Bug::CheckpointBeforeIndexSync,
        Bug::NoDirectorySync,
        Bug::RemovalWithoutDirectorySync,
        Bug::NoTailZeroing,
        Bug::RefusedBatchLeft,
        Bug::SegmentsBehindKept,
        Bug::PaddingNotCleared,
        Bug::OffsetKeptAfterRefusal,
        Bug::TableRenamedBeforeSync,
        Bug::IndexHeaderBeforeItems,
        Bug::EntriesTrustedAfterCrash,
        Bug::QueueTailKept,
        Bug::LightQueuesForgotten,
        Bug::TornRecordKept,
        Bug::DamageEndsLog,
        Bug::RetentionBeforeCheckpoint,
        Bug::BlockInTwoWrites,
        Bug::SyncedWriteVouchesForAll,
    ];
}

#[cfg(feature = "seeded-bugs")]
mod on {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// From now on this thread's stores have this bug, or none.
    pub fn set(bug: Option<Bug>) {
        BUG.set(bug);
    }
    pub(crate) fn bug(which: Bug) -> bool {
        BUG.get() == Some(which)
    }
}

#[cfg(feature = "seeded-bugs")]
pub use on::*;

#[cfg(not(feature = "seeded-bugs"))]
pub(crate) const fn bug(_: Bug) -> bool {
    false
}
