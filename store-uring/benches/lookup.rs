//! Finding the entries of a pull: 32 of a consume queue, from memory and from its files, at offsets without an order; and the entry of a
//! time. `cargo bench -p uringmq-store --bench lookup` measures; under `cargo test` it runs a few rounds only, so that it does not rot.
use glommio::LocalExecutorBuilder;
use std::path::PathBuf;
use std::time::Instant;
use uringmq_proto::types::{PhyOffset, QueueOffset};
use uringmq_store::consume_queue::{Appended, ConsumeQueue, Entry};
use uringmq_store::io::glommio::GlommioIo;

const ENTRIES: u64 = 300_000;
const RECORD_BYTES: u64 = 1200;
const PULL: usize = 32;
/// Of a file; so that the queue has several.
const FILE_BYTES: u64 = 100_000 * 20;
/// Unflushed entries of a busy queue.
const PENDING: u64 = 1000;

fn entry(n: u64) -> Entry {
    Entry::new(PhyOffset(n * RECORD_BYTES), RECORD_BYTES as u32, n as i64 % 7)
}

fn main() {
    let full = std::env::args().any(|arg| arg == "--bench");
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lookup-bench-{}", std::process::id()));
    let at = dir.clone();
    let run = LocalExecutorBuilder::default().spawn(move || async move { measure(at, full).await });
    run.expect("an executor").join().expect("the measurement ends");
    std::fs::remove_dir_all(&dir).expect("the directory made for this run");
}

async fn measure(dir: PathBuf, full: bool) {
    let queue = ConsumeQueue::new(GlommioIo::new(), dir, FILE_BYTES, QueueOffset(0), QueueOffset(0));
    for n in 0..ENTRIES {
        assert_eq!(queue.append(QueueOffset(n), entry(n)), Appended::Done);
        if n % 50_000 == 0 {
            queue.flush().await.expect("flushed");
        }
    }
    queue.flush().await.expect("flushed");
    for n in ENTRIES..ENTRIES + PENDING {
        assert_eq!(queue.append(QueueOffset(n), entry(n)), Appended::Done);
    }
    let rounds = if full { 200_000 } else { 500 };
    look(&queue, "from memory", ENTRIES, PENDING - PULL as u64, rounds).await;
    look(&queue, "from the files", 0, ENTRIES - PULL as u64, rounds / 10).await;
}

/// Reads pulls at offsets in `from..from + among`.
async fn look(queue: &ConsumeQueue<GlommioIo>, name: &str, from: u64, among: u64, rounds: u64) {
    let mut found = Vec::with_capacity(PULL);
    let begun = Instant::now();
    for round in 0..rounds {
        let at = from + round.wrapping_mul(0x9E37_79B9_7F4A_7C15) % among;
        found.clear();
        queue.read(QueueOffset(at), PULL, &mut found).await.expect("read");
        assert!(found.first().is_some_and(|first| first.phy == entry(at).phy), "{name}: {at}");
    }
    let nanos = begun.elapsed().as_nanos() as f64 / rounds as f64;
    println!("{PULL} entries {name:<16} {nanos:>9.0} ns, {:>6.1} ns an entry", nanos / PULL as f64);
}
