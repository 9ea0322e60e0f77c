//! What a disk does to bytes that nobody writes any more: in the log, bits flip and blocks become unreadable below the synced mark; before a
//! start, files of queues and of the index are gone.
use crate::machine::Machine;
use crate::model::{Model, Sent};
use crate::plan::{ROOT, Random};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use uringmq_proto::record::{self, Found};
use uringmq_proto::types::PhyOffset;
use uringmq_store::consume_queue::Form;
use uringmq_store::io::ALIGN;
use uringmq_store::io::sim::SimIo;

/// Size and magic at a record's start. Of the rest a reader can check the body alone (store-format sheet 2).
const CHECKED_HEAD_BYTES: u64 = 8;

impl Machine {
    /// Something of the log goes bad, if there is anything that may.
    pub fn rot(&self, random: &mut Random, model: &RefCell<Model>) {
        let model = &mut model.borrow_mut();
        let synced = PhyOffset(model.checkpointed);
        match random.one_in(3) {
            true => self.lose_block(random, model, synced),
            false => self.flip_bit_of_record(random, model, synced),
        }
    }

    /// A segment, and where in it.
    fn place_in_log(&self, at: u64) -> (PathBuf, u64) {
        let inside = at % self.config.segment_bytes;
        (self.config.commit_log_dir.join(format!("{:020}", at - inside)), inside)
    }

    fn flip_bit_of_record(&self, random: &mut Random, model: &mut Model, synced: PhyOffset) {
        let all: Vec<usize> = (0..model.log.len()).filter(|n| may_go(model, *n, synced)).collect();
        if all.is_empty() {
            return;
        }
        let sent = model.log[random.pick(&all)].clone();
        let Ok(Found::Record(parsed)) = record::parse(&sent.bytes, true) else { panic!("encoded by the store") };
        let body_at = (parsed.body.as_ptr() as usize - sent.bytes.as_ptr() as usize) as u64;
        let inside = match random.below(CHECKED_HEAD_BYTES + parsed.body.len() as u64) {
            at if at < CHECKED_HEAD_BYTES => at,
            at => body_at + at - CHECKED_HEAD_BYTES,
        };
        let (path, at) = self.place_in_log(sent.phy + inside);
        if self.io.flip_bit(&path, at, random.below(8) as u8) {
            model.bad.insert(sent.phy);
        }
    }

    fn lose_block(&self, random: &mut Random, model: &mut Model, synced: PhyOffset) {
        let block = ALIGN as u64;
        let in_block = |sent: &Sent, at: u64| sent.phy < at + block && at < sent.phy + sent.bytes.len() as u64;
        let all = (self.opened.min.0..synced.0).step_by(ALIGN).filter(|at| {
            let mut inside = model.log.iter().enumerate().filter(|(_, sent)| in_block(sent, *at)).peekable();
            inside.peek().is_some() && inside.all(|(n, _)| may_go(model, n, synced))
        });
        let all: Vec<u64> = all.collect();
        if all.is_empty() {
            return;
        }
        let at = random.pick(&all);
        let (path, inside) = self.place_in_log(at);
        if self.io.make_unreadable(&path, inside, inside + block) {
            let lost = model.log.iter().filter(|sent| in_block(sent, at)).map(|sent| sent.phy);
            model.bad.extend(lost.collect::<Vec<_>>());
        }
    }
}

/// A file of a queue is not there any more, as after a repair of the filesystem. Not the last one: what was the queue's end is known to
/// nothing else after a crash.
pub fn lose_queue_file(io: &SimIo, random: &mut Random) {
    let queues = Form::ALL.map(|form| Path::new(ROOT).join(form.dir()));
    let of_queue = |path: &PathBuf| queues.iter().any(|dir| path.starts_with(dir));
    let all: Vec<PathBuf> = io.paths().into_iter().filter(of_queue).collect();
    let is_last = |path: &PathBuf| all.iter().filter(|other| other.parent() == path.parent()).max() == Some(path);
    let files: Vec<&PathBuf> = all.iter().filter(|path| io.contents(path).is_some() && !is_last(path)).collect();
    if !files.is_empty() {
        io.lose(files[random.below(files.len() as u64) as usize]);
    }
}

/// Whether the record may go bad: it is below the mark, and a later one tells its queue's next number, whatever is lost of it.
fn may_go(model: &Model, n: usize, synced: PhyOffset) -> bool {
    let sent = &model.log[n];
    let later = |queue: &_| {
        let known = model.log[n + 1..model.durable.max(n + 1)].iter();
        known
            .filter(|later| !model.bad.contains(&later.phy))
            .any(|later| later.at.as_ref().is_some_and(|(of, _)| of == queue))
    };
    !model.bad.contains(&sent.phy) // two flips of one bit are none
        && sent.phy + sent.bytes.len() as u64 <= synced.0
        && sent.phy >= model.floor
        && sent.at.as_ref().is_none_or(|(queue, _)| later(queue))
}
