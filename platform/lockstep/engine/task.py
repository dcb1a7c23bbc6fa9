"""One task: from planned ranges to facts. Runs in a Python worker on an executor.

A task is deterministic: no clock, no random number, no order of a set reaches a row, so that a
retried task writes the same rows. Only names of files differ.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer

from lockstep.engine.facts import BinFacts, BinTask, Job, NoSchemas, RangeFacts
from lockstep.engine.fold import RangeFold
from lockstep.engine.plan import PlannedRange
from lockstep.engine.program import Program, shipped_program
from lockstep.engine.spill import Spill
from lockstep.errors import RegistryUnreachable
from lockstep.integrity.finding import Finding, Hole
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.client import consumer
from lockstep.kafka.holes import explain
from lockstep.kafka.reader import Range, Run, read
from lockstep.state.address import SectionRef, StateAddress
from lockstep.state.durable import StateFileWriter
from lockstep.state.hotfolder import HotFolder
from lockstep.state.store import PartitionState
from lockstep.table.files import DataFile, DataFileWriter


class _Work(msgspec.Struct):
    """A range while it is worked on."""

    planned: PlannedRange
    state: PartitionState[object]
    fold: RangeFold
    reached: int
    gaps: list[tuple[int, int]]
    holes: list[Hole]
    leader_epoch: int | None = None
    newest_timestamp_ms: int | None = None
    finding: Finding | None = None
    trouble: str | None = None
    cpu_seconds: float = 0.0


def run_bins(job: Job, tasks: Iterable[bytes]) -> Iterator[bytes]:
    """What Spark runs on each partition of its small job: encoded tasks in, encoded facts out."""
    for encoded in tasks:
        yield msgspec.msgpack.encode(_facts_or_reason(job, msgspec.msgpack.decode(encoded, type=BinTask)))


def _facts_or_reason(job: Job, task: BinTask) -> BinFacts | NoSchemas:
    """A registry that does not answer comes back as a value: an error would reach the driver as Spark's."""
    try:
        return run_bin(job, task)
    except RegistryUnreachable as error:
        return NoSchemas(error.problem, error.next_step)


def run_bin(job: Job, task: BinTask) -> BinFacts:
    """Do the work of one bin.

    1. Open the state of each range.
    2. Read all ranges at once and fold what comes, range by range in offset order.
    3. Prove the holes.
    4. Fold a range with a violation again, up to it: no half-applied message is left.
    5. Write the rows, in order of topic id, partition and offset, and the changed state.
    6. Say what was done.
    """
    started = time.process_time()
    program = shipped_program(job.stream, job.registry)
    gc.freeze()  # nothing that lives now is garbage soon, and a batch makes no cycles: the collector
    gc.disable()  # would walk over all state again and again
    try:
        with ExitStack() as stack:
            opener = _Opener(job, task.generation, program, HotFolder(job.hot, job.state), stack)
            works = [opener.open(planned) for planned in task.ranges]
            _read_and_fold(job, works)
            works = [_proven(job, work, opener) for work in works]
            files = _write_rows(job, task, works, program)
            facts = _save_states(job, works)
    finally:
        gc.enable()
        gc.unfreeze()
    return BinFacts(ranges=facts, files=files, cpu_seconds=time.process_time() - started)


@lru_cache(maxsize=1)
def _kept_consumer(configuration: bytes) -> Consumer:
    """The worker's consumer, kept between tasks: connecting anew costs a round trip to each broker."""
    return consumer(msgspec.msgpack.decode(configuration))


@dataclass(frozen=True)
class _Opener:
    """Opens the state and the fold of a range; closed with the task."""

    job: Job
    generation: int
    program: Program
    hot: HotFolder
    stack: ExitStack

    def open(self, planned: PlannedRange) -> _Work:
        """A range, ready to fold."""
        position = planned.position
        address = StateAddress(
            generation=self.generation,
            topic_id=position.topic_id,
            partition=position.partition,
            next_offset=position.next_offset,
            section=position.state,
        )
        opened = PartitionState.open(address, durable=self.job.state, hot=self.hot, schema=self.program.state)
        state = self.stack.enter_context(opened)
        fold = RangeFold(self.program, position, state)
        return _Work(planned=planned, state=state, fold=fold, reached=position.next_offset, gaps=[], holes=[])


def _read_and_fold(job: Job, works: list[_Work]) -> None:
    reader, spill = _kept_consumer(msgspec.msgpack.encode(job.kafka)), Spill(job.hot)
    for run in read(reader, [_range(work) for work in works]):
        work = works[run.index]
        if isinstance(run, Run):
            _fold_run(work, run, spill)
        else:
            work.trouble = run.reason
    for work in works:
        work.fold.finish()


def _fold_run(work: _Work, run: Run, spill: Spill) -> None:
    started, batches = time.process_time(), len(work.fold.batches)
    work.fold.fold(run.messages)
    spill.note(work.fold.batches, batches)
    work.gaps += run.gaps
    work.reached = run.reached
    work.fold.counts.messages += len(run.messages)
    if run.messages:
        last = run.messages[-1]
        work.leader_epoch, work.newest_timestamp_ms = last.leader_epoch(), last.timestamp()[1]
    work.cpu_seconds += time.process_time() - started


def _proven(job: Job, work: _Work, opener: _Opener) -> _Work:
    """Steps 3 and 4: the range as it may be committed."""
    position = work.planned.position
    work.holes = explain(job.kafka, position.topic, position.partition, work.gaps, deletes_only=position.deletes_only)
    cut = _first_stop(work, opener.program)
    if cut is None:
        return work
    work.state.close()
    again = opener.open(msgspec.structs.replace(work.planned, until=cut.offset))
    _read_and_fold(job, [again])
    if again.fold.stopped is not None:
        raise AssertionError(f"the fold is not deterministic: {again.fold.stopped}")
    again.holes = [hole for hole in work.holes if hole.until <= cut.offset]
    again.planned, again.finding = work.planned, cut
    return again


def _first_stop(work: _Work, program: Program) -> Finding | None:
    """The earlier of the fold's stop and the first hole that nothing explains."""
    stopped = work.fold.stopped
    if program.integrity.unproven_hole is not Judgement.VIOLATION:
        return stopped
    for hole in work.holes:
        if hole.cause == "unproven" and (stopped is None or hole.start < stopped.offset):
            return _hole_finding(work, hole)
    return stopped


def _hole_finding(work: _Work, hole: Hole) -> Finding:
    position = work.planned.position
    return Finding(
        cause="hole",
        topic=position.topic,
        topic_id=position.topic_id,
        partition=position.partition,
        offset=hole.start,
        until=hole.until,
        expected=f"messages at offsets {hole.start} to {hole.until - 1}",
        found="none, and no transaction that explains it",
    )


def _write_rows(job: Job, task: BinTask, works: list[_Work], program: Program) -> tuple[DataFile, ...]:
    """One file for the bin; none without rows."""
    batches = [batch for work in works for batch in work.fold.batches]
    if not batches:
        return ()
    with DataFileWriter(job.table, program.rows.schema, commit_hour=task.commit_hour, prefix="rows") as writer:
        writer.write(pa.Table.from_batches(batches, program.rows.schema))
        return (writer.finish(),)


def _save_states(job: Job, works: list[_Work]) -> tuple[RangeFacts, ...]:
    """All changed states in one durable file, synced; then the hot copies take the changes."""
    facts = []
    with StateFileWriter.open(job.state) as writer:
        for work in works:
            started = time.process_time()
            saved = work.state.write(writer, work.reached)
            work.cpu_seconds += time.process_time() - started
            facts.append(_facts(work, saved.section))
    for work in works:
        work.state.keep()
    return tuple(facts)


def _facts(work: _Work, section: SectionRef | None) -> RangeFacts:
    fold, changed = work.fold, section != work.planned.position.state
    low, high = fold.event_time_us or (None, None)
    return RangeFacts(
        range=work.planned,
        until=work.reached,
        counts=fold.counts,
        rows=fold.rows_written,
        holes=tuple(work.holes),
        leader_epoch=work.leader_epoch,
        first_event_time_us=low,
        last_event_time_us=high,
        newest_timestamp_ms=work.newest_timestamp_ms,
        state=section,
        state_bytes=section.length if section is not None and changed else 0,
        cpu_seconds=work.cpu_seconds,
        finding=work.finding,
        trouble=work.trouble,
    )


def _range(work: _Work) -> Range:
    position = work.planned.position
    return Range(position.topic, position.partition, position.next_offset, work.planned.until, position.leader_epoch)
