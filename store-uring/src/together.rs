//! Several operations under way at once in one task: thousands of small files cost a hop to the kernel or to the blocking thread for each
//! step, and these overlap. All are run to their end, for a storage operation must not be dropped in its middle.
use crate::StoreError;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// So many files are worked at a time.
pub(crate) const WIDTH: usize = 32;

/// Runs them, at most [`WIDTH`] at a time, begun in their order. The first error, once all are done.
pub(crate) async fn all<F>(operations: impl IntoIterator<Item = F>) -> Result<(), StoreError>
where
    F: Future<Output = Result<(), StoreError>>,
{
    let mut waiting = operations.into_iter();
    let mut running: Vec<Pin<Box<F>>> = Vec::with_capacity(WIDTH);
    let mut outcome = Ok(());
    poll_fn(|cx| {
        loop {
            while running.len() < WIDTH
                && let Some(next) = waiting.next()
            {
                running.push(Box::pin(next));
            }
            let before = running.len();
            running.retain_mut(|operation| match operation.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(done) => {
                    if outcome.is_ok() {
                        outcome = done;
                    }
                    false
                }
            });
            if running.is_empty() && before == 0 {
                return Poll::Ready(());
            }
            if running.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await;
    outcome
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::io::sim::block_on;
    use std::cell::Cell;
    use uringmq_proto::types::PhyOffset;

    #[test]
    fn all_are_run_some_at_a_time_and_the_first_error_is_told() {
        for count in [0, 1, WIDTH, 3 * WIDTH + 1] {
            let (running, most, done) = (Cell::new(0), Cell::new(0), Cell::new(0));
            let operation = |n: usize| {
                let (running, most, done) = (&running, &most, &done);
                async move {
                    running.set(running.get() + 1);
                    most.set(most.get().max(running.get()));
                    let mut turns = n % 3;
                    poll_fn(|cx| {
                        cx.waker().wake_by_ref();
                        turns = turns.saturating_sub(1);
                        if turns == 0 { Poll::Ready(()) } else { Poll::Pending }
                    })
                    .await;
                    running.set(running.get() - 1);
                    done.set(done.get() + 1);
                    if n % 10 == 7 { Err(StoreError::OutOfRange(PhyOffset(n as u64))) } else { Ok(()) }
                }
            };
            let outcome = block_on(all((0..count).map(operation)));
            assert_eq!(done.get(), count);
            assert!(most.get() <= WIDTH);
            assert_eq!(outcome.is_err(), count > 7, "{count}");
        }
    }
}
