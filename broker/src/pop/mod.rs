//! POP consumption: the broker hands out messages for a time instead of queues for good. What a pop takes is noted by a check point in the
//! revive topic before it is given; what is not acknowledged in its time is stored again in the group's retry topic of the topic. Source:
//! behaviour sheet 9, wire-protocol sheet 6, store-format sheet 12; known faults O01, O02, O05, O07; checked against Apache's broker 5.5.0.
//!
//! - [`ask`]: a pop on its connection's shard: which queues are asked, in what order; the answer;
//! - [`take`]: a pop on a queue's owner: one at a time for a group, the check point, the group's offset;
//! - [`in_flight`]: how many messages a group has in hand, on the queue's owner;
//! - [`order`]: ordered pops of a queue, on its owner; [`order_file`] keeps them;
//! - [`park`]: pops that wait for messages, on their connection's shard;
//! - [`log`]: the records of the revive topic, which come up when their time has come (they are timers);
//! - [`revive`]: what follows the revive topic, each queue on its owner;
//! - [`recover`]: the groups' offsets after a kill.
//!
//! Where Apache's broker differs: an acknowledgement of a retried message by its first topic's name is of the retry topic there too; a revive
//! queue, an invisible time or a number of messages that cannot be is refused; what was revived is acknowledged in the revive topic, so a
//! restart does not revive it twice.
pub mod ask;
pub mod in_flight;
pub mod log;
pub mod order;
mod order_file;
pub mod park;
pub mod recover;
pub mod revive;
pub mod take;

use crate::delay::Quiet;
use crate::shard::Shard;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use in_flight::InFlight;
use order::Orders;
use park::Parked;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tracing::info;
use uringmq_proto::types::QueueKey;
use uringmq_store::turn::Turn;

pub use order_file::{load as load_orders, save as save_orders, save_periodically as save_orders_periodically};

/// The group whose offsets say how far the revive topic is read.
pub const REVIVE_GROUP: &str = "CID_RMQ_SYS_REVIVE_GROUP";

/// One shard's part.
#[derive(Default)]
pub struct Pop {
    /// Queues of this shard that are being popped, by group; whether somebody waits for the end of it.
    busy: RefCell<HashMap<(QueueKey, Arc<str>), bool>>,
    parked: Parked,
    /// Ordered pops of this shard's queues.
    pub orders: Orders,
    /// What groups have in hand of this shard's queues.
    pub in_flight: InFlight,
    saving: Turn,
    /// Spreads check points over the revive queues, and pops over queues.
    turn: Cell<u32>,
    failures: Quiet,
    popped: Cell<u64>,
    acked: Cell<u64>,
    revived: Cell<u64>,
}

fn count(cell: &Cell<u64>, more: usize) {
    cell.set(cell.get() + more as u64);
}

impl Pop {
    fn next_turn(&self) -> u32 {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        turn
    }

    pub fn note_acked(&self, messages: usize) {
        count(&self.acked, messages);
    }

    /// Whether the queue is being popped for the group; then those who wait for the queue are rung at the end of it.
    fn wait_if_busy(&self, key: QueueKey, group: &Arc<str>) -> bool {
        self.busy.borrow_mut().get_mut(&(key, group.clone())).is_some_and(|awaited| {
            *awaited = true;
            true
        })
    }
}

/// Held by the one who pops a queue for a group.
pub struct Busy {
    shard: Rc<Shard>,
    held: (QueueKey, Arc<str>),
}

impl Busy {
    /// On the queue's owner; `None` while another has it.
    fn take(shard: &Rc<Shard>, key: QueueKey, group: &Arc<str>) -> Option<Self> {
        let held = (key, group.clone());
        match shard.pop.busy.borrow_mut().entry(held.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                free.insert(false);
                Some(Busy { shard: shard.clone(), held })
            }
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let awaited = self.shard.pop.busy.borrow_mut().remove(&self.held);
        if awaited == Some(true) {
            self.shard.ring_pollers(self.held.0);
        }
    }
}

/// Logged once at a stop.
pub fn log_totals(shard: &Shard) {
    let pop = &shard.pop;
    if pop.popped.get() + pop.acked.get() + pop.revived.get() > 0 {
        info!(
            shard = shard.id,
            popped = pop.popped.get(),
            acked = pop.acked.get(),
            revived = pop.revived.get(),
            "messages popped in this run"
        );
    }
}
