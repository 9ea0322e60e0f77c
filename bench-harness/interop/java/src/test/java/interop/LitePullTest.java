package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The lite pull consumer: subscribing, and assigning queues itself. */
class LitePullTest extends Interop {
    private static List<MessageExt> poll(DefaultLitePullConsumer consumer, int count) {
        List<MessageExt> got = new ArrayList<>();
        Await.until(count + " polled", () -> {
            got.addAll(consumer.poll(200));
            return got.size() >= count;
        }, () -> got.size() + " polled");
        return got;
    }

    /**
     * Polls {@code count} messages of one queue from {@code offset} on. What comes before that offset does was pulled before the
     * client's seek, which does not take it back.
     */
    private static List<MessageExt> pollFrom(DefaultLitePullConsumer consumer, long offset, int count) {
        List<MessageExt> got = new ArrayList<>();
        Await.until(count + " polled from offset " + offset, () -> {
            for (MessageExt message : consumer.poll(200)) {
                if (!got.isEmpty() || message.getQueueOffset() == offset) {
                    got.add(message);
                }
            }
            return got.size() >= count;
        }, () -> got.size() + " polled");
        return got;
    }

    private static List<String> sorted(List<String> texts) {
        return texts.stream().sorted().toList();
    }

    @Test
    @Tag("binary")
    void subscribePollCommitAndGoOn() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        sendAll(producer, topic, "first-", 100);
        DefaultLitePullConsumer consumer = clients.litePull(group);
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();
        List<MessageExt> got = poll(consumer, 100);
        assertEquals(sorted(numbered("first-", 100)), sorted(texts(got)));

        Map<MessageQueue, Long> next = new HashMap<>();
        got.forEach(m -> next.merge(queue(topic, m.getQueueId()), m.getQueueOffset() + 1, Math::max));
        consumer.commitSync(next, true);
        for (MessageQueue queue : next.keySet()) {
            assertEquals(25, consumer.committed(queue));
        }
        consumer.shutdown();

        sendAll(producer, topic, "second-", 40);
        DefaultLitePullConsumer later = clients.litePull(group);
        later.subscribe(topic, "*");
        later.start();
        assertEquals(sorted(numbered("second-", 40)), sorted(texts(poll(later, 40))));
    }

    @Test
    void autoCommitIsStored() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        sendAll(producer, topic, "first-", 30);
        DefaultLitePullConsumer consumer = clients.litePull(group);
        consumer.setAutoCommitIntervalMillis(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.start();
        poll(consumer, 30);
        Await.until("both offsets at the broker", () -> {
            consumer.poll(10);
            return stored(producer, 0) == 15 && stored(producer, 1) == 15;
        }, () -> stored(producer, 0) + " and " + stored(producer, 1));
        consumer.shutdown();
        sendAll(producer, topic, "second-", 10);
        DefaultLitePullConsumer later = clients.litePull(group);
        later.subscribe(topic, "*");
        later.start();
        assertEquals(sorted(numbered("second-", 10)), sorted(texts(poll(later, 10))));
    }

    @Test
    void twoSubscribersShare() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        List<DefaultLitePullConsumer> members = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultLitePullConsumer consumer = clients.litePull(group);
            consumer.subscribe(topic, "*");
            consumer.start();
            members.add(consumer);
        }
        Await.until("two queues each", () -> {
            for (DefaultLitePullConsumer member : members) {
                member.poll(10);
                if (member.assignment().size() != 2) {
                    return false;
                }
            }
            return true;
        }, () -> "otherwise");
        sendAll(producer, topic, "m", 80);
        List<MessageExt> got = new ArrayList<>();
        Await.until("80 polled", () -> {
            members.forEach(m -> got.addAll(m.poll(100)));
            return got.size() >= 80;
        }, got::size);
        assertEquals(sorted(numbered("m", 80)), sorted(texts(got)));
    }

    @Test
    void assignAndSeek() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        MessageQueue queue = queue(topic, 1);
        sendAllTo(producer, queue, "m", 50);
        DefaultLitePullConsumer consumer = clients.litePull(group);
        consumer.setAutoCommit(false);
        consumer.start();
        assertEquals(2, new HashSet<>(consumer.fetchMessageQueues(topic)).size());
        consumer.assign(List.of(queue));
        consumer.seek(queue, 20);
        List<MessageExt> from20 = pollFrom(consumer, 20, 30);
        assertEquals(numbered("m", 50).subList(20, 50), texts(from20));

        consumer.seekToBegin(queue);
        assertEquals(numbered("m", 50), texts(pollFrom(consumer, 0, 50)));

        consumer.seekToEnd(queue);
        sendAllTo(producer, queue, "new", 5);
        assertEquals(numbered("new", 5), texts(pollFrom(consumer, 50, 5)));

        MessageExt tenth = from20.get(10);
        long byTime = consumer.offsetForTimestamp(queue, tenth.getStoreTimestamp());
        assertTrue(byTime <= tenth.getQueueOffset());
        consumer.seek(queue, byTime);
        assertEquals(byTime, pollFrom(consumer, byTime, 1).get(0).getQueueOffset());
    }

    @Test
    void subscriptionFiltersByTag() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        for (int i = 0; i < 40; i++) {
            sendOk(producer, message(topic, i % 4 == 0 ? "TagA" : "TagB", (i % 4 == 0 ? "a" : "b") + i));
        }
        DefaultLitePullConsumer consumer = clients.litePull(group);
        consumer.subscribe(topic, "TagA");
        consumer.start();
        List<String> got = texts(poll(consumer, 10));
        assertEquals(10, got.size());
        assertTrue(got.stream().allMatch(t -> t.startsWith("a")), got.toString());
    }

    @Test
    void polledWhileIdle() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        DefaultLitePullConsumer consumer = clients.litePull(group);
        consumer.subscribe(topic, "*");
        consumer.start();
        assertEquals(List.of(), consumer.poll(1500));
        sendAll(producer, topic, "m", 6);
        assertEquals(sorted(numbered("m", 6)), sorted(texts(poll(consumer, 6))));
    }
}
