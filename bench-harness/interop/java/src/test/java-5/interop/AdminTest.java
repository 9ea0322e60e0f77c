package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.body.CMResult;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The operators' client library of 5.x. */
class AdminTest extends Interop {
    private DefaultMQAdminExt admin;

    @BeforeEach
    void startAdmin() throws Exception {
        admin = new DefaultMQAdminExt(name + "admin", 20_000);
        clients.configure(admin);
        admin.start();
        clients.onClose(admin::shutdown);
    }

    private void createTopic(int read, int write) throws Exception {
        TopicConfig config = new TopicConfig(topic);
        config.setReadQueueNums(read);
        config.setWriteQueueNums(write);
        config.setPerm(6);
        admin.createAndUpdateTopicConfig(BROKER, config);
    }

    private TopicRouteData awaitRoute() {
        TopicRouteData[] found = new TopicRouteData[1];
        Await.until("route", () -> {
            try {
                found[0] = admin.examineTopicRouteInfo(topic);
                return found[0] != null;
            } catch (MQClientException e) {
                return false;
            }
        }, () -> "none");
        return found[0];
    }

    @Test
    void topicMadeByAdminHasItsRoute() throws Exception {
        createTopic(6, 3);
        TopicRouteData route = awaitRoute();
        assertEquals(1, route.getQueueDatas().size());
        QueueData queues = route.getQueueDatas().get(0);
        assertEquals(BROKER_NAME, queues.getBrokerName());
        assertEquals(6, queues.getReadQueueNums());
        assertEquals(3, queues.getWriteQueueNums());
        assertEquals(6, queues.getPerm());
        assertEquals(Map.of(0L, BROKER), route.getBrokerDatas().get(0).getBrokerAddrs());
        assertEquals(CLUSTER, route.getBrokerDatas().get(0).getCluster());

        DefaultMQProducer producer = clients.producer(name + "p");
        assertEquals(3, producer.fetchPublishMessageQueues(topic).size());
        assertEquals(6, clients.pull(group).fetchSubscribeMessageQueues(topic).size());
        assertTrue(admin.fetchAllTopicList().getTopicList().contains(topic));
    }

    @Test
    void updatedTopicChangesItsRoute() throws Exception {
        createTopic(4, 4);
        awaitRoute();
        createTopic(8, 8);
        Await.until("8 queues", () -> admin.examineTopicRouteInfo(topic).getQueueDatas().get(0).getReadQueueNums() == 8, () -> "4");
        TopicConfig config = admin.examineTopicConfig(BROKER, topic);
        assertEquals(8, config.getWriteQueueNums());
    }

    @Test
    void clusterList() throws Exception {
        ClusterInfo cluster = admin.examineBrokerClusterInfo();
        assertEquals(Set.of(BROKER_NAME), cluster.getClusterAddrTable().get(CLUSTER));
        assertEquals(BROKER, cluster.getBrokerAddrTable().get(BROKER_NAME).getBrokerAddrs().get(0L));
    }

    @Test
    void topicStatus() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 4);
        long before = System.currentTimeMillis();
        sendAll(producer, topic, "m", 42);
        Map<MessageQueue, TopicOffset> offsets = admin.examineTopicStats(topic).getOffsetTable();
        assertEquals(4, offsets.size());
        assertEquals(42, offsets.values().stream().mapToLong(o -> o.getMaxOffset() - o.getMinOffset()).sum());
        assertTrue(offsets.values().stream().allMatch(o -> o.getLastUpdateTimestamp() >= before - 1000));
    }

    @Test
    void consumeProgress() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 2);
        Received received = new Received();
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        sendAll(producer, topic, "m", 20);
        received.assertExactly("m", numbered("m", 20));
        Await.until("no backlog", () -> diff() == 0, this::diffOrError);
        stop(consumer);
        sendAll(producer, topic, "n", 7);
        Await.until("a backlog of 7", () -> diff() == 7, this::diffOrError);
        OffsetWrapper queue = admin.examineConsumeStats(group).getOffsetTable().get(queue(topic, 0));
        assertNotNull(queue);
        assertEquals(10, queue.getConsumerOffset());
    }

    private long diff() throws Exception {
        ConsumeStats stats = admin.examineConsumeStats(group);
        long consumed = stats.getOffsetTable().entrySet().stream().filter(e -> e.getKey().getTopic().equals(topic))
            .mapToLong(e -> e.getValue().getConsumerOffset()).sum();
        return consumed == 0 ? -1 : stats.computeTotalDiff();
    }

    private Object diffOrError() {
        try {
            return diff();
        } catch (Exception e) {
            return e;
        }
    }

    @Test
    void groupMadeByAdmin() throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        config.setRetryMaxTimes(3);
        config.setConsumeBroadcastEnable(false);
        admin.createAndUpdateSubscriptionGroupConfig(BROKER, config);
        SubscriptionGroupConfig got = admin.examineSubscriptionGroupConfig(BROKER, group);
        assertEquals(3, got.getRetryMaxTimes());
        assertEquals(group, got.getGroupName());
        admin.deleteSubscriptionGroup(BROKER, group, true);
    }

    @Test
    void deletedTopicIsGone() throws Exception {
        expectWarnings("CODE: 1|CODE: 17|not exist");
        createTopic(2, 2);
        awaitRoute();
        DefaultMQProducer producer = clients.producer(name + "p");
        sendAll(producer, topic, "m", 4);
        admin.deleteTopicInBroker(Set.of(BROKER), topic);
        admin.deleteTopicInNameServer(Set.of(NAMESRV), CLUSTER, topic);
        assertThrows(MQClientException.class, () -> admin.examineTopicRouteInfo(topic));
        assertTrue(!admin.fetchAllTopicList().getTopicList().contains(topic));

        // A topic of the same name starts anew.
        createTopic(2, 2);
        awaitRoute();
        DefaultMQProducer again = clients.producer(name + "p2");
        assertEquals(0, again.send(message(topic, "TagA", "new"), queue(topic, 0)).getQueueOffset());
    }

    private DefaultMQPushConsumer consumer(Received received) throws Exception {
        DefaultMQPushConsumer consumer = clients.push(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received.concurrently());
        consumer.start();
        return consumer;
    }

    /** An operator has a running consumer take one message once more; what its listener says comes back. */
    @Test
    void aMessageIsConsumedDirectly() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        Received received = new Received();
        DefaultMQPushConsumer consumer = consumer(received);
        SendResult sent = sendAll(producer, topic, "m", 1).get(0);
        received.assertExactly("", numbered("m", 1));
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        ConsumeMessageDirectlyResult result = admin.consumeMessageDirectly(group, client, topic, sent.getOffsetMsgId());
        assertEquals(CMResult.CR_SUCCESS, result.getConsumeResult());
        assertEquals(List.of("m0", "m0"), received.texts());
        assertEquals(sent.getMsgId(), received.all().get(1).getMsgId());
    }

    /** A running consumer is told of the reset: it consumes from there on once more. */
    @Test
    void aResetReachesARunningConsumer() throws Exception {
        DefaultMQProducer producer = producerFor(topic, 1);
        Received received = new Received();
        consumer(received);
        expectWarnings("pull request offset"); // it is sent back by the answer to a pull
        sendAll(producer, topic, "m", 10);
        received.assertExactly("", numbered("m", 10));
        admin.resetOffsetByTimestamp(topic, group, 0, true);
        Await.until("each message twice", () -> received.count() == 20, received::count);
        assertEquals(2, received.textsStarting("m3").size());
    }

    /** Which queues of an ordered topic are whose: the client has the queues that are said, whatever the topic's configuration. */
    @Test
    void ordersOfQueuesAreConfigured() throws Exception {
        Properties enabled = new Properties();
        enabled.setProperty("orderMessageEnable", "true"); // off by default
        admin.updateNameServerConfig(enabled, List.of(NAMESRV));
        TopicConfig config = new TopicConfig(topic, 8, 8, 6);
        config.setOrder(true);
        admin.createAndUpdateTopicConfig(BROKER, config);
        admin.createOrUpdateOrderConf(topic, BROKER_NAME + ":3", false);
        assertEquals(BROKER_NAME + ":3", awaitRoute().getOrderTopicConf());
        DefaultMQProducer producer = clients.producer(name + "p");
        awaitRoute(producer, topic, 3);
        sendAll(producer, topic, "m", 6);
        Await.until("a 4th queue", () -> {
            admin.createOrUpdateOrderConf(topic, BROKER_NAME + ":4", false);
            return clients.producer(name + "q" + System.nanoTime()).fetchPublishMessageQueues(topic).size() == 4;
        }, () -> "3");
    }
}
