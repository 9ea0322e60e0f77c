//! Tells brokers that their group has another master (1008): one-way, each on a connection of its own. One that is not reached finds it
//! out by itself: brokers ask (1004) every few seconds.
use crate::state::Group;
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tracing::warn;
use uringmq_proto::body::controller::SyncStateSet;
use uringmq_proto::codes::request;
use uringmq_proto::command::write_request;
use uringmq_proto::fastjson;
use uringmq_proto::headers::controller::NotifyBrokerRoleChanged;

const PATIENCE: Duration = Duration::from_secs(3);

/// The frame that tells of `group`'s master.
pub fn notice(group: &Group) -> Vec<u8> {
    let header = NotifyBrokerRoleChanged {
        master_address: group.master_address(),
        master_epoch: Some(group.master_epoch),
        sync_state_set_epoch: Some(group.sync_state_set_epoch),
        master_broker_id: group.master,
    };
    let set =
        SyncStateSet { sync_state_set: group.sync_state_set.clone(), sync_state_set_epoch: group.sync_state_set_epoch };
    let mut frame = Vec::new();
    write_request(&mut frame, request::NOTIFY_BROKER_ROLE_CHANGED, 1, true, &header.ext(), &fastjson::to_vec(&set));
    frame
}

/// Sends `frame` to the broker at `address`.
pub async fn send(address: String, frame: Vec<u8>) {
    let told = async {
        let mut stream = TcpStream::connect(&address).await?;
        stream.write_all(&frame).await?;
        stream.shutdown().await
    };
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut));
    if let Err(error) = tokio::time::timeout(PATIENCE, told).await.unwrap_or_else(late) {
        warn!("the broker at {address} was not told of its new master: {error}");
    }
}
