"""Compacts closed hours, and the open one if it has many files, on Spark or in process."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lockstep.errors import TableError
from lockstep.features.compaction.commit_kinds import COMPACTION
from lockstep.features.compaction.plan import OPEN_FILES_MAX, Bin, CompactionPlan, plan_table
from lockstep.features.compaction.rewrite import BinRefused, RewriteTask, Rewritten, rewrite_or_refuse
from lockstep.progress import report_items
from lockstep.table.commit import Base, OutputLog, Proposal
from lockstep.table.head import Erasure, Head
from lockstep.table.layout import StreamFolders
from lockstep.table.live_files import TARGET_BYTES, LiveFiles, make_removal
from lockstep.table.row_digest import PROOF
from lockstep.table.written_files import delete_on_error, delete_unless_committed

if TYPE_CHECKING:
    from pyspark import SparkContext

LOG = logging.getLogger("lockstep")

Outcome = Rewritten | BinRefused


class Rewriter(msgspec.Struct, frozen=True):
    """A way to rewrite bins.

    Attributes:
        rewrite: Rewrites all given bins; outcomes in the order of the tasks.
        at_once: Bins per call; each set is committed before the next starts.
    """

    rewrite: Callable[[Sequence[RewriteTask]], Sequence[Outcome]]
    at_once: int = 1


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one compaction. Files, bytes and rows are those of the bins it committed.

    Attributes:
        bins: Bins committed.
        bins_lost: Bins lost to a faster compaction or rewind; nothing is lost but work.
        hours: Hours with committed bins.
        files_before: Files of the bins.
        files_after: Files that replaced them.
        bytes_before: Their bytes.
        bytes_after: Bytes of the files that replaced them.
        rows: Rows rewritten.
        minor_bins: Those of the bins that are of the open hour.
        minor_bytes: Bytes of the files of these bins.
        bins_postponed: Bins left to the next run.
        postponed_because: Why; empty for none.
        cpu_seconds: CPU time of the rewriting, proofs included.
        seconds: From start to end.
    """

    bins: int = 0
    bins_lost: int = 0
    hours: tuple[str, ...] = ()
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    minor_bins: int = 0
    minor_bytes: int = 0
    bins_postponed: int = 0
    postponed_because: str = ""
    cpu_seconds: float = 0.0
    seconds: float = 0.0


class CompactionBudget(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one run, checked between sets of bins: the first set is always compacted, so that the debt falls.

    Attributes:
        bytes: Bytes to rewrite.
        seconds: Time from the start of the run.
        find_hindrance: Why the run ends now, such as a stream that needs the machine; empty for nothing.
    """

    bytes: float = math.inf
    seconds: float = math.inf
    find_hindrance: Callable[[], str] = str

    def find_reason(self, bytes_done: int, seconds: float) -> str:
        """Why a run that has done so much ends; empty for nothing."""
        if bytes_done >= self.bytes:
            return f"{bytes_done} bytes are rewritten, the budget of a run"
        if seconds >= self.seconds:
            return f"{seconds:.0f} seconds have passed, the budget of a run"
        return self.find_hindrance()


UNLIMITED = CompactionBudget()


class CompactionRefused(TableError):
    """Some bins could not be compacted; the table is unchanged for these, and the others are done.

    Attributes:
        hours: The hours of the refused bins.
        result: The result of the others.
    """

    def __init__(self, refused: list[tuple[Bin, BinRefused]], result: CompactionResult) -> None:
        shown = "; ".join(f"hour {part.commit_hour}: {refusal.problem}" for part, refusal in refused)
        super().__init__(shown, next_step=refused[0][1].next_step)
        self.hours = tuple(part.commit_hour for part, _ in refused)
        self.result = result


class InputsGone(TableError):
    """Inputs are no longer live, or the generation has changed: the work is too late.

    Attributes:
        hour: The commit hour of the bin.
    """

    def __init__(self, hour: str, gone: str) -> None:
        super().__init__(f"hour {hour}: {gone}", next_step="nothing: another was faster")
        self.hour = hour


def compact_in_process() -> Rewriter:
    """Bins one after another in this process, without Spark."""
    return Rewriter(lambda tasks: [rewrite_or_refuse(task) for task in tasks])


def compact_on_spark(context: SparkContext) -> Rewriter:
    """Bins as tasks of Spark jobs, one core each."""

    def rewrite(tasks: Sequence[RewriteTask]) -> Sequence[Outcome]:
        return context.parallelize(tasks, len(tasks)).map(rewrite_or_refuse).collect()

    return Rewriter(rewrite, at_once=context.defaultParallelism)


def compact_stream(
    folders: StreamFolders,
    *,
    rewriter: Rewriter | None = None,
    target_bytes: int = TARGET_BYTES,
    scratch: Path | None = None,
    budget: CompactionBudget = UNLIMITED,
    open_files_max: int = OPEN_FILES_MAX,
) -> CompactionResult:
    """Compact the closed hours of a stream, and the open one if it has many files; else does nothing.

    1. Read the head and the live files; plan the bins.
    2. Rewrite as many bins at a time as the rewriter accepts; each output is proven equal.
    3. Commit each bin separately: its inputs out, its output in, no data changed.

    Args:
        folders: The folders of the stream.
        rewriter: The rewriter; by default this process.
        target_bytes: Size of a compacted file at most, about.
        scratch: Folder for scratch files, on the rewriting machine; by default its temporary folder.
        budget: The rest is left to the next run.
        open_files_max: Small files of the open hour from which on they are compacted.

    Raises:
        CompactionRefused: A bin's rows overlap, or a proof differs; raised after all others are done.
        TableError: The table does not match its head.
        CommitUnknown: The store did not answer; the output may still become live, so it stays.
    """
    started = time.monotonic()
    work = _Compaction(folders, rewriter or compact_in_process(), scratch)
    bins = work.plan(target_bytes, open_files_max)  # 1
    groups = list(_at_a_time(bins, work.rewriter.at_once))
    for done, group in report_items(groups, f"compacting {folders.stream}", len(groups)):
        rewritten = sum(part.size for part in bins[:done])
        # The first set is always compacted, so that the debt falls.
        if done and (reason := budget.find_reason(rewritten, time.monotonic() - started)):
            work.postpone(len(bins) - done, reason)
            break
        LOG.info("compaction of %s: %s of %s bins", folders.stream, done, len(bins))
        work.compact(group)  # 2, 3
    result = msgspec.structs.replace(work.result, seconds=time.monotonic() - started)
    if work.refused:
        raise CompactionRefused(work.refused, result)
    return result


def plan_stream(folders: StreamFolders, head: Head, *, target_bytes: int = TARGET_BYTES) -> CompactionPlan:
    """What `compact_stream` would do after a head; reads the log, opens no file."""
    return plan_table(LiveFiles(folders.table).at(0), head, target_bytes=target_bytes)


class _Compaction:
    """One running compaction."""

    def __init__(self, folders: StreamFolders, rewriter: Rewriter, scratch: Path | None) -> None:
        self.rewriter = rewriter
        self._scratch = scratch
        self._table = folders.table
        self._log = OutputLog(folders.table)
        self._live = LiveFiles(folders.table)
        self._generation = 0
        self._erasure = 0
        self.result = CompactionResult()
        self.refused = list[tuple[Bin, BinRefused]]()

    def plan(self, target_bytes: int, open_files_max: int) -> tuple[Bin, ...]:
        base = self._log.base()
        self._generation = base.head.generation
        self._erasure = _find_batch(base.head.erasure)
        live = self._live.at(base.version)
        return plan_table(live, base.head, target_bytes=target_bytes, open_files_max=open_files_max).bins

    def postpone(self, bins: int, reason: str) -> None:
        LOG.info("compaction of %s ends: %s; %s bins are left to the next run", self._table.parent.name, reason, bins)
        self.result = msgspec.structs.replace(self.result, bins_postponed=bins, postponed_because=reason)

    def compact(self, bins: list[Bin]) -> None:
        live = [part for part in bins if not self._gone(part, self._log.base())]
        self._lost(len(bins) - len(live))
        tasks = [RewriteTask(self._table, part, self._scratch) for part in live]
        # Spark refuses a job without partitions.
        outcomes = self.rewriter.rewrite(tasks) if tasks else ()
        # Each output until it is committed; if a commit fails, the others are deleted.
        pending = [self._table / outcome.file.path for outcome in outcomes if isinstance(outcome, Rewritten)]
        with delete_on_error(pending):
            for part, outcome in zip(live, outcomes, strict=True):
                if isinstance(outcome, Rewritten):
                    del pending[0]
                    self._commit(part, outcome)
                elif self._gone(part, self._log.base()):
                    self._lost(1)
                else:
                    self.refused.append((part, outcome))

    def _commit(self, part: Bin, output: Rewritten) -> None:
        """Commit a bin, or delete its output if the inputs were gone before any commit could land."""

        def next_head(base: Base) -> Head:
            if gone := self._gone(part, base):
                raise InputsGone(part.commit_hour, gone)
            return base.head

        try:
            with delete_unless_committed([self._table / output.file.path]):
                self._log.commit(_proposal(part, output, next_head))
        except InputsGone as lost:
            LOG.info("compaction was too late: %s", lost.problem)
            self._lost(1)
        else:
            self.result = _added(self.result, part, output)

    def _gone(self, part: Bin, base: Base) -> str | None:
        """Why a bin can no longer be compacted; None while it can."""
        if base.head.generation != self._generation:
            return f"generation {self._generation} has become {base.head.generation}"
        if _find_batch(base.head.erasure) != self._erasure:  # housekeeping deletes all files before it
            return "a session was erased"
        missing = self._live.missing([file.path for file in part.files], base.version)
        if not missing:
            return None
        return f"{len(missing)} files are not live any more, {missing[0]} first"

    def _lost(self, bins: int) -> None:
        self.result = msgspec.structs.replace(self.result, bins_lost=self.result.bins_lost + bins)


def _find_batch(erasure: Erasure | None) -> int:
    return 0 if erasure is None else erasure.batch


def _proposal(part: Bin, output: Rewritten, next_head: Callable[[Base], Head]) -> Proposal:
    verdict = {
        "verdict": "equal",
        "rows": output.file.rows,
        "digest": f"{output.digest:016x}",
        "partitions": output.partitions,
        "files": len(part.files),
        "minor": part.is_minor,
    }
    # As old as its newest input: rows committed meanwhile are later, which decides the order of an hour's bins.
    added = msgspec.structs.replace(output.file, added_ms=max(file.added_ms for file in part.files))
    return Proposal(
        kind=COMPACTION,
        next_head=next_head,
        adds=(added,),
        removes=tuple(make_removal(file) for file in part.files),
        metadata={PROOF: msgspec.json.encode(verdict).decode()},
    )


def _added(result: CompactionResult, part: Bin, output: Rewritten) -> CompactionResult:
    return msgspec.structs.replace(
        result,
        bins=result.bins + 1,
        hours=tuple(sorted({*result.hours, part.commit_hour})),
        files_before=result.files_before + len(part.files),
        files_after=result.files_after + 1,
        bytes_before=result.bytes_before + part.size,
        bytes_after=result.bytes_after + output.file.size,
        rows=result.rows + output.file.rows,
        minor_bins=result.minor_bins + part.is_minor,
        minor_bytes=result.minor_bytes + part.size * part.is_minor,
        cpu_seconds=result.cpu_seconds + output.cpu_seconds,
    )


def _at_a_time(bins: tuple[Bin, ...], count: int) -> Iterator[tuple[int, list[Bin]]]:
    """Sets of bins, each with the number of bins before it."""
    for start in range(0, len(bins), count):
        yield start, list(bins[start : start + count])
