//! The one place where an error meets a response code. No `_` arm, so a new variant asks here.
use crate::error::BrokerError;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_store::StoreError;

pub fn code_of(e: &BrokerError) -> i32 {
    match e {
        BrokerError::UnknownCode(_) => code::REQUEST_CODE_NOT_SUPPORTED,
        BrokerError::Header(_) | BrokerError::Body(_) => code::SYSTEM_ERROR,
        BrokerError::NoTopic(_) => code::TOPIC_NOT_EXIST,
        BrokerError::NoGroup(_) => code::SUBSCRIPTION_GROUP_NOT_EXIST,
        BrokerError::Busy(_) => code::SYSTEM_BUSY,
        BrokerError::Refused { code, .. } => *code,
        BrokerError::Store(e) => match e {
            StoreError::TooLarge { .. } => code::MESSAGE_ILLEGAL,
            StoreError::NoSpace(_) | StoreError::DiskFull | StoreError::Slave | StoreError::Poisoned { .. } => {
                code::SERVICE_NOT_AVAILABLE
            }
            StoreError::Corrupt { .. }
            | StoreError::TooFewReplicas
            | StoreError::OutOfRange(_)
            | StoreError::Io { .. }
            | StoreError::File { .. }
            | StoreError::Refused { .. } => code::SYSTEM_ERROR,
        },
    }
}

/// The error answer, with a remark that a person can read.
pub fn of_error(e: &BrokerError) -> Response {
    let remark = match e {
        BrokerError::Store(
            s @ (StoreError::NoSpace(_) | StoreError::DiskFull | StoreError::Slave | StoreError::Poisoned { .. }),
        ) => {
            format!("service not available now. {s}")
        }
        other => other.to_string(),
    };
    Response::err(code_of(e), remark)
}
