//! Newtypes for the numbers that must not be mixed up.
use std::fmt;

/// A byte position in the commit log's address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhyOffset(pub u64);

/// A message's ordinal in its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueOffset(pub u64);

/// A topic as this process numbers it; never reused while the process lives, so a topic deleted and made again is another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub u32);

/// One queue of one topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    pub topic: TopicId,
    pub queue: u32,
}

impl fmt::Display for PhyOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for QueueOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl std::ops::Add<u64> for PhyOffset {
    type Output = PhyOffset;
    fn add(self, bytes: u64) -> PhyOffset {
        PhyOffset(self.0 + bytes)
    }
}
impl std::ops::Add<u64> for QueueOffset {
    type Output = QueueOffset;
    fn add(self, count: u64) -> QueueOffset {
        QueueOffset(self.0 + count)
    }
}
