"""The batches of one run: audit, plan, work, commit. All it remembers can be read from the ledger again."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import NoReturn

import msgspec

from lockstep.declare.triggers import AvailableNow
from lockstep.engine import bookkeeping
from lockstep.engine.facts import BinFacts, RangeFacts
from lockstep.engine.hands import Hands
from lockstep.engine.plan import BatchPlan, PlanInput, clock_hour, hour_of, plan_batch
from lockstep.engine.progress import BatchReport, freshness_seconds
from lockstep.engine.start import Claimed, refuse_overtaken, refuse_unfit
from lockstep.engine.watch import KafkaWatch
from lockstep.errors import IntegrityLost, LockstepError, TableError
from lockstep.integrity.finding import Finding, Hole
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.audit import EXPIRED, GREW, Key, Known, audit, replaced
from lockstep.table import demands, ledger, side
from lockstep.table.commit import Landed, checkpoint

LOG = logging.getLogger("lockstep")

FULL_LEDGER_BATCHES, FULL_LEDGER_SECONDS = 100, 600.0
"""A start reads the ledger back to the newest full set: at most so much."""
CHECKPOINT_ENTRIES = 20
"""At four batches a second, 10,000 entries without a log checkpoint make a commit cost a second."""
FAILURES_MAX = 3
"""So many jobs may fail in a row; each is planned again from the last commit."""


class Batches:
    """Plans and works the batches of a run, in order."""

    def __init__(self, hands: Hands, claimed: Claimed, helper: ThreadPoolExecutor) -> None:
        """Read positions and Kafka.

        Raises:
            LockstepError: The topics are such that the stream cannot run on them.
        """
        selected = hands.stream.topics.select(row.topic for row in claimed.known.values())
        self._hands, self._claimed, self._helper = hands, claimed, helper
        self._head = claimed.head
        self._watch = KafkaWatch(hands, selected)
        refuse_unfit(hands.stream, self._watch.view)
        self._positions = bookkeeping.subscribed(claimed.known, self._watch.view)
        self._others = {key: row for key, row in claimed.known.items() if key not in self._positions}
        self._audited = {key: Known(row.topic, row.until) for key, row in self._others.items() if row.topic in selected}
        self._stop_at = {key: ends.stable_end for key, ends in self._watch.view.ends.items()}
        self._rates: dict[Key, float] = {}
        self._bins: dict[Key, int] = {}
        self._side: Future[bool] | None = None
        self._lost: dict[Key, Hole] = {}
        self._view_is_new, self._failures, self._first = True, 0, True

    def plan(self) -> BatchPlan | None:
        """Audit, then plan the next batch; None when there is nothing to do.

        Raises:
            IntegrityLost: The audit found what the class cannot bear; the halt is committed.
        """
        self._audit()
        plan = plan_batch(self._plan_input())
        self._bins |= {item.position.key: n for n, group in enumerate(plan.bins) for item in group}
        return plan if plan.bins or self._subscription_is_new() else None

    def done(self) -> bool:
        """Whether all that was there at the start of the run is committed."""
        return all(p.next_offset >= self._stop_at.get(key, p.next_offset) for key, p in self._positions.items())

    def work(self, plan: BatchPlan) -> None:
        """Run the bins of a plan and commit what they reached.

        1. Run the bins; a failed job is planned again, from the last commit.
        2. Ask Kafka again: a topic replaced since the plan was read under a false name.
        3. Wait until the side tables hold the batch before.
        4. Write the ledger file; commit; side tables follow under the next batch.
        5. Advance, report, and raise if this commit was the halt.
        """
        began = time.monotonic()
        bins = self._run(plan)
        if bins is None or self._replaced():
            return
        facts = [item for group in bins for item in group.ranges]
        findings = tuple(item.finding for item in facts if item.finding is not None)
        if not findings and not self._worth_committing(facts):
            return
        try:
            landed, commit_seconds = self._commit(plan, bins, findings, time.monotonic() - began)
        except demands.Replan as lost:
            self._renew_head(lost)
            return
        self._advance(landed, facts)
        self._hands.report(self._report(facts, time.monotonic() - began, commit_seconds))
        if findings:
            self._settle()
            raise IntegrityLost(self._hands.stream.name, findings)

    def _run(self, plan: BatchPlan) -> Sequence[BinFacts] | None:
        if not plan.bins:
            return ()
        try:
            bins = self._hands.runner(plan)
        except LockstepError:
            raise
        except Exception:  # the outermost edge of a Spark job: whatever failed there is retried from the ledger
            self._failures += 1
            if self._hands.stop.is_set() or self._failures >= FAILURES_MAX:
                raise
            LOG.warning("batch %s failed, planning again", plan.number, exc_info=True)
            return None
        self._failures = 0
        return bins

    def _replaced(self) -> bool:
        before = self._watch.view
        after = self._watch.look()
        self._view_is_new = True
        names = replaced(before, after.topics)
        if names:
            LOG.warning("topics %s changed while they were read: batch discarded", ", ".join(names))
        return bool(names)

    def _worth_committing(self, facts: Sequence[RangeFacts]) -> bool:
        return self._first or any(item.until > item.range.position.next_offset for item in facts)

    def _commit(
        self, plan: BatchPlan, bins: Sequence[BinFacts], findings: tuple[Finding, ...], seconds: float
    ) -> tuple[Landed, float]:
        """Steps 3 and 4."""
        self._settle()
        began = time.monotonic()
        full = self._full_ledger_due()
        now = ledger.now()
        rows = self._ledger_rows(bins, now, seconds, full=full)
        batch = demands.Batch(
            number=plan.number,
            commit_hour=plan.commit_hour,
            files=tuple(file for group in bins for file in group.files),
            ledger=ledger.write_ledger(self._hands.folders.ledger, rows),
            full_ledger_at=now.timestamp() if full else None,
            findings=findings,
        )
        landed = self._claimed.output.commit(demands.batch(self._claimed.writer, batch))
        self._side = self._helper.submit(side.forward, self._hands.folders.ledger, batch.ledger, batch.number)
        if landed.version % CHECKPOINT_ENTRIES == 0:
            self._helper.submit(self._checkpoint)
        return landed, time.monotonic() - began

    def _ledger_rows(
        self, bins: Sequence[BinFacts], now: datetime, seconds: float, *, full: bool
    ) -> list[ledger.LedgerRow]:
        writer, ends = self._claimed.writer, self._watch.view.ends
        identity = bookkeeping.BatchIdentity(
            generation=writer.generation,
            batch=self._head.batch + 1,
            epoch=writer.epoch,
            committed_at=now,
            batch_seconds=seconds,
            restart_cause=self._cause() if self._first else None,
        )
        facts = [item for group in bins for item in group.ranges]
        quiet = [
            position
            for key, position in self._positions.items()
            if full and key not in {f.range.position.key for f in facts}
        ]
        rows = bookkeeping.ledger_rows(identity, facts, quiet, ends)
        rows += [bookkeeping.carried(identity, row) for row in self._others.values() if full]
        return [bookkeeping.with_lost(row, self._lost.get((row.topic_id, row.partition))) for row in rows]

    def _advance(self, landed: Landed, facts: Sequence[RangeFacts]) -> None:
        self._head, self._first = landed.head, False
        for item in facts:
            self._lost.pop(item.range.position.key, None)
        for item in facts:
            key = item.range.position.key
            self._positions[key] = bookkeeping.advanced(item.range.position, item)
            if item.counts.messages:
                seconds = item.cpu_seconds / item.counts.messages
                self._rates[key] = 0.7 * self._rates.get(key, seconds) + 0.3 * seconds
            if item.trouble is not None:
                LOG.warning("%s/%s: %s", item.range.position.topic, item.range.position.partition, item.trouble)

    def _audit(self) -> None:
        if not self._view_is_new:
            self._watch.look()
        self._view_is_new = False
        known = self._audited | {key: Known(p.topic, p.next_offset) for key, p in self._positions.items()}
        if self._hands.stream.integrity.unproven_hole is not Judgement.VIOLATION:
            for finding in audit(known, self._watch.view):
                self._accept(finding)
        elif findings := self._watch.confirmed(known):
            self._halt(findings)

    def _accept(self, finding: Finding) -> None:
        """What a class without a promise only counts: expired offsets are passed over, as a hole."""
        key = (finding.topic_id, finding.partition)
        if finding.cause == EXPIRED and key in self._positions:
            self._lost[key] = Hole(start=finding.offset, until=finding.until, cause="expired")
            self._positions[key] = msgspec.structs.replace(self._positions[key], next_offset=finding.until)
            LOG.warning("%s", finding)
        elif finding.cause == GREW and key in self._watch.view.ends:
            topic = self._watch.view.topics[finding.topic]
            self._positions[key] = bookkeeping.first_position(topic, key, self._watch.view.ends[key])
            LOG.warning("%s", finding)

    def _halt(self, findings: tuple[Finding, ...]) -> NoReturn:
        """Commit a halt that the driver found: no rows, positions as they are."""
        plan = plan_batch(self._plan_input())
        try:
            landed, _ = self._commit(plan, (), findings, 0.0)
        except demands.Replan as lost:
            self._renew_head(lost)
            self._halt(findings)
        self._advance(landed, ())
        self._settle()
        raise IntegrityLost(self._hands.stream.name, findings)

    def _renew_head(self, lost: demands.Replan) -> None:
        """The hour of the plan was closed under it: the next plan needs to know which hours are."""
        LOG.info("%s: it is planned again", lost.problem)
        self._head = self._claimed.output.base().head

    def _plan_input(self) -> PlanInput:
        return PlanInput(
            generation=self._claimed.writer.generation,
            epoch=self._claimed.writer.epoch,
            number=self._head.batch + 1,
            commit_hour=hour_of(clock_hour(), self._head.hour, self._head.closed_hour),
            positions=tuple(self._positions.values()),
            ends=self._watch.view.ends,
            stop_at=self._stop_at if isinstance(self._hands.trigger, AvailableNow) else {},
            messages_max=self._hands.stream.limits.batch_messages,
            cores=self._hands.cores,
            seconds_a_message=self._rates,
            bins_before=self._bins,
        )

    def _subscription_is_new(self) -> bool:
        """New partitions are committed even while empty, so that they count as subscribed."""
        return self._first and not self._positions.keys() <= self._claimed.known.keys()

    def _full_ledger_due(self) -> bool:
        aged = time.time() - self._head.full_ledger_at > FULL_LEDGER_SECONDS
        return self._first or aged or self._head.batch + 1 - self._head.full_ledger_batch >= FULL_LEDGER_BATCHES

    def _cause(self) -> str:
        return f"{self._claimed.takeover.value}; {self._hands.cause}"

    def _settle(self) -> None:
        """A batch is committed only after the side tables hold the one before.

        Raises:
            Fenced: A newer writer has brought them further than this one knows.
        """
        if self._side is None:
            return
        try:
            self._side.result()
        except TableError:
            refuse_overtaken(self._claimed.output, self._claimed.writer)
            raise
        self._side = None

    def _checkpoint(self) -> None:
        try:
            checkpoint(self._hands.folders.table)
        except Exception:  # only makes later opens faster; the next one tries again
            LOG.warning("no log checkpoint this time", exc_info=True)

    def _report(self, facts: Sequence[RangeFacts], seconds: float, commit_seconds: float) -> BatchReport:
        return BatchReport(
            batch=self._head.batch,
            messages=sum(item.counts.messages for item in facts),
            rows=sum(item.rows for item in facts),
            skipped=sum(item.counts.skipped for item in facts),
            dropped=sum(item.counts.dropped for item in facts),
            holes=sum(hole.until - hole.start for item in facts for hole in item.holes),
            topics=len(self._watch.view.topics),
            lag_messages=bookkeeping.lag_messages(self._positions.values(), self._watch.view.ends),
            freshness_seconds=freshness_seconds(facts),
            batch_seconds=seconds,
            cpu_seconds=sum(item.cpu_seconds for item in facts),
            state_bytes=sum(item.state_bytes for item in facts),
            epoch=self._claimed.writer.epoch,
            commit_seconds=commit_seconds,
        )
