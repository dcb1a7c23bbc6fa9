"""Servers of `make up` are started again when they die."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lockstep.features.localdev import keeper as keeper_module
from lockstep.features.localdev.keeper import keep_servers
from lockstep.features.localdev.local_platform import KAFKA, LocalPlatform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLEEP = ["python", "-c", "import time; time.sleep(600)"]
DEADLINE_SECONDS = 60.0


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalPlatform]:
    """A platform without Kafka whose servers are restarted immediately."""
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(keeper_module, "KEEP_SECONDS", 0.1)
    made = LocalPlatform(tmp_path, tmp_path)
    over = threading.Event()
    left: list[subprocess.Popen[bytes]] = []
    keeper = threading.Thread(target=lambda: left.extend(keep_servers(made, over)))
    first = [made.start(name, SLEEP) for name in ("web", "feed")]
    keeper.start()
    yield made
    for name in ("web", "feed"):
        made.end(name)
    over.set()
    keeper.join()
    for process in (*first, *left):
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_server_is_started_again_and_the_others_are_left_alone(platform: LocalPlatform) -> None:
    before = platform.servers()
    os.kill(before.started["web"].pid, signal.SIGKILL)
    wait_until(lambda: platform.servers().started["web"] != before.started["web"])
    assert platform.servers().dead() == ()
    assert platform.servers().started["feed"] == before.started["feed"]


def test_a_server_that_was_ended_stays_so(platform: LocalPlatform) -> None:
    before = platform.servers().started["web"]
    platform.end("feed")
    os.kill(before.pid, signal.SIGKILL)
    wait_until(lambda: platform.servers().started["web"] != before)
    assert set(platform.servers().started) == {"web"}


def test_a_dead_kafka_is_started_by_its_own_way(platform: LocalPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(LocalPlatform, "restart_kafka", lambda of: again.append(of.start(KAFKA, SLEEP)))
    first = platform.start(KAFKA, SLEEP)
    first.kill()
    first.wait()
    wait_until(lambda: again)
    platform.end(KAFKA)
    assert len(again) == 1
    again[0].wait()
