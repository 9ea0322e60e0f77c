//! Decoding a send and writing its answer: what the protocol costs a message. `cargo bench -p uringmq-proto` measures; under
//! `cargo test` it runs a few rounds only, so that it does not rot. Prints median and spread in ns and a hash of the work.
use std::hint::black_box;
use std::time::Instant;
use uringmq_proto::command::{Command, Response, write_request, write_response};
use uringmq_proto::frame::{Split, split};
use uringmq_proto::headers::{Header, send::SendMessage};
use uringmq_proto::record::{NewRecord, encode, parse};

fn measure(name: &str, rounds: usize, batch: u64, mut work: impl FnMut() -> u64) {
    let mut nanos = Vec::new();
    let mut hash = 0u64;
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..batch {
            hash = hash.wrapping_mul(31).wrapping_add(black_box(work()));
        }
        nanos.push(start.elapsed().as_nanos() as f64 / batch as f64);
    }
    nanos.sort_by(f64::total_cmp);
    let at = |part: f64| nanos[((nanos.len() - 1) as f64 * part) as usize];
    println!("{name:<24} {:>8.1} ns/op ({:.1} .. {:.1}), work {hash:016x}", at(0.5), at(0.1), at(0.9));
}

fn decode(bytes: &[u8]) -> Command<'_> {
    match split(bytes, false).expect("a good frame") {
        Split::Whole { frame, .. } => Command::decode(frame).expect("a good header"),
        Split::More { .. } => unreachable!("the frame is whole"),
    }
}

fn main() {
    let full = std::env::args().any(|arg| arg == "--bench");
    let (rounds, batch) = if full { (50, 20_000) } else { (3, 100) };
    let header = SendMessage {
        producer_group: "bench-producer",
        topic: "BenchmarkTopic",
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id: 5,
        sys_flag: 0,
        born_timestamp_ms: 1_700_000_000_000,
        flag: 0,
        properties: "UNIQ_KEY\u{1}0A00000112345F3759DF0000000000A1\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA\u{2}KEYS\u{1}order-4711\u{2}",
        reconsume_times: 0,
        unit_mode: false,
        max_reconsume_times: None,
        batch: false,
        broker_name: Some("broker-a"),
    };
    let body = [b'x'; 1024];
    let mut frame = Vec::new();
    write_request(&mut frame, 310, 7, false, &header.ext(310), &body);

    measure("split + decode", rounds, batch, || decode(black_box(&frame)).ext.0.len() as u64);
    let command = decode(&frame);
    measure("send header", rounds, batch, || {
        SendMessage::decode(black_box(&command)).expect("a good header").queue_id as u64
    });
    let mut out = Vec::with_capacity(4096);
    measure("send response", rounds, batch, || {
        out.clear();
        let response = Response::ok()
            .with("msgId", String::from("0A00000100002A9F0000000000000400"))
            .with("queueId", 5)
            .with("queueOffset", 123_456u64)
            .with("transactionId", String::from("0A00000112345F3759DF0000000000A1"))
            .with("MSG_REGION", String::from("DefaultRegion"))
            .with("TRACE_ON", true);
        write_response(&mut out, 7, &response);
        out.len() as u64
    });
    let new = NewRecord {
        topic: header.topic,
        queue_id: 5,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: header.born_timestamp_ms,
        born_host: ([10, 0, 0, 1], 50_000).into(),
        store_host: ([10, 0, 0, 1], 10_911).into(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &body,
        properties: header.properties,
        more_properties: "MSG_REGION\u{1}DefaultRegion\u{2}TRACE_ON\u{1}true\u{2}CLUSTER\u{1}DefaultCluster\u{2}",
    };
    let mut record = Vec::with_capacity(4096);
    measure("record encode", rounds, batch, || {
        record.clear();
        encode(&mut record, black_box(&new)).expect("within limits") as u64
    });
    measure("record parse", rounds, batch, || parse(black_box(&record), false).is_ok() as u64);
}
