//! The wish to stop, from a signal or a caller to every role. Made once, cloned into each core; knows nothing of what stopping means.
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// All that a stop does in order is done; what is left are the runtime's own threads.
static DONE: AtomicBool = AtomicBool::new(false);

pub fn note_done() {
    DONE.store(true, Ordering::SeqCst);
}

/// Whether a panic of this thread is of no account: the stop is done, and the thread is one of those that the runtime makes for blocking calls (they
/// have no name). Such a one panics when its call ends later than the executor that asked for it.
pub fn is_leftover() -> bool {
    DONE.load(Ordering::SeqCst) && std::thread::current().name().is_none()
}

/// A handle of the process's one stop. All clones are the same stop.
#[derive(Clone, Debug)]
pub struct StopHandle {
    requested: Arc<AtomicBool>,
    again: Arc<AtomicBool>,
    ring: flume::Sender<()>,
    bell: flume::Receiver<()>,
}

impl Default for StopHandle {
    fn default() -> Self {
        Self::new()
    }
}

impl StopHandle {
    pub fn new() -> Self {
        let (ring, bell) = flume::unbounded();
        StopHandle { requested: Arc::default(), again: Arc::default(), ring, bell }
    }

    /// Asks for an ordered stop. True for the call that asked first.
    pub fn request(&self) -> bool {
        let first = !self.requested.swap(true, Ordering::SeqCst);
        if first {
            self.ring.send(()).expect("this handle holds a receiver");
        }
        first
    }

    /// Asks for an ordered stop after which the server starts over. Nothing when a stop was asked for already.
    pub fn request_again(&self) {
        if !self.requested.swap(true, Ordering::SeqCst) {
            self.again.store(true, Ordering::SeqCst);
            self.ring.send(()).expect("this handle holds a receiver");
        }
    }

    /// Whether the stop, once it is done, is to be followed by a start.
    pub fn again(&self) -> bool {
        self.again.load(Ordering::SeqCst)
    }

    pub fn requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// Resolves once a stop is asked for; at once when it was. On any executor, for any number of waiters.
    pub async fn wait(&self) {
        if !self.requested() {
            self.bell.recv_async().await.expect("this handle holds a sender");
            // One token serves all: each waiter passes it on.
            self.ring.send(()).expect("this handle holds a receiver");
        }
    }
}

/// SIGTERM and SIGINT as a stop. The first one requests `stop`; a later one ends the process at once with status 128 + signal. Called
/// by the main thread before any other exists, so that every thread inherits the blocked mask and only the waiting thread takes them.
pub fn on_signals(stop: StopHandle) -> io::Result<()> {
    // SAFETY: a sigset_t is plain data for which all zeros is a value; sigemptyset then makes it the empty set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a valid, exclusively borrowed sigset_t; both signal numbers exist.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
    }
    // SAFETY: `set` is initialised; a null old mask is allowed.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || wait_for_signals(&set, &stop))?;
    Ok(())
}

/// `timeout` and some supervisors signal the process and then its group: two signals, one wish.
const SAME_WISH: Duration = Duration::from_millis(300);

fn wait_for_signals(set: &libc::sigset_t, stop: &StopHandle) {
    let mut first = Instant::now();
    loop {
        let mut signal = 0;
        // SAFETY: `set` is initialised and `signal` is writable.
        if unsafe { libc::sigwait(set, &mut signal) } != 0 {
            continue;
        }
        if !stop.requested() || stop.again.swap(false, Ordering::SeqCst) {
            // Said before it is asked for: an idle server may be gone at once.
            first = Instant::now();
            tracing::info!(signal, "stopping in order; a second signal ends the process at once");
            stop.request();
        } else if first.elapsed() > SAME_WISH {
            tracing::warn!(signal, "a second signal: ending at once");
            // SAFETY: ends the process without running destructors, which is what the second signal asks for.
            unsafe { libc::_exit(128 + signal) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once, zip};

    #[test]
    fn all_waiters_wake_and_later_ones_do_not_wait() {
        let stop = StopHandle::new();
        assert!(!stop.requested());
        let waiter = stop.clone();
        assert_eq!(block_on(poll_once(waiter.wait())), None);
        let others: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                std::thread::spawn(move || block_on(stop.wait()))
            })
            .collect();
        assert!(stop.request());
        assert!(!waiter.request(), "only the first request is the first");
        block_on(zip(stop.wait(), waiter.wait()));
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(block_on(poll_once(stop.clone().wait())), Some(()));
        assert!(!stop.again());
    }

    #[test]
    fn only_a_nameless_thread_is_left_over_and_only_after_the_stop() {
        let nameless = || std::thread::spawn(is_leftover).join().unwrap();
        let named = || std::thread::Builder::new().name("shard-0".into()).spawn(is_leftover).unwrap().join().unwrap();
        assert!(!nameless() && !named());
        note_done();
        assert!(nameless() && !named());
    }

    #[test]
    fn a_stop_to_start_over_is_a_stop_and_does_not_turn_another_into_one() {
        let (over, plain) = (StopHandle::new(), StopHandle::new());
        over.request_again();
        block_on(over.wait());
        assert!(over.requested() && over.again() && !over.request());
        plain.request();
        plain.request_again();
        assert!(plain.requested() && !plain.again());
    }
}
