package stores;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/** One process: Apache's broker or ours on a store, the NameServer, or a client of its own. Ended by its own process handle alone. */
final class Broker {
    enum Make { APACHE, OURS }

    private static final int READY_SECONDS = Integer.getInteger("stores.readySeconds", 120);
    private static final int STOP_SECONDS = 90;
    private static final Set<Process> RUNNING = ConcurrentHashMap.newKeySet();

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> RUNNING.forEach(Process::destroyForcibly)));
    }

    /** Where the programs are. */
    record Programs(Path lib, Path uringmq, String java) {}

    private final Process process;
    private final Path log;

    private Broker(Process process, Path log) {
        this.process = process;
        this.log = log;
    }

    /** A broker that serves. */
    static Broker start(Programs programs, Make make, Path conf, Path log, Path home) throws Exception {
        Broker broker = launch(programs, make, conf, log, home);
        broker.await(make == Make.APACHE ? "boot success" : "uringmq ready");
        return broker;
    }

    static Broker nameServer(Programs programs, Path conf, Path log) throws Exception {
        Broker server = spawn(List.of(programs.uringmq.toString(), "namesrv", "-c", conf.toString()), log, null);
        server.await("uringmq ready");
        return server;
    }

    /** A broker that has to find out that it may not run: its output, once it has ended. */
    static String refused(Programs programs, Make make, Path conf, Path log, Path home) throws Exception {
        Broker broker = launch(programs, make, conf, log, home);
        if (!broker.process.waitFor(READY_SECONDS, TimeUnit.SECONDS)) {
            broker.process.destroyForcibly().waitFor();
            RUNNING.remove(broker.process);
            throw new AssertionError("started on a store that another broker has open");
        }
        RUNNING.remove(broker.process);
        if (broker.process.exitValue() == 0) {
            throw new AssertionError("refused with exit code 0");
        }
        return broker.output();
    }

    /** A controller that serves; whether it leads is another question. */
    static Broker controller(Programs programs, Make make, Path conf, Path log, Path home) throws Exception {
        Files.createDirectories(home);
        Broker server = make == Make.OURS
            ? spawn(List.of(programs.uringmq.toString(), "controller", "-c", conf.toString()), log, home)
            : spawn(jvm(programs, home, "org.apache.rocketmq.controller.ControllerStartup", conf), log, home);
        server.await(make == Make.APACHE ? "boot success" : "uringmq ready");
        return server;
    }

    private static Broker launch(Programs programs, Make make, Path conf, Path log, Path home) throws IOException {
        Files.createDirectories(home);
        if (make == Make.OURS) {
            return spawn(List.of(programs.uringmq.toString(), "broker", "-c", conf.toString()), log, home);
        }
        return spawn(jvm(programs, home, "org.apache.rocketmq.broker.BrokerStartup", conf), log, home);
    }

    private static List<String> jvm(Programs programs, Path home, String main, Path conf) {
        List<String> command = new ArrayList<>(List.of(programs.java, "-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=1g",
            "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"));
        for (String name : List.of("java.base/java.lang", "java.base/java.util", "java.base/java.nio", "java.base/sun.nio.ch")) {
            command.add("--add-opens=" + name + "=ALL-UNNAMED");
        }
        command.addAll(List.of("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "-Drocketmq.home.dir=" + home,
            "-Duser.home=" + home, "-cp", programs.lib + "/*", main, "-c", conf.toString()));
        return command;
    }

    static Broker spawn(List<String> command, Path log, Path home) throws IOException {
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log.toFile())
            .redirectInput(new File("/dev/null"));
        if (home != null) {
            builder.environment().put("ROCKETMQ_HOME", home.toString());
        }
        Process process = builder.start();
        RUNNING.add(process);
        return new Broker(process, log);
    }

    String output() throws IOException {
        return Files.readString(log, StandardCharsets.UTF_8);
    }

    void await(String line) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(READY_SECONDS);
        while (!output().contains(line)) {
            if (!process.isAlive()) {
                RUNNING.remove(process);
                throw new AssertionError("ended before it was ready (exit " + process.exitValue() + "): " + tail());
            }
            if (System.nanoTime() > deadline) {
                kill();
                throw new AssertionError("not ready within " + READY_SECONDS + " s: " + tail());
            }
            Thread.sleep(50);
        }
    }

    private String tail() throws IOException {
        List<String> lines = output().lines().filter(l -> !l.matches(".*\\|-(INFO|WARN) in .*")).toList();
        return String.join("\n  ", lines.subList(Math.max(0, lines.size() - 15), lines.size()));
    }

    /** SIGTERM, and the end of it. */
    void stop() throws Exception {
        if (!process.isAlive()) {
            RUNNING.remove(process);
            throw new AssertionError("was gone before it was stopped: " + tail());
        }
        process.destroy();
        if (!process.waitFor(STOP_SECONDS, TimeUnit.SECONDS)) {
            kill();
            throw new AssertionError("did not stop within " + STOP_SECONDS + " s");
        }
        RUNNING.remove(process);
    }

    void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
        RUNNING.remove(process);
    }
}
