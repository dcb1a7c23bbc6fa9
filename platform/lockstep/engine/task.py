"""One task: from planned ranges to facts. Runs in a Python worker on an executor.

A task is deterministic: no clock, no random number, no order of a set reaches a row, so that a
retried task writes the same rows. Only names of files differ.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import lru_cache

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer

from lockstep.engine.facts import BinFacts, BinTask, Job, RangeFacts
from lockstep.engine.fold import RangeFold, Stopped
from lockstep.engine.plan import PlannedRange
from lockstep.engine.program import Program, shipped_program
from lockstep.integrity.finding import Finding, Hole
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.client import consumer
from lockstep.kafka.holes import explain
from lockstep.kafka.reader import Range, Run, read
from lockstep.state.address import StateAddress
from lockstep.state.durable import StateFileWriter
from lockstep.state.store import PartitionState
from lockstep.table.files import DataFile, DataFileWriter


class _Work(msgspec.Struct):
    """A range while it is worked on."""

    planned: PlannedRange
    state: PartitionState
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
        yield msgspec.msgpack.encode(run_bin(job, msgspec.msgpack.decode(encoded, type=BinTask)))


def run_bin(job: Job, task: BinTask) -> BinFacts:
    """Do the work of one bin.

    1. Open the state of each range.
    2. Read all ranges at once and fold what comes, range by range in offset order.
    3. Prove the holes; cut a range at the first that cannot be proven.
    4. Fold cut ranges again up to the cut, so that no half-applied message is left.
    5. Write the rows, in order of topic id, partition and offset, and the changed state.
    6. Say what was done.
    """
    started = time.process_time()
    program = shipped_program(job.stream)
    gc.freeze()  # nothing that lives now is garbage soon: keep the collector off it while folding
    try:
        with ExitStack() as stack:
            works = [_opened(job, task, planned, program, stack) for planned in task.ranges]
            _read_and_fold(job, works)
            works = [_proven(job, task, work, program, stack) for work in works]
            files = _write_rows(job, task, works, program)
            facts = _save_states(job, works)
    finally:
        gc.unfreeze()
    return BinFacts(ranges=facts, files=files, cpu_seconds=time.process_time() - started)


@lru_cache(maxsize=1)
def _kept_consumer(configuration: bytes) -> Consumer:
    """The worker's consumer, kept between tasks: connecting anew costs a round trip to each broker."""
    return consumer(msgspec.msgpack.decode(configuration))


def _opened(job: Job, task: BinTask, planned: PlannedRange, program: Program, stack: ExitStack) -> _Work:
    position = planned.position
    address = StateAddress(
        generation=task.generation,
        topic_id=position.topic_id,
        partition=position.partition,
        next_offset=position.next_offset,
        section=position.state,
    )
    state = stack.enter_context(PartitionState.open(address, durable=job.state, hot=job.hot, schema=program.state))
    fold = RangeFold(program, position, state)
    return _Work(planned=planned, state=state, fold=fold, reached=position.next_offset, gaps=[], holes=[])


def _read_and_fold(job: Job, works: list[_Work]) -> None:
    reader = _kept_consumer(msgspec.msgpack.encode(job.kafka))
    for run in read(reader, [_range(work) for work in works]):
        work = works[run.index]
        if isinstance(run, Run):
            _fold_run(work, run)
        else:
            work.trouble = run.reason
    for work in works:
        work.fold.finish()


def _fold_run(work: _Work, run: Run) -> None:
    started = time.process_time()
    work.fold.fold(run.messages)
    work.gaps += run.gaps
    work.reached = run.reached
    work.fold.counts.messages += len(run.messages)
    if run.messages:
        last = run.messages[-1]
        work.leader_epoch, work.newest_timestamp_ms = last.leader_epoch(), last.timestamp()[1]
    work.cpu_seconds += time.process_time() - started


def _proven(job: Job, task: BinTask, work: _Work, program: Program, stack: ExitStack) -> _Work:
    """Steps 3 and 4: the range as it may be committed."""
    position, stopped = work.planned.position, work.fold.stopped
    work.holes = explain(
        job.kafka, position.topic, position.partition, work.gaps, deletes_only=position.deletes_only
    )
    cut = _first_stop(work, program, stopped)
    if cut is None:
        return work
    again = msgspec.structs.replace(work.planned, until=cut.finding.offset)
    work.state.close()
    folded = _opened(job, task, again, program, stack)
    _read_and_fold(job, [folded])
    if folded.fold.stopped is not None:
        raise AssertionError(f"the fold is not deterministic: {folded.fold.stopped.finding}")
    folded.holes = [hole for hole in work.holes if hole.until <= cut.finding.offset]
    folded.planned, folded.finding = work.planned, cut.finding
    return folded


def _first_stop(work: _Work, program: Program, stopped: Stopped | None) -> Stopped | None:
    """The earlier of the fold's stop and the first hole that nothing explains."""
    if program.integrity.unproven_hole is not Judgement.VIOLATION:
        return stopped
    for hole in work.holes:
        if hole.cause == "unproven" and (stopped is None or hole.start < stopped.finding.offset):
            return Stopped(_hole_finding(work, hole), touched=True)
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
    with StateFileWriter(job.state) as writer:
        for work in works:
            started = time.process_time()
            saved = work.state.save(writer, next_offset=work.reached)
            work.cpu_seconds += time.process_time() - started
            facts.append(_facts(work, saved))
        writer.finish()
    for work in works:
        work.state.keep()
    return tuple(facts)


def _facts(work: _Work, saved: object) -> RangeFacts:
    fold = work.fold
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
        state=work.planned.position.state,
        state_bytes=0,
        cpu_seconds=work.cpu_seconds,
        finding=work.finding,
        trouble=work.trouble,
    )


def _range(work: _Work) -> Range:
    position = work.planned.position
    return Range(position.topic, position.partition, position.next_offset, work.planned.until, position.leader_epoch)
