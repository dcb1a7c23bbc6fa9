"""`WindowFold` against plain lists: each message is in its windows, and each window within the lateness has one row."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep import Envelope, EventTime, Kind, NoIntegrity, Record, SessionStart
from lockstep.errors import DeclarationError
from lockstep.testing import Judgement, SentMessage, run
from lockstep.windows import CountWindows, SessionWindows, SlidingWindows, TumblingWindows, Window, WindowFold
from tests.support.window_folds import (
    FUZZY,
    LATENESS,
    SECOND,
    Counting,
    ListFold,
    Prompt,
    Sent,
    Silence,
    Sliding,
    Tumbling,
    Value,
    Values,
    a_stream,
    disordered,
    expected_of,
)

ANY = NoIntegrity()
LAST = 100_000
STEPS = some.lists(some.tuples(some.sampled_from("ab"), some.integers(0, 25), some.integers(0, 10)), max_size=40)


def seconds(at: datetime) -> int:
    return round(at.timestamp())


def messages(sent: Sent) -> list[SentMessage[Value]]:
    return [SentMessage(value=Value(t, v), key=session) for session, t, v in sent]


@pytest.mark.parametrize("fold", [Tumbling(), Sliding(), Silence()], ids=lambda fold: type(fold).__name__)
@given(steps=some.lists(some.tuples(some.sampled_from("ab"), some.integers(0, 25), some.integers(0, 10)), max_size=40))
def test_each_window_has_one_row_with_the_messages_of_its_time(
    fold: ListFold, steps: list[tuple[str, int, int]]
) -> None:
    sent = disordered(steps)
    ran = run(a_stream(fold), *messages([*sent, ("end", LAST, 0)])).or_raise()
    found = Counter((seconds(row.start), seconds(row.end), tuple(sorted(row.values))) for row in ran.rows)
    assert found == expected_of(fold.windows, sent)
    assert all(row.messages == len(row.values) for row in ran.rows)


@pytest.mark.parametrize("fold", [Tumbling(), Sliding(), Silence()], ids=lambda fold: type(fold).__name__)
@given(steps=STEPS)
def test_with_reorder_the_messages_of_a_window_are_in_order(fold: ListFold, steps: list[tuple[str, int, int]]) -> None:
    sent = disordered(steps)
    ran = run(a_stream(fold, replace(FUZZY, reorder=True)), *messages([*sent, ("end", LAST, 0)])).or_raise()
    found = Counter((seconds(row.start), seconds(row.end), tuple(sorted(row.values))) for row in ran.rows)
    assert found == expected_of(fold.windows, sent)
    at = {value: time for _, time, value in sent}
    assert all(row.values == sorted(row.values, key=lambda value: (at[value], value)) for row in ran.rows)


@given(sent=some.lists(some.tuples(some.sampled_from("ab"), some.integers(0, 99), some.integers(0, 9)), max_size=30))
def test_windows_of_a_number_of_messages(sent: Sent) -> None:
    """They close with their last message; an unfinished window is emitted when the session ends."""
    ends = [SentMessage(value=Value(0, 0, Kind.END), key=session) for session in "ab"]
    ran = run(a_stream(Counting(), ANY), *messages(sent), *ends).or_raise()
    expected = []
    for session in "ab":
        own = [(t, v) for name, t, v in sent if name == session]
        parts = [own[at : at + 3] for at in range(0, len(own), 3)]
        expected += [
            Values(utc(min(t for t, _ in part)), utc(max(t for t, _ in part)), len(part), [v for _, v in part])
            for part in parts
        ]
    assert sorted(map(repr, ran.rows)) == sorted(map(repr, expected))


def utc(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def test_a_late_message_changes_no_window() -> None:
    ran = run(a_stream(Tumbling()), *messages([("a", 5, 1), ("a", 33, 2), ("a", 22, 3), ("b", LAST, 0)])).or_raise()
    assert [row.values for row in ran.rows] == [[1], [2]]
    assert [each.judgement for each in ran.verdicts if each.cause == "late"] == [Judgement.LATE]


def test_without_lateness_in_the_class_a_message_of_a_closed_window_makes_a_further_row() -> None:
    """Every message is in exactly one row of its window."""
    ran = run(a_stream(Prompt(), ANY), *messages([("a", 5, 1), ("a", 20, 2), ("a", 6, 3), ("b", 40, 0)])).or_raise()
    assert [(seconds(row.start), row.values) for row in ran.rows] == [(0, [1]), (0, [3]), (20, [2])]


def test_a_session_that_ends_or_falls_silent_closes_its_windows() -> None:
    end = SentMessage(value=Value(6, 0, Kind.END), key="a")
    ran = run(a_stream(Tumbling()), *messages([("a", 5, 1)]), end).or_raise()
    assert [(row.values, row.messages) for row in ran.rows] == [([1], 1)]
    silent = EventTime(session_idle=7 * SECOND)
    ran = run(a_stream(Tumbling(), event_time=silent), *messages([("a", 5, 1), ("b", 13, 2)])).or_raise()
    assert [row.values for row in ran.rows] == [[1]]


def test_a_snapshot_is_refused_as_it_would_replace_the_open_windows() -> None:
    ran = run(a_stream(Tumbling()), SentMessage(value=Value(5, 1, Kind.SNAPSHOT), key="a"))
    assert "windows have no snapshots" in str(ran.verdicts)
    assert [each.cause for each in ran.quarantine] == ["snapshot of windows"]


def test_a_snapshot_of_several_messages_is_refused_and_the_open_windows_stay() -> None:
    parts = [Value(6, 2, Kind.SNAPSHOT_PART), Value(7, 3, Kind.SNAPSHOT_PART), Value(8, 4, Kind.SNAPSHOT)]
    sent = [SentMessage(value=part, key="a") for part in parts]
    before = messages([("a", 5, 1)])
    after = messages([("a", 9, 5), ("b", LAST, 0)])
    ran = run(a_stream(Tumbling(), ANY), *before, *sent, *after)
    assert [row.values for row in ran.rows] == [[1, 5]]
    assert [each.offset for each in ran.quarantine] == [1, 2, 3]


@pytest.mark.parametrize("second", [-1, 253_370_764_801])
def test_a_time_that_is_no_date_is_refused(second: int) -> None:
    ran = run(a_stream(Counting(), ANY), *messages([("a", second, 1)]))
    assert "an event time from 1970 to 9998" in str(ran.verdicts)
    assert [each.cause for each in ran.quarantine] == ["absurd event time"]


class Years(ListFold):
    """Windows that are longer than the remaining calendar after the latest time of a message."""

    windows = TumblingWindows(timedelta(days=700), lateness=LATENESS)


class YearsOfSilence(ListFold):
    windows = SessionWindows(timedelta(days=700), lateness=LATENESS)


@pytest.mark.parametrize("fold", [Years(), YearsOfSilence()])
def test_a_window_that_ends_after_the_calendar_closes_with_its_session(fold: ListFold) -> None:
    """The end of a session by silence is a timer, and its error would stop the stream under every class."""
    idle = EventTime(session_idle=60 * SECOND)
    ran = run(
        a_stream(fold, ANY, idle), *messages([("b", 0, 2), ("a", 253_370_764_799, 1), ("b", 50, 3), ("b", 100, 4)])
    )
    assert [(row.end, row.values) for row in ran.rows] == [(datetime.max.replace(tzinfo=UTC), [1])]


class NoWindows(ListFold):
    pass


class NoMerge(WindowFold[Value, int, Values]):
    windows = SessionWindows(SECOND)

    def envelope(self, message: Value, record: Record) -> Envelope:
        raise NotImplementedError

    def create(self) -> int:
        raise NotImplementedError

    def add(self, value: int, message: Value) -> int:
        raise NotImplementedError

    def emit(self, window: Window, value: int) -> Values:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: TumblingWindows(timedelta(0)), "TumblingWindows.size = datetime.timedelta(0): is too short"),
        (lambda: TumblingWindows(timedelta.max), "is more than a century"),
        (lambda: SessionWindows(timedelta.max), "is more than a century"),
        (lambda: TumblingWindows(SECOND, lateness=-SECOND), "TumblingWindows.lateness"),
        (lambda: TumblingWindows(SECOND, lateness=30), "lateness = 30: is not a timedelta"),  # type: ignore[arg-type]  # the fault
        (lambda: SlidingWindows(SECOND, SECOND, offset=1), "offset = 1: is not a timedelta"),  # type: ignore[arg-type]  # the fault
        (lambda: SlidingWindows(SECOND, 2 * SECOND), "leaves messages between windows out"),
        (lambda: SlidingWindows(timedelta(days=1), SECOND), "puts each message into more than 10000 windows"),
        (lambda: SessionWindows(5), "SessionWindows.gap"),  # type: ignore[arg-type]  # the fault
        (lambda: CountWindows(0), "CountWindows.size = 0: is not a number of messages"),
        (NoWindows, "NoWindows.windows = None: are not windows"),
        (NoMerge, "merge is not defined"),
        (lambda: a_stream(Prompt()), "Prompt.windows.lateness"),
        (lambda: a_stream(Tumbling(), replace(FUZZY, session_start=SessionStart.SNAPSHOT)), "session_start"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(declare: object, said: str) -> None:
    with pytest.raises(DeclarationError, match=said.replace("(", r"\(").replace(")", r"\)")):
        declare()  # type: ignore[operator]  # parameters are objects


PAGE = Path(__file__).parents[3] / "docs" / "windows.md"


def test_the_stream_of_the_page_counts_its_trades(monkeypatch: pytest.MonkeyPatch) -> None:
    (declared,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    module = ModuleType("minutes_of_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(declared, module.__name__, "exec"), vars(module))  # noqa: S102  # our own page
    sent = [module.Trade(second * 1_000_000, 1.0, 5) for second in (3, 59, 40, 61, 89, 90)]
    ran = run(module.minutes, *(SentMessage(value=each, key="a") for each in sent)).or_raise()
    assert ran.rows == [module.MinuteVolume(utc(0), 3, 15)]
