//! The RemotingCommand value, borrowed from its frame, and the writing of requests and responses.
//! Source: wire-protocol sheet 1.2 to 1.6.
use crate::frame::{FRAME_BYTES_MAX, Frame, HEADER_BYTES_MAX, PREFIX_BYTES, Serialize};
use crate::{header_binary, header_json};
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
pub struct Ext<'a>(pub Vec<(Cow<'a, str>, Cow<'a, str>)>);

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

/// Where some remarks send their reader, as Java's servers end them. Source: behaviour sheet 0.
pub const FAQ: &str = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.";

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
        if self.ext.capacity() == 0 {
            self.ext.reserve(8); // no answer of a hot path has more
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Split, split};

    fn json(header: &str) -> Result<OwnedCommand, DecodeError> {
        let frame = Frame { serialize: Serialize::Json, header: header.as_bytes(), body: b"" };
        Command::decode(frame).map(|command| OwnedCommand::from(&command))
    }

    fn ext(header: &str) -> Vec<(String, String)> {
        json(header).unwrap().ext
    }

    fn read(buf: &[u8]) -> OwnedCommand {
        let Split::Whole { frame, bytes } = split(buf, true).unwrap() else { panic!("not whole") };
        assert_eq!(bytes, buf.len());
        OwnedCommand::from(&Command::decode(frame).unwrap())
    }

    #[test]
    fn go_and_java_headers_decode() {
        let go = r#"{"code":10,"language":"GO","version":317,"opaque":-5,"flag":2,"remark":"","extFields":{}}"#;
        let c = json(go).unwrap();
        assert_eq!((c.code, c.language, c.version, c.opaque, c.flag, c.remark), (10, 9, 317, -5, 2, None));
        let java = r#" { "version" : 513 , "extFields" : null,"opaque":2147483647, "remark":null,"serializeTypeCurrentRPC":"JSON",
            "unknown":[{"a":[1,2.5e-3,true,null,"x\"]"]},{}],"code":-1006,"language":3 } "#;
        let c = json(java).unwrap();
        assert_eq!((c.code, c.language, c.opaque, c.ext.len()), (-1006, 3, i32::MAX, 0));
        for stranger in ["\"KLINGON\"", "99", "-1", "null", "true"] {
            assert_eq!(
                json(&format!(r#"{{"code":1,"opaque":1,"language":{stranger}}}"#)).unwrap().language,
                LANGUAGE_OTHER
            );
        }
    }

    #[test]
    fn ext_values_of_every_kind() {
        let header = r#"{"code":1,"opaque":2,"extFields":{"s":"a\u0001b\u0002","n":-12,"f":1.5,"t":true,"x":null,
            "e":"\"\\\/\b\f\n\r\t\u4e2D\uD83D\uDE00","raw":"中","\u006bey":"","s":"last"}}"#;
        let pairs = ext(header);
        let get = |key: &str| pairs.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        assert_eq!(pairs[0].1, "a\u{1}b\u{2}");
        assert_eq!((get("n"), get("f"), get("t"), get("x")), (Some("-12"), Some("1.5"), Some("true"), None));
        assert_eq!(get("e"), Some("\"\\/\u{8}\u{c}\n\r\t中\u{1F600}"));
        assert_eq!((get("raw"), get("key"), get("s")), (Some("中"), Some(""), Some("last")));
        let frame = Frame { serialize: Serialize::Json, header: header.as_bytes(), body: b"" };
        let command = Command::decode(frame).unwrap();
        assert_eq!(command.ext.get("s"), Some("last"));
        assert!(matches!(command.ext.0[5].1, Cow::Borrowed("中")));
    }

    /// Known fault P01 e and f, and their kind.
    #[test]
    fn headers_that_are_no_command_are_errors() {
        let deep = format!(r#"{{"code":1,"opaque":1,"x":{}1{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        for bad in [
            "",
            " ",
            "{",
            "[]",
            "[1,2]",
            "null",
            "\"x\"",
            "{}",
            "not json",
            "{]",
            "{\"code\"}",
            "{\"code\":1,}",
            "{,}",
            r#"{"code":1}"#,
            r#"{"opaque":1}"#,
            r#"{"code":null,"opaque":1}"#,
            r#"{"code":1.5,"opaque":1}"#,
            r#"{"code":"x","opaque":1}"#,
            r#"{"code":2147483648,"opaque":1}"#,
            r#"{"code":1,"opaque":1} x"#,
            r#"{"code":1,"opaque":1,"extFields":[]}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":{}}}"#,
            r#"{"code":1,"opaque":1,"extFields":"x"}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":nul}}"#,
            r#"{"code":1,"opaque":1,"remark":"\x"}"#,
            r#"{"code":1,"opaque":1,"remark":"\uD800"}"#,
            r#"{"code":1,"opaque":1,"remark":"\uD800\u0041"}"#,
            r#"{"code":1,"opaque":1,"remark":"\uDC00"}"#,
            r#"{"code":1,"opaque":1,"remark":"\u00g0"}"#,
            r#"{"code":1,"opaque":1,"remark":"\"#,
            r#"{"code":1,"opaque":1,"remark":"open}"#,
            r#"{"code":1 "opaque":1}"#,
            r#"{"code":1,"opaque":1,"x":}"#,
            r#"{"code":1,"opaque":1,"x":[1}"#,
            r#"{"code":+1,"opaque":1}"#,
            &deep,
        ] {
            let shown: String = bad.chars().take(80).collect();
            assert!(json(bad).is_err(), "{shown}");
        }
        let frame =
            Frame { serialize: Serialize::Json, header: b"{\"code\":1,\"opaque\":1,\"remark\":\"\xff\"}", body: b"" };
        assert!(Command::decode(frame).is_err());
    }

    fn binary(ext: &[u8]) -> Vec<u8> {
        let mut out = vec![0, 105, 0, 1, 0xdf, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];
        out.extend_from_slice(&(ext.len() as u32).to_be_bytes());
        out.extend_from_slice(ext);
        out
    }

    fn entry(key: &[u8], value: &[u8]) -> Vec<u8> {
        let length = [(key.len() >> 8) as u8, key.len() as u8];
        [&length, key, &(value.len() as u32).to_be_bytes(), value].concat()
    }

    fn decode_binary(header: &[u8]) -> Result<OwnedCommand, DecodeError> {
        let frame = Frame { serialize: Serialize::Binary, header, body: b"b" };
        Command::decode(frame).map(|command| OwnedCommand::from(&command))
    }

    /// Known fault P03.
    #[test]
    fn binary_keys_up_to_32767_bytes_work() {
        let long_value = vec![b'v'; 70_000];
        for bytes in [32766, 32767] {
            let key = vec![b'k'; bytes];
            let header = binary(&[entry(&key, b"1"), entry(b"topic", &long_value)].concat());
            let c = decode_binary(&header).unwrap();
            assert_eq!(
                (c.ext[0].0.len(), c.get("topic").unwrap().len(), c.body.as_slice()),
                (bytes, 70_000, &b"b"[..])
            );
        }
        assert!(decode_binary(&binary(&entry(&vec![b'k'; 32768], b"1"))).is_err());
        for opaque in [i32::MIN, i32::MAX] {
            let mut header = binary(&[]);
            header[5..9].copy_from_slice(&opaque.to_be_bytes());
            assert_eq!(decode_binary(&header).unwrap().opaque, opaque);
        }
    }

    #[test]
    fn binary_lengths_are_guarded() {
        let good = binary(&entry(b"topic", b"T"));
        assert_eq!(decode_binary(&good).unwrap().get("topic"), Some("T"));
        for cut in 0..good.len() {
            assert!(decode_binary(&good[..cut]).is_err(), "cut at {cut}");
        }
        for (at, bytes) in
            [(13, [255; 4]), (13, [0, 0, 1, 0]), (17, [255; 4]), (17, [0, 0, 0, 13]), (17, [0, 0, 0, 11])]
        {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&bytes);
            assert!(decode_binary(&bad).is_err(), "{bytes:?} at {at}");
        }
        // Java's nulls: an empty value or key is no entry.
        assert_eq!(decode_binary(&binary(&[entry(b"a", b""), entry(b"", b"b")].concat())).unwrap().ext, []);
        let mut no_utf8 = good.clone();
        *no_utf8.last_mut().unwrap() = 0xFF;
        assert!(decode_binary(&no_utf8).is_err());
    }

    #[test]
    fn written_responses_are_java_s_bytes_and_read_back() {
        let mut out = b"before".to_vec();
        write_response(&mut out, 7, &Response::ok().with("offset", 42u64));
        let header = br#"{"code":0,"extFields":{"offset":"42"},"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":513}"#;
        assert_eq!(&out[14..], header);
        assert_eq!(out[6..14], [0, 0, 0, header.len() as u8 + 4, 0, 0, 0, header.len() as u8]);
        let odd = "q\"b\\ \u{1}\u{1f}\n\r\t\u{7f}中\u{1F600}/";
        let mut out = Vec::new();
        let response = Response::err(1, odd).with("a", odd).with("n", i64::MIN).with("b", true).body(b"xyz".to_vec());
        write_response(&mut out, i32::MIN, &response);
        let c = read(&out);
        assert_eq!((c.code, c.opaque, c.flag, c.version), (1, i32::MIN, FLAG_RESPONSE, VERSION));
        assert_eq!((c.remark.as_deref(), c.get("a"), c.body.as_slice()), (Some(odd), Some(odd), &b"xyz"[..]));
        assert_eq!((c.get("n"), c.get("b")), (Some("-9223372036854775808"), Some("true")));
    }

    #[test]
    fn requests_read_back() {
        for (oneway, flag) in [(false, 0), (true, FLAG_ONEWAY)] {
            let mut out = Vec::new();
            write_request(&mut out, 200_050, -1, oneway, &[("topic", "T".into()), ("queueId", (-1).into())], b"body");
            let c = read(&out);
            assert_eq!((c.code, c.opaque, c.flag, c.get("queueId")), (200_050, -1, flag, Some("-1")));
        }
    }

    #[test]
    fn a_response_no_peer_could_read_becomes_an_error() {
        let mut out = vec![9];
        write_response(&mut out, 5, &Response::ok().body(vec![0; FRAME_BYTES_MAX]));
        let c = read(&out[1..]);
        assert_eq!((c.code, c.opaque, c.body.len()), (1, 5, 0));
        assert!(c.remark.unwrap().contains("larger than a frame"));
        let mut out = Vec::new();
        write_response(&mut out, 5, &Response::ok().with("value", "\u{1}".repeat(3 << 20)));
        assert_eq!(read(&out).code, 1);
    }
}
