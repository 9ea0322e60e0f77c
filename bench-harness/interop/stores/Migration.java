package stores;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Stream;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The steps of {@code docs/migration.md}, walked with Apache's broker and Apache's clients, which run throughout: what was acknowledged
 * is consumed. Beside it slave reads through a master's death. {@code ../run-migration} builds and starts this.
 */
public final class Migration {
    private static final String BROKER_NAME = "broker-a";
    private static final String TOPIC = "moved";
    private static final String GROUP = "moving-readers";
    private static final int QUEUES = 4;
    private static final int SEGMENT_BYTES = 262_144;
    /** Before the move begins, so that it begins with closed segments. */
    private static final int OLD_BYTES = 3 * SEGMENT_BYTES;

    private final Broker.Programs programs;
    private final Path work;
    private final Checks checks = new Checks();

    private Migration(Broker.Programs programs, Path work) {
        this.programs = programs;
        this.work = work;
    }

    /** LIB URINGMQ WORK [PART...] */
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.logRoot", args[2] + "/client-logs");
        System.setProperty("rocketmq.log.root", args[2] + "/client-logs");
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000"); // 20 s pass without, after each start of a broker
        String java = ProcessHandle.current().info().command().orElse("java");
        Migration all = new Migration(new Broker.Programs(Path.of(args[0]), Path.of(args[1]), java), Path.of(args[2]));
        List<String> only = List.of(args).subList(3, args.length);
        ExecutorService pool = Executors.newFixedThreadPool(3);
        List<Future<?>> runs = new ArrayList<>();
        if (only.isEmpty() || only.contains("migration")) {
            runs.add(pool.submit(() -> all.checks.check("migration", "all of it", () -> all.new Cluster("migration", true).migrate())));
        }
        for (boolean reads : new boolean[] {true, false}) {
            String name = "slave-reads-" + reads;
            if (only.isEmpty() || only.contains("slave-reads")) {
                runs.add(pool.submit(() -> all.checks.check(name, "all of it", () -> all.new Cluster(name, reads).slaveReads())));
            }
        }
        for (Future<?> run : runs) {
            run.get();
        }
        System.out.println(all.checks.passed + " passed, " + all.checks.failed + " failed");
        System.exit(all.checks.failed.get() == 0 && all.checks.passed.get() > 0 ? 0 : 1);
    }

    /** A NameServer and two brokers: the old one, Apache's where it is a migration, and the new one, ours. */
    private final class Cluster {
        private final String name;
        private final boolean slaveReads;
        private final Path dir;
        private final int oldPort = Stores.freePort();
        private final int newPort = Stores.freePort();
        private final String nameServer = "127.0.0.1:" + Stores.freePort();
        private final Wire atOld = new Wire("127.0.0.1:" + oldPort);
        private final Wire atNew = new Wire("127.0.0.1:" + newPort);
        private final DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000);
        private Broker oldBroker;
        private Broker newBroker;
        private int starts;

        Cluster(String name, boolean slaveReads) throws IOException {
            this.name = name;
            this.slaveReads = slaveReads;
            dir = Files.createDirectories(work.resolve(name));
        }

        private interface Steps {
            void run(Traffic traffic) throws Exception;
        }

        private String with(Steps steps) throws Exception {
            Files.writeString(dir.resolve("namesrv.conf"), "listenPort=" + nameServer.split(":")[1] + "\n");
            Broker names = Broker.nameServer(programs, dir.resolve("namesrv.conf"), dir.resolve("namesrv.log"));
            Traffic traffic = new Traffic(TOPIC, GROUP, name, nameServer);
            try {
                admin.setNamesrvAddr(nameServer);
                admin.setInstanceName(name);
                admin.start();
                steps.run(traffic);
                return traffic.acknowledged() + " messages, " + traffic.failures + " sends tried again, " + traffic.repeated()
                    + " consumed more than once";
            } finally {
                traffic.close();
                admin.shutdown();
                atOld.close();
                atNew.close();
                for (Broker broker : new Broker[] {oldBroker, newBroker, names}) {
                    if (broker != null) {
                        broker.kill();
                    }
                }
            }
        }

        /** What goes wrong here makes all that follows pointless. */
        private void must(String what, Checks.Body body) {
            if (!checks.check(name, what, body)) {
                throw new AssertionError("stopped at: " + what);
            }
        }

        String migrate() throws Exception {
            return with(traffic -> {
                must("0: Apache's cluster at work", () -> {
                    oldBroker = start(Broker.Make.APACHE, true, true);
                    createTopic();
                    traffic.produce(2, 2);
                    Checks.await("closed segments", 120, () -> end(atOld) > OLD_BYTES);
                    traffic.consume();
                    return traffic.goesOn(50);
                });
                must("1: closed segments are copied", this::copyClosed);
                must("2: ours follows as a slave", () -> {
                    newBroker = start(Broker.Make.OURS, false, false);
                    Checks.await("the slave in step", 120, this::inStep);
                    Checks.equal(0L, atNew.min(TOPIC, 0), () -> "the slave's first message of queue 0");
                    return traffic.goesOn(50);
                });
                must("3: no more writes, and the slave has all", () -> {
                    admin.wipeWritePermOfBroker(nameServer, BROKER_NAME);
                    long[] before = {-1};
                    Checks.await("writes have ceased", 120, () -> {
                        Thread.sleep(1500); // longer than the clients' look at the routes
                        return before[0] == (before[0] = end(atOld)) && end(atNew) == before[0];
                    });
                    long committed = atOld.committed(GROUP, TOPIC, 0);
                    Checks.await("the offsets at the slave", 90, () -> atNew.committed(GROUP, TOPIC, 0) >= committed);
                    return before[0] + " bytes";
                });
                must("4: ours becomes the master", () -> {
                    oldBroker.stop();
                    newBroker.stop();
                    newBroker = start(Broker.Make.OURS, false, true);
                    return traffic.goesOn(100);
                });
                must("5: Apache's follows it", () -> {
                    oldBroker = start(Broker.Make.APACHE, true, false);
                    traffic.goesOn(50);
                    Checks.await("Apache's slave in step", 120, this::inStep);
                    return traffic.goesOn(50);
                });
                must("6: Apache's is removed", () -> {
                    oldBroker.stop();
                    oldBroker = null;
                    return traffic.goesOn(100);
                });
                must("none is lost", () -> {
                    traffic.stopProducing();
                    return traffic.caughtUp();
                });
            });
        }

        /** A master of ours and a slave of ours; the master dies with messages that nobody consumed. */
        String slaveReads() throws Exception {
            return with(traffic -> {
                must("a pair at work", () -> {
                    oldBroker = start(Broker.Make.OURS, true, true);
                    newBroker = start(Broker.Make.OURS, false, false);
                    createTopic();
                    traffic.produce(1, 1);
                    Checks.await("messages", 120, () -> traffic.acknowledged() >= 300);
                    traffic.stopProducing();
                    Checks.await("the slave in step", 120, this::inStep);
                    Checks.await("the topic at the slave", 90, () -> atNew.max(TOPIC, 0) == atOld.max(TOPIC, 0));
                    Checks.await("its configuration", 90, () -> slaveKnows());
                    return traffic.acknowledged() + " acknowledged";
                });
                oldBroker.kill();
                oldBroker = null;
                must("a push consumer without the master", () -> {
                    traffic.consume();
                    if (slaveReads) {
                        return traffic.caughtUp();
                    }
                    Checks.await("the slave's refusal", 90, () -> refused());
                    Map<MessageQueue, Long> first = new HashMap<>();
                    Checks.await("each queue tried again after it was refused", 120, () -> {
                        traffic.tries().forEach(first::putIfAbsent);
                        return first.size() == QUEUES && traffic.tries().entrySet().stream()
                            .allMatch(queue -> queue.getValue() > first.get(queue.getKey()) + 1000);
                    });
                    Checks.equal(0, traffic.consumed(), () -> "messages consumed");
                    return "refused, and tried again";
                });
                must("the master is back", () -> {
                    oldBroker = start(Broker.Make.OURS, true, true);
                    return traffic.caughtUp();
                });
            });
        }

        private boolean slaveKnows() throws Exception {
            return admin.examineTopicConfig("127.0.0.1:" + newPort, TOPIC) != null;
        }

        /** Apache's answer of a slave that is not to be read. */
        private boolean refused() throws Exception {
            try {
                atNew.pull(TOPIC, 0, 0);
                return false;
            } catch (AssertionError e) {
                return e.getMessage().contains("[REJECTREQUEST]");
            }
        }

        private void createTopic() throws Exception {
            TopicConfig config = new TopicConfig(TOPIC, QUEUES, QUEUES);
            admin.createAndUpdateTopicConfig("127.0.0.1:" + oldPort, config);
        }

        private long end(Wire at) throws Exception {
            var status = at.haStatus();
            return status.isMaster() ? status.getMasterCommitLogMaxOffset() : status.getHaClientRuntimeInfo().getMaxOffset();
        }

        private boolean inStep() throws Exception {
            return end(atNew) > 0 && end(atOld) > 0 && Math.abs(end(atOld) - end(atNew)) < 16_384;
        }

        /** All but the newest, which alone is written to. */
        private String copyClosed() throws IOException {
            Path to = Files.createDirectories(store(false).resolve("commitlog"));
            List<Path> segments;
            try (Stream<Path> files = Files.list(store(true).resolve("commitlog"))) {
                segments = files.filter(file -> file.getFileName().toString().matches("[0-9]{20}")).sorted().toList();
            }
            // Apache's broker makes the next one ahead: what is closed lies before the one that its log ends in.
            long end;
            try {
                end = end(atOld);
            } catch (Exception e) {
                throw new IOException(e);
            }
            int copied = 0;
            for (Path segment : segments) {
                if (Long.parseLong(segment.getFileName().toString()) + SEGMENT_BYTES <= end) {
                    Files.copy(segment, to.resolve(segment.getFileName()));
                    copied++;
                }
            }
            int count = copied;
            Checks.that(count >= 3, () -> "only " + count + " closed segments");
            return copied + " segments";
        }

        private Path store(boolean ofOld) {
            return dir.resolve(ofOld ? "old" : "new").resolve("store");
        }

        private Broker start(Broker.Make make, boolean ofOld, boolean leads) throws Exception {
            String part = ofOld ? "old" : "new";
            Path conf = dir.resolve(part + ".conf");
            int port = ofOld ? oldPort : newPort;
            Path store = store(ofOld);
            Files.writeString(conf, String.join("\n",
                "brokerClusterName=DefaultCluster",
                "brokerName=" + BROKER_NAME,
                "brokerId=" + (leads ? 0 : 1),
                "brokerRole=" + (leads ? "ASYNC_MASTER" : "SLAVE"),
                "brokerIP1=127.0.0.1",
                "brokerIP2=127.0.0.1",
                "namesrvAddr=" + nameServer,
                "registerNameServerPeriod=10000",
                "listenPort=" + port,
                "haListenPort=" + (port + 1),
                "slaveReadEnable=" + slaveReads,
                "storePathRootDir=" + store,
                "storePathCommitLog=" + store.resolve("commitlog"),
                "cleanFileForciblyEnable=false",
                "mappedFileSizeCommitLog=" + SEGMENT_BYTES,
                "mappedFileSizeConsumeQueue=20000",
                "maxHashSlotNum=5000",
                "maxIndexNum=10000",
                "flushConsumerOffsetInterval=500",
                make == Broker.Make.OURS ? "shards=2" : "waitTimeMillsInSendQueue=30000",
                ""));
            return Broker.start(programs, make, conf, dir.resolve(part + "-" + ++starts + ".log"), dir.resolve(part + "-home"));
        }
    }
}
