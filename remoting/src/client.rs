//! The calling side: one connection to a peer, with its requests and (through a service) the peer's own.
use crate::connection::{self, CallError, Conn, Conns};
use crate::{Limits, Service};
use glommio::net::TcpStream;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use uringmq_proto::codes::response;
use uringmq_proto::command::{Command, Response};

/// Connects and runs the connection as a detached task of this executor.
///
/// # Errors
/// [`CallError::Connect`] when refused, unreachable or not answered within `timeout` (at least a millisecond is given).
pub async fn connect<S: Service>(
    peer: SocketAddr,
    conns: &Rc<Conns>,
    service: Rc<S>,
    limits: Limits,
    timeout: Duration,
) -> Result<Rc<Conn>, CallError> {
    let failed = |source| CallError::Connect { peer, source };
    let timeout = timeout.max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(peer, timeout).await.map_err(|error| failed(error.into()))?;
    let conn = connection::open(stream, conns, &limits).map_err(failed)?;
    glommio::spawn_local(connection::drive(conn.clone(), conns.clone(), service)).detach();
    Ok(conn)
}

/// For clients that expect no requests: answers each with code 3.
pub struct NoService;

impl Service for NoService {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, _: &[u8]) {
        if !cmd.is_oneway() {
            let remark = format!(" request type {} not supported", cmd.code);
            conn.respond(cmd.opaque, &Response::err(response::REQUEST_CODE_NOT_SUPPORTED, remark));
        }
    }
}
