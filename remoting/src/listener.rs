//! Accepts on one shard and hands each socket to the least loaded shard.
use crate::connection::Conns;
use crate::stop::Gate;
use crate::{Limits, Service};
use std::net::SocketAddr;
use std::rc::Rc;

/// Sockets handed to one shard, and how many it has. Made once per server before the shards start; cloned into each.
#[derive(Clone)]
pub struct Spread {
    _private: (),
}

impl Spread {
    pub fn new(shards: usize) -> Self {
        let _ = shards;
        todo!()
    }
}

/// A bound listening socket; plain, so that binding errors are known before any shard runs.
pub struct Bound {
    pub addr: SocketAddr,
    _socket: std::net::TcpListener,
}

/// SO_REUSEADDR, backlog 1024; port 0 picks a free one (see `addr`).
pub fn bind(addr: SocketAddr) -> std::io::Result<Bound> {
    let _ = addr;
    todo!()
}

/// The accepting task of one shard: runs until `gate` closes. Each accepted socket goes to the shard with the fewest connections.
pub async fn accept(bound: Bound, spread: Spread, gate: Rc<Gate>) {
    let _ = (bound, spread, gate);
    todo!()
}

/// The serving task of shard `shard`: takes the sockets handed to it and runs each as a task of its own, until `gate` closes.
pub async fn serve<S: Service>(
    spread: Spread,
    shard: u16,
    conns: Rc<Conns>,
    service: Rc<S>,
    limits: Limits,
    gate: Rc<Gate>,
) {
    let _ = (spread, shard, conns, service, limits, gate);
    todo!()
}
