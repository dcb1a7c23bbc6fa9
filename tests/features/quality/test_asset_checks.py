"""Each rule is a separate asset check: passed, failed, crashed and nothing new are distinct in Dagster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from dagster import (
    AssetKey,
    AssetSelection,
    DagsterInstance,
    Definitions,
    MarkdownMetadataValue,
    define_asset_job,
)
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus as Status
from deltalake import DeltaTable

from lockstep import NoIntegrity, Stream, Topics
from lockstep.declare.rules import Rule
from lockstep.features.quality.asset_check import make_table_check
from lockstep.features.quality.increment import load_state
from lockstep.orchestration.names import list_checks
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.rules import InRange, Predicate, Severity
from lockstep.settings import Settings
from lockstep.table.commit import OutputLog
from tests.features.quality.stream_tables import (
    CLEAN,
    STREAM,
    Reading,
    State,
    Whole,
    clean_batches,
    write,
    write_more,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dagster import AssetCheckKey
    from pyspark.sql import SparkSession

TABLE = AssetKey([STREAM, "table"])
RULES: tuple[Rule, ...] = (
    InRange("value", at_least=0, severity=Severity.CRITICAL, blocking=True),
    InRange("value", at_most=150, severity=Severity.INFO, id="small"),
    Predicate("value is nothing", id="wrong_sql"),
)
Shown = dict[str, tuple[str, bool | None, str | None]]
"""For each check: status of its last execution, whether it passed, severity."""


def declare(*rules: Rule) -> Stream[Reading, State, Reading]:
    return Stream(
        name=STREAM, topics=Topics(pattern=r"sensors\..+"), transform=Whole(), integrity=NoIntegrity(), rules=rules
    )


SHARED: list[SparkSession] = []


class SharedSpark(SparkResource):
    """The shared Spark session of the tests, which is never stopped."""

    def session(self, name: str, import_roots: tuple[Path, ...] = ()) -> SparkSession:
        return SHARED[-1]


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as made:
        yield made


def run(spark: SparkSession, instance: DagsterInstance, root: Path, *rules: Rule, only: str | None = None) -> Shown:
    """Run the checks of the table as their job does, and return their state in Dagster."""
    stream = declare(*rules)
    checks = make_table_check(stream, Settings(table_root=root))
    keys = [key for key in checks.check_keys if only is None or key.name == only]
    job = define_asset_job("checks", selection=AssetSelection.checks(*keys))
    resource = SharedSpark()
    definitions = Definitions(asset_checks=[checks], jobs=[job], resources={"spark": resource})
    SHARED.append(spark)
    done = definitions.resolve_job_def("checks").execute_in_process(instance=instance, raise_on_error=False)
    shown = {key.name: find_shown(instance, key) for key in keys}
    blocking = {spec.name for spec in checks.check_specs if spec.blocking}
    held_up = [name for name in blocking & set(shown) if shown[name] == ("evaluated", False, "ERROR")]
    assert done.success == (not held_up)  # a failed blocking check holds up the assets after the table
    return shown


def find_shown(instance: DagsterInstance, key: AssetCheckKey) -> tuple[str, bool | None, str | None]:
    """Return the last execution of a check, as the web server resolves it."""
    (record, *_) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    if record.status is Status.PLANNED:
        return "skipped", None, None  # the run succeeded, and the check was not evaluated
    evaluation = record.evaluation
    assert evaluation is not None
    return "evaluated", evaluation.passed, evaluation.severity.value


def test_passed_failed_crashed_and_nothing_new_are_four_things(
    spark: SparkSession, tmp_path: Path, instance: DagsterInstance
) -> None:
    nothing = ("skipped", None, None)
    assert set(run(spark, instance, tmp_path, *RULES[:2]).values()) == {nothing}  # no table yet

    batches = clean_batches(4)
    folders = write(tmp_path, batches[:2])
    shown = run(spark, instance, tmp_path, *RULES)
    assert set(shown) == set(list_checks(declare(*RULES)))
    assert shown["completeness"] == shown["value_in_range"] == ("evaluated", True, "ERROR")
    assert shown["small"] == ("evaluated", False, "WARN")
    assert shown["wrong_sql"] == ("evaluated", False, "ERROR")
    assert load_state(folders) is None  # one check was not judged

    batches[2][CLEAN[0]].row(161)["value"] = -1
    write_more(folders, batches[:3], 2)
    rules = RULES[:2]
    assert run(spark, instance, tmp_path, *rules, only="completeness") == {"completeness": ("evaluated", True, "ERROR")}
    assert load_state(folders) is None  # the other checks have not seen these rows
    shown = run(spark, instance, tmp_path, *rules)
    assert shown["value_in_range"] == ("evaluated", False, "ERROR")
    shown = run(spark, instance, tmp_path, *rules)
    assert shown["value_in_range"] == ("evaluated", False, "ERROR")  # it stays failed while nothing is new
    assert shown["completeness"] == nothing
    write_more(folders, batches, 3)
    assert run(spark, instance, tmp_path, *rules)["value_in_range"] == ("evaluated", True, "ERROR")


def test_a_check_says_when_it_was_done_what_it_covers_and_how_to_open_its_report(
    spark: SparkSession, tmp_path: Path, instance: DagsterInstance
) -> None:
    before = time.time()
    folders = write(tmp_path, clean_batches(2))
    run(spark, instance, tmp_path, *RULES[:2])
    (key,) = [
        key
        for key in make_table_check(declare(), Settings(table_root=tmp_path)).check_keys
        if key.name == "completeness"
    ]
    (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=2)
    assert record.evaluation is not None
    shown: dict[str, Any] = {name: value.value for name, value in record.evaluation.metadata.items()}
    head = OutputLog(folders.table).base().head
    assert before <= shown["checked_at"] <= time.time()
    assert shown["data_checked"] == "the whole table: 198 rows in 6 files (there is no earlier result to continue from)"
    assert shown["data_up_to_batch"] == head.batch == 2
    report = str(shown["report"])
    assert report.startswith("1 of ")
    assert "small" in report.splitlines()[0]
    assert f"`lockstep report {STREAM} --open`" in report
    assert isinstance(record.evaluation.metadata["report"], MarkdownMetadataValue)
    rows: Any = DeltaTable(folders.table).to_pyarrow_table(columns=["_event_time"])
    assert shown["newest_event_in_table"] == max(rows["_event_time"].to_pylist()).timestamp()
