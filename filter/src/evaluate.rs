//! What an expression gives for one message. A value that cannot be compared ends the evaluation, but not before it is reached: AND and OR
//! stop at the first part that decides.
use crate::number;
use crate::parse::{Node, Order, Search, Value};
use std::cmp::Ordering;

/// Why an expression has no value for a message.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum EvaluateError {
    #[error("a property is not the number it is compared with")]
    NoNumber,
    #[error("a condition is compared with a text")]
    NoCommonType,
}

/// The value of a property.
pub type Lookup<'v> = &'v dyn Fn(&str) -> Option<&'v str>;

/// `node` as a condition: a text, and so a property, is never TRUE.
pub fn truth<'v>(node: &'v Node, property: Lookup<'v>) -> Result<Option<bool>, EvaluateError> {
    Ok(match value(node, property)? {
        Value::Null => None,
        Value::Bool(b) => Some(b),
        Value::Int(_) | Value::Long(_) | Value::Double(_) | Value::Text(_) => Some(false),
    })
}

fn of_truth<'v>(truth: Option<bool>) -> Value<'v> {
    truth.map_or(Value::Null, Value::Bool)
}

fn value<'v>(node: &'v Node, property: Lookup<'v>) -> Result<Value<'v>, EvaluateError> {
    let truth = match node {
        Node::Constant(constant) => return Ok(constant.value()),
        Node::Property(name) => return Ok(property(name).map_or(Value::Null, Value::Text)),
        Node::Negate(part) => return Ok(negated(value(part, property)?)),
        Node::Not(part) => truth(part, property)?.map(|b| !b),
        Node::And(parts) => all(parts, false, property)?,
        Node::Or(parts) => all(parts, true, property)?,
        Node::Equal { left, right, negated } => {
            equal(value(left, property)?, value(right, property)?)?.map(|same| same != *negated)
        }
        Node::Compare { left, order, right } => ordered(value(left, property)?, *order, value(right, property)?)?,
        Node::Between { subject, low, high, negated } => between(subject, (low, high), *negated, property)?,
        Node::IsNull { subject, negated } => Some(matches!(value(subject, property)?, Value::Null) != *negated),
        Node::In { property: name, values, negated } => {
            property(name).map(|text| values.iter().any(|value| **value == *text) != *negated)
        }
        Node::Search { subject, how, text, negated } => Some(match value(subject, property)? {
            // Without a text on either side both forms are FALSE.
            Value::Text(subject) if !text.is_empty() => found(subject, *how, text) != *negated,
            _ => false,
        }),
    };
    Ok(of_truth(truth))
}

fn negated(value: Value<'_>) -> Value<'_> {
    match value {
        Value::Int(n) => Value::Int(n.wrapping_neg()),
        Value::Long(n) => Value::Long(n.wrapping_neg()),
        Value::Double(n) => Value::Double(-n),
        Value::Null | Value::Bool(_) | Value::Text(_) => Value::Null,
    }
}

/// OR when `decides` is true, AND when it is false: the value that decides, else unknown if any part is, else the other one.
fn all<'v>(parts: &'v [Node], decides: bool, property: Lookup<'v>) -> Result<Option<bool>, EvaluateError> {
    let mut outcome = Some(!decides);
    for part in parts {
        match truth(part, property)? {
            Some(b) if b == decides => return Ok(Some(decides)),
            Some(_) => {}
            None => outcome = None,
        }
    }
    Ok(outcome)
}

fn found(subject: &str, how: Search, text: &str) -> bool {
    match how {
        Search::Contains => subject.contains(text),
        Search::StartsWith => subject.starts_with(text),
        Search::EndsWith => subject.ends_with(text),
    }
}

fn between<'v>(
    subject: &'v Node,
    (low, high): (&'v Node, &'v Node),
    negated: bool,
    property: Lookup<'v>,
) -> Result<Option<bool>, EvaluateError> {
    let (at_low, at_high) =
        if negated { (Order::Less, Order::Greater) } else { (Order::GreaterEqual, Order::LessEqual) };
    let subject = value(subject, property)?;
    let first = ordered(subject, at_low, value(low, property)?)?;
    if first == Some(negated) {
        return Ok(first);
    }
    let second = ordered(subject, at_high, value(high, property)?)?;
    Ok(match (first, second) {
        (_, Some(b)) if b == negated => Some(b),
        (Some(_), Some(b)) => Some(b),
        _ => None,
    })
}

/// Not even-handed: a missing left side is unknown, a missing right side unequal, and two missing ones are equal.
fn equal(left: Value<'_>, right: Value<'_>) -> Result<Option<bool>, EvaluateError> {
    Ok(match (left, right) {
        (Value::Null, Value::Null) => Some(true),
        (Value::Null, _) => None,
        (_, Value::Null) => Some(false),
        (Value::Text(left), Value::Text(right)) => Some(left == right),
        (Value::Bool(left), Value::Bool(right)) => Some(left == right),
        (Value::Text(left), Value::Bool(right)) => Some(left.eq_ignore_ascii_case("true") == right),
        (Value::Bool(_), Value::Text(_)) => return Err(EvaluateError::NoCommonType),
        (Value::Bool(_), _) | (_, Value::Bool(_)) => Some(false),
        (left, right) => Some(numbers(left, right)?.is_eq()),
    })
}

fn ordered(left: Value<'_>, order: Order, right: Value<'_>) -> Result<Option<bool>, EvaluateError> {
    Ok(match (left, right) {
        (Value::Null, _) | (_, Value::Null) => None,
        (left, right) => Some(order.holds(numbers(left, right)?)),
    })
}

/// Two values as numbers: a text becomes what the other side is, two texts become doubles.
fn numbers(left: Value<'_>, right: Value<'_>) -> Result<Ordering, EvaluateError> {
    let (left, right) = (as_number(left, right)?, as_number(right, left)?);
    compare_numbers(left, right).ok_or(EvaluateError::NoCommonType)
}

fn as_number<'v>(value: Value<'v>, other: Value<'_>) -> Result<Value<'v>, EvaluateError> {
    let Value::Text(text) = value else { return Ok(value) };
    match other {
        Value::Int(_) => number::int(text).map(Value::Int),
        Value::Long(_) => number::long(text).map(Value::Long),
        Value::Double(_) | Value::Text(_) => number::double(text).map(Value::Double),
        Value::Null | Value::Bool(_) => None,
    }
    .ok_or(EvaluateError::NoNumber)
}

/// The order of two numbers, in the wider of their types; `None` when one is none.
pub fn compare_numbers(left: Value<'_>, right: Value<'_>) -> Option<Ordering> {
    let whole = |value| match value {
        Value::Int(n) => Some(i64::from(n)),
        Value::Long(n) => Some(n),
        _ => None,
    };
    let double = |value| match value {
        Value::Double(n) => Some(n),
        other => whole(other).map(|n| n as f64),
    };
    match (whole(left), whole(right)) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        _ => Some(compare_doubles(double(left)?, double(right)?)),
    }
}

/// As Java orders them: -0.0 below 0.0, NaN equal to itself and above all.
fn compare_doubles(left: f64, right: f64) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (false, false) => left.total_cmp(&right),
        (left, right) => left.cmp(&right),
    }
}
