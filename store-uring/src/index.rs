//! The key index: hash slots and chained items, in memory until `flush`. Source: store-format sheet 5. Used by shard 0.
//!
//! What is durable grows in the order items, slots, header, with a sync after each. So a header never counts an item that is not there,
//! and a slot that leads beyond the header's count leads to an item from which its chain can be followed back.
use crate::index_file::{HEADER_BYTES, Header, ITEM_BYTES, Item, Layout, PAGE_BYTES, PAGE_SLOTS, SLOT_BYTES, Table};
use crate::io::{Access, File, Io, Open, is_unreadable, write_all};
use crate::seeded::{Bug, bug};
use crate::turn::Turn;
use crate::{StoreConfig, StoreError};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use uringmq_proto::types::PhyOffset;

/// Bytes of one write, and of one read at the start.
const PIECE_BYTES: usize = 512 * 1024;
/// A chain whose items lie close is read by blocks of this size, another one by small ones.
const BLOCK_BYTES: u64 = 64 * 1024;
const SMALL_BLOCK_BYTES: u64 = 4096;

/// All methods take `&self` and borrow nothing across an await.
pub struct Index<I: Io> {
    io: I,
    dir: PathBuf,
    layout: Layout,
    enabled: bool,
    turn: Turn,
    state: RefCell<State>,
    /// File of the newest table, as it was last used.
    file: RefCell<Option<(u64, Rc<I::File>)>>,
    names_unsynced: Cell<bool>,
    failed: Cell<bool>,
    synced_ms: Cell<i64>,
    /// Files that cannot be right, and those newer than one.
    bad: RefCell<Vec<u64>>,
}

#[derive(Default)]
struct State {
    /// Oldest first; they are not written any more.
    closed: Vec<(u64, Header)>,
    /// Full, and not yet wholly in their files; oldest first.
    full: VecDeque<Table>,
    newest: Option<Table>,
}

impl State {
    fn table(&mut self, name: u64) -> Option<&mut Table> {
        self.newest.iter_mut().chain(&mut self.full).find(|t| t.name == name)
    }
    /// Of the newest file.
    fn header(&self) -> Option<Header> {
        let newest = self.newest.as_ref().or(self.full.back()).map(|t| t.header);
        newest.or_else(|| self.closed.last().map(|(_, h)| *h))
    }
    fn last_name(&self) -> u64 {
        let tables = self.newest.iter().chain(&self.full).map(|t| t.name);
        tables.chain(self.closed.iter().map(|(name, _)| *name)).max().unwrap_or(0)
    }
}

/// What [`Index::open`] found wrong: keys of the records from `replay_from` on are missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub replay_from: Option<PhyOffset>,
    pub notes: Vec<String>,
}

impl<I: Io> Index<I> {
    /// Opens the files under `<root>/index`, as recovery left them.
    pub async fn open(io: I, config: &StoreConfig) -> Result<Self, StoreError> {
        Ok(Self::open_checked(io, config).await?.0)
    }
    /// As `open`; a file that cannot be right is left out with all newer ones, and `cut` removes them.
    pub(crate) async fn open_checked(io: I, config: &StoreConfig) -> Result<(Self, Lost), StoreError> {
        let index = Index {
            io,
            dir: config.root.join("index"),
            layout: Layout { slots: config.index_slots.max(1), items: config.index_items.max(2) },
            enabled: config.index_enabled,
            turn: Turn::default(),
            state: RefCell::default(),
            file: RefCell::default(),
            names_unsynced: Cell::new(true), // the last process may have been killed before it synced them
            failed: Cell::new(false),
            synced_ms: Cell::new(0),
            bad: RefCell::default(),
        };
        let mut lost = Lost::default();
        if index.enabled {
            index.load(&mut lost).await?;
        }
        Ok((index, lost))
    }
    /// Adds one key of one record. Records come in log order; all keys of a record one after the other. A record below the end
    /// of the index (already indexed) is skipped.
    pub fn put(&self, hash: u32, phy: PhyOffset, store_timestamp_ms: i64) {
        if !self.enabled {
            return;
        }
        let mut s = self.state.borrow_mut();
        if s.newest.as_ref().is_none_or(Table::is_full) {
            self.roll(&mut s);
        }
        let table = s.newest.as_mut().expect("made above when it was missing");
        if phy.0 >= table.header.end_phy {
            table.put(hash, phy.0, store_timestamp_ms);
        }
    }
    fn roll(&self, s: &mut State) {
        let header = s.header().map_or(Header::after(0, 0), |h| Header::after(h.end_ms, h.end_phy));
        let name = name_at(self.io.now_ms(), s.last_name());
        s.full.extend(s.newest.take());
        s.newest = Some(Table::new(name, self.layout, header, None));
    }
    /// Offsets whose key hash is `hash` and whose item time lies in `begin_ms..=end_ms`, newest first, at most `max`, each record
    /// once. The caller compares keys.
    pub async fn query(&self, hash: u32, max: usize, begin_ms: i64, end_ms: i64) -> Result<Vec<PhyOffset>, StoreError> {
        let mut out = Vec::new();
        let files: Vec<(u64, Header)> = {
            let s = self.state.borrow();
            let tables = s.full.iter().chain(&s.newest).map(|t| (t.name, t.header));
            s.closed.iter().copied().chain(tables).collect()
        };
        for (name, header) in files.into_iter().rev() {
            if out.len() >= max || begin_ms > end_ms {
                break;
            }
            if header.overlaps(begin_ms, end_ms) {
                self.query_file(name, &header, hash, max, begin_ms..=end_ms, &mut out).await?;
            }
            if header.count > 1 && header.begin_ms < begin_ms {
                break;
            }
        }
        Ok(out)
    }
    async fn query_file(
        &self,
        name: u64,
        header: &Header,
        hash: u32,
        max: usize,
        times: std::ops::RangeInclusive<i64>,
        out: &mut Vec<PhyOffset>,
    ) -> Result<(), StoreError> {
        let slot = self.layout.slot_of(hash);
        let mut items = Items { index: self, name, file: None, block: None, last: u32::MAX };
        let known = self.state.borrow_mut().table(name).map(|t| t.slots[slot as usize]);
        let mut number = match known {
            Some(number) => number,
            None => match items.slot(slot).await? {
                Some(number) => number,
                None => return Ok(()), // removed meanwhile
            },
        };
        // Healthy chains lead to ever smaller numbers; any other one ends.
        let mut above = header.count;
        while (1..above).contains(&number) && out.len() < max {
            let Some(item) = items.item(number).await? else { return Ok(()) };
            let time = header.time_ms(&item);
            if time < *times.start() {
                break;
            }
            if item.hash == hash && times.contains(&time) && out.last() != Some(&PhyOffset(item.phy)) {
                out.push(PhyOffset(item.phy));
            }
            above = number;
            number = item.previous;
        }
        Ok(())
    }
    /// End time and end offset of the newest item.
    pub fn last(&self) -> (i64, PhyOffset) {
        self.state.borrow().header().map_or((0, PhyOffset(0)), |h| (h.end_ms, PhyOffset(h.end_phy)))
    }
    /// Writes new items, without sync; they leave the memory.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let _turn = self.turn.take().await;
        for name in self.names_where(|t| t.items_from() < t.header.count) {
            self.write_items(name).await?;
        }
        Ok(())
    }
    /// Makes durable all that was put before the call; files that are full are closed. After a failed sync every later one is
    /// `Poisoned`; the next start builds the index again from the log.
    pub async fn sync(&self) -> Result<(), StoreError> {
        self.prepare().await?;
        self.commit().await
    }
    /// The first half of `sync`: all but the headers. Returns the end time that they will say, to be written as the checkpoint's
    /// `index_ms` before `commit`: Apache's broker drops index files that are newer than that.
    pub async fn prepare(&self) -> Result<i64, StoreError> {
        let _turn = self.turn.take().await;
        let mut end_ms = self.synced_ms.get();
        if bug(Bug::CheckpointBeforeIndexSync) {
            return Ok(end_ms);
        }
        for name in self.names_where(|t| t.synced != Some(t.header)) {
            end_ms = end_ms.max(self.sync_items_and_slots(name).await?.end_ms);
        }
        Ok(end_ms)
    }
    /// The second half of `sync`: the headers of what `prepare` made durable.
    pub async fn commit(&self) -> Result<(), StoreError> {
        let _turn = self.turn.take().await;
        for name in self.names_where(|t| t.prepared.is_some()) {
            self.sync_header(name).await?;
        }
        if self.names_unsynced.get() {
            let synced = self.io.sync_dir(&self.dir).await;
            synced.map_err(|source| StoreError::File { op: "sync", path: self.dir.clone(), source })?;
            self.names_unsynced.set(false);
        }
        let mut s = self.state.borrow_mut();
        while s.full.front().is_some_and(|t| t.synced == Some(t.header)) {
            let table = s.full.pop_front().expect("it is the front");
            s.closed.push((table.name, table.header));
        }
        Ok(())
    }
    /// Removes files wholly below `log_min`.
    pub async fn trim(&self, log_min: PhyOffset) -> Result<(), StoreError> {
        let _turn = self.turn.take().await;
        loop {
            let oldest = self.state.borrow().closed.first().copied();
            match oldest {
                Some((name, header)) if header.end_phy < log_min.0 => {
                    self.remove_file(name).await?;
                    self.state.borrow_mut().closed.remove(0);
                }
                _ => return Ok(()),
            }
        }
    }
    /// `indexMsgTimestamp` for the checkpoint: end time of what is synced.
    pub fn synced_ms(&self) -> i64 {
        self.synced_ms.get()
    }
    /// Removes bad files, and takes out every item of a record at or above `phy`, durably. For recovery, before anything is put.
    pub(crate) async fn cut(&self, phy: PhyOffset) -> Result<(), StoreError> {
        let turn = self.turn.take().await;
        let bad = self.bad.take();
        for name in bad {
            self.remove_file(name).await?;
        }
        loop {
            let header = match &self.state.borrow().newest {
                Some(table) => table.header,
                None => return Ok(()),
            };
            if header.end_phy < phy.0 {
                break;
            }
            if header.count > 1 {
                self.unput_from(phy).await?;
            }
            let emptied = self.state.borrow().newest.as_ref().is_some_and(|t| t.header.count == 1);
            let before = self.state.borrow_mut().closed.pop();
            match before {
                Some((name, header)) if emptied => {
                    let gone = self.state.borrow_mut().newest.take().expect("it was there above");
                    self.remove_file(gone.name).await?;
                    self.load_table(name, header).await?;
                }
                Some(other) => {
                    self.state.borrow_mut().closed.push(other);
                    break;
                }
                None if emptied => {
                    if let Some(table) = &mut self.state.borrow_mut().newest {
                        table.header = Header::after(0, 0);
                    }
                    break;
                }
                None => break,
            }
        }
        drop(turn);
        self.sync().await
    }
    /// Says that the log is indexed up to the record at `phy`, when the index has no item that says so: makes a file if there is none.
    pub(crate) fn mark_indexed(&self, phy: PhyOffset, store_timestamp_ms: i64) {
        let mut s = self.state.borrow_mut();
        if !self.enabled || !s.full.is_empty() {
            return;
        }
        if s.newest.is_none() {
            self.roll(&mut s);
        }
        let table = s.newest.as_mut().expect("made above when it was missing");
        if table.header.count == 1 {
            table.header = Header::after(store_timestamp_ms.max(0), phy.0);
        }
    }

    fn path(&self, name: u64) -> PathBuf {
        self.dir.join(format!("{name:017}"))
    }
    fn failed(&self, op: &'static str, name: u64, source: std::io::Error) -> StoreError {
        StoreError::File { op, path: self.path(name), source }
    }
    fn check_failed(&self) -> Result<(), StoreError> {
        if self.failed.get() {
            return Err(StoreError::Poisoned { op: "sync of the index", at: self.last().1 });
        }
        Ok(())
    }
    async fn datasync(&self, name: u64, file: &I::File) -> Result<(), StoreError> {
        file.datasync().await.map_err(|e| {
            self.failed.set(true);
            self.failed("sync", name, e)
        })
    }
    /// The file of a table, made sparse and of full length when it is missing.
    async fn file(&self, name: u64) -> Result<Rc<I::File>, StoreError> {
        if let Some((held, file)) = &*self.file.borrow()
            && *held == name
        {
            return Ok(file.clone());
        }
        let how = Open { access: Access::Create, direct: false };
        let file = self.io.open(&self.path(name), how).await.map_err(|e| self.failed("open", name, e))?;
        let bytes = file.len().await.map_err(|e| self.failed("stat", name, e))?;
        if bytes < self.layout.file_bytes() {
            self.names_unsynced.set(true);
            file.set_len(self.layout.file_bytes()).await.map_err(|e| self.failed("extend", name, e))?;
        }
        let file = Rc::new(file);
        *self.file.borrow_mut() = Some((name, file.clone()));
        Ok(file)
    }
    async fn remove_file(&self, name: u64) -> Result<(), StoreError> {
        match self.io.remove(&self.path(name)).await {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(self.failed("remove", name, e)),
        }
        self.names_unsynced.set(true);
        self.file.borrow_mut().take_if(|(held, _)| *held == name);
        Ok(())
    }
    /// Of the tables that are to be written, oldest first.
    fn names_where(&self, wanted: impl Fn(&Table) -> bool) -> Vec<u64> {
        let s = self.state.borrow();
        s.full.iter().chain(&s.newest).filter(|t| wanted(t)).map(|t| t.name).collect()
    }
    /// Lets `f` at a table. Only the holder of the turn takes tables away, and it names one that is there.
    fn with<T>(&self, name: u64, f: impl FnOnce(&mut Table) -> T) -> T {
        f(self.state.borrow_mut().table(name).expect("tables leave only by this turn"))
    }
    /// Writes the items that the table has now.
    async fn write_items(&self, name: u64) -> Result<(), StoreError> {
        let end = self.with(name, |t| t.header.count);
        loop {
            let from = self.with(name, |t| t.items_from());
            if from >= end {
                return Ok(());
            }
            let file = self.file(name).await?;
            let count = (end - from).min((PIECE_BYTES / ITEM_BYTES) as u32);
            let mut buf = file.buffer(count as usize * ITEM_BYTES);
            self.with(name, |t| t.copy_items(buf.as_mut()));
            let wrote = write_all(&*file, self.layout.item_at(from), buf).await.0;
            wrote.map_err(|e| self.failed("write", name, e))?;
            self.with(name, |t| t.drop_items(from + count));
        }
    }
    /// Returns the header that covers what is durable now.
    async fn sync_items_and_slots(&self, name: u64) -> Result<Header, StoreError> {
        self.check_failed()?;
        let header = self.with(name, |t| t.header);
        self.write_items(name).await?;
        let file = self.file(name).await?;
        if !bug(Bug::IndexHeaderBeforeItems) {
            self.datasync(name, &file).await?;
        }
        let pages = self.with(name, |t| t.take_dirty());
        if let Err(error) = self.write_pages(name, &file, &pages, header.count).await {
            self.with(name, |t| pages.iter().for_each(|page| t.mark_dirty(*page as usize * PAGE_SLOTS)));
            return Err(error);
        }
        if !bug(Bug::IndexHeaderBeforeItems) {
            self.datasync(name, &file).await?;
        }
        self.with(name, |t| t.prepared = Some(header));
        Ok(header)
    }
    async fn sync_header(&self, name: u64) -> Result<(), StoreError> {
        self.check_failed()?;
        let Some(header) = self.with(name, |t| t.prepared) else { return Ok(()) };
        let file = self.file(name).await?;
        let mut buf = file.buffer(HEADER_BYTES);
        buf.as_mut().copy_from_slice(&header.encode());
        write_all(&*file, 0, buf).await.0.map_err(|e| self.failed("write", name, e))?;
        self.datasync(name, &file).await?;
        self.with(name, |t| {
            t.prepared = None;
            t.synced = Some(header);
        });
        self.synced_ms.set(header.end_ms);
        Ok(())
    }
    async fn write_pages(&self, name: u64, file: &I::File, pages: &[u32], count: u32) -> Result<(), StoreError> {
        let table_end = self.layout.slot_at(self.layout.slots);
        for run in pages.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(PIECE_BYTES / PAGE_BYTES)) {
            let at = HEADER_BYTES as u64 + run[0] as u64 * PAGE_BYTES as u64;
            let bytes = (run.len() * PAGE_BYTES).min((table_end - at) as usize);
            let mut buf = file.buffer(bytes);
            self.with(name, |t| {
                for (page, place) in run.iter().zip(buf.as_mut().chunks_mut(PAGE_BYTES)) {
                    t.page(*page, count, place);
                }
            });
            write_all(file, at, buf).await.0.map_err(|e| self.failed("write", name, e))?;
        }
        Ok(())
    }
}

/// Loading and cutting: only before anything is put.
impl<I: Io> Index<I> {
    async fn load(&self, lost: &mut Lost) -> Result<(), StoreError> {
        let names = match self.io.list(&self.dir).await {
            Ok(names) => names,
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(StoreError::File { op: "list", path: self.dir.clone(), source }),
        };
        let mut good: Vec<(u64, Header)> = Vec::new();
        let mut bad = false;
        for name in names {
            let Some(number) = file_name(&name) else {
                lost.notes.push(format!("index/{}: not a name of an index file, ignored", name.display()));
                continue;
            };
            if !bad {
                match readable(self.check(number).await)? {
                    Ok(header) => {
                        good.push((number, header));
                        continue;
                    }
                    Err(what) => lost.notes.push(format!("index/{number:017}: {what}, built again")),
                }
                bad = true;
            }
            self.bad.borrow_mut().push(number);
        }
        let mut newest = good.pop();
        while let Some((name, header)) = newest {
            match readable(self.load_table(name, header).await.map(Ok))? {
                Ok(()) => {
                    self.synced_ms.set(header.end_ms);
                    break;
                }
                Err(what) => {
                    lost.notes.push(format!("index/{name:017}: {what}, built again"));
                    self.bad.borrow_mut().insert(0, name);
                    self.file.borrow_mut().take();
                    newest = good.pop();
                    bad = true;
                }
            }
        }
        if bad || newest.is_none() {
            lost.replay_from = Some(PhyOffset(newest.map_or(0, |(_, header)| header.end_phy)));
        }
        self.state.borrow_mut().closed = good;
        Ok(())
    }
    /// The header of a file that can be right, else why it is not.
    async fn check(&self, name: u64) -> Result<Result<Header, &'static str>, StoreError> {
        let how = Open { access: Access::Read, direct: false };
        let file = match self.io.open(&self.path(name), how).await {
            Ok(file) => file,
            Err(e) => return Err(self.failed("open", name, e)),
        };
        let bytes = file.len().await.map_err(|e| self.failed("stat", name, e))?;
        if bytes < self.layout.file_bytes() {
            return Ok(Err("shorter than maxHashSlotNum and maxIndexNum make it"));
        }
        let head = file.read_at(0, HEADER_BYTES).await.map_err(|e| self.failed("read", name, e))?;
        let Some(header) = Header::decode(head.as_ref(), &self.layout) else { return Ok(Err("impossible header")) };
        if header.count == 1 {
            return Ok(if header.end_phy == 0 && header.end_ms == 0 { Err("empty") } else { Ok(header) });
        }
        let at = self.layout.item_at(header.count - 1);
        let last = file.read_at(at, ITEM_BYTES).await.map_err(|e| self.failed("read", name, e))?;
        Ok(match last.as_ref().first_chunk() {
            Some(last) if Item::decode(last).phy == header.end_phy => Ok(header),
            _ => Err("its last item is not the one its header names"),
        })
    }
    /// Makes a file the newest table.
    async fn load_table(&self, name: u64, header: Header) -> Result<(), StoreError> {
        let mut table = Table::new(name, self.layout, header, Some(header));
        let file = self.file(name).await?;
        let (mut slots_used, mut later) = (0, Vec::new());
        let mut slot = 0;
        while slot < self.layout.slots {
            let bytes = ((self.layout.slots - slot) as usize * SLOT_BYTES).min(PIECE_BYTES);
            let read = file.read_at(self.layout.slot_at(slot), bytes).await;
            let read = read.map_err(|e| self.failed("read", name, e))?;
            let whole = read.as_ref().len() / SLOT_BYTES;
            if whole == 0 {
                return Err(self.failed("read", name, ErrorKind::UnexpectedEof.into()));
            }
            for (i, number) in read.as_ref().chunks_exact(SLOT_BYTES).enumerate() {
                let number = u32::from_be_bytes(number.try_into().expect("4 bytes"));
                if number == 0 {
                    continue; // an unused page of the table stays without memory
                }
                table.slots[slot as usize + i] = number;
                slots_used += 1;
                if number >= header.count {
                    later.push(slot + i as u32);
                }
            }
            slot += whole as u32;
        }
        let mut items = Items { index: self, name, file: Some(file), block: None, last: u32::MAX };
        for slot in later {
            let mut number = table.slots[slot as usize];
            while number >= header.count {
                let item = if number < self.layout.items { items.item(number).await? } else { None };
                number = match item {
                    Some(item) if self.layout.slot_of(item.hash) == slot && item.previous < number => item.previous,
                    _ => 0,
                };
            }
            table.slots[slot as usize] = number;
            slots_used -= (number == 0) as u32;
            table.mark_dirty(slot as usize);
        }
        // A crash between the writes of slots and header leaves another number in the header.
        table.header.slots_used = slots_used;
        self.state.borrow_mut().newest = Some(table);
        Ok(())
    }
    /// Takes the items at or above `phy` out of the newest table, newest first.
    async fn unput_from(&self, phy: PhyOffset) -> Result<(), StoreError> {
        let (name, count) = {
            let s = self.state.borrow();
            let table = s.newest.as_ref().expect("only called with one");
            (table.name, table.header.count)
        };
        let mut items = Items { index: self, name, file: None, block: None, last: count };
        let mut number = count - 1;
        let mut item = items.item(number).await?;
        while let Some(this) = item.filter(|item| item.phy >= phy.0) {
            item = if number > 1 { items.item(number - 1).await? } else { None };
            let mut s = self.state.borrow_mut();
            s.newest.as_mut().expect("only called with one").unput(&this, item.as_ref());
            number -= 1;
        }
        Ok(())
    }
}

/// Reads items of one file, from memory or by blocks that end at the item asked for: chains lead backwards.
struct Items<'a, I: Io> {
    index: &'a Index<I>,
    name: u64,
    file: Option<Rc<I::File>>,
    block: Option<(u64, <I::File as File>::Buf)>,
    /// The number asked for last.
    last: u32,
}

impl<I: Io> Items<'_, I> {
    /// `None` when the file is gone.
    async fn open(&mut self) -> Result<Option<Rc<I::File>>, StoreError> {
        if self.file.is_none() {
            let held = self.index.file.borrow().clone().filter(|(held, _)| *held == self.name);
            self.file = match held {
                Some((_, file)) => Some(file),
                None => {
                    let path = self.index.path(self.name);
                    match self.index.io.open(&path, Open { access: Access::Read, direct: false }).await {
                        Ok(file) => Some(Rc::new(file)),
                        Err(e) if e.kind() == ErrorKind::NotFound => None,
                        Err(e) => return Err(self.index.failed("open", self.name, e)),
                    }
                }
            };
        }
        Ok(self.file.clone())
    }
    /// `None` when the file is gone, or does not reach that far.
    async fn slot(&mut self, slot: u32) -> Result<Option<u32>, StoreError> {
        let Some(file) = self.open().await? else { return Ok(None) };
        let read = file.read_at(self.index.layout.slot_at(slot), SLOT_BYTES).await;
        let read = read.map_err(|e| self.index.failed("read", self.name, e))?;
        Ok(read.as_ref().first_chunk().map(|number| u32::from_be_bytes(*number)))
    }
    /// `None` when the file is gone, or does not reach that far.
    async fn item(&mut self, number: u32) -> Result<Option<Item>, StoreError> {
        if let Some(item) = self.index.state.borrow_mut().table(self.name).and_then(|t| t.item(number)) {
            return Ok(Some(item));
        }
        let at = self.index.layout.item_at(number);
        if let Some(item) = self.in_block(at) {
            return Ok(Some(item));
        }
        let Some(file) = self.open().await? else { return Ok(None) };
        let close = self.last.saturating_sub(number) as u64 * (ITEM_BYTES as u64) < BLOCK_BYTES;
        let bytes = if close { BLOCK_BYTES } else { SMALL_BLOCK_BYTES };
        self.last = number;
        let end = at + ITEM_BYTES as u64;
        let from = end.saturating_sub(bytes).max(self.index.layout.item_at(0));
        let read = file.read_at(from, (end - from) as usize).await;
        self.block = Some((from, read.map_err(|e| self.index.failed("read", self.name, e))?));
        Ok(self.in_block(at))
    }
    fn in_block(&self, at: u64) -> Option<Item> {
        let (from, block) = self.block.as_ref()?;
        let at = usize::try_from(at.checked_sub(*from)?).ok()?;
        block.as_ref().get(at..)?.first_chunk().map(Item::decode)
    }
}

/// A file that the device cannot read is one that cannot be right.
fn readable<T>(checked: Result<Result<T, &'static str>, StoreError>) -> Result<Result<T, &'static str>, StoreError> {
    match checked {
        Err(StoreError::File { source, .. }) if is_unreadable(&source) => Ok(Err("cannot be read")),
        checked => checked,
    }
}

/// The number that a name of 17 digits says.
fn file_name(name: &Path) -> Option<u64> {
    let name = name.to_str()?;
    (name.len() == 17 && name.bytes().all(|b| b.is_ascii_digit())).then(|| name.parse().ok()).flatten()
}

/// yyyyMMddHHmmssSSS of local time, and above `last`: a millisecond later as often as needed, or (the clock was set back) just one more.
fn name_at(now_ms: i64, last: u64) -> u64 {
    let names = (0..1000).map(|later| local_name(now_ms.saturating_add(later)));
    names.into_iter().find(|name| *name > last).unwrap_or(last + 1)
}

fn local_name(ms: i64) -> u64 {
    let seconds: libc::time_t = ms.div_euclid(1000);
    // SAFETY: `tm` is plain old data for which zeros are a value.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call, and localtime_r keeps neither.
    let made = unsafe { libc::localtime_r(&seconds, &mut tm) };
    if made.is_null() {
        return 0;
    }
    let day = (tm.tm_year as u64 + 1900) * 10_000 + (tm.tm_mon as u64 + 1) * 100 + tm.tm_mday as u64;
    let time = tm.tm_hour as u64 * 10_000 + tm.tm_min as u64 * 100 + tm.tm_sec as u64;
    (day * 1_000_000 + time) * 1000 + ms.rem_euclid(1000) as u64
}

#[cfg(all(test, feature = "sim"))]
mod tests;
