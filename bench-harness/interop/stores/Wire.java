package stores;

import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.body.HARuntimeInfo;
import org.apache.rocketmq.remoting.protocol.body.KVTable;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumeType;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.HeartbeatData;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;

/** Requests to one broker by Apache's remoting client; records as the broker has them stored, byte for byte. */
final class Wire implements AutoCloseable {
    private static final String GROUP = "TOOLS_CONSUMER";
    private static final long MILLIS = 20_000;

    private final String broker;
    private final NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());

    Wire(String broker) {
        this.broker = broker;
        client.start();
    }

    @Override
    public void close() {
        client.shutdown();
    }

    private RemotingCommand ask(String address, int code, Object... fields) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
        for (int i = 0; i < fields.length; i += 2) {
            request.addExtField((String) fields[i], String.valueOf(fields[i + 1]));
        }
        return client.invokeSync(address, request, MILLIS);
    }

    private RemotingCommand succeed(int code, Object... fields) throws Exception {
        RemotingCommand answer = ask(broker, code, fields);
        if (answer.getCode() != ResponseCode.SUCCESS) {
            throw new AssertionError("request " + code + ": " + answer.getCode() + " " + answer.getRemark());
        }
        return answer;
    }

    private long number(int code, String field, Object... fields) throws Exception {
        return Long.parseLong(succeed(code, fields).getExtFields().get(field));
    }

    long min(String topic, int queue) throws Exception {
        return number(RequestCode.GET_MIN_OFFSET, "offset", "topic", topic, "queueId", queue);
    }

    long max(String topic, int queue) throws Exception {
        return number(RequestCode.GET_MAX_OFFSET, "offset", "topic", topic, "queueId", queue, "committed", true);
    }

    HARuntimeInfo haStatus() throws Exception {
        return RemotingSerializable.decode(succeed(RequestCode.GET_BROKER_HA_STATUS).getBody(), HARuntimeInfo.class);
    }

    /** The response code of a send. */
    int send(String topic, int queue, String body) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.SEND_MESSAGE_V2, null);
        Object[] fields = {"a", "pairs", "b", topic, "c", "TBW102", "d", 4, "e", queue, "f", 0, "g", System.currentTimeMillis(), "h", 0,
            "i", "", "j", 0, "k", false, "m", false};
        for (int i = 0; i < fields.length; i += 2) {
            request.addExtField((String) fields[i], String.valueOf(fields[i + 1]));
        }
        request.setBody(body.getBytes(StandardCharsets.UTF_8));
        return client.invokeSync(broker, request, MILLIS).getCode();
    }

    void commit(String group, String topic, int queue, long offset) throws Exception {
        succeed(RequestCode.UPDATE_CONSUMER_OFFSET, "consumerGroup", group, "topic", topic, "queueId", queue, "commitOffset", offset);
    }

    long committed(String group, String topic, int queue) throws Exception {
        return number(RequestCode.QUERY_CONSUMER_OFFSET, "offset", "consumerGroup", group, "topic", topic, "queueId", queue,
            "setZeroIfNotFound", false);
    }

    /** The offset that the broker keeps of a group, or this where it has none. */
    long committedOr(String group, String topic, int queue, long none) throws Exception {
        RemotingCommand answer = ask(broker, RequestCode.QUERY_CONSUMER_OFFSET, "consumerGroup", group, "topic", topic, "queueId", queue,
            "setZeroIfNotFound", false);
        return switch (answer.getCode()) {
            case ResponseCode.SUCCESS -> Long.parseLong(answer.getExtFields().get("offset"));
            case ResponseCode.QUERY_NOT_FOUND -> none;
            default -> throw new AssertionError("offset of " + group + ": " + answer.getCode() + " " + answer.getRemark());
        };
    }

    /** Some messages of a light queue from an offset on, which are its next ones in order; none at its end. */
    List<MessageExt> light(String queue, long at) throws Exception {
        RemotingCommand answer = ask(broker, RequestCode.PULL_MESSAGE, "consumerGroup", queue, "topic", queue, "queueId", 0,
            "queueOffset", at, "maxMsgNums", 32, "sysFlag", 4, "commitOffset", 0, "suspendTimeoutMillis", 0,
            "subscription", "*", "subVersion", 0, "expressionType", "TAG");
        if (answer.getCode() == ResponseCode.PULL_NOT_FOUND) {
            return List.of();
        }
        if (answer.getCode() != ResponseCode.SUCCESS) {
            throw new AssertionError("pull of " + queue + " at " + at + ": " + answer.getCode() + " " + answer.getRemark());
        }
        return split(answer.getBody()).stream().map(Wire::decode).toList();
    }

    /** Whether the broker has a handler for the code: it is asked with no field at all. */
    boolean knows(int code) throws Exception {
        return ask(broker, code).getCode() != ResponseCode.REQUEST_CODE_NOT_SUPPORTED;
    }

    /** The records of a queue from an offset to its end, each at the offset that follows the one before. */
    List<byte[]> pull(String topic, int queue, long from) throws Exception {
        List<byte[]> records = new ArrayList<>();
        long end = max(topic, queue);
        long at = from;
        while (at < end) {
            RemotingCommand answer = ask(broker, RequestCode.PULL_MESSAGE, "consumerGroup", GROUP, "topic", topic, "queueId", queue,
                "queueOffset", at, "maxMsgNums", 32, "sysFlag", 4, "commitOffset", 0, "suspendTimeoutMillis", 0,
                "subscription", "*", "subVersion", 0, "expressionType", "TAG");
            if (answer.getCode() != ResponseCode.SUCCESS) {
                throw new AssertionError("pull of " + topic + "/" + queue + " at " + at + " of " + from + ".." + end + ": "
                    + answer.getCode() + " " + answer.getRemark() + " " + answer.getExtFields());
            }
            for (byte[] record : split(answer.getBody())) {
                long offset = ByteBuffer.wrap(record).getLong(20);
                if (offset != at) {
                    throw new AssertionError(topic + "/" + queue + ": record of offset " + offset + " where " + at + " should be");
                }
                records.add(record);
                at++;
            }
        }
        return records;
    }

    /** Registers a group that subscribes the topic by an SQL92 expression. */
    void subscribe(String group, String topic, String expression, long version) throws Exception {
        SubscriptionData subscription = new SubscriptionData(topic, expression);
        subscription.setExpressionType("SQL92");
        subscription.setSubVersion(version);
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName(group);
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.getSubscriptionDataSet().add(subscription);
        HeartbeatData beat = new HeartbeatData();
        beat.setClientID(group + "@wire");
        beat.getConsumerDataSet().add(consumer);
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.HEART_BEAT, null);
        request.setBody(beat.encode());
        RemotingCommand answer = client.invokeSync(broker, request, MILLIS);
        if (answer.getCode() != ResponseCode.SUCCESS) {
            throw new AssertionError("heartbeat: " + answer.getCode() + " " + answer.getRemark());
        }
    }

    /** The offsets of a queue that the broker lets through: by a tag, or, where that is null, by what the group has subscribed. */
    List<Long> filtered(String group, String topic, int queue, long from, String tag) throws Exception {
        List<Long> offsets = new ArrayList<>();
        long end = max(topic, queue);
        for (long at = from; at < end;) {
            List<Object> fields = new ArrayList<>(List.of("consumerGroup", group, "topic", topic, "queueId", queue, "queueOffset", at,
                "maxMsgNums", 32, "sysFlag", tag == null ? 0 : 4, "commitOffset", 0, "suspendTimeoutMillis", 0, "subVersion", 0));
            if (tag != null) {
                fields.addAll(List.of("subscription", tag, "expressionType", "TAG"));
            }
            RemotingCommand answer = ask(broker, RequestCode.PULL_MESSAGE, fields.toArray());
            boolean found = answer.getCode() == ResponseCode.SUCCESS;
            long next = found || answer.getCode() == ResponseCode.PULL_RETRY_IMMEDIATELY ? Long.parseLong(answer.getExtFields().get("nextBeginOffset")) : -1;
            if (next <= at) {
                throw new AssertionError("filtered pull of " + topic + "/" + queue + " at " + at + ": " + answer.getCode() + " " + answer.getRemark());
            }
            if (found) {
                split(answer.getBody()).forEach(record -> offsets.add(ByteBuffer.wrap(record).getLong(20)));
            }
            at = next;
        }
        return offsets;
    }

    /** What ours passed over by bit maps since its start. */
    long passedByBits() throws Exception {
        byte[] body = succeed(RequestCode.GET_BROKER_RUNTIME_INFO).getBody();
        return Long.parseLong(RemotingSerializable.decode(body, KVTable.class).getTable().get("filterBitsExcluded"));
    }

    private static List<byte[]> split(byte[] body) {
        List<byte[]> records = new ArrayList<>();
        ByteBuffer rest = ByteBuffer.wrap(body);
        while (rest.hasRemaining()) {
            byte[] record = new byte[rest.getInt(rest.position())];
            rest.get(record);
            records.add(record);
        }
        return records;
    }

    /** A stored record as a client sees it, its body CRC checked. */
    static MessageExt decode(byte[] record) {
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(record), true, true, false, false, true);
        if (message == null) {
            throw new AssertionError("a record that Apache's decoder refuses");
        }
        return message;
    }

    /** What the key index leads to; {@code kind}: null for a key, U for a unique key, T for a tag. */
    List<MessageExt> query(String topic, String key, String kind) throws Exception {
        List<Object> fields = new ArrayList<>(List.of("topic", topic, "key", key, "maxNum", 64, "beginTimestamp", 0,
            "endTimestamp", Long.MAX_VALUE));
        if (kind != null) {
            fields.addAll(List.of("indexType", kind, "_UNIQUE_KEY_QUERY", kind.equals("U")));
        }
        RemotingCommand answer = ask(broker, RequestCode.QUERY_MESSAGE, fields.toArray());
        if (answer.getCode() == ResponseCode.QUERY_NOT_FOUND) {
            return List.of();
        }
        if (answer.getCode() != ResponseCode.SUCCESS) {
            throw new AssertionError("query of " + topic + " " + key + ": " + answer.getCode() + " " + answer.getRemark());
        }
        return MessageDecoder.decodes(ByteBuffer.wrap(answer.getBody()));
    }

    /** By offset message id, from the broker that the id names. */
    MessageExt view(String topic, String id) throws Exception {
        MessageId parts = MessageDecoder.decodeMessageId(id);
        InetSocketAddress at = (InetSocketAddress) parts.getAddress();
        String address = "[" + at.getAddress().getHostAddress() + "]:" + at.getPort();
        if (at.getAddress() instanceof java.net.Inet4Address) {
            address = at.getAddress().getHostAddress() + ":" + at.getPort();
        }
        RemotingCommand answer = ask(address, RequestCode.VIEW_MESSAGE_BY_ID, "topic", topic, "offset", parts.getOffset());
        if (answer.getCode() != ResponseCode.SUCCESS) {
            throw new AssertionError("view of " + id + ": " + answer.getCode() + " " + answer.getRemark());
        }
        return decode(answer.getBody());
    }

    /** A consumer's "once more, later": the copy goes to the group's retry topic by way of a delay level. */
    void sendBack(String group, MessageExt message, int level) throws Exception {
        succeed(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", message.getCommitLogOffset(), "group", group, "delayLevel", level,
            "originMsgId", message.getMsgId(), "originTopic", message.getTopic(), "unitMode", false, "maxReconsumeTimes", 7);
    }
}
