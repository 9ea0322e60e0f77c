//! The agent's thread: finds the controller that leads, gets this broker's number, says that it is alive, and asks what there is to know.
use super::call::{self, CallError, Line};
use super::identity::{self, Files, Identity, IdentityError};
use super::{AlterError, Kept, Master, ORDERS_MAX, Order, Replicas, Role, Told, View, Who};
use crate::config::{BrokerConfig, HostPort};
use crate::stop_signal::StopHandle;
use flume::RecvTimeoutError;
use std::collections::{BTreeSet, HashMap};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tracing::{debug, info, warn};
use uringmq_proto::body::controller::{Elected, SyncStateSet};
use uringmq_proto::codes::{request, response};
use uringmq_proto::command::{OwnedCommand, Value};
use uringmq_proto::fastjson;
use uringmq_proto::headers::controller::*;
use uringmq_proto::headers::route::BrokerHeartbeat;
use uringmq_proto::in_sync::{self, Change, Stamp};

/// Without a role it is asked for so often.
const LOOK_SOON: Duration = Duration::from_secs(1);
/// A controller that takes no heartbeat is tried again after so long.
const BEAT_RETRY: Duration = Duration::from_secs(5);
/// Numbers that others were faster to take are given up on after so many tries, until the next look.
const ID_TRIES: usize = 5;

#[derive(Debug, Error)]
enum AskError {
    #[error("no controller says who leads: {0}")]
    NoLeader(String),
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("code {code} is answered {answered}: {remark}")]
    Refused { code: i32, answered: i32, remark: String },
    #[error("answer to code {code}: {why}")]
    Answer { code: i32, why: String },
    #[error("{0}")]
    Identity(#[from] IdentityError),
    #[error("{0} numbers were taken by others")]
    Taken(usize),
    #[error(
        "this broker has just started, and is still named master in epoch {0}, which it led before: it waits until it is taken for dead and a \
         master is elected"
    )]
    LiesLow(i32),
    #[error("a change got no answer, and may still be made while the SyncStateSet is as it is")]
    Unanswered,
}

/// The periods and limits of the configuration.
struct Times {
    heartbeat: Duration,
    look: Duration,
    leader: Duration,
}

pub struct Agent {
    who: Who,
    controllers: Vec<HostPort>,
    files: Files,
    times: Times,
    alive_ms: i64,
    priority: i32,
    told: Arc<Told>,
    id: Option<i64>,
    registered: bool,
    leader: Option<Line>,
    beats: HashMap<String, TcpStream>,
    beat_again: HashMap<String, Instant>,
    view: View,
    /// The newest epoch of the log as it was found, until there is a role.
    own: Option<i32>,
    /// The set that the newest change without an answer was made from.
    unanswered: Option<Stamp>,
    complaint: String,
    orders: flume::Receiver<Order>,
    to_shards: flume::Sender<View>,
}

impl Agent {
    /// Registers this broker and waits until the controller gives it a role, then goes on in a thread of its own. `told` is what heartbeats say.
    /// `own` is the newest epoch of the log: in it this broker leads no more. `Ok(None)` when a stop was asked for meanwhile.
    ///
    /// # Errors
    /// A store that is another broker's.
    pub fn start(
        config: &BrokerConfig,
        who: Who,
        told: Arc<Told>,
        own: Option<i32>,
        stop: &StopHandle,
    ) -> Result<Option<(Role, Replicas)>, String> {
        let (orders, to_agent) = flume::bounded(ORDERS_MAX);
        let (to_shards, views) = flume::bounded(ORDERS_MAX);
        let mut agent = Agent::new(config, who, told.clone(), to_agent, to_shards);
        agent.own = own;
        let role = loop {
            if stop.requested() {
                return Ok(None);
            }
            match agent.look() {
                Ok(()) => agent.complaint.clear(),
                Err(AskError::Identity(e)) => return Err(e.to_string()),
                Err(e) => agent.complain(&e),
            }
            agent.beat();
            if let Some(role) = agent.id.and_then(|id| agent.view.role_of(id)).filter(|_| !agent.lies_low()) {
                break role;
            }
            std::thread::sleep(LOOK_SOON.min(agent.times.look));
        };
        agent.own = None;
        let id = agent.id.expect("who has a role has a number");
        info!(id, ?role, view = ?agent.view, "the controller gives the role");
        let replicas = Replicas { id, told, orders, views, first: agent.view.clone() };
        let (running, stop) = (role.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("replicas".to_owned());
        thread
            .spawn(move || agent.run(running, &stop))
            .map_err(|e| format!("thread of the controller's client: {e}"))?;
        Ok(Some((role, replicas)))
    }

    fn new(
        config: &BrokerConfig,
        who: Who,
        told: Arc<Told>,
        orders: flume::Receiver<Order>,
        to_shards: flume::Sender<View>,
    ) -> Self {
        let ms = |ms: u64| Duration::from_millis(ms);
        let kept = Kept::take_over().0.into_iter().map(|(at, stream)| (at.to_string(), stream));
        Agent {
            who,
            controllers: config.controller_addr.0.clone(),
            files: Files::of(&config.store_root),
            times: Times {
                heartbeat: ms(config.broker_heartbeat_ms),
                look: ms(config.sync_broker_metadata_ms),
                leader: ms(config.sync_controller_metadata_ms),
            },
            alive_ms: config.controller_heartbeat_timeout_ms as i64,
            priority: config.election_priority,
            told,
            id: None,
            registered: false,
            leader: None,
            beats: kept.collect(),
            beat_again: HashMap::new(),
            view: View::default(),
            own: None,
            unanswered: None,
            complaint: String::new(),
            orders,
            to_shards,
        }
    }

    /// The same again and again is said once.
    fn complain(&mut self, e: &AskError) {
        let text = e.to_string();
        match text == self.complaint {
            true => debug!(error = text, "the controller is not of help"),
            false => warn!(error = text, "the controller is not of help; trying again"),
        }
        self.complaint = text;
    }

    fn run(mut self, running: Role, stop: &StopHandle) {
        let now = Instant::now();
        let (mut beat, mut look, mut leader) = (now, now + self.times.look, now + self.times.leader);
        loop {
            let now = Instant::now();
            if now >= beat {
                self.beat();
                beat = now + self.times.heartbeat;
            }
            if now >= leader {
                self.leader = None;
                leader = now + self.times.leader;
            }
            if now >= look {
                self.look_and_tell(&running, stop);
                look = Instant::now() + if self.view.master.is_none() { LOOK_SOON } else { self.times.look };
            }
            let wait = beat.min(look).saturating_duration_since(Instant::now());
            match self.orders.recv_timeout(wait) {
                Ok(Order::Look) => look = Instant::now(),
                Ok(Order::Alter { change, done }) => {
                    let altered = self.alter_or_look(change);
                    look = look.min(Instant::now() + LOOK_SOON); // a refusal may say that another is master
                    let _ = done.send(altered); // nobody waits any more
                }
                Ok(Order::End(done)) => {
                    let named = |(at, stream): (String, TcpStream)| Some((HostPort::read(&at).ok()?, stream));
                    let _ = done.send(Kept(self.beats.drain().filter_map(named).collect()));
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return, // the shards could not start
            }
        }
    }

    /// The controller has not noticed that this broker was away, and names it master in an epoch that it led before its start. Until that master is
    /// lost for the controller, and another epoch has begun, this broker gives no sign of life.
    fn lies_low(&self) -> bool {
        let leads = self.view.master.as_ref().is_some_and(|master| Some(master.id) == self.id);
        leads && !in_sync::may_lead(self.own, self.view.epoch)
    }

    /// One heartbeat to each controller: the next one that leads is to know who is alive.
    fn beat(&mut self) {
        let Some(id) = self.id.filter(|_| !self.lies_low()) else { return };
        let (address, now) = (self.who.address.to_string(), Instant::now());
        let header = BrokerHeartbeat {
            cluster_name: &self.who.cluster,
            broker_addr: &address,
            broker_name: &self.who.broker,
            broker_id: Some(id),
            epoch: Some(self.told.epoch.load(Ordering::Relaxed) as i32),
            max_offset: Some(self.told.max_offset.load(Ordering::Relaxed)),
            confirm_offset: Some(self.told.confirm_offset.load(Ordering::Relaxed)),
            heartbeat_timeout_ms: Some(self.alive_ms),
            election_priority: Some(self.priority),
        };
        let ext = header.ext();
        for at in &self.controllers {
            let name = at.to_string();
            if self.beat_again.get(&name).is_some_and(|again| *again > now) {
                continue;
            }
            // A connection that the controller closed takes one more write; what is on the way back says so sooner.
            let open = self.beats.remove(&name).filter(is_open);
            let beaten = match open {
                Some(stream) => Ok(stream),
                None => call::connect(at),
            }
            .and_then(|mut stream| call::tell(&mut stream, request::BROKER_HEARTBEAT, &ext).map(|()| stream));
            match beaten {
                Ok(stream) => {
                    self.beats.insert(name.clone(), stream);
                    self.beat_again.remove(&name);
                }
                Err(e) => {
                    debug!(controller = name, error = %e, "it takes no heartbeat");
                    self.beat_again.insert(name, now + BEAT_RETRY);
                }
            }
        }
    }

    fn look_and_tell(&mut self, running: &Role, stop: &StopHandle) {
        let before = self.view.clone();
        match self.look() {
            Ok(()) => self.complaint.clear(),
            Err(e) => return self.complain(&e),
        }
        let id = self.id.expect("who runs has a number");
        match self.view.role_of(id) {
            Some(role) if role != *running => {
                info!(?running, ?role, "the controller gives another role; the broker starts over for it");
                stop.request_again();
            }
            _ => {}
        }
        if self.view != before && self.to_shards.try_send(self.view.clone()).is_err() {
            self.view = before; // told the next time
        }
    }

    /// Brings the view up to date; registers first where that is not done yet, and asks for an election where there is no master.
    fn look(&mut self) -> Result<(), AskError> {
        let id = match self.id {
            Some(id) => id,
            None => self.take_id()?,
        };
        self.id = Some(id);
        if self.own.is_some() {
            // What it answers to a registration depends on whether it takes this broker for alive.
            match self.ask_view() {
                Ok(()) | Err(AskError::Refused { .. }) => {} // it may not know the group
                Err(e) => return Err(e),
            }
            if self.lies_low() {
                return Err(AskError::LiesLow(self.view.epoch));
            }
        }
        if !self.registered {
            self.register(id)?;
            self.registered = true;
            self.beat(); // who is not alive is not elected
        } else {
            self.ask_view()?;
        }
        if self.view.master.is_none() {
            self.elect(id)?;
        }
        Ok(())
    }

    fn take_view(
        &mut self,
        answer: &OwnedCommand,
        code: i32,
        set: BTreeSet<i64>,
        set_epoch: Option<i32>,
    ) -> Result<(), AskError> {
        let master = match (answer.get("masterBrokerId").map(str::parse::<i64>), answer.get("masterAddress")) {
            (Some(Ok(id)), Some(address)) if id > 0 && !address.is_empty() => {
                Some(Master { id, address: address.to_owned() })
            }
            (Some(Err(e)), _) => return Err(AskError::Answer { code, why: format!("masterBrokerId: {e}") }),
            _ => None,
        };
        let number = |key: &str| answer.get(key).and_then(|text| text.parse::<i32>().ok());
        let epoch = number("masterEpoch").unwrap_or(self.view.epoch);
        let set_epoch = set_epoch.or(number("syncStateSetEpoch")).unwrap_or(self.view.set_epoch);
        if !self.view.renew(View { master, epoch, set, set_epoch }) {
            debug!(epoch, set_epoch, known = ?self.view.stamp(), "an older word of the controller is passed over");
        }
        Ok(())
    }

    fn take_id(&mut self) -> Result<i64, AskError> {
        let who = self.who.clone();
        if let Some(known) = identity::read(&self.files.kept, &who.cluster, &who.broker)? {
            return Ok(known.id);
        }
        for _ in 0..ID_TRIES {
            let asking = match identity::read(&self.files.asking, &who.cluster, &who.broker)? {
                Some(asking) if asking.check_code.is_some() => asking,
                _ => {
                    let asking = self.propose()?;
                    identity::write(&self.files.asking, &asking)?;
                    asking
                }
            };
            let header = ApplyBrokerId {
                cluster_name: &who.cluster,
                broker_name: &who.broker,
                applied_broker_id: asking.id,
                register_check_code: asking.check_code.as_deref().expect("looked at just now"),
            };
            let answer = self.ask(request::CONTROLLER_APPLY_BROKER_ID, &header.ext(), &[])?;
            match answer.code {
                response::SUCCESS => {
                    let kept = Identity { check_code: None, ..asking };
                    identity::write(&self.files.kept, &kept)?;
                    let _ = std::fs::remove_file(&self.files.asking); // without use from now on
                    info!(id = kept.id, "the controller gave this broker its number");
                    return Ok(kept.id);
                }
                response::CONTROLLER_BROKER_ID_INVALID => {
                    let _ = std::fs::remove_file(&self.files.asking); // written over otherwise
                }
                _ => return Err(refused(request::CONTROLLER_APPLY_BROKER_ID, answer)),
            }
        }
        Err(AskError::Taken(ID_TRIES))
    }

    fn propose(&mut self) -> Result<Identity, AskError> {
        let (cluster, broker) = (self.who.cluster.clone(), self.who.broker.clone());
        let header = GetNextBrokerId { cluster_name: &cluster, broker_name: &broker };
        let code = request::CONTROLLER_GET_NEXT_BROKER_ID;
        let answer = expect_ok(code, self.ask(code, &header.ext(), &[])?)?;
        let id = answer.get("nextBrokerId").and_then(|id| id.parse().ok());
        let id = id.ok_or_else(|| AskError::Answer { code, why: "no nextBrokerId".into() })?;
        let check_code = Some(format!("{};{}", self.who.address, now_ms()));
        Ok(Identity { cluster, broker, id, check_code })
    }

    fn register(&mut self, id: i64) -> Result<(), AskError> {
        let (who, address) = (self.who.clone(), self.who.address.to_string());
        let header = RegisterToController {
            cluster_name: &who.cluster,
            broker_name: &who.broker,
            broker_id: id,
            broker_address: &address,
            invoke_ms: Some(now_ms()),
        };
        let code = request::CONTROLLER_REGISTER_BROKER;
        let answer = expect_ok(code, self.ask(code, &header.ext(), &[])?)?;
        let set = set_of(code, &answer)?;
        self.take_view(&answer, code, set.sync_state_set, None)
    }

    fn ask_view(&mut self) -> Result<(), AskError> {
        let broker = self.who.broker.clone();
        let code = request::CONTROLLER_GET_REPLICA_INFO;
        let answer = self.ask(code, &GetReplicaInfo { broker_name: &broker }.ext(), &[])?;
        if answer.code == response::CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            || answer.code == response::CONTROLLER_BROKER_METADATA_NOT_EXIST
        {
            self.registered = false;
        }
        let answer = expect_ok(code, answer)?;
        let set = set_of(code, &answer)?;
        self.take_view(&answer, code, set.sync_state_set, Some(set.sync_state_set_epoch))
    }

    /// Asks to become the master; where another one is alive, its word is as good.
    fn elect(&mut self, id: i64) -> Result<(), AskError> {
        let who = self.who.clone();
        let header = ElectMaster {
            cluster_name: &who.cluster,
            broker_name: &who.broker,
            broker_id: id,
            designate_elect: false,
            invoke_ms: Some(now_ms()),
        };
        let code = request::CONTROLLER_ELECT_MASTER;
        let answer = self.ask(code, &header.ext(), &[])?;
        match answer.code {
            response::SUCCESS | response::CONTROLLER_MASTER_STILL_EXIST => {
                let why = |e: &dyn std::fmt::Display| AskError::Answer { code, why: e.to_string() };
                let elected: Elected = match answer.body.is_empty() {
                    true => Elected::default(),
                    false => fastjson::from_slice(&answer.body).map_err(|e| why(&e))?,
                };
                self.take_view(&answer, code, elected.sync_state_set, None)
            }
            _ => Err(refused(code, answer)),
        }
    }

    /// The set as it is afterwards. A look at it says what became of a change only when the change was refused, or when the set that
    /// it was made from is no more: before that the controller may still make one whose answer was lost.
    fn alter_or_look(&mut self, change: Change) -> Result<View, AlterError> {
        let of = change.of;
        if let Err(e) = self.alter(change) {
            info!(error = %e, "the SyncStateSet is not altered");
            self.look().map_err(|e| match in_sync::is_settled(self.unanswered, of) {
                true => AlterError::NotMade(e.to_string()), // it was not sent, or is refused
                false => AlterError::Unknown(e.to_string()),
            })?;
        }
        match in_sync::is_settled(self.unanswered, self.view.stamp()) {
            true => Ok(self.view.clone()),
            false => Err(AlterError::Unknown(AskError::Unanswered.to_string())),
        }
    }

    /// With the epochs of the set that the change was made from, though newer ones may be known here by now: then it is to be refused. Sent
    /// once; what is no answer to it is noted.
    fn alter(&mut self, change: Change) -> Result<(), AskError> {
        let broker = self.who.broker.clone();
        let id = self.id.expect("who runs has a number");
        let header = AlterSyncStateSet {
            broker_name: &broker,
            master_broker_id: id,
            master_epoch: change.of.epoch,
            invoke_ms: Some(now_ms()),
        };
        let wanted = SyncStateSet { sync_state_set: change.set, sync_state_set_epoch: change.of.set_epoch };
        let code = request::CONTROLLER_ALTER_SYNC_STATE_SET;
        let mut line = match self.leader.take() {
            Some(line) => line,
            None => self.find_leader()?,
        };
        let answer = line.call(code, &header.ext(), &fastjson::to_vec(&wanted));
        if !answer.as_ref().is_ok_and(|answer| says_outcome(answer.code)) {
            self.unanswered = self.unanswered.max(Some(change.of));
        }
        let answer = answer?;
        if answer.code != response::CONTROLLER_NOT_LEADER {
            self.leader = Some(line);
        }
        let now = set_of(code, &expect_ok(code, answer)?)?;
        let (set, set_epoch) = (now.sync_state_set, now.sync_state_set_epoch);
        self.view.renew(View { set, epoch: change.of.epoch, set_epoch, ..self.view.clone() });
        Ok(())
    }

    /// Asks the controller that leads; which one that is, is asked first where it is not known, or not any more.
    fn ask(&mut self, code: i32, ext: &[(&str, Value<'_>)], body: &[u8]) -> Result<OwnedCommand, AskError> {
        for last in [false, true] {
            let mut line = match self.leader.take() {
                Some(line) => line,
                None => self.find_leader()?,
            };
            match line.call(code, ext, body) {
                Ok(answer) if answer.code == response::CONTROLLER_NOT_LEADER && !last => {}
                Ok(answer) => {
                    if answer.code != response::CONTROLLER_NOT_LEADER {
                        self.leader = Some(line);
                    }
                    return Ok(answer);
                }
                Err(e) if last => return Err(e.into()),
                Err(e) => debug!(error = %e, code, "the controller is looked for anew"),
            }
        }
        unreachable!("the last try returns")
    }

    fn find_leader(&mut self) -> Result<Line, AskError> {
        let mut why = String::new();
        for at in self.controllers.clone() {
            let asked = Line::connect(&at).map_err(CallError::from).and_then(|mut line| {
                let answer = line.call(request::CONTROLLER_GET_METADATA_INFO, &[], &[])?;
                Ok((answer, line))
            });
            let (answer, line) = match asked {
                Ok(asked) => asked,
                Err(e) => {
                    why = format!("{at}: {e}");
                    continue;
                }
            };
            let Some(leader) = answer.get("controllerLeaderAddress").filter(|text| !text.is_empty()) else {
                why = format!("{at}: it knows of no leader");
                continue;
            };
            if answer.get("isLeader") == Some("true") {
                return Ok(line);
            }
            match HostPort::read(leader)
                .map_err(|e| e.to_string())
                .and_then(|at| Line::connect(&at).map_err(|e| e.to_string()))
            {
                Ok(line) => return Ok(line),
                Err(e) => why = format!("{leader}: {e}"),
            }
        }
        Err(AskError::NoLeader(why))
    }
}

/// False when the peer has closed it; what it sends is not waited for.
fn is_open(stream: &TcpStream) -> bool {
    let mut byte = [0; 1];
    if stream.set_nonblocking(true).is_err() {
        return false;
    }
    let open = match stream.peek(&mut byte) {
        Ok(bytes) => bytes > 0,
        Err(e) => e.kind() == std::io::ErrorKind::WouldBlock,
    };
    stream.set_nonblocking(false).is_ok() && open
}

/// Whether a change that is answered so is made, or is refused for good. Others may be made all the same, as when a controller ceases to lead
/// while it has the change in hand.
fn says_outcome(code: i32) -> bool {
    matches!(
        code,
        response::SUCCESS
            | response::CONTROLLER_FENCED_MASTER_EPOCH
            | response::CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
            | response::CONTROLLER_INVALID_MASTER
            | response::CONTROLLER_INVALID_REPLICAS
            | response::CONTROLLER_BROKER_NOT_ALIVE
            | response::CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    )
}

fn refused(code: i32, answer: OwnedCommand) -> AskError {
    AskError::Refused { code, answered: answer.code, remark: answer.remark.unwrap_or_default() }
}

fn expect_ok(code: i32, answer: OwnedCommand) -> Result<OwnedCommand, AskError> {
    if answer.code == response::SUCCESS { Ok(answer) } else { Err(refused(code, answer)) }
}

fn set_of(code: i32, answer: &OwnedCommand) -> Result<SyncStateSet, AskError> {
    if answer.body.is_empty() {
        return Ok(SyncStateSet::default());
    }
    fastjson::from_slice(&answer.body).map_err(|e| AskError::Answer { code, why: e.to_string() })
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests;
