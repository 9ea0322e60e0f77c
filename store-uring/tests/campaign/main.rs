//! The fault campaign: the store's own code on the simulated disk, crashed at every I/O operation of random lives, judged by a model.
//! `SEEDS=n` runs n seeds instead of the fixed ones, `MINUTES=n` as many as the time allows, `FROM=n` begins at another seed.
mod judge;
mod machine;
mod model;
mod plan;
mod rot;
mod run;
#[path = "seeded.rs"]
mod seeded_bugs;

use run::Totals;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Seeds of every CI run. One that once failed stays in [`ONCE_FAILED`].
const FIXED: u64 = 16;
const ONCE_FAILED: [u64; 7] = [1021, 1023, 1046, 1055, 1220, 1288, 3064];
/// Between two lines of a long run.
const REPORT_EVERY: Duration = Duration::from_secs(60);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

fn main_seeds() -> (u64, u64, Option<Duration>) {
    let from = number("FROM").unwrap_or(0);
    let time = number("MINUTES").map(|m| Duration::from_secs(m * 60));
    let count = number("SEEDS").unwrap_or(if time.is_some() { u64::MAX / 2 } else { FIXED });
    (from, from + count, time)
}

/// Runs seeds on all cores until they, or the time, are used up.
fn campaign(from: u64, to: u64, time: Option<Duration>) -> Totals {
    let next = AtomicU64::new(from);
    let began = Instant::now();
    let worker = |first: bool| {
        let mut totals = Totals::default();
        let mut told = Instant::now();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= to || time.is_some_and(|time| began.elapsed() >= time) {
                return totals;
            }
            totals.add(run::run(seed));
            if first && told.elapsed() >= REPORT_EVERY {
                told = Instant::now();
                println!("after {} s, one core of several: {totals}", began.elapsed().as_secs());
            }
        }
    };
    let mut totals = Totals::default();
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..cores).map(|n| scope.spawn(move || worker(n == 0))).collect();
        for worker in workers {
            totals.add(worker.join().unwrap_or_else(|fault| std::panic::resume_unwind(fault)));
        }
    });
    println!("{totals}, in {} s", began.elapsed().as_secs());
    totals
}

#[test]
fn no_crash_loses_or_invents_anything() {
    for seed in ONCE_FAILED {
        run::run(seed);
    }
    let (from, to, time) = main_seeds();
    let totals = campaign(from, to, time);
    assert!(totals.seeds > 0 && totals.crash_points > 100 * totals.seeds, "{totals}");
}
