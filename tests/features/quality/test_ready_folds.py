"""Tables of ready folds, whose snapshots and ends emit rows: a check finds real faults and no others."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from lockstep.features.quality.check import check_table
from lockstep.features.quality.rules import RuleOutcome
from lockstep.rules import NotNull, Unique
from lockstep.table.layout import StreamFolders
from tests.correctness.verify.forging import Forged
from tests.correctness.verify.test_replayed_tables import EXAMPLES, make_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

RULES = (Unique(("name", "place")), NotNull("price"))
COLUMN_RULES = (Unique("name"), NotNull("price"))
USUAL = (1, 4, 10, 25)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in USUAL else pytest.mark.slow) for seed in range(EXAMPLES // 3)]
)
def test_a_table_of_a_ready_fold_keeps_all_rules(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    """Numbers that a snapshot restarts are not a break, and a snapshot has one row per key."""
    offline = make_table(seed, tmp_path)
    is_by_place = "place" in offline.stream.types.row.__struct_fields__
    stream = dataclasses.replace(offline.stream, rules=RULES if is_by_place else COLUMN_RULES)
    found = check_table(stream, spark, offline.folders, keep=False)
    wrong = {each.rule: each.observed for each in found.results if each.outcome is RuleOutcome.FAILED}
    repeated = {"name_place_unique"} if is_by_place else set[str]()  # an update may name a key twice
    assert set(wrong) <= repeated


@pytest.mark.parametrize("seed", [0, 2])
def test_a_number_that_falls_without_a_snapshot_is_a_break(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    offline = make_table(seed, tmp_path)
    folders = StreamFolders("shelves", tmp_path / "forged")
    forged = Forged.copy(offline.folders.table.parent, folders.table.parent)
    rows = reversed(forged.all_rows("table"))
    file, at, _ = next(each for each in rows if each[2]["_cause"] == "update" and each[2]["_sequence"] > 1)
    forged.change("table", file, at, _sequence=-1)
    found = check_table(offline.stream, spark, folders, keep=False)
    outcomes = {each.rule: each.outcome for each in found.results}
    assert outcomes["sequence"] is RuleOutcome.FAILED
