//! A small version of the acceptance run: kill -9 under load, with both flush modes; nothing acknowledged may be missing. The judge is
//! `uringmq bench kill`, which is itself judged here by a broker that forgets.
use std::path::PathBuf;
use std::process::{Command, Output};
use uringmq_bench::free_port;

const BINARY: &str = env!("CARGO_BIN_EXE_uringmq");

/// Runs `bench kill` on a fresh store; `before` is a shell command that precedes each start of the broker, in the store's directory.
fn kill(name: &str, flush: &str, rounds: u32, before: &str) -> Output {
    bench(&["kill"], name, flush, rounds, before)
}

fn bench(what: &[&str], name: &str, flush: &str, rounds: u32, before: &str) -> Output {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kill-{name}"));
    let _ = std::fs::remove_dir_all(&dir); // of a run before
    std::fs::create_dir_all(&dir).unwrap();
    let (port, store) = (free_port().unwrap(), dir.join("store"));
    let conf = format!(
        "brokerIP1=127.0.0.1\nlistenPort={port}\nstorePathRootDir={}\nflushDiskType={flush}\nmappedFileSizeCommitLog=8388608\nshards=2\n\
         flushConsumerOffsetInterval=10\n",
        store.display()
    );
    std::fs::write(dir.join("broker.conf"), conf).unwrap();
    let start = format!("cd '{}'; {before} exec '{BINARY}' broker -c broker.conf", dir.display());
    let start = format!("sh -c \"{start}\"");
    let output = Command::new(BINARY)
        .arg("bench")
        .args(what)
        .args(["--start", &start, "--broker", &format!("127.0.0.1:{port}")])
        .args(["--rounds", &rounds.to_string(), "--min-ms", "300", "--max-ms", "800"])
        .current_dir(&dir)
        .output()
        .unwrap();
    if output.status.success() {
        std::fs::remove_dir_all(&dir).unwrap();
    }
    output
}

/// A number of the last line printed, which sums up.
fn summed(output: &Output, key: &str) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    let value =
        line.split_once(&format!("\"{key}\":")).and_then(|(_, rest)| rest.split([',', '}']).next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {key} in '{line}'; {}", String::from_utf8_lossy(&output.stderr)))
}

fn nothing_is_lost(name: &str, flush: &str) {
    let output = kill(name, flush, 3, "");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!((summed(&output, "rounds"), summed(&output, "lost"), summed(&output, "gaps")), (3, 0, 0), "{said}");
    assert!(summed(&output, "acknowledged") > 30, "hardly any load: {said}");
    assert!(summed(&output, "commits") > 0 && summed(&output, "offsets_judged") > 0, "hardly any commits: {said}");
    assert_eq!(summed(&output, "offsets_wrong"), 0, "{said}");
}

#[test]
fn async_flush_loses_nothing_acknowledged_to_kill_9() {
    nothing_is_lost("async", "ASYNC_FLUSH");
}

#[test]
fn sync_flush_loses_nothing_acknowledged_to_kill_9() {
    nothing_is_lost("sync", "SYNC_FLUSH");
}

/// The seed chooses a cut, zeros, garbage and old records behind the last acknowledged one.
#[test]
fn nothing_acknowledged_is_lost_when_the_tail_of_the_log_is_torn() {
    let output = bench(&["chaos", "--store", "store", "--json", "--seed", "12"], "chaos", "ASYNC_FLUSH", 5, "");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!((summed(&output, "lost"), summed(&output, "duplicated"), summed(&output, "gaps")), (0, 0, 0), "{said}");
    assert_eq!(summed(&output, "found"), summed(&output, "acknowledged"), "{said}");
    for damage in ["cut at", "garbled", "zeroed", "old records"] {
        assert!(said.contains(&format!("\"damage\":\"{damage}")), "no {damage}: {said}");
    }
}

#[test]
fn a_broker_that_forgets_is_found_out() {
    let output = kill("forgetful", "ASYNC_FLUSH", 1, "rm -rf store/commitlog store/consumequeue store/index;");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(summed(&output, "lost") > 0);
}

#[test]
fn a_broker_that_forgets_consumer_offsets_is_found_out() {
    let output = kill("offsets", "ASYNC_FLUSH", 2, "rm -f store/config/consumerOffset.json*;");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(summed(&output, "offsets_wrong") > 0 && summed(&output, "lost") == 0, "{said}");
}
