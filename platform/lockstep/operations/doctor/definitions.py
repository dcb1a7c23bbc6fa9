"""Loads the code locations of the workspace as Dagster does: what breaks there takes down every stream at once."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lockstep.operations.doctor.diagnosis import Diagnosis, make_error, make_ok, make_warning
from lockstep.time_limit import SLOW, run_command

CHECK = "definitions"
WORKSPACE = "workspace.yaml"
LOAD_SECONDS = 240.0
"""Three seconds on an idle machine; Dagster's own limit for a code location is three minutes."""
_FAILED = re.compile(r"Validation failed for code location (?P<name>\S+):\s+(?P<error>.*?)\s+Stack Trace:", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[\d*m")
SHOWN_MAX = 1_000


def check_definitions(folder: Path) -> Iterator[Diagnosis]:
    """Whether Dagster loads the code locations of a folder's workspace; nothing without one.

    Args:
        folder: The folder of `workspace.yaml`.
    """
    if not (folder / WORKSPACE).is_file():
        return
    command = [sys.executable, "-m", "dagster", "definitions", "validate"]
    with tempfile.TemporaryDirectory(prefix="lockstep-doctor-") as home:
        # The code of the working folder, as the other checks read it; its copy is deleted.
        environment = {**os.environ, "DAGSTER_HOME": home, "LOCKSTEP_CODE_ROOT": f"{home}/code"}
        try:
            done = run_command(command, "Dagster", LOAD_SECONDS, folder=folder, environment=environment)
        except TimeoutError as late:
            yield make_warning(
                CHECK, str(late), f"{SLOW}: repeat it; until then it is unknown whether {WORKSPACE} loads"
            )
            return
    if done.returncode == 0:
        yield make_ok(CHECK, f"Dagster loads every code location of {WORKSPACE}")
        return
    # Dagster prints colours, which would be escaped in the answer.
    output = _COLOUR.sub("", done.stdout + done.stderr)
    failures = [f"{match['name']}: {match['error']}" for match in _FAILED.finditer(output)]
    problem = "; ".join(failures) or output.strip()
    step = f"correct it; {' '.join(['dagster', *command[3:]])} shows the same"
    yield make_error(CHECK, f"Dagster does not load {WORKSPACE}: {problem[-SHOWN_MAX:]}", step)
