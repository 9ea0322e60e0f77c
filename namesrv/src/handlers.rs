//! One function a request: from its decoded header to the answer. Source: behaviour sheet 1.2 to 1.7, wire-protocol sheet 9.
use crate::kv::ORDER_TOPIC_CONFIG;
use crate::route_table::{Registration, UnitTopics, keep_zone};
use crate::{Answer, Ask, Namesrv, NamesrvError};
use tracing::{debug, info};
use uringmq_proto::body;
use uringmq_proto::body::register::RegisterBrokerBody;
use uringmq_proto::body::route::{BrokerMemberGroupBody, TopicRouteData};
use uringmq_proto::body::stats::{KvTable, TopicList};
use uringmq_proto::body::topic::DataVersion;
use uringmq_proto::codes::request;
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;
use uringmq_proto::headers::NoHeader;
use uringmq_proto::headers::route::*;
use uringmq_proto::record::body_crc;
use uringmq_proto::settings::listed::{Settings, UpdateError};

type Handled = Result<Answer, NamesrvError>;

/// First version whose registration body is more than the topics (3.0.11).
const FULL_BODY_VERSION: i32 = 37;

fn now(response: Response) -> Handled {
    Ok(Answer::Now(response))
}

fn json<T: serde::Serialize>(value: &T) -> Handled {
    now(Response::ok().body(fastjson::to_vec(value)))
}

/// Refuses a name that is there and empty.
fn filled<'a>(field: &'static str, text: &'a str) -> Result<&'a str, NamesrvError> {
    if text.trim().is_empty() { Err(NamesrvError::Blank(field)) } else { Ok(text) }
}

// -- key-value table

pub fn put_kv(server: &Namesrv, header: PutKvConfig<'_>, ask: &Ask<'_>) -> Handled {
    if header.namespace.is_empty() || header.key.is_empty() {
        return Err(NamesrvError::KvNull);
    }
    server.kv.borrow_mut().put(header.namespace, header.key, header.value);
    info!(namespace = header.namespace, key = header.key, "key-value entry set");
    server.save_kv(ask);
    Ok(Answer::Later)
}

pub fn get_kv(server: &Namesrv, header: KvKey<'_>, _: &Ask<'_>) -> Handled {
    match server.kv.borrow().get(header.namespace, header.key) {
        Some(value) => now(Response::ok().with("value", value.to_owned())),
        None => Err(NamesrvError::NoKv(format!("Namespace: {} Key: {}", header.namespace, header.key))),
    }
}

pub fn delete_kv(server: &Namesrv, header: KvKey<'_>, ask: &Ask<'_>) -> Handled {
    if !server.kv.borrow_mut().delete(header.namespace, header.key) {
        return now(Response::ok());
    }
    info!(namespace = header.namespace, key = header.key, "key-value entry deleted");
    server.save_kv(ask);
    Ok(Answer::Later)
}

pub fn list_kv(server: &Namesrv, header: KvNamespace<'_>, _: &Ask<'_>) -> Handled {
    match server.kv.borrow().list(header.namespace) {
        Some(table) => json(&KvTable { table: table.clone() }),
        None => Err(NamesrvError::NoKv(format!("Namespace: {}", header.namespace))),
    }
}

// -- brokers

pub fn register_broker(server: &Namesrv, header: RegisterBroker<'_>, ask: &Ask<'_>) -> Handled {
    if header.body_crc32 != 0 && body_crc(ask.cmd.body) != header.body_crc32 as u32 {
        return Err(NamesrvError::Crc);
    }
    let body = registration_body(&header, ask)?;
    let registration = Registration {
        cluster: filled("clusterName", header.cluster_name)?,
        name: filled("brokerName", header.broker_name)?,
        addr: filled("brokerAddr", header.broker_addr)?,
        id: header.broker_id,
        ha_addr: header.ha_server_addr,
        zone: header.zone_name,
        timeout_ms: header.heartbeat_timeout_ms,
        acting_master: header.enable_acting_master,
        body: &body,
        conn: ask.conn.id(),
    };
    let registered = server.table.borrow_mut().register(&registration, server.now_ms());
    debug!(broker = header.broker_name, id = header.broker_id, addr = header.broker_addr, "broker registered");
    server.tell(registered.notice);
    let mut response = Response::ok();
    if let Some((master, ha)) = registered.master {
        response = response.with("masterAddr", master).with("haServerAddr", ha);
    }
    if server.config.borrow().return_order_config
        && let Some(table) = server.kv.borrow().list(ORDER_TOPIC_CONFIG)
    {
        response.body = fastjson::to_vec(&KvTable { table: table.clone() });
    }
    now(response)
}

/// No body is an empty table with version 0.
fn registration_body(header: &RegisterBroker<'_>, ask: &Ask<'_>) -> Result<RegisterBrokerBody, NamesrvError> {
    let (bytes, version) = (ask.cmd.body, ask.cmd.version);
    if bytes.is_empty() {
        return Ok(RegisterBrokerBody::default());
    }
    if version < FULL_BODY_VERSION {
        let topics = body::parse(bytes)?;
        return Ok(RegisterBrokerBody { topic_config_serialize_wrapper: topics, ..RegisterBrokerBody::default() });
    }
    Ok(match header.compressed {
        true => RegisterBrokerBody::decode_compressed(bytes, version)?,
        false => RegisterBrokerBody::decode_plain(bytes)?,
    })
}

pub fn unregister_broker(server: &Namesrv, header: UnregisterBroker<'_>, ask: &Ask<'_>) -> Handled {
    let UnregisterBroker { broker_name, broker_addr, cluster_name, broker_id } = header;
    let gone = server.table.borrow_mut().unregister(cluster_name, broker_addr, broker_name, broker_id, ask.conn.id());
    info!(broker = broker_name, id = broker_id, addr = broker_addr, "broker unregistered");
    server.tell(gone);
    now(Response::ok())
}

pub fn query_data_version(server: &Namesrv, header: QueryDataVersion<'_>, ask: &Ask<'_>) -> Handled {
    let version: DataVersion = body::parse(ask.cmd.body)?;
    let mut table = server.table.borrow_mut();
    let answer = table.query_data_version(header.cluster_name, header.broker_addr, version, server.now_ms());
    let body = answer.stored.map(|stored| fastjson::to_vec(&stored)).unwrap_or_default();
    now(Response::ok().with("changed", answer.changed).body(body))
}

pub fn broker_heartbeat(server: &Namesrv, header: BrokerHeartbeat<'_>, _: &Ask<'_>) -> Handled {
    server.table.borrow_mut().heartbeat(header.cluster_name, header.broker_addr, server.now_ms());
    now(Response::ok())
}

// -- topics

pub fn register_topic(server: &Namesrv, header: RegisterTopic<'_>, ask: &Ask<'_>) -> Handled {
    let route: TopicRouteData = body::parse(ask.cmd.body)?;
    server.table.borrow_mut().register_topic(filled("topic", header.topic)?, &route);
    now(Response::ok())
}

pub fn delete_topic(server: &Namesrv, header: DeleteTopicInNamesrv<'_>, _: &Ask<'_>) -> Handled {
    server.table.borrow_mut().delete_topic(header.topic, header.cluster_name);
    info!(topic = header.topic, cluster = header.cluster_name, "topic deleted");
    now(Response::ok())
}

pub fn route(server: &Namesrv, header: GetRouteInfo<'_>, ask: &Ask<'_>) -> Handled {
    let config = server.config.borrow();
    if config.wait_for_service && server.started.elapsed().as_secs() < config.wait_seconds {
        return Err(NamesrvError::NotReady);
    }
    let found = server.table.borrow().route(header.topic);
    let mut route = found.ok_or_else(|| NamesrvError::NoRoute(header.topic.to_owned()))?;
    if config.order_message {
        let kv = server.kv.borrow();
        // An empty text would break static topics, so it counts as none.
        let order = kv.get(ORDER_TOPIC_CONFIG, header.topic).filter(|order| !order.is_empty());
        route.order_topic_conf = order.map(str::to_owned);
    }
    if let Some(zone) = header.zone_name.filter(|_| header.zone_mode.is_some_and(|on| on.eq_ignore_ascii_case("true")))
    {
        keep_zone(&mut route, zone);
    }
    now(Response::ok().body(route.encode(ask.cmd.version, header.accept_standard_json_only)))
}

pub fn cluster_info(server: &Namesrv, _: NoHeader, _: &Ask<'_>) -> Handled {
    json(&server.table.borrow().cluster_info())
}

pub fn member_group(server: &Namesrv, header: GetBrokerMemberGroup<'_>, _: &Ask<'_>) -> Handled {
    let group = server.table.borrow().member_group(header.cluster_name, header.broker_name);
    json(&BrokerMemberGroupBody { broker_member_group: group })
}

pub fn wipe_write_perm(server: &Namesrv, header: BrokerNameOnly<'_>, _: &Ask<'_>) -> Handled {
    let count = server.table.borrow_mut().wipe_write_perm(header.broker_name);
    info!(broker = header.broker_name, topics = count, "write permission wiped");
    now(Response::ok().with("wipeTopicCount", count as u64))
}

pub fn add_write_perm(server: &Namesrv, header: BrokerNameOnly<'_>, _: &Ask<'_>) -> Handled {
    let count = server.table.borrow_mut().add_write_perm(header.broker_name);
    info!(broker = header.broker_name, topics = count, "write permission added");
    now(Response::ok().with("addTopicCount", count as u64))
}

/// A list, unless lists of its kind are switched off.
fn list(enabled: bool, list: impl FnOnce() -> TopicList) -> Handled {
    if enabled { json(&list()) } else { Err(NamesrvError::Disabled) }
}

pub fn all_topics(server: &Namesrv, _: NoHeader, _: &Ask<'_>) -> Handled {
    list(server.config.borrow().all_topic_list, || server.table.borrow().all_topics())
}

pub fn topics_of_cluster(server: &Namesrv, header: GetTopicsByCluster<'_>, _: &Ask<'_>) -> Handled {
    list(server.config.borrow().topic_list, || server.table.borrow().topics_of_cluster(header.cluster))
}

pub fn system_topics(server: &Namesrv, _: NoHeader, _: &Ask<'_>) -> Handled {
    json(&server.table.borrow().system_topics())
}

pub fn unit_topics(server: &Namesrv, _: NoHeader, ask: &Ask<'_>) -> Handled {
    let which = match ask.cmd.code {
        request::GET_UNIT_TOPIC_LIST => UnitTopics::Unit,
        request::GET_HAS_UNIT_SUB_TOPIC_LIST => UnitTopics::UnitSub,
        _ => UnitTopics::UnitSubNotUnit,
    };
    list(server.config.borrow().topic_list, || server.table.borrow().unit_topics(which))
}

// -- configuration

pub fn update_config(server: &Namesrv, _: NoHeader, ask: &Ask<'_>) -> Handled {
    if ask.cmd.body.is_empty() {
        return Err(body::BodyError::Missing.into());
    }
    let text = std::str::from_utf8(ask.cmd.body).map_err(|_| UpdateError::Syntax)?;
    let config = server.config.borrow().update(text)?;
    server.table.borrow_mut().set_rules(config.rules());
    *server.config.borrow_mut() = config;
    info!("configuration updated by {}", ask.conn.peer());
    server.save_config(ask);
    Ok(Answer::Later)
}

pub fn get_config(server: &Namesrv, _: NoHeader, _: &Ask<'_>) -> Handled {
    now(Response::ok().body(server.config.borrow().to_text().into_bytes()))
}
