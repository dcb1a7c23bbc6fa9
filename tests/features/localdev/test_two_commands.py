"""A platform command during or after another command: it neither ends nor hides the processes of that command."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from lockstep.errors import LockstepError
from lockstep.features.localdev import demo, platform
from lockstep.features.localdev.local_platform import LocalPlatform
from lockstep.features.localdev.platform import open_live_platform
from lockstep.features.localdev.processes import MARK, hold_folder_lock, list_platform_processes, stop_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLEEP = ["python", "-c", "import time; time.sleep(600)"]


def is_started(of: LocalPlatform) -> bool:
    """Return whether the command itself runs, not its launcher."""
    return any(each.cmdline()[1:2] == ["-c"] for each in list_platform_processes(of.folder))


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[LocalPlatform, str], subprocess.Popen[bytes]]]:
    """Return a function that starts a process of a platform; all processes end with the test."""
    started = list[tuple[LocalPlatform, subprocess.Popen[bytes]]]()

    def start_process(of: LocalPlatform, name: str) -> subprocess.Popen[bytes]:
        of.log(name).parent.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv(MARK, str(of.folder))
        started.append((of, process := of.start(name, SLEEP)))
        while not is_started(of):
            assert process.poll() is None
            time.sleep(0.01)
        return process

    yield start_process
    for of, process in started:
        stop_all(of.folder, (), ())
        process.wait()


@pytest.mark.usefixtures("own_signals")
def test_a_second_demo_leaves_the_first_one_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    start: Callable[[LocalPlatform, str], subprocess.Popen[bytes]],
) -> None:
    def refuse(_: LocalPlatform) -> None:
        raise LockstepError("the data folder of Kafka is in use", next_step="none")

    first = LocalPlatform(tmp_path, tmp_path / ".demo")
    monkeypatch.setattr(LocalPlatform, "start_kafka", refuse)
    monkeypatch.setattr(sys, "argv", ["demo", str(tmp_path)])
    with hold_folder_lock(first.folder):
        process = start(first, "materialize")
        with pytest.raises(SystemExit) as left:
            demo.main()
    assert (left.value.code, process.poll()) == (1, None)
    assert f"another command works in {first.folder}" in capsys.readouterr().out


@pytest.mark.usefixtures("own_signals")
def test_what_a_killed_start_has_left_is_not_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    start: Callable[[LocalPlatform, str], subprocess.Popen[bytes]],
) -> None:
    def refuse(_: LocalPlatform) -> None:
        raise LockstepError("no Kafka here", next_step="none")

    live = open_live_platform(tmp_path)
    monkeypatch.setattr(LocalPlatform, "start_kafka", refuse)
    monkeypatch.setattr(sys, "argv", ["platform", "up", str(tmp_path)])
    process = start(live, "feed")
    with pytest.raises(SystemExit) as left:
        platform.main()
    said = capsys.readouterr().out
    assert (left.value.code, "ending the rest of a killed start" in said, "no Kafka here" in said) == (1, True, True)
    assert process.wait(30) is not None
