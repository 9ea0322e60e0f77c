//! What a filter costs an entry of the queue: tags by their codes, SQL92 by a message's properties. `cargo bench -p uringmq-broker --bench
//! filter` measures; under `cargo test` it runs a few rounds only, so that it does not rot.
use std::hint::black_box;
use std::time::Instant;
use uringmq_broker::snapshot::Subscription;
use uringmq_proto::message::java_hash;

/// Entries looked at in a pull.
const ENTRIES: usize = 1024;

fn main() {
    let full = std::env::args().any(|arg| arg == "--bench");
    let rounds = if full { 20_000 } else { 20 };
    let entries: Vec<i64> = (0..ENTRIES).map(|n| java_hash(&format!("Tag{}", n % 50), 0) as i64).collect();
    for tags in [1, 3, 10, 32] {
        let codes = (0..tags).map(|n| java_hash(&format!("Tag{n}"), 0)).collect();
        let subscription = Subscription { all: false, codes, ..Subscription::everything() };
        let matching = ENTRIES / 50 * tags + tags.min(ENTRIES % 50);
        measure(&format!("{tags} tags"), rounds, matching, || {
            black_box(&entries).iter().filter(|code| subscription.matches(**code)).count()
        });
    }
}

fn measure(name: &str, rounds: usize, matching: usize, work: impl Fn() -> usize) {
    let begun = Instant::now();
    for _ in 0..rounds {
        assert_eq!(work(), matching, "{name}");
    }
    let nanos = begun.elapsed().as_nanos() as f64 / (rounds * ENTRIES) as f64;
    println!("{name:<12} {nanos:>8.2} ns an entry");
}
