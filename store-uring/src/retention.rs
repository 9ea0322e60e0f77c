//! Which closed segments may go: by age at the set hours, by the log's size, by disk use, by force; when writes are to be refused; when
//! the disk will be full. Source: store-format sheet 16; the sizes in bytes are ours.
use crate::io::Space;
use std::collections::VecDeque;
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
    /// `diskRefuseEarlyRatio`, in per cent.
    pub early_percent: u8,
    /// `diskCleanForciblyFreeBytes`, `diskFullFreeBytes`: with less free than this; 0 = never.
    pub force_free_bytes: u64,
    pub full_free_bytes: u64,
    /// `commitLogBytesMax`: older segments go when the log is larger; 0 = no limit.
    pub log_bytes_max: u64,
    pub force_enabled: bool,
    /// `deleteFileBatchMax`.
    pub files_max: usize,
}

/// What there is to decide on.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Start and mtime (ms) of closed segments, oldest first.
    pub closed: &'a [(PhyOffset, i64)],
    pub segment_bytes: u64,
    pub now_ms: i64,
    pub local_hour: u8,
    /// Of the log's disk.
    pub space: Space,
    /// A segment could not be made for lack of space: the oldest one makes room.
    pub no_space: bool,
    /// Asked for by code 329.
    pub manual: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Decision {
    /// How many of the oldest closed segments to remove now.
    pub remove: usize,
    /// They go by force: space is short, and more may have to go at once.
    pub forced: bool,
    /// The disk is full: writes are to be refused until use falls, unless segments went by force, which may have helped.
    pub over: bool,
    /// Topics that are to be refused early are.
    pub early: bool,
}

impl Policy {
    /// Bytes used at which writes are refused.
    pub fn full_at(&self, space: Space) -> u64 {
        let by_ratio = (space.total_bytes as u128 * self.full_percent as u128 / 100) as u64;
        by_ratio.min(space.total_bytes.saturating_sub(self.full_free_bytes))
    }
}

impl Space {
    /// Rounded up.
    pub fn used_percent(&self) -> u8 {
        let used = self.total_bytes.saturating_sub(self.free_bytes);
        (used as u128 * 100).div_ceil(self.total_bytes.max(1) as u128).min(100) as u8
    }
}

/// Expired segments go when the hour is right, the disk is over `max_used_percent`, or somebody asked. When the disk is over
/// `force_percent`, full, or out of space, unexpired ones go too; so do those by which the log is too large. Always the oldest, never
/// behind one that stays.
pub fn decide(policy: &Policy, now: &Situation<'_>) -> Decision {
    let (used, free) = (now.space.used_percent(), now.space.free_bytes);
    let full = used > policy.full_percent || free < policy.full_free_bytes;
    let short = full || now.no_space || used > policy.force_percent || free < policy.force_free_bytes;
    let force = policy.force_enabled && short;
    let due = force || now.manual || used > policy.max_used_percent || policy.hours.contains(&now.local_hour);
    let expired = |modified_ms: i64| now.now_ms >= modified_ms.saturating_add(policy.reserved_ms);
    let by_age = now.closed.iter().take_while(|(_, modified_ms)| due && (force || expired(*modified_ms))).count();
    // When a segment could not be made, one makes room for it.
    let lacks_one = now.no_space && used <= policy.force_percent && free >= policy.force_free_bytes && !full;
    let by_age = if lacks_one { by_age.min(1) } else { by_age };
    let remove = by_age.max(beyond_size(policy, now)).min(policy.files_max);
    let forced = force && remove > 0;
    Decision { remove, forced, over: full, early: full || used > policy.early_percent }
}

/// How many closed segments are too many; the one being written counts.
fn beyond_size(policy: &Policy, now: &Situation<'_>) -> usize {
    if policy.log_bytes_max == 0 {
        return 0;
    }
    let stay = (policy.log_bytes_max / now.segment_bytes.max(1)).saturating_sub(1);
    now.closed.len().saturating_sub(usize::try_from(stay).unwrap_or(usize::MAX))
}

/// How fast the disk fills, from what was used within the last hour.
#[derive(Debug, Default)]
pub struct FillRate {
    /// When (ms) and how many bytes were used; rising times.
    samples: VecDeque<(i64, u64)>,
}

/// Samples of this span count.
const WINDOW_MS: i64 = 3_600_000;
/// Nothing is said of less than this.
const SPAN_MIN_MS: i64 = 300_000;
const SAMPLES_MAX: usize = 512;

impl FillRate {
    pub fn sample(&mut self, now_ms: i64, used_bytes: u64) {
        if self.samples.back().is_some_and(|(last, _)| now_ms < *last) {
            self.samples.clear(); // the clock was set back
        }
        let apart = WINDOW_MS / SAMPLES_MAX as i64;
        match self.samples.len().checked_sub(2).map(|before| self.samples[before].0) {
            Some(before) if now_ms - before < apart => {
                self.samples.pop_back(); // the newest one is replaced
            }
            _ => {}
        }
        self.samples.push_back((now_ms, used_bytes));
        while self.samples.front().is_some_and(|(at, _)| now_ms - at > WINDOW_MS) {
            self.samples.pop_front();
        }
    }

    /// Hours until `limit_bytes` are used if it goes on like this; `None` when it does not fill, or is not known yet.
    pub fn hours_to(&self, limit_bytes: u64) -> Option<f64> {
        let ((from_ms, from), (to_ms, to)) = (*self.samples.front()?, *self.samples.back()?);
        let (span_ms, grown) = (to_ms - from_ms, to.checked_sub(from)?);
        if span_ms < SPAN_MIN_MS || grown == 0 {
            return None;
        }
        let left = limit_bytes.saturating_sub(to) as f64;
        Some(left / (grown as f64 / (span_ms as f64 / 3_600_000.0)))
    }
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
            early_percent: 80,
            force_free_bytes: 0,
            full_free_bytes: 0,
            log_bytes_max: 0,
            force_enabled: true,
            files_max: 10,
        }
    }

    #[test]
    fn blocks_kept_for_root_are_neither_used_nor_free() {
        let space = Space::of_blocks(4096, 1000, 500, 100);
        assert_eq!(space, Space { total_bytes: 600 * 4096, free_bytes: 100 * 4096 });
        assert_eq!(space.used_percent(), 84, "500 of 600, rounded up");
        assert_eq!(Space::of_blocks(4096, 1000, 450, 400).used_percent(), 58);
        assert_eq!(Space::of_blocks(4096, 1000, 1000, 800).used_percent(), 0);
        assert_eq!(Space::of_blocks(4096, 1000, 200, 0).used_percent(), 100);
    }

    /// Closed segments of these ages in hours.
    fn closed(ages: &[i64]) -> Vec<(PhyOffset, i64)> {
        ages.iter().enumerate().map(|(index, age)| (PhyOffset(index as u64 * 4096), NOW_MS - age * HOUR_MS)).collect()
    }

    fn situation<'a>(closed: &'a [(PhyOffset, i64)], hour: u8, used: u8) -> Situation<'a> {
        let space = Space { total_bytes: 1000, free_bytes: 1000 - used as u64 * 10 };
        Situation {
            closed,
            segment_bytes: 4096,
            now_ms: NOW_MS,
            local_hour: hour,
            space,
            no_space: false,
            manual: false,
        }
    }

    fn removed(policy: &Policy, ages: &[i64], hour: u8, used: u8, manual: bool) -> (usize, bool) {
        let closed = closed(ages);
        let decision = decide(policy, &Situation { manual, ..situation(&closed, hour, used) });
        (decision.remove, decision.over && !decision.forced)
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
        assert_eq!(removed(&policy(), &[3, 2, 1], 5, 91, false), (3, false), "first it is cleaned");
        assert_eq!(removed(&policy(), &[], 5, 91, false), (0, true), "nothing left to clean");
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

    #[test]
    fn watermarks_in_bytes_count_beside_the_ratios() {
        let closed = closed(&[3, 2]);
        let watched = Policy { force_free_bytes: 300, full_free_bytes: 100, ..policy() };
        for (used, forced) in [(70, false), (71, true), (90, true)] {
            let decision = decide(&watched, &situation(&closed, 5, used));
            assert_eq!((decision.forced, decision.over), (forced, false), "{used}");
            assert_eq!(decision.remove, 2 * usize::from(forced), "{used}");
        }
        let gentle = Policy { force_enabled: false, full_percent: 95, ..watched };
        for (used, full) in [(90, false), (91, true)] {
            assert_eq!(decide(&gentle, &situation(&closed, 5, used)).over, full, "{used}");
        }
    }

    #[test]
    fn no_space_forces_and_early_topics_have_their_own_ratio() {
        let closed = closed(&[3, 2]);
        let short = Situation { no_space: true, ..situation(&closed, 5, 10) };
        assert_eq!(decide(&policy(), &short), Decision { remove: 1, forced: true, over: false, early: false });
        let gentle = Policy { force_enabled: false, ..policy() };
        assert_eq!(decide(&gentle, &short), Decision::default());
        assert_eq!([80, 81].map(|used| decide(&policy(), &situation(&closed, 5, used)).early), [false, true]);
    }

    #[test]
    fn a_log_that_is_too_large_loses_its_oldest_segments_at_any_hour() {
        let closed = closed(&[3, 2, 1]);
        for (segments, gone) in [(0, 3), (1, 3), (2, 2), (3, 1), (4, 0), (5, 0)] {
            let limited = Policy { log_bytes_max: segments * 4096 + 1, ..policy() };
            let decision = decide(&limited, &situation(&closed, 5, 10));
            assert_eq!(decision, Decision { remove: gone, ..Decision::default() }, "{segments}");
        }
    }

    #[test]
    fn the_hours_left_follow_the_last_hour() {
        let mut rate = FillRate::default();
        assert_eq!(rate.hours_to(1000), None);
        rate.sample(0, 100);
        rate.sample(299_999, 101);
        assert_eq!(rate.hours_to(1000), None, "too early to tell");
        rate.sample(1_800_000, 200);
        assert_eq!(rate.hours_to(1000), Some(4.0));
        assert_eq!(rate.hours_to(150), Some(0.0));
        rate.sample(3_600_001, 200);
        assert!(rate.hours_to(1000).is_some_and(|hours| (7.0..8.0).contains(&hours)), "{rate:?}");
        rate.sample(9_000_000, 150);
        assert_eq!(rate.hours_to(1000), None, "it does not fill");
        for n in 0..100_000 {
            rate.sample(9_000_000 + n * 10, 150);
        }
        assert!(rate.samples.len() <= SAMPLES_MAX + 2, "{}", rate.samples.len());
        rate.sample(5, 1);
        assert_eq!(rate.samples.len(), 1);
    }
}
