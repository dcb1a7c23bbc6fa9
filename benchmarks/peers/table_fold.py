"""The fold of the peers in Python: rows of a session by id, as a job of one's own would have it.

Without pyarrow and Kafka's client, as peers have environments of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple

from benchmarks.messages import Change, Message, RowChange, Snapshot, Update

Values = tuple[str, str, float, float, float, float, int, bool]
Table = dict[int, Values]

CHANGE_COLUMNS = tuple(field.name for field in msgspec.structs.fields(Change))
"""What `fold_update` yields: the columns of an output row without its origin."""

ORIGIN_COLUMNS = (
    *("_topic", "_topic_id", "_partition", "_offset", "_emit_offset", "_row"),
    *("_session", "_sequence", "_event_time"),
)
"""The other columns of an output row."""

# The functions of a codec rather than itself: PySpark pickles what a job's functions refer to.
_decode: Callable[[bytes], Message] = msgspec.json.Decoder(Message).decode
_encode_msgpack = msgspec.msgpack.Encoder().encode
_decode_table: Callable[[bytes], Table] = msgspec.msgpack.Decoder(Table).decode


def decode_message(value: bytes) -> Message:
    """The message of a record's value."""
    return _decode(value)


def encode_table(table: Table) -> bytes:
    """A whole table as a state store keeps it; `decode_table` reads it."""
    return _encode_msgpack(table)


def decode_table(encoded: bytes) -> Table:
    """The table of `encode_table`."""
    return _decode_table(encoded)


def read_snapshot(snapshot: Snapshot) -> Table:
    """All rows of a snapshot."""
    return {row.id: astuple(row)[1:] for row in snapshot.rows}


def fold_update(table: Table, update: Update) -> Iterator[tuple[object, ...]]:
    """Change the rows of an update; yields CHANGE_COLUMNS of each."""
    for change in update.rows:
        previous = table[change.id]
        table[change.id] = new = apply_change(change, previous)
        yield (change.id, *new, *previous)


def apply_change(change: RowChange, previous: Values) -> Values:
    """A row after a change."""
    _, status, name, v0, v1, v2, v3, q, flag = astuple(change)
    old_status, old_name, old_v0, old_v1, old_v2, old_v3, old_q, old_flag = previous
    return (
        old_status if status is UNSET else status,
        old_name if name is UNSET else name,
        old_v0 if v0 is UNSET else v0,
        old_v1 if v1 is UNSET else v1,
        old_v2 if v2 is UNSET else v2,
        old_v3 if v3 is UNSET else v3,
        old_q if q is UNSET else q,
        old_flag if flag is UNSET else flag,
    )
