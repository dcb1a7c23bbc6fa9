package peers;

/** A row of a message: all columns in a snapshot, the changed ones in an update. */
final class RowChange {
    static final int STATUS = 1, NAME = 2, V0 = 4, V1 = 8, V2 = 16, V3 = 32, Q = 64, FLAG = 128, ALL = 255;

    long id;
    int given;
    String status, name;
    double v0, v1, v2, v3;
    long q;
    boolean flag;

    /** The row of a snapshot, which gives every column. */
    Values whole() {
        if (given != ALL) {
            throw new IllegalArgumentException("row " + id + " of a snapshot lacks columns");
        }
        return new Values(status, name, v0, v1, v2, v3, q, flag);
    }

    /** The row after this change. */
    Values over(Values old) {
        return new Values(
                (given & STATUS) != 0 ? status : old.status(),
                (given & NAME) != 0 ? name : old.name(),
                (given & V0) != 0 ? v0 : old.v0(),
                (given & V1) != 0 ? v1 : old.v1(),
                (given & V2) != 0 ? v2 : old.v2(),
                (given & V3) != 0 ? v3 : old.v3(),
                (given & Q) != 0 ? q : old.q(),
                (given & FLAG) != 0 ? flag : old.flag());
    }
}
