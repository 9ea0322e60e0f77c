//! A slave's copies of its master's tables: topics with the mappings of static ones, groups, consumer offsets, delay offsets, timers' progress, request
//! modes (Apache's SlaveSynchronize). On shard 0, by ordinary requests to the master's broker port; pages as Apache's brokers answer them, or all at once by older ones.
//! Source: replication sheet 4.
use crate::config::HostPort;
use crate::control::{groups, making, modes, topics};
use crate::registration::resolve::resolve;
use crate::shard::Shard;
use crate::timer;
use futures_lite::future;
use glommio::timer::sleep;
use serde::de::DeserializeOwned;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use uringmq_proto::body::group::SubscriptionGroupWrapper;
use uringmq_proto::body::offset::{ConsumerOffsetTable, DelayOffsetTable};
use uringmq_proto::body::topic::{DataVersion, TopicConfigSerializeWrapper};
use uringmq_proto::codes::{request, response};
use uringmq_proto::command::{OwnedCommand, Value};
use uringmq_proto::fastjson;
use uringmq_proto::types::PhyOffset;
use uringmq_remoting::Limits;
use uringmq_remoting::client::{self, NoService};
use uringmq_remoting::connection::{CallError, Conn, Conns};
use uringmq_store::timer_check::{CHECK_BYTES, TimerCheck};

/// Topics and groups are looked at so often, between the rounds: what has a version of its own costs next to nothing when it did not change. Apache's
/// slave copies every 3 s, and offsets every 60 s.
const GLANCE: Duration = Duration::from_millis(500);
/// Whether the master is there is looked at so often: what it feeds at first is served only with its tables.
const LOOK: Duration = Duration::from_millis(50);
/// For one answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Entries of a page; Apache's splitMetadataSize.
const PAGE: i32 = 2000;
/// A table that changes while its pages are fetched is begun anew so often, then next time.
const PAGE_TRIES: usize = 3;

/// Why the master could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error("{0}")]
    Address(String),
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("code {code} is answered {answered}: {remark}")]
    Refused { code: i32, answered: i32, remark: String },
    #[error("answer to code {code}: {why}")]
    Body { code: i32, why: String },
    #[error("the table of code {0} changes faster than its pages come")]
    Unsteady(i32),
}

/// What was copied last, so that the same is not copied again.
#[derive(Default)]
struct Seen {
    topics: Option<Versions>,
    groups: Option<Versions>,
    /// Both came whole: this master knows no pages, so that it is not asked in between.
    unpaged: bool,
    /// When everything was copied.
    all: Option<Instant>,
}

/// Of a table and of what comes with it.
type Versions = [DataVersion; 2];

/// Copies the master's tables again and again, until the shard's doors close.
pub async fn follow(shard: Rc<Shard>) {
    let conns = Rc::new(Conns::default());
    let mut conn: Option<(String, Rc<Conn>)> = None;
    let mut seen = Seen::default();
    let mut failing = false;
    while !shard.doors.is_closed() {
        // Of a master whose log this one cannot follow the tables are not wanted either: they would delete topics here.
        let master = shard.control().registration.master().filter(|_| shard.master_is_there());
        let pause = if master.is_some() { GLANCE } else { LOOK };
        if let Some(master) = master {
            if conn.as_ref().is_none_or(|(of, conn)| *of != master.broker || !conn.is_open()) {
                conn = None;
                seen = Seen::default();
            }
            let round = async {
                if conn.is_none() {
                    conn = Some((master.broker.clone(), connect(&shard, &conns, &master.broker).await?));
                }
                let (_, conn) = conn.as_ref().expect("made just now");
                copy(&shard, conn, &mut seen).await
            };
            match round.await {
                Ok(()) if std::mem::replace(&mut failing, false) => info!(master = master.broker, "tables are copied"),
                Ok(()) => {}
                Err(e) if std::mem::replace(&mut failing, true) => {
                    debug!(error = %e, "the master's tables are not copied")
                }
                Err(e) => warn!(master = master.broker, error = %e, "the master's tables are not copied; trying again"),
            }
        }
        let rung = async {
            // A topic that the log names and no table: it is made at the master just now.
            shard.control().new_topic.wait().await;
            sleep(LOOK).await;
        };
        let slept = async {
            sleep(pause).await;
        };
        future::or(shard.doors.closed(), future::or(slept, rung)).await;
    }
    conns.close_all("the broker stops");
}

pub async fn connect(shard: &Shard, conns: &Rc<Conns>, master: &str) -> Result<Rc<Conn>, SyncError> {
    let at = HostPort::read(master).map_err(SyncError::Address)?;
    let found = resolve(&at).await.map_err(SyncError::Address)?;
    let address = *found.first().expect("a resolved name has an address");
    let timeout = Duration::from_millis(shard.config().connect_timeout_ms);
    Ok(client::connect(address, conns, Rc::new(NoService), Limits::default(), timeout).await?)
}

/// Topics and groups, and the other tables when they are due.
async fn copy(shard: &Rc<Shard>, conn: &Conn, seen: &mut Seen) -> Result<(), SyncError> {
    let period = Duration::from_millis(shard.config().slave_tables_period_ms);
    let due = seen.all.is_none_or(|at| at.elapsed() >= period);
    if due || !seen.unpaged {
        copy_versioned(shard, conn, seen).await?;
    }
    if due {
        copy_progress(shard, conn).await?;
        seen.all = Some(Instant::now());
    }
    Ok(())
}

async fn copy_versioned(shard: &Rc<Shard>, conn: &Conn, seen: &mut Seen) -> Result<(), SyncError> {
    let stored = PhyOffset(shard.marks.written.load(Ordering::Acquire)); // before the master answers: what it deleted afterwards is not in its answer
    if let Some(table) = fetch::<TopicConfigSerializeWrapper>(conn, seen.topics, &mut seen.unpaged).await? {
        seen.topics = Some(table.versions());
        copy_topics(shard, table, stored).await;
    }
    if let Some(table) = fetch::<SubscriptionGroupWrapper>(conn, seen.groups, &mut seen.unpaged).await? {
        seen.groups = Some(table.versions());
        let changed = shard.control().groups.borrow_mut().copy(table);
        if !changed.is_empty() {
            shard.control().groups_changed(shard, &changed);
        }
    }
    Ok(())
}

/// How far consumers, delays and timers are, and how groups are served.
async fn copy_progress(shard: &Rc<Shard>, conn: &Conn) -> Result<(), SyncError> {
    let offsets: ConsumerOffsetTable = ask(conn, request::GET_ALL_CONSUMER_OFFSET, &[]).await?;
    copy_offsets(shard, offsets).await;
    let delays: DelayOffsetTable = ask(conn, request::GET_ALL_DELAY_OFFSET, &[]).await?;
    shard.delay.copy(&delays);
    copy_timers(shard, conn).await?;
    let answer = call(conn, request::GET_ALL_MESSAGE_REQUEST_MODE, &[]).await?;
    let code = request::GET_ALL_MESSAGE_REQUEST_MODE;
    let table = modes::parse_file(&answer.body).map_err(|why| SyncError::Body { code, why })?;
    let changed = shard.control().modes.borrow_mut().copy(table);
    if changed {
        shard.control().modes_copied();
    }
    Ok(())
}

/// How far the master's timers are, and what waits there; a master without timers refuses to say.
async fn copy_timers(shard: &Rc<Shard>, conn: &Conn) -> Result<(), SyncError> {
    let answer = match call(conn, request::GET_TIMER_CHECK_POINT, &[]).await {
        Err(SyncError::Refused { .. }) => return Ok(()),
        answer => answer?,
    };
    let code = request::GET_TIMER_CHECK_POINT;
    if answer.body.len() < CHECK_BYTES {
        return Err(SyncError::Body { code, why: format!("{} bytes, not {CHECK_BYTES}", answer.body.len()) });
    }
    let waiting = match ask(conn, request::GET_TIMER_METRICS, &[]).await {
        Err(SyncError::Refused { .. }) => None,
        waiting => Some(waiting?),
    };
    let copied = timer::copy(shard, &TimerCheck::decode(&answer.body), waiting).await;
    copied.map_err(|e| SyncError::Body { code, why: format!("it cannot be kept: {e}") })
}

pub async fn call(conn: &Conn, code: i32, ext: &[(&str, Value<'_>)]) -> Result<OwnedCommand, SyncError> {
    let answer = conn.call(code, ext, &[], TIMEOUT).await?;
    match answer.code {
        response::SUCCESS => Ok(answer),
        answered => Err(SyncError::Refused { code, answered, remark: answer.remark.unwrap_or_default() }),
    }
}

/// The same, and what its body says.
pub async fn ask<T: DeserializeOwned>(conn: &Conn, code: i32, ext: &[(&str, Value<'_>)]) -> Result<T, SyncError> {
    let answer = call(conn, code, ext).await?;
    fastjson::from_slice(&answer.body).map_err(|e| SyncError::Body { code, why: e.to_string() })
}

/// One page, of at most so many entries from one on, and how many there are in all; without that number it is the whole table.
async fn page(
    conn: &Conn,
    code: i32,
    names: [&str; 3],
    (from, most): (usize, i32),
    version: Option<DataVersion>,
) -> Result<(OwnedCommand, Option<usize>), SyncError> {
    let [seq, max, total] = names;
    let mut ext = vec![(seq, Value::I64(from as i64)), (max, Value::I64(most.into()))];
    let version = version.map(|version| String::from_utf8_lossy(&fastjson::to_vec(&version)).into_owned());
    ext.extend(version.map(|version| ("dataVersion", Value::from(version))));
    let answer = call(conn, code, &ext).await?;
    let total = answer.get(total).and_then(|text| text.parse().ok());
    Ok((answer, total))
}

/// A table in pages.
trait Paged: Sized {
    const CODE: i32;
    /// Header fields: first index, entries wanted, entries there are.
    const NAMES: [&'static str; 3];
    fn parse(text: &[u8]) -> Result<Self, String>;
    fn versions(&self) -> Versions;
    fn count(&self) -> usize;
    fn add(&mut self, page: Self);
}

impl Paged for TopicConfigSerializeWrapper {
    const CODE: i32 = request::GET_ALL_TOPIC_CONFIG;
    const NAMES: [&'static str; 3] = ["topicSeq", "maxTopicNum", "totalTopicNum"];
    fn parse(text: &[u8]) -> Result<Self, String> {
        topics::parse_file(text)
    }
    fn versions(&self) -> Versions {
        [self.data_version, self.mapping_data_version.unwrap_or_default()]
    }
    fn count(&self) -> usize {
        self.topic_config_table.len()
    }
    /// The mappings are on every page, all of them.
    fn add(&mut self, page: Self) {
        self.topic_config_table.extend(page.topic_config_table);
    }
}

impl Paged for SubscriptionGroupWrapper {
    const CODE: i32 = request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG;
    const NAMES: [&'static str; 3] = ["groupSeq", "maxGroupNum", "totalGroupNum"];
    fn parse(text: &[u8]) -> Result<Self, String> {
        groups::parse_file(text)
    }
    fn versions(&self) -> Versions {
        [self.data_version, DataVersion::default()]
    }
    fn count(&self) -> usize {
        self.subscription_group_table.len()
    }
    fn add(&mut self, page: Self) {
        self.subscription_group_table.extend(page.subscription_group_table);
        self.forbidden_table.extend(page.forbidden_table);
    }
}

/// The whole table, unless its versions are the known ones, which a page of one entry tells.
async fn fetch<T: Paged>(conn: &Conn, known: Option<Versions>, unpaged: &mut bool) -> Result<Option<T>, SyncError> {
    let parse = |answer: &OwnedCommand| {
        let parsed = T::parse(&answer.body);
        parsed.map_err(|why| SyncError::Body { code: T::CODE, why })
    };
    'anew: for _ in 0..PAGE_TRIES {
        let first = if known.is_some() { 1 } else { PAGE };
        let (answer, total) = page(conn, T::CODE, T::NAMES, (0, first), None).await?;
        let mut table: T = parse(&answer)?;
        *unpaged = total.is_none();
        if Some(table.versions()) == known {
            return Ok(None);
        }
        let total = total.unwrap_or(0);
        while table.count() < total {
            let before = table.count();
            let [version, _] = table.versions();
            let (answer, _) = page(conn, T::CODE, T::NAMES, (before, PAGE), Some(version)).await?;
            let next: T = parse(&answer)?;
            let steady = next.versions() == table.versions();
            table.add(next);
            if !steady || table.count() == before {
                continue 'anew;
            }
        }
        return Ok(Some(table));
    }
    Err(SyncError::Unsteady(T::CODE))
}

/// `stored`: the end of the log when the master was asked.
async fn copy_topics(shard: &Rc<Shard>, mut table: TopicConfigSerializeWrapper, stored: PhyOffset) {
    let control = shard.control();
    let mappings = table.mapping_data_version.zip(table.topic_queue_mapping_detail_map.take());
    let deleting = control.deletions.begin();
    let (changed, deleted) = control.topics.borrow_mut().copy(table);
    if !changed.is_empty() || !deleted.is_empty() {
        info!(changed = changed.len(), ?deleted, "topics as at the master");
    }
    if !deleted.is_empty() {
        let change = control.topics_deleted(shard);
        if let Err(e) = making::bury(shard, deleting, &deleted, Some(change), Some(stored)).await {
            warn!(error = %e, "the master's topics are not saved yet");
        }
    } else if !changed.is_empty() {
        let _ = control.topics_changed(shard, &changed);
    }
    // A master without mappings, as one of 4.9, has no version of them either.
    let Some((version, mappings)) = mappings else { return };
    if control.mappings.borrow_mut().copy(version, mappings)
        && let Err(e) = control.mappings_changed(shard).await
    {
        warn!(error = %e, "the master's mappings of static topics are not saved yet");
    }
}

/// Every shard takes its part; what the master does not have stays.
async fn copy_offsets(shard: &Rc<Shard>, table: ConsumerOffsetTable) {
    let table = Arc::new(table);
    shard
        .run_on_all(move |s| {
            let table = table.clone();
            async move {
                let topics = s.topics.borrow().clone();
                s.offsets.copy(s.id, s.shards, &topics, table.rows());
            }
        })
        .await;
}
