//! Accepts on one shard and hands each socket to the least loaded shard.
//!
//! Listening on every shard (SO_REUSEPORT) would leave two or three connections on one core; here the counts decide.
use crate::connection::{self, Conns};
use crate::stop::Gate;
use crate::{Limits, Service};
use futures_lite::future::or;
use glommio::net::{AcceptedTcpStream, TcpListener};
use glommio::timer::Timer;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tracing::{debug, warn};

const BACKLOG: i32 = 1024;
/// Accepted sockets that a shard has not taken yet.
const HANDED_MAX: usize = 1024;
/// How long a port in use is asked for, and how often.
const IN_USE_PATIENCE: Duration = Duration::from_secs(5);
const IN_USE_REST: Duration = Duration::from_millis(10);
/// How long accepting rests when the process or the system has no more descriptors or memory.
const EXHAUSTED_REST: Duration = Duration::from_millis(200);

/// Sockets handed to one shard, and how many it has. Made once per server before the shards start; cloned into each.
#[derive(Clone)]
pub struct Spread {
    lanes: Arc<[Lane]>,
    /// The shard that wins among equals, and those behind it: where a request has the shortest way.
    first: usize,
    /// The shard that gets none, if one does.
    spared: Option<usize>,
}

struct Lane {
    sender: flume::Sender<AcceptedTcpStream>,
    receiver: flume::Receiver<AcceptedTcpStream>,
    /// Connections handed over and not ended.
    count: AtomicUsize,
}

impl Spread {
    pub fn new(shards: usize) -> Self {
        Self::preferring(shards, 0)
    }

    /// As `new`; among shards with equally few connections `first` gets the next one, then the one behind it.
    pub fn preferring(shards: usize, first: usize) -> Self {
        assert!(first < shards, "a server without shards, or a preference for none of them");
        let lane = |_| {
            let (sender, receiver) = flume::bounded(HANDED_MAX);
            Lane { sender, receiver, count: AtomicUsize::new(0) }
        };
        Spread { lanes: (0..shards).map(lane).collect(), first, spared: None }
    }

    /// As `new`, with no connection for the shard `spared`, of at least two; the one behind it wins among equals.
    pub fn sparing(shards: usize, spared: usize) -> Self {
        assert!(shards > 1, "no other shard");
        Spread { spared: Some(spared), ..Self::preferring(shards, (spared + 1) % shards) }
    }

    /// The shard with the fewest connections; among equals the first one from `first` on.
    fn least(&self) -> usize {
        let shards = self.lanes.len();
        let in_order = (0..shards).map(|step| (self.first + step) % shards);
        let open = in_order.filter(|shard| self.spared != Some(*shard));
        open.min_by_key(|shard| self.lanes[*shard].count.load(Ordering::Relaxed)).expect("there are shards")
    }

    /// Connections of each shard, for logs and metrics.
    pub fn counts(&self) -> Vec<usize> {
        self.lanes.iter().map(|lane| lane.count.load(Ordering::Relaxed)).collect()
    }
}

/// A bound listening socket; plain, so that binding errors are known before any shard runs.
pub struct Bound {
    pub addr: SocketAddr,
    socket: std::net::TcpListener,
}

/// SO_REUSEADDR, backlog 1024; port 0 picks a free one (see `addr`). Blocking, for the start of a server: a port in use is asked for
/// again for five seconds, since the sockets that a killed process's rings refer to are closed by a worker of the kernel when that
/// process is long gone to its parent (10 ms later on a quiet machine), and whoever restarts it at once would be refused.
///
/// # Errors
/// `AddrInUse` when the port is another's; what socket(2), bind(2) and listen(2) say.
pub fn bind(addr: SocketAddr) -> std::io::Result<Bound> {
    bind_within(addr, IN_USE_PATIENCE)
}

fn bind_within(addr: SocketAddr, patience: Duration) -> std::io::Result<Bound> {
    let begun = Instant::now();
    loop {
        match bind_once(addr) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && begun.elapsed() < patience => std::thread::sleep(IN_USE_REST),
            done => return done,
        }
    }
}

fn bind_once(addr: SocketAddr) -> std::io::Result<Bound> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    let socket: std::net::TcpListener = socket.into();
    Ok(Bound { addr: socket.local_addr()?, socket })
}

/// The accepting task of one shard: runs until `gate` closes. Each accepted socket goes to the shard with the fewest connections.
pub async fn accept(bound: Bound, spread: Spread, gate: Rc<Gate>) {
    let mut accepting = Accepting::new(bound, gate);
    while let Some(stream) = accepting.next().await {
        let lane = &spread.lanes[spread.least()];
        lane.count.fetch_add(1, Ordering::Relaxed);
        lane.sender.send_async(stream).await.expect("the spread keeps a receiver of each lane");
    }
}

/// A listening socket of this executor, for a protocol that is not this crate's.
pub struct Accepting {
    listener: TcpListener,
    addr: SocketAddr,
    gate: Rc<Gate>,
    exhausted: bool,
}

impl Accepting {
    pub fn new(bound: Bound, gate: Rc<Gate>) -> Self {
        // SAFETY: `into_raw_fd` gives up the only ownership of a listening socket; the glommio listener takes it over.
        let listener = unsafe { TcpListener::from_raw_fd(bound.socket.into_raw_fd()) };
        Accepting { listener, addr: bound.addr, gate, exhausted: false }
    }

    /// The next connection; `None` once the gate is closed. While the system has no descriptors or memory it rests and tries again.
    pub async fn next(&mut self) -> Option<AcceptedTcpStream> {
        loop {
            let accepted = or(async { Some(self.listener.shared_accept().await) }, async {
                self.gate.closed().await;
                None
            });
            match accepted.await? {
                Ok(stream) => {
                    self.exhausted = false;
                    return Some(stream);
                }
                Err(error) => {
                    let error = std::io::Error::from(error);
                    if !is_exhaustion(&error) {
                        // The peer went away before it was accepted; the listener itself is sound.
                        debug!(%error, "accept on {}", self.addr);
                        futures_lite::future::yield_now().await;
                        continue;
                    }
                    if !self.exhausted {
                        warn!("accepting on {} rests until there are descriptors and memory again: {error}", self.addr);
                    }
                    self.exhausted = true;
                    Timer::new(EXHAUSTED_REST).await;
                }
            }
        }
    }
}

/// No descriptor or memory for one more socket: trying again at once would only spin.
fn is_exhaustion(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

/// The serving task of shard `shard`: takes the sockets handed to it and runs each as a task of its own, until `gate` closes.
/// The connections outlive it: [`Conns::close_all`] ends them, [`Conns::emptied`] waits for their end.
pub async fn serve<S: Service>(
    spread: Spread,
    shard: u16,
    conns: Rc<Conns>,
    service: Rc<S>,
    limits: Limits,
    gate: Rc<Gate>,
) {
    let receiver = spread.lanes[shard as usize].receiver.clone();
    loop {
        let handed = or(async { receiver.recv_async().await.ok() }, async {
            gate.closed().await;
            None
        });
        let Some(stream) = handed.await else { break };
        let counted = Counted { spread: spread.clone(), shard: shard as usize };
        let (conns, service, limits) = (conns.clone(), service.clone(), limits.clone());
        glommio::spawn_local(async move {
            connection::run(stream.bind_to_executor(), shard, conns, service, limits).await;
            drop(counted);
        })
        .detach();
    }
    // What was handed over and not taken is closed, since nothing else owns those descriptors.
    for stream in receiver.try_iter() {
        drop(stream.bind_to_executor());
        spread.lanes[shard as usize].count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts one connection of a shard until it ends.
struct Counted {
    spread: Spread,
    shard: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.spread.lanes[self.shard].count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_loaded_shard_is_next_and_the_preferred_one_wins_among_equals() {
        let spread = Spread::preferring(3, 1);
        let handed = || {
            let shard = spread.least();
            spread.lanes[shard].count.fetch_add(1, Ordering::Relaxed);
            shard
        };
        assert_eq!([handed(), handed(), handed()], [1, 2, 0]);
        assert_eq!(handed(), 1);
        assert_eq!(handed(), 2, "shard 1 has one more by now");
        drop(Counted { spread: spread.clone(), shard: 2 });
        assert_eq!(spread.counts(), [1, 2, 1]);
    }

    #[test]
    fn the_spared_shard_gets_none() {
        let spread = Spread::sparing(3, 2);
        let handed = [0; 4].map(|_| {
            let shard = spread.least();
            spread.lanes[shard].count.fetch_add(1, Ordering::Relaxed);
            shard
        });
        assert_eq!((handed, spread.counts()), ([0, 1, 0, 1], vec![2, 2, 0]));
    }

    #[test]
    fn a_port_that_is_about_to_be_free_is_waited_for_and_a_taken_one_refused() {
        let taken = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = taken.addr;
        let refused = bind_within(addr, Duration::from_millis(50)).err().expect("it is taken");
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        let owner = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(taken);
        });
        assert_eq!(bind(addr).unwrap().addr, addr);
        owner.join().unwrap();
    }
}
