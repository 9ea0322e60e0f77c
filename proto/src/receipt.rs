//! What ties an acknowledgement to the pop that it is of: the receipt handle, and the strings of a pop's answer from which clients build it.
//! Source: wire-protocol sheet 6.1, 6.2.
use std::fmt::Write as _;
use thiserror::Error;

/// The revive queue of ordered pops, which have no check point.
pub const ORDER_REVIVE_QUEUE: i32 = 999;

/// Which topic's queue a popped message was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The topic's own.
    Topic,
    /// The group's retry topic of this topic, by its older name.
    RetryV1,
    RetryV2,
}

impl Source {
    pub fn mark(self) -> &'static str {
        match self {
            Source::Topic => "0",
            Source::RetryV1 => "1",
            Source::RetryV2 => "2",
        }
    }
    pub fn of_mark(mark: &str) -> Option<Self> {
        [Source::Topic, Source::RetryV1, Source::RetryV2].into_iter().find(|source| source.mark() == mark)
    }
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("extraInfo: {0}")]
pub struct ReceiptError(&'static str);

/// `startOffset popTime invisibleTime reviveQid r brokerName queueId msgQueueOffset`; the last may be missing in older ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt<'a> {
    /// Of the pop, on the message's queue.
    pub start_offset: i64,
    pub pop_ms: i64,
    pub invisible_ms: i64,
    pub revive_queue: i32,
    pub source: Source,
    pub broker_name: &'a str,
    pub queue_id: i32,
    pub queue_offset: i64,
}

impl<'a> Receipt<'a> {
    /// # Errors
    /// When it has too few fields, or one that is no number.
    pub fn parse(text: &'a str) -> Result<Self, ReceiptError> {
        fn number<T: std::str::FromStr>(text: Option<&str>, what: &'static str) -> Result<T, ReceiptError> {
            text.and_then(|text| text.parse().ok()).ok_or(ReceiptError(what))
        }
        let mut fields = text.split(' ');
        let start_offset = number(fields.next(), "the start offset is no number")?;
        let pop_ms = number(fields.next(), "the pop time is no number")?;
        let invisible_ms = number(fields.next(), "the invisible time is no number")?;
        let revive_queue = number(fields.next(), "the revive queue is no number")?;
        let source =
            fields.next().and_then(Source::of_mark).ok_or(ReceiptError("the retry mark is none of 0, 1, 2"))?;
        let broker_name = fields.next().ok_or(ReceiptError("it names no broker"))?;
        let queue_id = number(fields.next(), "the queue is no number")?;
        let queue_offset = match fields.next() {
            None => start_offset,
            last => number(last, "the queue offset is no number")?,
        };
        Ok(Receipt { start_offset, pop_ms, invisible_ms, revive_queue, source, broker_name, queue_id, queue_offset })
    }

    pub fn text(&self) -> String {
        format!(
            "{} {} {} {} {} {} {} {}",
            self.start_offset,
            self.pop_ms,
            self.invisible_ms,
            self.revive_queue,
            self.source.mark(),
            self.broker_name,
            self.queue_id,
            self.queue_offset
        )
    }
}

/// `startOffsetInfo`, `msgOffsetInfo` and `orderCountInfo` of a pop's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Infos {
    pub starts: String,
    pub offsets: String,
    pub counts: String,
}

impl Infos {
    fn part(text: &mut String, source: Source, queue: u32) {
        if !text.is_empty() {
            text.push(';');
        }
        // A string takes all.
        let _ = write!(text, "{} {queue} ", source.mark());
    }

    /// The messages that one queue gave, in the order of the body.
    pub fn push(&mut self, source: Source, queue: u32, start: i64, offsets: impl Iterator<Item = i64>) {
        Self::part(&mut self.starts, source, queue);
        let _ = write!(self.starts, "{start}");
        Self::part(&mut self.offsets, source, queue);
        for (index, offset) in offsets.enumerate() {
            let _ = write!(self.offsets, "{}{offset}", if index > 0 { "," } else { "" });
        }
    }

    /// How often the messages of an ordered pop were given before: by offset where any was, and the queue's own count.
    pub fn push_counts(&mut self, queue: u32, by_offset: impl Iterator<Item = (i64, i32)>, of_queue: i32) {
        for (offset, count) in by_offset.filter(|(_, count)| *count > 0) {
            if !self.counts.is_empty() {
                self.counts.push(';');
            }
            let _ = write!(self.counts, "0 qo{queue}%{offset} {count}");
        }
        Self::part(&mut self.counts, Source::Topic, queue);
        let _ = write!(self.counts, "{of_queue}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_it_is_written() {
        let text = "100 1700000000000 60000 3 0 b 0 102";
        let receipt = Receipt::parse(text).unwrap();
        assert_eq!((receipt.start_offset, receipt.queue_offset, receipt.source), (100, 102, Source::Topic));
        assert_eq!(receipt.text(), text);
        let seven = Receipt::parse("100 1700000000000 60000 999 2 b 4").unwrap();
        assert_eq!((seven.queue_offset, seven.source, seven.queue_id), (100, Source::RetryV2, 4));
        for bad in
            ["", "1", "1 2 3 4 5 b 0 0", "1 2 3 4 0 b", "x 2 3 4 0 b 0 0", "1 2 3 4 0 b 0 x", "1 2 3 99999999999 0 b 0"]
        {
            assert!(Receipt::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_strings_list_every_offset_in_order() {
        let mut infos = Infos::default();
        infos.push(Source::Topic, 0, 100, [100, 101, 102].into_iter());
        infos.push(Source::RetryV1, 1, 0, [7].into_iter());
        assert_eq!((infos.starts.as_str(), infos.offsets.as_str()), ("0 0 100;1 1 0", "0 0 100,101,102;1 1 7"));
        infos.push_counts(0, [(100, 0), (101, 2)].into_iter(), 0);
        assert_eq!(infos.counts, "0 qo0%101 2;0 0 0");
    }
}
