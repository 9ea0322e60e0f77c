//! Requests to a controller on a blocking socket; for the agent's thread alone.
use crate::config::HostPort;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use thiserror::Error;
use uringmq_proto::command::{Command, OwnedCommand, Value, write_request};
use uringmq_proto::frame::{self, Split};

/// For one answer. Apache's broker waits as long.
const ANSWER: Duration = Duration::from_secs(3);
const CONNECT: Duration = Duration::from_secs(1);
/// Heartbeats to the others must not wait for a controller that takes nothing.
const WRITE: Duration = Duration::from_secs(1);

#[derive(Debug, Error)]
pub enum CallError {
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("its answer is no frame: {0}")]
    Frame(String),
}

pub fn connect(at: &HostPort) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (at.host.as_str(), at.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(WRITE))?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A request that nobody answers.
pub fn tell(stream: &mut TcpStream, code: i32, ext: &[(&str, Value<'_>)]) -> io::Result<()> {
    let mut frame = Vec::new();
    write_request(&mut frame, code, 0, true, ext, &[]);
    stream.write_all(&frame)
}

/// One connection on which requests are answered one after the other.
pub struct Line {
    stream: TcpStream,
    opaque: i32,
    read: Vec<u8>,
}

impl Line {
    pub fn connect(at: &HostPort) -> io::Result<Self> {
        Ok(Line { stream: connect(at)?, opaque: 0, read: Vec::new() })
    }

    /// The answer, whatever its code.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub fn call(&mut self, code: i32, ext: &[(&str, Value<'_>)], body: &[u8]) -> Result<OwnedCommand, CallError> {
        self.opaque = self.opaque.wrapping_add(1);
        let mut frame = Vec::new();
        write_request(&mut frame, code, self.opaque, false, ext, body);
        self.stream.write_all(&frame)?;
        let until = Instant::now() + ANSWER;
        loop {
            if let Some(answer) = self.take_answer()?
                && answer.opaque == self.opaque
            {
                return Ok(answer);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut piece = [0; 16 << 10];
            match self.stream.read(&mut piece)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                bytes => self.read.extend_from_slice(&piece[..bytes]),
            }
        }
    }

    /// A whole frame that was read; requests of the peer are passed over.
    fn take_answer(&mut self) -> Result<Option<OwnedCommand>, CallError> {
        let bad = |e: &dyn std::fmt::Display| CallError::Frame(e.to_string());
        let (answer, used) = match frame::split(&self.read, false).map_err(|e| bad(&e))? {
            Split::More { .. } => return Ok(None),
            Split::Whole { frame, bytes: used } => {
                let command = Command::decode(frame).map_err(|e| bad(&e))?;
                (command.is_response().then(|| OwnedCommand::from(&command)), used)
            }
        };
        self.read.drain(..used);
        match answer {
            Some(answer) => Ok(Some(answer)),
            None => self.take_answer(),
        }
    }
}
