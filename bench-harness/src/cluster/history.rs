//! What happened: every send with its outcome, every pull, every commit of a consumer, every fault and every master seen. In memory for
//! the checker, and a line of JSON each in a file that stays.
use crate::error::BenchError;
use crate::peer::now_ms;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;

/// One event. Times are ms since the epoch. Brokers are numbers from 0; `epoch` is the newest that the broker had when the connection
/// was made, as it says itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum Event {
    Send {
        id: u64,
        begun_ms: i64,
        done_ms: i64,
        queue: u32,
        broker: usize,
        epoch: i32,
        outcome: Outcome,
    },
    /// Records that a consumer got, in the order of the queue.
    Pull {
        at_ms: i64,
        queue: u32,
        broker: usize,
        epoch: i32,
        /// Queue offset and message of each.
        found: Vec<(i64, u64)>,
    },
    /// A consumer's offset, acknowledged.
    Commit {
        at_ms: i64,
        queue: u32,
        broker: usize,
        offset: i64,
    },
    /// A consumer asked a broker where it was. -1: nobody knew it.
    Resume {
        at_ms: i64,
        queue: u32,
        broker: usize,
        offset: i64,
    },
    /// The controllers named a master.
    Master {
        at_ms: i64,
        epoch: i32,
        broker: usize,
    },
    /// A fault began. `of_master`: it was to cost the group the master that it had.
    Fault {
        at_ms: i64,
        kind: &'static str,
        what: String,
        broker: Option<usize>,
        of_master: bool,
    },
    /// It is over, and all members are in the SyncStateSet again, after so many ms; `None`: they were not in time.
    Healed {
        at_ms: i64,
        took_ms: Option<i64>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// Acknowledged, at this place.
    Acknowledged { offset: i64, phy: u64 },
    /// Refused: the broker says that it does not have it.
    Failed { code: i32 },
    /// No answer, or one that says that it is stored but not how safely.
    Unknown { code: Option<i32> },
}

/// What the controllers say now, and what was acknowledged last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Live {
    pub(super) epoch: i32,
    pub(super) master: Option<usize>,
    /// Members of the SyncStateSet.
    pub(super) in_sync: usize,
    /// Changes from one master to another.
    pub(super) failovers: u32,
    /// When the last acknowledged send was begun, and by whom it was acknowledged.
    pub(super) acknowledged: Option<(i64, usize)>,
    pub(super) sent: u64,
    /// When the last send was answered, or the last record consumed.
    pub(super) active_ms: i64,
}

pub(super) struct History {
    inner: Mutex<Inner>,
}

struct Inner {
    file: BufWriter<File>,
    events: Vec<Event>,
    /// Epochs and masters as they were seen.
    masters: Vec<(i32, usize)>,
    live: Live,
    failed: Option<std::io::Error>,
}

impl History {
    pub(super) fn create(path: &Path) -> Result<History, BenchError> {
        let file = File::create(path).map_err(BenchError::io(path.display().to_string()))?;
        let inner = Inner {
            file: BufWriter::new(file),
            events: Vec::new(),
            masters: Vec::new(),
            live: Live::default(),
            failed: None,
        };
        Ok(History { inner: Mutex::new(inner) })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().expect("nobody panics holding it"))
    }

    pub(super) fn add(&self, event: Event) {
        self.with(|inner| {
            if let Event::Send { begun_ms, broker, outcome, .. } = &event {
                inner.live.sent += 1;
                inner.live.active_ms = now_ms();
                if matches!(outcome, Outcome::Acknowledged { .. }) {
                    inner.live.acknowledged = Some((*begun_ms, *broker));
                }
            }
            if matches!(event, Event::Pull { .. }) {
                inner.live.active_ms = now_ms();
            }
            inner.push(event);
        });
    }

    /// What a leading controller says. An older epoch than the newest known is no news.
    pub(super) fn controllers_say(&self, epoch: i32, master: Option<usize>, in_sync: usize) {
        self.with(|inner| {
            if epoch < inner.live.epoch {
                return;
            }
            inner.live.in_sync = in_sync;
            inner.live.master = master;
            inner.live.epoch = epoch;
            // The same epoch with another master is an event, too: a fault for the checker.
            if let Some(broker) = master
                && inner.masters.last() != Some(&(epoch, broker))
            {
                let changed = inner.masters.last().is_some_and(|(_, before)| *before != broker);
                inner.live.failovers += u32::from(changed);
                inner.masters.push((epoch, broker));
                inner.push(Event::Master { at_ms: now_ms(), epoch, broker });
            }
        });
    }

    pub(super) fn live(&self) -> Live {
        self.with(|inner| inner.live)
    }

    /// All events; the file is complete.
    pub(super) fn finish(&self) -> Result<Vec<Event>, BenchError> {
        self.with(|inner| {
            let flushed = inner.file.flush();
            match inner.failed.take().map_or(flushed, Err) {
                Ok(()) => Ok(std::mem::take(&mut inner.events)),
                Err(error) => Err(BenchError::io("writing the history")(error)),
            }
        })
    }
}

impl Inner {
    fn push(&mut self, event: Event) {
        let line = serde_json::to_string(&event).expect("plain fields");
        if let Err(error) = writeln!(self.file, "{line}") {
            self.failed.get_or_insert(error);
        }
        self.events.push(event);
    }
}
