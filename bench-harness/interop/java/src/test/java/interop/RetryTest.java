package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A refused message comes again through the retry topic and its delay level, and at last becomes a dead letter. */
@Tag("binary")
class RetryTest extends Interop {
    /** Starts a consumer that refuses every message whose text starts with "bad" and whose reconsumeTimes are below the limit. */
    private void refuse(Received seen, int maxReconsumeTimes, int acceptFrom) throws Exception {
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setMaxReconsumeTimes(maxReconsumeTimes);
        consumer.setPollNameServerInterval(1000); // the group's first heartbeat makes its retry topic
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            seen.add(batch);
            MessageExt message = batch.get(0);
            if (text(message).startsWith("bad") && message.getReconsumeTimes() < acceptFrom) {
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    static void assertDeadLetter(Interop test, String group, String text) throws Exception {
        String dlq = "%DLQ%" + group;
        DefaultMQProducer any = test.clients.producer(test.name + "dlq-p");
        test.awaitRoute(any, dlq, 1);
        DefaultMQPullConsumer puller = test.clients.pull(test.name + "dlq-g");
        MessageExt dead = pullAll(puller, queue(dlq, 0), 1).get(0);
        assertEquals(text, text(dead));
        assertEquals(test.topic, dead.getProperty(MessageConst.PROPERTY_RETRY_TOPIC));
        assertNotNull(dead.getProperty(MessageConst.PROPERTY_ORIGIN_MESSAGE_ID));
    }

    @Test
    void refusedMessageComesAgain() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        Received seen = new Received();
        refuse(seen, 16, 1);
        SendResult sent = sendOk(producer, message(topic, "TagA", "bad"));
        sendOk(producer, message(topic, "TagA", "good"));
        Await.until("redelivery", () -> seen.textsStarting("bad").size() >= 2, seen::texts);

        List<MessageExt> bad = seen.all().stream().filter(m -> text(m).equals("bad")).toList();
        assertEquals(2, bad.size());
        assertEquals(0, bad.get(0).getReconsumeTimes());
        MessageExt again = bad.get(1);
        assertEquals(1, again.getReconsumeTimes());
        assertEquals(topic, again.getTopic());
        assertEquals("TagA", again.getTags());
        assertEquals(sent.getMsgId(), again.getMsgId());
        assertEquals(sent.getOffsetMsgId(), again.getProperty(MessageConst.PROPERTY_ORIGIN_MESSAGE_ID));
        assertNotEquals(bad.get(0).getCommitLogOffset(), again.getCommitLogOffset());
        assertTrue(again.getStoreTimestamp() - bad.get(0).getStoreTimestamp() >= 1000, "level 1 is a second");
        assertEquals(List.of("good"), seen.textsStarting("good"));
    }

    @Test
    void refusedToTheLimitBecomesADeadLetter() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        Received seen = new Received();
        refuse(seen, 1, Integer.MAX_VALUE);
        sendOk(producer, message(topic, "TagA", "bad"));
        assertDeadLetter(this, group, "bad");
        assertEquals(List.of(0, 1), seen.all().stream().map(MessageExt::getReconsumeTimes).toList());
    }

    @Test
    void severalRefusalsAreCounted() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        Received seen = new Received();
        refuse(seen, 16, 3);
        sendAll(producer, topic, "bad", 10);
        Await.until("third redelivery of all", () -> seen.all().stream().filter(m -> m.getReconsumeTimes() == 3).count() == 10,
            () -> seen.all().stream().map(m -> text(m) + ":" + m.getReconsumeTimes()).toList());
        for (int times = 0; times <= 3; times++) {
            int wanted = times;
            assertEquals(numbered("bad", 10),
                seen.all().stream().filter(m -> m.getReconsumeTimes() == wanted).map(Interop::text).sorted().toList());
        }
    }

    /** The group goes on with the retry topic although another member refused the message. */
    @Test
    void redeliveryMayReachAnotherMember() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        Received seen = new Received();
        refuse(seen, 16, 1);
        refuse(seen, 16, 1);
        sendAll(producer, topic, "bad", 20);
        // Distinct: a queue that passes between the members may hand a message, and so its refusal, to both.
        Await.until("redelivery of all",
            () -> seen.all().stream().filter(m -> m.getReconsumeTimes() == 1).map(Interop::text).distinct().count() == 20,
            () -> seen.count() + " deliveries");
    }
}
