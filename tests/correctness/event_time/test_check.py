"""The checks of a stream hold for rows that timers emit and messages that were held back."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.features.quality.rules import RuleOutcome
from tests.correctness.event_time.test_through_the_broker import REORDERED, TIMERS, Case, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.features.localdev.broker import Broker


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(TIMERS, id="timers"), pytest.param(REORDERED, id="reordered")])
def test_a_table_with_timers_and_held_messages_passes_its_check(
    broker: Broker, spark: SparkSession, topic_family: str, tmp_path: Path, case: Case
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the imports of Great Expectations
        from lockstep.features.quality.check import check_table

        runs, _ = read(broker, topic_family, tmp_path, case, 5)
        checked = check_table(runs.stream, spark, runs.folders)
    outcomes = {result.rule: (result.outcome, result.worst) for result in checked.results}
    wrong = {rule: told for rule, told in outcomes.items() if told[0] not in {RuleOutcome.PASSED, RuleOutcome.NOTHING}}
    assert wrong == {}
    assert RuleOutcome.PASSED is outcomes["completeness"][0]
