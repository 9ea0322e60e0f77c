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
    Megabytes,
    Kilobytes,
    /// Bytes written to the disk for one byte of message body.
    Amplification,
    /// Time of the server's process on any core for a message, in microseconds.
    Cpu,
}

impl Figure {
    pub(super) fn unit(self) -> &'static str {
        match self {
            Figure::MsgPerS => "msg/s",
            Figure::P50 | Figure::P99 | Figure::P999 => "ms",
            Figure::Refused => "%",
            Figure::Seconds => "s",
            Figure::Megabytes => "MB",
            Figure::Kilobytes => "KB",
            Figure::Amplification => "x",
            Figure::Cpu => "us",
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
            Figure::Amplification => ", written to disk per byte stored",
            Figure::Cpu => ", processor time a message",
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

/// One line of the table: a figure, and what is wanted of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) load: &'static str,
    pub(super) figure: Figure,
    pub(super) wanted: &'static str,
}

const fn row(load: &'static str, figure: Figure, wanted: &'static str) -> Row {
    Row { load, figure, wanted }
}

/// A send load that `rmqload` makes on a topic of its own.
pub(super) struct Sends {
    pub(super) key: &'static str,
    pub(super) flush: Flush,
    pub(super) conns: u32,
    pub(super) how: &'static [&'static str],
    pub(super) rows: &'static [Row],
    /// Also told of the server's process: the bytes that the disk took for each byte stored, its time for a message.
    pub(super) costs: &'static [Row],
}

use Figure::{Amplification, Cpu, Kilobytes, Megabytes, MsgPerS, P50, P99, P999, Refused, Seconds};

/// Those of the README's short table; `--loads all` runs every one.
pub(super) const SHORT: &[&str] = &["closed", "open-10k", "sync-1x1", "sync-32x1", "drain", "memory", "start"];

pub(super) const SENDS: &[Sends] = &[
    Sends {
        key: "closed",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--inflight", "32"],
        rows: &[
            row("closed loop, 8 connections x 32", MsgPerS, ">= 8x"),
            row("closed loop, 8 connections x 32", P999, "<= 1/10"),
        ],
        costs: &[
            row("closed loop, 8 connections x 32", Amplification, "<= 2.3x"),
            row("closed loop, 8 connections x 32", Cpu, "-"),
        ],
    },
    Sends {
        key: "closed-100b",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "100", "--inflight", "32"],
        rows: &[row("closed loop, 8 x 32, 100 B", MsgPerS, ">= 8x")],
        costs: &[],
    },
    Sends {
        key: "batch",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--inflight", "8", "--batch", "32"],
        rows: &[row("batches of 32, 8 x 8", MsgPerS, ">= 5x")],
        costs: &[],
    },
    Sends {
        key: "one",
        flush: Flush::Async,
        conns: 1,
        how: &["--size", "1024", "--inflight", "1"],
        rows: &[row("1 x 1", MsgPerS, ">= 1.2x"), row("1 x 1", P999, "<= 0.5 ms")],
        costs: &[],
    },
    Sends {
        key: "open-10k",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--rate", "10000"],
        rows: &[
            row("open loop 10 k msg/s", P50, "<= 0.25 ms"),
            row("open loop 10 k msg/s", P99, "<= 1 ms"),
            row("open loop 10 k msg/s", P999, "<= 1/10"),
        ],
        costs: &[row("open loop 10 k msg/s", Amplification, "<= 6x"), row("open loop 10 k msg/s", Cpu, "-")],
    },
    Sends {
        key: "open-30k",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--rate", "30000"],
        rows: &[
            row("open loop 30 k msg/s", P99, "<= 1.5 ms"),
            row("open loop 30 k msg/s", P999, "<= 1/12"),
            row("open loop 30 k msg/s", Refused, "none"),
        ],
        costs: &[],
    },
    Sends {
        key: "open-100k",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--rate", "100000"],
        rows: &[
            row("open loop 100 k msg/s", P99, "<= 2 ms"),
            row("open loop 100 k msg/s", P999, "<= 10 ms"),
            row("open loop 100 k msg/s", Refused, "none"),
        ],
        costs: &[],
    },
    Sends {
        key: "delayed",
        flush: Flush::Async,
        conns: 8,
        how: &["--size", "1024", "--inflight", "32", "--delay-level", "1"],
        rows: &[row("delayed (level 1), 8 x 32", MsgPerS, "-")],
        costs: &[],
    },
    Sends {
        key: "sync-1x1",
        flush: Flush::Sync,
        conns: 1,
        how: &["--size", "1024", "--inflight", "1"],
        rows: &[row("sync flush, 1 x 1", MsgPerS, ">= 5x")],
        costs: &[],
    },
    Sends {
        key: "sync-32x1",
        flush: Flush::Sync,
        conns: 32,
        how: &["--size", "1024", "--inflight", "1"],
        rows: &[row("sync flush, 32 x 1", MsgPerS, ">= 4.5x")],
        costs: &[],
    },
    Sends {
        key: "sync-8x32",
        flush: Flush::Sync,
        conns: 8,
        how: &["--size", "1024", "--inflight", "32"],
        rows: &[row("sync flush, 8 x 32", MsgPerS, ">= 7x")],
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
        row("1 x 1, spinBeforeParkUs=100", MsgPerS, ">= 1.5x"),
        row("1 x 1, spinBeforeParkUs=100", P999, "<= 0.5 ms"),
    ],
    costs: &[],
};
pub(super) const SPINNING_CONF: &[&str] = &["spinBeforeParkUs=100"];

/// By our own generator: many topics, each message to one at random, and beside them one topic.
pub(super) const TOPICS: [(u32, [Row; 2]); 2] = [
    (
        1,
        [
            row("one topic of 4 queues, open loop 10 k msg/s", P999, "-"),
            row("one topic of 4 queues, closed loop 8 x 32", MsgPerS, "-"),
        ],
    ),
    (
        5000,
        [
            row("5,000 topics of 4 queues, open loop 10 k msg/s", P999, "<= 2x one topic's"),
            row("5,000 topics of 4 queues, closed loop 8 x 32", MsgPerS, ">= 70 % of one topic's"),
        ],
    ),
];
/// Bytes of a group of ours in the load `sync-8x32`: what fio writes before each of its syncs.
pub(super) const GROUP: Row = row("sync flush, 8 x 32, bytes a sync", Kilobytes, "-");
pub(super) const DRAIN: Row = row("drain, 8 connections", MsgPerS, ">= 2x");
pub(super) const E2E: Row = row("end to end at 10 k msg/s, long poll", P999, "<= 1/10");
/// A batch readable -> the pulls held for it answered, under the load above; only ours tells it.
pub(super) const WAKE: Row = row("written to visible to a held pull, at 10 k msg/s", P99, "<= 1 ms");
pub(super) const COLD: [Row; 2] = [
    row("open loop 10 k msg/s while a cold backlog is drained", P999, "<= 1/50"),
    row("that drain of a cold backlog", MsgPerS, ">= 1.5x"),
];
pub(super) const FIRST: [Row; 2] = [
    row("first 8 s after a start, open loop 10 k msg/s", P99, "as warm"),
    row("first 8 s after a start, open loop 10 k msg/s", Refused, "none"),
];
pub(super) const IDLE_CONNECTION: Row = row("memory of an idle connection, of 5,000", Kilobytes, "<= 20 KB");
pub(super) const MEMORY_IDLE: Row = row("resident memory, idle", Megabytes, "<= 60 MB");
pub(super) const MEMORY: Row = row("most resident memory under load", Megabytes, "<= 350 MB");
/// Clean and killed.
pub(super) const START: [Row; 2] =
    [row("start after a clean stop", Seconds, "<= 0.3 s"), row("start after kill -9", Seconds, "< 1 s")];
pub(super) const START_LARGE: [Row; 2] = [
    row("start of the large store after a clean stop", Seconds, "as the small one"),
    row("start of the large store after kill -9", Seconds, "as the small one"),
];
pub(super) const START_QUEUES: [Row; 2] = [
    row("start with many queues after a clean stop", Seconds, "< 3 s"),
    row("start with many queues after kill -9", Seconds, "< 3 s"),
];

/// What `--loads` may name.
pub(super) const OTHERS: &[&str] =
    &["one-spin", "topics", "drain", "e2e", "cold", "first", "idle", "memory", "start", "start-large", "start-queues"];

/// All rows in the order of the table.
pub(super) fn rows() -> Vec<Row> {
    let sends = SENDS.iter().chain([&SPINNING]).flat_map(|s| s.rows.iter().chain(s.costs).copied());
    sends
        .chain([GROUP])
        .chain(TOPICS.into_iter().flat_map(|(_, rows)| rows))
        .chain([DRAIN, E2E, WAKE])
        .chain(COLD)
        .chain(FIRST)
        .chain([IDLE_CONNECTION, MEMORY_IDLE, MEMORY])
        .chain(START)
        .chain(START_LARGE)
        .chain(START_QUEUES)
        .collect()
}

/// The names in a list with commas, each known; `all` and nothing stand for sets.
pub(super) fn chosen(text: &str) -> Result<Vec<&'static str>, String> {
    let known = || SENDS.iter().map(|s| s.key).chain(OTHERS.iter().copied());
    match text {
        "short" => Ok(SHORT.to_vec()),
        "all" => Ok(known().collect()),
        list => list
            .split(',')
            .map(|name| {
                let known_names = || known().collect::<Vec<_>>().join(", ");
                known()
                    .find(|k| *k == name)
                    .ok_or_else(|| format!("no load '{name}'; there are short, all, {}", known_names()))
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
        assert!(SHORT.iter().all(|name| chosen("all").unwrap().contains(name)));
        let refused = chosen("one,two").unwrap_err();
        assert!(refused.contains("'two'") && refused.contains("open-30k"), "{refused}");
    }

    #[test]
    fn no_two_rows_are_the_same() {
        let mut all: Vec<_> = rows().iter().map(|r| (r.load, r.figure)).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), rows().len());
    }
}
