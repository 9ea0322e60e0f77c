//! Who is connected: producers and consumers by group and connection, and what each consumer group subscribes. Plain state of the
//! control role, time given; it sends nothing itself but says which groups changed. Source: behaviour sheet 5.1, 5.2; wire-protocol
//! sheet 5.6, 7.4.
use crate::snapshot::{OnlineGroup, Sql, Subscription};
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tracing::warn;
use uringmq_filter::Expression;
use uringmq_proto::body::heartbeat::{
    ConsumeFromWhere, ConsumeType, ConsumerData, EXPRESSION_SQL92, MessageModel, SubscriptionData,
};
use uringmq_proto::body::stats::{Connection, ProducerInfo};
use uringmq_proto::command::language_name;
use uringmq_proto::message;
use uringmq_proto::names::RETRY_PREFIX;
use uringmq_remoting::ConnId;

/// One client as one group sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub client_id: Arc<str>,
    pub conn: ConnId,
    pub peer: SocketAddr,
    pub language: u8,
    pub version: i32,
    pub last_beat_ms: i64,
}

impl Client {
    pub fn connection(&self) -> Connection {
        Connection {
            client_addr: self.peer.to_string(),
            client_id: self.client_id.to_string(),
            language: language_name(self.language).to_owned(),
            version: self.version,
        }
    }

    fn producer_info(&self) -> ProducerInfo {
        ProducerInfo {
            client_id: self.client_id.to_string(),
            language: language_name(self.language).to_owned(),
            last_update_timestamp: self.last_beat_ms,
            remote_ip: format!("/{}", self.peer),
            version: self.version,
        }
    }
}

/// A consumer group with at least one member.
#[derive(Debug)]
pub struct ConsumerGroup {
    members: BTreeMap<ConnId, Client>,
    pub consume_type: ConsumeType,
    pub model: MessageModel,
    pub from_where: ConsumeFromWhere,
    /// By topic.
    pub subscriptions: BTreeMap<String, SubscriptionData>,
    /// How the broker filters for each of them, compiled once.
    filters: BTreeMap<String, Arc<Subscription>>,
    /// Of the last v2 heartbeat; 0 before the first.
    fingerprint: i32,
}

impl ConsumerGroup {
    pub fn members(&self) -> impl Iterator<Item = &Client> {
        self.members.values()
    }

    /// Sorted, each once: a client that comes again on a new connection while the old one is not closed yet is one client.
    pub fn client_ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.members().map(|client| client.client_id.to_string()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The newest connection of a client.
    pub fn find(&self, client_id: &str) -> Option<&Client> {
        self.members().filter(|client| &*client.client_id == client_id).max_by_key(|client| client.conn.serial)
    }

    /// What the shards need of it to filter pulls.
    pub fn online(&self) -> OnlineGroup {
        let subscriptions = self.filters.iter().map(|(topic, filter)| (topic.as_str().into(), filter.clone()));
        OnlineGroup {
            broadcasting: self.model == MessageModel::Broadcasting,
            pulling: self.consume_type == ConsumeType::Actively,
            subscriptions: subscriptions.collect(),
        }
    }

    /// Takes what a full heartbeat says. Entries are replaced by newer ones only and topics that it does not name go. Whether the set
    /// of topics or an expression is another now, and whether anything is (a newer version, which pulls are checked against).
    fn subscribe(&mut self, said: &[SubscriptionData]) -> (bool, bool) {
        let (mut changed, mut renewed) = (false, false);
        for new in said {
            match self.subscriptions.get_mut(&new.topic) {
                None => {
                    self.subscriptions.insert(new.topic.clone(), new.clone());
                    self.filter(new);
                    changed = true;
                }
                Some(old) if new.sub_version > old.sub_version => {
                    changed |= old.sub_string != new.sub_string || old.expression_type != new.expression_type;
                    renewed = true;
                    old.clone_from(new);
                    self.filter(new);
                }
                Some(_) => {}
            }
        }
        let before = self.subscriptions.len();
        self.subscriptions.retain(|topic, _| said.iter().any(|new| new.topic == *topic));
        changed |= self.subscriptions.len() < before;
        self.filters.retain(|topic, _| self.subscriptions.contains_key(topic));
        (changed, changed | renewed)
    }

    fn filter(&mut self, said: &SubscriptionData) {
        let old = self.filters.get(&said.topic).and_then(|old| old.sql.clone());
        self.filters.insert(said.topic.clone(), Arc::new(filter_of(said, old)));
    }
}

/// How the broker filters for a subscription: by tag hashes, by properties (`old` is the expression before this one), or not at all.
/// Retried messages carry the tags of their first topic, and their group asked for them already: nothing of a retry topic is filtered
/// (known fault R03).
fn filter_of(said: &SubscriptionData, old: Option<Sql>) -> Subscription {
    let sql = match said.expression_type == EXPRESSION_SQL92 {
        true => match Expression::parse(&said.sub_string) {
            Ok(expression) => Some(Sql { expression: Arc::new(expression), version: said.sub_version }),
            Err(e) => {
                warn!(topic = said.topic, expression = said.sub_string, error = %e, "a subscription does not compile");
                old
            }
        },
        false => None,
    };
    let tag = said.is_tag();
    let everything = !tag
        || said.class_filter_mode
        || said.sub_string.trim().is_empty()
        || said.takes_all()
        || said.topic.starts_with(RETRY_PREFIX);
    let codes = match (everything, said.code_set.is_empty()) {
        (true, _) => Vec::new(),
        (false, false) => said.code_set.clone(),
        (false, true) => said.tags_set.iter().map(|tag| message::java_hash(tag, 0)).collect(),
    };
    Subscription {
        version: said.sub_version,
        expression_type: if said.expression_type.is_empty() { "TAG".into() } else { said.expression_type.clone() },
        expression: said.sub_string.clone(),
        codes,
        all: everything,
        sql,
    }
}

/// What one heartbeat is about besides the groups.
#[derive(Clone, Copy, Debug)]
pub struct Beat<'a> {
    pub client_id: &'a str,
    pub conn: ConnId,
    pub peer: SocketAddr,
    pub language: u8,
    pub version: i32,
    /// 0 for an ordinary heartbeat.
    pub fingerprint: i32,
    /// Subscriptions were left out.
    pub without_sub: bool,
}

/// What a consumer's part of a heartbeat changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The members are to be told (a new connection, another set of subscriptions).
    pub notify: bool,
    /// What the shards see of the group is another now.
    pub visible: bool,
    /// The client is to send its subscriptions (v2 only).
    pub send_all: bool,
}

/// Which groups a connection is in.
#[derive(Debug, Default)]
struct Memberships {
    consumer: Vec<Arc<str>>,
    producer: Vec<Arc<str>>,
}

/// Consumer groups that lost a member, and whether they are gone with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub group: Arc<str>,
    pub model: MessageModel,
    pub gone: bool,
}

#[derive(Debug, Default)]
pub struct Clients {
    consumers: HashMap<Arc<str>, ConsumerGroup>,
    producers: BTreeMap<Arc<str>, BTreeMap<ConnId, Client>>,
    by_conn: HashMap<ConnId, Memberships>,
}

impl Clients {
    pub fn group(&self, group: &str) -> Option<&ConsumerGroup> {
        self.consumers.get(group)
    }

    pub fn groups(&self) -> impl Iterator<Item = (&Arc<str>, &ConsumerGroup)> {
        self.consumers.iter()
    }

    /// Groups that subscribe a topic now, sorted (code 300).
    pub fn groups_on(&self, topic: &str) -> Vec<Arc<str>> {
        let on = self.consumers.iter().filter(|(_, group)| group.subscriptions.contains_key(topic));
        let mut names: Vec<Arc<str>> = on.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// The producers of a group; `None` when nobody is there.
    pub fn producers(&self, group: &str) -> Option<impl Iterator<Item = &Client>> {
        self.producers.get(group).map(BTreeMap::values)
    }

    /// A producer by its client id, in whatever group (code 326).
    pub fn find_producer(&self, client_id: &str) -> Option<&Client> {
        let all = self.producers.values().flat_map(BTreeMap::values);
        all.filter(|client| &*client.client_id == client_id).max_by_key(|client| client.conn.serial)
    }

    /// Body of code 328.
    pub fn producer_infos(&self) -> BTreeMap<String, Vec<ProducerInfo>> {
        let infos = |members: &BTreeMap<ConnId, Client>| members.values().map(Client::producer_info).collect();
        self.producers.iter().map(|(group, members)| (group.to_string(), infos(members))).collect()
    }

    /// A consumer's part of a heartbeat.
    pub fn hear_consumer(&mut self, beat: &Beat<'_>, said: &ConsumerData, now_ms: i64) -> Heard {
        let name = self.consumers.get_key_value(said.group_name.as_str()).map(|(name, _)| name.clone());
        let known = name.is_some();
        let name = name.unwrap_or_else(|| said.group_name.as_str().into());
        let group = self.consumers.entry(name.clone()).or_insert_with(|| ConsumerGroup {
            members: BTreeMap::new(),
            consume_type: said.consume_type,
            model: said.message_model,
            from_where: said.consume_from_where,
            subscriptions: BTreeMap::new(),
            filters: BTreeMap::new(),
            fingerprint: 0,
        });
        let before = (group.consume_type, group.model);
        (group.consume_type, group.model, group.from_where) =
            (said.consume_type, said.message_model, said.consume_from_where);
        let joined = join(&mut group.members, beat, now_ms);
        let (changed, renewed) = match beat.without_sub {
            true => (false, false),
            false => group.subscribe(&said.subscription_data_set),
        };
        let mut heard = Heard {
            notify: joined || changed,
            visible: !known || renewed || before != (group.consume_type, group.model),
            send_all: false,
        };
        if beat.fingerprint != 0 {
            let stored = std::mem::replace(&mut group.fingerprint, beat.fingerprint);
            // After a restart nothing is known of the group: it must not stay without subscriptions.
            let knows_nothing = beat.without_sub && group.subscriptions.is_empty();
            heard.send_all = (stored != 0 && stored != beat.fingerprint) || knows_nothing;
        }
        let of_conn = self.by_conn.entry(beat.conn).or_default();
        if !of_conn.consumer.contains(&name) {
            of_conn.consumer.push(name);
        }
        heard
    }

    /// A producer's part of a heartbeat.
    pub fn hear_producer(&mut self, beat: &Beat<'_>, group: &str, now_ms: i64) {
        let name = self.producers.get_key_value(group).map_or_else(|| group.into(), |(name, _)| name.clone());
        join(self.producers.entry(name.clone()).or_default(), beat, now_ms);
        let of_conn = self.by_conn.entry(beat.conn).or_default();
        if !of_conn.producer.contains(&name) {
            of_conn.producer.push(name);
        }
    }

    /// Takes a client out of a consumer group (code 35); `None` when it is not in it (known fault N05).
    pub fn leave_consumer(&mut self, conn: ConnId, group: &str) -> Option<Left> {
        let left = self.remove_member(conn, group)?;
        self.forget(conn, |of_conn| of_conn.consumer.retain(|name| &**name != group));
        Some(left)
    }

    pub fn leave_producer(&mut self, conn: ConnId, group: &str) {
        self.remove_producer(conn, group);
        self.forget(conn, |of_conn| of_conn.producer.retain(|name| &**name != group));
    }

    /// A connection is gone: out of all its groups.
    pub fn close(&mut self, conn: ConnId) -> Vec<Left> {
        let Some(of_conn) = self.by_conn.remove(&conn) else { return Vec::new() };
        of_conn.producer.iter().for_each(|group| self.remove_producer(conn, group));
        of_conn.consumer.iter().filter_map(|group| self.remove_member(conn, group)).collect()
    }

    /// Takes out all clients that were not heard of for longer than `expiry_ms`; their connections are to be closed.
    pub fn expire(&mut self, expiry_ms: i64, now_ms: i64) -> (Vec<Left>, Vec<ConnId>) {
        let old = |client: &&Client| now_ms.saturating_sub(client.last_beat_ms) > expiry_ms;
        let consumers = self.consumers.iter().flat_map(|(name, group)| {
            group.members().filter(old).map(|client| (client.conn, name.clone(), true)).collect::<Vec<_>>()
        });
        let producers = self.producers.iter().flat_map(|(name, members)| {
            members.values().filter(old).map(|client| (client.conn, name.clone(), false)).collect::<Vec<_>>()
        });
        let expired: Vec<(ConnId, Arc<str>, bool)> = consumers.chain(producers).collect();
        let mut left = Vec::new();
        for (conn, group, consumer) in &expired {
            match consumer {
                true => left.extend(self.leave_consumer(*conn, group)),
                false => self.leave_producer(*conn, group),
            }
        }
        let mut conns: Vec<ConnId> = expired.into_iter().map(|(conn, ..)| conn).collect();
        conns.sort_unstable();
        conns.dedup();
        (left, conns)
    }

    fn remove_member(&mut self, conn: ConnId, name: &str) -> Option<Left> {
        let (key, group) = self.consumers.get_key_value(name)?;
        let (key, model) = (key.clone(), group.model);
        let group = self.consumers.get_mut(name)?;
        group.members.remove(&conn)?;
        let gone = group.members.is_empty();
        if gone {
            self.consumers.remove(name);
        }
        Some(Left { group: key, model, gone })
    }

    fn remove_producer(&mut self, conn: ConnId, group: &str) {
        if let Some(members) = self.producers.get_mut(group) {
            members.remove(&conn);
            if members.is_empty() {
                self.producers.remove(group);
            }
        }
    }

    fn forget(&mut self, conn: ConnId, change: impl FnOnce(&mut Memberships)) {
        if let Some(of_conn) = self.by_conn.get_mut(&conn) {
            change(of_conn);
            if of_conn.consumer.is_empty() && of_conn.producer.is_empty() {
                self.by_conn.remove(&conn);
            }
        }
    }
}

/// Notes a heartbeat of a member; true when its connection is new, or now another client's.
fn join(members: &mut BTreeMap<ConnId, Client>, beat: &Beat<'_>, now_ms: i64) -> bool {
    if let Some(client) = members.get_mut(&beat.conn) {
        client.last_beat_ms = now_ms;
        (client.language, client.version) = (beat.language, beat.version);
        let same = &*client.client_id == beat.client_id;
        if !same {
            client.client_id = beat.client_id.into();
        }
        return !same;
    }
    let &Beat { client_id, conn, peer, language, version, .. } = beat;
    members.insert(conn, Client { client_id: client_id.into(), conn, peer, language, version, last_beat_ms: now_ms });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(serial: u64) -> ConnId {
        ConnId { shard: (serial % 2) as u16, serial }
    }

    fn beat(client_id: &str, serial: u64) -> Beat<'_> {
        Beat {
            client_id,
            conn: conn(serial),
            peer: "10.0.0.5:4321".parse().unwrap(),
            language: 0,
            version: 513,
            fingerprint: 0,
            without_sub: false,
        }
    }

    fn sub(topic: &str, text: &str, version: i64) -> SubscriptionData {
        let tags: Vec<String> = text.split("||").map(str::trim).filter(|t| *t != "*").map(str::to_owned).collect();
        SubscriptionData {
            topic: topic.into(),
            sub_string: text.into(),
            sub_version: version,
            code_set: tags.iter().map(|t| message::java_hash(t, 0)).collect(),
            tags_set: tags,
            ..SubscriptionData::default()
        }
    }

    fn consumer(group: &str, subs: &[SubscriptionData]) -> ConsumerData {
        ConsumerData { group_name: group.into(), subscription_data_set: subs.to_vec(), ..ConsumerData::default() }
    }

    #[test]
    fn members_come_and_go_and_each_change_is_told() {
        let mut clients = Clients::default();
        let data = consumer("g", &[sub("t", "*", 1)]);
        assert!(clients.hear_consumer(&beat("b", 1), &data, 0).notify);
        assert!(clients.hear_consumer(&beat("a", 2), &data, 0).notify, "a new member");
        assert_eq!(clients.hear_consumer(&beat("b", 1), &data, 1), Heard::default(), "the same again");
        assert_eq!(clients.group("g").unwrap().client_ids(), ["a", "b"]);
        let left = clients.close(conn(1));
        assert_eq!(left, [Left { group: "g".into(), model: MessageModel::Clustering, gone: false }]);
        assert_eq!(clients.close(conn(1)), [], "once");
        assert!(clients.close(conn(2))[0].gone);
        assert!(clients.group("g").is_none() && clients.by_conn.is_empty());
    }

    #[test]
    fn a_client_on_two_connections_is_listed_once_and_found_on_the_newer() {
        let mut clients = Clients::default();
        let data = consumer("g", &[]);
        clients.hear_consumer(&beat("a", 1), &data, 0);
        clients.hear_consumer(&beat("a", 2), &data, 0);
        let group = clients.group("g").unwrap();
        assert_eq!(group.client_ids(), ["a"]);
        assert_eq!(group.find("a").unwrap().conn, conn(2));
        assert!(group.find("b").is_none());
        assert!(!clients.close(conn(1))[0].gone);
    }

    #[test]
    fn subscriptions_are_replaced_by_newer_ones_and_unnamed_topics_go() {
        let mut clients = Clients::default();
        let text = |clients: &Clients, topic: &str| {
            clients.group("g").unwrap().subscriptions.get(topic).map(|s| (s.sub_string.clone(), s.sub_version))
        };
        clients.hear_consumer(&beat("a", 1), &consumer("g", &[sub("t", "A", 5), sub("u", "*", 5)]), 0);
        let heard = clients.hear_consumer(&beat("a", 1), &consumer("g", &[sub("t", "B", 4), sub("u", "*", 5)]), 1);
        assert!(!heard.notify, "older than what is stored");
        assert_eq!(text(&clients, "t"), Some(("A".into(), 5)));
        let heard = clients.hear_consumer(&beat("a", 1), &consumer("g", &[sub("t", "B", 6)]), 2);
        assert!(heard.notify && heard.visible);
        assert_eq!((text(&clients, "t"), text(&clients, "u")), (Some(("B".into(), 6)), None));
        let heard = clients.hear_consumer(&beat("a", 1), &consumer("g", &[sub("t", "B", 7)]), 3);
        assert!(!heard.notify && heard.visible, "the shards check the version");
    }

    #[test]
    fn a_heartbeat_without_subscriptions_erases_none() {
        let mut clients = Clients::default();
        let full = Beat { fingerprint: 77, ..beat("a", 1) };
        let light = Beat { without_sub: true, ..full };
        let data = consumer("g", &[sub("t", "*", 1)]);
        let heard = clients.hear_consumer(&light, &consumer("g", &[]), 0);
        assert!(heard.send_all, "the broker was restarted and knows no subscription");
        assert!(!clients.hear_consumer(&full, &data, 1).send_all);
        let heard = clients.hear_consumer(&light, &consumer("g", &[]), 2);
        assert_eq!(heard, Heard::default());
        assert_eq!(clients.group("g").unwrap().subscriptions.len(), 1);
        let other = Beat { fingerprint: 78, ..light };
        assert!(clients.hear_consumer(&other, &consumer("g", &[]), 3).send_all, "another set than the one stored");
        assert_eq!(clients.expire(120_000, 120_002).0, []);
        assert_eq!(clients.expire(120_000, 120_004).0.len(), 1, "it counted as a sign of life");
    }

    /// Known fault N05: unregistering twice, or as a stranger, is harmless.
    #[test]
    fn leaving_twice_is_harmless() {
        let mut clients = Clients::default();
        clients.hear_consumer(&beat("a", 1), &consumer("g", &[]), 0);
        clients.hear_producer(&beat("a", 1), "p", 0);
        assert!(clients.leave_consumer(conn(1), "g").is_some_and(|left| left.gone));
        assert_eq!(clients.leave_consumer(conn(1), "g"), None);
        assert_eq!(clients.leave_consumer(conn(9), "nobody"), None);
        clients.leave_producer(conn(1), "p");
        clients.leave_producer(conn(1), "p");
        clients.leave_producer(conn(9), "");
        assert!(clients.producers("p").is_none() && clients.by_conn.is_empty());
    }

    #[test]
    fn the_silent_expire_with_all_their_groups() {
        let mut clients = Clients::default();
        clients.hear_consumer(&beat("a", 1), &consumer("g", &[]), 0);
        clients.hear_producer(&beat("a", 1), "p", 0);
        clients.hear_consumer(&beat("b", 2), &consumer("g", &[]), 50_000);
        assert_eq!(clients.expire(120_000, 120_000), (vec![], vec![]));
        let (left, conns) = clients.expire(120_000, 120_001);
        assert_eq!(left, [Left { group: "g".into(), model: MessageModel::Clustering, gone: false }]);
        assert_eq!(conns, [conn(1)]);
        assert!(clients.producers("p").is_none());
        assert_eq!(clients.group("g").unwrap().client_ids(), ["b"]);
    }

    #[test]
    fn filters_go_by_hash_and_retry_topics_are_not_filtered() {
        let filter_of = |said: &SubscriptionData| super::filter_of(said, None);
        let plain = filter_of(&sub("t", "Aa || C", 3));
        assert!(!plain.all && plain.matches(i64::from(message::java_hash("BB", 0))), "the same hash as Aa");
        assert!(!plain.matches(0));
        // Known fault R03.
        assert!(filter_of(&sub("%RETRY%g", "Aa", 3)).matches(0));
        assert!(filter_of(&sub("t", "*", 3)).all && filter_of(&SubscriptionData::default()).all);
        let sql = SubscriptionData { expression_type: "SQL92".into(), sub_string: "a > 5".into(), ..sub("t", "*", 3) };
        assert_eq!((filter_of(&sql).all, filter_of(&sql).expression_type.as_str()), (true, "SQL92"));
        assert!(filter_of(&sql).sql.is_some_and(|sql| sql.version == 3) && plain.sql.is_none());
        let no_codes = SubscriptionData { code_set: vec![], ..sub("t", "Aa", 3) };
        assert_eq!(filter_of(&no_codes).codes, [message::java_hash("Aa", 0)]);
    }

    #[test]
    fn an_expression_that_does_not_compile_leaves_the_one_before() {
        let said = |text: &str, version| SubscriptionData {
            expression_type: EXPRESSION_SQL92.into(),
            sub_string: text.into(),
            ..sub("t", "*", version)
        };
        let mut clients = Clients::default();
        let mut compiled = |text: &str, version| {
            clients.hear_consumer(&beat("a", 1), &consumer("g", &[said(text, version)]), 0);
            let filter = clients.group("g").unwrap().online().subscriptions["t"].clone();
            (filter.version, filter.sql.as_ref().map(|sql| sql.version))
        };
        assert_eq!(compiled("a >", 1), (1, None));
        assert_eq!(compiled("a > 1", 2), (2, Some(2)));
        assert_eq!(compiled("a >", 3), (3, Some(2)));
        assert_eq!(compiled("a > 2", 4), (4, Some(4)));
        let heard = clients.hear_consumer(&beat("a", 1), &consumer("g", &[sub("t", "*", 5)]), 0);
        assert!(heard.visible && clients.group("g").unwrap().online().subscriptions["t"].sql.is_none());
        clients.hear_consumer(&beat("a", 1), &consumer("g", &[]), 0);
        assert!(clients.group("g").unwrap().online().subscriptions.is_empty());
    }

    #[test]
    fn producers_are_listed_by_group() {
        let mut clients = Clients::default();
        clients.hear_producer(&Beat { language: 9, ..beat("a", 1) }, "p", 42);
        clients.hear_producer(&beat("b", 2), "p", 43);
        let infos = clients.producer_infos();
        let mut beats: Vec<i64> = infos["p"].iter().map(|info| info.last_update_timestamp).collect();
        beats.sort_unstable();
        assert_eq!(beats, [42, 43]);
        let names: Vec<&str> = infos["p"].iter().map(|info| info.language.as_str()).collect();
        assert!(names.contains(&"GO") && names.contains(&"JAVA"));
        assert_eq!(infos["p"][0].remote_ip, "/10.0.0.5:4321");
        assert_eq!(clients.find_producer("b").unwrap().conn, conn(2));
        assert!(clients.find_producer("c").is_none());
    }
}
