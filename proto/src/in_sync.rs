//! The rules of the SyncStateSet (controller mode), without sockets and clocks: which word of the controller is news, what a change of the set
//! is based on, and whose copies an acknowledgement waits for. The broker runs by them, and so does the model in `controller/tests/model`.
//! Source: replication sheet 7.5, 8.1.
use std::collections::{BTreeMap, BTreeSet};

/// How new a SyncStateSet is: the controller counts `epoch` up with each change of masters and `set_epoch` with each change of the set, and
/// makes a change only where both are those of the set that it was made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    pub epoch: i32,
    pub set_epoch: i32,
}

/// A change that a master asks for (1001).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Change {
    pub set: BTreeSet<i64>,
    /// Of the set that it was made from: when that is replaced, the change is refused.
    pub of: Stamp,
}

/// Whether it is settled, where the set `known` is known, what became of every change that was asked for: `unanswered` is the newest set that
/// one without an answer was made from. Such a change may still be made while that set stands, however late; once it is replaced the
/// controller refuses what is left of it.
pub fn is_settled(unanswered: Option<Stamp>, known: Stamp) -> bool {
    unanswered.is_none_or(|of| known > of)
}

/// Replicas that are waited for beside the SyncStateSet: those that are about to be proposed, and those of which the controller may say any
/// moment that they are members.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Joining(BTreeMap<i64, Option<Stamp>>);

impl Joining {
    /// Replica `id` counts from now on.
    pub fn begin(&mut self, id: i64) {
        self.0.entry(id).or_default();
    }

    /// It is proposed by a change of the set `of`, and the controller may make it a member until another set replaces that one.
    pub fn propose(&mut self, id: i64, of: Stamp) {
        self.0.insert(id, Some(of));
    }

    /// It is not proposed after all. One that was proposed goes on counting.
    pub fn give_up(&mut self, id: i64) {
        if self.0.get(&id) == Some(&None) {
            self.0.remove(&id);
        }
    }

    /// The change that proposed it is answered, or will never be made: the set says whether it is a member.
    pub fn answered(&mut self, id: i64) {
        self.0.remove(&id);
    }

    /// A set as new as `known` stands: who was proposed for an older one is a member of it, or is none.
    pub fn settle(&mut self, known: Stamp) {
        self.0.retain(|_, of| !of.is_some_and(|of| is_settled(Some(of), known)));
    }

    /// The replicas whose copies count beside `own`: the other members of `set`, and these.
    pub fn counted(&self, set: &BTreeSet<i64>, own: i64) -> BTreeSet<i64> {
        set.iter().chain(self.0.keys()).copied().filter(|id| *id != own).collect()
    }
}

/// Whether a broker that has just started may be master in the epoch `given`, where `own` is the newest one of its log. In an epoch that it led before
/// it may not: its log may have lost its end, as in a power cut, and what it would write there again would look to replicas like what they
/// have of it; and it has forgotten which changes of the set may still be made. With a new epoch replicas see where the logs part, and
/// such changes are refused.
pub fn may_lead(own: Option<i32>, given: i32) -> bool {
    own != Some(given)
}

/// The mark of a master that counts nobody beside itself: all that it has is acknowledged at once.
pub const ALONE: u64 = u64::MAX;

/// The lowest of what others have confirmed; `None` when that is not known of one of them, [`ALONE`] when there are none.
pub fn lowest(mut confirmed: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    confirmed.try_fold(ALONE, |lowest, one| one.map(|end| lowest.min(end)))
}

/// Up to where a master may acknowledge and show what it has: no further than every replica that counts has confirmed, connected or not.
/// `before` is the mark as it is, `lowest` what [`lowest`] says now. The mark never goes back, but from [`ALONE`] to `shown`, what was shown until then.
pub fn next_mark(before: u64, lowest: Option<u64>, shown: u64) -> u64 {
    let before = if before == ALONE { shown } else { before };
    lowest.map_or(before, |lowest| lowest.max(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(epoch: i32, set_epoch: i32) -> Stamp {
        Stamp { epoch, set_epoch }
    }

    #[test]
    fn a_change_without_an_answer_is_open_while_its_set_stands() {
        assert!(is_settled(None, stamp(3, 5)));
        assert!(!is_settled(Some(stamp(3, 5)), stamp(3, 5)), "it may come yet");
        assert!(is_settled(Some(stamp(3, 5)), stamp(3, 6)), "made, or refused from now on");
        assert!(is_settled(Some(stamp(3, 5)), stamp(4, 0)), "another master's epoch");
        assert!(!is_settled(Some(stamp(3, 5)), stamp(3, 4)), "an older word");
    }

    #[test]
    fn who_may_become_a_member_any_moment_counts() {
        let set = BTreeSet::from([1, 2]);
        let mut joining = Joining::default();
        let counted = |joining: &Joining| joining.counted(&set, 1).into_iter().collect::<Vec<_>>();
        assert_eq!(counted(&joining), [2]);
        joining.begin(3);
        assert_eq!(counted(&joining), [2, 3], "before it is proposed");
        joining.give_up(3);
        assert_eq!(counted(&joining), [2]);
        joining.propose(3, stamp(4, 7));
        joining.give_up(3);
        joining.begin(3);
        joining.settle(stamp(4, 7));
        assert_eq!(counted(&joining), [2, 3], "nobody said what became of it");
        joining.settle(stamp(4, 8));
        assert_eq!(counted(&joining), [2], "the set says it");
        joining.propose(3, stamp(4, 8));
        joining.answered(3);
        assert_eq!(counted(&joining), [2]);
        joining.begin(5);
        joining.settle(stamp(9, 9));
        assert_eq!(counted(&joining), [2, 5], "not proposed yet");
    }

    #[test]
    fn every_member_counts_and_one_that_is_away_stops_the_mark() {
        assert_eq!(lowest([].into_iter()), Some(ALONE), "the master alone");
        assert_eq!(lowest([Some(9), Some(5), Some(7)].into_iter()), Some(5));
        assert_eq!(lowest([Some(9), None].into_iter()), None);
        assert_eq!([next_mark(40, Some(50), 30), next_mark(40, Some(30), 30), next_mark(40, None, 30)], [50, 40, 40]);
        assert_eq!([next_mark(40, Some(ALONE), 30), next_mark(ALONE, Some(ALONE), 30)], [ALONE; 2]);
        assert_eq!(next_mark(ALONE, None, 30), 30, "alone no more, and the other one is not connected");
        assert_eq!([next_mark(ALONE, Some(20), 30), next_mark(ALONE, Some(35), 30)], [30, 35]);
    }

    #[test]
    fn who_has_just_started_leads_in_a_new_epoch_only() {
        assert!(may_lead(None, 7) && may_lead(Some(6), 7));
        assert!(!may_lead(Some(7), 7));
        assert!(may_lead(Some(8), 7), "another controller's log: refused elsewhere, with what to do");
    }
}
