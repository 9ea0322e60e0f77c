//! The RemotingCommand value, borrowed from its frame, and the writing of requests and responses.
//! Source: wire-protocol sheet 1.2 to 1.6.
use crate::frame::{Frame, Serialize};
use smallvec::SmallVec;
use std::borrow::Cow;
use thiserror::Error;

/// Our own version on the wire: V5_5_0.
pub const VERSION: i32 = 513;
pub const FLAG_RESPONSE: i32 = 1;
pub const FLAG_ONEWAY: i32 = 2;

#[derive(Debug, Error)]
pub enum DecodeError {
    #[error("header: {0}")]
    Header(&'static str),
}

/// A decoded header with its body. `language` is the code of sheet 1.4 (0 JAVA, 9 GO, 7 OTHER for unknown).
#[derive(Debug)]
pub struct Command<'a> {
    pub code: i32,
    pub language: u8,
    pub version: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<Cow<'a, str>>,
    pub ext: Ext<'a>,
    pub serialize: Serialize,
    pub body: &'a [u8],
}

/// extFields in the order received; a later duplicate wins on look-up.
#[derive(Debug, Default)]
pub struct Ext<'a>(pub SmallVec<[(Cow<'a, str>, Cow<'a, str>); 16]>);

impl<'a> Ext<'a> {
    pub fn get(&self, key: &str) -> Option<&str> {
        let _ = key;
        todo!()
    }
}

impl<'a> Command<'a> {
    pub fn decode(frame: Frame<'a>) -> Result<Command<'a>, DecodeError> {
        let _ = frame;
        todo!()
    }
    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }
    pub fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }
}

/// An ext-field value; numbers and booleans travel as text.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    Str(Cow<'a, str>),
    I64(i64),
    U64(u64),
    Bool(bool),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(v: &'a str) -> Self {
        Value::Str(Cow::Borrowed(v))
    }
}
impl From<String> for Value<'_> {
    fn from(v: String) -> Self {
        Value::Str(Cow::Owned(v))
    }
}
impl From<i64> for Value<'_> {
    fn from(v: i64) -> Self {
        Value::I64(v)
    }
}
impl From<i32> for Value<'_> {
    fn from(v: i32) -> Self {
        Value::I64(v as i64)
    }
}
impl From<u64> for Value<'_> {
    fn from(v: u64) -> Self {
        Value::U64(v)
    }
}
impl From<u32> for Value<'_> {
    fn from(v: u32) -> Self {
        Value::U64(v as u64)
    }
}
impl From<bool> for Value<'_> {
    fn from(v: bool) -> Self {
        Value::Bool(v)
    }
}

/// What a handler answers; the connection adds opaque, flag, language, version and the frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    pub code: i32,
    pub remark: Option<Cow<'static, str>>,
    pub ext: Vec<(Cow<'static, str>, Value<'static>)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn ok() -> Self {
        Response::default()
    }
    pub fn err(code: i32, remark: impl Into<Cow<'static, str>>) -> Self {
        Response { code, remark: Some(remark.into()), ..Response::default() }
    }
    /// Chained: `Response::ok().with("offset", 7u64)`.
    pub fn with(mut self, key: &'static str, value: impl Into<Value<'static>>) -> Self {
        self.ext.push((Cow::Borrowed(key), value.into()));
        self
    }
    pub fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }
}

/// The head of a frame to write. `flag` 1 for a response, 0 for a request, 2 for a one-way request.
#[derive(Clone, Debug)]
pub struct Head<'a> {
    pub code: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<&'a str>,
    pub ext: &'a [(Cow<'a, str>, Value<'a>)],
}

/// Appends a whole JSON frame whose body is the concatenation of `body` to `out`. Language JAVA, version [`VERSION`].
/// Allocates nothing beyond `out`.
pub fn write_frame(out: &mut Vec<u8>, head: &Head<'_>, body: &[&[u8]]) {
    let _ = (out, head, body);
    todo!()
}

/// Appends the frame of `response` to the request `opaque`.
pub fn write_response(out: &mut Vec<u8>, opaque: i32, response: &Response) {
    write_frame(
        out,
        &Head { code: response.code, opaque, flag: FLAG_RESPONSE, remark: response.remark.as_deref(), ext: &response.ext },
        &[&response.body],
    );
}
