//! Back-pressure: a connection that takes no answers, or has too much in flight, is not read any further.
mod common;
use common::*;
use std::io::Write;
use std::time::Duration;
use uringmq_remoting::Limits;

/// Sends request after request, each of `body`, until the server takes no more; gives their number and the bytes of the last one
/// that are still to be sent. Panics when it takes all of `most`.
fn send_until_stalled(raw: &mut Raw, code: i32, body: &[u8], most: i32) -> (i32, Vec<u8>) {
    raw.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    for n in 0..most {
        let frame = request(code, n, body);
        let mut sent = 0;
        while sent < frame.len() {
            match raw.stream.write(&frame[sent..]) {
                Ok(bytes) => sent += bytes,
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                    raw.stream.set_write_timeout(None).unwrap();
                    return (n, frame[sent..].to_vec());
                }
            }
        }
    }
    panic!("the server took {most} requests");
}

#[test]
fn reading_pauses_while_answers_are_not_taken() {
    let limits = Limits { out_bytes_high: 256 * 1024, ..Limits::default() };
    let server = Server::start(1, limits);
    let (mut raw, mut other) = (server.connect(), server.connect());
    let body = vec![1; 100_000];
    let (whole, rest) = send_until_stalled(&mut raw, ECHO, &body, 3000);
    other.echo(1, b"others go on");
    let mut sender = raw.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || sender.write_all(&rest).unwrap());
    (0..=whole).for_each(|n| raw.expect_echo(n, &body));
    sending.join().unwrap();
    raw.echo(77, b"and all is well");
}

#[test]
fn a_pause_holds_back_frames_already_read() {
    // One read brings all requests, and the first answer alone is above the mark.
    let server = Server::start(1, Limits { out_bytes_high: 1 << 20, ..Limits::default() });
    let mut raw = server.connect();
    let requests: Vec<u8> = (0..40).flat_map(|n| request(BYTES, n, b"8000000")).collect();
    raw.send(&requests);
    server.wait_for(Event::Request(BYTES));
    for n in 0..40 {
        let answer = raw.receive().unwrap();
        assert_eq!((answer.opaque, answer.body.len()), (n, 8_000_000));
        let handed = server.events.try_iter().filter(|event| *event == Event::Request(BYTES)).count();
        assert!(handed <= 3, "{handed} requests handed over for one answer taken");
    }
}

#[test]
fn reading_pauses_above_the_held_bytes() {
    let limits = Limits { held_bytes_high: 500_000, ..Limits::default() };
    let server = Server::start(1, limits);
    let mut raw = server.connect();
    let (whole, rest) = send_until_stalled(&mut raw, HOLD, &vec![1; 100_000], 3000);
    let held = server.events.drain().filter(|event| *event == Event::Request(HOLD)).count();
    assert!((5..=6).contains(&held), "{held} requests of 100 kB held, limit 500 kB");
    let mut sender = raw.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || sender.write_all(&rest).unwrap());
    for n in 0..=whole {
        let answer = raw.receive_nudging(|| server.answer_held());
        assert_eq!((answer.code, answer.opaque), (0, n));
    }
    sending.join().unwrap();
}

#[test]
fn a_peer_that_never_reads_is_closed_as_idle() {
    let server = Server::start(1, Limits { out_bytes_high: 64 * 1024, idle_ms: 300, ..Limits::default() });
    let mut raw = server.connect();
    raw.send(&request(BYTES, 1, b"15000000"));
    server.wait_for(Event::Closed);
}
