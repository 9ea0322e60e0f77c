package stores;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.body.BrokerReplicasInfo;
import org.apache.rocketmq.remoting.protocol.body.BrokerReplicasInfo.ReplicasInfo;
import org.apache.rocketmq.remoting.protocol.header.controller.GetMetaDataResponseHeader;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Two brokers in controller mode, each ours or Apache's, with three controllers, ours or Apache's own, and our NameServer: masters are killed, and
 * so is the controller that leads; what was acknowledged is served by whoever is master; mqadmin's commands for controllers do what they
 * say. {@code ../run-controller} builds and starts this.
 */
public final class Controllers {
    private static final String CLUSTER = "DefaultCluster";
    private static final String NAME = "broker-a";
    private static final String TOPIC = "controllers";
    private static final int QUEUES = 4;
    private static final int MESSAGES = 100;
    private static final int PATIENCE_SECONDS = 60;

    private final Broker.Programs programs;
    private final Path work;
    private final Broker.Make make;
    private final Broker.Make[] brokerMakes;
    private final Checks checks = new Checks();
    private final String nameServer = "127.0.0.1:" + Stores.freePort();
    private final List<Integer> controllerPorts = new ArrayList<>();
    private final List<Integer> brokerPorts = new ArrayList<>();
    private final Broker[] controllers = new Broker[3];
    private final Broker[] brokers = new Broker[2];
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
    private final DefaultMQProducer producer = new DefaultMQProducer("controllers-producer");
    /** Bodies that were acknowledged. */
    private final Set<String> acknowledged = new HashSet<>();
    private int starts;

    private Controllers(Broker.Programs programs, Path work, Broker.Make make, Broker.Make[] brokerMakes) throws Exception {
        this.brokerMakes = brokerMakes;
        this.programs = programs;
        this.work = work;
        this.make = make;
        while (controllerPorts.size() < controllers.length) {
            int port = Stores.freePort();
            if (!controllerPorts.contains(port)) {
                controllerPorts.add(port);
            }
        }
        brokerPorts.add(Stores.freePort());
        brokerPorts.add(Stores.freePort());
    }

    /** LIB URINGMQ WORK CONTROLLERS BROKER BROKER, the last three of ours or apache */
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.logRoot", args[2] + "/client-logs");
        System.setProperty("rocketmq.log.root", args[2] + "/client-logs");
        Broker.Programs programs = new Broker.Programs(Path.of(args[0]), Path.of(args[1]), ProcessHandle.current().info().command().orElse("java"));
        Broker.Make make = make(args[3]);
        Broker.Make[] brokerMakes = {make(args[4]), make(args[5])};
        Controllers run = new Controllers(programs, Path.of(args[2]), make, brokerMakes);
        run.checks.check(make + " leads " + List.of(brokerMakes), "all of it", run::all);
        System.out.println(run.checks.passed + " passed, " + run.checks.failed + " failed");
        System.exit(run.checks.failed.get() == 0 && run.checks.passed.get() > 0 ? 0 : 1);
    }

    private static Broker.Make make(String name) {
        return name.equals("apache") ? Broker.Make.APACHE : Broker.Make.OURS;
    }

    private String all() throws Exception {
        Files.writeString(work.resolve("namesrv.conf"), "listenPort=" + nameServer.split(":")[1] + "\n");
        Broker names = Broker.nameServer(programs, work.resolve("namesrv.conf"), work.resolve("namesrv.log"));
        try {
            each(controllers.length, this::startController);
            startBroker(0); // the first one to be master
            startBroker(1);
            admin.setNamesrvAddr(nameServer);
            admin.setInstanceName("controllers-admin");
            admin.start();
            producer.setNamesrvAddr(nameServer);
            producer.setPollNameServerInterval(1_000);
            producer.setSendMsgTimeout(5_000);
            producer.setRetryTimesWhenSendFailed(0);
            producer.start();
            steps();
        } finally {
            admin.shutdown();
            producer.shutdown();
            for (Broker[] all : new Broker[][] {brokers, controllers, {names}}) {
                for (Broker one : all) {
                    if (one != null) {
                        one.kill();
                    }
                }
            }
        }
        return acknowledged.size() + " messages";
    }

    private void steps() throws Exception {
        must("both brokers are in the SyncStateSet", () -> inStep(null));
        must("sends", () -> send("first"));
        must("mqadmin getControllerMetaData", this::metadata);
        must("mqadmin getSyncStateSet", () -> {
            String said = mqadmin("getSyncStateSet", "-a", anyController(), "-b", NAME);
            Checks.that(said.contains("#SyncStateSetNums\t2") && said.contains("#MasterAddr\t" + group().getMasterAddress()), () -> said);
            return "2 in sync";
        });
        must("mqadmin getBrokerEpoch", () -> {
            String said = mqadmin("getBrokerEpoch", "-n", nameServer, "-b", NAME);
            for (int n = 0; n < brokers.length; n++) {
                String address = "#brokerAddr\t" + address(n);
                Checks.that(said.contains(address), () -> said);
            }
            Checks.that(said.contains("#Epoch: EpochEntry{epoch=" + group().getMasterEpoch() + ", startOffset=0"), () -> said);
            return "2 brokers";
        });
        must("mqadmin updateControllerConfig, getControllerConfig", this::configuration);
        must("kill -9 of the controller that leads: another one leads", this::controllerDies);
        must("kill -9 of the master under it: the other one leads", this::masterDies);
        must("nothing acknowledged is lost", this::allThere);
        must("sends to the new master", () -> send("second"));
        int old = place(false);
        must("the old master comes back as a slave", () -> {
            startBroker(old);
            return inStep(null);
        });
        must("mqadmin electMaster", () -> elect(old));
        must("sends to the elected one", () -> send("third"));
        must("nothing acknowledged is lost then", this::allThere);
        must("mqadmin cleanBrokerMetadata", () -> {
            brokers[1 - old].kill();
            brokers[1 - old] = null;
            return clean();
        });
    }

    /** What goes wrong here makes all that follows pointless. */
    private void must(String what, Checks.Body body) {
        if (!checks.check("controllers", what, body)) {
            throw new AssertionError("stopped at: " + what);
        }
    }

    private interface Start {
        void start(int n) throws Exception;
    }

    /** All at once: a JVM takes seconds to start. */
    private static void each(int count, Start start) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(count);
        List<Future<?>> all = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            int one = n;
            all.add(pool.submit(() -> {
                start.start(one);
                return null;
            }));
        }
        pool.shutdown();
        for (Future<?> one : all) {
            one.get();
        }
    }

    private void startController(int n) throws Exception {
        List<String> peers = new ArrayList<>();
        for (int i = 0; i < controllers.length; i++) {
            peers.add("n" + i + "-127.0.0.1:" + controllerPorts.get(i));
        }
        Path dir = Files.createDirectories(work.resolve("controller-" + n));
        Files.writeString(dir.resolve("controller.conf"), String.join("\n",
            "controllerDLegerGroup=group",
            "controllerDLegerPeers=" + String.join(";", peers),
            "controllerDLegerSelfId=n" + n,
            "controllerStorePath=" + dir.resolve("store"),
            ""));
        controllers[n] = Broker.controller(programs, make, dir.resolve("controller.conf"), dir.resolve("log-" + nextStart()), dir.resolve("home"));
    }

    private synchronized int nextStart() {
        return ++starts;
    }

    private void startBroker(int n) throws Exception {
        Path dir = Files.createDirectories(work.resolve("broker-" + n));
        Path store = dir.resolve("store");
        Files.writeString(dir.resolve("broker.conf"), String.join("\n",
            "brokerClusterName=" + CLUSTER,
            "brokerName=" + NAME,
            "brokerIP1=127.0.0.1",
            "brokerIP2=127.0.0.1",
            "namesrvAddr=" + nameServer,
            "listenPort=" + brokerPorts.get(n),
            "haListenPort=" + (brokerPorts.get(n) + 1),
            "enableControllerMode=true",
            "controllerAddr=" + String.join(";", controllerPorts.stream().map(port -> "127.0.0.1:" + port).toList()),
            "allAckInSyncStateSet=true",
            "storePathRootDir=" + store,
            "storePathCommitLog=" + store.resolve("commitlog"),
            "autoCreateTopicEnable=true",
            "defaultTopicQueueNums=" + QUEUES,
            "mappedFileSizeCommitLog=1048576",
            "mappedFileSizeConsumeQueue=20000",
            "maxHashSlotNum=500",
            "maxIndexNum=1000",
            "waitTimeMillsInSendQueue=30000",
            "cleanFileForciblyEnable=false",
            ""));
        brokers[n] = Broker.start(programs, brokerMakes[n], dir.resolve("broker.conf"), dir.resolve("log-" + nextStart()), dir.resolve("home"));
    }

    private String address(int n) {
        return "127.0.0.1:" + brokerPorts.get(n);
    }

    /** One that runs; any of them leads the tools to the leader. */
    private String anyController() {
        for (int n = 0; n < controllers.length; n++) {
            if (controllers[n] != null) {
                return "127.0.0.1:" + controllerPorts.get(n);
            }
        }
        throw new AssertionError("no controller runs");
    }

    private String leader() throws Exception {
        return admin.getControllerMetaData(anyController()).getControllerLeaderAddress();
    }

    /** The group as the leading controller has it. */
    private ReplicasInfo group() throws Exception {
        BrokerReplicasInfo all = admin.getInSyncStateData(leader(), List.of(NAME));
        return all.getReplicasInfoTable().get(NAME);
    }

    private List<BrokerReplicasInfo.ReplicaIdentity> everyone() throws Exception {
        ReplicasInfo group = group();
        List<BrokerReplicasInfo.ReplicaIdentity> all = new ArrayList<>(group.getInSyncReplicas());
        all.addAll(group.getNotInSyncReplicas());
        return all;
    }

    private long idOf(int n) throws Exception {
        return everyone().stream().filter(one -> one.getBrokerAddress().equals(address(n))).findFirst().orElseThrow().getBrokerId();
    }

    /** The place of the broker that is master, or of the other one. */
    private int place(boolean master) throws Exception {
        boolean first = address(0).equals(group().getMasterAddress());
        return first == master ? 0 : 1;
    }

    /** Both replicas in the set and alive, and the master is the one that is wanted, if one is. */
    private String inStep(String master) throws Exception {
        Checks.await("two replicas in sync", PATIENCE_SECONDS, () -> {
            ReplicasInfo group = group();
            return group.getInSyncReplicas().size() == 2 && group.getMasterAddress() != null
                && (master == null || master.equals(group.getMasterAddress()))
                && group.getInSyncReplicas().stream().allMatch(BrokerReplicasInfo.ReplicaIdentity::getAlive);
        });
        ReplicasInfo group = group();
        return group.getMasterAddress() + " in epoch " + group.getMasterEpoch();
    }

    private String send(String part) throws Exception {
        for (int n = 0; n < MESSAGES; n++) {
            String body = part + n;
            // Again where it fails: an old master takes messages until it hears of the new one, and refuses them then.
            Checks.await("a send of " + body, PATIENCE_SECONDS, () -> one(body));
        }
        return MESSAGES + " sends";
    }

    private boolean one(String body) throws Exception {
        Message message = new Message(TOPIC, body.getBytes(StandardCharsets.UTF_8));
        boolean sent = producer.send(message).getSendStatus() == SendStatus.SEND_OK;
        if (sent) {
            acknowledged.add(body);
        }
        return sent;
    }

    private String masterDies() throws Exception {
        int master = place(true);
        int epoch = group().getMasterEpoch();
        // Slaves copy the tables every few seconds: a master that does not know a topic takes no message for it.
        Checks.await("the other one has the topic", PATIENCE_SECONDS, () -> admin.examineTopicConfig(address(1 - master), TOPIC) != null);
        long killed = System.nanoTime();
        brokers[master].kill();
        brokers[master] = null;
        String other = address(1 - master);
        Checks.await("the other one is elected", PATIENCE_SECONDS, () -> other.equals(group().getMasterAddress()));
        long elected = System.nanoTime();
        Checks.that(group().getMasterEpoch() > epoch, () -> "the epoch stays " + epoch);
        Checks.await("it takes a message", PATIENCE_SECONDS, () -> one("after-" + killed + "-" + System.nanoTime()));
        return String.format("elected after %.1f s, first send after %.1f s", (elected - killed) / 1e9, (System.nanoTime() - killed) / 1e9);
    }

    private String allThere() throws Exception {
        Set<String> found = new HashSet<>();
        try (Wire master = new Wire(group().getMasterAddress())) {
            for (int queue = 0; queue < QUEUES; queue++) {
                for (byte[] record : master.pull(TOPIC, queue, 0)) {
                    found.add(new String(Wire.decode(record).getBody(), StandardCharsets.UTF_8));
                }
            }
        }
        Set<String> lost = new HashSet<>(acknowledged);
        lost.removeAll(found);
        Checks.that(lost.isEmpty(), () -> lost.size() + " acknowledged messages are gone: " + lost);
        return acknowledged.size() + " acknowledged, " + found.size() + " found";
    }

    private String controllerDies() throws Exception {
        String leader = leader();
        int n = controllerPorts.indexOf(Integer.parseInt(leader.split(":")[1]));
        int epoch = group().getMasterEpoch();
        long killed = System.nanoTime();
        controllers[n].kill();
        controllers[n] = null;
        Checks.await("another leader", PATIENCE_SECONDS, () -> leader() != null && !leader().equals(leader) && group() != null);
        String after = String.format("%s after %.1f s", leader(), (System.nanoTime() - killed) / 1e9);
        Checks.equal(epoch, group().getMasterEpoch(), () -> "master epoch under the new leader");
        Checks.that(one("under-" + killed), () -> "the master takes nothing while controllers change");
        startController(n);
        return after;
    }

    private String metadata() throws Exception {
        String said = mqadmin("getControllerMetaData", "-a", anyController());
        Checks.that(said.contains("#ControllerGroup\tgroup") && said.contains("#ControllerLeaderAddress\t" + leader()), () -> said);
        for (int port : controllerPorts) {
            Checks.that(said.contains("127.0.0.1:" + port), () -> said);
        }
        GetMetaDataResponseHeader header = admin.getControllerMetaData(leader());
        Checks.that(header.isLeader(), () -> "who is said to lead does not");
        return header.getControllerLeaderId();
    }

    private String configuration() throws Exception {
        String all = String.join(";", controllerPorts.stream().map(port -> "127.0.0.1:" + port).toList());
        String said = mqadmin("updateControllerConfig", "-a", all, "-k", "scanNotActiveBrokerInterval", "-v", "4000");
        Checks.that(said.contains("update controller config success"), () -> said);
        String shown = mqadmin("getControllerConfig", "-a", all);
        long changed = shown.lines().filter(line -> line.matches("scanNotActiveBrokerInterval\\s+=\\s+4000")).count();
        Checks.equal((long) controllers.length, changed, () -> "controllers that show the new value");
        return changed + " controllers";
    }

    private String elect(int wanted) throws Exception {
        int epoch = group().getMasterEpoch() + 1;
        String said = mqadmin("electMaster", "-a", anyController(), "-b", String.valueOf(idOf(wanted)), "-bn", NAME, "-c", CLUSTER);
        // Apache's own controller writes a body here that its own tool cannot read; what it does is right.
        Checks.that(make == Broker.Make.APACHE || said.contains("#MasterEpoch\t" + epoch), () -> said);
        Checks.equal(epoch, group().getMasterEpoch(), () -> "master epoch");
        Checks.equal(address(wanted), group().getMasterAddress(), () -> "master");
        return "epoch " + epoch;
    }

    /** The dead broker's data goes, the living one's stays. */
    private String clean() throws Exception {
        int dead = place(false);
        Checks.await("the dead one is known to be dead", PATIENCE_SECONDS, () -> everyone().stream()
            .noneMatch(one -> one.getBrokerAddress().equals(address(dead)) && one.getAlive()));
        String living = mqadmin("cleanBrokerMetadata", "-a", anyController(), "-b", String.valueOf(idOf(1 - dead)), "-bn", NAME, "-c", CLUSTER);
        Checks.that(!living.contains("success"), () -> "a living broker was cleaned: " + living);
        String said = mqadmin("cleanBrokerMetadata", "-a", anyController(), "-b", String.valueOf(idOf(dead)), "-bn", NAME, "-c", CLUSTER);
        Checks.that(said.contains("success"), () -> said);
        ReplicasInfo group = group();
        Checks.equal(1, group.getInSyncReplicas().size() + group.getNotInSyncReplicas().size(), () -> "replicas");
        Checks.equal(address(1 - dead), group.getMasterAddress(), () -> "master");
        return "1 replica left";
    }

    /** What a command of mqadmin prints. */
    private static String mqadmin(String... args) {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream both = new PrintStream(said, true, StandardCharsets.UTF_8);
        try {
            System.setOut(both);
            System.setErr(both);
            MQAdminStartup.main0(args, null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return said.toString(StandardCharsets.UTF_8);
    }
}
