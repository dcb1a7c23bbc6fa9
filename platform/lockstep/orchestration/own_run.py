"""What Dagster thinks of the run that this process works for.

Terminate reaches a process by a signal from the code server that launched it. A run of the command line has none, and
the code server of a run may be gone: Dagster then only marks the run. So the process asks for its own status, too.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from dagster import DagsterEventType, DagsterRunStatus

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
        """Ask for a stop when somebody terminates the run, or Dagster holds it for over (a time-out; deleted)."""
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
        elif run.status is DagsterRunStatus.CANCELING:
            stopping.ask("terminated in Dagster")

    def terminated_by_a_person(self) -> bool:
        """Whether somebody asked Dagster to terminate the run; a bare signal is nobody's wish."""
        return asked_to_terminate(self._instance, self._run_id)


def asked_to_terminate(instance: DagsterInstance, run_id: str) -> bool:
    """Whether somebody asked Dagster to terminate a run, whatever became of it: its process may have died over it."""
    run = instance.get_run_by_id(run_id)
    if run is None:
        return False
    if run.status in {DagsterRunStatus.CANCELING, DagsterRunStatus.CANCELED}:
        return True
    return bool(instance.get_records_for_run(run_id, of_type=DagsterEventType.RUN_CANCELING, limit=1).records)
