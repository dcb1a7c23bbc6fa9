"""`FlatMap`: the rows of each message, in order, under every class that needs no snapshots."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockstep import FuzzyWindow, LogOnly, NoIntegrity, Once, Ordered, SessionStart, Strict
from lockstep.errors import DeclarationError
from lockstep.integrity.base import IntegrityClass
from lockstep.testing import Judgement, SentMessage, run
from tests.support.order_lines import Line, LinesById, Order, orders

FIRST = SessionStart.FIRST_MESSAGE


def sent(*given: Order) -> list[SentMessage[Order]]:
    return [SentMessage(value=order, key=f"customer {at}") for at, order in enumerate(given)]


CLASSES = [
    Strict(evidence=LogOnly(), session_start=FIRST),
    Ordered(session_start=FIRST),
    FuzzyWindow(lateness=timedelta(minutes=1), session_start=FIRST),
    NoIntegrity(),
]
GIVEN = [Order("a", [1, 2]), Order("b", []), Order("c", [3]), Order("a", [1, 2])]
LINES = [Line("a", 1), Line("a", 2), Line("c", 3), Line("a", 1), Line("a", 2)]


@pytest.mark.parametrize("split", [1, 3, None])
@pytest.mark.parametrize("integrity", CLASSES, ids=lambda integrity: type(integrity).__name__)
def test_each_message_gives_its_rows_in_order(integrity: IntegrityClass, split: int | None) -> None:
    ran = run(orders(integrity), *sent(*GIVEN), split=split).or_raise()
    assert ran.rows == LINES


def test_state_does_not_grow_with_the_keys() -> None:
    ran = run(orders(Ordered(session_start=FIRST)), *sent(*(Order(str(n), [n]) for n in range(50)))).or_raise()
    assert len(ran.rows) == 50
    assert len(ran.states) == 1


def test_each_id_once_where_the_envelope_has_one() -> None:
    ran = run(
        orders(Once(keep_ids=10), LinesById()), *[SentMessage(value=order, key="c") for order in GIVEN]
    ).or_raise()
    assert ran.rows == LINES[:3]


def test_a_message_that_cannot_be_mapped_leaves_no_row() -> None:
    bad = sent(Order("a", [1]), Order("b", [2, -1]), Order("c", [3]))
    halted = run(orders(CLASSES[0]), *bad)
    assert (halted.rows, halted.verdicts[-1].judgement) == ([Line("a", 1)], Judgement.VIOLATION)
    assert run(orders(NoIntegrity()), *bad).rows == [Line("a", 1), Line("c", 3)]


def test_a_class_that_waits_for_snapshots_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"waits for snapshots, and Lines has none.*\n.*FIRST_MESSAGE"):
        orders(Strict(evidence=LogOnly()))


def test_a_message_without_key_is_no_message_of_an_unnamed_session() -> None:
    keyless = SentMessage(value=Order("a", [1]), key=None)
    ran = run(orders(Once(keep_ids=10), LinesById()), keyless)
    assert ran.rows == []
    assert "the message has no key" in str(ran.verdicts[-1])
