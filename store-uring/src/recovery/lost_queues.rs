//! Queues that lost files: what the marks of a clean stop, the checkpoint and the log's front tell of them, and where the walk must begin for
//! their sake.
use super::{Queue, Recovery};
use crate::StoreError;
use crate::consume_queue::{Bounds, Form};
use crate::dispatch::{self, Dispatch};
use crate::io::Io;
use crate::log_scan::{At, Cursor};
use crate::queue_ends;
use crate::queue_scan::QueueFound;
use uringmq_proto::types::PhyOffset;

impl<I: Io> Recovery<'_, I> {
    /// After a clean stop that noted where the queues ended: what the files do not show any more is damage.
    pub(super) async fn compare_queue_ends(&mut self) -> Result<(), StoreError> {
        let noted = match queue_ends::read(&self.io, &self.config.root, &self.checkpoint).await? {
            Some(noted) if self.clean => noted,
            _ => return Ok(()),
        };
        for (topic, queues) in noted {
            for (queue, max) in queues {
                let known = self.by_name.get(&topic).and_then(|queues| queues.get(&queue)).copied();
                let form = self.form_of(&topic, false);
                let i = known.unwrap_or_else(|| {
                    self.add_queue(QueueFound { form, topic: topic.clone(), queue, ..QueueFound::default() })
                });
                let q = &mut self.queues[i];
                if q.max < max && q.found.damage.is_none() {
                    q.found.damage = Some("entries are missing at its end");
                    q.found.tail |= q.last_phy.is_some();
                }
            }
        }
        Ok(())
    }

    /// Where the walk must begin for the sake of queues whose files are damaged; `at` without any.
    pub(super) async fn damaged_queues(&mut self, at: u64) -> Result<u64, StoreError> {
        let min = self.segments.min();
        let mut from = at;
        let mut notes = Vec::new();
        for q in &self.queues {
            if let Some(damage) = q.found.damage {
                let good_to = q.last_phy.unwrap_or(min).max(min);
                notes.push(format!("{}: {damage}; built again from {good_to} on", q.found.name()));
                from = from.min(good_to);
            }
        }
        // A queue whose entries all come again in the walk may lack what stood before them.
        let front_to = |q: &Queue<I>| if q.found.later_start { q.found.min_phy.unwrap_or(at) } else { 0 };
        let to = self.queues.iter().map(front_to).filter(|to| *to > min).max();
        if let Some(to) = to {
            let lost = self.lost_fronts(min, to.min(self.segments.limit()), front_to).await?;
            for i in lost {
                let q = &mut self.queues[i];
                notes.push(format!("{}: its front is missing; built again", q.found.name()));
                from = min;
                q.found.damage = Some("a missing front");
                q.bounds = Bounds::default();
                (q.max, q.last_phy) = (0, None);
                q.found.tail = true;
            }
        }
        notes.into_iter().for_each(|note| self.report.note(note));
        Ok(from)
    }

    /// The record that the checkpoint names is of a queue that was synced with it. Where that is gone, others that no later record would tell
    /// of may be gone too.
    pub(super) async fn has_queue_of_last_synced(&mut self) -> Result<bool, StoreError> {
        let known = self.checkpoint.logics_phy.0;
        if self.clean || known == 0 || known < self.segments.min() || known >= self.segments.limit() {
            return Ok(true);
        }
        for form in Form::ALL {
            let expected = form == Form::Plain || self.config.topic_forms.values().any(|of| *of == form);
            if expected && self.queues.iter().all(|q| q.found.form != form) {
                self.report.note(format!("{}: no queue is left; all are built again", form.dir()));
                return Ok(false);
            }
        }
        let mut cursor = Cursor::new(self.io.clone(), self.segments, known);
        let At::Record(_) = cursor.look().await? else { return Ok(true) };
        let d = dispatch::of_record(&cursor.record(), PhyOffset(cursor.at()), &self.config.delay_levels_ms);
        if !d.queued
            || self.is_of_deleted_topic(&d)
            || self.by_name.get(d.topic).is_some_and(|q| q.contains_key(&d.queue))
        {
            return Ok(true);
        }
        let dir = self.form_of(d.topic, d.count.is_some()).dir();
        self.report.note(format!("{dir}/{}/{}: missing, though it was synced; all is built again", d.topic, d.queue));
        Ok(false)
    }

    /// Which queues have records in `from..to` that belong before their first entry, and lie below the position that `front_to` gives.
    async fn lost_fronts(
        &self,
        from: u64,
        to: u64,
        front_to: impl Fn(&Queue<I>) -> u64,
    ) -> Result<Vec<usize>, StoreError> {
        let mut lost = Vec::new();
        let mut cursor = Cursor::new(self.io.clone(), self.segments, from);
        while cursor.at() < to {
            let bytes = match cursor.look().await? {
                At::Record(bytes) => bytes,
                At::Bad(_) if cursor.find_next().await? => continue,
                At::Bad(_) | At::End => break,
            };
            let at = cursor.at();
            let d = dispatch::of_record(&cursor.record(), PhyOffset(at), &self.config.delay_levels_ms);
            let mut look = |d: Dispatch<'_>| {
                if let Some(&i) = self.by_name.get(d.topic).and_then(|queues| queues.get(&d.queue)) {
                    let q = &self.queues[i];
                    let before = d.queued && at < front_to(q) && d.queue_offset < q.bounds.min.0;
                    if before && !self.is_of_deleted_topic(&d) && !lost.contains(&i) {
                        lost.push(i);
                    }
                }
            };
            look(d);
            if self.config.light_queues {
                dispatch::light_places(&d, look);
            }
            cursor.pass(bytes);
        }
        Ok(lost)
    }
}
