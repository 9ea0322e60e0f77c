//! fastjson's dialect: bare numeric and bare object keys, both ways. Source: wire-protocol sheet 4.
//!
//! Java's fastjson writes integer keys as `{0:"a"}` and object keys as `{{"brokerName":"b"}:5}`. Reading: [`to_strict`] turns bare
//! keys into strings, then serde_json reads. Writing: a key marked by [`bare_key`] leaves its quotes and escapes away.
use crate::header_json::push_text;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter, Serializer};
use std::borrow::Cow;
use std::io;

/// Deepest nesting looked at; serde_json's own limit is the same.
const DEPTH_MAX: usize = 128;
/// Object keys inside object keys: real bodies have one level, and each level doubles the escapes of the one below.
const KEY_DEPTH_MAX: usize = 3;
/// In front of a key to be written bare.
const MARK: char = '\u{1}';

/// Rewrites fastjson text to strict JSON: a bare number key becomes `"0"`, a bare object key becomes a string holding that
/// object's JSON. Text that is strict already is borrowed. Garbage stays garbage for the strict parser to refuse.
pub fn to_strict(text: &[u8]) -> Cow<'_, [u8]> {
    let mut scan = Rewriter { src: text, at: 0, bare: false };
    let mut out = Vec::new();
    // The first pass writes nothing: most texts hold no bare key.
    if scan.value(&mut None, DEPTH_MAX, KEY_DEPTH_MAX).is_none() || !scan.bare {
        return Cow::Borrowed(text);
    }
    let mut rewrite = Rewriter { src: text, at: 0, bare: false };
    out.reserve(text.len() + text.len() / 4);
    let mut sink = Some(&mut out);
    if rewrite.value(&mut sink, DEPTH_MAX, KEY_DEPTH_MAX).is_none() {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[rewrite.at..]);
    Cow::Owned(out)
}

/// One pass over the text, writing compact strict JSON to `out` when there is one. `None` ends it: not JSON of either kind.
struct Rewriter<'a> {
    src: &'a [u8],
    at: usize,
    /// A bare key was met.
    bare: bool,
}

type Sink<'o> = Option<&'o mut Vec<u8>>;

impl Rewriter<'_> {
    fn blanks(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.src.get(self.at) {
            self.at += 1;
        }
        self.src.get(self.at).copied()
    }

    fn put(&self, out: &mut Sink<'_>, from: usize) {
        if let Some(out) = out {
            out.extend_from_slice(&self.src[from..self.at]);
        }
    }

    fn step(&mut self, out: &mut Sink<'_>) {
        self.at += 1;
        self.put(out, self.at - 1);
    }

    fn value(&mut self, out: &mut Sink<'_>, depth: usize, key_depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match self.blanks()? {
            b'{' => self.members(out, b'}', depth, key_depth),
            b'[' => self.members(out, b']', depth, key_depth),
            b'"' => self.string(out),
            _ => self.word(out),
        }
    }

    fn members(&mut self, out: &mut Sink<'_>, close: u8, depth: usize, key_depth: usize) -> Option<()> {
        self.step(out);
        if self.blanks()? == close {
            self.step(out);
            return Some(());
        }
        loop {
            if close == b'}' {
                self.key(out, depth, key_depth)?;
                if self.blanks()? != b':' {
                    return None;
                }
                self.step(out);
            }
            self.value(out, depth, key_depth)?;
            let end = self.blanks()?;
            if end != b',' && end != close {
                return None;
            }
            self.step(out);
            if end == close {
                return Some(());
            }
        }
    }

    fn key(&mut self, out: &mut Sink<'_>, depth: usize, key_depth: usize) -> Option<()> {
        match self.blanks()? {
            b'"' => self.string(out),
            b'{' => {
                self.bare = true;
                let key_depth = key_depth.checked_sub(1)?;
                let Some(out) = out else { return self.value(&mut None, depth, key_depth) };
                let mut object = Vec::new();
                self.value(&mut Some(&mut object), depth, key_depth)?;
                push_text(out, std::str::from_utf8(&object).ok()?);
                Some(())
            }
            _ => {
                self.bare = true;
                let start = self.at;
                self.word(&mut None)?;
                if let Some(out) = out {
                    out.push(b'"');
                    out.extend_from_slice(&self.src[start..self.at]);
                    out.push(b'"');
                }
                Some(())
            }
        }
    }

    fn string(&mut self, out: &mut Sink<'_>) -> Option<()> {
        let start = self.at;
        self.at += 1;
        loop {
            self.at += memchr::memchr2(b'"', b'\\', &self.src[self.at..])?;
            if self.src[self.at] == b'"' {
                self.at += 1;
                self.put(out, start);
                return Some(());
            }
            self.at += 2;
            if self.at > self.src.len() {
                return None;
            }
        }
    }

    /// A number or a name.
    fn word(&mut self, out: &mut Sink<'_>) -> Option<()> {
        let start = self.at;
        while let Some(b'-' | b'+' | b'.' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') = self.src.get(self.at) {
            self.at += 1;
        }
        self.put(out, start);
        (self.at > start).then_some(())
    }
}

/// Marks a map key to be written bare by [`to_vec`]: an integer or a JSON object.
pub fn bare_key(key: impl std::fmt::Display) -> String {
    format!("{MARK}{key}")
}

/// Writes `value` as fastjson does, compact: keys of maps that parse as an integer or as a JSON object are written bare when
/// they carry the mark of [`bare_key`].
pub fn to_vec<T: Serialize>(value: &T) -> Vec<u8> {
    write(value, Dialect::new(serde_json::ser::CompactFormatter, Keys::Bare))
}

/// As [`to_vec`] with marked keys in quotes: what callers get who want standard JSON (sheet 9.3; 5.5.0 escapes nothing more).
pub fn to_vec_strict<T: Serialize>(value: &T) -> Vec<u8> {
    write(value, Dialect::new(serde_json::ser::CompactFormatter, Keys::Quoted))
}

/// As [`to_vec`], laid out like Java's configuration files: TAB indentation, `"key":value` without a blank.
pub fn to_vec_pretty<T: Serialize>(value: &T) -> Vec<u8> {
    write(value, Dialect::new(Tabs(PrettyFormatter::with_indent(b"\t")), Keys::Bare))
}

fn write<T: Serialize, F: Formatter>(value: &T, dialect: Dialect<F>) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    let mut serializer = Serializer::with_formatter(&mut out, dialect);
    value.serialize(&mut serializer).expect("our bodies have string keys and a Vec takes every write");
    out
}

/// Parses a body in fastjson's dialect.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(&to_strict(text))
}

#[derive(Clone, Copy, PartialEq)]
enum Keys {
    Bare,
    Quoted,
}

/// Where in a string the writer stands.
#[derive(Clone, Copy, PartialEq)]
enum At {
    /// In a value, or in a key that goes with its quotes.
    Plain,
    /// At the start of a key; its quote is not written yet.
    KeyStart,
    /// Behind the mark of a key; only `{`, `-` or a digit may go bare.
    Marked,
    /// In a key written bare.
    Bare,
}

struct Dialect<F> {
    layout: F,
    keys: Keys,
    in_key: bool,
    at: At,
}

impl<F> Dialect<F> {
    fn new(layout: F, keys: Keys) -> Self {
        Dialect { layout, keys, in_key: false, at: At::Plain }
    }

    /// Writes what was held back, now that `next` is known to follow.
    fn settle<W: ?Sized + io::Write>(&mut self, w: &mut W, next: Option<u8>) -> io::Result<()> {
        match self.at {
            At::Plain | At::Bare => return Ok(()),
            At::KeyStart => w.write_all(b"\"")?,
            At::Marked if matches!(next, Some(b'{' | b'-' | b'0'..=b'9')) => {
                if self.keys == Keys::Bare {
                    self.at = At::Bare;
                    return Ok(());
                }
                w.write_all(b"\"")?;
            }
            At::Marked => w.write_all(b"\"\\u0001")?,
        }
        self.at = At::Plain;
        Ok(())
    }
}

impl<F: Formatter> Formatter for Dialect<F> {
    fn begin_string<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        if self.in_key {
            self.at = At::KeyStart;
            return Ok(());
        }
        self.at = At::Plain;
        w.write_all(b"\"")
    }

    fn end_string<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.settle(w, None)?;
        if self.at == At::Bare {
            return Ok(());
        }
        w.write_all(b"\"")
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, w: &mut W, fragment: &str) -> io::Result<()> {
        let Some(next) = fragment.bytes().next() else { return Ok(()) };
        self.settle(w, Some(next))?;
        w.write_all(fragment.as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, w: &mut W, escape: CharEscape) -> io::Result<()> {
        if self.at == At::KeyStart && matches!(escape, CharEscape::AsciiControl(1)) {
            self.at = At::Marked;
            return Ok(());
        }
        self.settle(w, None)?;
        if self.at != At::Bare {
            return self.layout.write_char_escape(w, escape);
        }
        w.write_all(&[match escape {
            CharEscape::Quote => b'"',
            CharEscape::ReverseSolidus => b'\\',
            CharEscape::Solidus => b'/',
            CharEscape::Backspace => 8,
            CharEscape::FormFeed => 12,
            CharEscape::LineFeed => b'\n',
            CharEscape::CarriageReturn => b'\r',
            CharEscape::Tab => b'\t',
            CharEscape::AsciiControl(byte) => byte,
        }])
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.in_key = true;
        self.layout.begin_object_key(w, first)
    }
    fn end_object_key<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.in_key = false;
        self.layout.end_object_key(w)
    }
    fn begin_array<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.layout.begin_array(w)
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.layout.end_array(w)
    }
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.layout.begin_array_value(w, first)
    }
    fn end_array_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.layout.end_array_value(w)
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.layout.begin_object(w)
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.layout.end_object(w)
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.layout.begin_object_value(w)
    }
    fn end_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.layout.end_object_value(w)
    }
}

/// The pretty layout without the blank behind a colon.
struct Tabs(PrettyFormatter<'static>);

impl Formatter for Tabs {
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b":")
    }
    fn begin_array<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.begin_array(w)
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_array(w)
    }
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(w, first)
    }
    fn end_array_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_array_value(w)
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.begin_object(w)
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_object(w)
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(w, first)
    }
    fn end_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_object_value(w)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn strict(text: &str) -> String {
        String::from_utf8(to_strict(text.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn strict_text_is_borrowed() {
        for text in [r#"{"a":[1,{"b":"{0:1}"}],"$ref":"$.x"}"#, "[]", " { } ", "1", "", "garbage", r#"{"a":"\"{1:2}"}"#]
        {
            assert!(matches!(to_strict(text.as_bytes()), Cow::Borrowed(_)), "{text}");
        }
    }

    #[test]
    fn bare_keys_become_strings() {
        assert_eq!(strict(r#"{0:"a",-1:"b"}"#), r#"{"0":"a","-1":"b"}"#);
        assert_eq!(strict("{ 0 : 12 ,\n\t1:3\n\t\t}"), r#"{"0":12,"1":3}"#);
        let mq = r#"{"offsetTable":{{"brokerName":"b", "queueId":0,"topic":"T"}:5}}"#;
        assert_eq!(strict(mq), r#"{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":5}}"#);
        let value: Value = from_slice(br#"{"t":{{"m":{0:1}}:{7:[{1:"x\"y"}]}}}"#).unwrap();
        assert_eq!(value, json!({"t": {"{\"m\":{\"0\":1}}": {"7": [{"1": "x\"y"}]}}}));
    }

    #[test]
    fn garbage_is_refused_without_panic_or_growth() {
        for text in [
            "{", "{{", "{0", "{0:", "{0:1", "{0:1}}", "{{}", "{{}:1,", "{0:1,}", "{\"a", "{\"a\\", "[0:1]", "{:1}",
            "{0::1}", "{0:}",
        ] {
            assert!(from_slice::<Value>(text.as_bytes()).is_err(), "{text}");
        }
        for (open, close) in [("{", "}:1}"), ("[", "]"), ("{0:", "}")] {
            let text = [open.repeat(5000), close.repeat(5000)].concat();
            assert!(from_slice::<Value>(text.as_bytes()).is_err());
            assert!(to_strict(text.as_bytes()).len() <= text.len());
        }
        assert!(from_slice::<Value>(b"{{{}:1}:1}").is_ok());
        assert!(from_slice::<Value>(b"{{{{{}:1}:1}:1}:1}").is_err(), "keys in keys in keys double their escapes");
    }

    #[test]
    fn marked_keys_are_written_bare_or_quoted() {
        let object = r#"{"brokerName":"b\"\\","queueId":0}"#;
        let map: BTreeMap<String, Value> = [
            (bare_key(0), json!("10.0.0.1:10911")),
            (bare_key(-3), json!("\u{1}0 \u{1}{")),
            (bare_key(object), json!({"nested\u{1}7": "é/\"", "": 0.0})),
            ("plain\"".into(), json!([1, null])),
            ("\u{1}evil\":".into(), json!(true)),
            ("\u{1}".into(), json!(false)),
        ]
        .into();
        assert_eq!(
            String::from_utf8(to_vec(&map)).unwrap(),
            concat!(
                r#"{"\u0001":false,-3:"\u00010 \u0001{",0:"10.0.0.1:10911","\u0001evil\":":true,"#,
                r#"{"brokerName":"b\"\\","queueId":0}:{"nested\u00017":"é/\"","":0.0},"plain\"":[1,null]}"#
            )
        );
        let text = String::from_utf8(to_vec_strict(&map)).unwrap();
        assert!(text.contains(r#""0":"10.0.0.1:10911""#) && text.contains(r#""plain\"":[1,null]"#), "{text}");
        let strict: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(strict[object], map[&bare_key(object)]);
        let back: BTreeMap<String, Value> = from_slice(&to_vec(&map)).unwrap();
        assert_eq!(back["0"], map[&bare_key(0)]);
        assert_eq!(back[object], map[&bare_key(object)]);
    }

    #[test]
    fn pretty_text_is_laid_out_like_java_s_files() {
        let map: BTreeMap<String, Value> =
            [("offsetTable".to_string(), json!({bare_key(0): 12, bare_key(1): [3]}))].into();
        assert_eq!(
            String::from_utf8(to_vec_pretty(&map)).unwrap(),
            "{\n\t\"offsetTable\":{\n\t\t0:12,\n\t\t1:[\n\t\t\t3\n\t\t]\n\t}\n}"
        );
    }

    #[test]
    fn random_texts_never_panic_and_rewriting_is_stable() {
        let pieces = ["{", "}", "[", "]", ":", ",", "\"", "\\", "0", "-1", "\"a\"", "null", " ", "\n", "$ref", "é"];
        let mut seed = 11u64;
        for _ in 0..50_000 {
            let mut text = String::new();
            for _ in 0..14 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text.push_str(pieces[(seed >> 33) as usize % pieces.len()]);
            }
            let once = to_strict(text.as_bytes()).into_owned();
            assert_eq!(to_strict(&once), once, "{text}");
        }
    }
}
