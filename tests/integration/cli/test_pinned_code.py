"""A run keeps the code of its start, also in workers that start after an edit; the next run has the new code."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import psutil
import pytest

from lockstep.operations.inspect.history import read_history
from lockstep.table.commit import OutputLog
from tests.support.descendants import list_descendants
from tests.support.feed import Feed
from tests.support.readings_project import ReadingsProject

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker

WORKER_DAEMON = "lockstep.spark.worker_daemon"
RUN = ("lockstep.cli", "run", "readings")


def kill_workers(run: subprocess.Popen[bytes]) -> None:
    """Kill a run's worker daemon with its Python workers; Spark starts a new daemon."""
    below = map(psutil.Process, list_descendants(run.pid))
    daemons = [process for process in below if WORKER_DAEMON in process.cmdline()]
    assert daemons
    for process in daemons:
        process.kill()
    psutil.wait_procs(daemons)


@pytest.mark.slow
@pytest.mark.broker
def test_a_worker_that_starts_after_an_edit_has_the_code_of_its_run(broker: Broker, tmp_path: Path) -> None:
    project = ReadingsProject(tmp_path, Feed(broker.bootstrap_servers, f"pinned_{uuid.uuid4().hex[:8]}"))
    project.feed.create("house")
    project.write(1)
    with project.run(*RUN) as run:
        project.send(5)
        project.write(2)
        kill_workers(run)
        project.send(5)
        assert project.read_values() == [1.0] * 10
    with project.run(*RUN):
        project.send(5)
    assert project.read_values() == [1.0] * 10 + [2.0] * 5
    causes = [event.detail for event in read_history(project.tables, last=50).events if "(code " in event.detail]
    codes = [cause.rpartition("(code ")[2] for cause in causes]
    assert len(set(codes)) == 2, causes
    head = OutputLog(project.tables.table).base().head
    assert head.code_version is not None
    assert codes[-1] == f"{head.code_version.digest[:12]})"
