//! The master's side: each slave that connects says where its log ends and is fed from there: from the tail cache when it is in step, by
//! direct reads through a small cache of its own when it is behind. A slave costs two buffers, however far behind it is.
//!
//! The bounds are Apache's: what is gone from the log stalls with heartbeats, an empty slave gets the last segment on, a slave that says
//! nothing for haHousekeepingInterval is dropped. One that reports what it cannot have is dropped too.
use crate::LogReader;
use crate::mesh::Event;
use crate::replication::Replication;
use crate::replication::link::Link;
use crate::replication::sync_set::{self, Switch};
use crate::shard::Shard;
use crate::shard::tail_cache::TailCache;
use futures_lite::future;
use glommio::timer::sleep;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use uringmq_proto::epochs::Epochs;
use uringmq_proto::ha::{self, HEAD_BYTES, TransferHead};
use uringmq_proto::ha_switch::{self, Handshake, Head, Reply, SwitchError};
use uringmq_proto::types::PhyOffset;
use uringmq_remoting::listener::{Accepting, Bound};
use uringmq_store::StoreError;

/// Gathered for one write to the socket.
const OUT_BYTES: usize = 256 * 1024;
/// Cache of a slave that is behind: the block being read and the ones ahead of it.
const READ_CACHE_BYTES: usize = 4 << 20;
/// Without a hint the log is looked at again so often.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Reports read at a time; the newest of them counts.
const REPORTS_BYTES: usize = 4096;
/// Slaves beyond this are turned away: nobody runs so many, and each has its buffers.
const SLAVES_MAX: usize = 64;

/// One connection from a slave.
pub struct Slave {
    pub link: Link,
    /// Its newest report.
    pub acked: Cell<u64>,
    /// Where the next byte for it stands in the log; known from its first report on.
    pub next: Cell<Option<u64>>,
    /// Rung when there is more to send, or its first report came.
    pub bell: Event,
    pub sent: Rate,
    /// Controller mode: its number there, once it has said so; and whether it is never to be in the SyncStateSet.
    pub replica: Cell<Option<i64>>,
    pub learner: Cell<bool>,
    from_last_file: Cell<bool>,
    /// Where the log ended at some moment: with a report from there on it had everything then.
    goal: Cell<(u64, Instant)>,
}

/// Bytes a second, over the last whole second.
pub struct Rate {
    since: Cell<Instant>,
    bytes: Cell<u64>,
    last: Cell<u64>,
}

impl Default for Rate {
    fn default() -> Self {
        Rate { since: Cell::new(Instant::now()), bytes: Cell::default(), last: Cell::default() }
    }
}

impl Rate {
    pub fn add(&self, bytes: usize) {
        self.turn_over();
        self.bytes.set(self.bytes.get() + bytes as u64);
    }

    pub fn per_second(&self) -> u64 {
        self.turn_over();
        self.last.get()
    }

    fn turn_over(&self) {
        let past = self.since.get().elapsed();
        if past >= Duration::from_secs(1) {
            let bytes = self.bytes.take();
            self.last.set((bytes as f64 / past.as_secs_f64()) as u64);
            self.since.set(Instant::now());
        }
    }
}

impl Slave {
    /// When it had the whole log last, by its report of `acked` while the log ends at `written`; `None` when that is no news.
    fn caught_up(&self, acked: u64, written: u64) -> Option<Instant> {
        let now = Instant::now();
        let (goal, at) = self.goal.get();
        if acked < goal {
            return None;
        }
        self.goal.set((written, now));
        Some(if acked >= written { now } else { at })
    }

    /// Behind the last byte that it has for sure. What it reports counts as far as it was sent: a slave whose log goes on where ours ends
    /// has other bytes there, and its report says nothing about ours.
    pub fn confirmed(&self, shard: &Shard) -> u64 {
        match self.next.get() {
            Some(next) if next <= shard.marks.written.load(Ordering::Acquire) => self.acked.get().min(next),
            _ => 0,
        }
    }
}

/// Takes slaves in until the shard's doors close.
pub async fn serve(shard: Rc<Shard>, bound: Bound) {
    let mut accepting = Accepting::new(bound, shard.doors.clone());
    while let Some(stream) = accepting.next().await {
        let link = match Link::new(stream.bind_to_executor()) {
            Ok(link) => link,
            Err(_) => continue, // gone already
        };
        if replication(&shard).slaves.borrow().len() >= SLAVES_MAX {
            warn!(peer = %link.peer, limit = SLAVES_MAX, "too many slaves; this one is turned away");
            continue;
        }
        glommio::spawn_local(run(shard.clone(), link)).detach();
    }
}

fn replication(shard: &Shard) -> &Replication {
    shard.replication.as_ref().expect("runs on the replication shard")
}

async fn run(shard: Rc<Shard>, link: Link) {
    let slave = Rc::new(Slave {
        link,
        acked: Cell::default(),
        next: Cell::default(),
        bell: Event::default(),
        sent: Rate::default(),
        replica: Cell::default(),
        learner: Cell::default(),
        from_last_file: Cell::default(),
        goal: Cell::new((0, Instant::now())),
    });
    let peer = slave.link.peer;
    info!(%peer, "a slave connected");
    replication(&shard).come(&shard, slave.clone());
    let ended = future::or(future::or(hear(&shard, &slave), feed(&shard, &slave)), async {
        shard.doors.closed().await;
        Ok(())
    });
    let ended = ended.await;
    replication(&shard).gone(&shard, &slave);
    match ended {
        Ok(()) => info!(%peer, acked = slave.acked.get(), "slave let go: the broker stops"),
        Err(e) => info!(%peer, acked = slave.acked.get(), error = %e, "slave gone"),
    }
}

/// Why a slave is let go.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("{0}")]
    Protocol(#[from] ha::HaError),
    #[error("{0}")]
    Switch(#[from] SwitchError),
    #[error("it reported nothing for {0:?} (haHousekeepingInterval)")]
    Silent(Duration),
    /// Apache's master takes its word: it would count as a copy of what comes, and be sent what its log does not go on with (H01).
    #[error("it reports {reported}, but this log, or what it was sent of it, ends at {sent}: its log is another one")]
    Ahead { reported: u64, sent: u64 },
    #[error("the log cannot be read: {0}")]
    Store(#[from] StoreError),
}

/// Reads its reports, until they stop.
async fn hear(shard: &Rc<Shard>, slave: &Slave) -> Result<(), Ended> {
    let patience = Duration::from_millis(shard.config().ha_housekeeping_ms);
    let mut buffer = [0; REPORTS_BYTES];
    let mut kept = 0;
    loop {
        let silent = async {
            sleep(patience).await;
            Err(Ended::Silent(patience))
        };
        kept += future::or(async { Ok(slave.link.read(&mut buffer[kept..]).await?) }, silent).await?;
        if let Some(switch) = &replication(shard).switch
            && slave.next.get().is_none()
        {
            let taken = greet(shard, switch, slave, &buffer[..kept]).await?;
            buffer.copy_within(taken..kept, 0);
            kept -= taken;
            if slave.replica.get().is_none() {
                continue;
            }
        }
        let (newest, taken) = match replication(shard).switch {
            Some(_) => ha_switch::take_reports(&buffer[..kept])?,
            None => ha::take_reports(&buffer[..kept])?,
        };
        buffer.copy_within(taken..kept, 0);
        kept -= taken;
        let Some(newest) = newest else { continue };
        let written = shard.marks.written.load(Ordering::Acquire);
        let sent = slave.next.get().unwrap_or(written);
        if newest > sent {
            return Err(Ended::Ahead { reported: newest, sent });
        }
        slave.acked.set(newest);
        if slave.next.get().is_none() {
            let start = match replication(shard).switch.is_some() && !slave.from_last_file.get() && newest == 0 {
                true => shard.marks.min().0,
                false => start_of(newest, written, shard.config().segment_bytes),
            };
            info!(peer = %slave.link.peer, asked = newest, start, written, "a slave is fed");
            slave.next.set(Some(start));
            slave.bell.set();
        }
        if let (Some(switch), Some(id)) = (&replication(shard).switch, slave.replica.get()) {
            switch.note_report(id, slave.caught_up(newest, written));
        }
        replication(shard).settle(shard);
        if replication(shard).switch.is_some() {
            sync_set::consider(shard, slave);
        }
    }
}

/// Controller mode: answers the handshakes that `bytes` begin with; a slave repeats its own after 5 s. How many bytes they were.
async fn greet(shard: &Rc<Shard>, switch: &Switch, slave: &Slave, bytes: &[u8]) -> Result<usize, Ended> {
    let mut taken = 0;
    // A report, which begins with 2, is for who comes next.
    while bytes[taken..].len() >= 4 && (slave.replica.get().is_none() || bytes[taken..].starts_with(&[0, 0, 0, 1])) {
        let Some(handshake) = Handshake::decode(&bytes[taken..])? else { break };
        taken += ha_switch::HANDSHAKE_BYTES;
        slave.replica.set(Some(handshake.broker_id));
        slave.learner.set(handshake.learner);
        slave.from_last_file.set(handshake.from_last_file);
        let reply = {
            let (epochs, view) = (switch.epochs.borrow().clone(), switch.view.borrow());
            Reply { end: shard.marks.written.load(Ordering::Acquire), master_epoch: view.epoch, epochs }
        };
        info!(peer = %slave.link.peer, ?handshake, end = reply.end, "a replica shakes hands");
        slave.link.write_all(&reply.encode()).await?;
    }
    Ok(taken)
}

/// Where a slave that asked for `asked` begins: an empty one at the last segment.
fn start_of(asked: u64, written: u64, segment_bytes: u64) -> u64 {
    if asked > 0 { asked } else { written - written % segment_bytes }
}

/// Sends the log from where it asked, and heartbeats when there is nothing.
async fn feed(shard: &Rc<Shard>, slave: &Slave) -> Result<(), Ended> {
    let config = shard.config();
    let heartbeat = Duration::from_millis(config.ha_heartbeat_ms);
    let mut store = config.to_store_config();
    store.read_cache_bytes = READ_CACHE_BYTES;
    let reader = Rc::new(LogReader::new(shard.io.clone(), &store));
    let mut out = Vec::with_capacity(OUT_BYTES + config.ha_transfer_bytes + HEAD_BYTES);
    let mut last = Instant::now();
    let mut stalled = false;
    let mut confirm_sent = 0;
    loop {
        let Some(at) = slave.next.get() else {
            slave.bell.wait().await;
            continue;
        };
        out.clear();
        let (min, written) = (shard.marks.min().0, shard.marks.written.load(Ordering::Acquire));
        let inside = (min..=written).contains(&at);
        if inside == stalled {
            stalled = !inside;
            if stalled {
                warn!(peer = %slave.link.peer, asked = at, min, written, "a slave asks for what is not in the log, and gets nothing");
            }
        }
        let next = if inside { gather(shard, &reader, at, written, &mut out).await? } else { at };
        if out.is_empty() {
            let quiet = last.elapsed();
            let more_confirmed = replication(shard).switch.is_some() && confirm_of(shard) > confirm_sent;
            if quiet < heartbeat && !(more_confirmed && quiet >= LOOK_AGAIN) {
                let wait = LOOK_AGAIN.min(heartbeat - quiet);
                future::or(slave.bell.wait(), async {
                    sleep(wait).await;
                })
                .await;
                continue;
            }
            heads(shard).push(&mut out, at, 0);
        }
        confirm_sent = confirm_of(shard);
        slave.next.set(Some(next));
        slave.link.write_all(&out).await?;
        slave.sent.add(out.len());
        last = Instant::now();
        future::yield_now().await; // a socket that takes everything must not keep the core
    }
}

/// Fills `out` with frames from `at` on, up to what is written or a good write's worth; gives the offset behind them.
async fn gather(
    shard: &Rc<Shard>,
    reader: &Rc<LogReader>,
    at: u64,
    written: u64,
    out: &mut Vec<u8>,
) -> Result<u64, StoreError> {
    let (segment_bytes, body_max) = {
        let config = shard.config.borrow();
        (config.segment_bytes, config.ha_transfer_bytes)
    };
    let frames = Frames { segment_bytes, body_max, written, heads: heads(shard) };
    let next = frames.of_tail(&shard.tail.borrow(), at, out);
    if next > at || at == written {
        return Ok(next);
    }
    reader.trim(shard.marks.min());
    let bytes = match reader.read_range(PhyOffset(at), OUT_BYTES, PhyOffset(written)).await {
        Ok(bytes) => bytes,
        Err(StoreError::OutOfRange(_)) => return Ok(at), // retention took it away just now
        Err(e) => return Err(e),
    };
    if reader.wants_ahead().is_some() {
        let reader = reader.clone();
        glommio::spawn_local(async move { reader.read_ahead().await }).detach();
    }
    Ok(frames.of_bytes(&bytes, at, out))
}

/// Up to where the SyncStateSet has the log.
fn confirm_of(shard: &Shard) -> u64 {
    let written = shard.marks.written.load(Ordering::Acquire);
    match shard.config.borrow().all_in_sync() {
        true => shard.marks.replicated.load(Ordering::Acquire).min(written),
        false => written,
    }
}

fn heads(shard: &Shard) -> Heads {
    match &replication(shard).switch {
        Some(switch) => Heads::Switch { epochs: switch.epochs.borrow().clone(), confirm: confirm_of(shard) },
        None => Heads::Plain,
    }
}

/// What stands before each body.
enum Heads {
    Plain,
    Switch { epochs: Epochs, confirm: u64 },
}

impl Heads {
    fn bytes(&self) -> usize {
        match self {
            Heads::Plain => HEAD_BYTES,
            Heads::Switch { .. } => ha_switch::HEAD_BYTES,
        }
    }

    /// Where a body that begins at `at` has to end, be it because another epoch begins.
    fn end(&self, at: u64) -> u64 {
        match self {
            Heads::Plain => u64::MAX,
            Heads::Switch { epochs, .. } => epochs.of(at).and_then(|(_, next)| next).unwrap_or(u64::MAX),
        }
    }

    /// Writes a head over the first bytes of `out`.
    fn write(&self, out: &mut [u8], at: u64, body_bytes: usize) {
        match self {
            Heads::Plain => out[..HEAD_BYTES].copy_from_slice(&TransferHead { at, body_bytes }.encode()),
            Heads::Switch { epochs, confirm } => {
                let epoch = epochs.of(at).expect("a master has begun its epoch").0;
                let head = Head { body_bytes, at, epoch, confirm: *confirm };
                out[..ha_switch::HEAD_BYTES].copy_from_slice(&head.encode());
            }
        }
    }

    fn push(&self, out: &mut Vec<u8>, at: u64, body_bytes: usize) {
        let start = out.len();
        out.resize(start + self.bytes(), 0);
        self.write(&mut out[start..], at, body_bytes);
    }
}

/// How the log is cut into frames.
struct Frames {
    segment_bytes: u64,
    body_max: usize,
    written: u64,
    heads: Heads,
}

impl Frames {
    /// Frames of what the tail cache holds from `at` on without a gap.
    fn of_tail(&self, tail: &TailCache, mut at: u64, out: &mut Vec<u8>) -> u64 {
        while out.len() < OUT_BYTES {
            let start = out.len();
            out.resize(start + self.heads.bytes(), 0);
            let from = at;
            let segment_end = at - at % self.segment_bytes + self.segment_bytes;
            let end = (from + self.body_max as u64).min(segment_end).min(self.written).min(self.heads.end(at));
            while at < end {
                let Some(rest) = tail.rest(PhyOffset(at)) else { break };
                let piece = &rest[..rest.len().min((end - at) as usize)];
                out.extend_from_slice(piece);
                at += piece.len() as u64;
            }
            if at == from {
                out.truncate(start);
                break;
            }
            self.heads.write(&mut out[start..], from, (at - from) as usize);
        }
        at
    }

    /// Frames of bytes that stand at `at`, within one segment.
    fn of_bytes(&self, mut bytes: &[u8], mut at: u64, out: &mut Vec<u8>) -> u64 {
        while !bytes.is_empty() {
            let room = usize::try_from(self.heads.end(at) - at).unwrap_or(usize::MAX);
            let (body, rest) = bytes.split_at(bytes.len().min(self.body_max).min(room));
            self.heads.push(out, at, body.len());
            out.extend_from_slice(body);
            (at, bytes) = (at + body.len() as u64, rest);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::committed::Span;
    use std::sync::Arc;

    /// The frames of `out`, put together again; each within the limits.
    fn joined(mut out: &[u8], frames: &Frames, mut at: u64) -> Vec<u8> {
        let mut log = Vec::new();
        while !out.is_empty() {
            let head = TransferHead::decode(out).unwrap().expect("a whole head");
            assert_eq!(head.at, at);
            assert!((1..=frames.body_max).contains(&head.body_bytes));
            let last = at + head.body_bytes as u64 - 1;
            assert_eq!(at / frames.segment_bytes, last / frames.segment_bytes, "a body within one segment");
            log.extend_from_slice(&out[HEAD_BYTES..][..head.body_bytes]);
            out = &out[HEAD_BYTES + head.body_bytes..];
            at += head.body_bytes as u64;
        }
        log
    }

    #[test]
    fn small_spans_share_frames_and_no_frame_crosses_a_segment() {
        let log: Vec<u8> = (0..400u32).map(|n| n as u8).collect();
        let mut tail = TailCache::new(1 << 20);
        for (index, piece) in log.chunks(7).enumerate() {
            let phy = PhyOffset(index as u64 * 7);
            let buffer = Arc::new(piece.to_vec());
            tail.push(Span { phy, at: 0, bytes: piece.len() as u32, buffer }, |_| {});
        }
        let frames = Frames { segment_bytes: 128, body_max: 50, written: 333, heads: Heads::Plain };
        for from in [0, 1, 120, 127, 128, 332] {
            let mut out = Vec::new();
            assert_eq!(frames.of_tail(&tail, from, &mut out), 333);
            assert_eq!(joined(&out, &frames, from), log[from as usize..333], "from {from}");
        }
        let mut out = Vec::new();
        assert_eq!((frames.of_tail(&tail, 333, &mut out), out.len()), (333, 0));
    }

    #[test]
    fn a_gap_in_the_tail_ends_the_frames() {
        let mut tail = TailCache::new(1 << 20);
        for phy in [10, 20] {
            let buffer = Arc::new(vec![1; 5]);
            tail.push(Span { phy: PhyOffset(phy), at: 0, bytes: 5, buffer }, |_| {});
        }
        let frames = Frames { segment_bytes: 128, body_max: 50, written: 25, heads: Heads::Plain };
        let mut out = Vec::new();
        assert_eq!(frames.of_tail(&tail, 12, &mut out), 15);
        assert_eq!(joined(&out, &frames, 12), [1; 3]);
        assert_eq!(frames.of_tail(&tail, 15, &mut out), 15);
        let mut out = Vec::new();
        assert_eq!(frames.of_bytes(&[2; 120], 4, &mut out), 124);
        assert_eq!(joined(&out, &frames, 4), [2; 120]);
    }

    #[test]
    fn under_a_controller_no_body_crosses_an_epoch() {
        let log: Vec<u8> = (0..400u32).map(|n| n as u8).collect();
        let epochs = [(1, 0), (3, 20), (4, 130)].map(|(epoch, start)| uringmq_proto::epochs::Epoch { epoch, start });
        let epochs = Epochs::new(epochs).unwrap();
        let frames = Frames {
            segment_bytes: 128,
            body_max: 50,
            written: 400,
            heads: Heads::Switch { epochs: epochs.clone(), confirm: 7 },
        };
        let mut tail = TailCache::new(1 << 20);
        tail.push(Span { phy: PhyOffset(0), at: 0, bytes: 400, buffer: Arc::new(log.clone()) }, |_| {});
        let (mut by_tail, mut by_bytes) = (Vec::new(), Vec::new());
        assert_eq!(frames.of_tail(&tail, 5, &mut by_tail), 400);
        assert_eq!(frames.of_bytes(&log[5..128], 5, &mut by_bytes), 128);
        for (out, to) in [(by_tail, 400), (by_bytes, 128)] {
            let (mut out, mut at) = (&out[..], 5);
            while !out.is_empty() {
                let head = Head::decode(out).unwrap().unwrap();
                assert_eq!((head.at, head.confirm), (at, 7));
                assert!((1..=50).contains(&head.body_bytes));
                let end = at + head.body_bytes as u64;
                for byte in [at, end - 1] {
                    assert_eq!(epochs.of(byte).unwrap().0, head.epoch, "byte {byte}");
                }
                assert_eq!(out[ha_switch::HEAD_BYTES..][..head.body_bytes], log[at as usize..end as usize]);
                out = &out[ha_switch::HEAD_BYTES + head.body_bytes..];
                at = end;
            }
            assert_eq!(at, to);
        }
    }

    #[test]
    fn an_empty_slave_begins_at_the_last_segment() {
        assert_eq!((start_of(0, 100, 128), start_of(0, 300, 128), start_of(0, 256, 128)), (0, 256, 256));
        assert_eq!((start_of(7, 300, 128), start_of(900, 300, 128)), (7, 900));
    }
}
