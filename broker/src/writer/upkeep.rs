//! The writer core's background tasks: the next segment and its warming, the periodic sync of ASYNC_FLUSH, retention.
use crate::config::BrokerConfig;
use crate::shard::Shard;
use futures_lite::future;
use glommio::timer::sleep;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::{debug, error, info, warn};
use uringmq_store::io::{Io as _, Space};
use uringmq_store::retention::{self, Decision};
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
            Ok(durable) => marks.durable.store(durable.0, Ordering::Release),
            Err(e) => {
                error!(error = %e, "the log cannot be synced; writes stop, what is stored is still served");
                return;
            }
        }
    }
}

/// Removes expired segments, and refuses writes while the disk is nearly full.
pub async fn retain(shard: Rc<Shard>) {
    loop {
        let pause = Duration::from_millis(shard.config().clean_interval_ms.max(100));
        sleep(pause).await;
        if shard.gate.is_closed() {
            return;
        }
        if let Err(e) = retain_once(&shard, writer(&shard).clean_now.take()).await {
            warn!(error = %e, "retention failed; trying again at the next interval");
        }
    }
}

async fn retain_once(shard: &Rc<Shard>, manual: bool) -> Result<(), StoreError> {
    let config = shard.config();
    let keeper = &writer(shard).keeper;
    let closed = keeper.closed_segments().await?;
    let space = shard.io.space(&config.commit_log_dir).await.map_err(|source| StoreError::File {
        op: "statfs",
        path: config.commit_log_dir.clone(),
        source,
    })?;
    let used = used_percent(space);
    let policy = config.retention_policy();
    let Decision { remove, full } =
        retention::decide(&policy, &closed, shard.now_ms(), local_hour(shard.now_ms()), used, manual);
    let was_full = shard.marks.disk_full.swap(full as u64, Ordering::Relaxed) != 0;
    if full != was_full {
        match full {
            true => warn!(used, limit = policy.full_percent, "disk nearly full: writes are refused until use falls"),
            false => info!(used, "disk use fell: writes are accepted again"),
        }
    }
    if remove == 0 {
        return Ok(());
    }
    let synced = checkpoint::read(&shard.io, &config.store_root).await?.logics_phy;
    for _ in 0..remove {
        let before = keeper.min();
        let min = keeper.remove_oldest(synced).await?;
        if min == before {
            debug!(%min, %synced, "the oldest segment waits for the next checkpoint");
            return Ok(());
        }
        shard.marks.min.store(min.0, Ordering::Release);
        info!(%min, "removed the oldest segment");
        pause_between(&config).await;
    }
    Ok(())
}

async fn pause_between(config: &BrokerConfig) {
    sleep(Duration::from_millis(config.delete_pause_ms)).await;
}

fn used_percent(space: Space) -> u8 {
    let used = space.total_bytes.saturating_sub(space.free_bytes);
    (used * 100).div_ceil(space.total_bytes.max(1)).min(100) as u8
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
