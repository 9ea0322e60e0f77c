//! Waking within one executor: a bell with one listener, and a line of waiters in the order of their coming.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// Rung by anyone, heard by one task. A ring with nobody listening is kept; several rings are one.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Bell {
    pub(crate) fn ring(&self) {
        self.rung.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Ready when rung since it was last heard; otherwise the task of `cx` is woken by the next ring.
    pub(crate) fn poll_heard(&self, cx: &Context<'_>) -> Poll<()> {
        if self.rung.take() {
            return Poll::Ready(());
        }
        self.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    pub(crate) async fn heard(&self) {
        poll_fn(|cx| self.poll_heard(cx)).await;
    }
}

/// Tasks that wait for the same thing, first come first.
#[derive(Default)]
pub(crate) struct Line {
    next: Cell<u64>,
    waiting: RefCell<VecDeque<(u64, Waker)>>,
}

impl Line {
    /// A place in the line; it is taken by the first `park` and left by the drop.
    pub(crate) fn place(&self) -> Place<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        Place { line: self, number }
    }

    pub(crate) fn wake_first(&self) {
        if let Some((_, waker)) = self.waiting.borrow().front() {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn wake_all(&self) {
        self.waiting.borrow().iter().for_each(|(_, waker)| waker.wake_by_ref());
    }
}

pub(crate) struct Place<'a> {
    line: &'a Line,
    number: u64,
}

impl Place<'_> {
    /// True while nobody who came earlier still waits.
    pub(crate) fn is_first(&self) -> bool {
        self.line.waiting.borrow().front().is_none_or(|(number, _)| *number >= self.number)
    }

    pub(crate) fn park(&self, cx: &Context<'_>) {
        let mut waiting = self.line.waiting.borrow_mut();
        match waiting.binary_search_by_key(&self.number, |(number, _)| *number) {
            Ok(at) => waiting[at].1.clone_from(cx.waker()),
            Err(at) => waiting.insert(at, (self.number, cx.waker().clone())),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.line.waiting.borrow_mut();
        if let Ok(at) = waiting.binary_search_by_key(&self.number, |(number, _)| *number) {
            waiting.remove(at);
        }
    }
}
