//! Core-to-core messages. One mesh, one enum, one order per pair. `push` never waits.
use crate::placement::ShardId;
use crate::requests::Origin;
use crate::shard::Shard;
use crate::shard::appends::{AppendGroup, Appended};
use crate::shard::pulls::{PullAsk, PullFound};
use crate::snapshot::{GroupTable, TopicTable};
use crate::writer::committed::{Committed, Span};
use futures_lite::future;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use uringmq_proto::command::Response;

/// Elements of one channel. More wait in the sender's outbox, which stays small because each element stands for a request admitted
/// at a socket.
const CHANNEL_MESSAGES: usize = 4096;
/// Messages taken in one go before other tasks of the core get their turn.
const TURN_MESSAGES: usize = 256;

/// A piece of work for another shard (slow paths only).
pub type Job = Box<dyn FnOnce(Rc<Shard>) + Send>;

/// What crosses cores. Each variant says what happens if it is lost or late.
pub enum Msg {
    /// shard -> writer. Not lost while the process lives; answered by `Appended`.
    Append(Box<AppendGroup>),
    /// writer -> shard, once per batch and asker. Answers the tokens inside.
    Appended(Box<Appended>),
    /// writer -> every shard. A hint: the receiver's cursor finds the same in the log.
    Committed(Arc<Committed>),
    /// writer -> the replication shard, before the sync of a batch. A hint: slaves are fed from the log otherwise.
    Written(Box<[Span]>),
    /// the replication shard -> writer: the replicated mark moved. A later one says the same; deadlines cover silence.
    Replicated,
    /// shard -> owner of the queue, and back. The asking client's own deadline covers silence.
    Pull(Box<PullAsk>),
    PullFound(Box<PullFound>),
    /// shard -> home shard of a request. The client's deadline covers silence.
    Forward(Box<Forward>),
    /// home shard -> the shard of the connection.
    Respond(Box<(Origin, Response)>),
    /// control -> the shard of the connection: run it again, what was missing is there now.
    Retry(Box<Forward>),
    /// control -> every shard. The newest snapshot wins.
    Topics(Arc<TopicTable>),
    Groups(Arc<GroupTable>),
    /// any -> any. Used by [`Shard::run_on`], whose caller sees a lost one as a stop.
    Run(Job),
}
const _: () = assert!(std::mem::size_of::<Msg>() <= 24); // thousands sit in queues

/// A request on its way to its home shard.
pub struct Forward {
    pub frame: Vec<u8>,
    pub origin: Origin,
}

/// Wakes the one task that waits on this core.
#[derive(Default)]
pub struct Event {
    set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Event {
    pub fn set(&self) {
        self.set.set(true);
        if let Some(w) = self.waker.borrow_mut().take() {
            w.wake();
        }
    }
    /// Resolves once `set` was called since the last time; one waiter at a time.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            if self.set.replace(false) {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// The channel ends of all shards; made before they start.
#[derive(Clone)]
pub struct Wires {
    senders: Vec<flume::Sender<Msg>>,
    receivers: Vec<flume::Receiver<Msg>>,
}

impl Wires {
    pub fn new(shards: u16) -> Self {
        let (senders, receivers) = (0..shards).map(|_| flume::bounded(CHANNEL_MESSAGES)).unzip();
        Wires { senders, receivers }
    }
}

/// One shard's end of the mesh.
pub struct Mesh {
    me: ShardId,
    senders: Vec<flume::Sender<Msg>>,
    receiver: flume::Receiver<Msg>,
    outboxes: Vec<Outbox>,
    local: RefCell<VecDeque<Msg>>,
    local_ready: Event,
}

#[derive(Default)]
struct Outbox {
    waiting: RefCell<VecDeque<Msg>>,
    ready: Event,
}

impl Mesh {
    pub fn new(me: ShardId, wires: &Wires) -> Self {
        Mesh {
            me,
            senders: wires.senders.clone(),
            receiver: wires.receivers[me as usize].clone(),
            outboxes: wires.senders.iter().map(|_| Outbox::default()).collect(),
            local: RefCell::default(),
            local_ready: Event::default(),
        }
    }

    /// Sends without waiting; messages to one shard arrive in the order of pushing.
    pub fn push(&self, to: ShardId, msg: Msg) {
        if to == self.me {
            self.local.borrow_mut().push_back(msg);
            self.local_ready.set();
            return;
        }
        let outbox = &self.outboxes[to as usize];
        let mut waiting = outbox.waiting.borrow_mut();
        if !waiting.is_empty() {
            waiting.push_back(msg);
            return;
        }
        if let Err(flume::TrySendError::Full(msg)) = self.senders[to as usize].try_send(msg) {
            waiting.push_back(msg);
            outbox.ready.set();
        }
        // A disconnected receiver means that the process is stopping.
    }

    pub fn push_all(&self, make: impl Fn() -> Msg) {
        for to in 0..self.senders.len() {
            self.push(to as ShardId, make());
        }
    }

    /// Messages that wait in the outbox to `to`; hints are thinned when there are many.
    pub fn backlog(&self, to: ShardId) -> usize {
        self.outboxes[to as usize].waiting.borrow().len()
    }

    /// Empties the outbox to `to` as the channel takes it; one task per destination.
    pub async fn run_outbox(&self, to: ShardId) {
        let outbox = &self.outboxes[to as usize];
        loop {
            outbox.ready.wait().await;
            loop {
                let Some(msg) = outbox.waiting.borrow_mut().pop_front() else { break };
                // While this one waits the outbox may look empty: a placeholder keeps later ones behind it.
                outbox.waiting.borrow_mut().push_front(Msg::Run(Box::new(|_| {})));
                let sent = self.senders[to as usize].send_async(msg).await;
                outbox.waiting.borrow_mut().pop_front();
                if sent.is_err() {
                    return;
                }
            }
        }
    }

    /// Waits for a message, then hands over what is there, up to one turn. `on` is synchronous, so no receive loop waits for another.
    pub async fn receive(&self, mut on: impl FnMut(Msg)) {
        let mut taken = 0;
        while taken < TURN_MESSAGES {
            let next = self.local.borrow_mut().pop_front();
            match next {
                Some(msg) => on(msg),
                None => break,
            }
            taken += 1;
        }
        while taken < TURN_MESSAGES {
            match self.receiver.try_recv() {
                Ok(msg) => on(msg),
                Err(_) => break,
            }
            taken += 1;
        }
        if taken > 0 {
            if taken == TURN_MESSAGES {
                glommio::executor().yield_task_queue_now().await;
            }
            return;
        }
        let from_peer = async { self.receiver.recv_async().await.ok() };
        let from_me = async {
            self.local_ready.wait().await;
            None
        };
        if let Some(msg) = future::or(from_peer, from_me).await {
            on(msg);
        }
    }
}
