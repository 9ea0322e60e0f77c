//! fastjson's dialect: bare numeric and bare object keys, both ways. Source: wire-protocol sheet 4.
use std::borrow::Cow;

/// Rewrites fastjson text to strict JSON: a bare number key becomes `"0"`, a bare object key becomes a string holding that
/// object's JSON. Text that is strict already is borrowed. Garbage stays garbage for the strict parser to refuse.
pub fn to_strict(text: &[u8]) -> Cow<'_, [u8]> {
    let _ = text;
    todo!()
}

/// Writes `value` as fastjson does: keys of maps that parse as an integer or as a JSON object are written bare when they
/// carry the mark of [`bare_key`].
pub fn to_vec<T: serde::Serialize>(value: &T) -> Vec<u8> {
    let _ = value;
    todo!()
}

/// Marks a map key to be written bare by [`to_vec`].
pub fn bare_key(key: impl std::fmt::Display) -> String {
    let _ = key.to_string();
    todo!()
}

/// Parses a body in fastjson's dialect.
pub fn from_slice<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(&to_strict(text))
}
