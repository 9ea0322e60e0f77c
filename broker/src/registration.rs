//! Telling the NameServers which topics this broker has: everything at the start and every registerNameServerPeriod, what changed at
//! once, good-bye at the stop. Part of the control role. Source: behaviour sheet 1.2, 1.3, 2.4; wire-protocol sheet 9.2.
//!
//! Each NameServer has a task of its own ([`server`]), so a dead one delays neither the others nor any client (known fault N06). A
//! change goes out alone; whoever missed one (it was down, or refused it) gets the whole table next time. A NameServer in this very
//! process is an address like any other.
mod payload;
pub(crate) mod resolve;
mod server;

use crate::config::{BrokerConfig, HostPort};
use crate::control::is_stopping;
use crate::shard::Shard;
use futures_lite::future;
use glommio::timer::Timer;
use hashbrown::HashMap;
use payload::Payloads;
use server::{Health, LinkError, News, Server};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use uringmq_proto::body::route::{BrokerMemberGroup, BrokerMemberGroupBody, ClusterInfo, TopicRouteData};
use uringmq_proto::body::stats::KvTable;
use uringmq_proto::body::topic::DataVersion;
use uringmq_proto::codes::{request, response};
use uringmq_proto::command::{OwnedCommand, Value};
use uringmq_proto::fastjson;
use uringmq_proto::record;
use uringmq_remoting::Limits;
use uringmq_remoting::connection::{Conn, Conns};

const PERIOD_MIN_MS: u64 = 10_000;
const PERIOD_MAX_MS: u64 = 60_000;
/// How long a stop waits for the NameServers.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// How long a route from a NameServer is good.
const ROUTE_LIFE: Duration = Duration::from_secs(30);
/// And the addresses of the cluster's brokers.
const CLUSTER_LIFE: Duration = Duration::from_secs(5);
const ROUTE_TIMEOUT: Duration = Duration::from_secs(1);

/// A topic's route as it was asked for last, and when; `None` when there was none.
type RouteSeen = (Instant, Option<Rc<TopicRouteData>>);

/// All NameServers of the configuration.
#[derive(Default)]
pub struct Registration {
    servers: RefCell<Vec<Rc<Server>>>,
    conns: Rc<Conns>,
    /// Number of the last thing there was to tell.
    ticket: Cell<u64>,
    payloads: Payloads,
    /// Of a slave: its master, as a NameServer said when this broker registered there last.
    master: RefCell<Option<Master>>,
    routes: RefCell<HashMap<String, RouteSeen>>,
    cluster: RefCell<Option<(Instant, ClusterInfo)>>,
}

/// Where a slave finds its master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// For the log: brokerIP2:haListenPort.
    pub ha: String,
    /// For requests.
    pub broker: String,
}

impl Registration {
    pub fn master(&self) -> Option<Master> {
        self.master.borrow().clone()
    }

    /// The controller's word, which goes before what NameServers say.
    pub fn set_master(&self, master: Master) {
        *self.master.borrow_mut() = Some(master);
    }

    pub fn master_ha_address(&self) -> Option<String> {
        self.master().map(|master| master.ha)
    }

    /// Has these topics told to every NameServer; the ticket is for [`Registration::settled`].
    pub fn announce(&self, topics: &[Arc<str>]) -> u64 {
        self.ticket.set(self.ticket.get() + 1);
        self.servers.borrow().iter().for_each(|server| server.tell(topics));
        self.ticket.get()
    }

    /// Has the whole table told to every NameServer.
    pub fn announce_all(&self) -> u64 {
        self.ticket.set(self.ticket.get() + 1);
        self.servers.borrow().iter().for_each(|server| server.tell_everything());
        self.ticket.get()
    }

    /// Waits until every NameServer that answered last time was told, at most `limit`. One that takes longer is not waited for again
    /// until it has answered.
    pub async fn settled(&self, ticket: u64, limit: Duration) {
        let up = |server: &&Rc<Server>| server.health.get() == Health::Up;
        let waited: Vec<Rc<Server>> = self.servers.borrow().iter().filter(up).cloned().collect();
        wait_for(&waited, ticket, limit).await;
        for server in waited.iter().filter(|server| server.done.at() < ticket) {
            server.health.set(Health::Down);
        }
    }

    /// Waits until every NameServer was tried once, at most `limit`.
    pub async fn first(&self, limit: Duration) {
        let all = self.servers.borrow().clone();
        wait_for(&all, self.ticket.get(), limit).await;
    }

    /// NameServers that answered last time, and all of them.
    pub fn up(&self) -> (usize, usize) {
        let servers = self.servers.borrow();
        (servers.iter().filter(|server| server.health.get() == Health::Up).count(), servers.len())
    }

    /// Where the master of that name is, as a NameServer said in the last few seconds. `None` when none answers, or knows it.
    pub async fn master_of(&self, broker: &str) -> Option<String> {
        self.replicas_of(broker).await?.remove(&0)
    }

    /// The brokers of one name by their numbers, as `master_of`.
    pub async fn replicas_of(&self, broker: &str) -> Option<BTreeMap<i64, String>> {
        let fresh = self.cluster.borrow().as_ref().is_some_and(|(at, _)| at.elapsed() < CLUSTER_LIFE);
        if !fresh {
            let answer = self.ask(request::GET_BROKER_CLUSTER_INFO, &[]).await?;
            let cluster = fastjson::from_slice(&answer.body).ok()?;
            *self.cluster.borrow_mut() = Some((Instant::now(), cluster));
        }
        let cluster = self.cluster.borrow();
        let (_, cluster) = cluster.as_ref()?;
        let replicas = &cluster.broker_addr_table.get(broker)?.broker_addrs;
        Some(replicas.iter().map(|(id, addr)| (*id, addr.clone())).collect())
    }

    /// The route of a topic as a NameServer knows it, at most 30 s old. `None` when none answers, or it has no such route.
    pub async fn route(&self, topic: &str) -> Option<Rc<TopicRouteData>> {
        self.route_within(topic, ROUTE_LIFE).await
    }

    /// The same, at most `life` old.
    pub async fn route_within(&self, topic: &str, life: Duration) -> Option<Rc<TopicRouteData>> {
        if let Some((at, route)) = self.routes.borrow().get(topic)
            && at.elapsed() < life
        {
            return route.clone();
        }
        let ext = [("topic", Value::from(topic.to_owned())), ("acceptStandardJsonOnly", Value::from(true))];
        let answer = self.ask(request::GET_ROUTEINFO_BY_TOPIC, &ext).await?;
        let route = match answer.code {
            response::SUCCESS => Some(Rc::new(fastjson::from_slice(&answer.body).ok()?)),
            _ => None,
        };
        let mut routes = self.routes.borrow_mut();
        routes.retain(|_, (at, _)| at.elapsed() < ROUTE_LIFE);
        routes.insert(topic.to_owned(), (Instant::now(), route.clone()));
        route
    }

    /// Who of a broker name is alive, by every NameServer that answers (901).
    pub async fn groups(&self, cluster: &str, broker: &str) -> Vec<BrokerMemberGroup> {
        let ext = [("clusterName", Value::from(cluster)), ("brokerName", Value::from(broker))];
        let servers = self.servers.borrow().clone();
        let mut groups = Vec::with_capacity(servers.len());
        for conn in servers.iter().filter_map(|server| server.open_conn()) {
            match conn.call(request::GET_BROKER_MEMBER_GROUP, &ext, &[], ROUTE_TIMEOUT).await {
                Ok(answer) => {
                    let body = fastjson::from_slice::<BrokerMemberGroupBody>(&answer.body);
                    groups.extend(body.ok().map(|body| body.broker_member_group));
                }
                Err(error) => debug!(namesrv = %conn.peer(), %error, "it does not say who is alive"),
            }
        }
        groups
    }

    /// The first answer of a NameServer. One that took a registration last time is asked before one that did not; one that gives no answer
    /// is asked last from then on, until it takes a registration again.
    async fn ask(&self, code: i32, ext: &[(&'static str, Value<'static>)]) -> Option<OwnedCommand> {
        let mut servers = self.servers.borrow().clone();
        servers.sort_by_key(|server| server.health.get() != Health::Up);
        for server in servers {
            let Some(conn) = server.open_conn() else { continue };
            match conn.call(code, ext, &[], ROUTE_TIMEOUT).await {
                Ok(answer) => return Some(answer),
                Err(error) => {
                    debug!(namesrv = %server.at, code, %error, "no answer; asking the next one");
                    server.health.set(Health::Down);
                }
            }
        }
        None
    }
}

async fn wait_for(servers: &[Rc<Server>], ticket: u64, limit: Duration) {
    let all = async {
        for server in servers {
            server.done.reached(ticket).await;
        }
    };
    future::or(all, async {
        Timer::new(limit).await;
    })
    .await;
}

/// Starts a task for each NameServer of the configuration, and one that keeps to changes of it and of their addresses. On shard 0.
pub fn start(shard: &Rc<Shard>) {
    reload(shard);
    let shard = shard.clone();
    glommio::spawn_local(async move {
        while !is_stopping(&shard) {
            Timer::new(Duration::from_millis(shard.config().namesrv_resolve_ms.max(1_000))).await;
            reload(&shard);
            let servers = shard.control().registration.servers.borrow().clone();
            // All at once: a name that the resolver is long about holds up no other.
            let check = |server: Rc<Server>| glommio::spawn_local(async move { server.check_address().await });
            let checks: Vec<_> = servers.into_iter().map(check).collect();
            for check in checks {
                check.await;
            }
        }
    })
    .detach();
}

/// Takes up the configuration's list of NameServers: new ones are told everything, the others of the old list are left. Also to be
/// called after a run-time update of the configuration (namesrvAddr, brokerPermission).
pub fn reload(shard: &Rc<Shard>) {
    if is_stopping(shard) {
        return;
    }
    let registration = &shard.control().registration;
    let wanted: BTreeSet<String> = shard.config().namesrv_addr.0.iter().map(HostPort::to_string).collect();
    let mut servers = registration.servers.borrow_mut();
    servers.retain(|server| {
        let keep = wanted.contains(&server.at.to_string());
        if !keep {
            server.remove();
        }
        keep
    });
    for at in &shard.config().namesrv_addr.0 {
        if servers.iter().any(|server| server.at == *at) {
            continue;
        }
        let server = Server::new(at.clone());
        servers.push(server.clone());
        if shard.config().slave_acting_master {
            glommio::spawn_local(keep_alive(shard.clone(), server.clone())).detach();
        }
        glommio::spawn_local(keep_told(shard.clone(), server)).detach();
    }
}

/// The broker's own permission changed: the topics' permissions are another now as the NameServers see them.
pub fn permission_changed(shard: &Rc<Shard>) {
    shard.control().topics.borrow_mut().step_version(shard.now_ms());
    shard.control().registration.announce_all();
}

/// Tells the NameServers that the broker leaves; at most a second.
pub async fn stop(shard: &Rc<Shard>) {
    let registration = &shard.control().registration;
    let conns: Vec<Rc<Conn>> = registration.servers.borrow().iter().filter_map(|server| server.open_conn()).collect();
    let leaving: Vec<_> = conns.into_iter().map(|conn| glommio::spawn_local(leave(shard.clone(), conn))).collect();
    let all = async {
        for task in leaving {
            task.await;
        }
    };
    future::or(all, async {
        Timer::new(GOODBYE_MAX).await;
    })
    .await;
}

async fn leave(shard: Rc<Shard>, conn: Rc<Conn>) {
    let ext = identity(&shard);
    match conn.call(request::UNREGISTER_BROKER, &ext, &[], GOODBYE_MAX).await {
        Ok(answer) => info!(namesrv = %conn.peer(), code = answer.code, "unregistered"),
        Err(e) => warn!(namesrv = %conn.peer(), error = %e, "not unregistered"),
    }
    conn.close("the broker stops");
}

fn period(config: &BrokerConfig) -> Duration {
    Duration::from_millis(config.register_period_ms.clamp(PERIOD_MIN_MS, PERIOD_MAX_MS))
}

/// One NameServer's task.
async fn keep_told(shard: Rc<Shard>, server: Rc<Server>) {
    let registration = &shard.control().registration;
    let mut due = Instant::now();
    loop {
        server.wait(due).await;
        if is_stopping(&shard) {
            return;
        }
        if server.is_removed() {
            if let Some(conn) = server.open_conn() {
                leave(shard.clone(), conn).await;
            }
            server.done.raise(u64::MAX);
            return;
        }
        let ticket = registration.ticket.get();
        let periodic = Instant::now() >= due;
        let news = match server.take_news() {
            News::Nothing if !periodic => continue,
            _ if periodic => News::Everything,
            news => news,
        };
        let everything = news == News::Everything;
        match tell(&shard, &server, news).await {
            Ok(()) => {
                if everything {
                    due = Instant::now() + period(&shard.config());
                }
                if server.succeeded() {
                    info!(namesrv = %server.at, "registered");
                }
            }
            Err(e) if is_stopping(&shard) => debug!(namesrv = %server.at, error = %e, "not registered: stopping"),
            Err(e) => {
                if server.failed() {
                    warn!(namesrv = %server.at, error = %e, "cannot register; trying again");
                } else {
                    debug!(namesrv = %server.at, error = %e, "cannot register");
                }
            }
        }
        server.done.raise(ticket);
    }
}

/// Signs of life (904) to one NameServer, which forgets a broker that was to give some and gave none for brokerNotActiveTimeoutMillis.
async fn keep_alive(shard: Rc<Shard>, server: Rc<Server>) {
    while !is_stopping(&shard) && !server.is_removed() {
        Timer::new(Duration::from_millis(shard.config().broker_heartbeat_ms)).await;
        if server.health.get() == Health::Up
            && let Some(conn) = server.open_conn()
        {
            conn.oneway(request::BROKER_HEARTBEAT, &identity(&shard), &[]);
        }
    }
}

/// Tells one NameServer. A change of some topics that it refuses (it does not know the broker) is followed by the whole table.
async fn tell(shard: &Rc<Shard>, server: &Rc<Server>, news: News) -> Result<(), LinkError> {
    let config = shard.config();
    let registration = &shard.control().registration;
    let limits = Limits { idle_ms: config.idle_seconds * 1000, ..Limits::default() };
    let connect_timeout = Duration::from_millis(config.connect_timeout_ms);
    let conn = server.connect(&registration.conns, &limits, connect_timeout).await?;
    let timeout = Duration::from_millis(config.register_timeout_ms);
    if let News::Topics(topics) = &news {
        let body = registration.payloads.some(shard, topics);
        match register(shard, &conn, &body, timeout).await {
            Err(LinkError::Refused { code, remark }) => {
                debug!(namesrv = %server.at, code, remark, "a change was refused; sending everything");
            }
            other => return other,
        }
    } else if !config.force_register && !is_changed(shard, &conn, timeout).await? {
        return Ok(());
    }
    let body = registration.payloads.all(shard);
    register(shard, &conn, &body, timeout).await
}

async fn register(shard: &Rc<Shard>, conn: &Conn, body: &[u8], timeout: Duration) -> Result<(), LinkError> {
    let config = shard.config();
    let mut ext = identity(shard);
    ext.extend([
        ("haServerAddr", Value::from(ha_addr(&config))),
        ("enableActingMaster", Value::from(config.slave_acting_master)),
        ("compressed", Value::from(config.compressed_register)),
        ("bodyCrc32", Value::from(record::body_crc(body))),
    ]);
    if config.slave_acting_master {
        ext.push(("heartbeatTimeoutMillis", Value::from(config.broker_not_active_ms)));
    }
    let answer = expect_ok(conn.call(request::REGISTER_BROKER, &ext, body, timeout).await?)?;
    if shard.follows() && !config.controller_mode {
        take_master(shard, &answer);
    }
    if !answer.body.is_empty() {
        take_order_config(shard, &answer.body);
    }
    Ok(())
}

/// A NameServer names the master to a slave, once it knows one.
fn take_master(shard: &Shard, answer: &OwnedCommand) {
    let given = |key| answer.get(key).filter(|text| !text.is_empty());
    let (Some(ha), Some(broker)) = (given("haServerAddr"), given("masterAddr")) else { return };
    let master = Master { ha: ha.to_owned(), broker: broker.to_owned() };
    let before = shard.control().registration.master.replace(Some(master.clone()));
    if before.as_ref() != Some(&master) {
        info!(ha = master.ha, broker = master.broker, "the name server names the master");
    }
}

/// Whether the NameServer knows another version of the topics than ours (code 322).
async fn is_changed(shard: &Rc<Shard>, conn: &Conn, timeout: Duration) -> Result<bool, LinkError> {
    let version: DataVersion = shard.control().topics.borrow().version();
    let body = fastjson::to_vec(&version);
    let answer = expect_ok(conn.call(request::QUERY_DATA_VERSION, &identity(shard), &body, timeout).await?)?;
    Ok(answer.get("changed") != Some("false"))
}

fn expect_ok(answer: OwnedCommand) -> Result<OwnedCommand, LinkError> {
    match answer.code {
        response::SUCCESS => Ok(answer),
        code => Err(LinkError::Refused { code, remark: answer.remark.unwrap_or_default() }),
    }
}

/// The fields that name this broker.
fn identity(shard: &Shard) -> Vec<(&'static str, Value<'static>)> {
    let config = shard.config();
    vec![
        ("brokerName", Value::from(config.broker_name.clone())),
        ("brokerAddr", Value::from(shard.store_host.to_string())),
        ("clusterName", Value::from(config.cluster_name.clone())),
        ("brokerId", Value::from(config.broker_id)),
    ]
}

fn ha_addr(config: &BrokerConfig) -> String {
    HostPort { host: config.broker_ip2.clone(), port: config.ha_listen_port }.to_string()
}

/// The NameServer's order configuration: those topics that we have are ordered ones. What is unreadable is skipped (known fault A04).
fn take_order_config(shard: &Rc<Shard>, body: &[u8]) {
    let table = match fastjson::from_slice::<KvTable>(body) {
        Ok(table) => table.table,
        Err(e) => return debug!(error = %e, "unreadable order configuration"),
    };
    let control = shard.control();
    let names = table.keys().map(String::as_str);
    let changed = control.topics.borrow_mut().set_order(names, shard.now_ms());
    if !changed.is_empty() {
        let names: Vec<Arc<str>> = changed.iter().map(|topic| topic.name.clone()).collect();
        info!(topics = ?names, "ordered by the name server's configuration");
        // Told and saved in its own time: who registers now must not wait for itself.
        let _ = control.topics_changed(shard, &names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_is_clamped() {
        let with = |ms| {
            let mut config = BrokerConfig::default();
            config.register_period_ms = ms;
            period(&config).as_millis()
        };
        assert_eq!((with(1), with(30_000), with(99_999)), (10_000, 30_000, 60_000));
    }

    #[test]
    fn the_replication_address_is_written_like_any_other() {
        let addr = |ip: &str| {
            let mut config = BrokerConfig::default();
            (config.broker_ip2, config.ha_listen_port) = (ip.to_owned(), 10912);
            ha_addr(&config)
        };
        assert_eq!((addr("10.0.0.1").as_str(), addr("::1").as_str()), ("10.0.0.1:10912", "[::1]:10912"));
    }

    #[test]
    fn refusals_keep_the_name_servers_words() {
        let refused =
            OwnedCommand { code: 1, remark: Some("register broker failed".into()), ..OwnedCommand::default() };
        let error = expect_ok(refused).unwrap_err().to_string();
        assert_eq!(error, "it answered 1: register broker failed");
        assert!(expect_ok(OwnedCommand::default()).is_ok());
    }
}
