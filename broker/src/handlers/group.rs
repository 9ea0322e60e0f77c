//! Subscription groups: made and altered (200, 225), deleted (207), read (201, 352), kept from a topic (353). On control.
//! Source: behaviour sheet 3.8, 12.2; wire-protocol sheet 7.2; known fault P06.
use crate::control::groups::GroupError;
use crate::control::topics::page_range;
use crate::control::{self, persist};
use crate::error::BrokerError;
use crate::handlers::client::{body, json_answer};
use crate::handlers::offset;
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use std::rc::Rc;
use std::sync::Arc;
use tracing::{info, warn};
use uringmq_proto::body::group::{GroupForbiddenBody, SubscriptionGroupConfig, SubscriptionGroupList};
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::admin::{DeleteSubscriptionGroup, GetAllSubscriptionGroup, GroupForbidden, GroupOnly};
use uringmq_proto::names;

fn refused(e: GroupError) -> BrokerError {
    BrokerError::refused(e.code(), e.to_string())
}

/// 200. Answered when the change is on stable storage.
pub async fn create_group(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let config: SubscriptionGroupConfig = body(req)?;
    create_all(shard, req, vec![config]).await
}

/// 225. One that is refused refuses all.
pub async fn create_groups(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let list: SubscriptionGroupList = body(req)?;
    create_all(shard, req, list.group_config_list).await
}

async fn create_all(
    shard: &Rc<Shard>,
    req: &Request<'_>,
    wanted: Vec<SubscriptionGroupConfig>,
) -> Result<Response, BrokerError> {
    let control = shard.control();
    let changed = {
        let mut groups = control.groups.borrow_mut();
        for config in &wanted {
            groups.check(config.clone()).map_err(refused)?;
        }
        let mut changed: Vec<Arc<str>> = Vec::new();
        for config in wanted {
            let name: Arc<str> = config.group_name.as_str().into();
            if groups.put(config, shard.now_ms()).map_err(refused)? {
                changed.push(name);
            }
        }
        changed
    };
    if !changed.is_empty() {
        info!(groups = ?changed, by = %req.origin.peer, "groups made or altered");
        let ticket = control.groups_changed(shard, &changed);
        control.groups_saved(ticket).await?;
        shard.taken_by_all().await;
    }
    Ok(Response::ok())
}

/// 207. An unknown group is success; its retry and dead-letter topics stay.
pub async fn delete_group(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = DeleteSubscriptionGroup::decode(req.cmd)?;
    let control = shard.control();
    let deleted = control.groups.borrow_mut().delete(h.group_name, shard.now_ms());
    if deleted {
        info!(group = h.group_name, by = %req.origin.peer, "group deleted");
        let ticket = control.groups_changed(shard, &[h.group_name.into()]);
        control.groups_saved(ticket).await?;
        shard.taken_by_all().await;
    }
    if h.clean_offset {
        offset::clean_group(shard, h.group_name).await;
        if let Err(e) = persist::save_offsets(shard).await {
            warn!(error = %e, group = h.group_name, "the offsets of a deleted group are still in the file");
        }
    }
    Ok(Response::ok())
}

/// 352. A group that may come into being does so by this.
pub fn group_config(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = GroupOnly::decode(req.cmd)?;
    match control::ensure_group(shard, h.group) {
        Some(config) => Ok(json_answer(&config)),
        None => Err(BrokerError::refused(code::SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")),
    }
}

/// 201.
pub fn all_group_configs(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = GetAllSubscriptionGroup::decode(req.cmd)?;
    let groups = shard.control().groups.borrow();
    let (skip, take) = page_range(h.group_seq, h.max_group_num);
    let table = groups.wrapper(groups.all().iter().skip(skip).take(take));
    let response = Response::ok().with("totalGroupNum", groups.count() as u64);
    Ok(response.body(fastjson::to_vec(&table)).into())
}

/// 353. Without `readable` it only asks.
pub async fn group_forbidden(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = GroupForbidden::decode(req.cmd)?;
    let control = shard.control();
    if let Some(readable) = h.readable {
        names::check_group(h.group).map_err(|e| refused(e.into()))?;
        let changed = control.groups.borrow_mut().set_readable(h.group, h.topic, readable, shard.now_ms());
        if changed {
            let ticket = control.groups_changed(shard, &[h.group.into()]);
            control.groups_saved(ticket).await?;
            shard.taken_by_all().await;
        }
    }
    let readable = control.groups.borrow().may_read(h.group, h.topic);
    let answer = GroupForbiddenBody { group: h.group.to_owned(), readable, topic: h.topic.to_owned() };
    Ok(Response::ok().body(fastjson::to_vec(&answer)))
}
