//! The one table of request codes: code, where it is handled, how it is admitted, by what.
//!
//! `home`: `local` = the shard of the connection; `control` = shard 0; `owner` = the owner of the queue named by header fields
//! `topic` and `queueId` (the connection's shard when the topic is unknown: the handler then says so).
//! `form`: `sync` handlers answer before they return, or keep the [`Origin`] and answer later; `task` handlers are async and get
//! their own copy of the frame.
use crate::error::BrokerError;
use crate::handlers::{self as h};
use crate::shard::Shard;
use std::net::SocketAddr;
use std::rc::Rc;
use uringmq_proto::codes::request as codes;
use uringmq_proto::command::{Command, Response};
use uringmq_remoting::ConnId;

/// Whom to answer; plain data that crosses cores.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub conn: ConnId,
    pub opaque: i32,
    pub oneway: bool,
    pub peer: SocketAddr,
    pub version: i32,
    pub language: u8,
    /// The port it came in by is listenPort - 2.
    pub fast: bool,
}

/// A request on its home shard.
pub struct Request<'a> {
    pub cmd: &'a Command<'a>,
    /// The whole frame, for passing on.
    pub frame: &'a [u8],
    pub origin: Origin,
    /// Control already made what was missing once; a second miss is final.
    pub retried: bool,
}

/// What a sync handler leaves behind.
pub enum Answer {
    Now(Response),
    /// The handler kept the origin and will call `Shard::respond`, or nobody is to be answered.
    Later,
    /// Control handlers only: the missing thing was made and published; run the request again where it came in.
    Retry,
}

impl From<Response> for Answer {
    fn from(r: Response) -> Self {
        Answer::Now(r)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    Local,
    Control,
    Owner,
}

/// Which budget admits it: writes are refused first, heartbeats last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Write,
    Read,
    Light,
}

pub type SyncHandler = fn(&Rc<Shard>, &Request<'_>) -> Result<Answer, BrokerError>;
pub type TaskFuture = std::pin::Pin<Box<dyn std::future::Future<Output = Result<Response, BrokerError>>>>;
/// `frame` is the request's own copy.
pub type TaskHandler = fn(Rc<Shard>, Rc<Vec<u8>>, Origin) -> TaskFuture;

#[derive(Clone, Copy)]
pub enum Handler {
    Sync(SyncHandler),
    Task(TaskHandler),
}

pub struct Row {
    pub code: i32,
    pub name: &'static str,
    pub home: Home,
    pub lane: Lane,
    pub handler: Handler,
    /// Served on the fast port too.
    pub fast: bool,
}

macro_rules! requests {
    ($($code:ident => $home:ident, $lane:ident, $form:ident, $handler:path $(, $main_only:ident)?;)*) => {
        pub const ROWS: &[Row] = &[$(Row {
            code: codes::$code,
            name: stringify!($code),
            home: Home::$home,
            lane: Lane::$lane,
            handler: requests!(@ $form $handler),
            fast: requests!(@fast $($main_only)?),
        }),*];
    };
    (@ sync $handler:path) => { Handler::Sync($handler) };
    (@ task $handler:path) => {
        Handler::Task(|shard, frame, origin| Box::pin(async move {
            h::with_command(&frame, async |cmd| {
                let req = Request { cmd, frame: &frame, origin, retried: false };
                $handler(&shard, &req).await
            }).await
        }))
    };
    (@fast main_only) => { false };
    (@fast) => { true };
}

requests! {
    // code                     home     lane   form  handler
    SEND_MESSAGE             => Local,   Write, sync, h::send::send_message;
    SEND_MESSAGE_V2          => Local,   Write, sync, h::send::send_message;
    SEND_BATCH_MESSAGE       => Local,   Write, sync, h::send::send_message;
    SEND_REPLY_MESSAGE       => Control, Write, task, h::reply::send_reply;
    SEND_REPLY_MESSAGE_V2    => Control, Write, task, h::reply::send_reply;
    PULL_MESSAGE             => Local,   Read,  sync, h::pull::pull_message, main_only;
    LITE_PULL_MESSAGE        => Local,   Read,  sync, h::pull::pull_message, main_only;
    HEART_BEAT               => Control, Light, sync, h::client::heart_beat;
    UNREGISTER_CLIENT        => Control, Light, sync, h::client::unregister_client;
    GET_CONSUMER_LIST_BY_GROUP => Control, Light, sync, h::client::consumer_list;
    CHECK_CLIENT_CONFIG      => Control, Light, sync, h::client::check_client_config;
    GET_CONSUMER_CONNECTION_LIST => Control, Light, sync, h::client::consumer_connections;
    GET_PRODUCER_CONNECTION_LIST => Control, Light, sync, h::client::producer_connections;
    GET_ALL_PRODUCER_INFO    => Control, Light, sync, h::client::all_producers;
    QUERY_ASSIGNMENT         => Control, Light, task, h::balance::query_assignment;
    SET_MESSAGE_REQUEST_MODE => Control, Light, task, h::balance::set_request_mode;
    GET_ALL_MESSAGE_REQUEST_MODE => Control, Light, sync, h::balance::all_request_modes;
    LOCK_BATCH_MQ            => Control, Light, task, h::lock::lock_batch;
    UNLOCK_BATCH_MQ          => Control, Light, task, h::lock::unlock_batch;
    UPDATE_AND_CREATE_TOPIC  => Control, Light, task, h::topic::create_topic;
    UPDATE_AND_CREATE_TOPIC_LIST => Control, Light, task, h::topic::create_topics;
    UPDATE_AND_CREATE_STATIC_TOPIC => Control, Light, task, h::static_topic::create;
    DELETE_TOPIC_IN_BROKER   => Control, Light, task, h::topic::delete_topic;
    GET_TOPIC_CONFIG         => Control, Light, sync, h::topic::topic_config;
    GET_ALL_TOPIC_CONFIG     => Control, Light, sync, h::topic::all_topic_configs;
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER => Control, Light, sync, h::topic::system_topics;
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => Control, Light, task, h::group::create_group;
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST => Control, Light, task, h::group::create_groups;
    DELETE_SUBSCRIPTIONGROUP => Control, Light, task, h::group::delete_group;
    GET_SUBSCRIPTIONGROUP_CONFIG => Control, Light, sync, h::group::group_config;
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG => Control, Light, sync, h::group::all_group_configs;
    UPDATE_AND_GET_GROUP_FORBIDDEN => Control, Light, task, h::group::group_forbidden;
    CONSUMER_SEND_MSG_BACK   => Local,   Write, sync, h::send_back::send_back;

    POP_MESSAGE              => Local,   Write, sync, h::pop::pop_message, main_only;
    PEEK_MESSAGE             => Local,   Read,  sync, h::pop::peek_message, main_only;
    ACK_MESSAGE              => Local,   Write, task, h::ack::ack_message;
    BATCH_ACK_MESSAGE        => Local,   Write, task, h::ack::batch_ack;
    CHANGE_MESSAGE_INVISIBLETIME => Local, Write, task, h::ack::change_invisible_time;
    NOTIFICATION             => Local,   Read,  sync, h::pop::notification, main_only;
    POLLING_INFO             => Local,   Light, task, h::pop::polling_info;

    END_TRANSACTION          => Control, Light, sync, h::transaction::end_transaction;
    RESUME_CHECK_HALF_MESSAGE => Control, Light, task, h::transaction::resume_check;

    QUERY_CONSUMER_OFFSET    => Owner,   Light, sync, h::offset::query_consumer_offset;
    UPDATE_CONSUMER_OFFSET   => Owner,   Light, sync, h::offset::update_consumer_offset;
    SEARCH_OFFSET_BY_TIMESTAMP => Owner, Read,  task, h::offset::search_offset;
    GET_MAX_OFFSET           => Owner,   Light, sync, h::offset::max_offset;
    GET_MIN_OFFSET           => Owner,   Light, sync, h::offset::min_offset;
    GET_EARLIEST_MSG_STORETIME => Owner, Read,  task, h::offset::earliest_store_time;
    GET_ALL_CONSUMER_OFFSET  => Control, Read,  task, h::offset::all_consumer_offsets;
    INVOKE_BROKER_TO_RESET_OFFSET => Control, Light, task, h::offset::reset_offset;
    QUERY_CORRECTION_OFFSET  => Control, Light, task, h::offset::query_correction_offset;
    CLONE_GROUP_OFFSET       => Control, Light, task, h::offset::clone_group_offset;

    QUERY_MESSAGE            => Control, Read,  task, h::query::query_message;
    VIEW_MESSAGE_BY_ID       => Local,   Read,  task, h::query::view_message;
    QUERY_CONSUME_QUEUE      => Owner,   Read,  task, h::query::query_consume_queue;

    GET_TOPIC_STATS_INFO     => Local,   Read,  task, h::stats::topic_stats;
    GET_CONSUME_STATS        => Local,   Read,  task, h::stats::consume_stats;
    GET_BROKER_CONSUME_STATS => Local,   Read,  task, h::stats::broker_consume_stats;
    QUERY_CONSUME_TIME_SPAN  => Local,   Read,  task, h::stats::consume_time_span;
    QUERY_TOPIC_CONSUME_BY_WHO => Local, Light, task, h::stats::consumed_by_whom;
    QUERY_TOPICS_BY_CONSUMER => Local,   Light, task, h::stats::topics_by_consumer;
    QUERY_SUBSCRIPTION_BY_CONSUMER => Local, Light, task, h::stats::subscription_by_consumer;
    VIEW_BROKER_STATS_DATA   => Control, Light, task, h::stats::broker_stats;

    UPDATE_BROKER_CONFIG     => Control, Light, task, h::admin::update_config;
    GET_BROKER_CONFIG        => Control, Light, sync, h::admin::get_config;
    GET_BROKER_RUNTIME_INFO  => Control, Light, task, h::admin::runtime_info;
    CLEAN_EXPIRED_CONSUMEQUEUE => Control, Light, task, h::admin::clean_expired_queues;
    CLEAN_UNUSED_TOPIC       => Control, Light, task, h::admin::clean_unused_topics;
    DELETE_EXPIRED_COMMITLOG => Control, Light, task, h::admin::delete_expired_log;
    GET_BROKER_HA_STATUS     => Control, Light, task, h::admin::ha_status;
    RESET_MASTER_FLUSH_OFFSET => Local,  Light, sync, h::admin::reset_master_flush_offset;
    GET_BROKER_EPOCH_CACHE   => Control, Light, task, h::replicas::epochs;
    NOTIFY_BROKER_ROLE_CHANGED => Local, Light, sync, h::replicas::role_changed;
    EXCHANGE_BROKER_HA_INFO  => Local,   Light, sync, h::replicas::exchange_ha_info;
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG => Control, Light, sync, h::cold::update_thresholds;
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG => Control, Light, sync, h::cold::remove_threshold;
    GET_COLD_DATA_FLOW_CTR_INFO => Control, Light, sync, h::cold::thresholds;
    SET_COMMITLOG_READ_MODE  => Control, Light, sync, h::cold::set_read_ahead_mode;
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS => Control, Light, sync, h::rocksdb::check_progress;
    EXPORT_ROCKSDB_CONFIG_TO_JSON => Control, Light, task, h::rocksdb::export_config;
    POP_ROLLBACK             => Control, Light, sync, h::rocksdb::roll_back_pops;
    GET_ALL_DELAY_OFFSET     => Control, Light, sync, h::admin::all_delay_offsets;
    GET_TIMER_CHECK_POINT    => Control, Light, sync, h::timer::check_point;
    GET_TIMER_METRICS        => Control, Light, sync, h::timer::metrics;
    RECALL_MESSAGE           => Local,   Write, task, h::timer::recall_message;

    GET_CONSUMER_RUNNING_INFO => Control, Light, task, h::relay::consumer_running_info;
    CONSUME_MESSAGE_DIRECTLY => Control, Light, task, h::relay::consume_directly;
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS => Control, Light, task, h::relay::consumer_status;
}

pub fn row(code: i32) -> Option<&'static Row> {
    ROWS.iter().find(|r| r.code == code)
}
