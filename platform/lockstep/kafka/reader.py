"""Reads offset ranges; explains missing offsets.

All ranges are assigned together: one after another, each assignment would wait for a separate
fetch (a second each, measured). Offsets of a partition only ever rise, so a run of messages has no
gap exactly when its length equals its span: no check of each message is needed.

Three things leave offsets without a message: an aborted transaction, the control record that ends a transaction (its
marker), and a removed record, for example by compaction. A `read_uncommitted` consumer returns the messages of
aborted transactions. Control records are returned to no application, but the client counts them, and logs for each
fetch the number of records and the last offset. If a fetch had a record for each of its offsets, none is gone:
offsets without a message are control records. If it had fewer, the offsets in question are fetched batch by batch:
a batch of one record that is a control record is the marker itself. The topic's settings prove nothing: a topic with
cleanup.policy=delete today may have been compacted yesterday.

A batch corrupted in transit reads well the next time; one corrupt on the broker never does. One fetch returns one
record batch here: if a fetch returns several, librdkafka 2.16 aborts its process at some corrupt ones (an assertion).

A client reports nothing while it passes over an aborted transaction or over markers, however many, and passes
the end of a range. For a partition that was silent before, the client's log shows its progress; while it progresses, it
is not silent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from confluent_kafka import OFFSET_BEGINNING, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as ClientError

from lockstep.kafka.client import Configuration, RangeConsumer
from lockstep.kafka.diagnostics import ConnectionLog
from lockstep.model.finding import Hole
from lockstep.model.position import TopicNamePartition
from lockstep.model.tuning import DEFAULT_TUNING, Tuning

MESSAGES_A_CALL = 1_000
"""Decoded while still in the processor's cache; 10,000 a call cost about 1 us a message more."""
POLL_SECONDS = 0.5
RESPONSE_BYTES = 1_048_588
"""A step of a reader that shows its progress: after a response of aborted messages alone, librdkafka asks for twice as
much, up to 50 MB."""

_CORRUPT = frozenset(
    {
        ClientError.INVALID_MSG,  # the broker's errors: it parses headers to find an offset
        ClientError.INVALID_RECORD,
        ClientError.UNKNOWN,
        ClientError._BAD_MSG,  # noqa: SLF001  # the client's names: a checksum, a codec, a version, a length
        ClientError._BAD_COMPRESSION,  # noqa: SLF001
        ClientError._NOT_IMPLEMENTED,  # noqa: SLF001
        ClientError._UNDERFLOW,  # noqa: SLF001
    }
)


class Range(msgspec.Struct, frozen=True):
    """Offsets [start, until) of one partition.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        start: First offset to read.
        until: The range is waited for up to this offset.
        leader_epoch: Epoch of the last record read before `start`, to detect a log that was truncated and
            has regrown.
        single_batches: Each fetch returns one record batch.
        patient: It was silent before, and is waited for longer.
        beyond: Number of further offsets that are taken if the client has them already.
    """

    topic: str
    partition: int
    start: int
    until: int
    leader_epoch: int | None = None
    single_batches: bool = False
    patient: bool = False
    beyond: int = 0

    @property
    def limit(self) -> int:
        """First offset not to read."""
        return self.until + self.beyond


class MessageRun(msgspec.Struct):
    """Messages of one range, in offset order, following the previous ones.

    Attributes:
        index: Index of the range.
        messages: The messages; empty when only offsets without messages were passed.
        gaps: (start, until) of offsets without a message, before, between or after these messages.
        reached: First offset not covered.
    """

    index: int
    messages: list[Message]
    gaps: list[tuple[int, int]]
    reached: int


class UnreadableRange(msgspec.Struct, frozen=True):
    """A range that cannot be read further.

    Attributes:
        index: Index of the range.
        reason: The client's error text.
        is_corrupt: The broker's record batch cannot be parsed, or the broker fails to (`find_next_readable` decides).
    """

    index: int
    reason: str
    is_corrupt: bool = False


def read_ranges(
    consumer: RangeConsumer,
    ranges: Sequence[Range],
    tuning: Tuning = DEFAULT_TUNING,
    progress: FetchSteps | None = None,
) -> Iterator[MessageRun | UnreadableRange]:
    """Read all ranges to their ends; the runs of a range are yielded in order.

    The caller sends nothing back, but may stop iterating: the assignment is dropped either way.

    Args:
        consumer: Reads them.
        ranges: The ranges.
        tuning: How long it is waited for a message.
        progress: The log of the consumer; None without such a log.
    """
    reading = _Reading(consumer, ranges, tuning, progress)
    try:
        yield from reading.runs()
    finally:
        consumer.unassign()


def read_patiently(
    configuration: Configuration, ranges: Sequence[Range], tuning: Tuning = DEFAULT_TUNING
) -> Iterator[MessageRun | UnreadableRange]:
    """`read_ranges` by a new client that also logs its progress while it returns no message."""
    progress = FetchProgress()
    response = max(RESPONSE_BYTES, int(configuration.get("message.max.bytes", 0)))  # else the client refuses it
    shown = {**configuration, "debug": "msg,fetch", "fetch.max.bytes": response}
    consumer = RangeConsumer(shown, progress, log_level=DEBUG)
    try:
        yield from read_ranges(consumer, ranges, tuning, progress)
    finally:
        consumer.close()


class _Reading:
    """One pass over the ranges of a bin.

    It waits for each range up to its `until`. Until the last range is complete, the others also
    take their messages beyond it, from those already fetched.
    """

    def __init__(
        self, consumer: RangeConsumer, ranges: Sequence[Range], tuning: Tuning, progress: FetchSteps | None
    ) -> None:
        self._consumer = consumer
        self._ranges = ranges
        self._tuning = tuning
        self._progress = progress or FetchSteps()
        self._next = [item.start for item in ranges]
        self._taken = [0] * len(ranges)
        self._open = {
            TopicNamePartition(item.topic, item.partition): index
            for index, item in enumerate(ranges)
            if item.start < item.until
        }
        self._awaited = set(self._open.values())
        self._finished: list[TopicPartition] = []

    def runs(self) -> Iterator[MessageRun | UnreadableRange]:
        """All runs until every range is done or Kafka stays silent."""
        if not self._open:
            return
        self._consumer.assign([_assigned(self._ranges[index]) for index in self._awaited])
        silent_since = time.monotonic()
        left = self._count_left()
        steps = 0
        while self._awaited:
            # A poll for more than is left would wait for messages beyond the ranges.
            yield from self._sorted(self._consumer.consume(min(MESSAGES_A_CALL, left), POLL_SECONDS))
            if self._progress.steps:
                yield from self._pass_over()
            self._stop_fetching()
            before = left
            left = self._count_left()
            steps_before = steps
            steps = self._progress.steps
            # Progress beyond a range must not reset the timeout of the ranges still awaited.
            if left < before or steps > steps_before:
                silent_since = time.monotonic()
                self._consumer.clear_log()
            elif time.monotonic() - silent_since > (patience := self._patience_seconds()):
                why = self._consumer.explain_silence()
                yield from self._give_up(
                    f"nothing was heard of the partition for {patience:g} seconds{why and f': {why}'}"
                )
                return
        if self._open:
            yield from self._sorted(self._consumer.consume(MESSAGES_A_CALL, 0.0))

    def _patience_seconds(self) -> float:
        """How long to wait for any message: other partitions of the batch wait to be committed meanwhile."""
        patient = any(self._ranges[index].patient for index in self._awaited)
        return self._tuning.silence_seconds_max if patient else self._tuning.straggler_seconds_max

    def _pass_over(self) -> Iterator[MessageRun]:
        """End the awaited ranges without further messages, as the client's log shows."""
        for index in sorted(self._awaited):
            item = self._ranges[index]
            passed = self._progress.find_passed(TopicNamePartition(item.topic, item.partition), self._taken[index])
            if passed is not None and passed >= item.until:
                yield from self._end(index, passed)

    def _count_left(self) -> int:
        """Number of offsets of the awaited ranges that are not read yet."""
        return sum(self._ranges[index].until - self._next[index] for index in self._awaited)

    def _sorted(self, messages: list[Message]) -> Iterator[MessageRun | UnreadableRange]:
        """Messages by range, then the ends of partitions that arrived with them.

        The client returns fetched messages partition by partition, so nearly always all are of one.
        """
        place = _same_place(messages)
        if place is None:
            yield from self._mixed(messages)
        elif place in self._open:
            yield self._run(self._open[place], messages)

    def _mixed(self, messages: list[Message]) -> Iterator[MessageRun | UnreadableRange]:
        by_range: dict[int, list[Message]] = {}
        events: list[tuple[int, Message]] = []
        failed: set[int] = set()
        known = self._open
        # Mapped methods: this loop sees every message, and a bound call costs twice as much.
        places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        for place, error, message in zip(places, map(Message.error, messages), messages, strict=True):
            index = known.get(place)  # type: ignore[call-overload]  # a plain tuple costs less, for every message
            if index is None or index in failed:
                continue  # over-fetched after its range was done, or behind what could not be read
            if error is not None:
                events.append((index, message))
                if _ends_range(error):
                    failed.add(index)
            elif index in by_range:
                by_range[index].append(message)
            else:
                by_range[index] = [message]
        for index, found in by_range.items():
            yield self._run(index, found)
        for index, event in events:
            yield from self._event(index, event)

    def _event(self, index: int, event: Message) -> Iterator[MessageRun | UnreadableRange]:
        error = event.error()
        if error is None or not self._is_open(index):
            return
        at_end = error.code() in (ClientError._PARTITION_EOF, *_CORRUPT)  # noqa: SLF001  # the client's name
        if at_end and index in self._awaited:
            yield from self._end(index, int(event.offset() or 0))
        if _ends_range(error) and self._is_open(index):
            was_awaited = index in self._awaited  # else it has all that it must have
            self._finish(index)
            if was_awaited:
                yield UnreadableRange(index, error.str(), error.code() in _CORRUPT)

    def _run(self, index: int, messages: list[Message]) -> MessageRun:
        self._taken[index] += len(messages)
        start = self._next[index]
        limit = self._ranges[index].limit
        past = _offset(messages[-1]) >= limit - 1
        if past:
            messages = _before(messages, limit)
        gaps = _gaps(messages, start, limit if past else None)
        reached = limit if past else _offset(messages[-1]) + 1
        self._advance(index, reached)
        return MessageRun(index=index, messages=messages, gaps=gaps, reached=reached)

    def _end(self, index: int, position: int) -> Iterator[MessageRun]:
        """The readable part of the partition ends at `position`: offsets before it without a message are a gap."""
        if position <= self._next[index]:
            return
        reached = min(position, self._ranges[index].until)
        gap = (self._next[index], reached)
        self._advance(index, reached)
        yield MessageRun(index=index, messages=[], gaps=[gap], reached=reached)

    def _advance(self, index: int, reached: int) -> None:
        self._next[index] = reached
        if reached >= self._ranges[index].limit:
            self._finish(index)
        elif reached >= self._ranges[index].until:
            self._awaited.discard(index)

    def _is_open(self, index: int) -> bool:
        item = self._ranges[index]
        return TopicNamePartition(item.topic, item.partition) in self._open

    def _finish(self, index: int) -> None:
        done = self._ranges[index]
        del self._open[TopicNamePartition(done.topic, done.partition)]
        self._awaited.discard(index)
        self._finished.append(TopicPartition(done.topic, done.partition))

    def _stop_fetching(self) -> None:
        """Drop finished ranges from the assignment, all of a poll at once: each call waits for the client's thread."""
        finished = self._finished
        self._finished = []
        if finished and self._open:
            try:
                self._consumer.incremental_unassign(finished)
            except KafkaException:
                return  # only saves fetching: later messages are dropped

    def _give_up(self, reason: str) -> Iterator[UnreadableRange]:
        for index in sorted(self._awaited):
            yield UnreadableRange(index, reason)
        self._open = {}


def _ends_range(error: ClientError) -> bool:
    """Whether nothing behind the error belongs to the range.

    The client would retry a batch with a wrong checksum endlessly, and pass over one of an unknown version.
    """
    if error.code() == ClientError._PARTITION_EOF:  # noqa: SLF001  # the client's name of the event
        return False
    return error.code() in _CORRUPT or not error.retriable()


def _same_place(messages: list[Message]) -> TopicNamePartition | None:
    """Topic and partition of messages that are all of one, without an event among them; else None."""
    topics = list(map(Message.topic, messages))
    partitions = list(map(Message.partition, messages))
    alike = (
        messages
        and topics.count(topics[0]) == len(messages)
        and partitions.count(partitions[0]) == len(messages)
        and not any(map(Message.error, messages))
    )
    return (topics[0], partitions[0]) if alike else None  # type: ignore[return-value]  # set on every message


def _assigned(item: Range) -> TopicPartition:
    if item.leader_epoch is None or item.leader_epoch < 0:
        return TopicPartition(item.topic, item.partition, item.start)
    return TopicPartition(item.topic, item.partition, item.start, leader_epoch=item.leader_epoch)


def _offset(message: Message) -> int:
    return message.offset()  # type: ignore[return-value]  # always set on a consumed message


def _before(messages: list[Message], until: int) -> list[Message]:
    """Drop messages fetched past the end of the range."""
    keep = len(messages)
    while keep and _offset(messages[keep - 1]) >= until:
        keep -= 1
    return messages[:keep] if keep < len(messages) else messages


def _gaps(messages: list[Message], start: int, until: int | None) -> list[tuple[int, int]]:
    """Offsets without a message between `start`, the messages, and `until` if it is reached."""
    end = until if until is not None else _offset(messages[-1]) + 1
    if end - start == len(messages):
        return []
    gaps = []
    expected = start
    for message in messages:
        offset = _offset(message)
        if offset > expected:
            gaps.append((expected, offset))
        expected = offset + 1
    if end > expected:
        gaps.append((expected, end))
    return gaps


UNPROVEN = "unproven"
DEBUG = 7
DEBUG_LEVEL = 10
"""The debug level, as librdkafka counts and as its Python client passes it to a logger."""
_UNKNOWN_VERSION = "Unsupported Message(Set) MagicByte"
_ENQUEUED = re.compile(
    r"Enqueue (?P<records>\d+) message\(s\) .* on (?P<topic>\S+) \[(?P<partition>\d+)\] fetch queue "
    r".*last_offset (?P<last>-?\d+), (?P<control>\d+) ctrl msgs"
)

Gaps = Sequence[tuple[int, int]]
"""[start, until) of offsets without a message, in offset order."""


class Fetch(msgspec.Struct, frozen=True):
    """One fetch of a partition, according to the client's log.

    Attributes:
        records: Records in it, control records included, from the requested offset on.
        last: The last offset that it covers.
        control: Number of control records among them.
    """

    records: int
    last: int
    control: int


class FetchSteps(ConnectionLog):
    """The log of a client that shows the progress of fetches without a message.

    Attributes:
        steps: Number of such log lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def find_passed(self, place: TopicNamePartition, taken: int) -> int | None:
        """The offset before which no further message of a partition follows; None while unknown.

        Args:
            place: Topic and partition.
            taken: Number of messages that the client has returned of it.
        """
        return None


class FetchLog(FetchSteps):
    """The fetches of a client that reads one partition, from its log lines.

    Attributes:
        fetches: Fetches with at least one record.
        unknown_versions: Number of record batches passed over because of an unknown version.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fetches: list[Fetch] = []
        self.unknown_versions = 0

    def log(self, level: int, form: str, *arguments: object) -> None:
        """A log line; those at the debug level describe fetches."""
        if level > DEBUG_LEVEL:
            super().log(level, form, *arguments)
            return
        line = form % arguments
        if (found := _ENQUEUED.search(line)) is not None:
            self.fetches.append(Fetch(int(found["records"]), int(found["last"]), int(found["control"])))
            self.steps += self.fetches[-1].records > 0
        self.unknown_versions += _UNKNOWN_VERSION in line


_FETCHING = re.compile(r"Fetch topic (?P<topic>\S+) \[(?P<partition>\d+)\] at offset (?P<offset>\d+) ")


class FetchProgress(FetchSteps):
    """A client's progress in each partition of its only assignment, from its log lines.

    The client asks for an offset after it has logged how many messages it has found before that, and returns messages
    in this order. Once that many were returned, no further message precedes the offset.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fetching: dict[TopicNamePartition, int] = {}
        self._found: dict[TopicNamePartition, int] = {}

    def log(self, level: int, form: str, *arguments: object) -> None:
        """A log line; those at the debug level describe fetches."""
        if level > DEBUG_LEVEL:
            super().log(level, form, *arguments)
            return
        line = form % arguments
        if (asked := _FETCHING.search(line)) is not None:
            place = TopicNamePartition(asked["topic"], int(asked["partition"]))
            offset = int(asked["offset"])
            self.steps += self._fetching.get(place) != offset
            self._fetching[place] = offset
        elif (found := _ENQUEUED.search(line)) is not None:
            place = TopicNamePartition(found["topic"], int(found["partition"]))
            self._found[place] = self._found.get(place, 0) + int(found["records"]) - int(found["control"])

    def find_passed(self, place: TopicNamePartition, taken: int) -> int | None:
        """See `FetchSteps.find_passed`."""
        return self._fetching.get(place) if self._found.get(place, 0) == taken else None


class _Prober:
    """A client that shows all of one partition: its messages, committed or not, and the record count of each fetch."""

    def __init__(self, configuration: Configuration, tuning: Tuning) -> None:
        self._log = FetchLog()
        self._tuning = tuning
        shows_all = {"isolation.level": "read_uncommitted", "debug": "msg"}
        self._client = RangeConsumer({**configuration, **shows_all}, self._log, log_level=DEBUG)

    def look(self, whole: Range) -> tuple[list[tuple[int, int]], list[Fetch]] | UnreadableRange:
        """[start, until) of offsets with a message, and the fetches that showed that; earlier results are discarded."""
        self._log.fetches.clear()
        seen: list[tuple[int, int]] = []
        for run in read_ranges(self._client, [whole], self._tuning, self._log):
            if isinstance(run, UnreadableRange):
                return run
            add_offsets(seen, (message.offset() or 0 for message in run.messages))
        return seen, self._log.fetches

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def explain_missing_offsets(
    configuration: Configuration,
    topic: str,
    partition: int,
    gaps: Gaps,
    tuning: Tuning = DEFAULT_TUNING,
    *,
    patient: bool = False,
) -> list[Hole] | UnreadableRange:
    """The gaps with their causes, split at each change of the cause, in offset order.

    "aborted" and "marker" are proven; "unproven" means that nothing explains the offset although the log was read.

    Args:
        configuration: Configuration of a reader.
        topic: Name of the topic.
        partition: Partition number.
        gaps: The offsets.
        tuning: How long and how often the log is read.
        patient: It is waited for longer, as its messages are.

    Returns:
        The gaps; or why the log could not be read: that proves nothing.
    """
    explained: list[Hole] | UnreadableRange = []
    for _ in range(tuning.explain_attempts if gaps else 0):
        whole = Range(topic, partition, gaps[0][0], gaps[-1][1], patient=patient)
        explained = _explained(configuration, whole, gaps, tuning)
        if not isinstance(explained, UnreadableRange):
            break
    return explained


def find_whole_spans(fetches: Iterable[Fetch], start: int) -> Iterator[tuple[int, int]]:
    """[start, until) of the offsets that all contain a record, by consecutive fetches from `start` on."""
    for fetch in fetches:
        if fetch.last >= start:
            if fetch.records == fetch.last + 1 - start:
                yield start, fetch.last + 1
            start = fetch.last + 1


def add_offsets(spans: list[tuple[int, int]], offsets: Iterable[int]) -> None:
    """Add rising offsets to the spans [start, until) of consecutive ones, in place."""
    for at in offsets:
        if spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], at + 1)
        else:
            spans.append((at, at + 1))


def mark_proven(holes: Iterable[Hole], spans: Sequence[tuple[int, int]], cause: str) -> Iterator[Hole]:
    """The holes, of which the unproven parts inside of the spans have a cause; all in offset order."""
    index = 0
    for hole in holes:
        if hole.cause != UNPROVEN:
            yield hole
            continue
        at = hole.start
        while index < len(spans) and spans[index][1] <= at:
            index += 1
        while index < len(spans) and spans[index][0] < hole.until:
            start = max(at, spans[index][0])
            until = min(hole.until, spans[index][1])
            if at < start:
                yield Hole(start=at, until=start, cause=UNPROVEN)
            yield Hole(start=start, until=until, cause=cause)
            at = until
            if spans[index][1] > hole.until:
                break  # the next hole may start inside the span
            index += 1
        if at < hole.until:
            yield Hole(start=at, until=hole.until, cause=UNPROVEN)


def _explained(configuration: Configuration, whole: Range, gaps: Gaps, tuning: Tuning) -> list[Hole] | UnreadableRange:
    """1. Read the whole range once.  2. Read undecided offsets batch by batch.  3. Join neighbours of one cause."""
    holes = [Hole(start=start, until=until, cause=UNPROVEN) for start, until in gaps]
    prober = _Prober(configuration, tuning)
    try:
        looked = prober.look(whole)  # 1
    finally:
        prober.close()
    if isinstance(looked, UnreadableRange):
        return looked
    seen, fetches = looked
    holes = list(mark_proven(holes, seen, "aborted"))
    # An offset with a record but no message is a marker.
    holes = list(mark_proven(holes, list(find_whole_spans(fetches, whole.start)), "marker"))
    markers = _by_batches(configuration, whole, holes, tuning)  # 2
    if isinstance(markers, UnreadableRange):
        return markers
    return list(_join(mark_proven(holes, markers, "marker"), frozenset(start for start, _ in gaps)))  # 3


def _by_batches(
    configuration: Configuration, whole: Range, holes: Sequence[Hole], tuning: Tuning
) -> list[tuple[int, int]] | UnreadableRange:
    """Unproven offsets that fetches of one batch each prove to be markers; or the reason if they could not be read."""
    unproven = [hole for hole in _join(holes, frozenset()) if hole.cause == UNPROVEN][: tuning.probed_runs_max]
    if not unproven:
        return []
    markers = set[int]()
    prober = _Prober({**configuration, **ONE_BATCH}, tuning)
    try:
        for hole in unproven:
            looked = prober.look(msgspec.structs.replace(whole, start=hole.start, until=hole.until))
            if isinstance(looked, UnreadableRange):
                return looked
            markers |= {fetch.last for fetch in looked[1] if fetch.records == fetch.control == 1}
    finally:
        prober.close()
    return [(at, at + 1) for at in sorted(markers)]


def _join(holes: Iterable[Hole], apart: frozenset[int]) -> Iterator[Hole]:
    """The holes; one that follows another of the same cause at once joins it, unless its start is `apart`."""
    last: Hole | None = None
    for hole in holes:
        if last is not None and last.until == hole.start and last.cause == hole.cause and hole.start not in apart:
            last = Hole(start=last.start, until=hole.until, cause=hole.cause)
            continue
        if last is not None:
            yield last
        last = hole
    if last is not None:
        yield last


LOOKS = 2
"""Failures of the first offset, before anything is called corrupt."""
STEPS_MAX = 64
"""Offsets tried one by one, so that nothing readable is passed over; then with increasing steps."""
ONE_BATCH: Configuration = {"fetch.message.max.bytes": 1}
"""The broker returns one whole record batch nevertheless."""


class Readable(msgspec.Struct, frozen=True):
    """Offsets from the requested offset to `offset` are readable: a message is there, or the log ends.

    Attributes:
        offset: Offset of the first message, or the end of the log.
    """

    offset: int


class Corrupt(msgspec.Struct, frozen=True):
    """A fetch from the offset returns a record batch that cannot be parsed."""


Look = Callable[[int], Readable | Corrupt | None]
"""What a fetch from an offset returns; None without an answer from Kafka."""


def find_next_readable(configuration: Configuration, corrupt: Range, tuning: Tuning = DEFAULT_TUNING) -> int | None:
    """The first readable offset from `corrupt.start` on; `corrupt.until` if no earlier offset is readable.

    None without an answer from Kafka.
    """
    probe = _Probe(configuration, corrupt.topic, corrupt.partition, tuning.silence_seconds_max)
    try:
        return find_first_readable(probe.look, corrupt.start, corrupt.until)
    finally:
        probe.close()


def find_first_readable(look: Look, start: int, until: int) -> int | None:
    """See `find_next_readable`. Pure except for `look`."""
    failing = start
    for offset in (*[start] * LOOKS, *range(start + 1, min(until, start + STEPS_MAX))):
        found = look(offset)
        if found is None:
            return None
        if isinstance(found, Readable):
            return start if offset == start else min(found.offset, until)
        failing = offset
    step = STEPS_MAX
    while failing + step < until:
        found = look(failing + step)
        if found is None:
            return None
        if isinstance(found, Readable):
            return _boundary(look, failing, failing + step, min(found.offset, until))
        failing = failing + step
        step = 2 * step
    return _boundary(look, failing, until, until)


def _boundary(look: Look, failing: int, fine: int, end: int) -> int | None:
    """The first readable offset between `failing` and `fine`, whose fetch starts at `end`."""
    while fine - failing > 1:
        middle = (failing + fine) // 2
        match look(middle):
            case Readable(found):
                fine = middle
                end = min(found, end)
            case Corrupt():
                failing = middle
            case None:
                return None
    return end


class _Probe:
    """A client that fetches one record batch of a partition at a time."""

    def __init__(self, configuration: Configuration, topic: str, partition: int, seconds_max: float) -> None:
        self._log = FetchLog()
        self._client = RangeConsumer({**configuration, **ONE_BATCH, "debug": "msg"}, self._log, log_level=DEBUG)
        self._topic = topic
        self._partition = partition
        self._seconds_max = seconds_max

    def look(self, offset: int) -> Readable | Corrupt | None:
        """See `Look`. A broker's unknown error is evidence only if it reads the start of the same log."""
        found = self._fetch(offset)
        if not isinstance(found, ClientError):
            return found
        if found.code() == ClientError.UNKNOWN:
            start = self._fetch(OFFSET_BEGINNING)
            return Corrupt() if isinstance(start, Readable) and start.offset < offset else None
        return Corrupt() if found.code() in _CORRUPT else None

    def _fetch(self, offset: int) -> Readable | Corrupt | ClientError | None:
        """The client skips a batch of an unknown version without an event if the batch starts before the offset."""
        self._log.unknown_versions = 0
        self._client.assign([TopicPartition(self._topic, self._partition, offset)])
        until = time.monotonic() + self._seconds_max
        while time.monotonic() < until:
            for message in self._client.consume(1, POLL_SECONDS):
                error = message.error()
                if error is None or error.code() == ClientError._PARTITION_EOF:  # noqa: SLF001  # the client's name
                    return Readable(max(offset, message.offset() or 0))
                if _ends_range(error):
                    return error
            if self._log.unknown_versions:
                return Corrupt()
        return None

    def close(self) -> None:
        """Close the client."""
        self._client.close()
