"""What the code location holds; a rename of an asset, a job or a sensor shows here first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dagster import AssetKey, Definitions, RepositoryDefinition, TableSchema

ROOT = Path(__file__).parents[2]
HEAVY = ("pyspark", "py4j", "great_expectations", "pandas")


@pytest.fixture(scope="module")
def location() -> Definitions:
    from definitions import defs

    return defs


@pytest.fixture(scope="module")
def repository(location: Definitions) -> RepositoryDefinition:
    return location.get_repository_def()


def test_the_location_holds_exactly_these_parts(repository: RepositoryDefinition) -> None:
    graph = repository.asset_graph
    assert sorted(key.to_user_string() for key in graph.get_all_asset_keys()) == [
        "order_books/compaction",
        "order_books/table",
    ]
    assert sorted(f"{key.asset_key.to_user_string()}:{key.name}" for key in graph.asset_check_keys) == [
        "order_books/table:complete_and_in_order"
    ]
    assert sorted(job.name for job in repository.get_all_jobs() if not job.name.startswith("__")) == [
        "order_books_checks",
        "order_books_compaction",
        "order_books_stream",
    ]
    assert {sensor.name: sensor.minimum_interval_seconds for sensor in repository.sensor_defs} == {
        "order_books_topics": 10
    }
    assert {schedule.name: schedule.cron_schedule for schedule in repository.schedule_defs} == {
        "order_books_checks_schedule": "30 * * * *",
        "order_books_compaction_schedule": "10 * * * *",
    }


def test_the_job_of_a_stream_selects_the_table_without_its_checks(repository: RepositoryDefinition) -> None:
    layer = repository.get_job("order_books_stream").asset_layer
    assert layer.selected_asset_keys == {AssetKey(["order_books", "table"])}
    assert not repository.get_job("order_books_stream").asset_layer.asset_graph.asset_check_keys


def test_the_check_holds_up_what_comes_after_the_table(repository: RepositoryDefinition) -> None:
    graph = repository.asset_graph
    (check,) = graph.asset_check_keys
    assert graph.get_check_spec(check).blocking


def test_the_catalog_shows_columns_owners_and_the_promise(repository: RepositoryDefinition) -> None:
    node = repository.asset_graph.get(AssetKey(["order_books", "table"]))
    schema = node.metadata["dagster/column_schema"]
    assert isinstance(schema, TableSchema)
    assert [column.name for column in schema.columns][:4] == ["side", "price", "quantity", "previous_quantity"]
    assert [column.name for column in schema.columns][-1] == "commit_hour"
    assert list(node.owners) == ["team:data-platform"]
    assert node.kinds == {"kafka", "spark", "deltalake"}
    assert "Strict" in str(node.metadata["integrity"])


def test_loading_the_location_imports_nothing_heavy() -> None:
    script = f"import sys, definitions; print([name for name in {HEAVY} if name in sys.modules])"
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == "[]"
