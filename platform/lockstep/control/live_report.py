"""The live report of a writer: its newest batches and its lag by topic, in a file next to its heartbeat.

Tables and Kafka are too dear to be read each second for many streams; this is one small file for each. It decides
nothing: a report that is missing, late or damaged is as good as none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from lockstep.control.heartbeat import list_epochs
from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage

BATCHES_MAX = 240
"""Batches of a report: 24 kB. Two minutes of a trigger of half a second."""


class LiveBatch(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A committed batch.

    Attributes:
        batch: Its number.
        committed_at: Time of the commit, in seconds since 1970 (UTC), by the driver's clock.
        messages: Messages read.
        rows: Rows written.
        quarantined: Messages that entered quarantine.
        plan_seconds: Wall time of the audit and the plan before it.
        task_seconds: Wall time of its tasks.
        check_seconds: Wall time of the questions to Kafka between the tasks and the commit, and of waiting for the side
            tables.
        commit_seconds: Wall time of its commit.
        cpu_seconds: CPU time of its tasks.
        state_bytes: Bytes of state written.
        freshness_seconds: Age of its newest message at the commit; None without messages.
    """

    batch: int
    committed_at: float
    messages: int
    rows: int
    quarantined: int
    plan_seconds: float
    task_seconds: float
    check_seconds: float
    commit_seconds: float
    cpu_seconds: float
    state_bytes: int
    freshness_seconds: float | None


class LiveTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic that is read; values by partition, in the order of `partitions`.

    Attributes:
        topic: Its name.
        partitions: Partition numbers.
        lag_messages: Offsets from the position to the high watermark.
        newest_ms: Kafka timestamp of the newest committed message, in milliseconds since 1970; 0 without one.
    """

    topic: str
    partitions: tuple[int, ...]
    lag_messages: tuple[int, ...]
    newest_ms: tuple[int, ...]


class LiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a writer.

    Attributes:
        epoch: Its epoch.
        run_id: Id of its run.
        cause: Cause of the run.
        claimed_at: Time of its claim, in seconds since 1970 (UTC), by the driver's clock.
        batches: Its newest batches, oldest first.
        topics: The topics that it reads.
        headroom_seconds: Time until retention deletes an unread message; None without a limit, or unknown.
        stalls: Partitions that wait for an open transaction, as text.
    """

    epoch: int
    run_id: str
    cause: str
    claimed_at: float
    batches: tuple[LiveBatch, ...] = ()
    topics: tuple[LiveTopic, ...] = ()
    headroom_seconds: float | None = None
    stalls: tuple[str, ...] = ()

    @property
    def lag_messages(self) -> int:
        """Offsets from the positions to the high watermarks, of all topics."""
        return sum(map(sum, (topic.lag_messages for topic in self.topics)))


class LiveRates(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a writer over some seconds.

    Attributes:
        seconds: The time.
        batches: Batches committed in it.
        messages: Messages read in a second.
        rows: Rows written in a second.
        cpu_cores: CPU seconds of tasks in a second.
        phase_seconds: Mean wall time of each phase of a batch: plan, tasks, checks, commit; empty without a batch.
    """

    seconds: float
    batches: int
    messages: float
    rows: float
    cpu_cores: float
    phase_seconds: dict[str, float]

    @property
    def batch_seconds(self) -> float | None:
        """Mean wall time of a batch, from its plan to its commit; None without a batch."""
        return sum(self.phase_seconds.values()) if self.batches else None


def compute_rates(report: LiveReport, now: float, seconds: float) -> LiveRates:
    """The rates over the last seconds, or since the claim.

    Args:
        report: The report.
        now: Time of this machine, in seconds since 1970 (UTC).
        seconds: Length of the window, at most; it is shorter after a start, and if the report's batches are younger.
    """
    start = max(now - seconds, report.claimed_at)
    if len(report.batches) == BATCHES_MAX:  # older batches are not in it
        start = max(start, min(report.batches[0].committed_at, now))
    recent = [batch for batch in report.batches if batch.committed_at > start]
    window = max(now - start, 1.0)
    return LiveRates(
        seconds=window,
        batches=len(recent),
        messages=sum(batch.messages for batch in recent) / window,
        rows=sum(batch.rows for batch in recent) / window,
        cpu_cores=sum(batch.cpu_seconds for batch in recent) / window,
        phase_seconds=_average_phases(recent),
    )


def _average_phases(batches: Sequence[LiveBatch]) -> dict[str, float]:
    if not batches:
        return {}
    return {
        "plan": fmean(batch.plan_seconds for batch in batches),
        "tasks": fmean(batch.task_seconds for batch in batches),
        "checks": fmean(batch.check_seconds for batch in batches),
        "commit": fmean(batch.commit_seconds for batch in batches),
    }


def write_live_report(control: Path, report: LiveReport) -> None:
    """Replace the report of an epoch. Raises OSError."""
    path = _name_file(control, report.epoch)
    find_storage(path).replace(path, msgspec.json.encode(report))


def read_live_report(control: Path, epoch: int) -> LiveReport | None:
    """The report of an epoch; None without a readable one."""
    path = _name_file(control, epoch)
    try:
        return decode_json(find_storage(path).read(path), LiveReport)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def find_newest_epoch(control: Path) -> int | None:
    """The newest epoch with a heartbeat; None before the first run. Costs a listing, and reads no table."""
    return max(list_epochs(control), default=None)


def _name_file(control: Path, epoch: int) -> Path:
    return control / f"report-{epoch}.json"
