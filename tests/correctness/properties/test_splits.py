"""Metamorphic: random messages have the same result with any split, crashes and restarts.

The compared results cover every message, whether it is applied or not.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from lockstep.testing import Event, run
from tests.correctness.properties.feeds import CUTS, STEPS, Step, cut, feed
from tests.correctness.properties.probes import STREAMS

EXAMPLES = max(12, settings().max_examples // 5)
EXAMPLES_DEEP = max(150, settings().max_examples)


def any_split_comes_to_the_same(name: str, steps: list[Step], cuts: list[tuple[int, Event]]) -> None:
    messages = feed(steps)
    stream = STREAMS[name]
    assert run(stream, *messages) == run(stream, *cut(messages, cuts))


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=EXAMPLES)
@given(steps=STEPS, cuts=CUTS)
def test_any_split_of_random_messages_comes_to_the_same(
    name: str, steps: list[Step], cuts: list[tuple[int, Event]]
) -> None:
    any_split_comes_to_the_same(name, steps, cuts)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=EXAMPLES_DEEP)
@given(steps=STEPS, cuts=CUTS)
def test_any_split_of_many_more_random_messages_comes_to_the_same(
    name: str, steps: list[Step], cuts: list[tuple[int, Event]]
) -> None:
    any_split_comes_to_the_same(name, steps, cuts)
