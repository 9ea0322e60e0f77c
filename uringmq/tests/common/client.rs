//! A blocking client: frames out, frames in.
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use uringmq_proto::command::{Command, FLAG_ONEWAY, Head, OwnedCommand, Value, write_frame};
use uringmq_proto::frame::{self, Split};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Version and language that the binary header states: V5_5_0, Java.
const VERSION: i16 = 513;

pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    opaque: i32,
    /// Requests carry the ROCKETMQ binary header.
    binary: bool,
    /// Sends and pulls through the helpers panic on any code but 0.
    pub must_succeed: bool,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Self {
        Client::of(TcpStream::connect(addr).unwrap_or_else(|e| panic!("{addr}: {e}")))
    }

    fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Client { stream, buffer: Vec::new(), opaque: 0, binary: false, must_succeed: false }
    }

    /// `None` when nobody listens there.
    pub fn try_connect(addr: SocketAddr) -> Option<Self> {
        TcpStream::connect(addr).ok().map(Client::of)
    }

    /// With the ROCKETMQ binary header, or the JSON one.
    pub fn speaking(addr: SocketAddr, binary: bool) -> Self {
        Client { binary, ..Client::connect(addr) }
    }

    /// Writes a request; its opaque number.
    pub fn ask(&mut self, code: i32, flag: i32, ext: &[(&str, &str)], body: &[u8]) -> i32 {
        self.opaque += 1;
        let frame = match self.binary {
            true => binary_frame(code, self.opaque, flag, ext, body),
            false => json_frame(code, self.opaque, flag, ext, body),
        };
        self.raw(&frame);
        self.opaque
    }

    /// The peer may close while this writes: reading tells.
    pub fn raw(&mut self, bytes: &[u8]) {
        match self.stream.write_all(bytes) {
            Err(e) if !matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => panic!("write: {e}"),
            _ => {}
        }
    }

    /// The next frame; `None` when the peer closed.
    pub fn receive(&mut self) -> Option<OwnedCommand> {
        loop {
            if let Split::Whole { frame, bytes } = frame::split(&self.buffer, false).expect("a frame") {
                let answer = OwnedCommand::from(&Command::decode(frame).expect("a readable header"));
                self.buffer.drain(..bytes);
                return Some(answer);
            }
            let mut piece = vec![0; 1 << 16];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(bytes) => self.buffer.extend_from_slice(&piece[..bytes]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) if e.kind() == ErrorKind::Interrupted => {} // a machine that was suspended for a moment
                Err(e) => panic!("no answer: {e}"),
            }
        }
    }

    /// The answer to `opaque`; requests and notices of the server in between are passed over.
    pub fn answer_to(&mut self, opaque: i32) -> OwnedCommand {
        loop {
            let got = self.receive().unwrap_or_else(|| panic!("closed instead of an answer to {opaque}"));
            if got.flag & 1 != 0 {
                assert_eq!(got.opaque, opaque, "the answer of another request: {got:?}");
                return got;
            }
        }
    }

    /// Asks and reads the answer, which has the same opaque number.
    pub fn call(&mut self, code: i32, ext: &[(&str, &str)], body: &[u8]) -> OwnedCommand {
        let opaque = self.ask(code, 0, ext, body);
        self.answer_to(opaque)
    }

    /// A call that must succeed.
    pub fn ok(&mut self, code: i32, ext: &[(&str, &str)], body: &[u8]) -> OwnedCommand {
        let answer = self.call(code, ext, body);
        assert_eq!(answer.code, 0, "code {code} {ext:?}: {:?}", answer.remark);
        answer
    }

    pub fn oneway(&mut self, code: i32, ext: &[(&str, &str)], body: &[u8]) {
        self.ask(code, FLAG_ONEWAY, ext, body);
    }
}

pub fn json_frame(code: i32, opaque: i32, flag: i32, ext: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let ext: Vec<_> = ext.iter().map(|(key, value)| ((*key).into(), Value::from(*value))).collect();
    let mut out = Vec::new();
    write_frame(&mut out, &Head { code, opaque, flag, remark: None, ext: &ext }, &[body]);
    out
}

/// Header type 1. A key length above 32767 is written as Java would read it: negative.
pub fn binary_frame(code: i32, opaque: i32, flag: i32, ext: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut fields = Vec::new();
    for (key, value) in ext {
        fields.extend_from_slice(&(key.len() as u16).to_be_bytes());
        fields.extend_from_slice(key.as_bytes());
        fields.extend_from_slice(&(value.len() as u32).to_be_bytes());
        fields.extend_from_slice(value.as_bytes());
    }
    let mut header = (code as i16).to_be_bytes().to_vec();
    header.push(0);
    header.extend_from_slice(&VERSION.to_be_bytes());
    header.extend_from_slice(&opaque.to_be_bytes());
    header.extend_from_slice(&flag.to_be_bytes());
    header.extend_from_slice(&[0; 4]); // no remark
    header.extend_from_slice(&(fields.len() as u32).to_be_bytes());
    header.extend_from_slice(&fields);
    frame_of_parts(1, header.len(), &header, body)
}

/// A frame that says of its header what it is told to: a right one, or not.
pub fn frame_of_parts(kind: u8, header_bytes: usize, header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut out = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
    out.push(kind);
    out.extend_from_slice(&(header_bytes as u32).to_be_bytes()[1..]);
    out.extend_from_slice(header);
    out.extend_from_slice(body);
    out
}
