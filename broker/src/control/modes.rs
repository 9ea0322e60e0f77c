//! Who is served how: the pull or pop mode of a group on a topic (codes 400 to 402). Plain state; `messageRequestMode.json`.
//! Source: behaviour sheet 5.6; store-format sheet 8.3.
use uringmq_proto::body::pop::{MessageRequestMode, MessageRequestModeTable, SetMessageRequestMode};
use uringmq_proto::fastjson;
use uringmq_proto::names::RETRY_PREFIX;

#[derive(Debug, Default)]
pub struct Modes {
    table: MessageRequestModeTable,
}

/// `messageRequestMode.json`, or why it is not one.
pub fn parse_file(text: &[u8]) -> Result<MessageRequestModeTable, String> {
    uringmq_proto::body::parse(text).map_err(|e| e.to_string())
}

impl Modes {
    pub fn load(file: Option<MessageRequestModeTable>) -> Self {
        Modes { table: file.unwrap_or_default() }
    }

    pub fn table(&self) -> &MessageRequestModeTable {
        &self.table
    }

    pub fn file_text(&self) -> Vec<u8> {
        fastjson::to_vec_pretty(&self.table)
    }

    /// Makes the table its master's; whether anything changed.
    pub fn copy(&mut self, table: MessageRequestModeTable) -> bool {
        let changed = self.table != table;
        self.table = table;
        changed
    }

    pub fn set(&mut self, mode: SetMessageRequestMode) {
        let groups = self.table.message_request_mode_map.entry(mode.topic.clone()).or_default();
        groups.insert(mode.consumer_group.clone(), mode);
    }

    /// The mode of a group on a topic and its popShareQueueNum. Retry topics are always pulled.
    pub fn get(&self, topic: &str, group: &str) -> (MessageRequestMode, i32) {
        let stored = self.table.message_request_mode_map.get(topic).and_then(|groups| groups.get(group));
        match stored {
            Some(mode) if !topic.starts_with(RETRY_PREFIX) => (mode.mode, mode.pop_share_queue_num),
            _ => (MessageRequestMode::Pull, -1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_found_and_survives_a_restart() {
        let mut modes = Modes::default();
        assert_eq!(modes.get("t", "g"), (MessageRequestMode::Pull, -1));
        for topic in ["t", "%RETRY%g"] {
            modes.set(SetMessageRequestMode {
                consumer_group: "g".into(),
                mode: MessageRequestMode::Pop,
                pop_share_queue_num: 2,
                topic: topic.into(),
            });
        }
        let modes = Modes::load(Some(parse_file(&modes.file_text()).unwrap()));
        assert_eq!(modes.get("t", "g"), (MessageRequestMode::Pop, 2));
        assert_eq!(modes.get("t", "h"), (MessageRequestMode::Pull, -1));
        assert_eq!(modes.get("%RETRY%g", "g"), (MessageRequestMode::Pull, -1));
        assert!(parse_file(b"[]").is_err());
    }
}
