//! The RemotingCommand value, borrowed from its frame, and the writing of requests and responses.
//! Source: wire-protocol sheet 1.2 to 1.6.
use crate::frame::{FRAME_BYTES_MAX, Frame, HEADER_BYTES_MAX, PREFIX_BYTES, Serialize};
use crate::{header_binary, header_json};
use smallvec::SmallVec;
use std::borrow::Cow;
use thiserror::Error;

/// Our own version on the wire: V5_5_0.
pub const VERSION: i32 = 513;
pub const FLAG_RESPONSE: i32 = 1;
pub const FLAG_ONEWAY: i32 = 2;

/// Names of the language codes, in their order (sheet 1.4).
pub const LANGUAGE_NAMES: [&str; 14] = [
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
];
pub const LANGUAGE_OTHER: u8 = 7;

/// The code of a language's name or number; OTHER for a stranger.
pub(crate) fn language_code(text: &str) -> u8 {
    let named = LANGUAGE_NAMES.iter().position(|name| *name == text);
    let known = |code: &usize| *code < LANGUAGE_NAMES.len();
    named.or_else(|| text.parse().ok().filter(known)).map_or(LANGUAGE_OTHER, |code| code as u8)
}

/// The name of a language code; OTHER for a stranger.
pub fn language_name(code: u8) -> &'static str {
    LANGUAGE_NAMES.get(code as usize).copied().unwrap_or("OTHER")
}

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
    /// The value of `key`. A short list, so it is scanned; from the end, so that the last duplicate wins.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_ref())
    }
}

impl<'a> Command<'a> {
    /// Decodes the header of `frame` by its serialize type. An error means that the connection is to be closed: where the
    /// header is unreadable there is no opaque to answer to.
    pub fn decode(frame: Frame<'a>) -> Result<Command<'a>, DecodeError> {
        match frame.serialize {
            Serialize::Json => header_json::decode(frame.header, frame.body),
            Serialize::Binary => header_binary::decode(frame.header, frame.body),
        }
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
/// Allocates nothing beyond `out`. A response that no peer could read (frame above [`FRAME_BYTES_MAX`], header above 24 bits)
/// is replaced by a SYSTEM_ERROR that says so.
pub fn write_frame(out: &mut Vec<u8>, head: &Head<'_>, body: &[&[u8]]) {
    let ids = (head.code, head.flag, head.opaque);
    write_parts(out, ids, head.remark, head.ext.iter().map(|(key, value)| (key.as_ref(), value)), body);
}

/// Appends the frame of `response` to the request `opaque`.
pub fn write_response(out: &mut Vec<u8>, opaque: i32, response: &Response) {
    write_frame(
        out,
        &Head {
            code: response.code,
            opaque,
            flag: FLAG_RESPONSE,
            remark: response.remark.as_deref(),
            ext: &response.ext,
        },
        &[&response.body],
    );
}

/// Appends the frame of a request.
///
/// # Panics
/// When the header needs more than 24 bits for its length: a caller's bug, ext fields are small.
pub fn write_request(out: &mut Vec<u8>, code: i32, opaque: i32, oneway: bool, ext: &[(&str, Value<'_>)], body: &[u8]) {
    let flag = if oneway { FLAG_ONEWAY } else { 0 };
    write_parts(out, (code, flag, opaque), None, ext.iter().map(|(key, value)| (*key, value)), &[body]);
}

fn write_parts<'e>(
    out: &mut Vec<u8>,
    ids: (i32, i32, i32),
    remark: Option<&str>,
    ext: impl Iterator<Item = (&'e str, &'e Value<'e>)>,
    body: &[&[u8]],
) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    header_json::write(out, ids, remark, ext);
    let header = out.len() - start - PREFIX_BYTES;
    let body_bytes: usize = body.iter().map(|part| part.len()).sum();
    let bytes = PREFIX_BYTES + header + body_bytes;
    let (_, flag, opaque) = ids;
    if header > HEADER_BYTES_MAX || (bytes > FRAME_BYTES_MAX && flag & FLAG_RESPONSE != 0) {
        assert!(flag & FLAG_RESPONSE != 0, "a request header of {header} bytes");
        out.truncate(start);
        let remark = "the response is larger than a frame may be";
        let head = Head { code: crate::codes::response::SYSTEM_ERROR, opaque, flag, remark: Some(remark), ext: &[] };
        return write_frame(out, &head, &[]);
    }
    let prefix = (((bytes - 4) as u64) << 32 | header as u64).to_be_bytes(); // the type byte, 0 for JSON, tops the header word
    out[start..start + PREFIX_BYTES].copy_from_slice(&prefix);
    for part in body {
        out.extend_from_slice(part);
    }
}

/// A command that outlives its frame: what a calling side hands to the waiter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedCommand {
    pub code: i32,
    pub language: u8,
    pub version: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<String>,
    pub ext: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl OwnedCommand {
    /// As [`Ext::get`].
    pub fn get(&self, key: &str) -> Option<&str> {
        self.ext.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

impl From<&Command<'_>> for OwnedCommand {
    fn from(command: &Command<'_>) -> Self {
        OwnedCommand {
            code: command.code,
            language: command.language,
            version: command.version,
            opaque: command.opaque,
            flag: command.flag,
            remark: command.remark.as_deref().map(str::to_owned),
            ext: command.ext.0.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            body: command.body.to_vec(),
        }
    }
}
