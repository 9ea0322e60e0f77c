//! Requests on their way from a socket to their handler, and our own requests to clients.
use crate::config::BrokerRole;
use crate::control;
use crate::error::BrokerError;
use crate::handlers::{create, static_topic};
use crate::mesh::{Forward, Msg};
use crate::requests::{self, Answer, Handler, Home, Lane, Origin, Request, Row};
use crate::responses;
use crate::shard::Shard;
use crate::shard::appends::IN_FLIGHT_BYTES_MAX;
use std::rc::Rc;
use std::time::Duration;
use tracing::warn;
use uringmq_proto::codes::request as code;
use uringmq_proto::command::{Command, OwnedCommand, Value};
use uringmq_proto::frame::{self, Split};
use uringmq_proto::types::QueueKey;
use uringmq_remoting::connection::{CallError, Conn};
use uringmq_remoting::{ConnId, Service};

/// The broker's service on one shard, for the main port or the fast one (listenPort - 2).
pub struct BrokerService {
    pub shard: Rc<Shard>,
    pub fast: bool,
}

impl Service for BrokerService {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, frame: &[u8]) {
        let origin = Origin {
            conn: conn.id(),
            opaque: cmd.opaque,
            oneway: cmd.is_oneway(),
            peer: conn.peer(),
            version: cmd.version,
            language: cmd.language,
            fast: self.fast,
        };
        let req = Request { cmd, frame, origin, retried: false };
        self.shard.take_request(&req);
    }

    fn on_turn(&self, _: &Rc<Conn>) {
        self.shard.push_appends();
    }

    fn on_close(&self, conn: &Rc<Conn>) {
        let id = conn.id();
        if self.shard.id == 0 {
            control::on_conn_closed(&self.shard, id);
        } else {
            self.shard.mesh.push(0, Msg::Run(Box::new(move |shard| control::on_conn_closed(&shard, id))));
        }
    }
}

/// Decodes a frame that was decoded once before and calls `f`.
fn with_frame<T>(bytes: &[u8], f: impl FnOnce(&Command<'_>) -> T) -> Option<T> {
    match frame::split(bytes, false) {
        Ok(Split::Whole { frame, .. }) => Command::decode(frame).ok().map(|cmd| f(&cmd)),
        _ => None,
    }
}

impl Shard {
    /// A request as its connection's shard sees it: admission, then its home.
    fn take_request(self: &Rc<Self>, req: &Request<'_>) {
        let row = match requests::row(req.cmd.code) {
            Some(row) if row.fast || !req.origin.fast => row,
            _ => return self.finish(req, Err(BrokerError::UnknownCode(req.cmd.code))),
        };
        if row.lane == Lane::Write && self.appends.in_flight_bytes() > IN_FLIGHT_BYTES_MAX {
            let busy = BrokerError::Busy("[OVERLOAD]system busy, too many appends in flight".into());
            return self.finish(req, Err(busy));
        }
        if let Some(refusal) = self.refused_here(row) {
            return self.finish(req, Err(refusal));
        }
        if let Some(outcome) = static_topic::take(self, row, req) {
            return self.finish(req, outcome);
        }
        let home = match row.home {
            Home::Local => self.id,
            Home::Control => 0,
            Home::Owner => self.home_of_queue(req.cmd),
        };
        if home == self.id {
            self.handle(row, req);
        } else {
            self.forward(home, req.frame, req.origin);
        }
    }

    /// What a slave does not serve, in Apache's words: sends, and pulls unless slaveReadEnable.
    fn refused_here(&self, row: &Row) -> Option<BrokerError> {
        let config = self.config.borrow();
        let pull = matches!(row.code, code::PULL_MESSAGE | code::LITE_PULL_MESSAGE);
        let refused = row.lane == Lane::Write || (pull && !config.slave_read);
        (refused && config.role == BrokerRole::Slave)
            .then_some(BrokerError::Busy("[REJECTREQUEST]system busy, start flow control for a while".into()))
    }

    /// The owner of the queue that the header names; here when it names none.
    fn home_of_queue(&self, cmd: &Command<'_>) -> crate::placement::ShardId {
        let topic = cmd.ext.get("topic").and_then(|t| self.topics.borrow().get(t).map(|t| t.id));
        let queue = cmd.ext.get("queueId").and_then(|q| q.trim().parse::<u32>().ok());
        match (topic, queue) {
            (Some(topic), Some(queue)) => self.owner(QueueKey { topic, queue }),
            _ => self.id,
        }
    }

    fn handle(self: &Rc<Self>, row: &Row, req: &Request<'_>) {
        match row.handler {
            Handler::Sync(handler) => {
                let outcome = handler(self, req);
                self.finish(req, outcome);
            }
            Handler::Task(handler) => {
                let shard = self.clone();
                let origin = req.origin;
                let task = handler(self.clone(), Rc::new(req.frame.to_vec()), origin);
                glommio::spawn_local(async move {
                    let response = task.await.unwrap_or_else(|e| responses::of_error(&e));
                    shard.respond(origin, response);
                })
                .detach();
            }
        }
    }

    fn finish(&self, req: &Request<'_>, outcome: Result<Answer, BrokerError>) {
        match outcome {
            Ok(Answer::Now(response)) => self.respond(req.origin, response),
            Ok(Answer::Later) => {}
            Ok(Answer::Retry) => {
                let again = Forward { frame: req.frame.to_vec(), origin: req.origin };
                self.mesh.push(req.origin.conn.shard, Msg::Retry(Box::new(again)));
            }
            Err(e) => self.respond(req.origin, responses::of_error(&e)),
        }
    }

    /// A request whose home this shard is, or one that lacks something only control can make.
    pub(super) fn on_forward(self: &Rc<Self>, f: Forward) {
        with_frame(&f.frame, |cmd| {
            let req = Request { cmd, frame: &f.frame, origin: f.origin, retried: false };
            match requests::row(cmd.code) {
                Some(row) if row.home == Home::Local => {
                    let outcome = create::make_missing(self, &req);
                    self.finish(&req, outcome);
                }
                Some(row) => self.handle(row, &req),
                None => self.finish(&req, Err(BrokerError::UnknownCode(cmd.code))),
            }
        });
        self.push_appends();
    }

    pub(super) fn on_retry(self: &Rc<Self>, f: Forward) {
        with_frame(&f.frame, |cmd| {
            let req = Request { cmd, frame: &f.frame, origin: f.origin, retried: true };
            if let Some(row) = requests::row(cmd.code) {
                self.handle(row, &req);
            }
        });
        self.push_appends();
    }

    /// Asks control to make what a request lacks (topic, group) and to send it back.
    pub fn ask_control(self: &Rc<Self>, req: &Request<'_>) -> Result<Answer, BrokerError> {
        if self.id == 0 {
            return match create::make_missing(self, req)? {
                Answer::Retry => {
                    self.mesh.push(0, Msg::Retry(Box::new(Forward { frame: req.frame.to_vec(), origin: req.origin })));
                    Ok(Answer::Later)
                }
                other => Ok(other),
            };
        }
        self.forward(0, req.frame, req.origin);
        Ok(Answer::Later)
    }

    /// A one-way request to a client on any shard.
    pub fn push_oneway(&self, to: ConnId, code: i32, ext: Vec<(&'static str, Value<'static>)>, body: Vec<u8>) {
        if to.shard == self.id {
            if let Some(conn) = self.conns.get(to) {
                conn.oneway(code, &ext, &body);
            }
            return;
        }
        self.mesh.push(to.shard, Msg::Run(Box::new(move |shard| shard.push_oneway(to, code, ext, body))));
    }

    /// A request to a client on any shard, and its answer.
    pub async fn call_client(
        self: &Rc<Self>,
        to: ConnId,
        code: i32,
        ext: Vec<(&'static str, Value<'static>)>,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<OwnedCommand, CallError> {
        let nobody = "0.0.0.0:0".parse().expect("an address");
        self.run_on(to.shard, move |shard| async move {
            match shard.conns.get(to) {
                Some(conn) => conn.call(code, &ext, &body, timeout).await,
                None => {
                    warn!(?to, code, "client is gone");
                    Err(CallError::Closed(nobody))
                }
            }
        })
        .await
        .unwrap_or(Err(CallError::Closed(nobody)))
    }
}
