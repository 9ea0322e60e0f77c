//! One at a time within one core: who finds the turn taken waits for it. Used where an operation on a file spans several awaits.
use crate::event::Event;
use std::cell::Cell;

#[derive(Default, Debug)]
pub struct Turn {
    taken: Cell<bool>,
    freed: Event,
}

/// The turn is free again when this is dropped.
pub struct Taken<'a>(&'a Turn);

impl Turn {
    pub async fn take(&self) -> Taken<'_> {
        while self.taken.replace(true) {
            self.freed.next().await;
        }
        Taken(self)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.taken.set(false);
        self.0.freed.happened();
    }
}
