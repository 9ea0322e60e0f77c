package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RemotingClient;
import org.junit.jupiter.api.Test;

/** Settings of a client that change what it asks of the broker. */
class SettingsTest extends Interop {
    private DefaultMQPushConsumer consumer(Received received) throws Exception {
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received.concurrently());
        return consumer;
    }

    /** Each message is refused when it comes first, and received a second later. */
    private static MessageListenerConcurrently refusedOnce(Received received) {
        return (batch, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            if (batch.get(0).getReconsumeTimes() == 0) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            received.add(batch);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    private DefaultMQProducer producerOf(String space) throws Exception {
        DefaultMQProducer producer = clients.unstartedProducer(name + "inside");
        producer.setNamespace(space);
        producer.start();
        return producer;
    }

    private void readIn(String space, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer reader = clients.push(group);
        reader.setNamespace(space);
        reader.subscribe(topic, "*");
        reader.registerMessageListener(listener);
        reader.start();
    }

    /** Topics and groups of a namespace are {@code namespace%name} to the broker, and plain names to the client. */
    @Test
    void aNamespaceKeepsTopicsAndGroupsApart() throws Exception {
        String space = "NS_" + Long.toString(System.nanoTime(), 36);
        DefaultMQProducer plain = producerFor(topic, 1);
        awaitRoute(producerFor(space + "%" + topic, 1), space + "%" + topic, 1);
        DefaultMQProducer inside = producerOf(space);
        Received within = new Received();
        readIn(space, within.concurrently());
        Received without = new Received();
        consumer(without).start();
        sendAll(inside, topic, "inside-", 10);
        sendAll(plain, topic, "outside-", 10);
        within.assertExactly("", numbered("inside-", 10));
        without.assertExactly("", numbered("outside-", 10));
        assertEquals(topic, within.first("inside-0").getTopic(), "the client takes the namespace off");
        assertEquals(10, pullAll(clients.pull(group + "-p"), queue(space + "%" + topic, 0), 10).size());
    }

    /** Retries of a namespace are its own too. */
    @Test
    void aRefusedMessageOfANamespaceComesAgain() throws Exception {
        String space = "NS_" + Long.toString(System.nanoTime(), 36);
        producerFor(space + "%" + topic, 1);
        DefaultMQProducer inside = producerOf(space);
        Received again = new Received();
        readIn(space, refusedOnce(again));
        sendAll(inside, topic, "m", 1);
        again.assertExactly("", List.of("m0"));
        assertEquals(topic, again.all().get(0).getTopic());
    }

    /** A client of a unit: the broker marks the group's retry topic, and serves as always. */
    @Test
    void unitMode() throws Exception {
        DefaultMQProducer setUp = producerFor(topic, 1);
        DefaultMQProducer producer = clients.unstartedProducer(name + "unit");
        producer.setUnitMode(true);
        producer.start();
        Received received = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setUnitMode(true);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(refusedOnce(received));
        consumer.start();
        sendAll(producer, topic, "m", 3);
        received.assertExactly("", numbered("m", 3));
        awaitRoute(setUp, topic, 1);
    }

    /** Sends go to the port two below the broker's. */
    @Test
    void theVipChannel() throws Exception {
        producerFor(topic, 1);
        DefaultMQProducer producer = clients.unstartedProducer(name + "vip");
        producer.setVipChannelEnabled(true);
        producer.start();
        Received received = new Received();
        consumer(received).start();
        List<SendResult> sent = sendAll(producer, topic, "m", 10);
        received.assertExactly("", numbered("m", 10));
        String[] broker = BROKER.split(":");
        String vip = broker[0] + ":" + (Integer.parseInt(broker[1]) - 2);
        assertTrue(connections(producer).contains(vip), "no connection to " + vip + " but to " + connections(producer));
        assertEquals(10, sent.size());
    }

    /** The addresses to which the client has a connection; it tells them to nobody. */
    private static Set<?> connections(DefaultMQProducer producer) throws ReflectiveOperationException {
        RemotingClient remoting = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl().getRemotingClient();
        Field table = remoting.getClass().getDeclaredField("channelTables");
        table.setAccessible(true);
        return ((Map<?, ?>) table.get(remoting)).keySet();
    }

    /** The client steers by the time that sends take: all queues of a broker that answers are taken in turn. */
    @Test
    void latencyFaultTolerance() throws Exception {
        producerFor(topic, 4);
        DefaultMQProducer producer = clients.unstartedProducer(name + "latency");
        producer.setSendLatencyFaultEnable(true);
        producer.start();
        List<SendResult> sent = sendAll(producer, topic, "m", 40);
        List<Integer> queues = sent.stream().map(s -> s.getMessageQueue().getQueueId()).distinct().sorted().toList();
        assertEquals(List.of(0, 1, 2, 3), queues);
    }

    /** Producer and consumer tell of each message in the trace topic, found by the message's id. */
    @Test
    void messageTraces() throws Exception {
        producerFor(topic, 1);
        String traces = name + "traces";
        DefaultMQProducer asker = producerFor(traces, 1);
        DefaultMQProducer producer = new DefaultMQProducer(name + "traced", true, traces);
        clients.configure(producer);
        clients.onClose(producer::shutdown);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, true, traces);
        clients.configure(consumer);
        clients.onClose(consumer::shutdown);
        Received received = new Received();
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        SendResult sent = sendOk(producer, message(topic, "TagA", "traced"));
        received.assertExactly("", List.of("traced"));
        for (String kind : List.of("Pub", "SubBefore", "SubAfter")) {
            Await.until(kind + " of " + sent.getMsgId(), () -> traced(asker, traces, sent.getMsgId()).stream().anyMatch(t -> t.startsWith(kind)),
                () -> traced(asker, traces, sent.getMsgId()));
        }
    }

    private static List<String> traced(DefaultMQProducer asker, String traces, String id) {
        try {
            long now = System.currentTimeMillis();
            List<MessageExt> found = asker.queryMessage(traces, id, 32, now - 600_000, now + 600_000).getMessageList();
            return found.stream().flatMap(m -> List.of(new String(m.getBody(), StandardCharsets.UTF_8).split("\u0002")).stream())
                .filter(line -> line.contains(id)).toList();
        } catch (Exception e) {
            return List.of(); // the index is built behind the log
        }
    }
}
