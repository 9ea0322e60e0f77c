//! Records and batches of Java's encoder.
use super::golden;
use uringmq_proto::message::{batch_items, prop, property, push_batch_item};
use uringmq_proto::record::{Found, NewRecord, encode, parse, patch, store_timestamp_ms};

#[test]
fn records_parse_and_encode_to_the_same_bytes() {
    for (name, more) in [("record-v4", 0), ("record-v6", 24), ("record-v6-born", 12)] {
        let bytes = golden(name);
        let Found::Record(r) = parse(&bytes, true).unwrap() else { panic!("{name} is blank") };
        assert_eq!(r.bytes, bytes.len());
        assert_eq!(bytes.len(), 91 + more + r.body.len() + r.topic.len() + r.properties.len());
        assert_eq!((r.queue_id, r.flag, r.queue_offset, r.phy_offset), (3, -5, 5, 1024));
        assert_eq!((r.reconsume_times, r.prepared_transaction_offset), (2, 77));
        assert_eq!((property(r.properties, prop::TAGS), property(r.properties, "名")), (Some("TagA"), Some("值")));
        assert_eq!(store_timestamp_ms(&bytes), Some(r.store_timestamp_ms));
        let mut again = Vec::new();
        let new = NewRecord {
            topic: r.topic,
            queue_id: r.queue_id as u32,
            flag: r.flag,
            sys_flag: 0,
            born_timestamp_ms: r.born_timestamp_ms,
            born_host: r.born_host,
            store_host: r.store_host,
            reconsume_times: r.reconsume_times,
            prepared_transaction_offset: r.prepared_transaction_offset,
            body: r.body,
            properties: r.properties,
            more_properties: "",
        };
        encode(&mut again, &new).unwrap();
        patch(&mut again, r.queue_offset as u64, r.phy_offset as u64, r.store_timestamp_ms);
        assert_eq!(again, bytes, "{name}");
    }
}

#[test]
fn a_batch_of_java_s_producer() {
    let bytes = golden("batch");
    let items: Vec<_> = batch_items(&bytes).map(Result::unwrap).collect();
    let seen: Vec<_> = items.iter().map(|i| (i.flag, i.body, property(i.properties, prop::KEYS))).collect();
    assert_eq!(seen, [(-1, &b""[..], Some("key0")), (0, b"body1", Some("key1")), (1, b"body2body2", Some("key2"))]);
    let mut again = Vec::new();
    items.iter().for_each(|item| push_batch_item(&mut again, item));
    assert_eq!(again, bytes);
}
