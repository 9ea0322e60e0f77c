//! The checker: decides from the history and from what the replicas have at the end. It asks nobody and reads no file.
//!
//! - No acknowledged message is lost, or stands elsewhere than where it was acknowledged.
//! - No two brokers acknowledge in one epoch: by what they say of themselves, by the epoch that the place in the log belongs to, and by
//!   whom the controllers named.
//! - All replicas have the same messages at the same queue offsets, the same epochs, and no message twice: nothing is sent twice.
//! - Each acknowledged message was consumed. What was consumed stands in the log at the end.
//! - A consumer that resumes does not go back behind what it committed more than a window before its last commit. Where it could not
//!   commit, as nobody served, a second counts at most: slaves copy offsets from a master.
use super::history::{Event, Outcome};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Faults told in words; the rest is counted.
const TOLD: usize = 20;
/// What the time between two commits counts at most.
const GAP_MAX_MS: i64 = 1000;

pub(super) struct Rules {
    /// Whether what was acknowledged must be there after any failover. Without it the loss is counted only, and so is what consumers saw
    /// of it.
    pub(super) nothing_lost: bool,
    /// How far a consumer may go back: ms of commits before the last one. Not judged unless `nothing_lost`: a master that is cut off
    /// and needs nobody goes on to take commits, too.
    pub(super) window_ms: i64,
}

/// What a replica has when all is healed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Replica {
    /// Epoch, and the bytes of the log that belong to it; half-open.
    pub(super) epochs: Vec<(i32, i64, i64)>,
    pub(super) queues: Vec<Queue>,
}

/// Messages of a queue, by offset from `start` on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Queue {
    pub(super) start: i64,
    pub(super) ids: Vec<u64>,
}

impl Queue {
    fn at(&self, offset: i64) -> Option<u64> {
        usize::try_from(offset - self.start).ok().and_then(|at| self.ids.get(at).copied())
    }
}

#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) acknowledged: u64,
    pub(super) failed: u64,
    pub(super) unknown: u64,
    pub(super) lost: u64,
    /// When the lost ones were acknowledged, ms since the epoch, rising.
    pub(super) lost_at_ms: Vec<i64>,
    /// Acknowledged at one place, found at another.
    pub(super) misplaced: u64,
    /// More than once in the log.
    pub(super) duplicated: u64,
    /// Of those whose outcome was not known, and of those refused: stored after all.
    pub(super) unknown_stored: u64,
    pub(super) failed_stored: u64,
    /// Consumed more often than once.
    pub(super) redelivered: u64,
    /// Acknowledged and still in the log, but never consumed.
    pub(super) unconsumed: u64,
    /// Consumed, and not in the log at that place at the end.
    pub(super) vanished: u64,
    /// Largest step back of a consumer, in messages.
    pub(super) back_max: i64,
    pub(super) violations: u64,
    pub(super) told: Vec<String>,
}

impl Verdict {
    fn violation(&mut self, text: String) {
        self.violations += 1;
        if self.told.len() < TOLD {
            self.told.push(text);
        }
    }
}

/// Judges a run. `replicas` are those of all brokers, by number; `master` the one that led at the end.
pub(super) fn check(events: &[Event], replicas: &[Replica], master: usize, rules: &Rules) -> Verdict {
    let mut verdict = Verdict::default();
    let last = &replicas[master];
    same_replicas(replicas, master, &mut verdict);
    let places = places(last, &mut verdict);
    sends(events, last, &places, rules, &mut verdict);
    epochs(events, last, &mut verdict);
    consumed(events, last, rules, &mut verdict);
    going_back(events, rules, &mut verdict);
    verdict
}

fn same_replicas(replicas: &[Replica], master: usize, verdict: &mut Verdict) {
    let of_master = &replicas[master];
    for (index, replica) in replicas.iter().enumerate() {
        if replica.epochs != of_master.epochs {
            let (here, there) = (&replica.epochs, &of_master.epochs);
            verdict.violation(format!("broker {index} has the epochs {here:?}, the master {there:?}"));
        }
        for (queue, (mine, its)) in replica.queues.iter().zip(&of_master.queues).enumerate() {
            if mine == its {
                continue;
            }
            let differs = mine.ids.iter().zip(&its.ids).position(|(a, b)| a != b);
            verdict.violation(format!(
                "queue {queue} of broker {index} has {} messages from offset {}, the master's {} from {}; the first that differs: {:?}",
                mine.ids.len(),
                mine.start,
                its.ids.len(),
                its.start,
                differs.map(|at| mine.start + at as i64)
            ));
        }
    }
}

/// Where each message stands.
fn places(last: &Replica, verdict: &mut Verdict) -> HashMap<u64, (u32, i64)> {
    let mut places = HashMap::new();
    for (queue, of_queue) in last.queues.iter().enumerate() {
        for (offset, id) in (of_queue.start..).zip(&of_queue.ids) {
            if let Some((other, before)) = places.insert(*id, (queue as u32, offset)) {
                verdict.duplicated += 1;
                verdict.violation(format!(
                    "message {id} is at offset {before} of queue {other} and at offset {offset} of queue {queue}"
                ));
            }
        }
    }
    places
}

fn sends(events: &[Event], last: &Replica, places: &HashMap<u64, (u32, i64)>, rules: &Rules, verdict: &mut Verdict) {
    for event in events {
        let Event::Send { id, done_ms, queue, broker, epoch, outcome, .. } = event else { continue };
        match outcome {
            Outcome::Failed { .. } => {
                verdict.failed += 1;
                verdict.failed_stored += u64::from(places.contains_key(id));
            }
            Outcome::Unknown { .. } => {
                verdict.unknown += 1;
                verdict.unknown_stored += u64::from(places.contains_key(id));
            }
            Outcome::Acknowledged { offset, .. } => {
                verdict.acknowledged += 1;
                if last.queues.get(*queue as usize).and_then(|of_queue| of_queue.at(*offset)) == Some(*id) {
                    continue;
                }
                let by = format!(
                    "message {id}, acknowledged by broker {broker} in epoch {epoch} at offset {offset} of queue {queue}"
                );
                if let Some((queue, offset)) = places.get(id) {
                    verdict.misplaced += 1;
                    verdict.violation(format!("{by}, stands at offset {offset} of queue {queue}"));
                    continue;
                }
                verdict.lost += 1;
                verdict.lost_at_ms.push(*done_ms);
                if rules.nothing_lost {
                    verdict.violation(format!("{by}, is lost"));
                }
            }
        }
    }
    verdict.lost_at_ms.sort_unstable();
}

fn epochs(events: &[Event], last: &Replica, verdict: &mut Verdict) {
    let mut masters: BTreeMap<i32, BTreeSet<usize>> = BTreeMap::new();
    for event in events {
        match event {
            Event::Master { epoch, broker, .. } => drop(masters.entry(*epoch).or_default().insert(*broker)),
            Event::Send { broker, epoch, queue, id, outcome: Outcome::Acknowledged { offset, phy }, .. } => {
                masters.entry(*epoch).or_default().insert(*broker);
                // The place of a lost one may be another's by now.
                if last.queues.get(*queue as usize).and_then(|of_queue| of_queue.at(*offset)) == Some(*id) {
                    let phy = *phy as i64;
                    let of_place = last.epochs.iter().find(|(_, start, end)| (*start..*end).contains(&phy));
                    if let Some((epoch, ..)) = of_place {
                        masters.entry(*epoch).or_default().insert(*broker);
                    }
                }
            }
            _ => {}
        }
    }
    for (epoch, brokers) in masters.into_iter().filter(|(_, brokers)| brokers.len() > 1) {
        verdict.violation(format!("brokers {brokers:?} were masters of epoch {epoch}"));
    }
}

fn consumed(events: &[Event], last: &Replica, rules: &Rules, verdict: &mut Verdict) {
    let mut seen: HashSet<u64> = HashSet::new();
    for event in events {
        let Event::Pull { queue, broker, epoch, found, .. } = event else { continue };
        for (offset, id) in found {
            verdict.redelivered += u64::from(!seen.insert(*id));
            if last.queues.get(*queue as usize).and_then(|of_queue| of_queue.at(*offset)) == Some(*id) {
                continue;
            }
            verdict.vanished += 1;
            if rules.nothing_lost {
                verdict.violation(format!(
                    "message {id}, consumed at offset {offset} of queue {queue} from broker {broker} in epoch {epoch}, is not there at the end"
                ));
            }
        }
    }
    for event in events {
        let Event::Send { id, queue, outcome: Outcome::Acknowledged { offset, .. }, .. } = event else { continue };
        let there = last.queues.get(*queue as usize).and_then(|of_queue| of_queue.at(*offset)) == Some(*id);
        if there && !seen.contains(id) {
            verdict.unconsumed += 1;
            verdict.violation(format!("message {id}, at offset {offset} of queue {queue}, was never consumed"));
        }
    }
}

fn going_back(events: &[Event], rules: &Rules, verdict: &mut Verdict) {
    // By queue: commits with their times on a clock that stands still where nothing is committed, when the last one was, and the offset
    // behind the last record that was read since the consumer resumed.
    let mut commits: HashMap<u32, Vec<(i64, i64)>> = HashMap::new();
    let mut clocks: HashMap<u32, (i64, i64)> = HashMap::new();
    let mut next: HashMap<u32, i64> = HashMap::new();
    for event in events {
        match event {
            Event::Commit { at_ms, queue, offset, .. } => {
                let (clock, before) = clocks.get(queue).copied().unwrap_or((0, *at_ms));
                let clock = clock + (at_ms - before).min(GAP_MAX_MS);
                clocks.insert(*queue, (clock, *at_ms));
                commits.entry(*queue).or_default().push((clock, *offset));
            }
            Event::Resume { queue, offset, broker, .. } => {
                let of_queue = commits.entry(*queue).or_default();
                let newest = of_queue.last().copied().unwrap_or_default();
                let old = of_queue.iter().filter(|(at, _)| *at <= newest.0 - rules.window_ms);
                let safe = old.map(|(_, offset)| *offset).max();
                verdict.back_max = verdict.back_max.max(newest.1 - (*offset).max(0));
                if let Some(safe) = safe.filter(|safe| rules.nothing_lost && offset < safe) {
                    verdict.violation(format!(
                        "the consumer of queue {queue} resumed at {offset} of broker {broker}, though {safe} was committed more than {} ms \
                         before its last commit",
                        rules.window_ms
                    ));
                }
                // What was forgotten is committed anew.
                of_queue.retain(|(_, committed)| committed <= offset);
                next.remove(queue);
            }
            Event::Pull { queue, broker, found, .. } => {
                for (offset, _) in found {
                    if let Some(before) = next.insert(*queue, offset + 1).filter(|before| offset < before) {
                        verdict.violation(format!(
                            "broker {broker} gave the consumer of queue {queue} offset {offset} after {}",
                            before - 1
                        ));
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
