//! The JSON header (serialize type 0), both ways. A one-pass parser of its own: the header of every message passes here.
//! Source: wire-protocol sheet 1.2.
//!
//! What it tolerates, because some client does it: any key order, unknown keys with nested values, `null`, numbers where text is
//! meant and numbers in quotes, an empty `remark`, raw control characters inside strings.
use crate::command::{Command, DecodeError, Ext, Value, language_code};
use crate::frame::Serialize;
use std::borrow::Cow;

/// Room for the fields of a send, so that its list grows once.
const EXT_FIELDS: usize = 16;
/// Deepest nesting of an unknown key's value.
const DEPTH_MAX: usize = 32;

/// Strings are scanned eight bytes at a time: most are shorter than what makes a call of memchr pay.
const WORD_BYTES: usize = 8;
const EACH: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x80 * EACH;

fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

/// Top bits of the bytes below `limit` (at most 0x80), exact up to the first: a borrow can only make later ones wrong.
fn below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(EACH * limit as u64) & !word & TOPS
}

/// As [`below`], for the bytes equal to `byte`.
fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ (EACH * byte as u64), 1)
}

/// Index of the first byte marked.
fn first_byte(hits: u64) -> usize {
    hits.trailing_zeros() as usize / 8
}

/// Values of hex digits; 255 for other bytes.
const HEX_VALUE: [u8; 256] = {
    let mut table = [255; 256];
    let mut n = 0;
    while n < 16 {
        table[b"0123456789abcdef"[n] as usize] = n as u8;
        table[b"0123456789ABCDEF"[n] as usize] = n as u8;
        n += 1;
    }
    table
};

type Result<T> = std::result::Result<T, DecodeError>;

fn bad<T>(what: &'static str) -> Result<T> {
    Err(DecodeError::Header(what))
}

/// Decodes `header`; the strings borrow from it where they hold no escape.
pub(crate) fn decode<'a>(header: &'a [u8], body: &'a [u8]) -> Result<Command<'a>> {
    let Ok(text) = std::str::from_utf8(header) else { return bad("not UTF-8") };
    let mut p = Parser { text, bytes: header, at: 0 };
    let mut command = Command {
        code: 0,
        language: crate::command::LANGUAGE_OTHER,
        version: 0,
        opaque: 0,
        flag: 0,
        remark: None,
        ext: Ext::default(),
        serialize: Serialize::Json,
        body,
    };
    let (mut code, mut opaque) = (None, None);
    p.object(|p, key| {
        match key {
            "code" => code = p.int("code is not a 32-bit number")?,
            "opaque" => opaque = p.int("opaque is not a 32-bit number")?,
            "flag" => command.flag = p.int("flag is not a 32-bit number")?.unwrap_or(0),
            "version" => command.version = p.int("version is not a 32-bit number")?.unwrap_or(0),
            "language" => command.language = p.language()?,
            "remark" => command.remark = p.scalar("remark is not text")?.filter(|remark| !remark.is_empty()),
            "extFields" => p.ext(&mut command.ext)?,
            _ => p.skip()?,
        }
        Ok(())
    })?;
    p.blanks();
    if p.at != p.bytes.len() {
        return bad("text after the closing brace");
    }
    let (Some(code), Some(opaque)) = (code, opaque) else { return bad("code or opaque is missing") };
    command.code = code;
    command.opaque = opaque;
    Ok(command)
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline(always)]
    fn blanks(&mut self) {
        // Peers write none, so the common case is one comparison.
        while self.bytes.get(self.at).is_some_and(|&b| b <= b' ' && matches!(b, b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    #[inline(always)]
    fn eat(&mut self, byte: u8) -> bool {
        let hit = self.peek() == Some(byte);
        self.at += hit as usize;
        hit
    }

    /// Runs `each` with the reader standing on each member's value.
    fn object(&mut self, mut each: impl FnMut(&mut Self, &str) -> Result<()>) -> Result<()> {
        self.members(|p, key| each(p, &key))
    }

    fn members(&mut self, mut each: impl FnMut(&mut Self, Cow<'a, str>) -> Result<()>) -> Result<()> {
        self.blanks();
        if !self.eat(b'{') {
            return bad("not a JSON object");
        }
        self.blanks();
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            self.blanks();
            let key = self.string()?;
            self.blanks();
            if !self.eat(b':') {
                return bad("no colon after a key");
            }
            self.blanks();
            each(self, key)?;
            self.blanks();
            if self.eat(b'}') {
                return Ok(());
            }
            if !self.eat(b',') {
                return bad("no comma between members");
            }
        }
    }

    #[inline(always)]
    fn string(&mut self) -> Result<Cow<'a, str>> {
        if !self.eat(b'"') {
            return bad("a quote is missing");
        }
        let start = self.at;
        let stop = self.string_stop()?;
        self.at = stop + 1;
        let plain = &self.text[start..stop];
        if self.bytes[stop] == b'"' { Ok(Cow::Borrowed(plain)) } else { self.unescape(plain) }
    }

    /// The rest of a string whose first escape was met behind `plain`.
    #[inline(never)]
    fn unescape(&mut self, plain: &str) -> Result<Cow<'a, str>> {
        // Escapes shrink, so what is left of the header is enough; property strings are rarely longer than the guess.
        let mut out = String::with_capacity(plain.len() + (self.bytes.len() - self.at).min(256));
        out.push_str(plain);
        loop {
            // Stands behind the backslash. Controls between properties are by far the most frequent escapes.
            match self.bytes.get(self.at..).and_then(|rest| rest.first_chunk()) {
                Some([b'u', b'0', b'0', b'0', digit @ b'0'..=b'9']) => {
                    out.push((digit - b'0') as char);
                    self.at += 5;
                }
                _ => out.push(self.escape()?),
            }
            let run = self.at;
            let stop = self.string_stop()?;
            out.push_str(&self.text[run..stop]);
            self.at = stop + 1;
            if self.bytes[stop] == b'"' {
                return Ok(Cow::Owned(out));
            }
        }
    }

    /// The place of the next quote or backslash.
    #[inline(always)]
    fn string_stop(&self) -> Result<usize> {
        let mut at = self.at;
        while let Some(word) = word_at(self.bytes, at) {
            let hits = equal(word, b'"') | equal(word, b'\\');
            if hits != 0 {
                return Ok(at + first_byte(hits));
            }
            at += WORD_BYTES;
        }
        let rest = self.bytes.get(at..).unwrap_or_default();
        match rest.iter().position(|&b| b == b'"' || b == b'\\') {
            Some(n) => Ok(at + n),
            None => bad("a string does not end"),
        }
    }

    fn escape(&mut self) -> Result<char> {
        let Some(kind) = self.peek() else { return bad("a string does not end") };
        self.at += 1;
        Ok(match kind {
            b'u' => return self.unicode(),
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            _ => return bad("unknown escape in a string"),
        })
    }

    fn unicode(&mut self) -> Result<char> {
        let high = self.hex4()?;
        let code = match high {
            0xD800..=0xDBFF => {
                if !(self.eat(b'\\') && self.eat(b'u')) {
                    return bad("half of a surrogate pair");
                }
                let low = self.hex4()?;
                if !(0xDC00..=0xDFFF).contains(&low) {
                    return bad("half of a surrogate pair");
                }
                0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
            }
            code => code,
        };
        char::from_u32(code).map_or_else(|| bad("half of a surrogate pair"), Ok)
    }

    fn hex4(&mut self) -> Result<u32> {
        let Some(digits) = self.bytes.get(self.at..self.at + 4) else { return bad("a string does not end") };
        self.at += 4;
        let [a, b, c, d] = [0, 1, 2, 3].map(|n| HEX_VALUE[digits[n] as usize] as u32);
        if (a | b | c | d) > 15 {
            return bad("bad \\u escape");
        }
        Ok(a << 12 | b << 8 | c << 4 | d)
    }

    /// A string, number, boolean or null (`None`), as text.
    fn scalar(&mut self, what: &'static str) -> Result<Option<Cow<'a, str>>> {
        match self.peek() {
            Some(b'"') => self.string().map(Some),
            Some(b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
                let word = self.word();
                match word {
                    "null" => Ok(None),
                    "true" | "false" => Ok(Some(Cow::Borrowed(word))),
                    _ if is_number(word.as_bytes()) => Ok(Some(Cow::Borrowed(word))),
                    _ => bad(what),
                }
            }
            _ => bad(what),
        }
    }

    /// Everything up to a blank or a mark of punctuation.
    fn word(&mut self) -> &'a str {
        let start = self.at;
        while let Some(b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') = self.peek() {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn int(&mut self, what: &'static str) -> Result<Option<i32>> {
        let negative = self.eat(b'-');
        let start = self.at;
        let mut n: i32 = 0;
        // Nine digits cannot overflow; what is longer or odd goes the slow way.
        while let Some(digit @ b'0'..=b'9') = self.peek()
            && self.at - start < 9
        {
            n = n * 10 + (digit - b'0') as i32;
            self.at += 1;
        }
        if self.at > start
            && let Some(b',' | b'}') = self.peek()
        {
            return Ok(Some(if negative { -n } else { n }));
        }
        self.at = start - negative as usize;
        match self.scalar(what)? {
            None => Ok(None),
            Some(text) => text.parse().map_or_else(|_| bad(what), |n| Ok(Some(n))),
        }
    }

    /// A language's name or number; a stranger is OTHER, never an error.
    fn language(&mut self) -> Result<u8> {
        let text = self.scalar("language is not text")?;
        Ok(language_code(text.as_deref().unwrap_or_default()))
    }

    fn ext(&mut self, ext: &mut Ext<'a>) -> Result<()> {
        ext.0.clear();
        ext.0.reserve(EXT_FIELDS);
        if self.peek() == Some(b'n') {
            return if self.word() == "null" { Ok(()) } else { bad("extFields is not an object") };
        }
        self.members(|p, key| {
            if p.peek() == Some(b'"') {
                ext.0.push((key, p.string()?));
            } else if let Some(value) = p.scalar("a value of extFields is not text")? {
                ext.0.push((key, value));
            }
            Ok(())
        })
    }

    /// Passes over a value of any kind, without recursion. Brackets must match; what stands between them is not judged.
    fn skip(&mut self) -> Result<()> {
        let mut open = [0; DEPTH_MAX];
        let mut depth = 0;
        loop {
            self.blanks();
            match self.peek() {
                Some(bracket @ (b'{' | b'[')) => {
                    let Some(slot) = open.get_mut(depth) else { return bad("nested too deep") };
                    *slot = bracket + 2; // its counterpart in ASCII
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                Some(bracket @ (b'}' | b']')) if depth > 0 => {
                    if bracket != open[depth - 1] {
                        return bad("brackets do not match");
                    }
                    depth -= 1;
                    self.at += 1;
                }
                Some(b',' | b':') if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.scalar("unreadable value")?;
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }
}

fn is_number(word: &[u8]) -> bool {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    digits.first().is_some_and(u8::is_ascii_digit)
        && digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))
}

/// Appends the header object, its keys in Java's (alphabetical) order. Nothing is written for no remark and no ext fields.
pub(crate) fn write<'e>(
    out: &mut Vec<u8>,
    (code, flag, opaque): (i32, i32, i32),
    remark: Option<&str>,
    ext: impl Iterator<Item = (&'e str, &'e Value<'e>)>,
) {
    out.reserve(512); // most headers
    out.extend_from_slice(b"{\"code\":");
    push_int(out, code);
    let mut open = false;
    for (key, value) in ext {
        out.extend_from_slice(if open { b"," } else { b",\"extFields\":{" });
        open = true;
        push_text(out, key);
        out.push(b':');
        match value {
            Value::Str(text) => push_text(out, text),
            Value::I64(n) => push_quoted(out, itoa::Buffer::new().format(*n)),
            Value::U64(n) => push_quoted(out, itoa::Buffer::new().format(*n)),
            Value::Bool(b) => push_quoted(out, if *b { "true" } else { "false" }),
        }
    }
    out.extend_from_slice(if open { b"},\"flag\":" } else { b",\"flag\":" });
    push_int(out, flag);
    out.extend_from_slice(b",\"language\":\"JAVA\",\"opaque\":");
    push_int(out, opaque);
    if let Some(remark) = remark {
        out.extend_from_slice(b",\"remark\":");
        push_text(out, remark);
    }
    out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    push_int(out, crate::command::VERSION);
    out.push(b'}');
}

fn push_int(out: &mut Vec<u8>, n: i32) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// For text that needs no escape.
fn push_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Appends `text` as a JSON string; what is not ASCII stays UTF-8.
pub(crate) fn push_text(out: &mut Vec<u8>, text: &str) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut run = 0;
    while let Some(at) = next_escape(bytes, run) {
        out.extend_from_slice(&bytes[run..at]);
        run = at + 1;
        push_escape(out, bytes[at]);
    }
    out.extend_from_slice(&bytes[run..]);
    out.push(b'"');
}

/// The place of the next byte that must be escaped: a control, a quote, a backslash.
fn next_escape(bytes: &[u8], mut at: usize) -> Option<usize> {
    while let Some(word) = word_at(bytes, at) {
        let hits = below(word, 0x20) | equal(word, b'"') | equal(word, b'\\');
        if hits != 0 {
            return Some(at + first_byte(hits));
        }
        at += WORD_BYTES;
    }
    let rest = bytes.get(at..)?;
    rest.iter().position(|&b| b < 0x20 || b == b'"' || b == b'\\').map(|n| at + n)
}

fn push_escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        _ => {
            let (high, low) = (HEX[(byte >> 4) as usize], HEX[(byte & 15) as usize]);
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight bytes at a time finds what one byte at a time finds, wherever it stands and whatever follows.
    #[test]
    fn word_scans_agree_with_byte_scans() {
        let telling = [b'"', b'\\', 0, 1, 0x1F, 0x20, 0x21, 0x22, 0x23, 0x5B, 0x5D, 0x7F, 0x80, 0xA2, 0xDC, 0xFF, b'a'];
        let mut seed = 5u64;
        for _ in 0..100_000 {
            let mut bytes = [b'x'; 21];
            for _ in 0..3 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                bytes[(seed >> 40) as usize % 21] = telling[(seed >> 20) as usize % telling.len()];
            }
            let escape = bytes.iter().position(|&b| b < 0x20 || b == b'"' || b == b'\\');
            assert_eq!(next_escape(&bytes, 0), escape, "{bytes:?}");
            let stop = bytes.iter().position(|&b| b == b'"' || b == b'\\');
            let parser = Parser { text: "", bytes: &bytes, at: 0 };
            assert_eq!(parser.string_stop().ok(), stop, "{bytes:?}");
        }
    }
}
