package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Subscriptions by SQL92, with every kind of consumer. */
@Tag("binary")
class SqlFilterTest extends Interop {
    private static Message withNumber(String topic, int n) {
        Message message = message(topic, n % 2 == 0 ? "even" : "odd", "m" + n);
        message.putUserProperty("n", Integer.toString(n));
        return message;
    }

    private static void sendNumbers(DefaultMQProducer producer, String topic, int from, int to) throws Exception {
        for (int n = from; n < to; n++) {
            sendOk(producer, withNumber(topic, n));
        }
    }

    private static List<String> named(IntStream numbers) {
        return numbers.mapToObj(n -> "m" + n).toList();
    }

    @Test
    void pushConsumerGetsWhatMatches() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        sendNumbers(producer, topic, 0, 100);
        Received seen = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, MessageSelector.bySql("(n BETWEEN 10 AND 19 OR n >= 90) AND TAGS = 'even'"));
        consumer.registerMessageListener(seen.concurrently());
        consumer.start();
        seen.assertExactly("m", named(IntStream.range(0, 100).filter(n -> n % 2 == 0 && (n >= 10 && n < 20 || n >= 90))));
        // And what comes while it waits.
        sendNumbers(producer, topic, 100, 120);
        seen.assertExactly("m", named(IntStream.range(0, 120).filter(n -> n % 2 == 0 && (n >= 10 && n < 20 || n >= 90))));
    }

    /** A pull consumer that heard of the broker's version by its heartbeat: before that it pulls by tags alone. */
    private DefaultMQPullConsumer puller() throws Exception {
        DefaultMQPullConsumer puller = clients.pull(group);
        Await.until("the broker's version", () -> {
            try {
                puller.pull(queue(topic, 0), MessageSelector.bySql("TRUE"), 0, 1);
                return true;
            } catch (MQClientException e) {
                return !e.getMessage().contains("does not upgrade to support");
            }
        }, () -> "unknown");
        return puller;
    }

    @Test
    void pullConsumerGetsWhatMatches() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        sendNumbers(producer, topic, 0, 30);
        DefaultMQPullConsumer puller = puller();
        PullResult found = puller.pull(queue(topic, 0), MessageSelector.bySql("n IN ('3', '7') OR n > 27"), 0, 32);
        assertEquals(PullStatus.FOUND, found.getPullStatus());
        assertEquals(List.of("m3", "m7", "m28", "m29"), texts(found.getMsgFoundList()));
        assertEquals(30, found.getNextBeginOffset());
        PullResult none = puller.pull(queue(topic, 0), MessageSelector.bySql("n IS NULL"), 0, 32);
        assertEquals(PullStatus.NO_MATCHED_MSG, none.getPullStatus());
        assertEquals(30, none.getNextBeginOffset());
        PullResult two = puller.pull(queue(topic, 0), MessageSelector.bySql("TAGS <> 'odd'"), 5, 2);
        assertEquals(List.of("m6", "m8"), texts(two.getMsgFoundList()));
        assertEquals(9, two.getNextBeginOffset());
    }

    /** A subscription that does not compile filters nothing when the pull itself carries it. */
    @Test
    void pullWithABadExpressionGetsAll() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        sendNumbers(producer, topic, 0, 3);
        PullResult found = puller().pull(queue(topic, 0), MessageSelector.bySql("n >"), 0, 32);
        assertEquals(List.of("m0", "m1", "m2"), texts(found.getMsgFoundList()));
    }

    @Test
    void litePullConsumerGetsWhatMatches() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        sendNumbers(producer, topic, 0, 40);
        DefaultLitePullConsumer consumer = clients.litePull(group);
        consumer.subscribe(topic, MessageSelector.bySql("n < 4 OR TAGS CONTAINS 'od' AND n >= 36"));
        consumer.start();
        List<MessageExt> got = new ArrayList<>();
        List<String> wanted = List.of("m0", "m1", "m2", "m3", "m37", "m39");
        Await.until("all that match", () -> got.addAll(consumer.poll(500)) && got.size() >= wanted.size(), () -> texts(got));
        assertEquals(wanted, texts(got).stream().sorted((a, b) -> Integer.compare(a.length(), b.length()) * 2 + Integer.signum(a.compareTo(b))).toList());
    }

    /** What the filter let through comes again, though it is in another topic then. */
    @Test
    void refusedMessageComesAgain() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        Received seen = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setPollNameServerInterval(1000);
        consumer.subscribe(topic, MessageSelector.bySql("n = 5"));
        CompletableFuture<MessageExt> again = new CompletableFuture<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            seen.add(batch);
            if (batch.get(0).getReconsumeTimes() > 0) {
                again.complete(batch.get(0));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        sendNumbers(producer, topic, 0, 8);
        MessageExt back = again.get(Await.PATIENCE.toSeconds(), TimeUnit.SECONDS);
        assertEquals("m5", text(back));
        assertEquals(topic, back.getTopic());
        assertEquals(List.of("m5", "m5"), seen.texts());
    }

    /** The client asks the broker first, and does not start with what the broker refuses. */
    @Test
    void badExpressionKeepsTheConsumerFromStarting() throws Exception {
        producerFor(topic, 1);
        expectWarnings("Start the consumer .* fail|fetchConsumeOffsetFromBroker exception|Compute consume offset exception|add new mq failed");
        for (String bad : List.of("n >", "n > 'x'", "n BETWEEN 5 AND 1", "5")) {
            DefaultMQPushConsumer consumer = clients.push(group);
            consumer.subscribe(topic, MessageSelector.bySql(bad));
            consumer.registerMessageListener(new Received().concurrently());
            MQClientException refused = assertThrows(MQClientException.class, consumer::start, bad);
            assertTrue(refused.getMessage().contains("CODE: 23"), refused::toString);
            consumer.shutdown();
        }
    }

    /** A group may go from tags to an expression and to another one. */
    @Test
    void subscriptionMayChange() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        sendNumbers(producer, topic, 0, 10);
        List<String> wanted = new ArrayList<>();
        Object[][] steps = {{"odd", 0, "1 3 5 7 9"}, {"n < 13", 10, "10 11 12"}, {"n > 25", 20, "26 27 28 29"}};
        for (Object[] step : steps) {
            String text = (String) step[0];
            int from = (int) step[1];
            if (from > 0) {
                sendNumbers(producer, topic, from, from + 10);
            }
            Received seen = new Received();
            DefaultMQPushConsumer consumer = clients.push(group);
            if (text.equals("odd")) {
                consumer.subscribe(topic, text);
            } else {
                consumer.subscribe(topic, MessageSelector.bySql(text));
            }
            consumer.registerMessageListener(seen.concurrently());
            consumer.start();
            wanted.clear();
            for (String n : ((String) step[2]).split(" ")) {
                wanted.add("m" + n);
            }
            seen.assertExactly("m", wanted);
            Await.until("offset " + (from + 10), () -> {
                consumer.getOffsetStore().persistAll(java.util.Set.of(queue(topic, 0)));
                return stored(producer, 0) == from + 10;
            }, () -> stored(producer, 0));
            stop(consumer);
        }
    }
}
