"""The contents of the code location: a rename of an asset, a job or a sensor is detected here first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterInvalidConfigError,
    Definitions,
    RepositoryDefinition,
    TableSchema,
    validate_run_config,
)
from dagster._core.definitions.run_request import InstigatorType

from assets.order_books import order_books
from lockstep import AvailableNow
from lockstep.declare.rules import BUILT_IN
from lockstep.orchestration.table_asset import choose_effective_trigger
from lockstep.settings import DagsterSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
STREAMS = ("betting_markets", "checksummed_books", "order_books")
EXPORTED = "betting_markets"
"""The stream that declares an export."""
OWN: dict[str, tuple[str, ...]] = {
    "betting_markets": (),
    "checksummed_books": (),
    "order_books": ("quantity_is_positive", "side_in_set", "side_price_unique"),
}
"""Rules of each stream."""
HEAVY = ("pyspark", "py4j", "great_expectations", "pandas")


@pytest.fixture(scope="module")
def location() -> Definitions:
    from definitions import defs

    return defs


@pytest.fixture(scope="module")
def repository(location: Definitions) -> RepositoryDefinition:
    return location.get_repository_def()


LOGS = ("loggers", "console", "config")
TEXTS = {("execution", "config", "marker_to_close"), (*LOGS, "name"), (*LOGS, "log_level")}
"""Texts that Dagster itself reads: a word in an event, and the console's logs. No path, address, option or class."""


def list_texts(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the places of a run's configuration that accept a text, or a text of an environment variable."""
    for name, field in getattr(schema, "fields", {}).items():
        yield from list_texts(field.config_type, (*path, name))
    for inner in getattr(schema, "inner_type", None), getattr(schema, "scalar_type", None):
        if inner is not None:
            yield from list_texts(inner, path)
    if "String" in (getattr(schema, "given_name", None) or type(schema).__name__):
        yield path


def test_whoever_writes_the_configuration_of_a_run_chooses_no_master_no_path_and_no_option(
    repository: RepositoryDefinition,
) -> None:
    jobs = repository.get_all_jobs()
    assert len(jobs) > len(STREAMS)
    for job in jobs:
        assert set(list_texts(job.run_config_schema.config_type)) <= TEXTS, job.name


@pytest.mark.parametrize(
    "chosen",
    [
        {"spark": {"config": {"master": "spark://attacker.example:7077"}}},
        {"spark": {"config": {"driver_memory": "1g -XX:OnOutOfMemoryError=id"}}},
    ],
)
def test_a_resource_takes_nothing_from_the_configuration_of_a_run(location: Definitions, chosen: Any) -> None:
    job = location.resolve_job_def("order_books_stream")
    with pytest.raises(DagsterInvalidConfigError):
        validate_run_config(job, {"resources": chosen})


@pytest.mark.parametrize("seconds", [0, -1.5, float("nan"), float("inf")])
def test_a_run_configuration_that_the_launchpad_takes_and_the_stream_does_not_is_refused_by_name(
    location: Definitions, seconds: float
) -> None:
    config = {"ops": {"order_books__table": {"config": {"report_seconds": seconds, "available_now": True}}}}
    with DagsterInstance.ephemeral() as instance:
        ended = location.resolve_job_def("order_books_stream").execute_in_process(
            run_config=config, instance=instance, raise_on_error=False
        )
        run = instance.get_run_by_id(ended.run_id)
    failed = ended.failure_data_for_node("order_books__table")
    assert failed is not None
    assert failed.user_failure_data is not None
    assert failed.user_failure_data.description == (
        f"run configuration: report_seconds = {seconds:g} is not a finite number of seconds from 1 on\n"
        "  next: launch the run again with 1 or more, or without report_seconds: the default is 60"
    )
    assert run is not None
    assert run.tags["dagster/max_retries"] == "0"


def test_materialize_ends_and_checks_while_the_job_of_a_stream_goes_on(location: Definitions) -> None:
    """Checks behind a step that does not end would be shown as in progress, and never run."""
    table = AssetKey(["order_books", "table"])
    whole = location.resolve_implicit_global_asset_job_def()
    clicked = whole.get_subset(asset_selection={table})
    job = location.resolve_job_def("order_books_stream")
    both = whole.get_subset(
        asset_selection={table, AssetKey(["order_books", "compaction"])}, asset_check_selection=set()
    )
    ends = {
        (name, asked): isinstance(choose_effective_trigger(order_books, of, available_now=asked), AvailableNow)
        for name, of in {"clicked": clicked, "job": job, "both": both}.items()
        for asked in (None, True, False)
    }
    never_ending = [each for each, is_bounded in ends.items() if not is_bounded]
    assert never_ending == [("clicked", False), ("job", None), ("job", False)]


def test_the_location_holds_exactly_these_parts(repository: RepositoryDefinition) -> None:
    graph = repository.asset_graph
    assert sorted(key.to_user_string() for key in graph.get_all_asset_keys()) == [
        f"{stream}/{part}"
        for stream in STREAMS
        for part in ("compaction", "export", "housekeeping", "ledger", "table", "topics")
        if part != "export" or stream == EXPORTED
    ]
    assert sorted(f"{key.asset_key.to_user_string()}:{key.name}" for key in graph.asset_check_keys) == [
        f"{stream}/table:{check}" for stream in STREAMS for check in sorted((*BUILT_IN, "health", *OWN[stream]))
    ]
    assert sorted(job.name for job in repository.get_all_jobs() if not job.name.startswith("__")) == sorted(
        [
            *(f"{stream}_{job}" for stream in STREAMS for job in ("checks", "compaction", "housekeeping", "stream")),
            f"{EXPORTED}_export",
            "dagster_pruning",
        ]
    )
    sensors = {sensor.name: sensor.minimum_interval_seconds for sensor in repository.sensor_defs}
    assert sensors == {"stream_topics": 9, "stream_supervisor": 4, "stream_health": 29}
    crons = {
        "checks": "30 * * * *",
        "compaction": "10 * * * *",
        "minor": "5-55/10 * * * *",
        "housekeeping": "20 * * * *",
    }
    rotations = {"betting_markets": 21, "checksummed_books": 46, "order_books": 59}
    assert {schedule.name: schedule.cron_schedule for schedule in repository.schedule_defs} == {
        **{f"{stream}_{job}_schedule": cron for stream in STREAMS for job, cron in crons.items()},
        **{f"{stream}_rotation": f"{minute} 3 * * *" for stream, minute in rotations.items()},
        f"{EXPORTED}_export_schedule": "40 * * * *",
        "dagster_pruning_schedule": "50 * * * *",
    }


def test_the_job_of_a_stream_selects_the_table_without_its_checks(repository: RepositoryDefinition) -> None:
    layer = repository.get_job("order_books_stream").asset_layer
    assert layer.selected_asset_keys == {AssetKey(["order_books", "table"])}
    assert not repository.get_job("order_books_stream").asset_layer.asset_graph.asset_check_keys


def test_the_check_of_the_contents_holds_up_what_comes_after_the_table_and_that_of_health_does_not(
    repository: RepositoryDefinition,
) -> None:
    graph = repository.asset_graph
    blocking = {(key.name, graph.get_check_spec(key).blocking) for key in graph.asset_check_keys}
    own = {(rule, False) for rules in OWN.values() for rule in rules}
    assert blocking == {*((rule, True) for rule in BUILT_IN), ("health", False), *own}


def test_the_hourly_job_runs_the_check_of_the_contents_alone(repository: RepositoryDefinition) -> None:
    """The health sensor evaluates `health`, which would otherwise be shown as in progress in each of these runs."""
    selection = repository.get_job("order_books_checks").asset_layer.asset_graph.asset_check_keys
    assert {key.name for key in selection} == {*BUILT_IN, *OWN["order_books"]}


def test_the_catalog_shows_columns_owners_and_the_promise(repository: RepositoryDefinition) -> None:
    node = repository.asset_graph.get(AssetKey(["order_books", "table"]))
    schema = node.metadata["dagster/column_schema"]
    assert isinstance(schema, TableSchema)
    assert [column.name for column in schema.columns][:4] == ["side", "price", "price_text", "quantity"]
    assert [column.name for column in schema.columns][-1] == "commit_hour"
    described = {column.name: column.description for column in schema.columns}
    assert described["_session"] == "Session: the unit of order inside a partition"
    assert str(node.metadata["dagster/uri"]).startswith("file:///")
    assert list(node.owners) == ["team:data-platform"]
    assert node.kinds == {"kafka", "spark", "deltalake"}
    assert "Strict" in str(node.metadata["integrity"])


def test_every_part_says_what_it_does(repository: RepositoryDefinition) -> None:
    graph = repository.asset_graph
    described = {
        **{key.to_user_string(): graph.get(key).description for key in graph.get_all_asset_keys()},
        **{key.name: graph.get_check_spec(key).description for key in graph.asset_check_keys},
        **{job.name: job.description for job in repository.get_all_jobs() if not job.name.startswith("__")},
        **{schedule.name: schedule.description for schedule in repository.schedule_defs},
        **{sensor.name: sensor.description for sensor in repository.sensor_defs},
    }
    assert [name for name, description in described.items() if not description] == []


def test_a_stream_whose_evidence_is_the_log_alone_is_shown_as_such(repository: RepositoryDefinition) -> None:
    node = repository.asset_graph.get(AssetKey(["betting_markets", "table"]))
    assert "what the producer lost is not seen" in str(node.metadata["promise"])
    assert "what the producer lost is not seen" in str(node.description)


def test_loading_the_location_imports_nothing_heavy() -> None:
    script = f"import sys, definitions; print([name for name in {HEAVY} if name in sys.modules])"
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == "[]"


def test_what_begins_for_all_streams_at_once_is_tagged_so_that_few_run_at_once(
    repository: RepositoryDefinition, tmp_path: Path
) -> None:
    text = (ROOT / "deploy" / "dagster.yaml").read_text()
    (tmp_path / "dagster.yaml").write_text(text)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        limited = instance.get_concurrency_config().run_queue_config
    assert limited is not None
    assert limited.max_concurrent_runs == -1  # each never-ending run holds a slot for good
    ((limit),) = limited.tag_concurrency_limits
    tag = (limit["key"], limit["value"])
    tagged = {job.name for job in repository.get_all_jobs() if tag in job.tags.items()}
    works = [f"{stream}_{work}" for stream in STREAMS for work in ("checks", "compaction", "housekeeping")]
    assert tagged == {*works, f"{EXPORTED}_export"}


def test_no_tick_is_kept_longer_than_the_run_that_it_requested(tmp_path: Path) -> None:
    """Four schedules of each stream request a run each hour: a hundred streams have 288,000 ticks in thirty days."""
    (tmp_path / "dagster.yaml").write_text((ROOT / "deploy" / "dagster.yaml").read_text())
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        kept = [instance.get_tick_retention_settings(kind) for kind in (InstigatorType.SENSOR, InstigatorType.SCHEDULE)]
    assert max(days for each in kept for days in each.values()) <= DagsterSettings().retention_days
