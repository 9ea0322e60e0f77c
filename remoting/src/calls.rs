//! The requests a connection sent and waits for, by opaque.
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use uringmq_proto::command::{Command, OwnedCommand};

enum Waiter {
    Waiting(Option<Waker>),
    Answered(OwnedCommand),
}

#[derive(Default)]
pub(crate) struct Calls {
    next: Cell<i32>,
    waiters: RefCell<HashMap<i32, Waiter>>,
}

impl Calls {
    /// The next opaque of this connection, not that of a waiting call.
    pub(crate) fn opaque(&self) -> i32 {
        let waiters = self.waiters.borrow();
        loop {
            let opaque = self.next.get();
            self.next.set(opaque.wrapping_add(1));
            if !waiters.contains_key(&opaque) {
                return opaque;
            }
        }
    }

    /// Registers a call; dropping it gives it up, and its answer, when it still comes, is dropped too.
    pub(crate) fn start(&self) -> Started<'_> {
        let opaque = self.opaque();
        self.waiters.borrow_mut().insert(opaque, Waiter::Waiting(None));
        Started { calls: self, opaque }
    }

    /// Hands an answer to its caller; false when nobody waits for it (any more).
    pub(crate) fn answer(&self, command: &Command<'_>) -> bool {
        let mut waiters = self.waiters.borrow_mut();
        let Some(waiter @ Waiter::Waiting(_)) = waiters.get_mut(&command.opaque) else { return false };
        if let Waiter::Waiting(Some(waker)) = std::mem::replace(waiter, Waiter::Answered(command.into())) {
            waker.wake();
        }
        true
    }

    /// No answer will come any more.
    pub(crate) fn fail_all(&self) {
        self.waiters.borrow_mut().retain(|_, waiter| match waiter {
            Waiter::Answered(_) => true,
            Waiter::Waiting(waker) => {
                if let Some(waker) = waker.take() {
                    waker.wake();
                }
                false
            }
        });
    }
}

pub(crate) struct Started<'a> {
    calls: &'a Calls,
    pub(crate) opaque: i32,
}

impl Started<'_> {
    /// The answer, or `None` once the connection is closed.
    pub(crate) async fn answer(&self) -> Option<OwnedCommand> {
        poll_fn(|cx| match self.calls.waiters.borrow_mut().get_mut(&self.opaque) {
            None => Poll::Ready(None),
            Some(Waiter::Answered(command)) => Poll::Ready(Some(std::mem::take(command))),
            Some(Waiter::Waiting(waker)) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        self.calls.waiters.borrow_mut().remove(&self.opaque);
    }
}
