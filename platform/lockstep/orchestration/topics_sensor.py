"""I/O of the topics sensor: reads Kafka, the table head and Dagster runs, and turns the decision into a `SensorResult`.

Nothing here starts Spark: a tick costs one request to Kafka and two small files, far below a second. If an
observation of all topics is due, it also reads the first unread message of partitions with lag.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from dagster import (
    AddDynamicPartitionsRequest,
    AssetMaterialization,
    AssetObservation,
    DeleteDynamicPartitionsRequest,
    RunRequest,
    RunsFilter,
    SensorResult,
    SkipReason,
)

from lockstep.control.heartbeat import read_heartbeat
from lockstep.declare.options import NewTopics
from lockstep.errors import format_some
from lockstep.kafka.progress import TopicLifecycle
from lockstep.operations.stream_handle import SharedCluster, StreamHandle
from lockstep.orchestration.names import (
    TOPICS_SENSOR,
    TOPICS_TAG,
    find_host,
    make_automatic_tags,
    make_run_configuration,
    make_topics_partitions,
    name_stream_job,
)
from lockstep.orchestration.observation_policy import ObservationCursor, decide_observation
from lockstep.orchestration.observed_assets import observe_ledger, observe_topics
from lockstep.orchestration.restart_policy import (
    RestartCursor,
    RestartDecision,
    RestartRequest,
    SensorObservation,
    decide_restart,
)
from lockstep.orchestration.run_statuses import IN_PROGRESS
from lockstep.orchestration.shared_tick import KAFKA_SECONDS_MAX, STARTS_MAX, poll_streams
from lockstep.orchestration.starts import find_starting_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster import DagsterInstance, SensorEvaluationContext

    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings


TAG_TOPICS_MAX = 20
RUN_KEY_TAG = "dagster/run_key"
PartitionsRequest = AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest


@dataclass(frozen=True)
class Observed:
    """Dagster events of an observation: events, topics to register, and progress."""

    events: list[AssetObservation | AssetMaterialization]
    partitions: list[PartitionsRequest]
    sweep: ObservationCursor


class TopicsWatcher:
    """Watches for new topics that no run adopts: a stream's run is handed over, or a bounded one reads them."""

    def __init__(self, streams: Sequence[AnyStream], settings: Settings) -> None:
        """Watch the topics of these streams, with one client for all of them."""
        self._streams = streams
        self._settings = settings
        self._cluster = SharedCluster(settings.kafka, KAFKA_SECONDS_MAX)

    def tick(self, context: SensorEvaluationContext) -> SensorResult:
        """Read topics and runs of each stream, observe its assets when due, and request a run if one is needed."""
        starting = find_starting_runs(self._streams, self._settings.table_root, context.instance)

        def watch(stream: AnyStream, cursor: RestartCursor) -> SensorResult:
            handle = StreamHandle(stream, self._settings, kafka_seconds_max=KAFKA_SECONDS_MAX, shared=self._cluster)
            inputs = read_inputs(handle, context.instance, starting, STARTS_MAX)
            inputs = msgspec.structs.replace(inputs, host=find_host(stream, self._settings))
            observed = observe_assets(handle, context.instance, cursor)
            decision = decide_restart(inputs, cursor, time.time())
            if decision.restart is not None:
                starting[stream.name] = decision.restart.run_key
            return make_sensor_result(stream, decision, observed)

        self._cluster.invalidate()
        return poll_streams(context, self._streams, RestartCursor, watch)


def read_inputs(
    handle: StreamHandle, instance: DagsterInstance, starting: Mapping[str, str], slots: int
) -> SensorObservation:
    """Read Kafka, the table and Dagster's runs.

    Args:
        handle: The stream.
        instance: Dagster's instance.
        starting: Runs that do not write yet, by stream.
        slots: Streams that start at the same time.

    Raises:
        KafkaError: Kafka does not answer; that is never "no topics".
        TableError: The table does not match its head.
    """
    wanted = handle.selected
    job = name_stream_job(handle.stream)
    head = handle.head  # after Kafka: what a run subscribes meanwhile must not look new
    if head is None:
        return SensorObservation(head=None, wanted=wanted)
    return SensorObservation(
        head=head,
        wanted=wanted,
        subscribed=frozenset(row.topic for row in handle.positions.values()),
        adopts=handle.stream.topics.new_topics is NewTopics.ADOPT,
        pulse=read_heartbeat(handle.folders.control, head.epoch),
        on_its_way=starting.get(handle.stream.name),
        may_start=len(starting.keys() - {handle.stream.name}) < slots,
        unfinished=_unfinished(instance, job),
    )


def make_sensor_result(stream: AnyStream, decision: RestartDecision, seen: Observed) -> SensorResult:
    """The decision as a `SensorResult`, and the result of the observation."""
    requests = list[RunRequest]()
    skip_reason = None
    if decision.restart is not None:
        requests.append(make_run_request(stream, decision.restart))
    else:
        skip_reason = SkipReason(decision.says)
    return SensorResult(
        run_requests=requests,
        skip_reason=skip_reason,
        cursor=msgspec.structs.replace(decision.cursor, sweep=seen.sweep).encode(),
        asset_events=seen.events,
        dynamic_partitions_requests=seen.partitions,
    )


def observe_assets(handle: StreamHandle, instance: DagsterInstance, cursor: RestartCursor) -> Observed:
    """Observe topics and ledger when due.

    Raises:
        KafkaError: Kafka does not answer.
        TableError: The table does not match its head.
    """
    partitions = make_topics_partitions(handle.stream)
    registered = instance.get_dynamic_partitions(partitions)
    turn = decide_observation(handle.selected - handle.retired, registered, cursor.sweep, time.time())
    if turn is None:
        return Observed([], [], cursor.sweep)
    seen = observe_topics(handle, instance, shows_all=turn.shows_all)
    events: list[AssetObservation | AssetMaterialization] = [*seen.events]
    if turn.shows_all:
        events += observe_ledger(handle, instance, lag_messages=seen.found.lag_messages)
    # Their partitions leave the asset: nothing is read from these topics any more.
    ended = {topic.topic for topic in seen.found.topics if topic.state is TopicLifecycle.RETIRED or topic.ending}
    shown = {topic.topic for topic in seen.found.topics} - ended
    requests = _register(partitions, shown, set(registered))
    return Observed(events, requests, msgspec.structs.replace(turn.after, behind=seen.behind))


def _register(partitions: str, shown: set[str], registered: set[str]) -> list[PartitionsRequest]:
    """One partition a topic that is read or will be; retired and deleted ones leave."""
    new = sorted(shown - registered)
    gone = sorted(registered - shown)
    requests: list[PartitionsRequest] = []
    if new:
        requests.append(AddDynamicPartitionsRequest(partitions, new))
    if gone:
        requests.append(DeleteDynamicPartitionsRequest(partitions, gone))
    return requests


def make_run_request(stream: AnyStream, restart: RestartRequest) -> RunRequest:
    """A run of the stream's job, with the plan in its tags."""
    topics = format_some(restart.added, TAG_TOPICS_MAX)
    return RunRequest(
        run_key=restart.run_key,
        job_name=name_stream_job(stream),
        run_config=make_run_configuration(stream, available_now=not restart.never_ending),
        tags={TOPICS_TAG: topics, **make_automatic_tags(TOPICS_SENSOR, f"new topics: {topics}", restart.epoch)},
    )


def _unfinished(instance: DagsterInstance, job: str) -> frozenset[str]:
    runs = instance.get_runs(RunsFilter(job_name=job, statuses=IN_PROGRESS))
    return frozenset(run.tags[RUN_KEY_TAG] for run in runs if RUN_KEY_TAG in run.tags)
