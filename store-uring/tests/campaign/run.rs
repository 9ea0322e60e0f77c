//! One seed: a random life of a store, through stops, kills and power cuts, with every I/O operation of it a crash point.
use crate::judge::judge;
use crate::machine::Machine;
use crate::model::{Model, TABLES};
use crate::plan::{DELETABLE, Plan, Random, Step};
use crate::rot::lose_queue_file;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use uringmq_store::StoreError;
use uringmq_store::io::Io;
use uringmq_store::io::sim::{Faults, SimIo, block_on};

const STEPS: usize = 70;
/// Of so many crash points one has its recovery crashed at every operation, and another goes on with sends, a clean stop and a start.
const AGAIN_EVERY: u64 = 96;
const GO_ON_EVERY: u64 = 8;

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub seeds: u64,
    pub steps: u64,
    pub records: u64,
    pub crash_points: u64,
    /// Operations of a recovery at which it was crashed.
    pub recovery_crash_points: u64,
    pub recoveries: u64,
    pub errors_met: u64,
}

impl Totals {
    pub fn add(&mut self, other: Totals) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.records += other.records;
        self.crash_points += other.crash_points;
        self.recovery_crash_points += other.recovery_crash_points;
        self.recoveries += other.recoveries;
        self.errors_met += other.errors_met;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds, {} steps, {} records; {} crash points, {} of recoveries; {} recoveries judged; {} errors met",
            self.seeds,
            self.steps,
            self.records,
            self.crash_points,
            self.recovery_crash_points,
            self.recoveries,
            self.errors_met
        )
    }
}

/// Shared with the watcher of the disk.
struct Court {
    plan: Plan,
    model: Rc<RefCell<Model>>,
    totals: RefCell<Totals>,
    /// What is under way.
    doing: RefCell<String>,
}

/// Runs a seed to its end; panics at the first fault.
pub fn run(seed: u64) -> Totals {
    let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9));
    let plan = Plan::new(&mut random, seed);
    let court = Rc::new(Court {
        plan: plan.clone(),
        model: Rc::default(),
        totals: RefCell::default(),
        doing: RefCell::new(format!("seed {seed}, start")),
    });
    let io = SimIo::new(seed, Faults::none());
    io.plant_dir(std::path::Path::new(crate::plan::ROOT));
    let mut life = Life { court: court.clone(), plan, random, io, armed: false };
    block_on(life.run(seed));
    let mut totals = court.totals.borrow_mut();
    totals.seeds = 1;
    totals.records = court.model.borrow().log.len() as u64;
    *totals
}

impl Court {
    /// A crash in the middle of an operation: what a kill leaves, and what power cuts leave.
    async fn crash(&self, crashed: SimIo) {
        let point = {
            let mut totals = self.totals.borrow_mut();
            totals.crash_points += 1;
            totals.recoveries += 3;
            totals.crash_points
        };
        let what = format!("{}, crash point {point}", self.doing.borrow());
        let model = self.model.borrow().clone();
        let killed = format!("{what}, killed");
        let (machine, _) = judge(crashed.after_kill(), &self.plan, &model, model.written, &killed).await;
        if point % GO_ON_EVERY == 1 {
            self.go_on(machine, &model, &killed).await;
        }
        for choice in 0..2 {
            let cut = format!("{what}, power cut {choice}");
            let (machine, _) = judge(crashed.after_crash_of(choice), &self.plan, &model, model.durable, &cut).await;
            if point % GO_ON_EVERY == 1 + choice {
                self.go_on(machine, &model, &cut).await;
            }
        }
        if point.is_multiple_of(AGAIN_EVERY) {
            let by_cut = (point / AGAIN_EVERY).is_multiple_of(2);
            let (left, sure) = match by_cut {
                true => (crashed.after_crash(), model.durable),
                false => (crashed.after_kill(), model.written),
            };
            self.crash_recovery(left, &model, sure, by_cut, &what).await;
        }
    }

    /// Recovers, crashing at each operation, and recovers from that.
    async fn crash_recovery(&self, left: SimIo, model: &Model, sure: usize, by_cut: bool, what: &str) {
        let copies: Rc<RefCell<Vec<SimIo>>> = Rc::default();
        let seen = copies.clone();
        left.watch(Rc::new(move |copy| seen.borrow_mut().push(copy)));
        let opened = Machine::open(left.clone(), &self.plan.config).await;
        drop(opened.unwrap_or_else(|e| panic!("{what}: {e}")));
        left.unwatch();
        for (n, copy) in copies.take().into_iter().enumerate() {
            let what = format!("{what}, and at {n} of its recovery");
            let again = if by_cut { copy.after_crash_of(n as u64) } else { copy.after_kill() };
            judge(again, &self.plan, model, sure, &what).await;
            let mut totals = self.totals.borrow_mut();
            totals.recovery_crash_points += 1;
            totals.recoveries += 1;
        }
    }

    /// A recovered store takes sends, stops clean, and has all of it afterwards.
    async fn go_on(&self, mut machine: Machine, before: &Model, what: &str) {
        if before.deleting.is_some() {
            return; // what its numbers are is not known
        }
        let what = format!("{what}, went on");
        let mut model = before.clone();
        let count = model.log.partition_point(|sent| sent.phy < machine.opened.end.0);
        model.found(count);
        let model = Rc::new(RefCell::new(model));
        let mut random = Random::new(count as u64);
        let io = machine.io.clone();
        let done = async {
            for _ in 0..3 {
                machine.send(&self.plan, &mut random, &model).await?;
            }
            machine.stop(&model).await
        };
        done.await.unwrap_or_else(|e: StoreError| panic!("{what}: {e}"));
        let model = model.borrow().clone();
        let (machine, _) = judge(io.after_crash(), &self.plan, &model, model.log.len(), &what).await;
        assert!(machine.opened.clean, "{what}: not clean");
        let report = &machine.opened.report;
        assert!(report.queue_entries_rebuilt == 0 && report.cut_at.is_none(), "{what}: {report:?}");
        self.totals.borrow_mut().recoveries += 1;
    }
}

struct Life {
    court: Rc<Court>,
    plan: Plan,
    random: Random,
    io: SimIo,
    /// Errors may come, or follow from those that came: a part whose sync failed takes no more until the next start.
    armed: bool,
}

impl Life {
    async fn run(&mut self, seed: u64) {
        let mut machine = self.start(format!("seed {seed}, first start")).await;
        for step_number in 0..STEPS {
            let step = Step::next(&mut self.random);
            let what = format!("seed {seed}, step {step_number} {step:?}");
            *self.court.doing.borrow_mut() = what.clone();
            self.court.totals.borrow_mut().steps += 1;
            let poisoned = machine.log.keeper().poisoned().is_some();
            machine = match step {
                Step::Kill => self.restart(machine, false, what).await,
                Step::CutPower => self.restart(machine, true, what).await,
                _ if poisoned => self.restart(machine, step_number % 2 == 0, what).await,
                Step::Stop => match machine.stop(&self.court.model).await {
                    Ok(()) => {
                        let machine = self.start(format!("{what}, start")).await;
                        assert!(machine.opened.clean, "{what}");
                        machine
                    }
                    Err(e) => {
                        self.met(e, &what);
                        self.start(format!("{what}, start")).await
                    }
                },
                _ => match self.step(&mut machine, step).await {
                    Ok(()) => machine,
                    Err(e) => {
                        self.met(e, &what);
                        let half_deleted = self.court.model.borrow().deleting.is_some();
                        if half_deleted { self.restart(machine, step_number % 2 == 0, what).await } else { machine }
                    }
                },
            };
        }
        let machine = self.restart(machine, false, format!("seed {seed}, last start")).await;
        let model = self.court.model.borrow().clone();
        judge(machine.io.after_kill(), &self.plan, &model, model.log.len(), &format!("seed {seed}, end")).await;
    }

    async fn step(&mut self, machine: &mut Machine, step: Step) -> Result<(), StoreError> {
        let model = self.court.model.clone();
        let shard = self.random.below(crate::machine::SHARDS as u64) as usize;
        match step {
            Step::Send => machine.send(&self.plan, &mut self.random, &model).await,
            Step::Dispatch => machine.dispatch(shard).await,
            Step::Flush => machine.flush(shard).await,
            Step::Checkpoint => machine.checkpoint(&model).await,
            Step::SaveTable => {
                let table = self.random.below(TABLES as u64) as usize;
                machine.save_table(table, &model).await
            }
            Step::Retain => machine.retain(&model).await,
            Step::Keep => machine.log.keeper().step().await.map(drop),
            Step::Fault if self.fault().await => {
                // What the refused batch left meets the next one.
                if let Err(e) = machine.send(&self.plan, &mut self.random, &model).await {
                    self.met(e, "a send to a disk that is full for a moment");
                }
                self.io.set_faults(self.calm());
                machine.send(&self.plan, &mut self.random, &model).await
            }
            Step::Fault => Ok(()),
            Step::Decay => {
                machine.decay(&mut self.random, &model);
                Ok(())
            }
            Step::Rot => {
                machine.rot(&mut self.random, &model);
                Ok(())
            }
            Step::Delete => {
                let topic = self.random.pick(&DELETABLE);
                machine.delete(topic, &model).await
            }
            Step::Stop | Step::Kill | Step::CutPower => unreachable!("handled by the caller, which owns the machine"),
        }
    }

    /// An error is met only when one was ordered.
    fn met(&self, e: StoreError, what: &str) {
        assert!(self.armed, "{what}: {e}");
        self.court.totals.borrow_mut().errors_met += 1;
    }

    fn calm(&self) -> Faults {
        Faults { yielding: self.plan.yielding, short_write_every: self.plan.short_write_every, ..Faults::none() }
    }

    /// Errors to come, or none any more. True when a batch is to be refused right now.
    async fn fault(&mut self) -> bool {
        let mut faults = self.calm();
        if !self.plan.faults || (self.armed && self.random.one_in(2)) {
            self.io.set_faults(faults);
            return false;
        }
        let mut refused = false;
        let soon = self.random.below(12);
        let counts = self.io.counts();
        match self.random.below(8) {
            0 => faults.write_error_at = Some(counts.writes + soon),
            1 => faults.sync_error_at = Some(counts.syncs + soon),
            2 => faults.read_error_at = Some(counts.reads + soon),
            3 => faults.write_no_space_at = Some(counts.writes + soon),
            4 => {
                faults.write_no_space_at = Some(counts.writes + self.random.below(2));
                refused = true;
            }
            _ => {
                let space = self.io.space(std::path::Path::new("/")).await.expect("not crashed");
                let room = self.random.pick(&[0, 512, 4096, 12_288, 40_960]);
                faults.capacity_bytes = Some(space.total_bytes - space.free_bytes + room);
            }
        }
        self.armed = true;
        self.io.set_faults(faults);
        refused
    }

    async fn restart(&mut self, machine: Machine, by_cut: bool, what: String) -> Machine {
        drop(machine);
        self.io = if by_cut { self.io.after_crash() } else { self.io.after_kill() };
        if self.random.one_in(4) {
            lose_queue_file(&self.io, &mut self.random);
        }
        if by_cut {
            let mut model = self.court.model.borrow_mut();
            model.written = model.durable;
        }
        self.start(what).await
    }

    /// Judges what is there, then opens it for good.
    async fn start(&mut self, what: String) -> Machine {
        self.io.unwatch();
        self.armed = false;
        let io = self.io.after_kill();
        let (_, count) = {
            let model = self.court.model.borrow().clone();
            judge(io, &self.plan, &model, model.written, &what).await
        };
        *self.court.doing.borrow_mut() = what.clone();
        self.io.set_faults(self.calm());
        let court = self.court.clone();
        self.io.watch(Rc::new(move |crashed| block_on(court.crash(crashed))));
        let machine = Machine::open(self.io.clone(), &self.plan.config).await;
        self.court.model.borrow_mut().found(count);
        let mut machine = machine.unwrap_or_else(|e| panic!("{what}: {e}"));
        machine.forget_checkpoints_above(machine.opened.covered, &self.court.model);
        let deleting = self.court.model.borrow().deleting.clone();
        if let Some(topic) = deleting {
            let deleted = machine.delete(&topic, &self.court.model).await;
            deleted.unwrap_or_else(|e| panic!("{what}, deleting {topic} again: {e}"));
        }
        machine
    }
}
