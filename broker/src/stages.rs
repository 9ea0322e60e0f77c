//! Where the time of a message goes: a histogram a stage, kept by each shard for itself and added up when asked for (code 28, `bench
//! --stages`). Recorded once a group or batch, never once a message, so that it is always on.
use crate::shard::Shard;
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// In the order of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// First record of a group gathered -> the group is on its way to the writer: the rest of that read.
    Gather,
    /// -> the writer's core took it.
    ToWriter,
    /// -> its batch is being written: the wait for the write in flight.
    Wait,
    /// One write of the log.
    Write,
    /// One sync of the log under SYNC_FLUSH, with its write where both are one request.
    Sync,
    /// The writer's answer -> the asker's core took it.
    Back,
    /// That core has written the answers into its connections' buffers.
    Answer,
    /// A batch readable -> its consume-queue entries made, on each core.
    Dispatch,
    /// A batch readable -> the pulls held for it are answered, on each core.
    Wake,
}

const NAMES: [&str; 9] =
    ["1-gather", "2-toWriter", "3-wait", "4-write", "5-sync", "6-back", "7-answer", "8-dispatch", "9-wake"];
/// Beyond it all is the same.
const LONGEST_NS: u64 = 60_000_000_000;

/// One shard's histograms, in ns, to two digits.
pub struct Stages(RefCell<Vec<Histogram<u32>>>);

impl Default for Stages {
    fn default() -> Self {
        Stages(RefCell::new(empty()))
    }
}

fn empty() -> Vec<Histogram<u32>> {
    let one = || Histogram::new_with_bounds(100, LONGEST_NS, 2).expect("constant bounds that are right");
    NAMES.iter().map(|_| one()).collect()
}

impl Stages {
    pub fn took(&self, stage: Stage, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(LONGEST_NS);
        self.0.borrow_mut()[stage as usize].saturating_record(ns);
    }

    pub fn since(&self, stage: Stage, from: Instant) {
        self.took(stage, from.elapsed());
    }

    fn read(&self, reset: bool) -> Vec<Histogram<u32>> {
        let mut all = self.0.borrow_mut();
        let read = all.clone();
        if reset {
            all.iter_mut().for_each(Histogram::reset);
        }
        read
    }
}

/// All shards' histograms added up, each with its stage's name; begun anew when `reset`.
pub async fn gathered(shard: &Rc<Shard>, reset: bool) -> Vec<(&'static str, Histogram<u32>)> {
    let mut sums = empty();
    for mine in shard.run_on_all(move |shard| async move { shard.stages.read(reset) }).await {
        for (sum, mine) in sums.iter_mut().zip(mine) {
            sum.add(mine).expect("the same bounds");
        }
    }
    NAMES.into_iter().zip(sums).collect()
}

/// One line of a histogram, in microseconds.
pub fn told(histogram: &Histogram<u32>) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    let at = |quantile| us(histogram.value_at_quantile(quantile));
    format!(
        "count={} p50={:.1} p99={:.1} p99.9={:.1} max={:.1}",
        histogram.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        us(histogram.max())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_told_in_microseconds_and_begun_anew() {
        let stages = Stages::default();
        (1..=1000).for_each(|us| stages.took(Stage::Write, Duration::from_micros(us)));
        stages.took(Stage::Sync, Duration::MAX);
        let read = stages.read(true);
        let line = told(&read[Stage::Write as usize]);
        assert!(line.starts_with("count=1000 p50=50") && line.contains(" p99=99"), "{line}");
        assert_eq!(read[Stage::Sync as usize].len(), 1);
        assert!(stages.read(false).iter().all(Histogram::is_empty));
    }
}
