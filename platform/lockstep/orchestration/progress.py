"""Tells Dagster how a run goes: one observation of the table for many batches, with numbers to plot.

It is no materialization: that would say of the table's check that it was not made since, every minute. The table is
materialized by a run that ends, and by its check (docs/decisions/0011). An event costs 25 to 80 ms and some kB of
Dagster's storage, so a batch gets none of its own. Batches report on the run's thread; only the main thread talks to
Dagster.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from dagster import AssetMaterialization, AssetObservation

from lockstep.engine.progress import BatchReport, Window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster import AssetExecutionContext, AssetKey

REPORT_SECONDS = 60.0
"""Fresh enough for a person who looks on; 1,440 events a day."""


class RunProgress:
    """Collects the batches of a run and reports them in windows."""

    def __init__(self, context: AssetExecutionContext, key: AssetKey, every_seconds: float = REPORT_SECONDS) -> None:
        self._context, self._key, self._every = context, key, every_seconds
        self._lock = threading.Lock()
        self._window, self._reported = Window(), -math.inf  # the first batch is reported at once
        self._began = time.monotonic()
        self._batches = self._messages = self._rows = 0

    def add(self, report: BatchReport) -> None:
        """Take up one committed batch; called on the run's thread."""
        with self._lock:
            self._window.reports.append(report)

    def tick(self) -> None:
        """Report when it is time to; called on the main thread."""
        if time.monotonic() - self._reported < self._every:
            return
        window = self._take()
        if window.reports:
            self._reported = time.monotonic()
            self._log(window.summary())

    def final(self, outcome: str) -> dict[str, float | int | str]:
        """The numbers of the last window and of the whole run, for the run's last event."""
        window = self._take()
        last = window.summary() if window.reports else {}
        return {
            **last,
            "outcome": outcome,
            "run_batches": self._batches,
            "run_messages": self._messages,
            "run_rows": self._rows,
            "run_seconds": round(time.monotonic() - self._began, 3),
        }

    def log_final(self, outcome: str) -> None:
        """Report the end of a run that does not materialize the table."""
        self._log(self.final(outcome))

    def _take(self) -> Window:
        with self._lock:
            window, self._window = self._window, Window()
        self._batches += len(window.reports)
        self._messages += sum(report.messages for report in window.reports)
        self._rows += sum(report.rows for report in window.reports)
        return window

    def _log(self, numbers: Mapping[str, float | int | str]) -> None:
        # People read them, too: three digits after the point say all there is to say.
        shown = {name: round(value, 3) if isinstance(value, float) else value for name, value in numbers.items()}
        first = self._context.instance.get_latest_materialization_event(self._key) is None
        # A table without a materialization would look as if it had never been there.
        self._context.log_event((AssetMaterialization if first else AssetObservation)(self._key, metadata=shown))
        # The context keeps every event until the step ends, which this one may never do.
        deque(self._context.consume_events(), maxlen=0)
