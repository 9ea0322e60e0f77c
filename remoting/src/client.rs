//! The calling side: one connection to a peer, with its requests and (through a service) the peer's own.
use crate::connection::{CallError, Conn, Conns};
use crate::{Limits, Service};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Connects and runs the connection as a detached task of this executor.
pub async fn connect<S: Service>(
    peer: SocketAddr,
    conns: &Rc<Conns>,
    service: Rc<S>,
    limits: Limits,
    timeout: Duration,
) -> Result<Rc<Conn>, CallError> {
    let _ = (peer, conns, service, limits, timeout);
    todo!()
}

/// For clients that expect no requests: answers each with code 3.
pub struct NoService;
impl Service for NoService {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &uringmq_proto::command::Command<'_>, _: &[u8]) {
        let _ = (conn, cmd);
        todo!()
    }
}
