"""Checks during a walk: increments add up to the result of a check of the whole table, and a correct table passes."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.features.quality.check import Checked, check_table
from lockstep.features.quality.rules import RuleOutcome
from lockstep.table import delta_log
from tests.correctness.walk import walking
from tests.correctness.walk.walking import Walk

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.feed import Feed

STEPS = 10
STEPS_MANY = 40
OF_INCREMENT = {"violations", "new_messages"}
LASTING = {"topic", "offsets_read", "messages", "holes", "reached", "gap_offsets", "overlap_offsets"}
"""Measurements that a check of the whole table still finds after retention has dropped rows."""


def take_walk(feed: Feed, spark: SparkSession, root: Path, seed: int, steps: int) -> list[bool]:
    """Check at random steps, twice; return for each check whether it read an increment."""
    choose = random.Random(seed)  # noqa: S311  # choices of a test
    read = list[bool]()
    walk = Walk(feed, root, seed, has_windows=seed % 2 == 0)
    for _ in range(steps):
        walk.step()
        if not delta_log.has_log(walk.folders.table) or choose.random() < 0.5:
            continue
        stream = walk.runs.stream
        folders = walk.folders
        found = check_table(stream, spark, folders)
        whole = check_table(stream, spark, folders, full=True, keep=False)
        for each in (found, whole):
            wrong = {result.rule: (result.outcome, result.worst) for result in each.results if is_wrong(result.outcome)}
            assert wrong == {}, (each.coverage, walk.steps)
        assert find_measured(found, whole) == find_measured(whole, whole), (found.coverage, walk.steps)
        read.append(not found.coverage.full)
    return read


def is_wrong(outcome: RuleOutcome) -> bool:
    return outcome in {RuleOutcome.FAILED, RuleOutcome.CRASHED}


def find_measured(checked: Checked, whole: Checked) -> Mapping[tuple[str, int], Mapping[str, object]]:
    """Return the measurements of each partition that a check of the whole table also has."""
    kept = LASTING if whole.versions.retired else set(msgspec.structs.asdict(whole.partitions[0])) - OF_INCREMENT
    return {
        (each.topic_id, each.partition): {name: getattr(each, name) for name in kept} for each in checked.partitions
    }


@pytest.fixture(autouse=True)
def _only_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the check of the fold, which other tests do, and the warnings of imports of Great Expectations."""
    monkeypatch.setattr(walking, "check", lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations  # noqa: F401  # for what importing does


@pytest.mark.slow
def test_increments_add_up_to_the_whole_after_a_few_operations(feed: Feed, spark: SparkSession, tmp_path: Path) -> None:
    assert any(take_walk(feed, spark, tmp_path, 202, STEPS))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300, 320))
def test_increments_add_up_to_the_whole_after_many_operations(
    feed: Feed, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    take_walk(feed, spark, tmp_path, seed, STEPS_MANY)
