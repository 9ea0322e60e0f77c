use super::*;
use std::collections::HashSet;
use uringmq_proto::codes::response::*;

const GROUP: &str = "g";

fn id(id: i64, check_code: &str) -> Ask {
    Ask::ApplyBrokerId { cluster: "c".into(), group: GROUP.into(), id, check_code: check_code.into() }
}

fn register(id: i64, address: &str) -> Ask {
    Ask::Register { group: GROUP.into(), id, address: address.into() }
}

fn living(ids: &[i64]) -> Vec<Alive> {
    ids.iter().map(|id| Alive { id: *id, epoch: 0, max_offset: 10, priority: 0 }).collect()
}

fn elect(by: Option<i64>, designate: bool, ids: &[i64]) -> Ask {
    Ask::Elect { group: GROUP.into(), by, designate, unclean: false, alive: living(ids) }
}

fn alter(master: i64, epoch: i32, set: &[i64], set_epoch: i32, alive: &[i64]) -> Ask {
    Ask::AlterSyncStateSet {
        group: GROUP.into(),
        master,
        master_epoch: epoch,
        set: set.iter().copied().collect(),
        set_epoch,
        alive: alive.iter().copied().collect(),
    }
}

fn clean(ids: &[i64], living: bool, alive: &[i64]) -> Ask {
    Ask::Clean {
        group: GROUP.into(),
        ids: ids.iter().copied().collect(),
        living,
        alive: alive.iter().copied().collect(),
    }
}

/// Applies it; the code, and that a refused request changed nothing but what an election that fails has to.
fn code(state: &mut State, ask: Ask) -> i32 {
    let before = state.clone();
    let judged = state.judge(&ask);
    let outcome = state.apply(&ask);
    assert_eq!(judged.refusal, outcome.refusal);
    assert_eq!(judged.changes(), before != *state, "{ask:?}");
    let code = outcome.refusal.as_ref().map_or(SUCCESS, Refusal::code);
    if code != SUCCESS && code != CONTROLLER_MASTER_NOT_AVAILABLE {
        assert_eq!(before, *state, "{ask:?}");
    }
    code
}

/// Brokers 1, 2, 3 at h:1 to h:3, nobody master yet.
fn three() -> State {
    let mut state = State::default();
    for (n, check) in [(1, "h:1;7"), (2, "h:2;7"), (3, "h:3;7")] {
        assert_eq!(code(&mut state, id(n, check)), SUCCESS);
    }
    state
}

/// 1 is master in epoch 1, the set is {1, 2} in its epoch 2; 3 is behind.
fn led() -> State {
    let mut state = three();
    assert_eq!(code(&mut state, elect(Some(1), false, &[1])), SUCCESS);
    assert_eq!(code(&mut state, alter(1, 1, &[1, 2], 1, &[1, 2])), SUCCESS);
    state
}

fn view(state: &State) -> (Option<i64>, i32, Vec<i64>, i32) {
    let group = state.group(GROUP).expect("a group");
    (group.master, group.master_epoch, group.sync_state_set.iter().copied().collect(), group.sync_state_set_epoch)
}

#[test]
fn ids_are_given_once_and_again_to_the_same_broker() {
    let mut state = State::default();
    assert_eq!(state.next_id(GROUP), 1);
    assert_eq!(code(&mut state, id(2, "h:1;7")), CONTROLLER_BROKER_ID_INVALID, "a new group begins with 1");
    assert_eq!(code(&mut state, id(0, "h:1;7")), CONTROLLER_BROKER_ID_INVALID);
    assert_eq!(code(&mut state, id(1, "h:1;7")), SUCCESS);
    assert_eq!(state.group(GROUP).unwrap().address(1), Some("h:1"));
    assert_eq!(code(&mut state, id(1, "h:1;7")), SUCCESS, "the answer may have been lost");
    assert_eq!(code(&mut state, id(1, "h:1;8")), CONTROLLER_BROKER_ID_INVALID);
    assert_eq!(state.next_id(GROUP), 2);
    assert_eq!(code(&mut state, id(7, "h:7;1")), SUCCESS);
    assert_eq!(state.next_id(GROUP), 8, "no id that is taken is proposed");
    assert_eq!(code(&mut state, id(-1, "h:9;1")), CONTROLLER_BROKER_ID_INVALID);
    assert_eq!(code(&mut state, id(i64::MAX, "h:8;1")), SUCCESS);
    assert_eq!(state.next_id("other"), 1);
}

#[test]
fn registration_needs_an_id_and_moves_the_address() {
    let mut state = three();
    assert_eq!(
        code(&mut State::default(), register(1, "h:1")),
        CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        "no such group"
    );
    assert_eq!(code(&mut state, register(4, "h:4")), CONTROLLER_BROKER_NEED_TO_BE_REGISTERED);
    assert!(!state.judge(&register(2, "h:2")).changes(), "nothing for the log");
    assert_eq!(code(&mut state, register(2, "h:22")), SUCCESS);
    assert_eq!(state.group(GROUP).unwrap().address(2), Some("h:22"));
}

#[test]
fn elections_refused() {
    assert_eq!(code(&mut State::default(), elect(Some(1), false, &[1])), CONTROLLER_BROKER_NEED_TO_BE_REGISTERED);
    assert_eq!(code(&mut three(), elect(Some(4), false, &[4])), CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "a stranger");
    assert_eq!(code(&mut led(), elect(Some(2), false, &[1, 2])), CONTROLLER_MASTER_STILL_EXIST);
    assert_eq!(code(&mut led(), elect(None, false, &[1, 2])), CONTROLLER_MASTER_STILL_EXIST);
    assert_eq!(code(&mut led(), elect(Some(3), true, &[1, 2, 3])), CONTROLLER_ELECT_MASTER_FAILED, "3 is behind");
    assert_eq!(code(&mut led(), elect(Some(3), false, &[3])), CONTROLLER_ELECT_MASTER_FAILED);
}

#[test]
fn elections_that_change_the_master() {
    let mut state = three();
    assert_eq!(code(&mut state, elect(Some(2), false, &[])), SUCCESS, "the first that asks");
    assert_eq!(view(&state), (Some(2), 1, vec![2], 1));
    let mut state = led();
    assert_eq!(code(&mut state, elect(None, false, &[2, 3])), SUCCESS);
    assert_eq!(view(&state), (Some(2), 2, vec![2], 3));
    let mut state = led();
    assert_eq!(code(&mut state, elect(Some(2), true, &[1, 2])), SUCCESS, "an operator's wish over a living master");
    assert_eq!(view(&state), (Some(2), 2, vec![2], 3));
    let mut state = led();
    let unclean = Ask::Elect { group: GROUP.into(), by: None, designate: false, unclean: true, alive: living(&[3]) };
    assert_eq!(code(&mut state, unclean), SUCCESS);
    assert_eq!(view(&state), (Some(3), 2, vec![3], 3));
}

#[test]
fn a_group_that_is_older_than_the_controller_goes_on_behind_its_logs_epochs() {
    let elect = |epochs: &[(i64, i32)]| {
        let alive = epochs.iter().map(|(id, epoch)| Alive { id: *id, epoch: *epoch, max_offset: 10, priority: 0 });
        Ask::Elect { group: GROUP.into(), by: Some(1), designate: false, unclean: false, alive: alive.collect() }
    };
    let mut state = three();
    assert_eq!(code(&mut state, elect(&[(1, 7), (2, 9), (8, 50), (3, i32::MAX)])), SUCCESS);
    assert_eq!(view(&state), (Some(1), 10, vec![1], 1), "8 is a stranger, and 3's epoch leaves no room");
    let mut state = led();
    let later = Ask::Elect {
        group: GROUP.into(),
        by: None,
        designate: false,
        unclean: false,
        alive: vec![Alive { id: 2, epoch: 70, max_offset: 10, priority: 0 }],
    };
    assert_eq!(code(&mut state, later), SUCCESS);
    assert_eq!(view(&state).1, 2, "in a group that has masters the controller alone counts");
}

#[test]
fn a_group_with_nobody_left_has_no_master_and_keeps_its_set() {
    let mut state = led();
    let outcome = state.apply(&elect(None, false, &[3]));
    assert_eq!(outcome.refusal.map(|why| why.code()), Some(CONTROLLER_MASTER_NOT_AVAILABLE));
    assert!(outcome.role_changed);
    assert_eq!(view(&state), (None, 2, vec![1, 2], 2));
    assert!(!state.judge(&elect(None, false, &[3])).changes(), "asked again it changes nothing");
    assert_eq!(code(&mut state, elect(Some(3), false, &[3])), CONTROLLER_ELECT_MASTER_FAILED);
    assert_eq!(code(&mut state, alter(1, 2, &[1], 2, &[1])), CONTROLLER_INVALID_MASTER);
    assert_eq!(code(&mut state, elect(Some(2), false, &[2, 3])), SUCCESS, "a member comes back");
    assert_eq!(view(&state), (Some(2), 3, vec![2], 3));
}

#[test]
fn alterations_are_refused_by_the_first_fault_in_order() {
    let all = [1, 2, 3];
    let mut state = led();
    assert_eq!(
        code(&mut State::default(), alter(1, 1, &[1], 1, &all)),
        CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        "no such group"
    );
    for (ask, want) in [
        (alter(9, 9, &[1, 2], 9, &[]), CONTROLLER_ALTER_SYNC_STATE_SET_FAILED), // the same set
        (alter(2, 9, &[9], 9, &[]), CONTROLLER_INVALID_MASTER),
        (alter(1, 9, &[9], 9, &[]), CONTROLLER_FENCED_MASTER_EPOCH),
        (alter(1, 0, &[1, 2, 3], 2, &all), CONTROLLER_FENCED_MASTER_EPOCH),
        (alter(1, 1, &[9], 9, &[]), CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (alter(1, 1, &[1, 2, 3], 1, &all), CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (alter(1, 1, &[1, 9], 2, &[1, 9]), CONTROLLER_INVALID_REPLICAS),
        (alter(1, 1, &[1, 3], 2, &[1, 2]), CONTROLLER_BROKER_NOT_ALIVE),
        (alter(1, 1, &[2, 3], 2, &all), CONTROLLER_ALTER_SYNC_STATE_SET_FAILED), // without its master
        (alter(1, 1, &[], 2, &all), CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
    ] {
        let shown = format!("{ask:?}");
        assert_eq!(code(&mut state, ask), want, "{shown}");
    }
    assert_eq!(view(&state), (Some(1), 1, vec![1, 2], 2));
    assert_eq!(code(&mut state, alter(1, 1, &all, 2, &all)), SUCCESS);
    assert_eq!(view(&state), (Some(1), 1, vec![1, 2, 3], 3));
    assert_eq!(code(&mut state, alter(1, 1, &[1], 3, &all)), SUCCESS);
    assert_eq!(view(&state), (Some(1), 1, vec![1], 4));
}

#[test]
fn an_old_master_is_fenced() {
    let mut state = led();
    assert_eq!(code(&mut state, elect(None, false, &[2])), SUCCESS);
    assert_eq!(code(&mut state, alter(1, 1, &[1, 2], 2, &[1, 2])), CONTROLLER_INVALID_MASTER);
    assert_eq!(code(&mut state, elect(Some(1), true, &[1, 2])), CONTROLLER_ELECT_MASTER_FAILED, "not in the set now");
    assert_eq!(code(&mut state, alter(2, 2, &[1, 2], 3, &[1, 2])), SUCCESS);
    assert_eq!(code(&mut state, elect(Some(1), true, &[1, 2])), SUCCESS);
    assert_eq!(code(&mut state, alter(1, 1, &[1, 2], 5, &[1, 2])), CONTROLLER_FENCED_MASTER_EPOCH, "of its first time");
}

#[test]
fn cleaning_spares_the_living_and_a_led_group() {
    assert_eq!(code(&mut State::default(), clean(&[], false, &[])), CONTROLLER_INVALID_CLEAN_BROKER_METADATA);
    assert_eq!(code(&mut led(), clean(&[], false, &[])), CONTROLLER_INVALID_CLEAN_BROKER_METADATA, "it has a master");
    assert_eq!(code(&mut led(), clean(&[3], false, &[3])), CONTROLLER_INVALID_CLEAN_BROKER_METADATA, "alive");
    let mut state = led();
    assert_eq!(code(&mut state, clean(&[3, 8], false, &[1, 2])), SUCCESS);
    assert_eq!(view(&state), (Some(1), 1, vec![1, 2], 2));
    assert_eq!(state.next_id(GROUP), 4, "an id is not given twice");
    assert!(!state.judge(&clean(&[3], false, &[])).changes(), "gone already");
    assert_eq!(code(&mut state, clean(&[2], false, &[1])), SUCCESS);
    assert_eq!(view(&state), (Some(1), 1, vec![1], 3));
}

#[test]
fn cleaning_the_living_takes_what_is_named() {
    let mut state = led();
    assert_eq!(code(&mut state, clean(&[1], true, &[1, 2, 3])), SUCCESS);
    assert_eq!(view(&state), (None, 2, vec![2], 3));
    assert_eq!(code(&mut state, elect(Some(2), false, &[2])), SUCCESS);
    assert_eq!(code(&mut state, clean(&[], true, &[2])), SUCCESS);
    assert_eq!(state.group(GROUP), None);
    let mut state = led();
    assert_eq!(code(&mut state, clean(&[1, 2, 3], true, &[])), SUCCESS, "all of them is the group");
    assert_eq!(state, State::default());
}

#[test]
fn groups_do_not_touch_each_other() {
    let mut state = led();
    let before = state.group(GROUP).cloned();
    let other = Ask::ApplyBrokerId { cluster: "d".into(), group: "h".into(), id: 1, check_code: "x:1;1".into() };
    assert_eq!(code(&mut state, other), SUCCESS);
    assert_eq!(state.group(GROUP).cloned(), before);
    assert_eq!(state.group("h").map(|group| group.cluster.as_str()), Some("d"));
}

/// Every request in every state that two brokers can get into: the asserts of [`Group::check`] hold, epochs only grow, and no epoch has
/// two masters.
#[test]
fn what_two_brokers_can_do_to_a_group() {
    let subsets: [&[i64]; 4] = [&[], &[1], &[2], &[1, 2]];
    let asks = |group: &Group| {
        let mut all = vec![id(1, "a:1;1"), id(2, "b:1;1"), register(1, "a:2")];
        for alive in subsets {
            for by in [None, Some(1), Some(2)] {
                for designate in [false, true] {
                    for unclean in [false, true] {
                        let alive = living(alive);
                        all.push(Ask::Elect { group: GROUP.into(), by, designate, unclean, alive });
                    }
                }
            }
            for set in subsets {
                for master in [1, 2] {
                    all.push(alter(master, group.master_epoch, set, group.sync_state_set_epoch, alive));
                }
                all.push(clean(set, false, alive));
            }
        }
        all
    };
    let mut first = State::default();
    first.apply(&id(1, "a:1;1"));
    let (mut seen, mut queue) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(state) = queue.pop() {
        let before = state.group(GROUP).expect("the group is never taken out of the queue's states");
        if before.master_epoch > 3 || before.sync_state_set_epoch > 4 {
            continue;
        }
        for ask in asks(before) {
            let mut next = state.clone();
            next.apply(&ask);
            let Some(after) = next.group(GROUP) else { continue };
            assert!(after.master_epoch >= before.master_epoch, "{ask:?}");
            assert!(after.sync_state_set_epoch >= before.sync_state_set_epoch, "{ask:?}");
            if after.master_epoch == before.master_epoch {
                assert_eq!(after.master, before.master, "two masters of one epoch by {ask:?}");
            }
            if after.sync_state_set_epoch == before.sync_state_set_epoch {
                assert_eq!(after.sync_state_set, before.sync_state_set, "two sets of one epoch by {ask:?}");
            }
            if seen.insert(next.clone()) {
                queue.push(next);
            }
        }
    }
    assert!(seen.len() > 50, "{} states", seen.len());
}
