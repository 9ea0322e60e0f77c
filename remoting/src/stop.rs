//! Closing in order: a gate counts the tasks behind it, refuses new ones once closed, and can be awaited.
use crate::wait::Line;
use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// One per kind of work and executor. Only tasks count behind it, not connections (those end by
/// [`Conns::close_all`](crate::connection::Conns::close_all)), so that `drained` may be awaited while answers still have a way out.
#[derive(Default)]
pub struct Gate {
    closed: Cell<bool>,
    inside: Cell<usize>,
    line: Line,
}

impl Gate {
    pub fn new() -> Rc<Self> {
        Rc::default()
    }

    /// A pass held while a task runs; `None` once closed.
    pub fn enter(self: &Rc<Self>) -> Option<Pass> {
        if self.closed.get() {
            return None;
        }
        self.inside.set(self.inside.get() + 1);
        Some(Pass { gate: self.clone() })
    }

    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub fn close(&self) {
        self.closed.set(true);
        self.line.wake_all();
    }

    /// Resolves when the gate was closed (not when it is empty).
    pub async fn closed(&self) {
        self.wait_until(|gate| gate.closed.get()).await;
    }

    /// Resolves when it is closed and no pass is left.
    pub async fn drained(&self) {
        self.wait_until(|gate| gate.closed.get() && gate.inside.get() == 0).await;
    }

    async fn wait_until(&self, done: impl Fn(&Gate) -> bool) {
        let place = self.line.place();
        poll_fn(|cx| {
            if done(self) {
                return Poll::Ready(());
            }
            place.park(cx);
            Poll::Pending
        })
        .await
    }
}

/// Held by a task while it runs.
pub struct Pass {
    gate: Rc<Gate>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let left = self.gate.inside.get() - 1;
        self.gate.inside.set(left);
        if left == 0 && self.gate.closed.get() {
            self.gate.line.wake_all();
        }
    }
}
