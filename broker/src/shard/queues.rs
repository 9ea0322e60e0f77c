//! The queues that this shard owns: consume-queue tails and held pulls.
use crate::control::progress::Progress;
use crate::placement;
use crate::shard::pulls::Held;
use crate::snapshot::{Topic, TopicTable};
use crate::{ConsumeQueue, Io};
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tracing::warn;
use uringmq_proto::types::{QueueKey, QueueOffset};
use uringmq_store::StoreConfig;
use uringmq_store::consume_queue::{Bounds, Entry, Form};
use uringmq_store::open::QueueState;

pub struct Queue {
    pub key: QueueKey,
    pub topic: Arc<Topic>,
    pub cq: ConsumeQueue,
    pub held: RefCell<Vec<Held>>,
    /// Shards where pops wait for this queue; each is told once.
    pub pollers: RefCell<SmallVec<[placement::ShardId; 2]>>,
    /// In the list of queues to wake already.
    touched: Cell<bool>,
}

impl Queue {
    /// Notes that entries came, when someone waits for them.
    pub fn touch(&self, woken: &mut Vec<QueueKey>) {
        let awaited = || !self.held.borrow().is_empty() || !self.pollers.borrow().is_empty();
        if !self.touched.get() && awaited() {
            self.touched.set(true);
            woken.push(self.key);
        }
    }
    pub fn untouch(&self) {
        self.touched.set(false);
    }
}

pub struct Queues {
    io: Io,
    store: StoreConfig,
    table: RefCell<HashMap<QueueKey, Rc<Queue>>>,
    spare: RefCell<Vec<Vec<QueueKey>>>,
    /// Queues that (may) have held pulls.
    holding: RefCell<HashSet<QueueKey>>,
    /// Queues of deleted topics so far, and those of them whose files are gone.
    dropped: Cell<u64>,
    removed: Rc<Progress>,
}

impl Queues {
    pub fn new(io: Io, store: StoreConfig) -> Self {
        Queues {
            io,
            store,
            table: RefCell::default(),
            spare: RefCell::default(),
            holding: RefCell::default(),
            dropped: Cell::new(0),
            removed: Rc::default(),
        }
    }

    /// Takes over what recovery found, as far as this shard owns it.
    pub fn adopt(&self, states: &[QueueState], topics: &TopicTable, me: placement::ShardId, shards: u16) {
        let mut table = self.table.borrow_mut();
        for s in states {
            let Some(topic) = topics.stored(&s.topic) else {
                warn!(topic = s.topic, "queue files without a topic");
                continue;
            };
            let key = QueueKey { topic: topic.id, queue: s.queue };
            if placement::owner(key, shards) == me {
                let queue = self.make(key, topic.clone(), s.form, s.bounds, &s.pending);
                table.insert(key, Rc::new(queue));
            }
        }
    }

    fn make(&self, key: QueueKey, topic: Arc<Topic>, form: Form, bounds: Bounds, pending: &[Entry]) -> Queue {
        let cq = self.store.queue(self.io.clone(), form, &topic.name, key.queue, bounds, pending);
        Queue { key, topic, cq, held: RefCell::default(), pollers: RefCell::default(), touched: Cell::new(false) }
    }

    /// A queue that has, or had, entries; reads never make one (known fault S16).
    pub fn get(&self, key: QueueKey) -> Option<Rc<Queue>> {
        self.table.borrow().get(&key).cloned()
    }

    /// For the dispatcher and held pulls: made when missing; `None` when the topic is gone.
    pub fn get_or_make(&self, key: QueueKey, topics: &TopicTable) -> Option<Rc<Queue>> {
        if let Some(q) = self.table.borrow().get(&key) {
            return Some(q.clone());
        }
        let topic = topics.by_id(key.topic)?.clone();
        let form = topic.form();
        let queue = Rc::new(self.make(key, topic, form, Bounds::empty(form, QueueOffset(0)), &[]));
        self.table.borrow_mut().insert(key, queue.clone());
        Some(queue)
    }

    pub fn all(&self) -> Vec<Rc<Queue>> {
        self.table.borrow().values().cloned().collect()
    }

    pub fn holding(&self, key: QueueKey) {
        self.holding.borrow_mut().insert(key);
    }
    /// The queues with held pulls.
    pub fn all_holding(&self) -> Vec<Rc<Queue>> {
        let table = self.table.borrow();
        let mut holding = self.holding.borrow_mut();
        let mut all = Vec::with_capacity(holding.len());
        holding.retain(|key| match table.get(key) {
            Some(q) if !q.held.borrow().is_empty() => {
                all.push(q.clone());
                true
            }
            _ => false,
        });
        all
    }

    /// An empty list for keys of queues to wake.
    pub fn touched(&self) -> Vec<QueueKey> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }
    pub fn recycle(&self, mut list: Vec<QueueKey>) {
        list.clear();
        self.spare.borrow_mut().push(list);
    }

    /// Drops the queues whose topic is not in `topics` any more and removes their files.
    pub fn drop_deleted(&self, topics: &TopicTable) -> Vec<Rc<Queue>> {
        let gone: Vec<Rc<Queue>> = {
            let mut table = self.table.borrow_mut();
            let keys: Vec<QueueKey> = table.keys().filter(|k| topics.by_id(k.topic).is_none()).copied().collect();
            keys.iter().filter_map(|k| table.remove(k)).collect()
        };
        self.dropped.set(self.dropped.get() + gone.len() as u64);
        for queue in gone.iter().cloned() {
            let removed = self.removed.clone();
            glommio::spawn_local(async move {
                if let Err(e) = queue.cq.destroy().await {
                    warn!(topic = %queue.topic.name, queue = queue.key.queue, error = %e, "files of a deleted topic stay");
                }
                removed.raise(removed.at() + 1);
            })
            .detach();
        }
        gone
    }

    /// A slave got records of a topic before its configuration, and the topic has the other kind of queues: those made meanwhile are dropped.
    /// Their files stay for the next start, which builds the queues anew should this process not come to it. True when there were any.
    pub fn drop_changed(&self, topics: &TopicTable) -> bool {
        let mut table = self.table.borrow_mut();
        let before = table.len();
        table.retain(|key, queue| topics.by_id(key.topic).is_none_or(|topic| topic.form() == queue.cq.form()));
        table.len() < before
    }

    /// Resolves when the files of all queues dropped so far are gone.
    pub async fn deleted(&self) {
        self.removed.reached(self.dropped.get()).await;
    }
}
