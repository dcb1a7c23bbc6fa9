"""A stream meets every operation at random: rewinds, shadows, erasures, backups, releases, kills, topics that go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.correctness.walk.walking import Walk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.feed import Feed

STEPS, STEPS_MANY = 10, 60


@pytest.mark.parametrize("seed", [1, 2])
def test_after_each_of_a_few_operations_all_is_what_the_plain_fold_says(feed: Feed, tmp_path: Path, seed: int) -> None:
    walk = Walk(feed, tmp_path, seed)
    for _ in range(STEPS):
        walk.step()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3, 23))
def test_after_each_of_many_operations_all_is_what_the_plain_fold_says(feed: Feed, tmp_path: Path, seed: int) -> None:
    walk = Walk(feed, tmp_path, seed)
    for _ in range(STEPS_MANY):
        walk.step()
