//! Frames of all shapes through real sockets.
mod common;
use common::{ECHO, Event, Server, request};
use std::io::Write;
use uringmq_remoting::Limits;

fn small_reads() -> Limits {
    Limits { read_bytes: 4096, ..Limits::default() }
}

#[test]
fn many_frames_in_one_write_are_answered_in_order() {
    let server = Server::start(1, Limits::default());
    let mut raw = server.connect();
    let all: Vec<u8> = (0..1000).flat_map(|n| request(ECHO, n, format!("body {n}").as_bytes())).collect();
    raw.send(&all);
    for n in 0..1000 {
        raw.expect_echo(n, format!("body {n}").as_bytes());
    }
    let events: Vec<Event> = server.events.drain().collect();
    assert_eq!(events.iter().filter(|event| **event == Event::Request(ECHO)).count(), 1000);
    let turns = events.iter().filter(|event| **event == Event::Turn).count();
    assert!((1..200).contains(&turns), "{turns} turns for one write");
    assert_eq!(events.last(), Some(&Event::Turn));
}

#[test]
fn ten_thousand_pipelined_requests_are_all_answered() {
    let server = Server::start(2, Limits::default());
    let mut raw = server.connect();
    let mut sender = raw.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        for n in 0..10_000 {
            sender.write_all(&request(ECHO, n, &[7; 100])).unwrap();
        }
    });
    (0..10_000).for_each(|n| raw.expect_echo(n, &[7; 100]));
    sending.join().unwrap();
}

#[test]
fn frames_may_come_byte_by_byte() {
    let server = Server::start(1, Limits::default());
    let mut raw = server.connect();
    for n in 0..3 {
        for byte in request(ECHO, n, b"slow") {
            raw.send(&[byte]);
        }
        raw.expect_echo(n, b"slow");
    }
    // Two frames cut in the middle of the second.
    let two = [request(ECHO, 10, b"one"), request(ECHO, 11, b"two")].concat();
    let cut = two.len() - 20;
    raw.send(&two[..cut]);
    raw.expect_echo(10, b"one");
    raw.send(&two[cut..]);
    raw.expect_echo(11, b"two");
}

#[test]
fn frames_around_and_above_the_read_buffer_arrive_whole() {
    let server = Server::start(1, small_reads());
    let mut raw = server.connect();
    for (n, bytes) in
        [0, 1, 900, 1024, 3000, 4000, 4096, 5000, 20_000, 1 << 20, (16 << 20) - 200].into_iter().enumerate()
    {
        let body: Vec<u8> = (0..bytes).map(|at: usize| (at % 251) as u8).collect();
        let mut sender = raw.stream.try_clone().unwrap();
        let frame = [request(ECHO, n as i32, &body), request(ECHO, 1000, b"behind it")].concat();
        let sending = std::thread::spawn(move || sender.write_all(&frame).unwrap());
        raw.expect_echo(n as i32, &body);
        raw.expect_echo(1000, b"behind it");
        sending.join().unwrap();
    }
}

#[test]
fn large_frames_wait_for_the_receive_budget() {
    let server = Server::start(1, Limits { receive_budget_bytes: 150_000, ..small_reads() });
    let body = vec![5; 100_000];
    let (first, second) = (request(ECHO, 1, &body), request(ECHO, 2, &body));
    let (mut slow, mut waiting, mut small) = (server.connect(), server.connect(), server.connect());
    // An echo behind the first bytes tells that the server has them: all are of one shard, which reads in order of arrival.
    slow.send(&first[..50_000]);
    small.echo(1, b"small");
    waiting.send(&second);
    for n in 0..50 {
        small.echo(n, b"small frames do not wait");
    }
    slow.send(&first[50_000..]);
    slow.expect_echo(1, &body);
    waiting.expect_echo(2, &body);
    // A frame above the whole budget goes alone.
    slow.echo(3, &vec![6; 400_000]);
    // The budget of a connection that goes away in the middle of a frame is given back.
    slow.send(&first[..50_000]);
    drop(slow);
    waiting.echo(4, &body);
}

#[test]
fn a_connection_that_waits_for_the_budget_can_be_closed() {
    let server = Server::start(1, Limits { receive_budget_bytes: 150_000, ..small_reads() });
    let frame = request(ECHO, 1, &[5; 100_000]);
    let (mut slow, mut waiting, mut small) = (server.connect(), server.connect(), server.connect());
    slow.send(&frame[..50_000]);
    small.echo(1, b"");
    waiting.send(&frame[..50_000]);
    small.echo(2, b"");
    server.close_all();
    for raw in [&mut slow, &mut waiting, &mut small] {
        assert_eq!(raw.receive(), None);
    }
    (0..3).for_each(|_| server.wait_for(Event::Closed));
}

/// The bytes of known faults P01 and P04, and a few more.
fn broken() -> Vec<(&'static str, Vec<u8>)> {
    let framed = |kind: u8, header: &[u8]| {
        let mut out = ((4 + header.len()) as u32).to_be_bytes().to_vec();
        out.extend_from_slice(&(((kind as u32) << 24) | header.len() as u32).to_be_bytes());
        out.extend_from_slice(header);
        out
    };
    let mut binary_remark_too_long = vec![0; 21];
    binary_remark_too_long[13..17].copy_from_slice(&[0x7f, 255, 255, 255]);
    vec![
        ("total length 0", vec![0; 12]),
        ("total length 2", vec![0, 0, 0, 2, 1, 1]),
        ("unknown serialize type", vec![0, 0, 0, 8, 7, 0, 0, 4, 0, 0, 0, 0]),
        ("header larger than the frame", vec![0, 0, 0, 8, 0, 0, 0, 200, 0, 0, 0, 0]),
        ("no JSON", framed(0, b"this is no JSON")),
        ("a JSON array", framed(0, b"[1,2,3]")),
        ("JSON cut off", framed(0, br#"{"code":1,"opaque":"#)),
        ("an empty JSON header", framed(0, b"")),
        ("a short binary header", framed(1, &[0; 7])),
        ("a binary remark beyond the header", framed(1, &binary_remark_too_long)),
        ("negative length", vec![255; 12]),
        ("one byte above the limit", [&(16u32 * 1024 * 1024 - 3).to_be_bytes()[..], &[0; 8]].concat()),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("TLS", [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[9; 100]].concat()),
    ]
}

#[test]
fn broken_frames_close_only_their_connection() {
    let server = Server::start(1, Limits::default());
    let mut healthy = server.connect();
    healthy.echo(0, b"before");
    for (n, (what, bytes)) in broken().into_iter().enumerate() {
        // Alone, and behind a good frame whose answer does not matter; the client holds its side open.
        for good_first in [false, true] {
            let mut raw = server.connect();
            if good_first {
                raw.echo(5, b"fine");
            }
            raw.send(&bytes);
            assert_eq!(raw.receive(), None, "{what}, after a good frame: {good_first}");
            server.wait_for(Event::Closed);
            healthy.echo(n as i32, b"still here");
        }
    }
}

#[test]
fn what_came_before_a_broken_frame_is_handed_over() {
    let server = Server::start(1, Limits::default());
    let mut raw = server.connect();
    raw.send(&[request(ECHO, 1, b""), vec![255; 20]].concat());
    assert_eq!(server.event(), Event::Opened);
    assert_eq!(server.event(), Event::Request(ECHO));
    assert_eq!(server.event(), Event::Turn);
    assert_eq!(server.event(), Event::Closed);
}
