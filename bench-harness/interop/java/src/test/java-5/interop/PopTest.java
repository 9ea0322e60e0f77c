package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.junit.jupiter.api.Test;

/** The push consumer of 5.x in POP mode, as {@code mqadmin setConsumeMode} sets it: the broker shares the messages out, not the queues. */
class PopTest extends Interop {
    private DefaultMQAdminExt admin;

    /** Sets the group to POP on the topic. */
    private void popMode(String group) throws Exception {
        if (admin == null) {
            admin = new DefaultMQAdminExt(name + "admin", 20_000);
            clients.configure(admin);
            admin.start();
            clients.onClose(admin::shutdown);
        }
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        admin.createAndUpdateSubscriptionGroupConfig(BROKER, config);
        admin.setMessageRequestMode(BROKER, topic, group, MessageRequestMode.POP, 0, 10_000);
    }

    private DefaultMQPushConsumer popper(String group) {
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setClientRebalance(false);
        return consumer;
    }

    /** The consumer pops, and does not pull. */
    private static void awaitPopping(DefaultMQPushConsumer consumer, String topic) {
        Await.until("pop of any queue", () -> consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getPopProcessQueueTable().keySet().stream()
            .anyMatch(q -> q.getTopic().equals(topic) && q.getQueueId() == -1), () -> "none");
    }

    @Test
    void everyMessageComesOnceAndIsAcknowledged() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        popMode(group);
        Received received = new Received();
        DefaultMQPushConsumer consumer = popper(group);
        consumer.subscribe(topic, "TagA");
        consumer.setPopInvisibleTime(10_000);
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        awaitPopping(consumer, topic);
        sendAll(producer, topic, "m", 300);
        sendOk(producer, message(topic, "TagB", "other"));
        received.assertExactly("m", numbered("m", 300));
        assertTrue(received.textsStarting("other").isEmpty());
        MessageExt first = received.first("m0");
        assertEquals(topic, first.getTopic());
        assertEquals(0, first.getReconsumeTimes());
        assertNotNull(first.getProperty("1ST_POP_TIME"));
        // All are handed out, whatever becomes of the acknowledgements: the group stands at the end of every queue.
        for (int queue = 0; queue < 4; queue++) {
            int id = queue;
            Await.until("end of queue " + id, () -> stored(producer, id) == maxOffset(clients.pull(name + "look" + id), queue(topic, id)),
                () -> stored(producer, id));
        }
    }

    @Test
    void membersShareOneQueue() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        popMode(group);
        Received both = new Received();
        Map<String, AtomicInteger> byMember = new ConcurrentHashMap<>();
        for (String member : List.of("one", "two")) {
            DefaultMQPushConsumer consumer = popper(group);
            consumer.setPopBatchNums(1);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently) (batch, context) -> {
                both.add(batch);
                byMember.computeIfAbsent(member, m -> new AtomicInteger()).addAndGet(batch.size());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            awaitPopping(consumer, topic);
        }
        int sent = 0;
        while (byMember.size() < 2 && sent < 2000) {
            sendAll(producer, topic, "m" + sent + "-", 20);
            sent += 20;
        }
        assertEquals(2, byMember.size(), "members that got messages of the one queue");
        int all = sent;
        Await.until(all + " messages", () -> both.count() >= all, both::count);
        assertEquals(all, both.texts().stream().distinct().count());
        assertEquals(all, both.count());
    }

    @Test
    void aFailedMessageComesBack() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        popMode(group);
        Received received = new Received();
        DefaultMQPushConsumer consumer = popper(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently) (batch, context) -> {
            received.add(batch);
            boolean fails = batch.stream().anyMatch(m -> text(m).equals("bad") && m.getReconsumeTimes() == 0);
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        awaitPopping(consumer, topic);
        sendOk(producer, message(topic, "TagA", "good"));
        sendOk(producer, message(topic, "TagA", "bad"));
        Await.until("both tries", () -> received.textsStarting("bad").size() == 2, received::texts);
        List<MessageExt> tries = received.all().stream().filter(m -> text(m).equals("bad")).toList();
        assertEquals(1, tries.get(1).getReconsumeTimes());
        assertEquals(topic, tries.get(1).getTopic());
        assertEquals(tries.get(0).getMsgId(), tries.get(1).getMsgId());
        // A failure changes the invisible time, which is a pop of its own.
        assertTrue(Long.parseLong(tries.get(1).getProperty("1ST_POP_TIME")) >= Long.parseLong(tries.get(0).getProperty("1ST_POP_TIME")));
        assertEquals(1, received.textsStarting("good").size());
    }
}
