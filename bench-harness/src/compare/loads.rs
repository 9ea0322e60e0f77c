//! The loads of a comparison and the figures that each is judged by: one list, from which sessions, table and report are made.
use super::rmqload::Outcome;
use super::sides::Flush;

/// A figure of a load or of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Figure {
    MsgPerS,
    P50,
    P99,
    P999,
    /// Part of the requests that was refused or never answered, in %.
    Refused,
    Seconds,
    /// Messages that a master acknowledged and its slave does not have after the master's death.
    Lost,
    Megabytes,
    Kilobytes,
    /// Bytes written to the disk for one byte that the log grew by.
    Amplification,
    /// Time of the server's process on any core for a message, in microseconds.
    Cpu,
    /// System calls of the server's threads for a message.
    SystemCalls,
    /// Cycles of the cores in the server's threads for a message, in thousands.
    Cycles,
}

impl Figure {
    pub(super) fn unit(self) -> &'static str {
        match self {
            Figure::MsgPerS => "msg/s",
            Figure::P50 | Figure::P99 | Figure::P999 => "ms",
            Figure::Refused => "%",
            Figure::Seconds => "s",
            Figure::Lost => "messages",
            Figure::Megabytes => "MB",
            Figure::Kilobytes => "KB",
            Figure::Amplification => "x",
            Figure::Cpu => "us",
            Figure::SystemCalls => "calls",
            Figure::Cycles => "k",
        }
    }

    pub(super) fn more_is_better(self) -> bool {
        self == Figure::MsgPerS
    }

    pub(super) fn told(self) -> &'static str {
        match self {
            Figure::P50 => ", p50",
            Figure::P99 => ", p99",
            Figure::P999 => ", p99.9",
            Figure::Refused => ", refused",
            Figure::Lost => ", acknowledged and not on the slave after kill -9",
            Figure::Amplification => ", written to disk per byte of the log",
            Figure::Cpu => ", processor time a message",
            Figure::SystemCalls => ", system calls a message",
            Figure::Cycles => ", cycles a message",
            _ => "",
        }
    }

    pub(super) fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Figure::MsgPerS => outcome.msg_per_s,
            Figure::P50 => outcome.p50_ms,
            Figure::P99 => outcome.p99_ms,
            Figure::P999 => outcome.p999_ms,
            Figure::Refused => outcome.refused_percent(),
            _ => unreachable!("not a figure of a load"),
        }
    }
}

/// What is wanted of ours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wanted {
    /// So many times Apache's figure.
    Times(f64),
    /// Apache's figure divided by this.
    Part(f64),
    AtMost(f64),
    /// To be judged by the reader, beside another line.
    Said(&'static str),
    Nothing,
}

/// What the machine itself allows, judged by the server that stores nothing: a latency need not be below 1.3 times its, a throughput not above
/// 80 % of its.
const FLOOR: f64 = 1.3;
const CEILING: f64 = 0.8;

impl Wanted {
    /// The value to reach; `None` when that is not a number, or Apache's is not known.
    pub(super) fn value(self, figure: Figure, apache: Option<f64>, null: Option<f64>) -> Option<f64> {
        let stated = match self {
            Wanted::Times(times) => apache? * times,
            Wanted::Part(part) => apache? / part,
            Wanted::AtMost(most) => most,
            Wanted::Said(_) | Wanted::Nothing => return None,
        };
        Some(match (figure, null) {
            (Figure::MsgPerS, Some(null)) => stated.min(CEILING * null),
            (Figure::P50 | Figure::P99 | Figure::P999, Some(null)) => stated.max(FLOOR * null),
            _ => stated,
        })
    }

    pub(super) fn told(self, figure: Figure) -> String {
        match self {
            Wanted::Times(times) => format!(">= {times}x"),
            Wanted::Part(part) => format!("<= 1/{part}"),
            Wanted::AtMost(0.0) => "none".to_owned(),
            Wanted::AtMost(most) if figure == Figure::Amplification => format!("<= {most}x"),
            Wanted::AtMost(most) => format!("<= {most} {}", figure.unit()),
            Wanted::Said(text) => text.to_owned(),
            Wanted::Nothing => "-".to_owned(),
        }
    }
}

/// One line of the table: a figure, and what is wanted of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) load: &'static str,
    pub(super) figure: Figure,
    pub(super) wanted: Wanted,
}

const fn row(load: &'static str, figure: Figure, wanted: Wanted) -> Row {
    Row { load, figure, wanted }
}

/// A send load that `rmqload` makes on a topic of its own.
pub(super) struct Sends {
    pub(super) key: &'static str,
    pub(super) flush: Flush,
    pub(super) conns: u32,
    pub(super) how: &'static [&'static str],
    pub(super) rows: &'static [Row],
    /// Also told of the server's process: the bytes that the disk took for each byte of its log, its time for a message.
    pub(super) costs: &'static [Row],
}

use Figure::{
    Amplification, Cpu, Cycles, Kilobytes, Lost, Megabytes, MsgPerS, P50, P99, P999, Refused, Seconds, SystemCalls,
};
use Wanted::{AtMost, Nothing, Part, Said, Times};

/// Those of the README's short table; `--loads all` runs every one.
pub(super) const SHORT: &[&str] = &["closed", "open-10k", "sync-1x1", "sync-32x1", "drain", "memory", "start"];

pub(super) const SENDS: &[Sends] = &[
    Sends {
        key: "closed",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--inflight", "32"],
        rows: &[
            row("closed loop, 8 connections x 32", MsgPerS, Times(8.0)),
            row("closed loop, 8 connections x 32", P999, Part(10.0)),
        ],
        costs: &[
            row("closed loop, 8 connections x 32", Amplification, AtMost(2.3)),
            row("closed loop, 8 connections x 32", Cpu, Nothing),
            row("closed loop, 8 connections x 32", SystemCalls, Nothing),
            row("closed loop, 8 connections x 32", Cycles, Nothing),
        ],
    },
    Sends {
        key: "closed-100b",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "100", "--inflight", "32"],
        rows: &[row("closed loop, 8 x 32, 100 B", MsgPerS, Times(8.0))],
        costs: &[],
    },
    Sends {
        key: "batch",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--inflight", "8", "--batch", "32"],
        rows: &[row("batches of 32, 8 x 8", MsgPerS, Times(5.0))],
        costs: &[],
    },
    Sends {
        key: "one",
        flush: Flush::Async,
        conns: 1,
        how: &["--size", "1024", "--inflight", "1"],
        rows: &[row("1 x 1", MsgPerS, Times(1.2)), row("1 x 1", P999, AtMost(0.5))],
        costs: &[],
    },
    Sends {
        key: "open-10k",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--rate", "10000"],
        rows: &[
            row("open loop 10 k msg/s", P50, AtMost(0.25)),
            row("open loop 10 k msg/s", P99, AtMost(1.0)),
            row("open loop 10 k msg/s", P999, Part(10.0)),
        ],
        costs: &[
            row("open loop 10 k msg/s", Amplification, AtMost(6.0)),
            row("open loop 10 k msg/s", Cpu, Nothing),
            row("open loop 10 k msg/s", SystemCalls, Nothing),
            row("open loop 10 k msg/s", Cycles, Nothing),
        ],
    },
    Sends {
        key: "open-30k",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--rate", "30000"],
        rows: &[
            row("open loop 30 k msg/s", P99, AtMost(1.5)),
            row("open loop 30 k msg/s", P999, Part(12.0)),
            row("open loop 30 k msg/s", Refused, AtMost(0.0)),
        ],
        costs: &[],
    },
    Sends {
        key: "open-100k",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--rate", "100000"],
        rows: &[
            row("open loop 100 k msg/s", P99, AtMost(2.0)),
            row("open loop 100 k msg/s", P999, AtMost(10.0)),
            row("open loop 100 k msg/s", Refused, AtMost(0.0)),
        ],
        costs: &[],
    },
    Sends {
        key: "delayed",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--inflight", "32", "--delay-level", "1"],
        rows: &[row("delayed (level 1), 8 x 32", MsgPerS, Nothing)],
        costs: &[],
    },
    Sends {
        key: "sync-1x1",
        flush: Flush::Sync,
        conns: 1,
        how: &["--size", "1024", "--inflight", "1"],
        rows: &[row("sync flush, 1 x 1", MsgPerS, Times(5.0))],
        costs: &[],
    },
    Sends {
        key: "sync-32x1",
        flush: Flush::Sync,
        conns: 32,
        how: &["--size", "1024", "--inflight", "1"],
        rows: &[row("sync flush, 32 x 1", MsgPerS, Times(4.5))],
        costs: &[],
    },
    Sends {
        key: "sync-8x32",
        flush: Flush::Sync,
        conns: 8,
        how: &["--size", "1024", "--inflight", "32"],
        rows: &[row("sync flush, 8 x 32", MsgPerS, Times(7.0))],
        costs: &[],
    },
];

/// In a session of its own, in which our executors spin before they park.
pub(super) const SPINNING: Sends = Sends {
    key: "one-spin",
    flush: Flush::Async,
    conns: 1,
    how: &["--size", "1024", "--inflight", "1"],
    rows: &[
        row("1 x 1, spinBeforeParkUs=100", MsgPerS, Times(1.5)),
        row("1 x 1, spinBeforeParkUs=100", P999, AtMost(0.5)),
    ],
    costs: &[],
};
pub(super) const SPINNING_CONF: &[&str] = &["spinBeforeParkUs=100"];

/// A master and a slave, and what is sent to the master.
pub(super) struct Pairing {
    pub(super) key: &'static str,
    pub(super) flush: Flush,
    /// Lines of the master's configuration.
    pub(super) master: &'static [&'static str],
    pub(super) sends: [Sends; 2],
    pub(super) lost: Row,
}

/// Acknowledged when the slave has it, too.
const TWO_COPIES: &[&str] = &["brokerRole=SYNC_MASTER", "inSyncReplicas=2"];
const ONE_COPY: &[&str] = &["brokerRole=ASYNC_MASTER"];

/// One pairing; the names of its loads have to be literals.
macro_rules! pairing {
    ($key:literal, $name:literal, $flush:expr, $master:expr, $times:expr, $part:expr, $lost:expr) => {
        Pairing {
            key: $key,
            flush: $flush,
            master: $master,
            sends: [
                Sends {
                    key: concat!($key, "-closed"),
                    flush: $flush,
                    conns: 8,
                    how: &["--size", "1024", "--inflight", "32"],
                    rows: &[
                        row(concat!($name, ", 8 x 32"), MsgPerS, $times),
                        row(concat!($name, ", 8 x 32"), P999, $part),
                        row(concat!($name, ", 8 x 32"), Refused, AtMost(0.0)),
                    ],
                    costs: &[],
                },
                Sends {
                    key: concat!($key, "-open"),
                    flush: $flush,
                    conns: 8,
                    how: &["--size", "1024", "--rate", "2000"],
                    rows: &[
                        row(concat!($name, ", open loop 2 k msg/s"), P50, Nothing),
                        row(concat!($name, ", open loop 2 k msg/s"), P999, $part),
                    ],
                    costs: &[],
                },
            ],
            lost: row($name, Lost, $lost),
        }
    };
}

pub(super) const PAIRINGS: &[Pairing] = &[
    pairing!("pair-sync", "pair, 2 copies", Flush::Async, TWO_COPIES, Times(4.0), Part(5.0), AtMost(0.0)),
    pairing!(
        "pair-sync-flush",
        "pair, 2 copies, sync flush",
        Flush::Sync,
        TWO_COPIES,
        Times(4.0),
        Part(5.0),
        AtMost(0.0)
    ),
    pairing!("pair-async", "pair, 1 copy", Flush::Async, ONE_COPY, Nothing, Nothing, Nothing),
    pairing!("pair-async-flush", "pair, 1 copy, sync flush", Flush::Sync, ONE_COPY, Nothing, Nothing, Nothing),
];

/// By our own generator: many topics, each message to one at random, and beside them one topic.
pub(super) const TOPICS: [(u32, [Row; 2]); 2] = [
    (
        1,
        [
            row("one topic of 4 queues, open loop 10 k msg/s", P999, Nothing),
            row("one topic of 4 queues, closed loop 8 x 32", MsgPerS, Nothing),
        ],
    ),
    (
        5000,
        [
            row("5,000 topics of 4 queues, open loop 10 k msg/s", P999, Said("<= 2x one topic's")),
            row("5,000 topics of 4 queues, closed loop 8 x 32", MsgPerS, Said(">= 70 % of one topic's")),
        ],
    ),
];
/// Bytes of a group of ours in the load `sync-8x32`: what fio writes before each of its syncs.
pub(super) const GROUP: Row = row("sync flush, 8 x 32, bytes a sync", Kilobytes, Nothing);
/// By our own generator: a half message, and when that is acknowledged its commit; latency until both are answered.
pub(super) const TRANSACTIONS: [Row; 2] =
    [row("transactional sends, 8 x 32", MsgPerS, Nothing), row("transactional sends, 8 x 32", P999, Nothing)];
pub(super) const DRAIN: Row = row("drain, 8 connections", MsgPerS, Times(2.0));
pub(super) const E2E: Row = row("end to end at 10 k msg/s, long poll", P999, Part(10.0));
/// A batch readable -> the pulls held for it answered, under the load above; only ours tells it.
pub(super) const WAKE: Row = row("written to visible to a held pull, at 10 k msg/s", P99, AtMost(1.0));
pub(super) const COLD: [Row; 2] = [
    row("open loop 10 k msg/s while a cold backlog is drained", P999, Part(50.0)),
    row("that drain of a cold backlog", MsgPerS, Times(1.5)),
];
pub(super) const FIRST: [Row; 2] = [
    row("first 8 s after a start, open loop 10 k msg/s", P99, Said("as warm")),
    row("first 8 s after a start, open loop 10 k msg/s", Refused, AtMost(0.0)),
];
pub(super) const IDLE_CONNECTION: Row = row("memory of an idle connection, of 5,000", Kilobytes, AtMost(20.0));
pub(super) const MEMORY_IDLE: Row = row("resident memory, idle", Megabytes, AtMost(60.0));
pub(super) const MEMORY: Row = row("most resident memory under load", Megabytes, AtMost(350.0));
/// Clean and killed.
pub(super) const START: [Row; 2] =
    [row("start after a clean stop", Seconds, AtMost(0.3)), row("start after kill -9", Seconds, AtMost(1.0))];
pub(super) const START_LARGE: [Row; 2] = [
    row("start of the large store after a clean stop", Seconds, Said("as the small one")),
    row("start of the large store after kill -9", Seconds, Said("as the small one")),
];
pub(super) const START_QUEUES: [Row; 2] = [
    row("start with many queues after a clean stop", Seconds, AtMost(3.0)),
    row("start with many queues after kill -9", Seconds, AtMost(3.0)),
];

/// What `--loads` may name.
pub(super) const OTHERS: &[&str] = &[
    "one-spin",
    "topics",
    "transactions",
    "drain",
    "e2e",
    "cold",
    "first",
    "idle",
    "memory",
    "start",
    "start-large",
    "start-queues",
];

/// What a round of a side is made of, each with servers of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Session(Flush),
    Spinning,
    Topics,
    Cold,
    Pairs,
}
pub(super) const WORKS: &[Work] =
    &[Work::Session(Flush::Async), Work::Session(Flush::Sync), Work::Spinning, Work::Topics, Work::Cold, Work::Pairs];

/// All rows in the order of the table.
pub(super) fn rows() -> Vec<Row> {
    let sends = SENDS.iter().chain([&SPINNING]).flat_map(|s| s.rows.iter().chain(s.costs).copied());
    let of =
        |pairing: &'static Pairing| pairing.sends.iter().flat_map(|s| s.rows.iter().copied()).chain([pairing.lost]);
    let pairs = PAIRINGS.iter().flat_map(of);
    sends
        .chain([GROUP])
        .chain(TOPICS.into_iter().flat_map(|(_, rows)| rows))
        .chain(TRANSACTIONS)
        .chain([DRAIN, E2E, WAKE])
        .chain(COLD)
        .chain(pairs)
        .chain(FIRST)
        .chain([IDLE_CONNECTION, MEMORY_IDLE, MEMORY])
        .chain(START)
        .chain(START_LARGE)
        .chain(START_QUEUES)
        .collect()
}

/// The names in a list with commas, each known; `short`, `all` and `pairs` stand for sets. Pairs are not among all: they are two servers a side.
pub(super) fn chosen(text: &str) -> Result<Vec<&'static str>, String> {
    let alone = || SENDS.iter().map(|s| s.key).chain(OTHERS.iter().copied());
    let pairs = || PAIRINGS.iter().map(|pairing| pairing.key);
    let known = || alone().chain(pairs());
    match text {
        "short" => Ok(SHORT.to_vec()),
        "all" => Ok(alone().collect()),
        "pairs" => Ok(pairs().collect()),
        list => list
            .split(',')
            .map(|name| {
                let known_names = || known().collect::<Vec<_>>().join(", ");
                known()
                    .find(|k| *k == name)
                    .ok_or_else(|| format!("no load '{name}'; there are short, all, pairs, {}", known_names()))
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_chosen_by_name() {
        assert_eq!(chosen("one,drain").unwrap(), ["one", "drain"]);
        assert_eq!(chosen("short").unwrap(), SHORT);
        assert_eq!(chosen("all").unwrap().len(), SENDS.len() + OTHERS.len());
        assert_eq!(chosen("pairs").unwrap(), ["pair-sync", "pair-sync-flush", "pair-async", "pair-async-flush"]);
        assert_eq!(chosen("closed,pair-sync").unwrap(), ["closed", "pair-sync"]);
        assert!(SHORT.iter().all(|name| chosen("all").unwrap().contains(name)));
        let refused = chosen("one,two").unwrap_err();
        assert!(refused.contains("'two'") && refused.contains("open-30k"), "{refused}");
    }

    #[test]
    fn what_is_wanted_is_bounded_by_what_the_machine_allows() {
        let times = |null| Times(8.0).value(MsgPerS, Some(10.0), null);
        assert_eq!((times(None), times(Some(1000.0)), times(Some(50.0))), (Some(80.0), Some(80.0), Some(40.0)));
        let part = |null| Part(10.0).value(P999, Some(30.0), null);
        assert_eq!((part(None), part(Some(1.0)), part(Some(10.0))), (Some(3.0), Some(3.0), Some(13.0)));
        assert_eq!(AtMost(60.0).value(Megabytes, None, Some(1.0)), Some(60.0));
        assert_eq!((Times(8.0).value(MsgPerS, None, None), Nothing.value(MsgPerS, Some(1.0), None)), (None, None));
        let told: Vec<String> =
            [Times(4.5), Part(10.0), AtMost(0.25), Said("as warm")].iter().map(|w| w.told(P50)).collect();
        assert_eq!(told, [">= 4.5x", "<= 1/10", "<= 0.25 ms", "as warm"]);
        assert_eq!((AtMost(2.3).told(Amplification), AtMost(0.0).told(Refused)), ("<= 2.3x".into(), "none".into()));
    }

    #[test]
    fn no_two_rows_are_the_same() {
        let mut all: Vec<_> = rows().iter().map(|r| (r.load, r.figure)).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), rows().len());
    }
}
