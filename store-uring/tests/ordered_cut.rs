//! The log's end is cut off by order: log, queues, index and checkpoint are as if what was behind had never been stored, wherever the cut
//! is and whenever power fails while it is made; and the store goes on from there.
#![cfg(feature = "sim")]
mod common;
use common::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use uringmq_proto::types::PhyOffset;
use uringmq_store::cut::{self, CutOrder};
use uringmq_store::io::sim::{Faults, SimIo, block_on};
use uringmq_store::log_reader::LogReader;
use uringmq_store::{StoreError, checkpoint};

const RECORDS: usize = 70;

/// One record: its queue, its body, where it begins and ends.
struct Stored {
    queue: (&'static str, u32),
    body: Vec<u8>,
    from: u64,
    to: u64,
}

/// A store of five segments, stopped or killed, with what is in it; the checkpoint stands somewhere.
async fn prepared(seed: u64, clean: bool) -> (SimIo, Vec<Stored>) {
    let (io, mut random_state) = (SimIo::new(seed, Faults::none()), seed + 77);
    let mut store = Store::open(io.clone(), config()).await.unwrap();
    let (mut all, mut counts) = (Vec::new(), BTreeMap::<(&str, u32), usize>::new());
    let segment_bytes = store.config.segment_bytes;
    for _ in 0..RECORDS {
        let queue = [("A", 0), ("A", 1), ("B", 0)][random(&mut random_state) as usize % 3];
        let n = counts.entry(queue).or_default();
        let body = body(queue.0, queue.1, *n);
        *n += 1;
        let before = store.log.written().0;
        store.put(queue.0, queue.1, std::slice::from_ref(&body), true).await.unwrap();
        let to = store.log.written().0;
        let segment = (to - 1) - (to - 1) % segment_bytes;
        all.push(Stored { queue, body, from: before.max(segment), to });
        match random(&mut random_state) % 9 {
            0 => store.sync().await.unwrap(),
            1 => store.flush().await.unwrap(),
            _ => {}
        }
    }
    if clean {
        store.stop().await.unwrap();
        (io, all)
    } else {
        drop(store);
        (io.after_kill(), all)
    }
}

/// The order to keep the first `keep` records.
async fn order(io: &SimIo, all: &[Stored], keep: usize) -> CutOrder {
    let (last, end) = (&all[keep - 1], all.last().unwrap().to);
    let mut first = Vec::new();
    if let Some(next) = all.get(keep) {
        let reader = LogReader::new(io.clone(), &config());
        reader.read_record(PhyOffset(next.from), 0, PhyOffset(end), &mut first).await.unwrap();
    }
    let order = CutOrder {
        last: last.from,
        at: last.to,
        end,
        records: (all.len() - keep) as u64,
        first_crc: (!first.is_empty()).then(|| cut::crc_of(&first)),
        why: "a test".into(),
        kept: None,
    };
    cut::order(io, Path::new(ROOT), &order).await.unwrap();
    order
}

fn model(all: &[Stored]) -> Model {
    let mut model = Model::new();
    for stored in all {
        let (topic, queue) = stored.queue;
        model.entry((topic.to_owned(), queue)).or_default().push(stored.body.clone());
    }
    model
}

/// Opens (which cuts), compares, stores others there, stops, opens again.
async fn check(io: &SimIo, kept: &Model, what: &str) {
    let mut store = Store::open(io.clone(), config()).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut found = store.read_all().await;
    found.retain(|_, bodies| !bodies.is_empty());
    assert!(found == *kept, "{what}: {:?}", store.opened.report);
    assert_eq!(cut::read(io, Path::new(ROOT)).await.unwrap(), None, "{what}");
    let mut more = kept.clone();
    for n in 0..40 {
        let (topic, queue) = [("A", 0), ("B", 0), ("C", 0)][n % 3];
        let bodies = more.entry((topic.to_owned(), queue)).or_default();
        let body = format!("other/{n} ").repeat(20).into_bytes();
        store.put(topic, queue, std::slice::from_ref(&body), n % 4 == 0).await.unwrap();
        bodies.push(body);
    }
    assert!(store.read_all().await == more, "{what}: others are stored there");
    store.stop().await.unwrap();
    let again = Store::open(io.clone(), config()).await.unwrap_or_else(|e| panic!("{what}, again: {e}"));
    let mut found = again.read_all().await;
    found.retain(|_, bodies| !bodies.is_empty());
    assert!(found == more, "{what}, again");
    assert!(again.opened.clean && !again.opened.report.tells(), "{what}: {:?}", again.opened.report);
}

#[test]
fn what_is_behind_the_place_was_never_stored() {
    for seed in seeds(3) {
        for clean in [true, false] {
            for keep in [1, 2, 17, 33, 34, 50, RECORDS - 1] {
                let what = format!("seed {seed}, clean {clean}, {keep} records are kept");
                block_on(async {
                    let (io, all) = prepared(seed, clean).await;
                    let ordered = order(&io, &all, keep).await;
                    let opened = Store::open(io.after_kill(), config()).await.unwrap().opened;
                    assert_eq!((opened.end, opened.report.cut_at), (PhyOffset(ordered.at), Some(ordered.at)), "{what}");
                    assert_eq!(opened.report.ordered_cut, Some(ordered), "{what}");
                    check(&io, &model(&all[..keep]), &what).await;
                });
            }
        }
    }
}

#[test]
fn power_may_fail_at_any_moment_of_it() {
    for (seed, clean, keep) in [(1, true, 20), (2, false, 45), (3, true, 63)] {
        let (io, all) = block_on(prepared(seed, clean));
        let (whole, kept) = (model(&all), model(&all[..keep]));
        let crashes = Rc::new(RefCell::new(Vec::new()));
        let noted = crashes.clone();
        io.watch(Rc::new(move |crashed| noted.borrow_mut().push(crashed)));
        block_on(order(&io, &all, keep));
        let ordering = crashes.borrow().len();
        drop(block_on(Store::open(io.clone(), config())).unwrap());
        io.unwatch();
        let crashes = crashes.borrow();
        assert!(ordering >= 4 && crashes.len() > ordering + 15, "{ordering} of {}", crashes.len());
        for (n, crashed) in crashes.iter().enumerate() {
            for choice in 0..2 {
                let what = format!("seed {seed}, crash {n} of {}, choice {choice}", crashes.len());
                let io = crashed.after_crash_of(choice);
                block_on(async {
                    // Before the order is durable nothing is cut.
                    let ordered = cut::read(&io, Path::new(ROOT)).await.unwrap().is_some();
                    let untouched = !ordered && n < ordering;
                    check(&io, if untouched { &whole } else { &kept }, &what).await;
                });
            }
        }
    }
}

#[test]
fn what_is_cut_is_kept_to_the_byte() {
    block_on(async {
        let (io, all) = prepared(6, false).await;
        let (at, end) = (all[20].to, all.last().unwrap().to);
        let reader = LogReader::new(io.clone(), &config());
        let path = cut::keep(&io, Path::new(ROOT), &reader, at, end).await.unwrap();
        let kept = io.after_crash().contents(&path).unwrap();
        assert_eq!(kept.len() as u64, end - at);
        for stored in &all[21..] {
            let body = &kept[(stored.from - at) as usize..(stored.to - at) as usize];
            assert!(body.windows(stored.body.len()).any(|bytes| bytes == stored.body));
        }
    });
}

/// Apache's broker, or an older one of ours, may have gone on with the log since.
#[test]
fn an_order_about_another_log_is_dropped() {
    block_on(async {
        let (io, all) = prepared(5, false).await;
        let root = Path::new(ROOT);
        let good = order(&io, &all, 30).await;
        let others = [
            ("another record there", CutOrder { first_crc: good.first_crc.map(|crc| crc ^ 1), ..good.clone() }),
            ("not behind a record", CutOrder { at: good.at + 1, ..good.clone() }),
            ("no record", CutOrder { last: good.last + 4, ..good.clone() }),
            ("behind the log", CutOrder { last: 1 << 40, at: (1 << 40) + 300, ..good.clone() }),
        ];
        for (what, other) in others {
            cut::order(&io, root, &other).await.unwrap();
            let io = io.after_kill();
            let store = Store::open(io.clone(), config()).await.unwrap();
            assert_eq!(store.read_all().await, model(&all), "{what}");
            let notes = &store.opened.report.notes;
            assert!(notes.iter().any(|note| note.contains("is dropped")), "{what}: {notes:?}");
            assert_eq!(cut::read(&io, root).await.unwrap(), None, "{what}");
        }
        io.plant(&root.join("config/cutOrder.json"), b"{\"last\": ");
        let refused = Store::open(io.clone(), config()).await.err().expect("refused");
        assert!(matches!(&refused, StoreError::Refused { what, .. } if what.contains("remove the file")), "{refused}");
        assert!(checkpoint::is_marked_running(&io, root).await.unwrap());
    });
}
