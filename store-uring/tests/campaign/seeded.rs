//! That the campaign can fail: with each seeded bug one of its seeds does.
use crate::run;
use std::panic::{catch_unwind, set_hook, take_hook};
use std::thread;
use uringmq_store::seeded::{self, Bug};

/// So many are tried for each bug before it counts as missed.
const SEEDS_MAX: u64 = 12;
pub const THREAD: &str = "seeded bug";

/// A seed that finds it soon; where it is out of date, others do.
fn first_seed(bug: Bug) -> u64 {
    match bug {
        Bug::IndexHeaderBeforeItems => 1,
        Bug::DamageEndsLog | Bug::RetentionBeforeCheckpoint => 2,
        Bug::QueueTailKept => 3,
        Bug::OffsetKeptAfterRefusal => 7,
        Bug::RefusedBatchLeft => 11,
        _ => 5,
    }
}

/// At which seed the campaign finds the bug.
fn caught(bug: Bug) -> Option<u64> {
    seeded::set(Some(bug));
    let found = std::iter::once(first_seed(bug)).chain(0..SEEDS_MAX).find_map(|seed| {
        let fault = catch_unwind(|| run::run(seed)).err()?;
        let text = fault.downcast_ref::<String>().map_or("a panic", |text| text);
        println!("{bug:?}: seed {seed}: {}", text.chars().take(200).collect::<String>());
        Some(seed)
    });
    seeded::set(None);
    found
}

#[test]
fn every_seeded_bug_is_caught() {
    let before = take_hook();
    set_hook(Box::new(move |fault| {
        if thread::current().name() != Some(THREAD) {
            before(fault); // the others are expected
        }
    }));
    let only = std::env::var("BUG").ok();
    let wanted = |bug: &Bug| only.as_ref().is_none_or(|only| format!("{bug:?}") == *only);
    let bugs: Vec<Bug> = Bug::ALL.into_iter().filter(wanted).collect();
    let hunt = |bug: Bug| thread::Builder::new().name(THREAD.to_owned()).spawn(move || caught(bug)).expect("a thread");
    let mut missed = Vec::new();
    for two in bugs.chunks(2) {
        let hunts: Vec<_> = two.iter().map(|bug| (*bug, hunt(*bug))).collect();
        for (bug, hunt) in hunts {
            if hunt.join().expect("it catches all").is_none() {
                missed.push(bug);
            }
        }
    }
    assert!(missed.is_empty(), "not caught in {SEEDS_MAX} seeds: {missed:?}");
}
