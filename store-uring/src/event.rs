//! A thing to wait for within one core: whoever waits when it happens is woken. No thread, no channel.
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

#[derive(Default, Debug)]
pub(crate) struct Event {
    times: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Event {
    pub(crate) fn happened(&self) {
        self.times.set(self.times.get() + 1);
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    /// Ends at the first `happened` after this call (not after its first poll), so a check made before the call cannot miss it.
    pub(crate) fn next(&self) -> impl Future<Output = ()> + '_ {
        let before = self.times.get();
        poll_fn(move |cx| {
            if self.times.get() != before {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }
}
