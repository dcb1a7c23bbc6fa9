"""One task: from planned ranges to facts. Runs in a Python worker on an executor.

A task is deterministic: no clock, no random number, no order of a set reaches a row, so that a
retried task writes the same rows. Only names of files differ.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pyarrow as pa

from lockstep.engine.facts import BinFacts, BinTask, Failed, Job, RangeFacts
from lockstep.engine.kept import Kept
from lockstep.engine.program import Program, shipped_program
from lockstep.engine.sessions import digests
from lockstep.engine.settle import settle
from lockstep.engine.work import KafkaLog, Log, Opener, Work, read_and_fold
from lockstep.errors import LockstepError
from lockstep.integrity.suspending import SuspendedSession, still_skipped
from lockstep.integrity.time import microseconds
from lockstep.state.address import SectionRef
from lockstep.state.durable import StateFileWriter
from lockstep.state.hotfolder import HotFolder
from lockstep.table.files import DataFile, DataFileWriter
from lockstep.table.head import SideFile
from lockstep.table.quarantine import write_quarantine
from lockstep.table.written_by import WrittenBy


def run_bins(job: Job, tasks: Iterable[bytes]) -> Iterator[bytes]:
    """What Spark runs on each partition of its small job: encoded tasks in, encoded facts out."""
    for encoded in tasks:
        yield msgspec.msgpack.encode(_facts_or_reason(job, msgspec.msgpack.decode(encoded, type=BinTask)))


def _facts_or_reason(job: Job, task: BinTask) -> BinFacts | Failed:
    """What has a name comes back as a value: an error would reach the driver as Spark's, as if a worker had died."""
    try:
        return run_bin(job, task)
    except LockstepError as error:
        return Failed(pickle.dumps(error))


def run_bin(job: Job, task: BinTask) -> BinFacts:
    """Do the work of one bin, as a worker does: the declaration that was shipped, over Kafka."""
    return work_bin(job, task, shipped_program(job.stream, job.registry), KafkaLog(job.kafka))


def work_bin(job: Job, task: BinTask, program: Program, log: Log) -> BinFacts:
    """Do the work of one bin.

    1. Open the state of each range.
    2. Read all ranges at once and fold what comes, range by range in offset order.
    3. Prove the holes.
    4. Fold a range again where something stopped it: no half-applied message is left.
    5. Write the rows, in order of topic id, partition and offset, what goes to quarantine, and the changed state.
    6. Say what was done.
    """
    started = time.process_time()
    gc.freeze()  # nothing that lives now is garbage soon, and a batch makes no cycles: the collector
    gc.disable()  # would walk over all state again and again
    try:
        with ExitStack() as stack:
            latest_us = task.planned_at_us + microseconds(program.event_time.max_skew)
            opener = Opener(job, log, task.generation, program, HotFolder(job.hot, job.state), stack, latest_us)
            works = [opener.open(planned) for planned in task.ranges]
            read_and_fold(opener, works)
            works = [settle(work, opener) for work in works]
            files = _write_rows(job, task, works, program)
            quarantine = _write_aside(job.quarantine, task, [work.fold.judge.kept for work in works])
            late = _write_aside(job.late, task, [work.fold.judge.late for work in works])
            facts = _save_states(job, task, works)
    finally:
        gc.enable()
        gc.unfreeze()
    cpu_seconds = time.process_time() - started
    return BinFacts(ranges=facts, files=files, cpu_seconds=cpu_seconds, quarantine=quarantine, late=late)


def _write_rows(job: Job, task: BinTask, works: list[Work], program: Program) -> tuple[DataFile, ...]:
    """One file for the bin; none without rows."""
    batches = [batch for work in works for batch in work.fold.batches]
    if not batches:
        return ()
    with DataFileWriter(
        job.table, program.rows.schema, commit_hour=task.commit_hour, prefix=f"rows-{_label(task)}"
    ) as writer:
        writer.write(pa.Table.from_batches(batches, program.rows.schema))
        return (writer.finish(),)


def _write_aside(folder: Path, task: BinTask, kept: list[Kept]) -> tuple[SideFile, ...]:
    """One file of a side table for the bin; none when nothing was kept aside."""
    identity = {"generation": task.generation, "batch": task.number}
    rows = [msgspec.structs.replace(row, **identity) for each in kept for row in each.rows]
    return (write_quarantine(folder, rows),) if rows else ()


def _save_states(job: Job, task: BinTask, works: list[Work]) -> tuple[RangeFacts, ...]:
    """All changed states in one durable file, synced; then the hot copies take the changes."""
    facts = []
    with StateFileWriter.open(job.state, _label(task)) as writer:
        for work in works:
            started = time.process_time()
            saved = work.state.write(writer, work.reached)
            work.cpu_seconds += time.process_time() - started
            facts.append(_facts(work, saved.section))
    for work in works:
        work.state.keep()
    return tuple(facts)


def _label(task: BinTask) -> str:
    """By which clean-up tells what is in flight."""
    return WrittenBy(task.generation, task.epoch, task.number).label


def _facts(work: Work, section: SectionRef | None) -> RangeFacts:
    fold, changed = work.fold, section != work.planned.position.state
    low, high = fold.emission.event_time_us or (None, None)
    return RangeFacts(
        range=work.planned,
        until=work.reached,
        counts=fold.counts,
        rows=fold.emission.rows_written,
        holes=tuple(work.holes),
        leader_epoch=work.leader_epoch,
        first_event_time_us=low,
        last_event_time_us=high,
        newest_timestamp_ms=work.newest_timestamp_ms,
        state=section,
        state_bytes=section.length if section is not None and changed else 0,
        cpu_seconds=work.cpu_seconds,
        suspended_from=fold.sessions.suspended_from,
        watermark_us=fold.time.known,
        rows_emitted=fold.emission.emitted_at(work.reached),
        opened=() if work.planned.position.is_only else digests(fold.sessions.opened),
        closed=() if work.planned.position.is_only else digests(fold.sessions.closed),
        accepted=tuple(fold.judge.accepted),
        suspended_sessions=_still_skipped(work),
        finding=work.finding,
        trouble=work.trouble,
    )


def _still_skipped(work: Work) -> tuple[SuspendedSession, ...]:
    """A session that was not touched in this range has not begun anew in it."""
    entries = work.state.entries
    skipped = work.planned.position.suspended_sessions
    return still_skipped(skipped, lambda session: entries[session].gate if session in entries else None)
