//! The reading task of a connection: one read, all its whole frames, and the start of the next one kept.
//!
//! A read goes into the shard's buffer and its frames are handed over from there, so nothing is copied but the rest of a frame that
//! is not whole yet. A large frame is read into a buffer of its own, whose bytes are reserved before.
use crate::Service;
use crate::connection::Conn;
use crate::shared::Partial;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;
use uringmq_proto::command::Command;
use uringmq_proto::frame::{Split, split};

/// Why reading ended.
pub(crate) enum End {
    /// The peer closed its side.
    Eof,
    /// Our side closes.
    Closing,
    /// What the peer sent is no sequence of frames.
    Broken(String),
    Failed(io::Error),
}

pub(crate) struct Reader<'a, S> {
    conn: &'a Rc<Conn>,
    service: &'a S,
    /// The start of the next frame, or what a pause left unread; with its place in the budget.
    rest: Vec<u8>,
    counted: Option<Partial>,
    /// `rest` begins with a whole frame that a pause held back.
    held_back: bool,
    /// Length of the frame that `rest` begins, 0 when not known.
    need: usize,
    /// No whole frame was read yet.
    first: bool,
}

impl<'a, S: Service> Reader<'a, S> {
    pub(crate) fn new(conn: &'a Rc<Conn>, service: &'a S) -> Self {
        Reader { conn, service, rest: Vec::new(), counted: None, held_back: false, need: 0, first: true }
    }

    /// Reads until the connection ends.
    pub(crate) async fn run(mut self) -> End {
        loop {
            if let Err(end) = self.turn().await {
                return end;
            }
        }
    }

    async fn turn(&mut self) -> Result<(), End> {
        while self.conn.is_open() && self.conn.must_pause() {
            self.conn.reader_bell().heard().await;
        }
        if !self.conn.is_open() {
            return Err(End::Closing);
        }
        if self.held_back {
            let rest = std::mem::take(&mut self.rest);
            return self.hand_over(&rest);
        }
        if self.need > self.conn.limits().read_bytes / 4 { self.read_large().await } else { self.read_small().await }
    }

    async fn read_small(&mut self) -> Result<(), End> {
        let (kept, read_bytes) = (self.rest.len(), self.conn.limits().read_bytes);
        let shared = self.conn.shared().clone();
        let (mut scratch, read) = poll_fn(|cx| {
            let mut scratch = shared.take_scratch(kept + read_bytes);
            match self.conn.poll_read(cx, &mut scratch[kept..kept + read_bytes]) {
                Poll::Ready(read) => Poll::Ready((scratch, read)),
                Poll::Pending => {
                    shared.put_scratch(scratch);
                    Poll::Pending
                }
            }
        })
        .await;
        let handed = match received(read) {
            Ok(_) if !self.conn.is_open() => Err(End::Closing),
            Ok(got) => {
                scratch[..kept].copy_from_slice(&self.rest);
                self.hand_over(&scratch[..kept + got]).map(|()| got)
            }
            Err(end) => Err(end),
        };
        shared.put_scratch(scratch);
        if handed? == read_bytes {
            // The socket may never run dry; others have their turn.
            futures_lite::future::yield_now().await;
        }
        Ok(())
    }

    async fn read_large(&mut self) -> Result<(), End> {
        let budget_bytes = self.conn.limits().receive_budget_bytes;
        self.counted = None;
        let reserved = self.conn.shared().reserve_partial(self.need, budget_bytes, self.conn).await;
        let reserved = reserved.ok_or(End::Closing)?;
        let mut frame = vec![0; self.need];
        let mut got = self.rest.len();
        frame[..got].copy_from_slice(&self.rest);
        self.rest = Vec::new();
        self.conn.set_frame_since(Some(Instant::now()));
        while got < frame.len() {
            got += received(poll_fn(|cx| self.conn.poll_read(cx, &mut frame[got..])).await)?;
            if !self.conn.is_open() {
                return Err(End::Closing);
            }
        }
        self.conn.set_frame_since(None);
        let handed = self.hand_over(&frame);
        drop(reserved);
        futures_lite::future::yield_now().await;
        handed
    }

    /// Hands the whole frames of `buf` over, until one brings a pause, and keeps what is left.
    fn hand_over(&mut self, buf: &[u8]) -> Result<(), End> {
        let (mut at, mut handed) = (0, false);
        self.need = 0;
        self.held_back = false;
        let outcome = loop {
            if handed && (!self.conn.is_open() || self.conn.must_pause()) {
                self.held_back = at < buf.len();
                break Ok(());
            }
            match split(&buf[at..], self.first) {
                Err(error) => break Err(End::Broken(error.to_string())),
                Ok(Split::More { need }) => {
                    self.need = need;
                    break Ok(());
                }
                Ok(Split::Whole { frame, bytes }) => match Command::decode(frame) {
                    Err(error) => break Err(End::Broken(error.to_string())),
                    Ok(command) => {
                        self.first = false;
                        if !command.is_response() {
                            self.service.on_request(self.conn, &command, &buf[at..at + bytes]);
                        } else if !self.conn.calls().answer(&command) {
                            self.service.on_answer(self.conn, &command);
                        }
                        handed = true;
                        at += bytes;
                    }
                },
            }
        };
        if handed {
            self.service.on_turn(self.conn);
        }
        outcome?;
        self.keep(&buf[at..]);
        Ok(())
    }

    fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            if self.rest.capacity() > 0 {
                self.rest = Vec::new();
                self.counted = None;
            }
            return;
        }
        self.counted = Some(self.conn.shared().count_partial(rest.len()));
        self.rest.clear();
        self.rest.extend_from_slice(rest);
    }
}

fn received(read: io::Result<usize>) -> Result<usize, End> {
    match read {
        Ok(0) => Err(End::Eof),
        Ok(got) => Ok(got),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(End::Eof),
        Err(error) => Err(End::Failed(error)),
    }
}

/// Reads and forgets until the peer closes its side or the socket is shut: closing a socket with unread bytes would make the
/// kernel throw away what the peer has not received yet.
pub(crate) async fn discard(conn: &Conn) {
    loop {
        let read = poll_fn(|cx| {
            let mut scratch = conn.shared().take_scratch(conn.limits().read_bytes);
            let read = conn.poll_read(cx, &mut scratch);
            conn.shared().put_scratch(scratch);
            read
        });
        match read.await {
            Ok(got) if got > 0 => futures_lite::future::yield_now().await,
            _ => return,
        }
    }
}
