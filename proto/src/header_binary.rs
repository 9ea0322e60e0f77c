//! The ROCKETMQ binary header (serialize type 1), read only: every client decodes by the frame's type byte, so answers are JSON.
//! Source: wire-protocol sheet 1.3.
//!
//! | bytes | field                                                                                              |
//! | ----- | -------------------------------------------------------------------------------------------------- |
//! | 2     | code, signed                                                                                       |
//! | 1     | language code                                                                                      |
//! | 2     | version, signed                                                                                    |
//! | 4     | opaque                                                                                             |
//! | 4     | flag                                                                                               |
//! | 4 + n | remark: length, UTF-8                                                                              |
//! | 4 + n | ext fields: length of the block, then entries of i16 key length, key, i32 value length, value      |
//!
//! A string of length 0 is Java's null: such an entry is dropped. Bytes behind the ext block are ignored, as in Java.
use crate::command::{Command, DecodeError, Ext, LANGUAGE_NAMES, LANGUAGE_OTHER};
use crate::frame::Serialize;
use std::borrow::Cow;

type Result<T> = std::result::Result<T, DecodeError>;

fn bad<T>(what: &'static str) -> Result<T> {
    Err(DecodeError::Header(what))
}

pub(crate) fn decode<'a>(header: &'a [u8], body: &'a [u8]) -> Result<Command<'a>> {
    let mut r = Reader(header);
    let code = i16::from_be_bytes(r.array()?) as i32;
    let [language] = r.array()?;
    let version = i16::from_be_bytes(r.array()?) as i32;
    let opaque = i32::from_be_bytes(r.array()?);
    let flag = i32::from_be_bytes(r.array()?);
    let bytes = i32::from_be_bytes(r.array()?);
    let remark = r.text(bytes, "remark length", "remark is not UTF-8")?;
    let bytes = i32::from_be_bytes(r.array()?);
    let mut block = Reader(r.bytes(bytes, "ext fields length")?);
    let mut ext = Ext::default();
    while !block.0.is_empty() {
        // A key of 32768 bytes shows as a negative length (known fault P03).
        let bytes = i16::from_be_bytes(block.array()?) as i32;
        let key = block.text(bytes, "ext key length", "ext key is not UTF-8")?;
        let bytes = i32::from_be_bytes(block.array()?);
        let value = block.text(bytes, "ext value length", "ext value is not UTF-8")?;
        if !key.is_empty() && !value.is_empty() {
            ext.0.push((Cow::Borrowed(key), Cow::Borrowed(value)));
        }
    }
    Ok(Command {
        code,
        language: if (language as usize) < LANGUAGE_NAMES.len() { language } else { LANGUAGE_OTHER },
        version,
        opaque,
        flag,
        remark: (!remark.is_empty()).then_some(Cow::Borrowed(remark)),
        ext,
        serialize: Serialize::Binary,
        body,
    })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.0.split_first_chunk::<N>() {
            Some((array, rest)) => {
                self.0 = rest;
                Ok(*array)
            }
            None => bad("binary header is cut short"),
        }
    }

    fn bytes(&mut self, bytes: i32, what: &'static str) -> Result<&'a [u8]> {
        match usize::try_from(bytes).ok().and_then(|bytes| self.0.split_at_checked(bytes)) {
            Some((taken, rest)) => {
                self.0 = rest;
                Ok(taken)
            }
            None => bad(what),
        }
    }

    fn text(&mut self, bytes: i32, what: &'static str, not_utf8: &'static str) -> Result<&'a str> {
        std::str::from_utf8(self.bytes(bytes, what)?).or_else(|_| bad(not_utf8))
    }
}
