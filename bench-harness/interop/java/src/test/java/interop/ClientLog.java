package interop;

import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Assertions;

/**
 * What the clients of this JVM logged. A warning or error that names a test by its topic or group fails this test; one that
 * names none fails each test that was running, if it looks like an answer of the broker that no client should get.
 */
final class ClientLog {
    private record Line(long at, boolean warning, String text) {}

    private static final Queue<Line> LINES = new ConcurrentLinkedQueue<>();

    /** What a healthy broker causes too (seen with Apache 5.5.0), each with its reason. */
    private static final Pattern HARMLESS = Pattern.compile(String.join("|",
        // a topic is looked up before it exists: the next call creates it, or the first send, or the first heartbeat
        "RouteInfo(FromNameServer|Data)? is not exist value",
        "CODE: 17 +DESC: No topic route info",
        "No topic route info in name server for the topic",
        "No route info of this topic",
        // the index is built behind the log
        "can not find message, maybe time range not correct",
        // the index knows hashes; the client drops the other keys
        "find message key not matched, maybe hash duplicate",
        // two threads of one client at once, and clients that only ask
        "lock heartBeat, but failed",
        "no consumer and no producer",
        // a client that stops
        "has shutdown|executor not accepting a task|didn't terminate|Polling thread was interrupted|Pull Task is cancelled",
        "receive response.* not matched any request|RemotingCommand \\[code=.*, serializeTypeCurrentRPC=\\w+\\]$",
        "java.util.concurrent.RejectedExecutionException: .*(Shutting down|Terminated)",
        // Its timer asks for routes while the client is being stopped (at once, when it could not start): the connection is gone, or a new one.
        "ScheduledTask updateTopicRouteInfoFromNameServer exception .*(connect to \\[[0-9.:]+\\]|send request to <[0-9.:]+>) failed",
        "the consumer message queue is dropped|the message queue not be able to consume",
        "unlock messageQueue|add a new mq failed, .* because lock failed",
        // a consumer that has not told the broker of itself yet, or starts before its topic
        "the subscription is not latest|CODE: 2[45] |no consumer for this group|get consumer id list failed",
        "doRebalance, .* but the topic\\[.*\\] not exist",
        "consumerOffset is -1 in messageQueue",
        // the listener of the test says no
        "consumeMessage Orderly return not OK|consumeMessage return not OK"));

    /** In lines that name no test: an answer of the broker, or one that the client cannot use. Not a closed connection: tests stop clients. */
    private static final Pattern ALARMING = Pattern.compile(
        "CODE: \\d|busy|[Tt]imeout|timed out|decode|NullPointer|ClassCast|NumberFormat|JSON|Illegal|OutOfBounds|exceptionCaught"
            + "|not supported|Unsupported");

    private ClientLog() {}

    static void add(boolean warning, String logger, String message, Throwable cause) {
        boolean notice = message.contains("rebalance immediately");
        if (!warning && !notice) {
            return;
        }
        StringBuilder text = new StringBuilder(logger).append(": ").append(message);
        for (Throwable t = cause; t != null; t = t.getCause()) {
            text.append(" | ").append(t);
        }
        LINES.add(new Line(System.nanoTime(), warning, text.toString()));
    }

    /** How often the broker told a client of this JVM that the members of {@code group} changed. */
    static long noticesOfChange(String group) {
        return LINES.stream().filter(l -> !l.warning && l.text.contains(group) && l.text.contains("notification")).count();
    }

    /** Fails if since {@code since} (nanoTime) a line was logged that concerns the test {@code name} and is not {@code expected}. */
    static void assertQuiet(String name, long since, Pattern expected) {
        assertNone(since, line -> line.contains(name) || !line.contains(Interop.PREFIX) && ALARMING.matcher(line).find(), expected);
    }

    /** For a test that runs alone: no line at all but the harmless and the expected ones. */
    static void assertSilent(long since, Pattern expected) {
        assertNone(since, line -> true, expected);
    }

    private static void assertNone(long since, Predicate<String> concerns, Pattern expected) {
        List<String> bad = LINES.stream().filter(l -> l.warning && l.at >= since).map(Line::text).filter(concerns)
            .filter(l -> !HARMLESS.matcher(l).find())
            .filter(l -> expected == null || !expected.matcher(l).find())
            .distinct().toList();
        if (!bad.isEmpty()) {
            Assertions.fail(bad.size() + " different client warnings, first:\n" + String.join("\n", bad.subList(0, Math.min(10, bad.size()))));
        }
    }
}
