package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** Request-reply: what a consumer replies comes to the producer that asked. */
class RequestReplyTest extends Interop {
    private void replying(DefaultMQProducer replier) throws Exception {
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt message : messages) {
                    String question = new String(message.getBody(), StandardCharsets.UTF_8);
                    byte[] answer = ("re: " + question).getBytes(StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(message, answer), 5000);
                }
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        awaitQueuesHeld(consumer, topic, 2);
    }

    @Test
    void eachQuestionGetsItsOwnReply() throws Exception {
        DefaultMQProducer asker = producerFor(topic, 2);
        replying(producerFor(topic + "-replier", 1));
        for (int i = 0; i < 5; i++) {
            assertEquals("re: question " + i, text(asker.request(message(topic, "TagA", "question " + i), 20_000)));
        }
    }

    @Test
    void aReplyComesToACallback() throws Exception {
        DefaultMQProducer asker = producerFor(topic, 2);
        replying(producerFor(topic + "-replier", 1));
        CompletableFuture<Message> replied = new CompletableFuture<>();
        asker.request(message(topic, "TagA", "later"), new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                // The client also calls this, without a reply, when the question is acknowledged.
                if (reply != null) {
                    replied.complete(reply);
                }
            }

            @Override
            public void onException(Throwable e) {
                replied.completeExceptionally(e);
            }
        }, 20_000);
        assertEquals("re: later", text(replied.get(30, TimeUnit.SECONDS)));
    }

    @Test
    void aLongReplyIsWhole() throws Exception {
        DefaultMQProducer asker = producerFor(topic, 2);
        replying(producerFor(topic + "-replier", 1));
        String question = "long ".repeat(20_000);
        assertEquals("re: " + question, text(asker.request(message(topic, "TagA", question), 20_000)));
    }

    @Test
    void nobodyReplies() throws Exception {
        DefaultMQProducer asker = producerFor(topic, 2);
        assertThrows(RequestTimeoutException.class, () -> asker.request(message(topic, "TagA", "anybody?"), 1000));
    }
}
