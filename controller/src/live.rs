//! Who is alive, by heartbeats (904). In the memory of each controller: brokers tell all of them, so a new leader knows already. A pure
//! table: time comes in with each call, in ms of a steady clock. Source: replication sheet 8.3.
use crate::elect::Alive;
use std::collections::HashMap;
use uringmq_proto::headers::route::BrokerHeartbeat;

/// A broker's time where its heartbeat does not say it.
pub const DEFAULT_TIMEOUT_MS: i64 = 10_000;
/// No heartbeat counts longer.
const TIMEOUT_MS_MAX: i64 = 600_000;
/// How long the dead are remembered.
const GONE_MS: i64 = 600_000;
/// More brokers than these are not kept.
const BROKERS_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub cluster: String,
    pub group: String,
    pub id: i64,
}

#[derive(Clone, Debug)]
enum Sign {
    Heard {
        at_ms: i64,
        until_ms: i64,
        connection: u64,
        said: Alive,
    },
    /// It gave no sign for its time, or the connection of its heartbeats ended.
    Gone {
        at_ms: i64,
        heard_ms: i64,
        closed: bool,
    },
}

#[derive(Debug, Default)]
pub struct Live(HashMap<Key, Sign>);

impl Live {
    /// Takes a heartbeat that came on `connection`. False: the table is full.
    pub fn heard(&mut self, beat: &BrokerHeartbeat<'_>, id: i64, connection: u64, now_ms: i64) -> bool {
        let key = Key { cluster: beat.cluster_name.to_owned(), group: beat.broker_name.to_owned(), id };
        if self.0.len() >= BROKERS_MAX && !self.0.contains_key(&key) {
            return false;
        }
        let time = beat.heartbeat_timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS).clamp(0, TIMEOUT_MS_MAX);
        let said = Alive {
            id,
            epoch: beat.epoch.unwrap_or(-1),
            max_offset: beat.max_offset.unwrap_or(-1),
            priority: beat.election_priority.unwrap_or(i32::MAX),
        };
        self.0.insert(key, Sign::Heard { at_ms: now_ms, until_ms: now_ms + time, connection, said });
        true
    }

    /// A connection ended: whose heartbeats came on it is dead, until it is heard of again.
    pub fn closed(&mut self, connection: u64, now_ms: i64) -> Vec<Key> {
        let mut gone = Vec::new();
        for (key, sign) in &mut self.0 {
            match sign {
                Sign::Heard { at_ms, connection: its, .. } if *its == connection => {
                    *sign = Sign::Gone { at_ms: now_ms, heard_ms: *at_ms, closed: true };
                    gone.push(key.clone());
                }
                _ => {}
            }
        }
        gone
    }

    /// Who gave no sign for its time since the last look.
    pub fn expire(&mut self, now_ms: i64) -> Vec<Key> {
        let mut late = Vec::new();
        self.0.retain(|key, sign| match sign {
            Sign::Heard { at_ms, until_ms, .. } => {
                if *until_ms < now_ms {
                    late.push(key.clone());
                    *sign = Sign::Gone { at_ms: now_ms, heard_ms: *at_ms, closed: false };
                }
                true
            }
            Sign::Gone { at_ms, .. } => *at_ms + GONE_MS >= now_ms,
        });
        late
    }

    /// The living of a group.
    pub fn alive(&self, cluster: &str, group: &str, now_ms: i64) -> Vec<Alive> {
        let of_group = self.0.iter().filter(|(key, _)| key.group == group && key.cluster == cluster);
        of_group
            .filter_map(|(_, sign)| match sign {
                Sign::Heard { until_ms, said, .. } if *until_ms >= now_ms => Some(said.clone()),
                _ => None,
            })
            .collect()
    }

    /// Whether somebody who has looked since `since_ms` knows it to be dead: its connection ended, or it was heard of in that time and
    /// then no more. Who was not heard of at all may just not have come yet.
    pub fn is_lost(&self, cluster: &str, group: &str, id: i64, since_ms: i64) -> bool {
        let key = Key { cluster: cluster.to_owned(), group: group.to_owned(), id };
        match self.0.get(&key) {
            Some(Sign::Gone { closed, heard_ms, .. }) => *closed || *heard_ms >= since_ms,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(timeout: Option<i64>) -> BrokerHeartbeat<'static> {
        BrokerHeartbeat {
            cluster_name: "c",
            broker_addr: "h:1",
            broker_name: "g",
            broker_id: Some(1),
            epoch: Some(2),
            max_offset: Some(30),
            confirm_offset: None,
            heartbeat_timeout_ms: timeout,
            election_priority: None,
        }
    }

    fn ids(live: &Live, now_ms: i64) -> Vec<i64> {
        let mut ids: Vec<i64> = live.alive("c", "g", now_ms).iter().map(|one| one.id).collect();
        ids.sort();
        ids
    }

    #[test]
    fn a_broker_lives_for_its_time() {
        let mut live = Live::default();
        assert!(live.heard(&beat(None), 1, 7, 0));
        assert!(live.heard(&beat(Some(3_000)), 2, 8, 0));
        assert_eq!((ids(&live, 3_000), ids(&live, 3_001), ids(&live, 10_001)), (vec![1, 2], vec![1], vec![]));
        assert_eq!(live.alive("c", "g", 0)[0].epoch, 2);
        assert!(live.alive("other", "g", 0).is_empty());
        assert_eq!(live.expire(3_001).iter().map(|key| key.id).collect::<Vec<_>>(), [2]);
        live.heard(&beat(None), 1, 7, 9_000);
        assert_eq!((ids(&live, 19_000), live.expire(19_000).len(), live.expire(19_001).len()), (vec![1], 0, 1));
        assert!(live.is_lost("c", "g", 1, 9_000), "heard of, then no more");
        assert!(!live.is_lost("c", "g", 1, 9_001), "whoever looks only since then has to wait for it");
        assert!(!live.is_lost("c", "g", 5, 0), "never heard of");
    }

    #[test]
    fn a_closed_connection_is_death_at_once_unless_another_took_over() {
        let mut live = Live::default();
        live.heard(&beat(None), 1, 7, 0);
        live.heard(&beat(None), 2, 8, 0);
        assert_eq!(live.closed(7, 5).iter().map(|key| key.id).collect::<Vec<_>>(), [1]);
        assert_eq!((ids(&live, 5), live.is_lost("c", "g", 1, 99), live.closed(7, 6).len()), (vec![2], true, 0));
        live.heard(&beat(None), 1, 9, 10);
        assert_eq!((ids(&live, 10), live.is_lost("c", "g", 1, 0)), (vec![1, 2], false));
        live.heard(&beat(None), 2, 9, 10);
        assert!(live.closed(8, 11).is_empty(), "its heartbeats come on 9 now");
        assert_eq!(live.closed(9, 11).len(), 2);
        assert_eq!(live.expire(11 + GONE_MS).len() + live.0.len(), 2);
        live.expire(12 + GONE_MS);
        assert_eq!(live.0.len(), 0, "not remembered for ever");
    }

    #[test]
    fn nobody_lives_longer_than_the_limit() {
        let mut live = Live::default();
        live.heard(&beat(Some(i64::MAX)), 1, 7, 0);
        live.heard(&beat(Some(-5)), 2, 7, 0);
        assert_eq!(
            (ids(&live, TIMEOUT_MS_MAX), ids(&live, TIMEOUT_MS_MAX + 1), ids(&live, 0)),
            (vec![1], vec![], vec![1, 2])
        );
    }
}
