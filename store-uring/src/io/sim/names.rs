//! The names of the simulated disk, and their changes, which are durable only after a sync of their directories.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// `a//b/./c` and a leading `./` mean the same file.
pub(super) fn clean(path: &Path) -> PathBuf {
    let short: PathBuf = path.components().filter(|c| !matches!(c, std::path::Component::CurDir)).collect();
    if short.as_os_str().is_empty() { PathBuf::from("/") } else { short }
}

pub(super) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("/"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Node {
    Dir,
    File(u64),
}

#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Put(PathBuf, Node),
    Gone(PathBuf),
    Moved(PathBuf, PathBuf),
}

impl NameChange {
    pub(super) fn dirs(&self) -> [PathBuf; 2] {
        match self {
            NameChange::Put(p, _) | NameChange::Gone(p) => [parent(p), parent(p)],
            NameChange::Moved(a, b) => [parent(a), parent(b)],
        }
    }
    pub(super) fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        match self {
            NameChange::Put(p, node) => {
                names.insert(p.clone(), *node);
            }
            NameChange::Gone(p) => {
                names.remove(p);
            }
            NameChange::Moved(from, to) => {
                let moved: Vec<PathBuf> = names.keys().filter(|p| p.starts_with(from)).cloned().collect();
                for old in moved {
                    let node = names.remove(&old).expect("just listed");
                    let rest = old.strip_prefix(from).expect("filtered by prefix");
                    let new = if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) };
                    names.insert(new, node);
                }
            }
        }
    }
}
