"""Parts of Dagster die, hang or are locked while a stream writes: the stream goes on, and what died is not missed.

The tests share one table and one Kafka, in this order.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from lockstep.localdev.processes import find_free_ports
from lockstep.table.delta_log import Desired
from tests.integration.orchestration.test_comeback import Site
from tests.support.installation import ROOT, is_listening, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.installation import Installation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LOCKED_SECONDS = 60.0


@pytest.fixture
def site(installation: Installation) -> Site:
    return Site(installation, f"home-{len(list(installation.folder.glob('home-*')))}")


@contextmanager
def webserver(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """Dagster's web server on the workspace of the daemon."""
    (port,) = find_free_ports(1)
    command = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port)]
    command += ["-w", str(site.installation.workspace)]
    environment = site.installation.environment(site.home)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_listening(port), "the web server answers")
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def locked(storage: Path) -> Iterator[int]:
    """All databases of an instance of Dagster, locked as by a backup tool that hangs."""
    with ExitStack() as stack:
        files = sorted(storage.rglob("*.db"))
        for file in files:
            connection = sqlite3.connect(file, timeout=30, isolation_level=None)
            stack.callback(connection.close)
            connection.execute("BEGIN EXCLUSIVE")
        yield len(files)


def test_a_stream_does_not_miss_a_web_server_nor_a_daemon_that_are_killed(site: Site) -> None:
    site.started_by_hand()
    with site.daemon(served=True) as daemon, webserver(site) as server:
        epoch = site.epoch()
        server.kill()
        daemon.process.kill()
        daemon.process.wait()
        site.read_on("the run goes on")
        assert site.epoch() == epoch
        with site.daemon(served=True):
            site.installation.produce("second", 0, 50)
            wait_until(lambda: site.installation.position("second") == 50, "the sensors of the next daemon look")
            assert (site.epoch(), site.desired()) == (epoch + 1, Desired.RUNNING)
            assert site.asked_for_by("supervisor") == []


def test_a_stream_writes_on_while_the_databases_of_dagster_are_locked(site: Site) -> None:
    run = site.started_by_hand()
    with site.daemon(served=True):
        epoch, began = site.epoch(), time.monotonic()
        with locked(site.installation.folder / site.home / "dagster") as databases:
            assert databases >= 3
            while time.monotonic() - began < LOCKED_SECONDS:
                site.read_on("the run goes on", messages=10)
                time.sleep(5)
                assert run.process.poll() is None, run.said()
        site.read_on("the run goes on after it")
        site.wait_for_looks()
        assert run.process.poll() is None, run.said()
        assert (site.epoch(), site.desired(), site.asked_for_by("supervisor")) == (epoch, Desired.RUNNING, [])
