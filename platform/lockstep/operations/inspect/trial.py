"""Tries a stream on real messages: decoder, gate and fold, in a scratch folder that is deleted afterwards.

The messages are those that a first run would read first, even if the stream has read some already; of a stream with an
archive also messages that Kafka has deleted. One task of the
engine folds them, as the first batch would be. Then every integrity class that the messages have evidence for judges
the same messages, so that the declared class can be compared with the others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import pyarrow.parquet as pq

from lockstep.declare.options import FirstSnapshot, Latest
from lockstep.declare.stream import AnyStream, format_source
from lockstep.engine.driver.archived_log import ArchivedBlocks, expand_view, find_archived
from lockstep.engine.driver.lookup_pins import find_lookup_tables, find_newest_versions
from lockstep.engine.driver.planner import BatchPlan, PlanInput, make_batch_identity, plan_batch
from lockstep.engine.driver.run import make_job
from lockstep.engine.driver.subscription import Subscription
from lockstep.engine.executor.archive import ArchiveSource
from lockstep.engine.executor.compiled_stream import CompiledStream, compile_stream
from lockstep.engine.executor.fold import decode_message
from lockstep.engine.executor.message_source import KafkaSource
from lockstep.engine.executor.task import run_task
from lockstep.engine.protocol import JobSpec, PlannedRange, RangeResult, TaskResult, TaskSpec
from lockstep.errors import LockstepError
from lockstep.folds.windows import WindowFold
from lockstep.integrity.base import Halt, IntegrityClass, PartitionTime, Suspend, find_event_time
from lockstep.integrity.best_effort import NoIntegrity
from lockstep.integrity.fuzzy_window import FuzzyWindow
from lockstep.integrity.gate_states import ActiveSession, GateState
from lockstep.integrity.once import Once
from lockstep.integrity.ordered import Ordered
from lockstep.integrity.strict import Linked, LogOnly, Strict
from lockstep.integrity.strict import Sequence as SequenceEvidence
from lockstep.integrity.verdict import UNKNOWN_SESSION, Judgement
from lockstep.kafka.admin import ClusterView
from lockstep.kafka.reader import MessageRun, Range
from lockstep.model.finding import Finding
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position, TopicNamePartition
from lockstep.model.record import Envelope, Kind, Record
from lockstep.operations.durations import format_count
from lockstep.operations.inspect.spellings import KeySpellings
from lockstep.operations.inspect.whole_tables import find_large_state, find_reason
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import try_read_head
from lockstep.settings import Settings
from lockstep.state.changelog import make_state_version
from lockstep.storage import find_storage
from lockstep.table.archive import read_blocks
from lockstep.table.commit import Writer
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders

SAMPLE_ROWS = 5
LATENESS_MAX = timedelta(days=1)
"""Event times further apart are of several clocks: no window of them is worth a comparison."""
REMEMBERED_IDS = 1_000
"""`Once.keep_ids` of the comparison."""


class NothingToTry(LockstepError):
    """The stream selects no topic, or its topics hold no message from where it would start."""

    def __init__(self, stream: str, where: str) -> None:
        super().__init__(
            f"stream {stream} has no message to try in {where}",
            next_step=f"lockstep topics {stream} shows what Kafka holds",
        )


class TriedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one partition.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        start: First offset read.
        until: First offset not folded: the end of the tried messages, or of those that the class lets through.
        messages: Messages folded.
        rows: Rows emitted.
        finding: The violation that would halt the stream here; None without one.
    """

    topic: str
    partition: int
    start: int
    until: int
    messages: int
    rows: int
    finding: Finding | None


class TriedClass(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts of one integrity class on the same messages.

    Attributes:
        declaration: The class as source text.
        broken: Messages that break its promise: under `Halt` the first of them stops the stream.
        remarks: Messages by judgement and cause, without those that are accepted without a remark.
    """

    declaration: str
    broken: int
    remarks: dict[str, int]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trial.

    Attributes:
        stream: Name of the stream.
        messages: Messages folded.
        sessions: Sessions among them.
        undecodable: Messages that cannot be decoded, or from which no envelope can be extracted.
        counts: Messages by outcome, as in the ledger.
        rows: Rows emitted.
        microseconds_per_message: CPU time of the task per message, in microseconds; start-up of the reader included.
        partitions: Partitions, by topic and number.
        sample: The first rows.
        declared: The declared class, on all messages.
        others: Other classes that the messages have evidence for, strongest first.
        advice: What to change, or to know, in sentences.
    """

    stream: str
    messages: int
    sessions: int
    undecodable: int
    counts: MessageCounts
    rows: int
    microseconds_per_message: float
    partitions: tuple[TriedPartition, ...]
    sample: tuple[dict[str, object], ...]
    declared: TriedClass
    others: tuple[TriedClass, ...]
    advice: tuple[str, ...]


Envelopes = list[tuple[Envelope, Record]]
"""The messages of one partition that can be decoded, in order."""


class _Read(msgspec.Struct):
    """All messages of a trial: by partition, and those that are none."""

    partitions: list[tuple[Position, Envelopes]]
    keys: KeySpellings
    undecodable: int = 0

    def has_all(self, name: str) -> bool:
        """Whether each message that is not skipped has this part."""
        for _, envelopes in self.partitions:
            for envelope, _ in envelopes:
                if envelope.kind is not Kind.SKIP and getattr(envelope, name) is None:
                    return False
        return True


def try_stream(stream: AnyStream, settings: Settings, *, messages_max: int, topic: str | None = None) -> Trial:
    """Fold the first messages of a stream as its first batch would, and write nothing outside of a scratch folder.

    Args:
        stream: The declaration; if it starts with `Latest`, the oldest messages are tried instead.
        settings: Addresses of Kafka and the schema registry.
        messages_max: Most messages, shared among the partitions as in a batch.
        topic: Only this topic.

    Raises:
        NothingToTry: No message exists.
        KafkaError: Kafka does not answer.
        SettingsError: The decoder needs a schema registry, and none is set.
        LookupUnusable: A lookup table is missing, or is not as declared.
        TableError: The archive or the ledger of a stream with an archive is damaged.
    """
    if isinstance(stream.topics.start, Latest):
        # Of a stream that starts at the end of its topics, a first batch would have no messages.
        stream = replace(stream, topics=replace(stream.topics, start=FirstSnapshot()))
    pinned = find_newest_versions(stream, StreamFolders(stream.name, settings.table_root))
    # Tables, states and local files of the trial: nothing is written outside of it.
    with TemporaryDirectory(prefix="lockstep-try-") as folder:
        scratch = Path(folder)
        folders = {"table_root": scratch / "tables", "local_root": scratch / "local"}
        handle = StreamHandle(stream, settings.model_copy(update=folders))
        archived = _read_archived(stream, handle, StreamFolders(stream.name, settings.table_root))
        plan = _plan(handle, messages_max, topic, archived)
        lookups = find_lookup_tables(stream, settings.table_root)  # the others of its tables are in the scratch folder
        job = msgspec.structs.replace(make_job(stream, handle.settings, handle.folders), lookups=lookups)
        # One version of each lookup for all tasks, as in a real batch.
        batch = msgspec.structs.replace(plan.batch, lookups=pinned)
        results = [run_task(job, TaskSpec(batch, ranges)) for ranges in plan.bins]
        sample = tuple(_sample_rows(job, results))
        large = tuple(_advise_on_state(stream, job, results))
        planned = list[PlannedRange]()
        for ranges in plan.bins:
            planned += ranges
        read = _read(job, planned, compile_stream(stream, job.registry), KeySpellings(stream.transform))
    trial = _report(stream, results, read, sample)
    return msgspec.structs.replace(trial, advice=(*large, *trial.advice))


class _Archived(msgspec.Struct, frozen=True):
    """The view of Kafka with the archive of a stream as the older part of each log.

    Attributes:
        folder: Folder of the archive.
        view: The view.
        blocks: The archived offsets.
    """

    folder: Path
    view: ClusterView
    blocks: ArchivedBlocks


def _read_archived(stream: AnyStream, handle: StreamHandle, folders: StreamFolders) -> _Archived:
    """Read the archive of a stream, if it is declared."""
    head = None
    if stream.archive is not None:
        head = try_read_head(folders)
    cut = dict.fromkeys((key for key, ends in handle.view.ends.items() if ends.start > 0), 0)
    blocks: ArchivedBlocks = {}
    if head is not None and cut:  # only of a log whose first offsets Kafka has deleted
        blocks = read_blocks(folders, head, cut)
    return _Archived(folders.archive, expand_view(handle.view, blocks), blocks)


def _plan(handle: StreamHandle, messages_max: int, topic: str | None, archived: _Archived) -> BatchPlan:
    """The first batch of a first run, on one core."""
    view = archived.view
    positions = Subscription({}, view, frozenset(), handle.find_joined(view)).positions.values()
    head = Head(stream=handle.stream.name, cluster_id=handle.view.cluster_id)
    plan = plan_batch(
        PlanInput(
            batch=make_batch_identity(Writer(epoch=0, generation=0), head, time.time_ns() // 1_000),
            positions=tuple(each for each in positions if topic in {None, each.topic}),
            ends=view.ends,
            messages_max=messages_max,
            cores=1,
        )
    )
    if not plan.bins:
        what = f"any topic that matches {handle.stream.topics.pattern}"
        if topic:
            what = f"topic {topic}"
        raise NothingToTry(handle.stream.name, what)
    locate = partial(find_archived, archived.folder, view, archived.blocks)
    return msgspec.structs.replace(plan, bins=tuple(tuple(map(locate, group)) for group in plan.bins))


def _sample_rows(job: JobSpec, results: Sequence[TaskResult]) -> Iterator[dict[str, object]]:
    """The first rows, without the columns of the proof."""
    for row in islice(_iterate_rows(job, results), SAMPLE_ROWS):
        yield {name: value for name, value in row.items() if not name.startswith("_")}


def _iterate_rows(job: JobSpec, results: Sequence[TaskResult]) -> Iterator[dict[str, object]]:
    """All rows; a file is read when its first row is asked for."""
    storage = find_storage(job.table)
    for file in chain.from_iterable(result.files for result in results):
        yield from pq.ParquetFile(storage.open_source(job.table / file.path)).read().to_pylist()


def _read(job: JobSpec, ranges: Sequence[PlannedRange], compiled: CompiledStream, keys: KeySpellings) -> _Read:
    """The same messages again, decoded, and past every violation."""
    read = _Read([(planned_range.position, []) for planned_range in ranges], keys)
    places = list[Range]()
    planned = dict[TopicNamePartition, PlannedRange]()
    for planned_range in ranges:
        start = planned_range.position
        places.append(Range(start.topic, start.partition, start.next_offset, planned_range.until))
        planned[TopicNamePartition(start.topic, start.partition)] = planned_range
    for run in ArchiveSource(KafkaSource(job.kafka, job.tuning), planned).read(places):
        if not isinstance(run, MessageRun):
            continue
        position, envelopes = read.partitions[run.index]
        for message in run.messages:
            record = Record(position.topic, position.topic_id, position.partition, message.offset() or 0, message)
            try:
                body = decode_message(record.source, compiled)
                envelope = compiled.envelope(body, record)
            except LockstepError:
                raise  # the registry does not answer: no evidence about the message
            except Exception:  # noqa: BLE001  # the user's decoder and `envelope`: any error of theirs is a count here
                read.undecodable += 1
                continue
            envelopes.append((envelope, record))
            if envelope.kind not in {Kind.SKIP, Kind.END}:
                keys.note(envelope.session, body)
    return read


def _compare(integrity: IntegrityClass, read: _Read) -> TriedClass:
    """The verdicts of a class on all messages: after a broken promise, a session continues at its next snapshot."""
    suspending = replace(integrity, on_violation=Suspend())
    remarks: Counter[str] = Counter()
    broken = 0
    for position, envelopes in read.partitions:
        for remark in _judge(suspending, position, envelopes):
            remarks[remark.text] += 1
            broken += remark.is_broken
    return TriedClass(declaration=format_source(integrity), broken=broken, remarks=dict(remarks.most_common()))


_BROKEN = (Judgement.SUSPEND, Judgement.VIOLATION, Judgement.QUARANTINE)


class _Remark(NamedTuple):
    """A remark on a message, as "judgement: cause", and whether the message breaks the promise."""

    text: str
    is_broken: bool


def _judge(integrity: IntegrityClass, position: Position, envelopes: Envelopes) -> Iterator[_Remark]:
    """The remarks of a class that suspends on one partition. A snapshot may end a suspension that it breaks itself."""
    clock = PartitionTime()
    spread = any(envelope.kind is Kind.SNAPSHOT_PART for envelope, _ in envelopes)
    gate = integrity.gate_for(0, clock, spread=spread, joined=position.joined_at > 0)
    halts = replace(integrity, on_violation=Halt())
    halting = halts.gate_for(0, clock, spread=spread, joined=position.joined_at > 0)
    adapt = halts.make_state_adapter(0)
    states: dict[str, GateState] = {}
    for envelope, record in envelopes:
        if envelope.kind is Kind.SKIP:
            continue
        clock.advance(find_event_time(envelope, record))
        before = states.get(envelope.session)
        after, verdict = gate.check(before, envelope, record)
        if verdict.judgement in _CHANGES_SESSION:
            states[envelope.session] = after
        if envelope.kind is Kind.END and verdict.judgement is Judgement.ACCEPT:
            del states[envelope.session]
        if verdict.cause:
            is_broken = verdict.judgement in _BROKEN
            if isinstance(before, ActiveSession):
                is_broken |= halting.check(adapt(before), envelope, record)[1].judgement is Judgement.VIOLATION
            yield _Remark(f"{verdict.judgement.value}: {verdict.cause}", is_broken)


_CHANGES_SESSION = (Judgement.ACCEPT, Judgement.BUFFER, Judgement.SUSPEND, Judgement.QUARANTINE)


def _list_candidates(read: _Read) -> Iterator[IntegrityClass]:
    """The classes that the messages have evidence for, strongest first."""
    if read.has_all("sequence"):
        yield Strict(evidence=SequenceEvidence())
    if read.has_all("link"):
        yield Strict(evidence=Linked())
    yield Strict(evidence=LogOnly())
    if (lateness := _find_lateness(read)) <= LATENESS_MAX:
        yield FuzzyWindow(lateness=lateness, reorder=read.has_all("sequence"))
    yield Ordered()
    if read.has_all("id"):
        yield Once(keep_ids=REMEMBERED_IDS)
    yield NoIntegrity()


def _find_lateness(read: _Read) -> timedelta:
    """The delay of a message's event time behind the newest before it, in whole seconds, at least one."""
    worst_us = 0
    for _, envelopes in read.partitions:
        newest_us = 0
        for envelope, record in envelopes:
            at_us = find_event_time(envelope, record)
            newest_us = max(newest_us, at_us)
            worst_us = max(worst_us, newest_us - at_us)
    return timedelta(seconds=max(1, -(-worst_us // 1_000_000)))


def _report(
    stream: AnyStream, results: Sequence[TaskResult], read: _Read, sample: tuple[dict[str, object], ...]
) -> Trial:
    unsorted = chain.from_iterable(result.ranges for result in results)
    ranges = sorted(unsorted, key=lambda result: result.range.position.topic)
    messages = sum(each.counts.messages for each in ranges)
    # Each class judges the same messages, so that they can be compared.
    declared = _compare(stream.integrity, read)
    start = stream.integrity.session_start
    compared = [_compare(replace(each, session_start=start), read) for each in _list_candidates(read)]
    others = tuple(each for each in compared if each.declaration != declared.declaration)
    cpu = sum(result.cpu_seconds for result in results)
    return Trial(
        stream=stream.name,
        messages=messages,
        sessions=_count_sessions(ranges, read),
        undecodable=read.undecodable,
        counts=_add_counts(ranges),
        rows=sum(each.rows for each in ranges),
        microseconds_per_message=cpu / max(1, messages) * 1e6,
        partitions=tuple(_make_partition(each) for each in ranges),
        sample=sample,
        declared=declared,
        others=others,
        advice=(
            *_advise_on_windows(stream, ranges),
            *_advise_on_keys(ranges, read.keys),
            *_advise(stream.integrity, ranges, read, declared, others),
        ),
    )


def _count_sessions(ranges: Sequence[RangeResult], read: _Read) -> int:
    """Sessions of the messages that were folded: a violation or refused messages end a range early."""
    ends = {(each.range.position.topic_id, each.range.position.partition): each.reached.next_offset for each in ranges}
    sessions = set[str]()
    for _, envelopes in read.partitions:
        for envelope, record in envelopes:
            if record.offset < ends.get((record.topic_id, record.partition), 0):
                sessions.add(envelope.session)
    return len(sessions)


def _make_partition(result: RangeResult) -> TriedPartition:
    position = result.range.position
    return TriedPartition(
        topic=position.topic,
        partition=position.partition,
        start=position.next_offset,
        until=result.reached.next_offset,
        messages=result.counts.messages,
        rows=result.rows,
        finding=result.finding,
    )


def _add_counts(ranges: Iterable[RangeResult]) -> MessageCounts:
    return MessageCounts.add_up(each.counts for each in ranges)


def _advise_on_state(stream: AnyStream, job: JobSpec, results: Sequence[TaskResult]) -> Iterator[str]:
    """A large table that is saved whole."""
    reason = find_reason(stream)
    ranges = chain.from_iterable(result.ranges for result in results)
    versions = [make_state_version(0, each.reached) for each in ranges]
    if reason is None:
        return
    large = find_large_state(job.state, versions)
    if large is not None:
        yield f"Session {large.session!r} has a state of {large.bytes:,} B; {reason}"


def _advise_on_windows(stream: AnyStream, ranges: Sequence[RangeResult]) -> Iterator[str]:
    """Why a stream of windows has no row yet."""
    fold = stream.transform
    counts = _add_counts(ranges)
    if isinstance(fold, WindowFold) and counts.messages > counts.refused and not any(each.rows for each in ranges):
        windows = format_source(fold.windows)
        yield f"No window has closed: a row is written when one of {windows} closes; try more messages"


def _advise_on_keys(ranges: Sequence[RangeResult], keys: KeySpellings) -> Iterator[str]:
    """Keys of a table that may be another number, or none that is there."""
    if (found := keys.found) is not None:
        yield (
            f"Two spellings of one number were keys of session {found.session!r}: {found.first!r} and "
            f"{found.second!r} are two rows; make the key a number by DecimalType.canonical"
        )
    if absent := _add_counts(ranges).absent_removals:
        removals = format_count(absent, "removal")
        yield f"{removals} of keys that were not there: normal for some feeds, else a sign of keys in several spellings"


def _compare_policies(integrity: IntegrityClass, ranges: Sequence[RangeResult], declared: TriedClass) -> str:
    """The result of each policy on the violations of the messages tried."""
    topics = {each.range.position.topic for each in ranges}
    broken = {each.range.position.topic for each in ranges if each.finding is not None}
    others = format_count(len(topics - broken), "other topic")
    messages = format_count(declared.broken, "message")
    policy = format_source(integrity.on_violation)
    return (
        f"on_violation={policy} is declared: Halt() stops the stream; Halt(HaltScope.TOPIC) halts "
        f"{format_count(len(broken), 'topic')} and reads {others} on; Suspend() continues: the sessions of "
        f"{messages} that break the promise wait for their next snapshots"
    )


def _describe_early_end(ranges: Sequence[RangeResult]) -> str:
    if any(each.trouble for each in ranges):
        return "; a batch ends early at so many, and the rest was not folded"
    return ""


def _advise(
    integrity: IntegrityClass,
    ranges: Sequence[RangeResult],
    read: _Read,
    declared: TriedClass,
    others: Sequence[TriedClass],
) -> Iterator[str]:
    finding = next((each.finding for each in ranges if each.finding is not None), None)
    if finding is not None:
        yield f"The stream would halt: {finding}"
        yield _compare_policies(integrity, ranges, declared)
    counts = _add_counts(ranges)
    if counts.refused:
        yield (
            f"{counts.refused} of {counts.messages} messages would go to quarantine: they cannot be decoded, the "
            f"transform raises or an inline rule refuses them{_describe_early_end(ranges)}"
        )
    cut = [each for each in ranges if each.range.position.next_offset > 0 and not each.range.position.joined_at]
    if cut and any(UNKNOWN_SESSION in remark for remark in declared.remarks):
        yield (
            f"Retention has deleted the first messages of {len(cut)} partitions, and sessions have no snapshot there: "
            "declare Topics(start=FirstSnapshot())"
        )
    if read.undecodable:
        yield f"{read.undecodable} messages cannot be decoded or have no envelope: compare the decoder with them"
    fitting = next((each.declaration for each in others if not each.broken), None)
    if declared.broken and fitting is not None:
        yield f"{declared.declaration} is broken by {declared.broken} messages; {fitting} holds on all of them"
    if not declared.broken:
        yield f"{declared.declaration} holds on all messages tried"
    numbered = format_source(Strict(evidence=SequenceEvidence()))
    by_log = isinstance(integrity, Strict) and integrity.evidence == LogOnly()
    if by_log and any(each.declaration == numbered and not each.broken for each in others):
        yield f"The messages are numbered without a gap: {numbered} also proves what the producer sent"
