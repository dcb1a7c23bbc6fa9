"""The companions of a table: its topics, one partition each, and its ledger. Looked at, never made, by Dagster.

The topics sensor looks at them as it goes, a few topics a tick, so that no run is spent on it.
"""

import time
from collections.abc import Iterable, Mapping

from dagster import (
    AssetObservation,
    AssetRecordsFilter,
    AssetSpec,
    DagsterInstance,
    DynamicPartitionsDefinition,
    MetadataValue,
)

from lockstep.engine.hands import AnyStream
from lockstep.kafka.client import admin_client
from lockstep.kafka.discovery import Discovery
from lockstep.kafka.newest import newest_timestamps
from lockstep.orchestration import names
from lockstep.orchestration.topic_states import TopicState, topic_state
from lockstep.settings import Settings
from lockstep.table import log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, positions

KAFKA_SECONDS_MAX = 10.0
"""A tick of a sensor that waits longer is killed by Dagster; the next one comes soon."""
FIRST_SEEN = "first_seen"


def topics_asset(stream: AnyStream, owners: Iterable[str]) -> AssetSpec:
    """The asset `<stream>/topics`: what each topic does, as a partition of its own."""
    return AssetSpec(
        key=names.topics_key(stream),
        partitions_def=DynamicPartitionsDefinition(name=names.topics_partitions(stream)),
        group_name=stream.name,
        description=(
            f"The Kafka topics that match `{stream.topics.pattern}`, one partition each: new (not read yet), active, "
            "idle or drained, with messages and lag. The topics sensor registers new ones within seconds and looks at "
            "all of them every few minutes."
        ),
        metadata={"pattern": stream.topics.pattern, "exclude": stream.topics.exclude or "none"},
        kinds={"kafka"},
        owners=list(owners),
    )


def ledger_asset(stream: AnyStream, settings: Settings, owners: Iterable[str]) -> AssetSpec:
    """The asset `<stream>/ledger`: what was read, in which batch; written by the stream itself."""
    return AssetSpec(
        key=names.ledger_key(stream),
        deps=[names.table_key(stream)],
        group_name=stream.name,
        description=(
            f"What {stream.name} has read: one row per topic partition and batch, with offsets, counts, holes and "
            "restart causes. Committed with each batch of the table, whatever Dagster does."
        ),
        metadata={"dagster/uri": StreamFolders(stream.name, settings.table_root).ledger.as_uri()},
        kinds={"deltalake"},
        owners=list(owners),
    )


def observe_topics(
    stream: AnyStream, settings: Settings, instance: DagsterInstance, topics: Iterable[str]
) -> list[AssetObservation]:
    """Look at some topics.

    Raises:
        KafkaError: Kafka does not answer.
        TableError: The table is not as its head says.
    """
    wanted = sorted(topics)
    if not wanted:
        return []
    admin, now = admin_client(settings.kafka), time.time()
    view = Discovery(admin, _patience(settings)).view(wanted)
    places = [(topic.name, partition) for topic in view.topics.values() for partition in range(topic.partitions)]
    newest = newest_timestamps(admin, places, _patience(settings))
    read = {(row.topic_id, row.partition): row.until for row in _positions(stream, settings)}
    states = [
        topic_state(topic, view, read, newest, stream.topics.inactive_after, now) for topic in view.topics.values()
    ]
    first = _first_seen(instance, stream, [state.topic for state in states])
    return [_topic_observation(stream, state, first.get(state.topic, now)) for state in states]


def observe_ledger(stream: AnyStream, settings: Settings) -> list[AssetObservation]:
    """Look at the ledger; nothing while there is none.

    Raises:
        TableError: The table is not as its head says.
    """
    folders = StreamFolders(stream.name, settings.table_root)
    rows = _positions(stream, settings)
    if not rows:
        return []
    head = OutputLog(folders.table).base().head
    newest = max(row.committed_at for row in rows).timestamp()
    observation = AssetObservation(
        names.ledger_key(stream),
        metadata={
            "path": MetadataValue.path(folders.ledger),
            "batches": head.batch,
            "epoch": head.epoch,
            "generation": head.generation,
            "partitions": len(rows),
            "positions_age_seconds": round(max(0.0, time.time() - newest), 1),
            "newest_batch_at": MetadataValue.timestamp(newest),
            "desired": f"{head.desired.value} ({head.reason})",
        },
        tags={"dagster/data_version": f"{head.generation}.{head.batch}"},
    )
    return [observation]


def _topic_observation(stream: AnyStream, state: TopicState, first_seen: float) -> AssetObservation:
    newest = {} if state.newest_ms is None else {"newest_message": MetadataValue.timestamp(state.newest_ms / 1000)}
    return AssetObservation(
        names.topics_key(stream),
        partition=state.topic,
        metadata={
            "state": state.life.value,
            "partitions": state.partitions,
            "messages": state.messages,
            "lag_messages": state.lag_messages,
            FIRST_SEEN: MetadataValue.timestamp(first_seen),
            **newest,
        },
    )


def _first_seen(instance: DagsterInstance, stream: AnyStream, topics: list[str]) -> Mapping[str, float]:
    """When each topic was seen first, in seconds since 1970; earlier observations carry it on."""
    found: dict[str, float] = {}
    for topic in topics:
        asked = AssetRecordsFilter(asset_key=names.topics_key(stream), asset_partitions=[topic])
        for record in instance.fetch_observations(asked, limit=1).records:
            seen = record.asset_observation.metadata.get(FIRST_SEEN) if record.asset_observation else None
            if seen is not None and isinstance(seen.value, float):
                found[topic] = seen.value
    return found


def _positions(stream: AnyStream, settings: Settings) -> list[LedgerRow]:
    folders = StreamFolders(stream.name, settings.table_root)
    if not log.exists(folders.table):
        return []
    return list(positions(folders.ledger, OutputLog(folders.table).base().head).values())


def _patience(settings: Settings) -> float:
    return min(settings.kafka.timeout_seconds, KAFKA_SECONDS_MAX)
