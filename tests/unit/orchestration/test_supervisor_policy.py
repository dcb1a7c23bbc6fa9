"""When the supervisor starts a stream, closes a dead run, or stops a terminated stream: the decision alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lockstep.control.heartbeat import POLLS, HeartbeatRecord, Phase
from lockstep.orchestration.supervisor_policy import (
    LAUNCH_SECONDS_MAX,
    LIVED_SECONDS,
    PAUSE_SECONDS_MAX,
    RunStage,
    SeenRun,
    Stop,
    SupervisorCursor,
    SupervisorDecision,
    SupervisorObservation,
    compute_pause_seconds,
    decide_supervision,
)
from lockstep.table.head import Desired, Head

if TYPE_CHECKING:
    from collections.abc import Iterable

BOOT = 1_000.0
TICK_SECONDS = 5.0
HEAD = Head(stream="books", cluster_id="c", table_id="0123456789", epoch=3, batch=7, desired=Desired.RUNNING)
PULSE = HeartbeatRecord(counter=50, phase=Phase.WRITING, never_ending=True, run_id="writer")
STILL = SupervisorObservation(head=HEAD, pulse=PULSE)


def head(desired: Desired) -> Head:
    return msgspec.structs.replace(HEAD, desired=desired, reason="because")


def run(
    stage: RunStage = RunStage.LAUNCHED,
    counter: int | None = None,
    *,
    process_exists: bool = False,
    run_id: str = "the run",
) -> SeenRun:
    return SeenRun(run_id=run_id, stage=stage, counter=counter, process_exists=process_exists)


def look(
    *runs: SeenRun, pulse: HeartbeatRecord | None = PULSE, desired: Desired = Desired.RUNNING, **more: Any
) -> SupervisorObservation:
    return SupervisorObservation(head=head(desired), pulse=pulse, runs=runs, **more)


class Supervised:
    """A sensor whose polls follow each other."""

    def __init__(self, now: float = BOOT, boot: str = "a boot") -> None:
        self.cursor = SupervisorCursor()
        self.now = now
        self.boot = boot
        self.decisions: list[SupervisorDecision] = []

    def see(self, seen: SupervisorObservation, *, after: float = TICK_SECONDS) -> SupervisorDecision:
        """Poll once, so many seconds after the previous poll."""
        self.now += after
        text = self.cursor.encode()
        cursor, warning = SupervisorCursor.read(text)
        assert warning == ""
        decision = decide_supervision(seen, cursor, self.now, boot=self.boot)
        self.cursor = decision.cursor
        self.decisions.append(decision)
        return decision

    def see_all(self, seen: Iterable[SupervisorObservation]) -> SupervisorDecision:
        return [self.see(each) for each in seen][-1]

    def until_start(self, seen: SupervisorObservation, looks_max: int = 200) -> float:
        """Repeat the same poll until a start is requested; return the seconds it took."""
        began = self.now
        for _ in range(looks_max):
            if self.see(seen).start is not None:
                return self.now - began
        pytest.fail("nothing was started")

    def lives(self, seconds: float, counter: int = 1_000) -> None:
        """Poll a writer that counts for so long."""
        for number in range(int(seconds / TICK_SECONDS) + 2):
            decision = self.see(look(pulse=msgspec.structs.replace(PULSE, counter=counter + number)))
            assert decision.start is None

    @property
    def starts(self) -> list[str]:
        return [decision.start.run_key for decision in self.decisions if decision.start is not None]


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (SupervisorObservation(head=None), "has no table yet: launch its job once"),
        (SupervisorObservation(head=None, runs=(run(),)), "has no table yet: run the run is started"),
        (look(run(), desired=Desired.STOPPED), "left alone; run the run is started"),
        (look(desired=Desired.STOPPED), "is stopped (because)"),
        (look(desired=Desired.HELD), "is held (because)"),
        (look(desired=Desired.HALTED), "is halted (because)"),
        (look(desired=Desired.BOUNDED), "is bounded (because)"),
        (look(pulse=None, desired=Desired.BOUNDED), "is bounded (because)"),
        (look(run(RunStage.QUEUED)), "run the run is queued"),
        (look(run(RunStage.LAUNCHED)), "run the run is started"),
        (look(run(RunStage.CANCELING)), "run the run is being terminated"),
    ],
)
def test_what_is_not_to_be_running_or_is_on_its_way_is_never_started(seen: SupervisorObservation, says: str) -> None:
    supervised = Supervised()
    last = supervised.see_all([seen] * 2 * POLLS)
    assert supervised.starts == []
    assert says in last.says


def test_a_writer_is_gone_when_its_counter_stands_still_over_three_looks() -> None:
    supervised = Supervised()
    supervised.lives(60)
    dead = look(pulse=msgspec.structs.replace(PULSE, counter=1_000 + 60 // 5 + 1), last_status="FAILURE")
    assert [supervised.see(dead).start is not None for _ in range(3)] == [False, True, False]
    assert supervised.starts == ["books-01234567-3-supervisor-0"]
    cause = "supervisor: the writer of epoch 3 is gone (run writer: FAILURE)"
    assert [d.start.cause for d in supervised.decisions if d.start is not None] == [cause]


def test_after_a_reboot_an_old_counter_is_looked_at_three_times_whatever_was_known_before() -> None:
    before = Supervised(now=500_000.0)
    before.lives(60)
    after = Supervised(now=30.0)
    after.cursor = before.cursor
    stands = look(pulse=msgspec.structs.replace(PULSE, counter=1_013))
    assert [after.see(stands).start is not None for _ in range(POLLS)] == [False] * (POLLS - 1) + [True]


def test_after_a_reboot_no_back_off_of_before_holds_up_the_start() -> None:
    before = Supervised(now=500_000.0)
    for _ in range(6):
        before.until_start(STILL)
    after = Supervised(now=30.0)
    after.cursor = before.cursor
    assert after.until_start(STILL) <= POLLS * TICK_SECONDS


def test_the_clock_of_another_machine_ends_no_launch_and_no_back_off() -> None:
    """The daemon continued on another machine, which has been up for months longer."""
    before = Supervised(now=30.0, boot="here")
    launched = look(run(), pulse=None)
    before.see(launched)
    there = Supervised(now=9_000_000.0, boot="there")
    there.cursor = before.cursor
    decision = there.see(launched)
    assert (decision.start, decision.close) == (None, ())
    assert [there.see(launched).close for _ in range(int(LAUNCH_SECONDS_MAX / TICK_SECONDS))][-1] == ("the run",)


@pytest.mark.parametrize("pulse", [None, PULSE])
def test_a_machine_that_is_started_first_starts_the_stream_after_three_looks(pulse: HeartbeatRecord | None) -> None:
    assert Supervised().until_start(look(pulse=pulse)) == POLLS * TICK_SECONDS


def test_a_writer_that_said_its_last_word_needs_no_second_look() -> None:
    ended = look(pulse=msgspec.structs.replace(PULSE, phase=Phase.ENDED), last_status="FAILURE")
    start = Supervised().see(ended).start
    assert start is not None
    assert start.cause == "supervisor: the writer of epoch 3 had ended (run writer: FAILURE)"


def test_looks_that_come_at_once_count_as_one() -> None:
    supervised = Supervised()
    supervised.lives(60)
    dead = look(pulse=msgspec.structs.replace(PULSE, counter=1_013))
    for _ in range(20):
        assert supervised.see(dead, after=0.05).start is None
    assert [supervised.see(dead).start is not None for _ in range(2)] == [False, True]


def test_a_writer_that_counts_is_left_alone_for_ever_though_dagster_holds_its_run_for_over() -> None:
    supervised = Supervised()
    supervised.lives(1_000)
    assert supervised.starts == []
    assert supervised.decisions[-1].says == "running: epoch 3 sends heartbeats"


def test_a_run_that_counts_is_waited_for_though_it_has_not_claimed_yet() -> None:
    supervised = Supervised()
    for counter in range(100):
        assert supervised.see(look(run(counter=counter))).start is None
    assert "run the run is started, and counts as living" in supervised.decisions[-1].says
    assert [d.close for d in supervised.decisions if d.close] == []


@pytest.mark.parametrize("stage", [RunStage.UNKNOWN, RunStage.OVER])
def test_a_run_that_counts_is_waited_for_whatever_dagster_knows_of_it(stage: RunStage) -> None:
    """It is a run of another home, or a run that Dagster abandoned too early."""
    supervised = Supervised()
    for counter in range(20):
        assert supervised.see(look(run(stage, counter=counter))).start is None


@pytest.mark.parametrize("stage", [RunStage.LAUNCHED, RunStage.CANCELING])
@pytest.mark.parametrize("desired", Desired)
def test_a_run_that_does_not_count_is_closed_whatever_is_wanted_of_the_stream(
    stage: RunStage, desired: Desired
) -> None:
    supervised = Supervised()
    dead = look(run(stage, counter=7), desired=desired)
    assert [supervised.see(dead).close for _ in range(POLLS)] == [()] * (POLLS - 1) + [("the run",)]
    assert supervised.decisions[-1].forget == ("the run",)


def test_a_dead_run_is_closed_and_replaced_at_the_same_look() -> None:
    supervised = Supervised()
    supervised.see_all([look(run(counter=7))] * POLLS)
    assert (supervised.decisions[-1].close, len(supervised.starts)) == (("the run",), 1)


def test_a_run_that_is_suspended_is_replaced_and_not_closed_while_its_process_is_there() -> None:
    supervised = Supervised()
    supervised.see_all([look(run(counter=7, process_exists=True))] * POLLS)
    assert len(supervised.starts) == 1
    assert [d.close for d in supervised.decisions if d.close] == []


@pytest.mark.parametrize("stage", [RunStage.UNKNOWN, RunStage.OVER])
def test_of_a_run_that_dagster_need_not_be_told_of_only_the_file_goes(stage: RunStage) -> None:
    supervised = Supervised()
    last = supervised.see_all([look(run(stage, counter=7))] * POLLS)
    assert (last.close, last.forget) == ((), ("the run",))


def test_a_run_that_waits_in_the_queue_waits_as_long_as_it_must() -> None:
    supervised = Supervised()
    supervised.see_all([look(run(RunStage.QUEUED))] * 1_000)
    assert (supervised.starts, [d.close for d in supervised.decisions if d.close]) == ([], [])


def test_a_run_that_dagster_launched_and_that_never_counted_is_given_up_after_five_minutes() -> None:
    supervised = Supervised()
    assert supervised.until_start(look(run())) == LAUNCH_SECONDS_MAX + TICK_SECONDS
    assert supervised.decisions[-1].close == ("the run",)


def test_a_run_of_an_older_release_is_not_closed_while_its_writer_counts() -> None:
    """It leaves no file, and its epoch does not identify the run."""
    supervised = Supervised()
    for counter in range(200):
        decision = supervised.see(look(run(), pulse=HeartbeatRecord(counter, Phase.WRITING, never_ending=True)))
        assert (decision.start, decision.close) == (None, ())


def test_the_last_moments_of_a_run_that_has_ended_writing_hold_up_nothing() -> None:
    """Its machine may have failed before it could report its end to Dagster."""
    ended = msgspec.structs.replace(PULSE, phase=Phase.ENDED)
    assert Supervised().see(look(run(run_id="writer"), pulse=ended)).start is not None


def test_a_successor_that_is_to_take_over_is_waited_for() -> None:
    ended = msgspec.structs.replace(PULSE, phase=Phase.ENDED)
    assert Supervised().see(look(run(counter=1), pulse=ended)).start is None


@pytest.mark.parametrize("desired", [Desired.RUNNING, Desired.BOUNDED])
def test_what_a_person_terminated_is_stopped_and_not_started(desired: Desired) -> None:
    """Its process died before it could commit the stop itself."""
    supervised = Supervised()
    last = supervised.see_all([look(desired=desired, terminated="writer")] * POLLS)
    assert (last.start, last.stop) == (None, Stop(3, "terminated in Dagster (run writer)"))


def test_what_a_person_terminated_is_not_stopped_while_it_still_ends_by_itself() -> None:
    supervised = Supervised()
    for counter in range(10):
        decision = supervised.see(look(run(RunStage.CANCELING, counter=counter), terminated="writer"))
        assert (decision.start, decision.stop) == (None, None)


def test_a_stream_that_cannot_live_is_started_later_and_later() -> None:
    supervised = Supervised()
    supervised.see_all([STILL] * (POLLS - 1))
    times = [supervised.until_start(STILL) for _ in range(9)]
    assert times == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert supervised.starts == [f"books-01234567-3-supervisor-{attempt}" for attempt in range(9)]
    assert supervised.decisions[-2].says == "start 8 did not live; the next in 5 s"


def test_each_start_of_a_stream_that_dies_young_has_a_key_of_its_own_though_epochs_pass() -> None:
    supervised = Supervised()
    for epoch in range(3, 9):
        claimed = msgspec.structs.replace(HEAD, epoch=epoch)
        supervised.until_start(SupervisorObservation(head=claimed, pulse=PULSE))
    assert len(set(supervised.starts)) == 6
    assert supervised.cursor.attempt == 6


def test_a_writer_that_lived_long_enough_ends_the_back_off_and_one_that_did_not_leaves_it() -> None:
    supervised = Supervised()
    for _ in range(5):
        supervised.until_start(STILL)
    supervised.lives(LIVED_SECONDS / 2)
    assert supervised.cursor.attempt == 5
    supervised.lives(LIVED_SECONDS, counter=2_000)
    assert supervised.cursor.attempt == 0


def test_pauses_grow_to_their_bound_and_no_further() -> None:
    assert [compute_pause_seconds(attempt) for attempt in (0, 1, 2, 3, 4)] == [0, 10, 20, 40, 80]
    assert {compute_pause_seconds(attempt) for attempt in range(6, 2_000)} == {PAUSE_SECONDS_MAX}


def test_the_cursor_keeps_no_runs_of_the_past() -> None:
    supervised = Supervised()
    for number in range(50):
        supervised.see(look(run(counter=1, run_id=f"run {number}")))
    assert set(supervised.cursor.signs) == {"epoch 3", "run 49"}


def test_two_looks_from_the_same_cursor_ask_for_the_same_start() -> None:
    """Two daemons, or a repeated tick, have the same key and the same reservation."""
    supervised = Supervised()
    supervised.see_all([STILL] * (POLLS - 1))
    twice = [
        decide_supervision(STILL, supervised.cursor, supervised.now + TICK_SECONDS, boot=supervised.boot).start
        for _ in range(2)
    ]
    assert twice[0] is not None
    assert twice[0] == twice[1]


@pytest.mark.parametrize("text", ["{", '{"attempt":"x"}', '{"version":9}', "[]"])
def test_an_unreadable_cursor_is_reset_with_a_warning(text: str) -> None:
    cursor, warning = SupervisorCursor.read(text)
    assert cursor == SupervisorCursor()
    assert "is reset" in warning


def test_a_start_waits_while_too_many_other_streams_start_and_does_not_count_as_one_that_failed() -> None:
    supervised = Supervised()
    supervised.see_all([STILL] * (POLLS - 1))
    supervised.now += TICK_SECONDS
    waits = decide_supervision(STILL, supervised.cursor, supervised.now, boot=supervised.boot, may_start=False)
    assert (waits.start, waits.says) == (None, "waits until fewer other streams start")
    assert (waits.cursor.attempt, waits.cursor.starting) == (0, False)
    supervised.cursor = waits.cursor
    assert supervised.see(STILL).start is not None


def test_a_start_is_in_progress_while_its_run_is_on_its_way() -> None:
    supervised = Supervised()
    supervised.until_start(STILL)
    comes = look(run(RunStage.LAUNCHED, counter=1))
    starting = [supervised.cursor.starting]
    for seen in (STILL, comes, look(pulse=msgspec.structs.replace(PULSE, counter=51))):
        supervised.see(seen)
        starting.append(supervised.cursor.starting)
    assert starting == [True, False, True, False]
