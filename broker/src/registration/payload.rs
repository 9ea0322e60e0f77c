//! The body of a registration: all topics or some, with the permissions cut to what the broker itself allows. The whole table is
//! encoded once per version, however many NameServers get it. Source: wire-protocol sheet 9.2; behaviour sheet 2.4.
use crate::control::topics::Topics;
use crate::shard::Shard;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use uringmq_proto::body::register::RegisterBrokerBody;
use uringmq_proto::body::topic::{DataVersion, TopicConfigSerializeWrapper};
use uringmq_proto::command;
use uringmq_proto::names::perm;

/// What a body is made of besides the topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    version: DataVersion,
    permission: i32,
    compressed: bool,
}

#[derive(Default)]
pub struct Payloads {
    whole: RefCell<Option<(Form, Rc<Vec<u8>>)>>,
}

fn form(shard: &Shard) -> Form {
    let config = shard.config.borrow();
    Form {
        version: shard.control().topics.borrow().version(),
        permission: config.broker_permission as i32,
        compressed: config.compressed_register,
    }
}

impl Payloads {
    /// The whole table.
    pub fn all(&self, shard: &Shard) -> Rc<Vec<u8>> {
        let form = form(shard);
        if let Some((of, body)) = &*self.whole.borrow()
            && *of == form
        {
            return body.clone();
        }
        let topics = shard.control().topics.borrow();
        let body = Rc::new(encode(with_mappings(topics.wrapper(topics.all()), shard), form));
        *self.whole.borrow_mut() = Some((form, body.clone()));
        body
    }

    /// Some topics, with the version of all; those that are gone meanwhile are left out.
    pub fn some(&self, shard: &Shard, names: &BTreeSet<Arc<str>>) -> Rc<Vec<u8>> {
        let wrapper = only(&shard.control().topics.borrow(), names);
        Rc::new(encode(with_mappings(wrapper, shard), form(shard)))
    }
}

fn only(topics: &Topics, names: &BTreeSet<Arc<str>>) -> TopicConfigSerializeWrapper {
    topics.wrapper(names.iter().filter_map(|name| topics.get(name)))
}

/// Tells of those of its topics that are static.
fn with_mappings(mut wrapper: TopicConfigSerializeWrapper, shard: &Shard) -> TopicConfigSerializeWrapper {
    let (mappings, config) = (shard.control().mappings.borrow(), shard.config.borrow());
    let topics = wrapper.topic_config_table.keys();
    let infos = topics.filter_map(|topic| Some((topic.clone(), mappings.info(topic, &config.broker_name)?)));
    wrapper.topic_queue_mapping_info_map = Some(infos.collect());
    wrapper.mapping_data_version = Some(mappings.version());
    wrapper
}

fn encode(mut wrapper: TopicConfigSerializeWrapper, form: Form) -> Vec<u8> {
    let both = perm::READ | perm::WRITE;
    if form.permission & both != both {
        wrapper.topic_config_table.values_mut().for_each(|topic| topic.perm &= form.permission);
    }
    wrapper.topic_queue_mapping_detail_map = Some(Default::default());
    let body = RegisterBrokerBody { filter_server_list: Some(Vec::new()), topic_config_serialize_wrapper: wrapper };
    match form.compressed {
        true => body.encode_compressed(command::VERSION),
        false => body.encode_plain(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::names::BootTopic;

    fn topics() -> Topics {
        let boot = [("A", 7), ("B", 6)].map(|(name, perm)| BootTopic { name: name.into(), queues: 2, perm });
        Topics::load(&boot, None, [], 5).0
    }

    fn form(permission: i32, compressed: bool) -> Form {
        Form { version: DataVersion::default(), permission, compressed }
    }

    #[test]
    fn permissions_are_cut_only_while_the_broker_lacks_one() {
        let topics = topics();
        let perms = |permission| {
            let body = encode(topics.wrapper(topics.all()), form(permission, false));
            let body = RegisterBrokerBody::decode_plain(&body).unwrap();
            let table = body.topic_config_serialize_wrapper.topic_config_table;
            table.values().map(|topic| topic.perm).collect::<Vec<_>>()
        };
        assert_eq!(perms(6), [7, 6], "INHERIT stays");
        assert_eq!(perms(4), [4, 4]);
        assert_eq!(perms(2), [2, 2]);
    }

    #[test]
    fn a_change_carries_its_topics_and_the_version_of_all() {
        let topics = topics();
        let names = ["B", "gone"].map(Arc::from).into_iter().collect();
        for compressed in [false, true] {
            let bytes = encode(only(&topics, &names), form(6, compressed));
            let body = match compressed {
                true => RegisterBrokerBody::decode_compressed(&bytes, command::VERSION).unwrap(),
                false => RegisterBrokerBody::decode_plain(&bytes).unwrap(),
            };
            let wrapper = body.topic_config_serialize_wrapper;
            assert_eq!(wrapper.topic_config_table.keys().collect::<Vec<_>>(), ["B"], "compressed: {compressed}");
            assert_eq!(wrapper.data_version, topics.version());
        }
    }
}
