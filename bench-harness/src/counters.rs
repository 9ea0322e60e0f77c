//! What the threads of a process ask of the kernel and of their cores, counted by perf_event_open(2) where the kernel lets us and the machine
//! has what is counted (a virtual one often counts no cycles).
use perf_event::events::{Event, Hardware, Tracepoint};
use perf_event::{Builder, Counter};
use std::fs;

/// Where the trace points are described; the second is the older place.
const TRACE_DIRS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Counts from when it was attached, over the threads that the process had then.
pub(crate) struct Counters {
    system_calls: Vec<Counter>,
    cycles: Vec<Counter>,
}

impl Counters {
    pub(crate) fn attach(pid: u32) -> Self {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let threads: Vec<i32> = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect();
        Counters {
            system_calls: system_call_point().map_or_else(Vec::new, |point| count(point, &threads)),
            cycles: count(Hardware::CPU_CYCLES, &threads),
        }
    }

    /// `None` where they cannot be counted.
    pub(crate) fn system_calls(&mut self) -> Option<u64> {
        sum(&mut self.system_calls)
    }

    /// In the kernel and outside of it; `None` where they cannot be counted.
    pub(crate) fn cycles(&mut self) -> Option<u64> {
        sum(&mut self.cycles)
    }
}

fn system_call_point() -> Option<Tracepoint> {
    let id =
        |dir: &str| fs::read_to_string(format!("{dir}/events/raw_syscalls/sys_enter/id")).ok()?.trim().parse().ok();
    TRACE_DIRS.into_iter().find_map(id).map(Tracepoint::with_id)
}

/// One counter for each thread; none at all when one cannot be had.
fn count(event: impl Event + Clone, threads: &[i32]) -> Vec<Counter> {
    let counter = |thread: &i32| {
        let mut builder = Builder::new(event.clone());
        builder.observe_pid(*thread).any_cpu().include_kernel().enabled(true).build()
    };
    threads.iter().map(counter).collect::<Result<_, _>>().unwrap_or_default()
}

fn sum(counters: &mut [Counter]) -> Option<u64> {
    let all: Result<Vec<u64>, _> = counters.iter_mut().map(Counter::read).collect();
    all.ok().filter(|all| !all.is_empty()).map(|all| all.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_of_this_process_are_counted() {
        let mut counters = Counters::attach(std::process::id());
        let Some(before) = counters.system_calls() else {
            // Whoever may not count is told so by the kernel: no trace directory, or no right to it.
            let readable = system_call_point().is_some();
            let refused = Builder::new(Hardware::CPU_CYCLES).observe_self().build().is_err();
            assert!(!readable || refused, "there is a trace point, and it is not counted");
            return;
        };
        for _ in 0..1000 {
            // SAFETY: takes nothing and cannot fail.
            unsafe { libc::syscall(libc::SYS_getppid) };
        }
        let after = counters.system_calls().expect("as before");
        assert!(after - before >= 1000, "{before} to {after}");
    }

    #[test]
    fn of_a_process_that_is_not_there_nothing_is_counted() {
        let mut counters = Counters::attach(u32::MAX);
        assert_eq!((counters.system_calls(), counters.cycles()), (None, None));
    }
}
