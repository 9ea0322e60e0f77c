//! The names of the simulated disk, and their changes, which are durable only after a sync of their directories.
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// A clean path; strings compare much faster than paths do.
pub(super) type Name = String;
pub(super) type Names = BTreeMap<Name, Node>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Node {
    Dir,
    File(u64),
}

#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Put(Name, Node),
    Gone(Name),
    Moved(Name, Name),
}

/// `a//b/./c` and a leading `./` mean the same file.
pub(super) fn clean(path: &Path) -> Name {
    let mut name = Name::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::RootDir => name.push('/'),
            part => {
                if !name.is_empty() && !name.ends_with('/') {
                    name.push('/');
                }
                name.push_str(part.as_os_str().to_str().expect("tests name files in UTF-8"));
            }
        }
    }
    if name.is_empty() { "/".to_owned() } else { name }
}

pub(super) fn parent(name: &str) -> &str {
    match name.rfind('/') {
        Some(at) if at > 0 => &name[..at],
        _ => "/",
    }
}

/// `name` and the directories above it, up to the root's children.
pub(super) fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| Some(parent(name))).take_while(|name| *name != "/")
}

/// What lies below a directory, at any depth, with the rest of its name.
pub(super) fn below<'a>(names: &'a Names, dir: &str) -> impl Iterator<Item = (&'a str, Node)> + use<'a> {
    let prefix = if dir == "/" { dir.to_owned() } else { format!("{dir}/") };
    let found = names.range(prefix.clone()..).take_while({
        let prefix = prefix.clone();
        move |(name, _)| name.starts_with(&prefix)
    });
    found.map(move |(name, node)| (&name[prefix.len()..], *node))
}

impl NameChange {
    pub(super) fn dirs(&self) -> [&str; 2] {
        match self {
            NameChange::Put(p, _) | NameChange::Gone(p) => [parent(p), parent(p)],
            NameChange::Moved(a, b) => [parent(a), parent(b)],
        }
    }
    pub(super) fn apply(&self, names: &mut Names) {
        match self {
            NameChange::Put(p, node) => {
                names.insert(p.clone(), *node);
            }
            NameChange::Gone(p) => {
                names.remove(p);
            }
            NameChange::Moved(from, to) => {
                let inside: Vec<Name> = below(names, from).map(|(rest, _)| rest.to_owned()).collect();
                for rest in inside {
                    let node = names.remove(&format!("{from}/{rest}")).expect("just listed");
                    names.insert(format!("{to}/{rest}"), node);
                }
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
        }
    }
}
