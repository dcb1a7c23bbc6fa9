"""The micro-batch loop: audit, plan, run, commit, report, wait."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import cache
from typing import NoReturn

import msgspec

from lockstep.control.handover import (
    RequestWatch,
    accept_requests,
    is_asked_to_hand_over,
    read_stop_request,
    write_stop,
)
from lockstep.control.heartbeat import Heartbeat
from lockstep.control.live_report import LiveReport
from lockstep.declare.options import Every, FileSize
from lockstep.declare.transform import is_overridden
from lockstep.engine.driver.archived_log import ArchivedLog
from lockstep.engine.driver.batch_checks import SessionPartitions, find_quarantine_burst, has_messages, judge_finding
from lockstep.engine.driver.cluster_view import ClusterMonitor, without_topics
from lockstep.engine.driver.commit_order import CommitOrder
from lockstep.engine.driver.committer import Committer, Publisher, make_batch_commit
from lockstep.engine.driver.context import RunContext
from lockstep.engine.driver.halted_topics import HaltedTopics, TopicsHalted
from lockstep.engine.driver.idle_partitions import BacklogClock, IdlePartitions, SilentPartitions
from lockstep.engine.driver.kafka_patience import KafkaPatience
from lockstep.engine.driver.live_reports import LiveReports
from lockstep.engine.driver.log_warnings import BlockedPartitions, compute_stuck_patience_seconds, describe_hidden
from lockstep.engine.driver.lookup_pins import LookupPins
from lockstep.engine.driver.metrics import make_batch_report
from lockstep.engine.driver.planner import BatchPlan, FileGoal, PlanInput, make_batch_identity, plan_batch
from lockstep.engine.driver.retries import RetryingRunner
from lockstep.engine.driver.startup import WriterClaim
from lockstep.engine.driver.stop_offsets import StopOffsets
from lockstep.engine.driver.topic_changes import TopicChanges, open_subscription
from lockstep.engine.protocol import BatchIdentity, RangeResult, TaskResult, list_results
from lockstep.errors import Fenced, KafkaError
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.audit import audit_positions, explain_end
from lockstep.kafka.topic_end import TopicEnd
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding
from lockstep.model.position import Position, TopicIdPartition
from lockstep.table.commit import BatchCommit, HourClosed
from lockstep.table.head import Head
from lockstep.table.positions import find_retired_topics

LOG = logging.getLogger("lockstep")

RETRY_SECONDS = 5.0
"""Longest pause after a failed or discarded batch."""
COLLECTOR_THRESHOLDS = (20_000, 20, 20)
"""`gc.set_threshold`: objects between two collections of generation 0, and such collections between two of the next."""


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
    3. Wait until the next batch is due; a stop or a successor ends the run.

    Raises:
        IntegrityLost: The integrity class is violated; earlier messages and the halt are committed.
    """
    control = context.folders.control
    epoch = claimed.writer.epoch
    heart = Heartbeat(control, epoch, never_ending=not context.is_bounded, run_id=context.launch.run_id)
    background = _thread("background")
    side_tables = _thread("side-tables")
    # The executor of side tables ends before the next writer may start. The background ends last: it may wait for a
    # silent coordinator of the group, and the next writer does not.
    with (
        accept_requests(control, epoch),
        background as background_executor,
        heart,
        RequestWatch(heart, context.stop) as requests,
        side_tables as side_table_executor,
    ):
        try:
            batches = MicroBatchLoop(context, claimed, side_table_executor, background_executor)
            _quiet_collector()
            outcome = _run_until_done(batches, context, claimed, requests)  # 1 to 3
            if outcome is not RunOutcome.HANDED_OVER:  # the next writer waits, and publishes with its first batch
                batches.end()
        except Fenced as fenced:
            LOG.warning("%s", fenced.problem)
            return RunOutcome.FENCED
        except KafkaError:
            stopped = _stop_without_kafka(context, claimed)  # a run that is asked to stop waits for no answer
            if stopped is None:
                raise
            return stopped
        return outcome


@cache
def _quiet_collector() -> None:
    """Exempt the objects of the start from Python's garbage collector, and let it run less often.

    A batch of 1,000 partitions makes tens of thousands of objects and no reference cycle: collections took a third of
    the driver's time. Once in a process: each exemption keeps the garbage that other streams have left by then.
    """
    gc.freeze()  # nothing of the start is ever garbage
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def _run_until_done(
    batches: MicroBatchLoop, context: RunContext, claimed: WriterClaim, requests: RequestWatch
) -> RunOutcome:
    is_settled = False
    while True:
        began = time.monotonic()
        bounded = context.is_bounded
        plan = batches.plan()  # 1
        if plan is None and bounded and batches.has_reached_stop_offsets():
            batches.warn_of_unread()
            batches.refuse_halted_topics()
            return RunOutcome.ENDED
        committed = plan is not None and batches.run_batch(plan)  # 2
        batches.publish_report()
        if not is_settled and (plan is None or committed):
            is_settled = True
            context.reports.settled()
        # A bounded run pauses only if something could not be read or committed: no leader, a log that changed.
        due = began
        is_due = plan is not None and ((bounded and committed) or batches.has_backlog(plan))
        if not is_due:
            due += _find_pause(context, failed=plan is not None and not committed)
        outcome = _wait_for_next_batch(context, claimed, requests, due)  # 3
        if outcome is RunOutcome.HANDED_OVER and isinstance(context.trigger, Every):
            _run_last(batches)
        if outcome is not None:
            return outcome


def _run_last(batches: MicroBatchLoop) -> None:
    """Run a batch before it is due: its messages do not wait for the rest of the interval and the handover as well."""
    plan = batches.plan()
    if plan is not None:
        batches.run_batch(plan)


def _find_pause(context: RunContext, *, failed: bool) -> float:
    """Seconds from the start of a batch to the next; after a failed or discarded one at most `RETRY_SECONDS`."""
    if not isinstance(context.trigger, Every):
        return context.launch.tuning.idle_seconds
    if failed:
        return min(context.trigger.seconds, RETRY_SECONDS)
    return context.trigger.seconds


def _wait_for_next_batch(
    context: RunContext, claimed: WriterClaim, requests: RequestWatch, due: float
) -> RunOutcome | None:
    """Wait until the next batch is due; returns the outcome if the run must end."""
    while True:
        stopped = _stop_if_asked(context, claimed)
        if stopped is not None:
            return stopped
        if is_asked_to_hand_over(requests.heartbeat):
            return RunOutcome.HANDED_OVER
        remaining = due - time.monotonic()
        if remaining <= 0:
            return None
        requests.wait(remaining)


def _is_stop_asked(context: RunContext, claimed: WriterClaim) -> bool:
    """Whether a signal or an operator's request is to end the run."""
    request = read_stop_request(context.folders.control, claimed.writer.epoch)
    return context.stop.is_set() or request is not None


def _stop_if_asked(context: RunContext, claimed: WriterClaim) -> RunOutcome | None:
    """The outcome if the run must stop; an operator's request is committed."""
    if context.stop.is_set():
        return RunOutcome.STOPPED
    request = read_stop_request(context.folders.control, claimed.writer.epoch)
    if request is None:
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


def _has_moved(result: RangeResult) -> bool:
    """Whether a range has anything to commit."""
    start = result.range.position
    reached = result.reached
    return (
        reached.next_offset > start.next_offset
        or result.finding is not None
        or reached.watermark_us != start.watermark_us
        or reached.is_uncounted is not start.is_uncounted
    )


def _thread(name: str) -> ThreadPoolExecutor:
    """A helper thread of the loop; ends with it."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


class MicroBatchLoop:
    """Plans, runs and commits the batches of a run, in order."""

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
            side_table_executor: Commits side tables; a batch waits for the previous batch.
            background_executor: Publishes positions and writes log checkpoints; no batch waits for it.

        Raises:
            LockstepError: The stream cannot run on these topics.
        """
        stream = context.stream
        trigger = context.trigger
        tuning = context.launch.tuning
        self._context = context
        self._writer = claimed.writer
        selected = stream.topics.select(row.topic for row in claimed.known.values())
        retired = find_retired_topics(claimed.known.values()) & selected
        patience = KafkaPatience(
            tuning, is_endless=not context.is_bounded, gives_up=lambda: _is_stop_asked(context, claimed)
        )
        self._order = CommitOrder(context.folders.control, self._writer.epoch)
        self._archive = ArchivedLog(context.folders, claimed.head, claimed.known)
        self._monitor = ClusterMonitor(context, selected, retired, patience, self._archive)
        self._claimed = claimed
        self._selected = selected
        self._open(claimed)
        self._idle = IdlePartitions(stream.event_time)
        self._committer = Committer(context.folders, claimed, side_table_executor, background_executor)
        self._publisher = Publisher(context.group, background_executor)
        self._publish_start(claimed.head)
        self._stop_offsets = StopOffsets(stream.name, tuning, is_bounded=context.is_bounded)
        self._stop_offsets.note(self._monitor.view)
        self._halted = HaltedTopics(context, claimed.writer, self._committer)
        lookups = LookupPins(stream.lookups, context.folders.root)
        self._runner = RetryingRunner(context.runner, lookups, context.stop)
        self._is_cut = False
        self._live = LiveReports(context.folders.control, self._begin_report())
        self._plan_seconds = 0.0
        self._task_seconds = 0.0
        self._session_partitions = SessionPartitions()
        self._backlog = BacklogClock()
        self._silent = SilentPartitions(tuning)
        self._blocked = BlockedPartitions(compute_stuck_patience_seconds(trigger, tuning))

    def _begin_report(self) -> LiveReport:
        """The live report before the first batch."""
        return LiveReport(
            epoch=self._writer.epoch,
            run_id=self._context.launch.run_id,
            cause=self._claimed.cause,
            claimed_at=time.time(),
        )

    def _open(self, claimed: WriterClaim) -> None:
        """Subscribe at the positions of the ledger."""
        self._partitions = open_subscription(self._context, claimed, self._monitor, self._selected)
        self._topics = TopicChanges(self._context, self._writer.epoch, self._monitor, self._partitions)

    def _publish_start(self, head: Head) -> None:
        """Compare the published offsets with the table; after a rewind they may be ahead, and are published again."""
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
        began = time.monotonic()
        if isinstance(self._context.trigger, FileSize):
            self._order.poll()
        if self._halted.resume_if_asked(self._partitions):
            self._open(self._halted.claim_again(self._claimed))
        self._audit()
        self._topics.poll()
        plan = self._archive.locate(self._monitor.view, plan_batch(self._plan_input()))
        self._partitions.remember(plan)
        # Commit new partitions even while empty, so that they count as subscribed; also commit accepted findings, or
        # the next run would not know of them once the log has grown beyond their offsets.
        has_news = self._partitions.is_unsaved or (self._committer.first and self._partitions.is_new)
        self._plan_seconds = time.monotonic() - began
        if not plan.bins and not has_news:
            return None
        return self._runner.pin_lookups(plan)

    def has_backlog(self, plan: BatchPlan) -> bool:
        """Whether the next batch is due immediately.

        There is a backlog, a limit of the engine ended ranges earlier, or the search for a poison message continues.
        """
        return plan.backlog > 0 or self._is_cut or self._runner.is_searching(plan)

    def has_reached_stop_offsets(self) -> bool:
        """Whether all stop offsets of a bounded run are committed.

        Raises:
            KafkaError: A partition that is not read yet has had no leader, or given no message, for too long.
        """
        now = time.monotonic()
        silences = self._silent.find_lasting(now)
        view = without_topics(self._monitor.view, self._halted.names)
        return self._stop_offsets.is_reached(self._read_positions, view, silences, now)

    def run_batch(self, plan: BatchPlan) -> bool:
        """Run the bins of a plan and commit their results; returns whether anything was committed.

        1. Run the bins; a failed job is planned again from the last commit.
        2. Read Kafka's metadata again: records of a topic re-created since the plan belong to another topic id.
        3. Halt on violations that only the whole batch shows; if they halt topics alone, plan again without these.
        4. Commit; a batch whose hour was closed meanwhile is planned again.
        5. Report, and raise if this commit was the halt.
        """
        began = time.monotonic()
        bins = self._runner.run(plan)  # 1
        self._task_seconds = time.monotonic() - began
        self._is_cut = any(task.is_cut for task in bins or ())
        for news in self._silent.note(list_results(bins or ()), began, time.monotonic()):
            LOG.warning("%s", news)
        if bins is None or self._has_changed_logs(plan) or not self._has_progress(bins):  # 2
            return False
        if self._halt_for_batch(bins):  # 3
            return False
        batch = self._halted.contain(make_batch_commit(plan.batch, bins, accepts_burst=self._accepts_burst(bins)))
        batch_seconds = time.monotonic() - began
        full = self._partitions.is_unsaved
        try:
            commit_seconds = self._commit(batch, bins, batch_seconds=batch_seconds, planned=plan.batch, full=full)  # 4
        except HourClosed as lost:
            self._refresh_head(lost)
            return False
        share = plan.messages / max(1, plan.messages + plan.backlog)
        self._backlog = self._backlog.note_batch(share, began)
        self._report(bins, time.monotonic() - began, commit_seconds)  # 5
        self._halted.report(batch)
        if batch.findings:
            self._end_halted(batch.findings)
        return True

    def _has_changed_logs(self, plan: BatchPlan) -> bool:
        """Whether a topic was re-created since the plan, or a log that was read may have been truncated."""
        positions = self._partitions.known
        planned = [item.position.key for item in plan.ranges]
        read = {key: positions[key] for key in planned if key in positions}
        names = self._monitor.refresh_for_commit(read)
        if names:
            LOG.warning("topics %s changed while they were read: batch discarded", ", ".join(names))
        return bool(names)

    def _has_progress(self, bins: Sequence[TaskResult]) -> bool:
        """Whether there is anything to commit."""
        has_moved = any(map(_has_moved, list_results(bins)))
        return has_moved or self._committer.first or self._partitions.is_unsaved

    def publish_report(self) -> None:
        """Publish the newest batches and the lag of each partition next to the heartbeat."""
        self._live.publish(lambda: self._partitions.list_topics(self._monitor.view.ends))

    def _halt_for_batch(self, bins: Sequence[TaskResult]) -> bool:
        """Halt on a quarantine burst or a split session; returns whether that halted topics of the batch."""
        burst = find_quarantine_burst(bins, self._context.stream.limits)
        if burst is not None and not self._committer.head.accepts_burst:
            self._halt((burst,))
        split = self._session_partitions.find_split_sessions(bins, self._context.stream.integrity)
        if split:
            self._halt(split)
        return bool(split)

    def _accepts_burst(self, bins: Sequence[TaskResult]) -> bool:
        """Whether an accepted burst may still continue."""
        if not self._committer.head.accepts_burst:
            return False
        burst = find_quarantine_burst(bins, self._context.stream.limits)
        return burst is not None or not has_messages(bins)

    def _commit(
        self,
        batch: BatchCommit,
        bins: Sequence[TaskResult],
        *,
        batch_seconds: float = 0.0,
        planned: BatchIdentity | None = None,
        full: bool = False,
    ) -> float:
        """Commit and advance the positions; returns the seconds of the commit."""
        results = list_results(bins)
        ends = self._monitor.view.ends
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

    def refuse_halted_topics(self) -> None:
        """End a bounded run with an error if topics are halted; all others are read.

        Raises:
            TopicsHalted: Names the topics.
        """
        if self._committer.head.halted_topics:
            self.end()
            raise TopicsHalted(self._context.stream.name, self._committer.head.all_findings)

    def warn_of_unread(self) -> None:
        """Warn of messages that the run leaves unread: those that a broker has lost, and those in open transactions.

        A transaction may be of this moment: its messages show as lag, and are not lost.
        """
        view = self._monitor.view
        for text in self._stop_offsets.describe_lost(self._partitions.positions, view):
            LOG.warning("%s", text)
        hidden = self._blocked.find_hidden(view, time.monotonic())
        if hidden:
            LOG.warning("%s", describe_hidden(self._context.stream.name, hidden))

    def end(self) -> None:
        """Wait for the side tables of the last batch, then publish the final offsets for lag monitors.

        Raises:
            Fenced: A newer writer has claimed the table.
            TableError: The side tables cannot follow.
        """
        self._committer.wait_for_side_tables()
        self._publisher.publish(self._partitions.positions.values())

    def _audit(self) -> None:
        """Compare Kafka with the positions; commit a halt, or accept what the class tolerates."""
        self._stop_offsets.note(self._monitor.refresh_for_plan())
        positions = self._partitions.known
        self._monitor.check_leader_epochs(positions)
        for warning in self._blocked.note(self._monitor.view, time.monotonic()):
            LOG.warning("%s", warning)
        news = self._find_news(audit_positions(positions, self._monitor.view), positions)
        if not news:
            return
        halts = any(verdict is Judgement.VIOLATION for _, verdict in news)
        # Read again before it counts: one odd answer of a broker must neither halt a stream nor skip messages.
        self._answer(self._monitor.confirmed(positions, permanent=halts), positions, may_halt=halts)

    def _answer(
        self, confirmed: Sequence[Finding], known: Mapping[TopicIdPartition, Position], *, may_halt: bool
    ) -> None:
        """Commit a halt, or accept what the class tolerates.

        Events are accepted first, so that they are committed with a halt: the next run has not observed the ends of
        these topics.

        Args:
            confirmed: Findings of the audit that every further read confirmed.
            known: Partitions of the subscribed topics.
            may_halt: They were confirmed for as long as a halt needs. Otherwise a topic reappeared and vanished again
                meanwhile, and the next audit confirms it.
        """
        judged = self._find_news(confirmed, known)
        ends = self._monitor.judge_ends(confirmed, known)
        for finding, verdict in judged:
            if verdict is Judgement.ACCEPT:
                self._accept(finding, verdict, ends)
        violations = [finding for finding, verdict in judged if verdict is Judgement.VIOLATION]
        if violations and may_halt:
            self._halt(tuple(explain_end(finding, ends) for finding in violations))
        for finding, verdict in judged:
            if verdict not in {Judgement.ACCEPT, Judgement.VIOLATION}:
                self._accept(explain_end(finding, ends), verdict, ends)
        self._context.history.forget(ends.keys() - {topic_id for topic_id, _ in self._partitions.known})

    def _find_news(
        self, findings: Sequence[Finding], known: Mapping[TopicIdPartition, Position]
    ) -> list[tuple[Finding, Judgement]]:
        """The findings of an audit that need action, each with its verdict."""
        integrity = self._context.stream.integrity
        ends = self._monitor.judge_ends(findings, known)
        news = list[tuple[Finding, Judgement]]()
        for finding in findings:
            verdict = judge_finding(finding, ends, integrity)
            if self._is_news(finding, verdict):
                news.append((finding, verdict))
        return news

    def _accept(self, finding: Finding, verdict: Judgement, ends: Mapping[str, TopicEnd]) -> None:
        suspend = verdict is Judgement.SUSPEND
        self._partitions.accept(finding, self._monitor.view, suspend=suspend, end=ends.get(finding.topic_id))
        if finding.cause == Fault.TOPIC_DELETED:
            self._monitor.leave(frozenset({finding.topic}))
        if finding.cause == Fault.PARTITIONS_ADDED:
            self._session_partitions.forget(finding.topic_id)

    def _is_news(self, finding: Finding, verdict: Judgement) -> bool:
        """Whether a finding needs action: one that was accepted before may persist in later audits."""
        suspend = verdict is Judgement.SUSPEND
        if verdict is Judgement.VIOLATION:
            return not self._halted.is_known(finding)
        return self._partitions.is_news(finding, suspend=suspend)

    def _halt(self, findings: tuple[Finding, ...]) -> None:
        """Commit a halt that the driver found: no rows, no progress; earlier acceptances are committed with it.

        Raises:
            IntegrityLost: The stream is halted, not topics alone.
        """
        planned = make_batch_identity(self._writer, self._committer.head)
        batch = self._halted.contain(make_batch_commit(planned, (), findings=findings))
        try:
            self._commit(batch, (), full=self._partitions.is_unsaved)
        except HourClosed as lost:
            self._refresh_head(lost)
            self._halt(findings)
            return
        self._halted.report(batch)
        if batch.findings:
            self._end_halted(batch.findings)

    def _end_halted(self, findings: tuple[Finding, ...]) -> NoReturn:
        self._committer.wait_for_side_tables()
        raise IntegrityLost(self._context.stream.name, findings)

    def _refresh_head(self, lost: HourClosed) -> None:
        """Reload the head: the hour of the plan was closed, and the next plan needs the closed hours."""
        LOG.info("%s: it is planned again", lost.problem)
        self._committer.refresh_head()

    def _plan_input(self) -> PlanInput:
        now_us = time.time_ns() // 1_000  # the planning time, by which `lockstep verify` judges the batch, too
        stream = self._context.stream
        limits = stream.limits
        cores = self._context.cores()
        has_archive = stream.archive is not None
        has_pending = is_overridden(type(stream.transform), "pending")
        return PlanInput(
            batch=make_batch_identity(self._writer, self._committer.head, now_us, has_archive=has_archive),
            positions=tuple(self._read_positions.values()),
            ends=self._monitor.view.ends,
            stop_at=self._stop_offsets.offsets,
            messages_max=limits.find_batch_messages(cores),
            range_messages_max=limits.range_messages,
            cores=cores,
            learned=self._partitions.learned,
            goal=self._goal(),
            tuning=self._context.launch.tuning,
            patient=self._silent.find_patient(),
            resting=self._silent.find_resting(time.monotonic()),
            is_live=isinstance(self._context.trigger, Every),
            uncounted=self._partitions.find_uncounted(stream.integrity, has_pending=has_pending),
            silent=self._idle.advance_watermarks(self._read_positions, self._monitor.view.ends, now_us),
        )

    @property
    def _read_positions(self) -> Mapping[TopicIdPartition, Position]:
        """Positions of the partitions that are read: those of halted topics stay."""
        return self._halted.leave_out(self._partitions.positions)

    def _goal(self) -> FileGoal | None:
        """Size and time targets of the next batch, under the file-size trigger."""
        trigger = self._context.trigger
        now = time.monotonic()
        if not isinstance(trigger, FileSize):
            return None
        ends = self._monitor.view.ends
        self._backlog = self._backlog.note_poll(self._partitions.lag_messages(ends), now)
        if self._order.is_due(self._read_positions, ends):
            return FileGoal(target_bytes=trigger.target_bytes, left_seconds=0.0)
        left_seconds = self._backlog.left_seconds(trigger.at_most.total_seconds(), now)
        left_seconds -= self._context.launch.tuning.idle_seconds  # the next plan may be as late as that
        return FileGoal(target_bytes=trigger.target_bytes, left_seconds=left_seconds)

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
        report = msgspec.structs.replace(
            report,
            headroom_seconds=self._partitions.headroom_seconds(self._monitor.view, time.time_ns() // 1_000_000),
            restart=self._committer.restart,
            stalls=self._blocked.stalls,
            plan_seconds=self._plan_seconds,
            task_seconds=self._task_seconds,
        )
        self._live.note(report)
        self._context.reports.batch(report)
