package stores;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
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

/** Producers and a push consumer of Apache's that run while brokers come and go; what was acknowledged, and what was consumed. */
final class Traffic implements AutoCloseable {
    private final String topic;
    private final String group;
    private final String instance;
    private final String nameServer;
    private final List<Thread> threads = new ArrayList<>();
    private final List<DefaultMQProducer> producers = new ArrayList<>();
    private final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
    private final Map<String, AtomicInteger> consumed = new ConcurrentHashMap<>();
    final AtomicInteger failures = new AtomicInteger();
    private DefaultMQPushConsumer consumer;
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
        for (int n = 0; n < count; n++) {
            String name = "producer-" + n;
            DefaultMQProducer producer = configure(new DefaultMQProducer(name + "-" + instance), name);
            producer.setSendMsgTimeout(3000);
            producer.setRetryTimesWhenSendFailed(0);
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
                        acknowledged.add(body);
                        break;
                    }
                } catch (Exception e) {
                    failures.incrementAndGet();
                }
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

    void consume() throws Exception {
        consumer = configure(new DefaultMQPushConsumer(group), "consumer");
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

    /** When the consumer tried last to pull each queue that it has, ms. */
    Map<MessageQueue, Long> tries() {
        Map<MessageQueue, Long> tries = new HashMap<>();
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, process) -> {
            if (queue.getTopic().equals(topic)) {
                tries.put(queue, process.getLastPullTimestamp());
            }
        });
        return tries;
    }

    int acknowledged() {
        return acknowledged.size();
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

    /** All that is acknowledged by now is consumed. */
    String caughtUp() throws Exception {
        Set<String> now = Set.copyOf(acknowledged);
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
        if (consumer != null) {
            consumer.shutdown();
        }
    }
}
