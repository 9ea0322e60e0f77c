//! `uringmq store` on stores that the broker wrote: sound ones, ones with one kind of damage each, and one that is in use.
#[path = "common/mod.rs"]
mod common;

use common::{BINARY, Pull, Server, props, test_dir};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const TOPIC: &str = "Tools";
const QUEUES: i32 = 3;
const MESSAGES: usize = 300;
const SEGMENT: u64 = 1 << 20;
/// As the test servers have it: maxHashSlotNum.
const SLOTS: u64 = 10_000;
/// From a record's start to its body, both hosts IPv4.
const BODY_AT: u64 = 88;

fn tool(words: &[&str], root: &Path) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("store").arg(words[0]).arg(root).args(&words[1..]).env_remove("NAMESRV_ADDR").env_remove("RUST_LOG");
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// Faults of a check: file, byte and what.
fn check(root: &Path) -> (i32, Vec<(String, u64, String)>, Value) {
    let output = tool(&["check", "--json"], root);
    let report = lines(&output).pop().unwrap_or_else(|| panic!("{}", text(&output)));
    let fault = |f: &Value| {
        (f["file"].as_str().unwrap().to_owned(), f["at"].as_u64().unwrap(), f["what"].as_str().unwrap().to_owned())
    };
    let faults = report["faults"].as_array().unwrap().iter().map(fault).collect();
    (output.status.code().unwrap(), faults, report)
}

/// Three queues, several segments, keys and tags, a delayed message, a topic that was deleted and one that was made anew.
fn fill(server: &Server) {
    let mut client = server.client();
    client.must_succeed = true;
    client.create_topic(TOPIC, QUEUES);
    for n in 0..MESSAGES {
        let keys = format!("key-{n} shared");
        let properties = props(&[("KEYS", &keys), ("TAGS", "A"), ("UNIQ_KEY", &format!("{n:032}"))]);
        client.send(TOPIC, n as i32 % QUEUES, &properties, &vec![b'a' + (n % 26) as u8; 5000 + 40 * n]);
    }
    client.send(TOPIC, 0, &props(&[("DELAY", "18")]), b"later");
    for topic in ["Gone", "Anew"] {
        client.create_topic(topic, 1);
        client.send_many(topic, 0, "", 5);
        client.delete_topic(topic);
    }
    client.create_topic("Anew", 1);
    client.send_many("Anew", 0, "", 2);
}

fn settings() -> String {
    format!("mappedFileSizeCommitLog={SEGMENT}\nshards=2\n")
}

/// A stopped store, made once.
fn original() -> &'static Path {
    static STORE: OnceLock<PathBuf> = OnceLock::new();
    STORE.get_or_init(|| {
        let kept = test_dir("store-tools-original").join("store");
        let mut server = Server::start("store-tools", &settings());
        fill(&server);
        assert!(server.stop().success());
        copy(&server.store(), &kept);
        kept
    })
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

/// A copy of it for one test.
fn store(name: &str) -> PathBuf {
    let root = test_dir(&format!("store-tools-{name}")).join("store");
    copy(original(), &root);
    root
}

fn files_below(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    found.sort();
    found
}

fn edit(path: &Path, at: u64, change: impl FnOnce(&mut [u8; 20])) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut bytes = [0; 20];
    let read = file.read_at(&mut bytes, at).unwrap();
    change(&mut bytes);
    file.write_all_at(&bytes[..read], at).unwrap();
}

/// Record `n` of the topic's messages: where it starts, its queue and queue offset.
fn record(root: &Path, n: usize) -> (u64, i64, u64) {
    let output = tool(&["dump", "--key", &format!("key-{n}")], root);
    let line = lines(&output).pop().unwrap_or_else(|| panic!("{}", text(&output)));
    (line["offset"].as_u64().unwrap(), line["queue"].as_i64().unwrap(), line["queueOffset"].as_u64().unwrap())
}

fn segment(offset: u64) -> (String, u64) {
    (format!("commitlog/{:020}", offset - offset % SEGMENT), offset % SEGMENT)
}

fn index_file(root: &Path) -> String {
    let mut names: Vec<_> = fs::read_dir(root.join("index")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    format!("index/{}", names[0].to_str().unwrap())
}

#[test]
fn a_sound_store_is_called_so_and_nothing_is_written() {
    let root = store("sound");
    let before = files_below(&root);
    let (status, faults, report) = check(&root);
    assert_eq!((status, faults.as_slice()), (0, &[][..]));
    assert_eq!(report["clean"], true);
    assert_eq!(report["records"], MESSAGES as u64 + 1 + 5 + 5 + 2);
    assert_eq!(
        report["index_items"].as_u64().unwrap(),
        lines(&tool(&["dump"], &root)).len() as u64 + 3 * MESSAGES as u64
    );
    let remarks = report["remarks"].to_string();
    assert!(remarks.contains("5 records of Gone, a topic that is no more"), "{remarks}");
    assert!(remarks.contains("consumequeue/Anew/0: numbered anew"), "{remarks}");
    let plain = text(&tool(&["check"], &root));
    assert!(plain.ends_with("sound\n"), "{plain}");
    for words in [&["dump", "--body", "utf8"][..], &["stat"], &["stat", "--json", "--queues"]] {
        assert_eq!(tool(words, &root).status.code(), Some(0));
    }
    assert_eq!(files_below(&root), before);
}

/// One kind of damage to a file.
enum Damage {
    /// A bit of this byte.
    Flip(u64),
    /// Twenty bytes from here on.
    Write(u64, [u8; 20]),
    Cut(u64),
    Remove,
    RemoveDir,
    Make,
}

impl Damage {
    fn to(&self, path: &Path) {
        match self {
            Damage::Flip(at) => edit(path, *at, |bytes| bytes[0] ^= 0x10),
            Damage::Write(at, new) => edit(path, *at, |bytes| *bytes = *new),
            Damage::Cut(len) => fs::File::options().write(true).open(path).unwrap().set_len(*len).unwrap(),
            Damage::Remove => fs::remove_file(path).unwrap(),
            Damage::RemoveDir => fs::remove_dir_all(path).unwrap(),
            Damage::Make => fs::write(path, "x").unwrap(),
        }
    }
}

#[test]
fn each_kind_of_damage_is_told_at_its_place() {
    use Damage::{Cut, Flip, Make, Remove, RemoveDir, Write};
    let root = store("damage");
    let (offset, queue, queue_offset) = record(&root, 200);
    let queue_dir = format!("consumequeue/{TOPIC}/{queue}");
    let queue_file = &*format!("{queue_dir}/{:020}", 0);
    let (log_file, log_at) = segment(offset);
    let (log_file, next_file) = (&*log_file, &*segment(offset + SEGMENT).0);
    let index = &*index_file(&root);
    let item_1 = 40 + 4 * SLOTS + 20;
    let last_file = &*segment(check(&root).2["end_offset"].as_u64().unwrap()).0;
    assert!(offset > SEGMENT && log_at > 0 && next_file <= last_file, "too few segments");
    let stat = lines(&tool(&["stat", "--json"], &root));
    let entries = stat[0]["topics"][TOPIC]["queues"][queue.to_string()]["max_offset"].as_u64().unwrap();
    let (entry_at, end_at) = (20 * queue_offset, 20 * entries);
    let stray = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
    // The damage, where it is done; the place to be told, and the words.
    let damages = [
        (Flip(log_at + BODY_AT + 9), log_file, log_file, log_at, "body CRC: no record up to offset"),
        (Flip(log_at + 1), log_file, log_file, log_at, "no record up to offset"),
        (Flip(log_at + 35), log_file, log_file, log_at, "record of another place"),
        (Flip(entry_at + 7), queue_file, queue_file, entry_at, "entry of queue offset"),
        (Flip(entry_at + 11), queue_file, queue_file, entry_at, "entry of queue offset"),
        (Flip(entry_at + 19), queue_file, queue_file, entry_at, "entry of queue offset"),
        (Write(entry_at, [0; 20]), queue_file, queue_file, entry_at, "no entry for queue offset"),
        (Write(end_at, stray), queue_file, queue_file, end_at, "leads to offset 1, where no such record stands"),
        (Cut(40), queue_file, queue_file, 40, "no entries for queue offsets 2 to"),
        (RemoveDir, &queue_dir, &queue_dir, 0, "no entries for queue offsets 0 to"),
        (Flip(item_1), index, index, item_1, "item 1: its hash"),
        (Flip(item_1 + 10), index, index, item_1 + 4, "item 1: leads to offset"),
        (Flip(item_1 + 14), index, index, item_1 + 12, "item 1:"),
        (Flip(item_1 + 16), index, index, item_1 + 16, "item 1: says that item"),
        (Flip(40), index, index, 40, "slot 0: leads to item"),
        (Flip(16), index, index, 16, "header: begins at offset"),
        (Flip(31), index, index, 24, "header: ends at offset"),
        (Flip(36), index, index, 0, "header: not one of a file of this length"),
        (Flip(47), "checkpoint", "checkpoint", 40, "no record starts there"),
        (Flip(1), "checkpoint", "checkpoint", 0, "physicMsgTimestamp is"),
        (Remove, log_file, next_file, 0, "the file before it is missing"),
        (Make, "commitlog/notes.txt", "commitlog/notes.txt", 0, "not a name of 20 digits"),
        (Cut(SEGMENT - 4096), last_file, last_file, 0, "has 1044480 bytes, the others 1048576"),
    ];
    for (n, (damage, to, file, at, what)) in damages.iter().enumerate() {
        damage.to(&root.join(to));
        let (status, faults, _) = check(&root);
        let told = faults.iter().any(|f| f.0 == *file && f.1 == *at && f.2.contains(what));
        assert!(status == 1 && told, "damage {n}, to be told at {file} byte {at}: {what}; told: {faults:#?}");
        fs::remove_dir_all(&root).unwrap();
        copy(original(), &root);
    }
}

#[test]
fn what_stands_behind_the_end_of_the_log_is_a_note() {
    let root = store("tail");
    let end = check(&root).2["end_offset"].as_u64().unwrap();
    let (file, at) = segment(end);
    edit(&root.join(&file), at + 4, |bytes| bytes.fill(7));
    let (status, faults, report) = check(&root);
    assert_eq!((status, faults.len()), (0, 0));
    let remarks = report["remarks"].to_string();
    assert!(
        remarks.contains(&format!("{file} byte {at}: offset {end}: the log ends here, but not in zeros")),
        "{remarks}"
    );
}

#[test]
fn records_are_chosen_and_printed() {
    let root = store("dump");
    let all = lines(&tool(&["dump"], &root));
    assert!(all.windows(2).all(|two| two[0]["offset"].as_u64() < two[1]["offset"].as_u64()));
    let count = |words: &[&str]| lines(&tool(&[&["dump"], words].concat(), &root)).len();
    assert_eq!(count(&["--topic", TOPIC]), MESSAGES);
    assert_eq!(count(&["--topic", TOPIC, "--queue", "1"]), MESSAGES / QUEUES as usize);
    assert_eq!(
        count(&["--topic", TOPIC, "--queue", "1", "--from-queue-offset", "90"]),
        MESSAGES / QUEUES as usize - 90
    );
    assert_eq!(count(&["--key", "shared"]), MESSAGES);
    assert_eq!(count(&["--key", "shared", "--limit", "7"]), 7);
    assert_eq!(count(&["--topic", "Anew"]), 7);
    let (offset, ..) = record(&root, 250);
    let there = lines(&tool(&["dump", "--offset", &offset.to_string(), "--limit", "1", "--body", "utf8"], &root));
    assert_eq!(
        (&there[0]["properties"]["KEYS"], there[0]["bodyBytes"].as_u64()),
        (&"key-250 shared".into(), Some(15_000))
    );
    assert_eq!(there[0]["body"], "q".repeat(15_000));
    let times: Vec<i64> = all.iter().map(|line| line["storeTimestamp"].as_i64().unwrap()).collect();
    let (from, to) = (times[50], times[times.len() - 3]);
    let between = times.iter().filter(|time| (from..to).contains(time)).count();
    assert_eq!(count(&["--from", &from.to_string(), "--to", &to.to_string()]), between);
    let outside = tool(&["dump", "--offset", "99999999999"], &root);
    assert!(outside.status.code() == Some(2) && text(&outside).contains("is outside the log"), "{}", text(&outside));
}

#[test]
fn a_topic_is_exported_whole_and_no_file_is_overwritten() {
    let root = store("export");
    let file = root.parent().unwrap().join("tools.jsonl");
    let words = ["export", "--topic", TOPIC, "--output", file.to_str().unwrap()];
    let output = tool(&words, &root);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let written = fs::read_to_string(&file).unwrap();
    assert_eq!(written.lines().count(), MESSAGES);
    let first: Value = serde_json::from_str(written.lines().next().unwrap()).unwrap();
    assert_eq!(first["bodyBase64"].as_str().unwrap().len(), 5000usize.div_ceil(3) * 4);
    let again = tool(&words, &root);
    assert!(again.status.code() == Some(2) && text(&again).contains("exists already"), "{}", text(&again));
}

/// Entries of DLedger's log (replication sheet 11), as one of its replicas has them in files of `file_bytes`.
struct Entries {
    files: Vec<Vec<u8>>,
    file_bytes: usize,
    index: i64,
}

impl Entries {
    fn position(&self) -> usize {
        (self.files.len() - 1) * self.file_bytes + self.files.last().expect("a file").len()
    }

    /// An entry of that kind. What is said of a body's place is made true.
    fn put(&mut self, magic: i32, body: &[u8]) {
        let bytes = 48 + body.len();
        let last = self.files.last_mut().expect("a file");
        if last.len() + bytes + 8 > self.file_bytes {
            let rest = self.file_bytes - last.len();
            last.extend_from_slice(&(-1_i32).to_be_bytes());
            last.extend_from_slice(&(rest as i32).to_be_bytes());
            last.resize(self.file_bytes, 0);
            self.files.push(Vec::new());
        }
        let at = self.position() as i64;
        let mut entry = [magic.to_be_bytes(), (bytes as i32).to_be_bytes()].concat();
        for long in [self.index, 3, at] {
            entry.extend_from_slice(&long.to_be_bytes());
        }
        for int in [0, 0, 0, body.len() as i32] {
            entry.extend_from_slice(&int.to_be_bytes());
        }
        entry.extend_from_slice(body);
        if magic == 1 {
            entry[48 + 28..48 + 36].copy_from_slice(&(at + 48).to_be_bytes()); // the record's physical offset
        }
        self.files.last_mut().expect("a file").extend_from_slice(&entry);
        self.index += 1;
    }

    fn write(&self, dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        for (n, bytes) in self.files.iter().enumerate() {
            let mut bytes = bytes.clone();
            bytes.resize(self.file_bytes, 0);
            fs::write(dir.join(format!("{:020}", n * self.file_bytes)), bytes).unwrap();
        }
    }
}

/// The same records in a DLedger log are exported as from the plain one, with the place that they have there.
#[test]
fn a_dledger_log_is_exported() {
    let root = store("dledger-plain");
    let out = root.parent().unwrap().join("plain.jsonl");
    let exported = |root: &Path, out: &Path| {
        let output = tool(&["export", "--topic", TOPIC, "--output", out.to_str().unwrap()], root);
        let text = fs::read_to_string(out).unwrap_or_default();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (output.status.code(), lines, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, plain, _) = exported(&root, &out);
    assert_eq!((status, plain.len()), (Some(0), MESSAGES));

    let mut log = Entries { files: vec![Vec::new()], file_bytes: 1 << 18, index: 0 };
    log.put(2, b"");
    for line in lines(&tool(&["dump"], &root)) {
        let (offset, bytes) = (line["offset"].as_u64().unwrap(), line["bytes"].as_u64().unwrap() as usize);
        let (file, at) = segment(offset);
        let mut record = vec![0; bytes];
        fs::File::open(root.join(file)).unwrap().read_exact_at(&mut record, at).unwrap();
        log.put(1, &record);
        if log.index % 50 == 0 {
            log.put(3, b"a change of the group");
        }
    }
    assert!(log.files.len() > 3);
    let there = test_dir("store-tools-dledger").join("store");
    let data = there.join("dledger-n1/data");
    log.write(&data);
    fs::create_dir_all(there.join("dledger-n1/index")).unwrap();
    let mut all = Vec::new();
    for (n, root) in [&there, &there.join("dledger-n1"), &data].into_iter().enumerate() {
        let (status, lines, said) = exported(root, &there.with_file_name(format!("{n}.jsonl")));
        assert_eq!((status, said.as_str()), (Some(0), ""), "{}", root.display());
        all.push(lines);
    }
    assert!(all[0] == all[1] && all[1] == all[2]);
    let moved = |line: &Value| {
        let mut line = line.clone();
        for place in ["offset", "msgId"] {
            line[place] = Value::Null; // it says where the record stands
        }
        line
    };
    assert_eq!(all[0].iter().map(moved).collect::<Vec<_>>(), plain.iter().map(moved).collect::<Vec<_>>());

    // One entry's head and another one's body are damaged, the end is torn.
    let (first, second) = (all[0][100]["offset"].as_u64().unwrap(), all[0][200]["offset"].as_u64().unwrap());
    let file = |at: u64| (data.join(format!("{:020}", at - at % (1 << 18))), at % (1 << 18));
    let (path, at) = file(first);
    edit(&path, at - 48, |bytes| bytes[1] ^= 1);
    let (path, at) = file(second);
    edit(&path, at + BODY_AT, |bytes| bytes[0] ^= 1);
    let torn = all[0][MESSAGES - 1]["offset"].as_u64().unwrap();
    let (path, at) = file(torn);
    edit(&path, at + BODY_AT, |bytes| bytes[0] ^= 1);
    let (status, rest, said) = exported(&there, &there.with_file_name("damaged.jsonl"));
    assert_eq!((status, rest.len()), (Some(1), MESSAGES - 3), "{said}");
    assert!(said.contains(&format!("no record from offset {} to ", first - 48)), "{said}");
    assert!(
        said.contains(&format!("no record from offset {} to ", second - 48)) && said.contains("body CRC"),
        "{said}"
    );

    log.write(&there.join("dledger-n2/data"));
    let (status, _, said) = exported(&there, &there.with_file_name("two.jsonl"));
    assert!(status == Some(2) && said.contains("dledger-n1") && said.contains("dledger-n2"), "{said}");
}

#[test]
fn a_store_in_use_or_none_at_all_is_refused() {
    let server = Server::start("store-tools-live", &settings());
    for command in ["check", "stat", "dump", "rebuild"] {
        let output = tool(&[command], &server.store());
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(text(&output).contains("another process has this store open; stop it"), "{}", text(&output));
    }
    server.check_healthy("the tools were refused");
    let nowhere = tool(&["check"], Path::new("/nonexistent"));
    assert!(nowhere.status.code() == Some(2) && text(&nowhere).contains("no store"), "{}", text(&nowhere));
}

#[test]
fn derived_files_are_rebuilt_and_the_broker_goes_on() {
    let mut server = Server::start("store-tools-rebuild", &settings());
    fill(&server);
    assert!(server.stop().success());
    let root = server.store();
    let queue_files = |root: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        files_below(&root.join("consumequeue")).into_iter().filter(|(_, bytes)| bytes.iter().any(|b| *b != 0)).collect()
    };
    let before = queue_files(&root);
    let index = fs::read(root.join(index_file(&root))).unwrap();
    fs::remove_dir_all(root.join("consumequeue")).unwrap();
    fs::remove_file(root.join(index_file(&root))).unwrap();
    fs::remove_file(root.join("checkpoint")).unwrap();
    assert_eq!(check(&root).0, 1);
    let conf = server.dir.join("broker.conf");
    let output = tool(&["rebuild", "-c", conf.to_str().unwrap()], &root);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let (status, faults, _) = check(&root);
    assert_eq!((status, faults.as_slice()), (0, &[][..]), "{}", text(&output));
    // The deleted topic has its queue again: the log does not know of deletions.
    let after: Vec<_> =
        queue_files(&root).into_iter().filter(|(path, _)| !path.starts_with(root.join("consumequeue/Gone"))).collect();
    assert_eq!(after.len(), before.len());
    assert!(after == before, "queue files differ");
    assert!(fs::read(root.join(index_file(&root))).unwrap() == index, "index files differ");
    assert!(!root.join("rebuild.new").exists() && !root.join("rebuild.old").exists() && !root.join("abort").exists());
    server.start_again();
    let mut client = server.client();
    client.must_succeed = true;
    assert_eq!(client.bounds(TOPIC, 1), (0, (MESSAGES / QUEUES as usize) as i64));
    assert_eq!(client.query(TOPIC, "key-42", &[]).1.len(), 1);
    let pulled = client.pull(&Pull::at(TOPIC, 2, 99));
    assert_eq!(pulled.messages.len(), 1);
    server.check_healthy("a rebuild");
}

#[test]
fn a_rebuild_steps_over_damage_and_reports_it() {
    let root = store("rebuild-damaged");
    let (offset, queue, queue_offset) = record(&root, 100);
    let (file, at) = segment(offset);
    edit(&root.join(&file), at + BODY_AT, |bytes| bytes[0] ^= 1);
    fs::remove_dir_all(root.join("consumequeue")).unwrap();
    let output = tool(&["rebuild"], &root);
    assert!(text(&output).contains(&format!("no record from {offset} to")), "{}", text(&output));
    let (status, faults, report) = check(&root);
    assert_eq!(report["records"], MESSAGES as u64 + 12);
    let hole = format!("no records in the log for queue offsets {queue_offset} to {queue_offset}");
    assert!(faults.iter().all(|f| f.2.contains(&hole) || f.0 == file), "{faults:#?}");
    let place = format!("consumequeue/{TOPIC}/{queue}/{:020}", 0);
    assert!(status == 1 && faults.iter().any(|f| f.0 == place && f.1 == 20 * queue_offset), "{faults:#?}");
}

/// Batch queues and light queues: checked entry by entry, counted by message, built again from the log.
#[test]
fn batch_queues_and_light_queues_are_checked_and_rebuilt() {
    let more = "enableLmq=true\nenableMultiDispatch=true\nmapperFileSizeBatchConsumeQueue=460\n";
    let mut server = Server::start("store-tools-batches", &format!("{}{more}", settings()));
    let mut client = server.client();
    client.create_batch_topic("Batches", "1");
    client.create_topic("Plain", 1);
    let mut end = 0;
    for n in 0..40 {
        client.send_inner_batch("Batches", 0, &format!("b{n}"), 1 + n % 6);
        client.sent("Batches", 0, "", b"alone");
        end += 2 + n as i64 % 6;
        client.sent("Plain", 0, &props(&[("INNER_MULTI_DISPATCH", "%LMQ%a,%LMQ%b")]), b"light");
    }
    assert!(server.stop().success());
    let store = server.store();
    let (code, faults, report) = check(&store);
    assert_eq!((code, faults.len()), (0, 0), "{report}");
    let stat = &lines(&tool(&["stat", "--json"], &store))[0];
    assert_eq!(stat["messages"].as_i64(), Some(end + 40), "in all, light queues not counted again");
    assert_eq!(stat["topics"]["Batches"]["queues"]["0"]["max_offset"].as_i64(), Some(end));
    assert_eq!(stat["topics"]["%LMQ%a"]["queues"]["0"]["max_offset"].as_i64(), Some(40));

    // One byte of an entry: of its number, of its count.
    let file = store.join("batchconsumequeue/Batches/0/00000000000000000460");
    for at in [46 + 35, 46 * 3 + 37] {
        let bytes = fs::read(&file).unwrap();
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        fs::write(&file, bad).unwrap();
        let (code, faults, report) = check(&store);
        assert_eq!((code, faults.is_empty()), (1, false), "byte {at}: {report}");
        assert!(faults[0].0.starts_with("batchconsumequeue/Batches/0/"), "{faults:?}");
        fs::write(&file, bytes).unwrap();
    }
    fs::remove_dir_all(store.join("consumequeue/%LMQ%b")).unwrap();
    let (code, faults, _) = check(&store);
    assert_eq!(code, 0, "a light queue without files is none: {faults:?}");
    let batches = files_below(&store.join("batchconsumequeue"));
    let light = files_below(&store.join("consumequeue/%LMQ%a"));
    fs::remove_dir_all(store.join("batchconsumequeue")).unwrap();
    assert_eq!(check(&store).0, 1, "all entries are missing");
    let conf = store.with_file_name("tools.conf");
    fs::write(&conf, format!("storePathRootDir={}\n{}{more}", store.display(), settings())).unwrap();
    let rebuilt = tool(&["rebuild", "-c", conf.to_str().unwrap()], &store);
    assert_eq!(rebuilt.status.code(), Some(0), "{}", text(&rebuilt));
    assert!(files_below(&store.join("batchconsumequeue")) == batches, "the same files");
    assert!(files_below(&store.join("consumequeue/%LMQ%a")) == light);
    assert!(store.join("consumequeue/%LMQ%b").is_dir());
    assert_eq!(check(&store).0, 0);
    server.start_again();
    let mut client = server.client();
    assert_eq!(client.bounds("Batches", 0), (0, end));
    assert_eq!(client.bounds("%LMQ%b", 0), (0, 40));
    assert_eq!(client.pull(&Pull::at("Batches", 0, 1)).code, 0);
    server.check_healthy("a rebuild with batch queues");
}

#[test]
fn units_of_extensions_are_checked_and_a_rebuild_does_without() {
    let more = "enableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=40960\n";
    let mut server = Server::start("store-tools-units", &format!("{}{more}", settings()));
    let mut client = server.client();
    client.create_topic("Plain", 1);
    for n in 0..40 {
        client.sent("Plain", 0, &props(&[("TAGS", if n % 2 == 0 { "even" } else { "odd" })]), b"x");
    }
    assert!(server.stop().success());
    let store = server.store();
    let (code, faults, report) = check(&store);
    assert_eq!((code, faults.len()), (0, 0), "{report}");
    assert_eq!(lines(&tool(&["stat", "--json"], &store))[0]["extension_files"].as_u64(), Some(1));
    // The third unit, each 20 bytes long: its length, its tags, its store time.
    let file = store.join("consumequeue_ext/Plain/0/00000000000000000000");
    let bytes = fs::read(&file).unwrap();
    let third = format!("consumequeue/Plain/0/{:020}", 0);
    for at in [40, 40 + 9, 40 + 17] {
        let mut bad = bytes.clone();
        bad[at] ^= 0x80;
        fs::write(&file, bad).unwrap();
        let (code, faults, report) = check(&store);
        let place = faults.first().map(|(file, at, _)| (file.clone(), *at));
        assert_eq!((code, place), (1, Some((third.clone(), 40))), "byte {at}: {report}");
    }
    fs::remove_dir_all(store.join("consumequeue_ext")).unwrap();
    let (code, faults, report) = check(&store);
    assert!(code == 1 && faults[0].2.contains("where no unit is"), "{report}");
    let rebuilt = tool(&["rebuild"], &store);
    assert_eq!(rebuilt.status.code(), Some(0), "{}", text(&rebuilt));
    assert_eq!(check(&store).0, 0);
    server.start_again();
    let mut client = server.client();
    let odd = client.pull(&Pull { count: 50, ..Pull::at("Plain", 0, 0).of("odd") });
    assert_eq!(odd.messages.len(), 20);
    server.check_healthy("a rebuild without units");
}
