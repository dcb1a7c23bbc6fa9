"""Finds the positions of an exported savepoint in a cluster to which MirrorMaker 2 has copied the topics.

The copies have other offsets. A checkpoint of MirrorMaker is a lower bound only, so the messages decide: an export
has digests of the last applied and of the first unapplied messages of each partition; the position is
where the log of the copy has both sides. Unless that is exactly one place, nothing is proven.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from lockstep.features.history.rewind import RewindReason
from lockstep.integrity.ordered import Ordered
from lockstep.kafka.admin import ClusterView, PartitionOffsets, Topic
from lockstep.kafka.mirror_maker import (
    OffsetSyncCheckpoint,
    decode_checkpoint,
    list_remote_names,
    name_checkpoints_topic,
)
from lockstep.model.position import TopicIdPartition
from lockstep.model.record import KafkaMessage, read_headers
from lockstep.operations.plan_frame import Obstacle
from lockstep.operations.stream_handle import StreamHandle
from lockstep.settings import KafkaSettings
from lockstep.state.translation import Translation, check_translatable
from lockstep.table.head import FIRST_GENERATION
from lockstep.table.ledger import LedgerRow
from lockstep.table.positions import read_position
from lockstep.verify.kafka_reader import KafkaTopicLog, WantedRange, find_offset

SIDE_MAX = 32
"""Messages of each side of a position: enough that a restarted MirrorMaker, which repeats its last copies, does not
pass for the place."""
HOLES_MAX = 4
"""Offsets read for each of them: transactions leave offsets without a message."""
SEARCHED_MAX = 1_000_000
"""Offsets that are searched in a partition: a digest takes 100 bytes of memory."""


class MessageDigest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The properties that a copy of a message shares with it.

    Attributes:
        content: Digest of key, value and headers.
        created_ms: Its create time; -1 if the topic has the time of appending instead.
    """

    content: bytes
    created_ms: int

    def is_copy_of(self, other: MessageDigest) -> bool:
        """Whether both may be the same message."""
        # A topic with the time of appending has another time in each cluster.
        has_times = -1 not in {self.created_ms, other.created_ms}
        return self.content == other.content and (not has_times or self.created_ms == other.created_ms)


class PositionEvidence(msgspec.Struct, frozen=True):
    """The messages on both sides of a position.

    Attributes:
        topic_id: Kafka's id of the topic.
        partition: Partition number.
        position: The position.
        log_start: First offset that Kafka had then.
        applied: The last messages before the position, in their order.
        following: The first messages from the position on.
    """

    topic_id: str
    partition: int
    position: int
    log_start: int
    applied: tuple[MessageDigest, ...]
    following: tuple[MessageDigest, ...]

    @property
    def has_nothing_before(self) -> bool:
        """Whether Kafka had no offset before the position."""
        return self.log_start >= self.position


class MirroredLog(msgspec.Struct, frozen=True):
    """The part of a copy's log that was searched.

    Attributes:
        first: First offset that Kafka has.
        end: Its last stable offset, or the end of the search.
        start: The first offset that was searched.
        least: By a checkpoint, the place is not before this offset; 0 without one.
        offsets: Offsets of the messages from `start` on.
        digests: Their digests.
        is_whole: The search reached the end of the log, or as far as a checkpoint makes it necessary.
    """

    first: int
    end: int
    start: int
    least: int
    offsets: tuple[int, ...]
    digests: tuple[MessageDigest, ...]
    is_whole: bool = True


class NotProven(msgspec.Struct, frozen=True):
    """Why the place of a position is not known."""

    problem: str


def make_digest(message: Message) -> MessageDigest:
    """The digest of a consumed message."""
    hashed = hashlib.sha256()
    headers = read_headers(cast("KafkaMessage", message))
    parts = [message.key(), message.value()]
    for name, value in headers:
        parts += (name.encode(), value)
    for data in parts:
        # The length before each part: the parts of two messages may be equal when they are joined.
        length = -1 if data is None else len(data)
        hashed.update(length.to_bytes(8, "big", signed=True) + (data or b""))
    kind, created_ms = message.timestamp()
    return MessageDigest(hashed.digest()[:16], created_ms if kind == TIMESTAMP_CREATE_TIME else -1)


def collect_evidence(kafka: KafkaSettings, view: ClusterView, rows: Iterable[LedgerRow]) -> list[PositionEvidence]:
    """The messages on both sides of some positions, if Kafka has the messages that follow.

    Raises:
        KafkaError: Kafka does not answer.
    """
    readable: list[tuple[LedgerRow, PartitionOffsets]] = []
    wanted: list[WantedRange] = []
    around = SIDE_MAX * HOLES_MAX
    for row in rows:
        ends = view.ends.get(row.key)
        # The messages from the position on have expired.
        if ends is None or ends.start > row.until:
            continue
        readable.append((row, ends))
        start = max(ends.start, row.until - around)
        until = max(ends.start, min(ends.stable_end, row.until + around))
        wanted.append(WantedRange(row.topic, row.partition, start, until))
    applied: list[list[MessageDigest]] = [[] for _ in wanted]
    following: list[list[MessageDigest]] = [[] for _ in wanted]
    for piece in KafkaTopicLog(kafka).read(wanted):
        row, _ = readable[piece.index]
        for message in piece.messages:
            side = following if find_offset(message) >= row.until else applied
            side[piece.index].append(make_digest(message))
    evidence: list[PositionEvidence] = []
    for (row, ends), before, after in zip(readable, applied, following, strict=True):
        sides = (tuple(before[-SIDE_MAX:]), tuple(after[:SIDE_MAX]))
        evidence.append(PositionEvidence(row.topic_id, row.partition, row.until, ends.start, *sides))
    return evidence


def find_place(known: PositionEvidence, log: MirroredLog) -> int | NotProven:
    """The offset of a copy's log that is the position: all before it was applied, nothing from it on. Pure."""
    if not known.applied and not known.following:
        return _find_place_without_messages(known, log)
    if known.has_nothing_before and log.end == 0:
        return 0
    places = [place for place in range(len(log.digests) + 1) if _is_place(known, log, place)]
    if len(places) > 1:
        several = " and ".join(str(_find_offset_at(log, place)) for place in places[:2])
        return NotProven(f"the messages around it are alike at {len(places)} offsets, such as {several}")
    # One place in a part of the log is not the only one: another may follow in the part that was not searched.
    if not places or not log.is_whole:
        return NotProven(_explain_absence(known, log))
    (place,) = places
    applied_count = min(place, len(known.applied))
    following_count = min(len(log.digests) - place, len(known.following))
    # Nothing was sent before the start of both logs, so fewer messages than a full side prove it.
    is_beginning = known.log_start == log.first == 0 and place == len(known.applied) < SIDE_MAX
    if _is_ambiguous(known, applied_count, following_count, is_beginning=is_beginning):
        return NotProven("the messages around it are alike, and do not tell which one is the last that was applied")
    return _find_offset_at(log, place)


def _is_place(known: PositionEvidence, log: MirroredLog, index: int) -> bool:
    """Whether the messages before and after an index are those on both sides of the position."""
    # A log may start in the middle of them: of the applied messages then only the last ones are there.
    applied = known.applied[-index:] if index else ()
    after = log.digests[index : index + len(known.following)]
    if len(applied) < len(known.applied) and log.start > log.first:
        return False  # earlier messages were not read
    if index < len(log.offsets) and log.offsets[index] < log.least:
        return False
    copied = log.digests[index - len(applied) : index]
    return bool(applied or after) and _are_copies(copied, applied) and _are_copies(after, known.following)


def _are_copies(some: Iterable[MessageDigest], others: Iterable[MessageDigest]) -> bool:
    return all(map(MessageDigest.is_copy_of, some, others))


def _find_offset_at(log: MirroredLog, index: int) -> int:
    # Not the offset of the next message: a transaction may leave offsets without one, and there may be none yet.
    return log.offsets[index - 1] + 1 if index else log.start


def _is_ambiguous(known: PositionEvidence, before: int, after: int, *, is_beginning: bool) -> bool:
    """Whether the found messages fit at another place among the known messages, too.

    Args:
        known: The messages on both sides of the position.
        before: How many of those before it were found.
        after: How many of those after it were found.
        is_beginning: They were found at the start of both logs: nothing was sent before.
    """
    messages = (*known.applied, *known.following)
    position = len(known.applied)
    matched = messages[position - before : position + after]
    if not is_beginning and len(matched) < SIDE_MAX and len({digest.created_ms for digest in matched}) == 1:
        return True  # the same may have been sent before, at the same time
    for other in range(1 - after, len(messages) + before):
        first = other - before  # the index of the first matched message
        # Outside of the known messages anything may have been sent.
        overlap = [
            (digest, first + number) for number, digest in enumerate(matched) if 0 <= first + number < len(messages)
        ]
        if other != position and overlap and all(digest.is_copy_of(messages[place]) for digest, place in overlap):
            return True
    return False


def _find_place_without_messages(known: PositionEvidence, log: MirroredLog) -> int | NotProven:
    """Kafka had no message around the position: an empty topic, or one whose messages have all expired."""
    if known.has_nothing_before and log.first == known.position == 0:
        return 0
    is_read = all(offset < log.least for offset in log.offsets)
    if known.has_nothing_before and is_read and log.is_whole and (log.least or not log.end):
        return log.least  # a checkpoint: the messages after the position start there
    return NotProven("Kafka had no message on either side of it when the savepoint was exported")


def _explain_absence(known: PositionEvidence, log: MirroredLog) -> str:
    side = "the last applied message" if known.applied else "the first unapplied message"
    beyond = "" if log.is_whole else "; a checkpoint of the group would shorten the search"
    searched = f"none of the {len(log.digests)} messages from offset {log.start} to {log.end}"
    return f"{searched} is {side}, with the same ones around it{beyond}"


class MirroredPartition(msgspec.Struct, frozen=True):
    """A partition of the copy to be searched.

    Attributes:
        topic: Name of the topic in this cluster.
        known: The messages around the position.
        ends: The offsets of the copy.
        checkpoint: The best checkpoint for it; None without one.
    """

    topic: str
    known: PositionEvidence
    ends: PartitionOffsets
    checkpoint: OffsetSyncCheckpoint | None

    @property
    def known_key(self) -> TopicIdPartition:
        """Topic id and partition in the cluster of the export."""
        return TopicIdPartition(self.known.topic_id, self.known.partition)


def read_checkpoints(handle: StreamHandle, source: str) -> list[OffsetSyncCheckpoint]:
    """The checkpoints of the stream's group for a source cluster; empty without such a topic.

    Raises:
        KafkaError: Kafka does not answer, or the records have another form.
    """
    name = name_checkpoints_topic(source)
    view = handle.cluster.view([name])
    topic = view.topics.get(name)
    if topic is None:
        return []
    # MirrorMaker writes them to a topic of one partition.
    ends = view.ends.get(TopicIdPartition(topic.topic_id, 0))
    if ends is None:
        return []
    checkpoints = list[OffsetSyncCheckpoint]()
    for piece in KafkaTopicLog(handle.settings.kafka).read([WantedRange(name, 0, ends.start, ends.stable_end)]):
        for message in piece.messages:
            key = message.key()
            value = message.value()
            if key is not None and value is not None:
                checkpoints.append(decode_checkpoint(key, value))
    return [checkpoint for checkpoint in checkpoints if checkpoint.group == handle.stream.name]


def choose_checkpoint(
    found: Iterable[OffsetSyncCheckpoint], topic: str, known: PositionEvidence
) -> OffsetSyncCheckpoint | None:
    """The newest checkpoint that is not past a position: its lower bound is one for the position, too. Pure."""
    of_partition = [sync for sync in found if (sync.topic, sync.partition) == (topic, known.partition)]
    not_past = [sync for sync in of_partition if sync.upstream <= known.position]
    return max(not_past, key=lambda sync: (sync.upstream, sync.downstream), default=None)


def find_places(kafka: KafkaSettings, asked: Sequence[MirroredPartition]) -> dict[TopicIdPartition, int | NotProven]:
    """The places of positions in the copies: near the checkpoint, else in the whole log; by the source's key.

    Raises:
        KafkaError: Kafka does not answer.
    """
    log = KafkaTopicLog(kafka)
    with_checkpoint = [partition for partition in asked if partition.checkpoint is not None]
    places = {partition.known_key: _search(log, partition, near=True) for partition in with_checkpoint}
    # Without a checkpoint, or if nothing is proven near it, the whole log is searched.
    for partition in asked:
        if not isinstance(places.get(partition.known_key), int):
            places[partition.known_key] = _search(log, partition, near=False)
    return places


def _search(log: KafkaTopicLog, partition: MirroredPartition, *, near: bool) -> int | NotProven:
    """Search the copy of one partition, up to its last stable offset: MirrorMaker may write transactions."""
    first = partition.ends.start
    end = partition.ends.stable_end
    least = 0
    if near and partition.checkpoint is not None:
        least = partition.checkpoint.downstream
    start = max(first, least - SIDE_MAX * HOLES_MAX)
    until = max(start, min(end, start + SEARCHED_MAX))
    offsets = list[int]()
    digests = list[MessageDigest]()
    for piece in log.read([WantedRange(partition.topic, partition.known.partition, start, until)]):
        offsets += map(find_offset, piece.messages)
        digests += map(make_digest, piece.messages)
    is_whole = near or until == end  # by a checkpoint the place is near
    searched = MirroredLog(first, until, start, least, tuple(offsets), tuple(digests), is_whole)
    return find_place(partition.known, searched)


class MirroredPositions(msgspec.Struct, frozen=True):
    """The positions of a savepoint in a mirrored cluster.

    Attributes:
        moves: The partitions that continue, in the order of topic ids here.
        obstacles: Why the others do not.
        left_out: Retired topics that this cluster does not have, or that the declaration here does not select.
    """

    moves: tuple[Translation, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    left_out: tuple[str, ...] = ()


def find_mirrored_positions(
    handle: StreamHandle, state: Path, rows: Sequence[LedgerRow], evidence: Iterable[PositionEvidence], source: str
) -> MirroredPositions:
    """Find each position of a savepoint in the copies of its topics.

    1. Find the topics, by the name from MirrorMaker.
    2. Find the places, near the checkpoints of the stream's group.
    3. Check that the state can continue there.

    Args:
        handle: The stream, as declared here.
        state: The state folder of the export.
        rows: Its positions.
        evidence: The messages around them.
        source: MirrorMaker's alias of the cluster of the export.

    Raises:
        NotTranslatable: The state of a partition cannot continue in a mirrored cluster.
        KafkaError: Kafka does not answer.
    """
    by_partition = {TopicIdPartition(known.topic_id, known.partition): known for known in evidence}
    copies = _find_copies(handle, source, rows)  # 1
    asked = list[_Copy]()
    obstacles = list[Obstacle]()
    left_out = set[str]()
    for row in rows:
        topic = copies.topics.get(row.topic)
        known = by_partition.get(row.key)
        if row.retired and (topic is None or not handle.stream.topics.select([topic.name])):
            left_out.add(row.topic)
        elif (problem := _find_problem(handle, copies, row, known)) is not None:
            obstacles.append(problem)
        elif topic is not None and known is not None:
            asked.append(_Copy(row, topic, known))
    places = find_places(handle.settings.kafka, _list_searched(handle, source, copies, asked))  # 2
    moves = list[Translation]()
    for copy in asked:
        place = places[TopicIdPartition(copy.row.topic_id, copy.row.partition)]
        if isinstance(place, NotProven):
            obstacles.append(_describe_unproven(copy, place))
        else:
            moves.append(Translation(read_position(copy.row), copy.topic.name, copy.topic.topic_id, place))
    check_translatable(state, moves, generation=FIRST_GENERATION)  # 3
    obstacles += _find_numbered_by_offset(handle, moves)
    ordered = sorted(moves, key=lambda move: (move.topic_id, move.source.partition))
    return MirroredPositions(tuple(ordered), tuple(obstacles), tuple(sorted(left_out)))


def _list_searched(
    handle: StreamHandle, source: str, copies: _Copies, asked: Iterable[_Copy]
) -> list[MirroredPartition]:
    """The partitions to be searched, each with its checkpoint."""
    checkpoints = read_checkpoints(handle, source)
    searched: list[MirroredPartition] = []
    for copy in asked:
        ends = copies.view.ends[TopicIdPartition(copy.topic.topic_id, copy.row.partition)]
        checkpoint = choose_checkpoint(checkpoints, copy.topic.name, copy.known)
        searched.append(MirroredPartition(copy.topic.name, copy.known, ends, checkpoint))
    return searched


class _Copies(msgspec.Struct, frozen=True):
    """The copies of topics, by their name in the source cluster, and the cluster as it was seen."""

    topics: Mapping[str, Topic]
    view: ClusterView
    source: str


class _Copy(msgspec.Struct, frozen=True):
    """A partition with the copy of its topic."""

    row: LedgerRow
    topic: Topic
    known: PositionEvidence


def _find_copies(handle: StreamHandle, source: str, rows: Iterable[LedgerRow]) -> _Copies:
    names = {row.topic: list_remote_names(source, row.topic) for row in rows}
    view = handle.cluster.view(set[str]().union(*names.values()))
    topics: dict[str, Topic] = {}
    for topic, remote_names in names.items():
        present = [view.topics[name] for name in remote_names if name in view.topics]
        if present:
            topics[topic] = present[0]
    return _Copies(topics, view, source)


def _find_problem(
    handle: StreamHandle, copies: _Copies, row: LedgerRow, known: PositionEvidence | None
) -> Obstacle | None:
    """What speaks against a partition before its copy is searched."""
    where = f"{row.topic}/{row.partition}"
    topic = copies.topics.get(row.topic)
    if topic is None:
        names = " or ".join(list_remote_names(copies.source, row.topic))
        step = "let MirrorMaker copy it; or does the source cluster have another alias?"
        return Obstacle(RewindReason.TOPIC, f"{where}: this cluster has no topic {names}", step)
    if (topic.topic_id, row.partition) not in copies.view.ends:
        problem = f"{where}: {topic.name} has no such partition here, or no leader of it"
        return Obstacle(RewindReason.TOPIC, problem, "lockstep doctor checks Kafka; then import again")
    if not handle.stream.topics.select([topic.name]):
        problem = f"{where}: the pattern {handle.stream.topics.pattern!r} does not select {topic.name}"
        return Obstacle(RewindReason.TOPIC, problem, "declare the stream with a pattern of the names here")
    if known is None:
        problem = f"{where}@{row.until}: Kafka did not show the messages around it when it was exported"
        step = "export a later savepoint: Kafka has to answer, and to have the messages from its positions on"
        return Obstacle(RewindReason.POSITION, problem, _find_step(row, step))
    return None


def _find_step(row: LedgerRow, otherwise: str) -> str:
    """The remedy for a position that is not proven; a retired topic goes without."""
    if row.retired:
        return "it is retired: exclude the copy here (Topics.exclude), and it is left out"
    return otherwise


def _describe_unproven(copy: _Copy, place: NotProven) -> Obstacle:
    row = copy.row
    problem = (
        f"the place of {row.topic}/{row.partition}@{row.until} in {copy.topic.name} is not proven: {place.problem}"
    )
    step = "wait until MirrorMaker has copied up to it; or export a later savepoint, with other messages around it"
    return Obstacle(RewindReason.POSITION, problem, _find_step(row, step))


def _find_numbered_by_offset(handle: StreamHandle, moves: Iterable[Translation]) -> Iterator[Obstacle]:
    """`Ordered` takes the offset if a producer sends no number, and its state does not record which it is."""
    lower = [move for move in moves if move.offsets.is_lowering and move.source.state is not None]
    if isinstance(handle.stream.integrity, Ordered) and lower:
        first = lower[0]
        problem = (
            f"{len(lower)} partitions continue at lower offsets, such as {first.topic}/{first.source.partition}: "
            f"{first.next_offset} for {first.source.next_offset}; the class Ordered may have numbered by offset"
        )
        yield Obstacle(RewindReason.NUMBERS, problem, "read the copies from their beginning, as another stream")
