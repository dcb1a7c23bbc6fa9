"""Evidence `Sequence`: every cell of (remembered, received) -> (remembered, verdict)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep import Envelope, Sequence
from lockstep.integrity.sequence_numbers import LARGEST
from lockstep.integrity.verdict import ACCEPT, Verdict, report_violation
from tests.support.envelopes import RECORD, end, refused_at, snapshot, update

UNKNOWN = report_violation("unknown session", "a snapshot first", "update of a session without snapshot")

CELLS: dict[str, tuple[int | None, Envelope, int | None, Verdict]] = {
    "a snapshot opens a session at any number": (None, snapshot(40), 40, ACCEPT),
    "a snapshot opens a session at 0": (None, snapshot(0), 0, ACCEPT),
    "a snapshot opens a session below 0": (None, snapshot(-1), -1, ACCEPT),
    "the next number": (40, update(41), 41, ACCEPT),
    "the next number after 0": (0, update(1), 1, ACCEPT),
    "the end with the next number": (40, end(41), 41, ACCEPT),
    "a second snapshot with the next number": (40, snapshot(41), 41, ACCEPT),
    "a second snapshot that repeats the last number": (40, snapshot(40), 40, ACCEPT),
    "an update of an unknown session": (None, update(41), None, UNKNOWN),
    "the end of an unknown session": (
        None,
        end(41),
        None,
        report_violation("unknown session", "a snapshot first", "end of a session without snapshot"),
    ),
    "the same number again": (40, update(40), 40, report_violation("repeat", 41, 40)),
    "the same number at the end": (40, end(40), 40, report_violation("repeat", 41, 40)),
    "one number missing": (40, update(42), 40, report_violation("gap", 41, "42, missing 41")),
    "several numbers missing": (40, update(45), 40, report_violation("gap", 41, "45, missing 41 to 44")),
    "a second snapshot after a gap": (40, snapshot(42), 40, report_violation("gap", 41, "42, missing 41")),
    "a number of before": (40, update(39), 40, report_violation("sequence goes back", 41, 39)),
    "a second snapshot that goes back": (40, snapshot(0), 40, report_violation("sequence goes back", 41, 0)),
    "an update without number": (
        40,
        update(),
        40,
        report_violation("no evidence", "a sequence from Transform.envelope", "sequence=None (update)"),
    ),
    "a snapshot without number": (
        None,
        snapshot(),
        None,
        report_violation("no evidence", "a sequence from Transform.envelope", "sequence=None (snapshot)"),
    ),
    "the largest number": (None, snapshot(LARGEST), LARGEST, ACCEPT),
    "a number that no state file holds": (
        None,
        snapshot(LARGEST + 1),
        None,
        report_violation("number out of range", "a number of 64 bits", LARGEST + 1),
    ),
}


@pytest.mark.parametrize("cell", CELLS)
def test_what_is_judged_and_remembered(cell: str) -> None:
    before, envelope, after, verdict = CELLS[cell]
    assert Sequence().check(before, envelope, RECORD) == (after, verdict)


starts = some.integers(-(2**40), 2**40)
lengths = some.integers(2, 30)


def numbered(start: int, length: int) -> list[Envelope]:
    return [snapshot(start), *(update(start + step) for step in range(1, length))]


@given(starts, lengths)
def test_numbers_without_a_gap_are_accepted_from_any_start(start: int, length: int) -> None:
    assert refused_at(Sequence(), numbered(start, length)) is None


@given(starts, lengths, some.data())
def test_a_removed_message_is_missed_at_the_very_next_one(start: int, length: int, data: some.DataObject) -> None:
    envelopes = numbered(start, length)
    removed = data.draw(some.integers(0, length - 2))
    del envelopes[removed]
    expected = (
        UNKNOWN
        if removed == 0
        else report_violation("gap", start + removed, f"{start + removed + 1}, missing {start + removed}")
    )
    assert refused_at(Sequence(), envelopes) == (removed, expected)


@given(starts, lengths, some.data())
def test_a_repeated_message_is_refused_where_it_repeats(start: int, length: int, data: some.DataObject) -> None:
    envelopes = numbered(start, length)
    repeated = data.draw(some.integers(1, length - 1))
    again = data.draw(some.integers(repeated + 1, length))
    envelopes.insert(again, envelopes[repeated])
    cause = "repeat" if again == repeated + 1 else "sequence goes back"
    assert refused_at(Sequence(), envelopes) == (again, report_violation(cause, start + again, start + repeated))


@given(starts, lengths, some.data())
def test_swapped_messages_are_refused_at_the_first_of_them(start: int, length: int, data: some.DataObject) -> None:
    envelopes = numbered(start, length)
    swapped = data.draw(some.integers(0, length - 2))
    envelopes[swapped], envelopes[swapped + 1] = envelopes[swapped + 1], envelopes[swapped]
    found = refused_at(Sequence(), envelopes)
    assert found is not None
    assert found[0] == swapped
    assert found[1].cause == ("unknown session" if swapped == 0 else "gap")


@given(starts, lengths, some.data())
def test_a_snapshot_may_come_anywhere_with_the_last_number(start: int, length: int, data: some.DataObject) -> None:
    envelopes = numbered(start, length)
    after = data.draw(some.integers(1, length))
    envelopes.insert(after, snapshot(start + after - 1))
    assert refused_at(Sequence(), envelopes) is None
