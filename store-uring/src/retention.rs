//! Which closed segments may go: by age at the set hours, by disk use, by force. Source: store-format sheet 16.
use uringmq_proto::types::PhyOffset;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `fileReservedTime` in ms.
    pub reserved_ms: i64,
    /// `deleteWhen`: hours of the local day.
    pub hours: Vec<u8>,
    /// `diskMaxUsedSpaceRatio`, `diskSpaceCleanForciblyRatio`, `diskSpaceWarningLevelRatio`, clamped, in per cent.
    pub max_used_percent: u8,
    pub force_percent: u8,
    pub full_percent: u8,
    pub force_enabled: bool,
    /// `deleteFileBatchMax`.
    pub files_max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Decision {
    /// How many of the oldest closed segments to remove now.
    pub remove: usize,
    /// Writes are to be refused until use falls.
    pub full: bool,
}

/// `closed`: start and mtime (ms) of closed segments, oldest first. `used_percent` of the log's disk. `manual`: asked for by code 329.
///
/// Expired segments go when the hour is right, the disk is over `max_used_percent`, or somebody asked; over `force_percent` (or full)
/// unexpired ones go too. Always the oldest, never behind one that stays.
pub fn decide(
    policy: &Policy,
    closed: &[(PhyOffset, i64)],
    now_ms: i64,
    local_hour: u8,
    used_percent: u8,
    manual: bool,
) -> Decision {
    let full = used_percent > policy.full_percent;
    let force = policy.force_enabled && (full || used_percent > policy.force_percent);
    let due = force || manual || used_percent > policy.max_used_percent || policy.hours.contains(&local_hour);
    let expired = |modified_ms: i64| now_ms >= modified_ms.saturating_add(policy.reserved_ms);
    let remove = if due {
        closed.iter().take(policy.files_max).take_while(|(_, modified_ms)| force || expired(*modified_ms)).count()
    } else {
        0
    };
    Decision { remove, full }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;
    const NOW_MS: i64 = 1_000 * HOUR_MS;

    fn policy() -> Policy {
        Policy {
            reserved_ms: 72 * HOUR_MS,
            hours: vec![4, 23],
            max_used_percent: 75,
            force_percent: 85,
            full_percent: 90,
            force_enabled: true,
            files_max: 10,
        }
    }

    /// Closed segments of these ages in hours.
    fn closed(ages: &[i64]) -> Vec<(PhyOffset, i64)> {
        ages.iter().enumerate().map(|(index, age)| (PhyOffset(index as u64 * 4096), NOW_MS - age * HOUR_MS)).collect()
    }

    fn removed(policy: &Policy, ages: &[i64], hour: u8, used: u8, manual: bool) -> (usize, bool) {
        let decision = decide(policy, &closed(ages), NOW_MS, hour, used, manual);
        (decision.remove, decision.full)
    }

    #[test]
    fn expired_segments_go_at_the_hour_only() {
        assert_eq!(removed(&policy(), &[100, 72, 71], 4, 10, false), (2, false));
        assert_eq!(removed(&policy(), &[100, 72, 71], 23, 10, false), (2, false));
        assert_eq!(removed(&policy(), &[100, 72, 71], 5, 10, false), (0, false));
    }

    #[test]
    fn a_young_segment_shields_older_looking_ones_behind_it() {
        assert_eq!(removed(&policy(), &[100, 1, 100], 4, 10, false), (1, false));
        assert_eq!(removed(&policy(), &[1, 100], 4, 10, false), (0, false));
    }

    #[test]
    fn disk_use_and_request_need_no_hour() {
        assert_eq!(removed(&policy(), &[100, 1], 5, 75, false), (0, false));
        assert_eq!(removed(&policy(), &[100, 1], 5, 76, false), (1, false));
        assert_eq!(removed(&policy(), &[100, 1], 5, 10, true), (1, false));
    }

    #[test]
    fn force_takes_unexpired_ones_unless_switched_off() {
        assert_eq!(removed(&policy(), &[3, 2, 1], 5, 85, false), (0, false));
        assert_eq!(removed(&policy(), &[3, 2, 1], 5, 86, false), (3, false));
        assert_eq!(removed(&policy(), &[3, 2, 1], 5, 91, false), (3, true));
        let gentle = Policy { force_enabled: false, ..policy() };
        assert_eq!(removed(&gentle, &[100, 2, 1], 5, 91, false), (1, true));
        // A force ratio below the other one still forces.
        let eager = Policy { max_used_percent: 95, force_percent: 30, ..policy() };
        assert_eq!(removed(&eager, &[3, 2], 5, 31, false), (2, false));
    }

    #[test]
    fn at_most_a_batch_goes_at_once() {
        assert_eq!(removed(&policy(), &[100; 25], 4, 10, false), (10, false));
        assert_eq!(removed(&policy(), &[], 4, 99, true), (0, true));
    }
}
