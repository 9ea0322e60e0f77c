package interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import ch.qos.logback.classic.LoggerContext;
import ch.qos.logback.classic.PatternLayout;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.logappender.logback.RocketmqLogbackAppender;
import org.junit.jupiter.api.Test;

/** The log appender: lines of a program's log as messages. */
class LogbackAppenderTest extends Interop {
    @Test
    void linesOfALogBecomeMessages() throws Exception {
        producerFor(topic, 1);
        LoggerContext context = new LoggerContext();
        PatternLayout layout = new PatternLayout();
        layout.setContext(context);
        layout.setPattern("%level %msg");
        layout.start();
        RocketmqLogbackAppender appender = new RocketmqLogbackAppender();
        appender.setContext(context);
        appender.setLayout(layout);
        appender.setTopic(topic);
        appender.setTag("lines");
        appender.setProducerGroup(group);
        appender.setNameServerAddress(NAMESRV);
        appender.start();
        clients.onClose(appender::stop);
        Logger logger = context.getLogger("program");
        logger.setLevel(Level.INFO);
        logger.addAppender(appender);
        for (String text : numbered("line ", 10)) {
            logger.info(text);
        }
        logger.debug("below the level");

        var found = pullAll(clients.pull(group + "-c"), queue(topic, 0), 10);
        assertEquals(numbered("INFO line ", 10), texts(found));
        for (MessageExt message : found) {
            assertEquals("lines", message.getTags());
        }
    }
}
