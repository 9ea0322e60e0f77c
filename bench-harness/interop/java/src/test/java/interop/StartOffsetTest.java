package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.text.SimpleDateFormat;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Where a group starts, and where it goes on. */
class StartOffsetTest extends Interop {
    private static String second(long millis) {
        return new SimpleDateFormat("yyyyMMddHHmmss").format(new Date(millis));
    }

    /** Broadcasting members keep their offsets themselves, so the three ways of starting reach the broker as they are. */
    private Received broadcaster(ConsumeFromWhere from, String timestamp) throws Exception {
        Received received = new Received();
        DefaultMQPushConsumer consumer = clients.push(group + "-" + from.name().substring(13));
        ClientLine.broadcasting(consumer);
        consumer.setConsumeFromWhere(from);
        if (timestamp != null) {
            consumer.setConsumeTimestamp(timestamp);
        }
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        awaitQueuesHeld(consumer, topic, 2);
        return received;
    }

    @Test
    void firstLastAndTimestamp() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        sendAll(producer, topic, "old-", 20);
        // The client names its start in whole seconds.
        LockSupport.parkNanos(Duration.ofMillis(1100).toNanos());
        String between = second(System.currentTimeMillis());
        LockSupport.parkNanos(Duration.ofMillis(1100).toNanos());
        sendAll(producer, topic, "mid-", 20);

        Received first = broadcaster(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, null);
        Received last = broadcaster(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, null);
        Received since = broadcaster(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, between);
        sendAll(producer, topic, "new-", 20);

        List<String> all = new ArrayList<>(numbered("old-", 20));
        all.addAll(numbered("mid-", 20));
        all.addAll(numbered("new-", 20));
        first.assertExactly("", all);
        since.assertExactly("", all.subList(20, 60));
        last.assertExactly("", all.subList(40, 60));
    }

    /** A queue whose first message is still there and recent makes a new group start at 0, whatever it asked for. */
    @ParameterizedTest
    @EnumSource(names = {"CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_TIMESTAMP"})
    void newGroupOnAYoungQueueStartsAtZero(ConsumeFromWhere from) throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        sendAll(producer, topic, "m", 20);
        Received received = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setConsumeFromWhere(from);
        consumer.setConsumeTimestamp(second(System.currentTimeMillis() + 60_000));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        received.assertExactly("m", numbered("m", 20));
    }

    @Test
    void secondConsumerOfTheGroupGoesOn() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        Received first = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(first.concurrently());
        consumer.start();
        sendAll(producer, topic, "before-", 100);
        first.assertExactly("", numbered("before-", 100));
        stop(consumer);

        sendAll(producer, topic, "after-", 50);
        Received second = new Received();
        DefaultMQPushConsumer next = clients.push(group);
        next.subscribe(topic, "*");
        next.registerMessageListener(second.concurrently());
        next.start();
        second.assertExactly("", numbered("after-", 50));
        assertEquals(100, first.count());
    }

    /** The client tells the broker every five seconds, not only when it stops. */
    @Test
    void offsetsArriveWhileTheConsumerRuns() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        Received received = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        sendAll(producer, topic, "m", 30);
        received.assertExactly("m", numbered("m", 30));
        Await.until("offset 30", () -> stored(producer, 0) == 30, () -> stored(producer, 0));
    }
}
