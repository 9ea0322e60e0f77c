//! The control role, on shard 0: the only mutator of topics, groups and client membership. Changes are made in its own tables, then
//! published to every shard as immutable snapshots, saved, and told to the NameServers. Source: behaviour sheet 2.3 to 2.5, 5.
pub mod assign;
pub mod attributes;
pub mod clients;
pub mod filters;
pub mod groups;
pub mod locks;
pub mod making;
pub mod mappings;
pub mod modes;
pub mod peers;
pub mod persist;
pub mod progress;
pub mod topics;

use crate::Io;
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::handlers::cold::Thresholds;
use crate::mesh::{Event, Msg};
use crate::registration::{self, Registration};
use crate::shard::Shard;
use crate::snapshot::{FilterTable, Group, GroupTable, Topic};
use clients::{Clients, Left};
use filters::Filters;
use futures_lite::future;
use glommio::timer::Timer;
use groups::{AutoCreate, Groups};
use hashbrown::HashMap;
use locks::Locks;
use making::{Deletions, Making};
use mappings::Mappings;
use modes::Modes;
use peers::Peers;
use persist::{OffsetsFile, Saver};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use topics::{Policy, Topics};
use tracing::{debug, info};
use uringmq_filter::bloom::Bloom;
use uringmq_proto::body::MessageQueue;
use uringmq_proto::body::group::SubscriptionGroupConfig;
use uringmq_proto::body::heartbeat::{ConsumerData, MessageModel};
use uringmq_proto::codes::{request, response as code};
use uringmq_proto::command::Value;
use uringmq_proto::names::{self, BootNames};
use uringmq_remoting::ConnId;
use uringmq_store::StoreError;
use uringmq_store::consume_queue::Form;
use uringmq_store::io::Io as _;
use uringmq_store::open::QueueState;
use uringmq_store::turn::Turn;

pub use persist::load_offsets;

/// Clients are looked through so often for silent ones.
const SCAN: Duration = Duration::from_secs(10);
/// The longest that an answer waits for the NameServers that answered last time.
const TELL_MAX: Duration = Duration::from_secs(1);

type SaverOf = fn(&Control) -> &Saver;
type TextOf = fn(&Control) -> Vec<u8>;

/// State of the control role. No cell is borrowed across an await.
pub struct Control {
    pub topics: RefCell<Topics>,
    pub groups: RefCell<Groups>,
    pub clients: RefCell<Clients>,
    pub locks: RefCell<Locks<MessageQueue>>,
    pub modes: RefCell<Modes>,
    /// Of static topics.
    pub mappings: RefCell<Mappings>,
    /// What groups filter by, for bit maps.
    pub filters: RefCell<Filters>,
    /// Rung when that is another now.
    filters_bell: Event,
    /// Rung on a slave when the log names a topic that no table has.
    pub new_topic: Event,
    /// Groups' own thresholds of cold reads.
    pub cold: RefCell<Thresholds>,
    pub registration: Registration,
    pub peers: Peers,
    pub making: Making,
    pub deletions: Rc<Deletions>,
    /// Of whoever notes deleted topics.
    pub deleted_turn: Turn,
    /// The groups as published last.
    published: RefCell<HashMap<Arc<str>, Arc<Group>>>,
    topics_file: Saver,
    groups_file: Saver,
    modes_file: Saver,
    mappings_file: Saver,
    filters_file: Saver,
    offsets_file: OffsetsFile,
    stopping: Cell<bool>,
}

/// A change of the topics that was published. Its answer waits by [`Control::settle`].
#[must_use]
#[derive(Clone, Copy, Debug)]
pub struct Change {
    saved: u64,
    told: u64,
}

impl Control {
    /// Reads the tables of `<root>/config/`. `queues` are those that have files.
    ///
    /// # Errors
    /// A table that is there but unreadable, as its backup is too: the broker must not start from nothing.
    pub async fn load(io: &Io, config: &BrokerConfig, queues: &[QueueState]) -> Result<Self, StoreError> {
        let now_ms = io.now_ms();
        let file = persist::read(io, config, "topics.json", topics::parse_file).await?;
        let (mut topics, topics_made) =
            Topics::load(&names::boot_topics(&boot_names(config)), file, on_disk(queues), now_ms);
        let file = persist::read(io, config, "subscriptionGroup.json", groups::parse_file).await?;
        let (mut groups, groups_made) = Groups::load(file, now_ms);
        if config.light_queues() {
            topics.show_lights();
            groups.show_lights();
        }
        let modes = Modes::load(persist::read(io, config, "messageRequestMode.json", modes::parse_file).await?);
        let file = persist::read(io, config, "topicQueueMapping.json", mappings::parse_file).await?;
        let mappings = Mappings::load(file);
        let file = persist::read_if_any(io, config, "consumerFilter.json", filters::parse_file).await?;
        let bloom = Bloom::new(config.filter_groups, config.filter_error_percent).expect("checked with the others");
        let filters = Filters::load(bloom, file, now_ms);
        info!(topics = topics.count(), groups = groups.count(), "tables loaded");
        let control = Control {
            topics: RefCell::new(topics),
            groups: RefCell::new(groups),
            clients: RefCell::default(),
            locks: RefCell::default(),
            modes: RefCell::new(modes),
            mappings: RefCell::new(mappings),
            filters: RefCell::new(filters),
            filters_bell: Event::default(),
            new_topic: Event::default(),
            cold: RefCell::default(),
            registration: Registration::default(),
            peers: Peers::default(),
            making: Making::default(),
            deletions: Rc::default(),
            deleted_turn: Turn::default(),
            published: RefCell::default(),
            topics_file: Saver::new("topics.json"),
            groups_file: Saver::new("subscriptionGroup.json"),
            modes_file: Saver::new("messageRequestMode.json"),
            mappings_file: Saver::new("topicQueueMapping.json"),
            filters_file: Saver::new("consumerFilter.json"),
            offsets_file: OffsetsFile::default(),
            stopping: Cell::new(false),
        };
        if topics_made {
            control.topics_file.want();
        }
        if groups_made {
            control.groups_file.want();
        }
        Ok(control)
    }

    /// Shows all tables to every shard.
    pub fn publish(&self, shard: &Shard) {
        self.publish_topics(shard);
        if !self.mappings.borrow().all().is_empty() {
            self.publish_mappings(shard);
        }
        let filters = self.filters.borrow().to_show();
        if let Some((table, shown)) = filters {
            self.publish_filters(shard, table);
            self.filters.borrow_mut().born(shown, shard.now_ms());
        }
        let names: Vec<Arc<str>> = self.groups.borrow().all().keys().cloned().collect();
        self.publish_groups(shard, &names);
    }

    /// Shows the topics to every shard; this one sees them at once.
    pub fn publish_topics(&self, shard: &Shard) {
        let table = self.topics.borrow().snapshot();
        *shard.topics.borrow_mut() = table.clone();
        shard.mesh.push_all(|| Msg::Topics(table.clone()));
    }

    /// Shows the groups to every shard, of which `changed` may have changed; this one sees them at once.
    pub fn publish_groups(&self, shard: &Shard, changed: &[Arc<str>]) {
        let mut published = self.published.borrow_mut();
        let (groups, clients) = (self.groups.borrow(), self.clients.borrow());
        for name in changed {
            match groups.get(name) {
                None => drop(published.remove(name)),
                Some(config) => {
                    let online = clients.group(name).map(clients::ConsumerGroup::online);
                    let forbidden = groups.unreadable(name);
                    let group = Group { name: name.clone(), config: config.clone(), online, forbidden };
                    published.insert(name.clone(), Arc::new(group));
                }
            }
        }
        let table = Arc::new(GroupTable { by_name: published.clone() });
        *shard.groups.borrow_mut() = table.clone();
        shard.mesh.push_all(|| Msg::Groups(table.clone()));
    }

    /// Topics were made or altered: publishes, saves, and tells the NameServers about these.
    pub fn topics_changed(&self, shard: &Shard, names: &[Arc<str>]) -> Change {
        self.publish_topics(shard);
        Change { saved: self.topics_file.want(), told: self.registration.announce(names) }
    }

    /// Topics were deleted: as [`Control::topics_changed`], but the NameServers get the whole table.
    pub fn topics_deleted(&self, shard: &Shard) -> Change {
        self.publish_topics(shard);
        Change { saved: self.topics_file.want(), told: self.registration.announce_all() }
    }

    /// Topics were made but must not be seen before they are saved; the ticket is for [`Control::topics_saved`].
    pub fn topics_made(&self) -> u64 {
        self.topics_file.want()
    }

    pub async fn topics_saved(&self, ticket: u64) -> Result<(), BrokerError> {
        self.topics_file.saved(ticket).await
    }

    /// Waits until a change is on stable storage and known to the NameServers that answer; a dead one is not waited for.
    ///
    /// # Errors
    /// When it cannot be saved.
    pub async fn settle(&self, change: Change) -> Result<(), BrokerError> {
        self.topics_file.saved(change.saved).await?;
        self.registration.settled(change.told, TELL_MAX).await;
        Ok(())
    }

    /// Groups were made, altered or deleted: publishes and saves; the ticket is for [`Control::groups_saved`].
    pub fn groups_changed(&self, shard: &Shard, names: &[Arc<str>]) -> u64 {
        self.publish_groups(shard, names);
        self.groups_file.want()
    }

    pub async fn groups_saved(&self, ticket: u64) -> Result<(), BrokerError> {
        self.groups_file.saved(ticket).await
    }

    /// A request mode was set: saves, and waits for it.
    pub async fn modes_changed(&self) -> Result<(), BrokerError> {
        let ticket = self.modes_file.want();
        self.modes_file.saved(ticket).await
    }

    fn publish_mappings(&self, shard: &Shard) {
        let table = Arc::new(self.mappings.borrow().snapshot(&shard.config.borrow().broker_name));
        *shard.mappings.borrow_mut() = table.clone();
        shard.mesh.push_all(|| {
            let table = table.clone();
            Msg::Run(Box::new(move |shard| *shard.mappings.borrow_mut() = table))
        });
    }

    fn publish_filters(&self, shard: &Shard, table: FilterTable) {
        let table = Arc::new(table);
        *shard.group_filters.borrow_mut() = table.clone();
        shard.mesh.push_all(|| {
            let table = table.clone();
            Msg::Run(Box::new(move |shard| *shard.group_filters.borrow_mut() = table))
        });
    }

    /// A full heartbeat of a group.
    pub fn filters_heard(&self, said: &ConsumerData, now_ms: i64) {
        if self.filters.borrow_mut().hear(said, now_ms) {
            self.filters_bell.set();
        }
    }

    /// Mappings of static topics changed: every shard is shown them, and they are saved when this returns.
    pub async fn mappings_changed(&self, shard: &Shard) -> Result<(), BrokerError> {
        self.publish_mappings(shard);
        let ticket = self.mappings_file.want();
        self.mappings_file.saved(ticket).await
    }

    /// The request modes are its master's now: they will be saved.
    pub fn modes_copied(&self) {
        self.modes_file.want();
    }

    /// Whether a group consumes orderly just now.
    pub fn is_locked(&self, group: &str, now_ms: i64) -> bool {
        self.locks.borrow().any_live(group, now_ms)
    }
}

/// What the configuration says about making topics.
pub fn policy(config: &BrokerConfig) -> Policy {
    Policy { guard_system_topics: config.validate_system_topic, mixed: config.mixed_message_type }
}

/// Which groups come into being by being asked for.
pub fn auto_create(config: &BrokerConfig) -> AutoCreate {
    AutoCreate { any: config.auto_create_group, system: config.create_sys_group }
}

fn boot_names(config: &BrokerConfig) -> BootNames<'_> {
    BootNames {
        cluster: &config.cluster_name,
        broker: &config.broker_name,
        auto_create: config.auto_create_topic,
        cluster_topic: config.cluster_topic,
        broker_topic: config.broker_topic,
        trace_topic: config.trace_topic.then_some(config.trace_topic_name.as_str()),
        timer_wheel: config.timer_wheel,
        default_queues: config.default_topic_queues,
        revive_queues: config.revive_queues,
    }
}

/// A topic that the broker needs for itself (dead letters and the like), made readable and writable when missing, published and on its
/// way to the disk and the NameServers. On shard 0.
///
/// # Errors
/// A name that no topic may have.
pub fn ensure_topic(shard: &Shard, name: &str, queues: i32, sys_flag: i32) -> Result<Arc<Topic>, BrokerError> {
    let control = shard.control();
    let ensured = control.topics.borrow_mut().ensure(name, queues, sys_flag, None, shard.now_ms());
    let (topic, made) = ensured.map_err(|e| BrokerError::refused(e.code(), e.to_string()))?;
    if made {
        let _ = control.topics_changed(shard, std::slice::from_ref(&topic.name));
    }
    Ok(topic)
}

/// The kinds of the queues of all topics in `topics.json`, for recovery.
///
/// # Errors
/// As [`Control::load`].
pub async fn topic_forms(
    io: &Io,
    config: &BrokerConfig,
) -> Result<std::collections::HashMap<String, Form>, StoreError> {
    let file = persist::read(io, config, "topics.json", topics::parse_file).await?;
    let topics = file.into_iter().flat_map(|file| file.topic_config_table);
    Ok(topics.map(|(name, topic)| (name, attributes::form_of(&topic))).collect())
}

/// Topics that a slave meets in its master's log before it knows their configuration: their queues are kept from now on, on every shard
/// when this returns. Name and number of queues seen. On shard 0.
pub async fn adopt_topics(shard: &Rc<Shard>, names: std::collections::BTreeMap<String, (u32, Form)>) {
    let control = shard.control();
    control.deletions.over().await;
    let names = names.into_iter().map(|(name, (queues, form))| (name, queues, form));
    if control.topics.borrow_mut().adopt(names) {
        control.publish_topics(shard);
        control.new_topic.set();
    }
    shard.run_on_all(|_| async {}).await; // jobs come after the table that was pushed before them
}

/// Sees that these light queues can be stored in and read, as far as `maxLmqConsumeQueueNum` allows where `enableLmqQuota` is on. On shard 0.
///
/// # Errors
/// That limit.
pub fn make_lights<'a>(shard: &Shard, names: impl Iterator<Item = &'a str>) -> Result<(), BrokerError> {
    let (control, config) = (shard.control(), shard.config());
    let max = if config.lmq_quota { config.lmq_queues_max } else { usize::MAX };
    let (mut made, mut over) = (false, None);
    {
        let mut topics = control.topics.borrow_mut();
        for name in names.filter(|name| names::is_light_queue(name)) {
            made |= topics.make_light(name, max);
            if !topics.has_light(name) {
                over = Some(name.to_owned());
            }
        }
    }
    if made {
        control.publish_topics(shard);
    }
    match over {
        None => Ok(()),
        Some(name) => {
            let remark = format!(
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED] no light queue {name}: there are {max} (maxLmqConsumeQueueNum)"
            );
            Err(BrokerError::refused(code::SYSTEM_ERROR, remark))
        }
    }
}

/// The configuration of a group, made when it is unknown and may come into being. On shard 0.
pub fn ensure_group(shard: &Shard, name: &str) -> Option<SubscriptionGroupConfig> {
    let control = shard.control();
    let auto = auto_create(&shard.config.borrow());
    let found = control.groups.borrow_mut().find_or_make(name, auto, shard.now_ms()).map(|(c, made)| (c.clone(), made));
    let (config, made) = found?;
    if made {
        let _ = control.groups_changed(shard, &[name.into()]);
    }
    Some(config)
}

/// Topics that have queue files, with the number of queues that their highest id stands for.
fn on_disk(queues: &[QueueState]) -> impl Iterator<Item = (String, u32, Form)> {
    let mut topics: std::collections::BTreeMap<&str, (u32, Form)> = std::collections::BTreeMap::new();
    for queue in queues {
        let (count, form) = topics.entry(&queue.topic).or_default();
        *count = (*count).max(queue.queue.saturating_add(1));
        *form = queue.form;
    }
    topics.into_iter().map(|(name, (count, form))| (name.to_owned(), count, form))
}

pub fn is_stopping(shard: &Shard) -> bool {
    shard.control().stopping.get()
}

/// Starts the savers, the periodic tasks and the registration; on shard 0, once it can be connected to. Returns when the NameServers
/// that answer know the broker, or after a second.
pub async fn start(shard: &Rc<Shard>) {
    let savers: [(SaverOf, TextOf); 5] = [
        (|c| &c.topics_file, |c| c.topics.borrow().file_text()),
        (|c| &c.groups_file, |c| c.groups.borrow().file_text()),
        (|c| &c.modes_file, |c| c.modes.borrow().file_text()),
        (|c| &c.mappings_file, |c| c.mappings.borrow().file_text()),
        (|c| &c.filters_file, |c| c.filters.borrow().file_text()),
    ];
    for (saver, text) in savers {
        glommio::spawn_local(persist::run(shard.clone(), saver, text)).detach();
    }
    glommio::spawn_local(persist::save_offsets_periodically(shard.clone())).detach();
    glommio::spawn_local(persist::save_delay_periodically(shard.clone())).detach();
    glommio::spawn_local(scan_periodically(shard.clone())).detach();
    glommio::spawn_local(keep_filters(shard.clone())).detach();
    registration::start(shard);
    shard.control().registration.first(TELL_MAX).await;
}

/// Tells the NameServers that the broker leaves and registers no more. Bounded in time.
pub async fn unregister(shard: &Rc<Shard>) {
    shard.control().stopping.set(true);
    shard.control().peers.close();
    registration::stop(shard).await;
}

/// Saves all tables; the last step before the clean mark.
pub async fn save_all(shard: &Rc<Shard>) -> Result<(), BrokerError> {
    let control = shard.control();
    control.stopping.set(true);
    let (topics, groups, modes) = (control.topics_file.want(), control.groups_file.want(), control.modes_file.want());
    control.topics_file.saved(topics).await?;
    control.groups_file.saved(groups).await?;
    control.modes_file.saved(modes).await?;
    if !control.mappings.borrow().all().is_empty() {
        let mappings = control.mappings_file.want();
        control.mappings_file.saved(mappings).await?;
    }
    if !control.filters.borrow().is_empty() {
        let filters = control.filters_file.want();
        control.filters_file.saved(filters).await?;
    }
    persist::save_offsets(shard).await?;
    crate::delay::save(shard).await?;
    Ok(())
}

/// Unregisters and saves, for a caller that does nothing in between.
pub async fn stop(shard: &Rc<Shard>) -> Result<(), BrokerError> {
    unregister(shard).await;
    save_all(shard).await
}

/// A client's connection is gone: it leaves its groups at once, and the others are told. On shard 0.
pub fn on_conn_closed(shard: &Rc<Shard>, conn: ConnId) {
    let Some(control) = shard.control.as_ref() else { return };
    let left = control.clients.borrow_mut().close(conn);
    members_left(shard, &left, false);
}

/// Publishes and tells what the leaving of members changed. `asked`: the member unregistered; then the group's own switch counts.
pub fn members_left(shard: &Shard, left: &[Left], asked: bool) {
    if left.is_empty() {
        return;
    }
    let gone: Vec<Arc<str>> = left.iter().filter(|left| left.gone).map(|left| left.group.clone()).collect();
    if !gone.is_empty() {
        let (control, now_ms) = (shard.control(), shard.now_ms());
        gone.iter().for_each(|group| control.filters.borrow_mut().left(group, now_ms));
        control.publish_groups(shard, &gone);
    }
    for left in left.iter().filter(|left| !left.gone) {
        notify_members(shard, &left.group, asked);
    }
}

/// Tells every member of a group that its members or subscriptions changed (code 40), unless switched off, or the group broadcasts.
pub fn notify_members(shard: &Shard, name: &str, by_request: bool) {
    let control = shard.control();
    if !shard.config.borrow().notify_consumer_ids_changed {
        return;
    }
    let wanted = control.groups.borrow().get(name).is_none_or(|config| config.notify_consumer_ids_changed_enable);
    if by_request && !wanted {
        return;
    }
    let clients = control.clients.borrow();
    let Some(group) = clients.group(name).filter(|group| group.model != MessageModel::Broadcasting) else { return };
    for member in group.members() {
        let ext = vec![("consumerGroup", Value::from(name.to_owned()))];
        shard.push_oneway(member.conn, request::NOTIFY_CONSUMER_IDS_CHANGED, ext, Vec::new());
    }
}

/// Shows the shards what groups filter by whenever it changes, in the order that [`filters`] tells, and saves it.
async fn keep_filters(shard: Rc<Shard>) {
    let control = shard.control();
    while !is_stopping(&shard) {
        let scan = async {
            Timer::new(SCAN).await;
        };
        future::or(control.filters_bell.wait(), scan).await;
        let to_show = {
            let mut filters = control.filters.borrow_mut();
            filters.clean(shard.config.borrow().filter_keep_ms, shard.now_ms());
            filters.to_show()
        };
        if let Some((table, shown)) = to_show {
            let saved = control.filters_file.want();
            if control.filters_file.saved(saved).await.is_err() {
                continue; // logged there; the shards go on with what they have
            }
            control.publish_filters(&shard, table);
            // Jobs come after the table that was pushed before them.
            let stored = shard.run_on_all(|s| async move { s.dispatch.last().1 }).await;
            let stored_ms = stored.into_iter().fold(shard.now_ms(), i64::max);
            let table = {
                let mut filters = control.filters.borrow_mut();
                filters.born(shown, stored_ms);
                filters.table()
            };
            control.publish_filters(&shard, table);
        }
        if control.filters.borrow_mut().take_unsaved() {
            control.filters_file.want();
        }
    }
}

/// Drops clients that were silent for too long and locks that died. Unlike Apache's broker it tells the others.
async fn scan_periodically(shard: Rc<Shard>) {
    loop {
        Timer::new(SCAN).await;
        if is_stopping(&shard) {
            return;
        }
        scan(&shard, shard.now_ms());
    }
}

fn scan(shard: &Rc<Shard>, now_ms: i64) {
    let control = shard.control();
    control.locks.borrow_mut().drop_dead(now_ms);
    let expiry_ms = i64::try_from(shard.config.borrow().client_expiry_ms).unwrap_or(i64::MAX);
    let (left, conns) = control.clients.borrow_mut().expire(expiry_ms, now_ms);
    members_left(shard, &left, false);
    for conn in conns {
        debug!(?conn, "no heartbeat for too long");
        let close = move |s: Rc<Shard>| {
            if let Some(conn) = s.conns.get(conn) {
                conn.close("no heartbeat for too long");
            }
        };
        match conn.shard == shard.id {
            true => close(shard.clone()),
            false => shard.mesh.push(conn.shard, Msg::Run(Box::new(close))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::types::QueueOffset;
    use uringmq_store::consume_queue::Bounds;

    #[test]
    fn topics_on_disk_have_as_many_queues_as_their_highest_id_says() {
        let state = |topic: &str, queue| QueueState {
            topic: topic.into(),
            queue,
            form: Form::Plain,
            bounds: Bounds::plain(QueueOffset(0), QueueOffset(1)),
            pending: Vec::new(),
        };
        let found: Vec<_> = on_disk(&[state("b", 2), state("a", 0), state("b", 0)]).collect();
        assert_eq!(found, [("a".to_owned(), 1, Form::Plain), ("b".to_owned(), 3, Form::Plain)]);
    }
}
