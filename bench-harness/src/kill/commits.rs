//! Consumer offsets in a kill test: committed while the load runs, and asked for after each restart.
//!
//! The broker logs each save of its offsets. A save takes what was committed when it began, and begins when the one before is done. So
//! what was acknowledged before the last but one save was logged is in the last one, and must be there after a kill, whatever the
//! kill interrupted. An offset found after a restart came from the file, so it holds for the next restart too.
use crate::error::BenchError;
use crate::peer::{Caller, now_ms};
use glommio::timer::Timer;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Between two commits of a queue.
const PAUSE: Duration = Duration::from_millis(2);
const NONE: i64 = -1;

/// What was committed on each queue, and what of it must survive.
pub(super) struct Commits {
    queues: Vec<Queue>,
    /// Acknowledged commits.
    pub(super) count: u64,
    /// Restarts before which at least two saves were logged since the start.
    pub(super) judged: u32,
    pub(super) saves: u64,
}

struct Queue {
    /// The newest offset that was sent, acknowledged or not.
    sent: i64,
    /// When it was acknowledged (ms since the epoch), and what; since the last restart.
    acknowledged: Vec<(i64, i64)>,
    /// What a restart must find at least; `NONE` while nothing must be there.
    floor: i64,
}

impl Commits {
    pub(super) fn new(queues: u32) -> Self {
        let queue = || Queue { sent: NONE, acknowledged: Vec::new(), floor: NONE };
        Commits { queues: (0..queues).map(|_| queue()).collect(), count: 0, judged: 0, saves: 0 }
    }

    /// The broker is gone; it logged saves at `saves` (ms since the epoch, rising). Settles what must be found.
    fn settle(&mut self, saves: &[i64]) {
        self.saves += saves.len() as u64;
        let safe_before = saves.len().checked_sub(2).map(|last_but_one| saves[last_but_one]);
        self.judged += u32::from(safe_before.is_some());
        for queue in &mut self.queues {
            let acknowledged = std::mem::take(&mut queue.acknowledged);
            let safe = acknowledged.iter().rev().find(|(at, _)| safe_before.is_some_and(|before| *at < before));
            queue.floor = safe.map_or(queue.floor, |(_, offset)| *offset);
        }
    }

    /// Compares what a restarted broker says of a queue; what is wrong with it.
    fn judge(&mut self, queue: usize, found: Option<i64>) -> Option<String> {
        let of_queue = &mut self.queues[queue];
        let (found, Queue { sent, floor, .. }) = (found.unwrap_or(NONE), &*of_queue);
        let fault = if found < *floor {
            Some(format!("queue {queue}: the group's offset is {found}, but {floor} was saved"))
        } else if found > *sent {
            Some(format!("queue {queue}: the group's offset is {found}, but {sent} was the last one committed"))
        } else {
            None
        };
        of_queue.floor = found;
        fault
    }

    /// Compares what a restarted broker says of each queue, after saves at the moments `saves`. Gives what is wrong.
    pub(super) fn check(&mut self, saves: &[i64], found: Vec<Option<i64>>) -> Vec<String> {
        self.settle(saves);
        found.into_iter().enumerate().filter_map(|(queue, found)| self.judge(queue, found)).collect()
    }
}

/// Commits what `progress` says of each queue, over and over, until the connection ends or `going` says so.
///
/// # Errors
/// A commit that was refused.
pub(super) async fn commit_on(
    caller: Caller,
    topic: String,
    going: Rc<Cell<bool>>,
    commits: Rc<RefCell<Commits>>,
    progress: impl Fn(u32) -> i64,
) -> Result<(), BenchError> {
    let queues = commits.borrow().queues.len() as u32;
    while going.get() {
        for queue in 0..queues {
            let offset = progress(queue);
            if offset <= commits.borrow().queues[queue as usize].sent {
                continue;
            }
            commits.borrow_mut().queues[queue as usize].sent = offset;
            match caller.commit_offset(&topic, queue, offset).await {
                Ok(()) => {}
                Err(refused @ BenchError::Refused { .. }) => return Err(refused),
                Err(_) => return Ok(()), // killed
            }
            let mut commits = commits.borrow_mut();
            commits.queues[queue as usize].acknowledged.push((now_ms(), offset));
            commits.count += 1;
        }
        Timer::new(PAUSE).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets 10, 20, 30 of one queue acknowledged at those moments, 40 sent.
    fn commits() -> Commits {
        let mut commits = Commits::new(1);
        commits.queues[0].sent = 40;
        commits.queues[0].acknowledged = vec![(10, 10), (20, 20), (30, 30)];
        commits
    }

    #[test]
    fn what_was_acknowledged_before_the_last_but_one_save_must_be_there() {
        for (saves, floor) in [
            (&[][..], NONE),
            (&[25], NONE),
            (&[25, 35], 20),
            (&[5, 30, 31], 20), // the same millisecond proves nothing
            (&[5, 31, 32], 30),
            (&[5, 6], NONE),
        ] {
            for (found, right) in
                [(None, floor == NONE), (Some(floor - 1), floor == NONE), (Some(floor), true), (Some(40), true)]
            {
                let found = found.filter(|offset| *offset >= 0);
                let mut commits = commits();
                commits.settle(saves);
                assert_eq!(commits.judge(0, found).is_none(), right, "saves {saves:?}, found {found:?}");
            }
            let mut commits = commits();
            commits.settle(saves);
            assert_eq!((commits.judged, commits.saves), (u32::from(saves.len() >= 2), saves.len() as u64));
            assert!(commits.judge(0, Some(41)).is_some(), "never committed");
        }
    }

    #[test]
    fn what_was_found_holds_for_the_next_restart() {
        let mut commits = commits();
        commits.settle(&[]);
        assert_eq!(commits.judge(0, Some(20)), None);
        commits.settle(&[50, 60]);
        assert!(commits.judge(0, Some(19)).is_some());
        commits.settle(&[]);
        assert_eq!(commits.judge(0, Some(19)), None, "told once");
        assert!(commits.judge(0, None).is_some());
    }
}
