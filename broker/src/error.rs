//! What a handler can fail with. Where it meets a response code is `responses.rs`.
use std::borrow::Cow;
use thiserror::Error;
use uringmq_proto::command::FAQ;
use uringmq_proto::headers::HeaderError;
use uringmq_store::StoreError;

#[derive(Debug, Error)]
pub enum BrokerError {
    #[error(" request type {0} not supported")]
    UnknownCode(i32),
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// The body is missing or not what the code wants; the text names what.
    #[error("request body: {0}")]
    Body(String),
    #[error("topic[{0}] not exist, apply first please!{FAQ}")]
    NoTopic(String),
    #[error("subscription group [{0}] does not exist")]
    NoGroup(String),
    /// SYSTEM_BUSY; the text begins with the bracketed tag of wire-protocol sheet 1.8.
    #[error("{0}")]
    Busy(Cow<'static, str>),
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A refusal with its own code and text.
    #[error("{remark}")]
    Refused { code: i32, remark: Cow<'static, str> },
}

impl BrokerError {
    pub fn refused(code: i32, remark: impl Into<Cow<'static, str>>) -> Self {
        BrokerError::Refused { code, remark: remark.into() }
    }
}
