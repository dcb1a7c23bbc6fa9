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
        known = -1 not in {self.created_ms, other.created_ms}
        return self.content == other.content and (not known or self.created_ms == other.created_ms)


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
    for data in (message.key(), message.value(), *(part for name, value in headers for part in (name.encode(), value))):
        hashed.update((-1 if data is None else len(data)).to_bytes(8, "big", signed=True) + (data or b""))
    kind, created_ms = message.timestamp()
    return MessageDigest(hashed.digest()[:16], created_ms if kind == TIMESTAMP_CREATE_TIME else -1)


def collect_evidence(kafka: KafkaSettings, view: ClusterView, rows: Iterable[LedgerRow]) -> list[PositionEvidence]:
    """The messages on both sides of some positions, where Kafka has what follows them.

    Raises:
        KafkaError: Kafka does not answer.
    """
    held = ((row, view.ends.get(TopicIdPartition(row.topic_id, row.partition))) for row in rows)
    found = [(row, ends) for row, ends in held if ends is not None and ends.start <= row.until]
    around = SIDE_MAX * HOLES_MAX
    wanted = [
        WantedRange(
            row.topic,
            row.partition,
            max(ends.start, row.until - around),
            max(ends.start, min(ends.stable_end, row.until + around)),
        )
        for row, ends in found
    ]
    sides: list[tuple[list[MessageDigest], list[MessageDigest]]] = [([], []) for _ in wanted]
    for piece in KafkaTopicLog(kafka).read(wanted):
        for message in piece.messages:
            side = find_offset(message) >= found[piece.index][0].until
            sides[piece.index][side].append(make_digest(message))
    return [
        PositionEvidence(
            row.topic_id,
            row.partition,
            row.until,
            ends.start,
            tuple(applied[-SIDE_MAX:]),
            tuple(following[:SIDE_MAX]),
        )
        for (row, ends), (applied, following) in zip(found, sides, strict=True)
    ]


def find_place(known: PositionEvidence, log: MirroredLog) -> int | NotProven:
    """The offset of a copy's log that is the position: all before it was applied, nothing from it on. Pure."""
    if not known.applied and not known.following:
        return _find_place_without_messages(known, log)
    if known.has_nothing_before and log.end == 0:
        return 0
    places = [at for at in range(len(log.digests) + 1) if _is_place(known, log, at)]
    if len(places) > 1:
        several = " and ".join(str(_find_offset_at(log, at)) for at in places[:2])
        return NotProven(f"the messages around it are alike at {len(places)} offsets, such as {several}")
    if not places or not log.is_whole:
        return NotProven(_explain_absence(known, log))
    (at,) = places
    before = min(at, len(known.applied))
    after = min(len(log.digests) - at, len(known.following))
    is_beginning = known.log_start == log.first == 0 and at == len(known.applied) < SIDE_MAX
    if _is_ambiguous(known, before, after, is_beginning=is_beginning):
        return NotProven("the messages around it are alike, and do not tell which one is the last that was applied")
    return _find_offset_at(log, at)


def _is_place(known: PositionEvidence, log: MirroredLog, at: int) -> bool:
    """Whether the messages before and after an index are those on both sides of the position."""
    before = known.applied[-at:] if at else ()
    after = log.digests[at : at + len(known.following)]
    if len(before) < len(known.applied) and log.start > log.first:
        return False  # earlier messages were not read
    if at < len(log.offsets) and log.offsets[at] < log.least:
        return False
    there = log.digests[at - len(before) : at]
    return bool(before or after) and _are_copies(there, before) and _are_copies(after, known.following)


def _are_copies(some: Iterable[MessageDigest], others: Iterable[MessageDigest]) -> bool:
    return all(map(MessageDigest.is_copy_of, some, others))


def _find_offset_at(log: MirroredLog, at: int) -> int:
    return log.offsets[at - 1] + 1 if at else log.start


def _is_ambiguous(known: PositionEvidence, before: int, after: int, *, is_beginning: bool) -> bool:
    """Whether the found messages fit at another place among the known messages, too.

    Args:
        known: The messages on both sides of the position.
        before: How many of those before it were found.
        after: How many of those after it were found.
        is_beginning: They were found at the start of both logs: nothing was sent before.
    """
    known_all = (*known.applied, *known.following)
    at = len(known.applied)
    found = known_all[at - before : at + after]
    if not is_beginning and len(found) < SIDE_MAX and len({each.created_ms for each in found}) == 1:
        return True  # the same may have been sent before, at the same time
    for other in range(1 - after, len(known_all) + before):
        first = other - before  # the index of the first found message
        overlap = [(each, first + number) for number, each in enumerate(found) if 0 <= first + number < len(known_all)]
        if other != at and overlap and all(each.is_copy_of(known_all[place]) for each, place in overlap):
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
    ends = None if topic is None else view.ends.get(TopicIdPartition(topic.topic_id, 0))
    if ends is None:
        return []
    found = list[OffsetSyncCheckpoint]()
    for piece in KafkaTopicLog(handle.settings.kafka).read([WantedRange(name, 0, ends.start, ends.stable_end)]):
        for message in piece.messages:
            key = message.key()
            value = message.value()
            if key is not None and value is not None:
                found.append(decode_checkpoint(key, value))
    return [each for each in found if each.group == handle.stream.name]


def choose_checkpoint(
    found: Iterable[OffsetSyncCheckpoint], topic: str, known: PositionEvidence
) -> OffsetSyncCheckpoint | None:
    """The newest checkpoint that is not past a position: its lower bound is one for the position, too. Pure."""
    fits = (
        each
        for each in found
        if (each.topic, each.partition) == (topic, known.partition) and each.upstream <= known.position
    )
    return max(fits, key=lambda each: (each.upstream, each.downstream), default=None)


def find_places(kafka: KafkaSettings, asked: Sequence[MirroredPartition]) -> dict[TopicIdPartition, int | NotProven]:
    """The places of positions in the copies: near the checkpoint, else in the whole log; by the source's key.

    Raises:
        KafkaError: Kafka does not answer.
    """
    log = KafkaTopicLog(kafka)
    near = [each for each in asked if each.checkpoint is not None]
    found = {each.known_key: _search(log, each, near=True) for each in near}
    rest = [each for each in asked if isinstance(found.get(each.known_key, NotProven("")), NotProven)]
    return found | {each.known_key: _search(log, each, near=False) for each in rest}


def _search(log: KafkaTopicLog, each: MirroredPartition, *, near: bool) -> int | NotProven:
    """Search the copy of one partition, up to its last stable offset: MirrorMaker may write transactions."""
    first = each.ends.start
    end = each.ends.stable_end
    least = each.checkpoint.downstream if near and each.checkpoint is not None else 0
    start = max(first, least - SIDE_MAX * HOLES_MAX)
    until = max(start, min(end, start + SEARCHED_MAX))
    offsets = list[int]()
    digests = list[MessageDigest]()
    for piece in log.read([WantedRange(each.topic, each.known.partition, start, until)]):
        offsets += map(find_offset, piece.messages)
        digests += map(make_digest, piece.messages)
    whole = near or until == end  # by a checkpoint it is near
    return find_place(each.known, MirroredLog(first, until, start, least, tuple(offsets), tuple(digests), whole))


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
    known = {TopicIdPartition(each.topic_id, each.partition): each for each in evidence}
    copies = _find_copies(handle, source, rows)  # 1
    asked = list[_Copy]()
    obstacles = list[Obstacle]()
    left_out = set[str]()
    for row in rows:
        topic = copies.topics.get(row.topic)
        if row.retired and (topic is None or not handle.stream.topics.select([topic.name])):
            left_out.add(row.topic)
        elif (
            problem := _find_problem(handle, copies, row, known.get(TopicIdPartition(row.topic_id, row.partition)))
        ) is not None:
            obstacles.append(problem)
        elif topic is not None:
            asked.append(_Copy(row, topic, known[TopicIdPartition(row.topic_id, row.partition)]))
    checkpoints = read_checkpoints(handle, source)  # 2
    searched = [
        MirroredPartition(
            each.topic.name,
            each.known,
            copies.view.ends[TopicIdPartition(each.topic.topic_id, each.row.partition)],
            choose_checkpoint(checkpoints, each.topic.name, each.known),
        )
        for each in asked
    ]
    places = find_places(handle.settings.kafka, searched)
    moves = list[Translation]()
    for each in asked:
        place = places[TopicIdPartition(each.row.topic_id, each.row.partition)]
        if isinstance(place, NotProven):
            obstacles.append(_describe_unproven(each, place))
        else:
            moves.append(Translation(read_position(each.row), each.topic.name, each.topic.topic_id, place))
    check_translatable(state, moves, generation=FIRST_GENERATION)  # 3
    obstacles += _find_numbered_by_offset(handle, moves)
    ordered = sorted(moves, key=lambda each: (each.topic_id, each.source.partition))
    return MirroredPositions(tuple(ordered), tuple(obstacles), tuple(sorted(left_out)))


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
    view = handle.cluster.view({name for some in names.values() for name in some})
    found = {topic: [view.topics[name] for name in some if name in view.topics] for topic, some in names.items()}
    return _Copies({topic: some[0] for topic, some in found.items() if some}, view, source)


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
    return "it is retired: exclude the copy here (Topics.exclude), and it is left out" if row.retired else otherwise


def _describe_unproven(copy: _Copy, place: NotProven) -> Obstacle:
    row = copy.row
    problem = (
        f"the place of {row.topic}/{row.partition}@{row.until} in {copy.topic.name} is not proven: {place.problem}"
    )
    step = "wait until MirrorMaker has copied up to it; or export a later savepoint, with other messages around it"
    return Obstacle(RewindReason.POSITION, problem, _find_step(row, step))


def _find_numbered_by_offset(handle: StreamHandle, moves: Iterable[Translation]) -> Iterator[Obstacle]:
    """`Ordered` takes the offset if a producer sends no number, and its state does not record which it is."""
    lower = [each for each in moves if each.offsets.is_lowering and each.source.state is not None]
    if isinstance(handle.stream.integrity, Ordered) and lower:
        first = lower[0]
        problem = (
            f"{len(lower)} partitions continue at lower offsets, such as {first.topic}/{first.source.partition}: "
            f"{first.next_offset} for {first.source.next_offset}; the class Ordered may have numbered by offset"
        )
        yield Obstacle(RewindReason.NUMBERS, problem, "read the copies from their beginning, as another stream")
