//! Which master wrote which bytes of a log (controller mode): the master epochs, each from where its first byte stands to where the next
//! one's does. Two logs that were one agree up to the end of the last epoch that both have with the same beginning.
//!
//! The file `epochFileCheckpoint`, as text: a line with the number of entries, a line with the CRC-32 (31 bits) of all lines behind it, 0
//! for unchecked; then a line `epoch-startOffset` for each, ascending. Source: replication sheet 7.1, 7.4.
use crate::record;
use thiserror::Error;

/// More is no broker's: an entry is an election with messages behind it, and Apache's handshake has room for about as many.
pub const EPOCHS_MAX: usize = 1000;

/// The bytes from `start` on are of master epoch `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    pub epoch: i32,
    pub start: u64,
}

/// Ascending in both fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epochs(Vec<Epoch>);

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EpochError {
    #[error("line {0} is missing or no number")]
    Line(usize),
    #[error("{found} entries, not {said}")]
    Count { said: usize, found: usize },
    #[error("checksum {found}, not {said}")]
    Crc { said: u32, found: u32 },
    #[error("epoch {epoch} from {start} does not come after the entry before it")]
    Order { epoch: i32, start: u64 },
    #[error("{0} entries, limit {EPOCHS_MAX}")]
    TooMany(usize),
}

impl Epochs {
    /// # Errors
    /// `Order`, `TooMany`.
    pub fn new(entries: impl IntoIterator<Item = Epoch>) -> Result<Self, EpochError> {
        let mut epochs = Epochs::default();
        for entry in entries {
            if epochs.last().is_some_and(|last| last.epoch >= entry.epoch || last.start > entry.start) {
                return Err(EpochError::Order { epoch: entry.epoch, start: entry.start });
            }
            epochs.0.push(entry);
        }
        match epochs.0.len() {
            count if count > EPOCHS_MAX => Err(EpochError::TooMany(count)),
            _ => Ok(epochs),
        }
    }

    pub fn entries(&self) -> &[Epoch] {
        &self.0
    }

    pub fn last(&self) -> Option<Epoch> {
        self.0.last().copied()
    }

    /// The entry that the byte at `at` belongs to, and where the next one begins. Bytes before the first entry are older than controller mode;
    /// they count as the first one's.
    pub fn of(&self, at: u64) -> Option<(Epoch, Option<u64>)> {
        let index = self.0.partition_point(|entry| entry.start <= at).saturating_sub(1);
        let entry = *self.0.get(index)?;
        Some((entry, self.0.get(index + 1).map(|next| next.start).filter(|start| *start > at)))
    }

    /// From `start` on the bytes are of `epoch`. What claimed to begin there or behind it, and later epochs, go: Apache's broker keeps an epoch
    /// without bytes and drops the new one, and then takes two masters' bytes for one's. The oldest go beyond [`EPOCHS_MAX`].
    pub fn begin(&mut self, epoch: i32, start: u64) {
        self.0.retain(|entry| entry.epoch < epoch && entry.start < start);
        self.0.push(Epoch { epoch, start });
        let surplus = self.0.len().saturating_sub(EPOCHS_MAX);
        self.0.drain(..surplus);
    }

    /// The broker of this log, which ends at `end`, is master in `epoch` now, and begins it there unless it has begun it before.
    pub fn lead(&mut self, epoch: i32, end: u64) {
        self.cut(end.max(1)); // an epoch without bytes is none, but the first of an empty log
        if self.last().is_none_or(|last| last.epoch < epoch) {
            self.begin(epoch, end);
        }
    }

    /// The log ends at `end` now: entries that begin there or behind it go. Whether there were any.
    pub fn cut(&mut self, end: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|entry| entry.start < end);
        self.0.len() < before
    }

    /// The log begins at `min` now: entries that end at or before it go. Whether there were any.
    pub fn trim(&mut self, min: u64) -> bool {
        let gone = self.0.windows(2).take_while(|pair| pair[1].start <= min).count();
        self.0.drain(..gone);
        gone > 0
    }

    /// Up to where a log with these epochs, which ends at `own`, is the same as one with the epochs `other` that ends at `end`. `None` when they
    /// have no epoch in common.
    pub fn agree(&self, own: u64, other: &Epochs, end: u64) -> Option<u64> {
        let ends = |of: &Epochs, index: usize, end: u64| of.0.get(index + 1).map_or(end, |next| next.start);
        self.0.iter().enumerate().rev().find_map(|(index, entry)| {
            let there = other.0.iter().position(|one| one == entry)?;
            Some(ends(self, index, own).min(ends(other, there, end)))
        })
    }

    pub fn to_text(&self) -> String {
        let lines: String = self.0.iter().map(|entry| format!("{}-{}\n", entry.epoch, entry.start)).collect();
        format!("{}\n{}\n{lines}", self.0.len(), record::body_crc(lines.as_bytes()))
    }

    /// # Errors
    /// What is wrong with the file's text. An empty file has no entries.
    pub fn parse(text: &str) -> Result<Self, EpochError> {
        if text.trim().is_empty() {
            return Ok(Epochs::default());
        }
        let number =
            |line: Option<&str>, at| line.and_then(|line| line.trim().parse().ok()).ok_or(EpochError::Line(at));
        let mut parts = text.splitn(3, '\n');
        let said: u32 = number(parts.next(), 1)?;
        let crc: u32 = number(parts.next(), 2)?;
        let lines = parts.next().unwrap_or_default();
        let found = record::body_crc(lines.as_bytes());
        if crc != 0 && crc != found {
            return Err(EpochError::Crc { said: crc, found });
        }
        let entries: Result<Vec<Epoch>, EpochError> = lines
            .lines()
            .enumerate()
            .map(|(index, line)| {
                let (epoch, start) = line.trim().split_once('-').ok_or(EpochError::Line(index + 3))?;
                let wrong = EpochError::Line(index + 3);
                let epoch = epoch.parse().map_err(|_| wrong.clone())?;
                Ok(Epoch { epoch, start: start.parse().map_err(|_| wrong)? })
            })
            .collect();
        let entries = entries?;
        if entries.len() != said as usize {
            return Err(EpochError::Count { said: said as usize, found: entries.len() });
        }
        Epochs::new(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(entries: &[(i32, u64)]) -> Epochs {
        Epochs::new(entries.iter().map(|&(epoch, start)| Epoch { epoch, start })).unwrap()
    }

    #[test]
    fn the_file_is_as_apache_writes_it() {
        let text = "2\n1953333299\n1-0\n2-1000\n";
        let two = epochs(&[(1, 0), (2, 1000)]);
        assert_eq!((two.to_text().as_str(), Epochs::parse(text).as_ref()), (text, Ok(&two)));
        assert_eq!(Epochs::parse("1\n0\n7-5\n"), Ok(epochs(&[(7, 5)])), "unchecked");
        assert_eq!(Epochs::parse(""), Ok(Epochs::default()));
    }

    #[test]
    fn a_damaged_file_is_told_of() {
        let wrong = |text| Epochs::parse(text).unwrap_err();
        assert_eq!(wrong("2\n1953333299\n1-0\n2-1001\n"), EpochError::Crc { said: 1953333299, found: 1836495218 });
        assert_eq!(wrong("x\n0\n"), EpochError::Line(1));
        assert_eq!(wrong("1\n\n1-0\n"), EpochError::Line(2));
        assert_eq!(wrong("1\n0\n1_0\n"), EpochError::Line(3));
        assert_eq!(wrong("3\n0\n1-0\n"), EpochError::Count { said: 3, found: 1 });
        assert_eq!(wrong("2\n0\n2-0\n1-5\n"), EpochError::Order { epoch: 1, start: 5 });
        assert_eq!(wrong("2\n0\n1-9\n2-5\n"), EpochError::Order { epoch: 2, start: 5 });
    }

    #[test]
    fn a_byte_belongs_to_the_epoch_it_stands_in() {
        let all = epochs(&[(1, 100), (3, 200), (4, 300)]);
        let of = |at| all.of(at).map(|(entry, next)| (entry.epoch, next));
        assert_eq!([of(100), of(199), of(200)], [Some((1, Some(200))), Some((1, Some(200))), Some((3, Some(300)))]);
        assert_eq!([of(300), of(9999)], [Some((4, None)); 2]);
        assert_eq!(of(5), Some((1, Some(200))), "older than controller mode");
        assert_eq!(Epochs::default().of(0), None);
    }

    #[test]
    fn an_epoch_without_bytes_gives_way() {
        let mut all = epochs(&[(1, 0), (2, 100)]);
        all.begin(3, 100);
        assert_eq!(all, epochs(&[(1, 0), (3, 100)]));
        all.begin(5, 400);
        assert_eq!(all, epochs(&[(1, 0), (3, 100), (5, 400)]));
        all.begin(4, 200);
        assert_eq!(all, epochs(&[(1, 0), (3, 100), (4, 200)]), "later epochs were of another log");
        let mut many = Epochs::default();
        (1..=EPOCHS_MAX as i32 + 5).for_each(|epoch| many.begin(epoch, epoch as u64));
        assert_eq!((many.entries().len(), many.entries()[0].epoch), (EPOCHS_MAX, 6));
    }

    #[test]
    fn the_list_follows_both_ends_of_the_log() {
        let mut all = epochs(&[(1, 0), (2, 100), (3, 200)]);
        assert!(all.cut(200) && all == epochs(&[(1, 0), (2, 100)]));
        assert!(!all.cut(101) && !all.trim(99));
        assert!(all.trim(100) && all == epochs(&[(2, 100)]));
        assert!(!all.trim(5000), "the last one has no end");
    }

    /// Each row: own epochs and end, the other's epochs and end, up to where they are the same.
    #[test]
    fn two_logs_agree_up_to_the_end_of_their_last_common_epoch() {
        type Side<'a> = (&'a [(i32, u64)], u64);
        let rows: [(Side<'_>, Side<'_>, Option<u64>); 8] = [
            ((&[(1, 0)], 500), (&[(1, 0)], 800), Some(500)),           // behind
            ((&[(1, 0)], 900), (&[(1, 0)], 800), Some(800)),           // ahead in one epoch
            ((&[(1, 0)], 900), (&[(1, 0), (2, 700)], 800), Some(700)), // the old master has more
            ((&[(1, 0)], 600), (&[(1, 0), (2, 700)], 800), Some(600)), // and less
            ((&[(1, 0), (2, 500)], 900), (&[(1, 0), (3, 400)], 1000), Some(400)), // another was elected meanwhile
            ((&[(1, 0), (2, 500)], 900), (&[(1, 0), (2, 450), (3, 600)], 1000), Some(450)), // one number, two beginnings
            ((&[(2, 0)], 900), (&[(1, 0), (3, 10)], 1000), None),
            ((&[], 900), (&[(1, 0)], 1000), None),
        ];
        for ((own, end), (other, there), wanted) in rows {
            assert_eq!(epochs(own).agree(end, &epochs(other), there), wanted, "{own:?} to {end}, {other:?} to {there}");
        }
    }
}
