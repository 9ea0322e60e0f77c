//! The broker itself: its configuration (25, 26), what it does just now (28), cleaning (306, 316, 329), replicas
//! (45, 907, 908, 1007).
//! Source: behaviour sheet 2.7, 12.1, 12.2; wire-protocol sheet 7.5; known fault X01 (what may not be set at run time).
use crate::config::{BrokerConfig, UpdateError};
use crate::control::making;
use crate::error::BrokerError;
use crate::handlers::offset::{bounds, stopping};
use crate::handlers::stats::{self, Totals};
use crate::mesh::Msg;
use crate::registration;
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use crate::stages;
use crate::{delay, timer};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::{info, warn};
use uringmq_proto::body::stats::KvTable;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::{Response, VERSION};
use uringmq_proto::fastjson;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::admin::ResetMasterFlushOffset;
use uringmq_proto::names;
use uringmq_proto::record;
use uringmq_proto::types::QueueKey;
use uringmq_store::io::Io as _;
use uringmq_store::json_table;

/// What [`VERSION`] is called.
const VERSION_NAME: &str = "V5_5_0";
const GIB: f64 = (1u64 << 30) as f64;

/// 25, on control: all of it or nothing. Values that count from the next start on are checked and written too.
pub async fn update_config(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let text = std::str::from_utf8(req.cmd.body)
        .map_err(|_| BrokerError::refused(code::SYSTEM_ERROR, UpdateError::Syntax.to_string()))?;
    if text.trim().is_empty() {
        return Err(BrokerError::Body("no configuration to set".to_owned()));
    }
    let figures = &shard.figures;
    if figures.config_saving.replace(true) {
        return Err(BrokerError::Busy("[OVERLOAD]another update of the configuration is being written".into()));
    }
    let outcome = apply_config(shard, text).await;
    figures.config_saving.set(false);
    outcome
}

async fn apply_config(shard: &Rc<Shard>, text: &str) -> Result<Response, BrokerError> {
    let old = shard.config();
    let (new, updated) = old.update(text).map_err(refused_update)?;
    if !updated.ignored.is_empty() {
        warn!(keys = ?updated.ignored, "unknown configuration keys were not set");
    }
    if let Some(path) = &new.path {
        let text = new.to_text(shard.shards as usize, false);
        // A bare file name has no directory to sync by itself.
        json_table::save_unmarked(&shard.io, &Path::new(".").join(path), text.as_bytes()).await?;
    }
    let new = Arc::new(new);
    publish_config(shard, &new);
    let version = shard.figures.config_version.get();
    shard.figures.config_version.set(version.next(version.state_version, shard.now_ms()));
    if new.broker_permission != old.broker_permission {
        registration::permission_changed(shard);
    }
    if new.namesrv_addr != old.namesrv_addr {
        registration::reload(shard);
    }
    shard.taken_by_all().await;
    info!(keys = ?updated.set, "configuration updated");
    Ok(Response::ok())
}

fn refused_update(e: UpdateError) -> BrokerError {
    let code = match &e {
        UpdateError::BlackList => code::NO_PERMISSION,
        UpdateError::Syntax | UpdateError::Value { .. } => code::SYSTEM_ERROR,
    };
    BrokerError::refused(code, e.to_string())
}

/// Every shard takes the new configuration; this one at once.
fn publish_config(shard: &Shard, config: &Arc<BrokerConfig>) {
    *shard.config.borrow_mut() = config.clone();
    shard.mesh.push_all(|| {
        let config = config.clone();
        Msg::Run(Box::new(move |shard| *shard.config.borrow_mut() = config))
    });
}

/// 26, on control.
pub fn get_config(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    let version = fastjson::to_vec(&shard.figures.config_version.get());
    let version = String::from_utf8(version).expect("JSON is UTF-8");
    let text = shard.config().to_text(shard.shards as usize, false);
    Ok(Response::ok().with("version", version).body(text.into_bytes()).into())
}

/// 306: every queue forgets what lies below the log's first byte.
pub async fn clean_expired_queues(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Response, BrokerError> {
    let min = shard.marks.min();
    let trimmed = shard.run_on_all(move |owner| async move {
        for queue in owner.queues.all() {
            queue.cq.trim(min).await?;
        }
        Ok::<_, uringmq_store::StoreError>(())
    });
    trimmed.await.into_iter().collect::<Result<Vec<()>, _>>()?;
    Ok(Response::ok())
}

/// 316, on control: queue files of topics that are in no table go.
pub async fn clean_unused_topics(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Response, BrokerError> {
    let control = shard.control();
    let deleting = control.deletions.begin();
    let gone = control.topics.borrow_mut().delete_unlisted();
    if !gone.is_empty() {
        info!(topics = ?gone, "queues of unknown topics are removed");
        control.publish_topics(shard);
        making::bury(shard, deleting, &gone, None, None).await?;
    }
    Ok(Response::ok())
}

/// 329: expired segments go when retention looks next, whatever the hour.
pub async fn delete_expired_log(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Response, BrokerError> {
    let asked = shard.run_on(shard.writer_shard, |s| async move {
        s.writer.as_ref().expect("asked of the writer shard").clean_now.set(true);
    });
    asked.await.ok_or_else(stopping)?;
    Ok(Response::ok())
}

/// 907: who copies from here, or how it stands with the master.
pub async fn ha_status(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Response, BrokerError> {
    let status =
        |s: Rc<Shard>| async move { s.replication.as_ref().expect("asked of the replication shard").status(&s) };
    let body = shard.run_on(shard.ha_shard, status).await.ok_or_else(stopping)?;
    Ok(Response::ok().body(fastjson::to_vec(&body)))
}

/// 908, for slaves only: a master has nobody to follow.
pub fn reset_master_flush_offset(_: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    ResetMasterFlushOffset::decode(req.cmd)?;
    Ok(Response::ok().into())
}

/// 45, on control: how far the delay levels are.
pub fn all_delay_offsets(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    Ok(Response::ok().body(delay::table_text(&shard.delay)).into())
}

/// 28, on control. With the field `resetStages=true` (ours) the stages' figures begin anew after this answer.
pub async fn runtime_info(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let mut table = BTreeMap::new();
    let totals = stats::totals(shard).await;
    let reset = req.cmd.ext.get("resetStages").is_some_and(|value| value == "true");
    for (name, histogram) in stages::gathered(shard, reset).await {
        put(&mut table, &format!("stageUs.{name}"), stages::told(&histogram));
    }
    add_process(&mut table, shard);
    add_counts(&mut table, shard, &totals);
    add_log(&mut table, shard).await;
    add_disk(&mut table, shard).await;
    add_delay(&mut table, shard).await;
    add_pools(&mut table, shard);
    add_timers(&mut table, shard).await;
    Ok(Response::ok().body(fastjson::to_vec(&KvTable { table })))
}

type Table = BTreeMap<String, String>;

fn put(table: &mut Table, key: &str, value: impl ToString) {
    table.insert(key.to_owned(), value.to_string());
}

fn add_process(table: &mut Table, shard: &Shard) {
    let (config, now_ms) = (shard.config(), shard.now_ms());
    let started_ms = match shard.figures.started_ms.get() {
        0 => now_ms,
        ms => ms,
    };
    put(table, "brokerActive", true);
    put(table, "brokerVersion", VERSION);
    put(table, "brokerVersionDesc", VERSION_NAME);
    put(table, "bootTimestamp", started_ms);
    put(table, "runtime", up_time((now_ms - started_ms).max(0) as u64 / 1000));
    put(table, "startAcceptSendRequestTimeStamp", config.accept_sends_from_ms);
}

/// As Java writes it.
fn up_time(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    format!("[ {days} days, {} hours, {} minutes, {} seconds ]", hours % 24, minutes % 60, seconds % 60)
}

fn add_counts(table: &mut Table, shard: &Shard, totals: &Totals) {
    let figures = &shard.figures;
    let (today, yesterday) = figures.mornings();
    for (name, count) in
        [("msgPutTotal", (|t| t.put_messages) as fn(&Totals) -> u64), ("msgGetTotal", |t| t.get_messages)]
    {
        put(table, &format!("{name}YesterdayMorning"), count(&yesterday));
        put(table, &format!("{name}TodayMorning"), count(&today));
        put(table, &format!("{name}TodayNow"), count(totals));
    }
    put(table, "putMessageTimesTotal", totals.put_messages);
    put(table, "putMessageFailedTimes", totals.put_failed);
    put(table, "putMessageSizeTotal", totals.put_bytes);
    put(table, "putMessageAverageSize", format!("{:?}", totals.put_bytes as f64 / totals.put_messages.max(1) as f64));
    put(table, "putTps", figures.rates(|t| t.put_messages));
    put(table, "getFoundTps", figures.rates(|t| t.get_messages));
    put(table, "getMissTps", figures.rates(|t| t.get_missed));
    put(table, "getTotalTps", figures.rates(|t| t.get_messages + t.get_missed));
    put(table, "getTransferredTps", figures.rates(|t| t.get_messages));
    // Ours.
    put(table, "filterBitsExcluded", totals.bits_excluded);
    // Not measured by the broker: the client's own histogram tells more.
    for key in ["putMessageEntireTimeMax", "getMessageEntireTimeMax", "pageCacheLockTimeMills", "dispatchMaxBuffer"] {
        put(table, key, 0);
    }
    put(table, "putMessageDistributeTime", "");
    put(table, "putLatency99", "0.00");
    put(table, "putLatency999", "0.00");
}

async fn add_log(table: &mut Table, shard: &Shard) {
    let (min, max) = (shard.marks.min(), shard.marks.readable());
    put(table, "commitLogMinOffset", min);
    put(table, "commitLogMaxOffset", max);
    put(table, "dispatchBehindBytes", max.0.saturating_sub(shard.dispatch.at().0));
    let unsynced = shard.marks.written.load(Ordering::Acquire).saturating_sub(shard.marks.durable().0);
    put(table, "remainHowManyDataToFlush", format!("{unsynced} B"));
    put(table, "remainTransientStoreBufferNumbs", i32::MAX);
    let mut first = Vec::new();
    let first_ms = match shard.read_record(min, 0, &mut first).await {
        Ok(()) => record::store_timestamp_ms(&first),
        Err(_) => None, // an empty log
    };
    put(table, "earliestMessageTimeStamp", first_ms.unwrap_or(-1));
}

async fn add_disk(table: &mut Table, shard: &Shard) {
    let config = shard.config();
    let (log_dir, root) = (&config.commit_log_dir, &config.store_root);
    for (key, path) in [("commitLogDiskRatio", log_dir), ("consumeQueueDiskRatio", root)] {
        let Ok(space) = shard.io.space(path).await else {
            put(table, key, "-1.0");
            continue;
        };
        let used = space.total_bytes.saturating_sub(space.free_bytes);
        let ratio = format!("{:?}", used as f64 / space.total_bytes.max(1) as f64);
        if key == "commitLogDiskRatio" {
            put(table, &format!("{key}_{}", path.display()), &ratio);
            let (total, free) = (space.total_bytes as f64 / GIB, space.free_bytes as f64 / GIB);
            put(table, "commitLogDirCapacity", format!("Total : {total:.1} GiB, Free : {free:.1} GiB."));
        }
        put(table, key, ratio);
    }
    let hours = shard.marks.disk_hours_left.load(Ordering::Relaxed);
    put(table, "diskFullInHours", i64::try_from(hours).unwrap_or(-1));
}

async fn add_delay(table: &mut Table, shard: &Rc<Shard>) {
    let Some(topic) = shard.topic(names::SCHEDULE_TOPIC) else { return };
    for (level, offset) in shard.delay.progress() {
        let key = QueueKey { topic: topic.id, queue: level - 1 };
        let max = shard.run_on(shard.owner(key), move |owner| async move { bounds(&owner, key).1 }).await;
        put(table, &format!("scheduleMessageOffset_{level}"), format!("{offset},{}", max.unwrap_or(0)));
    }
}

/// There are no thread pools here: their queues are empty, their capacities as configured.
fn add_pools(table: &mut Table, shard: &Shard) {
    let config = shard.config();
    let cpus = shard.shards as usize; // what the sizes of Apache's pools hang on
    for pool in ["send", "pull", "litePull", "query", "ack"] {
        put(table, &format!("{pool}ThreadPoolQueueSize"), 0);
        put(table, &format!("{pool}ThreadPoolQueueHeadWaitTimeMills"), 0);
        let capacity = config.get(&format!("{pool}ThreadPoolQueueCapacity"), cpus).unwrap_or_default();
        put(table, &format!("{pool}ThreadPoolQueueCapacity"), capacity);
    }
    put(table, "EndTransactionQueueSize", 0);
    let capacity = config.get("endTransactionPoolQueueCapacity", cpus).unwrap_or_default();
    put(table, "EndTransactionThreadPoolQueueCapacity", capacity);
}

async fn add_timers(table: &mut Table, shard: &Rc<Shard>) {
    let timers = &shard.timer;
    put(table, "timerReadBehind", timers.read_behind_s(shard.now_ms()));
    put(table, "timerOffsetBehind", timer::behind(shard).await);
    put(table, "timerCongestNum", timers.waiting());
    let (enqueue, dequeue) = timers.rates();
    put(table, "timerEnqueueTps", format!("{enqueue:?}"));
    put(table, "timerDequeueTps", format!("{dequeue:?}"));
    // Ours.
    put(table, "timerSkipped", timers.skipped.get());
    put(table, "timerStartWalked", timers.walked.get());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_time_is_written_as_in_java() {
        assert_eq!(up_time(0), "[ 0 days, 0 hours, 0 minutes, 0 seconds ]");
        assert_eq!(up_time(2 * 86_400 + 3 * 3600 + 4 * 60 + 5), "[ 2 days, 3 hours, 4 minutes, 5 seconds ]");
    }

    /// Known fault X01.
    #[test]
    fn a_refused_update_has_its_own_code() {
        let code_of = |e| match refused_update(e) {
            BrokerError::Refused { code, remark } => (code, remark.into_owned()),
            other => panic!("{other:?}"),
        };
        assert_eq!(code_of(UpdateError::BlackList), (16, "Can not update config in black list.".to_owned()));
        assert_eq!(code_of(UpdateError::Syntax), (1, "string2Properties error".to_owned()));
        let bad = UpdateError::Value { key: "k".into(), value: "v".into(), why: "is not a number".into() };
        assert_eq!(code_of(bad), (1, "k = 'v' is not a number".to_owned()));
    }
}
