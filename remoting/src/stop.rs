//! Closing in order: a gate counts the tasks behind it, refuses new ones once closed, and can be awaited.
use std::rc::Rc;

pub struct Gate {
    _private: (),
}

impl Gate {
    pub fn new() -> Rc<Self> {
        todo!()
    }
    /// A pass held while a task runs; `None` once closed.
    pub fn enter(self: &Rc<Self>) -> Option<Pass> {
        todo!()
    }
    pub fn is_closed(&self) -> bool {
        todo!()
    }
    pub fn close(&self) {
        todo!()
    }
    /// Resolves when the gate was closed (not when it is empty).
    pub async fn closed(&self) {
        todo!()
    }
    /// Resolves when it is closed and no pass is left.
    pub async fn drained(&self) {
        todo!()
    }
}

pub struct Pass {
    _gate: Rc<Gate>,
}
