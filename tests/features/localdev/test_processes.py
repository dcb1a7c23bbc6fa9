"""The processes of a live platform and their end: real processes, as after accidents."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from lockstep.features.localdev.processes import (
    MARK,
    is_alive,
    list_platform_processes,
    read_process_handle,
    start_detached,
    stop_all,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READY = "import sys; print('ready', flush=True); "
WAITS = f"{READY} import time; time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"
PARENT = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {child!r}]); child.wait()"


class Processes:
    """Processes of one test, each with a separate log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, code: str, mark: Path | None) -> subprocess.Popen[bytes]:
        log = self.folder / f"{len(self.started)}.log"
        environment = {} if mark is None else {MARK: str(mark)}
        process = start_detached([sys.executable, "-c", code], folder=self.folder, log=log, environment=environment)
        self.started.append(process)
        deadline = time.monotonic() + 60
        while "ready" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return process


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_the_mark_of_the_very_folder_says_who_belongs(processes: Processes, tmp_path: Path) -> None:
    mine = processes.start(WAITS, tmp_path / "a")
    processes.start(WAITS, tmp_path / "ab")
    processes.start(WAITS, None)
    assert [process.pid for process in list_platform_processes(tmp_path / "a")] == [mine.pid]


def test_all_of_a_family_ends_and_nobody_else(processes: Processes, tmp_path: Path) -> None:
    other = processes.start(WAITS, tmp_path / "b")
    mine = [processes.start(code, tmp_path / "a") for code in (WAITS, DEAF, PARENT.format(child=WAITS))]
    stop_all(tmp_path / "a", servers=(mine[0].pid,), broker=())
    assert list_platform_processes(tmp_path / "a") == []
    assert [process.wait() for process in mine[:2]] == [-signal.SIGTERM, -signal.SIGKILL]
    assert other.poll() is None


def test_children_whose_parent_was_killed_are_still_of_the_family(processes: Processes, tmp_path: Path) -> None:
    parent = processes.start(PARENT.format(child=WAITS), tmp_path / "a")
    parent.kill()
    parent.wait()
    assert len(list_platform_processes(tmp_path / "a")) == 1
    stop_all(tmp_path / "a", servers=(), broker=())
    assert list_platform_processes(tmp_path / "a") == []


def test_a_process_that_ended_is_not_taken_for_a_later_one_of_its_pid(processes: Processes, tmp_path: Path) -> None:
    process = processes.start(WAITS, tmp_path / "a")
    member = read_process_handle(process.pid)
    assert member is not None
    assert is_alive(member)
    process.kill()
    process.wait()
    assert not is_alive(member)
    assert read_process_handle(process.pid) is None


def test_what_is_started_alone_hears_signals_that_its_starter_ignores(tmp_path: Path) -> None:
    """As after `make up &` in a script, whose background jobs ignore Ctrl-C."""
    code = (
        "import signal, sys; from pathlib import Path; from lockstep.features.localdev.processes import start_detached;"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); folder = Path(sys.argv[1]);"
        "command = [sys.executable, '-c', 'import signal; print(signal.getsignal(signal.SIGINT))'];"
        "start_detached(command, folder=folder, log=folder / 'log').wait()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert "default_int_handler" in (tmp_path / "log").read_text()
