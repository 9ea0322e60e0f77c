//! Compiled expressions by their text, refusals included, so that pulls that carry their subscription compile it once. Bounded: when the
//! newer half is full it becomes the older half, and what nobody asked for since then is forgotten.
use crate::{Expression, ParseError};
use hashbrown::HashMap;
use std::cell::RefCell;
use std::sync::Arc;

/// Texts in each half.
const HALF: usize = 256;

type Compiled = Result<Arc<Expression>, Arc<ParseError>>;

/// One core's compiled expressions.
#[derive(Debug, Default)]
pub struct Cache {
    newer: RefCell<HashMap<Box<str>, Compiled>>,
    older: RefCell<HashMap<Box<str>, Compiled>>,
}

impl Cache {
    /// The expression that `text` says, compiled now or before.
    ///
    /// # Errors
    /// Those of [`Expression::parse`].
    pub fn get(&self, text: &str) -> Compiled {
        if let Some(known) = self.newer.borrow().get(text) {
            return known.clone();
        }
        let moved = self.older.borrow_mut().remove(text);
        let compiled = moved.unwrap_or_else(|| Expression::parse(text).map(Arc::new).map_err(Arc::new));
        // A text beyond the limit costs nothing to refuse again, and much to keep.
        if text.len() <= crate::TEXT_BYTES_MAX {
            let mut newer = self.newer.borrow_mut();
            if newer.len() == HALF {
                *self.older.borrow_mut() = std::mem::take(&mut *newer);
            }
            newer.insert(text.into(), compiled.clone());
        }
        compiled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_stays_and_the_rest_goes() {
        let cache = Cache::default();
        let first = cache.get("a = 'used'").unwrap();
        assert!(cache.get("a = ").is_err() && cache.get("a = ").is_err());
        for number in 0..10 * HALF {
            cache.get(&format!("a = {number}")).unwrap();
            assert!(Arc::ptr_eq(&first, &cache.get("a = 'used'").unwrap()), "{number}");
        }
        assert!(cache.newer.borrow().len() <= HALF && cache.older.borrow().len() <= HALF);
        assert!(cache.get(&"x".repeat(crate::TEXT_BYTES_MAX + 1)).is_err());
        assert!(cache.newer.borrow().keys().all(|text| text.len() <= crate::TEXT_BYTES_MAX));
    }
}
