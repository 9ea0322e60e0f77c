//! Queue locks of orderly consumers (codes 41 and 42): group -> queue -> who, since when. Plain state of the control role with the
//! time given; a lock that is not renewed dies by itself, a client's crash releases nothing. Source: behaviour sheet 5.7.
use hashbrown::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// How long a lock lives without renewal, ms.
pub const LOCK_LIVE_MS: i64 = 60_000;

/// The locks of all groups; `Q` names a queue.
#[derive(Debug)]
pub struct Locks<Q> {
    groups: HashMap<Arc<str>, HashMap<Q, Lock>>,
}

impl<Q> Default for Locks<Q> {
    fn default() -> Self {
        Locks { groups: HashMap::new() }
    }
}

#[derive(Debug)]
struct Lock {
    client_id: String,
    renewed_ms: i64,
}

impl Lock {
    fn is_live(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.renewed_ms) <= LOCK_LIVE_MS
    }
}

impl<Q: Clone + Eq + Hash> Locks<Q> {
    /// Takes or renews what is free, expired or already the client's; returns those of `queues` that are the client's now.
    pub fn lock(&mut self, group: &str, client_id: &str, queues: &[Q], now_ms: i64) -> Vec<Q> {
        if queues.is_empty() {
            return Vec::new();
        }
        let held = self.groups.entry_ref(group).or_default();
        let mut mine = Vec::with_capacity(queues.len());
        for queue in queues {
            let free = || Lock { client_id: client_id.to_owned(), renewed_ms: now_ms };
            let lock = held.entry(queue.clone()).or_insert_with(free);
            if lock.client_id != client_id && lock.is_live(now_ms) {
                continue;
            }
            if lock.client_id != client_id {
                client_id.clone_into(&mut lock.client_id);
            }
            lock.renewed_ms = now_ms;
            if !mine.contains(queue) {
                mine.push(queue.clone());
            }
        }
        mine
    }

    /// Releases those of `queues` that are the client's.
    pub fn unlock(&mut self, group: &str, client_id: &str, queues: &[Q]) {
        let Some(held) = self.groups.get_mut(group) else { return };
        for queue in queues {
            if held.get(queue).is_some_and(|lock| lock.client_id == client_id) {
                held.remove(queue);
            }
        }
        if held.is_empty() {
            self.groups.remove(group);
        }
    }

    /// Whether the group consumes orderly just now: its failed messages then go to the dead-letter queue at once.
    pub fn any_live(&self, group: &str, now_ms: i64) -> bool {
        self.groups.get(group).is_some_and(|held| held.values().any(|lock| lock.is_live(now_ms)))
    }

    /// Forgets dead locks; called now and then so that groups that are gone take no memory.
    pub fn drop_dead(&mut self, now_ms: i64) {
        self.groups.retain(|_, held| {
            held.retain(|_, lock| lock.is_live(now_ms));
            !held.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_kept_by_renewal_and_taken_over_after_its_time() {
        let mut locks = Locks::default();
        assert_eq!(locks.lock("g", "a", &["q0", "q1"], 0), ["q0", "q1"]);
        assert_eq!(locks.lock("g", "b", &["q0", "q1", "q2"], 1_000), ["q2"], "the others are a's");
        assert_eq!(locks.lock("h", "b", &["q0"], 1_000), ["q0"], "another group locks for itself");
        assert_eq!(locks.lock("g", "a", &["q0"], 59_000), ["q0"], "renewed");
        assert_eq!(locks.lock("g", "b", &["q0", "q1"], 60_001), ["q1"], "q1 was not renewed");
        assert_eq!(locks.lock("g", "a", &["q1"], 60_002), [""; 0], "and is b's now");
    }

    #[test]
    fn only_the_holder_unlocks() {
        let mut locks = Locks::default();
        locks.lock("g", "a", &["q0"], 0);
        locks.unlock("g", "b", &["q0"]);
        locks.unlock("nobody", "a", &["q0"]);
        assert!(locks.any_live("g", 1));
        locks.unlock("g", "a", &["q0", "q7"]);
        assert!(!locks.any_live("g", 1));
        assert_eq!(locks.lock("g", "b", &["q0"], 1), ["q0"]);
    }

    #[test]
    fn dead_locks_take_no_memory() {
        let mut locks = Locks::default();
        locks.lock("g", "a", &["q0"], 0);
        locks.lock("h", "a", &["q0"], 50_000);
        assert_eq!(locks.lock("i", "a", &[], 0), [""; 0]);
        locks.drop_dead(60_001);
        assert_eq!(locks.groups.len(), 1);
        assert!(locks.any_live("h", 60_001) && !locks.any_live("g", 60_001));
    }
}
