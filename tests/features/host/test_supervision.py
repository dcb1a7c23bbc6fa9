"""The sensor of a host starts a host by counters alone, and never against an operator."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lockstep.control.heartbeat import POLLS
from lockstep.features.host.supervision import HostCursor, HostDecision, HostDemand, decide_hosting
from lockstep.orchestration.restart_policy import RestartCursor, SensorObservation, decide_restart
from lockstep.orchestration.supervisor_policy import (
    LAUNCH_SECONDS_MAX,
    LIVED_SECONDS,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    RunStage,
    SeenRun,
    SupervisorCursor,
    SupervisorObservation,
    decide_supervision,
)
from lockstep.table.head import Desired, Head

POLL_SECONDS = 5.0
WANTED = HostDemand(("books",))


class Polls:
    """The sensor over time."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.cursor = HostCursor()

    def poll(self, *runs: SeenRun, demand: HostDemand = WANTED, seconds: float = POLL_SECONDS) -> HostDecision:
        self.now += seconds
        decision = decide_hosting(runs, self.cursor, self.now, boot="boot", read_demand=lambda: demand)
        self.cursor = decision.cursor
        return decision


def make_run(counter: int | None, stage: RunStage = RunStage.LAUNCHED, *, exists: bool = False) -> SeenRun:
    return SeenRun(run_id="run", stage=stage, counter=counter, process_exists=exists)


@given(st.sampled_from([RunStage.LAUNCHED, RunStage.UNKNOWN, RunStage.CANCELING]), st.integers(1, 30))
def test_a_host_that_counts_is_left_alone_and_a_dead_one_is_replaced_after_three_polls(
    stage: RunStage, polls: int
) -> None:
    sensor = Polls()
    for counter in range(polls):
        decision = sensor.poll(make_run(counter, stage))
        assert (decision.cause, decision.stop, decision.close) == ("", "", ())
    dead = [sensor.poll(make_run(polls - 1, stage)) for _ in range(POLLS - 1)]
    assert [bool(each.cause) for each in dead] == [False] * (POLLS - 2) + [True]
    assert dead[-1].close == (("run",) if stage.is_held else ())
    assert dead[-1].forget == ("run",)


def test_a_process_that_exists_is_not_closed_in_dagster() -> None:
    sensor = Polls()
    decisions = [sensor.poll(make_run(1, exists=True)) for _ in range(POLLS)]
    assert (decisions[-1].close, decisions[-1].forget) == ((), ())
    assert decisions[-1].cause


def test_a_run_without_a_heartbeat_is_on_its_way_for_five_minutes_and_a_queued_one_for_ever() -> None:
    sensor = Polls()
    for _ in range(int(LAUNCH_SECONDS_MAX / POLL_SECONDS)):
        assert not sensor.poll(make_run(None)).cause
    assert sensor.poll(make_run(None)).close == ("run",)
    queued = Polls()
    for _ in range(int(2 * LAUNCH_SECONDS_MAX / POLL_SECONDS)):
        assert not queued.poll(make_run(None, RunStage.QUEUED)).cause


def test_nothing_starts_that_nobody_wants_and_a_terminated_run_stops_its_streams() -> None:
    assert not Polls().poll(demand=HostDemand(())).cause
    decision = Polls().poll(demand=HostDemand(("books",), terminated="run"))
    assert (decision.stop, decision.cause) == ("run", "")


def test_failed_starts_are_delayed_more_each_time_until_a_host_has_lived() -> None:
    sensor = Polls()
    starts = list[float]()
    while len(starts) < 8:
        if sensor.poll().cause:
            starts.append(sensor.now)
    pauses = [after - before for before, after in pairwise(starts)]
    assert pauses[0] == PAUSE_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_SECONDS_MAX
    for counter in range(int(LIVED_SECONDS / POLL_SECONDS) + 2):
        sensor.poll(make_run(counter))
    assert sensor.cursor.attempt == 0
    again = [sensor.poll(make_run(999), seconds=POLL_SECONDS) for _ in range(POLLS + 1)]
    assert any(each.cause for each in again)


def make_head() -> Head:
    return Head(stream="books", cluster_id="c", epoch=3, batch=5, desired=Desired.RUNNING, reason="why")


@given(st.booleans(), st.integers(0, 60))
def test_a_stream_of_a_host_gets_no_run_of_its_own(is_hosted: bool, polls: int) -> None:  # noqa: FBT001  # generated
    host = "default" if is_hosted else ""
    observation = SupervisorObservation(head=make_head(), host=host)
    cursor = SupervisorCursor()
    starts = 0
    for poll in range(polls):
        decision = decide_supervision(observation, cursor, 1_000 + POLL_SECONDS * poll, boot="boot")
        cursor = decision.cursor
        starts += decision.start is not None
    assert (starts > 0) is (not is_hosted and polls >= POLLS)


@given(st.booleans())
def test_new_topics_of_a_stream_of_a_host_get_no_run(is_hosted: bool) -> None:  # noqa: FBT001  # generated
    seen = SensorObservation(head=make_head(), wanted=frozenset({"new"}), host="default" if is_hosted else "")
    cursor = RestartCursor()
    requested = False
    for poll in range(30):
        decision = decide_restart(seen, cursor, 1_000_000 + 10.0 * poll)
        cursor = decision.cursor
        requested = requested or decision.restart is not None
    assert requested is not is_hosted
    stopped = msgspec.structs.replace(make_head(), desired=Desired.STOPPED)
    assert decide_restart(msgspec.structs.replace(seen, head=stopped), cursor, 2e6).restart is None
