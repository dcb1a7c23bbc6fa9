"""The cost of a bad message under each class and policy: the table of docs/integrity.md matches the engine."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from lockstep import FuzzyWindow, Halt, NoIntegrity, Once, Ordered, Sequence, SessionStart, Strict, Suspend
from lockstep.testing import SentMessage, run
from tests.support.adding_stream import POISON, Snapshot, Update, adding
from tests.support.feed import snapshot, update
from tests.support.window_folds import LATENESS

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from lockstep.testing import RunResult
    from tests.support.adding_stream import Panel, Reading

PAGE = Path(__file__).parents[3] / "docs" / "integrity.md"
FIRST = SessionStart.FIRST_MESSAGE
HALT = "halt; nothing"
ALONE = "that message"
WAITS = "its session waits for a snapshot"
ALL_WAIT = "all sessions of the partition wait for snapshots"
LOSES = "the state of its session"
ALL_LOSE = "the states of all sessions of the partition"
STRICT = Strict(evidence=Sequence())
ONCE = Once(keep_ids=10)
FUZZY = FuzzyWindow(lateness=LATENESS)
ROWS: dict[tuple[str, str, str], tuple[IntegrityClass, str, str]] = {
    ("`NoIntegrity`", "-", "any"): (NoIntegrity(), ALONE, ALONE),
    ("`Once`", "`Halt()`", "any"): (ONCE, ALONE, ALONE),
    ("`Once`", "`Suspend()`", "`SNAPSHOT`"): (replace(ONCE, on_violation=Suspend()), ALONE, ALONE),
    ("`Once`", "`Suspend()`", "`FIRST_MESSAGE`"): (
        replace(ONCE, on_violation=Suspend(), session_start=FIRST),
        ALONE,
        ALONE,
    ),
    ("`Ordered`", "any", "`SNAPSHOT`"): (Ordered(), ALL_WAIT, WAITS),
    ("`Ordered`", "any", "`FIRST_MESSAGE`"): (Ordered(session_start=FIRST), ALONE, LOSES),
    ("`FuzzyWindow`", "any", "`SNAPSHOT`"): (FUZZY, ALL_WAIT, WAITS),
    ("`FuzzyWindow`", "any", "`FIRST_MESSAGE`"): (replace(FUZZY, session_start=FIRST), ALONE, LOSES),
    ("`Strict`", "`Halt()`", "any"): (STRICT, HALT, HALT),
    ("`Strict`", "`Suspend()`", "`SNAPSHOT`"): (replace(STRICT, on_violation=Suspend()), ALL_WAIT, WAITS),
    ("`Strict`", "`Suspend()`", "`FIRST_MESSAGE`"): (
        replace(STRICT, on_violation=Suspend(), session_start=FIRST),
        ALL_LOSE,
        LOSES,
    ),
}
BAD = 4
UNDECODABLE = b'{"broken'
RAISING = update(3, a=1, b=POISON, c=3)


def run_with(integrity: IntegrityClass, bad: bytes) -> RunResult[Panel, Reading]:
    """Run two sessions with a bad message of the first, until after their next snapshots."""
    log = [
        *(("s", snapshot(1, a=1)), ("t", snapshot(1, a=1)), ("s", update(2, a=1)), ("t", update(2, a=1))),
        ("s", bad),
        *(("s", update(3, a=1)), ("t", update(3, a=1)), ("s", update(4, a=1)), ("t", update(4, a=1))),
        *(("s", snapshot(5, a=1)), ("t", snapshot(5, a=1))),
        *(("s", update(6, a=1)), ("t", update(6, a=1))),
    ]
    messages = [SentMessage[Snapshot | Update](value=value, key=key) for key, value in log]
    return run(adding("values", integrity=integrity), *messages)


def name_cost(ran: RunResult[Panel, Reading]) -> str:
    """Name the cost of the bad message by the offsets and sessions that the run left out."""
    if ran.finding is not None:
        assert (ran.finding.offset, ran.losses) == (BAD, ())
        return HALT
    left_out = tuple(each.offset for each in ran.quarantine)
    lost = sum(loss.sessions for loss in ran.losses)
    return {
        ((BAD,), 0): ALONE,
        ((BAD, BAD + 1, BAD + 3), 0): WAITS,
        ((BAD, BAD + 1, BAD + 2, BAD + 3, BAD + 4), 0): ALL_WAIT,
        ((BAD,), 1): LOSES,
        ((BAD,), 2): ALL_LOSE,
    }[left_out, lost]


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_the_table_says_what_a_bad_message_costs(row: tuple[str, str, str]) -> None:
    integrity, undecodable, raising = ROWS[row]
    starts = list(SessionStart) if row[2] == "any" else [integrity.session_start]
    policies = [Halt(), Suspend()] if row[1] == "any" else [integrity.on_violation]
    for start, policy in product(starts, policies):
        tried = replace(cast("Strict", integrity), session_start=start, on_violation=policy)
        assert name_cost(run_with(tried, UNDECODABLE)) == undecodable
        assert name_cost(run_with(tried, RAISING)) == raising


@pytest.mark.parametrize("row", [row for row in ROWS if row[1] in {"any", "`Suspend()`"}], ids=" ".join)
def test_a_policy_that_accepts_losses_gives_up_the_same(row: tuple[str, str, str]) -> None:
    integrity, *costs = ROWS[row]
    accepting = replace(cast("Strict", integrity), on_violation=Suspend(accept_loss=True))
    for bad, cost in zip((UNDECODABLE, RAISING), costs, strict=True):
        ran = run_with(accepting, bad)
        assert name_cost(ran) == cost
        assert all(loss.is_accepted for loss in ran.losses)


def test_the_page_has_this_table() -> None:
    page = PAGE.read_text()
    for row, (_, undecodable, raising) in ROWS.items():
        assert f"| {' | '.join(row)} | {undecodable} | {raising} |" in page
