"""What Dagster thinks of the run that this process works for."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from dagster import DagsterRunStatus

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from lockstep.engine.beside import Stopping

LOG = logging.getLogger("lockstep")

ASK_SECONDS = 5.0
OVER = (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)


class OwnRun:
    """Asks now and then. Never decides who may write: the epoch does."""

    def __init__(self, instance: DagsterInstance, run_id: str) -> None:
        self._instance, self._run_id = instance, run_id
        self._asked = time.monotonic()

    def tick(self, stopping: Stopping) -> None:
        """Ask for a stop when Dagster holds the run for over: its cancel timed out, or it was deleted."""
        if time.monotonic() - self._asked < ASK_SECONDS:
            return
        self._asked = time.monotonic()
        try:
            run = self._instance.get_run_by_id(self._run_id)
        except Exception:  # whatever ails Dagster's storage, it does not end a stream
            LOG.warning("Dagster's storage does not answer", exc_info=True)
            return
        if run is None or run.status in OVER:
            stopping.ask("Dagster holds this run for over")

    def terminated_by_a_person(self) -> bool:
        """Whether somebody asked Dagster to terminate the run; a bare signal is nobody's wish."""
        run = self._instance.get_run_by_id(self._run_id)
        return run is not None and run.status is DagsterRunStatus.CANCELING
