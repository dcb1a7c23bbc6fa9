"""Topics and ledger as observed assets.

The topics sensor observes them in its ticks, so that they need no run. Storage is bounded: all topics together are
one event every five minutes, a single topic gets one when its state changes, and housekeeping deletes old events.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TypeVar

import msgspec
from dagster import (
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    AssetSpec,
    DagsterEventType,
    DagsterInstance,
    DynamicPartitionsDefinition,
    EventLogRecord,
    MetadataValue,
    TableColumn,
    TableRecord,
    TableSchema,
)

from lockstep.addresses import to_uri, to_url
from lockstep.declare.stream import AnyStream
from lockstep.kafka.progress import TopicLifecycle
from lockstep.operations.durations import format_duration
from lockstep.operations.inspect.topics import TopicsOfStream, TopicStatus, read_topics
from lockstep.operations.stream_handle import StreamHandle
from lockstep.orchestration import names
from lockstep.orchestration.dagster_types import RawMetadataValue
from lockstep.orchestration.table_asset import make_ledger_freshness
from lockstep.settings import Settings
from lockstep.table.layout import StreamFolders

T = TypeVar("T")

TOPICS_SHOWN_MAX = 200
"""Rows of the table of all topics: about 60 kB an event. `lockstep topics` has no limit."""
CHANGES_A_LOOK = 10
"""Topic state changes that one observation records; the next observation continues. An event costs some 25 ms."""
ASKED_AT_ONCE = 500
"""Events read from Dagster's storage by id; SQLite limits their number."""
STATE = "state"
FIRST_SEEN = "first_seen"
BATCH = "batch"
UNBOUNDED = "unlimited"


def make_topics_asset(stream: AnyStream, owners: Iterable[str]) -> AssetSpec:
    """The asset `<stream>/topics`: state of each topic, together and as a separate partition."""
    return AssetSpec(
        key=names.make_topics_key(stream),
        partitions_def=DynamicPartitionsDefinition(name=names.make_topics_partitions(stream)),
        group_name=stream.name,
        description=(
            f"The Kafka topics that match `{stream.topics.pattern}`.\n\n"
            "The latest observation holds a table of all topics. `headroom` is the time until retention deletes the "
            "oldest unread message. Each topic is also a partition, whose observations are its changes of state. A "
            "`new` topic has not been read yet, and its messages count as lag; the continuous run adopts it, or the "
            "run that the sensor `stream_topics` requests.\n\n"
            "The sensor registers new topics within seconds and observes all topics every five minutes."
        ),
        metadata={"pattern": stream.topics.pattern, "exclude": stream.topics.exclude or "none"},
        kinds={"kafka"},
        owners=list(owners),
    )


def make_ledger_asset(stream: AnyStream, settings: Settings, owners: Iterable[str]) -> AssetSpec:
    """The asset `<stream>/ledger`: offsets read per batch; written by the stream itself."""
    return AssetSpec(
        key=names.make_ledger_key(stream),
        deps=[names.make_table_key(stream)],
        group_name=stream.name,
        description=(
            f"What {stream.name} has read: one row per topic partition and batch, with offsets, counts, holes and "
            "restart causes. Committed with each batch of the table, whatever Dagster does. The topics sensor looks at "
            "it every five minutes: it counts as materialized if a batch was committed since, or nothing waits to be "
            "read, so that its freshness shows a stream that stands still."
        ),
        metadata={"dagster/uri": to_url(StreamFolders(stream.name, settings.table_root).ledger)},
        kinds={"deltalake"},
        owners=list(owners),
        freshness_policy=make_ledger_freshness(stream),
    )


TopicEvent = AssetObservation | AssetMaterialization
"""Of a topic that the stream reads a materialization: its partition counts as filled."""
TAKEN_UP = frozenset({TopicLifecycle.ACTIVE, TopicLifecycle.IDLE, TopicLifecycle.DRAINED, TopicLifecycle.RETIRED})


class TopicEvents(msgspec.Struct, frozen=True):
    """Dagster events of one observation of the topics.

    Attributes:
        found: The topics.
        events: Events to record.
        behind: Whether more topics have changed than are recorded.
    """

    found: TopicsOfStream
    events: list[TopicEvent]
    behind: bool


def observe_topics(handle: StreamHandle, instance: DagsterInstance, *, shows_all: bool = True) -> TopicEvents:
    """Observe all topics: one event for all, and one for each whose state has changed.

    Raises:
        KafkaError: Kafka does not answer.
        TableError: The table does not match its head.
    """
    stream = handle.stream
    topics = read_topics(handle)
    now = time.time()
    observed = _last_observations(instance, stream)
    changed = [topic for topic in topics.topics if observed.get(topic.topic, {}).get(STATE) != topic.state.value]
    events = list[TopicEvent]()
    # An event costs some 25 ms: the next observation continues with the others.
    for topic in changed[:CHANGES_A_LOOK]:
        first_seen = observed.get(topic.topic, {}).get(FIRST_SEEN)
        if not isinstance(first_seen, float):
            first_seen = now
        events.append(_one_topic(stream, topic, first_seen))
    if events or shows_all:  # the last of them: Dagster shows the newest event with the asset
        events.append(_all_topics(stream, topics))
    return TopicEvents(topics, events, behind=len(changed) > CHANGES_A_LOOK)


def observe_ledger(
    handle: StreamHandle, instance: DagsterInstance, *, lag_messages: int
) -> list[AssetMaterialization | AssetObservation]:
    """Observe the ledger; nothing while there is none.

    It counts as materialized too when a batch was committed since, or when there is no lag. Otherwise, and while the
    stream or topics of it are halted, it does not, and its freshness policy raises the alarm in time. Dagster shows as
    "Latest event" of an asset that no run can materialize its newest observation, however new a materialization is.

    Args:
        handle: The stream.
        instance: Dagster instance with the batch of the last materialization.
        lag_messages: Current number of uncommitted offsets.

    Raises:
        TableError: The table does not match its head.
    """
    stream = handle.stream
    head = handle.head
    rows = handle.positions.values()
    if head is None or not rows:
        return []
    newest = max(row.committed_at for row in rows).timestamp()
    key = names.make_ledger_key(stream)
    batch = f"{head.generation}.{head.batch}"
    metadata: dict[str, RawMetadataValue] = {
        "lag_messages": lag_messages,
        "newest_batch_at": MetadataValue.timestamp(newest),
        "newest_batch_age_seconds": round(max(0.0, time.time() - newest), 1),
        "batches": head.batch,
        "partitions": len(rows),
        "generation": head.generation,
        "epoch": head.epoch,
        "desired": f"{head.desired.value} ({head.reason})",
        "path": MetadataValue.path(to_uri(handle.folders.ledger)),
        BATCH: batch,
    }
    is_up_to_date = _last_batch(instance, stream) != batch or not lag_messages
    observation = AssetObservation(key, metadata=metadata)
    if is_up_to_date and not head.all_findings:
        return [observation, AssetMaterialization(key, metadata=metadata)]
    return [observation]


def _all_topics(stream: AnyStream, found: TopicsOfStream) -> AssetObservation:
    headroom = [topic.headroom_seconds for topic in found.topics if topic.headroom_seconds is not None]
    metadata: dict[str, RawMetadataValue] = {
        "all_topics": MetadataValue.table([_record(topic) for topic in _shown(found.topics)], TOPIC_COLUMNS),
        "lag_messages": found.lag_messages,
    }
    if headroom:
        metadata["headroom_hours"] = round(min(headroom) / 3600, 3)
    metadata["topics"] = len(found.topics)
    metadata["partitions"] = sum(topic.partitions for topic in found.topics)
    metadata["messages"] = sum(topic.messages or 0 for topic in found.topics)
    counts = Counter(topic.state for topic in found.topics)
    for life in TopicLifecycle:
        if counts[life]:
            metadata[f"topics_{life.value}"] = counts[life]
    if _is_cut(found):
        metadata["shown"] = f"the {TOPICS_SHOWN_MAX} with the greatest lag"
    return AssetObservation(names.make_topics_key(stream), metadata=metadata)


TOPIC_COLUMNS = TableSchema(
    [
        TableColumn("topic", "string"),
        TableColumn(
            "state", "string", description="new, active, idle, drained, retired, unwanted, deleted, re-created"
        ),
        TableColumn("partitions", "int"),
        TableColumn("messages", "int", description="offsets that Kafka holds"),
        TableColumn("lag", "int", description="offsets that are not committed"),
        TableColumn("freshness", "string", description="age of the newest committed message"),
        TableColumn("headroom", "string", description="until retention removes what is not committed"),
        TableColumn("retention", "string"),
        TableColumn("oldest", "string", description="time of the oldest message that Kafka holds, UTC"),
        TableColumn("newest", "string", description="time of the newest message, UTC"),
        TableColumn("ending", "string", description="of a deleted topic: what was read of it"),
    ]
)


def _record(topic: TopicStatus) -> TableRecord:
    retention = None
    if topic.messages is not None:  # the topic is in Kafka
        retention = format_duration(topic.retention_seconds) or UNBOUNDED
    return TableRecord(
        {
            "topic": topic.topic,
            "state": topic.state.value,
            "partitions": topic.partitions,
            "messages": topic.messages,
            "lag": topic.lag_messages,
            "freshness": format_duration(topic.freshness_seconds),
            "headroom": format_duration(topic.headroom_seconds),
            "retention": retention,
            "oldest": _utc(topic.first_message),
            "newest": _utc(topic.last_message),
            "ending": topic.ending or None,
        }
    )


def _shown(topics: Sequence[TopicStatus]) -> list[TopicStatus]:
    """By name; of too many, those with the greatest lag."""
    lagging = sorted(topics, key=lambda topic: (-(topic.lag_messages or 0), topic.topic))
    return sorted(lagging[:TOPICS_SHOWN_MAX], key=lambda topic: topic.topic)


def _is_cut(found: TopicsOfStream) -> bool:
    return len(found.topics) > TOPICS_SHOWN_MAX


def _one_topic(stream: AnyStream, topic: TopicStatus, first_seen: float) -> TopicEvent:
    metadata: dict[str, RawMetadataValue] = {
        STATE: topic.state.value,
        "lag_messages": topic.lag_messages or 0,
        "partitions": topic.partitions,
        "messages": topic.messages or 0,
        FIRST_SEEN: MetadataValue.timestamp(first_seen),
    }
    if topic.ending:
        metadata["ending"] = topic.ending
    if topic.first_message is not None:
        metadata["oldest_message"] = _timestamp(topic.first_message)
    if topic.last_message is not None:
        metadata["newest_message"] = _timestamp(topic.last_message)
    # A materialization fills the topic's partition: the stream reads it.
    make_event = AssetMaterialization if topic.state in TAKEN_UP else AssetObservation
    return make_event(names.make_topics_key(stream), partition=topic.topic, metadata=metadata)


def _last_observations(instance: DagsterInstance, stream: AnyStream) -> Mapping[str, Mapping[str, object]]:
    """Metadata of each topic's last separate event."""
    key = names.make_topics_key(stream)
    kinds = {
        DagsterEventType.ASSET_OBSERVATION: instance.fetch_observations,
        DagsterEventType.ASSET_MATERIALIZATION: instance.fetch_materializations,
    }
    newest = {kind: instance.get_latest_storage_id_by_partition(key, kind) for kind in kinds}
    last = dict[str, int]()
    for ids_of_kind in newest.values():
        for topic, storage_id in ids_of_kind.items():
            last[topic] = max(last.get(topic, 0), storage_id)
    observations: dict[str, Mapping[str, object]] = {}
    for kind, fetch in kinds.items():
        wanted = sorted(set(newest[kind].values()).intersection(last.values()))
        for ids in _portions(wanted, ASKED_AT_ONCE):
            for record in fetch(AssetRecordsFilter(asset_key=key, storage_ids=ids), limit=len(ids)).records:
                if record.partition_key is not None:
                    observations[record.partition_key] = _metadata(record)
    return observations


def _metadata(record: EventLogRecord) -> Mapping[str, object]:
    event = record.asset_observation or record.asset_materialization
    if event is None:
        return {}
    return {name: value.value for name, value in event.metadata.items()}


def _last_batch(instance: DagsterInstance, stream: AnyStream) -> object:
    """The batch of the ledger's last materialization; None without one."""
    event = instance.get_latest_materialization_event(names.make_ledger_key(stream))
    if event is None or event.asset_materialization is None:
        return None
    value = event.asset_materialization.metadata.get(BATCH)
    return value.value if value is not None else None


def _portions(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while portion := list(islice(remaining, size)):
        yield portion


def _timestamp(moment: datetime) -> RawMetadataValue:
    return MetadataValue.timestamp(moment)


def _utc(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"
