package stores;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Apache's clients for one leg, each with its own connections; all stopped at its end. */
final class Clients implements AutoCloseable {
    private static final AtomicInteger COUNT = new AtomicInteger();

    private final String nameServer;
    private final Deque<Runnable> stops = new ArrayDeque<>();
    final Wire wire;
    final DefaultMQProducer producer;
    final DefaultMQAdminExt admin;
    final TransactionMQProducer transactions;
    private long heard = Long.MIN_VALUE / 2;

    Clients(String nameServer, String broker, int leg) throws Exception {
        this.nameServer = nameServer;
        wire = new Wire(broker);
        stops.push(wire::close);
        producer = producer(CompressionType.ZLIB);
        admin = configure(new DefaultMQAdminExt(20_000));
        admin.start();
        stops.push(admin::shutdown);
        transactions = configure(new TransactionMQProducer("stores-tx-group"));
        transactions.setSendMsgTimeout(20_000);
        transactions.setTransactionListener(new Verdicts(leg));
        transactions.start();
        stops.push(transactions::shutdown);
    }

    /**
     * The broker asks back only a producer that it has heard of, and that is by the heartbeat to brokers of topics that the producer
     * knows. Both calls give up silently when another thread of the client is at it, hence once a second while something is waited for.
     */
    @SuppressWarnings("deprecation")
    void hearProducer(String topic) {
        if (System.nanoTime() - heard > 1_000_000_000L) {
            MQClientInstance client = transactions.getDefaultMQProducerImpl().getMqClientFactory();
            client.updateTopicRouteInfoFromNameServer(topic);
            client.sendHeartbeatToAllBrokerWithLock();
            heard = System.nanoTime();
        }
    }

    DefaultMQProducer producer(CompressionType compression) throws Exception {
        DefaultMQProducer producer = configure(new DefaultMQProducer("stores-producer"));
        producer.setSendMsgTimeout(20_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setCompressMsgBodyOverHowmuch(3000);
        producer.setCompressType(compression);
        producer.start();
        stops.push(producer::shutdown);
        return producer;
    }

    private <T extends ClientConfig> T configure(T client) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName("stores" + COUNT.incrementAndGet());
        client.setHeartbeatBrokerInterval(1000);
        return client;
    }

    @Override
    public void close() {
        while (!stops.isEmpty()) {
            stops.pop().run();
        }
    }

    /** A message says itself what becomes of it: {@code verdict} at once, {@code commitAt} at a check-back in this or a later leg. */
    private record Verdicts(int leg) implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object none) {
            return LocalTransactionState.valueOf(message.getUserProperty("verdict"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String at = message.getUserProperty("commitAt");
            return at != null && Integer.parseInt(at) <= leg ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.UNKNOW;
        }
    }
}
