package stores;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A store that Apache's broker wrote in DLedger mode: ours does not start on it and says what there is instead, and {@code uringmq store
 * export} gives every message that was acknowledged. {@code ../run-dledger} builds and starts this.
 */
public final class DLedger {
    private static final String WHERE = "dledger";
    private static final String TOPIC = "kept";
    private static final String OTHER = "other";
    private static final int QUEUES = 3;
    private static final int FILE_BYTES = 262_144;
    /** Several files of the log. */
    private static final int MESSAGES = 500;

    private final Broker.Programs programs;
    private final Path work;
    private final Path store;
    private final Path conf;
    private final Checks checks = new Checks();
    private final List<Sent> sent = new ArrayList<>();

    private record Sent(String id, int queue, long queueOffset, byte[] body, String key) {}

    private DLedger(Broker.Programs programs, Path work) {
        this.programs = programs;
        this.work = work;
        store = work.resolve("store");
        conf = work.resolve("broker.conf");
    }

    /** LIB URINGMQ WORK */
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.logRoot", args[2] + "/client-logs");
        System.setProperty("rocketmq.log.root", args[2] + "/client-logs");
        String java = ProcessHandle.current().info().command().orElse("java");
        DLedger run = new DLedger(new Broker.Programs(Path.of(args[0]), Path.of(args[1]), java), Path.of(args[2]));
        run.checks.check(WHERE, "all of it", run::all);
        System.out.println(run.checks.passed + " passed, " + run.checks.failed + " failed");
        System.exit(run.checks.failed.get() == 0 && run.checks.passed.get() > 0 ? 0 : 1);
    }

    private String all() throws Exception {
        must("Apache's broker in DLedger mode", this::fill);
        must("ours does not start on it", () -> {
            String said = Broker.refused(programs, Broker.Make.OURS, conf, work.resolve("refused.log"), work.resolve("home"));
            Checks.that(said.contains("enableDLegerCommitLog") && said.contains("controller mode"), () -> said);
            return "and names controller mode";
        });
        must("its messages are exported", () -> exported(store, "root.jsonl"));
        must("and from the replica's directory", () -> exported(store.resolve("dledger-n0"), "replica.jsonl"));
        return sent.size() + " messages";
    }

    /** What goes wrong here makes all that follows pointless. */
    private void must(String what, Checks.Body body) {
        if (!checks.check(WHERE, what, body)) {
            throw new AssertionError("stopped at: " + what);
        }
    }

    private String fill() throws Exception {
        String nameServer = "127.0.0.1:" + Stores.freePort();
        int port = Stores.freePort();
        Files.writeString(work.resolve("namesrv.conf"), "listenPort=" + nameServer.split(":")[1] + "\n");
        Files.writeString(conf, String.join("\n",
            "brokerClusterName=DefaultCluster",
            "brokerName=broker-a",
            "brokerIP1=127.0.0.1",
            "namesrvAddr=" + nameServer,
            "listenPort=" + port,
            "storePathRootDir=" + store,
            "storePathCommitLog=" + store.resolve("commitlog"),
            "cleanFileForciblyEnable=false",
            "mappedFileSizeCommitLog=" + FILE_BYTES,
            "maxHashSlotNum=5000",
            "maxIndexNum=10000",
            "waitTimeMillsInSendQueue=30000",
            "enableDLegerCommitLog=true",
            "dLegerGroup=broker-a",
            "dLegerPeers=n0-127.0.0.1:" + Stores.freePort(),
            "dLegerSelfId=n0",
            ""));
        Broker names = Broker.nameServer(programs, work.resolve("namesrv.conf"), work.resolve("namesrv.log"));
        Broker broker = Broker.start(programs, Broker.Make.APACHE, conf, work.resolve("broker.log"), work.resolve("home"));
        DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000);
        DefaultMQProducer producer = new DefaultMQProducer("dledger-writers");
        try {
            admin.setNamesrvAddr(nameServer);
            admin.start();
            producer.setNamesrvAddr(nameServer);
            producer.setSendMsgTimeout(30_000);
            producer.start();
            for (String topic : List.of(TOPIC, OTHER)) {
                Checks.await("the topic " + topic, 60, () -> {
                    admin.createAndUpdateTopicConfig("127.0.0.1:" + port, new TopicConfig(topic, QUEUES, QUEUES));
                    return true;
                });
            }
            Checks.await("a leader that takes messages", 60, () -> send(producer, OTHER, -1) != null);
            for (int n = 0; n < MESSAGES; n++) {
                SendResult result = send(producer, n % 5 == 4 ? OTHER : TOPIC, n);
                Checks.that(result != null, () -> "not acknowledged");
            }
        } finally {
            producer.shutdown();
            admin.shutdown();
            broker.stop();
            names.kill();
        }
        long files;
        try (var all = Files.list(store.resolve("dledger-n0/data"))) {
            files = all.count();
        }
        Checks.that(files > 2, () -> files + " files");
        return sent.size() + " acknowledged, " + files + " files";
    }

    /** Acknowledged, or null. */
    private SendResult send(DefaultMQProducer producer, String topic, int n) throws Exception {
        byte[] body = (topic + "/" + n + "/" + "x".repeat(Math.floorMod(n * 37, 3000))).getBytes(StandardCharsets.UTF_8);
        Message message = new Message(topic, "tag-" + n % 3, "key-" + n, body);
        SendResult result = producer.send(message, new MessageQueue(topic, "broker-a", Math.floorMod(n, QUEUES)));
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            return null;
        }
        if (topic.equals(TOPIC)) {
            sent.add(new Sent(result.getOffsetMsgId(), result.getMessageQueue().getQueueId(), result.getQueueOffset(), body, "key-" + n));
        }
        return result;
    }

    private String exported(Path from, String name) throws Exception {
        Path out = work.resolve(name);
        Process process = new ProcessBuilder(programs.uringmq().toString(), "store", "export", from.toString(), "--topic", TOPIC,
            "--output", out.toString()).redirectErrorStream(true).redirectInput(new File("/dev/null")).start();
        String said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        Checks.that(process.waitFor(60, TimeUnit.SECONDS) && process.exitValue() == 0, () -> said);
        List<String> lines = Files.readAllLines(out);
        Checks.equal(sent.size(), lines.size(), () -> "messages");
        for (int n = 0; n < lines.size(); n++) {
            JSONObject line = JSON.parseObject(lines.get(n));
            Sent wanted = sent.get(n);
            Checks.equal(wanted.id, line.getString("msgId"), () -> "message id");
            Checks.equal(wanted.queue, line.getIntValue("queue"), () -> "queue");
            Checks.equal(wanted.queueOffset, line.getLongValue("queueOffset"), () -> "queue offset");
            Checks.equal(wanted.key, line.getJSONObject("properties").getString("KEYS"), () -> "key");
            byte[] body = Base64.getDecoder().decode(line.getString("bodyBase64"));
            Checks.that(java.util.Arrays.equals(wanted.body, body), () -> "another body of " + wanted.key);
        }
        return said.strip();
    }
}
