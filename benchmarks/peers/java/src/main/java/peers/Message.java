package peers;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadFeature;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** A message of the workload, read by Jackson's streaming parser: no tree, no reflection. */
final class Message {
    private static final JsonFactory JSON =
            JsonFactory.builder().enable(StreamReadFeature.USE_FAST_DOUBLE_PARSER).build();

    boolean snapshot;
    String session;
    long sequence;
    long eventTime;
    final List<RowChange> rows = new ArrayList<>(1);

    static Message parse(byte[] value) throws IOException {
        Message message = new Message();
        try (JsonParser json = JSON.createParser(value)) {
            json.nextToken();
            for (String field = json.nextFieldName(); field != null; field = json.nextFieldName()) {
                switch (field) {
                    case "type" -> message.snapshot = message.isSnapshot(json.nextTextValue());
                    case "session" -> message.session = json.nextTextValue();
                    case "seq" -> message.sequence = json.nextLongValue(-1);
                    case "ts" -> message.eventTime = json.nextLongValue(-1);
                    case "rows" -> message.parseRows(json);
                    default -> {
                        json.nextToken();
                        json.skipChildren();
                    }
                }
            }
        }
        return message;
    }

    private boolean isSnapshot(String type) {
        return switch (type) {
            case "snapshot" -> true;
            case "update" -> false;
            default -> throw new IllegalArgumentException("type " + type + " is neither snapshot nor update");
        };
    }

    private void parseRows(JsonParser json) throws IOException {
        json.nextToken();
        while (json.nextToken() == JsonToken.START_OBJECT) {
            rows.add(parseRow(json));
        }
    }

    private static RowChange parseRow(JsonParser json) throws IOException {
        RowChange row = new RowChange();
        for (String field = json.nextFieldName(); field != null; field = json.nextFieldName()) {
            json.nextToken();
            switch (field) {
                case "id" -> row.id = json.getLongValue();
                case "status" -> { row.status = json.getText(); row.given |= RowChange.STATUS; }
                case "name" -> { row.name = json.getText(); row.given |= RowChange.NAME; }
                case "v0" -> { row.v0 = json.getDoubleValue(); row.given |= RowChange.V0; }
                case "v1" -> { row.v1 = json.getDoubleValue(); row.given |= RowChange.V1; }
                case "v2" -> { row.v2 = json.getDoubleValue(); row.given |= RowChange.V2; }
                case "v3" -> { row.v3 = json.getDoubleValue(); row.given |= RowChange.V3; }
                case "q" -> { row.q = json.getLongValue(); row.given |= RowChange.Q; }
                case "flag" -> { row.flag = json.getBooleanValue(); row.given |= RowChange.FLAG; }
                default -> json.skipChildren();
            }
        }
        return row;
    }
}
