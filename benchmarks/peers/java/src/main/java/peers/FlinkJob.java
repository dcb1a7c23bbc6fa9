package peers;

import java.nio.charset.StandardCharsets;
import java.util.regex.Pattern;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetWriterFactory;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.filesystem.OutputFileConfig;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.BasePathBucketAssigner;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * The workload in Flink's DataStream API, in a cluster inside this process.
 *
 * <p>KafkaSource up to the ends at the start, keyed by session with the undecoded value (what crosses the network is
 * smallest so), keyed state by row, Parquet through FileSink; exactly-once checkpoints every 5 s and one at the end.
 * Decoding, fold and sink are one chain, so no output row is serialized between them.
 *
 * <p>Arguments: servers, pattern of topics, output folder, state backend (hashmap or rocksdb), parallelism.
 */
public final class FlinkJob {
    private static final TypeInformation<Tuple5<String, Integer, Long, String, byte[]>> INCOMING = Types.TUPLE(
            Types.STRING, Types.INT, Types.LONG, Types.STRING, PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);

    public static void main(String[] args) throws Exception {
        String servers = args[0], pattern = args[1], output = args[2], backend = args[3];
        int parallelism = Integer.parseInt(args[4]);
        StreamExecutionEnvironment flink =
                StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration(output, backend));
        KafkaSource<Tuple5<String, Integer, Long, String, byte[]>> source =
                KafkaSource.<Tuple5<String, Integer, Long, String, byte[]>>builder()
                        .setBootstrapServers(servers)
                        .setTopicPattern(Pattern.compile(pattern))
                        .setGroupId("peer-flink")
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setBounded(OffsetsInitializer.latest())
                        .setProperty("isolation.level", "read_committed")
                        .setDeserializer(new Incoming())
                        .build();
        FileSink<Change> sink = FileSink.forBulkFormat(
                        new Path("file://" + output + "/rows"),
                        new ParquetWriterFactory<Change>(file -> new ChangeParquet.Builder(file).build()))
                .withBucketAssigner(new BasePathBucketAssigner<>())
                .withOutputFileConfig(OutputFileConfig.builder().withPartSuffix(".parquet").build())
                .build();
        flink.fromSource(source, WatermarkStrategy.noWatermarks(), "kafka", INCOMING)
                .keyBy(record -> record.f3, Types.STRING)
                .process(new Fold())
                .returns(TypeInformation.of(Change.class))
                .sinkTo(sink);
        flink.execute();
        System.exit(0);
    }

    private static Configuration configuration(String output, String backend) {
        Configuration found = new Configuration();
        found.setString("execution.checkpointing.interval", "5 s");
        found.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        found.setString("execution.checkpointing.dir", "file://" + output + "/checkpoints");
        found.setString("state.backend.type", backend);
        found.setString("execution.checkpointing.incremental", "true");
        found.setString("state.backend.rocksdb.localdir", output + "/rocksdb");
        found.setString("io.tmp.dirs", output + "/tmp");
        found.setString("pipeline.object-reuse", "true");
        found.setString("taskmanager.memory.managed.size", "512 mb");
        found.setString("taskmanager.memory.network.min", "128 mb");
        found.setString("taskmanager.memory.network.max", "128 mb");
        found.setString("rest.bind-address", "127.0.0.1");
        found.setString("rest.bind-port", "0");
        return found;
    }

    /** What crosses the network: place, session and the undecoded value. */
    private static final class Incoming
            implements KafkaRecordDeserializationSchema<Tuple5<String, Integer, Long, String, byte[]>> {
        @Override
        public void deserialize(
                ConsumerRecord<byte[], byte[]> record, Collector<Tuple5<String, Integer, Long, String, byte[]>> out) {
            String session = new String(record.key(), StandardCharsets.ISO_8859_1);
            out.collect(Tuple5.of(record.topic(), record.partition(), record.offset(), session, record.value()));
        }

        @Override
        public TypeInformation<Tuple5<String, Integer, Long, String, byte[]>> getProducedType() {
            return INCOMING;
        }
    }

    /** One output row for each changed row; state is a map of rows for each session. */
    private static final class Fold
            extends KeyedProcessFunction<String, Tuple5<String, Integer, Long, String, byte[]>, Change> {
        private transient MapState<Long, Values> rows;

        @Override
        public void open(org.apache.flink.api.common.functions.OpenContext context) {
            rows = getRuntimeContext()
                    .getMapState(new MapStateDescriptor<>("rows", LongSerializer.INSTANCE, ValuesSerializer.INSTANCE));
        }

        @Override
        public void processElement(
                Tuple5<String, Integer, Long, String, byte[]> record, Context context, Collector<Change> out)
                throws Exception {
            Message message = Message.parse(record.f4);
            if (message.snapshot) {
                rows.clear();
                for (RowChange row : message.rows) {
                    rows.put(row.id, row.whole());
                }
                return;
            }
            int number = 0;
            for (RowChange change : message.rows) {
                Values previous = rows.get(change.id);
                Values now = change.over(previous);
                rows.put(change.id, now);
                out.collect(new Change(
                        change.id, now, previous, record.f0, record.f1, record.f2, number++,
                        message.session, message.sequence, message.eventTime));
            }
        }
    }
}
