//! One framed connection: reads frames, answers in batches, one owner per socket. Also originates calls (server to client, or as a
//! client), matched by opaque.
use crate::{ConnId, Limits, Service};
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;
use uringmq_proto::command::{OwnedCommand, Response, Value};

#[derive(Debug, Error)]
pub enum CallError {
    #[error("connection to {0} closed")]
    Closed(SocketAddr),
    #[error("no answer from {peer} in {ms} ms")]
    Timeout { peer: SocketAddr, ms: u64 },
    #[error("connect to {peer}: {source}")]
    Connect { peer: SocketAddr, #[source] source: std::io::Error },
}

/// A live (or just closed) connection. Every method is cheap and synchronous but `call`.
pub struct Conn {
    id: ConnId,
    peer: SocketAddr,
    local: SocketAddr,
}

impl Conn {
    pub fn id(&self) -> ConnId {
        self.id
    }
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
    pub fn local(&self) -> SocketAddr {
        self.local
    }
    pub fn is_open(&self) -> bool {
        todo!()
    }
    /// Lets `fill` append whole frames to the output; they leave in one write with all else of this turn. Nothing happens when closed.
    pub fn write(&self, fill: impl FnOnce(&mut Vec<u8>)) {
        let _ = fill;
        todo!()
    }
    pub fn respond(&self, opaque: i32, response: &Response) {
        let _ = (opaque, response);
        todo!()
    }
    /// A request that nobody answers.
    pub fn oneway(&self, code: i32, ext: &[(&'static str, Value<'static>)], body: &[u8]) {
        let _ = (code, ext, body);
        todo!()
    }
    /// A request and its answer. Opaques are this connection's own.
    pub async fn call(
        &self,
        code: i32,
        ext: &[(&'static str, Value<'static>)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<OwnedCommand, CallError> {
        let _ = (code, ext, body, timeout);
        todo!()
    }
    /// Counts `bytes` of a request in flight; reading pauses above `held_bytes_high`. Each `hold` is matched by a `release`.
    pub fn hold(&self, bytes: usize) {
        let _ = bytes;
        todo!()
    }
    pub fn release(&self, bytes: usize) {
        let _ = bytes;
        todo!()
    }
    /// Sends what waits, then closes. `why` goes to the log.
    pub fn close(&self, why: &'static str) {
        let _ = why;
        todo!()
    }
}

/// The connections of one shard, by id.
#[derive(Default)]
pub struct Conns {
    table: RefCell<HashMap<u64, Rc<Conn>>>,
}

impl Conns {
    pub fn get(&self, id: ConnId) -> Option<Rc<Conn>> {
        self.table.borrow().get(&id.serial).cloned()
    }
    pub fn count(&self) -> usize {
        self.table.borrow().len()
    }
    pub fn for_each(&self, mut each: impl FnMut(&Rc<Conn>)) {
        let all: Vec<Rc<Conn>> = self.table.borrow().values().cloned().collect();
        all.iter().for_each(&mut each);
    }
}

/// Runs one accepted or connected socket to its end: reads, hands requests to `service`, routes answers to their callers.
pub async fn run<S: Service>(
    stream: glommio::net::TcpStream,
    shard: u16,
    conns: Rc<Conns>,
    service: Rc<S>,
    limits: Limits,
) {
    let _ = (stream, shard, conns, service, limits);
    todo!()
}
