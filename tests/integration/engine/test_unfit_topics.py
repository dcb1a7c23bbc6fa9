"""A release that cannot run on its stream's topics is refused before the handover, and the plan states it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lockstep import Limits, NoIntegrity, Sequence, Strict
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import LockstepError
from lockstep.operations.inspect.plan import plan_next_batch, plan_restart
from tests.support.adding_stream import adding
from tests.support.evolving_streams import Wider, release
from tests.support.feed import session
from tests.support.plain_reader import entries

if TYPE_CHECKING:
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

NARROW = Limits(topics=1)


def check_refused(newer: LocalRuns, said: str) -> None:
    """Assert that a run is refused and changes nothing, and that both plans are refused with the same words."""
    before = entries(newer.folders.table)
    with pytest.raises(LockstepError, match=said) as refused:
        newer.run()
    assert entries(newer.folders.table) == before
    for plan in (plan_restart(newer.stream, newer.settings), plan_next_batch(newer.stream, newer.settings)):
        assert (plan.refused, plan.next_step) == (refused.value.problem, refused.value.next_step)


def test_a_smaller_limit_than_the_topics_there_are_is_refused_before_columns_are_added(
    feed: Feed, runs: LocalRuns
) -> None:
    for name in ("north", "south"):
        feed.send(feed.create(name), session(2), key=name)
    assert runs.run() is RunOutcome.ENDED
    wider = runs.of(release(feed.pattern, Wider()))
    check_refused(wider.with_limits(NARROW), "matches 2 topics, the limit is 1")
    only_north = replace(wider.stream.topics, exclude=r".*\.south")
    assert wider.of(replace(wider.stream, topics=only_north, limits=NARROW)).run() is RunOutcome.ENDED


def test_a_class_that_needs_every_message_is_refused_on_a_compacted_topic(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", config={"cleanup.policy": "compact"})
    feed.send(topic, session(2), key="s")
    fuzzy = runs.of(adding(feed.pattern, NoIntegrity()))
    assert fuzzy.run() is RunOutcome.ENDED
    check_refused(runs.of(adding(feed.pattern, Strict(evidence=Sequence()))), f"topics {topic} are compacted")
    assert fuzzy.run() is RunOutcome.ENDED
