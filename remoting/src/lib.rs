//! The only crate with sockets: framed connections on glommio, for two servers and every client of ours.
//! Knows frames and commands, not what they mean.
//!
//! A connection is two tasks of the shard that owns its socket: one reads and hands over, one writes what gathered. All its calls are
//! synchronous, so whatever is answered within one turn of the executor leaves in one write.
mod calls;
pub mod client;
pub mod connection;
pub mod listener;
mod reader;
mod shared;
pub mod stop;
mod wait;
mod writer;

use connection::Conn;
use std::rc::Rc;
use tracing::debug;
use uringmq_proto::command::Command;

/// Names a connection from any core. `serial` is never reused while the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    pub shard: u16,
    pub serial: u64,
}

/// What a server does with its connections; one value per shard. All calls are synchronous and happen on the shard that owns the
/// socket; what needs to wait is spawned or sent elsewhere.
pub trait Service: 'static {
    fn on_open(&self, conn: &Rc<Conn>) {
        let _ = conn;
    }
    /// A request, in the order of reading. `frame` is the whole frame, its length prefix included.
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, frame: &[u8]);
    /// An answer that no [`Conn::call`] waits for: a late one, or one to a request written by [`Conn::write`] with an opaque of its
    /// maker's choice (do not mix the two on one connection).
    fn on_answer(&self, conn: &Rc<Conn>, answer: &Command<'_>) {
        debug!(peer = %conn.peer(), opaque = answer.opaque, code = answer.code, "nobody waits for this answer");
    }
    /// Everything that one read brought was handed over: the place to push what was gathered.
    fn on_turn(&self, conn: &Rc<Conn>) {
        let _ = conn;
    }
    /// The socket is gone (peer, error, idle or `Conn::close`); called once.
    fn on_close(&self, conn: &Rc<Conn>) {
        let _ = conn;
    }
}

/// Limits of a server's or client's connections.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Closed when nothing was read or written for so long, or when one large frame takes longer to arrive; 0 for never.
    pub idle_ms: u64,
    /// One read takes at most so much. The buffer is the shard's; a connection keeps only the start of a frame not yet whole.
    pub read_bytes: usize,
    /// A connection stops reading while more than this waits to be sent, or is held by requests in flight.
    pub out_bytes_high: usize,
    pub held_bytes_high: usize,
    /// All partly received frames of a shard together. A frame above a quarter of `read_bytes` is read only once its bytes are reserved.
    pub receive_budget_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            idle_ms: 120_000,
            read_bytes: 256 * 1024,
            out_bytes_high: 8 * 1024 * 1024,
            held_bytes_high: 32 * 1024 * 1024,
            receive_budget_bytes: 256 * 1024 * 1024,
        }
    }
}
