//! Calls in both directions, with their timeouts, and how connections end.
mod common;
use common::*;
use std::io::Write;
use std::net::TcpListener;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uringmq_proto::command::{Command, Response};
use uringmq_remoting::client::{NoService, connect};
use uringmq_remoting::connection::{CallError, Conn, Conns};
use uringmq_remoting::{Limits, Service};

const LONG: Duration = Duration::from_secs(20);

async fn dial(addr: std::net::SocketAddr) -> (Rc<Conn>, Rc<Conns>) {
    let conns = Rc::new(Conns::default());
    (connect(addr, &conns, Rc::new(NoService), Limits::default(), LONG).await.unwrap(), conns)
}

#[test]
fn calls_are_matched_whatever_the_order_of_answers() {
    let server = Server::start(2, Limits::default());
    let addr = server.addr;
    within(move || async move {
        let (conn, conns) = dial(addr).await;
        let calls: Vec<_> = (0..500)
            .map(|n| {
                let conn = conn.clone();
                glommio::spawn_local(async move {
                    let code = if n % 5 == 0 { LATE } else { ECHO };
                    let answer = conn.call(code, &[("n", n.into())], &[n as u8; 10], LONG).await.unwrap();
                    assert_eq!(answer.code, 0);
                    if code == ECHO {
                        assert_eq!(answer.get("n"), Some(n.to_string().as_str()));
                        assert_eq!(answer.body, [n as u8; 10]);
                    }
                })
            })
            .collect();
        for call in calls {
            call.await;
        }
        let answer = conn.call(12345, &[], b"", LONG).await.unwrap();
        assert_eq!((answer.code, answer.remark.as_deref()), (3, Some(" request type 12345 not supported")));
        conn.oneway(ECHO, &[], b"");
        conn.call(ECHO, &[], b"", LONG).await.unwrap();
        conn.close("done");
        conns.emptied().await;
        assert!(matches!(conn.call(ECHO, &[], b"", LONG).await, Err(CallError::Closed(_))));
    });
}

#[test]
fn a_call_times_out_and_its_late_answer_is_dropped() {
    let server = Server::start(1, Limits::default());
    let addr = server.addr;
    within(move || async move {
        let (conn, _conns) = dial(addr).await;
        let started = Instant::now();
        let error = conn.call(LATE, &[], b"", Duration::from_millis(30)).await.unwrap_err();
        assert!(matches!(error, CallError::Timeout { ms: 30, .. }), "{error}");
        assert!(started.elapsed() >= Duration::from_millis(30));
        // The answer to the late one comes before that of this one.
        let answer = conn.call(ECHO, &[("n", 9.into())], b"next", LONG).await.unwrap();
        assert_eq!((answer.get("n"), &answer.body[..]), (Some("9"), &b"next"[..]));
    });
}

#[test]
fn a_closed_connection_fails_its_calls() {
    let server = Server::start(1, Limits::default());
    let addr = server.addr;
    let (asked, ask) = flume::bounded(1);
    let client = std::thread::spawn(move || {
        within(move || async move {
            let (conn, conns) = dial(addr).await;
            let waiting = {
                let conn = conn.clone();
                glommio::spawn_local(async move { conn.call(SILENCE, &[], b"", LONG).await })
            };
            conn.call(ECHO, &[], b"", LONG).await.unwrap();
            asked.send(()).unwrap();
            assert!(matches!(waiting.await, Err(CallError::Closed(_))));
            conns.emptied().await;
            assert!(!conn.is_open());
        })
    });
    ask.recv().unwrap();
    server.close_all();
    client.join().unwrap();
}

struct Doubler;
impl Service for Doubler {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, _: &[u8]) {
        assert_eq!((cmd.code, cmd.ext.get("asked")), (77, Some("yes")));
        conn.respond(cmd.opaque, &Response { code: 42, body: cmd.body.repeat(2), ..Response::default() });
    }
}

#[test]
fn a_server_calls_its_client_on_the_same_connection() {
    let server = Server::start(1, Limits::default());
    let addr = server.addr;
    within(move || async move {
        let conns = Rc::new(Conns::default());
        let conn = connect(addr, &conns, Rc::new(Doubler), Limits::default(), LONG).await.unwrap();
        for _ in 0..3 {
            let answer = conn.call(CALL_BACK, &[], b"ab", LONG).await.unwrap();
            assert_eq!((answer.get("code"), &answer.body[..]), (Some("42"), &b"abab"[..]));
        }
        // A client without a service of its own answers too.
        let (conn, _conns) = dial(addr).await;
        assert_eq!(conn.call(CALL_BACK, &[], b"", LONG).await.unwrap().get("code"), Some("3"));
    });
}

#[test]
fn connecting_says_why_it_failed() {
    within(|| async {
        let conns = Rc::new(Conns::default());
        let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = connect(unused, &conns, Rc::new(NoService), Limits::default(), LONG).await.unwrap_err();
        assert!(refused.to_string().starts_with(&format!("connect to {unused}: ")), "{refused}");
        assert_eq!(conns.count(), 0);
    });
}

#[test]
fn connections_are_spread_evenly_even_when_few() {
    let server = Server::start(2, Limits::default());
    let mut shards = [0usize; 2];
    let mut all = Vec::new();
    for n in 1..=7 {
        let mut raw = server.connect();
        raw.send(&request(SHARD, n, b""));
        let shard: usize = raw.receive().unwrap().get("shard").unwrap().parse().unwrap();
        shards[shard] += 1;
        all.push(raw);
        assert!(shards[0].abs_diff(shards[1]) <= 1, "{shards:?} after {n} connections");
    }
}

#[test]
fn closing_sends_what_waits_first() {
    let server = Server::start(1, Limits::default());
    let mut raw = server.connect();
    let body = vec![3; 8 << 20];
    let mut sender = raw.stream.try_clone().unwrap();
    // What comes behind the close is not looked at, nor does it spoil what is on its way.
    let frames = [request(ECHO_AND_CLOSE, 1, &body), request(ECHO, 2, b"too late")].concat();
    let sending = std::thread::spawn(move || {
        let _ = sender.write_all(&frames);
    });
    raw.expect_echo(1, &body);
    assert_eq!(raw.receive(), None);
    sending.join().unwrap();
    drop(raw);
    server.wait_for(Event::Closed);
    assert!(server.events.drain().all(|event| event == Event::Turn), "closed once, nothing after it");
}

#[test]
fn the_peers_end_is_seen_once() {
    let server = Server::start(1, Limits::default());
    let mut raw = server.connect();
    raw.echo(1, b"");
    drop(raw);
    let events: Vec<Event> = std::iter::repeat_with(|| server.event()).take(4).collect();
    assert_eq!(events, [Event::Opened, Event::Request(ECHO), Event::Turn, Event::Closed]);
    let mut half_open = server.connect();
    half_open.send(&request(ECHO, 5, b"last words"));
    half_open.stream.shutdown(std::net::Shutdown::Write).unwrap();
    half_open.expect_echo(5, b"last words");
    assert_eq!(half_open.receive(), None);
}

#[test]
fn idle_connections_are_closed_and_busy_ones_are_not() {
    let server = Server::start(1, Limits { idle_ms: 400, ..Limits::default() });
    let (mut idle, mut busy) = (server.connect(), server.connect());
    let started = Instant::now();
    idle.stream.set_nonblocking(true).unwrap();
    let mut n = 0;
    // Busy until the idle one was closed.
    loop {
        busy.echo(n, b"");
        n += 1;
        let mut one = [0];
        match std::io::Read::read(&mut idle.stream, &mut one) {
            Ok(got) => break assert_eq!(got, 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(started.elapsed() < LONG, "never closed");
    }
    assert!(started.elapsed() >= Duration::from_millis(400), "{:?}", started.elapsed());
    busy.echo(n, b"");
}

#[test]
fn a_frame_that_takes_too_long_is_given_up() {
    let server = Server::start(1, Limits { idle_ms: 300, read_bytes: 4096, ..Limits::default() });
    let mut slow = server.connect();
    let frame = request(ECHO, 1, &[0; 100_000]);
    slow.stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    // A byte now and then keeps it from being idle, the frame is still never whole in time.
    for byte in &frame[..frame.len() - 1] {
        if slow.stream.write_all(&[*byte]).is_err() {
            return;
        }
        match std::io::Read::read(&mut slow.stream, &mut [0]) {
            Ok(got) => return assert_eq!(got, 0),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    panic!("never closed");
}
