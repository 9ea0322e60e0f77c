//! Typed request headers, a file per family. Each is decoded from ext fields; a missing or unreadable field is an error that
//! names it (known fault P08). Source: wire-protocol sheet 5 to 9.
//!
//! `Option` fields may be absent; `or` gives an absent field's value. A blank optional text counts as absent (sheet 18, 44); a
//! blank number or boolean is an error. Response headers need no types: a handler writes them by `Response::with`.
use crate::command::{Command, Value};
use thiserror::Error;

pub mod admin;
pub mod client;
pub mod controller;
pub mod offset;
pub mod pop;
pub mod pull;
pub mod route;
pub mod send;
pub mod topic;
pub mod transaction;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum HeaderError {
    #[error("header field {0} is missing")]
    Missing(&'static str),
    #[error("header field {field} is not {want}: '{value}'")]
    Bad { field: &'static str, want: &'static str, value: String },
}

/// A header that can be read from a request.
pub trait Header<'c>: Sized {
    fn decode(cmd: &'c Command<'_>) -> Result<Self, HeaderError>;
}

/// For requests without header fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoHeader;
impl<'c> Header<'c> for NoHeader {
    fn decode(_: &'c Command<'_>) -> Result<Self, HeaderError> {
        Ok(NoHeader)
    }
}

/// What stands behind one key.
pub(crate) trait Field<'c>: Sized {
    fn read(key: &'static str, value: Option<&'c str>) -> Result<Self, HeaderError>;
    /// `None` when the field is not to be written.
    fn write(&self) -> Option<Value<'_>>;
}

impl<'c> Field<'c> for &'c str {
    fn read(key: &'static str, value: Option<&'c str>) -> Result<Self, HeaderError> {
        value.ok_or(HeaderError::Missing(key))
    }
    fn write(&self) -> Option<Value<'_>> {
        Some(Value::from(*self))
    }
}

impl<'c> Field<'c> for Option<&'c str> {
    fn read(_: &'static str, value: Option<&'c str>) -> Result<Self, HeaderError> {
        Ok(value.filter(|text| !text.trim().is_empty()))
    }
    fn write(&self) -> Option<Value<'_>> {
        self.map(Value::from)
    }
}

/// As much of an unreadable value as a remark should repeat.
const SHOWN_CHARS: usize = 40;

fn bad(field: &'static str, want: &'static str, value: &str) -> HeaderError {
    HeaderError::Bad { field, want, value: value.chars().take(SHOWN_CHARS).collect() }
}

macro_rules! scalar_fields {
    ($($type:ty, $want:literal, $parse:expr;)*) => {$(
        impl<'c> Field<'c> for Option<$type> {
            fn read(key: &'static str, value: Option<&'c str>) -> Result<Self, HeaderError> {
                let parse: fn(&str) -> Option<$type> = $parse;
                value.map(|text| parse(text).ok_or_else(|| bad(key, $want, text))).transpose()
            }
            fn write(&self) -> Option<Value<'_>> {
                self.map(Value::from)
            }
        }
        impl<'c> Field<'c> for $type {
            fn read(key: &'static str, value: Option<&'c str>) -> Result<Self, HeaderError> {
                <Option<$type>>::read(key, value)?.ok_or(HeaderError::Missing(key))
            }
            fn write(&self) -> Option<Value<'_>> {
                Some(Value::from(*self))
            }
        }
    )*};
}

scalar_fields! {
    i32, "a 32-bit number", |text| text.parse().ok();
    i64, "a 64-bit number", |text| text.parse().ok();
    bool, "true or false", parse_bool;
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// Declares headers: `field: type = "key"`, and `= "key" or value` for a default. Makes the struct, its [`Header`], and `ext`,
/// the fields as a calling side sends them.
macro_rules! header {
    ($($(#[$meta:meta])* pub struct $name:ident $(<$life:lifetime>)? {
        $($(#[$note:meta])* $field:ident: $type:ty = $key:literal $(or $default:expr)?,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name $(<$life>)? {
            $($(#[$note])* pub $field: $type,)*
        }

        header!(@decode $name $(<$life>)? { $($field: $type = $key $(or $default)?,)* });

        impl $(<$life>)? $name $(<$life>)? {
            /// The fields as ext pairs, absent ones left out.
            pub fn ext(&self) -> Vec<(&'static str, $crate::command::Value<'_>)> {
                let mut pairs = Vec::new();
                $(pairs.extend($crate::headers::Field::write(&self.$field).map(|value| ($key, value)));)*
                pairs
            }
        }
    )*};
    (@decode $name:ident <$life:lifetime> { $($field:ident: $type:ty = $key:literal $(or $default:expr)?,)* }) => {
        impl<$life> $crate::headers::Header<$life> for $name<$life> {
            fn decode(cmd: &$life $crate::command::Command<'_>) -> Result<Self, $crate::headers::HeaderError> {
                Ok($name { $($field: header!(@read cmd, $key, $type $(, $default)?),)* })
            }
        }
    };
    (@decode $name:ident { $($field:ident: $type:ty = $key:literal $(or $default:expr)?,)* }) => {
        impl<'c> $crate::headers::Header<'c> for $name {
            fn decode(cmd: &'c $crate::command::Command<'_>) -> Result<Self, $crate::headers::HeaderError> {
                Ok($name { $($field: header!(@read cmd, $key, $type $(, $default)?),)* })
            }
        }
    };
    (@read $cmd:ident, $key:literal, $type:ty) => {
        <$type as $crate::headers::Field>::read($key, $cmd.ext.get($key))?
    };
    (@read $cmd:ident, $key:literal, $type:ty, $default:expr) => {
        <Option<$type> as $crate::headers::Field>::read($key, $cmd.ext.get($key))?.unwrap_or($default)
    };
}
pub(crate) use header;
