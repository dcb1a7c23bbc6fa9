"""Starts a stream's job as `dagster job launch` does, for `lockstep start`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import msgspec

from lockstep.errors import EnvironmentProblem
from lockstep.operations.desire import startable, want_running
from lockstep.orchestration.names import CAUSE_TAG, stream_job
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.engine.hands import AnyStream
    from lockstep.settings import Settings

WORKSPACE = "workspace.yaml"
LAUNCH_SECONDS_MAX = 600
"""A code location loads in seconds; an overloaded machine took four minutes (measured)."""
SAID_LINES = 5


class Launched(msgspec.Struct, frozen=True):
    """A start.

    Attributes:
        stream: Name of the stream.
        job: Dagster's job of it.
        run_id: Dagster's id of the run; empty when a writer works already and nothing was started.
        home: The DAGSTER_HOME that knows the run.
        epoch: The epoch that held the table before.
    """

    stream: str
    job: str
    run_id: str
    home: str
    epoch: int


def start_stream(stream: AnyStream, settings: Settings, folder: Path, *, who: str) -> Launched:
    """Launch a run that goes on until it is stopped, unless one does already.

    1. A halted stream is refused; one that is being written is left as it is.
    2. Launch the job.
    3. A stopped stream is wanted again from now on, so that a supervisor keeps it running.

    Raises:
        StreamHalted: It waits for an operator.
        EnvironmentProblem: There is no Dagster here that could hold a run, or it refused.
    """
    home = _home(stream.name, folder)
    folders = StreamFolders(stream.name, settings.table_root)
    found = startable(folders)  # 1
    job = stream_job(stream)
    if found.lives:
        return Launched(stream.name, job, "", home, found.epoch)
    run_id = str(uuid.uuid4())
    cause = f"lockstep start ({who})"
    command = [sys.executable, "-m", "dagster", "job", "launch", "-w", WORKSPACE, "-j", job, "--run-id", run_id]
    _launch([*command, "--tags", json.dumps({CAUSE_TAG: cause})], folder, stream.name)  # 2
    want_running(folders, found, cause)  # 3
    return Launched(stream.name, job, run_id, home, found.epoch)


def _home(stream: str, folder: Path) -> str:
    here = f"or run it in this process: lockstep run {stream}"
    home = os.environ.get("DAGSTER_HOME", "")
    if not home:
        step = f"export DAGSTER_HOME=<the folder that the web UI uses>, {here}"
        raise EnvironmentProblem("DAGSTER_HOME is not set: there is no Dagster that could hold a run", next_step=step)
    if not (folder / WORKSPACE).is_file():
        step = f"go to the folder that holds {WORKSPACE}, {here}"
        raise EnvironmentProblem(f"no {WORKSPACE} in {folder}", next_step=step)
    return home


def _launch(command: list[str], folder: Path, stream: str) -> None:
    try:
        said = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=LAUNCH_SECONDS_MAX
        )
    except subprocess.TimeoutExpired as error:
        step = f"look at the runs of the web UI: it may begin yet; if not: lockstep run {stream}"
        raise EnvironmentProblem(f"Dagster did not answer within {error.timeout:.0f} s", next_step=step) from error
    if said.returncode != 0:
        tail = "\n".join(said.stderr.strip().splitlines()[-SAID_LINES:])
        raise EnvironmentProblem(f"Dagster did not launch the run:\n{tail}", next_step=f"lockstep run {stream}")
