//! The binary from outside: flags, files that are not there, what it prints, how it starts and stops.
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use uringmq_bench::free_port;

fn uringmq() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringmq"));
    command.env_remove("NAMESRV_ADDR").env_remove("RUST_LOG").env_remove("ROCKETMQ_HOME");
    command
}

fn run(words: &[&str]) -> Output {
    uringmq().args(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A directory of one test, on the disk that the build lies on (the system's temporary one may be in memory).
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that says when it is ready.
struct Server {
    child: Child,
    /// What it printed up to and with the line that says so.
    said: String,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut server = Server { child, said: String::new() };
        let mut lines = BufReader::new(server.child.stdout.take().unwrap());
        loop {
            let from = server.said.len();
            if lines.read_line(&mut server.said).unwrap() == 0 {
                let mut why = String::new();
                server.child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
                panic!("it ended before it was ready: {}{why}", server.said);
            }
            if server.said[from..].starts_with("uringmq ready") {
                return server;
            }
        }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: plain numbers; the child was not waited for, so its id is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Waits for its end; status and what it logged.
    fn end(mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap(), log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Known fault A08.
#[test]
fn a_file_that_cannot_be_used_is_named() {
    let dir = Dir::new("files");
    let bad = dir.file("bad.conf", "brokerName=a\nlistenPort=10 911\n");
    let here = dir.0.display().to_string();
    for server in ["broker", "namesrv", "standalone"] {
        for file in ["/no/such/file.conf", here.as_str()] {
            let output = run(&[server, "-c", file]);
            assert_eq!(output.status.code(), Some(1), "{server} {file}");
            assert!(stderr(&output).contains(file), "{server} {file}: {}", stderr(&output));
            assert_eq!(stdout(&output), "", "nothing that looks like a start");
        }
        let output = run(&[server, "-c", &bad]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("bad.conf line 2: listenPort = '10 911'"), "{}", stderr(&output));
    }
    let output = run(&["broker", "-n", "a:1,b:2", "-p"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("flag -n: namesrvAddr = 'a:1,b:2'"), "{}", stderr(&output));
}

/// DLedger mode is not there: a start that left it out in silence would keep one copy where several were asked for.
#[test]
fn dledger_mode_is_refused_and_says_what_there_is() {
    let dir = Dir::new("dledger");
    let store = dir.0.join("store");
    let conf = format!("storePathRootDir={}\nenableDLegerCommitLog=true\n", store.display());
    let file = dir.file("dledger.conf", &conf);
    for server in ["broker", "standalone"] {
        let output = run(&[server, "-c", &file]);
        assert_eq!(output.status.code(), Some(1), "{server}");
        for words in ["dledger.conf line 2: enableDLegerCommitLog", "controller mode", "store export"] {
            assert!(stderr(&output).contains(words), "{server}: {words} in {}", stderr(&output));
        }
        assert!(!store.exists(), "{server}: nothing is made");
    }
}

/// Known fault A08.
#[test]
fn the_effective_configuration_does_not_depend_on_the_order_of_flags() {
    let dir = Dir::new("print");
    let file = dir.file("b.conf", "namesrvAddr=file:1\nbrokerName=x\nmyKey=1\n");
    let orders = [
        ["-c", &file, "-n", "flag:1;flag:2", "-p"],
        ["-n", "flag:1;flag:2", "-p", "-c", &file],
        ["-p", "-n", "flag:1;flag:2", "-c", &file],
        ["-p", "-c", &file, "-n", "flag:1;flag:2"],
    ];
    let printed: Vec<String> = orders.iter().map(|words| stdout(&run(&[&["broker"], &words[..]].concat()))).collect();
    for text in &printed {
        assert_eq!(text, &printed[0]);
        for line in ["namesrvAddr=flag:1;flag:2", "brokerName=x", "listenPort=10911", "myKey=1"] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
    let output = run(&["broker", "-m", "-c", &file]);
    assert!(stdout(&output).contains("namesrvAddr=file:1\n") && stdout(&output).lines().count() < 20);
    let environment = uringmq().args(["broker", "-p"]).env("NAMESRV_ADDR", "env:1;env:2").output().unwrap();
    assert!(stdout(&environment).contains("\nnamesrvAddr=env:1;env:2\n"));
    let output = run(&["namesrv", "-p", "-n", "ignored"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("listenPort=9876\n"));
    assert_eq!(run(&["namesrv", "-m"]).status.code(), Some(1));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
}

#[test]
fn a_file_of_an_old_article_starts_with_warnings() {
    let dir = Dir::new("article");
    let text = format!(
        "\u{feff}# a comment\r\nbrokerClusterName = DefaultCluster\r\nbrokerName=broker-a \r\nbrokerIP1=127.0.0.1\r\nlistenPort=0\r\n\
         namesrvAddr=127.0.0.1:{};\r\nstorePathRootDir={}\r\nmapedFileSizeCommitLog=1048576\r\nmapedFileSizeConsumeQueue=300000\r\n\
         storePathConsumeQueue={}\r\nsendMessageThreadPoolNums=128\r\nfileReservedTime=48\r\nbrokerName=broker-b\r\nnoSuchKey=1\r\n",
        free_port().unwrap(),
        dir.0.join("store").display(),
        dir.0.join("elsewhere").display()
    );
    let file = dir.file("b.conf", &text);
    let server = Server::start(uringmq().args(["standalone", "-c", &file]));
    let store = dir.0.join("store").display().to_string();
    assert!(server.said.contains(&store), "{}", server.said);
    assert!(server.said.lines().any(|line| line.starts_with("try ")), "{}", server.said);
    let refused = run(&["broker", "-c", &file]);
    assert_eq!(refused.status.code(), Some(1), "one store, one broker");
    assert!(stderr(&refused).contains("has this store open"), "{}", stderr(&refused));
    server.signal(libc::SIGTERM);
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
    for wanted in [
        "mapedFileSizeCommitLog is not a key and was not applied; the right one is mappedFileSizeCommitLog",
        "mapedFileSizeConsumeQueue is not a key and was not applied; the right one is mappedFileSizeConsumeQueue",
        "storePathConsumeQueue is not a key and was not applied; the right one is storePathRootDir",
        "noSuchKey is not a known key",
        "brokerName was already given",
    ] {
        assert_eq!(log.matches(wanted).count(), 1, "{wanted} in {log}");
    }
    assert!(!log.contains("sendMessageThreadPoolNums"), "{log}");
    assert!(!dir.0.join("elsewhere").exists());
    assert!(!dir.0.join("store/abort").exists(), "a clean stop");
    let segment = std::fs::metadata(dir.0.join("store/commitlog/00000000000000000000")).unwrap();
    assert_eq!(segment.len(), 1 << 30, "the misspelt size was not applied");
}

#[test]
fn a_name_server_starts_and_stops() {
    let dir = Dir::new("namesrv");
    let text = format!("listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={}\n", dir.0.join("kv.json").display());
    let file = dir.file("n.conf", &text);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let server = Server::start(uringmq().args(["namesrv", "-c", &file]));
        assert!(server.said.contains("boot success. serializeType=JSON, address 127.0.0.1:"), "{}", server.said);
        server.signal(signal);
        let (status, log) = server.end();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("stopping in order"), "{log}");
    }
    std::fs::write(dir.0.join("kv.json"), "damaged").unwrap();
    let refused = run(&["namesrv", "-c", &file]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("kv.json"), "{}", stderr(&refused));
}

#[test]
fn a_port_in_use_is_named() {
    let dir = Dir::new("port");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let file = dir.file(
        "n.conf",
        &format!("listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={}\n", dir.0.join("kv.json").display()),
    );
    let refused = run(&["namesrv", "-c", &file]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains(&format!("127.0.0.1:{port}")), "{}", stderr(&refused));
}

/// The lines of JSON that a bench printed; it ended well.
fn benched(words: &str) -> Vec<serde_json::Value> {
    let output = run(&["bench"].into_iter().chain(words.split_whitespace()).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{words}: {}{}", stdout(&output), stderr(&output));
    stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// Small, on a real broker, so that none of them rots.
#[test]
fn every_load_of_the_bench_runs() {
    let dir = Dir::new("bench-loads");
    let (port, store) = (free_port().unwrap(), dir.0.join("store"));
    let conf = format!(
        "brokerIP1=127.0.0.1\nlistenPort={port}\nstorePathRootDir={}\nmappedFileSizeCommitLog=8388608\nshards=2\n",
        store.display()
    );
    let server = Server::start(uringmq().args(["broker", "-c", &dir.file("broker.conf", &conf)]));
    let hlog = dir.0.join("run.hlog");
    let timed = format!("--warmup 0.1 --secs 0.3 --json --broker 127.0.0.1:{port}");
    for load in [
        "send --topic Closed --conns 2 --inflight 4 --stages",
        "send --topic Open --conns 2 --rate 300",
        "send --topic Batch --batch 8 --size 100",
        "send --topic Many --topics 5 --queues 4 --rate 300",
        "send --topic Delayed --delay-level 1 --rate 100",
        "send --topic Transactional --transactional --conns 2 --inflight 4",
        "e2e --topic Arrives --rate 200",
        "e2e --topic Fan --groups 5 --conns 2 --rate 200",
        "send --topic Idle --idle 50 --conns 2 --rate 200",
        &format!("send --topic Logged --rate 300 --hlog {}", hlog.display()),
    ] {
        let lines = benched(&format!("{load} {timed}"));
        let round = lines.iter().find(|line| !line["round"].is_null()).expect("a round");
        assert!(round["errors"] == 0 && round["msgs"].as_u64() > Some(0), "{load}: {round}");
    }
    let mixed = benched(&format!("e2e --topic Mixed --rate 200 --replay Closed {timed}"));
    let replayed = mixed.iter().find(|line| line["kind"] == "replay").expect("a line of the replay");
    assert!(mixed[0]["kind"] == "e2e" && mixed[0]["errors"] == 0, "{mixed:?}");
    let drained = |topic: &str, queues: u32| {
        let lines = benched(&format!("pull --topic {topic} --queues {queues} --json --broker 127.0.0.1:{port}"));
        lines[0]["msgs"].as_u64().expect("a number")
    };
    assert_eq!(replayed["msgs"].as_u64(), Some(drained("Closed", 8)), "from the first message to the last");
    assert!(drained("Transactional", 8) > 0, "what was committed is there");
    assert!((0..5).all(|n| drained(&format!("Many-{n}"), 4) > 0));
    assert!(std::fs::read_to_string(&hlog).unwrap().contains("\"StartTimestamp\",\"Interval_Length\""));
    server.signal(libc::SIGTERM);
    let (status, log) = server.end();
    assert!(status.success(), "{log}");
}

#[test]
fn a_sweep_tells_every_combination() {
    let dir = Dir::new("bench-sweep");
    let (stores, page) = (dir.0.join("stores"), dir.0.join("sweep.html"));
    let lines = benched(&format!(
        "sweep --set shards=1,2 --set spinBeforeParkUs=0 --conf mappedFileSizeCommitLog=8388608 --rounds 1 --secs 0.2 --warmup 0.1 \
         --conns 2 --inflight 4 --rate 200 --json --dir {} --html {}",
        stores.display(),
        page.display()
    ));
    let confs: Vec<&str> = lines.iter().filter_map(|line| line["conf"].as_str()).collect();
    assert_eq!(confs, ["shards=1 spinBeforeParkUs=0", "shards=2 spinBeforeParkUs=0"]);
    assert!(lines.iter().all(|line| line["msg_per_s"].as_f64() > Some(0.0) && line["refused"] == 0), "{lines:?}");
    assert!(lines.iter().any(|line| line["front"] == true), "{lines:?}");
    assert_eq!(std::fs::read_to_string(&page).unwrap().matches("<circle").count(), 2);
    let wrong = run(&[
        "bench",
        "sweep",
        "--set",
        "noSuchKeyOfAnyBroker=1",
        "--conf",
        "shards=-1",
        "--dir",
        &stores.display().to_string(),
    ]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stdout(&wrong));
    assert!(stderr(&wrong).contains("shards"), "{}", stderr(&wrong));
}
