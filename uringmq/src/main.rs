//! The one binary: flags, configuration, logging and signals around the rooms. Knows no protocol and no store.
mod cli;
mod servers;
#[cfg(target_arch = "x86_64")]
mod system_calls;

use clap::Parser;
use cli::{Cli, What};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use uringmq_broker::stop_signal::is_leftover;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        // Help and version are no errors; a bad option ends with status 1, as Apache's commands do.
        let status = i32::from(error.use_stderr());
        let _ = error.print(); // a closed stdout is no reason to complain about it on stdout
        std::process::exit(status);
    });
    log_to_stderr();
    die_on_panic();
    let status = match cli.what {
        What::Standalone(args) => servers::standalone(args),
        What::Namesrv(args) => servers::namesrv(args),
        What::Controller(args) => servers::controller(args),
        What::Broker(args) => servers::broker(args),
        What::Bench(args) => uringmq_bench::main(*args),
        What::Store(args) => uringmq_admin::store::main(*args, servers::store_config),
    };
    std::process::exit(status);
}

/// `RUST_LOG` says what is logged; info when it is silent.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// A panic on any core ends the process: half a broker is worse than a restart.
fn die_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        while is_leftover() {
            std::thread::park(); // going on would unwind or abort; the process's end takes it along
        }
        print(info);
        tracing::error!("a panic ends the process: {info}");
        std::process::abort();
    }));
}
