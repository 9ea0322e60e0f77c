//! Who becomes master. A pure function of the group, the request and what the heartbeats said. Source: replication sheet 8.2.
use crate::state::Group;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// A broker that was heard of within its time, with what its last heartbeat said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alive {
    pub id: i64,
    /// Last master epoch in its log; -1 when the heartbeat does not say.
    pub epoch: i32,
    /// End of its log; -1 when the heartbeat does not say.
    pub max_offset: i64,
    /// Smaller is preferred.
    pub priority: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The present master stays.
    Keep(i64),
    New(i64),
    Nobody,
}

/// `by` asks, or nobody does; with `designate` it is `by` or nobody. With `unclean` a replica outside the SyncStateSet may follow where
/// no member is alive: what it does not have is lost.
///
/// A group that never had a master takes the broker that asks first: none of them has acknowledged anything.
pub fn choose(group: &Group, by: Option<i64>, designate: bool, unclean: bool, alive: &[Alive]) -> Choice {
    let wanted = by.filter(|_| designate);
    if group.is_new() {
        return match by {
            Some(id) => Choice::New(id),
            None => first_of(alive, |id| group.brokers.contains_key(&id)).map_or(Choice::Nobody, Choice::New),
        };
    }
    let members = |id: i64| group.sync_state_set.contains(&id);
    let all = |id: i64| group.brokers.contains_key(&id);
    let clean = among(group.master, wanted, alive, members);
    match clean {
        Choice::Nobody if unclean => among(group.master, wanted, alive, all),
        other => other,
    }
}

/// One pass over the living that are `eligible`.
fn among(master: Option<i64>, wanted: Option<i64>, alive: &[Alive], eligible: impl Fn(i64) -> bool) -> Choice {
    let is_candidate = |id: i64| eligible(id) && alive.iter().any(|one| one.id == id);
    match (master.filter(|id| is_candidate(*id)), wanted) {
        (Some(id), None) => Choice::Keep(id),
        (Some(id), Some(other)) if id == other => Choice::Keep(id),
        (_, Some(id)) if is_candidate(id) => Choice::New(id),
        (_, Some(_)) => Choice::Nobody,
        (None, None) => first_of(alive, eligible).map_or(Choice::Nobody, Choice::New),
    }
}

/// The one with the newest log: highest epoch, then the longest, then the most preferred; the smallest id where all are equal.
fn first_of(alive: &[Alive], eligible: impl Fn(i64) -> bool) -> Option<i64> {
    let key = |one: &&Alive| (Reverse(one.epoch), Reverse(one.max_offset), one.priority, one.id);
    alive.iter().filter(|one| eligible(one.id)).min_by_key(key).map(|one| one.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Broker;

    /// Brokers 1 to 4; 1, 2 and 3 in the set.
    fn group(master: Option<i64>) -> Group {
        let broker = |id: i64| (id, Broker { address: format!("h:{id}"), check_code: String::new() });
        Group {
            cluster: "c".into(),
            brokers: (1..=4).map(broker).collect(),
            next_id: 5,
            master,
            master_epoch: 3,
            sync_state_set: [1, 2, 3].into(),
            sync_state_set_epoch: 3,
        }
    }

    fn alive(all: &[(i64, i32, i64, i32)]) -> Vec<Alive> {
        all.iter().map(|&(id, epoch, max_offset, priority)| Alive { id, epoch, max_offset, priority }).collect()
    }

    fn plain(ids: &[i64]) -> Vec<Alive> {
        alive(&ids.iter().map(|id| (*id, 3, 100, i32::MAX)).collect::<Vec<_>>())
    }

    #[test]
    fn a_living_master_stays() {
        for by in [None, Some(1), Some(2), Some(4)] {
            assert_eq!(choose(&group(Some(1)), by, false, false, &plain(&[1, 2, 4])), Choice::Keep(1), "{by:?}");
        }
        assert_eq!(choose(&group(Some(1)), Some(1), true, true, &plain(&[1, 2])), Choice::Keep(1));
    }

    #[test]
    fn who_is_designated_is_elected_or_nobody() {
        let elect = |id, unclean, ids: &[i64]| choose(&group(Some(1)), Some(id), true, unclean, &plain(ids));
        assert_eq!(elect(2, false, &[1, 2, 3]), Choice::New(2), "over a living master");
        assert_eq!(elect(2, false, &[2, 3]), Choice::New(2));
        assert_eq!(elect(2, false, &[1, 3]), Choice::Nobody, "dead");
        assert_eq!(elect(4, false, &[1, 4]), Choice::Nobody, "not in the set");
        assert_eq!(elect(4, true, &[1, 4]), Choice::New(4), "not in the set, unclean");
        assert_eq!(elect(4, true, &[1, 2]), Choice::Nobody, "dead, unclean");
    }

    #[test]
    fn without_its_master_the_newest_log_leads() {
        let elect = |all: &[(i64, i32, i64, i32)]| choose(&group(Some(1)), None, false, false, &alive(all));
        assert_eq!(elect(&[(2, 3, 10, 0), (3, 4, 5, 9)]), Choice::New(3), "epoch before length");
        assert_eq!(elect(&[(2, 3, 10, 9), (3, 3, 9, 0)]), Choice::New(2), "length before priority");
        assert_eq!(elect(&[(2, 3, 10, 9), (3, 3, 10, 5)]), Choice::New(3), "priority");
        assert_eq!(elect(&[(3, 3, 10, 5), (2, 3, 10, 5)]), Choice::New(2), "the same every time");
        assert_eq!(elect(&[(2, 3, 0, 1), (3, 3, 5 << 30, 1)]), Choice::New(3), "more than 2 GiB apart");
        assert_eq!(elect(&[(2, -1, -1, 1), (3, 3, 0, 1)]), Choice::New(3), "who says nothing is last");
        assert_eq!(elect(&[(4, 9, 100, 0)]), Choice::Nobody, "only members of the set");
        assert_eq!(elect(&[(4, 9, 100, 0), (3, 1, 1, 9)]), Choice::New(3));
        assert_eq!(elect(&[(9, 9, 100, 0)]), Choice::Nobody, "a stranger");
    }

    #[test]
    fn unclean_elections_come_second() {
        let elect = |ids: &[i64]| choose(&group(Some(1)), None, false, true, &plain(ids));
        assert_eq!(elect(&[4]), Choice::New(4));
        assert_eq!(elect(&[3, 4]), Choice::New(3), "a living member goes before");
        assert_eq!(elect(&[9]), Choice::Nobody, "a stranger never");
        assert_eq!(elect(&[]), Choice::Nobody);
        let mut lonely = group(Some(4));
        lonely.sync_state_set = [4].into();
        assert_eq!(choose(&lonely, Some(2), false, true, &plain(&[2, 4])), Choice::Keep(4));
    }

    #[test]
    fn a_group_without_master_takes_a_member_again() {
        assert_eq!(choose(&group(None), Some(2), false, false, &plain(&[2, 3])), Choice::New(2));
        assert_eq!(choose(&group(None), Some(4), false, false, &plain(&[4])), Choice::Nobody);
        assert_eq!(choose(&group(None), None, false, false, &plain(&[3])), Choice::New(3));
    }

    #[test]
    fn a_new_group_takes_who_asks_first() {
        let new = Group { master_epoch: 0, sync_state_set: [].into(), ..group(None) };
        assert_eq!(choose(&new, Some(4), false, false, &[]), Choice::New(4), "alive or not");
        assert_eq!(choose(&new, Some(3), true, false, &plain(&[1])), Choice::New(3));
        assert_eq!(choose(&new, None, false, false, &plain(&[2, 3])), Choice::New(2), "an operator's choice is ours");
        assert_eq!(choose(&new, None, false, false, &plain(&[9])), Choice::Nobody);
        assert_eq!(choose(&new, None, false, false, &[]), Choice::Nobody);
    }
}
