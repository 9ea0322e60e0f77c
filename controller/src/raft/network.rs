//! From controller to controller: openraft's messages as JSON bodies of remoting frames, on the port that brokers use too, as Apache's
//! controllers do it with messages of their own. The codes are ours alone: a controller of other make answers that it does not know them.
use super::{Raft, Types};
use crate::peers::Peers;
use openraft::BasicNode;
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uringmq_proto::codes::response;
use uringmq_proto::command::{Command, write_request};
use uringmq_proto::frame::{self, Split};
use uringmq_proto::headers::{Header, HeaderError};

/// Followers get the log and the leader's signs of life by this.
pub const APPEND: i32 = 61_001;
pub const VOTE: i32 = 61_002;
pub const SNAPSHOT: i32 = 61_003;

/// Between two tries to reach a peer that cannot be reached.
const AGAIN: Duration = Duration::from_millis(300);

/// Who asks whom; a message that went astray by a wrong address in a configuration must not count.
#[derive(Clone, Debug)]
pub struct ToPeer<'c> {
    pub group: &'c str,
    pub to: i64,
}

impl<'c> Header<'c> for ToPeer<'c> {
    fn decode(cmd: &'c Command<'_>) -> Result<Self, HeaderError> {
        let group = cmd.ext.get("group").ok_or(HeaderError::Missing("group"))?;
        let to = cmd.ext.get("to").and_then(|text| text.parse().ok()).ok_or(HeaderError::Missing("to"))?;
        Ok(ToPeer { group, to })
    }
}

/// Hands a peer's message to this node; the body of the answer.
///
/// # Errors
/// A body that cannot be read.
pub async fn receive(raft: &Raft, code: i32, body: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    match code {
        APPEND => serde_json::to_vec(&raft.append_entries(serde_json::from_slice(body)?).await),
        VOTE => serde_json::to_vec(&raft.vote(serde_json::from_slice(body)?).await),
        _ => serde_json::to_vec(&raft.install_snapshot(serde_json::from_slice(body)?).await),
    }
}

/// Makes the ways to the peers.
#[derive(Clone, Debug)]
pub struct Network {
    pub group: String,
    pub peers: Peers,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Way;

    /// The address is the configuration's: the one in the log is that of the first start.
    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Way {
        let address = self.peers.address(target).unwrap_or(&node.addr).to_owned();
        Way { target, address, group: self.group.clone(), stream: None, opaque: 0 }
    }
}

/// The way to one peer: one connection, one message at a time.
#[derive(Debug)]
pub struct Way {
    target: u64,
    address: String,
    group: String,
    /// Taken out while a message is under way: one that was given up leaves no half answer behind.
    stream: Option<TcpStream>,
    opaque: i32,
}

type Failed<E> = RPCError<u64, BasicNode, E>;

impl Way {
    async fn ask<Q: Serialize, A: DeserializeOwned, E: std::error::Error + DeserializeOwned>(
        &mut self,
        code: i32,
        question: &Q,
    ) -> Result<A, Failed<E>> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect().await.map_err(|error| Failed::Unreachable(Unreachable::new(&error)))?,
        };
        let lost = |error: io::Error| Failed::Network(NetworkError::new(&error));
        let answer = self.exchange(&mut stream, code, question).await.map_err(lost)?;
        self.stream = Some(stream);
        let answer: Result<A, E> =
            serde_json::from_slice(&answer).map_err(|error| lost(io::Error::other(error.to_string())))?;
        answer.map_err(|error| Failed::RemoteError(RemoteError::new(self.target, error)))
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn exchange(&mut self, stream: &mut TcpStream, code: i32, question: &impl Serialize) -> io::Result<Vec<u8>> {
        self.opaque = self.opaque.wrapping_add(1);
        let body = serde_json::to_vec(question).map_err(io::Error::other)?;
        let ext = [("group", self.group.as_str().into()), ("to", self.target.into())];
        let mut bytes = Vec::with_capacity(body.len() + 256);
        write_request(&mut bytes, code, self.opaque, false, &ext, &body);
        stream.write_all(&bytes).await?;
        bytes.clear();
        loop {
            let split = frame::split(&bytes, false).map_err(io::Error::other)?;
            if let Split::Whole { frame, .. } = split {
                let answer = Command::decode(frame).map_err(io::Error::other)?;
                return match answer.code {
                    response::SUCCESS => Ok(answer.body.to_vec()),
                    code => Err(io::Error::other(format!(
                        "the controller at {} answers {code}: {}",
                        self.address,
                        answer.remark.as_deref().unwrap_or_default()
                    ))),
                };
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl RaftNetwork<Types> for Way {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed<RaftError<u64>>> {
        self.ask(APPEND, &rpc).await
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Failed<RaftError<u64, InstallSnapshotError>>> {
        self.ask(SNAPSHOT, &rpc).await
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, _: RPCOption) -> Result<VoteResponse<u64>, Failed<RaftError<u64>>> {
        self.ask(VOTE, &rpc).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(AGAIN))
    }
}
