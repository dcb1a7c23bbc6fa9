package peers;

/** An output row: one changed row before and after, and where it comes from. */
public record Change(
        long id, Values now, Values previous,
        String topic, int partition, long offset, int row, String session, long sequence, long eventTime) {}
