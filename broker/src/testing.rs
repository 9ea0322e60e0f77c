//! What unit tests of several modules need.
use uringmq_proto::record::{self, NewRecord};

/// A small stored record of queue 0 with the body `x`.
pub fn record(topic: &str, properties: &str) -> Vec<u8> {
    let host = "127.0.0.1:1".parse().expect("an address");
    let mut bytes = Vec::new();
    let new = NewRecord {
        topic,
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: 1,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"x",
        properties,
        more_properties: "",
    };
    record::encode(&mut bytes, &new).expect("a small record");
    bytes
}
