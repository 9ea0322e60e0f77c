//! A file per family of requests.
pub mod ack;
pub mod admin;
pub mod balance;
pub mod client;
pub mod cold;
pub mod create;
pub mod group;
pub mod light;
pub mod lock;
pub mod offset;
pub mod pop;
pub mod pull;
pub mod query;
pub mod relay;
pub mod replicas;
pub mod reply;
pub mod rocksdb;
pub mod send;
pub mod send_back;
pub mod static_topic;
pub mod stats;
pub mod timer;
pub mod topic;
pub mod transaction;

use crate::error::BrokerError;
use uringmq_proto::command::{Command, Response};
use uringmq_proto::frame::{self, Split};

/// Decodes a task's own copy of a frame (it was decoded once before) and runs `f` on it.
pub async fn with_command(
    bytes: &[u8],
    f: impl AsyncFnOnce(&Command<'_>) -> Result<Response, BrokerError>,
) -> Result<Response, BrokerError> {
    match frame::split(bytes, false) {
        Ok(Split::Whole { frame, .. }) => match Command::decode(frame) {
            Ok(cmd) => f(&cmd).await,
            Err(e) => Err(BrokerError::Body(e.to_string())),
        },
        _ => Err(BrokerError::Body("not a frame".into())),
    }
}
