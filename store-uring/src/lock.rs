//! The store's `lock` file: an open-file-description write lock on byte 0, so that Apache's broker and ours exclude each other.
use crate::StoreError;
use std::path::Path;

/// Held while it lives.
#[derive(Debug)]
pub struct StoreLock {
    _file: std::fs::File,
}

/// Blocking; called once before any shard runs. `Refused` (naming the holder's pid when the system tells) when another process has it.
pub fn lock(root: &Path) -> Result<StoreLock, StoreError> {
    let _ = root;
    todo!()
}
