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
    # The client refuses a fetch limit below its limit of a message.
    response = max(RESPONSE_BYTES, int(configuration.get("message.max.bytes", 0)))
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
        self._open = dict[TopicNamePartition, int]()
        for index, item in enumerate(ranges):
            if item.start < item.until:
                self._open[TopicNamePartition(item.topic, item.partition)] = index
        self._awaited = set(self._open.values())
        self._finished: list[TopicPartition] = []

    def runs(self) -> Iterator[MessageRun | UnreadableRange]:
        """All runs until every range is done or Kafka stays silent."""
        if not self._open:
            return
        # All ranges at the same time: one after another, each assignment would wait for a separate fetch.
        self._consumer.assign([_assigned(self._ranges[index]) for index in self._awaited])
        silent_since = time.monotonic()
        missing = self._count_missing()
        steps = 0
        while self._awaited:
            # A poll for more than is missing would wait for messages beyond the ranges.
            yield from self._sorted(self._consumer.consume(min(MESSAGES_A_CALL, missing), POLL_SECONDS))
            if self._progress.steps:
                yield from self._pass_over()
            self._stop_fetching()
            missing_before = missing
            missing = self._count_missing()
            steps_before = steps
            steps = self._progress.steps
            # Progress beyond a range must not reset the timeout of the ranges still awaited.
            if missing < missing_before or steps > steps_before:
                silent_since = time.monotonic()
                self._consumer.clear_log()
            elif time.monotonic() - silent_since > (patience := self._patience_seconds()):
                reason = f"nothing was heard of the partition for {patience:g} seconds"
                if explanation := self._consumer.explain_silence():
                    reason += f": {explanation}"
                yield from self._give_up(reason)
                return
        if self._open:  # messages beyond the ranges, only if they are fetched already
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

    def _count_missing(self) -> int:
        """Number of offsets of the awaited ranges that are not read yet."""
        return sum(self._ranges[index].until - self._next[index] for index in self._awaited)

    def _sorted(self, messages: list[Message]) -> Iterator[MessageRun | UnreadableRange]:
        """Messages by range, then the ends of partitions that arrived with them.

        The client returns fetched messages partition by partition, so nearly always all are of one.
        """
        partition = _same_partition(messages)
        if partition is None:
            yield from self._mixed(messages)
        elif partition in self._open:
            yield self._run(self._open[partition], messages)

    def _mixed(self, messages: list[Message]) -> Iterator[MessageRun | UnreadableRange]:
        by_range: dict[int, list[Message]] = {}
        events: list[tuple[int, Message]] = []
        failed: set[int] = set()
        open_ranges = self._open
        # Mapped methods: this loop sees every message, and a bound call costs twice as much.
        places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        for place, error, message in zip(places, map(Message.error, messages), messages, strict=True):
            index = open_ranges.get(place)  # type: ignore[call-overload]  # a plain tuple costs less, for every message
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
        for index, run in by_range.items():
            yield self._run(index, run)
        for index, event in events:
            yield from self._event(index, event)

    def _event(self, index: int, event: Message) -> Iterator[MessageRun | UnreadableRange]:
        error = event.error()
        if error is None or not self._is_open(index):
            return
        is_at_end = error.code() in (ClientError._PARTITION_EOF, *_CORRUPT)  # noqa: SLF001  # the client's name
        if is_at_end and index in self._awaited:
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
        last = _offset(messages[-1])
        is_past = last >= limit - 1
        reached = limit if is_past else last + 1
        if is_past:
            messages = _before(messages, limit)
        gaps = _gaps(messages, start, reached)
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
        finished = self._ranges[index]
        del self._open[TopicNamePartition(finished.topic, finished.partition)]
        self._awaited.discard(index)
        self._finished.append(TopicPartition(finished.topic, finished.partition))

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


def _same_partition(messages: list[Message]) -> TopicNamePartition | None:
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
    count = len(messages)
    while count and _offset(messages[count - 1]) >= until:
        count -= 1
    return messages[:count] if count < len(messages) else messages


def _gaps(messages: list[Message], start: int, end: int) -> list[tuple[int, int]]:
    """Offsets without a message between `start`, the messages, and `end`."""
    # Offsets of a partition only rise: as many messages as offsets leave no gap.
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
"""The debug level of librdkafka."""
DEBUG_LEVEL = 10
"""The debug level that the Python client passes to a logger."""
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
        if (fetched := _ENQUEUED.search(line)) is not None:
            self.fetches.append(Fetch(int(fetched["records"]), int(fetched["last"]), int(fetched["control"])))
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
        self._enqueued: dict[TopicNamePartition, int] = {}

    def log(self, level: int, form: str, *arguments: object) -> None:
        """A log line; those at the debug level describe fetches."""
        if level > DEBUG_LEVEL:
            super().log(level, form, *arguments)
            return
        line = form % arguments
        if (requested := _FETCHING.search(line)) is not None:
            place = TopicNamePartition(requested["topic"], int(requested["partition"]))
            offset = int(requested["offset"])
            self.steps += self._fetching.get(place) != offset
            self._fetching[place] = offset
        elif (fetched := _ENQUEUED.search(line)) is not None:
            place = TopicNamePartition(fetched["topic"], int(fetched["partition"]))
            messages = int(fetched["records"]) - int(fetched["control"])  # no application gets control records
            self._enqueued[place] = self._enqueued.get(place, 0) + messages

    def find_passed(self, place: TopicNamePartition, taken: int) -> int | None:
        """See `FetchSteps.find_passed`."""
        if self._enqueued.get(place, 0) != taken:
            return None  # messages before that offset still wait in the client's queue
        return self._fetching.get(place)


class _Prober:
    """A client that shows all of one partition: its messages, committed or not, and the record count of each fetch."""

    def __init__(self, configuration: Configuration, tuning: Tuning) -> None:
        self._log = FetchLog()
        self._tuning = tuning
        # "read_uncommitted" returns the messages of aborted transactions; "msg" logs each fetch with its records.
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
    if not gaps:
        return explained
    whole = Range(topic, partition, gaps[0][0], gaps[-1][1], patient=patient)
    for _ in range(tuning.explain_attempts):
        explained = _explained(configuration, whole, gaps, tuning)
        if not isinstance(explained, UnreadableRange):
            break
    return explained


def find_whole_spans(fetches: Iterable[Fetch], start: int) -> Iterator[tuple[int, int]]:
    """[start, until) of the offsets that all contain a record, by consecutive fetches from `start` on."""
    for fetch in fetches:
        if fetch.last >= start:  # else a second fetch of the same offsets
            if fetch.records == fetch.last + 1 - start:  # a record for each offset: none is removed
                yield start, fetch.last + 1
            start = fetch.last + 1


def add_offsets(spans: list[tuple[int, int]], offsets: Iterable[int]) -> None:
    """Add rising offsets to the spans [start, until) of consecutive ones, in place."""
    for offset in offsets:
        if spans and spans[-1][1] == offset:
            spans[-1] = (spans[-1][0], offset + 1)
        else:
            spans.append((offset, offset + 1))


def mark_proven(holes: Iterable[Hole], spans: Sequence[tuple[int, int]], cause: str) -> Iterator[Hole]:
    """Replace the unproven parts of holes inside `spans` by proven ones, in offset order."""
    index = 0
    for hole in holes:
        if hole.cause != UNPROVEN:
            yield hole
            continue
        offset = hole.start
        while index < len(spans) and spans[index][1] <= offset:
            index += 1
        while index < len(spans) and spans[index][0] < hole.until:
            start = max(offset, spans[index][0])
            until = min(hole.until, spans[index][1])
            if offset < start:
                yield Hole(start=offset, until=start, cause=UNPROVEN)
            yield Hole(start=start, until=until, cause=cause)
            offset = until
            if spans[index][1] > hole.until:
                break  # the next hole may start inside the span
            index += 1
        if offset < hole.until:
            yield Hole(start=offset, until=hole.until, cause=UNPROVEN)


def _explained(configuration: Configuration, whole: Range, gaps: Gaps, tuning: Tuning) -> list[Hole] | UnreadableRange:
    """1. Read the whole range once.  2. Read undecided offsets batch by batch.  3. Join neighbours of one cause."""
    holes = [Hole(start=start, until=until, cause=UNPROVEN) for start, until in gaps]
    prober = _Prober(configuration, tuning)
    try:
        answer = prober.look(whole)  # 1
    finally:
        prober.close()
    if isinstance(answer, UnreadableRange):
        return answer
    seen, fetches = answer
    holes = list(mark_proven(holes, seen, "aborted"))
    # An offset with a record but no message is a marker.
    holes = list(mark_proven(holes, list(find_whole_spans(fetches, whole.start)), "marker"))
    markers = _by_batches(configuration, whole, holes, tuning)  # 2
    if isinstance(markers, UnreadableRange):
        return markers
    starts = frozenset(start for start, _ in gaps)
    return list(_join(mark_proven(holes, markers, "marker"), starts))  # 3


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
            answer = prober.look(msgspec.structs.replace(whole, start=hole.start, until=hole.until))
            if isinstance(answer, UnreadableRange):
                return answer
            # Of a batch with more records, none tells which offset the control record has.
            markers |= {fetch.last for fetch in answer[1] if fetch.records == fetch.control == 1}
    finally:
        prober.close()
    return [(offset, offset + 1) for offset in sorted(markers)]


def _join(holes: Iterable[Hole], apart: frozenset[int]) -> Iterator[Hole]:
    """Merge adjacent holes of one cause, except at a start in `apart`."""
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


ATTEMPTS = 2
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


Probe = Callable[[int], Readable | Corrupt | None]
"""The result of a fetch from an offset; None without an answer from Kafka."""


def find_next_readable(configuration: Configuration, corrupt: Range, tuning: Tuning = DEFAULT_TUNING) -> int | None:
    """The first readable offset from `corrupt.start` on; `corrupt.until` if no earlier offset is readable.

    None without an answer from Kafka.
    """
    probe = _Probe(configuration, corrupt.topic, corrupt.partition, tuning.silence_seconds_max)
    try:
        return find_first_readable(probe.fetch, corrupt.start, corrupt.until)
    finally:
        probe.close()


def find_first_readable(probe: Probe, start: int, until: int) -> int | None:
    """See `find_next_readable`. Pure except for `probe`."""
    failing = start
    # The start more than once: a batch that was corrupted in transit reads well the next time.
    for offset in (*[start] * ATTEMPTS, *range(start + 1, min(until, start + STEPS_MAX))):
        answer = probe(offset)
        if answer is None:
            return None
        if isinstance(answer, Readable):
            return start if offset == start else min(answer.offset, until)
        failing = offset
    step = STEPS_MAX
    while failing + step < until:
        answer = probe(failing + step)
        if answer is None:
            return None
        if isinstance(answer, Readable):
            return _boundary(probe, failing, failing + step, min(answer.offset, until))
        failing = failing + step
        step = 2 * step
    return _boundary(probe, failing, until, until)


def _boundary(probe: Probe, failing: int, fine: int, end: int) -> int | None:
    """The first readable offset between `failing` and `fine`, whose fetch starts at `end`."""
    while fine - failing > 1:
        middle = (failing + fine) // 2
        match probe(middle):
            case Readable(offset):
                fine = middle
                end = min(offset, end)
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

    def fetch(self, offset: int) -> Readable | Corrupt | None:
        """See `Probe`. A broker's unknown error is evidence only if it reads the start of the same log."""
        answer = self._fetch(offset)
        if not isinstance(answer, ClientError):
            return answer
        if answer.code() == ClientError.UNKNOWN:
            start = self._fetch(OFFSET_BEGINNING)
            return Corrupt() if isinstance(start, Readable) and start.offset < offset else None
        return Corrupt() if answer.code() in _CORRUPT else None

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
