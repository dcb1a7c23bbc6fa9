"""Output of MirrorMaker 2 in a mirrored cluster: the names of topics, and checkpoints in Kafka's binary form.

A checkpoint translates an offset of a consumer group. It is a lower bound: from its downstream offset on, it has all
messages from its upstream offset on, and possibly some before them (`OffsetSyncStore.translateDownstream` in Kafka).
"""

from __future__ import annotations

import struct

import msgspec

from lockstep.errors import KafkaError

_LENGTH = struct.Struct(">h")
_PARTITION = struct.Struct(">i")
_VALUE = struct.Struct(">hqq")
VERSION = 0


class OffsetSyncCheckpoint(msgspec.Struct, frozen=True):
    """A translated offset of a consumer group.

    Attributes:
        group: The group.
        topic: Name of the topic in the mirrored cluster.
        partition: Partition number.
        upstream: Offset in the source cluster.
        downstream: Offset in the mirrored cluster: the messages from `upstream` on start here at the earliest.
    """

    group: str
    topic: str
    partition: int
    upstream: int
    downstream: int


def name_checkpoints_topic(source: str) -> str:
    """The topic of checkpoints for a source cluster, by its alias."""
    return f"{source}.checkpoints.internal"


def list_remote_names(source: str, topic: str) -> tuple[str, str]:
    """The names that a mirrored topic may have: by the default policy, and by the one that keeps names."""
    return f"{source}.{topic}", topic


def decode_checkpoint(key: bytes, value: bytes) -> OffsetSyncCheckpoint:
    """Decode a record of the checkpoint topic.

    Raises:
        KafkaError: It has another form, such as that of a later release of MirrorMaker.
    """
    try:
        group, place = _read_string(key, 0)
        topic, place = _read_string(key, place)
        (partition,) = _PARTITION.unpack_from(key, place)
        version, upstream, downstream = _VALUE.unpack_from(value)
    except (struct.error, UnicodeDecodeError) as error:
        raise _unknown(str(error)) from error
    if version != VERSION:
        raise _unknown(f"version {version}")
    return OffsetSyncCheckpoint(group, topic, partition, upstream, downstream)


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    end = at + _LENGTH.size + length
    if not 0 <= length <= len(data) - at - _LENGTH.size:
        raise _unknown(f"a name of {length} bytes")
    return data[at + _LENGTH.size : end].decode(), end


def _unknown(what: str) -> KafkaError:
    step = "use a release of lockstep that knows this MirrorMaker"
    return KafkaError(f"a record of the checkpoint topic is not as MirrorMaker 2 writes them: {what}", next_step=step)
