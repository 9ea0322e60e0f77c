//! Queues whose numbers began anew: their topic was deleted and made again, which only the records tell.
use super::Recovery;
use crate::StoreError;
use crate::consume_queue::Entry;
use crate::io::Io;
use uringmq_proto::types::QueueOffset;

impl<I: Io> Recovery<'_, I> {
    /// A lower offset than the queue's end, though later in the log: when a second record goes on from it, or it is offset 0, the
    /// topic was deleted and made again, and the later records are the queue.
    pub(super) async fn renumber(&mut self, i: usize, at: u64, entry: Entry) -> Result<(), StoreError> {
        let q = &mut self.queues[i];
        let goes_on = q.renumbered.last().is_some_and(|(last, entry)| last + entry.count as u64 == at);
        if !goes_on {
            self.drop_renumbered(i);
            self.queues[i].renumbered.push((at, entry));
            return Ok(());
        }
        q.renumbered.push((at, entry));
        self.accept_renumbered(i).await
    }

    async fn accept_renumbered(&mut self, i: usize) -> Result<(), StoreError> {
        let records = std::mem::take(&mut self.queues[i].renumbered);
        let Some((first, entry)) = records.first().copied() else { return Ok(()) };
        let q = &self.queues[i];
        self.report.note(format!(
            "{}: numbered anew from {first} by the record at {}; entries {first}..{} are dropped",
            q.found.name(),
            entry.phy,
            q.max
        ));
        self.open_queue(i).await?;
        if first <= self.queues[i].bounds.min.0 {
            self.restart(i, first).await?;
        } else {
            let q = &mut self.queues[i];
            q.open.as_ref().expect("opened above").cut(QueueOffset(first)).await?;
            q.max = first;
        }
        for (at, entry) in records {
            self.append(i, at, entry).await?;
        }
        Ok(())
    }

    pub(super) fn drop_renumbered(&mut self, i: usize) {
        let q = &mut self.queues[i];
        for (at, entry) in std::mem::take(&mut q.renumbered) {
            let text = format!(
                "{}: record at {} says it has queue offset {at}, which another has; in no queue",
                q.found.name(),
                entry.phy
            );
            self.report.note(text);
        }
    }

    pub(super) async fn settle_renumbered(&mut self) -> Result<(), StoreError> {
        for i in 0..self.queues.len() {
            match self.queues[i].renumbered.first() {
                Some((0, _)) => self.accept_renumbered(i).await?,
                Some(_) => self.drop_renumbered(i),
                None => {}
            }
        }
        Ok(())
    }
}
