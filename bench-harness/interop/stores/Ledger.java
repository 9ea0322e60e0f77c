package stores;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** All that one store must still say, whoever opens it: what was acknowledged, and what the last broker served before it ended. */
final class Ledger {
    /** An acknowledged message. {@code body} as the application gave it. */
    record Sent(String topic, int queue, long offset, String uniqKey, String offsetId, byte[] body, String tags, List<String> keys,
                Map<String, String> properties) {}

    /** A message that is to appear in a queue later, once: by a delay level, or by a commit at the broker's check-back. */
    record Pending(String topic, String text, int leg, long dueMillis) {}

    /** A queue as the last broker served it. */
    record Dump(long min, List<byte[]> records) {
        long max() {
            return min + records.size();
        }
    }

    final List<Sent> sent = new ArrayList<>();
    /** Those of {@link #sent} that the last leg wrote begin here. */
    int lastLeg;
    final Map<String, Map<Integer, Dump>> queues = new TreeMap<>();
    final List<Pending> delayed = new ArrayList<>();
    /** Due in half an hour: must stay where they are. */
    final List<Pending> longDelayed = new ArrayList<>();
    /** Due in the next leg, at least once: by a time of their own. */
    final List<Pending> timed = new ArrayList<>();
    final List<Pending> halves = new ArrayList<>();
    final Set<String> committed = new HashSet<>();
    final Set<String> never = new HashSet<>();
    /** Half queue offsets that an op record must name. */
    final Set<Long> endedHalves = new HashSet<>();
    /** {@code group@topic@queue} to the offset committed. */
    final Map<String, Long> offsets = new LinkedHashMap<>();
    final Map<String, TopicConfig> topics = new HashMap<>();
    final Map<String, SubscriptionGroupConfig> groups = new HashMap<>();

    List<byte[]> records(String topic, int queue) {
        Dump dump = queues.getOrDefault(topic, Map.of()).get(queue);
        return dump == null ? List.of() : dump.records;
    }
}
