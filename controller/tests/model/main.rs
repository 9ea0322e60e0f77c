//! Election, epochs and truncation as a model that is searched through: every order of writes, copies, kills, power cuts, lost and late requests within the
//! bounds below. With the rules as they are nothing acknowledged is lost; with any one of them broken the search finds a way to lose it.
//! Source: replication sheet 7, 8.
mod rules;
mod world;

use rules::{Rule, Rules};
use stateright::{Checker, HasDiscoveries, Model, Path, Property};
use world::{Action, Role, World};

/// A group and how much may happen to it.
#[derive(Clone, Debug)]
struct Search {
    rules: Rules,
    brokers: usize,
    members: &'static [i64],
    records: u8,
    crashes: u8,
    changes: u8,
    epochs: i32,
}

impl Search {
    fn of_master(&self, world: &World, id: i64, actions: &mut Vec<Action>) {
        let (broker, Some(master)) = (world.broker(id), world.master(id)) else { return };
        if world.written < self.records {
            actions.push(Action::Write(id));
        }
        for other in world.ids().filter(|other| *other != id) {
            let connected = master.confirmed.contains_key(&other);
            if connected {
                actions.push(Action::Disconnect(other, id));
                if world.broker(other).log.len() < broker.log.len() {
                    actions.push(Action::Copy(other, id));
                }
            } else if matches!(world.broker(other).role, Role::Slave { seen } if seen <= master.epoch) {
                actions.push(Action::Connect(other, id));
            }
            if world.changes < self.changes && master.pending.is_none() {
                let end = if self.rules.has(Rule::HasAll) { broker.log.len() as u64 } else { 0 };
                let begun = broker.epochs.last().map_or(0, |last| last.start);
                let has_all = master.confirmed.get(&other).is_some_and(|confirmed| *confirmed >= end.max(begun));
                match master.set.contains(&other) {
                    true => actions.push(Action::Leave(id, other)),
                    false if has_all => actions.push(Action::Join(id, other)),
                    false => {}
                }
            }
        }
        if master.pending.is_some() {
            actions.push(Action::TimeOut(id));
        }
        match master.told {
            Some(_) => actions.push(Action::Take(id)),
            None if self.is_behind(world, id) => actions.push(Action::Ask(id)),
            // An answer that says nothing new matters only where an older one is taken after a newer one.
            None if master.pending.is_some() && !self.rules.has(Rule::NewestView) => actions.push(Action::Ask(id)),
            None => {}
        }
    }

    fn is_behind(&self, world: &World, id: i64) -> bool {
        let (group, master) = (world.group(), world.master(id).expect("leads"));
        (group.master_epoch, group.sync_state_set_epoch) != (master.stamp.epoch, master.stamp.set_epoch)
    }
}

impl Model for Search {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.brokers, self.members)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let may_elect = world.group().master_epoch < self.epochs;
        if let Some(master) = world.group().master.filter(|_| may_elect) {
            actions.push(Action::MasterLost(None));
            actions.extend(world.ids().filter(|id| *id != master).map(|id| Action::MasterLost(Some(id))));
        }
        for id in world.ids() {
            let broker = world.broker(id);
            let unsynced = broker.synced < broker.log.len();
            let starts = matches!(broker.role, Role::Starting { .. });
            if unsynced && !starts {
                actions.push(Action::Sync(id));
            }
            if world.crashes < self.crashes {
                if !starts {
                    actions.push(Action::Kill(id));
                }
                if unsynced {
                    actions.push(Action::PowerCut(id));
                }
            }
            if may_elect && world.group().master.is_none() {
                actions.push(Action::Elect(id));
            }
            if world.has_other_role(id, &self.rules) {
                actions.push(Action::TakeRole(id));
            }
            self.of_master(world, id, actions);
        }
        for (sender, change) in &world.requests {
            actions.push(Action::Handle(*sender, change.clone(), true));
            actions.push(Action::Handle(*sender, change.clone(), false));
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.step(&action, &self.rules);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always(KEPT, |_, world: &World| {
                let leads = |id: &i64| {
                    let group = world.group();
                    group.master == Some(*id) && world.master(*id).is_some_and(|m| m.epoch == group.master_epoch)
                };
                !world.differs && world.ids().filter(leads).all(|id| world.broker(id).log.starts_with(&world.acked))
            }),
            Property::always(ONE_MASTER, |_, world: &World| {
                let mut epochs: Vec<i32> =
                    world.ids().filter_map(|id| world.master(id)).map(|master| master.epoch).collect();
                epochs.sort_unstable();
                epochs.windows(2).all(|pair| pair[0] < pair[1])
            }),
            Property::always(SAME_LOGS, |_, world: &World| {
                world.ids().filter_map(|id| Some((id, world.master(id)?))).all(|(id, master)| {
                    let log = &world.broker(id).log;
                    master.confirmed.keys().all(|slave| log.starts_with(&world.broker(*slave).log))
                })
            }),
            // What has to be possible at all, or the rest would say nothing.
            Property::sometimes("a record is acknowledged by two", |_, world: &World| {
                world.acked.len() > 1 && world.ids().any(|id| world.master(id).is_some_and(|m| m.set.len() > 1))
            }),
            Property::sometimes("a master leads alone", |_, world: &World| {
                world.ids().any(|id| world.master(id).is_some_and(world::Master::is_alone))
            }),
            Property::sometimes("another one leads and acknowledges", |_, world: &World| {
                world.acked.len() > 1 && world.ids().any(|id| id != 1 && world.master(id).is_some())
            }),
        ];
        if self.rules.without.is_some() {
            all.truncate(1); // the search ends with the first discovery
        }
        all
    }
}

const KEPT: &str = "nothing acknowledged is lost";
const ONE_MASTER: &str = "an epoch has one master";
const SAME_LOGS: &str = "who follows a master has its log";

/// Two brokers, and much happens to them.
const TWO: Search = Search {
    rules: Rules { without: None },
    brokers: 2,
    members: &[1, 2],
    records: 2,
    crashes: 2,
    changes: 2,
    epochs: 4,
};
/// Three, one of which may join; and three that are in step and may crash.
const THREE: [Search; 2] = [
    Search { brokers: 3, records: 1, crashes: 0, epochs: 3, ..TWO },
    Search { brokers: 3, members: &[1, 2, 3], records: 1, crashes: 1, changes: 1, epochs: 3, ..TWO },
];

fn holds(what: Search) {
    let checker = what.checker().threads(1).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn two_brokers_lose_nothing() {
    holds(TWO);
}

#[test]
fn three_brokers_of_which_one_may_join_lose_nothing() {
    let [joins, _] = THREE;
    holds(joins);
}

#[test]
fn three_brokers_in_step_lose_nothing() {
    let [_, in_step] = THREE;
    holds(in_step);
}

/// Each rule is needed: without it the search finds what is lost, and how.
#[test]
fn without_any_one_rule_something_acknowledged_is_lost() {
    let two = Search { crashes: 1, epochs: 3, ..TWO };
    let three = Search { epochs: 2, ..THREE[0].clone() };
    let rows = [
        (Rule::CertainOutcome, &two),
        (Rule::EpochsOfTheSet, &three),
        (Rule::NewEpoch, &two),
        (Rule::NotAnew, &two),
        (Rule::NewestView, &two),
        (Rule::AbsentCount, &two),
        (Rule::CleanElection, &two),
        (Rule::Truncation, &two),
        (Rule::HasAll, &two),
    ];
    for (rule, of) in rows {
        let broken = Search { rules: Rules { without: Some(rule) }, ..of.clone() };
        let checker = broken.checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
        let found = checker.discovery(KEPT);
        let states = checker.unique_state_count();
        println!("{rule:?}, {states} states: {:?}", found.clone().map(Path::into_actions));
        assert!(found.is_some(), "{rule:?} makes no difference in {states} states");
    }
}
