//! `consumerOrderInfo.json`: the ordered pops of all shards, gathered and saved now and then. On shard 0. Source: store-format sheet 8.3.
use crate::control::persist;
use crate::handlers::offset::stopping;
use crate::shard::Shard;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;
use uringmq_proto::body::pop::OrderInfoTable;
use uringmq_proto::fastjson;
use uringmq_store::{StoreError, json_table};

const FILE: &str = "consumerOrderInfo.json";
/// Apache's own period.
const PERIOD: Duration = Duration::from_secs(10);
/// Blocks are a queue's, not a message group's.
const LEVEL: &str = "QUEUE";

/// Gives every shard what it owns of the file.
pub async fn load(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let parse = |text: &[u8]| fastjson::from_slice::<OrderInfoTable>(text).map_err(|e| e.to_string());
    let stored = persist::read(&shard.io, &shard.config(), FILE, parse).await?;
    let Some(stored) = stored.map(Arc::new) else { return Ok(()) };
    let import = move |s: Rc<Shard>| {
        let stored = stored.clone();
        async move {
            let topics = s.topics.borrow().clone();
            s.pop.orders.import(s.id, s.shards, &topics, &stored);
        }
    };
    if shard.run_on_all(import).await.len() < shard.shards as usize {
        return Err(stopping());
    }
    Ok(())
}

/// Writes the file when anything changed since it was last written.
pub async fn save(shard: &Rc<Shard>) -> Result<(), StoreError> {
    let _turn = shard.pop.saving.take().await;
    let dirty = shard.run_on_all(|s| async move { s.pop.orders.dirty() }).await;
    if !dirty.contains(&true) {
        return Ok(());
    }
    let export = |s: Rc<Shard>| async move {
        let topics = s.topics.borrow().clone();
        s.pop.orders.export(&topics, s.now_ms())
    };
    let parts = shard.run_on_all(export).await;
    if parts.len() < shard.shards as usize {
        return Err(stopping()); // a part of the table must not replace the whole
    }
    let mut table = OrderInfoTable { ordered_consumption_level: LEVEL.to_owned(), ..OrderInfoTable::default() };
    for (name, queue, info) in parts.into_iter().flatten() {
        if let Ok(queue) = i32::try_from(queue) {
            table.order_info_count += 1;
            table.table.entry(name).or_default().insert(queue, info);
        }
    }
    let text = fastjson::to_vec_pretty(&table);
    let saved = json_table::save(&shard.io, &persist::path(&shard.config().store_root, FILE), &text).await;
    if saved.is_err() {
        shard.pop.orders.mark_dirty();
    }
    saved
}

/// Until the shard's doors close.
pub async fn save_periodically(shard: Rc<Shard>) {
    while !shard.doors.is_closed() {
        shard.sleep(PERIOD).await;
        if let Err(e) = save(&shard).await {
            warn!(error = %e, "ordered pops not saved; trying again");
        }
    }
}
