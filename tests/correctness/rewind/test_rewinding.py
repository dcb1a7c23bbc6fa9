"""Random rewinds, savepoints, compactions and clean-ups of a real stream, compared with a model that remembers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from lockstep.declare.archive import Archive
from tests.correctness.rewind.rewinding import Rewinding
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

STEPS = 14


def go(feed: Feed, runs: LocalRuns, seed: int) -> None:
    archive = Archive() if seed % 2 else None
    stream = Rewinding(feed, runs.of(dataclasses.replace(runs.stream, archive=archive)), seed)
    for _ in range(STEPS):
        stream.step()
    stream.finish()


@pytest.mark.parametrize("seed", first_usual(1, [1, 2]))
def test_after_any_rewind_the_stream_is_what_it_was_and_is_proven(feed: Feed, runs: LocalRuns, seed: int) -> None:
    go(feed, runs, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 43))
def test_after_any_of_many_rewinds_the_stream_is_what_it_was(feed: Feed, runs: LocalRuns, seed: int) -> None:
    go(feed, runs, seed)
