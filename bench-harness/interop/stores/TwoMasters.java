package stores;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Two masters, broker-a and broker-b, under two NameServers that know nothing of each other, all ours, with Apache's producers and consumers:
 * broker-b is killed, then a NameServer, and no send shows an error to the user. {@code ../run-two-masters} builds and starts this.
 */
public final class TwoMasters {
    private static final String WHERE = "two-masters";
    private static final String TOPIC = "spread";
    private static final String GROUP = "spread-readers";
    private static final int QUEUES = 4;
    private static final String A = "broker-a";
    private static final String B = "broker-b";
    /** Apache's default of retryTimesWhenSendFailed. */
    private static final int RETRIES = 2;
    private static final int CONSUMERS = 2;

    private final Broker.Programs programs;
    private final Path dir;
    private final Checks checks = new Checks();
    private final List<String> addresses = new ArrayList<>();
    private final List<Broker> names = new ArrayList<>();
    private final List<DefaultMQAdminExt> admins = new ArrayList<>();
    private final int[] ports = {Stores.freePort(), Stores.freePort()};
    private final Broker[] brokers = new Broker[2];
    private int starts;

    private TwoMasters(Broker.Programs programs, Path dir) throws IOException {
        this.programs = programs;
        this.dir = dir;
    }

    /** LIB URINGMQ WORK */
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.logRoot", args[2] + "/client-logs");
        System.setProperty("rocketmq.log.root", args[2] + "/client-logs");
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000"); // 20 s pass without
        String java = ProcessHandle.current().info().command().orElse("java");
        TwoMasters run = new TwoMasters(new Broker.Programs(Path.of(args[0]), Path.of(args[1]), java), Path.of(args[2]));
        run.checks.check(WHERE, "all of it", run::all);
        System.out.println(run.checks.passed + " passed, " + run.checks.failed + " failed");
        System.exit(run.checks.failed.get() == 0 && run.checks.passed.get() > 0 ? 0 : 1);
    }

    private String all() throws Exception {
        for (int n = 0; n < 2; n++) {
            addresses.add("127.0.0.1:" + Stores.freePort());
            names.add(startNames(n));
            DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000);
            admin.setNamesrvAddr(addresses.get(n));
            admin.setInstanceName(WHERE + "-" + n);
            admin.start();
            admins.add(admin);
        }
        Traffic traffic = new Traffic(TOPIC, GROUP, WHERE, String.join(";", addresses));
        try {
            steps(traffic);
            return traffic.acknowledged() + " messages, " + traffic.repeated() + " consumed more than once";
        } finally {
            traffic.close();
            admins.forEach(DefaultMQAdminExt::shutdown);
            for (Broker broker : brokers) {
                if (broker != null) {
                    broker.kill();
                }
            }
            for (Broker server : names) {
                server.kill();
            }
        }
    }

    private void steps(Traffic traffic) throws Exception {
        must("both masters at both name servers", () -> {
            for (int n = 0; n < 2; n++) {
                brokers[n] = startBroker(n);
                admins.get(0).createAndUpdateTopicConfig("127.0.0.1:" + ports[n], new TopicConfig(TOPIC, QUEUES, QUEUES));
            }
            routed(0, A, B);
            return routed(1, A, B);
        });
        must("sends spread", () -> {
            traffic.produce(2, 2, RETRIES);
            for (int n = 0; n < CONSUMERS; n++) {
                traffic.consume();
            }
            Checks.await("both acknowledge", 60, () -> traffic.acknowledgedCount(A) >= 100 && traffic.acknowledgedCount(B) >= 100);
            traffic.caughtUp();
            return spread(traffic);
        });
        must("one is killed, and its routes go", () -> {
            brokers[1].kill();
            routed(0, A);
            return routed(1, A);
        });
        must("sends go on at the other one", () -> {
            traffic.goesOnAt(A, 300);
            return noErrors(traffic);
        });
        must("consumers rebalance, and have all that the other one has", () -> {
            Checks.await("queues of the other one alone, each with one consumer", 60, () -> shared(traffic, Set.of(A)));
            return traffic.caughtUp(A);
        });
        must("a name server is killed, and sends go on", () -> {
            names.get(0).kill();
            traffic.goesOnAt(A, 200);
            return noErrors(traffic);
        });
        must("it comes back, and is told", () -> {
            names.set(0, startNames(0));
            return routed(0, A);
        });
        must("the dead one comes back, and gets its share", () -> {
            brokers[1] = startBroker(1);
            routed(0, A, B);
            routed(1, A, B);
            int before = traffic.acknowledgedCount(B);
            Checks.await("more is acknowledged there", 60, () -> traffic.acknowledgedCount(B) >= before + 100);
            Checks.await("each queue of both with one consumer", 60, () -> shared(traffic, Set.of(A, B)));
            return spread(traffic);
        });
        must("none is lost", () -> {
            traffic.stopProducing();
            noErrors(traffic);
            return traffic.caughtUp();
        });
    }

    /** What goes wrong here makes all that follows pointless. */
    private void must(String what, Checks.Body body) {
        if (!checks.check(WHERE, what, body)) {
            throw new AssertionError("stopped at: " + what);
        }
    }

    private static String noErrors(Traffic traffic) {
        Checks.equal(0, traffic.failures.get(), () -> "errors that the user saw, the last one " + traffic.lastFailure + ", their number");
        return traffic.acknowledged() + " sends, no error";
    }

    private static String spread(Traffic traffic) {
        noErrors(traffic);
        return traffic.acknowledgedCount(A) + " and " + traffic.acknowledgedCount(B);
    }

    /** Every consumer has queues, and together they have each queue of these brokers once. */
    private static boolean shared(Traffic traffic, Set<String> of) {
        List<Set<MessageQueue>> shares = traffic.shares();
        List<MessageQueue> all = shares.stream().flatMap(Set::stream).toList();
        Set<String> from = all.stream().map(MessageQueue::getBrokerName).collect(Collectors.toSet());
        return shares.stream().noneMatch(Set::isEmpty) && from.equals(of) && all.size() == of.size() * QUEUES
            && Set.copyOf(all).size() == all.size();
    }

    /** Until this NameServer has the topic at these brokers and no others. */
    private String routed(int at, String... wanted) throws Exception {
        Set<String> all = Set.of(wanted);
        Checks.await(TOPIC + " at " + new TreeSet<>(all) + " by " + addresses.get(at), 60, () -> all.equals(
            admins.get(at).examineTopicRouteInfo(TOPIC).getBrokerDatas().stream().map(BrokerData::getBrokerName).collect(Collectors.toSet())));
        return new TreeSet<>(all).toString();
    }

    private Broker startNames(int n) throws Exception {
        Path conf = dir.resolve("namesrv-" + n + ".conf");
        Files.writeString(conf, "listenPort=" + addresses.get(n).split(":")[1] + "\n");
        return Broker.nameServer(programs, conf, dir.resolve("namesrv-" + n + "-" + ++starts + ".log"));
    }

    private Broker startBroker(int n) throws Exception {
        String name = n == 0 ? A : B;
        Path conf = dir.resolve(name + ".conf");
        Path store = dir.resolve(name);
        Files.writeString(conf, String.join("\n",
            "brokerClusterName=DefaultCluster",
            "brokerName=" + name,
            "brokerIP1=127.0.0.1",
            "namesrvAddr=" + String.join(";", addresses),
            "listenPort=" + ports[n],
            "storePathRootDir=" + store,
            "autoCreateTopicEnable=false",
            "cleanFileForciblyEnable=false",
            "mappedFileSizeCommitLog=16777216",
            "flushConsumerOffsetInterval=500",
            "shards=2",
            ""));
        return Broker.start(programs, Broker.Make.OURS, conf, dir.resolve(name + "-" + ++starts + ".log"), dir.resolve(name + "-home"));
    }
}
