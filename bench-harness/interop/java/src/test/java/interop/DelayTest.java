package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** Delay levels: level 1 is one second, level 2 five. */
class DelayTest extends Interop {
    private static Message delayed(String topic, int level, String text) {
        Message message = message(topic, "TagA", text);
        message.setDelayTimeLevel(level);
        message.putUserProperty("own", text);
        return message;
    }

    @Test
    void delayedMessageComesWhenItIsDue() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        Received received = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, "TagA");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        awaitQueuesHeld(consumer, topic, 2);

        SendResult late = sendOk(producer, delayed(topic, 2, "late"));
        SendResult soon = sendOk(producer, delayed(topic, 1, "soon"));
        sendOk(producer, message(topic, "TagA", "now"));
        received.awaitAll(List.of("now", "soon", "late"));
        assertEquals(3, received.count());
        MessageExt level1 = received.first("soon");
        MessageExt level2 = received.first("late");
        assertTrue(level1.getStoreTimestamp() - level1.getBornTimestamp() >= 1000);
        assertTrue(level2.getStoreTimestamp() - level2.getBornTimestamp() >= 5000);
        assertEquals(soon.getMsgId(), level1.getMsgId());
        assertEquals(late.getMsgId(), level2.getMsgId());
        assertEquals("soon", level1.getUserProperty("own"));
        assertEquals(topic, level1.getTopic());
        assertEquals("TagA", level1.getTags());
        assertEquals("1", level1.getProperty("DELAY"));
        assertEquals(topic, level1.getProperty("REAL_TOPIC"));
        assertEquals(soon.getMessageQueue().getQueueId(), level1.getQueueId());
    }

    @Test
    void manyDelayedMessagesKeepTheirOrder() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        for (String text : numbered("m", 100)) {
            sendOk(producer, delayed(topic, 1, text));
        }
        assertEquals(numbered("m", 100), texts(pullAll(clients.pull(group), queue(topic, 0), 100)));
    }
}
