package peers;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** An output row as a MessagePack array, in the order of the columns of the Parquet files. One thread's own. */
final class RowEncoder {
    private static final int COLUMNS = 26;
    private final ByteBuffer out = ByteBuffer.allocate(8 << 10);

    byte[] encode(Change change) {
        out.clear();
        out.put((byte) 0xdc).putShort((short) COLUMNS);
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
        return Arrays.copyOf(out.array(), out.position());
    }

    private void add(Values values) {
        add(values.status());
        add(values.name());
        add(values.v0());
        add(values.v1());
        add(values.v2());
        add(values.v3());
        add(values.q());
        out.put((byte) (values.flag() ? 0xc3 : 0xc2));
    }

    private void add(String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        out.put((byte) 0xda).putShort((short) bytes.length).put(bytes);
    }

    private void add(double value) {
        out.put((byte) 0xcb).putDouble(value);
    }

    private void add(long value) {
        out.put((byte) 0xd3).putLong(value);
    }
}
