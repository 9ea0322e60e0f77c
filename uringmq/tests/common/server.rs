//! The process under test.
use super::client::Client;
use super::messages::Pull;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

pub const BINARY: &str = env!("CARGO_BIN_EXE_uringmq");
/// Longest wait for a start or a stop; a loaded machine needs seconds.
const PATIENCE: Duration = Duration::from_secs(90);
/// Ports are asked for before they are used, so another process may be faster.
const START_TRIES: usize = 5;
/// Topic of the healthy client.
const HEALTH_TOPIC: &str = "healthy-client";

/// One for a server that may be killed and come back there.
pub fn free_port() -> u16 {
    uringmq_bench::free_port().expect("a free port")
}

/// An empty directory of the test's own.
pub fn test_dir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir); // of a run before
    std::fs::create_dir_all(&dir).expect("a directory for the test");
    dir
}

/// One `uringmq` process in a directory of its own, with its configuration and its log there. It can be started again on what it left;
/// it ends with the value.
pub struct Process {
    child: Option<Child>,
    /// `standalone`, `broker`, `namesrv`, `controller`.
    server: &'static str,
    pub dir: PathBuf,
    /// A command line that this one's words are put behind, and that becomes it; none: it is run as it is.
    pub through: Vec<String>,
}

impl Process {
    pub fn new(server: &'static str, dir: PathBuf) -> Self {
        Process { child: None, server, dir, through: Vec::new() }
    }

    /// Starts it with this configuration and waits until it serves. What went wrong otherwise; it was killed then.
    pub fn start(&mut self, conf: &str) -> Result<(), String> {
        let mut child = self.spawn(conf);
        let ready = wait_for_line(&mut child, "uringmq ready");
        self.child = Some(child);
        ready.inspect_err(|_| self.kill()).map_err(|why| format!("{why}; {}", self.log()))
    }

    /// As `start`, without waiting.
    pub fn launch(&mut self, conf: &str) {
        self.child = Some(self.spawn(conf));
    }

    fn spawn(&self, conf: &str) -> Child {
        assert!(self.child.is_none(), "it runs");
        std::fs::write(self.dir.join("broker.conf"), conf).expect("the configuration file");
        let log = std::fs::File::options().create(true).append(true).open(self.log_path()).expect("the log");
        let own = [BINARY, self.server, "-c", "broker.conf"];
        let mut words = self.through.iter().map(String::as_str).chain(own);
        Command::new(words.next().expect("the binary's own"))
            .args(words)
            .current_dir(&self.dir)
            .env_remove("NAMESRV_ADDR")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the binary")
    }

    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Everything that it wrote to standard error since the test began.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).expect("the log")).into_owned()
    }

    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Sends it a signal by its name, such as STOP.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([format!("-{signal}"), self.pid().to_string()]).status();
        assert!(sent.expect("kill").success());
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill(); // it may be gone
            child.wait().expect("its end");
        }
    }

    /// SIGTERM; the exit status.
    pub fn stop(&mut self) -> ExitStatus {
        stop_child(self.child.take().expect("it runs"))
            .unwrap_or_else(|| panic!("SIGTERM did not end it: {}", self.log()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `uringmq standalone` on free ports, its files in a directory of its own. Ends with the value.
pub struct Server {
    process: Process,
    pub broker: SocketAddr,
    pub namesrv: SocketAddr,
    /// Lines of its configuration file; what is changed counts at the next start.
    pub settings: String,
    health: AtomicU64,
}

impl Server {
    /// A fresh store, started. `settings` are lines of its configuration file, over those that every test server has.
    pub fn start(name: &str, settings: &str) -> Self {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Server {
            process: Process::new("standalone", test_dir(name)),
            broker: nowhere,
            namesrv: nowhere,
            settings: settings.to_owned(),
            health: AtomicU64::new(0),
        };
        server.start_again();
        server
    }

    /// Starts the stopped server on what its store holds now, on new ports.
    pub fn start_again(&mut self) {
        let refusals: Vec<String> = (0..START_TRIES).map_while(|_| self.try_start().err()).collect();
        assert!(self.runs(), "it does not start: {refusals:#?}");
    }

    /// A start that is refused: what it says.
    pub fn refusal(&mut self) -> String {
        let before = self.log().len();
        self.try_start().expect_err("it starts");
        self.log().split_off(before)
    }

    fn try_start(&mut self) -> Result<(), String> {
        let (broker, namesrv) = (free_port(), free_port());
        let conf = format!(
            "brokerIP1=127.0.0.1\nlistenPort={broker}\nnamesrvAddr=127.0.0.1:{namesrv}\nstorePathRootDir={}\n\
             mappedFileSizeCommitLog=8388608\nmaxHashSlotNum=10000\nmaxIndexNum=40000\nwarmAheadBytes=0\n\
             cleanFileForciblyEnable=false\n{}\n",
            self.store().display(),
            self.settings
        );
        self.broker.set_port(broker);
        self.namesrv.set_port(namesrv);
        self.process.start(&conf)
    }

    pub fn client(&self) -> Client {
        Client::connect(self.broker)
    }

    pub fn namesrv_client(&self) -> Client {
        Client::connect(self.namesrv)
    }

    /// What every case checks in the end: the process is up and did not panic, and a healthy client on another connection still sends and
    /// pulls, on both servers.
    pub fn check_healthy(&self, after: &str) {
        let log = self.log();
        assert!(!log.contains("panic"), "after {after}: {log}");
        let mut client = self.client();
        client.must_succeed = true;
        let body = format!("healthy {} after {after}", self.health.fetch_add(1, Ordering::Relaxed));
        let queue = (body.len() % 4) as i32; // any queue will do, and so does any owner
        let sent = client.send(HEALTH_TOPIC, queue, "", body.as_bytes());
        let pulled = client.pull(&Pull::at(HEALTH_TOPIC, queue, sent.queue_offset));
        assert_eq!(pulled.messages.first().map(|m| m.body.as_slice()), Some(body.as_bytes()), "after {after}");
        self.namesrv_client().ok(106, &[], b"");
    }
}

impl Deref for Server {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir); // the next run does it
        }
    }
}

/// SIGTERM; the exit status, or `None` when that did not end it and it was killed.
fn stop_child(mut child: Child) -> Option<ExitStatus> {
    let pid = child.id();
    let sent = Command::new("kill").args(["-TERM", &pid.to_string()]).status();
    assert!(sent.expect("kill").success());
    // Its standard output ends with it, so nothing has to be polled.
    let (ended, end) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let status = child.wait().expect("its end");
        let _ = ended.send(()); // nobody waits any more
        status
    });
    if end.recv_timeout(PATIENCE).is_err() {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        return None;
    }
    Some(waiter.join().expect("the waiter"))
}

/// Reads the lines of a process until one starts with `start`; the rest is read and forgotten. What went wrong otherwise.
fn wait_for_line(child: &mut Child, start: &'static str) -> Result<(), String> {
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let (seen, ready) = mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if line.starts_with(start) {
                let _ = seen.send(()); // it was too late
            }
        }
    });
    let began = Instant::now();
    ready.recv_timeout(PATIENCE).map_err(|e| match e {
        RecvTimeoutError::Timeout => format!("not ready after {:?}", began.elapsed()),
        RecvTimeoutError::Disconnected => "it ended before it was ready".to_owned(),
    })
}

/// One server for the tests of a file that run at the same time. It ends with the last of them: a static value never would.
pub struct Shared {
    name: &'static str,
    settings: &'static str,
    server: Mutex<Weak<Server>>,
    starts: AtomicU64,
}

pub struct Lease(Arc<Server>);

impl Deref for Lease {
    type Target = Server;
    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Shared {
    pub const fn new(name: &'static str, settings: &'static str) -> Self {
        Shared { name, settings, server: Mutex::new(Weak::new()), starts: AtomicU64::new(0) }
    }

    pub fn lease(&self) -> Lease {
        let mut shared = self.server.lock().unwrap_or_else(|failed| failed.into_inner());
        let server = shared.upgrade().unwrap_or_else(|| {
            let name = format!("{}-{}", self.name, self.starts.fetch_add(1, Ordering::Relaxed));
            Arc::new(Server::start(&name, self.settings))
        });
        *shared = Arc::downgrade(&server);
        Lease(server)
    }
}
