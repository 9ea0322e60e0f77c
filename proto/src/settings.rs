//! What a server's configuration is read with: typed values, the place that a value came from, and the error that names both.
//! Stricter than Apache's servers, which ignore what they cannot read (known fault A05): here that is an error.
pub mod listed;

use crate::properties::PropertiesError;
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    File {
        path: PathBuf,
        line: usize,
    },
    Flag(&'static str),
    Environment(&'static str),
    /// Nobody gave it.
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line } => write!(f, "{} line {line}", path.display()),
            Place::Flag(flag) => write!(f, "flag {flag}"),
            Place::Environment(name) => write!(f, "environment variable {name}"),
            Place::Default => write!(f, "default"),
        }
    }
}

/// Why the broker does not start with this configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("configuration file {path} cannot be read: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("configuration file {path}, {source}")]
    Syntax { path: PathBuf, source: PropertiesError },
    /// `why` stands after the value: "is not a whole number".
    #[error("{place}: {key} = '{value}' {why}")]
    Value { place: Place, key: String, value: String, why: String },
}

/// A type that a configuration key may have.
pub trait ConfigValue: Sized {
    /// The value of a trimmed text, or what is wrong with it, to stand after the text: "is not a whole number".
    fn read(text: &str) -> Result<Self, String>;
    /// The text that `read` takes back.
    fn show(&self) -> String;
}

macro_rules! whole_numbers {
    ($($number:ty),*) => {$(
        impl ConfigValue for $number {
            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| {
                    format!("is not a whole number from {} to {}", <$number>::MIN, <$number>::MAX)
                })
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
whole_numbers!(u8, u16, u32, u64, usize, i32, i64);

impl ConfigValue for bool {
    fn read(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("true") {
            Ok(true)
        } else if text.eq_ignore_ascii_case("false") {
            Ok(false)
        } else {
            Err("is neither true nor false".to_owned())
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl ConfigValue for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

impl ConfigValue for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        Ok(PathBuf::from(text))
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

/// The trimmed value, unless it holds what no value may: control characters (they would add lines when written back) or bytes that
/// were no UTF-8.
pub fn readable(value: &str) -> Result<&str, String> {
    let value = value.trim();
    if value.contains(char::is_control) {
        return Err("holds a control character".to_owned());
    }
    if value.contains(char::REPLACEMENT_CHARACTER) {
        return Err("is not UTF-8".to_owned());
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round<T: ConfigValue + PartialEq + fmt::Debug>(text: &str, want: T) {
        let value = T::read(text).unwrap();
        assert_eq!(T::read(&value.show()).as_ref(), Ok(&want), "{text} shown");
        assert_eq!(value, want, "{text}");
    }

    #[test]
    fn numbers_are_ascii_digits_and_nothing_else() {
        round("10911", 10911u16);
        round("-1", -1i64);
        for bad in ["", "1 2", "1_000", "１２", "0x10", "1.5", "65536", "-1", "10911 # port", "yes"] {
            assert!(u16::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn booleans_are_true_or_false_in_any_case() {
        for (text, want) in [("true", true), ("True", true), ("FALSE", false)] {
            round(text, want);
        }
        for bad in ["", "yes", "1", "on", "t", "true x"] {
            assert!(bool::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_no_value_may_hold() {
        assert_eq!(readable(" a b \r"), Ok("a b"));
        assert!(readable("a\nb=c").is_err());
        assert!(readable("\u{fffd}").is_err());
    }
}
