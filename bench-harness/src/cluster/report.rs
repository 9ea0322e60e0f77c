//! The figures of a run.
use super::check::Verdict;
use super::history::{Event, Outcome};
use std::collections::BTreeMap;

/// A fault that was to cost the group its master: of which kind, when, and how long until another broker acknowledged a send that was
/// begun after it (ms); `None`: none did before the next fault.
struct Change {
    kind: &'static str,
    at_ms: i64,
    took_ms: Option<i64>,
}

fn changes(events: &[Event]) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut open: Option<(Change, usize)> = None;
    for event in events {
        match event {
            Event::Fault { at_ms, kind, broker, of_master, .. } => {
                changes.extend(open.take().map(|(change, _)| change));
                let of = broker.filter(|_| *of_master);
                open = of.map(|broker| (Change { kind, at_ms: *at_ms, took_ms: None }, broker));
            }
            Event::Send { begun_ms, done_ms, broker, outcome: Outcome::Acknowledged { .. }, .. } => {
                if let Some((change, before)) = &mut open
                    && broker != before
                    && *begun_ms >= change.at_ms
                    && change.took_ms.is_none()
                {
                    change.took_ms = Some(done_ms - change.at_ms);
                }
            }
            _ => {}
        }
    }
    changes.extend(open.map(|(change, _)| change));
    changes
}

/// The value that `share` of the sorted ones do not exceed.
fn quantile(sorted: &[i64], share: f64) -> i64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.max(1) - 1).copied().unwrap_or_default()
}

pub(super) fn print(events: &[Event], verdict: &Verdict, failovers: u32, seed: u64) {
    println!("seed {seed}: {failovers} failovers");
    println!(
        "sends: {} acknowledged, {} failed ({} stored after all), {} unknown ({} stored)",
        verdict.acknowledged, verdict.failed, verdict.failed_stored, verdict.unknown, verdict.unknown_stored
    );
    println!(
        "lost {}, misplaced {}, twice in the log {}; consumers: {} redelivered, {} never consumed, {} consumed and gone, back by {} at most",
        verdict.lost,
        verdict.misplaced,
        verdict.duplicated,
        verdict.redelivered,
        verdict.unconsumed,
        verdict.vanished,
        verdict.back_max
    );
    let changes = changes(events);
    let mut kinds: BTreeMap<&str, (Vec<i64>, u32)> = BTreeMap::new();
    for change in &changes {
        let of_kind = kinds.entry(change.kind).or_default();
        match change.took_ms {
            Some(took) => of_kind.0.push(took),
            None => of_kind.1 += 1,
        }
    }
    for (kind, (mut took, none)) in kinds {
        took.sort_unstable();
        println!(
            "{kind}: {} changes of the master, first acknowledged after p50 {} ms, p99 {} ms, max {} ms; {none} faults without a change",
            took.len(),
            quantile(&took, 0.5),
            quantile(&took, 0.99),
            took.last().copied().unwrap_or_default()
        );
    }
    losses(verdict, &changes);
    verdict.told.iter().for_each(|text| println!("VIOLATION: {text}"));
    println!("{} violations", verdict.violations);
}

/// What was lost by each fault: how many, and the time in which it was acknowledged.
fn losses(verdict: &Verdict, changes: &[Change]) {
    for (index, change) in changes.iter().enumerate() {
        // What a master that is cut off goes on to acknowledge belongs to its fault, what was acknowledged shortly before, too.
        let from = index
            .checked_sub(1)
            .map_or(i64::MIN, |before| changes[before].at_ms + changes[before].took_ms.unwrap_or(0));
        let next = changes.get(index + 1);
        let of: Vec<i64> = verdict
            .lost_at_ms
            .iter()
            .copied()
            .filter(|at| {
                *at > from
                    && next.is_none_or(|next| *at <= change.at_ms + change.took_ms.unwrap_or(next.at_ms - change.at_ms))
            })
            .collect();
        if let (Some(first), Some(last)) = (of.first(), of.last()) {
            println!(
                "{}: {} acknowledged messages lost, the first acknowledged {} ms before the fault, the last {} ms after it",
                change.kind,
                of.len(),
                change.at_ms - first,
                last - change.at_ms
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_a_new_master_ends_with_another_brokers_acknowledgement() {
        let fault = |at_ms| Event::Fault { at_ms, kind: "kill", what: String::new(), broker: Some(0), of_master: true };
        let send = |begun_ms, broker, outcome| Event::Send {
            id: 1,
            begun_ms,
            done_ms: begun_ms + 5,
            queue: 0,
            broker,
            epoch: 1,
            outcome,
        };
        let good = Outcome::Acknowledged { offset: 0, phy: 0 };
        let events = [
            fault(100),
            send(110, 0, good.clone()),
            send(120, 1, Outcome::Failed { code: 1 }),
            send(200, 1, good.clone()),
            send(300, 1, good),
            fault(1000),
        ];
        let took: Vec<_> = changes(&events).iter().map(|change| change.took_ms).collect();
        assert_eq!(took, [Some(105), None]);
    }

    #[test]
    fn quantiles_of_few() {
        assert_eq!(quantile(&[], 0.5), 0);
        assert_eq!([0.5, 0.99].map(|share| quantile(&[1, 2, 3, 4], share)), [2, 4]);
        assert_eq!(quantile(&(1..=100).collect::<Vec<_>>(), 0.99), 99);
    }
}
