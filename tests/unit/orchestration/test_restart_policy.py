"""When the topics sensor requests a run: the decision alone, from observed facts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.control.heartbeat import HeartbeatRecord, Phase
from lockstep.orchestration.restart_policy import (
    ADOPT_SECONDS,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    SUBSCRIBE_SECONDS,
    SUPERVISE_SECONDS,
    RestartCursor,
    SensorObservation,
    decide_restart,
)
from lockstep.table.head import Desired, Head

NOW = 1_000_000.0
HEAD = Head(stream="books", cluster_id="c", table_id="0123456789", epoch=3, batch=7, desired=Desired.RUNNING)
LIVING = HeartbeatRecord(counter=50, phase=Phase.WRITING, never_ending=True)
DEAD = LIVING
ENDED = msgspec.structs.replace(LIVING, phase=Phase.ENDED)
SEEN_BEFORE = RestartCursor(pulse="3:10")
SUPERVISED = RestartCursor(pulse="3:", pulse_at=NOW - SUPERVISE_SECONDS)
"""A supervisor that has not started a writer for a minute."""


def look(
    wanted: str = "a b",
    subscribed: str = "a",
    head: Head | None = HEAD,
    pulse: HeartbeatRecord | None = None,
    on_its_way: str | None = None,
    unfinished: str = "",
    *,
    adopts: bool = False,
) -> SensorObservation:
    return SensorObservation(
        head=head,
        wanted=frozenset(wanted.split()),
        subscribed=frozenset(subscribed.split()),
        adopts=adopts,
        pulse=pulse,
        on_its_way=on_its_way,
        unfinished=frozenset(unfinished.split()),
    )


def desired(wish: Desired) -> Head:
    return msgspec.structs.replace(HEAD, desired=wish, reason="because")


@pytest.mark.parametrize(
    ("seen", "cursor", "says"),
    [
        (look(head=None), RestartCursor(), "has no table yet"),
        (look(head=desired(Desired.HALTED)), RestartCursor(), "is halted (because)"),
        (look(head=desired(Desired.STOPPED)), RestartCursor(), "is stopped (because)"),
        (look(head=desired(Desired.HELD)), RestartCursor(), "is held (because)"),
        (look(subscribed="a b"), RestartCursor(), "2 topics wanted, 2 subscribed, none is new"),
        (look(wanted="", subscribed="a"), RestartCursor(), "none is new"),
        (look(on_its_way="4711"), RestartCursor(), "run 4711 is on its way"),
        (look(pulse=LIVING), RestartCursor(writer_at=NOW), "the next evaluations show"),
        (look(), RestartCursor(), "no writer sends heartbeats: the supervisor starts one"),
        (look(), RestartCursor(pulse="3:", pulse_at=NOW - SUPERVISE_SECONDS + 1), "the supervisor starts one"),
        (look(pulse=DEAD), RestartCursor(pulse="3:50", pulse_at=NOW - 1), "the supervisor starts one"),
        (look(pulse=ENDED), RestartCursor(pulse="3:50", pulse_at=NOW - 1), "the supervisor starts one"),
        (look(pulse=LIVING), RestartCursor(pulse="2:50"), "the next evaluations show"),
        (look(), RestartCursor(asked_at=NOW - 1), "not long ago"),
        (look(unfinished="k"), RestartCursor(run_key="k", awaited="b", asked_at=NOW - 500), "has not subscribed yet"),
    ],
)
def test_nothing_is_started_while_there_is_a_reason_to_wait(
    seen: SensorObservation, cursor: RestartCursor, says: str
) -> None:
    decision = decide_restart(seen, cursor, NOW)
    assert decision.restart is None
    assert says in decision.says


PULSES = (
    None,
    LIVING,
    msgspec.structs.replace(LIVING, counter=10),  # stopped counting: it is dead
    ENDED,
    msgspec.structs.replace(LIVING, never_ending=False),  # a bounded run that a person launched
)


@pytest.mark.parametrize("pulse", PULSES)
@pytest.mark.parametrize(("wish", "never_ending"), [(Desired.RUNNING, True), (Desired.BOUNDED, False)])
def test_the_desired_state_decides_the_kind_of_run_whatever_lives(
    pulse: HeartbeatRecord | None,
    wish: Desired,
    never_ending: bool,  # noqa: FBT001
) -> None:
    counter = pulse.counter if pulse is not None else ""
    long_ago = RestartCursor(pulse=f"3:{counter}", pulse_at=NOW - SUPERVISE_SECONDS)
    restart = decide_restart(look(wanted="c a b", head=desired(wish), pulse=pulse), long_ago, NOW).restart
    assert restart is not None
    assert (restart.never_ending, restart.added, restart.epoch) == (never_ending, ("b", "c"), 3)


def test_a_bounded_stream_has_no_supervisor_to_wait_for() -> None:
    assert decide_restart(look(head=desired(Desired.BOUNDED)), RestartCursor(), NOW).restart is not None


def test_a_writer_that_counts_is_asked_to_hand_over_at_once() -> None:
    restart = decide_restart(look(pulse=LIVING), SEEN_BEFORE, NOW).restart
    assert restart is not None
    assert restart.never_ending


def test_two_hundred_topics_in_ten_seconds_cost_two_restarts() -> None:
    cursor = SEEN_BEFORE
    subscribed = frozenset({"a"})
    restarts = 0
    for tick in range(12):
        there = min(200, 20 * tick * 10)  # topics made by then
        wanted = {"a"} | {f"new{number}" for number in range(there)}
        pulse = HeartbeatRecord(counter=50 + tick, phase=Phase.WRITING, never_ending=True)
        seen = SensorObservation(head=HEAD, wanted=frozenset(wanted), subscribed=subscribed, pulse=pulse)
        decision = decide_restart(seen, cursor, NOW + 10 * tick)
        cursor = decision.cursor
        if decision.restart is not None:
            restarts += 1
            subscribed = frozenset(wanted)
    assert subscribed == wanted
    assert restarts <= 2


def test_a_run_that_did_not_bring_its_topics_is_asked_for_again_later_and_later() -> None:
    cursor = SUPERVISED
    keys = []
    times = []
    for second in range(0, 400, 10):
        decision = decide_restart(look(), cursor, NOW + second)
        cursor = decision.cursor
        if decision.restart is not None:
            keys.append(decision.restart.run_key)
            times.append(second)
    assert times == [0, 30, 90, 210]
    assert len(set(keys)) == len(keys)  # Dagster launches a run key only once


def test_a_run_that_subscribed_what_it_was_for_is_not_waited_for() -> None:
    cursor = msgspec.structs.replace(SUPERVISED, run_key="k", awaited="z", asked_at=NOW - 31)
    assert decide_restart(look(unfinished="k"), cursor, NOW).restart is not None


def test_a_run_that_never_subscribes_is_given_up_after_ten_minutes() -> None:
    cursor = msgspec.structs.replace(SUPERVISED, run_key="k", awaited="b", asked_at=NOW - 600)
    assert decide_restart(look(unfinished="k"), cursor, NOW).restart is not None


def test_a_clock_that_was_set_back_does_not_silence_the_sensor() -> None:
    ahead = msgspec.structs.replace(SUPERVISED, asked_at=NOW + 10 * PAUSE_SECONDS)
    assert decide_restart(look(), ahead, NOW).restart is not None
    assert decide_restart(look(), RestartCursor(pulse="3:", pulse_at=NOW + 3600), NOW).restart is not None


@pytest.mark.parametrize("looks_between", [1, 3, 6])
def test_a_topic_that_flaps_fifty_times_costs_a_few_restarts_each_of_which_is_launched(looks_between: int) -> None:
    """Polls every ten seconds see it present and absent in turns, too fast for any run to read it; then it stays."""
    cursor = SUPERVISED
    clock = NOW
    asked = list[tuple[float, str]]()

    def tick(*, there: bool) -> bool:
        nonlocal cursor, clock
        clock += 10
        pulse = HeartbeatRecord(counter=int(clock), phase=Phase.WRITING, never_ending=True)
        decision = decide_restart(look(wanted="a b" if there else "a", pulse=pulse), cursor, clock)
        cursor = decision.cursor
        asked.extend([(clock, decision.restart.run_key)] if decision.restart is not None else [])
        return decision.restart is not None

    for number in range(50 * 2 * looks_between):
        tick(there=number // looks_between % 2 == 0)
    assert 1 <= len(asked) <= 5 + (clock - NOW) // PAUSE_SECONDS_MAX
    assert any(tick(there=True) for _ in range(61))
    assert len({key for _, key in asked}) == len(asked)


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 86_400.0, -86_400.0])
def test_a_clock_that_jumps_costs_a_restart_for_each_jump_at_most(jump: float) -> None:
    """Twenty minutes, a poll every ten seconds, two topics that no run reads; the clock jumps forth and back."""

    def count_restarts(jumps: dict[int, float]) -> int:
        cursor = SUPERVISED
        clock = NOW
        restarts = 0
        for number in range(120):
            clock += 10 + jumps.get(number, 0.0)
            pulse = HeartbeatRecord(counter=50 + number, phase=Phase.WRITING, never_ending=True)
            decision = decide_restart(look(wanted="a b c", pulse=pulse), cursor, clock)
            cursor = decision.cursor
            restarts = restarts + (decision.restart is not None)
        return restarts

    steady = count_restarts({})
    assert 1 <= steady <= count_restarts({40: jump, 80: -jump}) <= steady + 2


def test_the_run_key_names_the_table_the_generation_and_the_attempt() -> None:
    first = decide_restart(look(), SUPERVISED, NOW).restart
    rewound = decide_restart(look(head=msgspec.structs.replace(HEAD, generation=2)), SUPERVISED, NOW).restart
    other = decide_restart(look(head=msgspec.structs.replace(HEAD, table_id="another")), SUPERVISED, NOW).restart
    assert first is not None
    assert rewound is not None
    assert other is not None
    assert len({first.run_key, rewound.run_key, other.run_key}) == 3
    assert first.run_key.startswith("books-01234567-1-")
    assert first.run_key.endswith("-0")


def test_a_cursor_survives_its_encoding_and_is_sorted_json() -> None:
    cursor = RestartCursor(pulse="3:10", asked="ab", attempt=2, asked_at=5.0)
    assert cursor.encode() == (
        '{"asked":"ab","asked_at":5.0,"attempt":2,"awaited":"","new":"","new_at":0.0,"pulse":"3:10","pulse_at":0.0,"run_key":"",'
        '"sweep":{"behind":false,"looked_at":0.0},"version":1,"writer_at":0.0}'
    )
    assert RestartCursor.read(cursor.encode()) == (cursor, "")


@pytest.mark.parametrize("text", ["{", '{"attempt":"x"}', '{"version":9}', "[]"])
def test_an_unreadable_cursor_begins_anew_with_a_warning(text: str) -> None:
    cursor, warning = RestartCursor.read(text)
    assert cursor == RestartCursor()
    assert "is reset" in warning


def test_a_writer_that_has_just_claimed_is_given_time_to_subscribe() -> None:
    """Its first batch names its topics; a run requested before this batch would only restart it."""
    claimed = look(wanted="a b", subscribed="", pulse=LIVING)
    first = decide_restart(claimed, RestartCursor(), NOW)
    assert first.restart is None

    counted_on = msgspec.structs.replace(claimed, pulse=msgspec.structs.replace(LIVING, counter=75))
    second = decide_restart(counted_on, first.cursor, NOW + 10)
    assert second.restart is None
    assert "the next evaluations show" in second.says

    still = msgspec.structs.replace(claimed, pulse=msgspec.structs.replace(LIVING, counter=150))
    third = decide_restart(still, second.cursor, NOW + SUBSCRIBE_SECONDS)
    assert third.restart is not None
    assert third.restart.added == ("a", "b")


@given(attempt=st.integers(0, 10_000))
def test_topics_are_asked_for_again_after_any_number_of_requests(attempt: int) -> None:
    """A request every ten minutes makes 1,024 of them in a week, and more doublings than a float has."""
    first = decide_restart(look(pulse=LIVING), SEEN_BEFORE, NOW)
    handed_over = look(pulse=msgspec.structs.replace(LIVING, phase=Phase.ENDED))
    cursor = msgspec.structs.replace(first.cursor, attempt=attempt)
    assert decide_restart(handed_over, cursor, NOW + 1).restart is None
    assert decide_restart(handed_over, cursor, NOW + PAUSE_SECONDS_MAX).restart is not None


def test_a_successor_that_did_not_come_is_asked_for_again_as_a_run_that_never_ends() -> None:
    """By then the previous run has handed over and ended, and nothing alive states the kind of run any more."""
    first = decide_restart(look(pulse=LIVING), SEEN_BEFORE, NOW)
    assert first.restart is not None
    assert first.restart.never_ending

    handed_over = look(pulse=msgspec.structs.replace(LIVING, phase=Phase.ENDED))
    again = decide_restart(handed_over, first.cursor, NOW + 2 * PAUSE_SECONDS)
    assert again.restart is not None
    assert again.restart.never_ending


def test_topics_that_appear_are_left_to_a_run_that_adopts_them() -> None:
    """Each topic is new for some ticks only, for any number of successive topics."""
    cursor = SEEN_BEFORE
    for tick in range(30):
        pulse = HeartbeatRecord(counter=50 + tick, phase=Phase.WRITING, never_ending=True)
        read = " ".join(f"t{number:02d}" for number in range(tick))
        seen = look(wanted=f"{read} t{tick:02d} t{tick + 1:02d}", subscribed=read, pulse=pulse, adopts=True)
        decision = decide_restart(seen, cursor, NOW + 10 * tick)
        assert decision.restart is None
        assert "the run adopts them, or is replaced in" in decision.says
        cursor = decision.cursor


def test_a_run_that_does_not_adopt_a_topic_is_replaced() -> None:
    cursor = SEEN_BEFORE
    times = []
    for second in range(0, 100, 10):
        pulse = HeartbeatRecord(counter=50 + second, phase=Phase.WRITING, never_ending=True)
        decision = decide_restart(look(pulse=pulse, adopts=True), cursor, NOW + second)
        cursor = decision.cursor
        times += [second] if decision.restart is not None else []
    assert times == [ADOPT_SECONDS, ADOPT_SECONDS + PAUSE_SECONDS]


@pytest.mark.parametrize("wish", [Desired.RUNNING, Desired.BOUNDED])
def test_a_bounded_run_and_one_that_has_ended_adopt_nothing(wish: Desired) -> None:
    for pulse in (ENDED, msgspec.structs.replace(LIVING, never_ending=False), None):
        seen = look(head=desired(wish), pulse=pulse, adopts=True)
        long_ago = RestartCursor(pulse=f"3:{'' if pulse is None else pulse.counter}", pulse_at=NOW - SUPERVISE_SECONDS)
        assert decide_restart(seen, long_ago, NOW).restart is not None


def test_a_clock_that_was_set_back_does_not_leave_a_topic_waiting() -> None:
    cursor = msgspec.structs.replace(SEEN_BEFORE, new="b", new_at=NOW + 10_000)
    assert decide_restart(look(pulse=LIVING, adopts=True), cursor, NOW).restart is not None
