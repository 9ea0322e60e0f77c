//! Files of one length that make up one address space: segments of the log, files of a queue. Listing and reading; changes nothing.
//! Source: store-format sheet 2.
use super::ToolError;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use uringmq_proto::body;
use uringmq_proto::body::topic::{QUEUE_TYPE, QUEUE_TYPE_BATCH, TopicConfig, TopicConfigSerializeWrapper};
use uringmq_proto::names::LMQ_PREFIX;
use uringmq_store::consume_queue::Form;
use uringmq_store::lock;

/// One file as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Offset of its first byte: its name.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Part {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// The files of a directory by their starts.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) dir: PathBuf,
    /// The length that most of them have; 0 without any.
    pub(crate) file_bytes: u64,
    pub(crate) parts: Vec<Part>,
    /// What is wrong with names and lengths: file name, and what.
    pub(crate) odd: Vec<(String, String)>,
}

pub(crate) fn file_name(start: u64) -> String {
    format!("{start:020}")
}

/// Names in a directory, sorted; none when it does not exist.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>, ToolError> {
    let listed = match fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(e) if e.kind() == ErrorKind::NotFound || e.kind() == ErrorKind::NotADirectory => return Ok(Vec::new()),
        Err(e) => return Err(ToolError::io("list", dir)(e)),
    };
    let mut names = Vec::new();
    for entry in listed {
        let entry = entry.map_err(ToolError::io("list", dir))?;
        if entry.file_name() == lock::GUARD {
            continue; // left by a broker that was killed; it leads nowhere
        }
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

impl Parts {
    pub(crate) fn list(dir: &Path) -> Result<Parts, ToolError> {
        let mut parts = Parts { dir: dir.to_owned(), file_bytes: 0, parts: Vec::new(), odd: Vec::new() };
        for name in names(dir)? {
            let path = dir.join(&name);
            let meta = fs::metadata(&path).map_err(ToolError::io("stat", &path))?;
            if meta.is_dir() {
                continue;
            }
            match (name.len() == 20).then(|| name.parse::<u64>().ok()).flatten().filter(|n| *n <= i64::MAX as u64) {
                Some(start) => parts.parts.push(Part { start, bytes: meta.len() }),
                None => parts.odd.push((name, "not a name of 20 digits".to_owned())),
            }
        }
        let mut lengths: BTreeMap<u64, usize> = BTreeMap::new();
        parts.parts.iter().for_each(|part| *lengths.entry(part.bytes).or_default() += 1);
        parts.file_bytes = lengths.iter().max_by_key(|(_, count)| **count).map_or(0, |(bytes, _)| *bytes);
        parts.judge();
        Ok(parts)
    }

    /// Notes lengths and starts that do not fit; what overlaps the file before it is left out.
    fn judge(&mut self) {
        let mut kept: Vec<Part> = Vec::new();
        for part in std::mem::take(&mut self.parts) {
            let name = file_name(part.start);
            if part.bytes != self.file_bytes {
                self.odd.push((name.clone(), format!("has {} bytes, the others {}", part.bytes, self.file_bytes)));
            }
            if let Some(last) = kept.last() {
                if part.start < last.end() {
                    self.odd.push((name, format!("begins before the end of the file before it, {}", last.end())));
                    continue;
                }
                if part.start > last.start + self.file_bytes.max(last.bytes) {
                    self.odd.push((
                        name,
                        format!("the file before it is missing: {} ends at {}", file_name(last.start), last.end()),
                    ));
                }
            }
            kept.push(part);
        }
        self.parts = kept;
    }

    pub(crate) fn first(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.start)
    }

    pub(crate) fn end(&self) -> u64 {
        self.parts.last().map_or(0, Part::end)
    }

    /// The file that holds an offset; `None` outside of all.
    pub(crate) fn part_of(&self, at: u64) -> Option<Part> {
        let after = self.parts.partition_point(|part| part.start <= at);
        self.parts[..after].last().copied().filter(|part| at < part.end())
    }

    /// The first file that begins behind an offset.
    pub(crate) fn part_after(&self, at: u64) -> Option<Part> {
        self.parts.get(self.parts.partition_point(|part| part.start <= at)).copied()
    }

    pub(crate) fn open(&self, part: Part) -> Result<(PathBuf, File), ToolError> {
        let path = self.dir.join(file_name(part.start));
        let file = File::open(&path).map_err(ToolError::io("open", &path))?;
        Ok((path, file))
    }
}

/// The topics of `topics.json` and which kind of queues they have; `None` when it cannot be read.
pub(crate) fn topic_forms(root: &Path) -> Result<Option<HashMap<String, Form>>, ToolError> {
    let path = root.join("config").join("topics.json");
    let text = match fs::read(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(ToolError::io("read", &path)(e)),
        text => text.ok(),
    };
    let file = text.and_then(|text| body::parse::<TopicConfigSerializeWrapper>(&text).ok());
    let form = |topic: &TopicConfig| match topic.attributes.get(QUEUE_TYPE).is_some_and(|kind| kind == QUEUE_TYPE_BATCH)
    {
        true => Form::Batch,
        false => Form::Plain,
    };
    Ok(file.map(|file| file.topic_config_table.iter().map(|(name, topic)| (name.clone(), form(topic))).collect()))
}

/// Whether there are light queues, in which records of other topics are, too.
pub(crate) fn has_lights(root: &Path) -> Result<bool, ToolError> {
    Ok(names(&root.join(Form::Plain.dir()))?.iter().any(|name| name.starts_with(LMQ_PREFIX)))
}

/// Fills `out` from `at` on, as far as the file goes; the bytes read.
pub(crate) fn read_at(file: &mut File, at: u64, out: &mut [u8]) -> std::io::Result<usize> {
    file.seek(SeekFrom::Start(at))?;
    let mut done = 0;
    while done < out.len() {
        match file.read(&mut out[done..]) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Where the next bytes that are not a hole of a sparse file begin, at or behind `at`; `None` when there are none. A filesystem that
/// cannot tell has no holes.
pub(crate) fn data_from(file: &File, at: u64) -> std::io::Result<Option<u64>> {
    // SAFETY: plain system call on a descriptor that is open while `file` lives.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
    if found >= 0 {
        return Ok(Some(found as u64));
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        Some(libc::EINVAL | libc::EOPNOTSUPP) => Ok(Some(at)),
        _ => Err(error),
    }
}
