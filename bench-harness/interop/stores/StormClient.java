package stores;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A client of {@link Storm} in a process of its own, so that it can be killed: {@code sender} or {@code receiver}. What it did stands in a
 * file, one line each, written before anything follows from it; a killed process loses none.
 */
public final class StormClient {
    /** Levels are a second each. */
    private static final int LEVEL = 1;
    private static final long LEVEL_MILLIS = 1000;
    private static final long PAUSE_NANOS = 1_500_000;

    private final String nameServer;
    private final String name;
    private final String broker;
    private final FileChannel lines;

    private StormClient(String nameServer, String broker, String name, Path file) throws IOException {
        this.broker = broker;
        this.nameServer = nameServer;
        this.name = name;
        lines = FileChannel.open(file, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    /** sender|receiver NAMESERVER NAME FILE, for the sender the file that ends its sending, BROKER. */
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.logUseSlf4j", "true");
        Path file = Path.of(args[3]);
        if (args[0].equals("sender")) {
            new StormClient(args[1], args[5], args[2], file).send(next(file), Path.of(args[4]));
        } else {
            new StormClient(args[1], args[5], args[2], file).receive();
        }
    }

    /** Behind the last number that was tried. */
    private static int next(Path file) throws IOException {
        List<String> before = Files.exists(file) ? Files.readAllLines(file) : List.of();
        return before.stream().filter(line -> line.startsWith("try ")).mapToInt(line -> Integer.parseInt(line.split(" ")[2]) + 1).max().orElse(0);
    }

    private synchronized void note(String line) {
        try {
            lines.write(ByteBuffer.wrap((line + "\n").getBytes(StandardCharsets.UTF_8)));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    /** The name stays over restarts, so that a queue's lock is its owner's again. */
    private <T extends ClientConfig> T configure(T client) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName(name);
        client.setHeartbeatBrokerInterval(1000);
        client.setPollNameServerInterval(1000);
        return client;
    }

    private void send(int from, Path end) throws Exception {
        TransactionMQProducer producer = configure(new TransactionMQProducer("storm-producers"));
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(3000);
        producer.setTransactionListener(new Fates());
        producer.start();
        // One of each kind in any case: a producer that has sent nothing knows no broker, heartbeats to none and is asked for no transaction.
        for (int n = from; n < from + Storm.Kind.values().length || !Files.exists(end); n++) {
            Storm.Kind kind = Storm.Kind.values()[n % Storm.Kind.values().length];
            note("try " + kind + " " + n);
            try {
                SendResult sent = send(producer, kind, n);
                if (sent.getSendStatus() == SendStatus.SEND_OK) {
                    note("ack " + kind + " " + n);
                    if (kind == Storm.Kind.TRANSACTION && isToldAtOnce(n)) {
                        noteFate("told", n);
                    }
                }
            } catch (Exception e) { // whatever became of it, the judge takes both
                LockSupport.parkNanos(50_000_000);
            }
            LockSupport.parkNanos(PAUSE_NANOS);
        }
        note("end");
        Thread.sleep(Long.MAX_VALUE); // there for checks of transactions
    }

    private SendResult send(TransactionMQProducer producer, Storm.Kind kind, int n) throws Exception {
        Message message = new Message(kind.topic(), Integer.toString(n).getBytes(StandardCharsets.UTF_8));
        int queue = n / Storm.Kind.values().length % Storm.QUEUES;
        long now = System.currentTimeMillis();
        switch (kind) {
            case TRANSACTION -> {
                return producer.sendMessageInTransaction(message, n);
            }
            case LEVEL -> {
                message.setDelayTimeLevel(LEVEL);
                message.putUserProperty("due", Long.toString(now + LEVEL_MILLIS));
            }
            case TIMER -> {
                long due = now + 500 + ThreadLocalRandom.current().nextInt(4000);
                message.setDeliverTimeMs(due);
                message.putUserProperty("due", Long.toString(due));
            }
            case LIGHT -> MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", String.join(",", Storm.lightsOf(n).stream().map(Storm::light).toList()));
            default -> { }
        }
        return producer.send(message, (queues, all, id) -> queues.get((int) id % queues.size()), queue);
    }

    private static LocalTransactionState fate(int n) {
        return Storm.isCommitted(n) ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    private void noteFate(String what, int n) {
        note(what + " " + Storm.Kind.TRANSACTION + " " + n + " " + System.currentTimeMillis());
    }

    private static boolean isToldAtOnce(int n) {
        return n / Storm.Kind.values().length % 3 == 0;
    }

    /** A third is told at once, two thirds by checks. */
    private final class Fates implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object n) {
            return isToldAtOnce((int) n) ? fate((int) n) : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            int n = number(message);
            noteFate("asked", n);
            noteFate("told", n);
            return fate(n);
        }
    }

    private static int number(MessageExt message) {
        return Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8));
    }

    private void receive() throws Exception {
        int light = Integer.parseInt(name.split("-")[1]);
        Thread reader = new Thread(() -> readLight(light), "light");
        reader.setDaemon(true);
        reader.start();
        for (Storm.Kind kind : Storm.Kind.values()) {
            if (kind == Storm.Kind.LIGHT) {
                continue; // by hand
            }
            DefaultMQPushConsumer consumer = configure(new DefaultMQPushConsumer("storm-" + kind));
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setPersistConsumerOffsetInterval(500);
            consumer.setConsumeThreadMin(2);
            consumer.setConsumeThreadMax(2);
            consumer.setMaxReconsumeTimes(100);
            consumer.subscribe(kind.topic(), "*");
            if (kind == Storm.Kind.POP) {
                consumer.setClientRebalance(false);
                consumer.setPopInvisibleTime(Storm.POP_INVISIBLE_MILLIS);
            }
            if (kind == Storm.Kind.ORDERLY) {
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    messages.forEach(message -> got(kind, message));
                    return ConsumeOrderlyStatus.SUCCESS;
                });
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    messages.forEach(message -> got(kind, message));
                    boolean back = kind != Storm.Kind.POP && messages.get(0).getReconsumeTimes() == 0 && number(messages.get(0)) % 97 == 0;
                    return back ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
            }
            consumer.start();
        }
        Thread.sleep(Long.MAX_VALUE);
    }

    /**
     * Consumes one light queue in the way of a gateway: by pulls of its own, with its offset kept by the broker. What was consumed is noted
     * before the offset says so.
     */
    private void readLight(int light) {
        String topic = Storm.light(light);
        while (true) {
            try (Wire wire = new Wire(broker)) {
                long at = wire.committedOr(topic, topic, 0, 0);
                while (true) {
                    for (MessageExt message : wire.light(topic, at)) {
                        got(Storm.Kind.LIGHT, message, light, at++);
                    }
                    wire.commit(topic, topic, 0, at);
                    LockSupport.parkNanos(20_000_000);
                }
            } catch (Exception | AssertionError e) { // the broker is away: its offset tells where to go on
                LockSupport.parkNanos(200_000_000);
            }
        }
    }

    private void got(Storm.Kind kind, MessageExt message) {
        got(kind, message, message.getQueueId(), message.getQueueOffset());
    }

    /** One clock for all processes of a machine. */
    private void got(Storm.Kind kind, MessageExt message, int queue, long offset) {
        String handle = message.getProperty("POP_CK");
        String[] parts = handle == null ? null : handle.split(" "); // first offset, time of the pop, invisible time, ...
        String due = parts == null ? message.getUserProperty("due") : Long.toString(Long.parseLong(parts[1]) + Long.parseLong(parts[2]));
        long late = due == null ? 0 : System.currentTimeMillis() - Long.parseLong(due);
        note("got " + kind + " " + number(message) + " " + queue + " " + offset + " " + System.nanoTime() + " " + late
            + " " + message.getReconsumeTimes() + " " + message.getStoreTimestamp() + " " + (due == null ? 0 : due));
    }
}
