"""A stream undergoes all operations at random: rewinds, shadows, erasures, backups, releases, kills, deleted topics.

It adds values, at times with a lookup table, or it fills windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.correctness.walk.walking import Walk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.feed import Feed

STEPS = 10
STEPS_MANY = 60


@pytest.mark.parametrize(("seed", "has_windows"), [(1, False), (2, True)])
def test_after_each_of_a_few_operations_all_is_what_the_plain_fold_says(
    feed: Feed, tmp_path: Path, seed: int, *, has_windows: bool
) -> None:
    walk = Walk(feed, tmp_path, seed, has_windows=has_windows)
    for _ in range(STEPS):
        walk.step()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 23))
@pytest.mark.parametrize("has_windows", [False, True], ids=["values", "windows"])
def test_after_each_of_many_operations_all_is_what_the_plain_fold_says(
    feed: Feed, tmp_path: Path, seed: int, *, has_windows: bool
) -> None:
    walk = Walk(feed, tmp_path, seed, has_windows=has_windows)
    for _ in range(STEPS_MANY):
        walk.step()
