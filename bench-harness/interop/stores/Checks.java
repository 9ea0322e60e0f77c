package stores;

import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;

/** Counts what held and what did not; a failed check is told and the run goes on. */
final class Checks {
    interface Body {
        /** A few words on what was looked at; an error is the failure. */
        String run() throws Exception;
    }

    final AtomicInteger passed = new AtomicInteger();
    final AtomicInteger failed = new AtomicInteger();
    private final long begun = System.nanoTime();

    boolean check(String where, String what, Body body) {
        try {
            say("ok    " + where + ": " + what + ": " + body.run());
            passed.incrementAndGet();
            return true;
        } catch (Exception | AssertionError e) {
            StringBuilder text = new StringBuilder("FAIL  " + where + ": " + what + ": " + e);
            if (!(e instanceof AssertionError)) {
                for (StackTraceElement frame : e.getStackTrace()) {
                    if (frame.getClassName().startsWith("stores.")) {
                        text.append("\n        at ").append(frame);
                    }
                }
            }
            say(text.toString());
            failed.incrementAndGet();
            return false;
        }
    }

    void say(String text) {
        System.out.printf("%6.1f %s%n", (System.nanoTime() - begun) / 1e9, text);
    }

    static void that(boolean holds, Supplier<String> otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise.get());
        }
    }

    static void equal(Object expected, Object actual, Supplier<String> what) {
        that(expected.equals(actual), () -> what.get() + " is " + actual + ", expected " + expected);
    }

    /** Waits until it holds; what goes wrong meanwhile is told when the time is over. */
    static void await(String what, int seconds, Callable<Boolean> holds) throws Exception {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        Throwable last = null;
        while (true) {
            try {
                if (holds.call()) {
                    return;
                }
                last = null;
            } catch (Exception | AssertionError e) {
                last = e;
            }
            if (System.nanoTime() > deadline) {
                throw new AssertionError("not within " + seconds + " s: " + what + (last == null ? "" : " (" + last + ")"));
            }
            Thread.sleep(50);
        }
    }
}
