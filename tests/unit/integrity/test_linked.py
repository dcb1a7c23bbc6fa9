"""Evidence `Linked`: every cell of (remembered, received), in both link styles."""

from __future__ import annotations

import msgspec
import pytest

from lockstep import Envelope, Link, Linked
from lockstep.integrity.gate_states import LastLink
from lockstep.integrity.sequence_numbers import LARGEST
from lockstep.integrity.verdict import ACCEPT, Verdict, report_violation
from tests.support.envelopes import RECORD, end, snapshot, update


def named(previous: int, last: int) -> Envelope:
    """Return an update that names only its predecessor."""
    return update(link=Link(last, previous=previous))


def spot(first: int, last: int) -> Envelope:
    """Return an update of the exchange's spot markets: ids U to u, without a hole."""
    return update(link=Link(last, first=first))


def futures(first: int, last: int, previous: int) -> Envelope:
    """Return an update of its futures markets: ids U to u, and pu, the u of the previous update."""
    return update(link=Link(last, first=first, previous=previous))


def opening(last: int) -> Envelope:
    return snapshot(link=Link(last))


def restarting(last: int) -> Envelope:
    return msgspec.structs.replace(opening(last), restarts_sequence=True)


def broken(last: int, found: str) -> Verdict:
    return report_violation("broken link", f"predecessor {last}", found)


def gap(last: int, found: str, missing: str) -> Verdict:
    return report_violation("gap", f"predecessor {last}", f"{found}, missing {missing}")


def repeat(last: int, found: str) -> Verdict:
    return report_violation("repeat", f"predecessor {last}", found)


def back(last: int, found: str) -> Verdict:
    return report_violation("sequence goes back", f"predecessor {last}", found)


FRESH = LastLink(100, is_fresh=True)


def reached(last: int) -> LastLink:
    """Return the state after an update."""
    return LastLink(last, is_fresh=False)


GOING = reached(100)
UNKNOWN = report_violation("unknown session", "a snapshot first", "update of a session without snapshot")

Cells = dict[str, tuple[LastLink | None, Envelope, LastLink | None, Verdict]]

ANY_STYLE: Cells = {
    "a snapshot opens a session": (None, opening(100), FRESH, ACCEPT),
    "an update that names its predecessor": (GOING, named(100, 105), reached(105), ACCEPT),
    "the first update, naming the snapshot": (FRESH, named(100, 105), reached(105), ACCEPT),
    "the end, naming its predecessor": (
        GOING,
        end(link=Link(105, previous=100)),
        reached(105),
        ACCEPT,
    ),
    "a second snapshot at the last id": (GOING, opening(100), GOING, ACCEPT),
    "a second snapshot before the first update": (FRESH, opening(100), FRESH, ACCEPT),
    "a snapshot that restarts the sequence": (GOING, restarting(7), LastLink(7, is_fresh=True), ACCEPT),
    "one that restarts it before the first update": (FRESH, restarting(7), LastLink(7, is_fresh=True), ACCEPT),
    "a second snapshot ahead": (GOING, opening(101), GOING, gap(100, "ids None to 101", "101")),
    "a second snapshot behind": (GOING, opening(99), GOING, back(100, "ids None to 99")),
    "an update of an unknown session": (None, named(100, 105), None, UNKNOWN),
    "another predecessor, later": (GOING, named(101, 105), GOING, gap(100, "predecessor 101 (ids to 105)", "101")),
    "another predecessor, earlier": (GOING, named(99, 105), GOING, broken(100, "predecessor 99 (ids to 105)")),
    "the first update, naming another": (FRESH, named(99, 105), FRESH, broken(100, "predecessor 99 (ids to 105)")),
    "an update that is its own predecessor": (
        GOING,
        named(100, 100),
        GOING,
        broken(100, "predecessor 100 (ids to 100)"),
    ),
    "an update that ends before it begins": (GOING, spot(101, 90), GOING, broken(100, "ids 101 to 90")),
    "an id that no state file holds": (
        GOING,
        named(100, LARGEST + 1),
        GOING,
        broken(100, f"predecessor 100 (ids to {LARGEST + 1})"),
    ),
    "a snapshot with such an id": (
        None,
        opening(LARGEST + 1),
        None,
        report_violation("number out of range", "a number of 64 bits", LARGEST + 1),
    ),
    "a message without link": (
        GOING,
        update(105),
        GOING,
        report_violation("no evidence", "a link from Transform.envelope", "link=None (update)"),
    ),
    "a snapshot without link": (
        None,
        snapshot(100),
        None,
        report_violation("no evidence", "a link from Transform.envelope", "link=None (snapshot)"),
    ),
}

SPOT: Cells = {
    "the next ids": (GOING, spot(101, 105), reached(105), ACCEPT),
    "the next single id": (GOING, spot(101, 101), reached(101), ACCEPT),
    "an id missing": (GOING, spot(102, 105), GOING, gap(100, "ids 102 to 105", "101")),
    "ids missing": (GOING, spot(104, 105), GOING, gap(100, "ids 104 to 105", "101 to 103")),
    "ids that overlap later on": (GOING, spot(100, 105), GOING, broken(100, "ids 100 to 105")),
    "the same ids again": (GOING, spot(96, 100), GOING, repeat(100, "ids 96 to 100")),
    "after the snapshot: the next ids": (FRESH, spot(101, 105), reached(105), ACCEPT),
    "after the snapshot: ids over its end": (FRESH, spot(95, 105), reached(105), ACCEPT),
    "after the snapshot: one id over its end": (FRESH, spot(95, 101), reached(101), ACCEPT),
    "after the snapshot: nothing new": (FRESH, spot(95, 100), FRESH, repeat(100, "ids 95 to 100")),
    "after the snapshot: stale": (FRESH, spot(90, 94), FRESH, back(100, "ids 90 to 94")),
    "after the snapshot: an id missing": (FRESH, spot(102, 105), FRESH, gap(100, "ids 102 to 105", "101")),
    "after a second snapshot: ids over its end": (GOING, spot(95, 105), GOING, broken(100, "ids 95 to 105")),
}

FUTURES: Cells = {
    "the right predecessor, ids left out between": (
        GOING,
        futures(103, 105, 100),
        reached(105),
        ACCEPT,
    ),
    "a predecessor missing, though ids go on": (
        GOING,
        futures(101, 105, 99),
        GOING,
        broken(100, "predecessor 99 (ids to 105)"),
    ),
    "a predecessor that is missing": (
        GOING,
        futures(110, 115, 108),
        GOING,
        gap(100, "predecessor 108 (ids to 115)", "101 to 108"),
    ),
    "ids that overlap later on": (GOING, futures(95, 105, 90), GOING, broken(100, "predecessor 90 (ids to 105)")),
    "after the snapshot: its id inside": (FRESH, futures(95, 105, 90), reached(105), ACCEPT),
    "after the snapshot: its id first": (FRESH, futures(100, 105, 98), reached(105), ACCEPT),
    "after the snapshot: its id last": (FRESH, futures(95, 100, 90), GOING, ACCEPT),
    "after the snapshot: its id before": (
        FRESH,
        futures(101, 105, 99),
        FRESH,
        broken(100, "predecessor 99 (ids to 105)"),
    ),
    "after the snapshot: stale": (FRESH, futures(90, 99, 85), FRESH, back(100, "predecessor 85 (ids to 99)")),
    "after the snapshot: its very successor": (FRESH, futures(103, 105, 100), reached(105), ACCEPT),
}


@pytest.mark.parametrize("cell", ANY_STYLE)
def test_what_is_judged_in_any_style(cell: str) -> None:
    before, envelope, after, verdict = ANY_STYLE[cell]
    assert Linked().check(before, envelope, RECORD) == (after, verdict)


@pytest.mark.parametrize("cell", SPOT)
def test_what_is_judged_where_messages_name_their_ids(cell: str) -> None:
    before, envelope, after, verdict = SPOT[cell]
    assert Linked().check(before, envelope, RECORD) == (after, verdict)


@pytest.mark.parametrize("cell", FUTURES)
def test_what_is_judged_where_messages_name_ids_and_predecessor(cell: str) -> None:
    before, envelope, after, verdict = FUTURES[cell]
    assert Linked().check(before, envelope, RECORD) == (after, verdict)
