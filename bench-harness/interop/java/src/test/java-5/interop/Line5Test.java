package interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** What only 5.x clients do on the same requests. */
class Line5Test extends Interop {
    @ParameterizedTest
    @EnumSource(CompressionType.class)
    void compressionTypesPassThrough(CompressionType type) throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        producer.setCompressType(type);
        byte[] body = new byte[50_000];
        Arrays.fill(body, (byte) 7);
        sendOk(producer, new Message(topic, body.clone()));
        var stored = pullAll(clients.pull(group), queue(topic, 0), 1).get(0);
        assertArrayEquals(body, stored.getBody());
        assertEquals(type.getCompressionFlag(), stored.getSysFlag() & MessageSysFlag.COMPRESSION_TYPE_COMPARATOR);
    }

    /** Second and later heartbeats carry a fingerprint only; the subscription must stay, and a change must be asked for. */
    @Test
    void shortHeartbeats() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        Received received = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setUseHeartbeatV2(true);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.subscribe(topic, "TagA");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        for (int round = 0; round < 5; round++) {
            sendAll(producer, topic, "m" + round + "-", 10);
            received.assertExactly("m" + round + "-", numbered("m" + round + "-", 10));
        }
        consumer.subscribe(topic, "TagA || TagB");
        Await.until("TagB after the change", () -> {
            sendOk(producer, message(topic, "TagB", "b"));
            return received.texts().contains("b");
        }, received::count);
        assertEquals(List.of(), received.textsStarting("none"));
    }

    /** Single sends that the client gathers into batches by itself: each has its own answer and its own offset. */
    @Test
    void autoBatchedSends() throws Exception {
        producerFor(topic, 1);
        DefaultMQProducer producer = clients.unstartedProducer(name + "auto");
        producer.setAutoBatch(true);
        producer.batchMaxDelayMs(50);
        producer.start();
        List<Long> offsets = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch answered = new CountDownLatch(50);
        for (String text : numbered("m", 50)) {
            producer.send(message(topic, "TagA", text), queue(topic, 0), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    offsets.add(result.getQueueOffset());
                    answered.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    answered.countDown();
                }
            });
            LockSupport.parkNanos(2_000_000);
        }
        assertTrue(answered.await(30, TimeUnit.SECONDS));
        List<MessageExt> stored = pullAll(clients.pull(group), queue(topic, 0), 50);
        assertEquals(numbered("m", 50), texts(stored));
        long requests = stored.stream().map(MessageExt::getBornTimestamp).distinct().count(); // a batch has one time, and they were sent 2 ms apart
        assertTrue(requests < 25, requests + " requests");
        assertEquals(stored.stream().map(MessageExt::getQueueOffset).toList(), offsets.stream().sorted().toList());
    }
}
