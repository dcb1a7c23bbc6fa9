"""Parts of Dagster die, hang, are locked or do not reach Kafka: the writing stream continues and misses nothing.

The tests share one table and one Kafka, in this order.
"""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterRunStatus
from dagster_graphql import DagsterGraphQLClient

from lockstep.features.localdev.processes import find_free_ports
from lockstep.orchestration.names import OUTCOME_TAG
from lockstep.table.head import Desired
from lockstep.table.ledger import read_ledger
from tests.integration.orchestration.test_comeback import Site
from tests.support.installation import ROOT, is_listening, wait_until
from tests.support.small_disk import MountedDisk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dagster._core.scheduler.instigation import InstigatorTick

    from lockstep.features.localdev.broker import Broker

pytestmark = pytest.mark.slow

LOG = logging.getLogger(__name__)
HANDOVERS = 50
LOCKED_SECONDS = 60.0
FULL_SECONDS, DISK_MEGABYTES = 75.0, 32
"""The run reports to Dagster once a minute."""
HANDOVER_SECONDS = 600.0
"""Two of Dagster's daemons and the start of a run precede a handover: four minutes at a load of 30."""
TOPICS_SENSOR = "stream_topics"


def is_silent(tick: InstigatorTick) -> bool:
    """Return whether Kafka did not answer in a tick; Dagster ends ticks that wait too long."""
    return "Kafka did not answer" in (tick.skip_reason or "") or tick.is_failure


@contextmanager
def webserver(site: Site, port: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Dagster's web server on the workspace of the daemon."""
    port = port or find_free_ports(1)[0]
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
    """Lock all databases of a Dagster instance, like a hanging backup tool, and yield their number."""
    with ExitStack() as stack:
        files = sorted(storage.rglob("*.db"))
        for file in files:
            connection = sqlite3.connect(file, timeout=30, isolation_level=None)
            stack.callback(connection.close)
            connection.execute("BEGIN EXCLUSIVE")
        yield len(files)


@contextmanager
def fed(site: Site) -> Iterator[list[int]]:
    """Produce messages during the block and yield the list of sent end offsets."""
    sent = [site.installation.position("first")]
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.5):
            site.installation.produce("first", sent[-1], sent[-1] + 3)
            sent.append(sent[-1] + 3)

    thread = threading.Thread(target=send, name="producer")
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


def find_gaps(site: Site, epochs: range) -> list[float]:
    """Return the seconds from the last commit of each epoch to the first commit of the next."""
    commits = {epoch: list[float]() for epoch in epochs}
    for row in read_ledger(site.folders.ledger):
        if row.epoch in commits:
            commits[row.epoch].append(row.committed_at.timestamp())
    return [min(commits[new]) - max(commits[old]) for old, new in pairwise(epochs)]


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
        epoch = site.epoch()
        began = time.monotonic()
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


@pytest.fixture
def small_home(site: Site) -> Iterator[MountedDisk]:
    """A separate disk for the Dagster home."""
    home = site.installation.folder / site.home
    home.mkdir()
    with MountedDisk(home / "dagster", home / "disk.log", DISK_MEGABYTES) as disk:
        if site.installation.epoch() == 0:
            site.installation.produce("first", 0, 50)
            assert site.installation.materialize(available_now=True, home=site.home).wait() == 0
        yield disk


def test_a_stream_writes_on_while_the_disk_of_dagster_is_full(site: Site, small_home: MountedDisk) -> None:
    """A new topic appears meanwhile; its handover is requested once there is room."""
    with site.daemon(served=True) as daemon, webserver(site):
        worker = site.supervised(daemon)
        epoch = site.epoch()
        small_home.fill()
        began = time.monotonic()
        site.installation.produce("while_full", 0, 50)
        while time.monotonic() - began < FULL_SECONDS:
            site.read_on("the run goes on", messages=10)
            time.sleep(5)
            small_home.fill()
        assert (small_home.is_full, worker.is_running(), site.epoch()) == (True, True, epoch)
        small_home.empty()
        wait_until(lambda: site.installation.position("while_full") == 50, "a handover for it", HANDOVER_SECONDS)
        assert (site.epoch(), site.desired(), site.asked_for_by("topics sensor") != []) == (
            epoch + 1,
            Desired.RUNNING,
            True,
        )
        wait_until(lambda: len([run for run in site.runs() if not run.is_finished]) == 1, "the old run ends in Dagster")
        site.read_on("the run goes on after it")
        for command in ("status", "verify"):
            site.installation.run_command("lockstep.cli", command, "order_books", home=site.home)


def test_a_run_that_is_killed_while_the_disk_of_dagster_is_full_is_replaced_once_there_is_room(
    site: Site, small_home: MountedDisk
) -> None:
    with site.daemon(served=True) as daemon, webserver(site):
        worker = site.supervised(daemon)
        epoch = site.epoch()
        killed = site.writer().run_id
        small_home.fill()
        worker.kill()
        time.sleep(FULL_SECONDS)
        small_home.empty()
        site.read_on("another run reads")
        assert (site.epoch(), site.desired()) == (epoch + 1, Desired.RUNNING)
        assert site.run(killed).status is DagsterRunStatus.FAILURE


def test_a_handover_that_meets_a_full_disk_of_dagster_leaves_one_writer(site: Site, small_home: MountedDisk) -> None:
    with site.daemon(served=True) as daemon, webserver(site):
        site.supervised(daemon)
        epoch = site.epoch()
        before = {run.run_id for run in site.runs()}
        site.installation.produce("at_handover", 0, 50)
        wait_until(lambda: {run.run_id for run in site.runs()} != before, "the handover is asked for")
        small_home.fill()
        began = time.monotonic()
        while time.monotonic() - began < FULL_SECONDS:
            time.sleep(5)
            small_home.fill()
        small_home.empty()
        wait_until(lambda: site.installation.position("at_handover") == 50, "it is read", HANDOVER_SECONDS)
        site.read_on("one run reads")
        wait_until(lambda: len([run for run in site.runs() if not run.is_finished]) == 1, "the old run ends in Dagster")
        assert (site.epoch() > epoch, site.desired()) == (True, Desired.RUNNING)


def test_sensors_that_get_no_answer_of_kafka_keep_their_cursor_and_look_again(site: Site, kafka: Broker) -> None:
    """The broker is stopped and keeps its connections, for the run too."""
    site.started_by_hand()
    with site.daemon(served=True):
        wait_until(lambda: [tick for tick in site.ticks(TOPICS_SENSOR) if tick.cursor] != [], "the topics sensor looks")
        assert kafka.pid is not None
        os.kill(kafka.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: [tick for tick in site.ticks(TOPICS_SENSOR) if is_silent(tick)] != [], "a tick says so")
        finally:
            os.kill(kafka.pid, signal.SIGCONT)
        ticks = site.ticks(TOPICS_SENSOR)
        silent = next(tick for tick in reversed(ticks) if is_silent(tick))
        before = next(tick for tick in ticks if tick.timestamp < silent.timestamp and tick.cursor)
        assert (silent.cursor or before.cursor, silent.run_ids) == (before.cursor, [])
        site.installation.produce("afterwards", 0, 50)
        wait_until(lambda: site.installation.position("afterwards") == 50, "the topics sensor asks for a handover")
        site.read_on("the stream goes on")
        assert site.desired() is Desired.RUNNING


@pytest.mark.timeout(3_600)
def test_many_handovers_in_a_row_lose_nothing_and_repeat_nothing(site: Site) -> None:
    """Each run is launched in the web UI under load, through queue, daemon and code server."""
    (port,) = find_free_ports(1)
    site.started_by_hand()
    began = site.epoch()
    with site.daemon(served=True), webserver(site, port):
        console = DagsterGraphQLClient("127.0.0.1", port)
        with fed(site) as sent:
            for epoch in range(began + 1, began + HANDOVERS + 1):
                console.submit_job_execution("order_books_stream", "lockstep")
                wait_until(lambda: site.installation.writes(epoch), f"epoch {epoch} writes")  # noqa: B023
                committed = site.installation.position("first")
                wait_until(lambda: site.installation.position("first") > committed, "it commits")  # noqa: B023
        wait_until(lambda: site.installation.position("first") == sent[-1], "all is read")
        gaps = sorted(find_gaps(site, range(began, began + HANDOVERS + 1)))
        LOG.warning("gaps of %d handovers: median %.2f s, longest %.2f s", len(gaps), statistics.median(gaps), gaps[-1])
        replaced = [run for run in site.runs() if run.tags.get(OUTCOME_TAG) == "handed over"]
        assert (len(gaps), len(replaced)) == (HANDOVERS, HANDOVERS)
        assert (site.epoch(), site.asked_for_by("supervisor")) == (began + HANDOVERS, [])
        site.installation.run_command("lockstep.cli", "verify", "order_books", home=site.home)
