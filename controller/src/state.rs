//! What the controllers agree on: the groups (broker sets) with their brokers, masters and SyncStateSets. A pure function of the requests
//! in their order: no clock, no sockets, no randomness. What only the leader knows (who is alive) stands in the request.
//!
//! [`State::judge`] says what a request would be answered and what it would change; [`State::apply`] does it. The leader judges first
//! and puts into the Raft log only what changes something, so refusals and repetitions cost no disk. Judged again when it is applied,
//! in the order of the log, so what came between counts. Source: replication sheet 8.
use crate::elect::{self, Alive, Choice};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use uringmq_proto::codes::response;

/// The id that the first broker of a group gets.
pub const FIRST_BROKER_ID: i64 = 1;

/// No log's epoch at or above this one is believed: there must be room for elections to come.
const FOREIGN_EPOCH_MAX: i32 = 1 << 30;

/// A request that may change the state; an entry of the Raft log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// 1013.
    ApplyBrokerId { cluster: String, group: String, id: i64, check_code: String },
    /// 1003.
    Register { group: String, id: i64, address: String },
    /// 1002. `by` is `None` for an operator or the controller itself.
    Elect { group: String, by: Option<i64>, designate: bool, unclean: bool, alive: Vec<Alive> },
    /// 1001. `set_epoch` is the epoch of the set that is to be replaced.
    AlterSyncStateSet {
        group: String,
        master: i64,
        master_epoch: i32,
        set: BTreeSet<i64>,
        set_epoch: i32,
        alive: BTreeSet<i64>,
    },
    /// 1011. No ids: the whole group. `living`: also who is alive.
    Clean { group: String, ids: BTreeSet<i64>, living: bool, alive: BTreeSet<i64> },
}

impl Ask {
    pub fn group(&self) -> &str {
        match self {
            Ask::ApplyBrokerId { group, .. }
            | Ask::Register { group, .. }
            | Ask::Elect { group, .. }
            | Ask::AlterSyncStateSet { group, .. }
            | Ask::Clean { group, .. } => group,
        }
    }
}

/// Why a request is refused; the text is the remark.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    #[error("broker id {id} cannot be had in {group}: the first id of a new group is {FIRST_BROKER_ID}")]
    FirstId { group: String, id: i64 },
    #[error("broker id {id} of {group} belongs to another broker")]
    IdTaken { group: String, id: i64 },
    #[error("broker id {0} is below {FIRST_BROKER_ID}")]
    IdTooSmall(i64),
    #[error("no broker of {0} has an id from this controller yet")]
    UnknownGroup(String),
    #[error("broker {id} of {group} has no id from this controller")]
    UnknownBroker { group: String, id: i64 },
    #[error("master {id} of {group} is alive, no other is elected")]
    MasterAlive { group: String, id: i64 },
    #[error("{0} has lost its master, and no replica that could follow it is alive")]
    NobodyLeft(String),
    #[error("no replica of {0} could be elected")]
    NotElected(String),
    #[error("the SyncStateSet of {0} cannot be altered: it is no group of this controller")]
    AlterUnknown(String),
    #[error("the SyncStateSet of {0} is the same already")]
    AlterSame(String),
    #[error("the SyncStateSet of {group} is altered by its master alone, which is {}, not {sender}", text_of(*.master))]
    NotMaster { group: String, master: Option<i64>, sender: i64 },
    #[error("master epoch of {group} is {current}, not {given}")]
    MasterEpoch { group: String, current: i32, given: i32 },
    #[error("SyncStateSet epoch of {group} is {current}, not {given}")]
    SetEpoch { group: String, current: i32, given: i32 },
    #[error("replica {id} is not registered in {group}")]
    UnknownReplica { group: String, id: i64 },
    #[error("replica {id} of {group} is not alive")]
    DeadReplica { group: String, id: i64 },
    #[error("the SyncStateSet of {group} has to hold its master {master}")]
    WithoutMaster { group: String, master: i64 },
    #[error("{0} has a master; clean single brokers, or the living too")]
    CleanMaster(String),
    #[error("broker {id} of {group} is alive; it is cleaned only with the living")]
    CleanAlive { group: String, id: i64 },
    #[error("nothing to clean: {0} is no group of this controller")]
    CleanUnknown(String),
}

fn text_of(master: Option<i64>) -> String {
    master.map_or("nobody".to_owned(), |id| id.to_string())
}

impl Refusal {
    /// The response code. No `_` arm: a new variant asks here.
    pub fn code(&self) -> i32 {
        match self {
            Refusal::FirstId { .. } | Refusal::IdTaken { .. } | Refusal::IdTooSmall(_) => {
                response::CONTROLLER_BROKER_ID_INVALID
            }
            Refusal::UnknownGroup(_) | Refusal::UnknownBroker { .. } => {
                response::CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            }
            Refusal::MasterAlive { .. } => response::CONTROLLER_MASTER_STILL_EXIST,
            Refusal::NobodyLeft(_) => response::CONTROLLER_MASTER_NOT_AVAILABLE,
            Refusal::NotElected(_) => response::CONTROLLER_ELECT_MASTER_FAILED,
            Refusal::AlterUnknown(_) | Refusal::AlterSame(_) | Refusal::WithoutMaster { .. } => {
                response::CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
            }
            Refusal::NotMaster { .. } => response::CONTROLLER_INVALID_MASTER,
            Refusal::MasterEpoch { .. } => response::CONTROLLER_FENCED_MASTER_EPOCH,
            Refusal::SetEpoch { .. } => response::CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            Refusal::UnknownReplica { .. } => response::CONTROLLER_INVALID_REPLICAS,
            Refusal::DeadReplica { .. } => response::CONTROLLER_BROKER_NOT_ALIVE,
            Refusal::CleanMaster(_) | Refusal::CleanAlive { .. } | Refusal::CleanUnknown(_) => {
                response::CONTROLLER_INVALID_CLEAN_BROKER_METADATA
            }
        }
    }
}

/// One broker of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Broker {
    /// `host:port` of its remoting port.
    pub address: String,
    /// With it a broker that got no answer may ask for its id again.
    pub check_code: String,
}

/// Brokers that hold the same messages; one of them is the master.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    pub cluster: String,
    pub brokers: BTreeMap<i64, Broker>,
    /// What 1012 proposes; never goes back while the group exists.
    pub next_id: i64,
    pub master: Option<i64>,
    /// 0 until the first election; grows with every change of `master`.
    pub master_epoch: i32,
    pub sync_state_set: BTreeSet<i64>,
    /// Grows with every change of the set.
    pub sync_state_set_epoch: i32,
}

impl Group {
    pub fn address(&self, id: i64) -> Option<&str> {
        self.brokers.get(&id).map(|broker| broker.address.as_str())
    }

    pub fn master_address(&self) -> Option<&str> {
        self.master.and_then(|id| self.address(id))
    }

    /// Nobody was ever its master.
    pub fn is_new(&self) -> bool {
        self.master_epoch == 0
    }
}

/// The epoch of a new master. A group that is new here may be older than this controller: its brokers' logs then have epochs, and take no
/// master of a smaller one.
fn next_epoch(group: &Group, alive: &[Alive]) -> i32 {
    let in_logs = alive.iter().filter(|one| group.is_new() && group.brokers.contains_key(&one.id)).map(|one| one.epoch);
    in_logs.filter(|epoch| *epoch < FOREIGN_EPOCH_MAX).fold(group.master_epoch, i32::max) + 1
}

/// A change of one group; what a granted request does.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Added { cluster: String, id: i64, broker: Broker },
    Moved { id: i64, address: String },
    Elected { master: Option<i64>, epoch: i32 },
    SetAltered(BTreeSet<i64>),
    Removed(BTreeSet<i64>),
    GroupRemoved,
}

/// What a request comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub refusal: Option<Refusal>,
    change: Option<Change>,
}

impl Verdict {
    fn granted(change: impl Into<Option<Change>>) -> Self {
        Verdict { refusal: None, change: change.into() }
    }

    fn refused(refusal: Refusal) -> Self {
        Verdict { refusal: Some(refusal), change: None }
    }

    /// Whether the request has to go through the log.
    pub fn changes(&self) -> bool {
        self.change.is_some()
    }
}

/// What the caller is told: the refusal, if it is one, and the group as it is after the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub refusal: Option<Refusal>,
    pub group: Option<Group>,
    /// The group's master is another now, or nobody: its brokers are to be told.
    pub role_changed: bool,
}

/// All groups, by broker name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    pub groups: BTreeMap<String, Group>,
}

impl State {
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.get(name)
    }

    /// The answer of 1012.
    pub fn next_id(&self, group: &str) -> i64 {
        self.group(group).map_or(FIRST_BROKER_ID, |group| group.next_id)
    }

    /// What `ask` would be answered and whether it would change anything.
    pub fn judge(&self, ask: &Ask) -> Verdict {
        match ask {
            Ask::ApplyBrokerId { cluster, group, id, check_code } => self.judge_id(cluster, group, *id, check_code),
            Ask::Register { group, id, address } => self.judge_register(group, *id, address),
            Ask::Elect { group, by, designate, unclean, alive } => {
                self.judge_elect(group, *by, *designate, *unclean, alive)
            }
            Ask::AlterSyncStateSet { group, master, master_epoch, set, set_epoch, alive } => {
                let judged = self.judge_alter(group, (*master, *master_epoch), set, *set_epoch, alive);
                match judged {
                    Ok(()) => Verdict::granted(Change::SetAltered(set.clone())),
                    Err(refusal) => Verdict::refused(refusal),
                }
            }
            Ask::Clean { group, ids, living, alive } => self.judge_clean(group, ids, *living, alive),
        }
    }

    /// Does what `ask` comes to.
    pub fn apply(&mut self, ask: &Ask) -> Outcome {
        let Verdict { refusal, change } = self.judge(ask);
        let role_changed = matches!(change, Some(Change::Elected { .. }));
        if let Some(change) = change {
            self.perform(ask.group(), change);
        }
        Outcome { refusal, group: self.group(ask.group()).cloned(), role_changed }
    }

    /// The outcome of a request that changes nothing.
    pub fn outcome(&self, ask: &Ask, verdict: Verdict) -> Outcome {
        assert!(!verdict.changes(), "a change has to be applied");
        Outcome { refusal: verdict.refusal, group: self.group(ask.group()).cloned(), role_changed: false }
    }

    fn judge_id(&self, cluster: &str, group: &str, id: i64, check_code: &str) -> Verdict {
        let address = check_code.split(';').next().unwrap_or_default().to_owned();
        let added = Change::Added {
            cluster: cluster.to_owned(),
            id,
            broker: Broker { address, check_code: check_code.to_owned() },
        };
        if id < FIRST_BROKER_ID {
            return Verdict::refused(Refusal::IdTooSmall(id));
        }
        match self.group(group) {
            None if id == FIRST_BROKER_ID => Verdict::granted(added),
            None => Verdict::refused(Refusal::FirstId { group: group.to_owned(), id }),
            Some(found) => match found.brokers.get(&id) {
                None => Verdict::granted(added),
                Some(broker) if broker.check_code == check_code => Verdict::granted(None),
                Some(_) => Verdict::refused(Refusal::IdTaken { group: group.to_owned(), id }),
            },
        }
    }

    fn judge_register(&self, name: &str, id: i64, address: &str) -> Verdict {
        let Some(group) = self.group(name) else {
            return Verdict::refused(Refusal::UnknownGroup(name.to_owned()));
        };
        match group.address(id) {
            None => Verdict::refused(Refusal::UnknownBroker { group: name.to_owned(), id }),
            Some(known) if known == address => Verdict::granted(None),
            Some(_) => Verdict::granted(Change::Moved { id, address: address.to_owned() }),
        }
    }

    fn judge_elect(&self, name: &str, by: Option<i64>, designate: bool, unclean: bool, alive: &[Alive]) -> Verdict {
        let Some(group) = self.group(name) else {
            return Verdict::refused(Refusal::UnknownGroup(name.to_owned()));
        };
        if let Some(id) = by.filter(|id| !group.brokers.contains_key(id)) {
            return Verdict::refused(Refusal::UnknownBroker { group: name.to_owned(), id });
        }
        match elect::choose(group, by, designate, unclean, alive) {
            Choice::Keep(id) => Verdict::refused(Refusal::MasterAlive { group: name.to_owned(), id }),
            Choice::New(id) => Verdict::granted(Change::Elected { master: Some(id), epoch: next_epoch(group, alive) }),
            Choice::Nobody if by.is_some() => Verdict::refused(Refusal::NotElected(name.to_owned())),
            Choice::Nobody => Verdict {
                refusal: Some(Refusal::NobodyLeft(name.to_owned())),
                change: group.master.map(|_| Change::Elected { master: None, epoch: group.master_epoch + 1 }),
            },
        }
    }

    /// In Apache's order: what a request has several faults of is refused by the same one.
    fn judge_alter(
        &self,
        name: &str,
        (sender, given): (i64, i32),
        set: &BTreeSet<i64>,
        set_epoch: i32,
        alive: &BTreeSet<i64>,
    ) -> Result<(), Refusal> {
        let named = name.to_owned();
        let Some(group) = self.group(name) else { return Err(Refusal::AlterUnknown(named)) };
        if group.sync_state_set == *set {
            return Err(Refusal::AlterSame(named));
        }
        if group.master != Some(sender) {
            return Err(Refusal::NotMaster { group: named, master: group.master, sender });
        }
        if group.master_epoch != given {
            return Err(Refusal::MasterEpoch { group: named, current: group.master_epoch, given });
        }
        if group.sync_state_set_epoch != set_epoch {
            return Err(Refusal::SetEpoch { group: named, current: group.sync_state_set_epoch, given: set_epoch });
        }
        for id in set {
            if !group.brokers.contains_key(id) {
                return Err(Refusal::UnknownReplica { group: named, id: *id });
            }
            if !alive.contains(id) {
                return Err(Refusal::DeadReplica { group: named, id: *id });
            }
        }
        if !set.contains(&sender) {
            return Err(Refusal::WithoutMaster { group: named, master: sender });
        }
        Ok(())
    }

    fn judge_clean(&self, name: &str, ids: &BTreeSet<i64>, living: bool, alive: &BTreeSet<i64>) -> Verdict {
        let named = name.to_owned();
        let Some(group) = self.group(name) else { return Verdict::refused(Refusal::CleanUnknown(named)) };
        if !living {
            if ids.is_empty() && group.master.is_some() {
                return Verdict::refused(Refusal::CleanMaster(named));
            }
            if let Some(id) = ids.iter().find(|id| alive.contains(id)) {
                return Verdict::refused(Refusal::CleanAlive { group: named, id: *id });
            }
        }
        if ids.is_empty() || group.brokers.keys().all(|id| ids.contains(id)) {
            return Verdict::granted(Change::GroupRemoved);
        }
        let gone: BTreeSet<i64> = ids.iter().copied().filter(|id| group.brokers.contains_key(id)).collect();
        Verdict::granted((!gone.is_empty()).then_some(Change::Removed(gone)))
    }

    fn perform(&mut self, name: &str, change: Change) {
        if change == Change::GroupRemoved {
            self.groups.remove(name);
            return;
        }
        if let Change::Added { cluster, .. } = &change {
            let new = || Group { cluster: cluster.clone(), next_id: FIRST_BROKER_ID, ..Group::default() };
            self.groups.entry(name.to_owned()).or_insert_with(new);
        }
        let group = self.groups.get_mut(name).expect("judged: the group is there");
        match change {
            Change::Added { id, broker, .. } => {
                group.brokers.insert(id, broker);
                group.next_id = group.next_id.max(id.saturating_add(1));
            }
            Change::Moved { id, address } => {
                group.brokers.get_mut(&id).expect("judged: the broker is there").address = address;
            }
            Change::Elected { master, epoch } => {
                group.master = master;
                group.master_epoch = epoch;
                if let Some(id) = master {
                    group.sync_state_set = BTreeSet::from([id]);
                    group.sync_state_set_epoch += 1;
                }
            }
            Change::SetAltered(set) => {
                group.sync_state_set = set;
                group.sync_state_set_epoch += 1;
            }
            Change::Removed(ids) => {
                group.brokers.retain(|id, _| !ids.contains(id));
                let members = group.sync_state_set.len();
                group.sync_state_set.retain(|id| !ids.contains(id));
                group.sync_state_set_epoch += i32::from(group.sync_state_set.len() != members);
                if group.master.is_some_and(|id| ids.contains(&id)) {
                    group.master = None;
                    group.master_epoch += 1;
                }
            }
            Change::GroupRemoved => unreachable!("done above"),
        }
        group.check();
    }
}

impl Group {
    /// What only a bug can break.
    fn check(&self) {
        let set = &self.sync_state_set;
        assert!(set.iter().all(|id| self.brokers.contains_key(id)), "a stranger in the SyncStateSet: {self:?}");
        assert!(self.master.is_none_or(|id| set.contains(&id)), "the master is not in the SyncStateSet: {self:?}");
        assert!(self.brokers.keys().all(|id| *id < self.next_id || *id == i64::MAX), "next id is taken: {self:?}");
    }
}

#[cfg(test)]
mod tests;
