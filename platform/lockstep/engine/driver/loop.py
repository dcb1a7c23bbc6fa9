"""The micro-batch loop: audit, plan, run, commit, report."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import NoReturn

import msgspec

from lockstep.declare.options import AvailableNow, Every, FileSize, NewTopics
from lockstep.engine.driver.alarms import (
    LastStableOffsets,
    StuckTransaction,
    compute_stuck_patience_seconds,
    describe_hidden,
)
from lockstep.engine.driver.batch_checks import SessionPartitions, find_quarantine_burst, has_messages
from lockstep.engine.driver.cluster_view import ClusterMonitor
from lockstep.engine.driver.committer import Committer, Publisher, make_batch_commit
from lockstep.engine.driver.context import RunContext
from lockstep.engine.driver.handover import Heartbeat, read_stop_request, write_stop
from lockstep.engine.driver.join_offsets import read_join_offsets
from lockstep.engine.driver.lookup_pins import LookupPins
from lockstep.engine.driver.metrics import make_batch_report
from lockstep.engine.driver.planner import (
    BacklogClock,
    BatchPlan,
    FileGoal,
    IdlePartitions,
    PlanInput,
    SilentPartitions,
    make_batch_identity,
    plan_batch,
)
from lockstep.engine.driver.positions import Subscription, find_retired_topics
from lockstep.engine.driver.retirement import TopicRetirement
from lockstep.engine.driver.spark_job import BatchTimeout, PoisonMessageSearch
from lockstep.engine.driver.startup import WriterClaim, check_topics_fit
from lockstep.engine.executor.lookup_table import LookupUnusable
from lockstep.engine.protocol import BatchIdentity, TaskResult
from lockstep.errors import EnvironmentProblem, Fenced, KafkaError, LockstepError
from lockstep.integrity.base import Fault
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.admin import Place, Topic
from lockstep.kafka.audit import audit_positions, find_recreated_topics
from lockstep.model.finding import Finding
from lockstep.model.position import Key
from lockstep.table.commit import BatchCommit, HourClosed
from lockstep.table.head import Head

LOG = logging.getLogger("lockstep")

FAILURES_MAX = 3
"""Number of jobs that may fail in a row; each is planned again from the last commit."""
RETRY_SECONDS = 5.0
"""Longest pause after such a failure."""
COLLECTOR_THRESHOLDS = (20_000, 20, 20)
"""Objects between two looks at the youngest generation, and such looks between two at each older one."""
ANY_AGE_SECONDS = -1.0
"""Patience with transactions for which none is too young."""
POLL_SECONDS = 0.1
"""Interval at which a stop or a successor's request is looked for while waiting; a poll costs one stat()."""


class MicroBatchLoop:
    """Plans and runs the batches of a run, in order."""

    def __init__(
        self,
        context: RunContext,
        claimed: WriterClaim,
        side_table_executor: ThreadPoolExecutor,
        background_executor: ThreadPoolExecutor,
    ) -> None:
        """Read positions and Kafka.

        Args:
            context: Dependencies of the run.
            claimed: Result of the claim.
            side_table_executor: Commits side tables; a batch waits for the previous one.
            background_executor: Publishes positions and writes log checkpoints; no batch waits for it.

        Raises:
            LockstepError: The stream cannot run on these topics.
        """
        selected = context.stream.topics.select(row.topic for row in claimed.known.values())
        self._context, self._writer = context, claimed.writer
        retired = find_retired_topics(claimed.known.values()) & selected
        self._monitor = ClusterMonitor(context, selected, retired, lambda: _is_stop_asked(context, claimed))
        check_topics_fit(context.stream, self._monitor.view)
        begun, view = {topic_id for topic_id, _ in claimed.known}, self._monitor.view
        new = [topic for topic in view.topics.values() if topic.topic_id not in begun]
        joined = self._join_offsets(new, is_first_run=not claimed.head.batch)
        self._partitions = Subscription(claimed.known, view, selected, joined)
        self._retirement = TopicRetirement(context, claimed.writer.epoch, self._monitor, self._partitions)
        self._retirement.read_revived()
        self._take_up()
        self._committer = Committer(context.folders, claimed, side_table_executor, background_executor)
        self._publisher = Publisher(context.group, background_executor)
        self._publish_start(claimed.head)
        self._stop_at, self._leaderless_since = dict[Key, int](), math.inf
        self._note_stop_offsets()
        self._failures, self._poison_search, self._backlog = 0, PoisonMessageSearch(), BacklogClock()
        self._idle, self._session_partitions = IdlePartitions(context.stream.event_time), SessionPartitions()
        self._silent = SilentPartitions(context.launch.tuning)
        self._lookups = LookupPins(context.stream.lookups, context.folders.root)
        self._stable_ends, self._stalls = LastStableOffsets(), tuple[StuckTransaction, ...]()
        self._unavailable = frozenset[Place]()

    def _publish_start(self, head: Head) -> None:
        """Compare the published offsets with the table; after a rewind they may be ahead, and are set back."""
        positions = self._partitions.positions.values()
        if head.is_rewound:
            self._publisher.publish(positions)
        else:
            self._publisher.check_group_offsets(positions)

    def plan(self) -> BatchPlan | None:
        """Audit, then plan the next batch; None when there is nothing to do.

        Raises:
            IntegrityLost: The audit found loss that the class does not tolerate; the halt is committed.
        """
        self._audit()
        self._retirement.poll()
        if self._adopts_topics():
            self._monitor.poll_new_topics()
        self._take_up()
        plan = plan_batch(self._plan_input())
        self._partitions.remember(plan)
        # Commit new partitions even while empty, so that they count as subscribed; also commit what was accepted
        # of the log, or the next run would not know of it once the log has grown past it.
        silent = self._partitions.is_unsaved or (self._committer.first and self._partitions.is_new)
        return self._pin_lookups(plan) if plan.bins or silent else None

    def _pin_lookups(self, plan: BatchPlan) -> BatchPlan | None:
        """The plan with the versions of its lookup tables; None where one cannot be read now."""
        if not plan.bins:
            return plan
        try:
            lookups = self._lookups.pin(plan.batch.number)
        except LookupUnusable as error:
            self._note_failure(plan, error)
            LOG.warning("batch %s waits: %s", plan.batch.number, error.problem)
            return None
        return msgspec.structs.replace(plan, batch=msgspec.structs.replace(plan.batch, lookups=lookups))

    def _adopts_topics(self) -> bool:
        context = self._context
        wants = context.launch.adopts_topics or context.stream.topics.new_topics is NewTopics.ADOPT
        return wants and not isinstance(context.trigger, AvailableNow)

    def has_backlog(self, plan: BatchPlan) -> bool:
        """Whether the next batch is due at once: there is a backlog, or a search for a poison message goes on."""
        return plan.backlog > 0 or self._poison_search.is_in(plan)

    def has_reached_stop_offsets(self) -> bool:
        """Whether all offsets of the start of the run are committed, those of partitions without a leader too.

        Raises:
            KafkaError: A partition that is not read yet has had no leader, or given no message, for too long.
        """
        self._check_silent()
        unread = [place for place in self._monitor.view.unavailable if not self._is_read(place)]
        if not unread:
            self._leaderless_since = math.inf
            return self._partitions.has_reached(self._find_stop_offsets())
        now = time.monotonic()
        self._leaderless_since = min(self._leaderless_since, now)
        if now - self._leaderless_since > self._context.launch.tuning.patience_seconds:
            (topic, partition), more = unread[0], f", nor have {len(unread) - 1} more" if len(unread) > 1 else ""
            raise KafkaError(
                f"{topic}/{partition} has no leader that answers{more}: its messages are not read; all others are",
                next_step="kafka-topics.sh --describe --unavailable-partitions, start the brokers that hold the "
                f"replicas, then: lockstep run {self._context.stream.name} --available-now",
            )
        return False

    def _check_silent(self) -> None:
        now, positions, stop_at = time.monotonic(), self._partitions.positions, self._find_stop_offsets()
        for key, silence in self._silent.find_lasting(now).items():
            if key in positions and positions[key].next_offset < stop_at.get(key, 0):
                raise KafkaError(
                    f"{silence.place} gave no message for {now - silence.since:.0f} s ({silence.trouble}): "
                    "its messages are not read; all others are",
                    next_step=f"lockstep doctor asks for each topic; then: lockstep run {self._context.stream.name} "
                    "--available-now",
                )

    def _find_stop_offsets(self) -> dict[Key, int]:
        """The offsets to read up to; where a log was cut below its own, there is nothing behind its end to wait for."""
        ends = self._monitor.view.ends
        return {key: min(at, ends[key].high_watermark) if key in ends else at for key, at in self._stop_at.items()}

    def _is_read(self, place: Place) -> bool:
        """Whether a partition was read up to its offset of the start of the run, which may be unknown."""
        key = (self._monitor.view.topics[place[0]].topic_id, place[1])
        position = self._partitions.positions.get(key)
        return position is not None and key in self._stop_at and position.next_offset >= self._stop_at[key]

    def run_batch(self, plan: BatchPlan) -> bool:
        """Run the bins of a plan and commit their results; gives whether anything was committed.

        1. Run the bins; a failed job is planned again from the last commit.
        2. Read Kafka's metadata again: records of a topic re-created since the plan belong to another topic id.
        3. Commit; a batch whose hour was closed meanwhile is planned again.
        4. Report, and raise if this commit was the halt.
        """
        began = time.monotonic()
        bins = self._run(plan)  # 1
        results = (item for group in bins or () for item in group.ranges)
        for news in self._silent.note(results, began, time.monotonic()):
            LOG.warning("%s", news)
        # 2
        if bins is None or self._replaced(plan) or not self._has_progress(bins):
            return False
        burst, accepted = find_quarantine_burst(bins, self._context.stream.limits), self._committer.head.accepts_burst
        if burst is not None and not accepted:
            self._halt((burst,))
        if moved := self._session_partitions.find_split_sessions(bins, self._context.stream.integrity):
            self._halt(moved)
        accepts_burst = accepted and (burst is not None or not has_messages(bins))
        batch = make_batch_commit(plan.batch, bins, accepts_burst=accepts_burst)
        try:
            commit_seconds = self._commit(  # 3
                batch,
                bins,
                batch_seconds=time.monotonic() - began,
                planned=plan.batch,
                full=self._partitions.is_unsaved,
            )
        except HourClosed as lost:
            self._refresh_head(lost)
            return False
        self._backlog = self._backlog.note_batch(plan.messages / max(1, plan.messages + plan.backlog), began)
        self._report(bins, time.monotonic() - began, commit_seconds)  # 4
        if batch.findings:
            self._end_halted(batch.findings)
        return True

    def _run(self, plan: BatchPlan) -> Sequence[TaskResult] | None:
        """The results of all bins; None when the job failed."""
        if not plan.bins:
            return ()
        bins: list[TaskResult] = []
        for part in self._poison_search.parts(plan):
            bins += self._run_part(part)
        return bins or None

    def _run_part(self, plan: BatchPlan) -> Sequence[TaskResult]:
        try:
            bins = self._context.runner(plan)
        except Exception as error:  # the outermost edge of a Spark job: any failure is retried from the ledger
            self._note_failure(plan, error)
            LOG.warning("batch %s failed, planning again", plan.batch.number, exc_info=True)
            return ()
        is_control = self._poison_search.is_control(plan)
        self._failures, self._poison_search = 0, self._poison_search.worked(plan)
        return () if is_control else bins

    def _note_failure(self, plan: BatchPlan, error: Exception) -> None:
        """Raise errors that a retry cannot fix.

        An error of lockstep has no message as its cause; a dead worker leaves no other information.
        """
        if self._context.stop.is_set():
            raise error
        if isinstance(error, LookupUnusable):
            self._lookups.forget()
        if isinstance(error, LockstepError):
            self._failures += 1
            if self._failures >= FAILURES_MAX or not isinstance(error, (EnvironmentProblem, BatchTimeout)):
                raise error
            return
        search = self._poison_search.failed(plan)
        if search is None:
            raise error
        self._poison_search = search

    def _replaced(self, plan: BatchPlan) -> bool:
        """Whether a topic was re-created since the plan, or a log that was read was truncated."""
        before = self._monitor.view
        after = self._monitor.refresh_for_commit()
        known = self._partitions.known
        read = {key: known[key] for group in plan.bins for item in group if (key := item.position.key) in known}
        cut = (known[key].topic for key in self._monitor.check_leader_epochs(read))
        if names := sorted({*find_recreated_topics(before, after.topics), *cut}):
            LOG.warning("topics %s changed while they were read: batch discarded", ", ".join(names))
        return bool(names)

    def _has_progress(self, bins: Sequence[TaskResult]) -> bool:
        results = [item for group in bins for item in group.ranges]
        moved = any(
            item.reached.next_offset > item.range.position.next_offset
            or item.finding is not None
            or item.reached.watermark_us != item.range.position.watermark_us
            for item in results
        )
        return moved or self._committer.first or self._partitions.is_unsaved

    def _commit(
        self,
        batch: BatchCommit,
        bins: Sequence[TaskResult],
        *,
        batch_seconds: float = 0.0,
        planned: BatchIdentity | None = None,
        full: bool = False,
    ) -> float:
        """Commit and advance the positions; gives the seconds of the commit alone."""
        results, ends = [item for group in bins for item in group.ranges], self._monitor.view.ends
        _, seconds = self._committer.commit(
            batch,
            lambda stamp, full: self._partitions.ledger_rows(stamp, results, ends, full=full),
            batch_seconds=batch_seconds,
            planned_at_us=None if planned is None else planned.planned_at_us,
            lookups=() if planned is None else planned.lookups,
            full=full,
        )
        self._partitions.advance(bins)
        self._publisher.note(self._partitions.positions.values())
        return seconds

    def warn_of_unread(self) -> None:
        """Say what the run leaves unread: what a broker has lost, and what waits behind open transactions.

        However young these are: they show as lag, and no more.
        """
        view, clock = self._monitor.view, time.monotonic()
        for key, at in self._find_stop_offsets().items():
            if at < self._stop_at[key] and (where := self._partitions.positions.get(key)) is not None:
                ends = f"{where.topic}/{where.partition}: the log ends at offset {at} now"
                LOG.warning("%s, and at %d before: unread messages are gone", ends, self._stop_at[key])
        if hidden := self._stable_ends.update(view, clock).stalls(view, clock, ANY_AGE_SECONDS):
            LOG.warning("%s", describe_hidden(self._context.stream.name, hidden))

    def end(self) -> None:
        """Publish the final offsets for lag monitors and mark the run as ended, not as overtaken."""
        self._publisher.publish(self._partitions.positions.values())

    def _audit(self) -> None:
        self._monitor.refresh_for_plan()
        self._note_stop_offsets()
        known = self._partitions.known
        self._monitor.check_leader_epochs(known)
        self._note_stalls()
        self._note_unavailable()
        news = [finding for finding in audit_positions(known, self._monitor.view) if self._is_news(finding)]
        if not news:
            return
        halts = any(self._judge(each) is Judgement.VIOLATION for each in news)
        confirmed = self._monitor.confirmed(known, permanent=halts)  # unconfirmed: a stale response of a broker
        if wrong := tuple(each for each in confirmed if self._judge(each) is Judgement.VIOLATION):
            self._halt(wrong)
        for finding in filter(self._is_news, confirmed):
            suspend = self._judge(finding) is Judgement.SUSPEND
            self._partitions.accept(finding, self._monitor.view, suspend=suspend)
            if finding.cause == Fault.TOPIC_DELETED.value:
                self._monitor.leave(frozenset({finding.topic}))
            if finding.cause == Fault.PARTITIONS_ADDED.value:
                self._session_partitions.forget(finding.topic_id)

    def _note_stop_offsets(self) -> None:
        """A bounded run reads each partition up to its end when it was first seen to have a leader."""
        if isinstance(self._context.trigger, AvailableNow):
            for key, ends in self._monitor.view.ends.items():
                self._stop_at.setdefault(key, ends.stable_end)

    def _is_news(self, finding: Finding) -> bool:
        """Whether findings of an audit need action: some persist, and were accepted before."""
        verdict = self._judge(finding)
        suspend = verdict is Judgement.SUSPEND
        return verdict is Judgement.VIOLATION or self._partitions.is_news(finding, suspend=suspend)

    def _judge(self, finding: Finding) -> Judgement:
        """The verdict of the class, except for the deletion of a drained topic that would have been retired."""
        tolerated = finding.cause == Fault.TOPIC_DELETED.value and self._retirement.tolerates_deletion(finding)
        return Judgement.GAP if tolerated else self._context.stream.integrity.judge(Fault(finding.cause))

    def _take_up(self) -> None:
        """Read topics that have come into the view, as a new run would."""
        if new := self._partitions.find_new_topics(self._monitor.view):
            check_topics_fit(self._context.stream, self._monitor.view)
            self._partitions.take_up(self._monitor.view, self._join_offsets(new, is_first_run=False))

    def _join_offsets(self, new: Sequence[Topic], *, is_first_run: bool) -> dict[Key, int]:
        declared, group = self._context.stream.topics, self._context.group
        cluster, view = self._context.admin, self._monitor.view
        return read_join_offsets(declared, new, view, cluster, group.committed_by, is_first_run=is_first_run)

    def _note_stalls(self) -> None:
        """Warn once of each stuck last stable offset; batches report them while they last."""
        view, clock, warned = self._monitor.view, time.monotonic(), {stall.place for stall in self._stalls}
        self._stable_ends = self._stable_ends.update(view, clock)
        self._stalls = self._stable_ends.stalls(
            view, clock, compute_stuck_patience_seconds(self._context.trigger, self._context.launch.tuning)
        )
        for stall in self._stalls:
            if stall.place not in warned:
                LOG.warning("%s; find it by: kafka-transactions.sh find-hanging", stall)

    def _note_unavailable(self) -> None:
        """Warn of partitions that have lost their leader since the last look, or whose leader is silent."""
        silent, before = frozenset(self._monitor.view.unavailable), self._unavailable
        self._unavailable = silent
        if new := sorted(silent - before):
            (topic, partition), more = new[0], f", nor {len(new) - 1} more" if len(new) > 1 else ""
            LOG.warning("%s/%s has no leader that answers%s: its messages wait", topic, partition, more)

    def _halt(self, findings: tuple[Finding, ...]) -> NoReturn:
        """Commit a halt that the driver found: no rows, unchanged positions."""
        batch = make_batch_identity(self._writer, self._committer.head)
        try:
            self._commit(make_batch_commit(batch, (), findings=findings), ())
        except HourClosed as lost:
            self._refresh_head(lost)
            self._halt(findings)
        self._end_halted(findings)

    def _end_halted(self, findings: tuple[Finding, ...]) -> NoReturn:
        self._committer.wait_for_side_tables()
        raise IntegrityLost(self._context.stream.name, findings)

    def _refresh_head(self, lost: HourClosed) -> None:
        """Reload the head: the hour of the plan was closed, and the next plan needs the closed hours."""
        LOG.info("%s: it is planned again", lost.problem)
        self._committer.refresh_head()

    def _plan_input(self) -> PlanInput:
        now_us = time.time_ns() // 1_000  # the time by which this plan is judged, here and by `lockstep verify`
        return PlanInput(
            batch=make_batch_identity(self._writer, self._committer.head, now_us),
            positions=tuple(self._partitions.positions.values()),
            ends=self._monitor.view.ends,
            stop_at=self._stop_at,
            messages_max=self._context.stream.limits.batch_messages,
            cores=self._context.cores(),
            learned=self._partitions.learned,
            goal=self._goal(),
            tuning=self._context.launch.tuning,
            patient=self._silent.find_patient(),
            resting=self._silent.find_resting(time.monotonic()),
            is_live=isinstance(self._context.trigger, Every),
            silent=self._idle.advance_watermarks(self._partitions.positions, self._monitor.view.ends, now_us),
        )

    def _goal(self) -> FileGoal | None:
        trigger, now = self._context.trigger, time.monotonic()
        if not isinstance(trigger, FileSize):
            return None
        self._backlog = self._backlog.note_poll(self._partitions.lag_messages(self._monitor.view.ends), now)
        left = self._backlog.left_seconds(trigger.at_most.total_seconds(), now)
        return FileGoal(target_bytes=trigger.target_bytes, left_seconds=left - self._context.launch.tuning.idle_seconds)

    def _report(self, bins: Sequence[TaskResult], batch_seconds: float, commit_seconds: float) -> None:
        report = make_batch_report(
            bins,
            batch=self._committer.head.batch,
            epoch=self._writer.epoch,
            topics=len(self._monitor.view.topics),
            lag_messages=self._partitions.lag_messages(self._monitor.view.ends),
            batch_seconds=batch_seconds,
            commit_seconds=commit_seconds,
        )
        headroom = self._partitions.headroom_seconds(self._monitor.view, time.time_ns() // 1_000_000)
        restart = self._committer.restart
        more = {"headroom_seconds": headroom, "restart": restart, "stalls": self._stalls}
        self._context.report(msgspec.structs.replace(report, **more))


class RunOutcome(Enum):
    """How a run ended without an error."""

    ENDED = "all that was available is committed"
    STOPPED = "stopped"
    STOPPED_FOR_GOOD = "stopped by an operator, until it is started again"
    HANDED_OVER = "handed over"
    FENCED = "fenced"
    NOT_WANTED = "not wanted any more"


def run_batches(context: RunContext, claimed: WriterClaim) -> RunOutcome:
    """Run batch after batch.

    1. Audit and plan.
    2. Run the bins, read metadata again, commit, report.
    3. Look for a stop and for a successor until the next batch is due.

    Raises:
        IntegrityLost: The integrity class is violated; earlier messages and the halt are committed.
    """
    never_ending = not isinstance(context.trigger, AvailableNow)
    control, epoch = context.folders.control, claimed.writer.epoch
    heart = Heartbeat(control, epoch, never_ending=never_ending, run_id=context.launch.run_id)
    background, side_tables = _thread("background"), _thread("side-tables")
    # The executor of side tables ends before the other one.
    with heart as heartbeat, background as background_executor, side_tables as side_table_executor:
        try:
            batches = MicroBatchLoop(context, claimed, side_table_executor, background_executor)
            _quiet_collector()
            outcome = _run_until_done(batches, context, claimed, heartbeat)  # 1 to 3
            if outcome is not RunOutcome.HANDED_OVER:  # the next writer waits, and publishes with its first batch
                batches.end()
        except Fenced as fenced:
            LOG.warning("%s", fenced.problem)
            return RunOutcome.FENCED
        except KafkaError:
            if (stopped := _stop_without_kafka(context, claimed)) is None:
                raise
            return stopped
        return outcome


def _quiet_collector() -> None:
    """Keep Python's collector of reference cycles off what a run begins with, and let it look less often at the rest.

    A batch over 1,000 partitions makes tens of thousands of objects and no cycle: it took a third of the driver's time.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def _run_until_done(
    batches: MicroBatchLoop, context: RunContext, claimed: WriterClaim, heartbeat: Heartbeat
) -> RunOutcome:
    while True:
        began, bounded = time.monotonic(), isinstance(context.trigger, AvailableNow)
        plan = batches.plan()  # 1
        if plan is None and bounded and batches.has_reached_stop_offsets():
            batches.warn_of_unread()
            return RunOutcome.ENDED
        committed = plan is not None and batches.run_batch(plan)  # 2
        # A bounded run waits only for what it could not read or commit: a leader, a log that settles.
        at_once = plan is not None and ((bounded and committed) or batches.has_backlog(plan))
        due = began if at_once else began + _find_pause(context, failed=plan is not None and not committed)
        outcome = _wait_for_next_batch(context, claimed, heartbeat, due)  # 3
        if outcome is RunOutcome.HANDED_OVER and isinstance(context.trigger, Every):
            _run_last(batches)
        if outcome is not None:
            return outcome


def _run_last(batches: MicroBatchLoop) -> None:
    """A batch before its time: the next writer begins with less, and nothing waits for the interval as well."""
    plan = batches.plan()
    if plan is not None:
        batches.run_batch(plan)


def _find_pause(context: RunContext, *, failed: bool) -> float:
    """Seconds from the start of a batch to the next; one that failed or was discarded waits for no long interval."""
    if not isinstance(context.trigger, Every):
        return context.launch.tuning.idle_seconds
    return min(context.trigger.seconds, RETRY_SECONDS) if failed else context.trigger.seconds


def _wait_for_next_batch(
    context: RunContext, claimed: WriterClaim, heartbeat: Heartbeat, due: float
) -> RunOutcome | None:
    """Wait until the next batch is due; gives the outcome if the run must end."""
    while True:
        if (stopped := _stop_if_asked(context, claimed)) is not None:
            return stopped
        if heartbeat.asked_to_hand_over():
            return RunOutcome.HANDED_OVER
        left = due - time.monotonic()
        if left <= 0:
            return None
        context.stop.wait(min(left, POLL_SECONDS))


def _is_stop_asked(context: RunContext, claimed: WriterClaim) -> bool:
    """Whether a signal or an operator's request is to end the run."""
    asked = read_stop_request(context.folders.control, claimed.writer.epoch)
    return context.stop.is_set() or asked is not None


def _stop_if_asked(context: RunContext, claimed: WriterClaim) -> RunOutcome | None:
    """The outcome if the run must stop; what an operator asked for is committed."""
    if context.stop.is_set():
        return RunOutcome.STOPPED
    if (request := read_stop_request(context.folders.control, claimed.writer.epoch)) is None:
        return None
    write_stop(claimed.output, claimed.writer, request)
    return RunOutcome.STOPPED_FOR_GOOD


def _stop_without_kafka(context: RunContext, claimed: WriterClaim) -> RunOutcome | None:
    """The outcome if the run was asked to stop while Kafka did not answer."""
    try:
        return _stop_if_asked(context, claimed)
    except Fenced as fenced:
        LOG.warning("%s", fenced.problem)
        return RunOutcome.FENCED


def _thread(name: str) -> ThreadPoolExecutor:
    """A helper thread of the loop; ends with it."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
