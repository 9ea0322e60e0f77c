//! Reads of what is not in memory: the groups' own thresholds (2001 to 2003) and how the log is read ahead (2004). On control. They are
//! kept and told, and limit nothing: cold reads pass through no cache that other readers share. Source: behaviour sheet 11.5, checked
//! against Apache's broker 5.5.0, which keeps the thresholds in memory only, too.
use crate::error::BrokerError;
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use serde::Serialize;
use std::collections::BTreeMap;
use std::rc::Rc;
use tracing::info;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::{fastjson, properties};

/// Groups with a threshold of their own, at most: what one broker would ever have.
const GROUPS_MAX: usize = 100_000;
/// The header field of 2004, with its sign.
const READ_AHEAD_MODE: &str = "READ_AHEAD_MODE";

/// Bytes in a window of 5 s, by group.
pub type Thresholds = BTreeMap<String, i64>;

/// The body of 2003.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Info<'a> {
    runtime_table: BTreeMap<String, i64>,
    config_table: &'a Thresholds,
    cg_cold_read_threshold: i64,
    global_cold_read_threshold: i64,
    global_acc: i64,
}

fn text<'a>(req: &Request<'a>) -> Result<&'a str, BrokerError> {
    std::str::from_utf8(req.cmd.body).map_err(|e| BrokerError::Body(e.to_string()))
}

/// 2001: `group=bytes` lines. One whose value is no number is passed over.
pub fn update_thresholds(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let pairs = properties::parse(text(req)?).map_err(|e| BrokerError::Body(e.to_string()))?;
    let mut table = shard.control().cold.borrow_mut();
    for pair in pairs {
        let Ok(bytes) = pair.value.trim().parse::<i64>() else { continue };
        if table.len() >= GROUPS_MAX && !table.contains_key(&pair.key) {
            let remark = format!("{GROUPS_MAX} groups have thresholds of cold reads, which is the limit");
            return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
        }
        info!(group = pair.key, bytes, by = %req.origin.peer, "threshold of cold reads");
        table.insert(pair.key, bytes);
    }
    Ok(Response::ok().into())
}

/// 2002: the body is a group's name. One without a threshold is success.
pub fn remove_threshold(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let group = text(req)?;
    if shard.control().cold.borrow_mut().remove(group).is_some() {
        info!(group, by = %req.origin.peer, "threshold of cold reads removed");
    }
    Ok(Response::ok().into())
}

/// 2003.
pub fn thresholds(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    let (config, table) = (shard.config(), shard.control().cold.borrow());
    let info = Info {
        runtime_table: BTreeMap::new(),
        config_table: &table,
        cg_cold_read_threshold: config.cold_read_group_bytes,
        global_cold_read_threshold: config.cold_read_global_bytes,
        global_acc: 0,
    };
    Ok(Response::ok().body(fastjson::to_vec(&info)).into())
}

/// 2004: both modes are accepted; the log is read by direct I/O, ahead of each reader by itself.
pub fn set_read_ahead_mode(_: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    const WHAT: &str = "set commitlog readahead mode";
    let refused = |code: i32, what: String| Err(BrokerError::refused(code, format!("{WHAT} {what}")));
    match req.cmd.ext.get(READ_AHEAD_MODE) {
        None => refused(code::SYSTEM_ERROR, format!("param error: no header field {READ_AHEAD_MODE}")),
        Some(mode) => match mode.trim().parse::<i32>() {
            Ok(0 | 1) => {
                Ok(Response { remark: Some(format!("{WHAT} success, mode: {}", mode.trim()).into()), ..Response::ok() }
                    .into())
            }
            Ok(_) => {
                refused(code::INVALID_PARAMETER, format!("param value error: {READ_AHEAD_MODE} is {mode}, not 0 or 1"))
            }
            Err(_) => refused(code::SYSTEM_ERROR, format!("failed: {READ_AHEAD_MODE} is no number: {mode}")),
        },
    }
}
