//! Appends 1 KiB records to a log on the real disk in groups of several sizes, and reads the log back.
//!
//! `cargo bench -p uringmq-store --bench append -- [--quick] [--drain] [--dir DIR] [--cpu N]`. The directory (default: the target directory's
//! `tmp`) must be on the disk to be measured. Each line: records/s and MB/s, CPU time of the executor's thread per record in ns (all, and placing
//! alone; a busy machine does not falsify these), and percentiles of one group's write in us.
//! `cargo test --benches` runs the small version.
use glommio::{LocalExecutorBuilder, Placement};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use uringmq_proto::record::{NewRecord, encode};
use uringmq_proto::types::{PhyOffset, QueueKey, TopicId};
use uringmq_store::StoreConfig;
use uringmq_store::commit_log::{Appender, Keeper};
use uringmq_store::io::glommio::GlommioIo;
use uringmq_store::log_reader::LogReader;

const QUEUES: u32 = 8;

struct Options {
    quick: bool,
    drain_only: bool,
    dir: PathBuf,
    placement: Placement,
}

fn main() {
    let options = options();
    let executor = LocalExecutorBuilder::new(options.placement.clone()).spin_before_park(Duration::from_micros(0));
    let run = executor.spawn(move || async move { measure(&options).await }).expect("an executor");
    run.join().expect("the measurement ends");
}

fn options() -> Options {
    let mut quick = cfg!(debug_assertions);
    let mut drain_only = false;
    let mut dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let mut placement = Placement::Unbound;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" | "--test" => quick = true,
            "--drain" => drain_only = true,
            "--dir" => dir = args.next().expect("--dir takes a directory").into(),
            "--cpu" => {
                placement = Placement::Fixed(args.next().and_then(|n| n.parse().ok()).expect("--cpu takes a number"))
            }
            _ => {} // what cargo adds
        }
    }
    Options { quick, drain_only, dir: dir.join(format!("append-bench-{}", std::process::id())), placement }
}

fn config(root: &Path, warm: bool, quick: bool) -> StoreConfig {
    let mib = 1 << 20;
    StoreConfig {
        root: root.to_owned(),
        commit_log_dir: root.join("commitlog"),
        segment_bytes: if quick { 4 * mib } else { 256 * mib },
        queue_file_bytes: 6_000_000,
        batch_file_bytes: 460,
        extension_file_bytes: 40_000,
        extensions: uringmq_store::Extensions::None,
        topic_forms: Default::default(),
        light_queues: false,
        index_enabled: false,
        index_slots: 0,
        index_items: 0,
        delay_levels_ms: Vec::new(),
        record_bytes_max: 4 * mib as usize,
        batch_bytes_max: 512 * 1024,
        warm_ahead_bytes: if warm { 128 * mib } else { 0 },
        read_cache_bytes: 16 * mib as usize,
    }
}

async fn measure(options: &Options) {
    println!(
        "{:>5} {:>5} {:>7} | {:>9} {:>7} {:>7} {:>7} | {:>7} {:>7} {:>7} {:>7}",
        "group", "warm", "durable", "msg/s", "MB/s", "cpu", "place", "p50", "p99", "p99.9", "max"
    );
    for durable in [false, true].into_iter().filter(|_| !options.drain_only) {
        for warm in [false, true] {
            for group in [1, 16, 64, 256] {
                append(options, group, warm, durable).await;
            }
        }
    }
    drain(options).await;
    std::fs::remove_dir_all(&options.dir).expect("the directory made for this run");
}

async fn open(options: &Options, warm: bool) -> Appender<GlommioIo> {
    let _ = std::fs::remove_dir_all(&options.dir);
    let config = config(&options.dir, warm, options.quick);
    Appender::open(GlommioIo::new(), &config, PhyOffset(0), PhyOffset(0)).await.expect("an empty log")
}

fn one_record() -> Vec<u8> {
    let mut record = Vec::new();
    let new = NewRecord {
        topic: "BenchTopic",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: 1,
        born_host: ([127, 0, 0, 1], 1).into(),
        store_host: ([127, 0, 0, 1], 2).into(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &[b'x'; 1024],
        properties: "UNIQ_KEY\u{1}7F0000010000000000000000000000\u{2}",
        more_properties: "",
    };
    encode(&mut record, &new).expect("a small record");
    record
}

/// One step after another, as the writer's background task.
fn keep(keeper: Keeper<GlommioIo>, stop: Rc<Cell<bool>>) -> glommio::task::JoinHandle<()> {
    glommio::spawn_local(async move {
        while !stop.get() {
            if !keeper.step().await.expect("a step") {
                glommio::timer::sleep(Duration::from_millis(2)).await;
            }
        }
    })
    .detach()
}

/// Of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid through the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "the clock of the own thread is there");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

async fn append(options: &Options, group: usize, warm: bool, durable: bool) {
    let mut log = open(options, warm).await;
    let stop = Rc::new(Cell::new(false));
    let keeper = keep(log.keeper(), stop.clone());
    if warm && !options.quick {
        glommio::timer::sleep(Duration::from_millis(500)).await; // the first stretch is written, as on a broker that waits
    }
    let mut record = one_record();
    let lens = [record.len() as u32];
    let seconds = if options.quick { 0.02 } else { 3.0 };
    let mut times_us = Vec::new();
    let mut messages = 0;
    let mut placing = Duration::ZERO;
    let cpu = cpu_time();
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < seconds {
        let before = cpu_time();
        for index in 0..group {
            let key = QueueKey { topic: TopicId(1), queue: index as u32 % QUEUES };
            assert!(log.fits(record.len()));
            log.place(key, true, &mut record, &lens).expect("placed");
        }
        placing += cpu_time() - before;
        let start = Instant::now();
        let written = log.write(durable).await.expect("written");
        times_us.push(start.elapsed().as_micros() as u64);
        assert!(!durable || written.durable);
        messages += group;
    }
    let (cpu, seconds) = (cpu_time() - cpu, begin.elapsed().as_secs_f64());
    stop.set(true);
    keeper.await;
    times_us.sort_unstable();
    let at = |share: f64| times_us[((times_us.len() - 1) as f64 * share) as usize];
    println!(
        "{group:>5} {warm:>5} {durable:>7} | {:>9.0} {:>7.1} {:>7.0} {:>7.0} | {:>7} {:>7} {:>7} {:>7}",
        messages as f64 / seconds,
        (messages * record.len()) as f64 / seconds / 1e6,
        cpu.as_nanos() as f64 / messages as f64,
        placing.as_nanos() as f64 / messages as f64,
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

/// A cold drain in pulls of 32 records, with read-ahead as the broker's task does it.
async fn drain(options: &Options) {
    let mut log = open(options, true).await;
    let mut record = one_record();
    let bytes = record.len() as u32;
    let mut places = Vec::new();
    let total = if options.quick { 2_000 } else { 1_000_000 };
    while places.len() < total {
        while log.fits(record.len()) {
            let key = QueueKey { topic: TopicId(1), queue: 0 };
            places.push(log.place(key, true, &mut record, &[bytes]).expect("placed").phy);
        }
        log.write(false).await.expect("written");
    }
    for ahead in [false, true] {
        let reader = Rc::new(LogReader::new(GlommioIo::new(), &config(&options.dir, true, options.quick)));
        let mut out = Vec::new();
        let (cpu, start) = (cpu_time(), Instant::now());
        let (mut read, mut sum) = (0, 0u64);
        for pull in places.chunks(32) {
            out.clear();
            for at in pull {
                reader.read_record(*at, bytes, log.written(), &mut out).await.expect("an intact record");
            }
            read += out.len();
            sum = out.iter().step_by(61).fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
            if ahead && reader.wants_ahead().is_some() {
                let reader = reader.clone();
                glommio::spawn_local(async move { reader.read_ahead().await }).detach();
            }
        }
        let cpu = (cpu_time() - cpu).as_nanos() as f64 / places.len() as f64;
        let speed = read as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("drain, read-ahead {ahead:>5}: {speed:.1} MB/s, {cpu:.0} ns of CPU a record, sum {sum:x}");
    }
}
