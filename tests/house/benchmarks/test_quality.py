"""The benchmark of checks in small: both suites pass the same sound table, and increments are measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from benchmarks.quality import Checks, FailedCheckError, Table, check, expect, measure_quality

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TINY = Checks(rows=4_000, small_rows=2_000, batch_rows=2_000, increment_rows=400, repeat=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:module .sre_:DeprecationWarning")  # imported by its Spark engine
def test_both_pass_a_sound_table_and_its_increments(shared_spark: SparkSession, tmp_path: Path) -> None:
    record = measure_quality(TINY, shared_spark, folder=tmp_path, console=Console(quiet=True))
    assert all(figure.value > 0 for figure in record.figures)
    assert set(record.details) == {"scan of all columns", "lockstep", "stock suite", "2,000 rows", "4,000 rows"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:module .sre_:DeprecationWarning")  # imported by its Spark engine
def test_both_fail_a_table_with_a_row_twice(shared_spark: SparkSession, tmp_path: Path) -> None:
    with Table.made(tmp_path, 400, 400) as table:
        table.append_again(400)
        for judge in (check, expect):
            with pytest.raises(FailedCheckError):
                judge(shared_spark, table)
