//! The key-value table: order configuration of topics and what operators keep here. Values are opaque. Its file is
//! `{"configTable":{namespace:{key:value}}}`. Source: behaviour sheet 1.7.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uringmq_proto::fastjson;

/// Namespace of the order configuration: topic to `brokerA:4;brokerB:4`.
pub const ORDER_TOPIC_CONFIG: &str = "ORDER_TOPIC_CONFIG";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kv {
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
}

/// The file. Nulls, as Java may have left them, are left out.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KvFile<T> {
    config_table: Option<BTreeMap<String, T>>,
}

impl Kv {
    /// Reads the text of the file; the error says what is wrong with it.
    pub fn decode(text: &[u8]) -> Result<Kv, String> {
        type Read = KvFile<Option<BTreeMap<String, Option<String>>>>;
        let file: Read = fastjson::from_slice(text).map_err(|error| error.to_string())?;
        let values = |table: BTreeMap<String, Option<String>>| {
            table.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
        };
        let tables = file.config_table.unwrap_or_default().into_iter();
        Ok(Kv { namespaces: tables.filter_map(|(name, table)| Some((name, values(table?)))).collect() })
    }

    pub fn encode(&self) -> Vec<u8> {
        fastjson::to_vec(&KvFile { config_table: Some(self.namespaces.clone()) })
    }

    pub fn put(&mut self, namespace: &str, key: &str, value: &str) {
        self.namespaces.entry(namespace.to_owned()).or_default().insert(key.to_owned(), value.to_owned());
    }

    pub fn get(&self, namespace: &str, key: &str) -> Option<&str> {
        self.namespaces.get(namespace)?.get(key).map(String::as_str)
    }

    /// True when there was something to delete. An emptied namespace stays, as at Apache's.
    pub fn delete(&mut self, namespace: &str, key: &str) -> bool {
        self.namespaces.get_mut(namespace).is_some_and(|table| table.remove(key).is_some())
    }

    pub fn list(&self, namespace: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_found_until_deleted() {
        let mut kv = Kv::default();
        kv.put("n", "k", "v");
        kv.put("n", "k", "w");
        kv.put("n", "", "blank keys are refused before");
        assert_eq!((kv.get("n", "k"), kv.get("n", "x"), kv.get("m", "k")), (Some("w"), None, None));
        assert!(kv.delete("n", "k") && !kv.delete("n", "k") && !kv.delete("m", "k"));
        assert_eq!(kv.list("n").map(BTreeMap::len), Some(1));
        assert_eq!(kv.list("m"), None);
    }

    #[test]
    fn the_file_is_apache_s() {
        let mut kv = Kv::default();
        kv.put(ORDER_TOPIC_CONFIG, "T", "broker-a:4;broker-b:4");
        let text = r#"{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"}}}"#;
        assert_eq!(kv.encode(), text.as_bytes());
        assert_eq!(Kv::decode(text.as_bytes()).as_ref(), Ok(&kv));
        assert_eq!(
            Kv::decode(br#"{"configTable":{"a":null,"ORDER_TOPIC_CONFIG":{"x":null,"T":"broker-a:4;broker-b:4"}}}"#),
            Ok(kv)
        );
        assert_eq!(Kv::decode(b"{}"), Ok(Kv::default()));
        for bad in ["", "\0\0\0\0", "[]", r#"{"configTable":{"a""#] {
            assert!(Kv::decode(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
