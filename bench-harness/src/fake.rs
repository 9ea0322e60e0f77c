//! A broker of a few lines for the tests of the bench: it keeps records in memory, and can stall or damage them.
use crate::error::BenchError;
use crate::load::{Kind, Load, Pace, Plan};
use crate::pull::{Drain, drain_all};
use crate::{BenchArgs, on_executor};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Parser;
use glommio::timer::Timer;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use uringmq_proto::codes::{request, response};
use uringmq_proto::command::{Command, Response};
use uringmq_proto::headers::Header;
use uringmq_proto::headers::offset::{GetMaxOffset, GetMinOffset};
use uringmq_proto::headers::pull::{PullMessage, pull_flag};
use uringmq_proto::headers::send::SendMessage;
use uringmq_proto::headers::transaction::EndTransaction;
use uringmq_proto::message::{self, batch_items, prop, sys_flag};
use uringmq_proto::record::{self, NewRecord};
use uringmq_remoting::connection::{Conn, Conns};
use uringmq_remoting::listener::{self, Spread};
use uringmq_remoting::stop::Gate;
use uringmq_remoting::{Limits, Service};

#[derive(Clone, Copy, Default)]
struct Faults {
    /// All answers to sends are held back for so long, once, at this send.
    stall: Option<(u64, Duration)>,
    /// A byte of the record at this offset of queue 0 is changed.
    damaged: Option<usize>,
    /// Sends above this number are refused.
    refuse_after: Option<u64>,
    /// This send is acknowledged and forgotten.
    forgotten: Option<u64>,
}

/// Topic and queue id.
type Queue = (String, i32);
/// A pull without messages yet: its connection, opaque, queue and offset.
type Held = (Rc<Conn>, i32, Queue, usize);
/// An answer that a stall holds back.
type Late = (Rc<Conn>, i32, Response);

#[derive(Default)]
struct Fake {
    faults: Faults,
    sends: Cell<u64>,
    stalled: Rc<Cell<bool>>,
    queues: RefCell<HashMap<Queue, Vec<Vec<u8>>>>,
    /// Half messages, by the commit-log offset that was answered.
    halves: RefCell<HashMap<i64, (Queue, Vec<u8>)>>,
    held: RefCell<Vec<Held>>,
    late: Rc<RefCell<Vec<Late>>>,
}

impl Fake {
    fn send(&self, conn: &Rc<Conn>, cmd: &Command<'_>) {
        let header = SendMessage::decode(cmd).unwrap();
        self.sends.set(self.sends.get() + 1);
        if self.faults.refuse_after.is_some_and(|after| self.sends.get() > after) {
            return conn.respond(cmd.opaque, &Response::err(response::SYSTEM_BUSY, "enough"));
        }
        if header.sys_flag & sys_flag::TRANSACTION_MASK == sys_flag::TRANSACTION_PREPARED {
            return self.send_half(conn, cmd, &header);
        }
        let first = {
            let mut queues = self.queues.borrow_mut();
            let queue = queues.entry((header.topic.to_owned(), header.queue_id)).or_default();
            let first = queue.len();
            if header.batch {
                batch_items(cmd.body).for_each(|item| {
                    let item = item.unwrap();
                    queue.push(stored(&header, item.body, item.properties, queue.len()));
                });
            } else if self.faults.forgotten != Some(self.sends.get()) {
                queue.push(stored(&header, cmd.body, header.properties, first));
            }
            first
        };
        let answer = Response::ok().with("queueId", header.queue_id).with("queueOffset", first as i64);
        self.stall_at(self.sends.get());
        if self.stalled.get() {
            self.late.borrow_mut().push((conn.clone(), cmd.opaque, answer));
        } else {
            conn.respond(cmd.opaque, &answer);
        }
        for (conn, opaque, queue, offset) in self.held.take() {
            self.pull(&conn, opaque, queue, offset, 32, true);
        }
    }

    fn send_half(&self, conn: &Rc<Conn>, cmd: &Command<'_>, header: &SendMessage<'_>) {
        let marks = [prop::TRAN_MSG, prop::PGROUP].map(|name| message::property(header.properties, name));
        assert_eq!(marks, [Some("true"), Some(header.producer_group)]);
        let phy = self.sends.get() as i64;
        let record = stored(header, cmd.body, header.properties, 0);
        self.halves.borrow_mut().insert(phy, ((header.topic.to_owned(), header.queue_id), record));
        let answer = Response::ok()
            .with("msgId", format!("7F00000100002A9F{phy:016X}"))
            .with("transactionId", "id")
            .with("queueId", header.queue_id)
            .with("queueOffset", phy * 2);
        conn.respond(cmd.opaque, &answer);
    }

    fn end(&self, conn: &Rc<Conn>, cmd: &Command<'_>) {
        let header = EndTransaction::decode(cmd).unwrap();
        assert_eq!((header.commit_or_rollback, header.transaction_id), (sys_flag::TRANSACTION_COMMIT, Some("id")));
        assert_eq!(header.tran_state_table_offset, header.commit_log_offset * 2);
        let (queue, mut record) = self.halves.borrow_mut().remove(&header.commit_log_offset).expect("one that waits");
        let mut queues = self.queues.borrow_mut();
        let queue = queues.entry(queue).or_default();
        record::patch(&mut record, queue.len() as u64, 0, 0);
        queue.push(record);
        conn.respond(cmd.opaque, &Response::ok());
    }

    fn stall_at(&self, send: u64) {
        let Some((at, span)) = self.faults.stall else { return };
        if at == send {
            self.stalled.set(true);
            let (stalled, late) = (self.stalled.clone(), self.late.clone());
            glommio::spawn_local(async move {
                Timer::new(span).await;
                stalled.set(false);
                late.take().iter().for_each(|(conn, opaque, answer)| conn.respond(*opaque, answer));
            })
            .detach();
        }
    }

    fn pull(&self, conn: &Rc<Conn>, opaque: i32, queue: Queue, offset: usize, max: usize, hold: bool) {
        let queues = self.queues.borrow();
        let all = queues.get(&queue).map_or(&[][..], Vec::as_slice);
        let found = &all[offset.min(all.len())..all.len().min(offset + max)];
        if found.is_empty() && hold {
            return self.held.borrow_mut().push((conn.clone(), opaque, queue, offset));
        }
        let mut body = found.concat();
        if self.faults.damaged.is_some_and(|at| queue.1 == 0 && (offset..offset + found.len()).contains(&at)) {
            *body.last_mut().unwrap() ^= 1;
            body[90] ^= 1; // within the first body
        }
        let code = if found.is_empty() { response::PULL_NOT_FOUND } else { response::SUCCESS };
        let next = (offset + found.len()) as i64;
        let answer = Response { code, ..Response::ok().with("nextBeginOffset", next).body(body) };
        conn.respond(opaque, &answer);
    }
}

fn stored(header: &SendMessage<'_>, body: &[u8], properties: &str, offset: usize) -> Vec<u8> {
    let host = "127.0.0.1:1".parse().unwrap();
    let new = NewRecord {
        topic: header.topic,
        queue_id: header.queue_id as u32,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: header.born_timestamp_ms,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties,
        more_properties: "",
    };
    let mut out = Vec::new();
    record::encode(&mut out, &new).unwrap();
    record::patch(&mut out, offset as u64, 0, 1);
    out
}

impl Service for Fake {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, _: &[u8]) {
        match cmd.code {
            request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => self.send(conn, cmd),
            request::PULL_MESSAGE => {
                let header = PullMessage::decode(cmd).unwrap();
                let hold = header.has(pull_flag::SUSPEND);
                let (offset, max) = (header.queue_offset as usize, header.max_msg_nums as usize);
                let queue = (header.topic.to_owned(), header.queue_id);
                self.pull(conn, cmd.opaque, queue, offset, max, hold);
            }
            request::GET_MAX_OFFSET => {
                let header = GetMaxOffset::decode(cmd).unwrap();
                let queue = (header.topic.to_owned(), header.queue_id);
                let max = self.queues.borrow().get(&queue).map_or(0, Vec::len);
                conn.respond(cmd.opaque, &Response::ok().with("offset", max as i64));
            }
            request::GET_MIN_OFFSET => {
                GetMinOffset::decode(cmd).unwrap();
                conn.respond(cmd.opaque, &Response::ok().with("offset", 0));
            }
            request::END_TRANSACTION => self.end(conn, cmd),
            _ => conn.respond(cmd.opaque, &Response::ok()),
        }
    }
}

/// Serves until the test process ends.
fn serve(faults: Faults) -> SocketAddr {
    let bound = listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = bound.addr;
    std::thread::spawn(move || {
        on_executor(None, move || async move {
            let (gate, spread, conns) = (Gate::new(), Spread::new(1), Rc::new(Conns::default()));
            glommio::spawn_local(listener::accept(bound, spread.clone(), gate.clone())).detach();
            let fake = Rc::new(Fake { faults, ..Fake::default() });
            listener::serve(spread, 0, conns, fake, Limits::default(), gate).await;
            Ok(())
        })
        .unwrap();
    });
    addr
}

fn plan(pace: Pace, batch: u32) -> Plan {
    Plan {
        topics: vec!["T".to_owned()],
        kind: Kind::Plain,
        queues: 4,
        size: 50,
        batch,
        pace,
        stamp: None,
        warmup: Duration::from_millis(50),
        measured: Duration::from_secs(1),
    }
}

/// Runs a load and gives its tally with the number of messages acknowledged in all.
fn loaded(addr: SocketAddr, plan: Plan, conns: u32) -> Result<(crate::report::Tally, u64), BenchError> {
    on_executor(None, move || async move {
        let load = Load::new(plan);
        load.run(addr, conns, |_, _| ()).await?;
        Ok((load.tally(), load.acknowledged()))
    })
}

fn ms_at(tally: &crate::report::Tally, quantile: f64) -> f64 {
    tally.latency.value_at_quantile(quantile) as f64 / 1e6
}

#[test]
fn the_open_loop_sees_all_that_a_stall_delayed_and_the_closed_loop_does_not() {
    let stall = Some((300, Duration::from_millis(400)));
    let (open, _) = loaded(serve(Faults { stall, ..Faults::default() }), plan(Pace::Open(1000.0), 1), 2).unwrap();
    assert_eq!((open.msgs, open.errors()), (1000, 0), "every intended message was sent and counted");
    // 400 of 1000 messages were due in the stall; a quarter of all waited for 150 ms at least.
    assert!(ms_at(&open, 0.8) >= 150.0, "p80 {} ms", ms_at(&open, 0.8));
    assert!(ms_at(&open, 1.0) >= 390.0, "max {} ms", ms_at(&open, 1.0));
    let (closed, _) = loaded(serve(Faults { stall, ..Faults::default() }), plan(Pace::Closed(1), 1), 1).unwrap();
    // One request in flight waited, so nearly all latencies of the closed loop know nothing of it.
    assert!(ms_at(&closed, 0.8) < ms_at(&open, 0.8), "p80 {} ms, {} ms", ms_at(&closed, 0.8), ms_at(&open, 0.8));
    assert!(ms_at(&closed, 1.0) >= 390.0, "max {} ms", ms_at(&closed, 1.0));
}

#[test]
fn what_was_acknowledged_is_drained() {
    let addr = serve(Faults::default());
    for batch in [1, 5] {
        let (tally, _) = loaded(addr, plan(Pace::Closed(4), batch), 3).unwrap();
        assert_eq!(tally.errors(), 0);
        assert_eq!(tally.msgs, tally.codes[&0] * batch as u64);
        assert_eq!(tally.bytes, tally.msgs * 50);
    }
    let (_, acknowledged) = loaded(addr, plan(Pace::Closed(2), 1), 1).unwrap();
    let drain =
        Drain { topic: "T".to_owned(), queues: 4, conns: 3, max_msgs: 32, from: None, follow: None, check: true };
    let (drained, _) = on_executor(None, move || async move { drain_all(addr, &drain, |_, _| ()).await }).unwrap();
    assert!(drained.msgs > acknowledged, "{} drained", drained.msgs);
}

#[test]
fn a_transaction_counts_when_its_commit_is_answered() {
    let addr = serve(Faults::default());
    let transactions = Plan { kind: Kind::Transactional, ..plan(Pace::Closed(4), 1) };
    let (tally, acknowledged) = loaded(addr, transactions, 2).unwrap();
    assert!(tally.errors() == 0 && tally.msgs > 0 && acknowledged >= tally.msgs, "{acknowledged}");
    let drain =
        Drain { topic: "T".to_owned(), queues: 4, conns: 2, max_msgs: 32, from: None, follow: None, check: true };
    let (drained, _) = on_executor(None, move || async move { drain_all(addr, &drain, |_, _| ()).await }).unwrap();
    // A half shows only when it is committed. Nothing is begun after the measured time, so nothing is open.
    assert_eq!(drained.msgs, acknowledged);
    let refusing = serve(Faults { refuse_after: Some(10), ..Faults::default() });
    let (_, acknowledged) =
        loaded(refusing, Plan { kind: Kind::Transactional, ..plan(Pace::Open(100.0), 1) }, 1).unwrap();
    assert_eq!(acknowledged, 10, "a refused half is not committed");
}

#[test]
fn messages_are_spread_over_the_topics() {
    let addr = serve(Faults::default());
    let topics: Vec<String> = (0..20).map(|n| format!("T-{n}")).collect();
    let (tally, _) = loaded(addr, Plan { topics, ..plan(Pace::Open(2000.0), 1) }, 2).unwrap();
    assert_eq!((tally.msgs, tally.errors()), (2000, 0));
    let drained = |topic: String| {
        let drain = Drain { topic, queues: 4, conns: 2, max_msgs: 32, from: None, follow: None, check: true };
        on_executor(None, move || async move { drain_all(addr, &drain, |_, _| ()).await }).unwrap().0.msgs
    };
    let counts: Vec<u64> = (0..20).map(|n| drained(format!("T-{n}"))).collect();
    assert!(counts.iter().sum::<u64>() >= 2000 && counts.iter().all(|count| (50..200).contains(count)), "{counts:?}");
}

#[test]
fn the_log_of_latencies_holds_every_one() {
    let dir = std::env::temp_dir().join(format!("uringmq-hlog-{}", std::process::id()));
    let addr = serve(Faults::default());
    let file = dir.with_extension("hlog");
    let path = file.display();
    assert_eq!(run(addr, &format!("send --rate 400 --warmup 0.1 --secs 1.6 --rounds 2 --hlog {path}")), 0);
    let text = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let mut deserializer = Deserializer::new();
    let (mut count, mut intervals, mut last) = (0, 0, Duration::ZERO);
    for entry in IntervalLogIterator::new(&text) {
        let LogEntry::Interval(interval) = entry.unwrap() else { continue };
        let bytes = STANDARD.decode(interval.encoded_histogram()).unwrap();
        let histogram: hdrhistogram::Histogram<u64> = deserializer.deserialize(&mut &bytes[..]).unwrap();
        count += histogram.len();
        intervals += 1;
        assert!(interval.start_timestamp() >= last && interval.duration() <= Duration::from_millis(1600));
        last = interval.start_timestamp();
    }
    assert_eq!((count, intervals), (1280, 4), "two rounds of 640, each as a second and the rest");
    assert_eq!(run(addr, "send --secs 0.1 --hlog /proc/nothing/here"), 2);
}

#[test]
fn refusals_are_counted_and_told() {
    let addr = serve(Faults { refuse_after: Some(100), ..Faults::default() });
    let (tally, acknowledged) = loaded(addr, plan(Pace::Open(500.0), 1), 1).unwrap();
    assert_eq!(acknowledged, 100);
    assert_eq!(tally.errors(), tally.codes[&response::SYSTEM_BUSY]);
    assert_eq!(tally.msgs + tally.errors(), 500);
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: BenchArgs,
}

fn run(addr: SocketAddr, line: &str) -> i32 {
    let broker = addr.to_string();
    let words = ["bench"].into_iter().chain(line.split_whitespace()).chain(["--broker", &broker]);
    crate::main(Line::try_parse_from(words).unwrap().bench)
}

#[test]
fn the_exit_code_tells_of_damage() {
    let addr = serve(Faults { damaged: Some(3), ..Faults::default() });
    let load = "--rounds 2 --warmup 0.05 --secs 0.2 --json";
    assert_eq!(run(addr, &format!("send --queues 2 --conns 2 --inflight 4 {load}")), 0);
    assert_eq!(run(addr, "pull --queues 2 --json"), 1);
    assert_eq!(run(addr, "pull --queues 2 --json --from 4"), 0);
    assert_eq!(run(addr, "pull --queues 2 --no-check"), 0);
    assert_eq!(run(addr, "pull --queues 2 --follow --secs 0.1 --from 4 --rounds 2"), 0);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(run(nobody, "send"), 2);
}

#[test]
fn messages_arrive_at_the_long_polling_consumer() {
    let addr = serve(Faults::default());
    // What is in the topic before, of whatever kind, is not counted.
    assert_eq!(run(addr, "send --queues 3 --warmup 0 --secs 0.1 --size 16"), 0);
    assert_eq!(run(addr, "e2e --queues 3 --conns 2 --rate 500 --warmup 0.1 --secs 0.5 --rounds 2 --json"), 0);
    assert_eq!(run(addr, "e2e --queues 3 --conns 2 --inflight 3 --batch 2 --warmup 0.1 --secs 0.3"), 0);
}

#[test]
fn a_message_that_never_arrives_is_told() {
    let addr = serve(Faults { forgotten: Some(10), ..Faults::default() });
    assert_eq!(run(addr, "e2e --queues 3 --rate 200 --warmup 0 --secs 0.2 --json"), 1);
}

#[test]
fn the_null_server_stands_in_for_a_broker() {
    let bound = listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = bound.addr;
    std::thread::spawn(move || {
        on_executor(None, move || async move {
            crate::null::serve(bound, crate::null::Null::new(1000, 100)).await;
            Ok(())
        })
    });
    let (tally, acknowledged) = loaded(addr, plan(Pace::Closed(4), 5), 2).unwrap();
    assert_eq!((tally.errors(), acknowledged % 5), (0, 0));
    assert!(acknowledged > 100, "{acknowledged}");
    let drain =
        Drain { topic: "T".to_owned(), queues: 3, conns: 2, max_msgs: 32, from: None, follow: None, check: false };
    let (drained, _) = on_executor(None, move || async move { drain_all(addr, &drain, |_, _| ()).await }).unwrap();
    assert_eq!(drained.msgs, 3 * 1000);
}

#[test]
fn the_command_line_refuses_nonsense() {
    for line in [
        "send --rate 0",
        "send --rate 10 --inflight 4",
        "send --secs -1",
        "pull --rounds 0",
        "kill",
        "compare --rmqload x --sides apache,other",
        "compare --rmqload x --apache-lib y --loads closed,clsoed",
        "null --size 0",
    ] {
        assert!(Line::try_parse_from(["bench"].into_iter().chain(line.split(' '))).is_err(), "{line}");
    }
}
