package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * The main job: {@code -Dbig.messages} messages of 1 KiB by four producers over eight queues to three consumers of one group, of
 * which one leaves and another joins midway. Each message at least once, none lost, each queue in order, no error in any client.
 */
@Tag("long")
class BigJobTest extends Interop {
    private static final int MESSAGES = Integer.getInteger("big.messages", 100_000);
    private static final int PRODUCERS = 4;
    private static final int THREADS = 4; // of each producer; what one thread sends to one queue stays in order
    private static final int LANES = PRODUCERS * THREADS;
    private static final int QUEUES = 8;
    private static final int BODY_BYTES = 1024;
    private static final Duration PATIENCE = Duration.ofSeconds(180 + MESSAGES / 1000);

    /** What is known of one queue: which offsets came, and how far each sending thread got in the order of first deliveries. */
    private static final class QueueSeen {
        private final BitSet offsets = new BitSet();
        private final int[] lastOf = new int[LANES];
        private long repeats;

        QueueSeen() {
            Arrays.fill(lastOf, -1);
        }

        /** Returns whether the message is new; complains of one that should have come earlier. */
        synchronized boolean add(MessageExt message, int lane, int sequence) {
            int offset = (int) message.getQueueOffset();
            if (offsets.get(offset)) {
                repeats++;
                return false;
            }
            offsets.set(offset);
            if (offsets.length() != offset + 1) {
                throw new IllegalStateException("offset " + offset + " of queue " + message.getQueueId() + " first came after "
                    + (offsets.length() - 1));
            }
            if (sequence <= lastOf[lane]) {
                throw new IllegalStateException("lane " + lane + ": " + sequence + " came after " + lastOf[lane]);
            }
            lastOf[lane] = sequence;
            return true;
        }

        synchronized int count() {
            return offsets.cardinality();
        }

        synchronized int length() {
            return offsets.length();
        }
    }

    private final QueueSeen[] queues = new QueueSeen[QUEUES];
    private final AtomicLong sent = new AtomicLong();
    private final AtomicLong received = new AtomicLong();
    private final AtomicReference<Throwable> fault = new AtomicReference<>();

    private static byte[] body(int lane, int sequence) {
        ByteBuffer body = ByteBuffer.allocate(BODY_BYTES).putInt(lane).putInt(sequence);
        long x = lane * 31L + sequence + 1;
        while (body.hasRemaining()) {
            x ^= x << 13;
            x ^= x >>> 7;
            x ^= x << 17;
            body.putLong(x);
        }
        return body.array();
    }

    private void produce(DefaultMQProducer producer, int lane) throws Exception {
        for (int i = 0; i < MESSAGES / LANES && fault.get() == null; i++) {
            SendResult result = producer.send(new Message(topic, body(lane, i)), queue(topic, (i + lane) % QUEUES));
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException(result.toString());
            }
            sent.incrementAndGet();
        }
    }

    private boolean take(List<MessageExt> batch) {
        try {
            for (MessageExt message : batch) {
                ByteBuffer head = ByteBuffer.wrap(message.getBody());
                int lane = head.getInt();
                int sequence = head.getInt();
                if (!Arrays.equals(body(lane, sequence), message.getBody())) {
                    throw new IllegalStateException("damaged body in queue " + message.getQueueId() + " at " + message.getQueueOffset());
                }
                if (queues[message.getQueueId()].add(message, lane, sequence)) {
                    received.incrementAndGet();
                }
            }
            return true;
        } catch (RuntimeException e) {
            fault.compareAndSet(null, e);
            return false;
        }
    }

    private DefaultMQPushConsumer startConsumer(boolean orderly) throws Exception {
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) ->
                take(batch) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            // One thread a consumer: then what it is handed of one queue is in the queue's order.
            consumer.setConsumeThreadMin(1);
            consumer.setConsumeThreadMax(1);
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) ->
                take(batch) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        return consumer;
    }

    private void awaitReceived(long count, List<Future<Void>> producing) {
        Await.until(count + " messages", PATIENCE, () -> {
            for (Future<Void> producer : producing) {
                if (producer.isDone()) {
                    producer.get(); // throws what the producer met
                }
            }
            return received.get() >= count || fault.get() != null;
        }, () -> sent.get() + " sent, " + received.get() + " received");
        if (fault.get() != null) {
            throw new AssertionError(fault.get().getMessage(), fault.get());
        }
    }

    private void run(boolean orderly) throws Exception {
        for (int q = 0; q < QUEUES; q++) {
            queues[q] = new QueueSeen();
        }
        producerFor(topic, QUEUES).shutdown(); // an idle connection would be closed after two minutes, with a warning
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            consumers.add(startConsumer(orderly));
        }
        ExecutorService threads = Executors.newFixedThreadPool(LANES);
        clients.onClose(threads::shutdownNow);
        List<Future<Void>> producing = new ArrayList<>();
        long first = System.nanoTime();
        for (int p = 0; p < PRODUCERS; p++) {
            DefaultMQProducer producer = clients.producer(name + "p" + p);
            for (int t = 0; t < THREADS; t++) {
                int lane = p * THREADS + t;
                producing.add(threads.submit(() -> {
                    produce(producer, lane);
                    return null;
                }));
            }
        }
        awaitReceived(MESSAGES / 3, producing);
        ClientLog.assertSilent(begun, null);
        stop(consumers.get(0));
        awaitReceived(MESSAGES / 2, producing);
        startConsumer(orderly);
        int all = MESSAGES / LANES * LANES;
        awaitReceived(all, producing);
        for (Future<Void> producer : producing) {
            producer.get(1, TimeUnit.MINUTES);
        }
        long repeats = 0;
        int count = 0;
        for (int q = 0; q < QUEUES; q++) {
            assertEquals(queues[q].length(), queues[q].count(), "queue " + q + " has no gap");
            count += queues[q].count();
            repeats += queues[q].repeats;
        }
        assertEquals(all, count);
        ClientLog.assertSilent(begun, expected);
        System.out.printf("big job, %s listener: %d messages in %.1f s, %d delivered again%n", orderly ? "orderly" : "concurrent",
            all, (System.nanoTime() - first) / 1e9, repeats);
        assertTrue(repeats < all / 5, repeats + " messages were delivered again");
    }

    @Test
    @Timeout(value = 30, unit = TimeUnit.MINUTES)
    void concurrentListener() throws Exception {
        run(false);
    }

    @Test
    @Timeout(value = 30, unit = TimeUnit.MINUTES)
    void orderlyListener() throws Exception {
        run(true);
    }
}
