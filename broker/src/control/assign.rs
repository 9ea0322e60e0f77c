//! Which queues a member of a group gets when the broker balances (code 400). Pure: members and queues are given sorted, so that every
//! broker gives the same answer. Source: behaviour sheet 5.6, 13.5.

/// How queues are dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Neighbouring queues; the first members get one more.
    Avg,
    /// One after the other in turn.
    AvgByCircle,
}

impl Strategy {
    /// The strategy of a client's name for it; `None` for those that only clients know.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "AVG" => Some(Strategy::Avg),
            "AVG_BY_CIRCLE" => Some(Strategy::AvgByCircle),
            _ => None,
        }
    }

    /// Indexes of the queues of member `index` out of `members`; empty when there are more members than queues and it is a late one.
    pub fn share(self, queues: usize, members: usize, index: usize) -> Vec<usize> {
        if index >= members {
            return Vec::new();
        }
        match self {
            Strategy::AvgByCircle => (index..queues).step_by(members).collect(),
            Strategy::Avg => {
                let (each, more) = (queues / members, queues % members);
                let start = index * each + index.min(more);
                let count = each + usize::from(index < more);
                (start..start + count).collect()
            }
        }
    }
}

/// Pop consumption: what one member asks. `None` stands for "any queue of each broker" (queue id -1 on the wire).
pub fn pop_share(
    strategy: Strategy,
    queues: usize,
    members: usize,
    index: usize,
    share_with: i32,
) -> Option<Vec<usize>> {
    let everybody = share_with <= 0 || i64::from(share_with) >= members as i64 - 1;
    if everybody {
        return None;
    }
    if members > queues {
        return Some(match queues {
            0 => Vec::new(),
            _ => vec![index % queues],
        });
    }
    let ring = (0..=share_with as usize).map(|step| (index + step) % members);
    let mut mine: Vec<usize> = ring.flat_map(|member| strategy.share(queues, members, member)).collect();
    mine.sort_unstable();
    mine.dedup();
    Some(mine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn avg_gives_neighbours_and_the_first_members_one_more() {
        let of = |index| Strategy::Avg.share(8, 3, index);
        assert_eq!((of(0), of(1), of(2)), (vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]));
        assert_eq!(of(3), [0; 0], "no member of that index");
        assert_eq!(Strategy::Avg.share(2, 3, 2), [0; 0], "more members than queues");
    }

    #[test]
    fn circle_deals_in_turn() {
        let of = |index| Strategy::AvgByCircle.share(8, 3, index);
        assert_eq!((of(0), of(1), of(2)), (vec![0, 3, 6], vec![1, 4, 7], vec![2, 5]));
    }

    #[test]
    fn every_queue_has_exactly_one_member() {
        for strategy in [Strategy::Avg, Strategy::AvgByCircle] {
            for (queues, members) in [(0, 1), (1, 1), (8, 3), (3, 8), (16, 16), (17, 4)] {
                let mut all: Vec<usize> = (0..members).flat_map(|m| strategy.share(queues, members, m)).collect();
                all.sort_unstable();
                assert_eq!(all, (0..queues).collect::<Vec<_>>(), "{strategy:?} {queues} {members}");
            }
        }
    }

    #[test]
    fn pop_shares() {
        assert_eq!(pop_share(Strategy::Avg, 8, 4, 0, 0), None);
        assert_eq!(pop_share(Strategy::Avg, 8, 4, 0, 3), None, "as many as there are others");
        assert_eq!(pop_share(Strategy::Avg, 8, 4, 3, 1), Some(vec![0, 1, 6, 7]), "its own and the next member's");
        assert_eq!(pop_share(Strategy::Avg, 2, 5, 3, 1), Some(vec![1]), "more members than queues");
        assert_eq!(pop_share(Strategy::Avg, 0, 5, 3, 1), Some(vec![]));
    }

    #[test]
    fn only_two_names_are_known() {
        assert_eq!(Strategy::named("AVG"), Some(Strategy::Avg));
        assert_eq!(Strategy::named("AVG_BY_CIRCLE"), Some(Strategy::AvgByCircle));
        assert_eq!(Strategy::named("CONSISTENT_HASH"), None);
    }
}
