//! `bench null`: a server that answers at once and stores nothing: what the generator, the sockets and the machine cost by themselves.
//! A broker's figures are worth reading only beside its.
use crate::error::BenchError;
use crate::{on_executor, resolve};
use clap::Args;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use uringmq_proto::codes::{request, response};
use uringmq_proto::command::{Command, Response};
use uringmq_proto::headers::Header;
use uringmq_proto::headers::pull::PullMessage;
use uringmq_proto::headers::send::SendMessage;
use uringmq_proto::message::batch_items;
use uringmq_proto::record::{self, NewRecord};
use uringmq_remoting::connection::{Conn, Conns};
use uringmq_remoting::listener::{self, Bound, Spread};
use uringmq_remoting::stop::Gate;
use uringmq_remoting::{Limits, Service};

#[derive(Args, Debug, Clone)]
pub(crate) struct NullArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:10911")]
    listen: String,
    /// Messages that every queue seems to hold for pulls
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// Bytes of the body of each of them
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    size: u32,
    /// Run on this processor core only
    #[arg(long)]
    cpu: Option<usize>,
}

pub(crate) fn main(args: NullArgs) -> Result<(), BenchError> {
    let addr = resolve(&args.listen)?;
    on_executor(args.cpu, move || async move {
        let bound = listener::bind(addr).map_err(BenchError::io(format!("listening on {addr}")))?;
        println!("uringmq ready: null server at {}", bound.addr);
        serve(bound, Null::new(args.messages, args.size as usize)).await;
        Ok(())
    })
}

/// Serves until the process ends.
pub(crate) async fn serve(bound: Bound, null: Null) {
    let (gate, spread, conns) = (Gate::new(), Spread::new(1), Rc::new(Conns::default()));
    glommio::spawn_local(listener::accept(bound, spread.clone(), gate.clone())).detach();
    listener::serve(spread, 0, conns, Rc::new(null), Limits::default(), gate).await;
}

/// Knows how many messages each queue was sent, of whatever topic, and one record that stands for all.
pub(crate) struct Null {
    sent: RefCell<HashMap<i32, u64>>,
    record: Vec<u8>,
    messages: u64,
}

impl Null {
    pub(crate) fn new(messages: u64, size: usize) -> Self {
        let host = SocketAddr::from(([127, 0, 0, 1], 1));
        let new = NewRecord {
            topic: "Null",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &vec![b'x'; size],
            properties: "UNIQ_KEY\u{1}00000000000000000000000000000000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA\u{2}",
            more_properties: "",
        };
        let mut record = Vec::new();
        record::encode(&mut record, &new).expect("a small record");
        Null { sent: RefCell::default(), record, messages }
    }

    fn send(&self, conn: &Rc<Conn>, cmd: &Command<'_>) {
        let Ok(header) = SendMessage::decode(cmd) else {
            return conn.respond(cmd.opaque, &Response::err(response::SYSTEM_ERROR, "no send header"));
        };
        let count = if header.batch { batch_items(cmd.body).count() as u64 } else { 1 };
        let mut sent = self.sent.borrow_mut();
        let next = sent.entry(header.queue_id).or_default();
        let first = *next;
        *next += count;
        let answer = Response::ok()
            .with("msgId", "7F000001000000000000000000000000")
            .with("queueId", header.queue_id)
            .with("queueOffset", first as i64);
        conn.respond(cmd.opaque, &answer);
    }

    fn pull(&self, conn: &Rc<Conn>, cmd: &Command<'_>) {
        let Ok(header) = PullMessage::decode(cmd) else {
            return conn.respond(cmd.opaque, &Response::err(response::SYSTEM_ERROR, "no pull header"));
        };
        let offset = (header.queue_offset.max(0) as u64).min(self.messages);
        let count = (header.max_msg_nums.max(0) as u64).min(self.messages - offset);
        let code = if count == 0 { response::PULL_NOT_FOUND } else { response::SUCCESS };
        let answer = Response { code, ..Response::ok() }
            .with("suggestWhichBrokerId", 0)
            .with("nextBeginOffset", (offset + count) as i64)
            .with("minOffset", 0)
            .with("maxOffset", self.messages as i64)
            .body(self.record.repeat(count as usize));
        conn.respond(cmd.opaque, &answer);
    }
}

impl Service for Null {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, _: &[u8]) {
        match cmd.code {
            request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => self.send(conn, cmd),
            request::PULL_MESSAGE => self.pull(conn, cmd),
            request::GET_MAX_OFFSET => {
                conn.respond(cmd.opaque, &Response::ok().with("offset", self.messages as i64));
            }
            request::GET_MIN_OFFSET => conn.respond(cmd.opaque, &Response::ok().with("offset", 0)),
            _ => conn.respond(cmd.opaque, &Response::ok()),
        }
    }
}
