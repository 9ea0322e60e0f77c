package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;

/** What consumers were handed, in the order in which they were. */
final class Received {
    private final List<MessageExt> messages = new ArrayList<>();

    MessageListenerConcurrently concurrently() {
        return (batch, context) -> {
            add(batch);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    MessageListenerOrderly orderly() {
        return (batch, context) -> {
            add(batch);
            return ConsumeOrderlyStatus.SUCCESS;
        };
    }

    synchronized void add(Collection<MessageExt> batch) {
        messages.addAll(batch);
    }

    synchronized List<MessageExt> all() {
        return List.copyOf(messages);
    }

    synchronized int count() {
        return messages.size();
    }

    List<String> texts() {
        return Interop.texts(all());
    }

    MessageExt first(String text) {
        return all().stream().filter(m -> Interop.text(m).equals(text)).findFirst().orElseThrow();
    }

    List<String> textsStarting(String stem) {
        return texts().stream().filter(t -> t.startsWith(stem)).toList();
    }

    /** Waits until every text has arrived, however often. */
    void awaitAll(Collection<String> wanted) {
        Await.until(wanted.size() + " messages", () -> new HashSet<>(texts()).containsAll(wanted), () -> missing(wanted));
    }

    /** Waits for the texts, then a little for what must not come: each of those that begin with the stem once and no other. */
    void assertExactly(String stem, List<String> wanted) {
        awaitAll(wanted);
        LockSupport.parkNanos(Duration.ofMillis(300).toNanos());
        assertEquals(wanted.stream().sorted().toList(), textsStarting(stem).stream().sorted().toList());
    }

    private String missing(Collection<String> wanted) {
        Set<String> left = new HashSet<>(wanted);
        left.removeAll(new HashSet<>(texts()));
        return count() + " received, missing " + left.size() + " of " + wanted.size() + ": " + left.stream().sorted().limit(10).toList();
    }
}
