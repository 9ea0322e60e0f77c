//! Typed request headers, a file per family. Each is decoded from ext fields; a missing or unreadable field is an error that
//! names it (known fault P08).
use crate::command::Command;
use thiserror::Error;

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
