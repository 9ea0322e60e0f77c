//! The Raft log and vote: in memory, and in the [`Journal`] before anybody is told. The file is written on the runtime's blocking
//! threads; the memory is locked for moments only.
use super::journal::{DiskError, Journal, Record};
use super::{Entry, LogId, StorageError, StorageIoError, Types, Vote};
use openraft::storage::{LogFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{ErrorSubject, ErrorVerb, OptionalSend};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use tracing::warn;

#[derive(Debug, Default)]
struct Memory {
    vote: Option<Vote>,
    purged: Option<LogId>,
    entries: BTreeMap<u64, Entry>,
}

impl Memory {
    fn take(&mut self, record: &Record) {
        match record {
            Record::Vote(vote) => self.vote = Some(*vote),
            Record::Append(entries) => {
                self.entries.extend(entries.iter().map(|entry| (entry.log_id.index, entry.clone())));
            }
            Record::Truncate(from) => drop(self.entries.split_off(from)),
            Record::Purge(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = Some(*upto);
            }
        }
    }

    /// The same as the fewest records.
    fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        records.extend(self.vote.map(Record::Vote));
        records.extend(self.purged.map(Record::Purge));
        if !self.entries.is_empty() {
            records.push(Record::Append(self.entries.values().cloned().collect()));
        }
        records
    }
}

/// A handle; clones are the same log. openraft writes with one of them only.
#[derive(Clone, Debug)]
pub struct LogStore {
    memory: Arc<Mutex<Memory>>,
    journal: Arc<Mutex<Journal>>,
}

impl LogStore {
    /// Opens or makes the log in `dir`. Blocking.
    ///
    /// # Errors
    /// See [`Journal::open`].
    pub fn open(dir: &Path) -> Result<LogStore, DiskError> {
        let (journal, found) = Journal::open(dir)?;
        if found.cut > 0 {
            warn!(bytes = found.cut, "the end of the Raft log was torn and is cut; nobody was told of it");
        }
        let mut memory = Memory::default();
        found.records.iter().for_each(|record| memory.take(record));
        Ok(LogStore { memory: Arc::new(Mutex::new(memory)), journal: Arc::new(Mutex::new(journal)) })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("a panic ends the process")
    }

    /// Durable and readable when it returns.
    async fn write(&self, record: Record) -> Result<(), DiskError> {
        let journal = self.journal.clone();
        let record = blocking(move || {
            let mut journal = journal.lock().expect("a panic ends the process");
            journal.append(&record).map(|()| record)
        })
        .await?;
        self.memory().take(&record);
        Ok(())
    }
}

/// Runs what blocks on a thread that may.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("a panic ends the process")
}

/// As openraft wants it told. It stops the node.
pub fn storage_error(subject: ErrorSubject<u64>, verb: ErrorVerb, error: &DiskError) -> StorageError {
    StorageError::IO { source: StorageIoError::new(subject, verb, openraft::AnyError::new(error)) }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        Ok(self.memory().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let memory = self.memory();
        let last = memory.entries.last_key_value().map(|(_, entry)| entry.log_id);
        Ok(LogState { last_purged_log_id: memory.purged, last_log_id: last.or(memory.purged) })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let saved = self.write(Record::Vote(*vote)).await;
        saved.map_err(|error| storage_error(ErrorSubject::Vote, ErrorVerb::Write, &error))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.memory().vote)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        match self.write(Record::Append(entries)).await {
            Ok(()) => {
                callback.log_io_completed(Ok(()));
                Ok(())
            }
            Err(error) => {
                let told = storage_error(ErrorSubject::Logs, ErrorVerb::Write, &error);
                callback.log_io_completed(Err(std::io::Error::other(error)));
                Err(told)
            }
        }
    }

    async fn truncate(&mut self, from: LogId) -> Result<(), StorageError> {
        let done = self.write(Record::Truncate(from.index)).await;
        done.map_err(|error| storage_error(ErrorSubject::Log(from), ErrorVerb::Delete, &error))
    }

    /// The file is made anew without them.
    async fn purge(&mut self, upto: LogId) -> Result<(), StorageError> {
        let (records, journal) = {
            let mut memory = self.memory();
            memory.take(&Record::Purge(upto));
            (memory.records(), self.journal.clone())
        };
        let done = blocking(move || journal.lock().expect("a panic ends the process").rewrite(&records)).await;
        done.map_err(|error| storage_error(ErrorSubject::Log(upto), ErrorVerb::Delete, &error))
    }
}
