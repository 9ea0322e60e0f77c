//! What the connections of one shard share: the read buffer, spare output buffers, the budget of partly received frames, and the
//! pacing of complaints. So an idle connection owns no buffer at all, and a busy shard works in memory that its cache holds.
use crate::connection::Conn;
use crate::wait::Line;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tracing::warn;

/// Output buffers kept for reuse, and the largest kept.
const SPARES_MAX: usize = 16;
pub(crate) const SPARE_BYTES_MAX: usize = 1024 * 1024;
/// Complaints about broken frames: so many lines in a window, the rest is counted.
const COMPLAINTS_MAX: u32 = 10;
const COMPLAINTS_WINDOW: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Shared {
    scratch: Cell<Vec<u8>>,
    spares: RefCell<Vec<Vec<u8>>>,
    partial_bytes: Cell<usize>,
    partial_line: Line,
    complaints: Cell<Complaints>,
}

#[derive(Clone, Copy, Default)]
struct Complaints {
    since: Option<Instant>,
    lines: u32,
    unsaid: u32,
}

impl Shared {
    /// The shard's read buffer, initialised and at least `bytes` long. Taken for the time between two awaits only.
    pub(crate) fn take_scratch(&self, bytes: usize) -> Vec<u8> {
        let mut scratch = self.scratch.take();
        if scratch.len() < bytes {
            scratch.resize(bytes, 0);
        }
        scratch
    }

    pub(crate) fn put_scratch(&self, scratch: Vec<u8>) {
        self.scratch.set(scratch);
    }

    /// An empty buffer for output.
    pub(crate) fn take_spare(&self) -> Vec<u8> {
        self.spares.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn put_spare(&self, mut spare: Vec<u8>) {
        let mut spares = self.spares.borrow_mut();
        if (1..=SPARE_BYTES_MAX).contains(&spare.capacity()) && spares.len() < SPARES_MAX {
            spare.clear();
            spares.push(spare);
        }
    }

    /// Counts bytes of a partial frame that are here already.
    pub(crate) fn count_partial(self: &Rc<Self>, bytes: usize) -> Partial {
        self.partial_bytes.set(self.partial_bytes.get() + bytes);
        Partial { shared: self.clone(), bytes }
    }

    /// Waits, first come first served, until `bytes` more fit into `budget_bytes` (a frame larger than all of it goes alone).
    /// `None` when `conn` is closed meanwhile.
    pub(crate) async fn reserve_partial(
        self: &Rc<Self>,
        bytes: usize,
        budget_bytes: usize,
        conn: &Conn,
    ) -> Option<Partial> {
        let place = self.partial_line.place();
        let reserved = poll_fn(|cx| {
            if !conn.is_open() {
                return Poll::Ready(false);
            }
            let used = self.partial_bytes.get();
            if place.is_first() && (used == 0 || used + bytes <= budget_bytes) {
                return Poll::Ready(true);
            }
            place.park(cx);
            // A close rings. What was rung before is heard first, so that the bell then listens for this task.
            while conn.reader_bell().poll_heard(cx).is_ready() {}
            Poll::Pending
        })
        .await;
        let partial = reserved.then(|| self.count_partial(bytes));
        drop(place);
        self.partial_line.wake_first();
        partial
    }

    /// One line for a connection closed for its own fault; when there are many, only their number now and then.
    pub(crate) fn complain(&self, peer: SocketAddr, reason: &str) {
        let now = Instant::now();
        let mut said = self.complaints.get();
        if said.since.is_none_or(|since| now - since > COMPLAINTS_WINDOW) {
            said = Complaints { since: Some(now), lines: 0, unsaid: said.unsaid };
        }
        said.lines += 1;
        if said.lines > COMPLAINTS_MAX {
            said.unsaid += 1;
        } else if said.unsaid > 0 {
            warn!("{peer} sent {reason}; connection closed ({} more like this were not logged)", said.unsaid);
            said.unsaid = 0;
        } else {
            warn!("{peer} sent {reason}; connection closed");
        }
        self.complaints.set(said);
    }
}

/// Bytes of a partial frame, counted until dropped.
pub(crate) struct Partial {
    shared: Rc<Shared>,
    bytes: usize,
}

impl Drop for Partial {
    fn drop(&mut self) {
        self.shared.partial_bytes.set(self.shared.partial_bytes.get() - self.bytes);
        self.shared.partial_line.wake_first();
    }
}
