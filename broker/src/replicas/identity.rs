//! Which number a broker has at its controller: Apache's files `brokerIdentity` and, while the number is being asked for,
//! `brokerIdentity-temp`. Source: replication sheet 7.1, 9.
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// `cluster#broker#id`, and in the temporary file `#registerCheckCode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: String,
    pub broker: String,
    pub id: i64,
    /// `address;milliseconds`; of the temporary file.
    pub check_code: Option<String>,
}

#[derive(Debug, Error)]
pub enum IdentityError {
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} says '{text}', which is not cluster#broker#id", .path.display())]
    Text { path: PathBuf, text: String },
    #[error(
        "{} is of broker {broker} in {cluster}, not of this one; a store belongs to one broker",
        .path.display()
    )]
    Another { path: PathBuf, cluster: String, broker: String },
}

impl Identity {
    pub fn to_text(&self) -> String {
        let code = self.check_code.as_ref().map_or(String::new(), |code| format!("#{code}"));
        format!("{}#{}#{}{code}", self.cluster, self.broker, self.id)
    }

    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().splitn(4, '#');
        let (cluster, broker, id) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
        let check_code = parts.next().map(str::to_owned);
        (id > 0).then(|| Identity { cluster: cluster.to_owned(), broker: broker.to_owned(), id, check_code })
    }
}

/// Where both files are.
pub struct Files {
    pub kept: PathBuf,
    pub asking: PathBuf,
}

impl Files {
    pub fn of(root: &Path) -> Self {
        Files { kept: root.join("brokerIdentity"), asking: root.join("brokerIdentity-temp") }
    }
}

/// What a file says of this broker; `None` without the file.
///
/// # Errors
/// One that cannot be read, or is another broker's.
pub fn read(path: &Path, cluster: &str, broker: &str) -> Result<Option<Identity>, IdentityError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(IdentityError::Io { path: path.to_owned(), source }),
    };
    let Some(found) = Identity::parse(&text) else {
        return Err(IdentityError::Text { path: path.to_owned(), text: text.chars().take(100).collect() });
    };
    if found.cluster != cluster || found.broker != broker {
        return Err(IdentityError::Another { path: path.to_owned(), cluster: found.cluster, broker: found.broker });
    }
    Ok(Some(found))
}

/// Durable when it returns.
///
/// # Errors
/// Those of the disk.
pub fn write(path: &Path, identity: &Identity) -> Result<(), IdentityError> {
    let done = || {
        let mut file = fs::File::create(path)?;
        file.write_all(identity.to_text().as_bytes())?;
        file.sync_all()?;
        fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    done().map_err(|source| IdentityError::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_as_apache_writes_them() {
        let kept = Identity { cluster: "c".into(), broker: "b".into(), id: 2, check_code: None };
        let asking = Identity { check_code: Some("10.0.0.1:10911;1700000000000".into()), ..kept.clone() };
        assert_eq!(kept.to_text(), "c#b#2");
        assert_eq!(asking.to_text(), "c#b#2#10.0.0.1:10911;1700000000000");
        assert_eq!([Identity::parse("c#b#2\n"), Identity::parse(&asking.to_text())], [Some(kept), Some(asking)]);
        assert!(["", "c#b", "c#b#x", "c#b#0", "c#b#-1"].iter().all(|text| Identity::parse(text).is_none()));
    }

    #[test]
    fn a_store_belongs_to_one_broker() {
        let dir = std::env::temp_dir().join(format!("uringmq-identity-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let files = Files::of(&dir);
        assert!(read(&files.kept, "c", "b").unwrap().is_none());
        let own = Identity { cluster: "c".into(), broker: "b".into(), id: 7, check_code: None };
        write(&files.kept, &own).unwrap();
        assert_eq!(read(&files.kept, "c", "b").unwrap(), Some(own));
        let other = read(&files.kept, "c", "another").unwrap_err().to_string();
        assert!(other.contains("is of broker b in c"), "{other}");
        fs::write(&files.kept, "nonsense").unwrap();
        assert!(matches!(read(&files.kept, "c", "b"), Err(IdentityError::Text { .. })));
        fs::remove_dir_all(&dir).unwrap();
    }
}
