//! One framed connection: reads frames, answers in batches, one owner per socket. Also originates calls (server to client, or as a
//! client), matched by opaque.
use crate::calls::Calls;
use crate::reader::{self, End, Reader};
use crate::shared::Shared;
use crate::wait::{Bell, Line};
use crate::{ConnId, Limits, Service, writer};
use futures_lite::future::or;
use futures_lite::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use glommio::timer::Timer;
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::debug;
use uringmq_proto::command::{self, OwnedCommand, Response, Value};

#[derive(Debug, Error)]
pub enum CallError {
    #[error("connection to {0} closed")]
    Closed(SocketAddr),
    #[error("no answer from {peer} in {ms} ms")]
    Timeout { peer: SocketAddr, ms: u64 },
    #[error("connect to {peer}: {source}")]
    Connect {
        peer: SocketAddr,
        #[source]
        source: io::Error,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Takes no more output, sends what waits.
    Closing,
    /// The socket is shut.
    Shut,
}

/// A live (or just closed) connection. Every method is cheap and synchronous but `call`.
pub struct Conn {
    id: ConnId,
    peer: SocketAddr,
    local: SocketAddr,
    limits: Limits,
    shared: Rc<Shared>,
    calls: Calls,
    phase: Cell<Phase>,
    /// Gone once the connection has ended. Reader and writer borrow it within a poll only.
    socket: RefCell<Option<TcpStream>>,
    out: RefCell<Vec<u8>>,
    out_bytes: Cell<usize>,
    /// Of the output being written, what is left.
    sending_bytes: Cell<usize>,
    held_bytes: Cell<usize>,
    paused: Cell<bool>,
    reader: Bell,
    writer: Bell,
    /// Waits for `phase` to leave `Open`, and for the reader's end.
    closing: Line,
    read_ended: Cell<bool>,
    write_ended: Cell<bool>,
    /// Read or written since the idle timer last looked.
    active: Cell<bool>,
    quiet_since: Cell<Instant>,
    frame_since: Cell<Option<Instant>>,
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
        self.phase.get() == Phase::Open
    }

    /// Lets `fill` append whole frames to the output; they leave in one write with all else of this turn. Nothing happens when closed.
    /// `fill` must not write to this connection itself.
    pub fn write(&self, fill: impl FnOnce(&mut Vec<u8>)) {
        if !self.is_open() {
            return;
        }
        let mut out = self.out.borrow_mut();
        if out.capacity() == 0 {
            *out = self.shared.take_spare();
        }
        let before = out.len();
        fill(&mut out);
        self.out_bytes.set(out.len());
        if before == 0 && !out.is_empty() {
            self.writer.ring();
        }
    }

    pub fn respond(&self, opaque: i32, response: &Response) {
        self.write(|out| command::write_response(out, opaque, response));
    }

    /// A request that nobody answers.
    pub fn oneway(&self, code: i32, ext: &[(&str, Value<'_>)], body: &[u8]) {
        self.write(|out| command::write_request(out, code, self.calls.opaque(), true, ext, body));
    }

    /// A request and its answer. Opaques are this connection's own.
    ///
    /// # Errors
    /// [`CallError::Closed`] when the connection is or gets closed first, [`CallError::Timeout`] after `timeout`; an answer that comes
    /// later is dropped.
    pub async fn call(
        &self,
        code: i32,
        ext: &[(&str, Value<'_>)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<OwnedCommand, CallError> {
        if !self.is_open() {
            return Err(CallError::Closed(self.peer));
        }
        let started = self.calls.start();
        self.write(|out| command::write_request(out, code, started.opaque, false, ext, body));
        or(async { started.answer().await.ok_or(CallError::Closed(self.peer)) }, async {
            Timer::new(timeout).await;
            Err(CallError::Timeout { peer: self.peer, ms: timeout.as_millis() as u64 })
        })
        .await
    }

    /// Counts `bytes` of a request in flight; reading pauses above `held_bytes_high`. Each `hold` is matched by a `release`.
    pub fn hold(&self, bytes: usize) {
        self.held_bytes.set(self.held_bytes.get() + bytes);
    }

    pub fn release(&self, bytes: usize) {
        let held = self.held_bytes.get();
        assert!(bytes <= held, "released {bytes} bytes of {held} held");
        self.held_bytes.set(held - bytes);
        self.ring_if_paused();
    }

    /// Sends what waits, then closes. `why` goes to the log.
    pub fn close(&self, why: &'static str) {
        if self.is_open() {
            debug!(peer = %self.peer, why, "closing");
            self.leave_open(Phase::Closing);
        }
    }
}

/// What reader, writer and the idle timer do with a connection.
impl Conn {
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Rung when reading may go on, or must end.
    pub(crate) fn reader_bell(&self) -> &Bell {
        &self.reader
    }

    /// Rung when there is output, or writing must end.
    pub(crate) fn writer_bell(&self) -> &Bell {
        &self.writer
    }

    pub(crate) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let polled = match self.socket.borrow_mut().as_mut() {
            None => Poll::Ready(Ok(0)),
            Some(socket) => Pin::new(socket).poll_read(cx, buf),
        };
        if polled.is_ready() {
            self.active.set(true);
        }
        polled
    }

    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = match self.socket.borrow_mut().as_mut() {
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            Some(socket) => Pin::new(socket).poll_write(cx, buf),
        };
        if polled.is_ready() {
            self.active.set(true);
        }
        polled
    }

    pub(crate) fn has_output(&self) -> bool {
        self.out_bytes.get() > 0
    }

    /// The output gathered so far, with `spare` (empty) in its place; `None` when there is none or it cannot leave any more.
    pub(crate) fn take_output(&self, spare: Vec<u8>) -> Option<Vec<u8>> {
        if !self.has_output() || self.phase.get() == Phase::Shut {
            return None;
        }
        let output = self.out.replace(spare);
        self.out_bytes.set(0);
        self.sending_bytes.set(output.len());
        Some(output)
    }

    pub(crate) fn set_sending(&self, bytes: usize) {
        self.sending_bytes.set(bytes);
        self.ring_if_paused();
    }

    pub(crate) fn set_frame_since(&self, since: Option<Instant>) {
        self.frame_since.set(since);
    }

    /// Above the high mark of output or held bytes; once so, until both are at half.
    pub(crate) fn must_pause(&self) -> bool {
        let divisor = if self.paused.get() { 2 } else { 1 };
        let waiting = self.out_bytes.get() + self.sending_bytes.get();
        let high = waiting > self.limits.out_bytes_high / divisor
            || self.held_bytes.get() > self.limits.held_bytes_high / divisor;
        self.paused.set(high);
        high
    }

    fn ring_if_paused(&self) {
        if self.paused.get() && !self.must_pause() {
            self.reader.ring();
        }
    }

    /// Ends the connection at once; what waits is not sent.
    pub(crate) fn abort(&self) {
        if self.phase.get() != Phase::Shut {
            self.leave_open(Phase::Shut);
            self.shut(Shutdown::Both);
        }
    }

    fn leave_open(&self, phase: Phase) {
        self.phase.set(phase);
        self.reader.ring();
        self.writer.ring();
        self.closing.wake_all();
    }

    /// Shuts the socket (and with it wakes who waits for it); false when it was shut or gone before.
    pub(crate) fn shut(&self, how: Shutdown) -> bool {
        let socket = self.socket.borrow();
        let Some(socket) = socket.as_ref() else { return false };
        // SAFETY: the descriptor is owned by `socket`, which is borrowed for longer than `fd` lives.
        let fd = unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) };
        socket2::SockRef::from(&fd).shutdown(how).is_ok()
    }

    pub(crate) async fn closing(&self) {
        self.wait_until(|conn| !conn.is_open()).await;
    }

    pub(crate) async fn read_ended(&self) {
        self.wait_until(|conn| conn.read_ended.get()).await;
    }

    async fn wait_until(&self, done: impl Fn(&Conn) -> bool) {
        let place = self.closing.place();
        poll_fn(|cx| {
            if done(self) {
                return Poll::Ready(());
            }
            place.park(cx);
            Poll::Pending
        })
        .await
    }

    /// Called now and then: closes the connection when nothing moved for `idle_ms`, or one frame takes as long.
    fn check_idle(&self, now: Instant) {
        let idle = Duration::from_millis(self.limits.idle_ms);
        if self.active.take() {
            self.quiet_since.set(now);
        }
        if idle.is_zero() {
            return;
        }
        if now.saturating_duration_since(self.quiet_since.get()) > idle {
            // Output that did not move for so long will not move now.
            if self.sending_bytes.get() > 0 { self.abort() } else { self.close("idle") }
        } else if self.frame_since.get().is_some_and(|since| now.saturating_duration_since(since) > idle) {
            self.close("a frame takes too long to arrive");
        }
    }
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Conn {{ id: {:?}, peer: {}, phase: {:?} }}", self.id, self.peer, self.phase.get())
    }
}

/// The connections of one shard, by id.
#[derive(Default)]
pub struct Conns {
    table: RefCell<HashMap<u64, Rc<Conn>>>,
    shared: Rc<Shared>,
    shard: Cell<u16>,
    emptied: Line,
    /// The idle timer runs, looking so often.
    ticking: Cell<bool>,
    tick_ms: Cell<Option<u64>>,
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

    /// Closes every connection after what waits was sent; see [`Conns::emptied`] for their end.
    pub fn close_all(&self, why: &'static str) {
        self.for_each(|conn| conn.close(why));
    }

    /// Resolves when no connection is left (each has then had its `on_close`).
    pub async fn emptied(&self) {
        let place = self.emptied.place();
        poll_fn(|cx| {
            if self.count() == 0 {
                return Poll::Ready(());
            }
            place.park(cx);
            Poll::Pending
        })
        .await
    }

    fn remove(&self, conn: &Conn) {
        self.table.borrow_mut().remove(&conn.id.serial);
        if self.count() == 0 {
            self.emptied.wake_all();
        }
    }

    /// Starts the idle timer of this shard unless it runs; it ends with the last connection. One coarse timer: a timer per read
    /// would cost more than the read.
    fn tick(self: &Rc<Self>, idle_ms: u64) {
        if idle_ms == 0 {
            return;
        }
        let tick_ms = (idle_ms / 8).clamp(10, 5_000);
        self.tick_ms.set(Some(self.tick_ms.get().map_or(tick_ms, |other| other.min(tick_ms))));
        if self.ticking.replace(true) {
            return;
        }
        let conns = self.clone();
        glommio::spawn_local(async move {
            while conns.count() > 0 {
                Timer::new(Duration::from_millis(conns.tick_ms.get().unwrap_or(tick_ms))).await;
                let now = Instant::now();
                conns.for_each(|conn| conn.check_idle(now));
            }
            conns.ticking.set(false);
        })
        .detach();
    }
}

/// Runs one accepted or connected socket to its end: reads, hands requests to `service`, routes answers to their callers.
pub async fn run<S: Service>(stream: TcpStream, shard: u16, conns: Rc<Conns>, service: Rc<S>, limits: Limits) {
    conns.shard.set(shard);
    match open(stream, &conns, &limits) {
        Ok(conn) => drive(conn, conns, service).await,
        Err(error) => debug!(%error, "a connection was gone before it was served"),
    }
}

/// Makes a connection of a connected socket and registers it.
pub(crate) fn open(stream: TcpStream, conns: &Rc<Conns>, limits: &Limits) -> io::Result<Rc<Conn>> {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    stream.set_nodelay(true)?;
    let (peer, local) = (canonical(stream.peer_addr()?), canonical(stream.local_addr()?));
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let conn = Rc::new(Conn {
        id: ConnId { shard: conns.shard.get(), serial },
        peer,
        local,
        limits: limits.clone(),
        shared: conns.shared.clone(),
        calls: Calls::default(),
        phase: Cell::new(Phase::Open),
        socket: RefCell::new(Some(stream)),
        out: RefCell::default(),
        out_bytes: Cell::new(0),
        sending_bytes: Cell::new(0),
        held_bytes: Cell::new(0),
        paused: Cell::new(false),
        reader: Bell::default(),
        writer: Bell::default(),
        closing: Line::default(),
        read_ended: Cell::new(false),
        write_ended: Cell::new(false),
        active: Cell::new(false),
        quiet_since: Cell::new(Instant::now()),
        frame_since: Cell::new(None),
    });
    conns.table.borrow_mut().insert(serial, conn.clone());
    conns.tick(limits.idle_ms);
    Ok(conn)
}

/// Runs an open connection to its end.
pub(crate) async fn drive<S: Service>(conn: Rc<Conn>, conns: Rc<Conns>, service: Rc<S>) {
    service.on_open(&conn);
    let writing = conn.clone();
    glommio::spawn_local(async move {
        writer::run(writing.clone()).await;
        writing.write_ended.set(true);
        writing.closing.wake_all();
    })
    .detach();
    match Reader::new(&conn, &*service).run().await {
        End::Eof => conn.close("the peer closed"),
        End::Closing => reader::discard(&conn).await,
        End::Broken(reason) => {
            conns.shared.complain(conn.peer, &reason);
            conn.abort();
        }
        End::Failed(error) => {
            debug!(peer = %conn.peer, %error, "read");
            conn.abort();
        }
    }
    conn.calls.fail_all();
    conn.read_ended.set(true);
    conn.closing.wake_all();
    conn.wait_until(|conn| conn.write_ended.get()).await;
    conn.abort();
    *conn.socket.borrow_mut() = None;
    conns.remove(&conn);
    service.on_close(&conn);
}

/// An IPv4 peer of an IPv6 socket by its IPv4 address.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
