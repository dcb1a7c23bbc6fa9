"""A range while it is worked on: its state, its fold, and the reading that drives it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import msgspec

from lockstep.engine.facts import Job
from lockstep.engine.fold import RangeFold
from lockstep.engine.kept import Without
from lockstep.engine.plan import PlannedRange, Position
from lockstep.engine.program import Program
from lockstep.engine.spill import Spill
from lockstep.integrity.finding import Finding, Hole
from lockstep.kafka.client import Configuration, RangeConsumer, consumer
from lockstep.kafka.corrupt import ONE_BATCH, readable_again
from lockstep.kafka.holes import explain
from lockstep.kafka.reader import Range, Run, Unreadable, read
from lockstep.state.address import StateAddress
from lockstep.state.hotfolder import HotFolder
from lockstep.state.store import PartitionState


class Work(msgspec.Struct):
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
    is_corrupt: bool = False
    passes_to: int | None = None


@lru_cache(maxsize=1)
def _kept_consumer(configuration: bytes) -> RangeConsumer:
    """The worker's consumer, kept between tasks: connecting anew costs a round trip to each broker."""
    return consumer(msgspec.msgpack.decode(configuration))


class Log(Protocol):
    """Where the messages of ranges are."""

    def read(self, ranges: Sequence[Range]) -> Iterator[Run | Unreadable]:
        """Read all ranges at once, each in offset order."""
        ...

    def ahead(self, beyond: Range) -> Iterator[Run | Unreadable]:
        """Read a range that is only looked at: nothing of it is folded."""
        ...

    def readable_again(self, corrupt: Range) -> int | None:
        """The first offset of a range that begins corrupt which can be read; None where that cannot be told."""
        ...

    def explain(self, position: Position, gaps: Sequence[tuple[int, int]]) -> list[Hole] | Unreadable:
        """Offsets that held no message, each with its cause; or why that cannot be found out now."""
        ...


@dataclass(frozen=True)
class KafkaLog:
    """The log of a cluster, read with the worker's consumer."""

    configuration: Configuration

    def read(self, ranges: Sequence[Range]) -> Iterator[Run | Unreadable]:
        """See `Log.read`."""
        single = ONE_BATCH if any(item.single_batches for item in ranges) else {}
        return read(_kept_consumer(msgspec.msgpack.encode({**self.configuration, **single})), ranges)

    def ahead(self, beyond: Range) -> Iterator[Run | Unreadable]:
        """See `Log.ahead`."""
        return self.read([beyond])

    def readable_again(self, corrupt: Range) -> int | None:
        """See `Log.readable_again`."""
        return readable_again(self.configuration, corrupt)

    def explain(self, position: Position, gaps: Sequence[tuple[int, int]]) -> list[Hole] | Unreadable:
        """See `Log.explain`."""
        return explain(self.configuration, position.topic, position.partition, gaps)


@dataclass(frozen=True)
class Opener:
    """Opens the state and the fold of a range; closed with the task. `latest_us`: later event times are absurd."""

    job: Job
    log: Log
    generation: int
    program: Program
    hot: HotFolder
    stack: ExitStack
    latest_us: int

    def open(self, planned: PlannedRange, without: Without | None = None) -> Work:
        """A range, ready to fold; a second time with what the first fold found out."""
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
        without = without or Without(killing=planned.killing)
        fold = RangeFold(self.program, position, state, without, self.latest_us)
        return Work(planned=planned, state=state, fold=fold, reached=position.next_offset, gaps=[], holes=[])


def read_and_fold(opener: Opener, works: list[Work]) -> None:
    """Read all ranges at once and fold what comes, range by range in offset order."""
    spill = Spill(opener.job.hot)
    moving = [work for work in works if work.planned.messages]
    for run in opener.log.read([_range(work) for work in moving]):
        work = moving[run.index]
        if isinstance(run, Run):
            _fold_run(work, run, spill)
        else:
            work.trouble, work.is_corrupt = run.reason, run.is_corrupt
    for work in works:
        if work.passes_to is not None and work.reached == work.planned.until:
            work.reached = work.passes_to
        if work.planned.watermark_us is not None:
            work.fold.advance(work.planned.watermark_us)
        work.fold.finish(work.reached)


def _fold_run(work: Work, run: Run, spill: Spill) -> None:
    started, batches = time.process_time(), len(work.fold.batches)
    work.fold.fold(run.messages)
    spill.note(work.fold.batches, batches)
    work.gaps += run.gaps
    work.reached = run.reached
    work.fold.counts.messages += len(run.messages)
    if run.messages:
        work.newest_timestamp_ms = run.messages[-1].timestamp()[1]
    work.leader_epoch = _leader_epoch(work, run)
    work.cpu_seconds += time.process_time() - started


def _leader_epoch(work: Work, run: Run) -> int | None:
    """An epoch that reaches to the end of what was read, so that what is shorter later was cut.

    A marker at the end may be of a newer leader than the last message; of none newer than the plan knew.
    """
    ends_in_gap = bool(run.gaps) and run.gaps[-1][1] == run.reached
    of_message = run.messages[-1].leader_epoch() if run.messages else work.leader_epoch
    epochs = (of_message, work.planned.leader_epoch if ends_in_gap else None)
    return max((epoch for epoch in epochs if epoch is not None and epoch >= 0), default=None)


def _range(work: Work) -> Range:
    position = work.planned.position
    return Range(
        position.topic,
        position.partition,
        position.next_offset,
        work.planned.until,
        position.leader_epoch,
        work.planned.single_batches,
    )
