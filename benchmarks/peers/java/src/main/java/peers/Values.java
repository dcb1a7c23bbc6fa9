package peers;

import java.io.DataInput;
import java.io.DataOutput;
import java.io.IOException;

/** The columns of a row without its id. Immutable, so that state, output and snapshots of state may share it. */
public record Values(
        String status, String name, double v0, double v1, double v2, double v3, long q, boolean flag) {

    /** Write all columns in order. */
    public void write(DataOutput out) throws IOException {
        out.writeUTF(status);
        out.writeUTF(name);
        out.writeDouble(v0);
        out.writeDouble(v1);
        out.writeDouble(v2);
        out.writeDouble(v3);
        out.writeLong(q);
        out.writeBoolean(flag);
    }

    /** Read what {@link #write} wrote. */
    public static Values read(DataInput in) throws IOException {
        return new Values(
                in.readUTF(), in.readUTF(), in.readDouble(), in.readDouble(), in.readDouble(), in.readDouble(),
                in.readLong(), in.readBoolean());
    }
}
