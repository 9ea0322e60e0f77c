//! What kill -9 cannot see: that the log is written past the page cache, and that no acknowledgement runs ahead of the write, and under
//! SYNC_FLUSH of the sync, that it stands on. Judged by the real process under load: its open files, and what its writer recorded.
use crate::common::{Client, Server, props, test_dir};
use std::collections::HashMap;
use std::path::Path;

const TOPIC: &str = "Durable";
const QUEUES: i32 = 4;
const CLIENTS: u64 = 12;
const SENDS: u64 = 60;
/// As every test server has it.
const SEGMENT_BYTES: u64 = 8 << 20;

/// One line of `operationLogPath`.
struct Op {
    kind: String,
    /// Position in the log; for acknowledgements too.
    at: u64,
    bytes: u64,
    segment: u64,
}

fn operations(path: &Path) -> Vec<Op> {
    let text = std::fs::read_to_string(path).expect("operationLogPath");
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|e| panic!("{text}: {e}"));
    let operation = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [kind, name, at, bytes] = fields[..] else { panic!("{line}") };
        let base = name.parse::<u64>().ok();
        let at = base.unwrap_or(0) + number(at);
        Op {
            kind: kind.to_owned(),
            at,
            bytes: number(bytes),
            segment: base.unwrap_or(at / SEGMENT_BYTES * SEGMENT_BYTES),
        }
    };
    text.lines().map(operation).collect()
}

/// How many writes began while another was under way; panics over two that have a byte of the log in common.
fn beside_each_other(ops: &[Op]) -> usize {
    let (mut under_way, mut beside): (Vec<(u64, u64)>, _) = (Vec::new(), 0);
    for op in ops {
        let (from, to) = (op.at, op.at + op.bytes);
        match op.kind.as_str() {
            "WriteStart" => {
                assert!(under_way.iter().all(|(f, t)| to <= *f || *t <= from), "{from}..{to} beside {under_way:?}");
                beside += usize::from(!under_way.is_empty());
                under_way.push((from, to));
            }
            "WriteEnd" => {
                let ended = under_way.iter().position(|(f, _)| *f == from).expect("a write ends that began");
                under_way.remove(ended);
            }
            _ => {}
        }
    }
    beside
}

/// The acknowledged records by position, each with its kind; panics over one that ran ahead of what it stands on.
fn judge(ops: &[Op]) -> HashMap<u64, String> {
    let mut written: Vec<(u64, u64, usize)> = Vec::new(); // from, to, when it was complete
    let mut syncs: HashMap<u64, Vec<(usize, usize)>> = HashMap::new(); // by segment: submitted, complete
    // A write that syncs says both of its sync right behind its end, perhaps while another sync is under way.
    let mut submitted: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut acked = HashMap::new();
    for (now, op) in ops.iter().enumerate() {
        match op.kind.as_str() {
            "WriteStart" => {}
            "WriteEnd" => written.push((op.at, op.at + op.bytes, now)),
            "SyncStart" => submitted.entry(op.segment).or_default().push(now),
            "SyncEnd" => {
                let began = submitted.get_mut(&op.segment).and_then(Vec::pop).expect("a sync ends that was submitted");
                syncs.entry(op.segment).or_default().push((began, now));
            }
            "Acked" | "AckedDurable" => {
                let (mut at, end, mut complete) = (op.at, op.at + op.bytes, 0);
                while at < end {
                    let by = written.iter().find(|(from, to, _)| *from <= at && at < *to);
                    let (_, to, when) = by.unwrap_or_else(|| panic!("acknowledged before it was written: {at}"));
                    (at, complete) = (*to, complete.max(*when));
                }
                let synced =
                    || syncs.get(&op.segment).is_some_and(|all| all.iter().any(|(began, _)| *began > complete));
                assert!(op.kind == "Acked" || synced(), "acknowledged before it was synced: {}", op.at);
                acked.insert(op.at, op.kind.clone());
            }
            other => panic!("{other}"),
        }
    }
    acked
}

/// The position in the log that a message id ends with.
fn position(msg_id: &str) -> u64 {
    u64::from_str_radix(&msg_id[msg_id.len() - 16..], 16).expect("a message id")
}

/// Sends of many sizes, every third with WAIT=false; the positions acknowledged, and whether they waited.
fn load(mut client: Client, seed: u64) -> Vec<(u64, bool)> {
    let waits = [props(&[("WAIT", "true")]), props(&[("WAIT", "false")])];
    let mut acknowledged = Vec::new();
    for n in 0..SENDS {
        let waits_too = !(n + seed).is_multiple_of(3);
        let body = vec![b'd'; ((n * 7919 + seed * 104_729) % 60_000) as usize + 1];
        let sent = client.sent(TOPIC, (n as i32) % QUEUES, &waits[usize::from(!waits_too)], &body);
        acknowledged.push((position(&sent.msg_id), waits_too));
    }
    acknowledged
}

/// The flags of every descriptor of the process that is open on the segment which holds the end of the log.
fn active_segment_flags(server: &Server, end: u64) -> Vec<i32> {
    let name = format!("{:020}", end / SEGMENT_BYTES * SEGMENT_BYTES);
    let process = Path::new("/proc").join(server.pid().to_string());
    let open = std::fs::read_dir(process.join("fd")).expect("its descriptors").filter_map(|fd| {
        let fd = fd.expect("a descriptor");
        std::fs::read_link(fd.path())
            .is_ok_and(|to| to.ends_with(Path::new("commitlog").join(&name)))
            .then(|| fd.file_name())
    });
    open.map(|fd| {
        let info = std::fs::read_to_string(process.join("fdinfo").join(fd)).expect("fdinfo");
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags").trim().to_owned();
        i32::from_str_radix(&flags, 8).expect("octal")
    })
    .collect()
}

fn acknowledgements_follow_their_writes(flush: &str, shards: u32) {
    let log = test_dir(&format!("durability-log-{flush}-{shards}")).join("operations");
    let settings = format!("flushDiskType={flush}\nshards={shards}\noperationLogPath={}", log.display());
    let mut server = Server::start(&format!("durability-{flush}-{shards}"), &settings);
    server.client().create_topic(TOPIC, QUEUES);
    let acknowledged: Vec<(u64, bool)> = std::thread::scope(|scope| {
        let loads: Vec<_> = (0..CLIENTS).map(|seed| (server.client(), seed)).collect();
        let loads: Vec<_> = loads.into_iter().map(|(client, seed)| scope.spawn(move || load(client, seed))).collect();
        loads.into_iter().flat_map(|load| load.join().expect("a load")).collect()
    });
    let end = acknowledged.iter().map(|(at, _)| *at).max().expect("some");
    assert!(end > SEGMENT_BYTES, "the log rolled: {end}");
    let flags = active_segment_flags(&server, end);
    assert!(flags.iter().any(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY), "one writes to it: {flags:?}");
    assert!(flags.iter().all(|flags| flags & libc::O_DIRECT != 0), "{flags:?}");

    assert!(server.stop().success());
    let operations = operations(&log);
    let recorded = judge(&operations);
    assert!(beside_each_other(&operations) > 0, "one write at a time");
    assert!(acknowledged.len() as u64 == CLIENTS * SENDS);
    for (at, waited) in acknowledged {
        let kind = recorded.get(&at).unwrap_or_else(|| panic!("no acknowledgement of {at} is recorded"));
        let durable = waited && flush == "SYNC_FLUSH";
        assert_eq!(kind == "AckedDurable", durable, "at {at}");
    }
}

#[test]
fn async_flush_answers_after_the_write() {
    acknowledgements_follow_their_writes("ASYNC_FLUSH", 2);
}

#[test]
fn sync_flush_answers_after_the_sync() {
    acknowledgements_follow_their_writes("SYNC_FLUSH", 2);
}

#[test]
fn on_one_core_too() {
    acknowledgements_follow_their_writes("SYNC_FLUSH", 1);
}

#[test]
fn an_acknowledgement_too_early_is_found() {
    let op = |kind: &str, at, bytes| Op { kind: kind.to_owned(), at, bytes, segment: 0 };
    let right =
        || vec![op("WriteEnd", 0, 4096), op("SyncStart", 0, 0), op("SyncEnd", 0, 0), op("AckedDurable", 100, 200)];
    assert_eq!(judge(&right()).len(), 1);
    for (from, to) in [(3, 2), (3, 0)] {
        let mut wrong = right();
        let acked = wrong.remove(from);
        wrong.insert(to, acked);
        assert!(std::panic::catch_unwind(|| judge(&wrong)).is_err(), "{to}");
    }
    let mut early = right();
    early.swap(0, 1); // the sync was submitted before the write was complete
    assert!(std::panic::catch_unwind(|| judge(&early)).is_err());
}
