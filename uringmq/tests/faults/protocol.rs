//! Frames, headers and bodies that are none: P01, P03, P04, P06, P08.
use crate::common::{Client, Lease, Server, Shared, frame_of_parts, json_frame};
use crate::fields::{BROKER, Kind, NAMESRV, Request, Takes};
use std::net::SocketAddr;
use uringmq_proto::command::OwnedCommand;

static SERVER: Shared = Shared::new("faults-protocol", "shards=2");

/// Both servers' requests, each with the address that serves them.
fn both(server: &Server) -> [(SocketAddr, &'static [Request]); 2] {
    [(server.broker, BROKER), (server.namesrv, NAMESRV)]
}

/// What the requests of the tables are about; message 0 of queue 0 exists, and can be pulled.
fn make_topic(server: &Server) {
    let mut client = server.client();
    client.create_topic("P", 4);
    let sent = client.sent("P", 0, "", b"something");
    client.pull_all("P", 0, sent.queue_offset, 1);
}

fn with_topic() -> Lease {
    let server = SERVER.lease();
    make_topic(&server);
    server
}

/// For requests that would be in each other's way.
fn own_server(name: &str) -> Server {
    let server = Server::start(name, "shards=2");
    make_topic(&server);
    server
}

/// A remark for people: there, short, and nothing that a crash left.
fn check_remark(answer: &OwnedCommand, of: &str) {
    let remark = answer.remark.as_deref().unwrap_or_default();
    assert!(!remark.trim().is_empty() && remark.len() < 1000, "{of}: {answer:?}");
    for trace in ["panicked", "unwrap", "Exception", "null pointer", ".rs:", "    at "] {
        assert!(!remark.contains(trace), "{of}: {remark}");
    }
}

#[test]
fn p01_garbled_frames_end_their_connection_only() {
    let server = SERVER.lease();
    let cases: [(&str, Vec<u8>); 11] = [
        ("length 0", vec![0; 4]),
        ("length 0 and more", vec![0; 64]),
        ("length 2", vec![0, 0, 0, 2, 1, 1]),
        ("unknown serialize type", vec![0, 0, 0, 8, 7, 0, 0, 4, 1, 2, 3, 4]),
        ("header longer than its frame", frame_of_parts(0, 5000, b"{\"code\":1,\"opaque\":1}", b"")),
        ("header of 16 MiB", frame_of_parts(0, 0xFF_FFFF, b"{\"code\":1,\"opaque\":1}", b"")),
        ("header that is no JSON", frame_of_parts(0, 12, b"this is text", b"")),
        ("header that is an array", frame_of_parts(0, 6, b"[1, 2]", b"")),
        ("header without opaque", frame_of_parts(0, 10, b"{\"code\":1}", b"")),
        ("binary header cut short", frame_of_parts(1, 7, &[0, 105, 0, 1, 0xdf, 0, 0], b"")),
        ("frame of 4 GiB", vec![0xFF; 16]),
    ];
    for (addr, _) in both(&server) {
        for (what, bytes) in &cases {
            for after_good in [false, true] {
                let mut stranger = Client::connect(addr);
                if after_good {
                    stranger.call(424_242, &[], b"");
                }
                stranger.raw(bytes);
                assert_eq!(stranger.receive(), None, "{what} on {addr}");
            }
        }
    }
    let log = server.log();
    assert!(log.lines().all(|line| line.len() < 500), "{log}");
    assert!(log.lines().count() < 40 + 2 * cases.len() * 2, "more than a line each: {log}");
    server.check_healthy("P01");
}

#[test]
fn p03_binary_keys_up_to_32767_bytes() {
    let server = with_topic();
    for (addr, ask) in [(server.broker, (30, "queueId")), (server.namesrv, (105, "acceptStandardJsonOnly"))] {
        let (code, field) = ask;
        let value = if code == 30 { "0" } else { "false" };
        for bytes in [32_766, 32_767, 32_768] {
            let mut client = Client::speaking(addr, true);
            let key = "k".repeat(bytes);
            client.ask(code, 0, &[("topic", "P"), (key.as_str(), "v"), (field, value)], b"");
            let answer = client.receive();
            match bytes {
                32_768 => assert_eq!(answer, None, "refused by closing: it has no readable header"),
                _ => assert_eq!(answer.map(|a| (a.opaque, a.remark)), Some((1, None)), "{bytes}"),
            }
        }
    }
    server.check_healthy("P03 keys");
}

#[test]
fn p03_opaque_is_echoed_and_long_values_work() {
    let server = with_topic();
    let long = "v".repeat(70_000);
    for binary in [false, true] {
        for opaque in [i32::MIN, -1, 0, i32::MAX] {
            let mut client = server.client();
            let ext = [("topic", "P"), ("queueId", "0"), ("other", long.as_str())];
            let frame = match binary {
                true => crate::common::binary_frame(30, opaque, 0, &ext, b""),
                false => json_frame(30, opaque, 0, &ext, b""),
            };
            client.raw(&frame);
            let answer = client.receive().expect("an answer");
            assert_eq!((answer.opaque, answer.code, answer.flag), (opaque, 0, 1), "{:?}", answer.remark);
        }
        // A value that is used: it is too long to be a topic, and that is said.
        let mut client = Client::speaking(server.broker, binary);
        let answer =
            client.call(17, &[("topic", &long), ("readQueueNums", "1"), ("writeQueueNums", "1"), ("perm", "6")], b"");
        assert_ne!(answer.code, 0);
        check_remark(&answer, "long topic");
        client.ok(31, &[("topic", "P"), ("queueId", "0")], b"");
    }
    server.check_healthy("P03 values");
}

#[test]
fn p04_other_protocols_are_closed_at_once_and_named() {
    let server = SERVER.lease();
    let hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3][..], &[7; 506]].concat();
    let cases: [(&str, &[u8]); 4] = [
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0"),
        ("HTTP request", b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"),
        ("HTTP request", b"POST /v1 HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"),
        ("TLS", &hello),
    ];
    for (addr, _) in both(&server) {
        for (named, greeting) in cases {
            // The client sends no more and keeps its side open: the server has nothing to wait for.
            let mut stranger = Client::connect(addr);
            stranger.raw(greeting);
            assert_eq!(stranger.receive(), None, "{named} on {addr}");
            let log = server.log();
            assert!(log.contains(named), "{named}: {log}");
        }
    }
    server.check_healthy("P04");
}

/// Many strangers that hold their sockets open leave no memory behind.
#[test]
fn p04_nothing_is_kept_for_other_protocols() {
    let server = Server::start("faults-protocol-memory", "shards=2");
    server.check_healthy("the start");
    let before = resident_kib(&server);
    let mut held: Vec<Client> = Vec::new();
    for _ in 0..400 {
        let mut stranger = Client::connect(server.broker);
        stranger.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        assert_eq!(stranger.receive(), None);
        held.push(stranger);
    }
    let grown = resident_kib(&server).saturating_sub(before);
    // A frame as long as the greeting claims would have 1.3 GB.
    assert!(grown < 32 << 10, "{grown} KiB for 400 connections");
    let lines = server.log().lines().filter(|line| line.contains("HTTP/2")).count();
    assert!((1..=400).contains(&lines), "{lines} lines for 400 connections");
    server.check_healthy("P04 memory");
}

fn resident_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a figure");
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number")
}

/// The tables of this test name every request that is served, and no other.
/// The code field of a binary header has 16 bits.
const BINARY_CODE_MAX: i32 = 65_535;

#[test]
fn every_code_is_tried() {
    let codes = |table: &[Request]| {
        let mut codes: Vec<i32> = table.iter().map(|r| r.code).collect();
        codes.sort_unstable();
        codes
    };
    let mut served: Vec<i32> = uringmq_broker::requests::ROWS.iter().map(|row| row.code).collect();
    served.sort_unstable();
    assert_eq!(codes(BROKER), served);
    let mut served: Vec<i32> = uringmq_namesrv::requests::ROWS.iter().map(|row| row.code).collect();
    served.sort_unstable();
    assert_eq!(codes(NAMESRV), served);
}

#[test]
fn p06_bodies_that_are_none_get_an_answer() {
    let server = own_server("faults-protocol-bodies");
    let bodies: [&[u8]; 8] = [b"", b"null", b"[]", b"{}", b"{", b"7", b"\"text\"", b"\xff\xfe\0"];
    for (addr, table) in both(&server) {
        for binary in [false, true] {
            let mut client = Client::speaking(addr, binary);
            for request in table.iter().filter(|request| !binary || request.code <= BINARY_CODE_MAX) {
                for body in bodies {
                    for ext in [Vec::new(), request.good()] {
                        let of = format!("{} with body {:?} and {ext:?}", request.code, String::from_utf8_lossy(body));
                        let answer = client.call(request.code, &ext, body);
                        assert_ne!(answer.code, 3, "{of}: it is served");
                        if answer.code != 0 {
                            check_remark(&answer, &of);
                        }
                        // With its header right, nothing but the body is amiss.
                        let header_right = !ext.is_empty() || request.fields.is_empty();
                        let amiss = match request.takes {
                            Takes::Object => body != b"{}" && !(body.is_empty() && request.may_be_bare),
                            Takes::Lines => body.is_empty(),
                            Takes::Bytes => false,
                        };
                        assert!(!(header_right && amiss) || answer.code != 0, "{of}");
                    }
                }
            }
        }
    }
    // An object without what it must have is refused too.
    let mut client = server.client();
    for code in [34, 41, 42, 18, 200, 225, 400, 401] {
        let answer = client.call(code, &[], b"{}");
        assert_ne!(answer.code, 0, "{code}");
        check_remark(&answer, &code.to_string());
    }
    // Users are not managed here: that is said.
    for body in bodies {
        assert_eq!(client.call(3001, &[("username", "u")], body).code, 3);
    }
    server.check_healthy("P06");
}

#[test]
fn p08_fields_that_are_missing_or_unreadable_are_named() {
    let server = own_server("faults-protocol-fields");
    for (addr, table) in both(&server) {
        for binary in [false, true] {
            let mut client = Client::speaking(addr, binary);
            for request in table.iter().filter(|request| !binary || request.code <= BINARY_CODE_MAX) {
                try_fields(&mut client, request, binary);
            }
        }
    }
    server.check_healthy("P08");
}

/// One request with each of its fields missing, unreadable and extreme.
fn try_fields(client: &mut Client, request: &Request, binary: bool) {
    let code = request.code;
    let bare = client.call(code, &[], request.body.as_bytes());
    let required: Vec<&str> = request.fields.iter().filter(|f| f.required).map(|f| f.name).collect();
    if !required.is_empty() {
        let remark = bare.remark.clone().unwrap_or_default();
        assert!(bare.code != 0 && required.iter().any(|name| remark.contains(name)), "{code} without fields: {bare:?}");
    }
    let mut with = |name: &str, value: Option<&str>| {
        let mut ext = request.good();
        ext.retain(|(known, _)| *known != name);
        ext.extend(value.map(|value| (name, value)));
        client.call(code, &ext, request.body.as_bytes())
    };
    for field in request.fields {
        let name = field.name;
        let must_name = |answer: &OwnedCommand, value: &str| {
            let remark = answer.remark.as_deref().unwrap_or_default();
            assert!(answer.code != 0 && remark.contains(name), "{code} {name}={value:?}: {answer:?}");
        };
        if field.required {
            must_name(&with(name, None), "absent");
        }
        let unreadable: &[&str] = match field.kind {
            Kind::Text => &[],
            Kind::Int => &["abc", "9223372036854775807", "9223372036854775808", "1.5", " "],
            Kind::Long => &["abc", "9223372036854775808", "0x10", " "],
            Kind::Bool => &["maybe", "abc", "-1", " "],
        };
        unreadable.iter().for_each(|value| must_name(&with(name, Some(value)), value));
        // The binary header cannot say "there, but empty": that is absent.
        let empty = with(name, Some(""));
        match (field.kind, binary) {
            (Kind::Text, _) => {}
            (_, true) if !field.required => assert_eq!(empty.code, with(name, None).code, "{code} {name}: {empty:?}"),
            _ => must_name(&empty, ""),
        }
        let extreme: &[&str] = match field.kind {
            Kind::Text => &["-1", "9223372036854775807", "\u{0}", "\u{1F600}", " "],
            Kind::Int => &["-1", "2147483647", "-2147483648"],
            Kind::Long => &["-1", "9223372036854775807", "-9223372036854775808"],
            Kind::Bool => &["TRUE", "false"],
        };
        for value in extreme.iter().filter(|value| !request.spared.contains(&(name, *value))) {
            let answer = with(name, Some(value));
            if answer.code > 0 && !matches!((code, answer.code), (11 | 361, 19..=21)) {
                check_remark(&answer, &format!("{code} {name}={value:?}"));
            }
        }
    }
    let good = with("whoKnows", None);
    assert_eq!(with("whoKnows", Some("what")).code, good.code, "{code}: a field that nobody knows is ignored");
}
