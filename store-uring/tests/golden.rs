//! Stores that brokers wrote, byte for byte: what Apache 5.5.0 wrote must parse and be written again by our code as the same bytes, and
//! what ours wrote must not change behind the back of the readers it has. `golden/README.md` says what is in the files and how they
//! were made.
#![cfg(feature = "sim")]
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use uringmq_proto::message::sys_flag;
use uringmq_proto::record::{self, BLANK_BYTES_MIN, Found, MAGIC_BLANK, NewRecord, Record};
use uringmq_proto::types::{PhyOffset, QueueOffset};
use uringmq_store::consume_queue::{Appended, ConsumeQueue, Entry};
use uringmq_store::index::Index;
use uringmq_store::io::sim::{Faults, SimIo, block_on};
use uringmq_store::{StoreConfig, dispatch, open};

const ROOT: &str = "/s";
/// As `Stores.java` configures the brokers that write the golden stores.
const SEGMENT_BYTES: u64 = 16384;
const QUEUE_FILE_BYTES: u64 = 400;
const INDEX_SLOTS: u32 = 20;
const INDEX_ITEMS: u32 = 40;

fn config() -> StoreConfig {
    StoreConfig {
        root: ROOT.into(),
        commit_log_dir: Path::new(ROOT).join("commitlog"),
        segment_bytes: SEGMENT_BYTES,
        queue_file_bytes: QUEUE_FILE_BYTES,
        batch_file_bytes: 460,
        extension_file_bytes: 40_000,
        extensions: uringmq_store::Extensions::None,
        topic_forms: Default::default(),
        light_queues: false,
        index_enabled: true,
        index_slots: INDEX_SLOTS,
        index_items: INDEX_ITEMS,
        delay_levels_ms: vec![1000, 10_000, 30 * 60_000],
        record_bytes_max: 16384,
        batch_bytes_max: 16384,
        warm_ahead_bytes: 0,
        read_cache_bytes: 1 << 20,
    }
}

/// The files of a golden store under their paths in it, at their full lengths: zeros at their ends are not in the tree.
struct Golden {
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Golden {
    fn read(name: &str) -> Golden {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let mut files = BTreeMap::new();
        collect(&dir, Path::new(""), &mut files);
        assert!(!files.is_empty(), "nothing in {}", dir.display());
        Golden { files }
    }
    /// Those of one directory, in the order of their names.
    fn under(&self, dir: &str) -> impl Iterator<Item = (&Path, &[u8])> {
        let files = self.files.iter().filter(move |(path, _)| path.starts_with(dir));
        files.map(|(path, bytes)| (path.as_path(), bytes.as_slice()))
    }
    fn log(&self) -> Vec<u8> {
        self.under("commitlog").flat_map(|(_, bytes)| bytes.iter().copied()).collect()
    }
    fn plant(&self, io: &SimIo) {
        for (path, bytes) in &self.files {
            let path = Path::new(ROOT).join(path);
            io.plant_dir(path.parent().unwrap());
            io.plant(&path, bytes);
        }
    }
}

fn collect(dir: &Path, at: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(dir.join(at)).unwrap() {
        let entry = entry.unwrap();
        let path = at.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            collect(dir, &path, files);
            continue;
        }
        let mut bytes = std::fs::read(dir.join(&path)).unwrap();
        let full = match path.iter().next().and_then(|first| first.to_str()) {
            Some("commitlog") => SEGMENT_BYTES,
            Some("consumequeue") => QUEUE_FILE_BYTES,
            Some("index") => 40 + 4 * INDEX_SLOTS as u64 + 20 * INDEX_ITEMS as u64,
            Some("checkpoint") => 4096,
            other => panic!("{other:?} is no part of a golden store"),
        } as usize;
        assert!(bytes.len() <= full, "{} is longer than configured", path.display());
        bytes.resize(full, 0);
        files.insert(path, bytes);
    }
}

/// With where it stands in the log.
type Placed<'a> = (u64, Record<'a>);

/// Every record, and every blank as (offset, bytes).
fn walk(log: &[u8]) -> (Vec<Placed<'_>>, Vec<(u64, u64)>) {
    let (mut records, mut blanks) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < log.len() && log[at..].iter().any(|b| *b != 0) {
        match record::parse(&log[at..], true).unwrap_or_else(|e| panic!("record at {at}: {e}")) {
            Found::Record(r) => {
                records.push((at as u64, r));
                at += r.bytes;
            }
            Found::Blank { bytes } => {
                blanks.push((at as u64, bytes as u64));
                at += bytes;
            }
        }
    }
    (records, blanks)
}

fn as_new<'a>(r: &Record<'a>) -> NewRecord<'a> {
    NewRecord {
        topic: r.topic,
        queue_id: r.queue_id as u32,
        flag: r.flag,
        sys_flag: r.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6),
        born_timestamp_ms: r.born_timestamp_ms,
        born_host: r.born_host,
        store_host: r.store_host,
        reconsume_times: r.reconsume_times,
        prepared_transaction_offset: r.prepared_transaction_offset,
        body: r.body,
        properties: r.properties,
        more_properties: "",
    }
}

fn each_store(judge: impl Fn(&str, &Golden)) {
    for name in ["apache", "ours"] {
        judge(name, &Golden::read(name));
    }
}

#[test]
fn records_are_encoded_again_to_the_same_bytes() {
    each_store(|name, golden| {
        let log = golden.log();
        let (records, blanks) = walk(&log);
        assert!(records.len() > 80, "{name}: {} records", records.len());
        for (at, r) in &records {
            let mut out = Vec::new();
            record::encode(&mut out, &as_new(r)).unwrap();
            record::patch(&mut out, r.queue_offset as u64, r.phy_offset as u64, r.store_timestamp_ms);
            assert_eq!(out, log[*at as usize..][..r.bytes], "{name}: record at {at}");
            assert_eq!(r.phy_offset as u64, *at, "{name}");
        }
        assert!(blanks.len() > 1, "{name}: the log rolled");
        for (at, bytes) in blanks {
            let end = at + bytes;
            assert!(end.is_multiple_of(SEGMENT_BYTES) && bytes >= BLANK_BYTES_MIN as u64, "{name}: blank at {at}");
            let mut expected = vec![0; bytes as usize];
            expected[..4].copy_from_slice(&(bytes as u32).to_be_bytes());
            expected[4..8].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
            assert_eq!(log[at as usize..end as usize], expected, "{name}: blank at {at}");
        }
    });
}

/// What the kinds leave behind in records, so that the tests above cannot pass on a store without them.
#[test]
fn every_kind_is_in_the_golden_stores() {
    each_store(|name, golden| {
        let log = golden.log();
        let records: Vec<Record<'_>> = walk(&log).0.into_iter().map(|(_, r)| r).collect();
        let has = |what: &str, is: &dyn Fn(&Record<'_>) -> bool| {
            assert!(records.iter().any(is), "{name}: no record {what}");
        };
        has("with IPv4 hosts", &|r| r.born_host.is_ipv4() && r.store_host.is_ipv4());
        has("with IPv6 hosts", &|r| r.born_host.is_ipv6() && r.store_host.is_ipv6());
        for (kind, bits) in [("LZ4", 0x100), ("ZSTD", 0x200), ("ZLIB", 0x300)] {
            has(&format!("compressed by {kind}"), &|r| r.sys_flag & 0x701 == bits | sys_flag::COMPRESSED);
        }
        has("that waits", &|r| r.topic == "SCHEDULE_TOPIC_XXXX");
        has("sent back", &|r| r.topic.starts_with("%RETRY%") && r.reconsume_times == 1);
        has("of a batch", &|r| r.body.starts_with(b"batch 1 23"));
        has("with two keys", &|r| r.properties.contains("KEYS\u{1}schl\u{fc}ssel \u{952e}\u{2}"));
        has("with a flag", &|r| r.flag == 0x0102_0304);
        if name == "apache" {
            has("half", &|r| r.topic == "RMQ_SYS_TRANS_HALF_TOPIC");
            has("of an end", &|r| r.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC");
            has("committed", &|r| r.sys_flag & sys_flag::TRANSACTION_MASK == sys_flag::TRANSACTION_COMMIT);
        }
    });
}

#[test]
fn queue_files_are_written_again_to_the_same_bytes() {
    each_store(|name, golden| {
        let io = SimIo::new(1, Faults::none());
        let log = golden.log();
        let config = config();
        let mut queues: BTreeMap<PathBuf, ConsumeQueue<SimIo>> = BTreeMap::new();
        for (at, r) in walk(&log).0 {
            let d = dispatch::of_record(&r, PhyOffset(at), &config.delay_levels_ms);
            if !d.queued {
                continue;
            }
            let dir = Path::new("consumequeue").join(d.topic).join(d.queue.to_string());
            let make = || {
                let dir = Path::new(ROOT).join(&dir);
                ConsumeQueue::new(io.clone(), dir, QUEUE_FILE_BYTES, QueueOffset(0), QueueOffset(0))
            };
            let entry = Entry::new(d.phy, d.bytes, d.tags_code);
            let queue = queues.entry(dir.clone()).or_insert_with(make);
            assert_eq!(queue.append(QueueOffset(d.queue_offset), entry), Appended::Done, "{name}: {}", dir.display());
        }
        for queue in queues.values() {
            block_on(queue.flush()).unwrap();
        }
        let written: Vec<PathBuf> = io.paths().into_iter().filter(|p| io.contents(p).is_some()).collect();
        let mut seen = 0;
        for (path, bytes) in golden.under("consumequeue") {
            let ours = io.contents(&Path::new(ROOT).join(path));
            let used = bytes.iter().any(|b| *b != 0);
            assert!(ours.is_some() || !used, "{name}: {} is not written", path.display());
            assert!(ours.is_none_or(|ours| ours == bytes), "{name}: {} differs", path.display());
            seen += used as usize;
        }
        assert_eq!(seen, written.len(), "{name}: as many files");
        assert!(golden.under("consumequeue/stores-kinds").count() > 3, "{name}: queues rolled");
    });
}

#[test]
fn index_files_are_written_again_to_the_same_bytes() {
    each_store(|name, golden| {
        let io = SimIo::new(1, Faults::none());
        io.plant_dir(&Path::new(ROOT).join("index"));
        let index = block_on(Index::open(io.clone(), &config())).unwrap();
        let log = golden.log();
        for (at, r) in walk(&log).0 {
            record::index_key_hashes(r.topic, r.properties, r.sys_flag, |hash| {
                index.put(hash, PhyOffset(at), r.store_timestamp_ms);
            });
        }
        block_on(index.sync()).unwrap();
        let written: Vec<Vec<u8>> = io.paths().iter().filter_map(|p| io.contents(p)).collect();
        let golden: Vec<_> = golden.under("index").collect();
        assert!(golden.len() > 3, "{name}: the index rolled");
        for (n, (path, bytes)) in golden.iter().enumerate() {
            let ours = &written[n];
            let differs = ours.iter().zip(*bytes).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{name}: {} differs there", path.display());
            assert_eq!(ours.len(), bytes.len(), "{name}: length of {}", path.display());
        }
        assert_eq!(written.len(), golden.len(), "{name}: number of files");
    });
}

#[test]
fn a_golden_store_opens_as_it_is() {
    each_store(|name, golden| {
        let io = SimIo::new(1, Faults::none());
        golden.plant(&io);
        let log = golden.log();
        let mut ends: BTreeMap<(String, u32), u64> = BTreeMap::new();
        let (records, _) = walk(&log);
        for (at, r) in &records {
            let d = dispatch::of_record(r, PhyOffset(*at), &config().delay_levels_ms);
            if d.queued {
                ends.insert((d.topic.to_owned(), d.queue), d.queue_offset + 1);
            }
        }
        let opened = block_on(open::open(io.clone(), &config(), |_| {})).unwrap();
        let (last, r) = records.last().unwrap();
        assert_eq!((opened.min.0, opened.end.0), (0, last + r.bytes as u64), "{name}");
        assert!(opened.clean && opened.report.notes.is_empty(), "{name}: {:?}", opened.report);
        assert_eq!(opened.report.queue_entries_rebuilt, 0, "{name}");
        let found = opened
            .queues
            .into_iter()
            .filter(|q| q.bounds.max.0 > 0)
            .map(|q| ((q.topic, q.queue), q.bounds.max.0))
            .collect();
        assert_eq!(ends, found, "{name}");
        for (path, bytes) in golden.under("commitlog").chain(golden.under("consumequeue")) {
            let found = io.contents(&Path::new(ROOT).join(path));
            assert!(found.as_deref() == Some(bytes), "{name}: {} changed", path.display());
        }
        // Items of records above the checkpoint's are put again, into files of other names.
        let index = Path::new(ROOT).join("index");
        let found =
            io.paths().into_iter().filter(|path| path.starts_with(&index)).filter_map(|path| io.contents(&path));
        let wanted = golden.under("index").map(|(_, bytes)| bytes.to_vec());
        assert!(found.eq(wanted), "{name}: another index");
    });
}
