"""Derived tables in the code location, declared as in docs/derived.md."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, DefaultScheduleStatus, Definitions

from jobs.derived import derived_schedule
from lockstep.declare.discovery import find_derived
from lockstep.derived import Derived
from lockstep.features.derived.asset import make_derived_description
from lockstep.orchestration.definitions import make_derived_assets
from lockstep.orchestration.pruning import PruningScope
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROOT = Path(__file__).parents[3]


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Derived:
    """The example of docs/derived.md."""
    (code,) = re.findall(r"^```python\n(# assets/book_activity.py\n.*?)^```$", _page(), re.MULTILINE | re.DOTALL)
    (tmp_path / "documented_tables").mkdir()
    (tmp_path / "documented_tables" / "book_activity.py").write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = find_derived(tmp_path, "documented_tables")
    monkeypatch.delitem(sys.modules, "documented_tables.book_activity")
    importlib.invalidate_caches()
    return found["book_activity"]


def _page() -> str:
    return (ROOT / "docs" / "derived.md").read_text()


def test_it_is_an_asset_after_its_sources_with_a_job_and_a_schedule(documented: Derived) -> None:
    settings = Settings()
    definitions = Definitions(
        assets=make_derived_assets([documented], settings, owners=["team:test"]),
        schedules=[derived_schedule(documented)],
        resources={"spark": SparkResource()},
    )
    repository = definitions.get_repository_def()
    key = AssetKey(["book_activity", "table"])
    node = repository.asset_graph.get(key)
    assert node.parent_keys == {AssetKey(["order_books", "table"])}
    assert node.group_name == "order_books"
    assert node.metadata["dagster/uri"] == (settings.table_root.absolute() / "book_activity" / "derived").as_uri()
    assert node.description == make_derived_description(documented)
    (schedule,) = repository.schedule_defs
    assert (schedule.job_name, schedule.cron_schedule) == ("book_activity_derive", "*/15 * * * *")
    assert schedule.default_status is DefaultScheduleStatus.RUNNING


def pass_rows(rows: DataFrame) -> DataFrame:
    return rows


def test_its_description_says_what_it_reads_when_rows_are_final_and_what_runs_it(documented: Derived) -> None:
    said = make_derived_description(documented)
    assert said.startswith(f"{documented.description}\n\nComputed by Spark from the committed rows of `order_books`.")
    assert "0:02:00 (h:mm:ss) behind the newest `_event_time`" in said
    assert "the job `book_activity_derive` and `lockstep derive book_activity`" in said
    bare = Derived(name="bare", sources=documented.sources, derive=pass_rows)
    assert "watermark" not in make_derived_description(bare)
    assert make_derived_description(bare).startswith("Computed by Spark")


def test_its_runs_and_ticks_are_pruned_as_those_of_streams(documented: Derived) -> None:
    (stream,) = documented.sources
    scope = PruningScope.of([stream], [documented])
    alone = PruningScope.of([stream])
    schedule = derived_schedule(documented)
    assert scope.jobs - alone.jobs == {schedule.job_name}
    assert scope.assets - alone.assets == {AssetKey(["book_activity", "table"])}
    assert scope.instigators - alone.instigators == {schedule.name}
