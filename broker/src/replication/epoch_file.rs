//! `epochFileCheckpoint` in the store's root: which master wrote which part of this log. Read and brought into line with the log at a
//! start, which is also where a new master begins its epoch; a slave adds what its master tells. Source: replication sheet 7.1, 7.6.
use crate::Io;
use crate::replicas::Role;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use thiserror::Error;
use tracing::warn;
use uringmq_proto::epochs::Epochs;
use uringmq_store::{StoreError, json_table};

#[derive(Debug, Error)]
pub enum EpochFileError {
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {what}; nor is its .bak of use. Without it nobody can tell whose bytes this log holds", .path.display())]
    Broken { path: PathBuf, what: String },
    #[error(
        "the controller makes this broker master in epoch {given}, but its log has bytes of epoch {own}: it is another \
         controller's log"
    )]
    Old { given: i32, own: i32 },
}

pub fn path(root: &Path) -> PathBuf {
    root.join("epochFileCheckpoint")
}

/// What the file says, or where it is unreadable or empty its backup (Apache's brokers leave one). No entries without both. Blocking.
///
/// # Errors
/// Neither is of use though one is there.
pub fn read(root: &Path) -> Result<Epochs, EpochFileError> {
    let path = path(root);
    let one = |path: &Path| match fs::read_to_string(path) {
        Ok(text) => Epochs::parse(&text)
            .map(Some)
            .map_err(|e| EpochFileError::Broken { path: path.to_owned(), what: e.to_string() }),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(EpochFileError::Io { path: path.to_owned(), source }),
    };
    let first = one(&path);
    if let Ok(Some(epochs)) = &first
        && !epochs.entries().is_empty()
    {
        return Ok(epochs.clone());
    }
    match (first, one(&path.with_extension("bak"))) {
        (Ok(first), Ok(second)) => Ok(second.or(first).unwrap_or_default()),
        (Err(e), Ok(Some(second))) => {
            warn!(error = %e, "its backup is used");
            Ok(second)
        }
        (Ok(first), Err(_)) => Ok(first.unwrap_or_default()),
        (Err(e), _) => Err(e),
    }
}

/// Durable when it returns.
///
/// # Errors
/// Those of the disk.
pub async fn save(io: &Io, root: &Path, epochs: &Epochs) -> Result<(), StoreError> {
    json_table::save_alone(io, &path(root), epochs.to_text().as_bytes()).await
}

/// The list for a log that ends at `end`, in `role`: a master in a new epoch begins it there.
///
/// # Errors
/// `Old`.
pub fn in_role(mut epochs: Epochs, end: u64, role: &Role) -> Result<Epochs, EpochFileError> {
    let own = epochs.last().map_or(0, |last| last.epoch);
    if let Role::Master { epoch: given } = role {
        if *given < own {
            return Err(EpochFileError::Old { given: *given, own });
        }
        epochs.lead(*given, end);
        return Ok(epochs);
    }
    epochs.cut(end);
    Ok(epochs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::epochs::Epoch;

    fn epochs(entries: &[(i32, u64)]) -> Epochs {
        Epochs::new(entries.iter().map(|&(epoch, start)| Epoch { epoch, start })).unwrap()
    }

    #[test]
    fn a_master_begins_its_epoch_where_its_log_ends() {
        let master = |given, list: &[(i32, u64)], end| in_role(epochs(list), end, &Role::Master { epoch: given });
        assert_eq!(master(1, &[], 0).unwrap(), epochs(&[(1, 0)]));
        assert_eq!(master(1, &[(1, 0)], 0).unwrap(), epochs(&[(1, 0)]), "again, with nothing written");
        assert_eq!(master(3, &[(1, 0)], 0).unwrap(), epochs(&[(3, 0)]));
        assert_eq!(master(3, &[(1, 0)], 500).unwrap(), epochs(&[(1, 0), (3, 500)]));
        assert_eq!(master(3, &[(1, 0), (3, 500)], 900).unwrap(), epochs(&[(1, 0), (3, 500)]), "it goes on");
        assert_eq!(master(3, &[(1, 0), (3, 500)], 500).unwrap(), epochs(&[(1, 0), (3, 500)]));
        assert_eq!(master(4, &[(1, 0), (3, 500)], 400).unwrap(), epochs(&[(1, 0), (4, 400)]), "the log lost its end");
        assert!(matches!(master(2, &[(1, 0), (3, 500)], 900), Err(EpochFileError::Old { given: 2, own: 3 })));
    }

    #[test]
    fn a_slave_claims_no_epoch_that_it_has_no_bytes_of() {
        let slave = |list: &[(i32, u64)], end| in_role(epochs(list), end, &Role::Slave).unwrap();
        assert_eq!(slave(&[(1, 0), (3, 500)], 500), epochs(&[(1, 0)]));
        assert_eq!(slave(&[(1, 0), (3, 500)], 501), epochs(&[(1, 0), (3, 500)]));
        assert_eq!(slave(&[(1, 0)], 0), Epochs::default());
    }

    #[test]
    fn the_backup_stands_in_for_an_empty_or_broken_file() {
        let root = std::env::temp_dir().join(format!("uringmq-epochs-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let put = |name: &str, text: &str| fs::write(root.join(name), text).unwrap();
        assert_eq!(read(&root).unwrap(), Epochs::default(), "no file");
        put("epochFileCheckpoint", "1\n0\n2-7\n");
        assert_eq!(read(&root).unwrap(), epochs(&[(2, 7)]));
        put("epochFileCheckpoint", "nonsense");
        assert!(matches!(read(&root), Err(EpochFileError::Broken { .. })));
        put("epochFileCheckpoint.bak", "1\n0\n1-3\n");
        assert_eq!(read(&root).unwrap(), epochs(&[(1, 3)]));
        put("epochFileCheckpoint", "");
        assert_eq!(read(&root).unwrap(), epochs(&[(1, 3)]));
        fs::remove_dir_all(&root).unwrap();
    }
}
