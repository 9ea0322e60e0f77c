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
    PULL_MESSAGE             => Local,   Read,  sync, h::pull::pull_message, main_only;
    LITE_PULL_MESSAGE        => Local,   Read,  sync, h::pull::pull_message, main_only;
}

pub fn row(code: i32) -> Option<&'static Row> {
    ROWS.iter().find(|r| r.code == code)
}
