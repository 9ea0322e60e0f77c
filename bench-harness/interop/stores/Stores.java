package stores;

import com.alibaba.fastjson.JSON;
import java.io.IOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * One store, opened by Apache's broker and by ours in turn: each writes every kind of message, ends (cleanly or by SIGKILL), and the
 * next one must serve all that is there. {@code ../run-stores} builds and starts this.
 */
public final class Stores {
    /**
     * {@code v6}: the first leg speaks IPv6, and from then on the legs take turns, so that both kinds of host stand in one log.
     * {@code rivals}: in the middle legs the other broker is started on the open store, and has to refuse.
     * {@code extended}: queues have extensions with bit maps, but for leg {@link #PLAIN_LEG}.
     */
    private record Chain(String name, List<Broker.Make> legs, boolean kill, boolean v6, boolean rivals, boolean extended) {
        Chain(String name, List<Broker.Make> legs, boolean kill, boolean v6, boolean rivals) {
            this(name, legs, kill, v6, rivals, false);
        }
    }

    private static final int PLAIN_LEG = 4;

    private static final List<Chain> CHAINS = List.of(
        new Chain("apache-clean", List.of(Broker.Make.APACHE, Broker.Make.OURS, Broker.Make.APACHE, Broker.Make.OURS), false, false, true),
        new Chain("apache-kill", List.of(Broker.Make.APACHE, Broker.Make.OURS, Broker.Make.APACHE, Broker.Make.OURS), true, true, false),
        new Chain("ours-kill", List.of(Broker.Make.OURS, Broker.Make.APACHE, Broker.Make.OURS), true, false, false),
        new Chain("ours-clean", List.of(Broker.Make.OURS, Broker.Make.APACHE, Broker.Make.OURS), false, true, false),
        new Chain("extended", List.of(Broker.Make.APACHE, Broker.Make.OURS, Broker.Make.APACHE, Broker.Make.OURS, Broker.Make.OURS), false, false, false, true),
        new Chain("extended-kill", List.of(Broker.Make.OURS, Broker.Make.APACHE, Broker.Make.OURS), true, false, false, true));

    /** Only by their names, with little bulk: what the golden files of the tests are trimmed from. */
    private static final List<Chain> GOLDEN = List.of(
        new Chain("golden-apache", List.of(Broker.Make.APACHE, Broker.Make.APACHE), false, false, false),
        new Chain("golden-ours", List.of(Broker.Make.OURS, Broker.Make.OURS), false, false, false));

    private static final String BROKER_NAME = "broker-a";

    private final Broker.Programs programs;
    private final Path work;
    private final Checks checks = new Checks();
    private final int bulk;
    private final boolean ipv6 = hasIpv6();

    private Stores(Broker.Programs programs, Path work, int bulk) {
        this.programs = programs;
        this.work = work;
        this.bulk = bulk;
    }

    /** LIB URINGMQ WORK PARALLEL BULK [CHAIN...] */
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.logRoot", args[2] + "/client-logs");
        System.setProperty("rocketmq.log.root", args[2] + "/client-logs");
        Broker.Programs programs = new Broker.Programs(Path.of(args[0]), Path.of(args[1]), ProcessHandle.current().info().command().orElse("java"));
        Stores stores = new Stores(programs, Path.of(args[2]), Integer.parseInt(args[4]));
        List<String> only = List.of(args).subList(5, args.length);
        ExecutorService pool = Executors.newFixedThreadPool(Integer.parseInt(args[3]));
        List<Future<?>> runs = new ArrayList<>();
        if (!stores.ipv6) {
            System.out.println("no IPv6 on this machine: every host is an IPv4 address");
        }
        for (Chain chain : Stream.concat(CHAINS.stream(), GOLDEN.stream()).toList()) {
            if (only.isEmpty() ? CHAINS.contains(chain) : only.contains(chain.name)) {
                runs.add(pool.submit(() -> stores.checks.check(chain.name, "chain", () -> stores.run(chain))));
            }
        }
        for (Future<?> run : runs) {
            run.get();
        }
        System.out.println(stores.checks.passed + " passed, " + stores.checks.failed + " failed");
        System.exit(stores.checks.failed.get() == 0 && stores.checks.passed.get() > 0 ? 0 : 1);
    }

    private String run(Chain chain) throws Exception {
        Path dir = Files.createDirectories(work.resolve(chain.name));
        Path store = dir.resolve("store");
        int nameServerPort = freePort();
        Files.writeString(dir.resolve("namesrv.conf"), "listenPort=" + nameServerPort + "\n");
        Broker nameServer = Broker.nameServer(programs, dir.resolve("namesrv.conf"), dir.resolve("namesrv.log"));
        int port = freePort();
        Ledger ledger = new Ledger();
        try {
            for (int leg = 1; leg <= chain.legs.size(); leg++) {
                leg(chain, leg, dir, store, "127.0.0.1:" + nameServerPort, port, ledger);
            }
        } finally {
            nameServer.stop();
        }
        return chain.legs.size() + " legs";
    }

    private boolean speaksIpv6(Chain chain, int leg) {
        return ipv6 && (leg % 2 == 1) == chain.v6;
    }

    private String host(Chain chain, int leg) {
        return speaksIpv6(chain, leg) ? "::1" : "127.0.0.1";
    }

    private static boolean hasIpv6() {
        try (ServerSocket any = new ServerSocket(0, 1, InetAddress.getByName("::1"))) {
            return any.isBound();
        } catch (IOException e) {
            return false;
        }
    }

    private void leg(Chain chain, int leg, Path dir, Path store, String nameServer, int port, Ledger ledger) throws Exception {
        Broker.Make make = chain.legs.get(leg - 1);
        String where = chain.name + " leg " + leg + " (" + make.name().toLowerCase() + ")";
        Path conf = dir.resolve("leg" + leg + ".conf");
        Files.writeString(conf, conf(make, host(chain, leg), store, nameServer, port, GOLDEN.contains(chain)) + extension(chain, leg));
        Broker broker = Broker.start(programs, make, conf, dir.resolve("leg" + leg + ".log"), dir.resolve("home"));
        checks.say("      " + where + ": serves");
        String address = speaksIpv6(chain, leg) ? "[::1]:" + port : "127.0.0.1:" + port;
        try (Clients clients = new Clients(nameServer, address, leg)) {
            if (leg > 1) {
                new Checking(ledger, clients, address, leg, chain.kill, chain.extended).all(checks, where);
                if (chain.extended && !chain.kill && make == Broker.Make.OURS) {
                    checks.check(where, "bit maps were asked", () -> {
                        long passed = clients.wire.passedByBits();
                        Checks.that(passed > 0, () -> "none was passed over by its bits");
                        return passed + " passed over";
                    });
                }
            }
            if (chain.rivals && leg > 1 && leg < chain.legs.size()) {
                rival(make == Broker.Make.OURS ? Broker.Make.APACHE : Broker.Make.OURS, where, dir, store, nameServer);
            }
            if (leg < chain.legs.size() || GOLDEN.contains(chain)) {
                boolean burst = chain.kill && make == Broker.Make.OURS;
                new Writing(ledger, clients, BROKER_NAME, address, store, leg, bulk, burst, chain.extended).all(checks, where);
            }
        } finally {
            if (chain.kill) {
                broker.kill();
            } else {
                broker.stop();
            }
        }
        checks.check(where, chain.kill ? "killed" : "stopped", () -> {
            boolean abort = Files.exists(store.resolve("abort"));
            Checks.that(abort == chain.kill, () -> "abort file " + (abort ? "left" : "missing"));
            return "abort file " + (abort ? "left" : "gone");
        });
        if (make == Broker.Make.OURS) {
            broker.output().lines().filter(line -> line.contains("recovery: ") || line.contains("ERROR")).forEach(line -> checks.say("note  " + where + ": " + line));
        }
    }

    /** What it says itself, on its console or in its log; and it must have left the store as it was, tables included. */
    private void rival(Broker.Make make, String where, Path dir, Path store, String nameServer) {
        checks.check(where, "the rival has to refuse", () -> {
            Path conf = dir.resolve("rival.conf");
            Files.writeString(conf, conf(make, "127.0.0.1", store, nameServer, freePort(), false));
            Path home = dir.resolve("rival-home");
            Set<Path> before = files(store);
            Set<String> levels = delayLevels(store);
            String said = Broker.refused(programs, make, conf, dir.resolve("rival-" + make + ".log"), home);
            if (make == Broker.Make.APACHE) {
                said += Files.readString(home.resolve("logs/rocketmqlogs/store.log"));
            }
            String told = said;
            String wanted = make == Broker.Make.OURS ? "has this store open; stop it" : "uringmq-has-this-store-open";
            Checks.that(told.contains(wanted), () -> "refused, but does not say '" + wanted + "': " + told);
            Set<Path> lost = new TreeSet<>(before); // but for its own database of other things
            lost.removeAll(files(store));
            Checks.that(lost.isEmpty(), () -> "removed " + lost);
            // It empties this one as it ends, which would deliver all delayed messages again.
            Checks.await("the levels " + levels + " in delayOffset.json", 60, () -> delayLevels(store).equals(levels));
            return told.lines().filter(line -> line.contains(wanted)).findFirst().orElse("");
        });
    }

    private static Set<String> delayLevels(Path store) throws IOException {
        return JSON.parseObject(Files.readString(store.resolve("config/delayOffset.json"))).getJSONObject("offsetTable").keySet();
    }

    private static Set<Path> files(Path store) throws IOException {
        try (Stream<Path> all = Files.walk(store)) {
            return all.filter(path -> !path.toString().endsWith(".tmp") && !path.startsWith(store.resolve("rocksdbstore"))).collect(Collectors.toCollection(TreeSet::new));
        }
    }

    private static String extension(Chain chain, int leg) {
        String on = String.valueOf(chain.extended && leg != PLAIN_LEG);
        return chain.extended ? String.join("\n", "enablePropertyFilter=true", "enableConsumeQueueExt=" + on, "enableCalcFilterBitMap=" + on,
            "mappedFileSizeConsumeQueueExt=40960", "") : "";
    }

    /** The same for both; small files, so that everything rolls. */
    private String conf(Broker.Make make, String host, Path store, String nameServer, int port, boolean tiny) {
        return String.join("\n",
            "brokerClusterName=DefaultCluster",
            "brokerName=" + BROKER_NAME,
            "brokerId=0",
            "brokerIP1=" + host,
            "bindAddress=" + (ipv6 ? "::" : "127.0.0.1"), // "::" takes both kinds
            "namesrvAddr=" + nameServer,
            "listenPort=" + port,
            "storePathRootDir=" + store,
            "storePathCommitLog=" + store.resolve("commitlog"),
            "brokerRole=ASYNC_MASTER",
            "flushDiskType=ASYNC_FLUSH",
            "cleanFileForciblyEnable=false", // the disk of the machine may be fuller than 85 %
            "mappedFileSizeCommitLog=" + (tiny ? 16_384 : 262_144),
            "mappedFileSizeConsumeQueue=" + (tiny ? 400 : 2000),
            "maxHashSlotNum=" + (tiny ? 20 : 500),
            "maxIndexNum=" + (tiny ? 40 : 1000),
            "messageDelayLevel=1s " + Writing.NEXT_LEG_MILLIS / 1000 + "s 30m",
            "flushConsumerOffsetInterval=500",
            "flushDelayOffsetInterval=500",
            "transactionTimeOut=1000",
            "transactionCheckInterval=" + (tiny ? 20_000 : 1000), // each check stores every half message again
            "transactionCheckMax=1000",
            "transactionOpBatchInterval=100",
            make == Broker.Make.OURS ? "shards=2" : "waitTimeMillsInSendQueue=10000",
            "");
    }

    /**
     * Its neighbours are free too: a broker binds port - 2 and port + 1 beside it. It is none that the kernel gives to outgoing
     * connections: a client that knocks while a broker is down could be given its very port.
     */
    static int freePort() throws IOException {
        int low = Integer.parseInt(Files.readString(Path.of("/proc/sys/net/ipv4/ip_local_port_range")).strip().split("\\s+")[0]);
        int end = low > 20_000 ? low : 65_535;
        for (int tries = 0; tries < 1000; tries++) {
            int port = ThreadLocalRandom.current().nextInt(10_000, end - 1);
            List<ServerSocket> held = new ArrayList<>();
            try {
                for (int each = port - 2; each <= port + 1; each++) {
                    held.add(new ServerSocket(each, 1, InetAddress.getLoopbackAddress()));
                }
                return port;
            } catch (BindException e) {
                // another one, then
            } finally {
                for (ServerSocket socket : held) {
                    socket.close();
                }
            }
        }
        throw new IOException("no free port with free neighbours");
    }
}
