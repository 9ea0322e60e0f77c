//! Sends (10, 310, 320, 324, 325) and send-back (36). Source: wire-protocol sheet 5.1, 5.2, 5.8.
use crate::codes::request;
use crate::command::{Command, Value};
use crate::headers::{Field, Header, HeaderError, header};

/// Header of every send. Long names for codes 10 and 324, letters for 310, 320 and 325: the code alone decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendMessage<'c> {
    pub producer_group: &'c str,
    pub topic: &'c str,
    /// Template of an auto-created topic.
    pub default_topic: &'c str,
    pub default_topic_queue_nums: i32,
    /// Negative: the broker picks one.
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_timestamp_ms: i64,
    pub flag: i32,
    /// Encoded properties; empty when there are none.
    pub properties: &'c str,
    pub reconsume_times: i32,
    pub unit_mode: bool,
    pub max_reconsume_times: Option<i32>,
    /// The body is a client batch.
    pub batch: bool,
    pub broker_name: Option<&'c str>,
}

/// Letter n of the alphabet in the short form is name n here.
const LONG: [&str; 14] = [
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "bname",
];
const LETTERS: [&str; 14] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"];
/// How an error names a field of the short form.
const LETTERS_SHOWN: [&str; 14] = [
    "a (producerGroup)",
    "b (topic)",
    "c (defaultTopic)",
    "d (defaultTopicQueueNums)",
    "e (queueId)",
    "f (sysFlag)",
    "g (bornTimestamp)",
    "h (flag)",
    "i (properties)",
    "j (reconsumeTimes)",
    "k (unitMode)",
    "l (maxReconsumeTimes)",
    "m (batch)",
    "n (bname)",
];

fn has_letters(code: i32) -> bool {
    matches!(code, request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE | request::SEND_REPLY_MESSAGE_V2)
}

impl<'c> Header<'c> for SendMessage<'c> {
    /// One pass over the fields: this is the hottest header.
    fn decode(cmd: &'c Command<'_>) -> Result<Self, HeaderError> {
        let letters = has_letters(cmd.code);
        let mut slots = [None; LONG.len()];
        for (key, value) in &cmd.ext.0 {
            let index = match key.as_bytes() {
                [letter @ b'a'..=b'n'] if letters => Some((letter - b'a') as usize),
                _ if letters => None,
                _ => LONG.iter().position(|name| *name == key),
            };
            if let Some(index) = index {
                slots[index] = Some(value.as_ref());
            }
        }
        let names = if letters { &LETTERS_SHOWN } else { &LONG };
        fn read<'c, F: Field<'c>>(
            names: &[&'static str; 14],
            slots: &[Option<&'c str>; 14],
            index: usize,
        ) -> Result<F, HeaderError> {
            F::read(names[index], slots[index])
        }
        Ok(SendMessage {
            producer_group: read(names, &slots, 0)?,
            topic: read(names, &slots, 1)?,
            default_topic: read(names, &slots, 2)?,
            default_topic_queue_nums: read(names, &slots, 3)?,
            queue_id: read(names, &slots, 4)?,
            sys_flag: read(names, &slots, 5)?,
            born_timestamp_ms: read(names, &slots, 6)?,
            flag: read(names, &slots, 7)?,
            properties: slots[8].unwrap_or_default(),
            reconsume_times: read::<Option<i32>>(names, &slots, 9)?.unwrap_or(0),
            unit_mode: read::<Option<bool>>(names, &slots, 10)?.unwrap_or(false),
            max_reconsume_times: read(names, &slots, 11)?,
            batch: read::<Option<bool>>(names, &slots, 12)?.unwrap_or(false),
            broker_name: read(names, &slots, 13)?,
        })
    }
}

impl SendMessage<'_> {
    /// The fields as a producer sends them with `code`.
    pub fn ext(&self, code: i32) -> Vec<(&'static str, Value<'_>)> {
        let names = if has_letters(code) { &LETTERS } else { &LONG };
        let values = [
            self.producer_group.write(),
            self.topic.write(),
            self.default_topic.write(),
            self.default_topic_queue_nums.write(),
            self.queue_id.write(),
            self.sys_flag.write(),
            self.born_timestamp_ms.write(),
            self.flag.write(),
            self.properties.write(),
            self.reconsume_times.write(),
            self.unit_mode.write(),
            self.max_reconsume_times.write(),
            self.batch.write(),
            self.broker_name.write(),
        ];
        names.iter().zip(values).filter_map(|(name, value)| Some((*name, value?))).collect()
    }
}

header! {
    /// 36.
    pub struct ConsumerSendMsgBack<'c> {
        /// Commit-log offset of the message.
        offset: i64 = "offset",
        group: &'c str = "group",
        /// 0: the broker decides; negative: straight to the dead letters.
        delay_level: i32 = "delayLevel",
        origin_msg_id: Option<&'c str> = "originMsgId",
        origin_topic: Option<&'c str> = "originTopic",
        unit_mode: bool = "unitMode" or false,
        max_reconsume_times: Option<i32> = "maxReconsumeTimes",
    }
}
