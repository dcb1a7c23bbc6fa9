"""A stream that is to be running comes back without a person, through a real daemon, whatever was killed.

The tests share one table, one home and one Kafka, in this order; each makes the state that it begins with.
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

from lockstep.engine.liveness import LOOKS, Phase, Pulse, pulse, run_pulses
from lockstep.engine.wishes import StopRequest
from lockstep.errors import LockstepError
from lockstep.operations.desire import startable, stop, want_running
from lockstep.orchestration.names import AUTOMATIC_TAG, CAUSE_TAG, OUTCOME_TAG
from lockstep.table import log
from lockstep.table.head import Desired
from tests.orchestration.installation import wait_until

if TYPE_CHECKING:
    from dagster import DagsterRun

    from tests.orchestration.installation import Daemon, Installation, Run

LOG = logging.getLogger(__name__)
pytestmark = pytest.mark.timeout(900)

SUPERVISOR, TICKS_ENOUGH = "order_books_supervisor", 2 * LOOKS
"""What was not started after so many looks is not started at all."""


def runs(installation: Installation) -> list[DagsterRun]:
    """All runs of the home, the newest first."""
    with installation.dagster() as instance:
        return list(instance.get_runs())


def asked_for_by(installation: Installation, sensor: str) -> list[DagsterRun]:
    return [run for run in runs(installation) if run.tags.get(AUTOMATIC_TAG) == sensor]


def ticks(installation: Installation) -> int:
    """How often the supervisor has looked."""
    with installation.dagster() as instance:
        states = [state for state in instance.all_instigator_state() if state.instigator_name == SUPERVISOR]
        return sum(len(instance.get_ticks(state.instigator_origin_id, state.selector_id)) for state in states)


def wait_for_looks(installation: Installation) -> None:
    """Wait until the supervisor has looked often enough to start whatever it would start."""
    before = ticks(installation)
    wait_until(lambda: ticks(installation) >= before + TICKS_ENOUGH, "the supervisor looks")


def say_seconds(what: str, seconds: float) -> None:
    """Figures for people: nothing is asserted of time (`pytest -rP` shows them)."""
    LOG.warning("%s: %.1f s to the next commit", what, seconds)


def read_on(installation: Installation, what: str, messages: int = 50) -> None:
    """Produce some more messages and wait until they are committed."""
    first = max(0, installation.position("first"))
    installation.produce("first", first, first + messages)
    wait_until(lambda: installation.position("first") == first + messages, what)


def writer(installation: Installation) -> Pulse:
    """The last sign of life of the writer."""
    last = pulse(installation.folders.control, installation.epoch())
    assert last is not None
    return last


def desired(installation: Installation) -> Desired:
    return installation.head().desired


def started_by_hand(installation: Installation) -> Run:
    """A never-ending run of the command line, which writes."""
    epoch = installation.epoch()
    run = installation.materialize(available_now=False)
    wait_until(
        lambda: (
            (installation.epoch() > epoch and installation.writes(installation.epoch()))
            or run.process.poll() is not None
        ),
        "the run writes",
    )
    assert run.process.poll() is None, run.said()
    return run


def supervised(installation: Installation, daemon: Daemon) -> psutil.Process:
    """The process of a run that the daemon launched and that writes; the stream was to be running before."""
    if installation.epoch() == 0:
        pytest.fail("the stream has no table yet")
    want_running(installation.folders, startable(installation.folders), "a test")
    epoch = installation.epoch()
    wait_until(lambda: installation.writes(installation.epoch()), f"the supervisor replaces epoch {epoch}")
    read_on(installation, "the run of the supervisor reads")
    found = run_pulses(installation.folders.control)[writer(installation).run_id].process
    assert found is not None
    return daemon.worker_of(found.pid)


def terminate(installation: Installation, run_id: str) -> None:
    """Terminate a run as the web server does; it may have no process that Dagster could send a signal to."""
    with installation.dagster() as instance, suppress(Exception):
        instance.run_coordinator.cancel_run(run_id)


@pytest.fixture(autouse=True)
def _nothing_left(installation: Installation) -> None:
    """Each test begins without a writer of the one before."""
    for each in installation.runs:
        each.process.kill()
        each.process.wait()


@pytest.mark.slow
def test_a_stream_of_bounded_runs_stays_bounded_and_new_topics_get_bounded_runs(installation: Installation) -> None:
    if log.exists(installation.folders.table):
        pytest.fail("this test needs the first run of the table")
    installation.produce("first", 0, 100)
    assert installation.materialize(available_now=True).wait() == 0
    with installation.daemon():
        installation.produce("second", 0, 50)
        wait_until(lambda: installation.position("second") == 50, "the topics sensor asks for a run")
        wait_until(lambda: writer(installation).phase is Phase.ENDED, "the run ends")
        wait_for_looks(installation)
    assert asked_for_by(installation, "supervisor") == []
    (asked,) = asked_for_by(installation, "topics sensor")
    assert asked.tags[CAUSE_TAG] == "new topics: order_books.second"
    assert (desired(installation), writer(installation).never_ending) == (Desired.BOUNDED, False)


def test_a_run_that_is_killed_is_replaced_by_the_daemon_and_shown_as_failed(installation: Installation) -> None:
    """It was a run of the command line: Dagster itself would show it as started for ever."""
    installation.produce("first", max(0, installation.position("first")), 200)
    run = started_by_hand(installation)
    wait_until(lambda: installation.position("first") == 200, "the first run reads")
    killed, epoch = writer(installation).run_id, installation.epoch()
    with installation.daemon():
        run.process.kill()
        began = time.monotonic()
        read_on(installation, "a new run commits what came after the kill")
        say_seconds("kill -9 of a run of the command line", time.monotonic() - began)
        (replacement,) = asked_for_by(installation, "supervisor")
        assert next(each for each in runs(installation) if each.run_id == killed).status is DagsterRunStatus.FAILURE
        assert replacement.tags[CAUSE_TAG].startswith(f"supervisor: the writer of epoch {epoch} is gone")
        assert (installation.epoch(), desired(installation)) == (epoch + 1, Desired.RUNNING)
        last = writer(installation)
        assert (last.phase, last.never_ending, last.run_id) == (Phase.WRITING, True, replacement.run_id)


@pytest.mark.slow
def test_a_run_of_the_daemon_that_is_killed_is_replaced(installation: Installation) -> None:
    with installation.daemon() as daemon:
        worker, epoch = supervised(installation, daemon), installation.epoch()
        worker.kill()
        began = time.monotonic()
        read_on(installation, "a new run commits what came after the kill")
        say_seconds("kill -9 of a run of the daemon", time.monotonic() - began)
        assert (installation.epoch(), desired(installation)) == (epoch + 1, Desired.RUNNING)


@pytest.mark.slow
def test_everything_that_is_killed_at_once_is_back_with_the_next_daemon(installation: Installation) -> None:
    with installation.daemon() as daemon:
        supervised(installation, daemon)
        killed, epoch = writer(installation).run_id, installation.epoch()
        daemon.kill_all()
    before = len(runs(installation))
    began = time.monotonic()
    with installation.daemon():
        read_on(installation, "a new run commits what came after the kill")
        say_seconds("kill -9 of everything, from the start of the next daemon", time.monotonic() - began)
        assert len(runs(installation)) == before + 1
        assert next(each for each in runs(installation) if each.run_id == killed).status is DagsterRunStatus.FAILURE
        assert (installation.epoch(), writer(installation).never_ending) == (epoch + 1, True)


@pytest.mark.slow
def test_a_run_whose_code_server_is_killed_goes_on_and_hears_terminate(installation: Installation) -> None:
    with installation.daemon() as daemon:
        supervised(installation, daemon)
        run_id, epoch = writer(installation).run_id, installation.epoch()
        daemon.code_server().kill()
        read_on(installation, "the run goes on")
        assert installation.epoch() == epoch
        terminate(installation, run_id)
        wait_until(lambda: desired(installation) is Desired.STOPPED, "the run commits the stop")
        wait_until(lambda: daemon.code_server().is_running(), "the daemon starts another code server")
        wait_for_looks(installation)
        assert (desired(installation), installation.head().reason) == (Desired.STOPPED, "terminated in Dagster")
        assert installation.epoch() == epoch + 1  # the claim of the stop


@pytest.mark.slow
def test_a_new_topic_of_a_running_stream_is_read_by_a_never_ending_run(
    installation: Installation,
) -> None:
    with installation.daemon() as daemon:
        supervised(installation, daemon)
        epoch = installation.epoch()
        installation.produce("third", 0, 50)
        wait_until(lambda: installation.position("third") == 50, "the topics sensor asks for a handover")
        assert asked_for_by(installation, "topics sensor")[0].tags[CAUSE_TAG] == "new topics: order_books.third"
        assert (installation.epoch(), writer(installation).never_ending) == (epoch + 1, True)


@pytest.mark.slow
def test_a_bare_signal_is_no_stop_and_the_supervisor_starts_again(installation: Installation) -> None:
    with installation.daemon() as daemon:
        worker, epoch = supervised(installation, daemon), installation.epoch()
        worker.send_signal(signal.SIGTERM)
        began = time.monotonic()
        wait_until(lambda: installation.epoch() > epoch, "the supervisor starts another run")
        read_on(installation, "the new run reads")
        say_seconds("SIGTERM of a run", time.monotonic() - began)
        assert desired(installation) is Desired.RUNNING


@pytest.mark.slow
def test_a_stop_stays_a_stop_under_a_daemon(installation: Installation) -> None:
    with installation.daemon() as daemon:
        supervised(installation, daemon)
        stopped = stop(installation.folders, StopRequest("enough", "a test"), patience_seconds=60)
        assert (stopped.desired, stopped.ended_by) == ("stopped", "the writer")
        before = len(runs(installation))
        installation.produce("fourth", 0, 50)
        wait_for_looks(installation)
        assert (len(runs(installation)), installation.epoch()) == (before, stopped.epoch)


@pytest.mark.slow
def test_a_run_of_the_command_line_that_is_terminated_in_dagster_stops_the_stream(installation: Installation) -> None:
    run = started_by_hand(installation)
    assert desired(installation) is Desired.RUNNING
    run_id = writer(installation).run_id
    terminate(installation, run_id)
    assert run.wait() != 0
    assert (desired(installation), installation.head().reason) == (Desired.STOPPED, "terminated in Dagster")
    ended = next(each for each in runs(installation) if each.run_id == run_id)
    assert (ended.status, ended.tags[OUTCOME_TAG]) == (DagsterRunStatus.CANCELED, "stopped")


@pytest.mark.slow
def test_a_terminate_whose_last_batch_is_abandoned_is_a_stop(installation: Installation) -> None:
    """The Python workers of Spark are suspended in the middle of a batch: it never ends."""
    run = started_by_hand(installation)
    read_on(installation, "the run reads")
    at, run_id = installation.position("first"), writer(installation).run_id
    run.look()
    for each in run.family.values():
        if each.is_running() and "pyspark.daemon" in " ".join(each.cmdline()):
            each.suspend()
    installation.produce("first", at, at + 50)
    terminate(installation, run_id)
    assert run.wait() != 0
    assert "was abandoned" in run.said()
    assert (desired(installation), installation.position("first")) == (Desired.STOPPED, at)
    wait_until(run.all_gone, "no process is left", seconds=60)


@pytest.mark.slow
def test_a_halted_stream_stays_halted_under_a_daemon(installation: Installation) -> None:
    installation.produce("cut", 1, 50)  # without the snapshot that opens the session
    assert installation.materialize(available_now=False).wait() != 0
    assert desired(installation) is Desired.HALTED
    before = len(runs(installation))
    with installation.daemon():
        wait_for_looks(installation)
        assert len(runs(installation)) == before
    with pytest.raises(LockstepError, match="is halted"):
        startable(installation.folders)
