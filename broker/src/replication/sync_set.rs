//! Controller mode on the replication shard: the epochs of this log, and on a master the SyncStateSet, its replicas that have all that is
//! acknowledged. It joins who has caught up, and takes out who has not for long; the controller has the last word on both (1001).
//!
//! While a change is under way, both sets count: acknowledgements wait for the members of either, and go on waiting when the change gets no
//! answer, until a newer set says what became of it. A new member is proposed only once it has everything that was acknowledged
//! before it counted. The rules stand in [`uringmq_proto::in_sync`]. Source: replication sheet 7.5.
use crate::mesh::Event;
use crate::replicas::{AlterError, Replicas, View};
use crate::replication::master::Slave;
use crate::replication::{Replication, epoch_file};
use crate::shard::Shard;
use futures_lite::future;
use glommio::timer::sleep;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use uringmq_proto::epochs::Epochs;
use uringmq_proto::in_sync::{self, Change, Joining, Stamp};

/// A replica that does not get what it lacks within this is not proposed now.
const JOIN_WAIT: Duration = Duration::from_secs(3);
/// Who had everything so short a time ago is near enough to be waited for: under load nobody has all of it at any moment.
const NEAR: Duration = Duration::from_secs(1);
/// Heartbeats say what was true so long ago at most.
const TELL: Duration = Duration::from_millis(200);

/// Of one broker under a controller.
pub struct Switch {
    pub replicas: Replicas,
    pub epochs: RefCell<Epochs>,
    /// As the controller has it.
    pub view: RefCell<View>,
    /// Also waited for, until it is certain whether they are members.
    joining: RefCell<Joining>,
    /// One change at a time.
    altering: Cell<bool>,
    /// When each replica had everything last; those of the set that never came count from the start.
    caught_up: RefCell<BTreeMap<i64, Instant>>,
    started: Instant,
    /// Replicas whose connection ended since.
    left: RefCell<BTreeSet<i64>>,
    /// A slave's: it is to follow another master.
    pub master_changed: Event,
    /// A slave reported.
    reported: Event,
}

impl Switch {
    pub fn new(replicas: Replicas, epochs: Epochs) -> Self {
        Switch {
            view: RefCell::new(replicas.first.clone()),
            replicas,
            epochs: RefCell::new(epochs),
            joining: RefCell::default(),
            altering: Cell::default(),
            caught_up: RefCell::default(),
            started: Instant::now(),
            left: RefCell::default(),
            master_changed: Event::default(),
            reported: Event::default(),
        }
    }

    /// Up to where everything may be acknowledged, where that was `before` and consumers are shown the log up to `shown`.
    pub fn mark(&self, shard: &Shard, slaves: &[Rc<Slave>], before: u64, shown: u64) -> u64 {
        let (view, joining) = (self.view.borrow(), self.joining.borrow());
        let of = |id: i64| {
            let of_it = slaves.iter().filter(|slave| slave.replica.get() == Some(id) && slave.next.get().is_some());
            of_it.map(|slave| slave.confirmed(shard)).max()
        };
        // The set of another epoch says nothing of what this one promised.
        let lowest = match view.epoch == self.replicas.first.epoch {
            true => in_sync::lowest(joining.counted(&view.set, self.replicas.id).into_iter().map(of)),
            false => None,
        };
        in_sync::next_mark(before, lowest, shown)
    }

    /// A change of the set as it is known now; in the epoch that this broker is master in, also when another one is known by now.
    fn change(&self, to: impl FnOnce(&BTreeSet<i64>) -> BTreeSet<i64>) -> Change {
        let view = self.view.borrow();
        Change { set: to(&view.set), of: Stamp { epoch: self.replicas.first.epoch, ..view.stamp() } }
    }

    /// Heartbeats say the newest epoch of this log.
    pub fn tell_epoch(&self) {
        let last = self.epochs.borrow().last().map_or(0, |last| last.epoch);
        self.replicas.told.epoch.store(last.into(), Ordering::Relaxed);
    }

    pub fn note_report(&self, id: i64, caught_up: Option<Instant>) {
        if let Some(at) = caught_up {
            self.caught_up.borrow_mut().insert(id, at);
        }
        self.left.borrow_mut().remove(&id);
        self.reported.set();
    }

    pub fn note_gone(&self, id: i64) {
        self.left.borrow_mut().insert(id);
    }

    /// Members that are to leave at `now`.
    fn laggards(&self, now: Instant, limit: Duration) -> BTreeSet<i64> {
        let (view, caught_up, left) = (self.view.borrow(), self.caught_up.borrow(), self.left.borrow());
        let late = |id: &i64| {
            let since = caught_up.get(id).copied().unwrap_or(self.started);
            left.contains(id) || now.saturating_duration_since(since) > limit
        };
        view.set.iter().copied().filter(|id| *id != self.replicas.id && late(id)).collect()
    }

    fn take_view(&self, shard: &Shard, told: View) {
        let before = self.view.borrow().master.clone();
        if !self.view.borrow_mut().renew(told) {
            return;
        }
        let view = self.view.borrow();
        self.joining.borrow_mut().settle(view.stamp());
        shard.marks.in_sync.store(view.set.len() as u64, Ordering::Relaxed);
        if before != view.master && view.master.is_some() && shard.follows() {
            self.master_changed.set();
        }
    }
}

/// Keeps true what heartbeats say of the log, until the broker stops.
pub async fn tell(shard: Rc<Shard>) {
    let told = switch(&shard).replicas.told.clone();
    while !shard.gate.is_closed() {
        told.set_log(shard.marks.written.load(Ordering::Acquire), shard.marks.readable().0);
        sleep(TELL).await;
    }
}

/// Takes up what the agent learns, until the shard's doors close.
pub async fn watch(shard: Rc<Shard>) {
    replication(&shard).settle(&shard); // a master alone waits for nobody
    let views = switch(&shard).replicas.views.clone();
    while !shard.doors.is_closed() {
        let view = future::or(async { views.recv_async().await.ok() }, async {
            shard.doors.closed().await;
            None
        });
        let Some(view) = view.await else { return };
        switch(&shard).take_view(&shard, view);
        replication(&shard).settle(&shard);
    }
}

/// The master's look at who is behind, again and again.
pub async fn check(shard: Rc<Shard>) {
    let period = Duration::from_millis(shard.config().check_sync_state_set_ms);
    while !shard.doors.is_closed() {
        future::or(shard.doors.closed(), async {
            sleep(period).await;
        })
        .await;
        let limit = Duration::from_millis(shard.config().ha_not_caught_up_ms);
        let late = switch(&shard).laggards(Instant::now(), limit);
        if !late.is_empty() && !shard.doors.is_closed() && !switch(&shard).altering.replace(true) {
            leave(&shard, late).await;
            switch(&shard).altering.set(false);
        }
        trim_epochs(&shard).await;
    }
}

async fn leave(shard: &Rc<Shard>, late: BTreeSet<i64>) {
    let switch = switch(shard);
    let without = switch.change(|set| set - &late);
    // Until the controller agrees they are waited for.
    match switch.replicas.alter(without).await {
        Ok(view) => {
            info!(?late, set = ?view.set, "the SyncStateSet without replicas that are behind");
            switch.take_view(shard, view);
            replication(shard).settle(shard);
        }
        Err(e) => warn!(?late, error = %e, "replicas that are behind cannot leave the SyncStateSet now"),
    }
}

/// A replica reported: where it has caught up and is no member yet, it is proposed.
pub fn consider(shard: &Rc<Shard>, slave: &Slave) {
    let (switch, Some(id)) = (switch(shard), slave.replica.get()) else { return };
    let known = switch.view.borrow().set.contains(&id);
    if slave.learner.get() || known || switch.altering.get() {
        return;
    }
    let begun = switch.epochs.borrow().last().map_or(0, |last| last.start);
    let near = switch.caught_up.borrow().get(&id).is_some_and(|at| at.elapsed() < NEAR);
    if !near || slave.next.get().is_none() || slave.confirmed(shard) < begun {
        return;
    }
    switch.altering.set(true);
    let shard = shard.clone();
    glommio::spawn_local(async move {
        join(&shard, id).await;
        let switch = self::switch(&shard);
        switch.altering.set(false);
    })
    .detach();
}

async fn join(shard: &Rc<Shard>, id: i64) {
    let switch = switch(shard);
    switch.joining.borrow_mut().begin(id);
    replication(shard).settle(shard);
    // What the writer acknowledges from here on, it acknowledges by the mark that the new member is in.
    let floor = shard.run_on(shard.writer_shard, |s| async move { s.marks.written.load(Ordering::Acquire) });
    let Some(floor) = floor.await else { return };
    let has_all = async {
        while ack_of(shard, id).is_some_and(|acked| acked < floor) {
            switch.reported.wait().await;
        }
        ack_of(shard, id).is_some()
    };
    let has_all = future::or(has_all, async {
        sleep(JOIN_WAIT).await;
        false
    });
    if !has_all.await {
        switch.joining.borrow_mut().give_up(id);
        debug!(id, "a replica fell behind before it was proposed for the SyncStateSet");
        return replication(shard).settle(shard);
    }
    let with = switch.change(|set| set | &BTreeSet::from([id]));
    switch.joining.borrow_mut().propose(id, with.of);
    match switch.replicas.alter(with).await {
        Ok(view) => {
            info!(id, set = ?view.set, "the SyncStateSet with a replica that has caught up");
            switch.joining.borrow_mut().answered(id);
            switch.take_view(shard, view);
        }
        Err(AlterError::NotMade(e)) => {
            warn!(id, error = e, "a replica that has caught up cannot join the SyncStateSet now");
            switch.joining.borrow_mut().answered(id);
            replication(shard).settle(shard);
            sleep(JOIN_WAIT).await;
        }
        // It may become a member all the same: it is waited for until a newer set says, and proposed again when it reports.
        Err(AlterError::Unknown(e)) => {
            warn!(id, error = e, "whether a replica is in the SyncStateSet is not known");
            sleep(JOIN_WAIT).await;
        }
        Err(AlterError::Stopping) => return,
    }
    replication(shard).settle(shard);
}

fn ack_of(shard: &Shard, id: i64) -> Option<u64> {
    let slaves = replication(shard).slaves.borrow();
    slaves.iter().filter(|slave| slave.replica.get() == Some(id)).map(|slave| slave.confirmed(shard)).max()
}

/// Epochs whose bytes retention has removed.
async fn trim_epochs(shard: &Rc<Shard>) {
    let root = shard.config().store_root.clone();
    let trimmed = {
        let mut epochs = switch(shard).epochs.borrow_mut();
        epochs.trim(shard.marks.min().0).then(|| epochs.clone())
    };
    if let Some(epochs) = trimmed
        && let Err(e) = epoch_file::save(&shard.io, &root, &epochs).await
    {
        warn!(error = %e, "the epochs are not saved");
    }
}

fn replication(shard: &Shard) -> &Replication {
    shard.replication.as_ref().expect("runs on the replication shard")
}

pub fn switch(shard: &Shard) -> &Switch {
    replication(shard).switch.as_ref().expect("in controller mode")
}
