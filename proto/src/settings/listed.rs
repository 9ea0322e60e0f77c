//! A configuration that is a list of keys, as the name server's and the controller's are: reading it from a file, changing it at run time,
//! printing it. The broker's has more to its keys (when a change takes effect, what the machine says) and reads itself.
use super::{ConfigError, Place, readable};
use crate::properties;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a run-time update is refused; nothing of it was applied.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UpdateError {
    #[error("Can not update config in black list.")]
    BlackList,
    #[error("string2Properties error")]
    Syntax,
    #[error("{key} = '{value}' {why}")]
    Value { key: String, value: String, why: String },
}

/// What [`listed_config!`](crate::listed_config) makes of a list of keys.
pub trait Listed: Clone + Default {
    /// Sets a key of the list from trimmed text; `None` when the key is not in it.
    fn assign(&mut self, key: &str, text: &str) -> Option<Result<(), String>>;
    /// Key and value of every row, in the order of the list.
    fn rows(&self) -> Vec<(&'static str, String)>;
    /// Values given for keys that are not in the list.
    fn others(&self) -> &BTreeMap<String, String>;
    fn others_mut(&mut self) -> &mut BTreeMap<String, String>;
}

/// A configuration by its list and what is its own.
pub trait Settings: Listed {
    /// No update at run time may name these, whatever the black list says.
    const NEVER_UPDATED: &'static [&'static str];
    /// Apache's keys that have no meaning here, with their defaults. Taken quietly and listed back.
    const ACCEPTED: &'static [(&'static str, &'static str)];

    /// What must hold: the key that is wrong, and why.
    fn check(&self) -> Result<(), (&'static str, String)>;
    /// Keys, separated by `;`, that a run-time update may not touch, either.
    fn black_list(&self) -> &str;
    /// It was read from this file, which names these keys.
    fn read_from(&mut self, path: &Path, names: impl Fn(&str) -> bool);

    /// Defaults, then the file. The second value holds warnings, to be logged once each.
    ///
    /// # Errors
    /// A file that cannot be read, and a value that cannot be: with key, file and line.
    fn load(file: Option<&Path>) -> Result<(Self, Vec<String>), ConfigError> {
        let Some(path) = file else { return Ok((Self::default(), Vec::new())) };
        let bytes = std::fs::read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::from_text(path, &String::from_utf8_lossy(&bytes))
    }

    /// [`Settings::load`] with the file's text given.
    fn from_text(path: &Path, text: &str) -> Result<(Self, Vec<String>), ConfigError> {
        let pairs = properties::parse(text).map_err(|source| ConfigError::Syntax { path: path.to_owned(), source })?;
        let (mut config, mut warnings, mut lines) = (Self::default(), Vec::new(), HashMap::new());
        for pair in pairs {
            let place = Place::File { path: path.to_owned(), line: pair.line };
            if let Some(before) = lines.insert(pair.key.clone(), pair.line) {
                warnings
                    .push(format!("{place}: {} was already given in line {before}; the later value counts", pair.key));
            } else if config.get(&pair.key).is_none() {
                warnings.push(format!("{place}: {} is not a known key", pair.key));
            }
            let put = config.put(&pair.key, &pair.value);
            put.map_err(|why| ConfigError::Value { place, key: pair.key, value: pair.value, why })?;
        }
        config.read_from(path, |key| lines.contains_key(key));
        config.check().map_err(|(key, why)| ConfigError::Value {
            place: match lines.get(key) {
                Some(line) => Place::File { path: path.to_owned(), line: *line },
                None => Place::Default,
            },
            key: key.to_owned(),
            value: config.get(key).unwrap_or_default(),
            why,
        })?;
        Ok((config, warnings))
    }

    /// Sets a key, known or not.
    fn put(&mut self, key: &str, value: &str) -> Result<(), String> {
        let text = readable(value)?;
        match self.assign(key, text) {
            Some(outcome) => outcome,
            None => {
                self.others_mut().insert(key.to_owned(), text.to_owned());
                Ok(())
            }
        }
    }

    /// Applies an update's text to a copy: all of it or nothing. Keys that nobody knows are left out.
    fn update(&self, text: &str) -> Result<Self, UpdateError> {
        let pairs = properties::parse(text).map_err(|_| UpdateError::Syntax)?;
        let listed = |key: &str| self.black_list().split(';').any(|item| item.trim() == key);
        if pairs.iter().any(|pair| Self::NEVER_UPDATED.contains(&pair.key.as_str()) || listed(&pair.key)) {
            return Err(UpdateError::BlackList);
        }
        let mut config = self.clone();
        for pair in pairs.into_iter().filter(|pair| self.get(&pair.key).is_some()) {
            let set = config.put(&pair.key, &pair.value).and_then(|()| config.check().map_err(|(_, why)| why));
            set.map_err(|why| UpdateError::Value { key: pair.key, value: pair.value, why })?;
        }
        Ok(config)
    }

    /// Every known key with its value, and the strangers of the file; sorted by key.
    fn effective(&self) -> Vec<(String, String)> {
        let accepted = Self::ACCEPTED.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        let mut all: BTreeMap<String, String> = accepted.collect();
        all.extend(self.others().clone());
        all.extend(self.rows().into_iter().map(|(key, text)| (key.to_owned(), text)));
        all.into_iter().collect()
    }

    /// One value; `None` for a key that nobody knows.
    fn get(&self, key: &str) -> Option<String> {
        self.effective().into_iter().find(|row| row.0 == key).map(|row| row.1)
    }

    /// Sorted `key=value` lines: the answer to who asks for the configuration, the text written back, and what `-p` prints.
    fn to_text(&self) -> String {
        properties::write(&mut self.effective())
    }
}

/// The user's home directory, below which Apache's default paths lie.
pub fn home() -> PathBuf {
    std::env::home_dir().unwrap_or_else(|| PathBuf::from("."))
}

/// One row a key, `/// doc "key" => field: Type = default;`. From the list come the struct, with `own` fields of its own behind it, the
/// defaults, reading and printing.
#[macro_export]
macro_rules! listed_config {
    (
        $(#[$about:meta])* $name:ident own { $( $(#[$own_doc:meta])* $own:ident: $own_kind:ty = $own_default:expr; )* }
        $( $(#[$doc:meta])* $key:literal => $field:ident: $kind:ty = $default:expr; )*
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $( $(#[$doc])* pub $field: $kind, )*
            $( $(#[$own_doc])* $own: $own_kind, )*
            /// Values given for keys that are not in the list.
            others: std::collections::BTreeMap<String, String>,
        }

        impl Default for $name {
            /// Apache's defaults; the paths are below the user's home directory.
            fn default() -> Self {
                $name { $( $field: $default, )* $( $own: $own_default, )* others: Default::default() }
            }
        }

        impl $crate::settings::listed::Listed for $name {
            fn assign(&mut self, key: &str, text: &str) -> Option<Result<(), String>> {
                match key {
                    $( $key => {
                        let read = <$kind as $crate::settings::ConfigValue>::read(text);
                        Some(read.map(|value| self.$field = value))
                    } )*
                    _ => None,
                }
            }
            fn rows(&self) -> Vec<(&'static str, String)> {
                vec![$( ($key, $crate::settings::ConfigValue::show(&self.$field)) ),*]
            }
            fn others(&self) -> &std::collections::BTreeMap<String, String> {
                &self.others
            }
            fn others_mut(&mut self) -> &mut std::collections::BTreeMap<String, String> {
                &mut self.others
            }
        }
    };
}
