//! The slave's side: connects to its master, says where its own log ends, and hands what comes to the writer, who appends it. While one
//! piece is being written the next is received; a report follows each. Whatever goes wrong ends the connection, and the next one resumes
//! where the log ends by then.
//!
//! A report says what is written here by direct writes (SYNC_FLUSH: durable), where Apache's slave reports what reached its page cache.
use crate::config::HostPort;
use crate::mesh::Event;
use crate::registration::Master;
use crate::registration::resolve::resolve;
use crate::replication::agree::{self, Disagreement};
use crate::replication::link::Link;
use crate::replication::master::Rate;
use crate::replication::sync_set::Switch;
use crate::replication::truncate;
use crate::replication::{epoch_file, tables};
use crate::shard::Shard;
use crate::writer::copy;
use futures_lite::future;
use glommio::timer::sleep;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use uringmq_proto::codes::request;
use uringmq_proto::epochs::Epoch;
use uringmq_proto::ha::{self, TransferHead};
use uringmq_proto::ha_switch::{self, Handshake, Head, Reply, SwitchError};
use uringmq_proto::types::PhyOffset;
use uringmq_remoting::connection::Conns;
use uringmq_store::StoreError;

/// Before the next attempt.
const RETRY: Duration = Duration::from_secs(1);
/// Read from the socket at a time.
const READ_BYTES: usize = 256 * 1024;
/// Received and not yet with the writer; the master waits beyond it.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// How it stands with the master; told to operators.
#[derive(Default)]
pub struct Following {
    pub master: RefCell<Option<String>>,
    pub last_read_ms: Cell<i64>,
    pub last_write_ms: Cell<i64>,
    pub received: Rate,
}

/// Why a connection to the master ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}: {1}")]
    Resolve(String, String),
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("{0}")]
    Protocol(#[from] ha::HaError),
    #[error("{0}")]
    Switch(#[from] SwitchError),
    #[error("{0} does not say where it is copied from: {1}")]
    NoAddress(String, String),
    #[error("this log has no epoch in common with the master's, so nothing says where they part; {}", agree::CURE)]
    NoCommonEpoch,
    #[error("the log is cut at {0} by a start that comes now")]
    Cut(u64),
    #[error("the controller names another master")]
    AnotherMaster,
    #[error("the master was silent for {0:?} (haHousekeepingInterval)")]
    Silent(Duration),
    #[error("the master sends from {got}, but this log goes on at {wanted}")]
    Elsewhere { got: u64, wanted: u64 },
    #[error("{0}")]
    Disagreement(#[from] Disagreement),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("the broker stops")]
    Stopping,
}

/// Follows the master until the shard's doors close.
pub async fn follow(shard: Rc<Shard>) {
    let mut told = String::new();
    while !shard.doors.is_closed() {
        if let Some(master) = master_name(&shard).await {
            let ended = future::or(follow_once(&shard, &master), async {
                future::or(shard.doors.closed(), another_master(&shard)).await;
                Err(if shard.doors.is_closed() { Ended::Stopping } else { Ended::AnotherMaster })
            });
            let ended = ended.await.err().map(|e| e.to_string()).unwrap_or_default();
            *following(&shard).master.borrow_mut() = None;
            shard.marks.following.store(0, Ordering::Relaxed);
            // The same again and again is said once.
            match ended == told {
                true => debug!(master, error = ended, "not following"),
                false => warn!(master, error = ended, "not following; trying again every second"),
            }
            told = ended;
        }
        if shard.replication.as_ref().is_some_and(|replication| replication.stop.requested()) {
            return; // the log is as it is to stay, or as the cut that was ordered just now found it
        }
        future::or(shard.doors.closed(), async {
            sleep(RETRY).await;
        })
        .await;
    }
}

fn following(shard: &Shard) -> &Following {
    &shard.replication.as_ref().expect("runs on the replication shard").following
}

fn switch(shard: &Shard) -> Option<&Switch> {
    shard.replication.as_ref().expect("runs on the replication shard").switch.as_ref()
}

async fn another_master(shard: &Shard) {
    match switch(shard) {
        Some(switch) => switch.master_changed.wait().await,
        None => future::pending().await,
    }
}

/// Where the master is copied from; in controller mode, of its broker port, which says that.
async fn master_name(shard: &Rc<Shard>) -> Option<String> {
    match switch(shard) {
        Some(switch) => {
            let view = switch.view.borrow();
            let other = view.master.as_ref().filter(|master| master.id != switch.replicas.id);
            other.map(|master| master.address.clone())
        }
        None => master_address(shard).await,
    }
}

/// haMasterAddress, else what a NameServer said when this broker registered.
async fn master_address(shard: &Rc<Shard>) -> Option<String> {
    let configured = shard.config().ha_master_address.clone();
    if !configured.is_empty() {
        return Some(configured);
    }
    shard.run_on(0, |s| async move { s.control().registration.master_ha_address() }).await?
}

/// What was received and waits for the writer.
struct Intake {
    bytes: RefCell<Vec<u8>>,
    /// Where the next received byte belongs; `None` until the first frame, when this log is empty.
    next: Cell<Option<u64>>,
    /// Where this log ends, as reported last.
    end: Cell<u64>,
    filled: Event,
    emptied: Event,
    last_report: Cell<Instant>,
    /// Controller mode: epochs that frames brought and the file lacks; and the newest confirm offset.
    begun: RefCell<Vec<Epoch>>,
    confirm: Cell<u64>,
}

impl Intake {
    /// For a log that ends at `end`.
    fn new(end: u64) -> Self {
        Intake {
            bytes: RefCell::default(),
            next: Cell::new((end > 0).then_some(end)),
            end: Cell::new(end),
            filled: Event::default(),
            emptied: Event::default(),
            last_report: Cell::new(Instant::now()),
            begun: RefCell::default(),
            confirm: Cell::new(0),
        }
    }
}

/// Exchanges handshakes, and has the end of this log cut off where it is not the master's: then the broker starts over. False when there are
/// no epochs here to judge by.
async fn shake_hands(shard: &Rc<Shard>, switch: &Switch, link: &Link, end: u64) -> Result<bool, Ended> {
    let config = shard.config();
    let own = Handshake {
        from_last_file: config.sync_from_last_file,
        learner: config.learner,
        broker_id: switch.replicas.id,
    };
    link.write_all(&own.encode()).await?;
    let patience = Duration::from_millis(config.ha_housekeeping_ms);
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    let reply: Reply = loop {
        let silent = async {
            sleep(patience).await;
            Err(Ended::Silent(patience))
        };
        let got = future::or(async { Ok(link.read(&mut piece).await?) }, silent).await?;
        bytes.extend_from_slice(&piece[..got]);
        if let Some((reply, _)) = Reply::decode(&bytes)? {
            break reply; // nothing more comes before a report
        }
    };
    let epochs = switch.epochs.borrow().clone();
    info!(end, own = ?epochs.entries(), there = reply.end, epochs = ?reply.epochs.entries(), "the master shakes hands");
    if end == 0 || epochs.entries().is_empty() {
        return Ok(end == 0);
    }
    let point = epochs.agree(end, &reply.epochs, reply.end).ok_or(Ended::NoCommonEpoch)?;
    if point < end {
        let why = format!("by the master's epochs it has this log up to {point}, not {end}");
        let at = truncate::cut_at(shard, end, point, &why).await?;
        return Err(if at < end { Ended::Cut(at) } else { Ended::NoCommonEpoch });
    }
    Ok(true)
}

/// Controller mode: what frames said beside the log.
async fn take_notes(shard: &Rc<Shard>, intake: &Intake) -> Result<(), Ended> {
    let Some(switch) = switch(shard) else { return Ok(()) };
    let begun = intake.begun.take();
    if !begun.is_empty() {
        let epochs = {
            let mut epochs = switch.epochs.borrow_mut();
            begun.iter().for_each(|entry| epochs.begin(entry.epoch, entry.start));
            epochs.clone()
        };
        // Before their bytes: what the file claims too much, the next start drops.
        epoch_file::save(&shard.io, &shard.config().store_root, &epochs).await?;
        switch.tell_epoch();
    }
    let confirmed = intake.confirm.get().min(intake.end.get());
    if shard.marks.confirmed.fetch_max(confirmed, Ordering::AcqRel) < confirmed {
        shard.mesh.push(shard.writer_shard, crate::mesh::Msg::Replicated);
    }
    Ok(())
}

/// Asks the broker at `master` where it is copied from (906), and has the tables copied from it, too.
async fn ha_address(shard: &Rc<Shard>, master: &str) -> Result<String, Ended> {
    let conns = Rc::new(Conns::default());
    let asked = async {
        let conn = tables::connect(shard, &conns, master).await?;
        tables::call(&conn, request::EXCHANGE_BROKER_HA_INFO, &[]).await
    };
    let asked = asked.await;
    conns.close_all("asked");
    let no_address = |why: String| Ended::NoAddress(master.to_owned(), why);
    let answer = asked.map_err(|e| no_address(e.to_string()))?;
    let ha = answer.get("masterHaAddress").filter(|text| !text.is_empty());
    let ha = ha.ok_or_else(|| no_address("no masterHaAddress; it may not be the master yet".into()))?.to_owned();
    let named = Master { ha: ha.clone(), broker: master.to_owned() };
    shard.run_on(0, |s| async move { s.control().registration.set_master(named) }).await.ok_or(Ended::Stopping)?;
    Ok(ha)
}

async fn follow_once(shard: &Rc<Shard>, master: &str) -> Result<(), Ended> {
    let config = shard.config();
    let master = &match switch(shard) {
        Some(_) => ha_address(shard, master).await?,
        None => master.to_owned(),
    };
    let at = HostPort::read(master).map_err(|why| Ended::Resolve(master.to_owned(), why))?;
    let found = resolve(&at).await.map_err(|why| Ended::Resolve(master.to_owned(), why))?;
    let address = *found.first().expect("a resolved name has an address");
    let link = Link::connect(address, Duration::from_millis(config.connect_timeout_ms)).await?;
    let end = shard.run_on(shard.writer_shard, |s| async move {
        let writer = s.writer.as_ref().expect("asked of the writer shard");
        writer.copier.as_ref().expect("a slave's writer has one").end().await
    });
    let end = end.await.flatten().ok_or(Ended::Stopping)?.0;
    let by_epochs = match switch(shard) {
        Some(switch) => shake_hands(shard, switch, &link, end).await?,
        None => false,
    };
    // Without NameServer there is nobody to ask.
    let broker = shard.run_on(0, |s| async move { s.control().registration.master() }).await.flatten();
    if let Some(broker) = broker
        && !by_epochs
        && let Err(apart) = agree::check(shard, &broker, end).await
    {
        return Err(truncate::settle(shard, &broker, end, apart).await.into());
    }
    info!(master, end, "following");
    *following(shard).master.borrow_mut() = Some(master.to_owned());
    let intake = Intake::new(end);
    report(shard, &link, &intake).await?;
    shard.marks.following.store(1, Ordering::Relaxed);
    future::or(receive(shard, &link, &intake), pass_on(shard, &link, &intake)).await
}

async fn report(shard: &Shard, link: &Link, intake: &Intake) -> Result<(), Ended> {
    intake.last_report.set(Instant::now());
    following(shard).last_write_ms.set(shard.now_ms());
    match switch(shard) {
        Some(_) => link.write_all(&ha_switch::report(intake.end.get())).await?,
        None => link.write_all(&intake.end.get().to_be_bytes()).await?,
    }
    Ok(())
}

/// Takes frames off the socket.
async fn receive(shard: &Rc<Shard>, link: &Link, intake: &Intake) -> Result<(), Ended> {
    let patience = Duration::from_millis(shard.config().ha_housekeeping_ms);
    let mut buffer = vec![0; READ_BYTES];
    let mut frames = Frames { last: switch(shard).map(|switch| switch.epochs.borrow().last()), ..Frames::default() };
    loop {
        let silent = async {
            sleep(patience).await;
            Err(Ended::Silent(patience))
        };
        let got = future::or(async { Ok(link.read(&mut buffer).await?) }, silent).await?;
        following(shard).last_read_ms.set(shard.now_ms());
        following(shard).received.add(got);
        frames.take(&buffer[..got], intake)?;
        if !intake.bytes.borrow().is_empty() || frames.last.is_some() {
            intake.filled.set();
        }
        while intake.bytes.borrow().len() > WAITING_BYTES_MAX {
            intake.emptied.wait().await;
        }
        if got == buffer.len() {
            future::yield_now().await;
        }
    }
}

/// Hands to the writer what is there, and reports; also now and then when nothing comes.
async fn pass_on(shard: &Rc<Shard>, link: &Link, intake: &Intake) -> Result<(), Ended> {
    let heartbeat = Duration::from_millis(shard.config().ha_heartbeat_ms);
    loop {
        take_notes(shard, intake).await?;
        let bytes = std::mem::take(&mut *intake.bytes.borrow_mut());
        intake.emptied.set();
        if bytes.is_empty() {
            let quiet = intake.last_report.get().elapsed();
            if quiet >= heartbeat {
                report(shard, link, intake).await?;
                continue;
            }
            future::or(intake.filled.wait(), async {
                sleep(heartbeat - quiet).await;
            })
            .await;
            continue;
        }
        let from = match intake.end.get() {
            0 => intake.next.get().expect("bytes came with an offset") - bytes.len() as u64,
            end => end,
        };
        let appended = copy::submit(shard, PhyOffset(from), bytes);
        let end = appended.recv_async().await.map_err(|_| Ended::Stopping)??;
        intake.end.set(end.0);
        report(shard, link, intake).await?;
    }
}

/// The stream, cut into frames.
#[derive(Default)]
struct Frames {
    /// Controller mode: the epoch of the frame before, or of this log's end.
    last: Option<Option<Epoch>>,
    /// A head of which not all bytes came yet.
    head: Vec<u8>,
    /// Of the present body, still to come.
    body_left: usize,
}

impl Frames {
    /// Moves the bodies of `bytes` to the intake; each must go on where the one before ended.
    fn take(&mut self, mut bytes: &[u8], intake: &Intake) -> Result<(), Ended> {
        while !bytes.is_empty() {
            if self.body_left > 0 {
                let (body, rest) = bytes.split_at(bytes.len().min(self.body_left));
                intake.bytes.borrow_mut().extend_from_slice(body);
                intake.next.set(intake.next.get().map(|next| next + body.len() as u64));
                self.body_left -= body.len();
                bytes = rest;
                continue;
            }
            let head_bytes = if self.last.is_some() { ha_switch::HEAD_BYTES } else { ha::HEAD_BYTES };
            let (more, rest) = bytes.split_at(bytes.len().min(head_bytes - self.head.len()));
            self.head.extend_from_slice(more);
            bytes = rest;
            let Some(head) = self.head(intake)? else { continue };
            self.head.clear();
            match intake.next.get() {
                Some(wanted) if wanted != head.at => return Err(Ended::Elsewhere { got: head.at, wanted }),
                None if head.body_bytes > 0 => intake.next.set(Some(head.at)),
                _ => {}
            }
            self.body_left = head.body_bytes;
        }
        Ok(())
    }

    /// The head, once it is all there; what it says beside is noted.
    fn head(&mut self, intake: &Intake) -> Result<Option<TransferHead>, Ended> {
        let Some(last) = &mut self.last else { return Ok(TransferHead::decode(&self.head)?) };
        let Some(head) = Head::decode(&self.head)? else { return Ok(None) };
        if last.is_none_or(|last| last.epoch < head.epoch.epoch) {
            intake.begun.borrow_mut().push(head.epoch);
            *last = Some(head.epoch);
        }
        intake.confirm.set(intake.confirm.get().max(head.confirm));
        Ok(Some(TransferHead { at: head.at, body_bytes: head.body_bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intake(next: Option<u64>) -> Intake {
        Intake { next: Cell::new(next), ..Intake::new(0) }
    }

    fn stream(frames: &[(u64, &[u8])]) -> Vec<u8> {
        let one =
            |(at, body): &(u64, &[u8])| [&TransferHead { at: *at, body_bytes: body.len() }.encode()[..], body].concat();
        frames.iter().flat_map(one).collect()
    }

    #[test]
    fn a_stream_cut_anywhere_gives_the_same_log() {
        let sent = stream(&[(100, b""), (100, b"abc"), (103, b"defgh"), (108, b"")]);
        for cut in 1..sent.len() {
            let (intake, mut frames) = (intake(None), Frames::default());
            for piece in sent.chunks(cut) {
                frames.take(piece, &intake).unwrap();
            }
            assert_eq!((&intake.bytes.borrow()[..], intake.next.get()), (&b"abcdefgh"[..], Some(108)), "cut {cut}");
        }
    }

    #[test]
    fn epochs_and_the_confirm_offset_come_with_the_frames() {
        let frame = |at, body: &[u8], epoch, start, confirm| {
            let head = Head { body_bytes: body.len(), at, epoch: Epoch { epoch, start }, confirm };
            [&head.encode()[..], body].concat()
        };
        let sent = [
            frame(100, b"ab", 2, 0, 100),
            frame(102, b"c", 2, 0, 101),
            frame(103, b"de", 5, 103, 102),
            frame(105, b"", 5, 103, 105),
        ]
        .concat();
        for cut in 1..sent.len() {
            let intake = Intake::new(100);
            let last = Some(Some(Epoch { epoch: 2, start: 0 }));
            let mut frames = Frames { last, ..Frames::default() };
            for piece in sent.chunks(cut) {
                frames.take(piece, &intake).unwrap();
            }
            assert_eq!(
                (&intake.bytes.borrow()[..], intake.next.get(), intake.confirm.get()),
                (&b"abcde"[..], Some(105), 105)
            );
            assert_eq!(intake.begun.take(), [Epoch { epoch: 5, start: 103 }], "cut {cut}");
        }
    }

    #[test]
    fn a_frame_for_elsewhere_ends_the_connection_even_a_heartbeat() {
        for (next, frames) in [(Some(5), stream(&[(6, b"")])), (Some(5), stream(&[(5, b"ab"), (8, b"c")]))] {
            let taken = Frames::default().take(&frames, &intake(next));
            assert!(matches!(taken, Err(Ended::Elsewhere { .. })), "{taken:?}");
        }
        let bad = Frames::default().take(&[0xFF; ha::HEAD_BYTES], &intake(None));
        assert!(matches!(bad, Err(Ended::Protocol(_))));
    }
}
