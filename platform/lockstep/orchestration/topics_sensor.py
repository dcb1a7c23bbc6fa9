"""I/O of the topics sensor: reads Kafka, the table head and Dagster runs, and turns the decision into a `SensorResult`.

Nothing here starts Spark: a tick costs one request to Kafka and two small files, far below a second.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from dagster import (
    AddDynamicPartitionsRequest,
    AssetMaterialization,
    AssetObservation,
    DagsterRunStatus,
    RunRequest,
    RunsFilter,
    SensorResult,
    SkipReason,
)

from lockstep.engine.driver.handover import read_heartbeat
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client
from lockstep.orchestration.names import (
    TOPICS_SENSOR,
    TOPICS_TAG,
    make_automatic_tags,
    make_run_configuration,
    make_topics_partitions,
    name_stream_job,
)
from lockstep.orchestration.observed_assets import ObservationCursor, find_next_topics, observe_ledger, observe_topics
from lockstep.orchestration.restart_policy import Cursor, RestartDecision, RestartRequest, SensorObservation
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_positions

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings


KAFKA_SECONDS_MAX = 10.0
"""Dagster kills a tick that waits longer; the next one comes soon."""
LAUNCH_MINUTES_MAX = 10
"""A run that has not begun by then does not count as one in progress."""
TAG_TOPICS_MAX = 20
RUN_KEY_TAG = "dagster/run_key"
NOT_WORKING_YET = [DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING]
UNFINISHED = [*NOT_WORKING_YET, DagsterRunStatus.STARTED]


@dataclass(frozen=True)
class Observed:
    """Dagster events of an observation: events, topics to register, and progress."""

    events: list[AssetObservation | AssetMaterialization]
    partitions: list[AddDynamicPartitionsRequest]
    sweep: ObservationCursor


def read_inputs(stream: AnyStream, settings: Settings, instance: DagsterInstance) -> SensorObservation:
    """Read Kafka, the table and Dagster's runs.

    Raises:
        KafkaError: Kafka does not answer; that is never "no topics".
        TableError: The table does not match its head.
    """
    kafka = settings.kafka
    discovery = ClusterAdmin(make_admin_client(kafka), min(kafka.timeout_seconds, KAFKA_SECONDS_MAX))
    wanted = stream.topics.select(discovery.topic_names())
    folders = StreamFolders(stream.name, settings.table_root)
    if not delta_log.has_log(folders.table):
        return SensorObservation(head=None, wanted=wanted)
    head = OutputLog(folders.table).base().head
    return SensorObservation(
        head=head,
        wanted=wanted,
        subscribed=frozenset(row.topic for row in read_positions(folders, head).values() if not row.retired),
        pulse=read_heartbeat(folders.control, head.epoch),
        on_its_way=_on_its_way(instance, name_stream_job(stream)),
        unfinished=_unfinished(instance, name_stream_job(stream)),
    )


def make_sensor_result(stream: AnyStream, decision: RestartDecision, seen: Observed) -> SensorResult:
    """The decision as a `SensorResult`, and the result of the observation."""
    wanted = decision.restart
    return SensorResult(
        run_requests=[make_run_request(stream, wanted)] if wanted is not None else [],
        skip_reason=SkipReason(decision.says) if wanted is None else None,
        cursor=msgspec.structs.replace(decision.cursor, sweep=seen.sweep).encode(),
        asset_events=seen.events,
        dynamic_partitions_requests=seen.partitions,
    )


def observe_assets(
    stream: AnyStream, settings: Settings, instance: DagsterInstance, wanted: frozenset[str], cursor: Cursor
) -> Observed:
    """Observe topics and ledger when due.

    Raises:
        KafkaError: Kafka does not answer.
        TableError: The table does not match its head.
    """
    registered = instance.get_dynamic_partitions(make_topics_partitions(stream))
    turn = find_next_topics(wanted, registered, cursor.sweep, time.time())
    if turn is None:
        return Observed([], [], cursor.sweep)
    seen = observe_topics(stream, settings, instance, shows_all=turn.shows_all)
    events: list[AssetObservation | AssetMaterialization] = [*seen.events]
    if turn.shows_all:
        lag = sum(topic.lag_messages or 0 for topic in seen.found.topics)
        events += observe_ledger(stream, settings, instance, lag_messages=lag)
    new = sorted({*wanted, *(topic.topic for topic in seen.found.topics)} - set(registered))
    requests = [AddDynamicPartitionsRequest(make_topics_partitions(stream), new)] if new else []
    return Observed(events, requests, msgspec.structs.replace(turn.after, behind=seen.behind))


def make_run_request(stream: AnyStream, restart: RestartRequest) -> RunRequest:
    """A run of the stream's job, with the plan in its tags."""
    shown = ", ".join(restart.added[:TAG_TOPICS_MAX])
    left = len(restart.added) - TAG_TOPICS_MAX
    topics = f"{shown} and {left} more" if left > 0 else shown
    return RunRequest(
        run_key=restart.run_key,
        job_name=name_stream_job(stream),
        run_config=make_run_configuration(stream, available_now=not restart.never_ending),
        tags={TOPICS_TAG: topics, **make_automatic_tags(TOPICS_SENSOR, f"new topics: {topics}", restart.epoch)},
    )


def _on_its_way(instance: DagsterInstance, job: str) -> str | None:
    since = datetime.now(UTC) - timedelta(minutes=LAUNCH_MINUTES_MAX)
    runs = instance.get_runs(RunsFilter(job_name=job, statuses=NOT_WORKING_YET, created_after=since), limit=1)
    return runs[0].run_id if runs else None


def _unfinished(instance: DagsterInstance, job: str) -> frozenset[str]:
    runs = instance.get_runs(RunsFilter(job_name=job, statuses=UNFINISHED))
    return frozenset(run.tags[RUN_KEY_TAG] for run in runs if RUN_KEY_TAG in run.tags)
