//! What becomes of a slave's log that is not its master's any more. Apache's default HA protocol has no means for it (replication sheet
//! 2.5, trap 6), so the two logs are compared by the master's broker port: two logs that were one have the same records up to some place and
//! others behind it, and that place is found by halving. What is behind it is cut off if `slaveTruncateBytesMax` allows so much; its
//! bytes are kept in a file, the cut is ordered ([`uringmq_store::cut`]) and the broker starts over, which carries it out.
//!
//! A record that is not whole yet is no record: it is cut without asking, as a start would. A log of which no record is the master's is
//! another broker's, and stays.
use crate::LogReader;
use crate::registration::Master;
use crate::replication::agree::{Asked, Bounds, CURE, Disagreement};
use crate::shard::Shard;
use std::cell::RefCell;
use std::mem::Discriminant;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use uringmq_proto::types::PhyOffset;
use uringmq_store::cut::{self, CutOrder};
use uringmq_store::{StoreError, dispatch};

/// Read of the own log at a time; a larger record is read whole.
const READ_BYTES: usize = 1 << 20;
const READ_CACHE_BYTES: usize = 4 << 20;
/// Of a segment's records one in so many bytes is compared at first.
const STEP_BYTES: u64 = 64 << 10;
/// What was found once is not looked for again sooner.
const AGAIN: Duration = Duration::from_secs(60);

/// What was found last: for which case, log end and limit, and what was said then.
type Sought = (Discriminant<Disagreement>, u64, u64, Instant, String);

#[derive(Default)]
pub struct Truncation {
    sought: RefCell<Option<Sought>>,
}

/// Where two logs part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parting {
    /// The last record that both have: where it begins and ends.
    last: u64,
    at: u64,
    /// Whole records behind it, the first one and its CRC.
    records: u64,
    first: Option<u64>,
}

/// The slave found that its log, which ends at `own`, cannot go on. Orders the cut and asks for the start that makes it, where that is
/// right; the error to report in any case.
pub async fn settle(shard: &Rc<Shard>, master: &Master, own: u64, found: Disagreement) -> Disagreement {
    if !parted(&found) {
        return found;
    }
    let limit = shard.config().slave_truncate_bytes_max;
    let truncation = &shard.replication.as_ref().expect("runs on the replication shard").truncation;
    let kind = std::mem::discriminant(&found);
    if let Some((of, end, with, at, text)) = &*truncation.sought.borrow()
        && (*of, *end, *with) == (kind, own, limit)
        && at.elapsed() < AGAIN
    {
        return Disagreement::Settled(text.clone());
    }
    let text = match decide(shard, master, own, limit, &found).await {
        Ok(text) => text,
        Err(e) => return Disagreement::Settled(format!("{found}; how far the two agree cannot be told now: {e}")),
    };
    truncation.sought.replace(Some((kind, own, limit, Instant::now(), text.clone())));
    Disagreement::Settled(text)
}

fn parted(found: &Disagreement) -> bool {
    matches!(found, Disagreement::Ahead { .. } | Disagreement::Diverged(_))
}

async fn decide(
    shard: &Rc<Shard>,
    master: &Master,
    own: u64,
    limit: u64,
    found: &Disagreement,
) -> Result<String, Disagreement> {
    let Some(parting) = Logs::new(shard, own).part(&Asked::connect(shard, master).await?).await? else {
        return Ok(format!("{found}; not one record of this log is the master's; {CURE}"));
    };
    let (at, bytes, records) = (parting.at, own - parting.at, parting.records);
    if bytes == 0 {
        return Ok(format!("{found}; yet all records are the master's up to {at}: it is compared again"));
    }
    if records > 0 && bytes > limit {
        return Ok(format!(
            "{found}; the two agree up to {at}, and the {bytes} bytes with {records} records behind that stay: \
             slaveTruncateBytesMax={limit} does not allow to cut them off. Set it to {bytes} or more, or {CURE}"
        ));
    }
    let order = order(shard, own, parting, found).await?;
    let kept = order.kept.as_deref().unwrap_or("no file");
    warn!(
        at,
        bytes,
        records,
        kept,
        why = order.why,
        "the end of this slave's log is cut off; the broker starts over for it"
    );
    shard.replication.as_ref().expect("runs on the replication shard").stop.request_again();
    Ok(format!("{found}; the log is cut at {at} by a start that comes now"))
}

/// Controller mode: the master's log is this one's up to `point` at most. Orders the cut there, or behind the last whole record before it, and
/// asks for the start that makes it; where it will be. `own` itself when not one record would stay.
pub async fn cut_at(shard: &Rc<Shard>, own: u64, point: u64, why: &str) -> Result<u64, Disagreement> {
    let Some(parting) = Logs::new(shard, own).parting_at(point).await? else { return Ok(own) };
    let order = order(shard, own, parting, &Disagreement::Settled(why.to_owned())).await?;
    let kept = order.kept.as_deref().unwrap_or("no file");
    let (at, bytes, records) = (order.at, own - order.at, order.records);
    warn!(at, bytes, records, kept, why, "the end of this slave's log is cut off; the broker starts over for it");
    shard.replication.as_ref().expect("runs on the replication shard").stop.request_again();
    Ok(at)
}

/// Keeps what will be cut and orders the cut; both durable when it returns.
async fn order(shard: &Rc<Shard>, own: u64, parting: Parting, found: &Disagreement) -> Result<CutOrder, Disagreement> {
    let root = shard.config().store_root.clone();
    let logs = Logs::new(shard, own);
    let kept = cut::keep(&shard.io, &root, &logs.reader, parting.at, own).await?;
    let mut first = Vec::new();
    if let Some(at) = parting.first {
        logs.reader.read_record(PhyOffset(at), 0, PhyOffset(own), &mut first).await?;
    }
    let order = CutOrder {
        last: parting.last,
        at: parting.at,
        end: own,
        records: parting.records,
        first_crc: parting.first.map(|_| cut::crc_of(&first)),
        why: found.to_string(),
        kept: Some(kept.display().to_string()),
    };
    cut::order(&shard.io, &root, &order).await?;
    info!(at = order.at, end = own, "the cut is ordered");
    Ok(order)
}

/// The slave's own log.
struct Logs {
    reader: Rc<LogReader>,
    levels: Vec<u64>,
    segment_bytes: u64,
    own: Bounds,
}

impl Logs {
    fn new(shard: &Shard, own: u64) -> Self {
        let mut store = shard.config().to_store_config();
        store.read_cache_bytes = READ_CACHE_BYTES;
        let reader = LogReader::new(shard.io.clone(), &store);
        let min = shard.marks.min();
        reader.trim(min);
        Logs {
            reader: Rc::new(reader),
            levels: store.delay_levels_ms,
            segment_bytes: store.segment_bytes,
            own: Bounds { min: min.0, max: own },
        }
    }

    /// Where the master's log parts from this one; `None` when no record is in both.
    async fn part(&self, master: &Asked<'_>) -> Result<Option<Parting>, Disagreement> {
        let there = master.bounds().await?;
        let (low, top) = (self.own.min.max(there.min), self.own.max.min(there.max));
        let starts: Vec<u64> = (low..top).step_by(self.segment_bytes as usize).collect();
        let Some(segment) = self.last_common(master, &starts).await? else { return Ok(None) };
        // Coarsely first, then each record of the stretch where it changes.
        let end = top.min(segment + self.segment_bytes);
        let mut coarse: Vec<u64> = Vec::new();
        self.walk(segment, end, |at, _| {
            if coarse.last().is_none_or(|last| at - last >= STEP_BYTES) {
                coarse.push(at);
            }
        })
        .await?;
        let Some(from) = self.last_common(master, &coarse).await? else { return Ok(None) };
        let mut fine: Vec<u64> = Vec::new();
        let to = coarse.iter().copied().find(|at| *at > from).unwrap_or(end);
        self.walk(from, to, |at, _| fine.push(at)).await?;
        let Some(last) = self.last_common(master, &fine).await? else { return Ok(None) };
        let mut parting = Parting { last, at: 0, records: 0, first: None };
        let mut segment = last;
        while segment < self.own.max {
            let end = self.own.max.min(segment - segment % self.segment_bytes + self.segment_bytes);
            self.walk(segment, end, |at, bytes| match at == last {
                true => parting.at = at + u64::from(bytes),
                false => {
                    parting.records += 1;
                    parting.first.get_or_insert(at);
                }
            })
            .await?;
            segment = end;
        }
        Ok(Some(parting))
    }

    /// Where this log is cut so that nothing behind `point` stays; `None` when no record would.
    async fn parting_at(&self, point: u64) -> Result<Option<Parting>, StoreError> {
        let mut parting = Parting { last: 0, at: 0, records: 0, first: None };
        let before = point.min(self.own.max).saturating_sub(1);
        let mut segment = self.own.min.max(before - before % self.segment_bytes);
        loop {
            let begin = segment;
            while segment < self.own.max {
                let end = self.own.max.min(segment - segment % self.segment_bytes + self.segment_bytes);
                self.walk(segment, end, |at, bytes| match at + u64::from(bytes) <= point {
                    true => (parting.last, parting.at) = (at, at + u64::from(bytes)),
                    false => {
                        parting.records += 1;
                        parting.first.get_or_insert(at);
                    }
                })
                .await?;
                segment = end;
            }
            if parting.at > 0 {
                return Ok(Some(parting));
            }
            if begin <= self.own.min {
                return Ok(None);
            }
            // No record ends in this segment before the point: the one before has the last.
            segment = self.own.min.max(begin - self.segment_bytes);
            (parting.records, parting.first) = (0, None);
        }
    }

    /// Calls `each` with place and size of the whole records in `from..to`, which lies in one segment and begins with a record.
    async fn walk(&self, from: u64, to: u64, mut each: impl FnMut(u64, u32)) -> Result<(), StoreError> {
        let (mut at, mut want) = (from, READ_BYTES);
        while at < to {
            let bytes = self.reader.read_range(PhyOffset(at), want, PhyOffset(to)).await?;
            let walked = dispatch::walk(&bytes, PhyOffset(at), &self.levels, false, |d| each(d.phy.0, d.bytes))?.0;
            if walked == at && bytes.len() < want {
                break; // what is left is not whole
            }
            want = if walked == at { want * 2 } else { READ_BYTES };
            at = walked;
        }
        Ok(())
    }

    /// The last of these records of this log, in order, that the master has too; from the first one that it lacks on it lacks all.
    async fn last_common(&self, master: &Asked<'_>, records: &[u64]) -> Result<Option<u64>, Disagreement> {
        let (mut known, mut lacking) = (0, records.len());
        while known < lacking {
            let middle = known + (lacking - known) / 2;
            match self.common(master, records[middle]).await? {
                true => known = middle + 1,
                false => lacking = middle,
            }
        }
        Ok(known.checked_sub(1).map(|index| records[index]))
    }

    async fn common(&self, master: &Asked<'_>, at: u64) -> Result<bool, Disagreement> {
        let mut ours = Vec::new();
        match self.reader.read_record(PhyOffset(at), 0, PhyOffset(self.own.max), &mut ours).await {
            Ok(()) => Ok(master.has(at, &ours).await?),
            Err(StoreError::OutOfRange(_) | StoreError::Corrupt { .. }) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_master_cannot_bring_back_is_looked_into() {
        let apart = [Disagreement::Ahead { own: 2, master: 1 }, Disagreement::Diverged(PhyOffset(7))];
        assert!(apart.iter().all(parted));
        assert!(!parted(&Disagreement::Behind { own: 1, master: 2 }) && !parted(&Disagreement::Settled(String::new())));
    }
}
