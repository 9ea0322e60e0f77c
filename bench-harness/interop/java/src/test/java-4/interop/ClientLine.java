package interop;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** What the 4.9 client spells differently from 5.x. */
final class ClientLine {
    private ClientLine() {}

    static void broadcasting(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void createTopic(DefaultMQProducer producer, String topic, int queues) throws MQClientException {
        producer.createTopic("TBW102", topic, queues);
    }

    /** What the broker has stored for the group, asked by a client that is no member of it; -1 if nothing. */
    static long storedOffset(DefaultMQProducer asker, String group, MessageQueue queue) throws Exception {
        QueryConsumerOffsetRequestHeader header = new QueryConsumerOffsetRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(queue.getTopic());
        header.setQueueId(queue.getQueueId());
        try {
            return asker.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl()
                .queryConsumerOffset(Interop.BROKER, header, 20_000);
        } catch (MQBrokerException e) {
            if (e.getResponseCode() == 22) {
                return -1;
            }
            throw e;
        }
    }
}
