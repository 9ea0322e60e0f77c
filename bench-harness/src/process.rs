//! A server under test as a child process: started by a command line, watched for its ready line, ended by its own pid alone.
use crate::error::BenchError;
use futures_lite::future::or;
use glommio::timer::Timer;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Lines of output kept to explain a failure.
const TAIL_LINES: usize = 30;

pub(crate) struct Server {
    child: Child,
    pub(crate) started: Instant,
    lines: flume::Receiver<String>,
    /// Disconnected once the process has ended. It stays a zombie until dropped, so its pid is nobody else's.
    ended: flume::Receiver<()>,
    tail: Arc<Mutex<VecDeque<String>>>,
}

impl Server {
    /// Starts `command` by `sh -c "exec ..."`, so that the pid is the server's own. Its output is read and its last lines are kept.
    pub(crate) fn start(command: &str) -> Result<Server, BenchError> {
        let started = Instant::now();
        let spawned = Command::new("sh")
            .arg("-c")
            .arg(format!("exec {command}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(BenchError::io(format!("starting '{command}'")))?;
        let (line, lines) = flume::unbounded();
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        watch(child.stdout.take().expect("piped"), line.clone(), tail.clone());
        watch(child.stderr.take().expect("piped"), line, tail.clone());
        let (end, ended) = flume::bounded(0);
        let pid = child.id();
        thread::spawn(move || {
            wait_without_reaping(pid);
            drop(end);
        });
        Ok(Server { child, started, lines, ended, tail })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that contains `text`. Gives the time since the start.
    pub(crate) async fn ready(&self, text: &str, most: Duration) -> Result<Duration, BenchError> {
        let seen = async {
            while let Ok(line) = self.lines.recv_async().await {
                if line.contains(text) {
                    return Ok(self.started.elapsed());
                }
            }
            Err(self.failure(&format!("ended without a line '{text}'")))
        };
        let over = async {
            Timer::new(most).await;
            Err(self.failure(&format!("no line '{text}' within {} s", most.as_secs())))
        };
        or(seen, over).await
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_disconnected()
    }

    /// Resolves when the process has ended.
    pub(crate) async fn ended(&self) {
        let _ = self.ended.recv_async().await;
    }

    /// Waits for the end on this thread; false when it takes longer than `most`.
    pub(crate) fn wait(&self, most: Duration) -> bool {
        matches!(self.ended.recv_timeout(most), Err(flume::RecvTimeoutError::Disconnected))
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: plain system call; the pid is that of our child, which is not reaped before `self` is dropped.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// What went wrong, with the last lines that the server wrote.
    pub(crate) fn failure(&self, what: &str) -> BenchError {
        let tail = self.tail.lock().expect("nobody panics holding it");
        let tail: Vec<&str> = tail.iter().map(String::as_str).collect();
        BenchError::Process(format!(
            "the server (pid {}): {what}; its last lines:\n  {}",
            self.pid(),
            tail.join("\n  ")
        ))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes lines on and keeps the last ones, until the output ends.
fn watch(output: impl Read + Send + 'static, lines: flume::Sender<String>, tail: Arc<Mutex<VecDeque<String>>>) {
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line).into_owned();
            let mut tail = tail.lock().expect("nobody panics holding it");
            if tail.len() == TAIL_LINES {
                tail.pop_front();
            }
            tail.push_back(line.clone());
            drop(tail);
            let _ = lines.send(line); // nobody may be waiting for a line any more
        }
    });
}

fn wait_without_reaping(pid: u32) {
    loop {
        // SAFETY: `info` is a plain structure that waitid fills; zeroes are a valid value of it.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above; the call writes nothing else.
        let failed = unsafe { libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT) } != 0;
        if !failed || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_executor;

    #[test]
    fn a_server_is_seen_ready_killed_and_explained() {
        on_executor(None, || async {
            let server = Server::start("sh -c 'echo starting; echo it is ready now >&2; exec sleep 1000'")?;
            let took = server.ready("ready now", Duration::from_secs(20)).await?;
            assert!(took < Duration::from_secs(20));
            assert!(!server.has_ended());
            server.signal(libc::SIGKILL);
            server.ended().await;
            assert!(server.has_ended());
            let failure = server.failure("gone").to_string();
            assert!(failure.contains("starting") && failure.contains("it is ready now"), "{failure}");

            let silent = Server::start("sleep 1000")?;
            let error = silent.ready("ready", Duration::from_millis(50)).await.unwrap_err();
            assert!(error.to_string().contains("no line 'ready' within"), "{error}");
            assert!(!silent.wait(Duration::from_millis(1)));

            let dying = Server::start("sh -c 'echo cannot start; exit 3'")?;
            let error = dying.ready("ready", Duration::from_secs(20)).await.unwrap_err();
            assert!(error.to_string().contains("cannot start"), "{error}");
            assert!(dying.wait(Duration::from_secs(20)));
            Ok(())
        })
        .unwrap();
    }
}
