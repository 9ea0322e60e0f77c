//! The state machine's seam: applies what is committed to the [`State`], and keeps its snapshot in `snapshot`, one frame as in the
//! journal. After a start the state is the snapshot's until the log behind it is known to be committed.
use super::journal::{self, DiskError, io_error};
use super::log_store::{blocking, storage_error};
use super::{Entry, LogId, StorageError, StorageIoError, Types};
use crate::state::{Outcome, State};
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::{AnyError, BasicNode, EntryPayload, ErrorSubject, ErrorVerb, OptionalSend, StoredMembership};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{Cursor, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

const NAME: &str = "snapshot";

type Meta = SnapshotMeta<u64, BasicNode>;
type Membership = StoredMembership<u64, BasicNode>;

/// The state and how far in the log it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    pub last: Option<LogId>,
    membership: Membership,
    pub state: State,
}

/// What the snapshot file holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Saved {
    meta: Meta,
    applied: Applied,
}

/// A handle; clones are the same machine.
#[derive(Clone, Debug)]
pub struct Machine {
    applied: Arc<Mutex<Applied>>,
    /// The snapshot on disk. Locked while the file is written, on a blocking thread.
    saved: Arc<Mutex<Option<Saved>>>,
    path: PathBuf,
}

impl Machine {
    /// Opens the machine of `dir` in the state of its snapshot. Blocking.
    ///
    /// # Errors
    /// A snapshot that cannot be read or is damaged.
    pub fn open(dir: &Path) -> Result<Machine, DiskError> {
        let path = dir.join(NAME);
        let damaged = |why: String| DiskError::Damaged { path: path.clone(), at: 0, why };
        let saved: Option<Saved> = match fs::read(&path) {
            Ok(bytes) => {
                let payload = journal::payload(&bytes).map_err(|why| damaged(why.to_owned()))?;
                Some(serde_json::from_slice(payload).map_err(|error| damaged(error.to_string()))?)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let applied = saved.as_ref().map(|saved| saved.applied.clone()).unwrap_or_default();
        Ok(Machine { applied: Arc::new(Mutex::new(applied)), saved: Arc::new(Mutex::new(saved)), path })
    }

    /// The state as it is now; held for moments only.
    pub fn applied(&self) -> MutexGuard<'_, Applied> {
        self.applied.lock().expect("a panic ends the process")
    }

    /// Makes `saved` the snapshot on disk unless that one is newer.
    async fn save(&self, saved: Saved) -> Result<(), StorageError> {
        let (path, place) = (self.path.clone(), self.saved.clone());
        let meta = saved.meta.clone();
        let done = blocking(move || {
            let mut place = place.lock().expect("a panic ends the process");
            if place.as_ref().is_some_and(|old| old.meta.last_log_id > saved.meta.last_log_id) {
                return Ok(());
            }
            let mut bytes = Vec::new();
            journal::frame(&mut bytes, &saved);
            journal::replace(&path, &bytes)?;
            *place = Some(saved);
            Ok(())
        });
        let subject = ErrorSubject::Snapshot(Some(meta.signature()));
        done.await.map_err(|error: DiskError| storage_error(subject, ErrorVerb::Write, &error))
    }
}

fn encoded(saved: &Saved) -> Snapshot<Types> {
    let bytes = serde_json::to_vec(&saved.applied).expect("names, numbers and texts");
    Snapshot { meta: saved.meta.clone(), snapshot: Box::new(Cursor::new(bytes)) }
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError> {
        let applied = self.applied().clone();
        let id = applied.last.map_or("empty".to_owned(), |last| last.to_string());
        let meta = Meta { last_log_id: applied.last, last_membership: applied.membership.clone(), snapshot_id: id };
        let saved = Saved { meta, applied };
        self.save(saved.clone()).await?;
        Ok(encoded(&saved))
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), StorageError> {
        let applied = self.applied();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut applied = self.applied();
        let mut outcomes = Vec::new();
        for entry in entries {
            applied.last = Some(entry.log_id);
            outcomes.push(match entry.payload {
                EntryPayload::Blank => Outcome::default(),
                EntryPayload::Normal(ask) => applied.state.apply(&ask),
                EntryPayload::Membership(members) => {
                    applied.membership = StoredMembership::new(Some(entry.log_id), members);
                    Outcome::default()
                }
            });
        }
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(&mut self, meta: &Meta, snapshot: Box<Cursor<Vec<u8>>>) -> Result<(), StorageError> {
        let applied: Applied = serde_json::from_slice(snapshot.get_ref()).map_err(|error| StorageError::IO {
            source: StorageIoError::read_snapshot(Some(meta.signature()), AnyError::new(&error)),
        })?;
        self.save(Saved { meta: meta.clone(), applied: applied.clone() }).await?;
        *self.applied() = applied;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError> {
        let saved = self.saved.clone();
        Ok(blocking(move || saved.lock().expect("a panic ends the process").as_ref().map(encoded)).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::log_store::LogStore;
    use crate::test_dir::TestDir;
    use openraft::testing::{StoreBuilder, Suite};

    struct Builder;

    impl StoreBuilder<Types, LogStore, Machine, TestDir> for Builder {
        async fn build(&self) -> Result<(TestDir, LogStore, Machine), StorageError> {
            let dir = TestDir::new("raft-suite");
            let log = LogStore::open(&dir.0).expect("a log");
            let machine = Machine::open(&dir.0).expect("a machine");
            Ok((dir, log, machine))
        }
    }

    /// openraft's own tests of what it expects from a log and a state machine.
    #[test]
    fn the_library_s_suite() {
        Suite::test_all(Builder).expect("every test of the suite");
    }

    #[test]
    fn a_damaged_snapshot_is_told() {
        let dir = TestDir::new("snapshot-damage");
        fs::create_dir_all(&dir.0).unwrap();
        let mut machine = Machine::open(&dir.0).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(machine.build_snapshot()).unwrap();
        let whole = fs::read(dir.0.join(NAME)).unwrap();
        assert!(Machine::open(&dir.0).is_ok());
        for bad in [&whole[..whole.len() - 1], &whole[1..], b""] {
            fs::write(dir.0.join(NAME), bad).unwrap();
            let error = Machine::open(&dir.0).unwrap_err().to_string();
            assert!(error.contains("damaged"), "{error}");
        }
    }
}
