//! A crash at each operation of a workload that rolls everything: what was acknowledged is there afterwards.
#![cfg(feature = "sim")]
mod common;
use common::*;
use uringmq_store::StoreError;
use uringmq_store::io::sim::{Faults, SimIo, block_on};

#[derive(Default)]
struct Acked {
    /// With sync: survives a power cut.
    durable: Model,
    /// Written: survives a kill.
    written: Model,
    stopped: bool,
}

/// Appends, flushes, syncs, and reopens, as the seed says. Ends at the crash.
async fn work(io: &SimIo, seed: u64, acked: &mut Acked) -> Result<(), StoreError> {
    let mut state = seed;
    let mut store = Store::open(io.clone(), config()).await?;
    for _ in 0..40 {
        acked.stopped = false;
        match random(&mut state) % 12 {
            0 => store.flush().await?,
            1 => store.sync().await?,
            2 if random(&mut state).is_multiple_of(2) => {
                store.stop().await?;
                acked.stopped = true;
                store = Store::open(io.clone(), config()).await?;
            }
            _ => {
                let topic = TOPICS[random(&mut state) as usize % TOPICS.len()];
                let queue = (random(&mut state) % 2) as u32;
                let sync = random(&mut state).is_multiple_of(3);
                let id = (topic.to_owned(), queue);
                let first = acked.written.get(&id).map_or(0, Vec::len);
                let count = 1 + (random(&mut state) % 3) as usize;
                let bodies: Vec<_> = (first..first + count).map(|n| body(topic, queue, n)).collect();
                store.put(topic, queue, &bodies, sync).await?;
                acked.written.entry(id).or_default().extend(bodies);
                if sync {
                    acked.durable = acked.written.clone();
                }
            }
        }
    }
    Ok(())
}

/// Everything acknowledged is there, in order, and whatever else is there was sent.
fn judge(found: &Model, least: &Model, what: &str) {
    for (id, bodies) in least {
        let there = found.get(id).unwrap_or_else(|| panic!("{what}: queue {id:?} is gone"));
        assert!(there.len() >= bodies.len(), "{what}: {id:?} has {} of {} records", there.len(), bodies.len());
    }
    for ((topic, queue), there) in found {
        for (n, found) in there.iter().enumerate() {
            assert_eq!(*found, body(topic, *queue, n), "{what}: {topic}/{queue} at {n}");
        }
    }
}

/// Opens what is left, judges it, appends to it, and judges it again after another stop.
async fn reopen(io: SimIo, least: &Model, what: &str) {
    println!("{what}"); // shown when it fails
    let mut store = Store::open(io.clone(), config()).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut found = store.read_all().await;
    judge(&found, least, what);
    for topic in TOPICS {
        let first = found.get(&(topic.to_owned(), 0)).map_or(0, Vec::len);
        let bodies: Vec<_> = (first..first + 2).map(|n| body(topic, 0, n)).collect();
        store.put(topic, 0, &bodies, true).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        found.entry((topic.to_owned(), 0)).or_default().extend(bodies);
    }
    assert_eq!(store.read_all().await, found, "{what}");
    store.stop().await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let store = Store::open(io, config()).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(store.opened.clean);
    assert_eq!(store.read_all().await, found, "{what}: after the clean stop");
}

#[test]
fn every_crash_point_keeps_what_was_acknowledged() {
    for seed in seeds(6) {
        let calm = SimIo::new(seed, Faults::none());
        let mut acked = Acked::default();
        block_on(work(&calm, seed, &mut acked)).unwrap();
        block_on(reopen(calm.after_kill(), &acked.written, &format!("seed {seed}, no crash")));
        for crash_at in 0..calm.operations() {
            let io = SimIo::new(seed, Faults::crash_at(crash_at));
            let mut acked = Acked::default();
            block_on(work(&io, seed, &mut acked)).unwrap_err();
            let what = format!("seed {seed}, crash at {crash_at}");
            block_on(reopen(io.after_kill(), &acked.written, &format!("{what}, killed")));
            block_on(reopen(io.after_crash(), &acked.durable, &format!("{what}, power cut")));
        }
    }
}

#[test]
fn recovery_itself_may_crash_anywhere() {
    for seed in seeds(3) {
        let calm = SimIo::new(seed, Faults::none());
        block_on(work(&calm, seed, &mut Acked::default())).unwrap();
        let all = calm.operations();
        for crash_at in (all / 5..all).step_by(29) {
            let io = SimIo::new(seed, Faults::crash_at(crash_at));
            let mut acked = Acked::default();
            block_on(work(&io, seed, &mut acked)).unwrap_err();
            let cut = io.after_crash();
            let whole = cut.after_kill();
            block_on(Store::open(whole.clone(), config())).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            for again in 0..whole.operations() {
                let io = cut.after_kill();
                io.set_faults(Faults::crash_at(again));
                assert!(block_on(Store::open(io.clone(), config())).is_err());
                let what = format!("seed {seed}, crash at {crash_at} and at {again} of the recovery");
                block_on(reopen(io.after_crash(), &acked.durable, &what));
            }
        }
    }
}
