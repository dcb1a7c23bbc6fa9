"""One process of the peer in Quix Streams: processing guarantee exactly-once, a checkpoint every 5 s.

State is one entry a row, so that an update reads and writes one row and the changelog gets each row once a checkpoint;
and one entry a session with the ids of its rows, without which a snapshot could not remove rows. It is in RocksDB,
with a changelog topic, from which it is recovered. Output rows are MessagePack arrays of the columns of the bare loop.
Each process has a share of the topics and a consumer group of its own: the library assigns partitions of equal number
together, which would give all topics of one partition to one process.

python -m benchmarks.peers.quix_worker SERVERS APPLICATION NUMBER STATE_FOLDER ENDS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import msgspec
from confluent_kafka import Consumer, TopicPartition
from quixstreams import Application, State, message_context

from benchmarks.messages import Snapshot
from benchmarks.peers.table_fold import Values, apply_change, decode_message, read_snapshot

CHECKPOINT_SECONDS = 5.0
TIMEOUT_S = 60.0

_encode = msgspec.msgpack.Encoder().encode
_decode_values: Callable[[bytes], Values] = msgspec.msgpack.Decoder(Values).decode
_decode_ids: Callable[[bytes], list[int]] = msgspec.msgpack.Decoder(list[int]).decode

_IDS = "ids"


def main() -> None:
    """Run one share of the topics up to their ends."""
    servers, application, number, folder, ends = sys.argv[1:]
    run(servers, application, f"{application}-{number}", folder, json.loads(ends))


def run(servers: str, application: str, group: str, folder: str, ends: dict[str, list[int]]) -> None:
    """Fold some topics to their ends; started again with the same group, from its committed offsets."""
    left = find_last_offsets(servers, group, ends)
    if not left:
        return

    def stop_at_the_ends(topic: str, partition: int, offset: int) -> None:
        if offset == left.get((topic, partition)):
            del left[topic, partition]
            if not left:
                app.stop()

    app = Application(
        broker_address=servers,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=CHECKPOINT_SECONDS,
        state_dir=folder,
        consumer_extra_config={"isolation.level": "read_committed", "fetch.wait.max.ms": 10},
        producer_extra_config={"linger.ms": 50, "batch.size": 256 << 10},
        on_message_processed=stop_at_the_ends,
        loglevel="WARNING",
    )
    rows = app.topic(f"{application}-rows", value_serializer="bytes")
    for topic in ends:
        source = app.dataframe(app.topic(topic, value_deserializer="bytes"))
        source.apply(fold, stateful=True, expand=True).to_topic(rows)
    app.run()


def find_last_offsets(servers: str, group: str, ends: dict[str, list[int]]) -> dict[tuple[str, int], int]:
    """The last offset of each partition that the group has not read to its end."""
    places = {(topic, number): end for topic, each in ends.items() for number, end in enumerate(each) if end}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    committed = consumer.committed([TopicPartition(*place) for place in places], timeout=TIMEOUT_S)
    consumer.close()
    read = {(each.topic, each.partition): each.offset for each in committed}
    return {place: end - 1 for place, end in places.items() if read[place] < end}


def fold(value: bytes, state: State) -> list[bytes]:
    """Fold one message into the rows of its session; returns the output rows."""
    message = decode_message(value)
    if isinstance(message, Snapshot):
        replace_rows(message, state)
        return []
    origin = message_context()
    topic, partition, offset = origin.topic, origin.partition, origin.offset
    rows = []
    for number, change in enumerate(message.rows):
        encoded = state.get_bytes(change.id)
        if encoded is None:
            raise LookupError(f"{message.session} has no row {change.id}")
        previous = _decode_values(encoded)
        new = apply_change(change, previous)
        state.set_bytes(change.id, _encode(new))
        place = (topic, topic, partition, offset, offset, number)
        rows.append(_encode((change.id, *new, *previous, *place, message.session, message.seq, message.ts)))
    return rows


def replace_rows(snapshot: Snapshot, state: State) -> None:
    """Set all rows of a session."""
    table = read_snapshot(snapshot)
    for old in _decode_ids(state.get_bytes(_IDS, _encode([]))):
        if old not in table:
            state.delete(old)
    for key, values in table.items():
        state.set_bytes(key, _encode(values))
    state.set_bytes(_IDS, _encode(list(table)))


if __name__ == "__main__":
    main()
