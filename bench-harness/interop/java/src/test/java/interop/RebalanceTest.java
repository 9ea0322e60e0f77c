package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** How the members of a group share queues: each strategy of the client needs the same list of members at each of them. */
class RebalanceTest extends Interop {
    private static final int QUEUES = 6;

    enum Strategy {
        AVERAGELY, CIRCLE, HASH, ROOM_NEARBY;

        AllocateMessageQueueStrategy make() {
            return switch (this) {
                case AVERAGELY -> new AllocateMessageQueueAveragely();
                case CIRCLE -> new AllocateMessageQueueAveragelyByCircle();
                case HASH -> new AllocateMessageQueueConsistentHash();
                case ROOM_NEARBY -> new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new OneRoom());
            };
        }
    }

    /** The broker and all consumers are in one room. */
    private static final class OneRoom implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return "room";
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return "room";
        }
    }

    private DefaultMQPushConsumer start(AllocateMessageQueueStrategy strategy, Received received) throws Exception {
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setAllocateMessageQueueStrategy(strategy);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        return consumer;
    }

    private static List<Integer> held(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(q -> q.getTopic().equals(topic)).map(MessageQueue::getQueueId).sorted().toList();
    }

    /** Each queue has exactly one of three members, and when one leaves exactly one of the two that stay. */
    @ParameterizedTest
    @EnumSource(Strategy.class)
    void everyQueueHasOneMember(Strategy strategy) throws Exception {
        DefaultMQProducer producer = producerFor(topic, QUEUES);
        Received received = new Received();
        DefaultMQPushConsumer first = start(strategy.make(), received);
        DefaultMQPushConsumer second = start(strategy.make(), received);
        DefaultMQPushConsumer third = start(strategy.make(), received);
        awaitShared(first, second, third);
        sendAll(producer, topic, "three-", 60);
        received.assertExactly("three-", numbered("three-", 60));
        stop(third);
        awaitShared(first, second);
        sendAll(producer, topic, "two-", 60);
        received.assertExactly("two-", numbered("two-", 60));
    }

    /** What the strategy itself gives to these members is what they hold; so they were told of each other by the broker. */
    private void awaitShared(DefaultMQPushConsumer... members) {
        List<String> ids = List.of(members).stream().map(m -> m.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId()).sorted().toList();
        List<MessageQueue> all = IntStream.range(0, QUEUES).mapToObj(id -> queue(topic, id)).toList();
        for (DefaultMQPushConsumer member : members) {
            String id = member.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
            List<Integer> share = member.getAllocateMessageQueueStrategy().allocate(group, id, all, ids).stream()
                .map(MessageQueue::getQueueId).sorted().toList();
            Await.until("queues " + share, () -> held(member, topic).equals(share), () -> held(member, topic));
        }
        List<Integer> together = List.of(members).stream().flatMap(m -> held(m, topic).stream()).sorted().toList();
        assertEquals(IntStream.range(0, QUEUES).boxed().toList(), together);
    }

    /** Queues that are named for a member are its own and nobody else's. */
    @Test
    void queuesByConfiguration() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        Received ofFirst = new Received();
        Received ofSecond = new Received();
        start(byConfig(0), ofFirst);
        start(byConfig(1), ofSecond);
        sendAllTo(producer, queue(topic, 0), "zero-", 20);
        sendAllTo(producer, queue(topic, 1), "one-", 20);
        ofFirst.assertExactly("", numbered("zero-", 20));
        ofSecond.assertExactly("", numbered("one-", 20));
    }

    private AllocateMessageQueueStrategy byConfig(int id) {
        AllocateMessageQueueByConfig strategy = new AllocateMessageQueueByConfig();
        strategy.setMessageQueueList(List.of(queue(topic, id)));
        return strategy;
    }

    /** By rooms in the broker's name: this one's says none, so its queues are nobody's. */
    @Test
    void aBrokerWithoutARoomIsNobodys() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        AllocateMessageQueueByMachineRoom strategy = new AllocateMessageQueueByMachineRoom();
        strategy.setConsumeridcs(java.util.Set.of("room"));
        Received none = new Received();
        Received all = new Received();
        DefaultMQPushConsumer roomed = start(strategy, none);
        sendAll(producer, topic, "m", 10);
        awaitQueuesHeld(roomed, "%RETRY%" + group, 0);
        stop(roomed);
        start(new AllocateMessageQueueAveragely(), all);
        all.assertExactly("", numbered("m", 10));
        assertEquals(0, none.count());
    }
}
