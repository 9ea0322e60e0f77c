//! Controller mode: what is written and not yet in all of the SyncStateSet. Consumers must not see it, as it may be lost with this broker.
//! Batches wait here for the mark to pass them; they leave in log order, and with them the readable mark moves.
//!
//! The mark may stand inside a record, so it is batches that become readable, whole ones. When a lot waits, their contents are let go of, and
//! beyond that their borders too: shards then find the same in the log.
use crate::shard::Shard;
use crate::writer::committed::Committed;
use crate::writer::tell_all;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Contents of batches that are kept.
const BYTES_MAX: u64 = 64 << 20;
/// Borders between batches that are kept.
const BORDERS_MAX: usize = 4096;

struct Held {
    to: u64,
    /// Missing where there was no room.
    committed: Option<Committed>,
}

#[derive(Default)]
pub struct Unconfirmed {
    held: RefCell<VecDeque<Held>>,
    bytes: Cell<u64>,
}

/// Up to where consumers may read.
pub fn bound(shard: &Shard) -> u64 {
    let config = shard.config.borrow();
    if !config.confirms() {
        return u64::MAX;
    }
    match shard.follows() {
        true => shard.marks.confirmed.load(Ordering::Acquire),
        false => shard.marks.replicated.load(Ordering::Acquire),
    }
}

impl Unconfirmed {
    pub fn hold(&self, committed: Committed) {
        let (to, bytes) = (committed.to.0, committed.to.0 - committed.from.0);
        let mut held = self.held.borrow_mut();
        let room = self.bytes.get() + bytes <= BYTES_MAX && held.len() < BORDERS_MAX;
        if held.len() >= BORDERS_MAX
            && let Some(last) = held.back_mut().filter(|last| last.committed.is_none())
        {
            last.to = to;
            return;
        }
        if room {
            self.bytes.set(self.bytes.get() + bytes);
        }
        held.push_back(Held { to, committed: room.then_some(committed) });
    }

    /// Shows what ends at or before `bound`.
    pub fn release(&self, shard: &Shard, bound: u64) {
        while let Some(next) = self.take(bound) {
            shard.marks.readable.store(next.to, Ordering::Release);
            // Without a hint the shards read the log when they next look.
            if let Some(mut committed) = next.committed {
                committed.since = Instant::now();
                tell_all(shard, committed);
            }
        }
    }

    fn take(&self, bound: u64) -> Option<Held> {
        let mut held = self.held.borrow_mut();
        let next = held.front().is_some_and(|next| next.to <= bound).then(|| held.pop_front()).flatten()?;
        if let Some(committed) = &next.committed {
            self.bytes.set(self.bytes.get() - (committed.to.0 - committed.from.0));
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;
    use uringmq_proto::types::PhyOffset;

    fn batch(from: u64, to: u64) -> Committed {
        let (from, to) = (PhyOffset(from), PhyOffset(to));
        Committed { since: Instant::now(), from, to, spans: smallvec![], entries: Vec::new(), hashes: Vec::new() }
    }

    #[test]
    fn whole_batches_leave_in_order() {
        let held = Unconfirmed::default();
        held.hold(batch(0, 100));
        held.hold(batch(100, 250));
        assert!(held.take(99).is_none());
        assert_eq!(held.take(249).map(|next| next.to), Some(100));
        assert!(held.take(249).is_none(), "the mark stands inside the second one");
        assert_eq!((held.take(u64::MAX).map(|next| next.to), held.bytes.get()), (Some(250), 0));
    }

    #[test]
    fn what_waits_is_bounded() {
        let (held, one) = (Unconfirmed::default(), BYTES_MAX / 8);
        let mut at = 0;
        for _ in 0..2 * BORDERS_MAX {
            held.hold(batch(at, at + one));
            at += one;
        }
        assert!(held.held.borrow().len() <= BORDERS_MAX + 1 && held.bytes.get() <= BYTES_MAX);
        let mut last = (0, 0);
        while let Some(next) = held.take(u64::MAX) {
            assert!(next.to > last.0);
            last = (next.to, last.1 + usize::from(next.committed.is_some()));
        }
        assert_eq!((last, held.bytes.get()), ((at, 8), 0));
    }
}
