package stores;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Producers and push consumers of Apache's that run while brokers come and go; what was acknowledged by whom, and what was consumed. */
final class Traffic implements AutoCloseable {
    private final String topic;
    private final String group;
    private final String instance;
    private final String nameServer;
    private final List<Thread> threads = new ArrayList<>();
    private final List<DefaultMQProducer> producers = new ArrayList<>();
    /** By whom: a broker's name. */
    private final Map<String, String> acknowledged = new ConcurrentHashMap<>();
    private final Map<String, AtomicInteger> consumed = new ConcurrentHashMap<>();
    final AtomicInteger failures = new AtomicInteger();
    volatile String lastFailure = "none";
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private volatile boolean stopping;

    /** {@code instance} tells the clients of several in one process apart. */
    Traffic(String topic, String group, String instance, String nameServer) {
        this.topic = topic;
        this.group = group;
        this.instance = instance;
        this.nameServer = nameServer;
    }

    private <T extends ClientConfig> T configure(T client, String name) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName(instance + "-" + name);
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(1000);
        return client;
    }

    void produce(int count, int pauseMs) throws Exception {
        produce(count, pauseMs, 0);
    }

    /** With so many retries of the client's own before the user sees an error. */
    void produce(int count, int pauseMs, int retries) throws Exception {
        for (int n = 0; n < count; n++) {
            String name = "producer-" + n;
            DefaultMQProducer producer = configure(new DefaultMQProducer(name + "-" + instance), name);
            producer.setSendMsgTimeout(3000);
            producer.setRetryTimesWhenSendFailed(retries);
            producer.start();
            producers.add(producer);
            Thread thread = new Thread(() -> send(producer, name, pauseMs), name);
            thread.start();
            threads.add(thread);
        }
    }

    /** A message that is not acknowledged is sent again under the same name until it is. */
    private void send(DefaultMQProducer producer, String name, int pauseMs) {
        for (int n = 0; !stopping; n++) {
            String body = name + "/" + n;
            while (!stopping) {
                try {
                    SendResult sent = producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)));
                    if (sent.getSendStatus() == SendStatus.SEND_OK) {
                        acknowledged.put(body, sent.getMessageQueue().getBrokerName());
                        break;
                    }
                    lastFailure = sent.getSendStatus().name();
                } catch (Exception e) {
                    lastFailure = e.toString();
                }
                failures.incrementAndGet();
                pause(100);
            }
            pause(pauseMs);
        }
    }

    private static void pause(int ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** One more consumer of the group. */
    void consume() throws Exception {
        DefaultMQPushConsumer consumer = configure(new DefaultMQPushConsumer(group), "consumer-" + consumers.size());
        consumers.add(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                consumed.computeIfAbsent(body, any -> new AtomicInteger()).incrementAndGet();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    /** When the first consumer tried last to pull each queue that it has, ms. */
    Map<MessageQueue, Long> tries() {
        return tries(consumers.get(0));
    }

    private Map<MessageQueue, Long> tries(DefaultMQPushConsumer consumer) {
        Map<MessageQueue, Long> tries = new HashMap<>();
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, process) -> {
            if (queue.getTopic().equals(topic)) {
                tries.put(queue, process.getLastPullTimestamp());
            }
        });
        return tries;
    }

    /** The queues of each consumer. */
    List<Set<MessageQueue>> shares() {
        return consumers.stream().map(consumer -> tries(consumer).keySet()).toList();
    }

    int acknowledged() {
        return acknowledged.size();
    }

    private Set<String> acknowledgedBy(String broker) {
        Set<String> all = new HashSet<>();
        acknowledged.forEach((body, by) -> {
            if (by.equals(broker)) {
                all.add(body);
            }
        });
        return all;
    }

    int acknowledgedCount(String broker) {
        return acknowledgedBy(broker).size();
    }

    int consumed() {
        return consumed.size();
    }

    /** Messages that were consumed more than once. */
    long repeated() {
        return consumed.values().stream().filter(times -> times.get() > 1).count();
    }

    /** Waits until so many more were acknowledged and consumed as when it was called. */
    String goesOn(int more) throws Exception {
        int sent = acknowledged() + more;
        Checks.await("more is acknowledged, " + sent + " in all", 120, () -> acknowledged() >= sent);
        caughtUp();
        return acknowledged() + " acknowledged";
    }

    /** Waits until this broker acknowledged so many more, and until all that it acknowledged is consumed. */
    String goesOnAt(String broker, int more) throws Exception {
        int sent = acknowledgedCount(broker) + more;
        Checks.await("more is acknowledged, " + sent + " by " + broker, 120, () -> acknowledgedCount(broker) >= sent);
        return caughtUp(broker);
    }

    /** All that is acknowledged by now is consumed. */
    String caughtUp() throws Exception {
        return caughtUp(Set.copyOf(acknowledged.keySet()));
    }

    /** All that this broker acknowledged by now is consumed. */
    String caughtUp(String broker) throws Exception {
        return caughtUp(acknowledgedBy(broker));
    }

    private String caughtUp(Set<String> now) throws Exception {
        Checks.await("all of " + now.size() + " is consumed", 120, () -> consumed.keySet().containsAll(now));
        return now.size() + " of " + now.size() + ", " + repeated() + " more than once";
    }

    void stopProducing() throws InterruptedException {
        stopping = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }

    @Override
    public void close() throws InterruptedException {
        stopProducing();
        producers.forEach(DefaultMQProducer::shutdown);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
    }
}
