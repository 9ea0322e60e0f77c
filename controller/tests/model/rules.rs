//! The rules that can be broken one by one, to see that the model would tell.
use uringmq_proto::epochs::Epochs;
use uringmq_proto::in_sync;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A change without an answer is open until a newer set is seen. Broken: the next look is its outcome.
    CertainOutcome,
    /// A change carries the epochs of the set that it was made from. Broken: the newest that the agent knows.
    EpochsOfTheSet,
    /// A broker that has just started does not lead on in its epoch. Broken: it does.
    NewEpoch,
    /// The same. Broken: it does, and begins the same epoch anew where its log ends.
    NotAnew,
    /// An older view is passed over.
    NewestView,
    /// A member counts, connected or not. Broken: only those that are connected.
    AbsentCount,
    /// Only members of the SyncStateSet are elected. Broken: `enableElectUncleanMaster`.
    CleanElection,
    /// A slave cuts off what is not its master's.
    Truncation,
    /// A replica is proposed once it has all that was acknowledged before it counted.
    HasAll,
}

/// All of them, or all but one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub without: Option<Rule>,
}

impl Rules {
    pub fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    pub fn may_lead(&self, own: Option<i32>, given: i32) -> bool {
        let broken = !self.has(Rule::NewEpoch) || !self.has(Rule::NotAnew);
        broken || in_sync::may_lead(own, given)
    }

    /// Whether a master of `epoch` forgets that it was that before.
    pub fn begins_anew(&self, epochs: &Epochs, epoch: i32) -> bool {
        !self.has(Rule::NotAnew) && epochs.last().is_some_and(|last| last.epoch == epoch)
    }
}
