//! Server-side balance and pop (400, 401, 402, 200151). Source: wire-protocol sheet 5.10, 6.3, 10.1.
use super::heartbeat::MessageModel;
use super::{BareMap, MessageQueue, nullable, text_enum};
use crate::recall;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

text_enum! {
    pub enum MessageRequestMode {
        Pull = "PULL",
        Pop = "POP",
    }
}

/// Body of 400.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryAssignmentRequest {
    pub client_id: String,
    pub consumer_group: String,
    #[serde(default)]
    pub message_model: MessageModel,
    #[serde(default, deserialize_with = "nullable")]
    pub strategy_name: String,
    pub topic: String,
}

/// Body of the answer to 400; no set at all makes the client keep what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueryAssignmentResponse {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_queue_assignments: Option<Vec<MessageQueueAssignment>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageQueueAssignment {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachments: Option<BTreeMap<String, String>>,
    pub message_queue: MessageQueue,
    pub mode: MessageRequestMode,
}

/// Body of 401, and an entry of 402.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetMessageRequestMode {
    pub consumer_group: String,
    pub mode: MessageRequestMode,
    #[serde(default, deserialize_with = "nullable")]
    pub pop_share_queue_num: i32,
    pub topic: String,
}

/// Body of the answer to 402 and `messageRequestMode.json`: topic to group to mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageRequestModeTable {
    #[serde(deserialize_with = "nullable")]
    pub message_request_mode_map: BTreeMap<String, BTreeMap<String, SetMessageRequestMode>>,
}

/// Body of 200151.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchAckRequest {
    #[serde(deserialize_with = "nullable")]
    pub acks: Vec<BatchAck>,
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
}

/// Acknowledged offsets of one pop: `so` + i for each bit i set. Long spellings are read as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchAck {
    /// Base64 of the little-endian byte form of the bits.
    #[serde(rename = "b", alias = "bitSet")]
    pub bit_set: String,
    #[serde(rename = "c", alias = "consumerGroup")]
    pub consumer_group: String,
    #[serde(rename = "it", alias = "invisibleTime")]
    pub invisible_ms: i64,
    #[serde(rename = "pt", alias = "popTime")]
    pub pop_ms: i64,
    #[serde(rename = "q", alias = "queueId")]
    pub queue_id: i32,
    #[serde(rename = "r", alias = "retry")]
    pub retry: String,
    #[serde(rename = "rq", alias = "reviveQueueId")]
    pub revive_queue_id: i32,
    #[serde(rename = "so", alias = "startOffset")]
    pub start_offset: i64,
    #[serde(rename = "t", alias = "topic")]
    pub topic: String,
}

impl BatchAck {
    /// The bytes of the bit set, the lowest bits first; `None` when there is none, or it is no base64.
    pub fn bits(&self) -> Option<Vec<u8>> {
        recall::decode(&self.bit_set.replace('+', "-").replace('/', "_"))
    }
}

/// Body of a check point in the revive topic: what one pop took of one queue. Members as Apache's broker writes them, full names are read as
/// well. Source: store-format sheet 12.1, checked on 5.5.0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckPoint {
    /// Bit i: message i is acknowledged. Set in memory only.
    #[serde(rename = "bm", alias = "bitMap")]
    pub bits: i32,
    #[serde(rename = "bn", alias = "brokerName", deserialize_with = "nullable")]
    pub broker_name: String,
    #[serde(rename = "c", alias = "cid", alias = "CId")]
    pub group: String,
    /// Of each message, from the start offset. Empty: they follow each other.
    #[serde(rename = "d", alias = "queueOffsetDiff", deserialize_with = "nullable")]
    pub diffs: Vec<i32>,
    #[serde(rename = "it", alias = "invisibleTime")]
    pub invisible_ms: i64,
    #[serde(rename = "n", alias = "num")]
    pub count: i32,
    #[serde(rename = "pt", alias = "popTime")]
    pub pop_ms: i64,
    #[serde(rename = "q", alias = "queueId")]
    pub queue_id: i32,
    #[serde(rename = "reviveTime")]
    pub revive_ms: i64,
    #[serde(rename = "ro", alias = "reviveOffset")]
    pub revive_offset: i64,
    /// How often it was put again.
    #[serde(rename = "rp", alias = "rePutTimes", skip_serializing_if = "Option::is_none")]
    pub put_again: Option<String>,
    #[serde(rename = "so", alias = "startOffset")]
    pub start_offset: i64,
    #[serde(rename = "sp", alias = "suspend")]
    pub suspended: bool,
    #[serde(rename = "t", alias = "topic")]
    pub topic: String,
}

impl CheckPoint {
    /// The queue offsets of its messages.
    pub fn offsets(&self) -> impl Iterator<Item = i64> {
        let contiguous = (self.diffs.is_empty()).then_some(0..self.count.max(0).into());
        let diffs = self.diffs.iter().map(|diff| i64::from(*diff));
        let start = self.start_offset;
        contiguous.into_iter().flatten().chain(diffs).map(move |diff| start.saturating_add(diff))
    }

    /// When its messages are visible again. Never the member that it was read with.
    pub fn visible_ms(&self) -> i64 {
        self.pop_ms.saturating_add(self.invisible_ms)
    }
}

/// Body of an acknowledgement in the revive topic, of one message or, with `aol`, of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AckBody {
    #[serde(rename = "ao", alias = "ackOffset")]
    pub offset: i64,
    #[serde(
        rename = "aol",
        alias = "ackOffsetList",
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub offsets: Vec<i64>,
    #[serde(rename = "bn", alias = "brokerName", deserialize_with = "nullable")]
    pub broker_name: String,
    #[serde(rename = "c", alias = "consumerGroup")]
    pub group: String,
    #[serde(rename = "pt", alias = "popTime")]
    pub pop_ms: i64,
    #[serde(rename = "q", alias = "queueId")]
    pub queue_id: i32,
    #[serde(rename = "so", alias = "startOffset")]
    pub start_offset: i64,
    #[serde(rename = "t", alias = "topic")]
    pub topic: String,
}

/// The last ordered pop of one queue, in `consumerOrderInfo.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OrderInfo {
    #[serde(rename = "a", deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub attempt: String,
    /// Bit i: message i is acknowledged.
    #[serde(rename = "cm")]
    pub acked: i64,
    #[serde(rename = "i", deserialize_with = "nullable")]
    pub invisible_ms: i64,
    #[serde(rename = "l")]
    pub last_ms: i64,
    /// The first one's offset, then the distances of the others from it.
    #[serde(rename = "o", deserialize_with = "nullable")]
    pub offsets: Vec<i64>,
    /// How often messages were given before, by offset.
    #[serde(rename = "oc", deserialize_with = "nullable", skip_serializing_if = "is_empty")]
    pub counts: BareMap<i64, i32>,
    /// When messages are visible again, where that was changed.
    #[serde(rename = "ot", deserialize_with = "nullable", skip_serializing_if = "is_empty")]
    pub visible_ms: BareMap<i64, i64>,
    #[serde(rename = "popTime")]
    pub pop_ms: i64,
}

fn is_empty<K: Ord, V>(map: &BareMap<K, V>) -> bool {
    map.is_empty()
}

/// `consumerOrderInfo.json`: `topic@group` to queue to its last ordered pop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OrderInfoTable {
    /// Entries; not read.
    pub order_info_count: i64,
    #[serde(deserialize_with = "nullable")]
    pub ordered_consumption_level: String,
    #[serde(deserialize_with = "nullable")]
    pub table: BTreeMap<String, BareMap<i32, OrderInfo>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fastjson;

    /// As Apache's broker 5.5.0 wrote it.
    const CHECK_POINT: &str = "{\"bm\":0,\"bn\":\"broker-a\",\"c\":\"g1\",\"d\":[0,1],\"it\":3000,\"n\":2,\"pt\":1796054990968,\"q\":0,\
         \"reviveTime\":1796054993968,\"ro\":0,\"so\":7,\"sp\":false,\"t\":\"T1\"}";
    const ACK: &str = "{\"ao\":0,\"bn\":\"broker-a\",\"c\":\"g1\",\"pt\":1796054990968,\"q\":0,\"so\":0,\"t\":\"T1\"}";

    #[test]
    fn a_check_point_is_written_as_apaches() {
        let read: CheckPoint = fastjson::from_slice(CHECK_POINT.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(fastjson::to_vec(&read)).unwrap(), CHECK_POINT);
        assert_eq!((read.offsets().collect::<Vec<_>>(), read.visible_ms()), (vec![7, 8], 1_796_054_993_968));
        let full = "{\"startOffset\":5,\"num\":3,\"queueId\":1,\"topic\":\"T\",\"cid\":\"g\",\"popTime\":1,\"invisibleTime\":2}";
        let full: CheckPoint = fastjson::from_slice(full.as_bytes()).unwrap();
        assert_eq!((full.offsets().collect::<Vec<_>>(), full.queue_id), (vec![5, 6, 7], 1));
    }

    /// As Apache's broker 5.5.0 wrote it.
    #[test]
    fn ordered_pops_are_stored_as_apaches() {
        let text = "{\"orderInfoCount\":1,\"orderedConsumptionLevel\":\"QUEUE\",\"table\":{\"T3@g3\":{0:{\"a\":\"A4\",\"cm\":1,\"i\":20000,\
                    \"l\":1796055140704,\"o\":[2,1],\"oc\":{2:1,3:1},\"popTime\":1796055140704}}}}";
        let read: OrderInfoTable = fastjson::from_slice(text.as_bytes()).unwrap();
        assert_eq!(read.table["T3@g3"][&0].offsets, [2, 1]);
        assert_eq!(String::from_utf8(fastjson::to_vec(&read)).unwrap(), text);
    }

    #[test]
    fn an_acknowledgement_is_written_as_apaches() {
        let read: AckBody = fastjson::from_slice(ACK.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(fastjson::to_vec(&read)).unwrap(), ACK);
    }
}
