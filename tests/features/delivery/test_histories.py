"""Random histories of batches, compactions, rewinds and a promotion: valid rows are in the topic once, in order."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from lockstep.features.delivery.changes import HaltReason
from lockstep.features.delivery.position import DeliveryHalted
from lockstep.features.delivery.prove import prove_deliveries
from lockstep.features.history.promote import promote_shadow
from lockstep.features.history.shadow import begin_shadow
from lockstep.operations.stream_table import open_table
from lockstep.verify.report import InvariantStatus
from tests.correctness.rewind.rewinding import Rewinding
from tests.features.delivery.delivering import StopAfter, assert_delivered, declare, read_rows, read_topic, run_delivery
from tests.support.feed import Feed
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from tests.support.local_runs import LocalRuns

PARTITIONS = 2
STEPS = 8
SHADOW = "adding_shadow"


def deliver_and_accept(stream: Rewinding, target: str, *, may_stop: bool = False) -> bool:
    """Deliver with small writes, perhaps up to a stop inside a step, and accept a halt. Return whether it halted."""
    rows = stream.choose.choice([1, 3, 100])
    stop = StopAfter(stream.choose.randint(2, 6)) if may_stop and stream.choose.random() < 0.5 else None
    try:
        run_delivery(stream.runs, target, transaction_rows=rows, stop=stop)
    except DeliveryHalted as halted:
        assert halted.reason is HaltReason.UNDONE, stream.steps  # noqa: PT017  # only some histories halt
        run_delivery(stream.runs, target, transaction_rows=rows, accepts=True)
        return True
    return False


def check(feed: Feed, runs: LocalRuns, target: str, *, was_accepted: bool) -> None:
    """Assert that rows of valid batches are in the topic once, in order, and that the proof agrees."""
    head = open_table(runs.folders).base().head
    arrived = read_topic(feed.bootstrap_servers, target, PARTITIONS)
    counting = [each for each in arrived if each.batch <= head.valid_batches.get(each.generation, -1)]
    assert_delivered(counting, read_rows(runs.folders))
    assert was_accepted or counting == arrived
    (proof,) = prove_deliveries(declare(runs.stream, target).stream, runs.folders, runs.settings.kafka)
    expected = InvariantStatus.PROVEN if counting == arrived else InvariantStatus.NOT_PROVEN
    assert proof.status is expected, proof


def go(feed: Feed, runs: LocalRuns, seed: int) -> None:
    target = Feed(feed.bootstrap_servers, f"to_{feed.family}").create("rows", PARTITIONS)
    stream = Rewinding(feed, runs, seed)
    was_accepted = False
    for _ in range(STEPS):
        stream.step()
        if stream.choose.random() < 0.6:
            was_accepted |= deliver_and_accept(stream, target, may_stop=True)
    was_accepted |= deliver_and_accept(stream, target)
    check(feed, runs, target, was_accepted=was_accepted)


@pytest.mark.parametrize("seed", first_usual(1, [1, 2]))
def test_in_a_history_with_rewinds_each_row_that_counts_is_delivered_once(
    feed: Feed, runs: LocalRuns, seed: int
) -> None:
    go(feed, runs, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 23))
def test_in_many_histories_with_rewinds_each_row_that_counts_is_delivered_once(
    feed: Feed, runs: LocalRuns, seed: int
) -> None:
    go(feed, runs, seed)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_promotion_halts_a_delivery_that_is_ahead_of_it_alone(
    feed: Feed,
    runs: LocalRuns,
    is_ahead: bool,  # noqa: FBT001  # a parameter
) -> None:
    target = Feed(feed.bootstrap_servers, f"to_{feed.family}").create("rows", PARTITIONS)
    stream = Rewinding(feed, runs, 5)
    for _ in range(2):
        stream.send()
        runs.run()
    run_delivery(runs, target)
    begin_shadow(runs.handle, SHADOW, str(stream.head.batch), code="", who="a test", why="a test")
    shadow = runs.of(dataclasses.replace(runs.stream, name=SHADOW))
    for _ in range(2):
        stream.send()
        runs.run()
        shadow.run()
    if is_ahead:
        run_delivery(runs, target)
    promote_shadow(runs.handle, SHADOW, who="a test", why="a test", accept_behind=True)
    assert deliver_and_accept(stream, target) == is_ahead
    stream.send()
    runs.run()
    deliver_and_accept(stream, target)
    check(feed, runs, target, was_accepted=is_ahead)
