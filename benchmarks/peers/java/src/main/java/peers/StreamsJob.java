package peers;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicReference;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The workload in Kafka Streams' processor API with processing.guarantee=exactly_once_v2, from topics to a topic.
 *
 * <p>Each input topic is a subtopology of its own, as one source over a pattern would make one task of all topics.
 * State is one entry a row (an update writes one row to the changelog, not the session), in memory, with a cache, so
 * that the changelog gets each row once a commit. A commit every 5 s. Output rows are MessagePack arrays.
 *
 * <p>Arguments: servers, pattern of topics, state folder, application id, output topic, threads.
 */
public final class StreamsJob {
    public static void main(String[] args) throws Exception {
        String servers = args[0], application = args[3], output = args[4];
        Properties settings = settings(servers, args[2], application, args[5]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            Map<TopicPartition, Long> ends = ends(admin, Pattern.compile(args[1]));
            AtomicReference<Throwable> failure = new AtomicReference<>();
            KafkaStreams streams = new KafkaStreams(topology(ends.keySet(), output), settings);
            streams.setUncaughtExceptionHandler(problem -> {
                failure.set(problem);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            while (!isCommitted(admin, application, ends)) {
                if (failure.get() != null) {
                    throw new IllegalStateException(failure.get());
                }
                Thread.sleep(250);
            }
            streams.close(Duration.ofSeconds(60));
        }
        System.exit(0);
    }

    private static Properties settings(String servers, String folder, String application, String threads) {
        Properties found = new Properties();
        found.put("bootstrap.servers", servers);
        found.put("application.id", application);
        found.put("processing.guarantee", "exactly_once_v2");
        found.put("commit.interval.ms", "5000");
        found.put("num.stream.threads", threads);
        found.put("replication.factor", "1");
        found.put("state.dir", folder);
        found.put("statestore.cache.max.bytes", Integer.toString(128 << 20));
        found.put("consumer.auto.offset.reset", "earliest");
        found.put("consumer.max.poll.records", "5000");
        found.put("producer.batch.size", Integer.toString(256 << 10));
        found.put("producer.buffer.memory", Integer.toString(64 << 20));
        return found;
    }

    private static Map<TopicPartition, Long> ends(Admin admin, Pattern pattern) throws Exception {
        Set<String> topics = new TreeSet<>();
        for (String name : admin.listTopics().names().get()) {
            if (pattern.matcher(name).matches()) {
                topics.add(name);
            }
        }
        List<TopicPartition> places = new ArrayList<>();
        admin.describeTopics(topics).allTopicNames().get().forEach((name, topic) ->
                topic.partitions().forEach(each -> places.add(new TopicPartition(name, each.partition()))));
        Map<TopicPartition, OffsetSpec> asked =
                places.stream().collect(Collectors.toMap(place -> place, place -> OffsetSpec.latest()));
        return admin.listOffsets(asked).all().get().entrySet().stream()
                .collect(Collectors.toMap(Map.Entry::getKey, each -> each.getValue().offset()));
    }

    /** Offsets are part of the transactions: once they are at the ends, all rows are committed. */
    private static boolean isCommitted(Admin admin, String group, Map<TopicPartition, Long> ends) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> found =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        return ends.entrySet().stream().allMatch(end ->
                found.get(end.getKey()) != null && found.get(end.getKey()).offset() >= end.getValue());
    }

    private static Topology topology(Set<TopicPartition> places, String output) {
        Topology made = new Topology();
        for (String topic : places.stream().map(TopicPartition::topic).collect(Collectors.toCollection(TreeSet::new))) {
            String rows = "rows-" + topic;
            made.addSource("source-" + topic, new ByteArrayDeserializer(), new ByteArrayDeserializer(), topic);
            made.addProcessor("fold-" + topic, () -> new Fold(rows), "source-" + topic);
            made.addStateStore(
                    Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(rows), Serdes.Bytes(), serde())
                            .withCachingEnabled(),
                    "fold-" + topic);
            made.addSink("sink-" + topic, output, new ByteArraySerializer(), new ByteArraySerializer(), "fold-" + topic);
        }
        return made;
    }

    private static Serde<Values> serde() {
        return Serdes.serdeFrom((topic, values) -> values == null ? null : write(values), (topic, bytes) -> read(bytes));
    }

    private static byte[] write(Values values) {
        ByteArrayOutputStream out = new ByteArrayOutputStream(96);
        try {
            values.write(new DataOutputStream(out));
        } catch (IOException impossible) {
            throw new UncheckedIOException(impossible);
        }
        return out.toByteArray();
    }

    private static Values read(byte[] bytes) {
        try {
            return bytes == null ? null : Values.read(new DataInputStream(new ByteArrayInputStream(bytes)));
        } catch (IOException impossible) {
            throw new UncheckedIOException(impossible);
        }
    }

    /** One output record for each changed row; state is one entry a row, by session and id. */
    private static final class Fold implements Processor<byte[], byte[], byte[], byte[]> {
        private final String storeName;
        private final RowEncoder encoder = new RowEncoder();
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<Bytes, Values> store;

        Fold(String storeName) {
            this.storeName = storeName;
        }

        @Override
        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            store = given.getStateStore(storeName);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            try {
                Message message = Message.parse(record.value());
                byte[] session = message.session.getBytes(StandardCharsets.UTF_8);
                if (message.snapshot) {
                    replace(session, message);
                } else {
                    update(session, message, record);
                }
            } catch (IOException broken) {
                throw new UncheckedIOException(broken);
            }
        }

        private void replace(byte[] session, Message snapshot) {
            List<Bytes> old = new ArrayList<>();
            try (KeyValueIterator<Bytes, Values> found =
                    store.range(key(session, 0), key(session, Long.MAX_VALUE))) {
                found.forEachRemaining((KeyValue<Bytes, Values> each) -> old.add(each.key));
            }
            old.forEach(store::delete);
            for (RowChange row : snapshot.rows) {
                store.put(key(session, row.id), row.whole());
            }
        }

        private void update(byte[] session, Message message, Record<byte[], byte[]> record) {
            RecordMetadata place = context.recordMetadata().orElseThrow();
            int number = 0;
            for (RowChange change : message.rows) {
                Bytes key = key(session, change.id);
                Values previous = store.get(key);
                Values now = change.over(previous);
                store.put(key, now);
                Change row = new Change(
                        change.id, now, previous, place.topic(), place.partition(), place.offset(), number++,
                        message.session, message.sequence, message.eventTime);
                context.forward(new Record<>(record.key(), encoder.encode(row), record.timestamp()));
            }
        }

        private static Bytes key(byte[] session, long id) {
            ByteBuffer made = ByteBuffer.allocate(session.length + 9);
            return Bytes.wrap(made.put(session).put((byte) 0).putLong(id).array());
        }
    }
}
