"""After repeated kill -9 at any moment, the next process reads the committed state."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.state.home import Home
from tests.unit.state.worker import committed, values_after

SESSIONS = 60
PROGRESS_SECONDS_MAX = 120


def killed_after_progress(folder: Path, home: Home, luck: random.Random) -> None:
    """Start a worker, let it commit a few batches, and kill it during the next batch."""
    goal = committed(folder, home).next_offset + luck.randint(1, 4)
    command = [sys.executable, "-m", "tests.unit.state.worker", str(folder), str(SESSIONS)]
    with subprocess.Popen(command) as worker:
        deadline = time.monotonic() + PROGRESS_SECONDS_MAX
        while committed(folder, home).next_offset < goal:
            assert worker.poll() is None, "the worker read a wrong value"
            assert time.monotonic() < deadline, "the worker makes no progress"
            time.sleep(0.001)
        time.sleep(luck.random() * 0.01)
        os.kill(worker.pid, signal.SIGKILL)


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_no_kill_leads_to_a_wrong_read(tmp_path: Path, kills: int) -> None:
    home = Home(tmp_path / "state", tmp_path / "hot")
    luck = random.Random(7)  # noqa: S311  # moments to kill at
    for _ in range(kills):
        killed_after_progress(tmp_path, home, luck)
    version = committed(tmp_path, home)
    assert version.next_offset >= kills
    assert home.values(version, [f"s{s}" for s in range(SESSIONS)]) == values_after(version.next_offset, SESSIONS)
