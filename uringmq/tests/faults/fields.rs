//! The requests that a broker and a name server serve, and the header fields of each. Source: wire-protocol sheet 5 to 9.
use Kind::{Bool, Int, Long, Text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// 32 bits.
    Int,
    /// 64 bits.
    Long,
    Bool,
}

#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub required: bool,
    /// A value that can be read; empty when the field is left out.
    pub good: &'static str,
}

/// What a request's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// A message, or nothing.
    Bytes,
    /// A JSON object; the request means nothing without.
    Object,
    /// Lines of a properties file, so that nearly every text is one.
    Lines,
}

#[derive(Debug)]
pub struct Request {
    pub code: i32,
    pub fields: &'static [Field],
    /// What it carries when only its header is tried.
    pub body: &'static str,
    pub takes: Takes,
    /// No body at all is a meaning, too.
    pub may_be_bare: bool,
    /// Values that are right and would end what the other cases need.
    pub spared: &'static [(&'static str, &'static str)],
}

impl Request {
    /// Header fields that can be read, as a client sends them.
    pub fn good(&self) -> Vec<(&'static str, &'static str)> {
        self.fields.iter().filter(|f| !f.good.is_empty()).map(|f| (f.name, f.good)).collect()
    }
}

/// A field that must be there.
const fn must(name: &'static str, kind: Kind, good: &'static str) -> Field {
    Field { name, kind, required: true, good }
}

/// A field that may be absent.
const fn may(name: &'static str, kind: Kind, good: &'static str) -> Field {
    Field { name, kind, required: false, good }
}

const fn head(code: i32, fields: &'static [Field]) -> Request {
    Request { code, fields, body: "", takes: Takes::Bytes, may_be_bare: false, spared: &[] }
}

const fn with_body(code: i32, body: &'static str) -> Request {
    Request { body, takes: Takes::Object, ..head(code, &[]) }
}

const fn message(code: i32, fields: &'static [Field]) -> Request {
    Request { body: "x", ..head(code, fields) }
}

const LONG: &[Field] = &[
    must("producerGroup", Text, "g"),
    must("topic", Text, "P"),
    must("defaultTopic", Text, "TBW102"),
    must("defaultTopicQueueNums", Int, "4"),
    must("queueId", Int, "1"),
    must("sysFlag", Int, "0"),
    must("bornTimestamp", Long, "1"),
    must("flag", Int, "0"),
    may("properties", Text, ""),
    may("reconsumeTimes", Int, "0"),
    may("unitMode", Bool, "false"),
    may("maxReconsumeTimes", Int, ""),
    may("batch", Bool, "false"),
];
const LETTERS: &[Field] = &[
    must("a", Text, "g"),
    must("b", Text, "P"),
    must("c", Text, "TBW102"),
    must("d", Int, "4"),
    must("e", Int, "1"),
    must("f", Int, "0"),
    must("g", Long, "1"),
    must("h", Int, "0"),
    may("i", Text, ""),
    may("j", Int, "0"),
    may("k", Bool, "false"),
    may("l", Int, ""),
    may("m", Bool, "false"),
];
const CREATE: &[Field] = &[
    must("topic", Text, "P-made"),
    may("defaultTopic", Text, "TBW102"),
    must("readQueueNums", Int, "1"),
    must("writeQueueNums", Int, "1"),
    must("perm", Int, "6"),
    may("topicFilterType", Text, "SINGLE_TAG"),
    may("topicSysFlag", Int, "0"),
    may("order", Bool, "false"),
    may("attributes", Text, ""),
    may("force", Bool, "false"),
];
const PULL: &[Field] = &[
    must("consumerGroup", Text, "g"),
    must("topic", Text, "P"),
    must("queueId", Int, "0"),
    must("queueOffset", Long, "0"),
    must("maxMsgNums", Int, "1"),
    must("sysFlag", Int, "4"),
    must("commitOffset", Long, "0"),
    must("suspendTimeoutMillis", Long, "0"),
    may("subscription", Text, "*"),
    must("subVersion", Long, "0"),
    may("expressionType", Text, "TAG"),
    may("maxMsgBytes", Int, ""),
    may("requestSource", Int, ""),
];
/// Pops that would wait until the end of time are right, and nobody answers them before.
const FOREVER: &[(&str, &str)] = &[("pollTime", "9223372036854775807")];
const QUEUE: [Field; 2] = [must("topic", Text, "P"), must("queueId", Int, "0")];

pub const BROKER: &[Request] = &[
    message(10, LONG),
    message(310, LETTERS),
    message(324, LONG),
    message(325, LETTERS),
    Request { body: "\0\0\0\x17\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01x\0\0", ..message(320, LETTERS) },
    head(11, PULL),
    head(361, PULL),
    Request {
        spared: FOREVER,
        ..head(
            200050,
            &[
                must("consumerGroup", Text, "g"),
                must("topic", Text, "P"),
                must("queueId", Int, "0"),
                must("maxMsgNums", Int, "1"),
                must("invisibleTime", Long, "60000"),
                must("pollTime", Long, "0"),
                may("bornTime", Long, "0"),
                must("initMode", Int, "0"),
                may("expType", Text, "TAG"),
                may("exp", Text, "*"),
                may("order", Bool, "false"),
                may("attemptId", Text, "a"),
            ],
        )
    },
    head(
        200051,
        &[
            must("consumerGroup", Text, "g"),
            must("topic", Text, "P"),
            must("queueId", Int, "0"),
            must("extraInfo", Text, "0 1 1 0 0 broker-a 0 0"),
            must("offset", Long, "0"),
        ],
    ),
    head(
        200052,
        &[
            must("consumerGroup", Text, "g"),
            must("topic", Text, "P"),
            must("queueId", Int, "0"),
            must("maxMsgNums", Int, "1"),
        ],
    ),
    head(
        200053,
        &[
            must("consumerGroup", Text, "g"),
            must("topic", Text, "P"),
            must("queueId", Int, "0"),
            must("extraInfo", Text, "0 1 1 0 0 broker-a 0 0"),
            must("offset", Long, "0"),
            must("invisibleTime", Long, "60000"),
            may("suspend", Bool, "false"),
        ],
    ),
    Request {
        spared: FOREVER,
        ..head(
            200054,
            &[
                must("consumerGroup", Text, "g"),
                must("topic", Text, "P"),
                must("queueId", Int, "0"),
                must("pollTime", Long, "0"),
                must("bornTime", Long, "0"),
                may("order", Bool, "false"),
                may("attemptId", Text, "a"),
                may("expType", Text, "TAG"),
                may("exp", Text, "*"),
            ],
        )
    },
    head(200055, &[must("consumerGroup", Text, "g"), must("topic", Text, "P"), must("queueId", Int, "0")]),
    with_body(200151, "{\"bn\":\"broker-a\",\"as\":[]}"),
    with_body(34, "{\"clientID\":\"c\"}"),
    head(35, &[must("clientID", Text, "c"), may("producerGroup", Text, "g"), may("consumerGroup", Text, "g")]),
    head(38, &[must("consumerGroup", Text, "g")]),
    head(
        37,
        &[
            must("producerGroup", Text, "g"),
            must("tranStateTableOffset", Long, "0"),
            must("commitLogOffset", Long, "0"),
            must("commitOrRollback", Int, "8"),
            may("fromTransactionCheck", Bool, "true"),
            must("msgId", Text, "k"),
            may("transactionId", Text, "k"),
            may("topic", Text, "P"),
        ],
    ),
    head(60, &[]),
    head(61, &[]),
    head(370, &[may("producerGroup", Text, "g"), must("topic", Text, "P"), must("recallHandle", Text, "x")]),
    head(323, &[may("topic", Text, "P"), may("msgId", Text, "x")]),
    with_body(46, "{\"clientId\":\"c\",\"group\":\"g\"}"),
    head(203, &[must("consumerGroup", Text, "g")]),
    head(204, &[must("producerGroup", Text, "g")]),
    head(328, &[]),
    with_body(400, "{\"topic\":\"P\",\"consumerGroup\":\"g\",\"clientId\":\"c\",\"strategyName\":\"AVG\"}"),
    with_body(401, "{\"topic\":\"P\",\"consumerGroup\":\"g\",\"mode\":\"PULL\"}"),
    head(402, &[]),
    with_body(41, "{\"clientId\":\"c\",\"consumerGroup\":\"g\",\"mqSet\":[]}"),
    with_body(42, "{\"clientId\":\"c\",\"consumerGroup\":\"g\",\"mqSet\":[]}"),
    head(17, CREATE),
    Request { takes: Takes::Object, may_be_bare: true, ..head(513, CREATE) },
    with_body(18, "{\"topicConfigList\":[]}"),
    head(215, &[must("topic", Text, "P-gone")]),
    head(351, &[must("topic", Text, "P"), may("lo", Bool, "true")]),
    head(21, &[may("topicSeq", Int, "0"), may("dataVersion", Text, ""), may("maxTopicNum", Int, "5")]),
    head(305, &[]),
    with_body(200, "{\"groupName\":\"g\"}"),
    with_body(225, "{\"groupConfigList\":[]}"),
    head(207, &[must("groupName", Text, "P-gone"), may("cleanOffset", Bool, "false")]),
    head(352, &[must("group", Text, "g")]),
    head(201, &[may("groupSeq", Int, "0"), may("dataVersion", Text, ""), may("maxGroupNum", Int, "5")]),
    head(353, &[must("group", Text, "g"), must("topic", Text, "P"), may("readable", Bool, "true")]),
    head(
        36,
        &[
            must("offset", Long, "0"),
            must("group", Text, "g"),
            must("delayLevel", Int, "18"),
            may("originMsgId", Text, ""),
            may("originTopic", Text, "P"),
            may("unitMode", Bool, "false"),
            may("maxReconsumeTimes", Int, "16"),
        ],
    ),
    head(
        14,
        &[
            must("consumerGroup", Text, "g"),
            must("topic", Text, "P"),
            must("queueId", Int, "0"),
            may("setZeroIfNotFound", Bool, "true"),
        ],
    ),
    head(
        15,
        &[
            must("consumerGroup", Text, "g"),
            must("topic", Text, "P"),
            must("queueId", Int, "0"),
            must("commitOffset", Long, "0"),
        ],
    ),
    head(
        29,
        &[
            must("topic", Text, "P"),
            must("queueId", Int, "0"),
            must("timestamp", Long, "0"),
            may("boundaryType", Text, "LOWER"),
        ],
    ),
    head(30, &[must("topic", Text, "P"), must("queueId", Int, "0"), may("committed", Bool, "true")]),
    head(31, &QUEUE),
    head(32, &QUEUE),
    head(43, &[]),
    head(
        222,
        &[
            must("group", Text, "g"),
            must("topic", Text, "P"),
            must("timestamp", Long, "0"),
            may("isForce", Bool, "true"),
            may("queueId", Int, "0"),
            may("offset", Long, "0"),
        ],
    ),
    head(308, &[may("filterGroups", Text, "x"), must("compareGroup", Text, "g"), must("topic", Text, "P")]),
    head(
        314,
        &[
            must("srcGroup", Text, "g"),
            must("destGroup", Text, "h"),
            may("topic", Text, "P"),
            may("offline", Bool, "true"),
        ],
    ),
    head(
        12,
        &[
            must("topic", Text, "P"),
            must("key", Text, "k"),
            must("maxNum", Int, "1"),
            must("beginTimestamp", Long, "0"),
            must("endTimestamp", Long, "9223372036854775807"),
            may("_UNIQUE_KEY_QUERY", Bool, "false"),
            may("indexType", Text, "K"),
            may("lastKey", Text, ""),
        ],
    ),
    head(33, &[must("offset", Long, "0"), may("topic", Text, "P")]),
    head(
        321,
        &[
            must("topic", Text, "P"),
            must("queueId", Int, "0"),
            must("index", Long, "0"),
            must("count", Int, "1"),
            may("consumerGroup", Text, "g"),
        ],
    ),
    head(202, &[must("topic", Text, "P")]),
    head(208, &[must("consumerGroup", Text, "g"), may("topic", Text, "P"), may("topicList", Text, "")]),
    head(317, &[must("isOrder", Bool, "false")]),
    head(303, &[must("topic", Text, "P"), must("group", Text, "g")]),
    head(300, &[must("topic", Text, "P")]),
    head(343, &[must("group", Text, "g")]),
    head(345, &[must("topic", Text, "P"), must("group", Text, "g")]),
    head(315, &[must("statsName", Text, "TOPIC_PUT_NUMS"), must("statsKey", Text, "P")]),
    // An unknown key is a warning, so that this sets nothing.
    Request { takes: Takes::Lines, ..with_body(25, "someUnknownKey=1") },
    head(26, &[]),
    head(28, &[]),
    head(306, &[]),
    head(316, &[]),
    head(329, &[]),
    head(906, &[]),
    head(907, &[]),
    head(908, &[must("masterFlushOffset", Long, "0")]),
    head(45, &[]),
    head(354, &[]),
    head(355, &[must("configType", Text, "topics")]),
    head(1007, &[]),
    head(1008, &[]),
    head(2001, &[]),
    head(2002, &[]),
    head(2003, &[]),
    head(2004, &[must("READ_AHEAD_MODE", Int, "0")]),
    head(200_056, &[]),
    head(307, &[must("consumerGroup", Text, "g"), must("clientId", Text, "c"), may("jstackEnable", Bool, "false")]),
    head(
        309,
        &[
            must("consumerGroup", Text, "g"),
            may("clientId", Text, "c"),
            may("msgId", Text, "0"),
            may("brokerName", Text, "b"),
            may("topic", Text, "P"),
            may("topicSysFlag", Int, "0"),
            may("groupSysFlag", Int, "0"),
        ],
    ),
    head(223, &[must("topic", Text, "P"), must("group", Text, "g"), may("clientAddr", Text, "")]),
];

const REGISTERED: &[Field] = &[
    must("brokerName", Text, "stranger"),
    must("brokerAddr", Text, "10.0.0.1:1"),
    must("clusterName", Text, "strangers"),
    may("haServerAddr", Text, "10.0.0.1:2"),
    must("brokerId", Long, "0"),
    may("heartbeatTimeoutMillis", Long, ""),
    may("enableActingMaster", Bool, "false"),
    may("compressed", Bool, "false"),
    may("bodyCrc32", Int, "0"),
];
const BROKER_OF: [Field; 4] = [
    must("brokerName", Text, "stranger"),
    must("brokerAddr", Text, "10.0.0.1:1"),
    must("clusterName", Text, "strangers"),
    must("brokerId", Long, "0"),
];

pub const NAMESRV: &[Request] = &[
    head(100, &[must("namespace", Text, "n"), must("key", Text, "k"), must("value", Text, "v")]),
    head(101, &[must("namespace", Text, "n"), must("key", Text, "k")]),
    head(102, &[must("namespace", Text, "n"), must("key", Text, "k")]),
    head(219, &[must("namespace", Text, "n")]),
    // No body is a registration's refreshment.
    Request { fields: REGISTERED, may_be_bare: true, ..with_body(103, "{}") },
    head(104, &BROKER_OF),
    Request { fields: &BROKER_OF, ..with_body(322, "{\"counter\":1,\"stateVersion\":0,\"timestamp\":1}") },
    head(
        904,
        &[
            must("clusterName", Text, "strangers"),
            must("brokerAddr", Text, "10.0.0.1:1"),
            must("brokerName", Text, "stranger"),
            may("brokerId", Long, "0"),
            may("epoch", Int, ""),
            may("maxOffset", Long, ""),
            may("confirmOffset", Long, ""),
            may("electionPriority", Int, ""),
        ],
    ),
    Request { fields: &[must("topic", Text, "Q")], ..with_body(217, "{\"queueDatas\":[],\"brokerDatas\":[]}") },
    head(216, &[must("topic", Text, "Q"), may("clusterName", Text, "strangers")]),
    head(105, &[must("topic", Text, "P"), may("acceptStandardJsonOnly", Bool, "true")]),
    head(106, &[]),
    head(901, &[must("clusterName", Text, "strangers"), must("brokerName", Text, "stranger")]),
    head(205, &[must("brokerName", Text, "stranger")]),
    head(327, &[must("brokerName", Text, "stranger")]),
    head(206, &[]),
    head(224, &[must("cluster", Text, "strangers")]),
    head(304, &[]),
    head(311, &[]),
    head(312, &[]),
    head(313, &[]),
    Request { takes: Takes::Lines, ..with_body(318, "someUnknownKey=1") },
    head(319, &[]),
];
