//! A server of one or more executors that echoes, and a blocking raw client to send it any bytes.
#![allow(dead_code)] // each test file uses its part
use glommio::{LocalExecutorBuilder, Placement};
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;
use uringmq_proto::command::{Command, OwnedCommand, Response, write_request};
use uringmq_proto::frame::{Split, split};
use uringmq_remoting::connection::{Conn, Conns};
use uringmq_remoting::listener::{self, Spread};
use uringmq_remoting::stop::Gate;
use uringmq_remoting::{Limits, Service};

/// What a test request asks of [`Tester`].
pub const ECHO: i32 = 1;
/// Never answered.
pub const SILENCE: i32 = 2;
/// Answered with as many bytes as the body says.
pub const BYTES: i32 = 3;
/// Echoed, then the connection is closed by the server.
pub const ECHO_AND_CLOSE: i32 = 4;
/// Answered with the number of the shard.
pub const SHARD: i32 = 5;
/// The server calls code 77 of the client and answers with what it was answered.
pub const CALL_BACK: i32 = 6;
/// Held (its bytes counted) until an `ANSWER_HELD` comes, then answered.
pub const HOLD: i32 = 7;
pub const ANSWER_HELD: i32 = 8;
/// Answered only together with the next request of another code.
pub const LATE: i32 = 9;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Opened,
    Request(i32),
    Turn,
    Closed,
}

pub struct Tester {
    shard: u16,
    events: flume::Sender<Event>,
    held: RefCell<HashMap<u64, Vec<(i32, usize)>>>,
    late: RefCell<Vec<i32>>,
}

impl Service for Tester {
    fn on_open(&self, _: &Rc<Conn>) {
        let _ = self.events.send(Event::Opened);
    }

    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, frame: &[u8]) {
        let _ = self.events.send(Event::Request(cmd.code));
        assert_eq!(u32::from_be_bytes(*frame.first_chunk().unwrap()) as usize + 4, frame.len());
        let echo = || {
            let response = Response::ok().body(cmd.body.to_vec());
            match cmd.ext.get("n") {
                Some(n) => response.with("n", n.to_owned()),
                None => response,
            }
        };
        if cmd.is_oneway() {
            return;
        }
        if cmd.code != LATE {
            for opaque in self.late.take() {
                conn.respond(opaque, &Response::ok());
            }
        }
        match cmd.code {
            ECHO => conn.respond(cmd.opaque, &echo()),
            SILENCE => (),
            BYTES => {
                let bytes = std::str::from_utf8(cmd.body).unwrap().parse().unwrap();
                conn.respond(cmd.opaque, &Response::ok().body(vec![b'x'; bytes]));
            }
            ECHO_AND_CLOSE => {
                conn.respond(cmd.opaque, &echo());
                conn.close("the test asked");
            }
            SHARD => conn.respond(cmd.opaque, &Response::ok().with("shard", self.shard as u64)),
            CALL_BACK => {
                let (conn, opaque, body) = (conn.clone(), cmd.opaque, cmd.body.to_vec());
                glommio::spawn_local(async move {
                    let answer = conn.call(77, &[("asked", "yes".into())], &body, Duration::from_secs(5)).await;
                    let response = match answer {
                        Ok(answer) => Response::ok().with("code", answer.code).body(answer.body),
                        Err(error) => Response::err(1, error.to_string()),
                    };
                    conn.respond(opaque, &response);
                })
                .detach();
            }
            HOLD => {
                conn.hold(frame.len());
                self.held.borrow_mut().entry(conn.id().serial).or_default().push((cmd.opaque, frame.len()));
            }
            LATE => self.late.borrow_mut().push(cmd.opaque),
            other => conn.respond(cmd.opaque, &Response::err(3, format!(" request type {other} not supported"))),
        }
    }

    fn on_turn(&self, _: &Rc<Conn>) {
        let _ = self.events.send(Event::Turn);
    }

    fn on_close(&self, _: &Rc<Conn>) {
        let _ = self.events.send(Event::Closed);
    }
}

impl Tester {
    /// Releases and answers what `HOLD` requests of all connections of this shard gathered.
    fn answer_held(&self, conns: &Conns) {
        for (serial, held) in self.held.take() {
            conns.for_each(|conn| {
                if conn.id().serial == serial {
                    for (opaque, bytes) in &held {
                        conn.release(*bytes);
                        conn.respond(*opaque, &Response::ok());
                    }
                }
            });
        }
    }
}

enum Order {
    AnswerHeld,
    CloseAll,
    Stop,
}

pub struct Server {
    pub addr: SocketAddr,
    pub events: flume::Receiver<Event>,
    orders: Vec<flume::Sender<Order>>,
    threads: Vec<JoinHandle<()>>,
}

pub fn executor() -> LocalExecutorBuilder {
    LocalExecutorBuilder::new(Placement::Unbound).ring_depth(64).io_memory(64 * 1024)
}

/// Runs `work` in an executor of its own and gives back what it returns.
pub fn within<T: Send + 'static, F: Future<Output = T> + 'static>(work: impl FnOnce() -> F + Send + 'static) -> T {
    executor().spawn(work).unwrap().join().unwrap()
}

impl Server {
    pub fn start(shards: usize, limits: Limits) -> Server {
        let bound = listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = bound.addr;
        let spread = Spread::new(shards);
        let (event, events) = flume::unbounded();
        let mut bound = Some(bound);
        let (mut orders, mut threads) = (Vec::new(), Vec::new());
        for shard in 0..shards as u16 {
            let (order, inbox) = flume::unbounded();
            orders.push(order);
            let (bound, spread, limits, event) = (bound.take(), spread.clone(), limits.clone(), event.clone());
            threads.push(std::thread::spawn(move || {
                let executor = executor().make().unwrap();
                executor.run(serve_one(bound, spread, shard, limits, event, inbox));
            }));
        }
        Server { addr, events, orders, threads }
    }

    pub fn answer_held(&self) {
        self.orders.iter().for_each(|order| order.send(Order::AnswerHeld).unwrap());
    }

    pub fn close_all(&self) {
        self.orders.iter().for_each(|order| order.send(Order::CloseAll).unwrap());
    }

    /// The next event, waited for.
    pub fn event(&self) -> Event {
        self.events.recv_timeout(Duration::from_secs(20)).expect("the server says nothing")
    }

    /// Waits for `wanted`, passing over others.
    pub fn wait_for(&self, wanted: Event) {
        while self.event() != wanted {}
    }

    pub fn connect(&self) -> Raw {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Raw { stream, unread: Vec::new() }
    }
}

async fn serve_one(
    bound: Option<listener::Bound>,
    spread: Spread,
    shard: u16,
    limits: Limits,
    events: flume::Sender<Event>,
    inbox: flume::Receiver<Order>,
) {
    let gate = Gate::new();
    let conns = Rc::new(Conns::default());
    let service = Rc::new(Tester { shard, events, held: RefCell::default(), late: RefCell::default() });
    if let Some(bound) = bound {
        glommio::spawn_local(listener::accept(bound, spread.clone(), gate.clone())).detach();
    }
    let serving =
        glommio::spawn_local(listener::serve(spread, shard, conns.clone(), service.clone(), limits, gate.clone()));
    while let Ok(order) = inbox.recv_async().await {
        match order {
            Order::AnswerHeld => service.answer_held(&conns),
            Order::CloseAll => conns.close_all("the test asked"),
            Order::Stop => break,
        }
    }
    gate.close();
    serving.await;
    conns.close_all("the test ends");
    conns.emptied().await;
}

impl Drop for Server {
    fn drop(&mut self) {
        for order in &self.orders {
            let _ = order.send(Order::Stop);
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() && !std::thread::panicking() {
                panic!("a shard panicked");
            }
        }
    }
}

/// A blocking connection that sends bytes as told.
pub struct Raw {
    pub stream: TcpStream,
    unread: Vec<u8>,
}

pub fn request(code: i32, opaque: i32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_request(&mut out, code, opaque, false, &[("n", opaque.into())], body);
    out
}

impl Raw {
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next frame; `None` once the server closed.
    pub fn receive(&mut self) -> Option<OwnedCommand> {
        let mut buf = vec![0; 256 * 1024];
        loop {
            if let Split::Whole { frame, bytes } = split(&self.unread, false).unwrap() {
                let command = OwnedCommand::from(&Command::decode(frame).unwrap());
                self.unread.drain(..bytes);
                return Some(command);
            }
            match self.stream.read(&mut buf) {
                Ok(0) => return None,
                Ok(got) => self.unread.extend_from_slice(&buf[..got]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {} // a suspended machine
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn expect_echo(&mut self, opaque: i32, body: &[u8]) {
        let answer = self.receive().expect("closed instead of an answer");
        assert_eq!((answer.code, answer.opaque, answer.flag), (0, opaque, 1));
        assert_eq!(answer.get("n"), Some(opaque.to_string().as_str()));
        assert!(answer.body == body, "another body");
    }

    pub fn echo(&mut self, opaque: i32, body: &[u8]) {
        self.send(&request(ECHO, opaque, body));
        self.expect_echo(opaque, body);
    }
}

impl Raw {
    /// As `receive`, calling `nudge` whenever nothing comes for a moment.
    pub fn receive_nudging(&mut self, nudge: impl Fn()) -> OwnedCommand {
        self.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut buf = vec![0; 64 * 1024];
        loop {
            if let Split::Whole { frame, bytes } = split(&self.unread, false).unwrap() {
                let command = OwnedCommand::from(&Command::decode(frame).unwrap());
                self.unread.drain(..bytes);
                return command;
            }
            match self.stream.read(&mut buf) {
                Ok(0) => panic!("closed"),
                Ok(got) => self.unread.extend_from_slice(&buf[..got]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                    nudge();
                }
            }
        }
    }
}
