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
pub fn decide(
    policy: &Policy,
    closed: &[(PhyOffset, i64)],
    now_ms: i64,
    local_hour: u8,
    used_percent: u8,
    manual: bool,
) -> Decision {
    let _ = (policy, closed, now_ms, local_hour, used_percent, manual);
    todo!()
}
