"""The result of a rule in Dagster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from dagster import AssetCheckResult, AssetKey, TableMetadataValue

from lockstep.features.quality.asset_check import make_check_result
from lockstep.features.quality.check import Checked, Coverage
from lockstep.features.quality.increment import TableVersions
from lockstep.features.quality.rules import RuleOutcome, RuleResult

FAILED = RuleOutcome.FAILED
CRASHED = RuleOutcome.CRASHED
OF_ROWS = RuleResult(rule="r", sentence="s", outcome=FAILED, observed=30, unexpected=2, checked=3, rows=100)
OF_PARTITIONS = RuleResult(rule="r", sentence="s", outcome=FAILED, observed=30, unexpected=2, checked=3)
BROKEN = RuleResult(rule="r", sentence="s", outcome=CRASHED, observed=None)


def show(result: RuleResult) -> AssetCheckResult:
    coverage = Coverage(full=True, reason="asked for", since=None, files=1, rows=100, size=1_000)
    versions = TableVersions(table=1, ledger=1, batch=1)
    checked = Checked(stream="x", versions=versions, coverage=coverage, partitions=(), results=(result,))
    shown = make_check_result(result, checked, {}, AssetKey(["x", "table"]))
    assert shown is not None
    return shown


@pytest.mark.parametrize(
    ("result", "counts"),
    [
        (OF_ROWS, {"unexpected": 30, "unexpected_percent": 30.0, "partitions_with_violations": 2}),
        (OF_PARTITIONS, {"unexpected": 2, "checked": 3}),
        (BROKEN, {}),
    ],
    ids=["rows", "partitions", "a crash"],
)
def test_what_is_unexpected_is_counted_as_what_it_is(result: RuleResult, counts: dict[str, Any]) -> None:
    shown = show(result)
    counted = {"unexpected", "unexpected_percent", "partitions_with_violations", "checked"}
    assert {name: value.value for name, value in shown.metadata.items() if name in counted} == counts


def test_a_failing_row_is_shown_by_its_offset_and_not_by_its_session() -> None:
    row = {"topic": "x.a", "partition": 0, "offset": 7, "session": "maria@example.org"}
    shown = show(msgspec.structs.replace(OF_ROWS, sample=(row,)))
    table = shown.metadata["sample"]
    assert isinstance(table, TableMetadataValue)
    assert [record.data for record in table.records] == [{"topic": "x.a", "partition": 0, "offset": 7}]


def test_a_description_is_shown_letter_by_letter_where_dagster_reads_markdown() -> None:
    crashed = msgspec.structs.replace(BROKEN, reason="no column <b> in ![x](http://x/y.png) __a__ of a_b")
    assert r"no column \<b\> in !\[x\](http://x/y.png) \_\_a\_\_ of a_b" in str(show(crashed).description)
