//! The sockets: frames in, answers out. A connection's requests run beside each other, but for heartbeats, which take effect in their
//! order. Knows no request's meaning.
use crate::Controller;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, Semaphore};
use tracing::{debug, warn};
use uringmq_proto::codes::request;
use uringmq_proto::command::{Command, Response, write_response};
use uringmq_proto::frame::{self, Frame, Serialize, Split};

/// Requests of one connection under way; beyond these nothing is read.
const IN_FLIGHT_MAX: usize = 64;
const CONNECTIONS_MAX: usize = 8192;
/// A peer that takes no answer for so long is given up.
const WRITE_MAX: Duration = Duration::from_secs(10);
/// After a failed accept: without file descriptors it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A request with where it came from.
pub struct Call<'a> {
    pub cmd: &'a Command<'a>,
    /// A number of this connection alone.
    pub connection: u64,
    /// Where the caller reached this controller.
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

#[derive(Clone, Copy)]
struct Ends {
    connection: u64,
    local: SocketAddr,
    peer: SocketAddr,
}

/// Accepts until the task is dropped.
pub async fn accept(server: Arc<Controller>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned().await.expect("never closed");
        match listener.accept().await {
            Ok((stream, peer)) => {
                let server = server.clone();
                tokio::spawn(async move {
                    connection(server, stream, peer).await;
                    drop(place);
                });
            }
            Err(error) => {
                warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(server: Arc<Controller>, stream: TcpStream, peer: SocketAddr) {
    let Ok(local) = stream.local_addr() else { return };
    let ends = Ends { connection: server.next_connection(), local, peer };
    if let Err(error) = serve(&server, stream, ends).await {
        debug!(%peer, "connection ends: {error}");
    }
    server.connection_closed(ends.connection);
}

async fn serve(server: &Arc<Controller>, stream: TcpStream, ends: Ends) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut reader, writer) = stream.into_split();
    let writer = Arc::new(Mutex::new(writer));
    let places = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let broken = Arc::new(Notify::new()); // an answer was not written whole: nothing can follow it
    let (mut buffer, mut first) = (Vec::with_capacity(4096), true);
    loop {
        let idle = Duration::from_secs(server.config().idle_seconds);
        let late = |_| io::Error::other("nothing came for serverChannelMaxIdleTimeSeconds");
        let read = tokio::select! {
            read = tokio::time::timeout(idle, reader.read_buf(&mut buffer)) => read.map_err(late)??,
            () = broken.notified() => return Err(io::Error::other("it takes no answers")),
        };
        if read == 0 {
            return Ok(());
        }
        let mut at = 0;
        while let Split::Whole { frame, bytes } = frame::split(&buffer[at..], first).map_err(io::Error::other)? {
            (at, first) = (at + bytes, false);
            let place = places.clone().acquire_owned().await.expect("never closed");
            let request = Request::of(frame);
            if Command::decode(frame).map_err(io::Error::other)?.code == request::BROKER_HEARTBEAT {
                request.answer(server, &writer, ends).await?;
                continue;
            }
            let (server, writer, broken) = (server.clone(), writer.clone(), broken.clone());
            tokio::spawn(async move {
                if let Err(error) = request.answer(&server, &writer, ends).await {
                    debug!(peer = %ends.peer, "an answer is lost: {error}");
                    broken.notify_one();
                }
                drop(place);
            });
        }
        buffer.drain(..at);
    }
}

/// A frame that outlives the buffer it came in.
struct Request {
    serialize: Serialize,
    header: Vec<u8>,
    body: Vec<u8>,
}

impl Request {
    fn of(frame: Frame<'_>) -> Self {
        Request { serialize: frame.serialize, header: frame.header.to_vec(), body: frame.body.to_vec() }
    }

    async fn answer(&self, server: &Controller, writer: &Mutex<OwnedWriteHalf>, ends: Ends) -> io::Result<()> {
        let frame = Frame { serialize: self.serialize, header: &self.header, body: &self.body };
        let cmd = Command::decode(frame).map_err(io::Error::other)?;
        if cmd.is_response() {
            return Ok(()); // nothing was asked of this peer here
        }
        let Ends { connection, local, peer } = ends;
        let response = server.respond(&Call { cmd: &cmd, connection, local, peer }).await;
        if cmd.is_oneway() {
            return Ok(());
        }
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        tokio::time::timeout(WRITE_MAX, write(writer, cmd.opaque, &response)).await.map_err(late)?
    }
}

async fn write(writer: &Mutex<OwnedWriteHalf>, opaque: i32, response: &Response) -> io::Result<()> {
    let mut bytes = Vec::new();
    write_response(&mut bytes, opaque, response);
    writer.lock().await.write_all(&bytes).await
}
