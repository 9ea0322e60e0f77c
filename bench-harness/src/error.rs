//! What can go wrong with a measurement.
use std::io;
use thiserror::Error;
use uringmq_proto::command::OwnedCommand;
use uringmq_remoting::connection::CallError;

#[derive(Debug, Error)]
pub(crate) enum BenchError {
    #[error("{name}: {why}")]
    Address { name: String, why: String },
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("{what} refused with code {code}: {remark}")]
    Refused { what: &'static str, code: i32, remark: String },
    #[error("{what}: no usable answer: {why}")]
    Answer { what: &'static str, why: String },
    #[error("the broker closed a connection under load")]
    Closed,
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("the load generator's io_uring executor: {0}")]
    Executor(String),
    #[error("{0}")]
    Process(String),
    /// The measured broker lost or changed messages.
    #[error("{0}")]
    Wrong(String),
}

impl BenchError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> BenchError {
        let what = what.into();
        move |source| BenchError::Io { what, source }
    }

    pub(crate) fn refused(what: &'static str, answer: &OwnedCommand) -> BenchError {
        BenchError::Refused { what, code: answer.code, remark: answer.remark.clone().unwrap_or_default() }
    }
}
