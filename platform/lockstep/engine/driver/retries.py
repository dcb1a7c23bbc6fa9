"""Runs the jobs of a batch again after a failure, and searches for a poison message: one that kills its worker.

A dead worker does not report its offset. Its batch is planned again unchanged, once: most deaths have external causes.
From the second failure on each partition of the batch is processed by itself, so that the others commit, and the
failing part is halved until it is one message. Then jobs without it and with it alternate: if a job fails without it
too, no message is to blame and the error is raised; if it works with it, the cause was temporary. Only a message with
which a job fails each time, while it works without it each time in between, is left out. The search is not
kept beyond the run.

A limit of the machine blames no message. A partition that reaches it in a job alone ends the run, with the limit as the
error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

import msgspec

from lockstep.engine.driver.lookup_pins import LookupPins
from lockstep.engine.driver.planner import BatchPlan, Bins
from lockstep.engine.driver.spark_job import BatchTimeout, Runner
from lockstep.engine.executor.limits import EngineLimit
from lockstep.engine.executor.lookup_table import LookupUnusable
from lockstep.engine.protocol import PlannedRange, TaskResult
from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.model.position import TopicIdPartition

LOG = logging.getLogger("lockstep")

FAILURES_MAX = 3
"""Failures of jobs in a row, by errors of lockstep, that end a run."""
WHOLE_FAILURES_MAX = 2
"""Failures in a row with which a batch is split by partition; those before count as temporary."""
CONTROLS = 3
"""Jobs that must succeed without a message, each after one that failed with it, before the message is blamed.
One is not enough: an outage may end in between. Each costs two jobs of one message."""


class RetryingRunner:
    """Runs the jobs of a batch, with one version of each lookup table however often it is planned again.

    A failed job is planned again from the last commit; an error that a retry cannot fix is raised.
    """

    def __init__(self, runner: Runner, lookups: LookupPins, stop: threading.Event) -> None:
        """Runs nothing yet.

        Args:
            runner: Runs a plan as one job.
            lookups: Pins the versions of the lookup tables.
            stop: Set when the run is to end: then each failure is raised.
        """
        self._runner = runner
        self._lookups = lookups
        self._stop = stop
        self._failures = 0
        self._search = PoisonMessageSearch()

    def is_searching(self, plan: BatchPlan) -> bool:
        """Whether a plan continues the search for a poison message."""
        return self._search.is_in(plan)

    def pin_lookups(self, plan: BatchPlan) -> BatchPlan | None:
        """The plan with the versions of its lookup tables; None if a table cannot be read now.

        Raises:
            LookupUnusable: A lookup table could not be read in several attempts.
        """
        if not plan.bins:
            return plan
        try:
            lookups = self._lookups.pin(plan.batch.number)
        except LookupUnusable as error:
            self._note_failure(plan, error)
            LOG.warning("batch %s waits: %s", plan.batch.number, error.problem)
            return None
        batch = msgspec.structs.replace(plan.batch, lookups=lookups, lookup_entries=self._lookups.entries)
        return msgspec.structs.replace(plan, batch=batch)

    def run(self, plan: BatchPlan) -> Sequence[TaskResult] | None:
        """The results of all jobs of a plan; None if the batch must be planned again.

        Raises:
            LockstepError: A retry cannot fix it, or it was raised `FAILURES_MAX` times in a row.
            Exception: Workers die, and no message is to blame.
        """
        if not plan.bins:
            return ()
        bins: list[TaskResult] = []
        for part in self._search.parts(plan):
            bins += self._run_job(part)
        return bins or None

    def _run_job(self, part: BatchPlan) -> Sequence[TaskResult]:
        try:
            bins = self._runner(part)
        except Exception as error:  # the outermost edge of a Spark job: any failure is retried from the ledger
            self._note_failure(part, error)
            LOG.warning("batch %s failed, planning again", part.batch.number, exc_info=True)
            return ()
        is_control = self._search.is_control(part)
        self._failures = 0
        self._search = self._search.worked(part)
        if is_control:  # a batch without the message would be committed before the message is proven to blame
            return ()
        return bins

    def _note_failure(self, part: BatchPlan, error: Exception) -> None:
        """Count a failure, or raise its error.

        An error of lockstep, such as `JobCancelled`, is not caused by a message. Any other one may be: a dead worker
        reports nothing else.
        A limit of the engine may be that of all tasks together: the partitions are tried one by one.
        """
        if self._stop.is_set():
            raise error
        if isinstance(error, LookupUnusable):
            self._lookups.forget()
        if isinstance(error, LockstepError) and not isinstance(error, EngineLimit):
            self._failures += 1
            if self._failures >= FAILURES_MAX or not isinstance(error, (EnvironmentProblem, BatchTimeout)):
                raise error
            return
        search = self._search.failed(part, blames=not isinstance(error, EngineLimit))
        if search is None:
            raise error
        self._search = search


class Suspect(msgspec.Struct, frozen=True):
    """A partition whose range was part of a failed job.

    Attributes:
        until: End of the failed range; a partition that was read up to it is cleared.
        messages: Number of messages of the next job.
        killing: Offset that the next job leaves out: the last job, of this message alone, failed.
        controls: Jobs that succeeded without it, each after one that failed with it.
    """

    until: int
    messages: int
    killing: int | None = None
    controls: int = 0


class PoisonMessageSearch(msgspec.Struct, frozen=True):
    """State of the search after the failures so far.

    Attributes:
        failures: Whole batches that failed in a row.
        suspects: Partitions that are read in separate jobs, by key.
    """

    failures: int = 0
    suspects: Mapping[TopicIdPartition, Suspect] = {}

    def parts(self, plan: BatchPlan) -> tuple[BatchPlan, ...]:
        """The jobs of a plan: one for all bins without the suspects, and one for the next messages of each suspect."""
        if not self.suspects:
            return (plan,) if plan.bins else ()
        parts = list[BatchPlan]()
        bins = self._without_suspects(plan)
        if bins:
            parts.append(msgspec.structs.replace(plan, bins=bins))
        for item in plan.ranges:
            if item.position.key in self.suspects:
                parts.append(msgspec.structs.replace(plan, bins=((self._tried(item),),)))
        return tuple(parts)

    def _without_suspects(self, plan: BatchPlan) -> Bins:
        bins = list[tuple[PlannedRange, ...]]()
        for group in plan.bins:
            ranges = tuple(item for item in group if item.position.key not in self.suspects)
            if ranges:
                bins.append(ranges)
        return tuple(bins)

    def is_in(self, plan: BatchPlan) -> bool:
        """Whether a plan reads a suspect; the search in a leaderless partition resumes with a leader."""
        return bool(self.suspects) and any(item.position.key in self.suspects for item in plan.ranges)

    def is_control(self, part: BatchPlan) -> bool:
        """Whether a job is a control, without the blamed message, that is not committed: more controls must follow."""
        return any(item.killing and not self._is_proven(item) for item in part.ranges)

    def worked(self, part: BatchPlan) -> PoisonMessageSearch:
        """The search after a successful job: the next job of a suspect reads the rest of the failed range.

        After a control it reads the blamed message again.
        """
        if not self.suspects:
            return PoisonMessageSearch()
        suspects = dict(self.suspects)
        for item in part.ranges:
            suspect = suspects.pop(item.position.key, None)
            if suspect is not None and item.killing and not self._is_proven(item):
                suspects[item.position.key] = Suspect(suspect.until, 1, controls=suspect.controls + 1)
            elif suspect is not None and item.until < suspect.until:
                suspects[item.position.key] = Suspect(suspect.until, suspect.until - item.until)
        return PoisonMessageSearch(0, suspects)

    def failed(self, part: BatchPlan, *, blames: bool = True) -> PoisonMessageSearch | None:
        """The search after a failed job; None if no message is to blame.

        The job failed without the blamed message, or it was of one partition and may blame none: its task tried each
        of its messages alone.
        """
        suspected = [item for item in part.ranges if item.position.key in self.suspects]
        if suspected:
            (item,) = suspected  # each suspect has a separate job
            if not blames or item.killing or not item.messages:
                return None
            blamed = _narrow_suspect(item, self.suspects[item.position.key].controls)
            return PoisonMessageSearch(self.failures, {**self.suspects, **blamed})
        if self.failures + 1 < WHOLE_FAILURES_MAX:
            return msgspec.structs.replace(self, failures=self.failures + 1)
        halved = {item.position.key: Suspect(item.until, _half(item)) for item in part.ranges}
        return PoisonMessageSearch(0, {**self.suspects, **halved})

    def _is_proven(self, item: PlannedRange) -> bool:
        suspect = self.suspects.get(item.position.key)
        return suspect is not None and suspect.controls + 1 >= CONTROLS

    def _tried(self, item: PlannedRange) -> PlannedRange:
        suspect = self.suspects[item.position.key]
        until = min(item.until, item.position.next_offset + suspect.messages)
        killing = () if suspect.killing is None else (suspect.killing,)
        return msgspec.structs.replace(item, until=until, beyond=0, killing=killing, single_batches=True)


def _narrow_suspect(item: PlannedRange, controls: int) -> dict[TopicIdPartition, Suspect]:
    """The suspect after its own job failed: its next job is without its one message, or of half of its messages."""
    if item.messages == 1:
        return {item.position.key: Suspect(item.until, 1, item.position.next_offset, controls)}
    return {item.position.key: Suspect(item.until, _half(item))}


def _half(item: PlannedRange) -> int:
    return max(1, item.messages // 2)
