//! Saves small tables (topics, groups, offsets, ...) atomically and reads them back: temporary file, sync, rename, directory sync; the
//! previous one is kept as `.bak`. Source: store-format sheet 8.1.
use crate::StoreError;
use crate::io::Io;
use std::path::Path;

pub async fn save<I: Io>(io: &I, path: &Path, text: &[u8]) -> Result<(), StoreError> {
    let _ = (io, path, text);
    todo!()
}

/// The main file if `parse` accepts it, else `.bak` (with a warning); `None` when neither exists; `Refused` when there is one and none
/// is readable.
pub async fn load<I: Io, T>(
    io: &I,
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, StoreError> {
    let _ = (io, path, parse);
    todo!()
}
