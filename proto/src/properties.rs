//! Java properties text (configuration files, bodies of codes 25, 26, 318, 319). Source: behaviour sheet 2.6, known fault A05.
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

/// Reads `key=value` lines: `#`/`!` comments, `=`, `:` or blank as separator, `\` continuation, `\uXXXX`. A BOM, CR and blanks
/// around key and value are dropped. All pairs in order; of duplicates the last wins (the caller decides).
pub fn parse(text: &str) -> Result<Vec<Property>, PropertiesError> {
    let _ = text;
    todo!()
}

/// Sorted `key=value` lines, as Java's broker answers code 26.
pub fn write(pairs: &mut Vec<(String, String)>) -> String {
    let _ = pairs;
    todo!()
}
