"""Timers, silent sessions, snapshots over several messages and reordering, in the engine's own fold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from deltalake import DeltaTable
from typing_extensions import override

from lockstep import EventTime, NoIntegrity, Ordered, Record, Stream
from lockstep.testing import Judgement, SentMessage, run
from tests.support.meter_stream import Close, Message, Meter, Meters, Read, Start, Total, meters, reordered
from tests.support.minute_stream import FIRST, Minute, Minutes, Value, Window, minutes, totals
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lockstep.integrity.base import IntegrityClass


def of(key: str, message: Message) -> SentMessage[Message]:
    return SentMessage(value=message, key=key)


def test_a_timer_fires_before_the_message_that_passes_it() -> None:
    ran = run(meters, Start(1, 0), Read(2, 5, 7), Read(3, 50, 8), Read(4, 60, 0), key="a").or_raise()
    assert [Total("minute", 0, "7 8"), Total("zero", 1, "")] == ran.rows


def test_timers_fire_in_the_order_of_their_deadlines_then_of_their_sessions() -> None:
    ran = run(
        meters,
        of("b", Start(1, 0)),
        of("a", Start(1, 0)),
        of("c", Start(1, 0)),
        of("b", Read(2, 10, 1)),
        of("c", Read(2, 70, 2)),
        of("a", Read(2, 10, 3)),
        of("c", Read(3, 500, 4)),
    ).or_raise()
    assert [Total("minute", 0, "1"), Total("minute", 0, "3"), Total("minute", 1, "2")] == ran.rows


def test_a_message_of_another_session_passes_a_timer_too() -> None:
    ran = run(meters, of("a", Start(1, 0)), of("a", Read(2, 1, 5)), of("b", Start(1, 61))).or_raise()
    assert [Total("minute", 0, "5")] == ran.rows


def test_an_end_gives_its_rows_and_a_silent_session_ends_too() -> None:
    ran = run(
        meters,
        of("a", Start(1, 0)),
        of("b", Start(1, 0)),
        of("a", Read(2, 1, 5)),
        of("a", Close(3, 2)),
        of("c", Start(1, 600)),
    ).or_raise()
    assert [Total("end", 0, "5"), Total("end", None, "")] == ran.rows
    assert {"c"} == set(ran.states)


def test_a_session_that_goes_on_does_not_fall_silent() -> None:
    ran = run(meters, *(of("a", Start(number, number * 500)) for number in (1, 2, 3))).or_raise()
    assert ran.rows == []
    assert {"a": Meter()} == ran.states


def test_a_message_of_an_earlier_time_does_not_make_its_session_silent() -> None:
    sent = [Value(5_000, 1), Value(0, 1), Value(5_001, 1)]
    ran = run(totals("minutes", Ordered(session_start=FIRST)), *sent, key="a").or_raise()
    assert [row.total for row in ran.rows] == [2, 3]


def test_a_message_of_an_absurd_time_does_not_keep_its_session_open() -> None:
    sent = [Value(0, 1), Value(10**10, 1), Value(4_000, 1), Value(4_001, 1)]
    messages = [SentMessage(value=value, key=key) for key, value in zip("aaba", sent, strict=True)]
    ran = run(totals("minutes", Ordered(session_start=FIRST)), *messages).or_raise()
    assert [row.total for row in ran.rows] == [2]


UNLUCKY = -1


class UnluckyMinutes(Minutes):
    """Raises on one value, which suspends the session."""

    @override
    def on_update(self, state: Minute, message: Value, record: Record) -> Iterable[Window]:
        if message.v == UNLUCKY:
            raise ValueError("unlucky")
        return super().on_update(state, message, record)


def test_a_session_that_a_message_held_back_begins_again_has_nothing_of_its_state_before() -> None:
    sent = [Value(0, 5), Value(5, UNLUCKY), Value(30, 1), Value(40, 2), Value(51, 3)]
    ran = run(replace(minutes(reorder=True), transform=UnluckyMinutes()), *sent, key="a").or_raise()
    assert [each.offset for each in ran.quarantine] == [1]
    assert {"a": Minute(60, 3)} == ran.states


def test_a_snapshot_over_several_messages_is_seen_when_it_is_complete() -> None:
    parts: list[Message] = [Start(1, 0, more=True), Start(2, 0, more=True)]
    before = run(meters, *parts, key="a").or_raise()
    assert before.states == {}
    assert [verdict.judgement for verdict in before.verdicts] == [Judgement.BUFFER] * 2
    whole = run(meters, *parts, Start(3, 0), Read(4, 1, 0), key="a").or_raise()
    assert {"a": Meter(0, [0], started=3)} == whole.states
    assert [Total("zero", 0, "")] == whole.rows


class Refusing(Meters):
    """Raises on the message that completes a snapshot at 13 s."""

    @override
    def on_update(self, state: Meter, message: Message, record: Record) -> Iterable[Total]:
        if message.second == 13:
            raise ValueError("unlucky")
        return super().on_update(state, message, record)


@pytest.mark.parametrize("integrity", [NoIntegrity(), Ordered()])
def test_a_snapshot_whose_last_message_is_refused_is_given_up_as_a_whole(integrity: IntegrityClass) -> None:
    """Otherwise its parts would become part of the next snapshot."""
    sent: list[Message] = [Start(1, 11, more=True), Start(2, 12, more=True), Start(3, 13), Start(4, 14)]
    stream: Stream[Message, Meter, Total] = replace(meters, transform=Refusing(), integrity=integrity)
    ran = run(stream, *sent, key="a").or_raise()
    assert sorted(each.offset for each in ran.quarantine) == [0, 1, 2]
    assert {"a": Meter(started=1)} == ran.states


def test_a_gap_inside_a_snapshot_is_a_gap() -> None:
    ran = run(meters, of("a", Start(1, 0, more=True)), of("a", Start(3, 0)))
    assert ran.finding is not None
    assert (ran.finding.cause, ran.finding.offset) == ("gap", 1)


def test_messages_held_back_are_applied_in_the_order_of_the_producer() -> None:
    sent: list[Message] = [Start(1, 0), Read(4, 3, 4), Read(3, 2, 3), Read(2, 1, 2), Close(5, 4)]
    ran = run(reordered, *sent, key="a").or_raise()
    assert [Total("end", 0, "2 3 4")] == ran.rows


def test_what_is_missing_is_waited_for_no_longer_than_the_bound() -> None:
    ran = run(reordered, Start(1, 0), Read(3, 1, 3), Read(4, 31, 4), Read(2, 31, 2), key="a").or_raise()
    assert {"a": Meter(0, [3, 4])} == ran.states
    assert ran.verdicts[-1].judgement is Judgement.LATE


def test_a_message_held_back_that_raises_is_refused_when_it_is_released() -> None:
    sent: list[Message] = [
        Start(1, 0),
        Read(3, 1, -3),
        Read(4, 1, 4),
        Read(2, 2, 2),
        Read(5, 3, 5),
        Start(6, 4),
        Read(7, 5, 7),
    ]
    ran = run(reordered, *sent, key="a").or_raise()
    assert {"a": Meter(0, [7])} == ran.states
    assert (ran.verdicts[1].cause, ran.verdicts[1].judgement) == ("transform raised", Judgement.SUSPEND)


def test_a_timer_goes_before_what_is_released_at_the_same_watermark() -> None:
    """Both are due at 60 s: the released message raises after the minute has been emitted."""
    sent = [of("a", Start(1, 0)), of("a", Read(2, 10, 5)), of("a", Read(4, 30, -4)), of("b", Start(1, 60))]
    assert [row.minute for row in run(reordered, *sent).or_raise().rows] == [0]


def test_a_session_that_is_suspended_by_what_it_releases_has_no_timer() -> None:
    """The message held back until 59 s raises, and the session waits for a snapshot; its timer was due at 60 s."""
    sent = [of("a", Start(1, 0)), of("a", Read(2, 10, 5)), of("a", Read(4, 29, -4)), of("b", Start(1, 60))]
    ran = run(reordered, *sent).or_raise()
    assert ran.rows == []
    assert {"a", "b"} == set(ran.states)


def test_a_clock_stands_still_in_no_release_that_declares_none(tmp_path: Path) -> None:
    """Otherwise an active session would end immediately, or never, in the next release that declares silence."""
    timed = totals("minutes", Ordered(session_start=FIRST))
    runs = Offline(timed, tmp_path)

    def send(key: str, *seconds: int) -> dict[str, list[tuple[str, bytes]]]:
        return {"minutes": [(key, msgspec.json.encode(Value(second, 1))) for second in seconds]}

    runs.run(send("a", 0))
    runs.of(replace(timed, event_time=EventTime())).run(send("a", 1_800, 5_400))
    runs.run(send("b", 5_500), send("a", 5_600), send("c", 9_300), send("a", 9_310))
    rows = DeltaTable(runs.folders.table).to_pyarrow_table().sort_by("_offset")
    assert rows["total"].to_pylist() == [2, 3, 4]
