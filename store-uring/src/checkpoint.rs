//! How far the derived files got, and the clean-stop mark. Source: store-format sheet 6.
use crate::StoreError;
use crate::io::Io;
use std::path::Path;
use uringmq_proto::types::PhyOffset;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Store time of the last record of the log that was synced.
    pub physic_ms: i64,
    /// Store time up to which all queues (and the index) are synced.
    pub logics_ms: i64,
    pub index_ms: i64,
    pub master_flushed: u64,
    pub confirm_phy: u64,
    /// Start of the last record whose queue entry (and those of all before it) is synced; 0 = none.
    pub logics_phy: PhyOffset,
}

/// `<root>/checkpoint`; all zero when missing or empty, a shorter file is read as padded with zeros.
pub async fn read<I: Io>(io: &I, root: &Path) -> Result<Checkpoint, StoreError> {
    let _ = (io, root);
    todo!()
}
/// Writes the 4096 bytes in place (one sector) and syncs.
pub async fn write<I: Io>(io: &I, root: &Path, checkpoint: &Checkpoint) -> Result<(), StoreError> {
    let _ = (io, root, checkpoint);
    todo!()
}
/// `abort`: written and synced (directory too) before the first append.
pub async fn mark_running<I: Io>(io: &I, root: &Path) -> Result<(), StoreError> {
    let _ = (io, root);
    todo!()
}
/// Removed last at a clean stop.
pub async fn mark_clean<I: Io>(io: &I, root: &Path) -> Result<(), StoreError> {
    let _ = (io, root);
    todo!()
}
