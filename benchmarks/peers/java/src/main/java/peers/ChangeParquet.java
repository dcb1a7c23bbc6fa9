package peers;

import static org.apache.parquet.schema.LogicalTypeAnnotation.stringType;
import static org.apache.parquet.schema.LogicalTypeAnnotation.timestampType;
import static org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName.BINARY;
import static org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName.BOOLEAN;
import static org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName.DOUBLE;
import static org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName.INT32;
import static org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName.INT64;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.api.WriteSupport;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.io.api.RecordConsumer;
import org.apache.parquet.schema.LogicalTypeAnnotation.TimeUnit;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.Types;

/** Output rows as Parquet, with the columns and the settings of the bare loop: zstd level 1, texts by dictionary. */
final class ChangeParquet extends WriteSupport<Change> {
    private static final MessageType SCHEMA = schema();
    private static final int TEXTS_MAX = 100_000;

    private final Map<String, Binary> texts = new HashMap<>();
    private RecordConsumer out;
    private int column;

    static final class Builder extends ParquetWriter.Builder<Change, Builder> {
        Builder(OutputFile file) {
            super(file);
            Configuration conf = new Configuration(false);
            conf.setInt("parquet.compression.codec.zstd.level", 1);
            withConf(conf).withCompressionCodec(CompressionCodecName.ZSTD).withPageWriteChecksumEnabled(false);
            withDictionaryEncoding(false);
            for (String text : List.of("status", "name", "previous_status", "previous_name", "_topic", "_topic_id",
                    "_session")) {
                withDictionaryEncoding(text, true);
            }
        }

        @Override
        protected Builder self() {
            return this;
        }

        @Override
        protected WriteSupport<Change> getWriteSupport(Configuration conf) {
            return new ChangeParquet();
        }
    }

    private static MessageType schema() {
        Types.GroupBuilder<MessageType> made = Types.buildMessage().required(INT64).named("id");
        for (String when : List.of("", "previous_")) {
            made = made.required(BINARY).as(stringType()).named(when + "status");
            made = made.required(BINARY).as(stringType()).named(when + "name");
            for (String reading : List.of("v0", "v1", "v2", "v3")) {
                made = made.required(DOUBLE).named(when + reading);
            }
            made = made.required(INT64).named(when + "q").required(BOOLEAN).named(when + "flag");
        }
        return made.required(BINARY).as(stringType()).named("_topic")
                .required(BINARY).as(stringType()).named("_topic_id")
                .required(INT32).named("_partition")
                .required(INT64).named("_offset")
                .required(INT64).named("_emit_offset")
                .required(INT32).named("_row")
                .required(BINARY).as(stringType()).named("_session")
                .required(INT64).named("_sequence")
                .required(INT64).as(timestampType(true, TimeUnit.MICROS)).named("_event_time")
                .named("change");
    }

    @Override
    public WriteContext init(Configuration conf) {
        return new WriteContext(SCHEMA, Map.of());
    }

    @Override
    public void prepareForWrite(RecordConsumer consumer) {
        out = consumer;
    }

    @Override
    public void write(Change change) {
        out.startMessage();
        column = 0;
        add(change.id());
        add(change.now());
        add(change.previous());
        add(change.topic());
        add(change.topic());
        add(change.partition());
        add(change.offset());
        add(change.offset());
        add(change.row());
        add(change.session());
        add(change.sequence());
        add(change.eventTime());
        out.endMessage();
    }

    private void add(Values values) {
        add(values.status());
        add(values.name());
        add(values.v0());
        add(values.v1());
        add(values.v2());
        add(values.v3());
        add(values.q());
        start();
        out.addBoolean(values.flag());
        end();
    }

    private void add(String text) {
        if (texts.size() > TEXTS_MAX) {
            texts.clear();
        }
        start();
        out.addBinary(texts.computeIfAbsent(text, Binary::fromString));
        end();
    }

    private void add(double value) {
        start();
        out.addDouble(value);
        end();
    }

    private void add(long value) {
        start();
        out.addLong(value);
        end();
    }

    private void add(int value) {
        start();
        out.addInteger(value);
        end();
    }

    private void start() {
        out.startField(SCHEMA.getFieldName(column), column);
    }

    private void end() {
        out.endField(SCHEMA.getFieldName(column), column);
        column++;
    }
}
