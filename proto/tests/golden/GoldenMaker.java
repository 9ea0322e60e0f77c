// Writes the golden files with Apache's own 5.5.0 classes. Run from this directory:
//   java -cp "$APACHE_LIB/*" -Drocketmq.remoting.version=513 GoldenMaker.java hex
// where APACHE_LIB holds rocketmq-tools 5.5.0 and its dependencies. The tests need no Java: they read the hex.
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.attribute.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.*;
import org.apache.rocketmq.remoting.protocol.admin.*;
import org.apache.rocketmq.remoting.protocol.body.*;
import org.apache.rocketmq.remoting.protocol.header.*;
import org.apache.rocketmq.remoting.protocol.header.namesrv.*;
import org.apache.rocketmq.remoting.protocol.heartbeat.*;
import org.apache.rocketmq.remoting.protocol.route.*;
import org.apache.rocketmq.remoting.protocol.subscription.*;

public class GoldenMaker {
    static Path dir;

    static void put(String name, String purpose, byte[] bytes) throws Exception {
        StringBuilder out = new StringBuilder("# ").append(purpose).append('\n');
        for (int i = 0; i < bytes.length; i++) {
            out.append(String.format("%02x", bytes[i]));
            if (i % 48 == 47 || i == bytes.length - 1) out.append('\n');
        }
        Files.write(dir.resolve(name + ".hex"), out.toString().getBytes(StandardCharsets.UTF_8));
    }

    static byte[] bytes(ByteBuffer buffer) {
        byte[] all = new byte[buffer.remaining()];
        buffer.get(all);
        return all;
    }

    // Every field gets a value by its type, so that a name or type read wrongly shows.
    static <T> T fill(Class<T> type) throws Exception {
        T header = type.getDeclaredConstructor().newInstance();
        int n = 0;
        for (Class<?> c = type; c != Object.class; c = c.getSuperclass()) {
            for (Field field : c.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers())) continue;
                field.setAccessible(true);
                Class<?> t = field.getType();
                n++;
                if (t == String.class) field.set(header, "v" + n);
                else if (t == Integer.class || t == int.class) field.set(header, -n);
                else if (t == Long.class || t == long.class) field.set(header, 1700000000000L + n);
                else if (t == Boolean.class || t == boolean.class) field.set(header, true);
                else if (t.isEnum()) field.set(header, t.getEnumConstants()[1]);
            }
        }
        return header;
    }

    static void request(int code, String name, Class<? extends CommandCustomHeader> type) throws Exception {
        request(code, name, fill(type), "every field of " + type.getSimpleName());
    }

    static void request(int code, String name, CommandCustomHeader header, String purpose) throws Exception {
        RemotingCommand cmd = RemotingCommand.createRequestCommand(code, header);
        cmd.setOpaque(code + 7);
        put("request-" + code + "-" + name, purpose, bytes(cmd.encode()));
    }

    static void requests() throws Exception {
        SendMessageRequestHeader send = fill(SendMessageRequestHeader.class);
        send.setProperties("TAGS\u0001TagA\u0002KEYS\u0001k1 \"k2\"\u0002\u4e2d\u0001\\x\u0002WAIT\u0001true\u0002");
        request(10, "send", send, "send with long names; properties hold controls, a quote, a backslash, Chinese");
        request(310, "send-v2", SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send), "send with letters, as Java's producer");
        request(320, "send-batch", SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send), "batch send with letters");
        request(11, "pull", PullMessageRequestHeader.class);
        request(361, "lite-pull", PullMessageRequestHeader.class);
        request(12, "query-message", QueryMessageRequestHeader.class);
        request(14, "query-offset", QueryConsumerOffsetRequestHeader.class);
        request(15, "update-offset", UpdateConsumerOffsetRequestHeader.class);
        request(17, "create-topic", CreateTopicRequestHeader.class);
        request(21, "all-topic-config", GetAllTopicConfigRequestHeader.class);
        request(29, "search-offset", SearchOffsetRequestHeader.class);
        request(30, "max-offset", GetMaxOffsetRequestHeader.class);
        request(31, "min-offset", GetMinOffsetRequestHeader.class);
        request(32, "earliest-time", GetEarliestMsgStoretimeRequestHeader.class);
        request(33, "view-message", ViewMessageRequestHeader.class);
        request(34, "heartbeat", HeartbeatRequestHeader.class);
        request(35, "unregister-client", UnregisterClientRequestHeader.class);
        request(36, "send-back", ConsumerSendMsgBackRequestHeader.class);
        request(37, "end-transaction", EndTransactionRequestHeader.class);
        request(38, "consumer-list", GetConsumerListByGroupRequestHeader.class);
        request(39, "check-transaction", CheckTransactionStateRequestHeader.class);
        request(40, "ids-changed", NotifyConsumerIdsChangedRequestHeader.class);
        request(100, "put-kv", PutKVConfigRequestHeader.class);
        request(101, "get-kv", GetKVConfigRequestHeader.class);
        request(102, "delete-kv", DeleteKVConfigRequestHeader.class);
        request(103, "register-broker", RegisterBrokerRequestHeader.class);
        request(104, "unregister-broker", UnRegisterBrokerRequestHeader.class);
        request(105, "route", GetRouteInfoRequestHeader.class);
        request(201, "all-groups", GetAllSubscriptionGroupRequestHeader.class);
        request(202, "topic-stats", GetTopicStatsInfoRequestHeader.class);
        request(203, "consumer-connections", GetConsumerConnectionListRequestHeader.class);
        request(204, "producer-connections", GetProducerConnectionListRequestHeader.class);
        request(205, "wipe-write-perm", WipeWritePermOfBrokerRequestHeader.class);
        request(207, "delete-group", DeleteSubscriptionGroupRequestHeader.class);
        request(208, "consume-stats", GetConsumeStatsRequestHeader.class);
        request(215, "delete-topic", DeleteTopicRequestHeader.class);
        request(216, "delete-topic-namesrv", DeleteTopicFromNamesrvRequestHeader.class);
        request(217, "register-topic", RegisterTopicRequestHeader.class);
        request(219, "kv-list", GetKVListByNamespaceRequestHeader.class);
        request(220, "reset-offset-client", ResetOffsetRequestHeader.class);
        request(222, "reset-offset", ResetOffsetRequestHeader.class);
        request(223, "consumer-status", GetConsumerStatusRequestHeader.class);
        request(224, "topics-by-cluster", GetTopicsByClusterRequestHeader.class);
        request(300, "consumed-by-whom", QueryTopicConsumeByWhoRequestHeader.class);
        request(303, "consume-time-span", QueryConsumeTimeSpanRequestHeader.class);
        request(307, "running-info", GetConsumerRunningInfoRequestHeader.class);
        request(308, "correction-offset", QueryCorrectionOffsetHeader.class);
        request(309, "consume-directly", ConsumeMessageDirectlyResultRequestHeader.class);
        request(314, "clone-offset", CloneGroupOffsetRequestHeader.class);
        request(315, "broker-stats", ViewBrokerStatsDataRequestHeader.class);
        request(317, "broker-consume-stats", GetConsumeStatsInBrokerHeader.class);
        request(321, "query-consume-queue", QueryConsumeQueueRequestHeader.class);
        request(322, "query-data-version", QueryDataVersionRequestHeader.class);
        request(323, "resume-check", ResumeCheckHalfMessageRequestHeader.class);
        request(327, "add-write-perm", AddWritePermOfBrokerRequestHeader.class);
        request(343, "topics-by-consumer", QueryTopicsByConsumerRequestHeader.class);
        request(345, "subscription-by-consumer", QuerySubscriptionByConsumerRequestHeader.class);
        request(351, "topic-config", GetTopicConfigRequestHeader.class);
        request(352, "group-config", GetSubscriptionGroupConfigRequestHeader.class);
        request(353, "group-forbidden", UpdateGroupForbiddenRequestHeader.class);
        request(370, "recall", RecallMessageRequestHeader.class);
        request(901, "member-group", GetBrokerMemberGroupRequestHeader.class);
        request(904, "broker-heartbeat", BrokerHeartbeatRequestHeader.class);
        request(905, "min-broker-id", NotifyMinBrokerIdChangeRequestHeader.class);
        request(906, "exchange-ha", ExchangeHAInfoRequestHeader.class);
        request(908, "master-flush-offset", ResetMasterFlushOffsetHeader.class);
        request(200050, "pop", PopMessageRequestHeader.class);
        request(200051, "ack", AckMessageRequestHeader.class);
        request(200052, "peek", PeekMessageRequestHeader.class);
        request(200053, "change-invisible", ChangeInvisibleTimeRequestHeader.class);
        request(200054, "notification", NotificationRequestHeader.class);
        request(200055, "polling-info", PollingInfoRequestHeader.class);
    }

    static void frames() throws Exception {
        GetRouteInfoRequestHeader route = new GetRouteInfoRequestHeader();
        route.setTopic("T");
        RemotingCommand cmd = RemotingCommand.createRequestCommand(105, route);
        cmd.setOpaque(7);
        cmd.setRemark("r\u4e2d");
        cmd.setSerializeTypeCurrentRPC(SerializeType.ROCKETMQ);
        put("frame-binary-request", "ROCKETMQ header with a remark and one field", bytes(cmd.encode()));
        SendMessageRequestHeader send = fill(SendMessageRequestHeader.class);
        send.setProperties("TAGS\u0001TagA\u0002");
        cmd = RemotingCommand.createRequestCommand(310, SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send));
        cmd.setOpaque(Integer.MIN_VALUE);
        cmd.setBody("hello".getBytes());
        cmd.setSerializeTypeCurrentRPC(SerializeType.ROCKETMQ);
        put("frame-binary-send", "ROCKETMQ header of a V2 send with a body", bytes(cmd.encode()));
        RemotingCommand answer = RemotingCommand.createResponseCommand(PullMessageResponseHeader.class);
        PullMessageResponseHeader header = (PullMessageResponseHeader) answer.readCustomHeader();
        header.setSuggestWhichBrokerId(0L);
        header.setNextBeginOffset(42L);
        header.setMinOffset(0L);
        header.setMaxOffset(Long.MAX_VALUE);
        answer.setCode(0);
        answer.setOpaque(9);
        answer.markResponseType();
        answer.setRemark("FOUND \"\u4e2d\"\n");
        answer.setBody(new byte[] {1, 2, 3});
        put("frame-response", "a pull response with remark and body", bytes(answer.encode()));
        RemotingCommand oneway = RemotingCommand.createRequestCommand(28, null);
        oneway.setOpaque(1);
        oneway.markOnewayRPC();
        put("frame-oneway", "a one-way request without fields", bytes(oneway.encode()));
    }

    static MessageExt message(String topic, String born, String store) throws Exception {
        MessageExt msg = new MessageExt();
        msg.setTopic(topic);
        msg.setBody("hello".getBytes());
        msg.setBodyCRC(UtilAll.crc32("hello".getBytes()));
        msg.setQueueId(3);
        msg.setFlag(-5);
        msg.setQueueOffset(5);
        msg.setCommitLogOffset(1024);
        msg.setBornTimestamp(1700000000000L);
        msg.setStoreTimestamp(1700000000001L);
        msg.setBornHost(new InetSocketAddress(java.net.InetAddress.getByName(born), 50000));
        msg.setStoreHost(new InetSocketAddress(java.net.InetAddress.getByName(store), 10911));
        if (born.contains(":")) msg.setBornHostV6Flag();
        if (store.contains(":")) msg.setStoreHostAddressV6Flag();
        msg.setReconsumeTimes(2);
        msg.setPreparedTransactionOffset(77);
        MessageAccessor.setProperties(msg, new TreeMap<>(Map.of("TAGS", "TagA", "KEYS", "k1 k2", "UNIQ_KEY", "U", "\u540d", "\u503c")));
        return msg;
    }

    static void records() throws Exception {
        put("record-v4", "a record with IPv4 hosts", MessageDecoder.encode(message("T", "10.0.0.1", "10.0.0.2"), false));
        put("record-v6", "a record with IPv6 hosts", MessageDecoder.encode(message("Topic-%|_9", "2001:db8::1", "::1"), false));
        put("record-v6-born", "a record whose born host alone is IPv6", MessageDecoder.encode(message("T", "2001:db8::1", "10.0.0.2"), false));
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message msg = new Message("T", "Tag" + i, "key" + i, ("body" + i).repeat(i).getBytes());
            msg.setFlag(i - 1);
            batch.add(msg);
        }
        put("batch", "a client batch of three, the first with an empty body", MessageDecoder.encodeMessages(batch));
    }

    static void bodies() throws Exception {
        HeartbeatData beat = new HeartbeatData();
        beat.setClientID("10.0.0.5@4321#99");
        ProducerData producer = new ProducerData();
        producer.setGroupName("p");
        beat.getProducerDataSet().add(producer);
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName("g");
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.BROADCASTING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        SubscriptionData sub = org.apache.rocketmq.remoting.protocol.filter.FilterAPI.buildSubscriptionData("T", "TagA || TagB");
        sub.setSubVersion(1700000000000L);
        consumer.getSubscriptionDataSet().add(sub);
        beat.getConsumerDataSet().add(consumer);
        put("body-heartbeat", "heartbeat of a producer and a broadcasting consumer", beat.encode());

        TopicRouteData route = new TopicRouteData();
        HashMap<Long, String> addrs = new HashMap<>(Map.of(0L, "10.0.0.1:10911", 1L, "10.0.0.2:10911"));
        route.setBrokerDatas(new ArrayList<>(List.of(new BrokerData("c", "b", addrs))));
        QueueData queue = new QueueData();
        queue.setBrokerName("b");
        queue.setPerm(6);
        queue.setReadQueueNums(8);
        queue.setWriteQueueNums(4);
        queue.setTopicSysFlag(1);
        route.setQueueDatas(new ArrayList<>(List.of(queue)));
        route.setFilterServerTable(new HashMap<>());
        put("body-route-fastjson", "route in fastjson's form", route.encode());
        route.getBrokerDatas().get(0).setCluster("c/\u4e2d\ud83d\ude00");
        put("body-route-strict", "route in strict form, its cluster with a slash and text beyond ASCII",
            route.encode(com.alibaba.fastjson2.JSONWriter.Feature.BrowserCompatible,
                com.alibaba.fastjson2.JSONWriter.Feature.MapSortField));
        ClusterInfo cluster = new ClusterInfo();
        cluster.setBrokerAddrTable(new HashMap<>(Map.of("b", new BrokerData("c", "b", addrs))));
        cluster.setClusterAddrTable(new HashMap<>(Map.of("c", new TreeSet<>(Set.of("b")))));
        put("body-cluster", "cluster info", cluster.encode());

        TopicConfig topic = new TopicConfig("T", 4, 8, 6);
        topic.setAttributes(new HashMap<>(Map.of("message.type", "FIFO")));
        DataVersion version = new DataVersion();
        version.setTimestamp(1700000000000L);
        version.setCounter(new java.util.concurrent.atomic.AtomicLong(3));
        version.setStateVersion(2);
        TopicConfigAndMappingSerializeWrapper wrapper = new TopicConfigAndMappingSerializeWrapper();
        wrapper.setTopicConfigTable(new ConcurrentHashMap<>(Map.of("T", topic)));
        wrapper.setDataVersion(version);
        wrapper.setMappingDataVersion(version);
        RegisterBrokerBody register = new RegisterBrokerBody();
        register.setTopicConfigSerializeWrapper(wrapper);
        register.setFilterServerList(new ArrayList<>(List.of("f:1")));
        put("body-register-plain", "registration, plain", register.encode(false));
        put("body-register-zlib", "registration, compressed", register.encode(true));
        TopicConfigSerializeWrapper topics = new TopicConfigSerializeWrapper();
        topics.setTopicConfigTable(new ConcurrentHashMap<>(Map.of("T", topic)));
        topics.setDataVersion(version);
        put("file-topics", "topics.json as the broker writes it", topics.toJson(true).getBytes(StandardCharsets.UTF_8));

        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("g");
        put("body-group", "a group's configuration", RemotingSerializable.encode(group));
        SubscriptionGroupWrapper groups = new SubscriptionGroupWrapper();
        groups.setSubscriptionGroupTable(new ConcurrentHashMap<>(Map.of("g", group)));
        groups.setForbiddenTable(new ConcurrentHashMap<>(Map.of("g", new ConcurrentHashMap<>(Map.of("T", 3)))));
        groups.setDataVersion(version);
        put("body-groups", "all groups", groups.encode());

        ConsumerOffsetSerializeWrapper offsets = new ConsumerOffsetSerializeWrapper();
        ConcurrentMap<String, ConcurrentMap<Integer, Long>> table = new ConcurrentHashMap<>();
        table.put("T@g", new ConcurrentHashMap<>(Map.of(0, 12L, 1, 3L)));
        offsets.setOffsetTable(table);
        offsets.setDataVersion(version);
        put("body-offsets", "consumer offsets", offsets.encode());
        put("file-offsets", "consumerOffset.json as the broker writes it", offsets.toJson(true).getBytes(StandardCharsets.UTF_8));

        MessageQueue mq = new MessageQueue("T", "b", 0);
        LockBatchRequestBody lock = new LockBatchRequestBody();
        lock.setClientId("c");
        lock.setConsumerGroup("g");
        lock.setMqSet(new HashSet<>(Set.of(mq)));
        put("body-lock", "lock request", lock.encode());
        LockBatchResponseBody locked = new LockBatchResponseBody();
        locked.setLockOKMQSet(new HashSet<>(Set.of(mq)));
        put("body-locked", "lock response", locked.encode());
        ConsumeStats stats = new ConsumeStats();
        OffsetWrapper offset = new OffsetWrapper();
        offset.setBrokerOffset(5);
        offset.setConsumerOffset(3);
        offset.setPullOffset(3);
        stats.setOffsetTable(new ConcurrentHashMap<>(Map.of(mq, offset)));
        put("body-consume-stats", "consume statistics", stats.encode());
        TopicStatsTable topicStats = new TopicStatsTable();
        TopicOffset bounds = new TopicOffset();
        bounds.setMaxOffset(9);
        topicStats.setOffsetTable(new ConcurrentHashMap<>(Map.of(mq, bounds)));
        put("body-topic-stats", "topic statistics", topicStats.encode());
        ConsumerConnection connection = new ConsumerConnection();
        Connection one = new Connection();
        one.setClientId("c");
        one.setClientAddr("10.0.0.5:4321");
        one.setLanguage(LanguageCode.GO);
        one.setVersion(317);
        connection.setConnectionSet(new HashSet<>(Set.of(one)));
        connection.setConsumeType(ConsumeType.CONSUME_ACTIVELY);
        connection.setMessageModel(MessageModel.CLUSTERING);
        connection.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        connection.setSubscriptionTable(new ConcurrentHashMap<>(Map.of("T", sub)));
        put("body-consumer-connection", "connections of a group", connection.encode());
        ResetOffsetBody reset = new ResetOffsetBody();
        reset.setOffsetTable(new HashMap<>(Map.of(mq, 7L)));
        put("body-reset", "reset offsets", reset.encode());
        KVTable kv = new KVTable();
        kv.setTable(new HashMap<>(Map.of("k", "v")));
        put("body-kv", "a key-value table", kv.encode());
        TopicList list = new TopicList();
        list.setTopicList(new HashSet<>(Set.of("T")));
        put("body-topic-list", "a topic list", list.encode());
        CheckClientRequestBody check = new CheckClientRequestBody();
        check.setClientId("c");
        check.setGroup("g");
        check.setSubscriptionData(sub);
        put("body-check-client", "a subscription check", check.encode());
        QueryAssignmentRequestBody assignment = new QueryAssignmentRequestBody();
        assignment.setTopic("T");
        assignment.setConsumerGroup("g");
        assignment.setClientId("c");
        assignment.setStrategyName("AVG");
        assignment.setMessageModel(MessageModel.CLUSTERING);
        put("body-query-assignment", "an assignment query", assignment.encode());
    }

    public static void main(String[] args) throws Exception {
        dir = Paths.get(args[0]);
        requests();
        frames();
        records();
        bodies();
    }
}
