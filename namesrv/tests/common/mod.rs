//! A name server on a thread of its own and a blocking client that speaks frames.
#![allow(dead_code)] // each test file uses its part
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;
use uringmq_namesrv::NamesrvConfig;
use uringmq_proto::body::register::RegisterBrokerBody;
use uringmq_proto::body::topic::{DataVersion, TopicConfig, TopicConfigSerializeWrapper};
use uringmq_proto::codes::request;
use uringmq_proto::command::{Command, FLAG_ONEWAY, Head, OwnedCommand, Value, write_frame};
use uringmq_proto::frame::{self, Split};
use uringmq_proto::settings::listed::Settings;

pub struct Server {
    pub addr: SocketAddr,
    pub dir: PathBuf,
    stop: flume::Sender<()>,
    thread: Option<std::thread::JoinHandle<i32>>,
}

impl Server {
    /// With the lines of `text` as its file; the key-value table lies in a directory of the test's own, kept between starts.
    pub fn start(test: &str, text: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("uringmq-ns-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let text =
            format!("listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={}\n{text}", dir.join("kv.json").display());
        let (config, _) = NamesrvConfig::from_text(&dir.join("n.conf"), &text).unwrap();
        let (stop, stopped) = flume::bounded::<()>(1);
        let (ready, served) = flume::bounded(1);
        let thread = std::thread::spawn(move || {
            let stop = async move {
                let _ = stopped.recv_async().await; // a dropped sender stops it too
            };
            uringmq_namesrv::run(config, stop, move |addr| ready.send(addr).unwrap())
        });
        Server { addr: served.recv().expect("it serves"), dir, stop, thread: Some(thread) }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// Stops in order; the exit status. The directory stays.
    pub fn stop(mut self) -> i32 {
        self.end()
    }

    fn end(&mut self) -> i32 {
        let _ = self.stop.send(());
        self.thread.take().map_or(0, |thread| thread.join().unwrap())
    }

    pub fn forget(self) {
        let dir = self.dir.clone();
        assert_eq!(self.stop(), 0);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

pub struct Client {
    stream: TcpStream,
    opaque: i32,
    /// What callers of this version send.
    pub version: i32,
    buffer: Vec<u8>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { stream, opaque: 0, version: 479, buffer: Vec::new() }
    }

    pub fn send(&mut self, code: i32, flag: i32, ext: &[(&str, &str)], body: &[u8]) -> i32 {
        self.opaque += 1;
        let ext: Vec<_> = ext.iter().map(|(key, value)| ((*key).into(), Value::from(*value))).collect();
        let mut out = Vec::new();
        write_frame(&mut out, &Head { code, opaque: self.opaque, flag, remark: None, ext: &ext }, &[body]);
        // The writer states our own version; this caller may have another.
        let own = format!("\"version\":{}", uringmq_proto::command::VERSION);
        let out = restate(&out, &own, &format!("\"version\":{}", self.version));
        self.stream.write_all(&out).unwrap();
        self.opaque
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next frame; `None` when the server closed.
    pub fn receive(&mut self) -> Option<OwnedCommand> {
        loop {
            if let Split::Whole { frame, bytes } = frame::split(&self.buffer, false).unwrap() {
                let answer = OwnedCommand::from(&Command::decode(frame).unwrap());
                self.buffer.drain(..bytes);
                return Some(answer);
            }
            let mut piece = [0; 65536];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(bytes) => self.buffer.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {} // a suspended machine
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    pub fn call(&mut self, code: i32, ext: &[(&str, &str)], body: &[u8]) -> OwnedCommand {
        let opaque = self.send(code, 0, ext, body);
        let answer = self.receive().unwrap_or_else(|| panic!("code {code}: closed"));
        assert_eq!((answer.opaque, answer.flag), (opaque, 1), "code {code}");
        answer
    }

    /// A call that must succeed.
    pub fn ok(&mut self, code: i32, ext: &[(&str, &str)], body: &[u8]) -> OwnedCommand {
        let answer = self.call(code, ext, body);
        assert_eq!(answer.code, 0, "code {code} {ext:?}: {:?}", answer.remark);
        answer
    }

    pub fn oneway(&mut self, code: i32, ext: &[(&str, &str)]) {
        self.send(code, FLAG_ONEWAY, ext, b"");
    }

    pub fn register(&mut self, id: &str, addr: &str, body: &RegisterBrokerBody) -> OwnedCommand {
        self.ok(request::REGISTER_BROKER, &broker(id, addr), &body.encode_plain())
    }

    /// The body of the route of a topic, or `None` for code 17.
    pub fn route(&mut self, topic: &str) -> Option<String> {
        let answer = self.call(request::GET_ROUTEINFO_BY_TOPIC, &[("topic", topic)], b"");
        match answer.code {
            0 => Some(String::from_utf8(answer.body).unwrap()),
            17 => None,
            other => panic!("code {other}: {:?}", answer.remark),
        }
    }
}

/// Swaps a text in the JSON header of a frame and mends the lengths.
fn restate(frame: &[u8], from: &str, to: &str) -> Vec<u8> {
    let header_bytes = u32::from_be_bytes(frame[4..8].try_into().unwrap()) as usize & 0xFF_FFFF;
    let header = std::str::from_utf8(&frame[8..8 + header_bytes]).unwrap();
    assert!(header.contains(from), "{header}");
    let header = header.replace(from, to);
    let body = &frame[8 + header_bytes..];
    let mut out = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
    out.extend_from_slice(&(header.len() as u32).to_be_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(body);
    out
}

/// Header fields of a registration of broker `b` in cluster `c`.
pub fn broker<'a>(id: &'a str, addr: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![("brokerName", "b"), ("brokerAddr", addr), ("clusterName", "c"), ("haServerAddr", "ha:1"), ("brokerId", id)]
}

pub fn body(counter: i64, topics: &[&str]) -> RegisterBrokerBody {
    let table = topics.iter().map(|name| ((*name).to_owned(), TopicConfig::new(*name, 8))).collect();
    RegisterBrokerBody {
        topic_config_serialize_wrapper: TopicConfigSerializeWrapper {
            data_version: DataVersion { counter, state_version: 0, timestamp: 7 },
            topic_config_table: table,
            ..TopicConfigSerializeWrapper::default()
        },
        ..RegisterBrokerBody::default()
    }
}
