package interop;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** Makes clients that share nothing (each has its own connections) and stops those that a test leaves running. */
final class Clients implements AutoCloseable {
    private static final AtomicInteger COUNT = new AtomicInteger();

    private final Deque<Runnable> stops = new ArrayDeque<>();

    /** A started producer that hides nothing: no retry, and time enough for a machine that runs many tests at once. */
    DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = unstartedProducer(group);
        producer.start();
        return producer;
    }

    DefaultMQProducer unstartedProducer(String group) {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        configure(producer);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setSendMsgTimeout(20_000);
        onClose(producer::shutdown);
        return producer;
    }

    /** Not started: the caller sets subscription and listener. A new group starts with the first message. */
    DefaultMQPushConsumer push(String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        onClose(consumer::shutdown);
        return consumer;
    }

    /** Not started. */
    DefaultLitePullConsumer litePull(String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        onClose(consumer::shutdown);
        return consumer;
    }

    DefaultMQPullConsumer pull(String group) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        configure(consumer);
        consumer.start();
        onClose(consumer::shutdown);
        return consumer;
    }

    void configure(ClientConfig client) {
        client.setNamesrvAddr(Interop.NAMESRV);
        client.setInstanceName("i" + COUNT.incrementAndGet());
        // When two threads of a starting client meet, neither sends the heartbeat and the next one is 30 s away by default.
        client.setHeartbeatBrokerInterval(5_000);
    }

    synchronized void onClose(Runnable stop) {
        stops.push(stop);
    }

    /** The newest first. Stopping a client twice does nothing, so tests stop some themselves. */
    @Override
    public synchronized void close() {
        while (!stops.isEmpty()) {
            stops.pop().run();
        }
    }
}
