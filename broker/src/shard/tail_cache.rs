//! The newest stretch of the log in memory, for hot pulls: the writer's own buffers, shared by all shards, so that the budget
//! counts once for the process.
use crate::writer::committed::Span;
use std::collections::VecDeque;
use std::sync::Arc;
use uringmq_proto::types::PhyOffset;

pub struct TailCache {
    spans: VecDeque<Span>,
    bytes: usize,
    bytes_max: usize,
}

impl TailCache {
    pub fn new(bytes_max: usize) -> Self {
        TailCache { spans: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Adds a span behind all others; the oldest ones over the budget go. A buffer whose last reference this was is given to `freed`.
    pub fn push(&mut self, span: Span, mut freed: impl FnMut(Vec<u8>)) {
        if self.spans.back().is_some_and(|last| span.phy < last.phy + last.bytes as u64) {
            return;
        }
        self.bytes += span.bytes as usize;
        self.spans.push_back(span);
        while self.bytes > self.bytes_max && self.spans.len() > 1 {
            let old = self.spans.pop_front().expect("more than one");
            self.bytes -= old.bytes as usize;
            if let Ok(buffer) = Arc::try_unwrap(old.buffer) {
                freed(buffer);
            }
        }
    }

    /// The stored bytes of a record, when the cache holds all of them. `bytes` 0 reads the size from the record.
    pub fn get(&self, phy: PhyOffset, bytes: u32) -> Option<&[u8]> {
        let index = self.spans.partition_point(|s| s.phy <= phy).checked_sub(1)?;
        let span = &self.spans[index];
        let from = (phy.0 - span.phy.0) as usize;
        let held = &span.buffer[span.at as usize..(span.at + span.bytes) as usize];
        let rest = held.get(from..)?;
        let bytes = match bytes {
            0 => u32::from_be_bytes(rest.get(..4)?.try_into().expect("4 bytes")),
            given => given,
        };
        rest.get(..bytes as usize)
    }

    /// What the cache holds from `phy` to the end of its span.
    pub fn rest(&self, phy: PhyOffset) -> Option<&[u8]> {
        let span = &self.spans[self.spans.partition_point(|s| s.phy <= phy).checked_sub(1)?];
        let held = &span.buffer[span.at as usize..(span.at + span.bytes) as usize];
        held.get((phy.0 - span.phy.0) as usize..).filter(|rest| !rest.is_empty())
    }

    pub fn first(&self) -> Option<PhyOffset> {
        self.spans.front().map(|s| s.phy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(phy: u64, bytes: &[u8]) -> Span {
        Span { phy: PhyOffset(phy), at: 0, bytes: bytes.len() as u32, buffer: Arc::new(bytes.to_vec()) }
    }

    #[test]
    fn finds_records_within_spans_only() {
        let mut cache = TailCache::new(100);
        cache.push(span(10, b"abcdef"), |_| {});
        cache.push(span(20, b"ghij"), |_| {});
        assert_eq!(cache.get(PhyOffset(12), 3), Some(&b"cde"[..]));
        assert_eq!(cache.get(PhyOffset(14), 3), None, "reaches over the span's end");
        assert_eq!(cache.get(PhyOffset(17), 1), None, "between two spans");
        assert_eq!(cache.get(PhyOffset(9), 1), None);
        assert_eq!(cache.get(PhyOffset(20), 4), Some(&b"ghij"[..]));
        assert_eq!((cache.rest(PhyOffset(13)), cache.rest(PhyOffset(16))), (Some(&b"def"[..]), None));
        assert_eq!((cache.rest(PhyOffset(23)), cache.rest(PhyOffset(24))), (Some(&b"j"[..]), None));
    }

    #[test]
    fn the_budget_evicts_the_oldest_and_gives_buffers_back() {
        let mut cache = TailCache::new(8);
        let mut freed = 0;
        for n in 0..5 {
            cache.push(span(n * 4, b"wxyz"), |b| freed += b.len());
        }
        assert_eq!(cache.first(), Some(PhyOffset(12)));
        assert_eq!(freed, 12);
    }
}
