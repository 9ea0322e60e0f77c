package interop;

import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import org.junit.jupiter.api.Assertions;

/** Waits for something that another process does: bounded, and saying at the end what it saw instead. */
final class Await {
    static final Duration PATIENCE = Duration.ofSeconds(60);

    private Await() {}

    /** Returns once {@code done} holds; fails after {@link #PATIENCE} with {@code what} and the state. */
    static void until(String what, Callable<Boolean> done, Supplier<?> state) {
        until(what, PATIENCE, done, state);
    }

    static void until(String what, Duration patience, Callable<Boolean> done, Supplier<?> state) {
        long deadline = System.nanoTime() + patience.toNanos();
        while (true) {
            try {
                if (done.call()) {
                    return;
                }
            } catch (Exception e) {
                Assertions.fail("while waiting for " + what, e);
            }
            if (System.nanoTime() > deadline) {
                Assertions.fail("no " + what + " within " + patience.toSeconds() + " s, but: " + state.get());
            }
            LockSupport.parkNanos(20_000_000);
            if (Thread.interrupted()) {
                Assertions.fail("interrupted while waiting for " + what + ", state: " + state.get());
            }
        }
    }
}
