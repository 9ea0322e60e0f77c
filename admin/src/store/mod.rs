//! `uringmq store check|dump|stat|rebuild|export PATH`: looks at a stopped store, ours or Apache's, and builds its derived files anew.
//!
//! Plain blocking reads; nobody else uses the store meanwhile, for the store's lock is held: shared by those that only read, which
//! never write a byte to the store, and alone by `rebuild`.
mod bar;
mod check;
mod dledger;
mod dump;
mod files;
mod filter;
mod log;
mod rebuild;
mod report;
mod stat;

use clap::{Args, Subcommand};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;
use uringmq_store::{StoreConfig, StoreError, late_writes, lock};

/// Look at a stopped store, or build its derived files anew
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StoreArgs {
    #[command(subcommand)]
    what: What,
}

const EXAMPLES: &str = "\
Examples:
  uringmq store check /data/store                            every record, queue entry and index entry; status 1 if one is wrong
  uringmq store stat /data/store                             messages and bytes by topic
  uringmq store dump /data/store --topic T --key order-17 --body utf8
  uringmq store export /data/store --topic T --output t.jsonl
  uringmq store rebuild /data/store -c broker.conf           consume queues and key index from the log
PATH is the broker's storePathRootDir. The broker must be stopped. Apache RocketMQ's stores are read as well.";

#[derive(Subcommand, Debug)]
enum What {
    /// Verify every record, queue entry, index entry and the checkpoint. Status: 0 sound, 1 damaged, 2 could not be read
    Check(check::CheckArgs),
    /// Print records as lines of JSON, in log order
    Dump(dump::DumpArgs),
    /// Messages and bytes by topic and queue, segments, index files, oldest and newest message
    Stat(stat::StatArgs),
    /// Build consume queues, key index and checkpoint anew from the log; the old ones are replaced only when the new ones are done
    Rebuild(rebuild::RebuildArgs),
    /// Write all messages of one topic to a file, as lines of JSON; also of a broker in DLedger mode (enableDLegerCommitLog)
    Export(dump::ExportArgs),
}

/// Where the store is.
#[derive(Args, Debug, Clone)]
struct Place {
    /// The store: the broker's storePathRootDir
    #[arg(value_name = "PATH")]
    root: PathBuf,
    /// The broker's properties file, for what differs from Apache's defaults (storePathCommitLog, maxHashSlotNum, ...)
    #[arg(short, long = "configFile", value_name = "FILE")]
    config_file: Option<PathBuf>,
}

#[derive(Debug, Error)]
pub(crate) enum ToolError {
    #[error("{op} {}: {source}", path.display())]
    Io {
        op: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Unusable(String),
    #[error("output: {0}")]
    Output(#[source] io::Error),
}

impl ToolError {
    pub(crate) fn io(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ToolError {
        let path = path.to_owned();
        move |source| ToolError::Io { op, path, source }
    }
}

/// Reads a broker's properties file; without one, what a broker does without one.
pub type ReadConfig = fn(Option<&Path>) -> Result<StoreConfig, String>;

/// How the outcome is told to the shell.
const SOUND: i32 = 0;
const DAMAGED: i32 = 1;
const FAILED: i32 = 2;

/// Runs what `args` ask for; the exit code of the process.
pub fn main(args: StoreArgs, read_config: ReadConfig) -> i32 {
    let outcome = match args.what {
        What::Check(args) => check::main(args, read_config),
        What::Dump(args) => dump::main(args, read_config),
        What::Stat(args) => stat::main(args, read_config),
        What::Rebuild(args) => rebuild::main(args, read_config),
        What::Export(args) => dump::export(args, read_config),
    };
    match outcome {
        Ok(status) => status,
        // `| head` has seen enough.
        Err(ToolError::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => SOUND,
        Err(e) => {
            eprintln!("uringmq store: {e}");
            FAILED
        }
    }
}

/// A store whose lock is held, for reading.
struct Held {
    root: PathBuf,
    config: Option<StoreConfig>,
    _lock: Option<lock::StoreLock>,
}

impl Held {
    fn commit_log_dir(&self) -> PathBuf {
        self.config.as_ref().map_or_else(|| self.root.join("commitlog"), |config| config.commit_log_dir.clone())
    }
}

impl Place {
    fn config(&self, read_config: ReadConfig) -> Result<Option<StoreConfig>, ToolError> {
        let Some(file) = &self.config_file else { return Ok(None) };
        let mut config = read_config(Some(file)).map_err(ToolError::Unusable)?;
        if config.commit_log_dir == config.root.join("commitlog") {
            config.commit_log_dir = self.root.join("commitlog"); // the store may have been moved
        }
        config.root = self.root.clone();
        Ok(Some(config))
    }

    /// The log's directory must be there: a mistyped path is no sound store.
    fn require_log(&self, held: &Held) -> Result<(), ToolError> {
        let dir = held.commit_log_dir();
        match dir.is_dir() {
            true => Ok(()),
            false => {
                Err(ToolError::Unusable(format!("{}: no store: it has no {}", self.root.display(), dir.display())))
            }
        }
    }

    fn hold_to_read(&self, read_config: ReadConfig) -> Result<Held, ToolError> {
        let held = self.hold_any_to_read(read_config)?;
        self.require_log(&held)?;
        Ok(held)
    }

    /// Also a store that has its log elsewhere.
    fn hold_any_to_read(&self, read_config: ReadConfig) -> Result<Held, ToolError> {
        let config = self.config(read_config)?;
        Ok(Held { root: self.root.clone(), config, _lock: lock::lock_to_read(&self.root)? })
    }

    fn hold_to_write(&self, read_config: ReadConfig) -> Result<Held, ToolError> {
        let mut held = Held { root: self.root.clone(), config: self.config(read_config)?, _lock: None };
        self.require_log(&held)?;
        held._lock = Some(lock::lock(&self.root)?);
        late_writes::wait(&held.commit_log_dir())?;
        Ok(held)
    }
}
