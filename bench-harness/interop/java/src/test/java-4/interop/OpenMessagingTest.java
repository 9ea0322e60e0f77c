package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.openmessaging.KeyValue;
import io.openmessaging.Message;
import io.openmessaging.MessagingAccessPoint;
import io.openmessaging.OMS;
import io.openmessaging.OMSBuiltinKeys;
import io.openmessaging.consumer.PullConsumer;
import io.openmessaging.consumer.PushConsumer;
import io.openmessaging.producer.Producer;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.jupiter.api.Test;

/** The OpenMessaging interface to the 4.x client: what its producer sends, its push and its pull consumer get. */
class OpenMessagingTest extends Interop {
    private static final int COUNT = 20;

    @Test
    void bothKindsOfConsumersGetWhatIsSent() throws Exception {
        producerFor(topic, 4);
        MessagingAccessPoint point = OMS.getMessagingAccessPoint("oms:rocketmq://" + NAMESRV + "/default:default");
        point.startup();
        clients.onClose(point::shutdown);

        Set<String> pushed = ConcurrentHashMap.newKeySet();
        PushConsumer push = point.createPushConsumer(consumerOf(group + "-push"));
        push.attachQueue(topic, (message, context) -> {
            pushed.add(new String(message.getBody(byte[].class), StandardCharsets.UTF_8));
            context.ack();
        });
        push.startup();
        clients.onClose(push::shutdown);
        PullConsumer pull = point.createPullConsumer(consumerOf(group + "-pull"));
        pull.attachQueue(topic);
        pull.startup();
        clients.onClose(pull::shutdown);

        Producer producer = point.createProducer();
        producer.startup();
        clients.onClose(producer::shutdown);
        // Its consumers begin at the end of what there is, so they are waited for with a message of their own.
        Set<String> pulled = new HashSet<>();
        Await.until("both consumers are there", () -> {
            send(producer, "first");
            receive(pull, pulled);
            return pushed.contains("first") && pulled.contains("first");
        }, () -> "pushed " + pushed + ", pulled " + pulled);
        for (String text : numbered("m", COUNT)) {
            send(producer, text);
        }
        Set<String> all = new HashSet<>(numbered("m", COUNT));
        all.add("first");
        // That pull consumer passes over what it pulls before its queues are assigned to it, from Apache's broker too.
        Await.until("all are pushed, and some pulled", () -> {
            receive(pull, pulled);
            return pushed.size() > COUNT && pulled.size() > 1;
        }, () -> "pushed " + pushed + ", pulled " + pulled);
        assertEquals(all, pushed);
        assertTrue(all.containsAll(pulled), () -> "pulled " + pulled);
    }

    private static KeyValue consumerOf(String group) {
        return OMS.newKeyValue().put(OMSBuiltinKeys.CONSUMER_ID, group);
    }

    private void send(Producer producer, String text) {
        Message message = producer.createBytesMessage(topic, text.getBytes(StandardCharsets.UTF_8));
        assertNotNull(producer.send(message).messageId());
    }

    private static void receive(PullConsumer consumer, Set<String> texts) {
        Message message = consumer.receive(OMS.newKeyValue().put(Message.BuiltinKeys.TIMEOUT, 500));
        if (message != null) {
            texts.add(new String(message.getBody(byte[].class), StandardCharsets.UTF_8));
            consumer.ack(message.sysHeaders().getString(Message.BuiltinKeys.MESSAGE_ID));
        }
    }
}
