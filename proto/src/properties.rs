//! Java properties text (configuration files, bodies of codes 25, 26, 318, 319). Source: behaviour sheet 2.6, known fault A05.
use std::fmt::Write;
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    pub key: String,
    pub value: String,
    /// 1-based line on which the key stands.
    pub line: usize,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum PropertiesError {
    #[error("line {line}: {what}")]
    Syntax { line: usize, what: &'static str },
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

/// Reads `key=value` lines: `#`/`!` comments, `=`, `:` or blank as separator, `\` continuation, `\uXXXX`. A BOM, CR and blanks
/// around key and value are dropped. All pairs in order; of duplicates the last wins (the caller decides).
pub fn parse(text: &str) -> Result<Vec<Property>, PropertiesError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = lines(text);
    let mut pairs = Vec::new();
    while let Some((line, first)) = lines.next() {
        let first = first.trim_start_matches(is_blank);
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = first.to_owned();
        while continues(&logical) {
            logical.pop();
            let Some((_, more)) = lines.next() else { break };
            logical.push_str(more.trim_start_matches(is_blank));
        }
        let syntax = |what| PropertiesError::Syntax { line, what };
        let (key, rest) = split_key(&logical);
        let (key, value) = (unescape(key).map_err(syntax)?, unescape(rest).map_err(syntax)?);
        if key.is_empty() {
            return Err(syntax("a value without a key"));
        }
        pairs.push(Property { key, value, line });
    }
    Ok(pairs)
}

/// Numbered lines, ended by LF, CR or both.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = Some(text);
    let mut number = 0;
    std::iter::from_fn(move || {
        let text = rest?;
        number += 1;
        let Some(at) = text.find(['\n', '\r']) else {
            rest = None;
            return Some((number, text));
        };
        let end = if text[at..].starts_with("\r\n") { at + 2 } else { at + 1 };
        rest = Some(&text[end..]);
        Some((number, &text[..at]))
    })
}

/// True when the line ends in an odd number of backslashes.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1
}

/// Splits at the first unescaped separator: blanks with at most one `=` or `:` among them.
fn split_key(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let is_end = |c: char| {
        let end = !escaped && (matches!(c, '=' | ':') || is_blank(c));
        escaped = !escaped && c == '\\';
        end
    };
    let Some(at) = line.find(is_end) else { return (line, "") };
    let (key, rest) = line.split_at(at);
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, rest.trim_start_matches(is_blank))
}

/// Resolves escapes and drops the blanks at the end that are not escaped.
fn unescape(text: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(text.len());
    let mut kept = 0; // bytes of `out` up to its last character that is no plain blank
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            if !is_blank(c) {
                kept = out.len();
            }
            continue;
        }
        match chars.next() {
            None => {}
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\u{c}'),
            Some('u') => out.push(unicode(&mut chars)?),
            Some(other) => out.push(other),
        }
        kept = out.len();
    }
    out.truncate(kept);
    Ok(out)
}

/// The character behind `\u`; a surrogate pair is two such escapes.
fn unicode(chars: &mut std::str::Chars<'_>) -> Result<char, &'static str> {
    let first = unit(chars)?;
    let mut units = vec![first];
    if (0xD800..0xDC00).contains(&first) && chars.as_str().starts_with("\\u") {
        *chars = chars.as_str()[2..].chars();
        units.push(unit(chars)?);
    }
    let mut decoded = char::decode_utf16(units);
    match (decoded.next(), decoded.next()) {
        (Some(Ok(c)), None) => Ok(c),
        _ => Err("half of a surrogate pair"),
    }
}

/// Four hex digits.
fn unit(chars: &mut std::str::Chars<'_>) -> Result<u16, &'static str> {
    let bad = "bad \\u escape";
    let digits = chars.as_str().get(..4).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit())).ok_or(bad)?;
    let unit = u16::from_str_radix(digits, 16).map_err(|_| bad)?;
    *chars = chars.as_str()[4..].chars();
    Ok(unit)
}

/// Sorted `key=value` lines, as Java's broker answers code 26; escaped so that reading gives the same pairs. What is not ASCII is
/// written as `\uXXXX`, since Java reads such bodies as Latin-1.
pub fn write(pairs: &mut Vec<(String, String)>) -> String {
    pairs.sort();
    let mut out = String::new();
    for (key, value) in pairs {
        escape(&mut out, key, true);
        out.push('=');
        escape(&mut out, value, false);
        out.push('\n');
    }
    out
}

fn escape(out: &mut String, text: &str, is_key: bool) {
    let blanks_from = text.trim_end_matches(is_blank).len();
    for (at, c) in text.char_indices() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{c}' => out.push_str("\\f"),
            ' ' if is_key || at == 0 || at >= blanks_from => out.push_str("\\ "),
            '=' | ':' | '#' | '!' if is_key => out.extend(['\\', c]),
            '\u{20}'..='\u{7e}' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04X}").expect("writing to a String cannot fail");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap().into_iter().map(|p| (p.key, p.value)).collect()
    }

    fn one(text: &str) -> (String, String) {
        let mut all = pairs(text);
        assert_eq!(all.len(), 1, "{text:?}");
        all.remove(0)
    }

    /// Known fault A05.
    #[test]
    fn blanks_bom_and_carriage_returns_do_not_reach_the_value() {
        for text in
            ["k=v", "k=v ", "k = v\t", "\u{feff}k=v", "k=v\r\n", "  k :v \r", "k v", "k\t=\tv \t \n", "k=v\u{c}"]
        {
            assert_eq!(one(text), ("k".into(), "v".into()), "{text:?}");
        }
        assert_eq!(one("k="), ("k".into(), "".into()));
        assert_eq!(one("k"), ("k".into(), "".into()));
        assert_eq!(one("k==v"), ("k".into(), "=v".into()));
        assert_eq!(one("a=b=c d"), ("a".into(), "b=c d".into()));
    }

    #[test]
    fn comments_continuations_and_line_numbers() {
        let text = "# one\n!two\n\na=1\r\nlong = x\\\n    y\\\r\n  z\n\\#odd=1\nb=2\\\\\nc=3";
        let all = parse(text).unwrap();
        let seen: Vec<_> = all.iter().map(|p| (p.key.as_str(), p.value.as_str(), p.line)).collect();
        assert_eq!(seen, [("a", "1", 4), ("long", "xyz", 5), ("#odd", "1", 8), ("b", "2\\", 9), ("c", "3", 10)]);
        assert_eq!(pairs("a=1\na=2"), [("a".into(), "1".into()), ("a".into(), "2".into())]);
    }

    #[test]
    fn escapes() {
        assert_eq!(one(r"a\:b\=c\ d=x\ty\u4e2d\uD83D\uDE00\q\ "), ("a:b=c d".into(), "x\ty\u{4e2d}\u{1F600}q ".into()));
        for text in
            ["a=1\nk=\\u12", "a=1\nk=\\u12G4", "a=1\nk=\\uD800", "a=1\nk=\\uD800\\u0041", "a=1\n =x", "a=1\nk=\\u+123"]
        {
            assert!(matches!(parse(text), Err(PropertiesError::Syntax { line: 2, .. })), "{text:?}");
        }
        assert_eq!(one("k=v\\"), ("k".into(), "v".into()));
    }

    #[test]
    fn what_is_written_reads_back_and_is_sorted() {
        let mut odd: Vec<(String, String)> = [
            ("z", "plain"),
            ("path", r"C:\dir"),
            ("a b=c:#!", " lead and trail  "),
            ("nl", "one\ntwo\r\t\u{c}"),
            ("unicode", "\u{4e2d}\u{1F600}\u{7f}"),
            ("empty", ""),
        ]
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .into();
        let text = write(&mut odd);
        assert!(text.is_ascii());
        assert_eq!(pairs(&text), odd);
        assert!(text.ends_with("z=plain\n"));
    }

    #[test]
    fn no_text_makes_it_panic() {
        let pieces = ["\\", "\\u", "12", "=", ":", " ", "\n", "\r", "k", "\u{4e2d}", "#", "!", "\t"];
        let mut seed = 7u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..12 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text.push_str(pieces[(seed >> 33) as usize % pieces.len()]);
            }
            let _ = parse(&text);
        }
    }
}
