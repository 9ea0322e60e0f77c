//! Topic and group names: legal characters, lengths, the built-in ones. Source: wire-protocol sheet 7.2, 14, behaviour sheet 2.9.
use thiserror::Error;

/// Longest ordinary topic; retry and dead-letter topics may reach [`TOPIC_BYTES_MAX`].
pub const PLAIN_TOPIC_BYTES_MAX: usize = 127;
pub const TOPIC_BYTES_MAX: usize = crate::record::TOPIC_BYTES_MAX;
pub const GROUP_BYTES_MAX: usize = 120;

pub const RETRY_PREFIX: &str = "%RETRY%";
pub const DLQ_PREFIX: &str = "%DLQ%";
pub const LMQ_PREFIX: &str = "%LMQ%";
pub const SYSTEM_TOPIC_PREFIX: &str = "rmq_sys_";
pub const SYSTEM_GROUP_PREFIX: &str = "CID_RMQ_SYS_";

/// The template of auto-created topics.
pub const AUTO_CREATE_TOPIC: &str = "TBW102";
pub const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
pub const BENCHMARK_TOPIC: &str = "BenchmarkTest";
pub const OFFSET_MOVED_EVENT: &str = "OFFSET_MOVED_EVENT";
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
pub const TRACE_TOPIC: &str = "RMQ_SYS_TRACE_TOPIC";
pub const TRANS_HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
pub const TRANS_OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
pub const ROCKSDB_TRANS_HALF_TOPIC: &str = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC";
pub const ROCKSDB_TRANS_OP_HALF_TOPIC: &str = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC";
pub const TRANS_CHECK_MAX_TIME_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
pub const CHECKPOINT_TOPIC: &str = "CHECKPOINT_TOPIC";
pub const WHEEL_TIMER_TOPIC: &str = "rmq_sys_wheel_timer";
const REVIVE_LOG_PREFIX: &str = "rmq_sys_REVIVE_LOG_";
const SYNC_BROKER_MEMBER_PREFIX: &str = "rmq_sys_SYNC_BROKER_MEMBER_";
const REPLY_TOPIC_SUFFIX: &str = "_REPLY_TOPIC";

pub const TOOLS_CONSUMER: &str = "TOOLS_CONSUMER";
pub const TRANS_CONSUMER: &str = "CID_RMQ_SYS_TRANS";
/// Groups that exist from the start; those for which `true` stands may consume broadcasting by their own setting.
pub const BOOT_GROUPS: &[(&str, bool)] = &[
    (TOOLS_CONSUMER, false),
    ("FILTERSRV_CONSUMER", false),
    ("SELF_TEST_C_GROUP", false),
    ("CID_ONS-HTTP-PROXY", true),
    ("CID_ONSAPI_PULL", true),
    ("CID_ONSAPI_PERMISSION", true),
    ("CID_ONSAPI_OWNER", true),
    (TRANS_CONSUMER, false),
];

pub const SYSTEM_TOPICS: &[&str] = &[
    AUTO_CREATE_TOPIC,
    SCHEDULE_TOPIC,
    BENCHMARK_TOPIC,
    TRANS_HALF_TOPIC,
    TRACE_TOPIC,
    TRANS_OP_HALF_TOPIC,
    ROCKSDB_TRANS_HALF_TOPIC,
    ROCKSDB_TRANS_OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_EVENT,
    CHECKPOINT_TOPIC,
];

const SEND_FORBIDDEN: &[&str] = &[
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    ROCKSDB_TRANS_HALF_TOPIC,
    ROCKSDB_TRANS_OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_EVENT,
];

/// Why a name is refused; the text is fit for a remark.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NameError {
    #[error("The specified {0} is blank.")]
    Blank(&'static str),
    #[error("The specified {kind} is longer than {max} bytes: it has {bytes}.")]
    TooLong { kind: &'static str, bytes: usize, max: usize },
    #[error("The specified {kind} contains the illegal character {found:?}, allowing only %|a-zA-Z0-9_-")]
    Character { kind: &'static str, found: char },
}

/// One rule for creating and sending (known fault A01): blank, length (255 for retry and dead-letter topics, else 127), characters.
/// `+` is legal in retry topics only: the newer names of pop retry topics hold one.
pub fn check_topic(topic: &str) -> Result<(), NameError> {
    let long = topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX);
    let max = if long { TOPIC_BYTES_MAX } else { PLAIN_TOPIC_BYTES_MAX };
    check("topic", topic, max, topic.starts_with(RETRY_PREFIX))
}

/// Blank, length above 120, characters.
pub fn check_group(group: &str) -> Result<(), NameError> {
    check("group", group, GROUP_BYTES_MAX, false)
}

fn check(kind: &'static str, name: &str, max: usize, plus: bool) -> Result<(), NameError> {
    if name.trim().is_empty() {
        return Err(NameError::Blank(kind));
    }
    if name.len() > max {
        return Err(NameError::TooLong { kind, bytes: name.len(), max });
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '%' | '|' | '-' | '_') || (plus && c == '+');
    match name.chars().find(|c| !legal(*c)) {
        Some(found) => Err(NameError::Character { kind, found }),
        None => Ok(()),
    }
}

/// The names every broker knows as its own. Those made of cluster and broker name come from [`boot_topics`].
pub fn is_system_topic(topic: &str) -> bool {
    topic.starts_with(SYSTEM_TOPIC_PREFIX) || SYSTEM_TOPICS.contains(&topic)
}

/// Whether this names a light queue (LMQ): the prefix, then a name by the rule of topics.
pub fn is_light_queue(name: &str) -> bool {
    name.strip_prefix(LMQ_PREFIX).is_some_and(|rest| !rest.is_empty()) && check_topic(name).is_ok()
}

/// Whether messages of this topic may be in light queues, too. Source: store-format sheet 4.8. Of the broker's own topics none may: what waits
/// in them is dispatched when it comes to its own topic.
pub fn may_dispatch(topic: &str) -> bool {
    let excluded = [RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX];
    !excluded.iter().any(|prefix| topic.starts_with(prefix)) && !is_system_topic(topic)
}

/// Topics that no client may send to.
pub fn is_send_forbidden(topic: &str) -> bool {
    SEND_FORBIDDEN.contains(&topic)
}

pub fn is_system_group(group: &str) -> bool {
    group.starts_with(SYSTEM_GROUP_PREFIX) || BOOT_GROUPS.iter().any(|(name, _)| *name == group)
}

pub fn retry_topic(group: &str) -> String {
    [RETRY_PREFIX, group].concat()
}

pub fn dlq_topic(group: &str) -> String {
    [DLQ_PREFIX, group].concat()
}

/// The retry topic of pop consumption: V1 joins group and topic by `_`, V2 by `+`.
pub fn pop_retry_topic(group: &str, topic: &str, v2: bool) -> String {
    [RETRY_PREFIX, group, if v2 { "+" } else { "_" }, topic].concat()
}

pub fn reply_topic(cluster: &str) -> String {
    [cluster, REPLY_TOPIC_SUFFIX].concat()
}

pub fn revive_topic(cluster: &str) -> String {
    [REVIVE_LOG_PREFIX, cluster].concat()
}

/// Permission bits of a topic.
pub mod perm {
    pub const PRIORITY: i32 = 8;
    pub const READ: i32 = 4;
    pub const WRITE: i32 = 2;
    pub const INHERIT: i32 = 1;
}

/// What decides which built-in topics a broker has.
#[derive(Clone, Copy, Debug)]
pub struct BootNames<'a> {
    pub cluster: &'a str,
    pub broker: &'a str,
    /// `autoCreateTopicEnable`: TBW102 exists.
    pub auto_create: bool,
    /// `clusterTopicEnable`, `brokerTopicEnable`: those topics may be read and written.
    pub cluster_topic: bool,
    pub broker_topic: bool,
    /// `msgTraceTopicName` when `traceTopicEnable`.
    pub trace_topic: Option<&'a str>,
    /// `timerWheelEnable`.
    pub timer_wheel: bool,
    pub default_queues: u32,
    pub revive_queues: u32,
}

/// A topic made at boot; read and write queues are the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootTopic {
    pub name: String,
    pub queues: u32,
    pub perm: i32,
}

/// The topics a broker makes at its start, in Java's order. Source: behaviour sheet 2.9.
pub fn boot_topics(names: &BootNames<'_>) -> Vec<BootTopic> {
    const RW: i32 = perm::READ | perm::WRITE;
    let mut topics = Vec::new();
    let mut add = |name: &str, queues, perm| topics.push(BootTopic { name: name.to_owned(), queues, perm });
    let shared = |enabled| if enabled { RW | perm::INHERIT } else { perm::INHERIT };
    add(SELF_TEST_TOPIC, 1, RW);
    if names.auto_create {
        add(AUTO_CREATE_TOPIC, names.default_queues, RW | perm::INHERIT);
    }
    add(BENCHMARK_TOPIC, 1024, RW);
    add(names.cluster, 16, shared(names.cluster_topic));
    add(names.broker, 1, shared(names.broker_topic));
    add(OFFSET_MOVED_EVENT, 1, RW);
    add(SCHEDULE_TOPIC, 18, RW);
    if let Some(trace) = names.trace_topic {
        add(trace, 1, RW);
    }
    add(&reply_topic(names.cluster), 1, RW);
    add(&revive_topic(names.cluster), names.revive_queues, RW);
    add(&[SYNC_BROKER_MEMBER_PREFIX, names.broker].concat(), 1, perm::INHERIT);
    for half in [TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, ROCKSDB_TRANS_HALF_TOPIC, ROCKSDB_TRANS_OP_HALF_TOPIC] {
        add(half, 1, RW);
    }
    if names.timer_wheel {
        add(WHEEL_TIMER_TOPIC, 1, RW);
    }
    topics
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known fault A01.
    #[test]
    fn odd_topic_names_are_refused_with_a_reason() {
        for bad in [
            "",
            " ",
            " a",
            "a b",
            "中",
            "a.b",
            "../x",
            "a+b",
            "a\0",
            &"x".repeat(128),
            &format!("%RETRY%{}", "x".repeat(249)),
        ] {
            let error = check_topic(bad).expect_err(bad);
            assert!(error.to_string().starts_with("The specified topic "), "{error}");
        }
        for good in ["a%", "a|b-c_D9", &"x".repeat(127), "%RETRY%g+t", &format!("%DLQ%{}", "x".repeat(250))] {
            assert_eq!(check_topic(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn groups_are_shorter_and_never_hold_a_plus() {
        assert_eq!(check_group(&"g".repeat(120)), Ok(()));
        assert_eq!(check_group(&"g".repeat(121)), Err(NameError::TooLong { kind: "group", bytes: 121, max: 120 }));
        assert_eq!(check_group("%RETRY%a+b"), Err(NameError::Character { kind: "group", found: '+' }));
        assert_eq!(check_group("CID_ONS-HTTP-PROXY"), Ok(()));
    }

    #[test]
    fn built_in_names() {
        assert!(is_system_topic("rmq_sys_anything") && is_system_topic("TBW102") && !is_system_topic("T"));
        assert!(is_send_forbidden("SCHEDULE_TOPIC_XXXX") && !is_send_forbidden("TBW102"));
        assert!(is_system_group("CID_RMQ_SYS_x") && is_system_group("TOOLS_CONSUMER") && !is_system_group("g"));
        assert_eq!((retry_topic("g").as_str(), dlq_topic("g").as_str()), ("%RETRY%g", "%DLQ%g"));
        assert_eq!(pop_retry_topic("g", "t", true), "%RETRY%g+t");
    }

    #[test]
    fn light_queues_are_named_like_topics() {
        assert!(is_light_queue("%LMQ%a") && is_light_queue("%LMQ%a|b-1"));
        for none in ["%LMQ%", "a", "LMQ%a", "%LMQ%a/1", "%LMQ%..", &format!("%LMQ%{}", "x".repeat(123))] {
            assert!(!is_light_queue(none), "{none}");
        }
        assert!(
            may_dispatch("T") && !may_dispatch("%DLQ%g") && !may_dispatch("%LMQ%a") && !may_dispatch(SCHEDULE_TOPIC)
        );
    }

    #[test]
    fn boot_topics_follow_their_switches() {
        let all = BootNames {
            cluster: "C",
            broker: "b",
            auto_create: true,
            cluster_topic: true,
            broker_topic: false,
            trace_topic: Some(TRACE_TOPIC),
            timer_wheel: true,
            default_queues: 8,
            revive_queues: 8,
        };
        let find = |names: &BootNames<'_>, name: &str| {
            boot_topics(names).into_iter().find(|t| t.name == name).map(|t| (t.queues, t.perm))
        };
        assert_eq!(find(&all, "TBW102"), Some((8, 7)));
        assert_eq!(find(&all, "C"), Some((16, 7)));
        assert_eq!(find(&all, "b"), Some((1, 1)));
        assert_eq!(find(&all, "C_REPLY_TOPIC"), Some((1, 6)));
        assert_eq!(find(&all, "rmq_sys_SYNC_BROKER_MEMBER_b"), Some((1, 1)));
        let none = BootNames { auto_create: false, trace_topic: None, timer_wheel: false, ..all };
        assert_eq!(boot_topics(&all).len() - boot_topics(&none).len(), 3);
        assert!(boot_topics(&all).iter().all(|t| check_topic(&t.name).is_ok()));
    }
}
