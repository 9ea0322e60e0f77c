//! A start on a disk without room for what it has to build again: it serves all, and writes it when there is room.
#![cfg(feature = "sim")]
mod common;
use common::*;
use std::path::Path;
use uringmq_store::StoreError;
use uringmq_store::io::Io;
use uringmq_store::io::sim::{Faults, SimIo, block_on};

/// Three queues, of which the checkpoint covers some records; the others are in the log, and a clean stop was followed by a lost queue.
async fn prepared(clean: bool) -> (SimIo, Model) {
    let io = SimIo::new(3, Faults::none());
    let mut model = Model::new();
    let mut store = Store::open(io.clone(), config()).await.unwrap();
    for n in 0..24 {
        for (topic, queue) in [("A", 0), ("A", 1), ("B", 1)] {
            let bodies = [body(topic, queue, n)];
            store.put(topic, queue, &bodies, true).await.unwrap();
            model.entry((topic.to_owned(), queue)).or_default().extend(bodies);
        }
        if n == 11 {
            store.sync().await.unwrap();
        }
    }
    if clean {
        store.stop().await.unwrap();
        let dir = queue_dir("A", 1);
        for name in io.list(&dir).await.unwrap() {
            io.remove(&dir.join(name)).await.unwrap();
        }
        io.remove_dir(&dir).await.unwrap();
    }
    (io.after_kill(), model)
}

async fn leave_room(io: &SimIo, bytes: u64) {
    let space = io.space(Path::new("/")).await.unwrap();
    let used = space.total_bytes - space.free_bytes;
    io.set_faults(Faults { capacity_bytes: Some(used + bytes), ..Faults::none() });
}

#[test]
fn it_serves_all_and_heals() {
    for clean in [true, false] {
        let (base, model) = block_on(prepared(clean));
        let mut was_full = 0;
        for room in (0..24).map(|n| n * 512).chain([1 << 20]) {
            let what = format!("clean {clean}, room for {room} bytes");
            block_on(async {
                let io = base.after_kill();
                leave_room(&io, room).await;
                let store = Store::open(io.clone(), config()).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(store.read_all().await, model, "{what}");
                was_full += store.opened.queues.iter().any(|q| !q.pending.is_empty()) as u32;
                drop(store);

                // And once more, after a kill and after a power cut, as full as it is now.
                for io in [io.after_kill(), io.after_crash()] {
                    leave_room(&io, 0).await;
                    let mut store =
                        Store::open(io.clone(), config()).await.unwrap_or_else(|e| panic!("{what}, again: {e}"));
                    assert_eq!(store.read_all().await, model, "{what}, again");
                    let refused = store.put("B", 1, &[body("B", 1, 24)], true).await;
                    assert!(matches!(refused, Ok(()) | Err(StoreError::NoSpace(_))), "{what}: {refused:?}");
                    let mut more = model.clone();
                    let (b, first) = (("B".to_owned(), 1), if refused.is_ok() { 25 } else { 24 });
                    if refused.is_ok() {
                        more.get_mut(&b).unwrap().push(body("B", 1, 24));
                    }
                    io.set_faults(Faults::none());
                    store.log.keeper().step().await.unwrap();
                    let bodies = [body("B", 1, first)];
                    store.put("B", 1, &bodies, true).await.unwrap_or_else(|e| panic!("{what}, with room: {e}"));
                    more.get_mut(&b).unwrap().extend(bodies);
                    assert_eq!(store.read_all().await, more, "{what}, with room");
                    for left in [io.after_kill(), io.after_crash()] {
                        let store = Store::open(left, config()).await.unwrap();
                        assert_eq!(store.read_all().await, more, "{what}, with room, cut off");
                    }
                    store.stop().await.unwrap();
                    let store = Store::open(io.after_crash(), config()).await.unwrap();
                    assert!(store.opened.clean);
                    assert_eq!(store.opened.report.queue_entries_rebuilt, 0, "{what}: {:?}", store.opened.report);
                    assert_eq!(store.read_all().await, more, "{what}, healed");
                }
            });
        }
        assert!(was_full > 1, "it was tried {was_full} times only");
    }
}
