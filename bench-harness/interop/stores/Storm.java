package stores;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A producer and two consumers of every kind, in processes of their own, under kill -9 of the broker and of each of them: all that was
 * acknowledged is consumed, nothing is consumed that was never sent or was rolled back, orderly consumers and those of light queues skip
 * nothing, delays are never early, and what is stored or given twice is so by a kill. {@code ../run-storm} builds and starts this.
 */
public final class Storm {
    static final int QUEUES = 4;
    /** After the last kill: locks of dead orderly consumers, checks of transactions and retries take their time. */
    private static final int SETTLE_SECONDS = 180;

    enum Kind {
        ORDERLY, PLAIN, TRANSACTION, LEVEL, TIMER, LIGHT, POP;

        String topic() {
            return "storm-" + name().toLowerCase(Locale.ROOT);
        }
    }

    static final int POP_INVISIBLE_MILLIS = 6000;
    /**
     * For how long a killed broker may not have saved that a copy was stored. Timers take longest: a slot is done a second after its first
     * message, what is done is noted at the next save (a second) and becomes saved at one after that, when the log is durable so far.
     */
    private static final long UNSAVED_MILLIS = 5000;

    /** For how long a killed broker may not have noted that a transaction is over: its batches of notes are half a second apart. */
    private static final long UNNOTED_MILLIS = 2000;
    /** A check may be on its way while the answer to the one before is. */
    private static final long CROSSING_MILLIS = 5000;

    static String light(int number) {
        return "%LMQ%storm-" + number;
    }

    /** The light queues that a message is in, too; each is the matter of one receiver. */
    static List<Integer> lightsOf(int n) {
        return switch (n / Kind.values().length % 3) {
            case 0 -> List.of(1);
            case 1 -> List.of(2);
            default -> List.of(1, 2);
        };
    }

    /** What becomes of a transaction. */
    static boolean isCommitted(int n) {
        return n / Kind.values().length % 5 < 3;
    }

    /** {@code nanos}: when it was consumed; {@code stored} and {@code due} by the wall clock; of a popped one, when its invisible time is over. */
    private record Got(int n, int queue, long offset, long nanos, long lateMillis, int reconsumed, long stored, long due) {}

    private record Kill(String victim, long nanos, long millis) {}

    private final Path work;
    private final Broker.Programs programs;
    private final String shards;
    private final int port;
    private final String nameServer;
    private final Random random;
    private final Map<String, Broker> running = new TreeMap<>();
    private final Map<String, Integer> kills = new TreeMap<>();
    private final List<Kill> killed = new ArrayList<>();

    private Storm(String[] args) throws IOException {
        programs = new Broker.Programs(Path.of(args[0]), Path.of(args[1]), ProcessHandle.current().info().command().orElse("java"));
        work = Path.of(args[2]);
        random = new Random(Long.parseLong(args[4]));
        shards = args[5];
        port = Stores.freePort();
        nameServer = "127.0.0.1:" + Stores.freePort();
    }

    /** LIB URINGMQ WORK SECONDS SEED SHARDS */
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.logRoot", args[2] + "/client-logs");
        System.setProperty("rocketmq.log.root", args[2] + "/client-logs");
        Checks checks = new Checks();
        Storm storm = new Storm(args);
        checks.check("storm", "rages", () -> storm.rage(Integer.parseInt(args[3])));
        storm.judge(checks);
        for (Broker process : storm.running.values()) {
            process.kill();
        }
        System.out.println(checks.passed + " passed, " + checks.failed + " failed");
        System.exit(checks.failed.get() == 0 && checks.passed.get() > 0 ? 0 : 1);
    }

    private String rage(int seconds) throws Exception {
        Files.writeString(work.resolve("namesrv.conf"), "listenPort=" + nameServer.split(":")[1] + "\nbindAddress=127.0.0.1\n");
        running.put("names", Broker.nameServer(programs, work.resolve("namesrv.conf"), work.resolve("namesrv.log")));
        Files.writeString(work.resolve("broker.conf"), conf());
        start("broker");
        makeTopics();
        List<String> victims = List.of("broker", "receiver-1", "receiver-2", "sender");
        for (String client : victims.subList(1, victims.size())) {
            start(client);
        }
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (System.nanoTime() < end) {
            Thread.sleep(1000 + random.nextInt(4000));
            String victim = random.nextInt(2) == 0 ? victims.get(0) : victims.get(1 + random.nextInt(victims.size() - 1));
            killed.add(new Kill(victim, System.nanoTime(), System.currentTimeMillis()));
            running.get(victim).kill();
            kills.merge(victim, 1, Integer::sum);
            Thread.sleep(random.nextInt(1500));
            start(victim);
        }
        Files.createFile(work.resolve("enough"));
        Checks.await("the sender's last word", SETTLE_SECONDS, () -> !lines("sender", "end").isEmpty());
        Checks.await("everything that was acknowledged is consumed", SETTLE_SECONDS,
            () -> Arrays.stream(Kind.values()).allMatch(kind -> missing(kind).isEmpty()));
        return kills + " killed";
    }

    private void start(String name) throws Exception {
        Path log = work.resolve(name + "-" + kills.getOrDefault(name, 0) + ".log");
        if (name.equals("broker")) {
            running.put(name, Broker.start(programs, Broker.Make.OURS, work.resolve("broker.conf"), log, work.resolve("home")));
            return;
        }
        running.put(name, Broker.spawn(List.of(programs.java(), "-Xmx160m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
            "-Drocketmq.client.logRoot=" + work.resolve("client-logs"), "-cp", System.getProperty("java.class.path"), "stores.StormClient",
            name.split("-")[0], nameServer, name, work.resolve(name + ".lines").toString(), work.resolve("enough").toString(), "127.0.0.1:" + port), log, null));
    }

    private String conf() {
        return String.join("\n", "brokerName=storm", "brokerIP1=127.0.0.1", "bindAddress=127.0.0.1", "listenPort=" + port,
            "namesrvAddr=" + nameServer, "storePathRootDir=" + work.resolve("store"), "mappedFileSizeCommitLog=16777216",
            "maxHashSlotNum=10000", "maxIndexNum=40000", "warmAheadBytes=0", "cleanFileForciblyEnable=false", "shards=" + shards,
            "messageDelayLevel=1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s", "transactionTimeOut=2000",
            "transactionCheckInterval=1000", "flushConsumerOffsetInterval=500", "flushDelayOffsetInterval=500",
            "enableLmq=true", "enableMultiDispatch=true", "transactionOpBatchInterval=500", "timerFlushIntervalMs=1000",
            "registerNameServerPeriod=10000", "");
    }

    private void makeTopics() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000);
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("storm-admin");
        admin.start();
        for (Kind kind : Kind.values()) {
            admin.createAndUpdateTopicConfig("127.0.0.1:" + port, new TopicConfig(kind.topic(), QUEUES, QUEUES));
        }
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("storm-" + Kind.POP);
        group.setRetryMaxTimes(100);
        admin.createAndUpdateSubscriptionGroupConfig("127.0.0.1:" + port, group);
        admin.setMessageRequestMode("127.0.0.1:" + port, Kind.POP.topic(), group.getGroupName(), MessageRequestMode.POP, 0, 10_000);
        admin.shutdown();
    }

    private List<String[]> lines(String of, String what) throws IOException {
        List<String[]> found = new ArrayList<>();
        for (String name : of.equals("sender") ? List.of("sender") : List.of("receiver-1", "receiver-2")) {
            Path file = work.resolve(name + ".lines");
            if (Files.exists(file)) {
                Files.readAllLines(file).stream().map(line -> line.split(" ")).filter(words -> words[0].equals(what)).forEach(found::add);
            }
        }
        return found;
    }

    private Set<Integer> numbers(String what, Kind kind) throws IOException {
        Set<Integer> numbers = new HashSet<>();
        lines("sender", what).stream().filter(words -> words[1].equals(kind.name())).forEach(words -> numbers.add(Integer.valueOf(words[2])));
        return numbers;
    }

    private List<Got> got(Kind kind) throws IOException {
        List<Got> all = new ArrayList<>();
        for (String[] words : lines("receiver", "got")) {
            if (words.length == 10 && words[1].equals(kind.name())) { // the last line of a killed process may be cut
                all.add(new Got(Integer.parseInt(words[2]), Integer.parseInt(words[3]), Long.parseLong(words[4]), Long.parseLong(words[5]),
                    Long.parseLong(words[6]), Integer.parseInt(words[7]), Long.parseLong(words[8]), Long.parseLong(words[9])));
            }
        }
        return all;
    }

    private Set<Integer> missing(Kind kind) {
        try {
            Set<Integer> wanted = numbers("ack", kind);
            if (kind == Kind.TRANSACTION) {
                wanted.removeIf(n -> !isCommitted(n));
            }
            Map<Integer, Set<Integer>> lights = new HashMap<>();
            for (Got got : got(kind)) {
                Set<Integer> of = lights.computeIfAbsent(got.n, any -> new HashSet<>());
                of.add(got.queue);
                if (kind != Kind.LIGHT || of.containsAll(lightsOf(got.n))) {
                    wanted.remove(got.n);
                }
            }
            return wanted;
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private void judge(Checks checks) throws Exception {
        for (Kind kind : Kind.values()) {
            List<Got> got = got(kind);
            checks.check(kind.topic(), kind == Kind.POP ? "nothing is lost or invented (O02)" : "nothing is lost or invented", () -> {
                Set<Integer> missing = missing(kind);
                Checks.that(missing.isEmpty(), () -> missing.size() + " acknowledged ones were never consumed: " + some(missing));
                Set<Integer> strange = new HashSet<>();
                got.forEach(one -> strange.add(one.n));
                Set<Integer> different = new HashSet<>(strange);
                strange.removeAll(numbers("try", kind));
                Checks.that(strange.isEmpty(), () -> "never sent, and consumed: " + some(strange));
                int acknowledged = numbers("ack", kind).size();
                Checks.that(acknowledged >= 20, () -> "only " + acknowledged + " were acknowledged");
                return acknowledged + " acknowledged, " + different.size() + " consumed, " + (got.size() - different.size()) + " again";
            });
        }
        checks.check("storm-transaction", "all or nothing", () -> {
            List<Integer> wrong = got(Kind.TRANSACTION).stream().map(Got::n).filter(n -> !isCommitted(n)).toList();
            Checks.that(wrong.isEmpty(), () -> "rolled back, and consumed: " + some(wrong));
            return numbers("ack", Kind.TRANSACTION).stream().filter(n -> !isCommitted(n)).count() + " rolled back, none seen";
        });
        checks.check("storm-transaction", "asked again by a kill only (T04)", this::asked);
        for (Kind kind : List.of(Kind.LEVEL, Kind.TIMER)) {
            checks.check(kind.topic(), "never early", () -> {
                List<Long> late = got(kind).stream().map(Got::lateMillis).sorted().toList();
                Checks.that(late.get(0) >= 0, () -> "early by " + -late.get(0) + " ms");
                got(kind).forEach(got -> Checks.that(got.stored >= got.due, () -> got.n + " was stored at " + got.stored + ", due at " + got.due));
                return "late by " + late.get(late.size() / 2) + " ms in the middle, " + late.get(late.size() - 1) + " at most, kills included";
            });
        }
        checks.check("storm-orderly", "nothing is skipped", () -> order(Kind.ORDERLY));
        checks.check("storm-light", "nothing is skipped", () -> order(Kind.LIGHT));
        checks.check("storm-light", "in the light queues that it names", () -> {
            List<Got> got = got(Kind.LIGHT);
            got.forEach(one -> Checks.that(lightsOf(one.n).contains(one.queue), () -> one.n + " in light queue " + one.queue));
            return got.size() + " deliveries";
        });
        for (Kind kind : List.of(Kind.ORDERLY, Kind.PLAIN, Kind.LEVEL, Kind.TIMER, Kind.TRANSACTION, Kind.LIGHT)) {
            checks.check(kind.topic(), "stored twice by a kill only", () -> copies(kind));
        }
        checks.check(Kind.POP.topic(), "given again by a kill only (O02)", this::popped);
    }

    /**
     * A message is stored once; one that comes by a delay, a timer or a commit is stored again when the broker was killed before it had saved
     * that the first copy was stored.
     */
    private String copies(Kind kind) throws IOException {
        Map<Integer, TreeMap<Long, Long>> stored = new HashMap<>(); // by place: a light queue has the same message again
        for (Got got : got(kind)) {
            if (got.reconsumed == 0) {
                stored.computeIfAbsent(got.n, any -> new TreeMap<>()).put(got.offset * 100 + got.queue, got.stored);
            }
        }
        int again = 0;
        for (Map.Entry<Integer, TreeMap<Long, Long>> message : stored.entrySet()) {
            List<Long> times = message.getValue().values().stream().sorted().toList();
            int once = kind == Kind.LIGHT ? lightsOf(message.getKey()).size() : 1;
            for (int i = once; i < times.size(); i++) {
                long first = times.get(i - 1);
                long second = times.get(i);
                boolean may = List.of(Kind.LEVEL, Kind.TIMER, Kind.TRANSACTION).contains(kind);
                boolean explained = may && killed.stream().anyMatch(kill -> kill.victim.equals("broker") && kill.millis >= first
                    && kill.millis <= second && kill.millis - first <= UNSAVED_MILLIS);
                Checks.that(explained, () -> message.getKey() + " was stored at " + times + ", and no kill explains it: the broker's before were at "
                    + killed.stream().filter(kill -> kill.victim.equals("broker") && kill.millis <= second).map(Kill::millis).toList());
                again++;
            }
        }
        return stored.size() + " messages, " + again + " stored again";
    }

    /** Known fault T04: a producer that said what became of a half is asked again only when a kill may have lost its word. */
    private String asked() throws IOException {
        Map<Integer, List<Long>> told = times("told");
        int asked = 0;
        for (Map.Entry<Integer, List<Long>> half : times("asked").entrySet()) {
            for (long at : half.getValue()) {
                asked++;
                for (long before : told.getOrDefault(half.getKey(), List.of())) {
                    boolean lost = killed.stream().anyMatch(kill -> (kill.victim.equals("broker") || kill.victim.equals("sender"))
                        && Math.abs(kill.millis - before) <= UNNOTED_MILLIS);
                    Checks.that(lost || at - before <= CROSSING_MILLIS, () -> half.getKey() + " was asked for at " + at + ", its fate told at " + before
                        + ", and no kill explains it: " + killed.stream().filter(kill -> kill.millis <= at).map(Kill::millis).toList());
                }
            }
        }
        return told.size() + " told, " + asked + " checks";
    }

    private Map<Integer, List<Long>> times(String what) throws IOException {
        Map<Integer, List<Long>> times = new HashMap<>();
        for (String[] words : lines("sender", what)) {
            if (words.length == 4 && words[3].length() >= 13) { // the last line of a killed process may be cut
                times.computeIfAbsent(Integer.valueOf(words[2]), any -> new ArrayList<>()).add(Long.valueOf(words[3]));
            }
        }
        return times;
    }

    /** Whoever popped a message has it alone until its invisible time is over, and it comes again only when an acknowledgement was lost. */
    private String popped() throws IOException {
        Map<Integer, List<Got>> given = new HashMap<>();
        got(Kind.POP).forEach(got -> given.computeIfAbsent(got.n, any -> new ArrayList<>()).add(got));
        int again = 0;
        for (List<Got> times : given.values()) {
            times.sort(Comparator.comparingLong(Got::nanos));
            for (int i = 1; i < times.size(); i++) {
                Got first = times.get(i - 1);
                Got second = times.get(i);
                long apart = second.due - POP_INVISIBLE_MILLIS - first.due;
                Checks.that(apart >= 0, () -> first.n + " was popped again " + -apart + " ms before its time: " + times);
                boolean lost = killed.stream().anyMatch(kill -> !kill.victim.equals("sender") && kill.nanos <= second.nanos
                    && kill.nanos >= first.nanos - POP_INVISIBLE_MILLIS * 1_000_000L);
                Checks.that(lost, () -> first.n + " was given again, and no kill explains it: " + times);
                again++;
            }
        }
        return given.size() + " messages, " + again + " given again";
    }

    /** In the order of their deliveries, each is the next one, or one that was delivered before; and the numbers rise with the offsets. */
    private String order(Kind kind) throws IOException {
        List<Got> all = got(kind);
        all.sort(Comparator.comparingLong(Got::nanos));
        Map<Integer, Long> next = new HashMap<>();
        Map<Integer, TreeMap<Long, Integer>> stored = new HashMap<>();
        for (Got got : all) {
            long expected = next.getOrDefault(got.queue, 0L);
            Checks.that(got.offset <= expected, () -> "queue " + got.queue + ": " + got.offset + " was consumed before " + expected);
            next.put(got.queue, Math.max(expected, got.offset + 1));
            Integer before = stored.computeIfAbsent(got.queue, q -> new TreeMap<>()).put(got.offset, got.n);
            Checks.that(before == null || before == got.n, () -> "queue " + got.queue + " at " + got.offset + ": two messages");
        }
        for (TreeMap<Long, Integer> queue : stored.values()) {
            List<Integer> numbers = List.copyOf(queue.values());
            Checks.that(numbers.equals(numbers.stream().sorted().toList()), () -> "stored in another order than sent");
        }
        return all.size() + " deliveries of " + next.values().stream().mapToLong(Long::longValue).sum() + " messages";
    }

    private static String some(Iterable<Integer> numbers) {
        List<Integer> few = new ArrayList<>();
        numbers.forEach(few::add);
        return few.subList(0, Math.min(10, few.size())).toString();
    }
}
