"""Metrics that a run reports while it works, per window of batches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from lockstep.engine.protocol import TaskResult, list_results
from lockstep.kafka.open_transaction import OpenTransaction
from lockstep.kafka.progress import compute_freshness_seconds
from lockstep.model.message_counts import MessageCounts


class RunStart(msgspec.Struct, frozen=True):
    """Start of a run.

    Attributes:
        cause: How the previous writer was found, and why this run was started.
        gap_seconds: Time from the last batch of the previous run to the first of this run, idle time included; None
            for a first run.
    """

    cause: str
    gap_seconds: float | None


class BatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """One committed batch.

    Attributes:
        batch: Its number.
        offsets: Offsets read: messages and offsets without a message.
        accounted: Those with a known outcome: a message with its result, or an offset without a message with its cause.
        counts: Messages by outcome.
        rows: Rows written.
        holes: Offsets without messages.
        topics: Topics subscribed.
        lag_messages: Messages behind the high watermarks after the batch.
        freshness_seconds: Age of the newest message of the batch; None without messages.
        plan_seconds: Wall time of the audit and the plan.
        task_seconds: Wall time of its tasks.
        batch_seconds: Wall time from plan to commit, without the plan.
        cpu_seconds: CPU time of the tasks.
        state_bytes: Bytes of state written.
        epoch: Epoch of the writer.
        commit_seconds: Wall time of the commit alone.
        headroom_seconds: Time until retention deletes a message that is not committed; None without a limit.
        restart: Start of the run, with its first batch.
        stalls: Partitions that wait for a transaction open too long.
    """

    batch: int
    offsets: int
    accounted: int
    counts: MessageCounts
    rows: int
    holes: int
    topics: int
    lag_messages: int
    freshness_seconds: float | None
    plan_seconds: float = 0.0
    task_seconds: float = 0.0
    batch_seconds: float
    cpu_seconds: float
    state_bytes: int
    epoch: int
    commit_seconds: float
    headroom_seconds: float | None = None
    restart: RunStart | None = None
    stalls: tuple[OpenTransaction, ...] = ()


class ReportWindow(msgspec.Struct):
    """Sums over the batches since the last report."""

    reports: list[BatchReport] = []

    def summary(self) -> dict[str, float | str]:
        """The window as figures for plots, with units at the end of names; and the start of the run.

        Most important first: lag, freshness, completeness.
        """
        lag: dict[str, float | str] = {"lag_messages": float(self.reports[-1].lag_messages)}
        first = lag | self._freshness() | self._completeness()
        return first | self._work() | self._headroom() | self._stalls() | self._restart()

    def _work(self) -> dict[str, float | str]:
        last = self.reports[-1]
        messages = sum(report.counts.messages for report in self.reports)
        seconds = [report.batch_seconds for report in self.reports]
        figures: dict[str, float | str] = {
            "batch": float(last.batch),
            "batches": float(len(self.reports)),
            "messages": float(messages),
            "rows": float(sum(report.rows for report in self.reports)),
            "quarantined": float(sum(report.counts.quarantined for report in self.reports)),
            "topics": float(last.topics),
            "epoch": float(last.epoch),
            "state_bytes": float(sum(report.state_bytes for report in self.reports)),
            "batch_seconds_mean": sum(seconds) / len(seconds),
            "batch_seconds_max": max(seconds),
            "commit_seconds_mean": sum(report.commit_seconds for report in self.reports) / len(seconds),
        }
        if messages:
            cpu = sum(report.cpu_seconds for report in self.reports)
            figures["cpu_seconds_per_million_messages"] = cpu / messages * 1e6
        return figures

    def _completeness(self) -> dict[str, float]:
        offsets = sum(report.offsets for report in self.reports)
        accounted = sum(report.accounted for report in self.reports)
        if not offsets:
            return {}
        return {"completeness_percent": compute_completeness_percent(accounted, offsets)}

    def _freshness(self) -> dict[str, float]:
        fresh = sorted(report.freshness_seconds for report in self.reports if report.freshness_seconds is not None)
        if not fresh:
            return {}
        p99 = fresh[min(len(fresh) - 1, len(fresh) * 99 // 100)]
        return {"freshness_p50_seconds": fresh[len(fresh) // 2], "freshness_p99_seconds": p99}

    def _headroom(self) -> dict[str, float]:
        headrooms = [report.headroom_seconds for report in self.reports if report.headroom_seconds is not None]
        if not headrooms:
            return {}
        return {"headroom_hours": min(headrooms) / 3600}

    def _stalls(self) -> dict[str, float | str]:
        stalls = self.reports[-1].stalls
        if not stalls:
            return {}
        worst = max(stalls, key=lambda stall: stall.seconds)
        return {"stalled_partitions": float(len(stalls)), "stalled_seconds": worst.seconds, "stalled_worst": str(worst)}

    def _restart(self) -> dict[str, float | str]:
        for report in self.reports:
            if report.restart is not None:  # at most one: that of the first batch of the run
                return _describe_restart(report.restart)
        return {}


def _describe_restart(start: RunStart) -> dict[str, float | str]:
    figures: dict[str, float | str] = {"restart_cause": start.cause}
    if start.gap_seconds is not None:
        figures["restart_gap_seconds"] = start.gap_seconds
    return figures


def compute_completeness_percent(accounted: int, offsets: int) -> float:
    """Percentage of the offsets read that is accounted for. Cut, not rounded: 100 means all of them."""
    return accounted * 100_000 // offsets / 1000


def make_batch_report(
    bins: Sequence[TaskResult],
    *,
    batch: int,
    epoch: int,
    topics: int,
    lag_messages: int,
    batch_seconds: float,
    commit_seconds: float,
) -> BatchReport:
    """Report of a committed batch: results of its bins, and the state of the run after it."""
    results = list_results(bins)
    holes = 0
    for item in results:
        holes += sum(hole.until - hole.start for hole in item.holes)
    counts = MessageCounts.add_up(item.counts for item in results)
    newest_ms = [item.newest_timestamp_ms for item in results]
    return BatchReport(
        batch=batch,
        offsets=sum(item.reached.next_offset - item.range.position.next_offset for item in results),
        accounted=holes + counts.accounted,
        counts=counts,
        rows=sum(item.rows for item in results),
        holes=holes,
        topics=topics,
        lag_messages=lag_messages,
        freshness_seconds=compute_freshness_seconds(newest_ms, time.time_ns() // 1_000_000),
        batch_seconds=batch_seconds,
        cpu_seconds=sum(item.cpu_seconds for item in results),
        state_bytes=sum(item.state_bytes for item in results),
        epoch=epoch,
        commit_seconds=commit_seconds,
    )
