//! The same conversation with Apache's controller, whose answers are in `apache-5.5.0.txt`, and with ours. Codes, header fields and
//! bodies are compared; remarks are not, since each words its own.
use crate::common::{Client, Process, free_port, test_dir};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uringmq_proto::command::OwnedCommand;

/// Environment: the address of a fresh controller of Apache's, whose answers are to be written.
const APACHE_KEY: &str = "CONTROLLER_OF_APACHE";
const PATIENCE: Duration = Duration::from_secs(60);

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/controllers").join(name)
}

fn json(text: &[u8]) -> String {
    match serde_json::from_slice::<serde_json::Value>(&uringmq_proto::fastjson::to_strict(text)) {
        Ok(value) => value.to_string(),
        Err(_) => String::from_utf8_lossy(text).into_owned(),
    }
}

struct Talk {
    addr: SocketAddr,
    client: Client,
    brokers: HashMap<String, Client>,
}

impl Talk {
    /// Code, fields in their order, body; one line. The controller's own address is `HERE`.
    fn shown(&self, answer: &OwnedCommand) -> String {
        let fields: BTreeMap<&str, &str> =
            answer.ext.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let mut line = answer.code.to_string();
        for (key, value) in fields {
            write!(line, " {key}={value}").unwrap();
        }
        if !answer.body.is_empty() {
            write!(line, " : {}", json(&answer.body)).unwrap();
        }
        line.replace(&self.addr.to_string(), "HERE")
    }

    fn beat(&mut self, id: &str) {
        let broker = self.brokers.entry(id.to_owned()).or_insert_with(|| Client::connect(self.addr));
        let addr = format!("127.0.0.1:1{id}000");
        let fields = [
            ("clusterName", "C"),
            ("brokerName", "g"),
            ("brokerAddr", &addr),
            ("brokerId", id),
            ("epoch", "0"),
            ("maxOffset", "0"),
            ("confirmOffset", "0"),
            ("heartbeatTimeoutMills", "600000"),
            ("electionPriority", "2147483647"),
        ];
        broker.ok(904, &fields, b"");
    }

    fn until(&mut self, epoch: i32) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.client.ok(1004, &[("brokerName", "g")], b"");
            if now.get("masterEpoch").is_some_and(|text| text.parse::<i32>().unwrap() >= epoch) {
                return;
            }
            assert!(Instant::now() < deadline, "the master epoch is not {epoch}: {now:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn request(&mut self, text: &str) -> String {
        let (head, body) = text.split_once(" : ").unwrap_or((text, ""));
        let mut words = head.split(' ');
        let code = words.next().unwrap().parse().expect("a code");
        let fields: Vec<(&str, &str)> = words.map(|word| word.split_once('=').expect("field=value")).collect();
        let answer = self.client.call(code, &fields, body.as_bytes());
        self.shown(&answer)
    }
}

/// Request, whether ours is meant to differ, and the answer.
fn talk(addr: SocketAddr) -> Vec<(String, bool, String)> {
    let steps = std::fs::read_to_string(here("steps.txt")).expect("the steps");
    let mut talk = Talk { addr, client: Client::connect(addr), brokers: HashMap::new() };
    let (mut answers, mut differs) = (Vec::new(), false);
    for line in steps.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(' ').expect("two words") {
            (">", request) => answers.push((request.to_owned(), std::mem::take(&mut differs), talk.request(request))),
            ("!", _) => differs = true,
            ("beat", id) => talk.beat(id),
            ("close", id) => drop(talk.brokers.remove(id).expect("a broker with a connection")),
            ("until", epoch) => talk.until(epoch.parse().expect("a number")),
            _ => panic!("{line}"),
        }
    }
    answers
}

/// Writes Apache's answers where its controller is named; otherwise there is nothing to do.
#[test]
fn apaches_answers_are_written() {
    let Ok(addr) = std::env::var(APACHE_KEY) else { return };
    let answers = talk(addr.parse().expect("host:port"));
    let text: String = answers.iter().map(|(request, _, answer)| format!("> {request}\n{answer}\n")).collect();
    std::fs::write(here("apache-5.5.0.txt"), text).expect("the answers");
}

#[test]
fn ours_answers_as_apaches() {
    let port = free_port();
    let mut controller = Process::new("controller", test_dir("controller-against-apache"));
    let conf = format!(
        "controllerDLegerGroup=g1\ncontrollerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerDLegerSelfId=n0\n\
         controllerStorePath={}\n",
        controller.store().display()
    );
    controller.start(&conf).expect("a controller");
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    crate::led_by(&[addr]);
    let text = std::fs::read_to_string(here("apache-5.5.0.txt")).expect("Apache's answers");
    let mut apaches = text.lines();
    for (request, differs, ours) in talk(addr) {
        assert_eq!(apaches.next(), Some(format!("> {request}").as_str()), "the answers are of other steps");
        let apache = apaches.next().expect("an answer");
        assert_eq!(ours != apache, differs, "\nrequest  {request}\nours     {ours}\nApache's {apache}");
    }
    assert_eq!(apaches.next(), None);
}
