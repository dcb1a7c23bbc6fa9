"""Logs of the live platform stay small while processes continue to append to them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from lockstep.features.localdev import local_servers, log_rotation
from lockstep.features.localdev.local_platform import LocalPlatform
from lockstep.features.localdev.log_rotation import LIMIT_BYTES, rotate
from lockstep.features.localdev.platform import start_live
from tests.support.installation import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_log_that_has_grown_is_set_aside_and_its_writer_goes_on_at_the_beginning(tmp_path: Path) -> None:
    log = tmp_path / "code.log"
    small = tmp_path / "web.log"
    small.write_bytes(b"small")
    with log.open("ab", buffering=0) as writer:
        for number in range(3):
            writer.write(f"{number}".encode() * 101)
            assert rotate(tmp_path, limit_bytes=100) == [log]
            assert (tmp_path / "code.log.1").read_bytes() == f"{number}".encode() * 101
        writer.write(b"on")
    assert rotate(tmp_path, limit_bytes=100) == []
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        "code.log": 2,
        "code.log.1": 101,
        "web.log": 5,
    }


def test_the_process_looks_after_all_its_folders(tmp_path: Path) -> None:
    """The folder of the processes and the folder of Kafka."""
    logs = [tmp_path / "logs" / "web.log", tmp_path / "kafka" / "broker.log"]
    for log in logs:
        log.parent.mkdir()
        with log.open("wb") as file:
            file.truncate(LIMIT_BYTES + 1)
    command = [sys.executable, log_rotation.__file__, *(str(log.parent) for log in logs)]
    with subprocess.Popen(command) as process:
        try:
            wait_until(lambda: all(log.stat().st_size == 0 for log in logs), "the rotation")
        finally:
            process.kill()  # earlier tests of this process may have left SIGTERM ignored
    assert all(log.with_name(f"{log.name}.1").stat().st_size == LIMIT_BYTES + 1 for log in logs)


def test_a_live_platform_rotates_the_log_of_its_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = LocalPlatform(tmp_path, tmp_path / ".live")
    started = dict[str, list[str]]()
    monkeypatch.setattr(LocalPlatform, "start_kafka", lambda _: None)
    monkeypatch.setattr(LocalPlatform, "start", lambda _, name, command: started.setdefault(name, command))
    monkeypatch.setattr(local_servers, "_start_outputs", lambda _: iter(()))
    steps = start_live(platform, 1.0)
    next(steps)
    next(steps)
    broker = tmp_path / ".live" / "kafka" / "broker.log"
    assert str(broker.parent) in started["logs"]
