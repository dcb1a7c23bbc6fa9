"""A short game day with real processes passes, writes its page, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.features.localdev.processes import list_platform_processes, stop_all
from lockstep.features.rehearsal.fault_plan import FaultKind, plan_faults
from lockstep.features.rehearsal.game_day import FOLDER, PLATFORM, REPORT
from tests.support.listeners import find_reachable, watch_listeners
from tests.support.repository import copy_repository

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STREAMS = ("betting_markets", "checksummed_books", "order_books")
SEED = next(seed for seed in range(1_000) if next(plan_faults(seed, STREAMS)).kind is FaultKind.RUN_KILLED)
DEADLINE_SECONDS = 600


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder that resembles this repository."""
    copy_repository(tmp_path)
    return tmp_path


def start(repository: Path, minutes: float, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lockstep.features.rehearsal.game_day", str(repository)]
    options = ["--minutes", str(minutes), "--seed", str(SEED), *more]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("options", [(), ("--host",)], ids=["runs", "host"])
def test_a_game_day_ends_with_a_proof_of_every_stream(repository: Path, options: tuple[str, ...]) -> None:
    folder = repository / FOLDER / PLATFORM
    with (
        start(repository, 0.8, *options) as day,
        watch_listeners(lambda: [day.pid, *(each.pid for each in list_platform_processes(folder))]) as listeners,
    ):
        said = day.communicate()[0]
    assert day.returncode == 0, said
    assert {"java", "python"} <= {listener.program.rstrip("0123456789.") for listener in listeners}
    assert find_reachable(listeners) == []
    assert "passed: " in said
    page = (repository / FOLDER / REPORT).read_text()
    assert page.count("<td>proven</td>") == len(STREAMS)
    assert FaultKind.RUN_KILLED.value in page
    assert not (repository / FOLDER / PLATFORM).exists()
    assert list_platform_processes(repository / FOLDER / PLATFORM) == []


def test_an_interrupted_game_day_leaves_nothing_behind(repository: Path) -> None:
    folder = repository / FOLDER / PLATFORM
    with start(repository, minutes=5) as day:
        try:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while not (folder / "servers.json").exists() or len(list_platform_processes(folder)) <= 3:
                assert time.monotonic() < deadline
                assert day.poll() is None
                time.sleep(0.5)
            day.send_signal(signal.SIGINT)
            day.send_signal(signal.SIGINT)
            day.communicate()
        finally:
            day.kill()
            left = list_platform_processes(folder)
            stop_all(folder, (), ())
    assert (left, folder.exists()) == ([], False)
