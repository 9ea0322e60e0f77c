//! Topic administration: UPDATE_AND_CREATE_TOPIC (17) and its list form (18), DELETE_TOPIC_IN_BROKER (215), and what topics there are
//! (21, 305, 351). On control. Source: behaviour sheet 3.8; wire-protocol sheet 7.1; known faults A01, F05, P06.
use crate::control::topics::{TopicError, config_of_header, page_range};
use crate::control::{self, making};
use crate::error::BrokerError;
use crate::handlers::client::{body, json_answer};
use crate::requests::{Answer, Request};
use crate::shard::Shard;
use std::rc::Rc;
use std::sync::Arc;
use tracing::info;
use uringmq_proto::body::stats::TopicList;
use uringmq_proto::body::topic::{CreateTopicList, TopicConfig, TopicConfigAndMapping};
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::topic::{CreateTopic, GetAllTopicConfig, GetTopicConfig, TopicOnly};
use uringmq_proto::names;

pub(super) fn refused(e: TopicError) -> BrokerError {
    BrokerError::refused(e.code(), e.to_string())
}

/// 17. Answered when the change is on stable storage and known to the NameServers that answer.
pub async fn create_topic(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = CreateTopic::decode(req.cmd)?;
    let config = config_of_header(&h).map_err(refused)?;
    create_all(shard, req, vec![config]).await
}

/// 18. One that is refused refuses all.
pub async fn create_topics(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let list: CreateTopicList = body(req)?;
    create_all(shard, req, list.topic_config_list).await
}

pub(super) async fn create_all(
    shard: &Rc<Shard>,
    req: &Request<'_>,
    wanted: Vec<TopicConfig>,
) -> Result<Response, BrokerError> {
    let control = shard.control();
    let policy = control::policy(&shard.config());
    control.deletions.over().await;
    let changed = {
        let mut topics = control.topics.borrow_mut();
        for config in &wanted {
            topics.check(config.clone(), policy).map_err(refused)?;
        }
        let mut changed: Vec<Arc<str>> = Vec::new();
        for config in wanted {
            let topic = topics.put(config, policy, shard.now_ms()).map_err(refused)?;
            changed.extend(topic.map(|topic| topic.name.clone()));
        }
        changed
    };
    if !changed.is_empty() {
        info!(topics = ?changed, by = %req.origin.peer, "topics made or altered");
        let change = control.topics_changed(shard, &changed);
        control.settle(change).await?;
        shard.taken_by_all().await;
    }
    Ok(Response::ok())
}

/// Code 215. An unknown topic is success. Answered when no shard holds a queue, a waiting pull or an offset of it any more and the table is
/// on stable storage, so that a topic made anew under its name begins at 0 (known fault F05).
pub async fn delete_topic(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = TopicOnly::decode(req.cmd)?;
    let control = shard.control();
    let config = shard.config();
    control.topics.borrow().check_delete(h.topic, control::policy(&config)).map_err(refused)?;
    let mut names: Vec<Arc<str>> = vec![h.topic.into()];
    if config.clear_retry_topic_with_topic {
        names.extend(pop_retry_topics(shard, h.topic).await);
    }
    let deleting = control.deletions.begin();
    let gone = control.topics.borrow_mut().delete(names.iter().map(|name| &**name), shard.now_ms());
    if gone.is_empty() {
        return Ok(Response::ok());
    }
    let gone: Vec<Arc<str>> = gone.iter().map(|topic| topic.name.clone()).collect();
    info!(topics = ?gone, by = %req.origin.peer, "topics deleted");
    if control.mappings.borrow_mut().remove(gone.iter().map(|name| &**name), shard.now_ms()) {
        control.mappings_changed(shard).await?;
    }
    let change = control.topics_deleted(shard);
    making::bury(shard, deleting, &gone, Some(change), None).await?;
    Ok(Response::ok())
}

/// The topic's retry topics of pop consumption, for the groups that have offsets on it.
async fn pop_retry_topics(shard: &Rc<Shard>, topic: &str) -> Vec<Arc<str>> {
    let Some(id) = shard.topic(topic).map(|topic| topic.id) else { return Vec::new() };
    let groups = shard.run_on_all(move |s| async move { s.offsets.groups_of(id) }).await;
    let mut groups: Vec<Arc<str>> = groups.into_iter().flatten().collect();
    groups.sort_unstable();
    groups.dedup();
    let control = shard.control();
    let known = control.groups.borrow();
    control.topics.borrow().pop_retry_topics(topic, groups.into_iter(), |name| known.get(name).is_some())
}

/// 351.
pub fn topic_config(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = GetTopicConfig::decode(req.cmd)?;
    let config = match shard.topic(h.topic) {
        Some(topic) => topic.config.clone(),
        // In no table, and as good as there.
        None if shard.config().light_queues() && names::is_light_queue(h.topic) => TopicConfig::new(h.topic, 1),
        None => return Err(BrokerError::NoTopic(h.topic.to_owned())),
    };
    let mapping_detail = if h.lo { shard.control().mappings.borrow().get(h.topic).cloned() } else { None };
    Ok(json_answer(&TopicConfigAndMapping { mapping_detail, config }))
}

/// 21.
pub fn all_topic_configs(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = GetAllTopicConfig::decode(req.cmd)?;
    let topics = shard.control().topics.borrow();
    let (skip, take) = page_range(h.topic_seq, h.max_topic_num);
    let mut table = topics.wrapper(topics.all().skip(skip).take(take));
    let mappings = shard.control().mappings.borrow();
    table.mapping_data_version = Some(mappings.version());
    table.topic_queue_mapping_detail_map = Some(mappings.all().clone());
    table.topic_queue_mapping_info_map = Some(Default::default());
    let response = Response::ok().with("totalTopicNum", topics.count() as u64);
    Ok(response.body(fastjson::to_vec(&table)).into())
}

/// 305.
pub fn system_topics(shard: &Rc<Shard>, _: &Request<'_>) -> Result<Answer, BrokerError> {
    let topic_list = shard.control().topics.borrow().system_names();
    Ok(json_answer(&TopicList { topic_list, ..TopicList::default() }))
}
