"""Dagster's storage of the streams is bounded: on a real instance, whose clock is moved."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    JobDefinition,
    OpExecutionContext,
    RunsFilter,
    job,
    op,
)
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.events import AssetObservationData
from dagster._core.instance.utils import RUNLESS_RUN_ID
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, TickData, TickStatus
from dagster._core.storage.compute_log_manager import ComputeIOType
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from sqlalchemy import Engine, event

from assets.order_books import order_books
from lockstep.orchestration import pruning
from lockstep.orchestration.pruning import ASSET_JOB, Pruned, PruningLimits, PruningScope, prune_storage
from lockstep.orchestration.pruning_job import make_pruning_job
from lockstep.settings import DagsterSettings
from tests.support.postgres import Postgres

DAY = 86_400.0
TABLE = AssetKey(["s", "table"])
TOPICS = AssetKey(["s", "topics"])
FOREIGN = AssetKey(["theirs"])
OURS = "s_stream"
THEIRS = "theirs"
SCOPE = PruningScope(
    jobs=frozenset({OURS, "s_checks"}), assets=frozenset({TABLE, TOPICS}), instigators=frozenset({"s_topics"})
)
LIMITS = PruningLimits(seconds=7 * DAY, runs_min=1, runs_max=3)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres.start() as server:
        yield server


@pytest.fixture(scope="module")
def new_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of a new instance on SQLite: Dagster takes a second to make them."""
    home = tmp_path_factory.mktemp("new")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(home)) as made:
        made.get_runs_count()
    return home


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def instance(tmp_path: Path, new_files: Path, request: pytest.FixtureRequest) -> Iterator[DagsterInstance]:
    """Yield an instance on SQLite, as after `make up`, or on Postgres, as in an installation of several machines."""
    storage = request.getfixturevalue("postgres").make_storage(tmp_path) if request.param == "postgres" else ""
    if not storage:
        shutil.copytree(new_files, tmp_path, dirs_exist_ok=True)
    (tmp_path / "dagster.yaml").write_text(f"telemetry: {{enabled: false}}\n{storage}")
    with DagsterInstance.from_config(str(tmp_path)) as made:
        yield made


sqlite_only = pytest.mark.parametrize("instance", ["sqlite"], indirect=True)
"""For the remaining files: Postgres has no files of runs."""


def made(name: str, asset: AssetKey = TABLE) -> JobDefinition:
    """Return a job that observes an asset and prints."""

    @op
    def work(context: OpExecutionContext) -> None:
        context.log_event(AssetObservation(asset, metadata={"lag": 1.0}))
        print("printed")  # noqa: T201  # a captured log

    @job(name=name)
    def whole() -> None:
        work()

    return whole


def run(instance: DagsterInstance, name: str = OURS, asset: AssetKey = TABLE) -> str:
    return made(name, asset).execute_in_process(instance=instance).run_id


def observed(instance: DagsterInstance, asset: AssetKey) -> list[str | None]:
    """Return the partitions of all observations of an asset, the newest first."""
    return [record.partition_key for record in instance.fetch_observations(asset, limit=1000).records]


def files(tmp_path: Path) -> set[str]:
    """Return the ids of runs with a file or a folder."""
    shards = {path.stem for path in (tmp_path / "history" / "runs").glob("?*.db") if path.stem != "index"}
    return shards | {path.name for path in (tmp_path / "storage").glob("*")}


def add_ticks(instance: DagsterInstance, name: str) -> None:
    """Add ticks of a sensor: a tick with a success, and a skipped tick that logged a warning."""
    code = GrpcServerCodeLocationOrigin(host="localhost", port=1, location_name="lockstep")
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(code, "__repository__"), name)
    instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING))
    log = ["__repository__", name, "1"]
    with instance.compute_log_manager.open_log_stream(log, ComputeIOType.STDERR):
        pass
    for status in (TickStatus.SUCCESS, TickStatus.SKIPPED):
        selector = origin.get_selector().get_id()
        instance.create_tick(
            TickData(
                instigator_origin_id=origin.get_id(),
                instigator_name=name,
                instigator_type=InstigatorType.SENSOR,
                status=status,
                timestamp=time.time(),
                run_ids=[],
                selector_id=selector,
                log_key=log if status is TickStatus.SKIPPED else None,
            )
        )


def ticks(instance: DagsterInstance) -> list[TickData]:
    """Return all ticks, by the name of their sensor and the newest last."""
    states = sorted(instance.all_instigator_state(), key=lambda state: state.instigator_name)
    found = [instance.get_ticks(state.instigator_origin_id, state.selector_id) for state in states]
    return [tick.tick_data for group in found for tick in reversed(group)]


def days_on(days: float) -> float:
    return time.time() + days * DAY


def test_old_runs_are_deleted_with_their_files_and_the_newest_of_each_job_stay(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    ours = [run(instance) for _ in range(3)]
    theirs = run(instance, THEIRS, FOREIGN)
    assert prune_storage(instance, SCOPE, LIMITS, days_on(6)) == Pruned(runs=0)
    assert set(instance.get_run_ids()) == {*ours, theirs}

    assert prune_storage(instance, SCOPE, LIMITS, days_on(8)).runs == 2

    left = {ours[2], theirs}
    assert set(instance.get_run_ids()) == left
    assert files(tmp_path) <= left
    assert len(observed(instance, TABLE)) == 1
    assert instance.all_logs(ours[2])
    assert prune_storage(instance, SCOPE, LIMITS, days_on(8)) == Pruned(runs=0)


def test_no_more_than_so_many_runs_of_a_job_stay_however_young(instance: DagsterInstance) -> None:
    ours = [run(instance) for _ in range(5)]
    assert prune_storage(instance, SCOPE, LIMITS, time.time()).runs == 2
    assert instance.get_run_ids() == ours[:1:-1]


def test_of_runs_without_a_job_only_ours_are_counted_and_those_of_checks_alone_are_ours(
    instance: DagsterInstance,
) -> None:
    """All code locations share Dagster's job for launches without a job."""

    def launch(asset: AssetKey, *, checks: bool = False) -> str:
        selected = frozenset({AssetCheckKey(asset, "complete")}) if checks else None
        assets = frozenset[AssetKey]() if checks else frozenset({asset})
        status = DagsterRunStatus.SUCCESS
        run = DagsterRun(ASSET_JOB, asset_selection=assets, asset_check_selection=selected, status=status)
        return instance.add_run(run).run_id

    ours = [launch(TABLE, checks=checks) for checks in (True, False, True, False, True)]
    theirs = [launch(FOREIGN, checks=checks) for checks in (True, False, True, False, True)]

    assert prune_storage(instance, SCOPE, LIMITS, time.time()).runs == 2

    assert set(instance.get_run_ids()) == {*ours[2:], *theirs}


def test_a_run_that_goes_on_stays_and_loses_its_old_windows_but_the_newest(instance: DagsterInstance) -> None:
    living = instance.create_run_for_job(made(OURS), status=DagsterRunStatus.STARTED).run_id
    for window in range(3):
        observation = AssetObservationData(AssetObservation(TABLE, metadata={"window": window}))
        kind = DagsterEventType.ASSET_OBSERVATION.value
        instance.report_dagster_event(DagsterEvent(kind, OURS, event_specific_data=observation), living)

    assert prune_storage(instance, SCOPE, LIMITS, days_on(8)).events == 2

    assert instance.get_run_ids() == [living]
    (record,) = instance.fetch_observations(TABLE, limit=10).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["window"].value == 2
    assert len(instance.all_logs(living, of_type=DagsterEventType.ASSET_OBSERVATION)) == 1


def test_events_without_a_run_go_but_for_the_newest_of_each_asset_partition_and_kind(
    instance: DagsterInstance,
) -> None:
    for _ in range(4):
        for partition in (None, "a", "b"):
            instance.report_runless_asset_event(AssetObservation(TOPICS, partition=partition))
        instance.report_runless_asset_event(AssetMaterialization(TABLE))
        instance.report_runless_asset_event(AssetObservation(FOREIGN))
    assert prune_storage(instance, SCOPE, LIMITS, days_on(6)).events == 0

    assert prune_storage(instance, SCOPE, LIMITS, days_on(8)).events == 12

    assert sorted(observed(instance, TOPICS), key=str) == [None, "a", "b"]
    assert len(instance.fetch_materializations(TABLE, limit=10).records) == 1
    assert instance.get_latest_materialization_event(TABLE) is not None
    assert len(observed(instance, FOREIGN)) == 4
    assert len(instance.all_logs(RUNLESS_RUN_ID)) == 4 + 4
    assert prune_storage(instance, SCOPE, LIMITS, days_on(8)) == Pruned(runs=0)


def test_no_old_event_stays_of_a_topic_that_is_gone(instance: DagsterInstance) -> None:
    """Topics that exist for an hour would leave an event for each topic that ever existed."""
    scope = msgspec.structs.replace(SCOPE, topics={TOPICS: "s_topics"})
    for topic in ("stays", "gone"):
        instance.report_runless_asset_event(AssetObservation(TOPICS, partition=topic))
    instance.report_runless_asset_event(AssetObservation(TOPICS))
    instance.add_dynamic_partitions("s_topics", ["stays"])
    assert prune_storage(instance, scope, LIMITS, days_on(6)).events == 0
    assert prune_storage(instance, scope, LIMITS, days_on(8)).events == 1
    assert observed(instance, TOPICS) == [None, "stays"]
    assert len(instance.all_logs(RUNLESS_RUN_ID)) == 2


def test_results_of_a_check_go_but_for_the_newest(instance: DagsterInstance) -> None:
    key = AssetCheckKey(TABLE, "complete")
    for passed in (True, True, False):
        instance.report_runless_asset_event(AssetCheckEvaluation(TABLE, key.name, passed=passed, metadata={}))

    assert prune_storage(instance, SCOPE, LIMITS, days_on(8)).check_results == 2

    (left,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    assert left.evaluation is not None
    assert not left.evaluation.passed


def test_what_is_old_is_found_once_among_our_rows_however_much_of_it_there_is(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster's database may be shared by teams whose events are millions."""
    monkeypatch.setattr(pruning, "AT_ONCE", 2)
    for _ in range(8):
        instance.report_runless_asset_event(AssetObservation(TOPICS))
        instance.report_runless_asset_event(AssetCheckEvaluation(TABLE, "complete", passed=True, metadata={}))
    asked = list[str]()
    event.listen(Engine, "before_cursor_execute", note := lambda _1, _2, statement, *_: asked.append(statement))
    try:
        pruned = prune_storage(instance, SCOPE, LIMITS, days_on(8))
    finally:
        event.remove(Engine, "before_cursor_execute", note)

    assert (pruned.events, pruned.check_results) == (7 + 8, 7)
    found = [statement for statement in asked if "GROUP BY" in statement]
    in_files = isinstance(instance.event_log_storage, SqliteEventLogStorage)
    assert len(found) == 2 + in_files  # events, of SQLite in the file of no run as well, and results
    assert all(re.search(r"max\(.*\sWHERE \S+asset_key IN .* GROUP BY", text, re.DOTALL) for text in found)


@pytest.mark.parametrize("instance", ["postgres"], indirect=True)
def test_a_pruning_that_is_killed_leaves_no_events_of_a_run_that_is_gone(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Postgres nothing would find these events again."""
    first, *_ = [run(instance) for _ in range(2)]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(instance.run_storage), "delete_run", killed)
        with pytest.raises(KeyboardInterrupt):
            prune_storage(instance, SCOPE, LIMITS, days_on(8))
    assert first in instance.get_run_ids()
    assert prune_storage(instance, SCOPE, LIMITS, days_on(8)).runs == 1
    assert instance.event_log_storage.get_logs_for_run(first) == []


def test_evaluations_of_a_check_without_a_run_go_in_both_files_and_those_of_others_stay(
    instance: DagsterInstance,
) -> None:
    """The check `health` has an evaluation every half hour for each stream."""
    for asset in (TABLE, FOREIGN, TABLE):
        instance.report_runless_asset_event(AssetCheckEvaluation(asset, "health", passed=True, metadata={}))
    assert prune_storage(instance, SCOPE, LIMITS, days_on(6)).events == 0

    assert prune_storage(instance, SCOPE, LIMITS, days_on(8)).events == 2

    left = instance.all_logs(RUNLESS_RUN_ID, of_type=DagsterEventType.ASSET_CHECK_EVALUATION)
    assert [each.get_dagster_event().asset_check_evaluation_data.asset_key for each in left] == [FOREIGN]
    assert prune_storage(instance, SCOPE, LIMITS, days_on(8)) == Pruned(runs=0)


def test_ticks_that_did_nothing_go_after_hours(instance: DagsterInstance, tmp_path: Path) -> None:
    for name in ("s_topics", "theirs"):
        add_ticks(instance, name)
    logs = {path.parent.name for path in (tmp_path / "storage").rglob("*.err")}
    assert logs == {"s_topics", "theirs"}

    prune_storage(instance, SCOPE, LIMITS, time.time() + LIMITS.tick_seconds + 60)

    assert [(tick.instigator_name, tick.status) for tick in ticks(instance)] == [
        ("s_topics", TickStatus.SUCCESS),
        ("theirs", TickStatus.SUCCESS),
        ("theirs", TickStatus.SKIPPED),
    ]
    assert [path.parent.name for path in (tmp_path / "storage").rglob("*.err")] == ["theirs"]


@sqlite_only
def test_what_a_killed_pruning_left_behind_is_cleared_by_the_next(instance: DagsterInstance, tmp_path: Path) -> None:
    ended = run(instance)
    instance.run_storage.delete_run(ended)  # and then it was killed
    assert ended in files(tmp_path)
    assert prune_storage(instance, SCOPE, LIMITS, time.time()).files == 1
    assert not list((tmp_path / "history" / "runs").glob(f"{ended}*"))
    assert ended not in files(tmp_path)
    assert observed(instance, TABLE) == []


@sqlite_only
def test_the_logs_of_a_run_that_a_person_has_deleted_go_too(instance: DagsterInstance, tmp_path: Path) -> None:
    ended = run(instance)
    instance.delete_run(ended)
    assert ended in files(tmp_path)
    assert prune_storage(instance, SCOPE, LIMITS, time.time()).files == 1
    assert ended not in files(tmp_path)


@sqlite_only
def test_the_files_do_not_grow_from_week_to_week(instance: DagsterInstance, tmp_path: Path) -> None:
    sizes = []
    for week in range(4):
        for _ in range(40):
            instance.report_runless_asset_event(AssetObservation(TOPICS, metadata={"text": "x" * 10_000}))
        prune_storage(instance, SCOPE, LIMITS, days_on(8 + week))
        sizes.append(sum((tmp_path / "history" / "runs" / name).stat().st_size for name in ("index.db", ".db")))
    assert sizes[3] <= sizes[1]


def test_the_job_prunes_by_the_settings(instance: DagsterInstance) -> None:
    settings = DagsterSettings(retention_days=0.5, runs_max=2)
    assert PruningLimits.of(settings) == PruningLimits(seconds=DAY / 2, runs_max=2)
    pruning = make_pruning_job([order_books], settings)
    for _ in range(3):
        run(instance, "order_books_stream")
    assert pruning.execute_in_process(instance=instance).success
    assert len(instance.get_run_ids(RunsFilter(job_name="order_books_stream"))) == 2


def test_the_scope_is_all_that_the_code_location_holds() -> None:
    from definitions import DERIVED, STREAMS, defs

    scope = PruningScope.of(STREAMS, DERIVED)
    repository = defs.get_repository_def()
    assert scope.jobs == {each.name for each in repository.get_all_jobs() if not each.name.startswith("__")}
    assert scope.assets == repository.asset_graph.get_all_asset_keys()
    sensors = repository.sensor_defs
    schedules = repository.schedule_defs
    assert scope.instigators == {each.name for each in sensors} | {each.name for each in schedules}
