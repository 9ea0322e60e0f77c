//! `bench kill`: kill -9 under load, restart, and look for every acknowledged message at its acknowledged place. `bench chaos` does the
//! same, and damages the log behind the last acknowledged record before each restart, as a power cut might: see [`damage`].
//!
//! Each message has a number; its queue, size and body follow from it, so every byte that comes back can be judged. Nothing is ever sent
//! twice, so a number found twice is a fault of the broker's. Judged are, queue by queue from where the round began: offsets without
//! gaps, CRC and body, the acknowledged number at the acknowledged offset. Messages that were stored but not acknowledged in time are
//! fine. At last everything of all rounds is read once more. Consumer offsets are committed all the while: see [`commits`].
mod book;
mod commits;
mod damage;

use crate::error::BenchError;
use crate::load::Slots;
use crate::peer::{Caller, Outgoing, dial, mix, number, write_send};
use crate::process::Server;
use crate::report::{median, print_json};
use crate::{on_executor, resolve};
pub(crate) use book::write_body;
use book::{Book, Verdict, verify};
use clap::Args;
use commits::{Commits, commit_on};
use futures_lite::future::or;
use glommio::timer::Timer;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uringmq_proto::codes::response;
use uringmq_proto::command::{Command, OwnedCommand};
use uringmq_proto::message::parse_offset_id;
use uringmq_remoting::Service;
use uringmq_remoting::client::NoService;
use uringmq_remoting::connection::{Conn, Conns};

/// How long a stop by SIGTERM may take at the end.
const STOP_MAX: Duration = Duration::from_secs(60);

#[derive(Args, Debug, Clone)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct ChaosArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// The broker's storePathRootDir
    #[arg(long, value_name = "PATH")]
    store: PathBuf,
    /// Its storePathCommitLog, when that is not below --store
    #[arg(long, value_name = "PATH")]
    commitlog: Option<PathBuf>,
    /// One line of JSON for each kill, and one for all
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug, Clone)]
struct LoadArgs {
    /// Command that starts the broker, in the foreground; run by sh
    #[arg(long)]
    start: String,
    /// Text of the line that tells that it serves
    #[arg(long, default_value = "uringmq ready")]
    ready: String,
    /// Seconds it may take to serve
    #[arg(long, default_value_t = 60)]
    ready_secs: u64,
    /// Address of the broker
    #[arg(long, default_value = "127.0.0.1:10911")]
    broker: String,
    /// Topic; messages in it from before are left alone
    #[arg(long, default_value = "KillTest")]
    topic: String,
    /// Queues of the topic
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    queues: u32,
    /// Connections that send
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    conns: u32,
    /// Requests that each keeps in flight
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    inflight: u32,
    /// Largest body in bytes; sizes vary up to it
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(12..=4_194_304))]
    size: u32,
    /// Kills
    #[arg(long, visible_alias = "kills", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// A kill comes after at least so many milliseconds of load
    #[arg(long, default_value_t = 200)]
    min_ms: u64,
    /// And after at most so many
    #[arg(long, default_value_t = 1500)]
    max_ms: u64,
    /// Text of the line by which the broker tells that it saved the consumer offsets
    #[arg(long, default_value = "consumer offsets saved")]
    saved: String,
    /// For the moments of the kills and the damage; told in the output, so that a run can be repeated
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn main(args: KillArgs) -> Result<(), BenchError> {
    on_executor(None, move || run(args.load, None, true))
}

pub(crate) fn chaos(args: ChaosArgs) -> Result<(), BenchError> {
    let log_dir = args.commitlog.unwrap_or_else(|| args.store.join("commitlog"));
    on_executor(None, move || run(args.load, Some(log_dir), args.json))
}

#[derive(Serialize)]
struct RoundLine {
    round: u32,
    load_ms: u64,
    acknowledged: u64,
    found: u64,
    lost: u64,
    /// Stored though the kill came before the acknowledgement.
    unacknowledged: u64,
    duplicated: u64,
    damaged: u64,
    gaps: u64,
    refused: u64,
    /// Consumer offsets committed and acknowledged.
    commits: u64,
    /// Saves of consumer offsets that the broker logged before the kill.
    offset_saves: u64,
    /// Queues whose consumer offset was older than the last but one save after the restart, or was never committed.
    offsets_wrong: u64,
    /// What was done to the log before the restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
    recovery_ms: f64,
}

impl RoundLine {
    fn print(&self, json: bool) {
        if json {
            return print_json(self);
        }
        println!(
            "kill {:>4} after {:>5} ms: {} acknowledged, {} found, {} lost, {} duplicated, {} damaged, {} gaps, {} offsets wrong; \
             damage: {}; serves after {:.0} ms",
            self.round,
            self.load_ms,
            self.acknowledged,
            self.found,
            self.lost,
            self.duplicated,
            self.damaged,
            self.gaps,
            self.offsets_wrong,
            self.damage.as_deref().unwrap_or("none"),
            self.recovery_ms
        );
    }
}

#[derive(Serialize)]
struct SummaryLine {
    rounds: u32,
    seed: u64,
    acknowledged: u64,
    /// Of the acknowledged ones, in the last reading of all.
    found: u64,
    lost: u64,
    duplicated: u64,
    damaged: u64,
    gaps: u64,
    commits: u64,
    offset_saves: u64,
    /// Rounds with at least two logged saves, whose offsets must therefore have survived.
    offsets_judged: u32,
    offsets_wrong: u64,
    recovery_ms_median: f64,
    recovery_ms_max: f64,
}

impl SummaryLine {
    fn print(&self, json: bool) {
        if json {
            return print_json(self);
        }
        println!(
            "{} kills, seed {}: {} acknowledged, {} found, {} lost, {} duplicated, {} damaged, {} gaps; {} consumer offsets committed, \
             {} kills judged by the broker's saves, {} wrong; serves after p50 {:.0} ms, max {:.0} ms",
            self.rounds,
            self.seed,
            self.acknowledged,
            self.found,
            self.lost,
            self.duplicated,
            self.damaged,
            self.gaps,
            self.commits,
            self.offsets_judged,
            self.offsets_wrong,
            self.recovery_ms_median,
            self.recovery_ms_max
        );
    }
}

/// Kills, damages the log in `log_dir` if there is one, restarts and verifies, round by round.
async fn run(args: LoadArgs, log_dir: Option<PathBuf>, json: bool) -> Result<(), BenchError> {
    let broker = resolve(&args.broker)?;
    let seed = args.seed.unwrap_or_else(|| mix(crate::peer::now_ms() as u64));
    let mut server = Server::start(&args.start)?;
    server.ready(&args.ready, Duration::from_secs(args.ready_secs)).await?;
    let starts = prepare(&args, broker).await?;
    let book = Rc::new(RefCell::new(Book::new(&starts)));
    let commits = Rc::new(RefCell::new(Commits::new(args.queues)));
    let mut recoveries = Vec::new();
    for round in 1..=args.rounds {
        let (first, sent_before) = (book.borrow().stored_ends(), book.borrow().totals);
        let commits_before = commits.borrow().count;
        let span = args.max_ms.saturating_sub(args.min_ms) + 1;
        let chance = mix(seed.wrapping_add(u64::from(round)));
        let load_ms = args.min_ms + chance % span;
        load_and_kill(&args, broker, &server, &book, &commits, Duration::from_millis(load_ms)).await?;
        let saves = server.told(&args.saved).await?;
        let newest = book.borrow().newest;
        let damage = match (&log_dir, newest) {
            (Some(dir), Some(newest)) => Some(damage::damage(dir, newest, mix(chance))?),
            _ => None,
        };
        let told = |error| match &damage {
            Some(damage) => BenchError::Process(format!("kill {round} (seed {seed}), damage: {damage}: {error}")),
            None => error,
        };
        server = Server::start(&args.start)?;
        let recovery = server.ready(&args.ready, Duration::from_secs(args.ready_secs)).await.map_err(told)?;
        recoveries.push(recovery.as_secs_f64() * 1e3);
        let offsets_wrong = verify_offsets(&args, broker, &book, &commits, &saves).await?;
        let Verdict { found, lost, unacknowledged, duplicated, damaged, gaps } =
            verify(&args, broker, &book, &first).await?;
        let sent = book.borrow().totals;
        let line = RoundLine {
            round,
            load_ms,
            acknowledged: sent.acknowledged - sent_before.acknowledged,
            found,
            lost,
            unacknowledged,
            duplicated,
            damaged,
            gaps,
            refused: sent.refused - sent_before.refused,
            commits: commits.borrow().count - commits_before,
            offset_saves: saves.len() as u64,
            offsets_wrong,
            damage,
            recovery_ms: recoveries[recoveries.len() - 1],
        };
        line.print(json);
    }
    let all = verify_all(&args, broker, &book, &starts).await?;
    sum_up(&args, seed, &book.borrow(), &commits.borrow(), &all, recoveries).print(json);
    if commits.borrow().judged == 0 {
        eprintln!(
            "no round saw two saves of consumer offsets, so none was judged: let the broker save more often \
             (flushConsumerOffsetInterval) or kill it later (--min-ms)"
        );
    }
    server.signal(libc::SIGTERM);
    if !server.wait(STOP_MAX) {
        return Err(server.failure("did not stop on SIGTERM"));
    }
    let book = book.borrow();
    book.faults.iter().for_each(|fault| eprintln!("{fault}"));
    match book.fault_count {
        0 => Ok(()),
        count => Err(BenchError::Wrong(format!("{count} faults after {} kills (seed {seed})", args.rounds))),
    }
}

/// Makes topic and group; where each queue ends.
async fn prepare(args: &LoadArgs, broker: SocketAddr) -> Result<Vec<i64>, BenchError> {
    let caller = Caller::dial(broker).await?;
    caller.create_topic(&args.topic, args.queues).await?;
    caller.create_group().await?;
    let mut starts = Vec::new();
    for queue in 0..args.queues {
        starts.push(caller.max_offset(&args.topic, queue).await?);
    }
    caller.close().await;
    Ok(starts)
}

/// Reads everything of all rounds once more. What was lost beyond an end before counts as lost.
async fn verify_all(
    args: &LoadArgs,
    broker: SocketAddr,
    book: &Rc<RefCell<Book>>,
    starts: &[i64],
) -> Result<Verdict, BenchError> {
    book.borrow_mut().forget_seen();
    let beyond = book.borrow().totals.beyond;
    let all = verify(args, broker, book, starts).await?;
    Ok(Verdict { lost: beyond + all.lost, ..all })
}

fn sum_up(
    args: &LoadArgs,
    seed: u64,
    book: &Book,
    commits: &Commits,
    all: &Verdict,
    mut recoveries: Vec<f64>,
) -> SummaryLine {
    recoveries.sort_by(f64::total_cmp);
    SummaryLine {
        rounds: args.rounds,
        seed,
        acknowledged: book.totals.acknowledged,
        found: all.found,
        lost: all.lost,
        duplicated: all.duplicated,
        damaged: all.damaged,
        gaps: all.gaps,
        commits: commits.count,
        offset_saves: commits.saves,
        offsets_judged: commits.judged,
        offsets_wrong: book.totals.offsets_wrong,
        recovery_ms_median: median(&recoveries),
        recovery_ms_max: recoveries[recoveries.len() - 1],
    }
}

/// Loads the broker for a while, kills it in the middle, and waits until all is quiet.
async fn load_and_kill(
    args: &LoadArgs,
    broker: SocketAddr,
    server: &Server,
    book: &Rc<RefCell<Book>>,
    commits: &Rc<RefCell<Commits>>,
    load: Duration,
) -> Result<(), BenchError> {
    let table = Rc::new(Conns::default());
    let sending = Rc::new(Cell::new(true));
    let progress = {
        let book = book.clone();
        move |queue: u32| book.borrow().queues[queue as usize].acknowledged_end()
    };
    let caller = Caller::dial(broker).await?;
    let committing =
        glommio::spawn_local(commit_on(caller, args.topic.clone(), sending.clone(), commits.clone(), progress));
    for n in 0..args.conns {
        let lane = Rc::new(KillLane {
            book: book.clone(),
            sending: sending.clone(),
            topic: args.topic.clone(),
            queues: args.queues,
            size: args.size as usize,
            queue: Cell::new(n),
            slots: RefCell::default(),
            body: RefCell::default(),
        });
        let conn = dial(broker, &table, lane.clone()).await?;
        (0..args.inflight).for_each(|_| lane.send(&conn));
    }
    let loaded = Instant::now();
    or(server.ended(), async {
        Timer::new(load).await;
    })
    .await;
    if server.has_ended() {
        return Err(server.failure(&format!("ended by itself after {} ms of load", loaded.elapsed().as_millis())));
    }
    server.signal(libc::SIGKILL);
    server.ended().await;
    sending.set(false);
    table.emptied().await; // answers that were on their way are read to the end first
    committing.await
}

/// Asks the restarted broker for the consumer offsets; how many are wrong.
async fn verify_offsets(
    args: &LoadArgs,
    broker: SocketAddr,
    book: &Rc<RefCell<Book>>,
    commits: &Rc<RefCell<Commits>>,
    saves: &[i64],
) -> Result<u64, BenchError> {
    let caller = Caller::dial(broker).await?;
    let mut found = Vec::new();
    for queue in 0..args.queues {
        found.push(caller.consumer_offset(&args.topic, queue).await?);
    }
    caller.close().await;
    let faults = commits.borrow_mut().check(saves, found);
    let wrong = faults.len() as u64;
    let mut book = book.borrow_mut();
    book.totals.offsets_wrong += wrong;
    faults.into_iter().for_each(|fault| book.fault(fault));
    Ok(wrong)
}

/// One sending connection.
struct KillLane {
    book: Rc<RefCell<Book>>,
    sending: Rc<Cell<bool>>,
    topic: String,
    queues: u32,
    size: usize,
    queue: Cell<u32>,
    slots: RefCell<Slots>,
    body: RefCell<Vec<u8>>,
}

impl KillLane {
    fn send(&self, conn: &Conn) {
        let id = {
            let mut book = self.book.borrow_mut();
            book.next += 1;
            book.next - 1
        };
        let opaque = self.slots.borrow_mut().take(id);
        let queue = self.queue.get() % self.queues;
        self.queue.set(queue + 1);
        let body = &mut *self.body.borrow_mut();
        write_body(body, id, self.size);
        let properties = format!("UNIQ_KEY\u{1}{id:032X}\u{2}WAIT\u{1}true\u{2}");
        let message = Outgoing { topic: &self.topic, half: false, queue, properties: &properties, body, batch: false };
        conn.write(|out| write_send(out, opaque, &message));
    }
}

impl Service for KillLane {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, frame: &[u8]) {
        NoService.on_request(conn, cmd, frame);
    }

    fn on_answer(&self, conn: &Rc<Conn>, answer: &Command<'_>) {
        let Some(id) = self.slots.borrow_mut().give(answer.opaque) else { return };
        let mut book = self.book.borrow_mut();
        if answer.code == response::SUCCESS {
            let answer = OwnedCommand::from(answer);
            let place = number("a send", &answer, "queueId")
                .and_then(|queue| Ok((queue, number("a send", &answer, "queueOffset")?)));
            book.newest = book.newest.max(answer.get("msgId").and_then(parse_offset_id).map(|(_, phy)| phy));
            match place {
                Ok((queue, offset)) if (0..self.queues as i64).contains(&queue) => {
                    book.acknowledge(queue as usize, offset, id)
                }
                Ok((queue, _)) => book.fault(format!("message {id} acknowledged in queue {queue}")),
                Err(error) => book.fault(format!("message {id}: {error}")),
            }
        } else {
            book.totals.refused += 1;
        }
        drop(book);
        if self.sending.get() {
            self.send(conn);
        }
    }
}
