"""Keeps the newest batches of a run, and publishes them next to its heartbeat at most twice a second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from lockstep.control.live_report import BATCHES_MAX, LiveBatch, LiveReport, LiveTopic, write_live_report
from lockstep.engine.driver.metrics import BatchReport
from lockstep.storage import find_storage

PUBLISH_SECONDS = 0.5
"""Shortest time between two reports; stretched where each one is a request."""


class LiveReports:
    """The live report of a writer."""

    def __init__(self, control: Path, report: LiveReport) -> None:
        """Publishes nothing yet.

        Args:
            control: The stream's folder of heartbeats.
            report: The report before the first batch.
        """
        self._control = control
        self._report = report
        self._published: LiveReport | None = None
        self._batches = deque[LiveBatch](maxlen=BATCHES_MAX)
        self._seconds = PUBLISH_SECONDS * find_storage(control).poll_factor
        self._due = 0.0

    def note(self, report: BatchReport) -> None:
        """Take a committed batch."""
        checks = report.batch_seconds - report.task_seconds - report.commit_seconds
        self._batches.append(
            LiveBatch(
                batch=report.batch,
                committed_at=time.time(),
                messages=report.counts.messages,
                rows=report.rows,
                quarantined=report.counts.quarantined,
                plan_seconds=report.plan_seconds,
                task_seconds=report.task_seconds,
                check_seconds=max(0.0, checks),
                commit_seconds=report.commit_seconds,
                cpu_seconds=report.cpu_seconds,
                state_bytes=report.state_bytes,
                freshness_seconds=report.freshness_seconds,
            )
        )
        stalls = tuple(map(str, report.stalls))
        self._report = msgspec.structs.replace(self._report, headroom_seconds=report.headroom_seconds, stalls=stalls)

    def publish(self, list_topics: Callable[[], tuple[LiveTopic, ...]]) -> None:
        """Publish the news, if the last time is long enough ago; a report that cannot be written is left out."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._seconds
        self._report = msgspec.structs.replace(self._report, batches=tuple(self._batches), topics=list_topics())
        if self._report == self._published:
            return
        with suppress(OSError):  # the heartbeat and the commit report a disk that fails
            write_live_report(self._control, self._report)
            self._published = self._report
