//! Producers and consumers as they are at the cluster's users: they take the master from the NameServers' routes and turn to another when
//! it changes or refuses. And who watches the controllers. All of them run on one executor, outside of the nodes' namespaces.
use super::history::{Event, History, Outcome};
use super::nodes::GROUP_NAME;
use crate::error::BenchError;
use crate::kill::write_body;
use crate::peer::{Caller, Outgoing, PullAsk, now_ms, number};
use futures_lite::future::or;
use glommio::timer::Timer;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uringmq_proto::body::controller::{BrokerReplicasInfo, EpochCache};
use uringmq_proto::body::route::TopicRouteData;
use uringmq_proto::codes::{request, response};
use uringmq_proto::headers::route::GetRouteInfo;
use uringmq_proto::message::parse_offset_id;

pub(super) const TOPIC: &str = "ClusterChaos";
/// Longest wait for an answer, as Java's sendMsgTimeout.
const ANSWER_MAX: Duration = Duration::from_secs(3);
const WATCH_EVERY: Duration = Duration::from_millis(100);
const ROUTES_EVERY: Duration = Duration::from_millis(200);
/// After a refusal, and where no master is known.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// A consumer's pause at the end of its queue.
const END_PAUSE: Duration = Duration::from_millis(20);
const COMMIT_EVERY_MS: i64 = 200;

/// Who is where, and what is to be done.
pub(super) struct Plan {
    pub(super) brokers: Vec<SocketAddr>,
    pub(super) controllers: Vec<SocketAddr>,
    pub(super) namesrvs: Vec<SocketAddr>,
    pub(super) queues: u32,
    pub(super) producers: u32,
    /// Between two sends of a producer.
    pub(super) pause: Duration,
    /// Largest body, in bytes.
    pub(super) size: usize,
}

impl Plan {
    fn index(&self, broker: SocketAddr) -> Option<usize> {
        self.brokers.iter().position(|known| *known == broker)
    }
}

/// How far the clients are to go on; set by the main thread.
#[derive(Default)]
pub(super) struct Orders {
    pub(super) produce: AtomicBool,
    pub(super) consume: AtomicBool,
    /// All ends.
    pub(super) end: AtomicBool,
}

impl Orders {
    fn ended(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }
}

struct Clients {
    plan: Plan,
    history: Arc<History>,
    orders: Arc<Orders>,
    next: Cell<u64>,
    /// The master by each NameServer.
    routes: RefCell<Vec<Option<SocketAddr>>>,
}

/// Runs all clients until they are told to end.
pub(super) async fn run(plan: Plan, history: Arc<History>, orders: Arc<Orders>) -> Result<(), BenchError> {
    let routes = RefCell::new(vec![None; plan.namesrvs.len()]);
    let clients = Rc::new(Clients { plan, history, orders, next: Cell::new(1), routes });
    let mut tasks = Vec::new();
    for index in 0..clients.plan.controllers.len() {
        let clients = clients.clone();
        tasks.push(glommio::spawn_local(async move { clients.watch(index).await }));
    }
    for index in 0..clients.plan.namesrvs.len() {
        let clients = clients.clone();
        tasks.push(glommio::spawn_local(async move { clients.ask_routes(index).await }));
    }
    for queue in 0..clients.plan.queues {
        let clients = clients.clone();
        tasks.push(glommio::spawn_local(async move { clients.consume(queue).await }));
    }
    for number in 0..clients.plan.producers {
        let clients = clients.clone();
        tasks.push(glommio::spawn_local(async move { clients.produce(number).await }));
    }
    for task in tasks {
        task.await;
    }
    Ok(())
}

/// A connection to what was the master, and the epoch that it had then.
struct Link {
    caller: Caller,
    broker: usize,
    epoch: i32,
}

impl Clients {
    /// Asks a controller for the group over and over; only a leader answers.
    async fn watch(&self, index: usize) {
        let body = format!("[\"{GROUP_NAME}\"]");
        let mut caller = None;
        while !self.orders.ended() {
            Timer::new(WATCH_EVERY).await;
            let one = match caller.take() {
                Some(one) => one,
                None => match Caller::impatient(self.plan.controllers[index], ANSWER_MAX).await {
                    Ok(one) => one,
                    Err(_) => continue,
                },
            };
            match one.ask(request::CONTROLLER_GET_SYNC_STATE_DATA, &[], body.as_bytes()).await {
                Ok(answer) if answer.code == response::SUCCESS => self.told(&answer.body),
                Ok(_) => {}
                Err(_) => {
                    one.close().await;
                    continue;
                }
            }
            caller = Some(one);
        }
    }

    fn told(&self, body: &[u8]) {
        let Ok(mut all) = uringmq_proto::body::parse::<BrokerReplicasInfo>(body) else { return };
        let Some(info) = all.replicas_info_table.remove(GROUP_NAME) else { return };
        let address = info.master_address.and_then(|address| address.parse().ok());
        let master = address.and_then(|address| self.plan.index(address));
        self.history.controllers_say(info.master_epoch, master, info.in_sync_replicas.len());
    }

    async fn ask_routes(&self, index: usize) {
        let header = GetRouteInfo { topic: TOPIC, accept_standard_json_only: true, zone_mode: None, zone_name: None };
        let mut caller = None;
        while !self.orders.ended() {
            Timer::new(ROUTES_EVERY).await;
            let one = match caller.take() {
                Some(one) => one,
                None => match Caller::impatient(self.plan.namesrvs[index], ANSWER_MAX).await {
                    Ok(one) => one,
                    Err(_) => {
                        self.routes.borrow_mut()[index] = None;
                        continue;
                    }
                },
            };
            match one.ask(request::GET_ROUTEINFO_BY_TOPIC, &header.ext(), b"").await {
                Ok(answer) => self.routes.borrow_mut()[index] = master_of(&answer.body),
                Err(_) => {
                    self.routes.borrow_mut()[index] = None;
                    one.close().await;
                    continue;
                }
            }
            caller = Some(one);
        }
    }

    /// Connects to a master of the routes, for `turn` to each NameServer's in turn.
    async fn link(&self, turn: &Cell<usize>) -> Option<Link> {
        turn.set(turn.get() + 1);
        let address = {
            let routes = self.routes.borrow();
            let known: Vec<SocketAddr> = routes.iter().flatten().copied().collect();
            *known.get(turn.get() % known.len().max(1))?
        };
        let broker = self.plan.index(address)?;
        let connected = async { Caller::impatient(address, ANSWER_MAX).await.ok() };
        let caller = or(connected, self.gone(address)).await?;
        let answer = or(async { caller.ask(request::GET_BROKER_EPOCH_CACHE, &[], b"").await.ok() }, self.gone(address));
        let epochs = answer.await.and_then(|answer| uringmq_proto::body::parse::<EpochCache>(&answer.body).ok());
        match epochs.and_then(|cache| cache.epoch_list.last().map(|entry| entry.epoch)) {
            Some(epoch) => Some(Link { caller, broker, epoch }),
            None => {
                caller.close().await;
                None
            }
        }
    }

    /// Resolves when no NameServer names this broker as master any more, and another is named.
    async fn gone<T>(&self, address: SocketAddr) -> Option<T> {
        loop {
            Timer::new(WATCH_EVERY).await;
            if self.is_gone(address) {
                return None;
            }
        }
    }

    fn is_gone(&self, address: SocketAddr) -> bool {
        let routes = self.routes.borrow();
        routes.iter().flatten().next().is_some() && !routes.contains(&Some(address))
    }

    async fn produce(&self, number: u32) {
        let turn = Cell::new(number as usize);
        let (mut link, mut body) = (None, Vec::new());
        while !self.orders.ended() {
            if !self.orders.produce.load(Ordering::Relaxed) {
                Timer::new(WATCH_EVERY).await;
                continue;
            }
            let Some(one) = (match link.take() {
                Some(one) => Some(one),
                None => self.link(&turn).await,
            }) else {
                Timer::new(REFUSED_PAUSE).await;
                continue;
            };
            let id = self.next.get();
            self.next.set(id + 1);
            let queue = (id % u64::from(self.plan.queues)) as u32;
            let begun_ms = now_ms();
            let outcome = self.send(&one, id, queue, &mut body).await;
            let done_ms = now_ms();
            let good = matches!(outcome, Outcome::Acknowledged { .. });
            let Link { broker, epoch, .. } = one;
            self.history.add(Event::Send { id, begun_ms, done_ms, queue, broker, epoch, outcome });
            if good && !self.is_gone(one.caller.peer()) {
                link = Some(one);
                Timer::new(self.plan.pause).await;
            } else {
                one.caller.close().await;
                Timer::new(REFUSED_PAUSE).await;
            }
        }
        if let Some(one) = link {
            one.caller.close().await;
        }
    }

    async fn send(&self, link: &Link, id: u64, queue: u32, body: &mut Vec<u8>) -> Outcome {
        write_body(body, id, self.plan.size);
        let properties = format!("UNIQ_KEY\u{1}{id:032X}\u{2}WAIT\u{1}true\u{2}");
        let message = Outgoing { topic: TOPIC, half: false, queue, properties: &properties, body, batch: false };
        let answered = async { link.caller.send(&message).await.ok() };
        let Some(answer) = or(answered, self.gone(link.caller.peer())).await else {
            return Outcome::Unknown { code: None };
        };
        match answer.code {
            response::SUCCESS => {
                let place = answer.get("msgId").and_then(parse_offset_id);
                match (number("a send", &answer, "queueOffset"), place) {
                    (Ok(offset), Some((_, phy))) => Outcome::Acknowledged { offset, phy },
                    _ => Outcome::Unknown { code: Some(answer.code) },
                }
            }
            response::FLUSH_DISK_TIMEOUT | response::FLUSH_SLAVE_TIMEOUT | response::SLAVE_NOT_AVAILABLE => {
                Outcome::Unknown { code: Some(answer.code) }
            }
            code => Outcome::Failed { code },
        }
    }

    /// Consumes a queue: pulls, commits, and asks where it was at each new connection.
    async fn consume(&self, queue: u32) {
        let turn = Cell::new(queue as usize);
        while !self.orders.ended() {
            if !self.orders.consume.load(Ordering::Relaxed) {
                Timer::new(WATCH_EVERY).await;
                continue;
            }
            if let Some(link) = self.link(&turn).await {
                let _ = self.consume_from(&link, queue).await; // what ends it is met again at the next one, or is over
                link.caller.close().await;
            }
            Timer::new(REFUSED_PAUSE).await;
        }
    }

    /// Until an error or a change of the master. `None` then.
    async fn consume_from(&self, link: &Link, queue: u32) -> Option<()> {
        let (caller, broker, epoch) = (&link.caller, link.broker, link.epoch);
        let peer = caller.peer();
        let known = or(async { caller.consumer_offset(TOPIC, queue).await.ok() }, self.gone(peer)).await?;
        self.history.add(Event::Resume { at_ms: now_ms(), queue, broker, offset: known.unwrap_or(-1) });
        let mut next = known.unwrap_or(0);
        let (mut committed, mut committed_ms) = (next, now_ms());
        while !self.orders.ended() && self.orders.consume.load(Ordering::Relaxed) && !self.is_gone(peer) {
            let ask = PullAsk { queue, offset: next, max_msgs: 32, hold: false };
            let pulled = or(async { caller.pull(TOPIC, &ask).await.ok() }, self.gone(peer)).await?;
            let found: Vec<(i64, u64)> = pulled
                .records(true)
                .map_while(Result::ok)
                .map(|record| (record.queue_offset, id_of(record.body)))
                .collect();
            let at_end = found.is_empty();
            if !at_end {
                self.history.add(Event::Pull { at_ms: now_ms(), queue, broker, epoch, found });
            }
            next = pulled.next;
            if next != committed && now_ms() - committed_ms >= COMMIT_EVERY_MS {
                or(async { caller.commit_offset(TOPIC, queue, next).await.ok() }, self.gone(peer)).await?;
                (committed, committed_ms) = (next, now_ms());
                self.history.add(Event::Commit { at_ms: committed_ms, queue, broker, offset: committed });
            }
            if at_end {
                Timer::new(END_PAUSE).await;
            }
        }
        Some(())
    }
}

/// The number of a message; 0: a body that was never sent.
pub(super) fn id_of(body: &[u8]) -> u64 {
    body.first_chunk::<8>().map_or(0, |id| u64::from_be_bytes(*id))
}

fn master_of(body: &[u8]) -> Option<SocketAddr> {
    let route: TopicRouteData = uringmq_proto::body::parse(body).ok()?;
    route.broker_datas.first()?.broker_addrs.get(&0)?.parse().ok()
}
