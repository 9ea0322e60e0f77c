//! Opens a store on the real disk, after an unclean and after a clean stop, with many records and with many queues.
//!
//! `cargo bench -p uringmq-store --bench open -- [--quick] [--gib N | --mib N] [--queues N] [--cold] [--dir DIR]`. The directory (default: the
//! target directory's `tmp`) must be on the disk to be measured; `--cold` drops the page cache before each opening (needs root).
//! Each line: the opening's wall time, and what of the log it read. `cargo test --benches` runs the small version.
use glommio::{LocalExecutorBuilder, Placement};
use std::path::PathBuf;
use std::time::Instant;
use uringmq_proto::record::{self, NewRecord};
use uringmq_proto::types::{QueueKey, QueueOffset, TopicId};
use uringmq_store::checkpoint::{self, Checkpoint};
use uringmq_store::commit_log::Appender;
use uringmq_store::consume_queue::{ConsumeQueue, Entry};
use uringmq_store::index::Index;
use uringmq_store::io::glommio::GlommioIo;
use uringmq_store::{StoreConfig, dispatch, open};

/// Records of one write.
const GROUP: u32 = 64;
/// Most log bytes between two checkpoints.
const CHECKPOINT_EVERY_BYTES: u64 = 256 << 20;
const BODY_BYTES: usize = 1024;

struct Options {
    bytes: u64,
    queues: u32,
    cold: bool,
    dir: PathBuf,
}

fn options() -> Options {
    let quick = Options { bytes: 8 << 20, queues: 8, cold: false, dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")) };
    let mut options = if cfg!(debug_assertions) { quick } else { Options { bytes: 4 << 30, ..quick } };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let number = |text: Option<String>| text.and_then(|n| n.parse::<u32>().ok()).expect("a number");
        match arg.as_str() {
            "--quick" | "--test" => options.bytes = 8 << 20,
            "--mib" => options.bytes = (number(args.next()) as u64) << 20,
            "--gib" => options.bytes = (number(args.next()) as u64) << 30,
            "--queues" => options.queues = number(args.next()).max(1),
            "--cold" => options.cold = true,
            "--dir" => options.dir = args.next().expect("--dir takes a directory").into(),
            _ => {} // what cargo adds
        }
    }
    options.dir = options.dir.join(format!("open-bench-{}", std::process::id()));
    options
}

fn config(options: &Options) -> StoreConfig {
    let big = options.bytes > 1 << 30;
    StoreConfig {
        root: options.dir.clone(),
        commit_log_dir: options.dir.join("commitlog"),
        segment_bytes: if big { 1 << 30 } else { 16 << 20 },
        queue_file_bytes: 6_000_000,
        batch_file_bytes: 460,
        extension_file_bytes: 40_000,
        extensions: uringmq_store::Extensions::None,
        topic_forms: Default::default(),
        light_queues: false,
        index_enabled: true,
        index_slots: 5_000_000,
        index_items: 20_000_000,
        delay_levels_ms: vec![1000],
        record_bytes_max: 4 << 20,
        batch_bytes_max: 512 * 1024,
        warm_ahead_bytes: 0,
        read_cache_bytes: 16 << 20,
    }
}

fn main() {
    let options = options();
    let executor = LocalExecutorBuilder::new(Placement::Unbound);
    let run = executor.spawn(move || async move { measure(&options).await }).expect("an executor");
    run.join().expect("the measurement ends");
}

async fn measure(options: &Options) {
    let config = config(options);
    let began = Instant::now();
    build(options, &config).await;
    println!("built {} MiB, {} queues in {:.1} s", options.bytes >> 20, options.queues, began.elapsed().as_secs_f64());
    let io = GlommioIo::starting();
    for what in ["unclean", "unclean, again", "clean"] {
        if what == "clean" {
            checkpoint::mark_clean(&io, &config.root).await.expect("writable");
        }
        if options.cold {
            // SAFETY: sync takes nothing and returns nothing.
            unsafe { libc::sync() };
            std::fs::write("/proc/sys/vm/drop_caches", "3").expect("--cold needs root");
        }
        let began = Instant::now();
        let opened = open::open(io.clone(), &config, |_| {}).await.expect("opens");
        let ms = began.elapsed().as_secs_f64() * 1e3;
        println!(
            "{what:<15} {ms:>8.1} ms, {:>6.1} MiB walked, {} entries rebuilt, {} queues",
            opened.report.scanned_bytes as f64 / 1048576.0,
            opened.report.queue_entries_rebuilt,
            opened.queues.len()
        );
        assert_eq!(opened.clean, what == "clean");
        let began = Instant::now();
        let index = Index::open(io.clone(), &config).await.expect("opens");
        println!("{:<15} {:>8.1} ms for the index", "", began.elapsed().as_secs_f64() * 1e3);
        assert!(index.last().1.0 > 0);
    }
    std::fs::remove_dir_all(&options.dir).expect("removable");
}

/// Ends 3/4 of the way between two checkpoints, so that an unclean start has something to walk.
async fn build(options: &Options, config: &StoreConfig) {
    let io = GlommioIo::starting();
    let opened = open::open(io.clone(), config, |_| {}).await.expect("opens");
    checkpoint::mark_running(&io, &config.root).await.expect("writable");
    let mut log = Appender::open(io.clone(), config, opened.min, opened.end).await.expect("opens");
    let keeper = log.keeper();
    let index = Index::open(io.clone(), config).await.expect("opens");
    let queues: Vec<(String, ConsumeQueue<GlommioIo>)> = (0..options.queues)
        .map(|n| {
            let topic = format!("topic-{}", n / 8);
            let dir = config.root.join("consumequeue").join(&topic).join((n % 8).to_string());
            let zero = QueueOffset(0);
            (topic, ConsumeQueue::new(io.clone(), dir, config.queue_file_bytes, zero, zero))
        })
        .collect();
    let body = vec![b'x'; BODY_BYTES];
    let every = CHECKPOINT_EVERY_BYTES.min(options.bytes / 2);
    let (mut n, mut next_checkpoint) = (0u64, every * 3 / 4);
    let mut last = (opened.end, 0);
    while log.written().0 < options.bytes {
        for _ in 0..GROUP {
            let queue = (n % options.queues as u64) as u32;
            let (topic, cq) = &queues[queue as usize];
            let mut bytes = Vec::new();
            let new = NewRecord {
                topic,
                queue_id: queue % 8,
                flag: 0,
                sys_flag: 0,
                born_timestamp_ms: 1,
                born_host: "127.0.0.1:1".parse().expect("an address"),
                store_host: "127.0.0.1:2".parse().expect("an address"),
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body: &body,
                properties: &format!("UNIQ_KEY\u{1}{n:032X}\u{2}TAGS\u{1}t\u{2}"),
                more_properties: "",
            };
            let len = record::encode(&mut bytes, &new).expect("small") as u32;
            let key = QueueKey { topic: TopicId(queue / 8), queue: queue % 8 };
            let placed = log.place(key, true, &mut bytes, &[len]).expect("room");
            let walked = dispatch::walk(&bytes, placed.phy, &config.delay_levels_ms, false, |d| {
                let entry = Entry::new(d.phy, d.bytes, d.tags_code);
                cq.append(QueueOffset(d.queue_offset), entry);
                record::index_key_hashes(d.topic, d.properties, d.sys_flag, |hash| {
                    index.put(hash, d.phy, d.store_timestamp_ms);
                });
            });
            walked.expect("just encoded");
            last = (placed.phy, placed.store_timestamp_ms);
            n += 1;
        }
        log.write(false).await.expect("writable");
        while keeper.step().await.expect("room") {}
        if log.written().0 >= next_checkpoint {
            next_checkpoint += every;
            log.write(true).await.expect("writable");
            let all: Vec<_> = queues.iter().map(|(_, cq)| cq).collect();
            for cq in &all {
                cq.flush().await.expect("writable");
                cq.close_idle();
            }
            let began = Instant::now();
            ConsumeQueue::sync_many(&io, &config.root, &all).await.expect("writable");
            println!("{:<15} {:>8.1} ms to sync the queues", "", began.elapsed().as_secs_f64() * 1e3);
            index.sync().await.expect("writable");
            let (logics_phy, ms) = last;
            let index_ms = index.synced_ms();
            let next = Checkpoint { physic_ms: ms, logics_ms: ms, index_ms, logics_phy, ..Checkpoint::default() };
            checkpoint::write(&io, &config.root, &next).await.expect("writable");
        }
    }
    for (_, cq) in &queues {
        cq.flush().await.expect("writable");
        cq.close_idle();
    }
    index.flush().await.expect("writable");
}
