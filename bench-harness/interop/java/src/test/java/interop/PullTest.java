package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullCallback;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The classic pull consumer, long polling included. */
@Tag("binary")
class PullTest extends Interop {
    @Test
    void pullsFindWhatIsThere() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        sendAllTo(producer, queue(topic, 1), "m", 50);
        DefaultMQPullConsumer puller = clients.pull(group);
        assertEquals(Set.of(queue(topic, 0), queue(topic, 1)), puller.fetchSubscribeMessageQueues(topic));

        PullResult found = puller.pull(queue(topic, 1), "*", 10, 20);
        assertEquals(PullStatus.FOUND, found.getPullStatus());
        assertEquals(numbered("m", 50).subList(10, 30), texts(found.getMsgFoundList()));
        assertEquals(30, found.getNextBeginOffset());
        assertEquals(0, found.getMinOffset());
        assertEquals(50, found.getMaxOffset());

        PullResult nothing = puller.pull(queue(topic, 1), "*", 50, 20);
        assertEquals(PullStatus.NO_NEW_MSG, nothing.getPullStatus());
        assertEquals(50, nothing.getNextBeginOffset());
        PullResult empty = puller.pull(queue(topic, 0), "*", 0, 20);
        assertEquals(PullStatus.NO_NEW_MSG, empty.getPullStatus());

        PullResult beyond = puller.pull(queue(topic, 1), "*", 1000, 20);
        assertEquals(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus());
        assertEquals(50, beyond.getNextBeginOffset());
    }

    @Test
    void pullFiltersByTag() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        for (int i = 0; i < 30; i++) {
            sendOk(producer, message(topic, i % 3 == 0 ? "TagA" : "TagB", "m" + i));
        }
        DefaultMQPullConsumer puller = clients.pull(group);
        PullResult found = puller.pull(queue(topic, 0), "TagA", 0, 32);
        assertEquals(PullStatus.FOUND, found.getPullStatus());
        assertEquals(10, found.getMsgFoundList().size());
        assertEquals(30, found.getNextBeginOffset());
        PullResult unmatched = puller.pull(queue(topic, 0), "TagC", 0, 32);
        assertEquals(PullStatus.NO_MATCHED_MSG, unmatched.getPullStatus());
        assertEquals(30, unmatched.getNextBeginOffset());
    }

    @Test
    void callbackPull() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        sendAll(producer, topic, "m", 10);
        CompletableFuture<PullResult> answer = new CompletableFuture<>();
        clients.pull(group).pull(queue(topic, 0), "*", 0, 32, new PullCallback() {
            @Override
            public void onSuccess(PullResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable e) {
                answer.completeExceptionally(e);
            }
        });
        assertEquals(numbered("m", 10), texts(answer.get(30, TimeUnit.SECONDS).getMsgFoundList()));
    }

    /** A held pull on each of eight queues: each is answered by the message that arrives in its queue. */
    @Test
    void heldPullIsWokenByArrival() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 8);
        DefaultMQPullConsumer puller = clients.pull(group);
        ExecutorService threads = Executors.newFixedThreadPool(8);
        clients.onClose(threads::shutdownNow);
        List<Future<PullResult>> held = new ArrayList<>();
        long begun = System.nanoTime();
        for (int q = 0; q < 8; q++) {
            MessageQueue queue = queue(topic, q);
            held.add(threads.submit(() -> puller.pullBlockIfNotFound(queue, "*", 0, 32)));
        }
        LockSupport.parkNanos(Duration.ofSeconds(1).toNanos());
        assertTrue(held.stream().noneMatch(Future::isDone), "an empty queue's pull is held");
        for (int q = 0; q < 8; q++) {
            producer.send(message(topic, "TagA", "m" + q), queue(topic, q));
        }
        for (int q = 0; q < 8; q++) {
            PullResult result = held.get(q).get(30, TimeUnit.SECONDS);
            assertEquals(PullStatus.FOUND, result.getPullStatus());
            assertEquals(List.of("m" + q), texts(result.getMsgFoundList()));
        }
        // The client asks to be held for 20 s; an answer of the periodic look alone would come much later than that of an arrival.
        assertTrue(System.nanoTime() - begun < Duration.ofSeconds(15).toNanos());
    }

    @Test
    void heldPullPassesOverOtherTags() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        DefaultMQPullConsumer puller = clients.pull(group);
        CompletableFuture<MessageExt> found = CompletableFuture.supplyAsync(() -> {
            long offset = 0;
            while (true) {
                try {
                    PullResult result = puller.pullBlockIfNotFound(queue(topic, 0), "TagB", offset, 32);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        return result.getMsgFoundList().get(0);
                    }
                    offset = result.getNextBeginOffset();
                } catch (Exception e) {
                    throw new IllegalStateException(e);
                }
            }
        });
        for (int i = 0; i < 5; i++) {
            sendOk(producer, message(topic, "TagA", "a" + i));
        }
        sendOk(producer, message(topic, "TagB", "b"));
        MessageExt message = found.get(40, TimeUnit.SECONDS);
        assertEquals("b", text(message));
        assertEquals(5, message.getQueueOffset());
    }

    @Test
    void heldPullEndsWithItsTime() throws Exception {
        producerFor(topic, 1);
        DefaultMQPullConsumer puller = clients.pull(group);
        puller.setBrokerSuspendMaxTimeMillis(1000);
        long begun = System.nanoTime();
        PullResult result = puller.pullBlockIfNotFound(queue(topic, 0), "*", 0, 32);
        assertEquals(PullStatus.NO_NEW_MSG, result.getPullStatus());
        assertTrue(System.nanoTime() - begun >= Duration.ofMillis(900).toNanos(), "held for the time asked");
    }

    /** The push consumer's pull is held for 15 s; what arrives meanwhile is delivered at once. */
    @Test
    void idlePushConsumerIsWoken() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        Received received = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        awaitQueuesHeld(consumer, topic, 4);
        for (int round = 0; round < 3; round++) {
            LockSupport.parkNanos(Duration.ofSeconds(1).toNanos());
            String text = "round" + round;
            sendOk(producer, message(topic, "TagA", text));
            Await.until(text, Duration.ofSeconds(10), () -> received.texts().contains(text), received::texts);
        }
    }

    @Test
    void offsetsAreKept() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        sendAll(producer, topic, "m", 20);
        MessageQueue queue = queue(topic, 0);
        DefaultMQPullConsumer first = clients.pull(group);
        first.fetchSubscribeMessageQueues(topic);
        assertEquals(20, first.pull(queue, "*", 0, 32).getNextBeginOffset());
        first.updateConsumeOffset(queue, 13);
        first.getOffsetStore().persist(queue);
        first.shutdown();
        DefaultMQPullConsumer second = clients.pull(group);
        Await.until("offset 13", () -> second.fetchConsumeOffset(queue, true) == 13, () -> "another");
    }

    @Test
    void minMaxAndSearchOffset() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        MessageQueue queue = queue(topic, 1);
        DefaultMQPullConsumer puller = clients.pull(group);
        assertEquals(0, puller.maxOffset(queue));
        assertEquals(0, puller.minOffset(queue));
        List<SendResult> sent = new ArrayList<>();
        for (int burst = 0; burst < 4; burst++) {
            sent.addAll(sendAllTo(producer, queue, "b" + burst + "-", 5));
            LockSupport.parkNanos(Duration.ofMillis(30).toNanos());
        }
        List<MessageExt> stored = pullAll(puller, queue, 20);
        assertEquals(20, puller.maxOffset(queue));
        assertEquals(0, puller.minOffset(queue));
        for (MessageExt message : stored) {
            long first = stored.stream().filter(m -> m.getStoreTimestamp() >= message.getStoreTimestamp()).findFirst().orElseThrow().getQueueOffset();
            assertEquals(first, puller.searchOffset(queue, message.getStoreTimestamp()), "store time of offset " + message.getQueueOffset());
        }
        assertEquals(10, puller.searchOffset(queue, stored.get(9).getStoreTimestamp() + 1));
        assertEquals(0, puller.searchOffset(queue, 0));
        assertEquals(20, puller.searchOffset(queue, System.currentTimeMillis() + 100_000));
        assertEquals(stored.get(0).getStoreTimestamp(), producer.earliestMsgStoreTime(queue));
    }
}
