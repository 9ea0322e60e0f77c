//! The broker: shards, a writer, a control role. One process, one executor a core, no locks.
pub mod config;
pub mod control;
pub mod delay;
pub mod error;
pub mod escape;
pub mod half_message;
pub mod handlers;
pub mod machine;
pub mod mesh;
pub mod placement;
pub mod pop;
pub mod registration;
pub mod replicas;
pub mod replication;
pub mod requests;
pub mod responses;
pub mod shard;
pub mod snapshot;
pub mod stages;
pub mod start_checks;
pub mod startup;
pub mod stop_signal;
#[cfg(test)]
mod testing;
pub mod timer;
pub mod writer;

pub use startup::{BrokerRun, Ended, run};

/// The io below the broker; the seam ends here.
pub type Io = uringmq_store::io::glommio::GlommioIo;
pub type Log = uringmq_store::commit_log::Appender<Io>;
pub type Keeper = uringmq_store::commit_log::Keeper<Io>;
pub type LogReader = uringmq_store::log_reader::LogReader<Io>;
pub type ConsumeQueue = uringmq_store::consume_queue::ConsumeQueue<Io>;
pub type Index = uringmq_store::index::Index<Io>;
