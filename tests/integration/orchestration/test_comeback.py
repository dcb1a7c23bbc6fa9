"""A stream in the desired state RUNNING restarts through a real daemon after any kill, without an operator.

The tests share one table and one Kafka, in this order; each makes its initial state.
"""

from __future__ import annotations

import logging
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest
from dagster import DagsterRunStatus

from lockstep.control.handover import StopRequest
from lockstep.control.heartbeat import POLLS, HeartbeatRecord, Phase, read_heartbeat, read_run_heartbeats
from lockstep.integrity.resume_options import StreamHalted
from lockstep.operations.lifecycle import check_startable, set_running, stop_stream
from lockstep.orchestration.names import AUTOMATIC_TAG, CAUSE_TAG, OUTCOME_TAG
from lockstep.table import delta_log
from lockstep.table.head import Desired
from tests.support.installation import wait_until

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dagster import DagsterRun
    from dagster._core.scheduler.instigation import InstigatorTick

    from tests.support.installation import Daemon, Installation, Run

LOG = logging.getLogger(__name__)

PLANNED_SECONDS = 15.0
"""Three triggers: earlier messages are planned in a batch by then."""
SUPERVISOR, POLLS_ENOUGH = "stream_supervisor", 2 * POLLS
"""A run that is not started after so many polls is not started at all."""


class Site:
    """The shared table and Kafka with a Dagster home for each test, so that no back-off remains."""

    def __init__(self, installation: Installation, home: str) -> None:
        self.installation = installation
        self.home = home
        self.folders = installation.folders

    def daemon(self, *, served: bool = False) -> AbstractContextManager[Daemon]:
        return self.installation.daemon(self.home, served=served)

    def runs(self) -> list[DagsterRun]:
        """Return the home's runs of the stream, newest first."""
        return self.installation.stream_runs(self.home)

    def run(self, run_id: str) -> DagsterRun:
        return next(run for run in self.runs() if run.run_id == run_id)

    def asked_for_by(self, sensor: str) -> list[DagsterRun]:
        return [run for run in self.runs() if run.tags.get(AUTOMATIC_TAG) == sensor]

    def ticks(self, sensor: str) -> list[InstigatorTick]:
        """Return a sensor's ticks, newest first."""
        with self.installation.dagster(self.home) as instance:
            states = [state for state in instance.all_instigator_state() if state.instigator_name == sensor]
            return [
                tick for state in states for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id)
            ]

    def looks(self) -> int:
        """Return the number of the supervisor's ticks."""
        return len(self.ticks(SUPERVISOR))

    def wait_for_looks(self) -> None:
        """Wait for enough ticks of the supervisor to start any run that it would start."""
        before = self.looks()
        wait_until(lambda: self.looks() >= before + POLLS_ENOUGH, "the supervisor looks")

    def read_on(self, what: str, messages: int = 50) -> None:
        """Produce some more messages and wait until they are committed."""
        first = max(0, self.installation.position("first"))
        self.installation.produce("first", first, first + messages)
        wait_until(lambda: self.installation.position("first") == first + messages, what)

    def epoch(self) -> int:
        return self.installation.epoch()

    def desired(self) -> Desired:
        return self.installation.head().desired

    def writer(self) -> HeartbeatRecord:
        """Return the writer's last heartbeat."""
        last = read_heartbeat(self.folders.control, self.epoch())
        assert last is not None
        return last

    def started_by_hand(self) -> Run:
        """Start a never-ending run of the command line and wait until it writes."""
        if self.installation.position("first") < 0:
            self.installation.produce("first", 0, 50)
        epoch = self.epoch()
        run = self.installation.materialize(available_now=False, home=self.home)
        over = run.process.poll
        writes = self.installation.writes
        wait_until(lambda: over() is not None or writes(max(epoch + 1, self.epoch())), "the run writes")
        assert over() is None, run.said()
        # Else the messages above would be produced a second time, and the stream would halt.
        wait_until(lambda: self.installation.position("first") > 0, "the first messages are committed")
        return run

    def supervised(self, daemon: Daemon) -> psutil.Process:
        """Let the daemon launch a run over the existing table; return the process of the writing run."""
        set_running(self.folders, check_startable(self.folders), "a test")
        wait_until(lambda: self.installation.writes(self.epoch()), "the supervisor starts a run")
        self.read_on("the run of the supervisor reads")
        found = read_run_heartbeats(self.folders.control)[self.writer().run_id].process
        assert found is not None
        return daemon.worker_of(found.pid)

    def terminate(self, run_id: str) -> None:
        """Terminate a run as the web server does; it may have no process that Dagster could send a signal to."""
        with self.installation.dagster(self.home) as instance, suppress(Exception):
            instance.run_coordinator.cancel_run(run_id)


def say_seconds(what: str, began: float) -> None:
    """Log a figure; times are not asserted (`pytest -rP` shows them)."""
    LOG.warning("%s: %.1f s to the next commit", what, time.monotonic() - began)


@pytest.mark.slow
def test_a_stream_of_bounded_runs_stays_bounded_and_new_topics_get_bounded_runs(site: Site) -> None:
    assert not delta_log.has_log(site.folders.table), "this test needs the first run of the table"
    site.installation.produce("first", 0, 100)
    assert site.installation.materialize(available_now=True, home=site.home).wait() == 0
    with site.daemon():
        site.installation.produce("second", 0, 50)
        wait_until(lambda: site.installation.position("second") == 50, "the topics sensor asks for a run")
        wait_until(lambda: site.writer().phase is Phase.ENDED, "the run ends")
        site.wait_for_looks()
    assert site.asked_for_by("supervisor") == []
    (asked,) = site.asked_for_by("topics sensor")
    assert asked.tags[CAUSE_TAG] == "new topics: order_books.second"
    assert (site.desired(), site.writer().never_ending) == (Desired.BOUNDED, False)


def test_a_run_that_is_killed_is_replaced_by_the_daemon_and_shown_as_failed(site: Site) -> None:
    """Dagster alone would show this run of the command line as started forever."""
    run = site.started_by_hand()
    killed = site.writer().run_id
    epoch = site.epoch()
    with site.daemon(served=True) as daemon:
        run.process.kill()
        began = time.monotonic()
        site.read_on("a new run commits what came after the kill")
        say_seconds("kill -9 of a run of the command line, with a daemon that starts meanwhile", began)
        (replacement,) = site.asked_for_by("supervisor")
        assert site.run(killed).status is DagsterRunStatus.FAILURE
        assert replacement.tags[CAUSE_TAG].startswith(f"supervisor: the writer of epoch {epoch} is gone")
        assert (site.epoch(), site.desired()) == (epoch + 1, Desired.RUNNING)
        last = site.writer()
        assert (last.phase, last.never_ending, last.run_id) == (Phase.WRITING, True, replacement.run_id)
        ends_its_runs_before_itself(site, daemon)


def ends_its_runs_before_itself(site: Site, daemon: Daemon) -> None:
    """Stop the code server by SIGTERM, like a container's end; Dagster's original would wait for its runs."""
    assert daemon.server is not None
    began = time.monotonic()
    epoch = site.epoch()
    starter = psutil.Process(daemon.process.pid)
    starter.suspend()  # a slow machine has time for another run, which claims the next epoch and ends, too
    try:
        daemon.server.terminate()
        daemon.server.wait(240)
    finally:
        starter.resume()
    say_seconds("SIGTERM of a code server with a live run", began)
    assert (site.epoch(), site.writer().phase, site.desired()) == (epoch, Phase.ENDED, Desired.RUNNING)


@pytest.mark.slow
def test_a_run_of_the_daemon_that_is_killed_is_replaced(site: Site) -> None:
    with site.daemon() as daemon:
        worker = site.supervised(daemon)
        epoch = site.epoch()
        worker.kill()
        began = time.monotonic()
        site.read_on("a new run commits what came after the kill")
        say_seconds("kill -9 of a run of the daemon", began)
        assert (site.epoch(), site.desired()) == (epoch + 1, Desired.RUNNING)


@pytest.mark.slow
def test_everything_that_is_killed_at_once_is_back_with_the_next_daemon(site: Site) -> None:
    with site.daemon() as daemon:
        site.supervised(daemon)
        killed = site.writer().run_id
        epoch = site.epoch()
        daemon.kill_all()
    before = len(site.runs())
    began = time.monotonic()
    with site.daemon():
        site.read_on("a new run commits what came after the kill")
        say_seconds("kill -9 of everything, from the start of the next daemon", began)
        assert len(site.runs()) == before + 1
        assert site.run(killed).status is DagsterRunStatus.FAILURE
        assert (site.epoch(), site.writer().never_ending) == (epoch + 1, True)


@pytest.mark.slow
def test_a_run_whose_code_server_is_killed_goes_on_and_hears_terminate(site: Site) -> None:
    with site.daemon() as daemon:
        site.supervised(daemon)
        run_id = site.writer().run_id
        epoch = site.epoch()
        daemon.code_server().kill()
        site.read_on("the run goes on")
        assert site.epoch() == epoch
        site.terminate(run_id)
        wait_until(lambda: site.desired() is Desired.STOPPED, "the run commits the stop")
        site.wait_for_looks()  # by another code server
        assert (site.desired(), site.installation.head().reason) == (Desired.STOPPED, "terminated in Dagster")
        assert site.epoch() == epoch + 1  # the claim of the stop


@pytest.mark.slow
def test_a_new_topic_of_a_running_stream_is_read_by_a_never_ending_run(site: Site) -> None:
    with site.daemon() as daemon:
        site.supervised(daemon)
        epoch = site.epoch()
        site.installation.produce("third", 0, 50)
        wait_until(lambda: site.installation.position("third") == 50, "the topics sensor asks for a handover")
        assert site.asked_for_by("topics sensor")[0].tags[CAUSE_TAG] == "new topics: order_books.third"
        assert (site.epoch(), site.writer().never_ending) == (epoch + 1, True)


@pytest.mark.slow
def test_a_bare_signal_is_no_stop_and_the_supervisor_starts_again(site: Site) -> None:
    with site.daemon() as daemon:
        worker = site.supervised(daemon)
        epoch = site.epoch()
        worker.send_signal(signal.SIGTERM)
        began = time.monotonic()
        wait_until(lambda: site.epoch() > epoch, "the supervisor starts another run")
        site.read_on("the new run reads")
        say_seconds("SIGTERM of a run", began)
        assert site.desired() is Desired.RUNNING


@pytest.mark.slow
def test_a_stop_stays_a_stop_under_a_daemon(site: Site) -> None:
    with site.daemon() as daemon:
        site.supervised(daemon)
        stopped = stop_stream(site.folders, StopRequest("enough", "a test"), patience_seconds=60)
        assert (stopped.desired, stopped.ended_by) == ("stopped", "the writer")
        before = len(site.runs())
        site.installation.produce("fourth", 0, 50)
        site.wait_for_looks()
        assert (len(site.runs()), site.epoch()) == (before, stopped.epoch)


@pytest.mark.slow
def test_a_run_of_the_command_line_that_is_terminated_in_dagster_stops_the_stream(site: Site) -> None:
    run = site.started_by_hand()
    assert site.desired() is Desired.RUNNING
    run_id = site.writer().run_id
    site.terminate(run_id)
    assert run.wait() != 0
    assert (site.desired(), site.installation.head().reason) == (Desired.STOPPED, "terminated in Dagster")
    assert site.run(run_id).status is DagsterRunStatus.CANCELED
    assert site.run(run_id).tags[OUTCOME_TAG] == "stopped"


@pytest.mark.slow
def test_a_terminate_whose_last_batch_is_abandoned_is_a_stop(site: Site) -> None:
    """The Python workers of Spark are suspended during a batch, so it never ends."""
    run = site.started_by_hand()
    site.read_on("the run reads")
    at = site.installation.position("first")
    run_id = site.writer().run_id
    suspended = run.suspend("lockstep.spark.worker_daemon")
    assert suspended
    site.installation.produce("first", at, at + 50)
    time.sleep(PLANNED_SECONDS)  # Spark shows the previous task for a while, so no sign of a task is reliable
    site.terminate(run_id)
    assert run.wait() != 0
    assert "was abandoned" in run.said()
    assert (site.desired(), site.installation.position("first")) == (Desired.STOPPED, at)
    for each in suspended:  # they notice the end of their parent after they resume
        with suppress(psutil.NoSuchProcess):
            each.resume()
    wait_until(run.all_gone, "no process is left", seconds=60)


@pytest.mark.slow
def test_a_halted_stream_stays_halted_under_a_daemon(site: Site) -> None:
    site.installation.produce("cut", 1, 50)  # without the snapshot that opens the session
    assert site.installation.materialize(available_now=False, home=site.home).wait() != 0
    assert site.desired() is Desired.HALTED
    before = len(site.runs())
    with site.daemon():
        site.wait_for_looks()
        assert len(site.runs()) == before
    with pytest.raises(StreamHalted):
        check_startable(site.folders)
