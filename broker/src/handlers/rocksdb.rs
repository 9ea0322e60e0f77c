//! What tools ask of brokers that keep tables in RocksDB (354, 355, 200056). This one keeps none, so there is nothing to compare, and what
//! is to be written out as JSON is JSON already. On control. Source: behaviour sheet 9.9, 11.4, 12.1; checked against Apache's broker 5.5.0
//! with its plain store.
use crate::control::persist;
use crate::error::BrokerError;
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use std::rc::Rc;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;

/// The body of 354 where consume queues are plain files: the check was not made.
const NOT_CHECKED: &[u8] = b"{\"checkStatus\":2}";
/// The tables that 355 names, with `;` between them.
const TABLES: [&str; 3] = ["topics", "subscriptionGroups", "consumerOffsets"];

/// 354.
pub fn check_progress(_: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    Ok(Response::ok().body(NOT_CHECKED.to_vec()).into())
}

/// 355: answered when the tables are in their files as they are now. Topics and groups are saved as they change.
pub async fn export_config(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let wanted = req.cmd.ext.get("configType").ok_or_else(|| {
        BrokerError::refused(code::SYSTEM_ERROR, format!("header field configType is missing, one of {TABLES:?}"))
    })?;
    let mut offsets = false;
    for table in wanted.split(';').map(str::trim).filter(|table| !table.is_empty()) {
        match TABLES.iter().find(|known| known.eq_ignore_ascii_case(table)) {
            Some(known) => offsets |= *known == TABLES[2],
            None => {
                let remark = format!("Unknown config type: {table}, not one of {TABLES:?}");
                return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
            }
        }
    }
    if offsets {
        persist::save_offsets(shard).await?;
    }
    Ok(Response { remark: Some("export done.".into()), ..Response::ok() })
}

/// 200056: every pop that is under way has its check point in the revive topic already.
pub fn roll_back_pops(_: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    Ok(Response::ok().into())
}
