//! SQL92 subscriptions: text in, an expression out that says of a message's properties whether it matches. Used by the broker's pulls and
//! subscription checks; knows nothing of messages, brokers or files.
//!
//! What is accepted, what is refused and what an expression gives are Apache's, cell by cell: `tests/golden` holds what its own filter
//! answers to some hundreds of expressions, each with two dozen sets of properties. Source: behaviour sheet 10, and that table where the
//! sheet is silent.
//!
//! | file | holds |
//! | --- | --- |
//! | `token.rs` | the words of the language |
//! | `parse.rs` | grammar and the checks made once, when a text is compiled |
//! | `evaluate.rs` | three-valued evaluation |
//! | `number.rs` | numbers in property values, as Java's parsers take them |
//! | `cache.rs` | compiled expressions by text |
//! | `bloom.rs` | the places of a subscription in the bit map of a message |
//!
//! Limits that Apache lacks: [`TEXT_BYTES_MAX`] and [`DEPTH_MAX`], so that no text costs the broker its stack (known fault L01).
pub mod bloom;
mod cache;
mod evaluate;
mod number;
mod parse;
mod token;

pub use cache::Cache;
pub use evaluate::EvaluateError;
pub use parse::{DEPTH_MAX, ParseError, TEXT_BYTES_MAX};

use parse::Node;

/// A compiled SQL92 expression.
#[derive(Debug)]
pub struct Expression {
    root: Node,
}

impl Expression {
    /// Compiles `text`. As with Apache, what follows a complete expression is not looked at.
    ///
    /// # Errors
    /// The text is no expression, gives neither a truth value nor a bare property, compares what cannot be compared, or is beyond a limit.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        parse::parse(text).map(|root| Expression { root })
    }

    /// Whether a message matches: only when the expression gives TRUE. `property` is the value of one of its properties.
    pub fn matches<'m>(&self, property: impl Fn(&str) -> Option<&'m str>) -> bool {
        matches!(self.evaluate(property), Ok(Some(true)))
    }

    /// The expression's value; `None` is SQL's unknown.
    ///
    /// # Errors
    /// A property is not the number it is compared with, or the two sides have nothing in common. Apache then takes the message for one
    /// that does not match.
    pub fn evaluate<'m>(&self, property: impl Fn(&str) -> Option<&'m str>) -> Result<Option<bool>, EvaluateError> {
        evaluate::truth(&self.root, &|name| property(name))
    }
}
