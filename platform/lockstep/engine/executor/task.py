"""Runs a task: from planned ranges to a result.

A task is deterministic: no clock, no random number, no order of a set reaches a row, so that a
retried task writes the same rows for the same offsets. File names differ, and the end of a live range does, which is
the newest message at the time of reading; only one result of a task counts.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import msgspec
import pyarrow as pa

from lockstep.declare.decoders.base import DecodeCause
from lockstep.declare.lookup import bind_lookups
from lockstep.engine.executor.archive import ArchiveBuffer, ArchiveSource, RangeToArchive, collect_archived
from lockstep.engine.executor.attempt import Attempt
from lockstep.engine.executor.collector import CollectorSchedule
from lockstep.engine.executor.compiled_stream import CompiledStream, compile_pickled
from lockstep.engine.executor.fold import DECODE_ERRORS, RangeFold, decode_message
from lockstep.engine.executor.limits import EngineLimit, describe_error, find_limit
from lockstep.engine.executor.lookup_table import LookupCache
from lockstep.engine.executor.message_source import KafkaSource, MessageSource
from lockstep.engine.executor.outcome import BufferFull, FoldCompleted, FoldOutcome, FoldStopped, MessageFailed
from lockstep.engine.executor.rejects import Exclusions, Message, QuarantineBuffer
from lockstep.engine.executor.row_buffer import CHUNK_ROWS, RowRoom, RowSpace, encode_few
from lockstep.engine.executor.sessions import count_digests
from lockstep.engine.executor.worker_memory import MemoryWatch
from lockstep.engine.protocol import JobSpec, PlannedRange, RangeResult, TaskFailure, TaskResult, TaskSpec
from lockstep.errors import EnvironmentProblem, LockstepError, StateError
from lockstep.integrity.base import to_microseconds
from lockstep.integrity.gate_states import GateState
from lockstep.integrity.suspension import list_skips_without_snapshot, list_unread_skips
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.reader import MessageRun, Range, UnreadableRange
from lockstep.kafka.timestamps import NO_TIMESTAMP_MS, is_plausible_timestamp
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding, Hole
from lockstep.model.position import Position, SegmentRef, SuspendedSession, TopicIdPartition, TopicNamePartition
from lockstep.model.record import KafkaMessage
from lockstep.state.changelog import StateFileWriter, make_state_version
from lockstep.state.codec import StateNotOfItsType
from lockstep.state.decoded_sessions import SessionCache
from lockstep.state.local_store_pool import OF_THIS_PROCESS, LocalStorePool
from lockstep.state.store import PartitionState
from lockstep.storage import require_writable_folder
from lockstep.table.archive import ArchivedRange, write_archive
from lockstep.table.head import SideFile
from lockstep.table.parquet import DataFile, write_file
from lockstep.table.quarantine import QuarantineRow, write_quarantine
from lockstep.table.written_by import WrittenBy

AHEAD_MESSAGES_MAX = 10_000
"""Messages scanned after the first undecodable one: at some microseconds each, less than the next poll of Kafka."""
AHEAD_BYTES_MAX = 64_000_000
"""Bytes of their values."""
REFUSED_MAX = 8
"""Each refused message costs another fold of the range; past this number the range ends early."""


TIMESTAMPS_STEP = 64
"""Of so many messages the timestamp of one is examined: a producer with a wrong clock is wrong for long."""


class FoldBounds(msgspec.Struct, frozen=True):
    """The bounds of one fold of a range, with the known facts about its end.

    Attributes:
        until: End of the fold.
        without: Messages to leave out, and suspensions.
        holes: Offsets without a message, with causes.
        finding: The violation at its end.
        trouble: Reason for an end there without a violation.
        passes_to: The first offset after corrupt batches there, if these are skipped.
        beyond: Number of further offsets that it takes if they have arrived already.
    """

    until: int
    without: Exclusions
    holes: tuple[Hole, ...] = ()
    finding: Finding | None = None
    trouble: str | None = None
    passes_to: int | None = None
    beyond: int = 0


class RangeInProgress(msgspec.Struct):
    """A range in processing: one fold of it.

    Attributes:
        planned: The range as planned.
        bounds: What this fold covers.
        state: State of the partition.
        fold: Rows, rejected messages, and the outcome.
        buffer: Its messages, for the archive; None if they are not archived.
        reached: First offset that was not read.
        gaps: Offsets without a message.
        leader_epoch: Leader epoch of the last record; None without one.
        newest_timestamp_ms: Kafka's timestamp of the last record with a plausible one; None without any.
        unreadable: Why the range was not read to its end.
        is_full: It ended earlier, after a whole message: its rows, or rejected messages, are as many as they may be.
        cpu_seconds: CPU time of fold and state.
    """

    planned: PlannedRange
    bounds: FoldBounds
    state: PartitionState[object]
    fold: RangeFold
    buffer: ArchiveBuffer | None
    reached: int
    gaps: list[tuple[int, int]] = []
    leader_epoch: int | None = None
    newest_timestamp_ms: int | None = None
    unreadable: UnreadableRange | None = None
    is_full: bool = False
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class RangeOpener:
    """Opens state and fold of a range; closed with the task.

    Attributes:
        job: What all tasks of the run share.
        log: Source of the messages.
        generation: The lineage of batches.
        local_stores: The local stores of its state.
        stack: Closes everything that was opened.
        latest_us: Later event times are rejected as absurd.
        attempt: What this try of the task reads, and how.
        space: The rows of the task.
        messages: The messages of the task, for the archive; None if they are not archived.
    """

    job: JobSpec
    log: MessageSource
    generation: int
    local_stores: LocalStorePool
    stack: ExitStack
    latest_us: int
    attempt: Attempt
    space: RowSpace
    messages: RowSpace | None = None

    @property
    def compiled(self) -> CompiledStream:
        """The stream."""
        return self.attempt.compiled

    def open(self, planned: PlannedRange, bounds: FoldBounds | None = None) -> RangeInProgress:
        """A range, ready to fold: as it was planned, or within narrower bounds."""
        position = planned.position
        bounds = bounds or self._make_bounds(planned)
        version = make_state_version(self.generation, position)
        state = self.stack.enter_context(
            PartitionState.open(
                version, durable=self.job.state, local_stores=self.local_stores, schema=self.compiled.state
            )
        )
        fold = RangeFold(
            self.compiled,
            position,
            state,
            bounds.without,
            self.latest_us,
            judges_panics=self.attempt.judges_panics,
            room=RowRoom(self.space, self.space.rows_bytes * self.attempt.find_share(planned)),
        )
        buffer: ArchiveBuffer | None = None
        if self.messages is not None:
            buffer = ArchiveBuffer(position.archived_until or 0, self.messages)
        return RangeInProgress(planned, bounds, state, fold, buffer, position.next_offset)

    def _make_bounds(self, planned: PlannedRange) -> FoldBounds:
        key = planned.position.key
        attempt = self.attempt
        without = Exclusions(killing=planned.killing, unstorable=attempt.unstorable.get(key, frozenset()))
        if key not in attempt.ends:
            return FoldBounds(planned.until, without, beyond=planned.beyond)
        until = attempt.ends[key]
        return FoldBounds(until, without, trouble=attempt.trouble if until < planned.until else None)


def read_and_fold(opener: RangeOpener, ranges: list[RangeInProgress]) -> None:
    """Read all ranges at once and fold the messages, range by range in offset order."""
    for work in ranges:
        with name_partition(work.planned.position):
            work.fold.begin()
    _read_runs(opener, ranges)
    for work in ranges:
        if work.bounds.passes_to is not None and work.reached == work.bounds.until:
            work.reached = work.bounds.passes_to
        with name_partition(work.planned.position):
            if work.planned.watermark_us is not None and work.bounds.finding is None:
                work.fold.advance(work.planned.watermark_us)
    # Before the folds finish, each of which would encode its few rows as a separate batch.
    encode_few(work.fold.emission for work in ranges)
    for work in ranges:
        with name_partition(work.planned.position):
            work.fold.finish(work.reached)
        work.bounds = msgspec.structs.replace(work.bounds, until=max(work.bounds.until, work.reached), beyond=0)


@contextmanager
def name_partition(position: Position) -> Generator[None]:
    """An error of a state names the topic and the partition: sessions of several topics may have the same name."""
    try:
        yield
    except StateError as error:
        error.problem = f"{position.topic}/{position.partition}: {error.problem}"
        raise


def _read_runs(opener: RangeOpener, ranges: Sequence[RangeInProgress]) -> None:
    waiting = WaitingRows(opener.space.memory_bytes, ranges)
    moving = [work for work in ranges if work.bounds.until > work.planned.position.next_offset]
    for run in opener.log.read([_range(work) for work in moving]):
        work = moving[run.index]
        if work.is_full:  # its next messages are read again in the next batch
            continue
        if isinstance(run, UnreadableRange):
            work.unreadable = run
            continue
        is_full = _fold_run(work, run)
        waiting.note(run.messages)
        if is_full and all(other.is_full for other in moving):
            break


class WaitingRows:
    """Rows that wait for others before they are encoded: their messages have a bounded number of bytes."""

    def __init__(self, bytes_max: int, ranges: Sequence[RangeInProgress]) -> None:
        self._bytes_max = bytes_max
        self._ranges = ranges
        self._bytes = 0

    def note(self, messages: Sequence[Message]) -> None:
        """Note folded messages; past the bound, encode the rows of all ranges."""
        if not 0 < len(messages) < CHUNK_ROWS:  # more of them are encoded already, but for a part of one response
            return
        values = map(type(messages[0]).value, messages)  # mapped: a call of each message's method costs twice as much
        self._bytes += sum(map(len, filter(None, values)))
        if self._bytes > self._bytes_max:
            encode_few(work.fold.emission for work in self._ranges)
            for work in self._ranges:
                work.fold.flush()
            self._bytes = 0


def _fold_run(work: RangeInProgress, run: MessageRun) -> bool:
    """Fold messages; returns whether the range is full after one of them."""
    started = time.process_time()
    with name_partition(work.planned.position):
        work.fold.fold(run.messages)
    outcome = work.fold.outcome
    if isinstance(outcome, BufferFull):
        run = _end_run(run, outcome.offset)
        work.is_full = True
        work.bounds = msgspec.structs.replace(work.bounds, until=outcome.offset, beyond=0, trouble=outcome.problem)
    work.gaps += run.gaps
    work.reached = run.reached
    work.fold.counts.messages += len(run.messages)
    if work.buffer is not None:
        work.buffer.add(run.messages)
    if run.messages:
        _note_timestamps(work, run.messages)
    work.leader_epoch = _find_covering_epoch(work, run)
    work.cpu_seconds += time.process_time() - started
    return work.is_full


def _end_run(run: MessageRun, until: int) -> MessageRun:
    """The part of a run before an offset."""
    messages = [message for message in run.messages if (message.offset() or 0) < until]
    gaps = [(start, min(end, until)) for start, end in run.gaps if start < until]
    return MessageRun(run.index, messages, gaps, min(run.reached, until))


def _note_timestamps(work: RangeInProgress, messages: Sequence[Message]) -> None:
    """Note the newest timestamp that freshness can use, and count those that no clock can have shown.

    Reading the timestamp of each message costs a fiftieth of a task, so some are examined; if one of them is
    absurd, all.
    """
    latest_ms = work.fold.time.latest_us // 1000
    times_ms = [message.timestamp()[1] for message in (*messages[::TIMESTAMPS_STEP], messages[-1])]
    if not all(is_plausible_timestamp(time_ms, latest_ms) for time_ms in times_ms):
        all_ms = [message.timestamp()[1] for message in messages]
        times_ms = [time_ms for time_ms in all_ms if is_plausible_timestamp(time_ms, latest_ms)]
        without = all_ms.count(NO_TIMESTAMP_MS)
        work.fold.counts.absurd_timestamps += len(all_ms) - len(times_ms) - without
    if times_ms:
        work.newest_timestamp_ms = times_ms[-1]


def _find_covering_epoch(work: RangeInProgress, run: MessageRun) -> int | None:
    """A leader epoch that covers the end of the range, so that a shorter log is a truncated one.

    A control record at the end may be of a newer leader than the last message; of none newer than the plan knew.
    """
    epochs = [work.leader_epoch]
    if run.messages:
        epochs = [run.messages[-1].leader_epoch()]
    if run.gaps and run.gaps[-1][1] == run.reached:  # the range ends in a gap
        epochs.append(work.planned.leader_epoch)
    # A record without an epoch has None or -1.
    return max((epoch for epoch in epochs if epoch is not None and epoch >= 0), default=None)


def _range(work: RangeInProgress) -> Range:
    position = work.planned.position
    return Range(
        position.topic,
        position.partition,
        position.next_offset,
        work.bounds.until,
        position.leader_epoch,
        work.planned.single_batches,
        work.planned.patient,
        work.bounds.beyond,
    )


class UndecodableRun(msgspec.Struct):
    """Scan of a sequence of undecodable messages.

    Attributes:
        until: First offset after the last undecodable message.
        looked: First offset that was not scanned.
        messages: Messages scanned, the first included.
        undecodable: Those of them that cannot be decoded.
    """

    until: int
    looked: int
    messages: int = 1
    undecodable: int = 1


def expand_finding(work: RangeInProgress, opener: RangeOpener) -> Finding | None:
    """An undecodable-message finding, extended to the range of all that follow as planned; others unchanged.

    A finding for each message would require an operator to resume once per message.
    """
    finding = work.bounds.finding
    if finding is None or finding.cause != Fault.UNDECODABLE or finding.detail == DecodeCause.CRASHES_WORKER:
        return finding
    seen = UndecodableRun(until=finding.until, looked=finding.until)
    for message in _following(finding, work, opener):
        decodes = _decodes(message, opener.compiled)
        if decodes is None:
            break
        offset = message.offset() or 0
        seen.messages = seen.messages + 1
        seen.looked = offset + 1
        if not decodes:
            seen.undecodable = seen.undecodable + 1
            seen.until = offset + 1
    if seen.undecodable == 1:
        return finding
    counted = f"{seen.undecodable} of {seen.messages} messages cannot be decoded"
    detail = f"{finding.detail}; {counted}; scanned up to offset {seen.looked - 1}"
    return msgspec.structs.replace(finding, until=seen.until, detail=detail)


def _following(finding: Finding, work: RangeInProgress, opener: RangeOpener) -> Iterator[Message]:
    """The messages after the first, as far as one scan reaches."""
    position = work.planned.position
    size = 0
    until = min(work.planned.until, finding.until + AHEAD_MESSAGES_MAX)
    for run in opener.log.ahead(Range(position.topic, position.partition, finding.until, until)):
        if not isinstance(run, MessageRun):
            return
        for message in run.messages:
            size += len(message.value() or b"")
            if size > AHEAD_BYTES_MAX:
                return
            yield message


def _decodes(message: Message, compiled: CompiledStream) -> bool | None:
    """Whether a message can be decoded; None if that cannot be determined now."""
    try:
        decode_message(cast("KafkaMessage", message), compiled)
    except LockstepError:
        return None  # the registry does not answer: no evidence about the message
    except DECODE_ERRORS:
        return False
    except Exception:  # noqa: BLE001  # the user's decoder: its errors are neither a verdict nor a reason not to halt
        return None
    return True


def finalize_range(work: RangeInProgress, opener: RangeOpener) -> RangeInProgress:
    """Finalize a range: fold it again within narrower bounds until the result can be committed.

    1. Explain every missing offset; a class that suspends does so before the records after an unexplained gap. If
       Kafka does not answer, the range ends before the first.
    2. Narrow the bounds by the outcome of each fold, until one is complete.
    3. Scan how far undecodable messages at its end go.
    4. Judge corrupt batches on the broker as one undecodable range.

    A fold is deterministic, so each fold repeats all findings of the previous fold, and adds at most one.
    """
    bounds = explain_gaps(work, opener)  # 1
    if bounds.without == work.bounds.without and bounds.until == work.bounds.until:
        work.bounds = bounds
    else:
        work = _fold_again(work, opener, bounds)
    while (narrower := narrow_bounds(work.bounds, _find_outcome(work, opener.compiled))) is not None:  # 2
        work = _fold_again(work, opener, narrower)
    finding = expand_finding(work, opener)  # 3
    trouble = work.bounds.trouble if work.unreadable is None else work.unreadable.reason
    work.bounds = msgspec.structs.replace(work.bounds, finding=finding, trouble=trouble)
    if work.unreadable is None or not work.unreadable.is_corrupt:
        return work
    return _without_corrupt(work, opener)  # 4


def explain_gaps(work: RangeInProgress, opener: RangeOpener) -> FoldBounds:
    """The bounds of a range's fold once the cause of every missing offset is known, or unknown for now."""
    explained = opener.log.explain(work.planned, work.gaps)
    if isinstance(explained, UnreadableRange):  # no answer proves nothing: a later batch asks again
        first = work.gaps[0][0]
        problem = f"why offset {first} holds no message could not be read from Kafka: {explained.reason}"
        return msgspec.structs.replace(work.bounds, until=first, trouble=problem)
    suspend_at: tuple[int, ...] = ()
    if opener.compiled.integrity.judge(Fault.HOLE) is Judgement.SUSPEND:
        suspend_at = tuple(hole.until for hole in explained if hole.cause == "unproven")
    without = msgspec.structs.replace(work.bounds.without, suspend_at=suspend_at)
    return msgspec.structs.replace(work.bounds, without=without, holes=tuple(explained))


def _find_outcome(work: RangeInProgress, compiled: CompiledStream) -> FoldOutcome:
    """The outcome of a fold, or a gap before it that nothing explains, if that is a violation."""
    outcome = work.fold.outcome
    bounds = work.bounds
    # A gap before the outcome comes first: what the fold found after it may be a consequence.
    if compiled.integrity.judge(Fault.HOLE) is Judgement.VIOLATION:
        for hole in bounds.holes:
            if hole.cause == "unproven" and hole.start < min(bounds.until, outcome.offset):
                return FoldStopped(_hole_finding(work.planned.position, hole))
    if isinstance(outcome, FoldStopped) and work.planned.watermark_us is not None:
        return FoldStopped(msgspec.structs.replace(outcome.finding, until=outcome.offset))  # by the clock: no message
    return outcome


def narrow_bounds(bounds: FoldBounds, outcome: FoldOutcome) -> FoldBounds | None:
    """The bounds of the next fold; None if the result of this fold can be committed."""
    match outcome:
        case FoldCompleted():
            return None
        case FoldStopped(finding):
            _check_within(bounds, finding)
            return msgspec.structs.replace(bounds, until=finding.offset, finding=finding, trouble=None)
        case MessageFailed(finding, offset, is_buffered):
            _check_within(bounds, finding)
            without = bounds.without.with_failed(outcome)
            until = offset + 1 if is_buffered else finding.offset
            failed = without.failed_buffered if is_buffered else without.refused
            if len(failed) <= REFUSED_MAX or until >= bounds.until:
                return msgspec.structs.replace(bounds, without=without)
            # One message may release any number of buffered ones: the range ends behind it, or would never pass it.
            if not is_buffered:  # the message is beyond the new end
                without = bounds.without
            problem = f"{REFUSED_MAX} messages that the transform cannot take"
            return msgspec.structs.replace(bounds, until=until, without=without, finding=None, trouble=problem)
        case BufferFull(until, problem):
            if until >= bounds.until:
                return None
            return msgspec.structs.replace(bounds, until=until, finding=None, trouble=problem)


def end_bounds(bounds: FoldBounds, reached: int) -> FoldBounds:
    """The bounds of a fold that reached them: its last read may have ended before those of an earlier read.

    A later batch finds the rest again.
    """
    finding = bounds.finding
    if finding is not None and finding.offset > reached:
        finding = None
    holes = tuple(hole for hole in bounds.holes if hole.until <= reached)
    return msgspec.structs.replace(bounds, until=reached, holes=holes, finding=finding)


def _check_within(bounds: FoldBounds, finding: Finding) -> None:
    by_clock = finding.offset == finding.until == bounds.until and bounds.finding is None  # without progress
    if finding.offset >= bounds.until and not by_clock:
        raise AssertionError(f"the fold is not deterministic: {finding}")


def _fold_again(work: RangeInProgress, opener: RangeOpener, bounds: FoldBounds) -> RangeInProgress:
    """Read and fold a range from its start, within other bounds."""
    work.state.close()
    work.fold.release()
    if work.buffer is not None:
        work.buffer.release()
    refolded = opener.open(work.planned, bounds)
    read_and_fold(opener, [refolded])
    refolded.bounds = end_bounds(refolded.bounds, refolded.reached)
    return refolded


def _without_corrupt(work: RangeInProgress, opener: RangeOpener) -> RangeInProgress:
    """Judge corrupt record batches as if they were one message: the range ends there, or they are skipped.

    If they become readable, or Kafka does not answer, the range ends before them and a later batch reads on.
    """
    position = work.planned.position
    bounds = work.bounds
    start = work.reached
    end = opener.log.readable_again(Range(position.topic, position.partition, start, work.planned.until))
    if end is None or end <= start:
        return work
    problem = bounds.trouble or ""
    judgement = work.fold.judge.judge(Fault.UNDECODABLE, start)
    if start < position.suspended_from:
        end = min(end, position.suspended_from)  # no more than was given up
    if judgement is Judgement.VIOLATION:
        finding = Finding.at(
            position,
            Fault.UNDECODABLE,
            offset=start,
            until=end,
            expected="record batches as they were written",
            found="corrupt ones on the broker",
            detail=problem,
        )
        work.bounds = msgspec.structs.replace(bounds, finding=finding, trouble=None)
        return work
    suspend_at = bounds.without.suspend_at
    if judgement is Judgement.SUSPEND:
        suspend_at = (*suspend_at, end)
    skipping = FoldBounds(
        until=start,
        without=msgspec.structs.replace(bounds.without, suspend_at=suspend_at),
        holes=(*bounds.holes, Hole(start=start, until=end, cause="corrupt")),
        trouble=f"offsets {start} to {end - 1} are corrupt on the broker and passed over: {problem}",
        passes_to=end,
    )
    return _fold_again(work, opener, skipping)


def _hole_finding(position: Position, hole: Hole) -> Finding:
    return Finding.at(
        position,
        Fault.HOLE,
        offset=hole.start,
        until=hole.until,
        expected=f"messages at offsets {hole.start} to {hole.until - 1}",
        found="none, and no transaction that explains it",
    )


def run_tasks(job: JobSpec, tasks: Iterable[bytes]) -> Iterator[bytes]:
    """Runs in Spark on each partition of its small job: encoded tasks in, encoded results out."""
    for encoded in tasks:
        task = msgspec.msgpack.decode(encoded, type=TaskSpec)
        yield msgspec.msgpack.encode(_run_task_or_reason(job, task))


def _run_task_or_reason(job: JobSpec, task: TaskSpec) -> TaskResult | TaskFailure:
    """Return lockstep's errors as values: a raised error would reach the driver as Spark's, like a dead worker's."""
    try:
        with _MEMORY.watch(job.worker_memory_bytes):
            return run_task(job, task)
    except LockstepError as error:
        return TaskFailure(pickle.dumps(error))
    except BaseException as error:
        limit = find_limit(error)
        if limit is None:
            raise
        return TaskFailure(pickle.dumps(EngineLimit(limit, describe_error(error))))


def run_task(job: JobSpec, task: TaskSpec) -> TaskResult:
    """Process one bin as a worker does: the shipped declaration, over Kafka."""
    kafka = KafkaSource(job.kafka, job.tuning)
    planned = {TopicNamePartition(item.position.topic, item.position.partition): item for item in task.ranges}
    return run_bin(job, task, compile_pickled(job.stream, job.registry), ArchiveSource(kafka, planned))


def run_bin(job: JobSpec, task: TaskSpec, compiled: CompiledStream, log: MessageSource) -> TaskResult:
    """Process one bin.

    1. Open the state of each range.
    2. Read all ranges at once and fold the messages, range by range in offset order.
    3. Explain the missing offsets.
    4. Fold a range again where something stopped it: no half-applied message is left.
    5. Write the rows, in order of topic id, partition and offset; at the same time the rejected messages and the
       changed state, as most of either is compressing and waiting for the disk.
    6. Return the result.
    7. If a value of a message made the state of its session impossible to store, start again, and check that
       session after each of its messages: the first message to blame counts as if the transform had raised.
    8. After a limit of the machine or of a library start again with less.

    Raises:
        EngineLimit: One message alone reaches the limit.
    """
    _HELPER.submit(int)  # starts its thread
    started = time.process_time()
    attempt = Attempt(task.ranges, compiled, turn=task.batch.number)
    with _COLLECTOR.pause():
        while True:
            try:
                result = _process_bin(job, task, attempt, log)  # 1 to 6
                return msgspec.structs.replace(result, cpu_seconds=time.process_time() - started)
            except StateNotOfItsType as error:
                attempt = attempt.after_unstorable(error)  # 7
            except BaseException as error:  # noqa: BLE001  # other errors are raised again
                attempt = attempt.after_limit(error)  # 8
            gc.collect()  # the frames of an error hold all that the attempt had in memory


def release_folder(folder: Path) -> None:
    """Close what this process has kept of tasks whose files are below a folder: the folder is about to be deleted."""
    OF_THIS_PROCESS.close_below(folder)
    _DECODED.discard_below(folder)


_COLLECTOR: Final = CollectorSchedule()
_DECODED: Final = SessionCache()
"""Of this worker: kept for its next task."""
_HELPER: Final = ThreadPoolExecutor(1)
"""Of this worker, and kept: a thread that starts when memory is short may never report that it has started."""
_MEMORY: Final = MemoryWatch()
_LOOKUPS: Final = LookupCache()
"""Of this worker: loading a version takes longer than most batches."""


def _process_bin(
    job: JobSpec,
    task: TaskSpec,
    attempt: Attempt,
    log: MessageSource,
) -> TaskResult:
    compiled = attempt.compiled
    with ExitStack() as stack:
        if task.batch.lookups:
            loaded = _LOOKUPS.load(compiled.lookups, job.lookups, task.batch.lookups, task.batch.lookup_entries)
            stack.enter_context(bind_lookups(loaded))
        opener = _make_opener(job, task, attempt, log, stack)
        ranges = [opener.open(planned) for planned in attempt.ranges]  # 1
        read_and_fold(opener, ranges)  # 2
        ranges = [finalize_range(work, opener) for work in ranges]  # 3, 4
        for work in ranges:
            _check_complete(work)
        # 5
        rows = _HELPER.submit(_write_rows, job, task, ranges, compiled)
        stack.callback(wait, [rows])
        quarantine = _write_side_rows(job.quarantine, task, [work.fold.judge.quarantined for work in ranges])
        late = _write_side_rows(job.late, task, [work.fold.judge.late for work in ranges])
        archive, archived = _write_archive(job, task, ranges, compiled)
        results = _save_states(job, task, ranges, archived)
        # 6
        return TaskResult(
            ranges=results,
            files=rows.result(),
            cpu_seconds=0.0,
            quarantine=quarantine,
            late=late,
            archive=archive,
            is_cut=attempt.trouble is not None or any(work.is_full for work in ranges),
        )


def _write_rows(
    job: JobSpec, task: TaskSpec, ranges: list[RangeInProgress], compiled: CompiledStream
) -> tuple[DataFile, ...]:
    """One file for the bin; none without rows."""
    batches = list[pa.RecordBatch]()
    for work in ranges:
        batches += work.fold.batches
    if not batches:
        return ()
    rows = pa.Table.from_batches(batches, compiled.rows.schema)
    return (write_file(job.table, rows, prefix=f"rows-{_label(task)}", commit_hour=task.batch.commit_hour),)


def _make_opener(job: JobSpec, task: TaskSpec, attempt: Attempt, log: MessageSource, stack: ExitStack) -> RangeOpener:
    require_writable_folder(job.local_root)
    return RangeOpener(
        job=job,
        log=log,
        generation=task.batch.generation,
        local_stores=LocalStorePool(job.local_root, job.state, decoded=_DECODED),
        stack=stack,
        latest_us=task.batch.planned_at_us + to_microseconds(attempt.compiled.event_time.max_skew),
        attempt=attempt,
        space=_make_space(job),
        messages=_make_space(job) if task.batch.archives else None,
    )


def _make_space(job: JobSpec) -> RowSpace:
    return RowSpace(job.local_root, memory_bytes=job.tuning.spill_bytes, rows_bytes=job.tuning.rows_bytes)


def _write_archive(
    job: JobSpec, task: TaskSpec, ranges: list[RangeInProgress], compiled: CompiledStream
) -> tuple[tuple[SideFile, ...], Mapping[TopicIdPartition, ArchivedRange]]:
    """One file of the archive for the bin, with the offsets of each range in it; none if all were archived before."""
    tables = list[pa.Table]()
    archived = dict[TopicIdPartition, ArchivedRange]()
    for work in ranges:
        if work.buffer is None:
            continue
        position = work.planned.position
        read = RangeToArchive(position, work.buffer, work.bounds.holes, work.reached, work.fold.batches)
        collected = collect_archived(read, compiled, task.batch.number)
        if collected is not None:
            rows, claim = collected
            tables.append(rows)
            archived[position.key] = claim
    if not tables:
        return (), {}
    return (write_archive(job.archive, pa.concat_tables(tables), label=_label(task)),), archived


def _write_side_rows(folder: Path, task: TaskSpec, buffers: list[QuarantineBuffer]) -> tuple[SideFile, ...]:
    """One file of a side table for the bin; none without rows."""
    identity = {"generation": task.batch.generation, "batch": task.batch.number}
    rows = list[QuarantineRow]()
    for buffer in buffers:
        rows += [msgspec.structs.replace(row, **identity) for row in buffer.rows]
    if not rows:
        return ()
    return (write_quarantine(folder, rows, label=_label(task)),)


def _save_states(
    job: JobSpec,
    task: TaskSpec,
    ranges: list[RangeInProgress],
    archived: Mapping[TopicIdPartition, ArchivedRange],
) -> tuple[RangeResult, ...]:
    """All changed states in one durable file, synced; then the local stores take the changes."""
    results = []
    with StateFileWriter.open(job.state, _label(task)) as writer:
        for work in ranges:
            started = time.process_time()
            with name_partition(work.planned.position):
                saved = work.state.write(writer, work.reached)
            work.cpu_seconds += time.process_time() - started
            result = _make_result(work, saved.segment, writer.checksums)
            results.append(_with_archived(result, archived.get(work.planned.position.key)))
    # After the durable file is synced: a local store must not be ahead of what another worker can restore.
    for work in ranges:
        work.state.publish_local()
    return tuple(results)


def _label(task: TaskSpec) -> str:
    """Name part by which clean-up recognizes files in flight."""
    return WrittenBy(task.batch.generation, task.batch.epoch, task.batch.number).label


def _make_result(
    work: RangeInProgress, segment: SegmentRef | None, checksums: Mapping[SegmentRef | None, int]
) -> RangeResult:
    fold = work.fold
    start = work.planned.position
    low, high = fold.emission.event_time_us or (None, None)
    # Only one partition: no session can be in two.
    opened = () if start.is_only else count_digests(fold.sessions.opened)
    closed = () if start.is_only else count_digests(fold.sessions.closed)
    return RangeResult(
        range=work.planned,
        reached=_advance(work, segment),
        counts=fold.counts,
        rows=fold.emission.rows_written,
        holes=work.bounds.holes,
        first_event_time_us=low,
        last_event_time_us=high,
        newest_timestamp_ms=work.newest_timestamp_ms,
        state_bytes=segment.length if segment is not None and segment != start.state else 0,
        cpu_seconds=work.cpu_seconds,
        state_checksum=checksums.get(segment),
        opened=opened,
        closed=closed,
        accepted=tuple(fold.judge.accepted),
        losses=fold.losses.losses,
        finding=work.bounds.finding,
        trouble=work.bounds.trouble,
    )


def _with_archived(result: RangeResult, archived: ArchivedRange | None) -> RangeResult:
    if archived is None:
        return result
    reached = msgspec.structs.replace(result.reached, archived_until=archived.until)
    return msgspec.structs.replace(result, reached=reached, archived=archived)


def _check_complete(work: RangeInProgress) -> None:
    """Each offset of a range has a message, or a cause for having none.

    Kafka may delete or compact a message between two reads. No message is to blame: the batch is tried again.

    Raises:
        EnvironmentProblem: Two reads of the range differ.
    """
    start = work.planned.position.next_offset
    messages = work.fold.counts.messages
    without = sum(hole.until - hole.start for hole in work.bounds.holes)
    if messages + without != work.reached - start:
        place = f"{work.planned.position.topic}/{work.planned.position.partition}"
        raise EnvironmentProblem(
            f"{place}: offsets {start} to {work.reached - 1} held {messages} messages, and {without} none: "
            "two reads of them differ",
            next_step="nothing: the batch was not committed, and is tried again",
        )


def _advance(work: RangeInProgress, segment: SegmentRef | None) -> Position:
    """The position after a range; the leader epoch of an earlier record stays if none was read."""
    fold = work.fold
    start = work.planned.position
    return msgspec.structs.replace(
        start,
        next_offset=work.reached,
        state=segment,
        leader_epoch=_make_committed_epoch(work),
        suspended_from=fold.sessions.suspended_from,
        watermark_us=fold.time.known,
        rows_emitted=fold.emission.emitted_at(work.reached),
        suspended_sessions=_still_skipped(work),
        catching_up=start.catching_up and work.reached == start.next_offset,
        discarded_by=fold.losses.discarded_by,
        uncounted_skips=fold.losses.uncounted_skips,
        lost_before=fold.losses.lost_before,
    )


def _make_committed_epoch(work: RangeInProgress) -> int | None:
    """The epoch of the last record; none after the archive, as a log may have lost the epochs before its start."""
    if work.planned.archived is not None:
        return None
    if work.leader_epoch is None:  # no record was read, or none with an epoch
        return work.planned.position.leader_epoch
    return work.leader_epoch


def _still_skipped(work: RangeInProgress) -> tuple[SuspendedSession, ...]:
    """Suspensions by an operator that remain: a session that was not touched in this range has not restarted in it."""
    entries = work.state.entries
    skipped = work.fold.sessions.skipped
    if not work.fold.sessions.may_suspend:
        return list_unread_skips(skipped, work.reached)

    def find_gate(session: str) -> GateState:
        return entries[session].gate if session in entries else None

    return list_skips_without_snapshot(skipped, find_gate)
