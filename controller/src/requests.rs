//! The table of request codes: one row, one handler. Everything else is answered with code 3.
use crate::handlers as h;
use crate::server::Call;
use crate::{Controller, ControllerError};
use uringmq_proto::codes::request as codes;
use uringmq_proto::command::Response;
use uringmq_proto::headers::controller::*;
use uringmq_proto::headers::route::BrokerHeartbeat;
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
        pub async fn dispatch(server: &Controller, call: &Call<'_>) -> Result<Response, ControllerError> {
            match call.cmd.code {
                $(codes::$code => $handler(server, <$header as Header>::decode(call.cmd)?, call).await,)*
                code if h::is_from_peer(code) => h::peer(server, call).await,
                other => Err(ControllerError::UnknownCode(other)),
            }
        }
    };
}

requests! {
    // code                         header                 handler
    BROKER_HEARTBEAT               => BrokerHeartbeat,      h::heartbeat;
    CONTROLLER_ALTER_SYNC_STATE_SET => AlterSyncStateSet,   h::alter_sync_state_set;
    CONTROLLER_ELECT_MASTER        => ElectMaster,          h::elect_master;
    CONTROLLER_REGISTER_BROKER     => RegisterToController, h::register_broker;
    CONTROLLER_GET_REPLICA_INFO    => GetReplicaInfo,       h::replica_info;
    CONTROLLER_GET_METADATA_INFO   => NoHeader,             h::metadata;
    CONTROLLER_GET_SYNC_STATE_DATA => NoHeader,             h::sync_state_data;
    UPDATE_CONTROLLER_CONFIG       => NoHeader,             h::update_config;
    GET_CONTROLLER_CONFIG          => NoHeader,             h::get_config;
    CLEAN_BROKER_DATA              => CleanBrokerData,      h::clean_broker_data;
    CONTROLLER_GET_NEXT_BROKER_ID  => GetNextBrokerId,      h::next_broker_id;
    CONTROLLER_APPLY_BROKER_ID     => ApplyBrokerId,        h::apply_broker_id;
}
