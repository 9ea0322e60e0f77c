//! The RocketMQ remoting protocol and the stored record: bytes in, values out. No async, no sockets, no clock, no files.
pub mod body;
pub mod codes;
pub mod command;
pub mod fastjson;
pub mod frame;
pub mod ha;
pub mod header_binary;
pub mod header_json;
pub mod headers;
pub mod message;
pub mod names;
pub mod properties;
pub mod recall;
pub mod receipt;
pub mod record;
pub mod settings;
pub mod types;
