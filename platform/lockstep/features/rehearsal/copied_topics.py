"""Topics of a load test: the present load of the real ones, samples of their messages, copies that it creates."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import cast

import msgspec
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.run import require_registry
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.engine.executor.message_source import KafkaSource
from lockstep.errors import KafkaError
from lockstep.features.rehearsal.load_plan import (
    SLICE_SECONDS,
    SLICES,
    PresentLoad,
    find_busiest,
    refuse_load_test,
)
from lockstep.features.rehearsal.message_copy import CopiedMessage, WholeSessions, keep_whole_sessions
from lockstep.kafka.admin import ClusterAdmin, ClusterView, PartitionOffsets
from lockstep.kafka.client import ClusterClient, make_reader_configuration
from lockstep.kafka.reader import MessageRun, Range
from lockstep.model.position import TopicIdPartition, TopicNamePartition
from lockstep.model.record import KafkaMessage, read_headers
from lockstep.operations.plan_frame import Refused
from lockstep.operations.stream_handle import StreamHandle
from lockstep.time_limit import SLOW, describe_silence

PREFIX = "lockstep.loadtest"
"""Topics of load tests start with it, and the stream's name."""
SAMPLE_MESSAGES = 100_000
SAMPLE_BYTES = 64_000_000
"""Of all partitions together; the producer keeps them in memory."""
TOPIC_NAME_MAX = 249
"""Kafka's limit."""
BATCH_BYTES_MAX = 1_048_588
"""Kafka's default limit of a batch (`max.message.bytes`)."""
GONE_SECONDS_MAX = 60.0
POLL_SECONDS = 0.2


class PartitionSample(msgspec.Struct, frozen=True):
    """Messages of one partition to send again.

    Attributes:
        topic: The real topic.
        partition: Partition number.
        share: Share of the load.
        messages: Whole sessions, in order.
    """

    topic: str
    partition: int
    share: float
    messages: tuple[CopiedMessage, ...]

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return sum(message.size for message in self.messages)


class LeftOut(msgspec.Struct, frozen=True):
    """A partition that could not be copied.

    Attributes:
        topic: Its topic.
        partition: Partition number.
        share: Its share of the load, which the other partitions take.
        why: The reason.
    """

    topic: str
    partition: int
    share: float
    why: str


class Sampled(msgspec.Struct, frozen=True):
    """Samples of a stream's topics.

    Attributes:
        samples: Those that can be sent; their shares add up to one.
        left_out: Partitions with a load that have none.
        skipped: Messages read and left out: of sessions without beginning, undecodable, or behind a fault.
    """

    samples: tuple[PartitionSample, ...]
    left_out: tuple[LeftOut, ...]
    skipped: int


def read_present_load(cluster: ClusterAdmin, view: ClusterView, topics: Collection[str]) -> PresentLoad:
    """The load of the busiest minute of the last half hour, by Kafka's timestamps.

    Args:
        cluster: The cluster.
        view: Its topics and offsets.
        topics: Names of the topics.

    Raises:
        KafkaError: The cluster did not answer.
    """
    ends = {place: offsets.high_watermark for place, offsets in _list_offsets(view, topics)}
    now_ms = time.time_ns() // 1_000_000
    borders = [dict(ends)]
    for back in range(1, SLICES + 1):
        offsets = cluster.find_offsets_at(ends, now_ms - back * SLICE_SECONDS * 1_000)
        # No message since then: the border is the end.
        borders.append({place: offsets.get(place, end) for place, end in ends.items()})
    counts: dict[TopicNamePartition, list[int]] = {}
    for place in ends:
        # At least 0: messages may have timestamps of their producers, in any order.
        counts[place] = [max(0, after[place] - before[place]) for after, before in pairwise(borders)]
    return find_busiest(counts, SLICE_SECONDS)


def _list_offsets(view: ClusterView, topics: Collection[str]) -> Iterator[tuple[TopicNamePartition, PartitionOffsets]]:
    """The offsets of each partition of some topics that has a leader."""
    for topic in view.topics.values():
        if topic.name not in topics:
            continue
        for number in range(topic.partitions):
            ends = view.ends.get(TopicIdPartition(topic.topic_id, number))
            if ends is not None:
                yield TopicNamePartition(topic.name, number), ends


def share_load(present: PresentLoad, view: ClusterView, topics: Collection[str]) -> dict[TopicNamePartition, float]:
    """The share of each partition: of the present load, or of all messages in Kafka without any load."""
    weights = present.partitions
    if not weights:
        sizes = {place: float(ends.stable_end - ends.start) for place, ends in _list_offsets(view, topics)}
        weights = {place: size for place, size in sizes.items() if size > 0}
    total = sum(weights.values())
    return {place: weight / total for place, weight in weights.items()}


def take_samples(handle: StreamHandle, shares: Mapping[TopicNamePartition, float]) -> Sampled:
    """Read the newest messages of each partition; if no session starts there, its oldest.

    Args:
        handle: The stream.
        shares: Share of each partition.

    Raises:
        Refused: No partition has a whole session.
        KafkaError: The cluster did not answer.
    """
    stream = handle.stream
    # Half by load, half alike: a quiet partition has sessions as well.
    wanted = {
        place: max(200, round(SAMPLE_MESSAGES * (share + 1 / len(shares)) / 2)) for place, share in shares.items()
    }
    parts = _read_whole(handle, {place: _newest(handle.view, place, count) for place, count in wanted.items()})
    empty = {place: wanted[place] for place, part in parts.items() if not part.whole.messages}
    parts |= _read_whole(handle, {place: _oldest(handle.view, place, count) for place, count in empty.items()})
    copied = sum(shares[place] for place, part in parts.items() if part.whole.messages)
    if not copied:
        raise _refuse_empty(stream.name, [part for part in parts.values() if part.unread_bytes])
    samples: list[PartitionSample] = []
    left_out: list[LeftOut] = []
    for place, part in sorted(parts.items()):
        if part.whole.messages:
            samples.append(PartitionSample(*place, shares[place] / copied, part.whole.messages))
        else:
            left_out.append(LeftOut(*place, shares[place], _explain_left_out(part)))
    return Sampled(
        samples=tuple(samples),
        left_out=tuple(left_out),
        skipped=sum(part.whole.left_out for part in parts.values()),
    )


def _refuse_empty(stream: str, cut: Sequence[_ReadPart]) -> Refused:
    """The error of topics without any whole session; `cut` are the partitions that were not read to their ends."""
    if cut:
        most = max(cut, key=lambda read: read.unread_bytes)
        step = f"--topics with fewer topics: all partitions share the {SAMPLE_BYTES / 1e6:g} MB of a sample"
        return refuse_load_test(stream, _explain_left_out(most), step)
    problem = "no session starts in the messages that Kafka has, so that none can be sent again"
    return refuse_load_test(stream, problem, f"lockstep try {stream} shows their faults")


def _explain_left_out(read: _ReadPart) -> str:
    if not read.unread_bytes:
        return "no session starts in its newest or its oldest messages"
    room = f"{read.room_bytes / 1e6:.1f} MB"
    message = f"{read.unread_bytes / 1e6:.1f} MB"
    return f"no session starts in its share of the sample, {room}, which ends before a message of {message}"


def _newest(view: ClusterView, place: TopicNamePartition, count: int) -> Range:
    ends = view.ends[TopicIdPartition(view.topics[place.topic].topic_id, place.partition)]
    return Range(*place, max(ends.start, ends.stable_end - count), ends.stable_end)


def _oldest(view: ClusterView, place: TopicNamePartition, count: int) -> Range:
    ends = view.ends[TopicIdPartition(view.topics[place.topic].topic_id, place.partition)]
    return Range(*place, ends.start, min(ends.stable_end, ends.start + count))


class _ReadPart(msgspec.Struct, frozen=True):
    """The messages that were read of one partition.

    Attributes:
        whole: Its whole sessions.
        room_bytes: Bytes that it may have in the sample.
        unread_bytes: Size of the first message without room; 0 if the range was read to its end.
    """

    whole: WholeSessions
    room_bytes: int
    unread_bytes: int


def _read_whole(
    handle: StreamHandle, ranges: Mapping[TopicNamePartition, Range]
) -> dict[TopicNamePartition, _ReadPart]:
    """The whole sessions of each range, within the bytes of a sample; nothing is read once no range needs more."""
    registry = require_registry(handle.stream, handle.settings.registry)
    compiled = compile_stream(handle.stream, registry)
    copies: dict[TopicNamePartition, list[CopiedMessage]] = {place: [] for place in ranges}
    room_bytes = SAMPLE_BYTES // max(1, len(ranges))
    room = dict.fromkeys(ranges, room_bytes)
    unread = dict.fromkeys(ranges, 0)
    wanted = [part for part in ranges.values() if part.until > part.start]
    missing = {TopicNamePartition(part.topic, part.partition): part.until for part in wanted}
    for run in KafkaSource(make_reader_configuration(handle.settings.kafka)).read(wanted) if wanted else ():
        place = TopicNamePartition(wanted[run.index].topic, wanted[run.index].partition)
        for message in run.messages if isinstance(run, MessageRun) and not unread[place] else ():
            copy = CopiedMessage(message.key(), message.value(), list(read_headers(cast("KafkaMessage", message))))
            room[place] -= copy.size
            if room[place] < 0:
                unread[place] = copy.size
                break
            copies[place].append(copy)
        if unread[place] or not isinstance(run, MessageRun) or run.reached >= missing.get(place, 0):
            missing.pop(place, None)
        if not missing:
            break
    return {
        place: _ReadPart(keep_whole_sessions(compiled, place.topic, messages), room_bytes, unread[place])
        for place, messages in copies.items()
    }


def name_copies(stream: AnyStream, stage: int, topics: Iterable[str]) -> dict[str, str]:
    """The name of each topic's copy in a stage.

    Raises:
        Refused: A name would be longer than Kafka allows.
    """
    names = {topic: f"{PREFIX}.{stream.name}.{stage}.{topic}" for topic in topics}
    too_long = [name for name in names.values() if len(name) > TOPIC_NAME_MAX]
    if too_long:
        problem = f"the copy of a topic would have a name of more than {TOPIC_NAME_MAX} characters: {too_long[0]}"
        raise refuse_load_test(stream.name, problem, "choose other topics with --topics")
    return names


def make_copies_pattern(stream: AnyStream, stage: int) -> str:
    """The pattern of all copies of a stage."""
    return rf"{re.escape(f'{PREFIX}.{stream.name}.{stage}.')}.+"


def find_leftovers(names: Iterable[str], stream: str) -> tuple[str, ...]:
    """The topics of load tests of a stream."""
    return tuple(sorted(name for name in names if name.startswith(f"{PREFIX}.{stream}.")))


def create_copies(
    admin: ClusterClient,
    stream: str,
    partitions: Mapping[str, int],
    timeout_seconds: float,
    *,
    message_bytes_max: int = 0,
) -> None:
    """Create topics with unlimited retention: all of them, or none.

    Args:
        admin: The cluster.
        stream: Name of the stream.
        partitions: Partitions of each topic.
        timeout_seconds: Timeout of a request.
        message_bytes_max: Bytes of the largest message; the topics accept it, also if the brokers' default is lower.

    Raises:
        Refused: Kafka forbids it, or one exists.
        KafkaError: Kafka did not answer.
    """
    config = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "CreateTime",
    }
    if 2 * message_bytes_max > BATCH_BYTES_MAX:
        config["max.message.bytes"] = str(2 * message_bytes_max)
    wanted = [NewTopic(name, num_partitions=count, config=config) for name, count in partitions.items()]
    created: list[str] = []
    refused: dict[str, ClientError] = {}
    for name, future in admin.create_topics(wanted, request_timeout=timeout_seconds).items():
        try:
            future.result()
            created.append(name)
        except KafkaException as error:
            refused[name] = error.args[0]
    if refused:
        delete_copies(admin, created, timeout_seconds)
        # An existing topic first: deleting by name after any other error would delete topics of another test.
        name = min(refused, key=lambda topic: refused[topic].code() != ClientError.TOPIC_ALREADY_EXISTS)
        raise explain_refusal(admin, stream, name, refused[name])


def explain_refusal(admin: ClusterClient, stream: str, name: str, error: ClientError) -> KafkaError | Refused:
    """Why a topic was not created; names missing rights."""
    if error.code() == ClientError.TOPIC_ALREADY_EXISTS:
        return refuse_load_test(stream, f"another load test has created topic {name}", "wait for its end")
    if error.code() in _FORBIDDEN:
        rights = f'CREATE, DESCRIBE, READ, WRITE and DELETE on topics that start with "{PREFIX}." (docs/load-tests.md)'
        return refuse_load_test(stream, f"Kafka refuses to create topic {name}: {error.str()}", f"grant {rights}")
    return admin.explain_failure(f"the new topic {name}", error)


_FORBIDDEN = (
    ClientError.TOPIC_AUTHORIZATION_FAILED,
    ClientError.CLUSTER_AUTHORIZATION_FAILED,
    ClientError.POLICY_VIOLATION,
)


def delete_copies(admin: ClusterClient, names: Sequence[str], timeout_seconds: float) -> None:
    """Delete topics and wait until they are gone; missing topics are not an error.

    Raises:
        KafkaError: Kafka did not delete them.
    """
    if not names:
        return
    for name, future in admin.delete_topics(list(names), request_timeout=timeout_seconds).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != ClientError.UNKNOWN_TOPIC_OR_PART:
                raise admin.explain_failure(f"the deletion of topic {name}", error.args[0]) from error
    cluster = ClusterAdmin(admin, timeout_seconds)
    deadline = time.monotonic() + GONE_SECONDS_MAX
    # Kafka confirms a deletion before all brokers have carried it out.
    while remaining := cluster.topic_names() & set(names):
        if time.monotonic() > deadline:
            verb = f"stop listing the deleted topics {sorted(remaining)}"
            silence = describe_silence("Kafka", GONE_SECONDS_MAX, verb=verb)
            raise KafkaError(silence, next_step=f"{SLOW}; if they stay, delete them with kafka-topics.sh")
        time.sleep(POLL_SECONDS)
