//! What was sent, what was promised, and whether it is there: reads everything back and judges it, queue by queue.
use super::LoadArgs;
use crate::error::BenchError;
use crate::peer::{Caller, PullAsk, mix};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

/// Faults told in words; the rest is counted.
const FAULTS_TOLD: usize = 10;
/// Number and size of a message, in front of its body.
const HEAD_BYTES: usize = 12;

#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) acknowledged: u64,
    pub(super) refused: u64,
    /// Acknowledged beyond the end of a queue after a restart; they are forgotten once told.
    pub(super) beyond: u64,
    pub(super) offsets_wrong: u64,
}

/// What was sent and what was promised.
pub(super) struct Book {
    /// Number of the next message.
    pub(super) next: u64,
    pub(super) queues: Vec<QueueBook>,
    /// Where the newest acknowledged record starts in the log.
    pub(super) newest: Option<u64>,
    /// Messages read back in this pass, a bit each.
    seen: Vec<u64>,
    pub(super) totals: Totals,
    pub(super) faults: Vec<String>,
    pub(super) fault_count: u64,
}

pub(super) struct QueueBook {
    /// Offset of the first entry.
    start: i64,
    /// The acknowledged message at each offset.
    acknowledged: Vec<Option<u64>>,
    /// Where the last check ended.
    stored_end: i64,
}

impl QueueBook {
    /// Behind the last offset that was acknowledged, or that a check found.
    pub(super) fn acknowledged_end(&self) -> i64 {
        self.stored_end.max(self.start + self.acknowledged.len() as i64)
    }
}

impl Book {
    pub(super) fn new(starts: &[i64]) -> Self {
        let queue = |start: &i64| QueueBook { start: *start, acknowledged: Vec::new(), stored_end: *start };
        Book {
            next: 1,
            newest: None,
            queues: starts.iter().map(queue).collect(),
            seen: Vec::new(),
            totals: Totals::default(),
            faults: Vec::new(),
            fault_count: 0,
        }
    }

    pub(super) fn fault(&mut self, text: String) {
        self.fault_count += 1;
        if self.faults.len() < FAULTS_TOLD {
            self.faults.push(text);
        }
    }

    pub(super) fn stored_ends(&self) -> Vec<i64> {
        self.queues.iter().map(|queue| queue.stored_end).collect()
    }

    pub(super) fn acknowledge(&mut self, queue: usize, offset: i64, id: u64) {
        self.totals.acknowledged += 1;
        let book = &mut self.queues[queue];
        let at = match usize::try_from(offset - book.start) {
            Ok(at) if offset >= book.stored_end => at,
            _ => {
                let end = book.stored_end;
                return self
                    .fault(format!("queue {queue}: message {id} acknowledged at {offset}, but {end} were stored"));
            }
        };
        if book.acknowledged.len() <= at {
            book.acknowledged.resize(at + 1, None);
        }
        if let Some(other) = book.acknowledged[at].replace(id) {
            self.fault(format!("queue {queue}: offset {offset} acknowledged for messages {other} and {id}"));
        }
    }

    /// True when message `id` was read before in this pass.
    fn see(&mut self, id: u64) -> bool {
        let (word, bit) = ((id / 64) as usize, 1 << (id % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        let before = self.seen[word] & bit != 0;
        self.seen[word] |= bit;
        before
    }

    pub(super) fn forget_seen(&mut self) {
        self.seen.fill(0);
    }
}

#[derive(Default)]
pub(super) struct Verdict {
    pub(super) found: u64,
    pub(super) lost: u64,
    pub(super) unacknowledged: u64,
    pub(super) duplicated: u64,
    pub(super) damaged: u64,
    pub(super) gaps: u64,
}

/// Reads all queues from the offsets `from` to their ends and judges them.
pub(super) async fn verify(
    args: &LoadArgs,
    broker: SocketAddr,
    book: &Rc<RefCell<Book>>,
    from: &[i64],
) -> Result<Verdict, BenchError> {
    let caller = Caller::dial(broker).await?;
    let mut verdict = Verdict::default();
    for (queue, from) in from.iter().enumerate() {
        let mut offset = *from;
        loop {
            let ask = PullAsk { queue: queue as u32, offset, max_msgs: 32, hold: false };
            let pulled = caller.pull(&args.topic, &ask).await?;
            if pulled.end {
                break;
            }
            let before = offset;
            for record in pulled.records(true) {
                let mut book = book.borrow_mut();
                let record = match record {
                    Ok(record) => record,
                    Err(why) => {
                        verdict.damaged += 1;
                        book.fault(format!("queue {queue}, offset {offset}: {why}"));
                        break;
                    }
                };
                if record.queue_offset != offset || record.queue_id != queue as i32 {
                    verdict.gaps += 1;
                    let (queue_id, found) = (record.queue_id, record.queue_offset);
                    book.fault(format!(
                        "queue {queue}: offset {found} of queue {queue_id} found where {offset} should be"
                    ));
                }
                offset = record.queue_offset;
                judge(&mut book, queue, offset, record.body, args.size as usize, &mut verdict);
                offset += 1;
            }
            if pulled.next > offset {
                verdict.gaps += 1;
                book.borrow_mut().fault(format!("queue {queue}: nothing from offset {offset} to {}", pulled.next));
                offset = pulled.next;
            }
            if offset <= before {
                let next = pulled.next;
                book.borrow_mut().fault(format!("queue {queue}: stuck at offset {before}, sent back to {next}"));
                break;
            }
        }
        let max = caller.max_offset(&args.topic, queue as u32).await?;
        close_queue(&mut book.borrow_mut(), queue, *from, offset, max, &mut verdict);
    }
    caller.close().await;
    Ok(verdict)
}

/// Judges one message read back.
fn judge(book: &mut Book, queue: usize, offset: i64, body: &[u8], size: usize, verdict: &mut Verdict) {
    let id = body.first_chunk::<8>().map_or(0, |id| u64::from_be_bytes(*id));
    let mut expected = Vec::new();
    if id != 0 && id < book.next {
        write_body(&mut expected, id, size);
    }
    if expected.is_empty() || expected != body {
        verdict.damaged += 1;
        return book.fault(format!("queue {queue}, offset {offset}: a body that was never sent"));
    }
    if book.see(id) {
        verdict.duplicated += 1;
        book.fault(format!("queue {queue}, offset {offset}: message {id} is there twice"));
    }
    let at = usize::try_from(offset - book.queues[queue].start).ok();
    match at.and_then(|at| book.queues[queue].acknowledged.get(at).copied().flatten()) {
        None => verdict.unacknowledged += 1,
        Some(acknowledged) if acknowledged == id => verdict.found += 1,
        Some(other) => {
            verdict.lost += 1;
            book.fault(format!("queue {queue}, offset {offset}: message {id} in place of acknowledged {other}"));
        }
    }
}

/// Counts what was acknowledged beyond the end, and notes the end.
fn close_queue(book: &mut Book, queue: usize, from: i64, end: i64, max: i64, verdict: &mut Verdict) {
    if max != end {
        verdict.gaps += 1;
        book.fault(format!("queue {queue}: read to offset {end}, but the broker says it ends at {max}"));
    }
    let of_queue = &mut book.queues[queue];
    let beyond = (end.max(from) - of_queue.start) as usize;
    let lost = of_queue.acknowledged.iter().skip(beyond).flatten().count() as u64;
    of_queue.stored_end = end;
    of_queue.acknowledged.truncate(beyond);
    if lost > 0 {
        verdict.lost += lost;
        book.totals.beyond += lost;
        book.fault(format!("queue {queue}: {lost} acknowledged messages beyond its end {end}"));
        book.fault_count += lost - 1;
    }
}

/// The body of message `id`, up to `size_max` bytes: its number, its size, and bytes that follow from the number.
pub(crate) fn write_body(out: &mut Vec<u8>, id: u64, size_max: usize) {
    let size = HEAD_BYTES + mix(id) as usize % (size_max - HEAD_BYTES + 1);
    out.clear();
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&(size as u32).to_be_bytes());
    let mut state = id;
    while out.len() < size {
        state = mix(state);
        let wanted = (size - out.len()).min(8);
        out.extend_from_slice(&state.to_be_bytes()[..wanted]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 100;

    /// A book with three messages acknowledged at offsets 5, 6 and 7 of queue 0, and one more sent.
    fn book() -> Book {
        let mut book = Book::new(&[5]);
        book.next = 5;
        (1..=3).for_each(|id| book.acknowledge(0, 4 + id, id as u64));
        assert_eq!((book.fault_count, book.totals.acknowledged), (0, 3));
        book
    }

    fn read(book: &mut Book, verdict: &mut Verdict, offset: i64, id: u64) {
        let mut body = Vec::new();
        write_body(&mut body, id, SIZE);
        judge(book, 0, offset, &body, SIZE, verdict);
    }

    #[test]
    fn all_found_is_no_fault_and_the_unacknowledged_may_be_there() {
        let (mut book, mut verdict) = (book(), Verdict::default());
        (1..=4).for_each(|id| read(&mut book, &mut verdict, 4 + id, id as u64));
        close_queue(&mut book, 0, 5, 9, 9, &mut verdict);
        assert_eq!((verdict.found, verdict.unacknowledged, verdict.lost, book.fault_count), (3, 1, 0, 0));
        assert_eq!(book.stored_ends(), [9]);
    }

    #[test]
    fn a_lost_tail_is_counted() {
        let (mut book, mut verdict) = (book(), Verdict::default());
        read(&mut book, &mut verdict, 5, 1);
        close_queue(&mut book, 0, 5, 6, 6, &mut verdict);
        assert_eq!((verdict.found, verdict.lost, book.fault_count), (1, 2, 2));
    }

    #[test]
    fn a_swapped_doubled_or_changed_message_is_a_fault() {
        let (mut book, mut verdict) = (book(), Verdict::default());
        read(&mut book, &mut verdict, 5, 2);
        assert_eq!((verdict.lost, book.fault_count), (1, 1));
        read(&mut book, &mut verdict, 6, 2);
        assert_eq!((verdict.found, verdict.duplicated, book.fault_count), (1, 1, 2));
        let mut body = Vec::new();
        write_body(&mut body, 3, SIZE);
        *body.last_mut().unwrap() ^= 1;
        judge(&mut book, 0, 7, &body, SIZE, &mut verdict);
        judge(&mut book, 0, 8, b"", SIZE, &mut verdict);
        read(&mut book, &mut verdict, 9, 77);
        assert_eq!((verdict.damaged, book.fault_count), (3, 5));
        close_queue(&mut book, 0, 5, 10, 11, &mut verdict);
        assert_eq!((verdict.gaps, book.fault_count), (1, 6));
    }

    #[test]
    fn an_offset_acknowledged_twice_is_a_fault() {
        let mut book = book();
        book.acknowledge(0, 7, 4);
        book.acknowledge(0, 4, 4);
        assert_eq!(book.fault_count, 2);
        // What was read to the end before cannot be promised to a later message.
        close_queue(&mut book, 0, 5, 8, 8, &mut Verdict::default());
        book.acknowledge(0, 7, 4);
        assert_eq!(book.fault_count, 3);
    }

    #[test]
    fn bodies_vary_in_size_within_their_bounds() {
        let mut sizes = std::collections::HashSet::new();
        let mut body = Vec::new();
        for id in 1..200 {
            write_body(&mut body, id, SIZE);
            assert!((HEAD_BYTES..=SIZE).contains(&body.len()));
            sizes.insert(body.len());
        }
        assert!(sizes.len() > 40);
        write_body(&mut body, 1, HEAD_BYTES);
        assert_eq!(body.len(), HEAD_BYTES);
    }
}
