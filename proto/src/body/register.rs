//! The body of REGISTER_BROKER (103), plain and compressed. Source: wire-protocol sheet 9.2.
//!
//! Compressed: a zlib stream of (big-endian, each block an int32 length and as many bytes)
//!
//! | block           | layout                                                                                  |
//! | --------------- | --------------------------------------------------------------------------------------- |
//! | data version    | JSON                                                                                    |
//! | topics          | int32 count, then a block each: `name read write perm filterType[ attributes]`          |
//! | filter servers  | JSON array                                                                              |
//! | queue mappings  | int32 count, then a block of JSON each; only from brokers of version 413 on             |
use super::mapping::TopicQueueMappingInfo;
use super::topic::{DataVersion, TopicConfig, TopicConfigSerializeWrapper, TopicFilterType};
use super::{BodyError, nullable};
use crate::fastjson;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use thiserror::Error;

/// First version whose compressed body ends with queue mappings (5.0.0).
pub const MAPPING_VERSION: i32 = 413;
/// Largest body after inflating: about a million topics. A zip bomb stops here.
pub const INFLATED_BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RegisterBrokerBody {
    /// `None` leaves the list as it is, an empty one removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_server_list: Option<Vec<String>>,
    #[serde(deserialize_with = "nullable")]
    pub topic_config_serialize_wrapper: TopicConfigSerializeWrapper,
}

#[derive(Debug, Error)]
pub enum RegisterError {
    #[error("the compressed body cannot be inflated: {0}")]
    Inflate(#[source] io::Error),
    #[error("the compressed body is larger than {INFLATED_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the compressed body is malformed: {0}")]
    Malformed(&'static str),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("the compressed body holds unreadable JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl RegisterBrokerBody {
    pub fn encode_plain(&self) -> Vec<u8> {
        fastjson::to_vec(self)
    }

    pub fn decode_plain(body: &[u8]) -> Result<Self, RegisterError> {
        Ok(super::parse(body)?)
    }

    /// The compressed form for a broker of `version`. A topic's order flag and sysFlag do not travel in it.
    pub fn encode_compressed(&self, version: i32) -> Vec<u8> {
        let wrapper = &self.topic_config_serialize_wrapper;
        let mut plain = Vec::new();
        put_block(&mut plain, &fastjson::to_vec(&wrapper.data_version));
        put_count(&mut plain, wrapper.topic_config_table.len());
        for topic in wrapper.topic_config_table.values() {
            put_block(&mut plain, topic_text(topic).as_bytes());
        }
        put_block(&mut plain, &fastjson::to_vec(&self.filter_server_list.as_deref().unwrap_or_default()));
        if version >= MAPPING_VERSION {
            let mappings = wrapper.topic_queue_mapping_info_map.iter().flat_map(BTreeMap::values);
            put_count(&mut plain, mappings.clone().count());
            mappings.for_each(|mapping| put_block(&mut plain, &fastjson::to_vec(mapping)));
        }
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(&plain).and_then(|()| zlib.finish()).expect("a Vec takes every write")
    }

    /// Reads the compressed form from a broker of `version`. No length is believed before it is checked against what is there.
    pub fn decode_compressed(body: &[u8], version: i32) -> Result<Self, RegisterError> {
        if body.is_empty() {
            return Err(BodyError::Missing.into());
        }
        let plain = inflate(body)?;
        let mut blocks = Blocks(&plain);
        let data_version: DataVersion = fastjson::from_slice(blocks.block()?)?;
        let mut topic_config_table = BTreeMap::new();
        for _ in 0..blocks.count()? {
            let topic = parse_topic(blocks.block()?)?;
            topic_config_table.insert(topic.topic_name.clone(), topic);
        }
        let filter_server_list: Option<Vec<String>> = fastjson::from_slice(blocks.block()?)?;
        let mut mappings = None;
        if version >= MAPPING_VERSION {
            let table = mappings.insert(BTreeMap::new());
            for _ in 0..blocks.count()? {
                let mapping: TopicQueueMappingInfo = fastjson::from_slice(blocks.block()?)?;
                table.insert(mapping.topic.clone(), mapping);
            }
        }
        Ok(RegisterBrokerBody {
            filter_server_list,
            topic_config_serialize_wrapper: TopicConfigSerializeWrapper {
                data_version,
                topic_config_table,
                topic_queue_mapping_info_map: mappings,
                ..TopicConfigSerializeWrapper::default()
            },
        })
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).expect("fewer than 2^31 entries").to_be_bytes());
}

fn put_block(out: &mut Vec<u8>, block: &[u8]) {
    put_count(out, block.len());
    out.extend_from_slice(block);
}

fn topic_text(topic: &TopicConfig) -> String {
    let TopicConfig { topic_name, read_queue_nums, write_queue_nums, perm, topic_filter_type, .. } = topic;
    let filter = topic_filter_type.as_str();
    let mut text = format!("{topic_name} {read_queue_nums} {write_queue_nums} {perm} {filter}");
    if !topic.attributes.is_empty() {
        text.push(' ');
        text.push_str(&serde_json::to_string(&topic.attributes).expect("a map of strings"));
    }
    text
}

fn parse_topic(block: &[u8]) -> Result<TopicConfig, RegisterError> {
    let text = std::str::from_utf8(block).map_err(|_| RegisterError::Malformed("a topic is not UTF-8"))?;
    // The attributes are JSON and may hold blanks themselves.
    let mut pieces = text.splitn(6, ' ');
    let name = pieces.next().unwrap_or_default().to_owned();
    let mut number = || {
        let number = pieces.next().and_then(|piece| piece.parse().ok());
        number.ok_or(RegisterError::Malformed("a topic without its numbers"))
    };
    let (read, write, perm) = (number()?, number()?, number()?);
    let filter = pieces.next().and_then(TopicFilterType::from_name).unwrap_or_default();
    let attributes = match pieces.next() {
        Some(json) if !json.trim().is_empty() => fastjson::from_slice(json.as_bytes())?,
        _ => BTreeMap::new(),
    };
    Ok(TopicConfig {
        attributes,
        perm,
        read_queue_nums: read,
        write_queue_nums: write,
        topic_filter_type: filter,
        topic_name: name,
        ..TopicConfig::default()
    })
}

fn inflate(body: &[u8]) -> Result<Vec<u8>, RegisterError> {
    let mut plain = Vec::new();
    let mut limited = ZlibDecoder::new(body).take(INFLATED_BYTES_MAX as u64 + 1);
    limited.read_to_end(&mut plain).map_err(RegisterError::Inflate)?;
    if plain.len() > INFLATED_BYTES_MAX { Err(RegisterError::TooLarge) } else { Ok(plain) }
}

struct Blocks<'a>(&'a [u8]);

impl<'a> Blocks<'a> {
    fn count(&mut self) -> Result<usize, RegisterError> {
        let (count, rest) = self.0.split_first_chunk::<4>().ok_or(RegisterError::Malformed("cut short"))?;
        self.0 = rest;
        usize::try_from(i32::from_be_bytes(*count)).map_err(|_| RegisterError::Malformed("negative length"))
    }

    fn block(&mut self) -> Result<&'a [u8], RegisterError> {
        let bytes = self.count()?;
        let (block, rest) = self.0.split_at_checked(bytes).ok_or(RegisterError::Malformed("cut short"))?;
        self.0 = rest;
        Ok(block)
    }
}
