"""Results of checks that are hidden by a run which did not execute them, on a real instance without a Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckSeverity,
    AssetMaterialization,
    AssetObservation,
    AssetSelection,
    DagsterInstance,
    Definitions,
    RunRequest,
)
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from lockstep.features.health.asset_check import (
    find_hidden_checks,
    find_newest_materialization,
    list_last_results,
    request_first_checks,
)
from lockstep.orchestration.definitions import make_stream_assets, make_stream_checks
from lockstep.orchestration.names import HEALTH, list_checks, make_table_key
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import KafkaSettings, Settings
from tests.support.adding_stream import adding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STREAM = adding(r"a\..+")
TABLE = make_table_key(STREAM)
FAILED = AssetCheckExecutionRecordStatus.FAILED


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        for name in ("completeness", "sequence"):
            instance.report_runless_asset_event(
                AssetCheckEvaluation(TABLE, name, passed=False, metadata={}, severity=AssetCheckSeverity.ERROR)
            )
        yield instance


def execute(instance: DagsterInstance, root: Path, selection: AssetSelection, *, seconds: float | None = None) -> bool:
    """Run these assets and checks; `seconds` is a configuration that the table's step refuses. Return the success."""
    settings = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:9"), table_root=root)
    definitions = Definitions(
        assets=make_stream_assets(STREAM, settings, owners=()),
        asset_checks=make_stream_checks(STREAM, settings),
        resources={"spark": SparkResource()},
    )
    graph = definitions.resolve_asset_graph()
    config = {"ops": {TABLE.to_python_identifier(): {"config": {"report_seconds": seconds}}}} if seconds else {}
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection=selection.resolve(graph), asset_check_selection=selection.resolve_checks(graph)
    )
    return job.execute_in_process(run_config=config, instance=instance, raise_on_error=False).success


def shown(instance: DagsterInstance, name: str) -> AssetCheckExecutionRecordStatus:
    key = AssetCheckKey(TABLE, name)
    return instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key].status


def test_a_run_whose_table_fails_hides_the_results_of_all_checks_until_they_are_given_again(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    assert find_hidden_checks(STREAM, instance) == frozenset()
    assert not execute(instance, tmp_path, AssetSelection.assets(TABLE), seconds=0.5)
    assert shown(instance, "completeness") is AssetCheckExecutionRecordStatus.PLANNED

    hidden = find_hidden_checks(STREAM, instance)
    assert hidden == {HEALTH, *list_checks(STREAM)}
    for result in list_last_results(STREAM, hidden - {HEALTH}, instance):
        instance.report_runless_asset_event(result)
    assert [shown(instance, name) for name in ("completeness", "sequence")] == [FAILED, FAILED]
    assert find_hidden_checks(STREAM, instance) == hidden - {"completeness", "sequence"}  # the others have no result


def test_a_check_that_had_nothing_new_hides_its_result_and_one_that_itself_failed_does_not(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    checks = AssetSelection.checks(*(AssetCheckKey(TABLE, name) for name in list_checks(STREAM)))
    (tmp_path / "tables").mkdir()
    assert execute(instance, tmp_path / "tables", checks)  # there is no table yet
    hidden = find_hidden_checks(STREAM, instance)
    assert hidden == frozenset(list_checks(STREAM))
    for result in list_last_results(STREAM, hidden, instance):
        instance.report_runless_asset_event(result)
    assert [shown(instance, name) for name in ("completeness", "sequence")] == [FAILED, FAILED]
    assert not execute(instance, tmp_path / "nowhere", checks)
    assert find_hidden_checks(STREAM, instance) == frozenset()


def first_checks(instance: DagsterInstance) -> RunRequest | None:
    return request_first_checks(STREAM, instance, find_newest_materialization(STREAM, instance))


@pytest.mark.parametrize("later", [0, 3])
def test_checks_that_never_ran_are_requested_once_the_table_has_rows(tmp_path: Path, later: int) -> None:
    """The run's figures are reported as a materialization, then as observations: both show the first rows."""
    checks = AssetSelection.checks(*(AssetCheckKey(TABLE, name) for name in list_checks(STREAM)))
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        assert first_checks(instance) is None
        instance.report_runless_asset_event(AssetMaterialization(TABLE, metadata={"rows": 0.0 if later else 3.0}))
        if later:
            assert first_checks(instance) is None
            instance.report_runless_asset_event(AssetObservation(TABLE, metadata={"rows": float(later)}))
        asked = first_checks(instance)
        assert asked is not None
        assert asked.job_name == "adding_checks"
        assert first_checks(instance) == asked  # its run key: Dagster launches it once

        assert not execute(instance, tmp_path / "nowhere", checks)
        assert first_checks(instance) is None  # the schedule requests the next run


def test_a_new_rule_is_checked_soon(instance: DagsterInstance) -> None:
    """`completeness` and `sequence` have results, the other checks have none."""
    instance.report_runless_asset_event(AssetMaterialization(TABLE, metadata={"rows_in_table": 3}))
    assert first_checks(instance) is not None
    for name in list_checks(STREAM):
        instance.report_runless_asset_event(AssetCheckEvaluation(TABLE, name, passed=True, metadata={}))
    assert first_checks(instance) is None
