package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** Arbitrary timers of the 5.x client. Apache's broker delivers up to a second after the time that was asked for. */
class TimerTest extends Interop {
    private Message timed(String text) {
        Message message = message(topic, "TagA", text);
        message.putUserProperty("own", text);
        return message;
    }

    @Test
    void messagesComeWhenTheyAreDue() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        Received received = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, "TagA");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        awaitQueuesHeld(consumer, topic, 2);

        Message sec = timed("sec");
        sec.setDelayTimeSec(3);
        SendResult late = sendOk(producer, sec);
        Message ms = timed("ms");
        ms.setDelayTimeMs(1200);
        SendResult soon = sendOk(producer, ms);
        Message at = timed("at");
        long deliver = System.currentTimeMillis() + 2100;
        at.setDeliverTimeMs(deliver);
        SendResult exact = sendOk(producer, at);
        Message past = timed("past");
        past.setDeliverTimeMs(System.currentTimeMillis() - 1);
        SendResult now = sendOk(producer, past);
        received.awaitAll(List.of("past", "ms", "at", "sec"));
        assertEquals(4, received.count());
        assertTrue(received.first("ms").getStoreTimestamp() - received.first("ms").getBornTimestamp() >= 1200);
        assertTrue(received.first("sec").getStoreTimestamp() - received.first("sec").getBornTimestamp() >= 3000);
        assertTrue(received.first("at").getStoreTimestamp() >= deliver);
        assertNull(now.getRecallHandle());
        assertNull(received.first("past").getProperty("TIMER_OUT_MS"));
        for (SendResult sent : List.of(late, soon, exact)) {
            assertNotNull(sent.getRecallHandle());
        }
        MessageExt delivered = received.first("sec");
        assertEquals(late.getMsgId(), delivered.getMsgId());
        assertEquals("sec", delivered.getUserProperty("own"));
        assertEquals("TagA", delivered.getTags());
        assertEquals("3", delivered.getProperty("TIMER_DELAY_SEC"));
        assertEquals(topic, delivered.getProperty("REAL_TOPIC"));
        assertEquals(late.getMessageQueue().getQueueId(), delivered.getQueueId());
        assertEquals(0, Long.parseLong(delivered.getProperty("TIMER_OUT_MS")) % 1000);
        assertEquals(0, Long.parseLong(delivered.getProperty("TIMER_ENQUEUE_MS")) % 1000);
        assertTrue(Long.parseLong(delivered.getProperty("TIMER_DEQUEUE_MS")) <= delivered.getStoreTimestamp());
    }

    @Test
    void manyComeAllAndOnce() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        for (String text : numbered("m", 200)) {
            Message message = timed(text);
            message.setDelayTimeMs(500 + Math.floorMod(text.hashCode(), 500));
            sendOk(producer, message);
        }
        List<String> came = texts(pullAll(clients.pull(group), queue(topic, 0), 200));
        assertEquals(numbered("m", 200).stream().sorted().toList(), came.stream().sorted().toList());
    }

    @Test
    void tooFarAheadIsRefused() throws Exception {
        expectWarnings("timer message illegal");
        DefaultMQProducer producer = producerFor(topic, 1);
        Message far = timed("far");
        far.setDelayTimeSec(259_201);
        MQBrokerException refused = assertThrows(MQBrokerException.class, () -> producer.send(far));
        assertEquals(13, refused.getResponseCode());
    }

    @Test
    void aRecalledMessageDoesNotCome() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        long deliver = (System.currentTimeMillis() / 1000 + 4) * 1000 + 500;
        Message goes = timed("goes");
        goes.setDeliverTimeMs(deliver);
        SendResult sent = sendOk(producer, goes);
        Message stays = timed("stays");
        stays.setDeliverTimeMs(deliver);
        sendOk(producer, stays);
        assertEquals(sent.getMsgId(), producer.recallMessage(topic, sent.getRecallHandle()));
        assertThrows(MQClientException.class, () -> producer.recallMessage(topic, "rubbish"));
        Message later = timed("later");
        later.setDeliverTimeMs(deliver + 2000);
        sendOk(producer, later);
        assertEquals(List.of("stays", "later"), texts(pullAll(clients.pull(group), queue(topic, 0), 2)));
    }
}
