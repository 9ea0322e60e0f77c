//! The table of request codes: one row, one handler. Everything else is answered with code 3.
use crate::handlers as h;
use crate::{Answer, Ask, Namesrv, NamesrvError};
use uringmq_proto::codes::request as codes;
use uringmq_proto::headers::route::*;
use uringmq_proto::headers::{Header, NoHeader};

/// A code that is served, for documents and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub code: i32,
    pub name: &'static str,
}

macro_rules! requests {
    ($($code:ident => $header:ident, $handler:path;)*) => {
        pub const ROWS: &[Row] = &[$(Row { code: codes::$code, name: stringify!($code) }),*];

        /// Decodes the header of a request and hands it to its handler.
        pub fn dispatch(server: &Namesrv, ask: &Ask<'_>) -> Result<Answer, NamesrvError> {
            match ask.cmd.code {
                $(codes::$code => $handler(server, <$header as Header>::decode(ask.cmd)?, ask),)*
                other => Err(NamesrvError::UnknownCode(other)),
            }
        }
    };
}

requests! {
    // code                            header                 handler
    PUT_KV_CONFIG                      => PutKvConfig,           h::put_kv;
    GET_KV_CONFIG                      => KvKey,                 h::get_kv;
    DELETE_KV_CONFIG                   => KvKey,                 h::delete_kv;
    GET_KVLIST_BY_NAMESPACE            => KvNamespace,           h::list_kv;
    REGISTER_BROKER                    => RegisterBroker,        h::register_broker;
    UNREGISTER_BROKER                  => UnregisterBroker,      h::unregister_broker;
    QUERY_DATA_VERSION                 => QueryDataVersion,      h::query_data_version;
    BROKER_HEARTBEAT                   => BrokerHeartbeat,       h::broker_heartbeat;
    REGISTER_TOPIC_IN_NAMESRV          => RegisterTopic,         h::register_topic;
    DELETE_TOPIC_IN_NAMESRV            => DeleteTopicInNamesrv,  h::delete_topic;
    GET_ROUTEINFO_BY_TOPIC             => GetRouteInfo,          h::route;
    GET_BROKER_CLUSTER_INFO            => NoHeader,              h::cluster_info;
    GET_BROKER_MEMBER_GROUP            => GetBrokerMemberGroup,  h::member_group;
    WIPE_WRITE_PERM_OF_BROKER          => BrokerNameOnly,        h::wipe_write_perm;
    ADD_WRITE_PERM_OF_BROKER           => BrokerNameOnly,        h::add_write_perm;
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER => NoHeader,              h::all_topics;
    GET_TOPICS_BY_CLUSTER              => GetTopicsByCluster,    h::topics_of_cluster;
    GET_SYSTEM_TOPIC_LIST_FROM_NS      => NoHeader,              h::system_topics;
    GET_UNIT_TOPIC_LIST                => NoHeader,              h::unit_topics;
    GET_HAS_UNIT_SUB_TOPIC_LIST        => NoHeader,              h::unit_topics;
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => NoHeader,              h::unit_topics;
    UPDATE_NAMESRV_CONFIG              => NoHeader,              h::update_config;
    GET_NAMESRV_CONFIG                 => NoHeader,              h::get_config;
}
