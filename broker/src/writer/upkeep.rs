//! The writer core's background tasks: the next segment and its warming, the periodic sync of ASYNC_FLUSH, retention.
use crate::config::BrokerConfig;
use crate::shard::{Shard, upkeep};
use futures_lite::future;
use glommio::timer::sleep;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::{debug, error, info, warn};
use uringmq_store::io::{Io as _, Space};
use uringmq_store::retention::{self, Decision, FillRate, Policy, Situation};
use uringmq_store::{StoreError, checkpoint};

/// A failed step of the keeper (no space) is tried again after so long, unless the tail moves first.
const RETRY_MS: u64 = 1000;
/// Pause between two pieces of warming, so that they never fill the disk's queue.
const WARM_PAUSE_US: u64 = 200;

fn writer(shard: &Rc<Shard>) -> &crate::writer::Writer {
    shard.writer.as_ref().expect("runs on the writer shard")
}

/// Keeps the next segment ready and the stretch ahead of the tail warm.
pub async fn keep_segments(shard: Rc<Shard>) {
    let mut failing = false;
    while !shard.gate.is_closed() {
        match writer(&shard).keeper.step().await {
            Ok(true) => {
                sleep(Duration::from_micros(WARM_PAUSE_US)).await;
                continue;
            }
            Ok(false) => failing = false,
            Err(e) => {
                if e.is_no_space() && shard.config().clean_forcibly {
                    writer(&shard).no_space.set(true);
                    writer(&shard).space_short.set();
                }
                if !std::mem::replace(&mut failing, true) {
                    warn!(error = %e, "the next segment cannot be made ready; trying again every second");
                }
            }
        }
        future::or(writer(&shard).tail_moved.wait(), async {
            sleep(Duration::from_millis(RETRY_MS)).await;
        })
        .await;
    }
}

/// ASYNC_FLUSH: the log is synced every `flushIntervalCommitLog`.
pub async fn sync_periodically(shard: Rc<Shard>) {
    let pause = Duration::from_millis(shard.config().flush_interval_ms.max(10));
    while !shard.gate.is_closed() {
        sleep(pause).await;
        let marks = &shard.marks;
        if marks.written.load(Ordering::Relaxed) <= marks.durable.load(Ordering::Relaxed) {
            continue;
        }
        match writer(&shard).keeper.sync().await {
            Ok(durable) => drop(marks.durable.fetch_max(durable.0, Ordering::Release)),
            Err(e) => {
                error!(error = %e, "the log cannot be synced; writes stop, what is stored is still served");
                return;
            }
        }
    }
}

/// Removes segments that may go, and refuses writes while the disk is nearly full; at once when a segment could not be made.
pub async fn retain(shard: Rc<Shard>) {
    let (mut rate, mut warned) = (FillRate::default(), false);
    loop {
        let pause = Duration::from_millis(shard.config().clean_interval_ms.max(100));
        future::or(writer(&shard).space_short.wait(), async {
            sleep(pause).await;
        })
        .await;
        loop {
            if shard.gate.is_closed() {
                return;
            }
            match retain_once(&shard, writer(&shard).clean_now.take(), &mut rate).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(e) => warn!(error = %e, "retention failed; trying again at the next interval"),
            }
            break;
        }
        warn_ahead(&shard, &mut warned);
    }
}

/// True when segments went by force and the disk was full: more may have to go at once.
async fn retain_once(shard: &Rc<Shard>, manual: bool, rate: &mut FillRate) -> Result<bool, StoreError> {
    let config = shard.config();
    let (keeper, policy) = (&writer(shard).keeper, config.retention_policy());
    let space = shard.io.space(&config.commit_log_dir).await.map_err(|source| StoreError::File {
        op: "statfs",
        path: config.commit_log_dir.clone(),
        source,
    })?;
    let closed = keeper.closed_segments().await?;
    let now_ms = shard.now_ms();
    let situation = Situation {
        closed: &closed,
        segment_bytes: config.segment_bytes,
        now_ms,
        local_hour: local_hour(now_ms),
        space,
        no_space: writer(shard).no_space.take(),
        manual,
    };
    let decision = retention::decide(&policy, &situation);
    rate.sample(now_ms, space.total_bytes.saturating_sub(space.free_bytes));
    let hours = rate.hours_to(policy.full_at(space)).map_or(u64::MAX, |hours| hours as u64);
    shard.marks.disk_hours_left.store(hours, Ordering::Relaxed);
    let removed = remove_oldest(shard, &config, &decision).await?;
    if removed > 0 {
        writer(shard).tail_moved.set(); // a segment that could not be made may fit now
    }
    let forced = decision.forced && removed > 0;
    note_space(shard, &policy, space, decision.over && !forced, decision.early);
    Ok(forced && decision.over)
}

/// Tells the shards what is refused, and the log when that changes.
fn note_space(shard: &Rc<Shard>, policy: &Policy, space: Space, full: bool, early: bool) {
    let (used, free, marks) = (space.used_percent(), space.free_bytes, &shard.marks);
    let was_full = marks.disk_full.swap(full as u64, Ordering::Relaxed) != 0;
    if full != was_full {
        match full {
            true => warn!(
                used,
                free,
                limit = policy.full_percent,
                limit_free = policy.full_free_bytes,
                "disk nearly full: writes are refused until use falls"
            ),
            false => info!(used, free, "disk use fell: writes are accepted again"),
        }
    }
    let was_early = marks.disk_early.swap(early as u64, Ordering::Relaxed) != 0;
    if early != was_early && !shard.config().disk_early_topics.0.is_empty() {
        match early {
            true => warn!(used, limit = policy.early_percent, "disk filling up: diskRefuseEarlyTopics are refused"),
            false => info!(used, "disk use fell: diskRefuseEarlyTopics are accepted again"),
        }
    }
}

/// Removes what was decided on, one by one; how many went. A segment stays until the checkpoint is past it; by force, one is written.
async fn remove_oldest(shard: &Rc<Shard>, config: &BrokerConfig, decision: &Decision) -> Result<usize, StoreError> {
    let keeper = &writer(shard).keeper;
    let (mut removed, mut asked) = (0, !decision.forced);
    while removed < decision.remove {
        let synced = checkpoint::read(&shard.io, &config.store_root).await?.logics_phy;
        let before = keeper.min();
        let min = keeper.remove_oldest(synced).await?;
        if min > before {
            shard.marks.min.store(min.0, Ordering::Release);
            info!(%min, forced = decision.forced, "removed the oldest segment");
            removed += 1;
            sleep(Duration::from_millis(config.delete_pause_ms)).await;
        } else if !std::mem::replace(&mut asked, true) {
            let written = shard.run_on(0, |s| async move { upkeep::write_checkpoint(&s).await }).await;
            if let Err(e) = written.unwrap_or(Ok(())) {
                warn!(error = %e, "no checkpoint for the oldest segment, which space is short for");
            }
        } else {
            debug!(%min, %synced, "the oldest segment waits for the next checkpoint");
            break;
        }
    }
    Ok(removed)
}

/// A warning when the disk will soon be full, once until the prospect is better again.
fn warn_ahead(shard: &Rc<Shard>, warned: &mut bool) {
    let hours = shard.marks.disk_hours_left.load(Ordering::Relaxed);
    let limit = u64::from(shard.config().disk_warning_hours);
    let soon = hours < limit;
    if soon && !*warned {
        warn!(hours, "the disk fills up: at the rate of the last hour, writes will be refused in so many hours");
    }
    *warned = soon || (*warned && hours < limit.saturating_mul(2));
}

/// Hour of the local day.
pub fn local_hour(now_ms: i64) -> u8 {
    let seconds: libc::time_t = now_ms / 1000;
    // SAFETY: a tm is plain data for which all zeros is a value.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of this frame; localtime_r keeps neither.
    unsafe { libc::localtime_r(&seconds, &mut tm) };
    tm.tm_hour as u8
}
