//! Finds where each consume queue begins and ends, reading a few pages of it: the newest file's end by galloping, not by scanning.
//! Used by recovery only; changes nothing. Source: store-format sheet 4, 13.2.
use crate::consume_queue::{Bounds, Entry, Form, file_start};
use crate::io::{Access, File, Io, Open, is_unreadable};
use crate::{StoreError, file_failed as failed};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use uringmq_proto::types::QueueOffset;

/// Entries of one read: a page of a plain queue's file, less what is no whole entry.
const PAGE_ENTRIES: u64 = 204;

/// A queue as its files show it.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueFound {
    pub form: Form,
    pub topic: String,
    pub queue: u32,
    pub bounds: Bounds,
    /// Where the newest entry's record starts.
    pub last_phy: Option<u64>,
    /// Where the record of the first entry starts.
    pub min_phy: Option<u64>,
    /// The first file does not begin with the queue's offset 0.
    pub later_start: bool,
    /// Something that is no trusted entry follows the end.
    pub tail: bool,
    /// Why entries behind the end are missing, if so; `bad_files` stand in the way then.
    pub damage: Option<&'static str>,
    pub bad_files: Vec<PathBuf>,
    /// Behind the last entry, in the bad files, of a record that left with the log's older segments: the queue never counts lower.
    pub gone_to: u64,
}

impl QueueFound {
    /// Its directory below the store, for notes.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.form.dir(), self.topic, self.queue)
    }
}

/// What counts as an entry, and where the log begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trust {
    /// Entries of records from here on are not trusted: they may not all have reached the disk.
    pub below: u64,
    pub log_min: u64,
}

impl Trust {
    fn accepts(&self, entry: &Option<Entry>) -> bool {
        entry.is_some_and(|e| e.phy.0 < self.below)
    }
    /// A hole of the pre-fill says 0; it is before the first entry even when the log starts at 0.
    fn stored(&self, entry: &Option<Entry>) -> bool {
        entry.is_some_and(|e| e.phy.0 >= self.log_min && !(e.is_hole() && e.phy.0 == 0))
    }
}

async fn names<I: Io>(io: &I, dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    match io.list(dir).await {
        Ok(names) => Ok(names),
        Err(e) if e.kind() == ErrorKind::NotFound || e.kind() == ErrorKind::NotADirectory => Ok(Vec::new()),
        Err(e) => Err(failed("list", dir, e)),
    }
}

/// Every queue of this kind below the store's `root`.
pub(crate) async fn scan<I: Io>(
    io: &I,
    root: &Path,
    (form, file_bytes): (Form, u64),
    trust: Trust,
    notes: &mut Vec<String>,
) -> Result<Vec<QueueFound>, StoreError> {
    let mut found = Vec::new();
    let (root, kind) = (root.join(form.dir()), form.dir());
    for topic in names(io, &root).await? {
        let Some(name) = topic.to_str() else {
            notes.push(format!("{kind}/{}: not a topic's name, ignored", topic.display()));
            continue;
        };
        let dir = root.join(&topic);
        for queue in names(io, &dir).await? {
            let number = queue.to_str().and_then(|q| q.parse::<u32>().ok().filter(|n| n.to_string() == q));
            let Some(number) = number.filter(|n| *n <= i32::MAX as u32) else {
                notes.push(format!("{kind}/{name}/{}: not a queue's number, ignored", queue.display()));
                continue;
            };
            let mut files = QueueFiles::list(io, dir.join(&queue), (form, file_bytes), notes).await?;
            let mut queue = files.find_readable(name, number, trust).await?;
            queue.gone_to = files.gone_to(&queue.bad_files, trust).await?;
            found.push(queue);
        }
    }
    Ok(found)
}

/// The usable files of one queue: contiguous, of the configured length.
pub(crate) struct QueueFiles<'a, I: Io> {
    io: &'a I,
    form: Form,
    dir: PathBuf,
    file_bytes: u64,
    starts: Vec<u64>,
    damage: Option<&'static str>,
    bad_files: Vec<PathBuf>,
    open: Option<(u64, I::File)>,
    /// The last page read and the slot of its first entry.
    page: Option<(u64, <I::File as File>::Buf)>,
}

impl<'a, I: Io> QueueFiles<'a, I> {
    pub async fn list(
        io: &'a I,
        dir: PathBuf,
        (form, file_bytes): (Form, u64),
        notes: &mut Vec<String>,
    ) -> Result<Self, StoreError> {
        let mut files = QueueFiles {
            io,
            form,
            file_bytes,
            starts: Vec::new(),
            damage: None,
            bad_files: Vec::new(),
            open: None,
            page: None,
            dir: PathBuf::new(),
        };
        for name in names(io, &dir).await? {
            let path = dir.join(&name);
            let Some(start) = file_start(&name) else {
                notes.push(format!("{}: not a name of a queue file, ignored", path.display()));
                continue;
            };
            let meta = io.metadata(&path).await.map_err(|e| failed("stat", &path, e))?;
            if meta.is_dir {
                continue;
            }
            let fault = if meta.bytes != file_bytes || start % file_bytes != 0 {
                Some("a file of another length")
            } else if files.starts.last().is_some_and(|last| last + file_bytes != start) {
                Some("a missing file")
            } else {
                None
            };
            files.damage = files.damage.or(fault.filter(|_| meta.bytes > 0));
            if files.damage.is_some() || fault.is_some() {
                files.bad_files.push(path);
            } else {
                files.starts.push(start);
            }
        }
        files.dir = dir;
        Ok(files)
    }
    fn entry_bytes(&self) -> u64 {
        self.form.entry_bytes() as u64
    }
    fn file_entries(&self) -> u64 {
        self.file_bytes / self.entry_bytes()
    }
    fn first(&self) -> u64 {
        self.starts.first().map_or(0, |start| start / self.entry_bytes())
    }
    /// The entry of a slot, by way of the page that holds it; `None` where none was written.
    async fn entry(&mut self, at: u64) -> Result<Option<Entry>, StoreError> {
        let (form, size) = (self.form, self.form.entry_bytes());
        if let Some((from, page)) = &self.page
            && (*from..from + (page.as_ref().len() / size) as u64).contains(&at)
        {
            return Ok(form.decode(at, &page.as_ref()[(at - from) as usize * size..][..size]));
        }
        let file_first = at - at % self.file_entries();
        let start = file_first * size as u64;
        if self.open.as_ref().is_none_or(|(open, _)| *open != start) {
            let path = self.dir.join(crate::consume_queue::file_name(start));
            let how = Open { access: Access::Read, direct: false };
            self.open = Some((start, self.io.open(&path, how).await.map_err(|e| failed("open", &path, e))?));
        }
        let from = at - (at - file_first) % PAGE_ENTRIES;
        let bytes = PAGE_ENTRIES.min(file_first + self.file_entries() - from) as usize * size;
        let (_, file) = self.open.as_ref().expect("opened above");
        let page = file.read_at(from * size as u64 - start, bytes).await;
        let page = page.map_err(|e| failed("read", &self.dir, e))?;
        let entry = page.as_ref().get((at - from) as usize * size..).and_then(|b| b.get(..size));
        let entry = entry.and_then(|bytes| form.decode(at, bytes));
        self.page = Some((from, page));
        Ok(entry)
    }
    /// First offset in `low..high` whose entry is not accepted, when those accepted come first.
    async fn partition(
        &mut self,
        mut low: u64,
        mut high: u64,
        accepted: impl Fn(&Option<Entry>) -> bool,
    ) -> Result<u64, StoreError> {
        let mut step = PAGE_ENTRIES - 1; // the last entry of the same page
        let mut probe = low;
        while low < high {
            if accepted(&self.entry(probe).await?) {
                low = probe + 1;
                probe = probe.saturating_add(step).min(high - 1);
                step = step.saturating_mul(4);
            } else {
                high = probe;
                probe = low + (high - low) / 2;
                step = (high - low) / 2;
            }
            if low < high {
                probe = probe.clamp(low, high - 1);
            }
        }
        Ok(low)
    }
    /// Where the entries below `phy` end, between `from` and `to`.
    pub async fn end_below(&mut self, from: u64, to: u64, phy: u64) -> Result<(u64, Option<u64>), StoreError> {
        let trust = Trust { below: phy, log_min: 0 };
        let end = self.partition(from, to, |e| trust.accepts(e)).await?;
        let last = if end > self.first() { self.entry(end - 1).await? } else { None };
        Ok((end, last.map(|e| e.phy.0)))
    }
    /// As `find`; a file that the device cannot read counts as missing, with all later ones.
    async fn find_readable(&mut self, topic: &str, queue: u32, trust: Trust) -> Result<QueueFound, StoreError> {
        loop {
            let fault = match self.find(topic, queue, trust).await {
                Err(StoreError::File { source, .. }) if is_unreadable(&source) => source,
                found => return found,
            };
            let Some(unread) = self.open.take().map(|(start, _)| start) else {
                return Err(failed("read", &self.dir, fault));
            };
            let bad = self.starts.iter().position(|start| *start == unread).unwrap_or(0);
            let bad = self.starts.split_off(bad);
            self.bad_files.extend(bad.into_iter().map(|start| self.dir.join(crate::consume_queue::file_name(start))));
            self.bad_files.sort_unstable();
            self.damage = self.damage.or(Some("a file that cannot be read"));
            self.page = None;
        }
    }
    async fn find(&mut self, topic: &str, queue: u32, trust: Trust) -> Result<QueueFound, StoreError> {
        let mut found = QueueFound {
            form: self.form,
            topic: topic.to_owned(),
            queue,
            later_start: self.first() > 0,
            damage: self.damage,
            bad_files: self.bad_files.clone(),
            ..QueueFound::default()
        };
        let entries = self.file_entries();
        let first = self.first();
        let mut max = first;
        for (i, start) in self.starts.clone().into_iter().enumerate().rev() {
            let file_first = start / self.entry_bytes();
            let head = self.entry(file_first).await?;
            if trust.accepts(&head) || i == 0 {
                max = self.partition(file_first, file_first + entries, |e| trust.accepts(e)).await?;
                break;
            }
            found.tail |= self.page_in_use(file_first);
        }
        let limit = first + entries * self.starts.len() as u64;
        if max < limit && !found.tail {
            self.entry(max).await?;
            found.tail = self.page_in_use(max);
        }
        if max == first {
            // Its number is told by names alone, those of bad files included: a file that was cut to nothing came before the good ones.
            // Of a batch queue names tell none.
            let bad = self.bad_files.iter().filter_map(|path| file_start(Path::new(path.file_name()?)));
            let front = bad.map(|start| start / self.entry_bytes()).min().map_or(first, |bad| bad.min(first));
            let front = if self.form == Form::Plain { front } else { 0 };
            found.bounds = Bounds::plain(QueueOffset(front), QueueOffset(front));
            // After an unclean stop this is a queue made just before it.
            if trust.below == u64::MAX && !self.starts.is_empty() && found.damage.is_none() && !found.tail {
                found.damage = Some("no entry in its files");
            }
            return Ok(found);
        }
        found.last_phy = self.entry(max - 1).await?.filter(|e| trust.stored(&Some(*e)) || e.phy.0 > 0).map(|e| e.phy.0);
        let min = if trust.stored(&self.entry(first).await?) {
            first
        } else {
            self.partition(first, max, |e| !trust.stored(e)).await?
        };
        if min < max {
            found.min_phy = self.entry(min).await?.map(|e| e.phy.0);
        }
        found.bounds = self.bounds(min, max).await?;
        Ok(found)
    }
    /// The bounds of a queue whose entries are in these slots; behind the first, at least, stands one.
    pub async fn bounds(&mut self, first: u64, end: u64) -> Result<Bounds, StoreError> {
        if self.form == Form::Plain {
            return Ok(Bounds::plain(QueueOffset(first), QueueOffset(end)));
        }
        let max = match end > self.first() {
            true => self.entry(end - 1).await?.map_or(0, |e| e.end()),
            false => 0,
        };
        let min = if first < end { self.entry(first).await?.map_or(max, |e| e.base) } else { max };
        Ok(Bounds { min: QueueOffset(min.min(max)), max: QueueOffset(max), first, end })
    }
    /// See [`QueueFound::gone_to`]. A bad file's name and the places of its entries count, whatever its length.
    async fn gone_to(&self, bad_files: &[PathBuf], trust: Trust) -> Result<u64, StoreError> {
        let mut to = 0;
        for path in bad_files {
            let Some(start) = path.file_name().and_then(|name| file_start(Path::new(name))) else { continue };
            let how = Open { access: Access::Read, direct: false };
            let file = self.io.open(path, how).await.map_err(|e| failed("open", path, e))?;
            let (form, size) = (self.form, self.form.entry_bytes());
            let entries = file.len().await.map_err(|e| failed("stat", path, e))? / size as u64;
            let (mut low, mut high) = (0, entries);
            let mut end = 0;
            while low < high {
                let probe = low + (high - low) / 2;
                let bytes = file.read_at(probe * size as u64, size).await;
                let bytes = match bytes {
                    Err(e) if is_unreadable(&e) => {
                        high = probe;
                        continue;
                    }
                    bytes => bytes.map_err(|e| failed("read", path, e))?,
                };
                let slot = start / size as u64 + probe;
                let entry = if bytes.as_ref().len() == size { form.decode(slot, bytes.as_ref()) } else { None };
                match entry {
                    Some(e) if trust.accepts(&Some(e)) && e.phy.0 < trust.log_min => (low, end) = (probe + 1, e.end()),
                    _ => high = probe,
                }
            }
            if low > 0 && start.is_multiple_of(size as u64) {
                to = to.max(end);
            }
        }
        Ok(to)
    }
    /// Whether anything stands at or behind `at` in the page read last.
    fn page_in_use(&self, at: u64) -> bool {
        let Some((from, page)) = &self.page else { return false };
        let behind = at.saturating_sub(*from) as usize * self.form.entry_bytes();
        page.as_ref().get(behind..).is_some_and(|rest| rest.iter().any(|b| *b != 0))
    }
}
