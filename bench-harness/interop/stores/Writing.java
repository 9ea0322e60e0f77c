package stores;

import static stores.Checks.await;
import static stores.Checks.equal;
import static stores.Checks.that;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** Writes every kind of message that the broker takes, and notes in the ledger what it acknowledged. */
final class Writing {
    static final String BULK = "stores-bulk";
    static final String KINDS = "stores-kinds";
    static final String DELAY = "stores-delay";
    static final String TRANSACTIONS = "stores-tx";
    static final String BURST = "stores-burst";
    static final String GROUP = "stores-group";
    static final String RETRY = "%RETRY%" + GROUP;
    static final String HALF = "RMQ_SYS_TRANS_HALF_TOPIC";
    static final String OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
    /** Filters the bulk by an expression that lets this tag through. */
    static final String SQL_GROUP = "stores-sql";
    static final String SQL_TAG = "T1";
    static final int BULK_QUEUES = 4;
    /** Delay levels as the brokers' configuration has them. */
    static final int SOON = 1;
    static final int NEXT_LEG = 2;
    static final int LONG = 3;
    static final long NEXT_LEG_MILLIS = 10_000;
    private static final int PATIENCE_SECONDS = 60;

    private final Ledger ledger;
    private final Clients clients;
    private final String brokerName;
    private final String broker;
    private final Path store;
    private final int leg;
    private final int bulk;
    private final boolean burst;
    private final boolean extended;

    Writing(Ledger ledger, Clients clients, String brokerName, String broker, Path store, int leg, int bulk, boolean burst, boolean extended) {
        this.extended = extended;
        this.burst = burst;
        this.ledger = ledger;
        this.clients = clients;
        this.brokerName = brokerName;
        this.broker = broker;
        this.store = store;
        this.leg = leg;
        this.bulk = bulk;
    }

    static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    void all(Checks checks, String where) {
        ledger.lastLeg = ledger.sent.size();
        checks.check(where, "topics and groups made", this::makeTopics);
        checks.check(where, "bulk over several files", this::bulk);
        checks.check(where, "kinds", this::kinds);
        checks.check(where, "transactions", this::transactions);
        checks.check(where, "consumer offsets", this::offsets);
        checks.check(where, "delayed and retried", this::delayed);
        if (burst) {
            checks.check(where, "a burst just before the end", this::burst);
        }
        checks.check(where, "what it serves before its end", this::dump);
    }

    /** Their messages have bits in the maps of queues' extensions. */
    static void subscribe(Wire wire, int leg) throws Exception {
        wire.subscribe(SQL_GROUP, BULK, "TAGS = '" + SQL_TAG + "'", leg);
    }

    private String makeTopics() throws Exception {
        if (leg == 1) {
            makeTopic(new TopicConfig(BULK, BULK_QUEUES, BULK_QUEUES));
            makeTopic(new TopicConfig(KINDS, 2, 2));
            makeTopic(new TopicConfig(DELAY, 1, 1));
            makeTopic(new TopicConfig(BURST, 1, 1));
            TopicConfig transactional = new TopicConfig(TRANSACTIONS, 1, 1);
            transactional.getAttributes().put("+message.type", "TRANSACTION");
            makeTopic(transactional);
            TopicConfig odd = new TopicConfig("stores-odd", 3, 5, 4);
            odd.setOrder(true);
            makeTopic(odd);
            SubscriptionGroupConfig group = new SubscriptionGroupConfig();
            group.setGroupName(GROUP);
            group.setRetryMaxTimes(7);
            group.setConsumeBroadcastEnable(false);
            makeGroup(group);
        }
        makeTopic(new TopicConfig("stores-leg" + leg, leg, leg));
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("stores-group-" + leg);
        group.setRetryQueueNums(leg);
        makeGroup(group);
        for (int i = 0; i < 2 * leg; i++) {
            send(message("stores-leg" + leg, "L" + i, List.of("leg" + i), "leg " + leg + " " + i), i % leg);
        }
        return ledger.topics.size() + " topics, " + ledger.groups.size() + " groups";
    }

    private void makeTopic(TopicConfig topic) throws Exception {
        clients.admin.createAndUpdateTopicConfig(broker, topic);
        ledger.topics.put(topic.getTopicName(), clients.admin.examineTopicConfig(broker, topic.getTopicName()));
        await("route of " + topic.getTopicName(), PATIENCE_SECONDS,
            () -> !clients.admin.examineTopicRouteInfo(topic.getTopicName()).getBrokerDatas().isEmpty());
    }

    private void makeGroup(SubscriptionGroupConfig group) throws Exception {
        clients.admin.createAndUpdateSubscriptionGroupConfig(broker, group);
        ledger.groups.put(group.getGroupName(), clients.admin.examineSubscriptionGroupConfig(broker, group.getGroupName()));
    }

    static Message message(String topic, String tags, List<String> keys, String text) {
        return new Message(topic, tags, String.join(" ", keys), text(text));
    }

    private SendResult send(Message message, int queue) throws Exception {
        return send(clients.producer, message, queue);
    }

    private SendResult send(DefaultMQProducer producer, Message message, int queue) throws Exception {
        byte[] body = message.getBody();
        Map<String, String> own = new LinkedHashMap<>(message.getProperties());
        SendResult result = producer.send(message, new MessageQueue(message.getTopic(), brokerName, queue));
        equal(SendStatus.SEND_OK, result.getSendStatus(), () -> "status");
        note(result.getMessageQueue(), result.getQueueOffset(), result.getMsgId(), result.getOffsetMsgId(), message, body, own);
        return result;
    }

    private void note(MessageQueue queue, long offset, String uniqKey, String offsetId, Message message, byte[] body,
        Map<String, String> properties) {
        String keys = message.getKeys();
        ledger.sent.add(new Ledger.Sent(queue.getTopic(), queue.getQueueId(), offset, uniqKey, offsetId, body, message.getTags(),
            keys == null || keys.isEmpty() ? List.of() : List.of(keys.split(" ")), properties));
    }

    private String bulk() throws Exception {
        if (extended) {
            subscribe(clients.wire, leg);
            Thread.sleep(50); // only what is stored later than the filter is born has bits that count
        }
        Random random = new Random(leg);
        for (int i = 0; i < bulk; i++) {
            byte[] body = new byte[200 + random.nextInt(700)];
            random.nextBytes(body);
            Message message = new Message(BULK, "T" + i % 3, "k" + leg + "-" + i + " shared" + leg + "-" + i % 50, body);
            send(message, i % BULK_QUEUES);
        }
        return bulk + " messages";
    }

    private String kinds() throws Exception {
        int before = ledger.sent.size();
        Message plain = message(KINDS, null, List.of(), "neither tag nor key");
        send(plain, 0);
        Message rich = message(KINDS, "标签", List.of("schlüssel", "键"), "jede Schrift: ж ö 漢 🦀");
        rich.putUserProperty("ünï", "wert mit = und \" und 漢");
        rich.setFlag(0x01020304);
        send(rich, 1);
        send(message(KINDS, "one-byte", List.of("small"), "x"), 0);
        for (CompressionType type : CompressionType.values()) {
            Message large = message(KINDS, "Large", List.of("large-" + type), (type + " may be pressed together. ").repeat(400 + leg));
            send(clients.producer(type), large, 0);
        }
        batch(24, 1);
        return ledger.sent.size() - before + " messages";
    }

    private void batch(int count, int queue) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            batch.add(message(KINDS, i % 2 == 0 ? "Even" : "Odd", List.of("batch" + leg + "-" + i), "batch " + leg + " " + i));
        }
        SendResult result = clients.producer.send(batch, new MessageQueue(KINDS, brokerName, queue));
        equal(SendStatus.SEND_OK, result.getSendStatus(), () -> "status of the batch");
        String[] ids = result.getOffsetMsgId().split(",");
        String[] uniqKeys = result.getMsgId().split(",");
        equal(count, ids.length, () -> "number of ids");
        for (int i = 0; i < count; i++) {
            Message message = batch.get(i);
            note(result.getMessageQueue(), result.getQueueOffset() + i, uniqKeys[i], ids[i], message, message.getBody(),
                new LinkedHashMap<>(message.getProperties()));
        }
    }

    private String transactions() throws Exception {
        if (!clients.wire.knows(RequestCode.END_TRANSACTION)) {
            return "not judged: this broker does not end transactions yet (code " + RequestCode.END_TRANSACTION + ")";
        }
        for (int i = 0; i < 3; i++) {
            ledger.committed.add(half("committed " + leg + " " + i, "COMMIT_MESSAGE", null));
            ledger.never.add(half("rolled back " + leg + " " + i, "ROLLBACK_MESSAGE", null));
            ledger.never.add(half("for ever half " + leg + " " + i, "UNKNOW", null));
            String later = half("half until leg " + (leg + 1) + " " + i, "UNKNOW", leg + 1);
            ledger.halves.add(new Ledger.Pending(TRANSACTIONS, later, leg, 0));
        }
        await("an op record for every half that was ended", PATIENCE_SECONDS, () -> ops(clients.wire).containsAll(ledger.endedHalves));
        return "3 committed, 3 rolled back, 6 half";
    }

    private String half(String text, String verdict, Integer commitAt) throws Exception {
        Message message = message(TRANSACTIONS, "Tx", List.of("tx"), text);
        message.putUserProperty("verdict", verdict);
        if (commitAt != null) {
            message.putUserProperty("commitAt", commitAt.toString());
        }
        SendResult result = clients.transactions.sendMessageInTransaction(message, null);
        equal(SendStatus.SEND_OK, result.getSendStatus(), () -> "status of a half message");
        if (!verdict.equals("UNKNOW")) {
            ledger.endedHalves.add(result.getQueueOffset());
        }
        return text;
    }

    /** Half queue offsets that op records name. */
    static Set<Long> ops(Wire wire) throws Exception {
        Set<Long> ended = new HashSet<>();
        for (byte[] record : wire.pull(OP, 0, wire.min(OP, 0))) {
            for (String offset : new String(Wire.decode(record).getBody(), StandardCharsets.UTF_8).split(",")) {
                ended.add(Long.parseLong(offset));
            }
        }
        return ended;
    }

    /** Committed, and seen in the file: a kill may cost what is not there yet. */
    private String offsets() throws Exception {
        for (int queue = 0; queue < BULK_QUEUES; queue++) {
            long offset = 20L * leg + queue;
            clients.wire.commit(GROUP, BULK, queue, offset);
            ledger.offsets.put(GROUP + "@" + BULK + "@" + queue, offset);
        }
        clients.wire.commit("stores-group-" + leg, KINDS, 1, leg);
        ledger.offsets.put("stores-group-" + leg + "@" + KINDS + "@1", (long) leg);
        await("offsets in their file", PATIENCE_SECONDS, () -> {
            // The older JSON library reads numbers as names without quotes, as the broker writes them.
            JSONObject table = JSON.parseObject(Files.readString(store.resolve("config/consumerOffset.json"))).getJSONObject("offsetTable");
            for (Map.Entry<String, Long> entry : ledger.offsets.entrySet()) {
                String[] parts = entry.getKey().split("@");
                JSONObject queues = table.getJSONObject(parts[1] + "@" + parts[0]);
                if (queues == null || !entry.getValue().equals(queues.getLong(parts[2]))) {
                    return false;
                }
            }
            return true;
        });
        return ledger.offsets.size() + " offsets";
    }

    /** Last, so that what is pending is so when the leg ends. */
    private String delayed() throws Exception {
        Message soon = message(DELAY, "Soon", List.of("soon"), "soon " + leg);
        soon.setDelayTimeLevel(SOON);
        clients.producer.send(soon);
        MessageExt back = clients.wire.view(BULK, ledger.sent.get(ledger.lastLeg + 2 * leg).offsetId());
        clients.wire.sendBack(GROUP, back, SOON);
        await("what is due soon", PATIENCE_SECONDS, () -> count(DELAY, text("soon " + leg)) == 1 && count(RETRY, back.getBody()) == 1);
        Message later = message(DELAY, "Later", List.of("later"), "much later " + leg);
        later.setDelayTimeLevel(LONG);
        clients.producer.send(later);
        ledger.longDelayed.add(new Ledger.Pending(DELAY, "much later " + leg, leg, Long.MAX_VALUE));
        for (int i = 0; i < 3; i++) {
            Message next = message(DELAY, "Next", List.of("next" + leg), "next leg " + leg + " " + i);
            next.setDelayTimeLevel(NEXT_LEG);
            clients.producer.send(next);
            ledger.delayed.add(new Ledger.Pending(DELAY, "next leg " + leg + " " + i, leg, System.currentTimeMillis() + NEXT_LEG_MILLIS));
        }
        Message retried = message(KINDS, "Back", List.of("back"), "sent back " + leg);
        SendResult result = send(retried, 0);
        clients.wire.sendBack(GROUP, clients.wire.view(KINDS, result.getOffsetMsgId()), NEXT_LEG);
        ledger.delayed.add(new Ledger.Pending(RETRY, "sent back " + leg, leg, System.currentTimeMillis() + NEXT_LEG_MILLIS));
        long due = System.currentTimeMillis() + NEXT_LEG_MILLIS;
        for (int i = 0; i < 3; i++) {
            Message timed = message(DELAY, "Timed", List.of("timed" + leg), "timed " + leg + " " + i);
            timed.setDeliverTimeMs(due + i * 300);
            that(clients.producer.send(timed).getRecallHandle() != null, () -> "no recall handle");
            ledger.timed.add(new Ledger.Pending(DELAY, "timed " + leg + " " + i, leg, due + i * 300));
        }
        Message far = message(DELAY, "Far", List.of("far"), "timed for long " + leg);
        far.setDelayTimeSec(leg % 2 == 0 ? 1800 : 200_000); // the latter rolls
        clients.producer.send(far);
        ledger.longDelayed.add(new Ledger.Pending(DELAY, "timed for long " + leg, leg, Long.MAX_VALUE));
        return "2 delivered, 7 pending for the next leg, 2 for long";
    }

    /**
     * More than ten segments at once: an Apache broker that recovers the store looks ten back from the end, so the checkpoint must have
     * followed when the kill comes.
     */
    private String burst() throws Exception {
        Random random = new Random(leg);
        for (int i = 0; i < 26; i++) {
            List<Message> batch = new ArrayList<>();
            for (int j = 0; j < 32; j++) {
                byte[] body = new byte[4000];
                random.nextBytes(body);
                batch.add(new Message(BURST, body));
            }
            equal(SendStatus.SEND_OK, clients.producer.send(batch, new MessageQueue(BURST, brokerName, 0)).getSendStatus(), () -> "status");
        }
        return 26 * 32 + " messages of 4000 bytes";
    }

    private long count(String topic, byte[] body) throws Exception {
        return clients.wire.pull(topic, 0, clients.wire.min(topic, 0)).stream()
            .filter(record -> Arrays.equals(Wire.decode(record).getBody(), body)).count();
    }

    /** Every queue with a record, and its records as they are; waits for the key index to have the last message. */
    private String dump() throws Exception {
        Ledger.Sent last = ledger.sent.get(ledger.sent.size() - 1);
        await("index of the last message", PATIENCE_SECONDS, () -> !clients.wire.query(last.topic(), last.uniqKey(), "U").isEmpty());
        Map<String, Map<Integer, Ledger.Dump>> dumped = new TreeMap<>();
        int records = 0;
        for (TopicConfig topic : clients.admin.getAllTopicConfig(broker, 20_000).getTopicConfigTable().values()) {
            String name = topic.getTopicName();
            for (int queue = 0; queue < topic.getReadQueueNums() && !name.equals("BenchmarkTest"); queue++) {
                if (clients.wire.max(name, queue) == 0) {
                    continue;
                }
                long min = clients.wire.min(name, queue);
                Ledger.Dump dump = new Ledger.Dump(min, clients.wire.pull(name, queue, min));
                records += dump.records().size();
                dumped.computeIfAbsent(name, any -> new TreeMap<>()).put(queue, dump);
            }
        }
        ledger.queues.clear();
        ledger.queues.putAll(dumped);
        for (Ledger.Pending pending : ledger.delayed) {
            if (pending.leg() == leg) {
                that(Checking.count(ledger, pending) == 0, () -> "'" + pending.text() + "' came before the end of its leg");
            }
        }
        return records + " records in " + dumped.size() + " topics, " + files("commitlog") + " log files, "
            + files("consumequeue/" + BULK + "/0") + " files of a queue, " + files("index") + " index files";
    }

    private long files(String directory) throws IOException {
        try (Stream<Path> all = Files.list(store.resolve(directory))) {
            return all.filter(Files::isRegularFile).count();
        }
    }
}
