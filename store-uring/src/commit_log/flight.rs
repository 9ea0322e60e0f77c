//! Writes beside each other: a batch is handed to the disk while the one before is still being written. Used by the writer role under load;
//! [`Appender::write`] does one batch at a time, and everything that is rare (a roll, what a refused batch left).
//!
//! Two writes must not meet in a block, for the older bytes could be the last to arrive. So a batch that is to be followed ends with its
//! last whole block, and what it has behind that goes with the next; one whose last block is written too lets nobody start before it
//! has landed. Flights land in the order of their starts: what the disk finished out of order counts when all before it has.
use super::{Appender, Filling, Shared, Written};
use crate::StoreError;
use crate::batch::{Batch, Part, align_down};
use crate::io::{ALIGN, File as _, Io};
use crate::seeded::{Bug, bug};
use crate::segment::{Segment, store_error};
use std::rc::Rc;
use uringmq_proto::types::PhyOffset;

/// A batch on its way to the disk.
pub struct Flight<I: Io> {
    shared: Rc<Shared<I>>,
    segment: Rc<Segment<I::File>>,
    part: Part<I::File>,
    to: u64,
    synced: bool,
}

/// What became of a flight; for [`Appender::land`].
#[derive(Debug)]
pub struct Landed {
    to: u64,
    synced: bool,
    wrote: Result<(), StoreError>,
}

/// Of flights started and not landed.
#[derive(Debug, Default)]
pub(super) struct Air {
    flights: usize,
    /// The last one has the log's unfinished block.
    holds_tail: bool,
}

impl Air {
    pub(super) fn is_empty(&self) -> bool {
        self.flights == 0
    }
}

impl<I: Io> Flight<I> {
    /// Writes it. To be polled to its end: what is dropped may still be under way.
    pub async fn run(mut self) -> Landed {
        let wrote = self.shared.write_part(&self.segment, &mut self.part, self.synced).await;
        Landed { to: self.to, synced: self.synced, wrote }
    }
}

impl<I: Io> Appender<I> {
    /// Flights that have not landed.
    pub fn in_flight(&self) -> usize {
        self.air.flights
    }

    /// Whether what is placed can be started beside what is in flight; otherwise it waits until all has landed, and if it still
    /// cannot, it is [`Appender::write`]'s: there is a roll, or something of a refused batch to be cleaned.
    pub fn may_start(&self) -> bool {
        let Some(Filling { batch, .. }) = self.filling.as_ref().filter(|filling| filling.batch.placed() > 0) else {
            return false;
        };
        let one_segment = batch.parts().len() == 1 && !batch.kept_to().is_multiple_of(self.shared.segment_bytes);
        let free = !self.air.holds_tail || bug(Bug::BlockInTwoWrites);
        one_segment && free && self.soiled.is_empty() && self.shared.poisoned.get().is_none()
    }

    /// Where the last whole block of what is placed ends.
    pub fn whole_blocks_to(&self) -> PhyOffset {
        PhyOffset(self.filling.as_ref().map_or(0, |filling| align_down(filling.batch.end())))
    }

    /// Hands over what is placed. With `whole_to`, where a run ends and not above [`Appender::whole_blocks_to`], whole blocks go; the runs
    /// behind it count as placed for the next batch. Without it all goes, and nothing more may start before it has landed. `synced`: it is
    /// on stable storage when it lands, and counts so where all before it is.
    /// Only when it [may start](Appender::may_start).
    pub fn start(&mut self, whole_to: Option<PhyOffset>, synced: bool) -> Flight<I> {
        assert!(self.may_start(), "asked for before");
        let shared = self.shared.clone();
        let Filling { batch, segment } = self.filling.as_mut().expect("there is something to start");
        let to = whole_to.map_or(batch.end(), |to| to.0);
        assert!(shared.written.get() < to && to <= batch.end(), "{to} is no end of a run in this batch");
        let part = batch.take_off(&segment.file, whole_to.is_some());
        shared.busy_to.set(shared.busy_to.get().max(part.written_to()));
        self.air.flights += 1;
        self.air.holds_tail = whole_to.is_none();
        let segment = segment.clone();
        Flight { shared, segment, part, to, synced }
    }

    /// Takes a flight's end, in the order of the starts. On an error nothing of it and of what came after counts: wait for the flights
    /// behind it, then [`Appender::give_up`].
    pub fn land(&mut self, landed: Landed) -> Result<Written, StoreError> {
        self.air.flights -= 1;
        landed.wrote?;
        self.shared.check_poison()?;
        let from = self.shared.written.replace(landed.to);
        // A device may have made its own bytes durable and no earlier ones.
        if landed.synced && (self.shared.durable.get() >= from || bug(Bug::SyncedWriteVouchesForAll)) {
            self.shared.durable.set(self.shared.durable.get().max(landed.to));
        }
        if self.air.is_empty() {
            self.air.holds_tail = false;
        }
        let still = self.undo.partition_point(|undo| undo.at < landed.to);
        self.undo.drain(..still);
        self.shared.close_synced();
        let durable = self.shared.durable.get() >= landed.to;
        Ok(Written { from: PhyOffset(from), to: PhyOffset(landed.to), durable })
    }

    /// After a flight failed by `e` and all behind it have ended: takes back what was placed since the last one that landed, and its queue
    /// offsets. After `NoSpace` the log stays usable, with zeros where the flights were.
    pub async fn give_up(&mut self, e: &StoreError) {
        self.air = Air::default();
        self.undo_offsets();
        let shared = self.shared.clone();
        let written = shared.written.get();
        let segment_end = shared.start_of(written) + shared.segment_bytes;
        self.soiled.push((align_down(written), shared.busy_to.get().min(segment_end)));
        let Some(segment) = self.filling.take().map(|filling| filling.segment) else { return };
        match shared.tail_on_disk(&segment, written).await {
            Ok(tail) => {
                let batch = Batch::new(&segment.file, written, &tail, shared.segment_bytes, shared.batch_bytes_max);
                if matches!(e, StoreError::NoSpace(_)) {
                    // Before anybody is told of the refusal, as in `write`.
                    let _ = shared.clean(&mut self.soiled, batch.tail()).await;
                }
                self.filling = Some(Filling { batch, segment });
            }
            Err(e) => drop(shared.poison(e)), // nothing is placed any more
        }
    }

    /// What a batch placed is not in the log: its queues go on where they were.
    pub(super) fn undo_offsets(&mut self) {
        for undo in self.undo.drain(..).rev() {
            if !bug(Bug::OffsetKeptAfterRefusal) {
                self.next.insert(undo.key, undo.before);
            }
        }
    }
}

impl<I: Io> Shared<I> {
    /// The bytes before `at` in its block, as the disk has them.
    async fn tail_on_disk(&self, segment: &Segment<I::File>, at: u64) -> Result<Vec<u8>, StoreError> {
        let block = align_down(at);
        let kept = (at - block) as usize;
        if kept == 0 {
            return Ok(Vec::new());
        }
        let fail = |source| store_error("read", at, source);
        let read = segment.file.read_at(block - segment.start, ALIGN).await.map_err(fail)?;
        match read.as_ref().get(..kept) {
            Some(tail) => Ok(tail.to_vec()),
            None => Err(fail(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }
}
