//! JSON bodies, a file per family. Shapes: wire-protocol sheet 4, 5.6, 7, 9; the tables among them are also what configuration
//! files hold (store-format sheet 8.3).
//!
//! Members stand in alphabetical order, as Java writes them. Reading is tolerant: unknown members are ignored, absent and null ones
//! take their default. What cannot be left out is an error that names it.
use crate::fastjson::{self, bare_key};
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use thiserror::Error;

pub mod controller;
pub mod filter;
pub mod group;
pub mod heartbeat;
pub mod lock;
pub mod mapping;
pub mod offset;
pub mod pop;
pub mod register;
pub mod route;
pub mod stats;
pub mod timer;
pub mod topic;

/// Why a request's body cannot be used; the text is fit for a remark (known fault P06).
#[derive(Debug, Error)]
pub enum BodyError {
    #[error("the request body is missing")]
    Missing,
    #[error("the request body is not a JSON object")]
    NotObject,
    #[error("the request body cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// Parses a request's body, which must be a JSON object in fastjson's dialect.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, BodyError> {
    match body.trim_ascii_start().first() {
        None => Err(BodyError::Missing),
        Some(b'{') => Ok(fastjson::from_slice(body)?),
        Some(_) => Err(BodyError::NotObject),
    }
}

/// For members that may be null: null is the default.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// One queue of a topic on a broker; a key of many tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageQueue {
    pub broker_name: String,
    pub queue_id: i32,
    pub topic: String,
}

impl Ord for MessageQueue {
    /// Java's order: topic, broker, queue.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (&self.topic, &self.broker_name, self.queue_id).cmp(&(&other.topic, &other.broker_name, other.queue_id))
    }
}

impl PartialOrd for MessageQueue {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A key that fastjson writes without quotes.
pub trait BareKey: Ord + Sized {
    /// JSON text of the key.
    fn text(&self) -> String;
    fn from_text(text: &str) -> Option<Self>;
}

macro_rules! integer_keys {
    ($($type:ty),*) => {$(
        impl BareKey for $type {
            fn text(&self) -> String {
                self.to_string()
            }
            fn from_text(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )*};
}
integer_keys!(i32, i64, u32, u64);

impl BareKey for MessageQueue {
    fn text(&self) -> String {
        serde_json::to_string(self).expect("strings and a number")
    }
    fn from_text(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// A table whose keys are integers or message queues: written bare by [`fastjson::to_vec`], in quotes by
/// [`fastjson::to_vec_strict`], read in both forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BareMap<K: Ord, V>(pub BTreeMap<K, V>);

impl<K: Ord, V> Default for BareMap<K, V> {
    fn default() -> Self {
        BareMap(BTreeMap::new())
    }
}

impl<K: Ord, V> Deref for BareMap<K, V> {
    type Target = BTreeMap<K, V>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<K: Ord, V> DerefMut for BareMap<K, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for BareMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        BareMap(pairs.into_iter().collect())
    }
}

impl<K: BareKey, V: Serialize> Serialize for BareMap<K, V> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.0.iter().map(|(key, value)| (bare_key(key.text()), value)))
    }
}

impl<'de, K: BareKey, V: Deserialize<'de>> Deserialize<'de> for BareMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let pairs = BTreeMap::<String, V>::deserialize(d)?.into_iter();
        let key = |text: &str| K::from_text(text).ok_or_else(|| D::Error::custom(format!("unreadable key {text:.40}")));
        pairs.map(|(text, value)| Ok((key(&text)?, value))).collect::<Result<_, _>>().map(BareMap)
    }
}

/// Declares an enum that travels by its constant's name. A stranger, null or an unknown number reads as the first one: peers of
/// another version must not fail on it.
macro_rules! text_enum {
    ($($(#[$meta:meta])* pub enum $name:ident { $first:ident = $first_text:literal, $($variant:ident = $text:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            #[default]
            $first,
            $($variant,)*
        }

        impl $name {
            const ALL: &[(&str, $name)] = &[($first_text, $name::$first), $(($text, $name::$variant),)*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $name::$first => $first_text,
                    $($name::$variant => $text,)*
                }
            }

            /// The constant of that name, upper-case.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().find(|(text, _)| *text == name).map(|(_, value)| *value)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let value = serde_json::Value::deserialize(d)?;
                let named = value.as_str().and_then(Self::from_name);
                let ordinal = || Some(Self::ALL.get(usize::try_from(value.as_u64()?).ok()?)?.1);
                Ok(named.or_else(ordinal).unwrap_or_default())
            }
        }
    )*};
}
pub(crate) use text_enum;
