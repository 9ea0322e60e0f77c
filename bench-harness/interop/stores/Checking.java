package stores;

import static stores.Checks.await;
import static stores.Checks.equal;
import static stores.Checks.that;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** Holds a broker that opened the store to what the ledger says. */
final class Checking {
    /** Of the bulk of the last leg, and of all of the older legs, every so many are looked up by key and id. */
    private static final int BULK_STEP = 5;
    private static final int OLD_STEP = 23;
    private static final int PATIENCE_SECONDS = 60;

    private final Ledger ledger;
    private final Clients clients;
    private final String broker;
    private final int leg;
    private final boolean killed;
    private final boolean extended;

    /** {@code killed}: the legs before ended by SIGKILL; {@code extended}: queues have extensions, and groups filter by expressions. */
    Checking(Ledger ledger, Clients clients, String broker, int leg, boolean killed, boolean extended) {
        this.extended = extended;
        this.killed = killed;
        this.ledger = ledger;
        this.clients = clients;
        this.broker = broker;
        this.leg = leg;
    }

    void all(Checks checks, String where) {
        checks.check(where, "every record at its offset, byte for byte", this::records);
        checks.check(where, "acknowledged messages as they were sent", this::acknowledged);
        checks.check(where, "offset ids", this::views);
        checks.check(where, "unique keys", this::uniqKeys);
        checks.check(where, "keys", () -> keys(null));
        checks.check(where, "tags by the index", () -> keys("T"));
        checks.check(where, "tags by the queues", this::tags);
        if (extended) {
            checks.check(where, "expressions by bit maps", this::expressions);
        }
        checks.check(where, "topics", this::topics);
        checks.check(where, "groups", this::groups);
        checks.check(where, "consumer offsets", this::offsets);
        checks.check(where, "pending delays go on", this::delays);
        checks.check(where, "transactions go on", this::transactions);
    }

    /** What the broker before served; queues may have grown. */
    private String records() throws Exception {
        int count = 0;
        for (Map.Entry<String, Map<Integer, Ledger.Dump>> topic : ledger.queues.entrySet()) {
            for (Map.Entry<Integer, Ledger.Dump> queue : topic.getValue().entrySet()) {
                String name = topic.getKey() + "/" + queue.getKey();
                Ledger.Dump before = queue.getValue();
                equal(before.min(), clients.wire.min(topic.getKey(), queue.getKey()), () -> "first offset of " + name);
                List<byte[]> now = clients.wire.pull(topic.getKey(), queue.getKey(), before.min());
                that(now.size() >= before.records().size(),
                    () -> name + " ends at " + (before.min() + now.size()) + ", ended at " + before.max());
                for (int i = 0; i < before.records().size(); i++) {
                    long at = before.min() + i;
                    that(Arrays.equals(before.records().get(i), now.get(i)), () -> name + ": another record at " + at);
                    Wire.decode(now.get(i));
                }
                count += before.records().size();
            }
        }
        return count + " records";
    }

    private String acknowledged() {
        for (Ledger.Sent sent : ledger.sent) {
            Ledger.Dump dump = ledger.queues.get(sent.topic()).get(sent.queue());
            same(sent, Wire.decode(dump.records().get((int) (sent.offset() - dump.min()))));
        }
        return ledger.sent.size() + " messages";
    }

    /** Of the bulk, in which each tag is some messages'. */
    private String tags() throws Exception {
        int count = 0;
        for (Map.Entry<Integer, Ledger.Dump> queue : ledger.queues.get(Writing.BULK).entrySet()) {
            Map<String, List<Long>> byTag = byTag(queue.getValue());
            for (Map.Entry<String, List<Long>> tag : byTag.entrySet()) {
                List<Long> found = clients.wire.filtered("TOOLS_CONSUMER", Writing.BULK, queue.getKey(), queue.getValue().min(), tag.getKey());
                equal(tag.getValue(), found, () -> "offsets of tag " + tag.getKey() + " in queue " + queue.getKey());
                count += found.size();
            }
        }
        that(count > 0, () -> "no message with a tag");
        return count + " messages";
    }

    private static Map<String, List<Long>> byTag(Ledger.Dump dump) {
        Map<String, List<Long>> byTag = new TreeMap<>();
        for (int i = 0; i < dump.records().size(); i++) {
            String tag = Wire.decode(dump.records().get(i)).getTags();
            if (tag != null) {
                byTag.computeIfAbsent(tag, any -> new ArrayList<>()).add(dump.min() + i);
            }
        }
        return byTag;
    }

    private String expressions() throws Exception {
        Writing.subscribe(clients.wire, leg);
        int count = 0;
        for (Map.Entry<Integer, Ledger.Dump> queue : ledger.queues.get(Writing.BULK).entrySet()) {
            List<Long> expected = byTag(queue.getValue()).getOrDefault(Writing.SQL_TAG, List.of());
            List<Long> found = clients.wire.filtered(Writing.SQL_GROUP, Writing.BULK, queue.getKey(), queue.getValue().min(), null);
            equal(expected, found, () -> "offsets in queue " + queue.getKey());
            count += found.size();
        }
        that(count > 0, () -> "no message matches");
        return count + " messages";
    }

    private static void same(Ledger.Sent sent, MessageExt found) {
        String name = sent.topic() + "/" + sent.queue() + " " + sent.offset();
        equal(sent.queue(), found.getQueueId(), () -> name + ": queue");
        equal(sent.offset(), found.getQueueOffset(), () -> name + ": offset");
        that(Arrays.equals(sent.body(), found.getBody()), () -> name + ": another body");
        equal(sent.uniqKey(), found.getProperty("UNIQ_KEY"), () -> name + ": UNIQ_KEY");
        sent.properties().forEach((key, value) -> {
            if (!value.isEmpty()) {
                equal(value, String.valueOf(found.getProperty(key)), () -> name + ": property " + key);
            }
        });
    }

    /** All of the last leg, some of the older ones. */
    private List<Ledger.Sent> chosen() {
        List<Ledger.Sent> chosen = new ArrayList<>();
        for (int i = 0; i < ledger.sent.size(); i++) {
            boolean bulk = ledger.sent.get(i).topic().equals(Writing.BULK);
            if (i % (i < ledger.lastLeg ? OLD_STEP : bulk ? BULK_STEP : 1) == 0) {
                chosen.add(ledger.sent.get(i));
            }
        }
        return chosen;
    }

    private String views() throws Exception {
        for (Ledger.Sent sent : chosen()) {
            same(sent, clients.wire.view(sent.topic(), sent.offsetId()));
        }
        return chosen().size() + " ids";
    }

    private String uniqKeys() throws Exception {
        for (Ledger.Sent sent : chosen()) {
            List<MessageExt> found = clients.wire.query(sent.topic(), sent.uniqKey(), "U");
            equal(1, found.size(), () -> "messages of UNIQ_KEY " + sent.uniqKey() + " in " + sent.topic() + " " + sent.offset());
            same(sent, found.get(0));
        }
        return chosen().size() + " keys";
    }

    /** Each key of a chosen message leads to all messages that have it, the tag index to some of its tag. */
    private String keys(String kind) throws Exception {
        Map<String, Set<String>> places = new HashMap<>();
        Set<String> wanted = new HashSet<>();
        for (Ledger.Sent sent : ledger.sent) {
            for (String key : kind == null ? sent.keys() : sent.tags() == null ? List.<String>of() : List.of(sent.tags())) {
                places.computeIfAbsent(sent.topic() + "\0" + key, any -> new HashSet<>()).add(sent.queue() + "/" + sent.offset());
            }
        }
        for (Ledger.Sent sent : chosen()) {
            for (String key : kind == null ? sent.keys() : sent.tags() == null ? List.<String>of() : List.of(sent.tags())) {
                wanted.add(sent.topic() + "\0" + key);
            }
        }
        for (String key : wanted) {
            String[] parts = key.split("\0");
            Set<String> found = new HashSet<>();
            clients.wire.query(parts[0], parts[1], kind).forEach(m -> found.add(m.getQueueId() + "/" + m.getQueueOffset()));
            Set<String> all = places.get(key);
            if (kind == null) {
                that(found.containsAll(all), () -> "key " + parts[1] + " of " + parts[0] + " leads to " + found + ", not to all of " + all);
            } else {
                equal(Math.min(64, all.size()), found.size(), () -> "messages of tag " + parts[1] + " in " + parts[0]);
            }
        }
        return wanted.size() + " keys";
    }

    private String topics() throws Exception {
        for (TopicConfig topic : ledger.topics.values()) {
            TopicConfig found = clients.admin.examineTopicConfig(broker, topic.getTopicName());
            equal(topic, found, () -> "topic " + topic.getTopicName());
        }
        return ledger.topics.size() + " topics";
    }

    private String groups() throws Exception {
        for (SubscriptionGroupConfig group : ledger.groups.values()) {
            SubscriptionGroupConfig found = clients.admin.examineSubscriptionGroupConfig(broker, group.getGroupName());
            equal(group, found, () -> "group " + group.getGroupName());
        }
        return ledger.groups.size() + " groups";
    }

    private String offsets() throws Exception {
        for (Map.Entry<String, Long> entry : ledger.offsets.entrySet()) {
            String[] parts = entry.getKey().split("@");
            equal(entry.getValue(), clients.wire.committed(parts[0], parts[1], Integer.parseInt(parts[2])), () -> "offset of " + entry.getKey());
        }
        return ledger.offsets.size() + " offsets";
    }

    static long count(Ledger ledger, Ledger.Pending pending) {
        return ledger.records(pending.topic(), 0).stream()
            .filter(record -> Arrays.equals(Wire.decode(record).getBody(), Writing.text(pending.text()))).count();
    }

    private Map<String, Integer> counts(String topic, long from) throws Exception {
        Map<String, Integer> counts = new TreeMap<>();
        for (byte[] record : clients.wire.pull(topic, 0, from)) {
            counts.merge(new String(Wire.decode(record).getBody(), java.nio.charset.StandardCharsets.UTF_8), 1, Integer::sum);
        }
        return counts;
    }

    /** Each of the last leg comes once, when it is due and not before; those due in half an hour do not. */
    private String delays() throws Exception {
        int judged = 0;
        for (Ledger.Pending pending : ledger.delayed) {
            if (pending.leg() != leg - 1) {
                continue;
            }
            long from = ledger.queues.get(pending.topic()).get(0).max();
            await("'" + pending.text() + "' in " + pending.topic(), PATIENCE_SECONDS, () -> counts(pending.topic(), from).containsKey(pending.text()));
            equal(1, counts(pending.topic(), from).get(pending.text()), () -> "deliveries of '" + pending.text() + "'");
            for (byte[] record : clients.wire.pull(pending.topic(), 0, from)) {
                MessageExt message = Wire.decode(record);
                that(!Arrays.equals(message.getBody(), Writing.text(pending.text()))
                        || message.getStoreTimestamp() >= pending.dueMillis() - 1000, // noted after the answer, so up to that late
                    () -> "'" + pending.text() + "' came too early");
            }
            judged++;
        }
        for (Ledger.Pending pending : ledger.timed) {
            if (pending.leg() == leg - 1) {
                long from = ledger.queues.get(pending.topic()).get(0).max();
                await("'" + pending.text() + "'", PATIENCE_SECONDS, () -> counts(pending.topic(), from).containsKey(pending.text()));
                for (byte[] record : clients.wire.pull(pending.topic(), 0, from)) {
                    MessageExt message = Wire.decode(record);
                    that(!Arrays.equals(message.getBody(), Writing.text(pending.text())) || message.getStoreTimestamp() >= pending.dueMillis(),
                        () -> "'" + pending.text() + "' came too early");
                }
                judged++;
            }
        }
        for (Ledger.Pending pending : ledger.longDelayed) {
            that(!counts(Writing.DELAY, clients.wire.min(Writing.DELAY, 0)).containsKey(pending.text()), () -> pending.text() + " came");
        }
        return judged + " delivered once, " + ledger.longDelayed.size() + " still wait";
    }

    /** Halves that the producer commits when this broker asks it; all others stay as they are. */
    private String transactions() throws Exception {
        if (ledger.committed.isEmpty()) {
            return "none written yet";
        }
        Set<Long> ended = Writing.ops(clients.wire);
        that(ended.containsAll(ledger.endedHalves), () -> "op records of some ended halves are gone");
        boolean goesOn = clients.wire.knows(RequestCode.END_TRANSACTION);
        if (goesOn) {
            for (Ledger.Pending half : List.copyOf(ledger.halves)) {
                if (half.leg() < leg) {
                    await("commit of '" + half.text() + "'", PATIENCE_SECONDS, () -> {
                        clients.hearProducer(half.topic());
                        return counts(half.topic(), 0).containsKey(half.text());
                    });
                    ledger.halves.remove(half);
                    ledger.committed.add(half.text());
                }
            }
        }
        Map<String, Integer> counts = counts(Writing.TRANSACTIONS, 0);
        for (String text : ledger.committed) {
            int copies = counts.getOrDefault(text, 0);
            // A broker that is killed between putting a half back and noting it leaves two of it, and both are asked about.
            that(copies == 1 || killed && copies > 1, () -> copies + " copies of '" + text + "'");
        }
        for (String text : ledger.never) {
            that(!counts.containsKey(text), () -> "'" + text + "' was never committed, and is there");
        }
        return counts.size() + " committed, " + ledger.never.size() + " not"
            + (goesOn ? "" : "; check-back not judged: this broker does not end transactions yet (code " + RequestCode.END_TRANSACTION + ")");
    }
}
