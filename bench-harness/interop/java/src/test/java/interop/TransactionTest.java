package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Transactional messages. The broker checks after 2 s, each 3 s ({@code target.sh}). */
@Tag("binary")
class TransactionTest extends Interop {
    /** What the broker asked, in order. */
    private final List<MessageExt> checks = Collections.synchronizedList(new ArrayList<>());

    private TransactionMQProducer transactional(String group, Function<Message, LocalTransactionState> local,
        Function<MessageExt, LocalTransactionState> check) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        clients.configure(producer);
        producer.setSendMsgTimeout(20_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return local.apply(message);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.add(message);
                return check.apply(message);
            }
        });
        producer.start();
        clients.onClose(producer::shutdown);
        return producer;
    }

    private Received consume() throws Exception {
        expectWarnings("when broker check, client"); // how it logs its own answers
        Received seen = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(seen.concurrently());
        consumer.start();
        return seen;
    }

    private int checksOf(String text) {
        synchronized (checks) {
            return (int) checks.stream().filter(m -> text(m).equals(text)).count();
        }
    }

    @Test
    void commitIsSeenAndRollbackIsNot() throws Exception {
        producerFor(topic, 4);
        TransactionMQProducer producer = transactional(name + "tx",
            m -> Integer.parseInt(text(m).substring(1)) % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE,
            m -> LocalTransactionState.UNKNOW);
        Received seen = consume();
        for (String text : numbered("m", 40)) {
            Message message = message(topic, "TagA", text);
            message.setKeys("key-" + text);
            message.putUserProperty("own", "value");
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            assertEquals(LocalTransactionState.valueOf(Integer.parseInt(text.substring(1)) % 2 == 0 ? "COMMIT_MESSAGE" : "ROLLBACK_MESSAGE"),
                result.getLocalTransactionState());
            assertNotNull(result.getTransactionId());
        }
        seen.assertExactly("m", IntStream.range(0, 40).filter(n -> n % 2 == 0).mapToObj(n -> "m" + n).toList());
        MessageExt got = seen.first("m6");
        assertEquals("TagA", got.getTags());
        assertEquals("key-m6", got.getKeys());
        assertEquals("value", got.getUserProperty("own"));
        assertEquals("true", got.getProperty(MessageConst.PROPERTY_TRANSACTION_PREPARED));
        assertEquals(name + "tx", got.getProperty(MessageConst.PROPERTY_PRODUCER_GROUP));
        assertNull(got.getProperty(MessageConst.PROPERTY_REAL_TOPIC));
        assertTrue(got.getPreparedTransactionOffset() < got.getCommitLogOffset());
        assertEquals(8, got.getSysFlag() & 0xC);
    }

    @Test
    void unknownIsAskedAndTheAnswerCounts() throws Exception {
        producerFor(topic, 2);
        Map<String, LocalTransactionState> answers = new ConcurrentHashMap<>(Map.of(
            "m0", LocalTransactionState.COMMIT_MESSAGE, "m1", LocalTransactionState.ROLLBACK_MESSAGE, "m2", LocalTransactionState.UNKNOW));
        TransactionMQProducer producer = transactional(name + "tx", m -> LocalTransactionState.UNKNOW, m -> answers.get(text(m)));
        Received seen = consume();
        for (String text : numbered("m", 3)) {
            producer.sendMessageInTransaction(message(topic, "TagA", text), null);
        }
        Await.until("a check of each, two of m2", () -> checksOf("m0") > 0 && checksOf("m1") > 0 && checksOf("m2") > 1, () -> texts(checks));
        answers.put("m2", LocalTransactionState.COMMIT_MESSAGE);
        seen.assertExactly("m", List.of("m0", "m2"));
        assertEquals(1, checksOf("m0"));
        assertEquals(1, checksOf("m1"));
        MessageExt asked = checks.stream().filter(m -> text(m).equals("m0")).findFirst().orElseThrow();
        assertEquals(topic, asked.getTopic());
        assertEquals("1", asked.getProperty(MessageConst.PROPERTY_TRANSACTION_CHECK_TIMES));
    }

    /** The sender is gone: another producer of its group is asked. */
    @Test
    void anotherProducerOfTheGroupIsAsked() throws Exception {
        producerFor(topic, 1);
        String txGroup = name + "tx";
        TransactionMQProducer first = transactional(txGroup, m -> LocalTransactionState.UNKNOW, m -> LocalTransactionState.UNKNOW);
        first.sendMessageInTransaction(message(topic, "TagA", "m0"), null);
        first.shutdown();
        Received seen = consume();
        TransactionMQProducer second = transactional(txGroup, m -> LocalTransactionState.UNKNOW, m -> LocalTransactionState.COMMIT_MESSAGE);
        sendOk(second, message(topic, "TagA", "n0")); // a client tells those brokers of itself whose topics it used
        seen.assertExactly("m", List.of("m0"));
    }

    /** The producer wants to be left alone for longer than the broker would. */
    @Test
    void immuneMessageIsAskedLater() throws Exception {
        producerFor(topic, 1);
        TransactionMQProducer producer = transactional(name + "tx", m -> LocalTransactionState.UNKNOW, m -> LocalTransactionState.COMMIT_MESSAGE);
        Message immune = message(topic, "TagA", "m0");
        immune.putUserProperty(MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, "5");
        producer.sendMessageInTransaction(immune, null);
        producer.sendMessageInTransaction(message(topic, "TagA", "m1"), null);
        Received seen = consume();
        seen.assertExactly("m", List.of("m0", "m1"));
        MessageExt late = seen.first("m0");
        assertTrue(late.getStoreTimestamp() - late.getBornTimestamp() > 5000, "asked while immune");
    }

    /** Many at once, in all three ways, from several threads. Apache's broker may store one twice whose check crosses its end. */
    @Test
    void manyAreAllOrNothing() throws Exception {
        producerFor(topic, 4);
        Function<Message, Integer> number = m -> Integer.parseInt(text(m).substring(1));
        TransactionMQProducer producer = transactional(name + "tx",
            m -> switch (number.apply(m) % 3) {
                case 0 -> LocalTransactionState.COMMIT_MESSAGE;
                case 1 -> LocalTransactionState.ROLLBACK_MESSAGE;
                default -> LocalTransactionState.UNKNOW;
            },
            m -> number.apply(m) % 6 % 3 != 1 && number.apply(m) % 6 != 5 ? LocalTransactionState.COMMIT_MESSAGE
                : LocalTransactionState.ROLLBACK_MESSAGE);
        Received seen = consume();
        List<Thread> threads = IntStream.range(0, 4).mapToObj(t -> new Thread(() -> {
            for (int n = t * 50; n < t * 50 + 50; n++) {
                try {
                    producer.sendMessageInTransaction(message(topic, "TagA", "m" + n), null);
                } catch (Exception e) {
                    throw new AssertionError(e);
                }
            }
        })).toList();
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        List<String> wanted = IntStream.range(0, 200).filter(n -> n % 3 == 0 || n % 6 == 2).mapToObj(n -> "m" + n).toList();
        seen.awaitAll(wanted);
        assertEquals(wanted.stream().sorted().toList(), seen.texts().stream().distinct().sorted().toList());
    }
}
