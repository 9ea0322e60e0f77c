package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Looking single messages up: by offset id, by unique key, by the sender's keys. */
@Tag("binary")
class QueryTest extends Interop {
    private static Message keyed(String topic, String keys, String text) {
        return new Message(topic, "TagA", keys, text.getBytes(StandardCharsets.UTF_8));
    }

    /** The index is built behind the log, so the first look may be too early. */
    private static List<String> query(DefaultMQProducer producer, String topic, String key, int count) {
        List<List<String>> last = new java.util.concurrent.CopyOnWriteArrayList<>();
        Await.until(count + " messages of key " + key, () -> {
            List<String> found = queryOnce(producer, topic, key);
            last.add(0, found);
            return found.size() >= count;
        }, () -> last.get(0));
        return last.get(0);
    }

    private static List<String> queryOnce(DefaultMQProducer producer, String topic, String key) throws Exception {
        try {
            long now = System.currentTimeMillis();
            QueryResult result = producer.queryMessage(topic, key, 64, now - 600_000, now + 600_000);
            return texts(result.getMessageList()).stream().sorted().toList();
        } catch (MQClientException e) {
            return List.of(); // "query message by key finished, but no message"
        }
    }

    private static MessageExt view(DefaultMQProducer producer, String topic, String id) {
        List<MessageExt> found = new java.util.concurrent.CopyOnWriteArrayList<>();
        Await.until("message " + id, () -> {
            try {
                MessageExt message = producer.viewMessage(topic, id);
                if (message != null) {
                    found.add(message);
                }
            } catch (MQClientException e) {
                return false; // not in the index yet
            }
            return !found.isEmpty();
        }, () -> "nothing");
        return found.get(0);
    }

    @Test
    void viewByOffsetIdAndByUniqueKey() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        List<SendResult> sent = sendAll(producer, topic, "m", 10);
        for (int i = 0; i < 10; i++) {
            MessageExt byOffset = view(producer, topic, sent.get(i).getOffsetMsgId());
            assertEquals("m" + i, text(byOffset));
            assertEquals(sent.get(i).getQueueOffset(), byOffset.getQueueOffset());
            MessageExt byKey = view(producer, topic, sent.get(i).getMsgId());
            assertEquals("m" + i, text(byKey));
            assertEquals(byOffset.getCommitLogOffset(), byKey.getCommitLogOffset());
        }
    }

    @Test
    void queryByKey() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        for (int i = 0; i < 12; i++) {
            sendOk(producer, keyed(topic, "order-" + i % 3 + " all", "m" + i));
        }
        assertEquals(List.of("m1", "m10", "m4", "m7"), query(producer, topic, "order-1", 4));
        assertEquals(12, query(producer, topic, "all", 12).size());
        assertEquals(List.of(), queryOnce(producer, topic, "order-3"));
        assertEquals(List.of(), queryOnce(producer, topic, "order-1 all"));
    }

    /** The index knows hashes only: topic#key with the same hash must not answer for each other. */
    @Test
    void keysOfOneHashStayApart() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        sendOk(producer, keyed(topic, "Aa", "of Aa"));
        sendOk(producer, keyed(topic, "BB", "of BB"));
        assertEquals(List.of("of Aa"), query(producer, topic, "Aa", 1));
        assertEquals(List.of("of BB"), query(producer, topic, "BB", 1));
    }

    @Test
    void batchMembersAreFoundByTheirKeys() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        producer.send(List.of(keyed(topic, "k0", "m0"), keyed(topic, "k1", "m1"), keyed(topic, "k2", "m2")));
        assertEquals(List.of("m1"), query(producer, topic, "k1", 1));
        assertEquals(List.of("m2"), query(producer, topic, "k2", 1));
    }

    @Test
    void unknownIdIsNotFound() throws Exception {
        expectWarnings("CODE: |viewMessage");
        DefaultMQProducer producer = producerFor(topic, 1);
        sendOk(producer, message(topic, "TagA", "m"));
        assertThrows(MQClientException.class, () -> {
            MessageExt none = producer.viewMessage(topic, "7F0000010000000000000000DEADBEEF");
            if (none == null) {
                throw new MQClientException("nothing", null);
            }
        });
    }
}
