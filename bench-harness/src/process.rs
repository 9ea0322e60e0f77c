//! A server under test as a child process: started by a command line, watched for its ready line, ended by its own pid alone.
use crate::error::BenchError;
use crate::peer::now_ms;
use futures_lite::future::or;
use glommio::timer::Timer;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Lines of output kept to explain a failure.
const TAIL_LINES: usize = 30;
/// How long the output of an ended server may take to be read to its end.
const OUTPUT_MAX: Duration = Duration::from_secs(20);

/// A line of a server's output.
struct Line {
    text: String,
    /// When it was read, ms since the epoch.
    read_ms: i64,
}

pub(crate) struct Server {
    child: Child,
    pub(crate) started: Instant,
    lines: flume::Receiver<Line>,
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
                if line.text.contains(text) {
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

    /// When an ended server wrote the lines that contain `text`, ms since the epoch, rising: what the lines say themselves, else when
    /// they were read. Lines that [`Server::ready`] went past are not among them.
    pub(crate) async fn told(&self, text: &str) -> Result<Vec<i64>, BenchError> {
        let read = async {
            let mut told = Vec::new();
            while let Ok(line) = self.lines.recv_async().await {
                if line.text.contains(text) {
                    told.push(written_ms(&line.text).unwrap_or(line.read_ms));
                }
            }
            told.sort_unstable(); // two pipes
            Ok(told)
        };
        let over = async {
            Timer::new(OUTPUT_MAX).await;
            Err(self.failure("it ended, but something still holds its output open"))
        };
        or(read, over).await
    }

    /// Disconnected when the process has ended.
    pub(crate) fn end(&self) -> flume::Receiver<()> {
        self.ended.clone()
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

/// A path as a word of a command line.
pub(crate) fn shown(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Passes lines on and keeps the last ones, until the output ends.
fn watch(output: impl Read + Send + 'static, lines: flume::Sender<Line>, tail: Arc<Mutex<VecDeque<String>>>) {
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
            let _ = lines.send(Line { text: line, read_ms: now_ms() }); // nobody may be waiting for a line any more
        }
    });
}

/// The time at the start of a log line, `2026-01-31T23:59:59.123456Z ...`, in ms since the epoch; rounded down.
fn written_ms(line: &str) -> Option<i64> {
    let (date, rest) = line.split_once('T')?;
    let (time, _) = rest.split_once('Z')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (hours, rest) = time.split_once(':')?;
    let (minutes, seconds) = rest.split_once(':')?;
    let (hours, minutes, seconds): (i64, i64, f64) =
        (hours.parse().ok()?, minutes.parse().ok()?, seconds.parse().ok()?);
    // Days since 1970, with years that begin in March, so that the odd day comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hours) * 60 + minutes) * 60_000 + (seconds * 1e3) as i64)
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
    fn the_time_of_a_log_line_is_read() {
        for (line, ms) in [
            ("1970-01-01T00:00:00.000000Z  INFO x", Some(0)),
            ("2026-03-01T12:34:56.789999Z  INFO x: y", Some(1_772_368_496_789)),
            ("2024-02-29T23:59:59Z", Some(1_709_251_199_000)),
            ("2000-12-31T00:00:00.5Z ", Some(978_220_800_500)),
            ("The broker[a, T:1] boot", None),
            ("aTbZ", None),
            ("", None),
        ] {
            assert_eq!(written_ms(line), ms, "{line}");
        }
    }

    #[test]
    fn what_an_ended_server_told_is_found_with_its_times() {
        on_executor(None, || async {
            let lines =
                "echo 2020-03-01T12:34:55.000Z saved; echo ready; echo saved; echo 2020-03-01T12:34:56.789Z saved";
            let server = Server::start(&format!("sh -c '{lines}'"))?;
            server.ready("ready", Duration::from_secs(20)).await?;
            server.ended().await;
            let told = server.told("saved").await?;
            assert_eq!(told[0], 1_583_066_096_789, "{told:?}");
            assert!(told.len() == 2 && (now_ms() - told[1]) < 60_000, "{told:?}");
            Ok(())
        })
        .unwrap();
    }

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
