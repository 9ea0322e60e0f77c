//! Topic and group attributes: the text `+key=value,-key`, which keys there are, and what may be changed. Pure.
//! Source: behaviour sheet 3.8; the beginnings of the error texts are part of the contract.
use std::collections::BTreeMap;
use uringmq_proto::body::topic::{QUEUE_TYPE, QUEUE_TYPE_BATCH, TopicConfig};
use uringmq_store::consume_queue::Form;

/// What a topic carries besides its numbers; the key without its sign.
pub type Attributes = BTreeMap<String, String>;

/// What a key's value may be.
enum Kind {
    OneOf(&'static [&'static str]),
    /// A whole number of this range, both ends included.
    Long(i64, i64),
    /// true or false, in any case.
    Switch,
    Text,
}

/// One known key.
struct Rule {
    key: &'static str,
    changeable: bool,
    kind: Kind,
}

pub const MESSAGE_TYPE: &str = "message.type";
pub const MIXED: &str = "MIXED";

pub const PRIORITY: &str = "PRIORITY";
const CLEANUP_POLICY: &str = "cleanup.policy";
const COMPACTION: &str = "COMPACTION";
/// Of a hundred pops of a priority topic, how many look at its queues in the order of their priority.
const PRIORITY_FACTOR: &str = "priority.factor";
const PRIORITY_FACTOR_DEFAULT: u32 = 100;

const TOPIC_RULES: &[Rule] = &[
    Rule { key: QUEUE_TYPE, changeable: false, kind: Kind::OneOf(&[QUEUE_TYPE_BATCH, "SimpleCQ"]) },
    Rule { key: CLEANUP_POLICY, changeable: false, kind: Kind::OneOf(&["DELETE", COMPACTION]) },
    Rule {
        key: MESSAGE_TYPE,
        changeable: true,
        kind: Kind::OneOf(&["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", PRIORITY, "LITE", MIXED]),
    },
    Rule { key: "reserve.time", changeable: true, kind: Kind::Long(-1, i64::MAX) },
    Rule { key: "lite.topic.expiration", changeable: true, kind: Kind::Long(-1, i64::MAX) },
];

/// Those of light topics (`lite.`) are kept and do nothing here.
const GROUP_RULES: &[Rule] = &[
    Rule { key: PRIORITY_FACTOR, changeable: true, kind: Kind::Long(0, 100) },
    Rule { key: "lite.bind.topic", changeable: true, kind: Kind::Text },
    Rule { key: "lite.sub.model", changeable: true, kind: Kind::OneOf(&["Shared", "Exclusive"]) },
    Rule { key: "lite.sub.reset.offset.exclusive", changeable: true, kind: Kind::Switch },
    Rule { key: "lite.sub.reset.offset.unsubscribe", changeable: true, kind: Kind::Switch },
    Rule { key: "lite.sub.client.quota", changeable: true, kind: Kind::Long(-1, i64::MAX) },
    Rule { key: "lite.sub.client.max.event.cnt", changeable: true, kind: Kind::Long(10, i64::MAX) },
    Rule { key: "lite.sub.wildcard", changeable: true, kind: Kind::Text },
];

/// Whether its messages are to be popped in the order of their queues.
pub fn is_priority(topic: &TopicConfig) -> bool {
    topic.attributes.get(MESSAGE_TYPE).is_some_and(|kind| kind == PRIORITY)
}

/// Whether of each key only the newest message is wanted: its messages must have one.
pub fn is_compaction(topic: &TopicConfig) -> bool {
    topic.attributes.get(CLEANUP_POLICY).is_some_and(|policy| policy == COMPACTION)
}

/// The group's share of pops by priority, of a hundred.
pub fn priority_factor(group: &Attributes) -> u32 {
    group.get(PRIORITY_FACTOR).and_then(|text| text.parse().ok()).unwrap_or(PRIORITY_FACTOR_DEFAULT)
}

/// Which kind of queues a topic with these attributes has.
pub fn form_of(topic: &TopicConfig) -> Form {
    match topic.attributes.get(QUEUE_TYPE).is_some_and(|kind| kind == QUEUE_TYPE_BATCH) {
        true => Form::Batch,
        false => Form::Plain,
    }
}

/// Splits the header's text into signed keys and values: `+a=b,-c` gives `+a` -> `b`, `-c` -> ``. Blank text gives nothing.
///
/// # Errors
/// The remark: a piece that is neither `+key=value` nor `-key`, or a key that stands twice.
pub fn parse(text: &str) -> Result<Attributes, String> {
    let mut signed = Attributes::new();
    // As Java splits: empty pieces at the end are none.
    for piece in text.trim_end_matches(',').split(',').filter(|_| !text.trim_end_matches(',').trim().is_empty()) {
        let (key, value) = match piece.split_once('=') {
            Some((key, value)) if key.starts_with('+') => (key, value),
            Some(_) => return Err(format!("add/alter attribute format is wrong: {piece}")),
            None if piece.starts_with('-') => (piece, ""),
            None => return Err(format!("delete attribute format is wrong: {piece}")),
        };
        let bare = &key[1..];
        if bare.is_empty() {
            return Err(format!("add/alter attribute format is wrong: {piece}"));
        }
        if signed.keys().any(|other| &other[1..] == bare) {
            return Err(format!("key duplication: {bare}"));
        }
        signed.insert(key.to_owned(), value.to_owned());
    }
    Ok(signed)
}

/// The attributes of a topic after `signed` was applied to `current` (`None`: it is being created).
///
/// # Errors
/// The remark.
pub fn alter_topic(current: Option<&Attributes>, signed: &Attributes) -> Result<Attributes, String> {
    alter(TOPIC_RULES, current, signed)
}

/// As [`alter_topic`] for a subscription group.
pub fn alter_group(current: Option<&Attributes>, signed: &Attributes) -> Result<Attributes, String> {
    alter(GROUP_RULES, current, signed)
}

fn alter(rules: &[Rule], current: Option<&Attributes>, signed: &Attributes) -> Result<Attributes, String> {
    let mut after = current.cloned().unwrap_or_default();
    for (signed_key, value) in signed {
        let (sign, key) = match signed_key.chars().next() {
            Some(sign @ ('+' | '-')) => (sign, &signed_key[1..]),
            _ => return Err(format!("wrong format key: {signed_key}")),
        };
        if current.is_none() && sign == '-' {
            return Err(format!("only add attribute is supported while creating topic. key: {key}"));
        }
        let Some(rule) = rules.iter().find(|rule| rule.key == key) else {
            return Err(format!("unsupported key: {key}"));
        };
        let unchanged = sign == '+' && after.get(key) == Some(value);
        if current.is_some() && !rule.changeable && !unchanged {
            return Err(format!("attempt to update an unchangeable attribute. key: {key}"));
        }
        if sign == '-' {
            if after.remove(key).is_none() {
                return Err(format!("attempt to delete a nonexistent key: {key}"));
            }
            continue;
        }
        check_value(rule, value)?;
        after.insert(key.to_owned(), value.clone());
    }
    Ok(after)
}

fn check_value(rule: &Rule, value: &str) -> Result<(), String> {
    match rule.kind {
        Kind::OneOf(values) if values.contains(&value) => Ok(()),
        Kind::OneOf(values) => Err(format!("value is not in set: {values:?}")),
        Kind::Long(min, max) => match value.parse::<i64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(()),
            _ => Err(format!("value is not in range({min}, {max}): {value}")),
        },
        Kind::Switch if ["true", "false"].iter().any(|known| value.eq_ignore_ascii_case(known)) => Ok(()),
        Kind::Switch => Err(format!("boolean attribute format is wrong: {value}")),
        Kind::Text => Ok(()),
    }
}

/// The message.type that `signed` asks for.
pub fn asks_mixed(signed: &Attributes) -> bool {
    ["+message.type", MESSAGE_TYPE].iter().any(|key| signed.get(*key).is_some_and(|value| value == MIXED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Attributes {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn the_text_form() {
        assert_eq!(parse("").unwrap(), map(&[]));
        assert_eq!(parse("  ").unwrap(), map(&[]));
        assert_eq!(parse("+a=b,-c").unwrap(), map(&[("+a", "b"), ("-c", "")]));
        assert_eq!(parse("+a=b=c").unwrap(), map(&[("+a", "b=c")]));
        assert_eq!(parse("+a=b,,").unwrap(), map(&[("+a", "b")]));
        assert_eq!(parse(",").unwrap(), map(&[]));
        for bad in ["a=b", "-a=b", "+=b", "-"] {
            assert!(parse(bad).unwrap_err().starts_with("add/alter attribute format is wrong: "), "{bad}");
        }
        for bad in ["a", "+a", "+a=b,,-c"] {
            assert!(parse(bad).unwrap_err().starts_with("delete attribute format is wrong: "), "{bad}");
        }
        assert!(parse("+a=b,-a").unwrap_err().starts_with("key duplication: "));
    }

    #[test]
    fn a_new_topic_takes_only_known_keys_with_known_values() {
        let given = map(&[("+queue.type", "BatchCQ"), ("+message.type", "FIFO"), ("+reserve.time", "-1")]);
        let made = map(&[("queue.type", "BatchCQ"), ("message.type", "FIFO"), ("reserve.time", "-1")]);
        assert_eq!(alter_topic(None, &given).unwrap(), made);
        for (key, value, begins) in [
            ("+nobody.knows", "1", "unsupported key: "),
            ("-message.type", "", "only add attribute is supported while creating topic. key: "),
            ("+message.type", "fifo", "value is not in set: "),
            ("+reserve.time", "-2", "value is not in range(-1, "),
            ("+reserve.time", "x", "value is not in range(-1, "),
            ("message.type", "FIFO", "wrong format key: "),
        ] {
            assert!(alter_topic(None, &map(&[(key, value)])).unwrap_err().starts_with(begins), "{key}={value}");
        }
    }

    #[test]
    fn an_old_topic_keeps_what_cannot_change() {
        let old = map(&[("queue.type", "SimpleCQ"), ("message.type", "FIFO")]);
        let after = alter_topic(Some(&old), &map(&[("+message.type", "DELAY")])).unwrap();
        assert_eq!(after["message.type"], "DELAY");
        let after = alter_topic(Some(&old), &map(&[("-message.type", "")])).unwrap();
        assert!(!after.contains_key("message.type"));
        assert_eq!(alter_topic(Some(&old), &map(&[("+queue.type", "SimpleCQ")])).unwrap(), old, "the same value");
        for (key, value, begins) in [
            ("+queue.type", "BatchCQ", "attempt to update an unchangeable attribute. key: "),
            ("-queue.type", "", "attempt to update an unchangeable attribute. key: "),
            ("-reserve.time", "", "attempt to delete a nonexistent key: "),
        ] {
            assert!(alter_topic(Some(&old), &map(&[(key, value)])).unwrap_err().starts_with(begins), "{key}={value}");
        }
    }

    #[test]
    fn a_group_has_attributes_of_its_own() {
        let given = map(&[
            ("+priority.factor", "50"),
            ("+lite.sub.reset.offset.exclusive", "TRUE"),
            ("+lite.sub.wildcard", ""),
        ]);
        let made = alter_group(None, &given).unwrap();
        assert_eq!((priority_factor(&made), priority_factor(&map(&[]))), (50, 100));
        for (key, value, begins) in [
            ("+priority.factor", "101", "value is not in range(0, 100)"),
            ("+lite.sub.client.max.event.cnt", "9", "value is not in range(10, "),
            ("+lite.sub.reset.offset.exclusive", "yes", "boolean attribute format is wrong"),
            ("+lite.sub.model", "exclusive", "value is not in set: "),
            ("+message.type", "FIFO", "unsupported key: "),
        ] {
            assert!(alter_group(None, &map(&[(key, value)])).unwrap_err().starts_with(begins), "{key}={value}");
        }
    }

    #[test]
    fn mixed_is_seen_with_and_without_its_sign() {
        assert!(asks_mixed(&map(&[("+message.type", "MIXED")])) && asks_mixed(&map(&[("message.type", "MIXED")])));
        assert!(!asks_mixed(&map(&[("+message.type", "FIFO")])));
    }
}
