//! Hand-made histories, each bad in one way.
use super::*;

const ALL_ACK: Rules = Rules { nothing_lost: true, window_ms: 15_000 };

fn acknowledged(id: u64, broker: usize, epoch: i32, offset: i64, phy: u64) -> Event {
    let outcome = Outcome::Acknowledged { offset, phy };
    Event::Send { id, begun_ms: 1, done_ms: 1000 + id as i64, queue: 0, broker, epoch, outcome }
}

fn pulled(found: &[(i64, u64)]) -> Event {
    Event::Pull { at_ms: 5, queue: 0, broker: 1, epoch: 4, found: found.to_vec() }
}

fn commit(at_ms: i64, offset: i64) -> Event {
    Event::Commit { at_ms, queue: 0, broker: 0, offset }
}

fn resume(offset: i64) -> Event {
    Event::Resume { at_ms: 99_000, queue: 0, broker: 1, offset }
}

/// Messages 1 to 4: the first two acknowledged by broker 0 in epoch 3, the others by broker 1 in epoch 4; all consumed.
fn good() -> (Vec<Event>, Vec<Replica>) {
    let events = vec![
        Event::Master { at_ms: 1, epoch: 3, broker: 0 },
        acknowledged(1, 0, 3, 0, 0),
        acknowledged(2, 0, 3, 1, 100),
        Event::Master { at_ms: 2, epoch: 4, broker: 1 },
        acknowledged(3, 1, 4, 2, 200),
        acknowledged(4, 1, 4, 3, 300),
        pulled(&[(0, 1), (1, 2), (2, 3), (3, 4)]),
    ];
    let queue = Queue { start: 0, ids: vec![1, 2, 3, 4] };
    let replica = Replica { epochs: vec![(3, 0, 200), (4, 200, i64::MAX)], queues: vec![queue] };
    (events, vec![replica; 3])
}

/// The violations of a history, as they are told.
fn told(events: &[Event], replicas: &[Replica]) -> Vec<String> {
    let verdict = check(events, replicas, 1, &ALL_ACK);
    assert_eq!(verdict.violations as usize, verdict.told.len());
    verdict.told
}

#[test]
fn a_good_history_is_good() {
    let (mut events, replicas) = good();
    let outcome = Outcome::Unknown { code: None };
    events.push(Event::Send { id: 9, begun_ms: 1, done_ms: 2, queue: 0, broker: 0, epoch: 3, outcome });
    let verdict = check(&events, &replicas, 1, &ALL_ACK);
    assert_eq!((verdict.violations, verdict.acknowledged, verdict.unknown, verdict.lost), (0, 4, 1, 0), "{verdict:?}");
    assert_eq!((verdict.unknown_stored, verdict.redelivered, verdict.vanished), (0, 0, 0));
}

#[test]
fn a_lost_message_is_told_or_counted() {
    let (mut events, mut replicas) = good();
    for replica in &mut replicas {
        replica.queues[0].ids.pop();
    }
    events.pop();
    events.push(pulled(&[(0, 1), (1, 2), (2, 3)]));
    let told = told(&events, &replicas);
    assert!(told.len() == 1 && told[0].contains("message 4") && told[0].contains("is lost"), "{told:?}");
    let verdict = check(&events, &replicas, 1, &Rules { nothing_lost: false, ..ALL_ACK });
    assert_eq!((verdict.violations, verdict.lost, verdict.lost_at_ms), (0, 1, vec![1004]));
}

#[test]
fn another_message_in_its_place_is_a_loss() {
    let (mut events, mut replicas) = good();
    for replica in &mut replicas {
        replica.queues[0].ids[1] = 77;
    }
    *events.last_mut().unwrap() = pulled(&[(0, 1), (1, 77), (2, 3), (3, 4)]);
    let told = told(&events, &replicas);
    assert!(told.len() == 1 && told[0].contains("message 2") && told[0].contains("is lost"), "{told:?}");
}

#[test]
fn two_masters_of_one_epoch_are_seen_each_way() {
    // By what the broker says of itself.
    let (mut events, replicas) = good();
    events[4] = acknowledged(3, 1, 3, 2, 200);
    let by_word = told(&events, &replicas);
    assert!(by_word.len() == 1 && by_word[0].contains("{0, 1} were masters of epoch 3"), "{by_word:?}");
    // By the place in the log.
    let (mut events, replicas) = good();
    events[4] = acknowledged(3, 0, 3, 2, 200);
    let by_place = told(&events, &replicas);
    assert!(by_place.len() == 1 && by_place[0].contains("{0, 1} were masters of epoch 4"), "{by_place:?}");
    // By the controllers.
    let (mut events, replicas) = good();
    events.push(Event::Master { at_ms: 3, epoch: 4, broker: 2 });
    let by_controller = told(&events, &replicas);
    assert!(
        by_controller.len() == 1 && by_controller[0].contains("{1, 2} were masters of epoch 4"),
        "{by_controller:?}"
    );
}

#[test]
fn replicas_that_disagree_are_told() {
    let (events, mut replicas) = good();
    replicas[2].queues[0].ids[3] = 5;
    replicas[0].epochs[1].1 = 201;
    let told = told(&events, &replicas);
    assert!(told.len() == 2 && told[0].contains("broker 0 has the epochs"), "{told:?}");
    assert!(told[1].contains("queue 0 of broker 2") && told[1].contains("Some(3)"), "{told:?}");
    let (events, mut replicas) = good();
    replicas[2].queues[0].ids.pop();
    assert_eq!(check(&events, &replicas, 1, &ALL_ACK).violations, 1);
}

#[test]
fn a_message_twice_or_elsewhere_is_told() {
    let (events, mut replicas) = good();
    replicas.iter_mut().for_each(|replica| replica.queues[0].ids.push(2));
    let twice = told(&events, &replicas);
    assert!(twice.iter().any(|text| text.contains("message 2 is at offset 1 of queue 0 and at offset 4")), "{twice:?}");
    let (mut events, replicas) = good();
    events[4] = acknowledged(3, 1, 4, 7, 200);
    let elsewhere = told(&events, &replicas);
    assert!(elsewhere.len() == 1 && elsewhere[0].contains("stands at offset 2"), "{elsewhere:?}");
}

#[test]
fn what_is_not_consumed_or_gone_after_that_is_told() {
    let (mut events, replicas) = good();
    *events.last_mut().unwrap() = pulled(&[(0, 1), (1, 2), (3, 4)]);
    let skipped = told(&events, &replicas);
    assert!(
        skipped.len() == 1 && skipped[0].contains("message 3") && skipped[0].contains("never consumed"),
        "{skipped:?}"
    );
    let (mut events, replicas) = good();
    events.push(pulled(&[(4, 8)]));
    let gone = told(&events, &replicas);
    assert!(gone.len() == 1 && gone[0].contains("message 8, consumed at offset 4"), "{gone:?}");
}

#[test]
fn a_consumer_goes_back_within_its_window_only() {
    let with = |more: &[Event]| {
        let (mut events, replicas) = good();
        events.extend_from_slice(more);
        check(&events, &replicas, 1, &ALL_ACK)
    };
    // 3 was committed 20 s before the last commit, 4 no more than 10 s.
    let steps = (10..30).map(|second| commit(second * 1000, if second < 20 { 3 } else { 4 }));
    let commits: Vec<Event> = steps.chain([commit(30_000, 5)]).collect();
    let within = with(&[&commits[..], &[resume(3), pulled(&[(3, 4)])]].concat());
    assert_eq!((within.violations, within.back_max, within.redelivered), (0, 2, 1), "{within:?}");
    let beyond = with(&[&commits[..], &[resume(2)]].concat());
    assert!(beyond.violations == 1 && beyond.told[0].contains("resumed at 2"), "{beyond:?}");
    let forgotten = with(&[&commits[..], &[resume(-1)]].concat());
    assert!(forgotten.violations == 1 && forgotten.told[0].contains("resumed at -1"), "{forgotten:?}");
    // An hour in which nothing could be committed is no time.
    let outage: Vec<Event> = [commit(1000, 3), commit(3_601_000, 4)].to_vec();
    assert_eq!(with(&[&outage[..], &[resume(0)]].concat()).violations, 0);
    // What was forgotten once is not missed again.
    assert_eq!(with(&[&commits[..], &[resume(3), commit(99_500, 4), resume(3)]].concat()).violations, 0);
    // Without a new connection it does not go back at all.
    let back = with(&[pulled(&[(2, 3)])]);
    assert!(back.violations == 1 && back.told[0].contains("offset 2 after 3"), "{back:?}");
}
