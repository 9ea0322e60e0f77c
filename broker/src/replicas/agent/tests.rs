//! The agent against a controller that answers what a test says, or ends the connection instead.
use super::*;
use crate::config::Machine;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use uringmq_proto::command::{Command, Response, write_response};
use uringmq_proto::frame::{self, Split};
use uringmq_proto::in_sync::Stamp;

/// What the group is at the controller of a test; `None` ends the connection without an answer.
type Answer = Box<dyn FnMut(&OwnedCommand) -> Option<Response> + Send>;

/// Serves one connection after the other in a thread that ends with the test's process. Who leads it says itself.
fn controller(mut answer: Answer) -> HostPort {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut bytes) = (stream.unwrap(), Vec::new());
            while let Some(asked) = next(&mut stream, &mut bytes) {
                let answered = match asked.code {
                    request::CONTROLLER_GET_METADATA_INFO => {
                        Some(Response::ok().with("controllerLeaderAddress", at.to_string()).with("isLeader", true))
                    }
                    _ => answer(&asked),
                };
                let Some(answered) = answered else { break };
                let mut out = Vec::new();
                write_response(&mut out, asked.opaque, &answered);
                stream.write_all(&out).unwrap();
            }
        }
    });
    HostPort { host: at.ip().to_string(), port: at.port() }
}

fn next(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<OwnedCommand> {
    loop {
        if let Split::Whole { frame, bytes: used } = frame::split(bytes, false).unwrap() {
            let command = OwnedCommand::from(&Command::decode(frame).unwrap());
            bytes.drain(..used);
            return Some(command);
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).ok()? {
            0 => return None,
            got => bytes.extend_from_slice(&piece[..got]),
        }
    }
}

/// Broker 1, whose controller is at `at`.
fn agent(at: &HostPort) -> Agent {
    let machine = Machine {
        host_name: "h".to_owned(),
        home: PathBuf::from("/nowhere"),
        addresses: Vec::new(),
        namesrv_addr: None,
        cpus: 1,
        resolve: |host| host.parse().map_err(std::io::Error::other),
    };
    let text = format!("enableControllerMode=true\ncontrollerAddr={at}\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\n");
    let config = BrokerConfig::from_text(None, &text, None, &machine).unwrap().0;
    let who = Who { cluster: "c".to_owned(), broker: "g".to_owned(), address: ([127, 0, 0, 1], 1).into() };
    let (orders, shards) = (flume::bounded(1).1, flume::bounded(1).0);
    let mut agent = Agent::new(&config, who, Arc::default(), orders, shards);
    (agent.id, agent.registered) = (Some(1), true);
    agent
}

/// The group as broker 1, its master, asks for it.
fn told(epoch: i32, set: &[i64], set_epoch: i32) -> Response {
    let set = SyncStateSet { sync_state_set: set.iter().copied().collect(), sync_state_set_epoch: set_epoch };
    let response = Response::ok().with("masterBrokerId", 1).with("masterAddress", "127.0.0.1:1".to_owned());
    response.with("masterEpoch", epoch).body(fastjson::to_vec(&set))
}

fn change(set: &[i64], epoch: i32, set_epoch: i32) -> Change {
    Change { set: set.iter().copied().collect(), of: Stamp { epoch, set_epoch } }
}

#[test]
fn a_change_is_sent_with_the_epochs_of_the_set_that_it_was_made_from() {
    let (asked, changes) = flume::unbounded();
    let at = controller(Box::new(move |command| match command.code {
        request::CONTROLLER_GET_REPLICA_INFO => Some(told(7, &[1, 3], 9)),
        _ => {
            let set: SyncStateSet = fastjson::from_slice(&command.body).unwrap();
            asked.send((command.get("masterEpoch").map(str::to_owned), set.sync_state_set_epoch)).unwrap();
            Some(Response::err(response::CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, "an older set"))
        }
    }));
    let mut agent = agent(&at);
    agent.look().unwrap();
    assert_eq!(agent.view.stamp(), Stamp { epoch: 7, set_epoch: 9 });
    let now = agent.alter_or_look(change(&[1, 2], 6, 8)).unwrap();
    assert_eq!(changes.try_recv().unwrap(), (Some("6".to_owned()), 8));
    assert_eq!((now.set, now.set_epoch), ([1, 3].into(), 9), "as the controller has it");
}

/// The first change gets no answer and is made only when the second one comes, whose answer is lost too.
#[test]
fn a_change_without_an_answer_is_open_until_a_newer_set_is_seen() {
    let (mut changes, mut made) = (0, false);
    let at = controller(Box::new(move |command| match command.code {
        request::CONTROLLER_GET_REPLICA_INFO if made => Some(told(7, &[1, 2], 10)),
        request::CONTROLLER_GET_REPLICA_INFO => Some(told(7, &[1], 9)),
        _ => {
            changes += 1;
            made = changes == 2;
            None
        }
    }));
    let mut agent = agent(&at);
    agent.look().unwrap();
    let wanted = change(&[1, 2], 7, 9);
    assert!(matches!(agent.alter_or_look(wanted.clone()), Err(AlterError::Unknown(_))), "the look shows the old set");
    let now = agent.alter_or_look(wanted).unwrap();
    assert_eq!((now.set, now.set_epoch), ([1, 2].into(), 10));
}

/// A second try that is refused says nothing of the first one.
#[test]
fn a_refusal_answers_only_the_change_that_it_answers() {
    let mut answers = [
        None,
        Some(response::CONTROLLER_BROKER_NOT_ALIVE),
        Some(response::SYSTEM_ERROR),
        Some(response::CONTROLLER_BROKER_NOT_ALIVE),
    ]
    .into_iter();
    let mut set_epoch = 9;
    let at = controller(Box::new(move |command| match command.code {
        request::CONTROLLER_GET_REPLICA_INFO => Some(told(7, &[1], set_epoch)),
        _ => {
            let answer = answers.next().unwrap().map(|code| Response::err(code, "no"));
            set_epoch = if answers.len() == 2 { 10 } else { set_epoch };
            answer
        }
    }));
    let mut agent = agent(&at);
    agent.look().unwrap();
    let open = |of: &mut Agent, set_epoch| of.alter_or_look(change(&[1, 2], 7, set_epoch)).is_err();
    assert!(open(&mut agent, 9));
    assert!(!open(&mut agent, 9), "refused, and by then another set stands");
    assert!(open(&mut agent, 10), "an answer that says nothing");
    assert!(open(&mut agent, 10), "the try before may still be made");
}

#[test]
fn a_change_that_was_not_sent_is_not_made() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port(); // closed again
    let mut agent = agent(&HostPort { host: "127.0.0.1".into(), port: nobody });
    assert!(matches!(agent.alter_or_look(change(&[1, 2], 7, 9)), Err(AlterError::NotMade(_))));
    agent.unanswered = Some(Stamp { epoch: 7, set_epoch: 9 });
    assert!(matches!(agent.alter_or_look(change(&[1, 2], 7, 9)), Err(AlterError::Unknown(_))), "one before it was");
    assert!(matches!(agent.alter_or_look(change(&[1, 2], 7, 10)), Err(AlterError::NotMade(_))));
}

/// It is named master of epoch 7, which it led before; then the group loses its master, and the broker is elected anew.
#[test]
fn who_has_just_started_gives_no_sign_before_another_epoch_than_its_own_has_begun() {
    let (signs, codes) = flume::unbounded();
    let mut looks = 0;
    let at = controller(Box::new(move |command| {
        signs.send(command.code).unwrap();
        match command.code {
            request::CONTROLLER_GET_REPLICA_INFO => {
                looks += 1;
                let nobody = || Response::ok().with("masterEpoch", 8).body(fastjson::to_vec(&SyncStateSet::default()));
                Some(if looks <= 2 { told(7, &[1, 2], 9) } else { nobody() })
            }
            request::CONTROLLER_REGISTER_BROKER => Some(Response::ok()),
            request::CONTROLLER_ELECT_MASTER => Some(told(9, &[1], 10)),
            _ => None,
        }
    }));
    let mut agent = agent(&at);
    (agent.own, agent.registered) = (Some(7), false);
    for _ in 0..2 {
        assert!(matches!(agent.look(), Err(AskError::LiesLow(7))));
        agent.beat();
        assert!(agent.beats.is_empty(), "no heartbeat");
    }
    agent.look().unwrap();
    assert_eq!(agent.view.role_of(1), Some(Role::Master { epoch: 9 }));
    let asked: Vec<i32> = codes.drain().filter(|code| *code != request::BROKER_HEARTBEAT).collect();
    assert_eq!(asked, [1004, 1004, 1004, 1003, 1002]);
}
