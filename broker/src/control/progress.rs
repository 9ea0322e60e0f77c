//! A number that only grows and that tasks of one executor wait for: how far a saver or a registration got.
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

#[derive(Default)]
pub struct Progress {
    at: Cell<u64>,
    waiting: RefCell<Vec<(u64, Waker)>>,
}

impl Progress {
    pub fn at(&self) -> u64 {
        self.at.get()
    }

    /// Moves on to `to`, if it is further, and wakes who waited for that.
    pub fn raise(&self, to: u64) {
        if to <= self.at.get() {
            return;
        }
        self.at.set(to);
        let mut woken = Vec::new();
        self.waiting.borrow_mut().retain_mut(|(wanted, waker)| {
            let keep = *wanted > to;
            if !keep {
                woken.push(waker.clone());
            }
            keep
        });
        woken.into_iter().for_each(Waker::wake);
    }

    /// Resolves when it stands at `wanted` or further.
    pub async fn reached(&self, wanted: u64) {
        poll_fn(|cx| {
            if self.at.get() >= wanted {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|(at, waker)| *at == wanted && waker.will_wake(cx.waker())) {
                waiting.push((wanted, cx.waker().clone()));
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn those_who_wait_go_on_at_their_number_and_not_before() {
        block_on(async {
            let progress = Progress::default();
            let mut two = std::pin::pin!(progress.reached(2));
            let mut three = std::pin::pin!(progress.reached(3));
            assert_eq!((poll_once(&mut two).await, poll_once(&mut three).await), (None, None));
            progress.raise(2);
            assert_eq!((poll_once(&mut two).await, poll_once(&mut three).await), (Some(()), None));
            progress.raise(1);
            assert_eq!(progress.at(), 2, "never back");
            progress.raise(9);
            assert_eq!(poll_once(&mut three).await, Some(()));
            progress.reached(9).await;
        });
    }
}
