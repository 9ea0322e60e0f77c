//! `--loads pairs`: a master and its slave on this machine, by Apache's HA protocol over loopback, under a NameServer of ours. What was
//! acknowledged is read back from the master, and the slave's log must end where the master's does. At last the master is killed under load,
//! and what it acknowledged is looked for on the slave.
use super::loads::Pairing;
use super::{Bench, QUEUES, asked, first_answer, sides, stop};
use crate::error::BenchError;
use crate::on_executor;
use crate::peer::{Caller, Outgoing};
use crate::process::{Server, shown};
use glommio::timer::Timer;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// From the master's port to the others; each broker also binds the ones beside its own.
const SLAVE: u16 = 10;
const NAMES: u16 = 20;
/// How long a slave may take to be in step, or to have the rest of the log.
const IN_STEP_MAX: Duration = Duration::from_secs(120);

/// Sends in flight when the master is killed, and for how long they have gone on by then.
const IN_FLIGHT: u32 = 64;
const BEFORE_KILL: Duration = Duration::from_secs(3);
/// A slave whose queues are the same for so long has dispatched what it has.
const SETTLED: Duration = Duration::from_secs(2);
/// Its first message tells that the slave is in step, and that it has the topic.
const LOST_TOPIC: &str = "until-killed";
const FIRST: Outgoing<'static> =
    Outgoing { topic: LOST_TOPIC, half: false, queue: 0, properties: "", body: b"in step?", batch: false };

/// The offsets that were acknowledged, by queue.
type Acknowledged = Vec<Vec<i64>>;

impl Bench<'_> {
    pub(super) fn pair(&mut self, pairing: &'static Pairing) -> Result<(), BenchError> {
        eprintln!("  {}", pairing.key);
        let dir = self.args.dir.join(format!("{}-pair", self.side.name()));
        if dir.exists() {
            std::fs::remove_dir_all(&dir).map_err(BenchError::io(format!("removing {}", dir.display())))?;
        }
        let names = self.name_server(&dir)?;
        let [master_at, slave_at] = [0, SLAVE].map(|more| loopback(self.args.port + more));
        let role: Vec<String> = pairing.master.iter().map(ToString::to_string).collect();
        let master = self.member(&dir.join("master"), pairing, master_at, role)?;
        let role = vec!["brokerRole=SLAVE".to_owned(), "brokerId=1".to_owned()];
        let slave = self.member(&dir.join("slave"), pairing, slave_at, role)?;
        until("the slave is in step", master_at, async |caller| Ok(caller.slaves_in_step().await? > 0))?;
        // Apache's slave reports after 5 s for the first time.
        asked(master_at, async |caller| caller.create_topic(LOST_TOPIC, QUEUES).await)?;
        until("a send is acknowledged", master_at, async |caller| Ok(caller.send_for_offset(&FIRST).await?.is_some()))?;
        for sends in &pairing.sends {
            self.sends(sends, master.pid())?;
        }
        let end = asked(master_at, Caller::log_end)?;
        until("the slave has the master's log", slave_at, async move |caller| Ok(caller.log_end().await? >= end))?;
        // Tables are copied now and then; a slave that does not know the topic tells nothing of its queues.
        until("the slave has the topic", slave_at, async |caller| Ok(caller.max_offset(LOST_TOPIC, 0).await? > 0))?;
        let acknowledged = until_killed(master, master_at)?;
        self.note(pairing.lost, lost(&acknowledged, &queues_of(slave_at)?) as f64);
        [slave, names].into_iter().try_for_each(|server| stop(server, libc::SIGTERM))
    }

    /// Ours for every side: it has no part in what is measured.
    fn name_server(&self, dir: &Path) -> Result<Server, BenchError> {
        std::fs::create_dir_all(dir).map_err(BenchError::io(format!("making {}", dir.display())))?;
        let file = dir.join("namesrv.conf");
        let text = format!("listenPort={}\nbindAddress=127.0.0.1\n", self.args.port + NAMES);
        std::fs::write(&file, text).map_err(BenchError::io(format!("writing {}", file.display())))?;
        let server = Server::start(&format!("{} namesrv -c {}", shown(&sides::binary(self.args)?), shown(&file)))?;
        on_executor(None, move || async move {
            server.ready("uringmq ready", IN_STEP_MAX).await?;
            Ok(server)
        })
    }

    fn member(
        &self,
        dir: &Path,
        pairing: &Pairing,
        at: SocketAddr,
        mut lines: Vec<String>,
    ) -> Result<Server, BenchError> {
        lines.extend([
            format!("listenPort={}", at.port()),
            format!("haListenPort={}", at.port() + 1),
            format!("namesrvAddr={}", loopback(self.args.port + NAMES)),
            "brokerIP2=127.0.0.1".to_owned(),
        ]);
        let server = Server::start(&self.side.command_with(dir, pairing.flush, &lines)?)?;
        first_answer(at, &server)?;
        Ok(server)
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn until(
    what: &'static str,
    at: SocketAddr,
    holds: impl AsyncFn(&Caller) -> Result<bool, BenchError> + Send + 'static,
) -> Result<(), BenchError> {
    asked(at, async move |caller| {
        let deadline = Instant::now() + IN_STEP_MAX;
        while !holds(caller).await? {
            if Instant::now() > deadline {
                return Err(BenchError::Wrong(format!("not within {} s: {what}", IN_STEP_MAX.as_secs())));
            }
            Timer::new(Duration::from_millis(20)).await;
        }
        Ok(())
    })
}

/// Loads the master, kills it, and gives what it acknowledged.
fn until_killed(master: Server, at: SocketAddr) -> Result<Acknowledged, BenchError> {
    let sending = std::thread::spawn(move || on_executor(None, move || send_until_closed(at)));
    std::thread::sleep(BEFORE_KILL);
    stop(master, libc::SIGKILL)?;
    sending.join().expect("the sender does not panic")
}

async fn send_until_closed(at: SocketAddr) -> Result<Acknowledged, BenchError> {
    let caller = Rc::new(Caller::dial(at).await?);
    let acknowledged = Rc::new(RefCell::new(vec![Vec::new(); QUEUES as usize]));
    let sender = |n: u32| {
        let (caller, acknowledged, queue) = (caller.clone(), acknowledged.clone(), n % QUEUES);
        glommio::spawn_local(async move {
            let body = [b'x'; 1024];
            let message = Outgoing { topic: LOST_TOPIC, half: false, queue, properties: "", body: &body, batch: false };
            while let Ok(offset) = caller.send_for_offset(&message).await {
                acknowledged.borrow_mut()[queue as usize].extend(offset);
            }
        })
    };
    let senders: Vec<_> = (0..IN_FLIGHT).map(sender).collect();
    for sender in senders {
        sender.await;
    }
    Ok(acknowledged.take())
}

/// Where the queues of a slave end once it has dispatched all that it has.
fn queues_of(slave: SocketAddr) -> Result<Vec<i64>, BenchError> {
    asked(slave, async |caller| {
        let (mut seen, mut since) = (Vec::new(), Instant::now());
        while since.elapsed() < SETTLED {
            let mut ends = Vec::new();
            for queue in 0..QUEUES {
                ends.push(caller.max_offset(LOST_TOPIC, queue).await?);
            }
            if ends != seen {
                (seen, since) = (ends, Instant::now());
            }
            Timer::new(Duration::from_millis(50)).await;
        }
        Ok(seen)
    })
}

/// Those acknowledged with an offset that the slave has not.
fn lost(acknowledged: &[Vec<i64>], ends: &[i64]) -> usize {
    let of = |(offsets, end): (&Vec<i64>, &i64)| offsets.iter().filter(|offset| *offset >= end).count();
    acknowledged.iter().zip(ends).map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_is_what_was_acknowledged_behind_the_slaves_end() {
        assert_eq!(lost(&[vec![0, 1, 2], vec![5, 3, 4]], &[3, 6]), 0);
        assert_eq!(lost(&[vec![0, 1, 2], vec![5, 3, 4], vec![0]], &[1, 4, 0]), 2 + 2 + 1);
    }
}
