"""Bounds the streams' share of Dagster's database: ended runs, events without a run, check results.

Dagster itself deletes only ticks older than a day (`retention` in dagster.yaml). This module deletes old runs except
the newest of each job; old events that belong to no run, or to a never-ending one, except the newest of each asset,
partition and kind, and all of topics that are gone; check results likewise; and ticks after hours, not days. Other code
locations of the same Dagster are not touched.

Dagster's interface deletes whole runs. The rest goes directly to its SQL storages, of which open source has only two:
SQLite, where each run has its own file that Dagster empties and leaves behind, and Postgres.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from dagster import AssetKey, DagsterEventType, EventLogEntry, RunsFilter
from dagster._core.instance.utils import RUNLESS_RUN_ID
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._serdes import deserialize_value
from sqlalchemy import ColumnElement, Connection, Select, Table, and_, delete, func, select

from lockstep.orchestration import names
from lockstep.orchestration.run_statuses import OVER, UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dagster import DagsterInstance, DagsterRun
    from dagster._core.scheduler.instigation import InstigatorState

    from lockstep.declare.derived import Derived
    from lockstep.declare.stream import AnyStream
    from lockstep.settings import DagsterSettings


DAY_SECONDS = 86_400.0
ASSET_JOB = "__ASSET_JOB"
"""Dagster's own job for assets that are materialized without a job."""
Connect = Callable[[], AbstractContextManager[Connection]]
Ids = Select[tuple[int]]
AT_ONCE = 500
"""Rows deleted per transaction: other processes wait for SQLite's lock for only some milliseconds."""


class PruningScope(msgspec.Struct, frozen=True):
    """The definitions of the streams in a Dagster instance that others may share.

    Attributes:
        jobs: Names of the jobs.
        assets: Keys of the assets.
        instigators: Names of the sensors and schedules.
        topics: The observed topics of each stream, with the name of their set of partitions.
    """

    jobs: frozenset[str]
    assets: frozenset[AssetKey]
    instigators: frozenset[str]
    topics: Mapping[AssetKey, str] = {}

    @staticmethod
    def of(streams: Iterable[AnyStream], derived: Iterable[Derived] = (), hosts: Iterable[str] = ()) -> PruningScope:
        """All definitions of the streams and derived tables, of the hosts of these groups, and the pruning job itself.

        Args:
            streams: The streams.
            derived: The derived tables.
            hosts: Groups of streams that Dagster runs in one run each.
        """
        listed = list(streams)
        tables = list(derived)
        groups = list(hosts)
        of_tables = [names.name_derived_job(table) for table in tables]
        jobs = list[str]()
        schedules = list[str]()
        assets = list[AssetKey]()
        for stream in listed:
            jobs += names.list_all_jobs(stream)
            schedules += names.list_all_schedules(stream)
            assets += names.list_all_assets(stream)
        sensors = (names.STREAM_TOPICS, names.STREAM_SUPERVISOR, names.STREAM_HEALTH)
        of_hosts = [*map(names.name_host_sensor, groups), *map(names.name_host_rotation, groups)]
        of_no_stream = [*of_tables, names.PRUNING_JOB]
        return PruningScope(
            jobs=frozenset([*jobs, *of_no_stream, *map(names.name_host_job, groups)]),
            assets=frozenset([*assets, *map(names.make_derived_key, tables)]),
            instigators=frozenset([*schedules, *sensors, *of_hosts, *map(names.name_schedule, of_no_stream)]),
            topics={names.make_topics_key(stream): names.make_topics_partitions(stream) for stream in listed},
        )

    def holds(self, run: DagsterRun | None) -> bool:
        """Whether a run exists and belongs to the streams."""
        if run is None or run.job_name != ASSET_JOB:
            return run is not None and run.job_name in self.jobs
        checked = {check.asset_key for check in run.asset_check_selection or ()}
        selected = checked | set(run.asset_selection or ())
        return bool(selected) and selected <= self.assets


class PruningLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Retention limits.

    Attributes:
        seconds: Retention of runs, events and results.
        tick_seconds: Retention of ticks that did nothing: a sensor of four seconds makes 22 MB of them a day.
        runs_min: Minimum number of ended runs of each job to keep, however old.
        runs_max: Maximum number of ended runs of each job to keep, however young.
    """

    seconds: float
    tick_seconds: float = 7_200.0
    runs_min: int = 10
    runs_max: int

    @staticmethod
    def of(settings: DagsterSettings) -> PruningLimits:
        """The limits of an installation."""
        return PruningLimits(seconds=settings.retention_days * DAY_SECONDS, runs_max=settings.runs_max)


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of deleted items.

    Attributes:
        runs: Ended runs, with all that belongs to them.
        events: Events of assets that belong to no run, or to a run in progress.
        check_results: Results of checks.
        files: Files of deleted runs.
    """

    runs: int
    events: int = 0
    check_results: int = 0
    files: int = 0


def prune_storage(instance: DagsterInstance, scope: PruningScope, limits: PruningLimits, now: float) -> Pruned:
    """Delete old items. It may be killed at any moment: the next one continues.

    1. Ended runs, after their events: without its run, nothing in Postgres finds them again.
    2. Ticks of sensors that did nothing, with their logs.
    3. Events of no run and of runs in progress; the newest of each kind stays, but for topics that are gone.
    4. Results of checks; the newest of each check stays.
    5. Files, logs and events that deleted runs left behind.

    Args:
        instance: The Dagster instance.
        scope: The streams' definitions in it.
        limits: Retention limits.
        now: Seconds since 1970 (UTC).
    """
    oldest = datetime.fromtimestamp(now - limits.seconds, UTC)
    runs = sum(_prune_job(instance, scope, job, limits, oldest) for job in sorted({*scope.jobs, ASSET_JOB}))  # 1
    _prune_ticks(instance, scope, now - limits.tick_seconds)  # 2
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return Pruned(runs=runs)
    return Pruned(
        runs=runs,
        events=_prune_events(instance, storage, scope, oldest),  # 3
        check_results=_prune_results(storage, scope, oldest),  # 4
        files=_prune_files(instance, storage) if isinstance(storage, SqliteEventLogStorage) else 0,  # 5
    )


def _prune_job(
    instance: DagsterInstance, scope: PruningScope, job: str, limits: PruningLimits, before: datetime
) -> int:
    ended = list(_list_ended(instance, scope, job))
    old = set(instance.get_run_ids(RunsFilter(job_name=job, statuses=OVER, updated_before=before)))
    newest = ended[: limits.runs_max]
    stay = {*newest[: limits.runs_min], *(run_id for run_id in newest if run_id not in old)}
    deleted = [run_id for run_id in ended if run_id not in stay]
    for run_id in deleted:
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        if not isinstance(instance.event_log_storage, SqliteEventLogStorage):  # which has a file for 5 to find
            instance.event_log_storage.delete_events(run_id)
        instance.delete_run(run_id)
    return len(deleted)


def _list_ended(instance: DagsterInstance, scope: PruningScope, job: str) -> Iterator[str]:
    """Ended runs of a job, the newest first; all code locations have the same job for assets without a job."""
    of_job = RunsFilter(job_name=job, statuses=OVER)
    last = None
    while runs := instance.get_runs(of_job, cursor=last, limit=AT_ONCE):
        yield from (run.run_id for run in runs if scope.holds(run))
        last = runs[-1].run_id


def _prune_ticks(instance: DagsterInstance, scope: PruningScope, before: float) -> None:
    nothing = [TickStatus.SKIPPED]
    for state in instance.all_instigator_state():
        if state.instigator_name in scope.instigators:
            for log in _list_tick_logs(instance, state, before):
                instance.compute_log_manager.delete_logs(log_key=log)  # a purged tick leaves its file
            instance.purge_ticks(state.instigator_origin_id, state.selector_id, before, nothing)


def _list_tick_logs(instance: DagsterInstance, state: InstigatorState, until: float) -> Iterator[Sequence[str]]:
    """The logs of ticks that did nothing: those that warned of something have one."""
    nothing = [TickStatus.SKIPPED]
    origin = state.instigator_origin_id
    selector = state.selector_id
    while ticks := instance.get_ticks(origin, selector, before=until, limit=AT_ONCE, statuses=nothing):
        yield from (tick.log_key for tick in ticks if tick.log_key)
        until = ticks[-1].timestamp


def _prune_events(instance: DagsterInstance, storage: SqlEventLogStorage, scope: PruningScope, before: datetime) -> int:
    """In SQLite an event is in the file of its run, and once more in the index that all runs share."""
    unfinished = [run.run_id for run in instance.get_runs(RunsFilter(statuses=UNFINISHED)) if scope.holds(run)]
    runs = [RUNLESS_RUN_ID, *unfinished]
    table = SqlEventLogStorageTable
    ours = table.c.asset_key.in_(_written(scope.assets))
    # Other code locations of the same Dagster are not touched.
    is_old = and_(ours, table.c.run_id.in_(runs), table.c.timestamp < _plain(before))
    kind = (table.c.asset_key, table.c.dagster_event_type, table.c.partition)
    old = [_all_but_newest(table, kind, ours, is_old), *_of_gone_topics(instance, storage, scope, is_old)]
    if isinstance(storage, SqliteEventLogStorage):
        for run_id in runs:
            for each in old:
                _delete(partial(storage.run_connection, run_id), table, each)
        _prune_evaluations(partial(storage.run_connection, RUNLESS_RUN_ID), scope, before)
    deleted = sum(_delete(storage.index_connection, table, each) for each in old)
    return deleted + _prune_evaluations(storage.index_connection, scope, before)


def _prune_evaluations(connect: Connect, scope: PruningScope, before: datetime) -> int:
    """Delete evaluations of checks without a run, whose asset is in their text alone. Results of checks hold a copy."""
    table = SqlEventLogStorageTable
    kind = DagsterEventType.ASSET_CHECK_EVALUATION.value
    of_kind = and_(table.c.run_id == RUNLESS_RUN_ID, table.c.dagster_event_type == kind)
    count = last = 0
    while True:
        old = select(table.c.id, table.c.event).where(of_kind, table.c.timestamp < _plain(before), table.c.id > last)
        with connect() as connection:
            rows = connection.execute(old.order_by(table.c.id).limit(AT_ONCE)).all()
            ours = [row.id for row in rows if _find_checked_asset(row.event) in scope.assets]
            connection.execute(delete(table).where(table.c.id.in_(ours)))
        if not rows:
            return count
        count = count + len(ours)
        last = rows[-1].id


def _find_checked_asset(text: str) -> AssetKey | None:
    event = deserialize_value(text, EventLogEntry).dagster_event
    if event is None:
        return None
    return event.asset_check_evaluation_data.asset_key


def _of_gone_topics(
    instance: DagsterInstance, storage: SqlEventLogStorage, scope: PruningScope, which: ColumnElement[bool]
) -> Iterator[Ids]:
    """Ids of events of topics that are not partitions of their asset any more, the newest included."""
    table = SqlEventLogStorageTable
    for asset, partitions in scope.topics.items():
        of_asset = and_(which, table.c.asset_key == asset.to_string(), table.c.partition.is_not(None))
        with storage.index_connection() as connection:
            topics = set(connection.scalars(select(table.c.partition).where(of_asset).distinct()))
        gone = sorted(topics - set(instance.get_dynamic_partitions(partitions)))
        for first in range(0, len(gone), AT_ONCE):
            names_of_gone = table.c.partition.in_(gone[first : first + AT_ONCE])
            yield select(table.c.id).where(of_asset, names_of_gone)


def _prune_results(storage: SqlEventLogStorage, scope: PruningScope, before: datetime) -> int:
    table = AssetCheckExecutionsTable
    ours = table.c.asset_key.in_(_written(scope.assets))
    kind = (table.c.asset_key, table.c.check_name, table.c.partition)
    old = _all_but_newest(table, kind, ours, and_(ours, table.c.evaluation_event_timestamp < _plain(before)))
    return _delete(storage.index_connection, table, old)


def _all_but_newest(
    table: Table, kind: tuple[ColumnElement[str], ...], ours: ColumnElement[bool], which: ColumnElement[bool]
) -> Ids:
    """Ids of some of our rows, without the newest row of each kind; the rows of others are not read for it."""
    newest = select(func.max(table.c.id)).where(ours).group_by(*kind)
    return select(table.c.id).where(which, table.c.id.not_in(newest))


def _delete(connect: Connect, table: Table, old: Ids) -> int:
    """Delete rows, which are found once, and the tags of events, in short transactions."""
    tags = AssetEventTagsTable
    with connect() as connection:
        old_ids = list(connection.scalars(old))
    # Short transactions: other processes wait for SQLite's lock.
    for first in range(0, len(old_ids), AT_ONCE):
        ids = old_ids[first : first + AT_ONCE]
        with connect() as connection:
            if table is SqlEventLogStorageTable:
                connection.execute(delete(tags).where(tags.c.event_id.in_(ids)))
            connection.execute(delete(table).where(table.c.id.in_(ids)))
    return len(old_ids)


def _prune_files(instance: DagsterInstance, storage: SqliteEventLogStorage) -> int:
    """Delete what deleted runs left behind.

    Dagster empties the file of a deleted run and leaves it, with the logs if a person has deleted the run. One that
    was deleted while it lived, or by a pruning that was killed, leaves events in the index, too.
    """
    count = 0
    for run_id in storage.get_all_run_ids():
        if instance.get_run_by_id(run_id) is None:
            instance.compute_log_manager.delete_logs(prefix=[run_id])
            storage.delete_events(run_id)
            path = Path(storage.path_for_shard(run_id))
            for name in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
                name.unlink(missing_ok=True)
            count += 1
    return count


def _written(keys: Iterable[AssetKey]) -> list[str]:
    return [key.to_string() for key in keys]


def _plain(moment: datetime) -> datetime:
    """Dagster's time format: UTC without a time zone."""
    return moment.replace(tzinfo=None)
