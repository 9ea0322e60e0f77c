//! Topic administration on a broker (17, 21, 202, 215, 300, 321, 351, 513). Source: wire-protocol sheet 7.1.
use crate::headers::header;

header! {
    /// 17 and 513.
    pub struct CreateTopic<'c> {
        topic: &'c str = "topic",
        /// A placeholder: mqadmin sends `TBW102`.
        default_topic: Option<&'c str> = "defaultTopic",
        read_queue_nums: i32 = "readQueueNums",
        write_queue_nums: i32 = "writeQueueNums",
        perm: i32 = "perm",
        topic_filter_type: &'c str = "topicFilterType",
        topic_sys_flag: i32 = "topicSysFlag" or 0,
        order: bool = "order" or false,
        /// `+key=value,-key,...`
        attributes: Option<&'c str> = "attributes",
        force: bool = "force" or false,
    }
    /// 202, 215, 300: a topic and nothing more.
    pub struct TopicOnly<'c> {
        topic: &'c str = "topic",
    }
    /// 351.
    pub struct GetTopicConfig<'c> {
        topic: &'c str = "topic",
        /// Include the static-topic mapping.
        lo: bool = "lo" or false,
    }
    /// 21. Without `topic_seq` everything is answered at once.
    pub struct GetAllTopicConfig<'c> {
        topic_seq: Option<i32> = "topicSeq",
        /// JSON.
        data_version: Option<&'c str> = "dataVersion",
        max_topic_num: Option<i32> = "maxTopicNum",
    }
    /// 321.
    pub struct QueryConsumeQueue<'c> {
        topic: &'c str = "topic",
        queue_id: i32 = "queueId",
        index: i64 = "index",
        count: i32 = "count",
        consumer_group: Option<&'c str> = "consumerGroup",
    }
}
