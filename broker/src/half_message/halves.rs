//! Which halves are open: plain state, no clock, no files. Offsets are those of the half queue unless an op offset is meant.
//!
//! A half that is put back (for a check, or because it is immune yet) goes on as its newest copy; whoever ends it by the offset of an
//! older copy ends that one.
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::collections::BTreeMap;

/// Older offsets that are remembered for one open half: its first, which its producer was answered, and the newest, which it was asked by.
const OLD_OFFSETS_MAX: usize = 17;

/// What is known of a half that is not open any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Somebody is ending it just now.
    Claimed,
    /// Ended; no op message says so yet.
    Ended,
    /// The op message at this op offset says so.
    Written(u64),
}

/// What an end meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The half was open. It is the caller's to end, or to give back.
    Open,
    /// It was ended before, or is being ended.
    Ended,
    /// The service is past it: it was ended long ago, or was discarded.
    Past,
}

/// How the half at an offset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Open,
    /// Somebody is ending it, and may yet give it back: nothing may pass it.
    Claimed,
    /// It was ended, or it goes on as a newer copy.
    Settled,
}

#[derive(Debug, Default)]
pub struct Halves {
    /// No half before this offset is open.
    next: u64,
    /// Those at or behind `next` that are not open.
    ended: HashMap<u64, Fate>,
    /// Older offset of an open half to its newest.
    newest: HashMap<u64, u64>,
    /// The newest offset of an open half to its older ones, the first in front.
    older: HashMap<u64, Vec<u64>>,
    /// Op offset to how many halves at or behind `next` it names.
    ops: BTreeMap<u64, usize>,
    /// Behind the last op message that was read or written.
    op_next: u64,
    /// Ended halves for the next op message.
    unwritten: Vec<u64>,
}

impl Halves {
    /// Halves from `next` on may be open; op messages are read from `op_next` on.
    pub fn starting_at(next: u64, op_next: u64) -> Self {
        Halves { next, op_next, ..Halves::default() }
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    /// Where a next start must read op messages from: none before it names a half that this start still has to know of.
    pub fn op_progress(&mut self) -> u64 {
        while let Some(first) = self.ops.first_entry().filter(|first| *first.get() == 0) {
            first.remove();
        }
        self.ops.first_key_value().map_or(self.op_next, |(op, _)| *op)
    }

    fn newest(&self, offset: u64) -> u64 {
        self.newest.get(&offset).copied().unwrap_or(offset)
    }

    /// Whether the service has to look at the half at this offset.
    pub fn state(&self, offset: u64) -> State {
        match self.ended.get(&offset) {
            _ if self.newest.contains_key(&offset) => State::Settled,
            Some(Fate::Ended | Fate::Written(_)) => State::Settled,
            Some(Fate::Claimed) => State::Claimed,
            None => State::Open,
        }
    }

    pub fn claim(&mut self, offset: u64) -> Claim {
        let at = self.newest(offset);
        if at < self.next {
            return Claim::Past;
        }
        match self.ended.entry(at) {
            Entry::Occupied(_) => Claim::Ended,
            Entry::Vacant(free) => {
                free.insert(Fate::Claimed);
                Claim::Open
            }
        }
    }

    /// A claimed half could not be ended and is open again.
    pub fn give_back(&mut self, offset: u64) {
        let at = self.newest(offset);
        if self.ended.get(&at) == Some(&Fate::Claimed) {
            self.ended.remove(&at);
        }
    }

    /// A claimed half is ended: the next op message names it.
    pub fn end(&mut self, offset: u64) {
        let at = self.newest(offset);
        if self.ended.get(&at) == Some(&Fate::Claimed) {
            self.ended.insert(at, Fate::Ended);
            self.unwritten.push(at);
        }
    }

    /// Ended halves that no op message names yet.
    pub fn unwritten(&self) -> usize {
        self.unwritten.len()
    }

    /// Takes what the next op message is to say, up to some `bytes` of text.
    pub fn take_unwritten(&mut self, bytes: usize) -> Vec<u64> {
        let mut text = 0;
        let fits = self.unwritten.iter().take_while(|offset| {
            let before = text;
            text += offset.checked_ilog10().unwrap_or(0) as usize + 2;
            before <= bytes
        });
        let count = fits.count();
        self.unwritten.drain(..count).collect()
    }

    /// The op message could not be stored.
    pub fn put_back_unwritten(&mut self, offsets: Vec<u64>) {
        self.unwritten.splice(0..0, offsets);
    }

    /// The op message at `op` names these halves; it was stored now, or found at the start.
    pub fn written(&mut self, op: u64, offsets: &[u64]) {
        let mut named = 0;
        for offset in offsets.iter().filter(|offset| **offset >= self.next) {
            if !matches!(self.ended.insert(*offset, Fate::Written(op)), Some(Fate::Written(_))) {
                named += 1;
            }
        }
        self.ops.insert(op, named);
        self.op_next = self.op_next.max(op + 1);
    }

    /// The half at `old` goes on as its copy at `new`. When it was ended while it was copied, so is the copy.
    pub fn moved(&mut self, old: u64, new: u64) {
        match self.ended.get(&old) {
            None => {}
            Some(Fate::Claimed) => drop(self.ended.insert(new, Fate::Claimed)),
            Some(Fate::Ended | Fate::Written(_)) => {
                self.ended.insert(new, Fate::Ended);
                self.unwritten.push(new);
            }
        }
        let mut older = self.older.remove(&old).unwrap_or_default();
        if older.len() == OLD_OFFSETS_MAX {
            self.newest.remove(&older.remove(1));
        }
        older.push(old);
        for offset in &older {
            self.newest.insert(*offset, new);
        }
        self.older.insert(new, older);
    }

    /// At a start: the half at `offset` says that it is a copy of the one that was first at `first`.
    pub fn found_copy(&mut self, first: u64, offset: u64) {
        let before = self.newest(first);
        if before < offset {
            self.moved(before, offset);
        }
    }

    /// The half at `offset` is settled or discarded, and so is every one before it.
    pub fn pass(&mut self, offset: u64) {
        debug_assert_ne!(self.state(offset), State::Claimed, "it may be given back");
        self.next = self.next.max(offset + 1);
        if let Some(Fate::Written(op)) = self.ended.remove(&offset)
            && let Some(named) = self.ops.get_mut(&op)
        {
            *named -= 1;
        }
        for old in self.older.remove(&offset).unwrap_or_default() {
            self.newest.remove(&old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(halves: &mut Halves, offset: u64) -> Claim {
        let claim = halves.claim(offset);
        if claim == Claim::Open {
            halves.end(offset);
        }
        claim
    }

    #[test]
    fn a_half_is_ended_once() {
        let mut halves = Halves::starting_at(10, 0);
        assert_eq!(
            (ended(&mut halves, 12), ended(&mut halves, 12), ended(&mut halves, 9)),
            (Claim::Open, Claim::Ended, Claim::Past)
        );
        assert_eq!(halves.claim(13), Claim::Open);
        assert_eq!((halves.claim(13), halves.state(13)), (Claim::Ended, State::Claimed), "while another ends it");
        halves.give_back(13);
        assert_eq!((halves.state(13), halves.claim(13)), (State::Open, Claim::Open));
        assert_eq!((halves.state(12), halves.state(11)), (State::Settled, State::Open));
        halves.give_back(12);
        assert_eq!(halves.claim(12), Claim::Ended, "what is ended cannot be given back");
        assert_eq!(halves.take_unwritten(4096), [12]);
    }

    #[test]
    fn op_messages_are_kept_until_all_they_name_is_passed() {
        let mut halves = Halves::starting_at(0, 5);
        for offset in [2, 0, 1] {
            ended(&mut halves, offset);
        }
        let first = halves.take_unwritten(0);
        assert_eq!(first, [2], "one at least");
        halves.written(5, &first);
        let second = halves.take_unwritten(4096);
        assert_eq!(second, [0, 1]);
        halves.written(6, &second);
        assert_eq!(halves.op_progress(), 5);
        halves.pass(0);
        halves.pass(1);
        assert_eq!((halves.next(), halves.op_progress()), (2, 5), "op 5 names half 2, which was not passed");
        halves.pass(2);
        assert_eq!((halves.next(), halves.op_progress()), (3, 7));
        assert!(halves.ended.is_empty() && halves.ops.is_empty());
    }

    #[test]
    fn an_op_text_is_cut_by_its_length() {
        let mut halves = Halves::default();
        (0..1000).for_each(|offset| assert_eq!(ended(&mut halves, offset), Claim::Open));
        let mut all = Vec::new();
        while halves.unwritten() > 0 {
            let some = halves.take_unwritten(100);
            let text: usize = some.iter().map(|offset| offset.to_string().len() + 1).sum();
            assert!((100..=105).contains(&text) || halves.unwritten() == 0, "{text}");
            all.extend(some);
        }
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        halves.put_back_unwritten(vec![7, 8]);
        assert_eq!(halves.take_unwritten(100), [7, 8]);
    }

    #[test]
    fn whoever_knows_an_older_copy_ends_the_newest() {
        let mut halves = Halves::default();
        halves.moved(0, 10);
        halves.pass(0);
        halves.moved(10, 20);
        halves.pass(10);
        assert_eq!(halves.next(), 11);
        assert_eq!(
            (ended(&mut halves, 0), ended(&mut halves, 10), ended(&mut halves, 20)),
            (Claim::Open, Claim::Ended, Claim::Ended)
        );
        assert_eq!(halves.take_unwritten(100), [20]);
        halves.pass(20);
        assert!(halves.newest.is_empty() && halves.older.is_empty(), "nothing is kept of what is over");
        assert_eq!(halves.claim(0), Claim::Past);
    }

    #[test]
    fn an_end_while_it_is_copied_ends_the_copy() {
        let mut halves = Halves::default();
        halves.claim(0);
        halves.moved(0, 10); // the copy was under way
        assert_eq!((halves.state(0), halves.state(10)), (State::Settled, State::Claimed));
        halves.pass(0);
        halves.end(0);
        assert_eq!(halves.take_unwritten(100), [10]);

        let mut halves = Halves::default();
        ended(&mut halves, 0);
        halves.moved(0, 10);
        assert_eq!(halves.state(10), State::Settled);
        assert_eq!(halves.take_unwritten(100), [0, 10], "an end may stand in the log under either");

        let mut halves = Halves::default();
        halves.claim(0);
        halves.moved(0, 10);
        halves.give_back(0);
        halves.pass(0);
        assert_eq!((halves.state(10), halves.claim(0)), (State::Open, Claim::Open), "it could not be ended");
    }

    #[test]
    fn copies_that_a_crash_left_are_one_half() {
        let mut halves = Halves::starting_at(3, 0);
        for (first, offset) in [(3, 7), (3, 9), (4, 8)] {
            halves.found_copy(first, offset);
        }
        let open = [3, 7, 9, 4, 8].map(|offset| halves.state(offset) == State::Open);
        assert_eq!(open, [false, false, true, false, true]);
        assert_eq!(
            (ended(&mut halves, 3), ended(&mut halves, 7), ended(&mut halves, 8)),
            (Claim::Open, Claim::Ended, Claim::Open)
        );
        assert_eq!(halves.take_unwritten(100), [9, 8]);
        halves.found_copy(100, 50); // a copy before its first: nonsense
        assert_eq!((halves.state(50), halves.state(100)), (State::Open, State::Open));
    }

    #[test]
    fn a_half_that_is_put_back_for_ever_costs_no_more_and_more() {
        let mut halves = Halves::default();
        for at in 0..1000 {
            halves.moved(at, at + 1);
            halves.pass(at);
        }
        assert_eq!((halves.newest.len(), halves.older[&1000].len()), (OLD_OFFSETS_MAX, OLD_OFFSETS_MAX));
        assert_eq!(ended(&mut halves, 0), Claim::Open, "the first is never forgotten");
        assert_eq!(halves.claim(999), Claim::Ended);
    }
}
