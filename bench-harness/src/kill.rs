//! `bench kill`: kill -9 under load, restart, and look for every acknowledged message at its acknowledged place.
//!
//! Each message has a number; its queue, size and body follow from it, so every byte that comes back can be judged. Nothing is ever sent
//! twice, so a number found twice is a fault of the broker's. Judged are, queue by queue from where the round began: offsets without
//! gaps, CRC and body, the acknowledged number at the acknowledged offset. Messages that were stored but not acknowledged in time are
//! fine. At last everything of all rounds is read once more. Consumer offsets are committed all the while: see [`commits`].
mod commits;

use crate::error::BenchError;
use crate::load::Slots;
use crate::peer::{Caller, Outgoing, PullAsk, dial, mix, number, write_send};
use crate::process::Server;
use crate::report::{median, print_json};
use crate::{on_executor, resolve};
use clap::Args;
use commits::{Commits, commit_on};
use futures_lite::future::or;
use glommio::timer::Timer;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uringmq_proto::codes::response;
use uringmq_proto::command::{Command, OwnedCommand};
use uringmq_remoting::Service;
use uringmq_remoting::client::NoService;
use uringmq_remoting::connection::{Conn, Conns};

/// How long a stop by SIGTERM may take at the end.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Faults told in words; the rest is counted.
const FAULTS_TOLD: usize = 10;
/// Number and size of a message, in front of its body.
const HEAD_BYTES: usize = 12;

#[derive(Args, Debug, Clone)]
pub(crate) struct KillArgs {
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
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
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
    /// For the moments of the kills; told in the output, so that a run can be repeated
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn main(args: KillArgs) -> Result<(), BenchError> {
    on_executor(None, move || run(args))
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
    recovery_ms: f64,
}

#[derive(Serialize)]
struct SummaryLine {
    rounds: u32,
    seed: u64,
    acknowledged: u64,
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

async fn run(args: KillArgs) -> Result<(), BenchError> {
    let broker = resolve(&args.broker)?;
    let seed = args.seed.unwrap_or_else(|| mix(crate::peer::now_ms() as u64));
    let ready = Duration::from_secs(args.ready_secs);
    let mut server = Server::start(&args.start)?;
    server.ready(&args.ready, ready).await?;
    let caller = Caller::dial(broker).await?;
    caller.create_topic(&args.topic, args.queues).await?;
    caller.create_group().await?;
    let mut starts = Vec::new();
    for queue in 0..args.queues {
        starts.push(caller.max_offset(&args.topic, queue).await?);
    }
    caller.close().await;
    let book = Rc::new(RefCell::new(Book::new(&starts)));
    let commits = Rc::new(RefCell::new(Commits::new(args.queues)));
    let mut recoveries = Vec::new();
    for round in 1..=args.rounds {
        let (first, sent_before) = (book.borrow().stored_ends(), book.borrow().totals);
        let commits_before = commits.borrow().count;
        let span = args.max_ms.saturating_sub(args.min_ms) + 1;
        let load_ms = args.min_ms + mix(seed.wrapping_add(round as u64)) % span;
        load_and_kill(&args, broker, &server, &book, &commits, Duration::from_millis(load_ms)).await?;
        let saves = server.told(&args.saved).await?;
        server = Server::start(&args.start)?;
        let recovery = server.ready(&args.ready, ready).await?;
        recoveries.push(recovery.as_secs_f64() * 1e3);
        let offsets_wrong = verify_offsets(&args, broker, &book, &commits, &saves).await?;
        let verdict = verify(&args, broker, &book, &first).await?;
        let sent = book.borrow().totals;
        print_json(&RoundLine {
            round,
            load_ms,
            acknowledged: sent.acknowledged - sent_before.acknowledged,
            found: verdict.found,
            lost: verdict.lost,
            unacknowledged: verdict.unacknowledged,
            duplicated: verdict.duplicated,
            damaged: verdict.damaged,
            gaps: verdict.gaps,
            refused: sent.refused - sent_before.refused,
            commits: commits.borrow().count - commits_before,
            offset_saves: saves.len() as u64,
            offsets_wrong,
            recovery_ms: recoveries[recoveries.len() - 1],
        });
    }
    book.borrow_mut().forget_seen();
    let lost_before = book.borrow().totals.beyond;
    let all = verify(&args, broker, &book, &starts).await?;
    recoveries.sort_by(f64::total_cmp);
    print_json(&SummaryLine {
        rounds: args.rounds,
        seed,
        acknowledged: book.borrow().totals.acknowledged,
        lost: lost_before + all.lost,
        duplicated: all.duplicated,
        damaged: all.damaged,
        gaps: all.gaps,
        commits: commits.borrow().count,
        offset_saves: commits.borrow().saves,
        offsets_judged: commits.borrow().judged,
        offsets_wrong: book.borrow().totals.offsets_wrong,
        recovery_ms_median: median(&recoveries),
        recovery_ms_max: recoveries[recoveries.len() - 1],
    });
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

/// Loads the broker for a while, kills it in the middle, and waits until all is quiet.
async fn load_and_kill(
    args: &KillArgs,
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

#[derive(Clone, Copy, Default)]
struct Totals {
    acknowledged: u64,
    refused: u64,
    /// Acknowledged beyond the end of a queue after a restart; they are forgotten once told.
    beyond: u64,
    offsets_wrong: u64,
}

/// What was sent and what was promised.
struct Book {
    /// Number of the next message.
    next: u64,
    queues: Vec<QueueBook>,
    /// Messages read back in this pass, a bit each.
    seen: Vec<u64>,
    totals: Totals,
    faults: Vec<String>,
    fault_count: u64,
}

struct QueueBook {
    /// Offset of the first entry.
    start: i64,
    /// The acknowledged message at each offset.
    acknowledged: Vec<Option<u64>>,
    /// Where the last check ended.
    stored_end: i64,
}

impl QueueBook {
    /// Behind the last offset that was acknowledged, or that a check found.
    fn acknowledged_end(&self) -> i64 {
        self.stored_end.max(self.start + self.acknowledged.len() as i64)
    }
}

impl Book {
    fn new(starts: &[i64]) -> Self {
        let queue = |start: &i64| QueueBook { start: *start, acknowledged: Vec::new(), stored_end: *start };
        Book {
            next: 1,
            queues: starts.iter().map(queue).collect(),
            seen: Vec::new(),
            totals: Totals::default(),
            faults: Vec::new(),
            fault_count: 0,
        }
    }

    fn fault(&mut self, text: String) {
        self.fault_count += 1;
        if self.faults.len() < FAULTS_TOLD {
            self.faults.push(text);
        }
    }

    fn stored_ends(&self) -> Vec<i64> {
        self.queues.iter().map(|queue| queue.stored_end).collect()
    }

    fn acknowledge(&mut self, queue: usize, offset: i64, id: u64) {
        self.totals.acknowledged += 1;
        let book = &mut self.queues[queue];
        let at = match usize::try_from(offset - book.start) {
            Ok(at) if offset >= book.stored_end => at,
            _ => {
                let end = book.stored_end;
                return self
                    .fault(format!("queue {queue}: message {id} acknowledged at {offset}, but {end} were stored"));
            }
        };
        if book.acknowledged.len() <= at {
            book.acknowledged.resize(at + 1, None);
        }
        if let Some(other) = book.acknowledged[at].replace(id) {
            self.fault(format!("queue {queue}: offset {offset} acknowledged for messages {other} and {id}"));
        }
    }

    /// True when message `id` was read before in this pass.
    fn see(&mut self, id: u64) -> bool {
        let (word, bit) = ((id / 64) as usize, 1 << (id % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        let before = self.seen[word] & bit != 0;
        self.seen[word] |= bit;
        before
    }

    fn forget_seen(&mut self) {
        self.seen.fill(0);
    }
}

#[derive(Default)]
struct Verdict {
    found: u64,
    lost: u64,
    unacknowledged: u64,
    duplicated: u64,
    damaged: u64,
    gaps: u64,
}

/// Asks the restarted broker for the consumer offsets; how many are wrong.
async fn verify_offsets(
    args: &KillArgs,
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

/// Reads all queues from the offsets `from` to their ends and judges them.
async fn verify(
    args: &KillArgs,
    broker: SocketAddr,
    book: &Rc<RefCell<Book>>,
    from: &[i64],
) -> Result<Verdict, BenchError> {
    let caller = Caller::dial(broker).await?;
    let mut verdict = Verdict::default();
    for (queue, from) in from.iter().enumerate() {
        let mut offset = *from;
        loop {
            let ask = PullAsk { queue: queue as u32, offset, max_msgs: 32, hold: false };
            let pulled = caller.pull(&args.topic, &ask).await?;
            if pulled.end {
                break;
            }
            let before = offset;
            for record in pulled.records(true) {
                let mut book = book.borrow_mut();
                let record = match record {
                    Ok(record) => record,
                    Err(why) => {
                        verdict.damaged += 1;
                        book.fault(format!("queue {queue}, offset {offset}: {why}"));
                        break;
                    }
                };
                if record.queue_offset != offset || record.queue_id != queue as i32 {
                    verdict.gaps += 1;
                    let (queue_id, found) = (record.queue_id, record.queue_offset);
                    book.fault(format!(
                        "queue {queue}: offset {found} of queue {queue_id} found where {offset} should be"
                    ));
                }
                offset = record.queue_offset;
                judge(&mut book, queue, offset, record.body, args.size as usize, &mut verdict);
                offset += 1;
            }
            if pulled.next > offset {
                verdict.gaps += 1;
                book.borrow_mut().fault(format!("queue {queue}: nothing from offset {offset} to {}", pulled.next));
                offset = pulled.next;
            }
            if offset <= before {
                let next = pulled.next;
                book.borrow_mut().fault(format!("queue {queue}: stuck at offset {before}, sent back to {next}"));
                break;
            }
        }
        let max = caller.max_offset(&args.topic, queue as u32).await?;
        close_queue(&mut book.borrow_mut(), queue, *from, offset, max, &mut verdict);
    }
    caller.close().await;
    Ok(verdict)
}

/// Judges one message read back.
fn judge(book: &mut Book, queue: usize, offset: i64, body: &[u8], size: usize, verdict: &mut Verdict) {
    let id = body.first_chunk::<8>().map_or(0, |id| u64::from_be_bytes(*id));
    let mut expected = Vec::new();
    if id != 0 && id < book.next {
        write_body(&mut expected, id, size);
    }
    if expected.is_empty() || expected != body {
        verdict.damaged += 1;
        return book.fault(format!("queue {queue}, offset {offset}: a body that was never sent"));
    }
    if book.see(id) {
        verdict.duplicated += 1;
        book.fault(format!("queue {queue}, offset {offset}: message {id} is there twice"));
    }
    let at = usize::try_from(offset - book.queues[queue].start).ok();
    match at.and_then(|at| book.queues[queue].acknowledged.get(at).copied().flatten()) {
        None => verdict.unacknowledged += 1,
        Some(acknowledged) if acknowledged == id => verdict.found += 1,
        Some(other) => {
            verdict.lost += 1;
            book.fault(format!("queue {queue}, offset {offset}: message {id} in place of acknowledged {other}"));
        }
    }
}

/// Counts what was acknowledged beyond the end, and notes the end.
fn close_queue(book: &mut Book, queue: usize, from: i64, end: i64, max: i64, verdict: &mut Verdict) {
    if max != end {
        verdict.gaps += 1;
        book.fault(format!("queue {queue}: read to offset {end}, but the broker says it ends at {max}"));
    }
    let of_queue = &mut book.queues[queue];
    let beyond = (end.max(from) - of_queue.start) as usize;
    let lost = of_queue.acknowledged.iter().skip(beyond).flatten().count() as u64;
    of_queue.stored_end = end;
    of_queue.acknowledged.truncate(beyond);
    if lost > 0 {
        verdict.lost += lost;
        book.totals.beyond += lost;
        book.fault(format!("queue {queue}: {lost} acknowledged messages beyond its end {end}"));
        book.fault_count += lost - 1;
    }
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
        let message = Outgoing { topic: &self.topic, queue, properties: &properties, body, batch: false };
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

/// The body of message `id`, up to `size_max` bytes: its number, its size, and bytes that follow from the number.
fn write_body(out: &mut Vec<u8>, id: u64, size_max: usize) {
    let size = HEAD_BYTES + mix(id) as usize % (size_max - HEAD_BYTES + 1);
    out.clear();
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&(size as u32).to_be_bytes());
    let mut state = id;
    while out.len() < size {
        state = mix(state);
        let wanted = (size - out.len()).min(8);
        out.extend_from_slice(&state.to_be_bytes()[..wanted]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 100;

    /// A book with three messages acknowledged at offsets 5, 6 and 7 of queue 0, and one more sent.
    fn book() -> Book {
        let mut book = Book::new(&[5]);
        book.next = 5;
        (1..=3).for_each(|id| book.acknowledge(0, 4 + id, id as u64));
        assert_eq!((book.fault_count, book.totals.acknowledged), (0, 3));
        book
    }

    fn read(book: &mut Book, verdict: &mut Verdict, offset: i64, id: u64) {
        let mut body = Vec::new();
        write_body(&mut body, id, SIZE);
        judge(book, 0, offset, &body, SIZE, verdict);
    }

    #[test]
    fn all_found_is_no_fault_and_the_unacknowledged_may_be_there() {
        let (mut book, mut verdict) = (book(), Verdict::default());
        (1..=4).for_each(|id| read(&mut book, &mut verdict, 4 + id, id as u64));
        close_queue(&mut book, 0, 5, 9, 9, &mut verdict);
        assert_eq!((verdict.found, verdict.unacknowledged, verdict.lost, book.fault_count), (3, 1, 0, 0));
        assert_eq!(book.stored_ends(), [9]);
    }

    #[test]
    fn a_lost_tail_is_counted() {
        let (mut book, mut verdict) = (book(), Verdict::default());
        read(&mut book, &mut verdict, 5, 1);
        close_queue(&mut book, 0, 5, 6, 6, &mut verdict);
        assert_eq!((verdict.found, verdict.lost, book.fault_count), (1, 2, 2));
    }

    #[test]
    fn a_swapped_doubled_or_changed_message_is_a_fault() {
        let (mut book, mut verdict) = (book(), Verdict::default());
        read(&mut book, &mut verdict, 5, 2);
        assert_eq!((verdict.lost, book.fault_count), (1, 1));
        read(&mut book, &mut verdict, 6, 2);
        assert_eq!((verdict.found, verdict.duplicated, book.fault_count), (1, 1, 2));
        let mut body = Vec::new();
        write_body(&mut body, 3, SIZE);
        *body.last_mut().unwrap() ^= 1;
        judge(&mut book, 0, 7, &body, SIZE, &mut verdict);
        judge(&mut book, 0, 8, b"", SIZE, &mut verdict);
        read(&mut book, &mut verdict, 9, 77);
        assert_eq!((verdict.damaged, book.fault_count), (3, 5));
        close_queue(&mut book, 0, 5, 10, 11, &mut verdict);
        assert_eq!((verdict.gaps, book.fault_count), (1, 6));
    }

    #[test]
    fn an_offset_acknowledged_twice_is_a_fault() {
        let mut book = book();
        book.acknowledge(0, 7, 4);
        book.acknowledge(0, 4, 4);
        assert_eq!(book.fault_count, 2);
        // What was read to the end before cannot be promised to a later message.
        close_queue(&mut book, 0, 5, 8, 8, &mut Verdict::default());
        book.acknowledge(0, 7, 4);
        assert_eq!(book.fault_count, 3);
    }

    #[test]
    fn bodies_vary_in_size_within_their_bounds() {
        let mut sizes = std::collections::HashSet::new();
        let mut body = Vec::new();
        for id in 1..200 {
            write_body(&mut body, id, SIZE);
            assert!((HEAD_BYTES..=SIZE).contains(&body.len()));
            sizes.insert(body.len());
        }
        assert!(sizes.len() > 40);
        write_body(&mut body, 1, HEAD_BYTES);
        assert_eq!(body.len(), HEAD_BYTES);
    }
}
