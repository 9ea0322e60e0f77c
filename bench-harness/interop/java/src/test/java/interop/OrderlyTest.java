package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** Push consumers with an orderly listener: they hold queue locks at the broker. */
class OrderlyTest extends Interop {
    private DefaultMQPushConsumer start(MessageListenerOrderly listener) throws Exception {
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    private static void sendOrdered(DefaultMQProducer producer, String topic, int queues, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            producer.send(message(topic, "TagA", "m" + i), queue(topic, i % queues));
        }
    }

    /** In each queue every offset from 0 on once, in this order. */
    private static void assertOrder(Received received, int queues, int perQueue) {
        Map<Integer, List<Long>> offsets = new TreeMap<>();
        for (MessageExt message : received.all()) {
            offsets.computeIfAbsent(message.getQueueId(), q -> new ArrayList<>()).add(message.getQueueOffset());
        }
        assertEquals(queues, offsets.size());
        for (List<Long> seen : offsets.values()) {
            for (int i = 0; i < seen.size(); i++) {
                assertEquals(i, seen.get(i), "offsets in the order of delivery: " + seen);
            }
            assertEquals(perQueue, seen.size());
        }
    }

    @Test
    void eachQueueInOrder() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        Received received = new Received();
        start(received.orderly());
        sendOrdered(producer, topic, 4, 0, 400);
        received.awaitAll(numbered("m", 400));
        assertOrder(received, 4, 100);
    }

    @Test
    void locksPassToTheConsumerThatTakesOver() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        Received together = new Received();
        AtomicInteger byA = new AtomicInteger();
        AtomicInteger byB = new AtomicInteger();
        DefaultMQPushConsumer a = start(counting(together, byA));
        sendOrdered(producer, topic, 4, 0, 200);
        together.awaitAll(numbered("m", 200));
        assertEquals(200, byA.get());

        DefaultMQPushConsumer b = start(counting(together, byB));
        awaitQueuesHeld(a, topic, 2);
        awaitQueuesHeld(b, topic, 2);
        sendOrdered(producer, topic, 4, 200, 400);
        together.awaitAll(numbered("m", 400));
        assertEquals(100, byB.get());

        stop(a);
        awaitQueuesHeld(b, topic, 4);
        sendOrdered(producer, topic, 4, 400, 600);
        together.awaitAll(numbered("m", 600));
        assertEquals(300, byB.get());
        assertOrder(together, 4, 150);
    }

    private static MessageListenerOrderly counting(Received together, AtomicInteger count) {
        return (batch, context) -> {
            count.addAndGet(batch.size());
            together.add(batch);
            return ConsumeOrderlyStatus.SUCCESS;
        };
    }

    @Test
    void suspendedQueueIsTriedAgainBeforeTheNextMessage() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        Received accepted = new Received();
        AtomicInteger refusals = new AtomicInteger();
        start((batch, context) -> {
            if (text(batch.get(0)).equals("m3") && refusals.getAndIncrement() < 2) {
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            accepted.add(batch);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        sendOrdered(producer, topic, 1, 0, 10);
        accepted.awaitAll(numbered("m", 10));
        assertEquals(numbered("m", 10), accepted.texts());
        assertEquals(3, refusals.get());
        assertTrue(accepted.all().get(3).getReconsumeTimes() >= 2);
    }

    /** A message refused too often goes to the dead letters by way of a send to the retry topic. */
    @Test
    void refusedMessageBecomesADeadLetter() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        Received accepted = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            if (text(batch.get(0)).equals("m1")) {
                context.setSuspendCurrentQueueTimeMillis(50);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            accepted.add(batch);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        sendOrdered(producer, topic, 1, 0, 4);
        accepted.awaitAll(List.of("m0", "m2", "m3"));
        RetryTest.assertDeadLetter(this, group, "m1");
    }
}
