package stores;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Stream;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.body.HARuntimeInfo;

/**
 * A master and a slave of different make, by Apache's HA protocol: what the master acknowledges with two copies is on the slave, which
 * holds the same log to the byte, through kills of either side. {@code ../run-pairs} builds and starts this.
 */
public final class Pairs {
    private record Pair(String name, Broker.Make master, Broker.Make slave) {}

    private static final List<Pair> PAIRS = List.of(
        new Pair("ours-leads", Broker.Make.OURS, Broker.Make.APACHE),
        new Pair("apache-leads", Broker.Make.APACHE, Broker.Make.OURS));

    private static final String BROKER_NAME = "broker-a";
    private static final String TOPIC = "pairs";
    private static final String GROUP = "TOOLS_CONSUMER"; // both have it from the start
    private static final int QUEUES = 4;
    private static final int SEGMENT_BYTES = 262_144;
    /** Of a part; with bodies of 1 KiB on average it rolls over a segment. */
    private static final int MESSAGES = 400;

    private final Broker.Programs programs;
    private final Path work;
    private final Checks checks = new Checks();

    private Pairs(Broker.Programs programs, Path work) {
        this.programs = programs;
        this.work = work;
    }

    /** LIB URINGMQ WORK [PAIR...] */
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.logRoot", args[2] + "/client-logs");
        System.setProperty("rocketmq.log.root", args[2] + "/client-logs");
        Broker.Programs programs = new Broker.Programs(Path.of(args[0]), Path.of(args[1]), ProcessHandle.current().info().command().orElse("java"));
        Pairs pairs = new Pairs(programs, Path.of(args[2]));
        List<String> only = List.of(args).subList(3, args.length);
        ExecutorService pool = Executors.newFixedThreadPool(PAIRS.size());
        List<Future<?>> runs = new ArrayList<>();
        for (Pair pair : PAIRS) {
            if (only.isEmpty() || only.contains(pair.name)) {
                runs.add(pool.submit(() -> pairs.checks.check(pair.name, "all of it", () -> pairs.new Run(pair).all())));
            }
        }
        for (Future<?> run : runs) {
            run.get();
        }
        System.out.println(pairs.checks.passed + " passed, " + pairs.checks.failed + " failed");
        System.exit(pairs.checks.failed.get() == 0 && pairs.checks.passed.get() > 0 ? 0 : 1);
    }

    /** One pair from its start to its end. */
    private final class Run {
        private final Pair pair;
        private final Path dir;
        private final int masterPort = Stores.freePort();
        private final int slavePort = Stores.freePort();
        private final String nameServer = "127.0.0.1:" + Stores.freePort();
        private final Wire atMaster = new Wire("127.0.0.1:" + masterPort);
        private final Wire atSlave = new Wire("127.0.0.1:" + slavePort);
        private final Map<Integer, Long> ends = new LinkedHashMap<>();
        private Broker master;
        private Broker slave;
        private int starts;

        Run(Pair pair) throws IOException {
            this.pair = pair;
            dir = Files.createDirectories(work.resolve(pair.name));
        }

        String all() throws Exception {
            Files.writeString(dir.resolve("namesrv.conf"), "listenPort=" + nameServer.split(":")[1] + "\n");
            Broker names = Broker.nameServer(programs, dir.resolve("namesrv.conf"), dir.resolve("namesrv.log"));
            DefaultMQProducer producer = new DefaultMQProducer("pairs-" + pair.name);
            try {
                master = start(pair.master, true);
                slave = start(pair.slave, false);
                producer.setNamesrvAddr(nameServer);
                producer.setInstanceName(pair.name);
                producer.setSendMsgTimeout(130_000);
                producer.setMqClientApiTimeout(60_000);
                producer.setRetryTimesWhenSendFailed(0);
                producer.start();
                steps(producer);
            } finally {
                producer.shutdown();
                atMaster.close();
                atSlave.close();
                for (Broker broker : new Broker[] {master, slave, names}) {
                    if (broker != null) {
                        broker.kill();
                    }
                }
            }
            return ends + " messages a queue";
        }

        private void steps(DefaultMQProducer producer) throws Exception {
            must("in step", () -> send(producer, "first"));
            must("a committed offset", () -> {
                atMaster.commit(GROUP, TOPIC, 1, 7);
                return "7";
            });
            must("the slave has it", this::same);
            must("state of replication", this::status);
            slave.kill();
            slave = start(pair.slave, false);
            must("after the slave's death", () -> send(producer, "second"));
            must("the slave has it too", this::same);
            slave.stop();
            master.kill();
            Map<Integer, Long> older = new LinkedHashMap<>(ends);
            if (pair.slave == Broker.Make.OURS) {
                copy(store(true), dir.resolve("older"));
            }
            master = start(pair.master, true);
            slave = start(pair.slave, false);
            must("after the master's death and the slave's stop", () -> send(producer, "third"));
            must("the slave has all", this::same);
            must("tables at the slave", this::tables);
            must("the slave refuses sends", () -> {
                int code = atSlave.send(TOPIC, 0, "never");
                Checks.equal(2, code, () -> "response code");
                return "SYSTEM_BUSY";
            });
            master.kill();
            master = null;
            must("reads without a master", () -> {
                for (int queue = 0; queue < QUEUES; queue++) {
                    int count = atSlave.pull(TOPIC, queue, 0).size();
                    long end = ends.get(queue);
                    Checks.equal(end, (long) count, () -> "messages");
                }
                return ends.toString();
            });
            if (pair.slave == Broker.Make.OURS) {
                lostEnd(producer, older);
            }
        }

        /** The master comes back as it was before the third part: our slave is ahead of it, and is cut back (slaveTruncateBytesMax). */
        private void lostEnd(DefaultMQProducer producer, Map<Integer, Long> older) throws Exception {
            Files.move(store(true), dir.resolve("lost"));
            Files.move(dir.resolve("older"), store(true));
            ends.clear();
            ends.putAll(older);
            master = start(pair.master, true);
            must("after the master lost its end", () -> send(producer, "fourth"));
            must("the slave has what the master has", this::same);
            must("what was cut is told", () -> {
                String report = Files.readString(store(false).resolve("config/repairReport.json"));
                Checks.that(report.contains("it has what the master lost"), () -> report);
                return "repairReport.json";
            });
        }

        private static void copy(Path from, Path to) throws IOException {
            try (Stream<Path> all = Files.walk(from)) {
                for (Path path : (Iterable<Path>) all::iterator) {
                    Files.copy(path, to.resolve(from.relativize(path)));
                }
            }
        }

        /** What goes wrong here makes all that follows pointless. */
        private void must(String what, Checks.Body body) {
            if (!checks.check(pair.name, what, body)) {
                throw new AssertionError("stopped at: " + what);
            }
        }

        private Broker start(Broker.Make make, boolean leads) throws Exception {
            String name = leads ? "master" : "slave";
            Path conf = dir.resolve(name + ".conf");
            Files.writeString(conf, conf(make, leads));
            return Broker.start(programs, make, conf, dir.resolve(name + "-" + ++starts + ".log"), dir.resolve(name + "-home"));
        }

        private Path store(boolean leads) {
            return dir.resolve(leads ? "master" : "slave").resolve("store");
        }

        private String conf(Broker.Make make, boolean leads) {
            Path store = store(leads);
            return String.join("\n",
                "brokerClusterName=DefaultCluster",
                "brokerName=" + BROKER_NAME,
                "brokerId=" + (leads ? 0 : 1),
                "brokerRole=" + (leads ? "SYNC_MASTER" : "SLAVE"),
                "brokerIP1=127.0.0.1",
                "brokerIP2=127.0.0.1",
                "namesrvAddr=" + nameServer,
                "registerNameServerPeriod=10000",
                "listenPort=" + (leads ? masterPort : slavePort),
                "haListenPort=" + (1 + (leads ? masterPort : slavePort)),
                "inSyncReplicas=2",
                "slaveTimeout=120000", // on a busy machine a slave needs long to be back in step
                "slaveReadEnable=true",
                "storePathRootDir=" + store,
                "storePathCommitLog=" + store.resolve("commitlog"),
                "cleanFileForciblyEnable=false",
                "defaultTopicQueueNums=" + QUEUES,
                "mappedFileSizeCommitLog=" + SEGMENT_BYTES,
                "mappedFileSizeConsumeQueue=2000",
                "maxHashSlotNum=500",
                "maxIndexNum=1000",
                "flushConsumerOffsetInterval=500",
                make == Broker.Make.OURS ? "shards=2\nslaveTruncateBytesMax=100000000" : "waitTimeMillsInSendQueue=30000",
                "");
        }

        /** Single messages and batches, every one acknowledged as being on two brokers. */
        private String send(DefaultMQProducer producer, String part) throws Exception {
            for (int n = 0; n < MESSAGES; n++) {
                byte[] body = new byte[n * 37 % 2048 + 1];
                Arrays.fill(body, (byte) n);
                Message message = new Message(TOPIC, "tag" + n % 3, part + n, body);
                int queue = n % QUEUES;
                MessageQueue to = new MessageQueue(TOPIC, BROKER_NAME, queue);
                boolean batch = n % 50 == 49;
                SendResult sent = batch ? producer.send(List.of(message, new Message(TOPIC, body), new Message(TOPIC, body)), to)
                    : producer.send(message, to);
                String what = part + n;
                Checks.equal(SendStatus.SEND_OK, sent.getSendStatus(), () -> what);
                Checks.equal(ends.getOrDefault(queue, 0L), sent.getQueueOffset(), () -> what + "'s offset");
                ends.merge(queue, batch ? 3L : 1L, Long::sum);
            }
            return MESSAGES + " sends";
        }

        /** Queue by queue, and the log byte by byte. */
        private String same() throws Exception {
            for (int queue = 0; queue < QUEUES; queue++) {
                int at = queue;
                Checks.await("queue " + queue + " at the slave", 120, () -> atSlave.max(TOPIC, at) == ends.get(at));
                List<byte[]> master = atMaster.pull(TOPIC, queue, 0);
                List<byte[]> slave = pulled(queue);
                Checks.equal(master.size(), slave.size(), () -> "queue " + at);
                for (int n = 0; n < master.size(); n++) {
                    int index = n;
                    Checks.that(Arrays.equals(master.get(n), slave.get(n)), () -> "queue " + at + ": record " + index + " differs");
                }
            }
            long end = atMaster.haStatus().getMasterCommitLogMaxOffset();
            for (long start = 0; start < end; start += SEGMENT_BYTES) {
                String name = String.format("commitlog/%020d", start);
                int bytes = (int) Math.min(SEGMENT_BYTES, end - start);
                byte[] master = Arrays.copyOf(Files.readAllBytes(store(true).resolve(name)), bytes);
                byte[] slave = Arrays.copyOf(Files.readAllBytes(store(false).resolve(name)), bytes);
                Checks.that(Arrays.equals(master, slave), () -> name + " differs at " + Arrays.mismatch(master, slave));
            }
            return end + " bytes";
        }

        /** A slave knows a topic's configuration some seconds after its first messages. */
        private List<byte[]> pulled(int queue) throws Exception {
            List<byte[]> records = new ArrayList<>();
            Checks.await("pulls of queue " + queue + " at the slave", 90, () -> {
                records.clear();
                return records.addAll(atSlave.pull(TOPIC, queue, 0));
            });
            return records;
        }

        private String status() throws Exception {
            HARuntimeInfo leads = atMaster.haStatus();
            HARuntimeInfo follows = atSlave.haStatus();
            Checks.that(leads.isMaster() && !follows.isMaster(), () -> "roles");
            Checks.equal(1, leads.getInSyncSlaveNums(), () -> "slaves in sync");
            HARuntimeInfo.HAConnectionRuntimeInfo connection = leads.getHaConnectionInfo().get(0);
            Checks.that(connection.isInSync() && connection.getDiff() == 0, () -> "difference " + connection.getDiff());
            Checks.equal("127.0.0.1:" + (masterPort + 1), follows.getHaClientRuntimeInfo().getMasterAddr(), () -> "master's address");
            Checks.equal(leads.getMasterCommitLogMaxOffset(), follows.getHaClientRuntimeInfo().getMaxOffset(), () -> "slave's end");
            return connection.getSlaveAckOffset() + " acknowledged";
        }

        private String tables() throws Exception {
            Checks.await("the offset at the slave", 90, () -> atSlave.committed(GROUP, TOPIC, 1) == 7);
            return "offset 7";
        }
    }
}
