package interop;

import org.apache.rocketmq.logging.ch.qos.logback.classic.Level;
import org.apache.rocketmq.logging.ch.qos.logback.classic.spi.ILoggingEvent;
import org.apache.rocketmq.logging.ch.qos.logback.classic.spi.ThrowableProxy;
import org.apache.rocketmq.logging.ch.qos.logback.core.AppenderBase;

/** Hands each line that the client logs to {@link ClientLog}. */
public final class LogAppender extends AppenderBase<ILoggingEvent> {
    @Override
    protected void append(ILoggingEvent event) {
        Throwable cause = event.getThrowableProxy() instanceof ThrowableProxy p ? p.getThrowable() : null;
        ClientLog.add(event.getLevel().isGreaterOrEqual(Level.WARN), event.getLoggerName(), event.getFormattedMessage(), cause);
    }
}
