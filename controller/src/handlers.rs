//! One function a request: from its decoded header to the answer. Source: replication sheet 8, wire-protocol sheet 10.2.
use crate::raft::{log_store::blocking, network};
use crate::server::Call;
use crate::state::{Ask, Group, Outcome, Refusal};
use crate::{Controller, ControllerError};
use std::collections::BTreeSet;
use tracing::{info, warn};
use uringmq_proto::body::controller::{BrokerReplicasInfo, Elected, Replica, ReplicasInfo, SyncStateSet};
use uringmq_proto::body::{self, BodyError, route::BrokerMemberGroup};
use uringmq_proto::command::Response;
use uringmq_proto::fastjson;
use uringmq_proto::headers::controller::*;
use uringmq_proto::headers::route::BrokerHeartbeat;
use uringmq_proto::headers::{Header, NoHeader};
use uringmq_proto::settings::listed::{Settings, UpdateError};

type Handled = Result<Response, ControllerError>;

/// Longest name or address that is taken; they are kept for ever.
const TEXT_BYTES_MAX: usize = 1024;

fn bounded(field: &'static str, text: &str) -> Result<String, ControllerError> {
    match text.len() {
        0 => Err(ControllerError::Blank(field)),
        bytes if bytes > TEXT_BYTES_MAX => Err(ControllerError::TooLong { field, bytes, max: TEXT_BYTES_MAX }),
        _ => Ok(text.to_owned()),
    }
}

fn refused(refusal: &Refusal) -> Response {
    Response::err(refusal.code(), refusal.to_string())
}

fn set_of(group: &Group) -> SyncStateSet {
    SyncStateSet { sync_state_set: group.sync_state_set.clone(), sync_state_set_epoch: group.sync_state_set_epoch }
}

/// Who is master, in the header; nothing where nobody is.
fn with_master(response: Response, group: &Group) -> Response {
    match (group.master, group.master_address()) {
        (Some(id), Some(address)) => response.with("masterBrokerId", id).with("masterAddress", address.to_owned()),
        _ => response,
    }
}

pub fn member_group(name: &str, group: &Group) -> BrokerMemberGroup {
    BrokerMemberGroup {
        broker_addrs: group.brokers.iter().map(|(id, broker)| (*id, broker.address.clone())).collect(),
        broker_name: name.to_owned(),
        cluster: group.cluster.clone(),
    }
}

// -- brokers

/// Also by a controller that does not lead: it may be the next one.
pub async fn heartbeat(server: &Controller, header: BrokerHeartbeat<'_>, call: &Call<'_>) -> Handled {
    let id = header.broker_id.ok_or(ControllerError::HeartbeatWithoutId)?;
    bounded("clusterName", header.cluster_name)?;
    bounded("brokerName", header.broker_name)?;
    if !server.live().heard(&header, id, call.connection, server.now_ms()) {
        warn!("too many brokers: the heartbeat of {} {id} is not taken", header.broker_name);
    }
    Ok(Response::ok())
}

pub async fn next_broker_id(server: &Controller, header: GetNextBrokerId<'_>, _: &Call<'_>) -> Handled {
    server.node.up_to_date().await?;
    let next = server.node.applied().state.next_id(header.broker_name);
    let response = Response::ok().with("clusterName", header.cluster_name.to_owned());
    Ok(response.with("brokerName", header.broker_name.to_owned()).with("nextBrokerId", next))
}

pub async fn apply_broker_id(server: &Controller, header: ApplyBrokerId<'_>, _: &Call<'_>) -> Handled {
    let ask = Ask::ApplyBrokerId {
        cluster: bounded("clusterName", header.cluster_name)?,
        group: bounded("brokerName", header.broker_name)?,
        id: header.applied_broker_id,
        check_code: bounded("registerCheckCode", header.register_check_code)?,
    };
    let outcome = server.node.decide(ask).await?;
    let response = outcome.refusal.as_ref().map_or_else(Response::ok, refused);
    Ok(response.with("clusterName", header.cluster_name.to_owned()).with("brokerName", header.broker_name.to_owned()))
}

/// The master is named only while it is alive: otherwise the broker asks for an election.
pub async fn register_broker(server: &Controller, header: RegisterToController<'_>, _: &Call<'_>) -> Handled {
    let name = bounded("brokerName", header.broker_name)?;
    let address = bounded("brokerAddress", header.broker_address)?;
    let ask = Ask::Register { group: name.clone(), id: header.broker_id, address };
    let outcome = server.node.decide(ask).await?;
    let response = outcome.refusal.as_ref().map_or_else(Response::ok, refused);
    let mut response =
        response.with("clusterName", header.cluster_name.to_owned()).with("brokerName", header.broker_name.to_owned());
    if let (None, Some(group)) = (&outcome.refusal, &outcome.group) {
        let living = server.alive_ids(&name, &group.cluster);
        if group.master.is_some_and(|id| living.contains(&id)) {
            response = with_master(response, group)
                .with("masterEpoch", group.master_epoch)
                .with("syncStateSetEpoch", group.sync_state_set_epoch);
        }
        response.body = fastjson::to_vec(&set_of(group));
        info!(group = name, id = header.broker_id, address = header.broker_address, "broker registered");
    }
    Ok(response)
}

pub async fn elect_master(server: &Controller, header: ElectMaster<'_>, _: &Call<'_>) -> Handled {
    let by = Some(header.broker_id).filter(|id| *id != NO_BROKER_ID);
    let outcome = server.elect(header.broker_name, by, header.designate_elect).await?;
    Ok(elected(header.broker_name, &outcome))
}

/// Also where the master stays, its fields are told: the caller goes on with them.
fn elected(name: &str, outcome: &Outcome) -> Response {
    let response = outcome.refusal.as_ref().map_or_else(Response::ok, refused);
    let keeps = matches!(outcome.refusal, Some(Refusal::MasterAlive { .. }));
    match &outcome.group {
        Some(group) if outcome.refusal.is_none() || keeps => {
            let body = Elected {
                broker_member_group: (!keeps).then(|| member_group(name, group)),
                sync_state_set: group.sync_state_set.clone(),
            };
            with_master(response, group)
                .with("masterEpoch", group.master_epoch)
                .with("syncStateSetEpoch", group.sync_state_set_epoch)
                // Quoted keys, which everybody reads; mqadmin cannot read the bare ones of its own controller here.
                .body(fastjson::to_vec_strict(&body))
        }
        _ => response,
    }
}

pub async fn alter_sync_state_set(server: &Controller, header: AlterSyncStateSet<'_>, call: &Call<'_>) -> Handled {
    let wanted: SyncStateSet = body::parse(call.cmd.body)?;
    let alive = server.alive_ids_of(header.broker_name);
    let outcome = server
        .node
        .decide(Ask::AlterSyncStateSet {
            group: header.broker_name.to_owned(),
            master: header.master_broker_id,
            master_epoch: header.master_epoch,
            set: wanted.sync_state_set,
            set_epoch: wanted.sync_state_set_epoch,
            alive,
        })
        .await?;
    match (&outcome.refusal, &outcome.group) {
        (None, Some(group)) => {
            info!(group = header.broker_name, set = ?group.sync_state_set, "SyncStateSet altered");
            let response = Response::ok().with("newSyncStateSetEpoch", group.sync_state_set_epoch);
            Ok(response.body(fastjson::to_vec(&set_of(group))))
        }
        (Some(refusal), _) => Ok(refused(refusal).with("newSyncStateSetEpoch", 0)),
        (None, None) => unreachable!("a set that was altered has a group"),
    }
}

// -- questions

pub async fn replica_info(server: &Controller, header: GetReplicaInfo<'_>, _: &Call<'_>) -> Handled {
    server.node.up_to_date().await?;
    let applied = server.node.applied();
    let unknown = || ControllerError::NoGroup(header.broker_name.to_owned());
    let group = applied.state.group(header.broker_name).ok_or_else(unknown)?;
    let response = with_master(Response::ok(), group).with("masterEpoch", group.master_epoch);
    Ok(response.body(fastjson::to_vec(&set_of(group))))
}

/// Answered by every controller: with it brokers and tools find the one that leads.
pub async fn metadata(server: &Controller, _: NoHeader, call: &Call<'_>) -> Handled {
    let node = &server.node;
    // One alone has no configured address; where it was reached is one by which it is reached.
    let address = |number: u64| match node.peers.address(number) {
        Some(address) => address.to_owned(),
        None => call.local.to_string(),
    };
    let peers = match node.peers.is_empty() {
        true => format!("n{}:{};", node.number, call.local),
        false => node.peers.to_listing(),
    };
    let leader = node.leader();
    let mut response = Response::ok().with("group", node.group.clone());
    if let Some(leader) = leader {
        response =
            response.with("controllerLeaderId", format!("n{leader}")).with("controllerLeaderAddress", address(leader));
    }
    Ok(response.with("isLeader", leader == Some(node.number)).with("peers", peers))
}

/// The body is a list of broker names; who is not known is left out.
pub async fn sync_state_data(server: &Controller, _: NoHeader, call: &Call<'_>) -> Handled {
    if call.cmd.body.is_empty() {
        return Err(BodyError::Missing.into());
    }
    let names: Vec<String> = serde_json::from_slice(call.cmd.body).map_err(BodyError::Json)?;
    server.node.up_to_date().await?;
    let groups: Vec<(String, Group)> = {
        let applied = server.node.applied();
        names.into_iter().filter_map(|name| applied.state.group(&name).cloned().map(|group| (name, group))).collect()
    };
    let info = groups.into_iter().map(|(name, group)| {
        let living = server.alive_ids(&name, &group.cluster);
        let info = replicas_info(&name, &group, &living);
        (name, info)
    });
    Ok(Response::ok().body(fastjson::to_vec(&BrokerReplicasInfo { replicas_info_table: info.collect() })))
}

fn replicas_info(name: &str, group: &Group, living: &BTreeSet<i64>) -> ReplicasInfo {
    let replicas = group.brokers.iter().map(|(id, broker)| Replica {
        alive: living.contains(id),
        broker_address: broker.address.clone(),
        broker_id: *id,
        broker_name: name.to_owned(),
    });
    let (in_sync, others) = replicas.partition(|one| group.sync_state_set.contains(&one.broker_id));
    ReplicasInfo {
        in_sync_replicas: in_sync,
        master_address: group.master_address().map(str::to_owned),
        master_broker_id: group.master,
        master_epoch: group.master_epoch,
        not_in_sync_replicas: others,
        sync_state_set_epoch: group.sync_state_set_epoch,
    }
}

// -- operators

pub async fn clean_broker_data(server: &Controller, header: CleanBrokerData<'_>, call: &Call<'_>) -> Handled {
    let listed = header.broker_controller_ids_to_clean.unwrap_or_default();
    let ids: Result<BTreeSet<i64>, _> = listed.split(';').filter(|id| !id.trim().is_empty()).map(parse_id).collect();
    let ask = Ask::Clean {
        group: header.broker_name.to_owned(),
        ids: ids?,
        living: header.clean_living_broker,
        alive: server.alive_ids_of(header.broker_name),
    };
    let outcome = server.node.decide(ask).await?;
    if outcome.refusal.is_none() {
        info!(group = header.broker_name, ids = listed, "broker data cleaned by {}", call.peer);
    }
    Ok(outcome.refusal.as_ref().map_or_else(Response::ok, refused))
}

fn parse_id(text: &str) -> Result<i64, ControllerError> {
    text.trim().parse().map_err(|_| ControllerError::CleanIds(text.chars().take(40).collect()))
}

/// Of this controller alone, leading or not.
pub async fn update_config(server: &Controller, _: NoHeader, call: &Call<'_>) -> Handled {
    let text = std::str::from_utf8(call.cmd.body).map_err(|_| UpdateError::Syntax)?;
    if text.trim().is_empty() {
        return Ok(Response::ok());
    }
    if server.config().is_inside() {
        return Err(ControllerError::Inside);
    }
    let _one_at_a_time = server.updating.lock().await;
    let config = server.config().update(text)?;
    let (path, text) = (config.store_path.clone(), config.to_text());
    server.set_config(config);
    info!("configuration updated by {}", call.peer);
    let saved = blocking(move || crate::save_text(&path, &text)).await;
    saved.map_err(ControllerError::NotSaved)?;
    Ok(Response::ok())
}

pub async fn get_config(server: &Controller, _: NoHeader, _: &Call<'_>) -> Handled {
    Ok(Response::ok().body(server.config().to_text().into_bytes()))
}

// -- other controllers

pub fn is_from_peer(code: i32) -> bool {
    matches!(code, network::APPEND | network::VOTE | network::SNAPSHOT)
}

pub async fn peer(server: &Controller, call: &Call<'_>) -> Handled {
    let header = network::ToPeer::decode(call.cmd)?;
    if header.group != server.node.group || header.to != server.node.number as i64 {
        let (group, to) = (header.group.to_owned(), header.to);
        return Err(ControllerError::Astray { group, to });
    }
    let answer = network::receive(&server.node.raft, call.cmd.code, call.cmd.body).await;
    Ok(Response::ok().body(answer.map_err(BodyError::Json)?))
}
