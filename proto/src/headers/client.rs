//! Clients and their groups (35, 38, 40, 203, 204, 307, 309). Bodies carry the rest: 34, 41, 42, 46 have no header.
//! Source: wire-protocol sheet 5.6, 5.7, 7.4, 8.
use crate::headers::header;

header! {
    /// 35.
    pub struct UnregisterClient<'c> {
        client_id: &'c str = "clientID",
        producer_group: Option<&'c str> = "producerGroup",
        consumer_group: Option<&'c str> = "consumerGroup",
    }
    /// 38, 203, and 40 to a client: a consumer group and nothing more.
    pub struct ConsumerGroupOnly<'c> {
        consumer_group: &'c str = "consumerGroup",
    }
    /// 204.
    pub struct ProducerGroupOnly<'c> {
        producer_group: &'c str = "producerGroup",
    }
    /// 307, both to the broker and on to the client.
    pub struct GetConsumerRunningInfo<'c> {
        consumer_group: &'c str = "consumerGroup",
        client_id: &'c str = "clientId",
        jstack_enable: bool = "jstackEnable" or false,
    }
    /// 309, both to the broker and on to the client.
    pub struct ConsumeMessageDirectly<'c> {
        consumer_group: &'c str = "consumerGroup",
        client_id: Option<&'c str> = "clientId",
        msg_id: Option<&'c str> = "msgId",
        broker_name: Option<&'c str> = "brokerName",
        topic: Option<&'c str> = "topic",
        topic_sys_flag: Option<i32> = "topicSysFlag",
        group_sys_flag: Option<i32> = "groupSysFlag",
    }
}
