package interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Every way of sending, judged by what a classic pull consumer then reads from the queues. */
@Tag("binary")
class SendTest extends Interop {
    private static final int MESSAGE_ILLEGAL = 13;

    @Test
    void syncSendAnswersContiguousOffsets() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        List<SendResult> results = sendAll(producer, topic, "m", 40);
        Map<Integer, Long> next = new HashMap<>();
        for (SendResult result : results) {
            MessageQueue queue = result.getMessageQueue();
            assertEquals(topic, queue.getTopic());
            assertEquals(BROKER_NAME, queue.getBrokerName());
            assertEquals(next.merge(queue.getQueueId(), 1L, Long::sum) - 1, result.getQueueOffset());
            assertNotNull(result.getRegionId());
        }
        assertEquals(Map.of(0, 10L, 1, 10L, 2, 10L, 3, 10L), next);
        assertEquals(40, new HashSet<>(results.stream().map(SendResult::getMsgId).toList()).size());

        List<String> stored = texts(pullTopic(clients.pull(group), topic, 40));
        assertEquals(numbered("m", 40).stream().sorted().toList(), stored.stream().sorted().toList());
    }

    @Test
    void asyncSend() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        int count = 300;
        CountDownLatch left = new CountDownLatch(count);
        Queue<Throwable> errors = new ConcurrentLinkedQueue<>();
        Queue<SendResult> results = new ConcurrentLinkedQueue<>();
        for (String text : numbered("m", count)) {
            producer.send(message(topic, "TagA", text), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results.add(result);
                    left.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    errors.add(e);
                    left.countDown();
                }
            });
        }
        assertTrue(left.await(60, TimeUnit.SECONDS), left.getCount() + " callbacks never came");
        assertEquals(List.of(), List.copyOf(errors));
        assertTrue(results.stream().allMatch(r -> r.getSendStatus() == SendStatus.SEND_OK));

        List<MessageExt> stored = pullTopic(clients.pull(group), topic, count);
        assertEquals(numbered("m", count).stream().sorted().toList(), texts(stored).stream().sorted().toList());
        Map<String, Long> offsets = new HashMap<>();
        results.forEach(r -> offsets.put(r.getMsgId(), r.getQueueOffset()));
        for (MessageExt message : stored) {
            assertEquals(offsets.get(message.getMsgId()), message.getQueueOffset());
        }
    }

    @Test
    void onewaySend() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        for (String text : numbered("m", 50)) {
            producer.sendOneway(message(topic, "TagA", text));
        }
        List<String> stored = texts(pullTopic(clients.pull(group), topic, 50));
        assertEquals(numbered("m", 50).stream().sorted().toList(), stored.stream().sorted().toList());
    }

    @Test
    void batchSendKeepsEachMessage() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        sendAll(producer, topic, "before", 3);
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            Message message = new Message(topic, "Tag" + i, "key" + i, ("b" + i).repeat(1 + i * 50).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("index", Integer.toString(i));
            batch.add(message);
        }
        SendResult result = producer.send(batch);
        assertEquals(SendStatus.SEND_OK, result.getSendStatus());
        assertEquals(3, result.getQueueOffset());
        List<String> ids = Arrays.asList(result.getMsgId().split(","));
        assertEquals(20, ids.size());
        assertEquals(20, result.getOffsetMsgId().split(",").length);
        sendAll(producer, topic, "after", 3);

        List<MessageExt> stored = pullAll(clients.pull(group), queue(topic, 0), 26).subList(3, 23);
        for (int i = 0; i < 20; i++) {
            MessageExt message = stored.get(i);
            assertEquals(("b" + i).repeat(1 + i * 50), text(message));
            assertEquals("Tag" + i, message.getTags());
            assertEquals("key" + i, message.getKeys());
            assertEquals(Integer.toString(i), message.getUserProperty("index"));
            assertEquals(ids.get(i), message.getMsgId());
        }
    }

    @ParameterizedTest
    @CsvSource({"1, false", "4095, true", "4096, true", "102400, true", "102400, false", "1048576, false"})
    void bodyOfAnySize(int bytes, boolean compressible) throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        byte[] body = new byte[bytes];
        if (compressible) {
            Arrays.fill(body, (byte) 'u');
        } else {
            new Random(bytes).nextBytes(body);
        }
        // The client compresses from 4 KiB on and puts the compressed body into the message it was given.
        sendOk(producer, new Message(topic, body.clone()));
        MessageExt stored = pullAll(clients.pull(group), queue(topic, 0), 1).get(0);
        assertArrayEquals(body, stored.getBody());
        if (compressible && bytes >= 4096) {
            assertTrue(stored.getStoreSize() < bytes, "stored as the client compressed it, not " + stored.getStoreSize());
        }
    }

    @Test
    void largestBodyIsTakenAndALargerOneRefused() throws Exception {
        expectWarnings("CODE: 13|Message\\{topic=");
        DefaultMQProducer producer = producerFor(topic, 1);
        producer.setMaxMessageSize(8 << 20);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        byte[] body = new byte[4 << 20];
        new Random(4).nextBytes(body);
        sendOk(producer, new Message(topic, body));
        MQBrokerException refused =
            assertThrows(MQBrokerException.class, () -> producer.send(new Message(topic, new byte[5 << 20])));
        assertEquals(MESSAGE_ILLEGAL, refused.getResponseCode());
        sendOk(producer, message(topic, "TagA", "after"));

        List<MessageExt> stored = pullAll(clients.pull(group), queue(topic, 0), 2);
        assertArrayEquals(body, stored.get(0).getBody());
        assertEquals("after", text(stored.get(1)));
    }

    @Test
    void messageComesBackAsItWasSent() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 3);
        long before = System.currentTimeMillis();
        Message sent = new Message(topic, "Täg", "key-1 key-2", "größe → 大小".getBytes(StandardCharsets.UTF_8));
        sent.setFlag(0x1234);
        sent.putUserProperty("plain", "value");
        sent.putUserProperty("unicode", "währung €");
        sent.setBuyerId("buyer");
        SendResult result = producer.send(sent, queue(topic, 2));
        assertEquals(SendStatus.SEND_OK, result.getSendStatus());

        MessageExt got = pullAll(clients.pull(group), queue(topic, 2), 1).get(0);
        assertEquals(topic, got.getTopic());
        assertEquals("Täg", got.getTags());
        assertEquals("key-1 key-2", got.getKeys());
        assertEquals(0x1234, got.getFlag());
        assertArrayEquals(sent.getBody(), got.getBody());
        assertEquals("value", got.getUserProperty("plain"));
        assertEquals("währung €", got.getUserProperty("unicode"));
        assertEquals("buyer", got.getBuyerId());
        assertEquals(2, got.getQueueId());
        assertEquals(result.getQueueOffset(), got.getQueueOffset());
        assertEquals(result.getMsgId(), got.getMsgId());
        assertEquals(0, got.getReconsumeTimes());
        assertEquals(0, got.getPreparedTransactionOffset());
        assertEquals(UtilAll.crc32(sent.getBody()) & 0x7FFF_FFFF, got.getBodyCRC());
        assertTrue(got.getStoreSize() > sent.getBody().length);

        assertTrue(got.getBornTimestamp() >= before && got.getBornTimestamp() <= System.currentTimeMillis());
        assertTrue(got.getStoreTimestamp() >= got.getBornTimestamp());
        assertEquals("127.0.0.1", ((InetSocketAddress) got.getBornHost()).getAddress().getHostAddress());
        InetSocketAddress storeHost = (InetSocketAddress) got.getStoreHost();
        assertEquals(BROKER, storeHost.getAddress().getHostAddress() + ":" + storeHost.getPort());
        MessageId id = MessageDecoder.decodeMessageId(result.getOffsetMsgId());
        assertEquals(storeHost, id.getAddress());
        assertEquals(got.getCommitLogOffset(), id.getOffset());
    }

    @Test
    void selectorChoosesTheQueue() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        for (int i = 0; i < 20; i++) {
            SendResult result = producer.send(message(topic, "TagA", "m" + i), (queues, msg, arg) -> queues.get((Integer) arg % 4), i);
            assertEquals(i % 4, result.getMessageQueue().getQueueId());
            assertEquals(i / 4, result.getQueueOffset());
        }
        assertEquals(List.of("m3", "m7", "m11", "m15", "m19"), texts(pullAll(clients.pull(group), queue(topic, 3), 5)));
    }

    @Test
    void firstSendMakesTheTopic() throws Exception {
        DefaultMQProducer producer = clients.producer(name + "p");
        SendResult result = sendOk(producer, message(topic, "TagA", "first"));
        assertEquals(0, result.getQueueOffset());
        awaitRoute(producer, topic, 4);
        assertEquals(List.of("first"), texts(pullTopic(clients.pull(group), topic, 1)));
    }

    @Test
    void sendToMissingQueueIsRefused() throws Exception {
        expectWarnings("CODE: 1 |Message\\{topic=");
        DefaultMQProducer producer = producerFor(topic, 2);
        assertThrows(MQBrokerException.class, () -> producer.send(message(topic, "TagA", "lost"), queue(topic, 99)));
        sendOk(producer, message(topic, "TagA", "after"));
        assertEquals(List.of("after"), texts(pullTopic(clients.pull(group), topic, 1)));
    }
}
