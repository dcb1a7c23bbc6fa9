"""Faults of a game day: a seed sets the plan, each kind occurs before any repeats, and one failure fails all."""

from __future__ import annotations

from itertools import islice

import msgspec

from lockstep.features.rehearsal.fault_plan import (
    OUTAGES,
    FaultKind,
    FaultResult,
    GameDayResult,
    PlannedFault,
    StreamProof,
    list_timeline,
    make_game_page,
    plan_faults,
)
from lockstep.html_page import render_page

STREAMS = ("books", "markets")
FAULT = PlannedFault(1, FaultKind.BROKER_PAUSED, "books", 5.0, 2.0)
SURVIVED = FaultResult(
    fault=FAULT, at_seconds=12.0, lasted_seconds=5.1, what="paused", recovered_seconds={"markets": 7.0, "books": 2.0}
)
PASSED = GameDayResult(
    seed=7,
    minutes=5.0,
    faults=[SURVIVED],
    proofs=[StreamProof("books", "proven", 120, 9), StreamProof("markets", "proven", 80, 7)],
    committed={"books": [(0.0, 0), (60.0, 120)]},
)


def plan(seed: int, count: int) -> list[PlannedFault]:
    return list(islice(plan_faults(seed, STREAMS), count))


def test_a_seed_gives_one_plan_whatever_the_order_of_the_streams() -> None:
    assert plan(7, 40) == list(islice(plan_faults(7, STREAMS[::-1]), 40))
    assert plan(7, 40) != plan(8, 40)


def test_every_kind_comes_once_before_any_comes_again() -> None:
    kinds = [fault.kind for fault in plan(7, 2 * len(FaultKind))]
    assert set(kinds[: len(FaultKind)]) == set(kinds[len(FaultKind) :]) == set(FaultKind)
    assert kinds[: len(FaultKind)] != kinds[len(FaultKind) :]


def test_outages_last_and_nothing_else_does() -> None:
    faults = plan(3, 60)
    assert {fault.kind for fault in faults if fault.outage_seconds} == OUTAGES
    assert {fault.stream for fault in faults} == set(STREAMS)
    assert [fault.number for fault in faults] == list(range(1, 61))


def test_a_day_is_passed_when_all_is_recovered_from_and_proven() -> None:
    assert (PASSED.is_passed, PASSED.verdict) == (True, "passed: 1 of 1 faults recovered from, 2 of 2 streams proven")
    lost = msgspec.structs.replace(SURVIVED, problem="books halted")
    doubted = [StreamProof("books", "not proven", 0, 9), PASSED.proofs[1]]
    for failed in (
        msgspec.structs.replace(PASSED, faults=[lost]),
        msgspec.structs.replace(PASSED, proofs=doubted),
        msgspec.structs.replace(PASSED, proofs=[]),
        msgspec.structs.replace(PASSED, failure="books does not commit"),
    ):
        assert not failed.is_passed
        assert failed.verdict.startswith("FAILED")


def test_the_page_shows_when_what_and_how_long() -> None:
    rows = [tuple(cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row) for row in list_timeline(PASSED)]
    assert rows == [
        ("1", "12 s", "the broker is paused (SIGSTOP)", "paused", "5.1 s", "books 2.0 s, markets 7.0 s", "")
    ]
    page = render_page(make_game_page(PASSED))
    assert "make gameday MINUTES=5 SEED=7" in page
    assert page.count("<svg") == 2
    assert ">7.0 s<" in page
    assert "<b>" not in render_page(make_game_page(msgspec.structs.replace(PASSED, failure="<b>")))
