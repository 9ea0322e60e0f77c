package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.TestInfo;

/** What every test has: the broker's address, names of its own, clients that are stopped, and a quiet client log at the end. */
abstract class Interop {
    static final String NAMESRV = property("interop.namesrv");
    static final String BROKER = property("interop.broker");
    static final String BROKER_NAME = property("interop.brokerName");
    static final String CLUSTER = property("interop.cluster");

    /** Starts every topic and group of the tests, so that a log line can be told to belong to one. */
    static final String PREFIX = "it-" + Long.toString(System.currentTimeMillis(), 36) + "-";

    final Clients clients = new Clients();
    String name;
    String topic;
    String group;
    long begun;
    Pattern expected;

    private static String property(String key) {
        return Objects.requireNonNull(System.getProperty(key), key + " is not set: start the suite by bench-harness/interop/run");
    }

    @BeforeEach
    void begin(TestInfo info) {
        String method = info.getTestMethod().orElseThrow().getName();
        String which = info.getDisplayName().replaceAll("[^A-Za-z0-9]", "");
        which = which.equals(method) ? "" : "-" + which;
        name = PREFIX + info.getTestClass().orElseThrow().getSimpleName() + "-" + method + which;
        name = name.substring(0, Math.min(name.length(), 90)) + "-";
        topic = name + "t";
        group = name + "g";
        begun = System.nanoTime();
    }

    @AfterEach
    void end() {
        try {
            ClientLog.assertQuiet(name, begun, expected); // before the clients stop: then they complain of closed connections
        } finally {
            clients.close();
        }
    }

    /** Client warnings that match are what this test provokes. */
    void expectWarnings(String regex) {
        expected = Pattern.compile(expected == null ? regex : expected + "|" + regex);
    }

    /** Stops a consumer in the middle of a test; the pulls that it still had in hand complain of its closed connection. */
    void stop(DefaultMQPushConsumer consumer) {
        expectWarnings("RemotingSendRequestException|RemotingConnectException|send request failed to|No matched consumer for the PullRequest");
        consumer.shutdown();
    }

    /** Creates the topic and waits until the NameServer tells of it. */
    DefaultMQProducer producerFor(String topic, int queues) throws Exception {
        DefaultMQProducer producer = clients.producer(name + "p");
        ClientLine.createTopic(producer, topic, queues);
        awaitRoute(producer, topic, queues);
        return producer;
    }

    void awaitRoute(DefaultMQProducer producer, String topic, int queues) {
        Await.until("route of " + topic, () -> queuesOf(producer, topic) == queues, () -> queuesOf(producer, topic) + " queues");
    }

    private static int queuesOf(DefaultMQProducer producer, String topic) {
        try {
            return producer.fetchPublishMessageQueues(topic).size();
        } catch (Exception e) {
            return -1;
        }
    }

    static Message message(String topic, String tag, String text) {
        return new Message(topic, tag, text.getBytes(StandardCharsets.UTF_8));
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static List<String> texts(List<? extends Message> messages) {
        return messages.stream().map(Interop::text).toList();
    }

    /** {@code stem0, stem1, ..}: the texts that {@link #sendAll} sends. */
    static List<String> numbered(String stem, int count) {
        return IntStream.range(0, count).mapToObj(i -> stem + i).toList();
    }

    /** Sends {@code count} numbered texts one after the other over all queues; each must be stored. */
    static List<SendResult> sendAll(DefaultMQProducer producer, String topic, String stem, int count) throws Exception {
        List<SendResult> results = new ArrayList<>();
        for (String text : numbered(stem, count)) {
            results.add(sendOk(producer, message(topic, "TagA", text)));
        }
        return results;
    }

    static List<SendResult> sendAllTo(DefaultMQProducer producer, MessageQueue queue, String stem, int count) throws Exception {
        List<SendResult> results = new ArrayList<>();
        for (String text : numbered(stem, count)) {
            SendResult result = producer.send(message(queue.getTopic(), "TagA", text), queue);
            assertEquals(SendStatus.SEND_OK, result.getSendStatus());
            results.add(result);
        }
        return results;
    }

    static SendResult sendOk(DefaultMQProducer producer, Message message) throws Exception {
        SendResult result = producer.send(message);
        assertEquals(SendStatus.SEND_OK, result.getSendStatus());
        return result;
    }

    static MessageQueue queue(String topic, int id) {
        return new MessageQueue(topic, BROKER_NAME, id);
    }

    /** Pulls a queue from its start to its end, in order. Waits until {@code count} are there; there must not be more. */
    static List<MessageExt> pullAll(DefaultMQPullConsumer puller, MessageQueue queue, int count) {
        List<MessageExt> all = new ArrayList<>();
        Await.until(count + " messages in " + queue, () -> {
            PullResult result = puller.pull(queue, "*", all.size(), 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                all.addAll(result.getMsgFoundList());
            }
            return all.size() >= count && result.getPullStatus() != PullStatus.FOUND;
        }, () -> all.size() + " messages");
        assertEquals(count, all.size());
        assertEquals(IntStream.range(0, count).mapToObj(i -> (long) i).toList(), all.stream().map(MessageExt::getQueueOffset).toList());
        return all;
    }

    /** All queues of a topic: {@code count} messages in all, sorted by queue, then by offset. */
    static List<MessageExt> pullTopic(DefaultMQPullConsumer puller, String topic, int count) throws Exception {
        List<MessageQueue> queues = new ArrayList<>(puller.fetchSubscribeMessageQueues(topic));
        queues.sort(Comparator.naturalOrder());
        Await.until(count + " messages in " + topic, () -> size(puller, queues) >= count, () -> size(puller, queues));
        List<MessageExt> all = new ArrayList<>();
        for (MessageQueue queue : queues) {
            all.addAll(pullAll(puller, queue, (int) maxOffset(puller, queue)));
        }
        assertEquals(count, all.size());
        return all;
    }

    private static long size(DefaultMQPullConsumer puller, List<MessageQueue> queues) {
        return queues.stream().mapToLong(q -> maxOffset(puller, q)).sum();
    }

    static long maxOffset(DefaultMQPullConsumer puller, MessageQueue queue) {
        try {
            return puller.maxOffset(queue);
        } catch (Exception e) {
            throw new AssertionError("maxOffset of " + queue, e);
        }
    }

    /** What the broker has stored for {@link #group} in a queue of {@link #topic}. */
    long stored(DefaultMQProducer asker, int queueId) {
        try {
            return ClientLine.storedOffset(asker, group, queue(topic, queueId));
        } catch (Exception e) {
            throw new AssertionError("stored offset of " + group, e);
        }
    }

    /** How many queues of the topic the consumer holds now. */
    static int queuesHeld(DefaultMQPushConsumer consumer, String topic) {
        return (int) consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(q -> q.getTopic().equals(topic)).count();
    }

    static void awaitQueuesHeld(DefaultMQPushConsumer consumer, String topic, int count) {
        Await.until(count + " queues held", () -> queuesHeld(consumer, topic) == count, () -> queuesHeld(consumer, topic));
    }
}
