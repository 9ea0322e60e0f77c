package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Push consumers with a concurrent listener: clustering, broadcasting, tags, and what a member's coming and going does. */
class PushTest extends Interop {
    private DefaultMQPushConsumer start(String subscription, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, subscription);
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    @Test
    @Tag("binary")
    void eachMessageOnceAcrossAChangingGroup() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 8);
        Received byA = new Received();
        Received byB = new Received();
        Received byC = new Received();
        DefaultMQPushConsumer a = start("*", byA.concurrently());
        awaitQueuesHeld(a, topic, 8);

        long noticesBefore = ClientLog.noticesOfChange(group);
        DefaultMQPushConsumer b = start("*", byB.concurrently());
        awaitQueuesHeld(a, topic, 4);
        awaitQueuesHeld(b, topic, 4);
        Await.until("notice of b's joining", () -> ClientLog.noticesOfChange(group) > noticesBefore, () -> "none");
        sendAll(producer, topic, "two-", 400);
        awaitTogether("two-", 400, byA, byB);
        assertEquals(200, byA.textsStarting("two-").size());
        assertEquals(200, byB.textsStarting("two-").size());

        long noticesWithB = ClientLog.noticesOfChange(group);
        stop(b);
        awaitQueuesHeld(a, topic, 8);
        Await.until("notice of b's leaving", () -> ClientLog.noticesOfChange(group) > noticesWithB, () -> "none");
        sendAll(producer, topic, "one-", 200);
        byA.assertExactly("one-", numbered("one-", 200));

        DefaultMQPushConsumer c = start("*", byC.concurrently());
        awaitQueuesHeld(a, topic, 4);
        awaitQueuesHeld(c, topic, 4);
        sendAll(producer, topic, "again-", 200);
        awaitTogether("again-", 200, byA, byC);
        assertEquals(400, byA.textsStarting("two-").size() + byB.textsStarting("two-").size());
        assertEquals(0, byB.textsStarting("one-").size() + byB.textsStarting("again-").size());
    }

    /** Together each text exactly once. */
    private static void awaitTogether(String stem, int count, Received first, Received second) {
        Await.until(count + " messages " + stem, () -> first.textsStarting(stem).size() + second.textsStarting(stem).size() >= count,
            () -> first.textsStarting(stem).size() + " + " + second.textsStarting(stem).size());
        List<String> both = new ArrayList<>(first.textsStarting(stem));
        both.addAll(second.textsStarting(stem));
        assertEquals(numbered(stem, count).stream().sorted().toList(), both.stream().sorted().toList());
    }

    @Test
    void groupsDoNotShare() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        Received first = new Received();
        Received second = new Received();
        start("*", first.concurrently());
        group = name + "g2";
        start("*", second.concurrently());
        sendAll(producer, topic, "m", 50);
        first.assertExactly("m", numbered("m", 50));
        second.assertExactly("m", numbered("m", 50));
    }

    @Test
    void broadcastingReachesEveryMember() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        List<Received> members = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Received received = new Received();
            DefaultMQPushConsumer consumer = clients.push(group);
            ClientLine.broadcasting(consumer);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(received.concurrently());
            consumer.start();
            awaitQueuesHeld(consumer, topic, 4);
            members.add(received);
        }
        sendAll(producer, topic, "m", 100);
        for (Received received : members) {
            received.assertExactly("m", numbered("m", 100));
        }
    }

    @Test
    @Tag("binary")
    void tagsAreFiltered() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        Received received = new Received();
        start("TagA || TagB", received.concurrently());
        List<String> wanted = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            String tag = List.of("TagA", "TagB", "TagC").get(i % 3);
            sendOk(producer, message(topic, tag, tag + "-" + i));
            if (!tag.equals("TagC")) {
                wanted.add(tag + "-" + i);
            }
        }
        received.assertExactly("Tag", wanted);
        assertTrue(received.all().stream().allMatch(m -> text(m).startsWith(m.getTags())));
    }

    /** "Aa" and "BB" have the same Java hash, by which the broker filters; the client must not let the other one through. */
    @Test
    void tagsOfOneHashStayApart() throws Exception {
        assertEquals("Aa".hashCode(), "BB".hashCode());
        DefaultMQProducer producer = producerFor(topic, 1);
        Received received = new Received();
        start("Aa", received.concurrently());
        for (int i = 0; i < 10; i++) {
            sendOk(producer, message(topic, i % 2 == 0 ? "Aa" : "BB", "m" + i));
        }
        sendOk(producer, message(topic, null, "m-untagged"));
        received.assertExactly("m", List.of("m0", "m2", "m4", "m6", "m8"));
    }

    @Test
    void offsetPassesOverFilteredMessages() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        Received received = new Received();
        DefaultMQPushConsumer consumer = start("TagB", received.concurrently());
        sendAll(producer, topic, "unwanted", 100);
        sendOk(producer, message(topic, "TagB", "wanted"));
        sendAll(producer, topic, "unwanted", 100);
        received.assertExactly("", List.of("wanted"));
        DefaultMQPullConsumer puller = clients.pull(group + "-reader");
        stop(consumer);
        assertEquals(201, maxOffset(puller, queue(topic, 0)));

        Received later = new Received();
        start("*", later.concurrently());
        sendOk(producer, message(topic, "TagA", "last"));
        later.awaitAll(List.of("last"));
        assertTrue(later.all().get(0).getQueueOffset() > 100, "resumed at " + later.all().get(0).getQueueOffset());
    }

    @Test
    void subscriptionMayChange() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        Received received = new Received();
        DefaultMQPushConsumer consumer = start("TagA", received.concurrently());
        sendOk(producer, message(topic, "TagA", "a1"));
        sendOk(producer, message(topic, "TagB", "b1"));
        received.assertExactly("", List.of("a1"));
        stop(consumer);
        start("TagB", received.concurrently());
        sendOk(producer, message(topic, "TagA", "a2"));
        sendOk(producer, message(topic, "TagB", "b2"));
        received.awaitAll(List.of("b2"));
        assertEquals(List.of(), received.textsStarting("a2"));
    }

    @Test
    void batchesReachTheListener() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        sendAll(producer, topic, "m", 200);
        Received received = new Received();
        AtomicInteger largest = new AtomicInteger();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setPullBatchSize(32);
        consumer.setConsumeMessageBatchMaxSize(16);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            largest.accumulateAndGet(batch.size(), Math::max);
            received.add(batch);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        received.assertExactly("m", numbered("m", 200));
        assertEquals(16, largest.get());
    }

    @Test
    void pushedMessageIsWhole() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        Received received = new Received();
        start("*", received.concurrently());
        var sent = sendAll(producer, topic, "m", 10);
        received.assertExactly("m", numbered("m", 10));
        Map<String, MessageExt> byText = new HashMap<>();
        received.all().forEach(m -> byText.put(text(m), m));
        for (int i = 0; i < 10; i++) {
            MessageExt message = byText.get("m" + i);
            assertEquals(sent.get(i).getMsgId(), message.getMsgId());
            assertEquals(i, message.getQueueOffset());
            assertEquals("TagA", message.getTags());
        }
    }

    /** The consumer knows the topic only by asking the NameServer again. */
    @Test
    void consumerMayStartBeforeTheTopicExists() throws Exception {
        Received received = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setPollNameServerInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        DefaultMQProducer producer = clients.producer(name + "p");
        sendAll(producer, topic, "m", 20);
        received.awaitAll(numbered("m", 20));
    }
}
