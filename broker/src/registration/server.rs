//! One NameServer as this broker knows it: its connection, what it is still to be told, and whether it answers. Each has a task of
//! its own, so that a dead one delays nobody (known fault N06).
use crate::config::HostPort;
use crate::control::progress::Progress;
use crate::mesh::Event;
use crate::registration::resolve::resolve;
use futures_lite::future;
use glommio::timer::Timer;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uringmq_proto::command::Command;
use uringmq_remoting::connection::{CallError, Conn, Conns};
use uringmq_remoting::{Limits, Service, client};

/// Pause after the first failure; it doubles up to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_LAST: Duration = Duration::from_secs(8);

/// What a NameServer has not been told yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum News {
    #[default]
    Nothing,
    /// These topics were made or changed since it was told last.
    Topics(BTreeSet<Arc<str>>),
    /// The whole table.
    Everything,
}

impl News {
    pub fn add(&mut self, topics: &[Arc<str>]) {
        match self {
            News::Everything => {}
            News::Nothing => *self = News::Topics(topics.iter().cloned().collect()),
            News::Topics(known) => known.extend(topics.iter().cloned()),
        }
    }
}

/// Whether it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not tried yet.
    New,
    Up,
    /// The last attempt failed, or took too long.
    Down,
}

pub struct Server {
    pub at: HostPort,
    /// The last ticket that it was told, or could not be told.
    pub done: Progress,
    pub health: Cell<Health>,
    conn: RefCell<Option<Rc<Conn>>>,
    news: RefCell<News>,
    bell: Event,
    /// Not in the configuration any more.
    removed: Cell<bool>,
    failures: Cell<u32>,
    not_before: Cell<Option<Instant>>,
}

/// Why a NameServer could not be told.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{0} cannot be resolved: {1}")]
    Resolve(HostPort, String),
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("it answered {code}: {remark}")]
    Refused { code: i32, remark: String },
}

impl Server {
    pub fn new(at: HostPort) -> Rc<Self> {
        Rc::new(Server {
            at,
            done: Progress::default(),
            health: Cell::new(Health::New),
            conn: RefCell::default(),
            news: RefCell::new(News::Everything),
            bell: Event::default(),
            removed: Cell::new(false),
            failures: Cell::new(0),
            not_before: Cell::new(None),
        })
    }

    /// Notes topics to tell; the server's task is woken.
    pub fn tell(&self, topics: &[Arc<str>]) {
        self.news.borrow_mut().add(topics);
        self.bell.set();
    }

    pub fn tell_everything(&self) {
        *self.news.borrow_mut() = News::Everything;
        self.bell.set();
    }

    pub fn take_news(&self) -> News {
        std::mem::take(&mut *self.news.borrow_mut())
    }

    pub fn remove(&self) {
        self.removed.set(true);
        self.bell.set();
    }

    pub fn is_removed(&self) -> bool {
        self.removed.get()
    }

    /// Resolves at `due`, or earlier when there are news; after a failure not before its pause is over.
    pub async fn wait(&self, due: Instant) {
        if let Some(at) = self.not_before.take() {
            Timer::new(at.saturating_duration_since(Instant::now())).await;
        }
        if *self.news.borrow() != News::Nothing {
            return;
        }
        let bell = self.bell.wait();
        let timer = async {
            Timer::new(due.saturating_duration_since(Instant::now())).await;
        };
        future::or(bell, timer).await;
    }

    /// It was told; true when it had been down or new.
    pub fn succeeded(&self) -> bool {
        self.failures.set(0);
        self.health.replace(Health::Up) != Health::Up
    }

    /// It could not be told: it will get the whole table, after a pause that grows. True for the first failure in a row.
    pub fn failed(&self) -> bool {
        if let Some(conn) = self.conn.take() {
            conn.close("registration failed");
        }
        *self.news.borrow_mut() = News::Everything;
        let failures = self.failures.get();
        self.failures.set(failures.saturating_add(1));
        self.not_before.set(Some(Instant::now() + pause_after(failures)));
        self.health.replace(Health::Down) != Health::Down || failures == 0
    }

    /// The open connection, if there is one.
    pub fn open_conn(&self) -> Option<Rc<Conn>> {
        self.conn.borrow().as_ref().filter(|conn| conn.is_open()).cloned()
    }

    /// The connection, made when there is none: the name is resolved each time, and its addresses tried in turn.
    pub async fn connect(
        self: &Rc<Self>,
        conns: &Rc<Conns>,
        limits: &Limits,
        timeout: Duration,
    ) -> Result<Rc<Conn>, LinkError> {
        if let Some(conn) = self.open_conn() {
            return Ok(conn);
        }
        let addrs = resolve(&self.at).await.map_err(|why| LinkError::Resolve(self.at.clone(), why))?;
        let mut last = None;
        for addr in addrs {
            let watch = Rc::new(Watch { server: Rc::downgrade(self) });
            match client::connect(addr, conns, watch, limits.clone(), timeout).await {
                Ok(conn) => {
                    *self.conn.borrow_mut() = Some(conn.clone());
                    return Ok(conn);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(LinkError::Call(last.expect("a resolved name has an address")))
    }

    /// Closes the connection when the name does not lead to its peer any more.
    pub async fn check_address(&self) {
        let Some(conn) = self.open_conn() else { return };
        if let Ok(addrs) = resolve(&self.at).await
            && !leads_to(&addrs, conn.peer())
        {
            conn.close("the name server's name has another address now");
        }
    }
}

fn leads_to(addrs: &[SocketAddr], peer: SocketAddr) -> bool {
    addrs.iter().any(|addr| addr.port() == peer.port() && addr.ip().to_canonical() == peer.ip().to_canonical())
}

fn pause_after(failures: u32) -> Duration {
    PAUSE_FIRST.saturating_mul(1 << failures.min(10)).min(PAUSE_LAST)
}

/// Notices that a NameServer went away: it has forgotten the broker then, and is told everything as soon as it is back.
struct Watch {
    server: Weak<Server>,
}

impl Service for Watch {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, frame: &[u8]) {
        client::NoService.on_request(conn, cmd, frame);
    }
    fn on_close(&self, conn: &Rc<Conn>) {
        let Some(server) = self.server.upgrade() else { return };
        let current = server.conn.borrow().as_ref().is_some_and(|open| open.id() == conn.id());
        if current {
            server.conn.take();
            server.tell_everything();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<Arc<str>> {
        list.iter().map(|name| Arc::from(*name)).collect()
    }

    #[test]
    fn news_gather_and_everything_swallows_them() {
        let mut news = News::Nothing;
        news.add(&names(&["a"]));
        news.add(&names(&["b", "a"]));
        assert_eq!(news, News::Topics(names(&["a", "b"]).into_iter().collect()));
        let mut news = News::Everything;
        news.add(&names(&["a"]));
        assert_eq!(news, News::Everything);
    }

    #[test]
    fn a_failure_makes_it_due_for_everything_after_a_growing_pause() {
        let server = Server::new(HostPort { host: "10.0.0.1".to_owned(), port: 9876 });
        assert_eq!(server.take_news(), News::Everything, "a new one knows nothing");
        assert!(server.succeeded() && !server.succeeded());
        server.tell(&names(&["a"]));
        assert!(server.failed(), "the first of a row");
        assert!(!server.failed());
        assert_eq!(server.take_news(), News::Everything);
        assert_eq!(server.health.get(), Health::Down);
        assert!(server.succeeded(), "it is back");
        assert_eq!((pause_after(0), pause_after(1), pause_after(30)), (PAUSE_FIRST, PAUSE_FIRST * 2, PAUSE_LAST));
    }

    #[test]
    fn mapped_addresses_are_the_same_peer() {
        let peer = "10.0.0.1:9876".parse().unwrap();
        assert!(leads_to(&["[::ffff:10.0.0.1]:9876".parse().unwrap()], peer));
        assert!(!leads_to(&["10.0.0.1:9877".parse().unwrap(), "10.0.0.2:9876".parse().unwrap()], peer));
    }
}
