//! The group as the model has it: brokers with their logs, the controller, and changes of the SyncStateSet on their way to it. What decides is the code
//! itself: the controller's `State`, its election, `Epochs`, and the rules of `in_sync`; only what moves bytes and time is the model's.
use crate::rules::{Rule, Rules};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uringmq_controller::elect::Alive;
use uringmq_controller::state::{Ask, Group, State};
use uringmq_proto::epochs::Epochs;
use uringmq_proto::in_sync::{self, ALONE, Change, Joining, Stamp};

pub const NAME: &str = "g";

/// A record is a number of its own; its place in the log is its offset.
pub type Record = u8;

/// One broker. Its id is its place in [`World::brokers`] and 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broker {
    pub role: Role,
    pub log: Vec<Record>,
    /// So many records of the log are on stable storage (all brokers run with SYNC_FLUSH).
    pub synced: usize,
    /// The file; durable with each change.
    pub epochs: Epochs,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It is down, or has no role yet. `own`: the newest epoch of its log as it stood before.
    Starting {
        own: Option<i32>,
    },
    /// It follows no master of an older epoch than `seen`.
    Slave {
        seen: i32,
    },
    Master(Master),
}

/// What a master has in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Master {
    pub epoch: i32,
    pub stamp: Stamp,
    pub set: BTreeSet<i64>,
    pub joining: Joining,
    pub unanswered: Option<Stamp>,
    /// A change that it waits for.
    pub pending: Option<Change>,
    /// What the agent has heard and the master not yet taken up.
    pub told: Option<(Stamp, BTreeSet<i64>)>,
    /// Replicas that are connected, and up to where they have confirmed.
    pub confirmed: BTreeMap<i64, u64>,
    pub mark: u64,
    pub shown: u64,
    /// Where its log ended when it became master: it answers only what is written from there on.
    pub began: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub brokers: Vec<Broker>,
    pub controller: Arc<State>,
    /// Changes on their way to the controller, by who sent them; they come in any order, however late, or never.
    pub requests: BTreeSet<(i64, Change)>,
    /// What was acknowledged, from the first record on.
    pub acked: Vec<Record>,
    /// Something acknowledged was not the same as what was acknowledged at its place before.
    pub differs: bool,
    pub written: u8,
    pub crashes: u8,
    pub changes: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Write(i64),
    /// The slave's log on stable storage, which it reports; the master's.
    Sync(i64),
    Connect(i64, i64),
    Disconnect(i64, i64),
    /// One record from master to slave.
    Copy(i64, i64),
    /// The process ends; the machine does not.
    Kill(i64),
    PowerCut(i64),
    /// The controller has no sign of the master any more, be that dead or cut off, and of the others only one or none.
    MasterLost(Option<i64>),
    /// There is no master, and this one asks to be it.
    Elect(i64),
    /// It takes up what the controller says of its role, by an orderly stop and a start where it has another one.
    TakeRole(i64),
    Join(i64, i64),
    Leave(i64, i64),
    /// A change reaches the controller, and its answer the master or nobody.
    Handle(i64, Change, bool),
    /// The master's patience with the answer is over.
    TimeOut(i64),
    /// The agent asks the controller; the master takes up what it was told.
    Ask(i64),
    Take(i64),
}

impl World {
    /// `count` brokers of which the first is master in epoch 1; `members` are connected and in the SyncStateSet. All have one record.
    pub fn new(count: usize, members: &[i64]) -> Self {
        let mut state = State::default();
        for id in 1..=count as i64 {
            let (cluster, check_code) = (String::new(), String::new());
            state.apply(&Ask::ApplyBrokerId { cluster, group: NAME.into(), id, check_code });
        }
        let elect = Ask::Elect { group: NAME.into(), by: Some(1), designate: false, unclean: false, alive: Vec::new() };
        state.apply(&elect);
        let set: BTreeSet<i64> = members.iter().copied().collect();
        if set.len() > 1 {
            let (master, master_epoch, set_epoch) = (1, 1, 1);
            let alive = set.clone();
            let ask =
                Ask::AlterSyncStateSet { group: NAME.into(), master, master_epoch, set: set.clone(), set_epoch, alive };
            assert_eq!(state.apply(&ask).refusal, None);
        }
        let mut epochs = Epochs::default();
        epochs.lead(1, 0);
        let slave = |_| Broker { role: Role::Slave { seen: 1 }, log: vec![0], synced: 1, epochs: epochs.clone() };
        let mut world = World {
            brokers: (0..count).map(slave).collect(),
            controller: Arc::new(state),
            requests: BTreeSet::new(),
            acked: vec![0],
            differs: false,
            written: 0,
            crashes: 0,
            changes: 0,
        };
        world.lead(1);
        let connected = set.into_iter().filter(|id| *id != 1).map(|id| (id, 1));
        world.master_mut(1).expect("leads").confirmed = connected.collect();
        world
    }

    pub fn group(&self) -> &Group {
        self.controller.group(NAME).expect("from the beginning")
    }

    pub fn ids(&self) -> impl Iterator<Item = i64> + use<> {
        1..=self.brokers.len() as i64
    }

    pub fn broker(&self, id: i64) -> &Broker {
        &self.brokers[id as usize - 1]
    }

    fn broker_mut(&mut self, id: i64) -> &mut Broker {
        &mut self.brokers[id as usize - 1]
    }

    pub fn master(&self, id: i64) -> Option<&Master> {
        match &self.broker(id).role {
            Role::Master(master) => Some(master),
            _ => None,
        }
    }

    fn master_mut(&mut self, id: i64) -> Option<&mut Master> {
        match &mut self.broker_mut(id).role {
            Role::Master(master) => Some(master),
            _ => None,
        }
    }

    /// What the controller says of the set.
    fn view(&self) -> (Stamp, BTreeSet<i64>) {
        let group = self.group();
        let stamp = Stamp { epoch: group.master_epoch, set_epoch: group.sync_state_set_epoch };
        (stamp, group.sync_state_set.clone())
    }

    /// By the controller's word.
    fn leads(&self, id: i64) -> bool {
        self.group().master == Some(id)
    }

    /// Whether it is still named master in an epoch that it led before its start.
    pub fn lies_low(&self, id: i64, rules: &Rules) -> bool {
        let Role::Starting { own } = self.broker(id).role else { return false };
        self.leads(id) && !rules.may_lead(own, self.group().master_epoch)
    }

    /// Whether there is another role for it than the one that it has.
    pub fn has_other_role(&self, id: i64, rules: &Rules) -> bool {
        let group = self.group();
        match &self.broker(id).role {
            Role::Starting { .. } => group.master.is_some() && !self.lies_low(id, rules),
            Role::Slave { .. } => self.leads(id),
            Role::Master(master) => !self.leads(id) || group.master_epoch != master.epoch,
        }
    }

    // -- what happens

    /// `action` done, by these rules; it was possible.
    pub fn step(&mut self, action: &Action, rules: &Rules) {
        match action {
            Action::Write(id) => {
                self.written += 1;
                let record = self.written;
                self.broker_mut(*id).log.push(record);
            }
            Action::Sync(id) => self.sync(*id),
            Action::Connect(slave, master) => self.connect(*slave, *master, rules),
            Action::Disconnect(slave, master) => {
                self.master_mut(*master).expect("leads").confirmed.remove(slave);
            }
            Action::Copy(slave, master) => self.copy(*slave, *master),
            Action::Kill(id) | Action::PowerCut(id) => {
                self.crashes += 1;
                self.disconnect_all(*id);
                let broker = self.broker_mut(*id);
                broker.role = Role::Starting { own: broker.epochs.last().map(|last| last.epoch) };
                if matches!(action, Action::PowerCut(_)) {
                    broker.log.truncate(broker.synced);
                }
            }
            Action::MasterLost(living) => self.elect(None, *living, rules),
            Action::Elect(id) => self.elect(Some(*id), Some(*id), rules),
            Action::TakeRole(id) => self.take_role(*id, rules),
            Action::Join(master, id) => self.propose(*master, Some(*id), None, rules),
            Action::Leave(master, id) => self.propose(*master, None, Some(*id), rules),
            Action::Handle(sender, change, answered) => self.handle(*sender, change, *answered, rules),
            Action::TimeOut(id) => self.time_out(*id, rules),
            Action::Ask(id) => {
                let view = self.view();
                self.master_mut(*id).expect("leads").told = Some(view);
            }
            Action::Take(id) => {
                let master = self.master_mut(*id).expect("leads");
                let (stamp, set) = master.told.take().expect("told");
                master.renew(stamp, set, rules);
            }
        }
        for id in self.ids() {
            self.settle(id, rules);
        }
        self.forget(rules);
    }

    /// What makes no difference any more: states that differ in nothing else are one.
    fn forget(&mut self, rules: &Rules) {
        let (now, _) = self.view();
        // The controller's epochs never go back, so they are refused for ever.
        self.requests.retain(|(_, change)| change.of >= now);
        for id in self.ids() {
            let Some(master) = self.master_mut(id) else { continue };
            if in_sync::is_settled(master.unanswered, master.stamp) {
                master.unanswered = None;
            }
            if rules.has(Rule::NewestView) && master.told.as_ref().is_some_and(|(stamp, _)| *stamp <= master.stamp) {
                master.told = None;
            }
        }
    }

    fn sync(&mut self, id: i64) {
        let broker = self.broker_mut(id);
        broker.synced = broker.log.len();
        let end = broker.synced as u64;
        for master in self.ids() {
            if let Some(confirmed) = self.master_mut(master).and_then(|master| master.confirmed.get_mut(&id)) {
                *confirmed = end;
            }
        }
    }

    /// The slave cuts off what is not the master's and follows it, where the epochs say how far the logs are one.
    fn connect(&mut self, slave: i64, master: i64, rules: &Rules) {
        let there = self.broker(master);
        let (epochs, end, epoch) =
            (there.epochs.clone(), there.log.len() as u64, self.master(master).expect("leads").epoch);
        let broker = self.broker_mut(slave);
        broker.role = Role::Slave { seen: epoch };
        if rules.has(Rule::Truncation) {
            let own = broker.log.len() as u64;
            let point = if own == 0 { Some(0) } else { broker.epochs.agree(own, &epochs, end) };
            let Some(point) = point else { return };
            broker.log.truncate(point as usize);
            broker.epochs.cut(point);
            broker.synced = broker.synced.min(point as usize);
        }
        let confirmed = (broker.synced as u64).min(end);
        self.disconnect_all(slave);
        self.master_mut(master).expect("leads").confirmed.insert(slave, confirmed);
    }

    fn copy(&mut self, slave: i64, master: i64) {
        let at = self.broker(slave).log.len();
        let there = self.broker(master);
        let (record, epoch) = (there.log[at], there.epochs.of(at as u64).expect("a master has begun its epoch").0);
        let broker = self.broker_mut(slave);
        if broker.epochs.last().is_none_or(|last| last.epoch < epoch.epoch) {
            broker.epochs.begin(epoch.epoch, epoch.start);
        }
        broker.log.push(record);
    }

    fn disconnect_all(&mut self, slave: i64) {
        for id in self.ids() {
            if let Some(master) = self.master_mut(id) {
                master.confirmed.remove(&slave);
            }
        }
    }

    fn elect(&mut self, by: Option<i64>, living: Option<i64>, rules: &Rules) {
        let alive = living.map(|id| {
            let broker = self.broker(id);
            let epoch = broker.epochs.last().map_or(0, |last| last.epoch);
            Alive { id, epoch, max_offset: broker.log.len() as i64, priority: 0 }
        });
        let alive = alive.into_iter().collect();
        let unclean = !rules.has(Rule::CleanElection);
        Arc::make_mut(&mut self.controller).apply(&Ask::Elect {
            group: NAME.into(),
            by,
            designate: false,
            unclean,
            alive,
        });
    }

    fn take_role(&mut self, id: i64, rules: &Rules) {
        self.disconnect_all(id);
        let leads = self.leads(id);
        let epoch = self.group().master_epoch;
        let broker = self.broker_mut(id);
        if matches!(broker.role, Role::Master(_) | Role::Slave { .. }) {
            broker.synced = broker.log.len(); // an orderly stop
        }
        let end = broker.log.len() as u64;
        if !leads {
            broker.epochs.cut(end);
            broker.role = Role::Slave { seen: epoch };
            return;
        }
        if rules.begins_anew(&broker.epochs, epoch) {
            let older = broker.epochs.entries().iter().filter(|entry| entry.epoch < epoch).copied();
            broker.epochs = Epochs::new(older.collect::<Vec<_>>()).expect("as they were");
        }
        broker.epochs.lead(epoch, end);
        self.lead(id);
    }

    /// The master's memory at the beginning of its role.
    fn lead(&mut self, id: i64) {
        let (stamp, set) = self.view();
        let end = self.broker(id).log.len() as u64;
        self.broker_mut(id).role = Role::Master(Master {
            epoch: stamp.epoch,
            stamp,
            set,
            joining: Joining::default(),
            unanswered: None,
            pending: None,
            told: None,
            confirmed: BTreeMap::new(),
            mark: end,
            shown: end,
            began: end,
        });
    }

    fn propose(&mut self, id: i64, joins: Option<i64>, leaves: Option<i64>, rules: &Rules) {
        self.changes += 1;
        let master = self.master_mut(id).expect("leads");
        let mut set = master.set.clone();
        set.extend(joins);
        set.retain(|one| Some(*one) != leaves);
        let of = match (rules.has(Rule::EpochsOfTheSet), &master.told) {
            (false, Some((newest, _))) => *newest,
            _ => Stamp { epoch: master.epoch, ..master.stamp },
        };
        if let Some(joins) = joins {
            master.joining.propose(joins, of);
        }
        let change = Change { set, of };
        master.pending = Some(change.clone());
        self.requests.insert((id, change));
    }

    fn handle(&mut self, sender: i64, change: &Change, answered: bool, rules: &Rules) {
        self.requests.remove(&(sender, change.clone()));
        let ask = Ask::AlterSyncStateSet {
            group: NAME.into(),
            master: sender,
            master_epoch: change.of.epoch,
            set: change.set.clone(),
            set_epoch: change.of.set_epoch,
            alive: self.ids().collect(), // it may have come when they were
        };
        if self.controller.judge(&ask).changes() {
            Arc::make_mut(&mut self.controller).apply(&ask);
        }
        let (stamp, set) = self.view();
        let Some(master) = self.master_mut(sender).filter(|master| answered && master.pending.as_ref() == Some(change))
        else {
            return;
        };
        master.pending = None;
        master.renew(stamp, set, rules);
        if in_sync::is_settled(master.unanswered, stamp) {
            change.set.iter().for_each(|id| master.joining.answered(*id));
        }
    }

    fn time_out(&mut self, id: i64, rules: &Rules) {
        let (stamp, set) = self.view();
        let master = self.master_mut(id).expect("leads");
        let change = master.pending.take().expect("it waits");
        master.unanswered = master.unanswered.max(Some(change.of));
        master.renew(stamp, set, rules);
        if !rules.has(Rule::CertainOutcome) {
            change.set.iter().for_each(|id| master.joining.answered(*id));
        }
    }

    /// Brings the mark up to date; what it allows is acknowledged.
    fn settle(&mut self, id: i64, rules: &Rules) {
        let synced = self.broker(id).synced as u64;
        let Some(master) = self.master_mut(id) else { return };
        let counted = master.joining.counted(&master.set, id);
        let confirmed = counted.iter().map(|one| master.confirmed.get(one).copied());
        let lowest = match master.stamp.epoch == master.epoch {
            true if rules.has(Rule::AbsentCount) => in_sync::lowest(confirmed),
            true => in_sync::lowest(confirmed.filter(Option::is_some)),
            false => None,
        };
        master.mark = in_sync::next_mark(master.mark, lowest, master.shown);
        let end = master.mark.min(synced);
        master.shown = master.shown.max(end);
        // A mark beyond the beginning is what all others have, so all before it is promised, too.
        let end = if master.mark > master.began { end } else { 0 };
        let promised = self.broker(id).log[..end as usize].to_vec();
        for (at, record) in promised.into_iter().enumerate() {
            match self.acked.get(at) {
                None => self.acked.push(record),
                Some(before) => self.differs |= *before != record,
            }
        }
    }
}

impl Master {
    fn renew(&mut self, stamp: Stamp, set: BTreeSet<i64>, rules: &Rules) {
        if stamp < self.stamp && rules.has(Rule::NewestView) {
            return;
        }
        (self.stamp, self.set) = (stamp, set);
        self.joining.settle(stamp);
    }

    /// Whether it counts nobody beside itself.
    pub fn is_alone(&self) -> bool {
        self.mark == ALONE
    }
}
