//! The slave's side: connects to its master, says where its own log ends, and hands what comes to the writer, who appends it. While one
//! piece is being written the next is received; a report follows each. Whatever goes wrong ends the connection, and the next one resumes
//! where the log ends by then.
//!
//! A report says what is written here by direct writes (SYNC_FLUSH: durable), where Apache's slave reports what reached its page cache.
use crate::config::HostPort;
use crate::mesh::Event;
use crate::registration::resolve::resolve;
use crate::replication::agree::{self, Disagreement};
use crate::replication::link::Link;
use crate::replication::master::Rate;
use crate::replication::truncate;
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
use uringmq_proto::ha::{self, HEAD_BYTES, TransferHead};
use uringmq_proto::types::PhyOffset;
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
        if let Some(master) = master_address(&shard).await {
            let ended = future::or(follow_once(&shard, &master), async {
                shard.doors.closed().await;
                Err(Ended::Stopping)
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
}

async fn follow_once(shard: &Rc<Shard>, master: &str) -> Result<(), Ended> {
    let config = shard.config();
    let at = HostPort::read(master).map_err(|why| Ended::Resolve(master.to_owned(), why))?;
    let found = resolve(&at).await.map_err(|why| Ended::Resolve(master.to_owned(), why))?;
    let address = *found.first().expect("a resolved name has an address");
    let link = Link::connect(address, Duration::from_millis(config.connect_timeout_ms)).await?;
    let end = shard.run_on(shard.writer_shard, |s| async move {
        let writer = s.writer.as_ref().expect("asked of the writer shard");
        writer.copier.as_ref().expect("a slave's writer has one").end().await
    });
    let end = end.await.flatten().ok_or(Ended::Stopping)?.0;
    // Without NameServer there is nobody to ask.
    let broker = shard.run_on(0, |s| async move { s.control().registration.master() }).await.flatten();
    if let Some(broker) = broker
        && let Err(apart) = agree::check(shard, &broker, end).await
    {
        return Err(truncate::settle(shard, &broker, end, apart).await.into());
    }
    info!(master, end, "following");
    *following(shard).master.borrow_mut() = Some(master.to_owned());
    let intake = Intake {
        bytes: RefCell::default(),
        next: Cell::new((end > 0).then_some(end)),
        end: Cell::new(end),
        filled: Event::default(),
        emptied: Event::default(),
        last_report: Cell::new(Instant::now()),
    };
    report(shard, &link, &intake).await?;
    shard.marks.following.store(1, Ordering::Relaxed);
    future::or(receive(shard, &link, &intake), pass_on(shard, &link, &intake)).await
}

async fn report(shard: &Shard, link: &Link, intake: &Intake) -> Result<(), Ended> {
    intake.last_report.set(Instant::now());
    following(shard).last_write_ms.set(shard.now_ms());
    Ok(link.write_all(&intake.end.get().to_be_bytes()).await?)
}

/// Takes frames off the socket.
async fn receive(shard: &Rc<Shard>, link: &Link, intake: &Intake) -> Result<(), Ended> {
    let patience = Duration::from_millis(shard.config().ha_housekeeping_ms);
    let mut buffer = vec![0; READ_BYTES];
    let mut frames = Frames::default();
    loop {
        let silent = async {
            sleep(patience).await;
            Err(Ended::Silent(patience))
        };
        let got = future::or(async { Ok(link.read(&mut buffer).await?) }, silent).await?;
        following(shard).last_read_ms.set(shard.now_ms());
        following(shard).received.add(got);
        frames.take(&buffer[..got], intake)?;
        if !intake.bytes.borrow().is_empty() {
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
            let (more, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.head.len()));
            self.head.extend_from_slice(more);
            bytes = rest;
            let Some(head) = TransferHead::decode(&self.head)? else { continue };
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intake(next: Option<u64>) -> Intake {
        Intake {
            bytes: RefCell::default(),
            next: Cell::new(next),
            end: Cell::new(0),
            filled: Event::default(),
            emptied: Event::default(),
            last_report: Cell::new(Instant::now()),
        }
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
    fn a_frame_for_elsewhere_ends_the_connection_even_a_heartbeat() {
        for (next, frames) in [(Some(5), stream(&[(6, b"")])), (Some(5), stream(&[(5, b"ab"), (8, b"c")]))] {
            let taken = Frames::default().take(&frames, &intake(next));
            assert!(matches!(taken, Err(Ended::Elsewhere { .. })), "{taken:?}");
        }
        let bad = Frames::default().take(&[0xFF; HEAD_BYTES], &intake(None));
        assert!(matches!(bad, Err(Ended::Protocol(_))));
    }
}
