package peers;

import java.io.IOException;
import org.apache.flink.api.common.typeutils.SimpleTypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.TypeSerializerSingleton;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** Flink's serializer of {@link Values}: plain columns, no reflection; what is immutable needs no copy. */
public final class ValuesSerializer extends TypeSerializerSingleton<Values> {
    static final ValuesSerializer INSTANCE = new ValuesSerializer();

    @Override
    public boolean isImmutableType() {
        return true;
    }

    @Override
    public Values createInstance() {
        return new Values("", "", 0, 0, 0, 0, 0, false);
    }

    @Override
    public Values copy(Values from) {
        return from;
    }

    @Override
    public Values copy(Values from, Values reuse) {
        return from;
    }

    @Override
    public int getLength() {
        return -1;
    }

    @Override
    public void serialize(Values values, DataOutputView target) throws IOException {
        values.write(target);
    }

    @Override
    public Values deserialize(DataInputView source) throws IOException {
        return Values.read(source);
    }

    @Override
    public Values deserialize(Values reuse, DataInputView source) throws IOException {
        return deserialize(source);
    }

    @Override
    public void copy(DataInputView source, DataOutputView target) throws IOException {
        serialize(deserialize(source), target);
    }

    @Override
    public TypeSerializerSnapshot<Values> snapshotConfiguration() {
        return new Snapshot();
    }

    /** Written with every checkpoint. */
    public static final class Snapshot extends SimpleTypeSerializerSnapshot<Values> {
        public Snapshot() {
            super(() -> INSTANCE);
        }
    }
}
