//! The few requests that the bench makes of a broker, and how it writes and reads messages.
use crate::error::BenchError;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uringmq_proto::body::group::SubscriptionGroupConfig;
use uringmq_proto::body::{self, stats::HaRuntimeInfo, stats::KvTable};
use uringmq_proto::codes::{request, response};
use uringmq_proto::command::{Command, OwnedCommand, Value, write_request};
use uringmq_proto::headers::admin::QueryMessage;
use uringmq_proto::headers::offset::{GetMaxOffset, GetMinOffset, QueryConsumerOffset, UpdateConsumerOffset};
use uringmq_proto::headers::pull::{PullMessage, pull_flag};
use uringmq_proto::headers::send::SendMessage;
use uringmq_proto::headers::topic::CreateTopic;
use uringmq_proto::headers::transaction::EndTransaction;
use uringmq_proto::message::{parse_offset_id, prop, push_property, sys_flag};
use uringmq_proto::record::{self, Found, Record};
use uringmq_remoting::client::{NoService, connect};
use uringmq_remoting::connection::{Conn, Conns};
use uringmq_remoting::{Limits, Service};

const CONNECT_MAX: Duration = Duration::from_secs(5);
const CALL_MAX: Duration = Duration::from_secs(20);
/// How long a pull may be held at the end of its queue, and how much later the answer must be here.
const SUSPEND: Duration = Duration::from_secs(15);
const PULL_MAX: Duration = Duration::from_secs(30);
pub(crate) const GROUP: &str = "uringmq_bench";

pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

fn limits() -> Limits {
    Limits { out_bytes_high: 64 << 20, ..Limits::default() }
}

pub(crate) async fn dial<S: Service>(
    broker: SocketAddr,
    conns: &Rc<Conns>,
    service: Rc<S>,
) -> Result<Rc<Conn>, BenchError> {
    Ok(connect(broker, conns, service, limits(), CONNECT_MAX).await?)
}

/// A connection for calls one by one.
pub(crate) struct Caller {
    conns: Rc<Conns>,
    conn: Rc<Conn>,
    /// How long an answer may take, and that of a pull.
    call_max: Duration,
    pull_max: Duration,
}

impl Caller {
    pub(crate) async fn dial(broker: SocketAddr) -> Result<Caller, BenchError> {
        let conns = Rc::new(Conns::default());
        let conn = dial(broker, &conns, Rc::new(NoService)).await?;
        Ok(Caller { conns, conn, call_max: CALL_MAX, pull_max: PULL_MAX })
    }

    /// A caller that waits no longer than `max` for the connection and for each answer. It must not hold pulls for longer.
    pub(crate) async fn impatient(broker: SocketAddr, max: Duration) -> Result<Caller, BenchError> {
        let conns = Rc::new(Conns::default());
        let conn = connect(broker, &conns, Rc::new(NoService), limits(), max).await?;
        Ok(Caller { conns, conn, call_max: max, pull_max: max })
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.conn.peer()
    }

    /// Any request, with the answer as it came.
    pub(crate) async fn ask(
        &self,
        code: i32,
        ext: &[(&'static str, Value<'_>)],
        body: &[u8],
    ) -> Result<OwnedCommand, BenchError> {
        Ok(self.conn.call(code, ext, body, self.call_max).await?)
    }

    /// Sends one message; the answer as it came.
    pub(crate) async fn send(&self, message: &Outgoing<'_>) -> Result<OwnedCommand, BenchError> {
        let code = message.code();
        self.ask(code, &message.header().ext(code), message.body).await
    }

    async fn call(
        &self,
        code: i32,
        ext: &[(&'static str, Value<'_>)],
        max: Duration,
    ) -> Result<OwnedCommand, BenchError> {
        Ok(self.conn.call(code, ext, b"", max).await?)
    }

    /// Creates the bench's consumer group, in whose name it pulls and commits.
    pub(crate) async fn create_group(&self) -> Result<(), BenchError> {
        let what = "creating the consumer group";
        let body = serde_json::to_vec(&SubscriptionGroupConfig::new(GROUP)).expect("plain fields");
        let answer = self.conn.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &[], &body, self.call_max).await?;
        if answer.code == response::SUCCESS { Ok(()) } else { Err(BenchError::refused(what, &answer)) }
    }

    pub(crate) async fn commit_offset(&self, topic: &str, queue: u32, offset: i64) -> Result<(), BenchError> {
        let header =
            UpdateConsumerOffset { consumer_group: GROUP, topic, queue_id: queue as i32, commit_offset: offset };
        self.succeed("committing an offset", request::UPDATE_CONSUMER_OFFSET, &header.ext()).await.map(drop)
    }

    /// What the bench's group committed; `None` when it never did.
    pub(crate) async fn consumer_offset(&self, topic: &str, queue: u32) -> Result<Option<i64>, BenchError> {
        let what = "asking for a committed offset";
        let header = QueryConsumerOffset {
            consumer_group: GROUP,
            topic,
            queue_id: queue as i32,
            set_zero_if_not_found: Some(false),
        };
        let answer = self.call(request::QUERY_CONSUMER_OFFSET, &header.ext(), self.call_max).await?;
        match answer.code {
            response::SUCCESS => number(what, &answer, "offset").map(Some),
            response::QUERY_NOT_FOUND => Ok(None),
            _ => Err(BenchError::refused(what, &answer)),
        }
    }

    async fn succeed(
        &self,
        what: &'static str,
        code: i32,
        ext: &[(&'static str, Value<'_>)],
    ) -> Result<OwnedCommand, BenchError> {
        let answer = self.call(code, ext, self.call_max).await?;
        if answer.code == response::SUCCESS { Ok(answer) } else { Err(BenchError::refused(what, &answer)) }
    }

    /// Creates the topic, or gives it so many queues.
    pub(crate) async fn create_topic(&self, topic: &str, queues: u32) -> Result<(), BenchError> {
        let header = CreateTopic {
            topic,
            default_topic: Some("TBW102"),
            read_queue_nums: queues as i32,
            write_queue_nums: queues as i32,
            perm: 6,
            topic_filter_type: "SINGLE_TAG",
            topic_sys_flag: 0,
            order: false,
            attributes: None,
            force: false,
        };
        self.succeed("creating the topic", request::UPDATE_AND_CREATE_TOPIC, &header.ext()).await.map(drop)
    }

    /// Sends one message; the queue offset that it is acknowledged with, `None` when it is not.
    pub(crate) async fn send_for_offset(&self, message: &Outgoing<'_>) -> Result<Option<i64>, BenchError> {
        let answer = self.send(message).await?;
        match answer.code == response::SUCCESS {
            true => number("sending", &answer, "queueOffset").map(Some),
            false => Ok(None),
        }
    }

    pub(crate) async fn min_offset(&self, topic: &str, queue: u32) -> Result<i64, BenchError> {
        let what = "asking for the smallest offset";
        let header = GetMinOffset { topic, queue_id: queue as i32 };
        number(what, &self.succeed(what, request::GET_MIN_OFFSET, &header.ext()).await?, "offset")
    }

    pub(crate) async fn max_offset(&self, topic: &str, queue: u32) -> Result<i64, BenchError> {
        let what = "asking for the largest offset";
        let header = GetMaxOffset { topic, queue_id: queue as i32, committed: true };
        number(what, &self.succeed(what, request::GET_MAX_OFFSET, &header.ext()).await?, "offset")
    }

    /// Pulls once. Held at the end of the queue when `hold`.
    pub(crate) async fn pull(&self, topic: &str, ask: &PullAsk) -> Result<Pulled, BenchError> {
        let header = PullMessage {
            consumer_group: GROUP,
            topic,
            queue_id: ask.queue as i32,
            queue_offset: ask.offset,
            max_msg_nums: ask.max_msgs as i32,
            sys_flag: pull_flag::SUBSCRIPTION | if ask.hold { pull_flag::SUSPEND } else { 0 },
            commit_offset: 0,
            suspend_timeout_ms: SUSPEND.as_millis() as i64,
            subscription: Some("*"),
            sub_version: 0,
            expression_type: Some("TAG"),
            max_msg_bytes: None,
            request_source: None,
            proxy_forward_client_id: None,
        };
        let answer = self.call(request::PULL_MESSAGE, &header.ext(), self.pull_max).await?;
        let what = "a pull";
        match answer.code {
            response::SUCCESS => {
                Ok(Pulled { next: number(what, &answer, "nextBeginOffset")?, body: answer.body, end: false })
            }
            response::PULL_NOT_FOUND | response::PULL_RETRY_IMMEDIATELY | response::PULL_OFFSET_MOVED => Ok(Pulled {
                next: number(what, &answer, "nextBeginOffset")?,
                body: Vec::new(),
                end: answer.code == response::PULL_NOT_FOUND,
            }),
            _ => Err(BenchError::refused(what, &answer)),
        }
    }

    /// Whether the key index knows a message by its UNIQ_KEY.
    pub(crate) async fn knows_key(&self, topic: &str, key: &str) -> Result<bool, BenchError> {
        let header = QueryMessage {
            topic,
            key,
            max_num: 32,
            begin_timestamp_ms: 0,
            end_timestamp_ms: i64::MAX,
            unique_key: true,
            index_type: None,
            last_key: None,
        };
        let answer = self.call(request::QUERY_MESSAGE, &header.ext(), self.call_max).await?;
        match answer.code {
            response::SUCCESS => Ok(!answer.body.is_empty()),
            response::QUERY_NOT_FOUND => Ok(false),
            _ => Err(BenchError::refused("a query by key", &answer)),
        }
    }

    /// The stages of a message's way with their figures since the last call, in the broker's words; none from a broker that tells none.
    pub(crate) async fn stages(&self) -> Result<Vec<(String, String)>, BenchError> {
        let ask = [("resetStages", Value::Str("true".into()))];
        let table = self.runtime("asking for the stages", &ask).await?;
        let stage = |(key, value): (String, String)| Some((key.strip_prefix("stageUs.")?.to_owned(), value));
        Ok(table.table.into_iter().filter_map(stage).collect())
    }

    /// Where the broker's log ends, in bytes.
    pub(crate) async fn log_end(&self) -> Result<u64, BenchError> {
        let what = "asking where the log ends";
        let table = self.runtime(what, &[]).await?;
        let end = table.table.iter().find(|(key, _)| key.as_str() == "commitLogMaxOffset");
        let end = end.and_then(|(_, end)| end.parse().ok());
        end.ok_or_else(|| BenchError::Answer { what, why: "no number commitLogMaxOffset".to_owned() })
    }

    /// Slaves of a master that are in step with it (907).
    pub(crate) async fn slaves_in_step(&self) -> Result<usize, BenchError> {
        let what = "asking for the slaves";
        let answer = self.succeed(what, request::GET_BROKER_HA_STATUS, &[]).await?;
        let told: HaRuntimeInfo =
            body::parse(&answer.body).map_err(|e| BenchError::Answer { what, why: e.to_string() })?;
        Ok(told.ha_connection_info.iter().filter(|slave| slave.in_sync).count())
    }

    async fn runtime(&self, what: &'static str, ask: &[(&'static str, Value<'static>)]) -> Result<KvTable, BenchError> {
        let answer = self.succeed(what, request::GET_BROKER_RUNTIME_INFO, ask).await?;
        body::parse(&answer.body).map_err(|e| BenchError::Answer { what, why: e.to_string() })
    }

    pub(crate) async fn close(self) {
        self.conn.close("measured");
        self.conns.emptied().await;
    }
}

pub(crate) struct PullAsk {
    pub(crate) queue: u32,
    pub(crate) offset: i64,
    pub(crate) max_msgs: u32,
    pub(crate) hold: bool,
}

/// An answered pull: records back to back. `end`: there is nothing at this offset yet.
pub(crate) struct Pulled {
    pub(crate) next: i64,
    pub(crate) body: Vec<u8>,
    pub(crate) end: bool,
}

impl Pulled {
    /// The records in order, each with its CRC checked when `check`; the first unreadable one ends it.
    pub(crate) fn records(&self, check: bool) -> impl Iterator<Item = Result<Record<'_>, String>> {
        let mut rest = &self.body[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let found = match record::parse(rest, check) {
                Ok(Found::Record(record)) => Ok(record),
                Ok(Found::Blank { .. }) => Err("a blank record among the messages".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            rest = found.as_ref().map_or(&[], |record| &rest[record.bytes..]);
            Some(found)
        })
    }
}

pub(crate) fn number(what: &'static str, answer: &OwnedCommand, key: &str) -> Result<i64, BenchError> {
    let value = answer.get(key).and_then(|value| value.parse().ok());
    value.ok_or_else(|| BenchError::Answer { what, why: format!("no number {key}") })
}

/// One request to send; `body` is a client batch when `batch`.
pub(crate) struct Outgoing<'a> {
    pub(crate) topic: &'a str,
    /// Of a transaction that is not decided yet.
    pub(crate) half: bool,
    pub(crate) queue: u32,
    pub(crate) properties: &'a str,
    pub(crate) body: &'a [u8],
    pub(crate) batch: bool,
}

impl<'a> Outgoing<'a> {
    fn code(&self) -> i32 {
        if self.batch { request::SEND_BATCH_MESSAGE } else { request::SEND_MESSAGE_V2 }
    }

    /// As the Java producer writes it.
    fn header(&self) -> SendMessage<'a> {
        SendMessage {
            producer_group: GROUP,
            topic: self.topic,
            default_topic: "TBW102",
            default_topic_queue_nums: 4,
            queue_id: self.queue as i32,
            sys_flag: if self.half { sys_flag::TRANSACTION_PREPARED } else { 0 },
            born_timestamp_ms: now_ms(),
            flag: 0,
            properties: self.properties,
            reconsume_times: 0,
            unit_mode: false,
            max_reconsume_times: None,
            batch: self.batch,
            broker_name: None,
        }
    }
}

/// Appends the frame of a send.
pub(crate) fn write_send(out: &mut Vec<u8>, opaque: i32, message: &Outgoing<'_>) {
    let code = message.code();
    write_request(out, code, opaque, false, &message.header().ext(code), message.body);
}

/// A half message that was acknowledged: what its commit must name.
pub(crate) struct Half {
    queue_offset: i64,
    phy: i64,
    transaction_id: String,
}

impl Half {
    /// Adds what makes a message a half of the bench's producer group.
    pub(crate) fn mark(properties: &mut String) {
        push_property(properties, prop::TRAN_MSG, "true");
        push_property(properties, prop::PGROUP, GROUP);
    }

    /// `None` from a refusal, or an answer that names no half.
    pub(crate) fn of(answer: &Command<'_>) -> Option<Half> {
        let queue_offset = answer.ext.get("queueOffset")?.parse().ok().filter(|_| answer.code == response::SUCCESS)?;
        let (_, phy) = parse_offset_id(answer.ext.get("msgId")?)?;
        let transaction_id = answer.ext.get("transactionId").unwrap_or_default().to_owned();
        Some(Half { queue_offset, phy: phy as i64, transaction_id })
    }
}

/// Appends the frame that commits a half message; it is answered.
pub(crate) fn write_commit(out: &mut Vec<u8>, opaque: i32, half: &Half) {
    let header = EndTransaction {
        producer_group: GROUP,
        tran_state_table_offset: half.queue_offset,
        commit_log_offset: half.phy,
        commit_or_rollback: sys_flag::TRANSACTION_COMMIT,
        from_transaction_check: false,
        msg_id: &half.transaction_id,
        transaction_id: Some(&half.transaction_id),
        topic: None,
    };
    write_request(out, request::END_TRANSACTION, opaque, false, &header.ext(), b"");
}

/// A well-mixed number from any number (the splitmix64 step).
pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
