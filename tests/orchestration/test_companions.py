"""Topics and ledger as Dagster shows them: a real Kafka, a real table and a real instance."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from dagster import AssetObservation, AssetRecordsFilter, DagsterInstance

from assets.order_books import order_books
from lockstep import Topics
from lockstep.engine.bookkeeping import BatchIdentity, first_position, quiet_row
from lockstep.kafka.client import admin_client
from lockstep.kafka.discovery import Discovery
from lockstep.orchestration import names
from lockstep.orchestration.companions import observe_ledger, observe_topics
from lockstep.orchestration.restarts import observe
from lockstep.orchestration.topics import Cursor
from lockstep.rehearsal.producer import create_topic
from lockstep.settings import KafkaSettings, Settings
from lockstep.table import demands, ledger, side
from lockstep.table.create import open_tables
from lockstep.table.layout import StreamFolders
from lockstep.table.schema import table_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lockstep.engine.hands import AnyStream
    from lockstep.rehearsal.broker import Broker


class Installed:
    """A stream with a table of its own, on an instance of its own."""

    def __init__(self, stream: AnyStream, settings: Settings, instance: DagsterInstance) -> None:
        self.stream, self.settings, self.instance = stream, settings, instance
        self.discovery = Discovery(admin_client(settings.kafka), 15.0)

    def subscribe(self, topic: str) -> None:
        """Commit a first batch that holds the topic's partitions, as a run does."""
        folders = StreamFolders(self.stream.name, self.settings.table_root)
        output = open_tables(folders, table_schema(self.stream.types.row), self.discovery.cluster_id())
        writer = demands.Writer(epoch=1, generation=1)
        output.commit(demands.claim(0, output.table_id, lambda _: None))
        identity = BatchIdentity(
            generation=1, batch=1, epoch=1, committed_at=datetime.now(UTC), batch_seconds=0.1, restart_cause="test"
        )
        view = self.discovery.view([topic])
        rows = [
            quiet_row(identity, first_position(view.topics[topic], key, ends), ends) for key, ends in view.ends.items()
        ]
        file = ledger.write_ledger(folders.ledger, rows)
        batch = demands.Batch(number=1, commit_hour="2026-01-01T00", files=(), ledger=file, full_ledger_at=1.0)
        output.commit(demands.batch(writer, batch))
        side.SideLog(folders.ledger).forward((file,), 1, after=0)

    def report(self, observations: list[AssetObservation]) -> None:
        """Hand events to the instance, as the daemon does after a tick."""
        for observation in observations:
            self.instance.report_runless_asset_event(observation)


def told(observation: AssetObservation) -> dict[str, Any]:
    return {name: value.value for name, value in observation.metadata.items()}


@pytest.fixture
def installed(broker: Broker, topic_family: str, tmp_path: Path) -> Iterator[Installed]:
    stream = dataclasses.replace(order_books, topics=Topics(pattern=rf"{topic_family}\..+"))
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Installed(stream, Settings(kafka=kafka, table_root=tmp_path / "tables"), instance)


def test_a_new_topic_becomes_a_partition_and_is_shown_as_new_then_as_read(
    installed: Installed, topic_family: str
) -> None:
    topic = f"{topic_family}.a"
    create_topic(installed.settings.kafka.bootstrap_servers, topic, partitions=2)

    seen = observe(installed.stream, installed.settings, installed.instance, frozenset({topic}), Cursor())

    (request,) = seen.partitions
    assert (request.partitions_def_name, list(request.partition_keys)) == ("order_books_topics", [topic])
    (event,) = seen.events
    assert (event.asset_key, event.partition) == (names.topics_key(installed.stream), topic)
    assert (told(event)["state"], told(event)["partitions"], told(event)["messages"]) == ("new", 2, 0)

    installed.subscribe(topic)
    (event,) = observe_topics(installed.stream, installed.settings, installed.instance, [topic])
    assert (told(event)["state"], told(event)["lag_messages"]) == ("idle", 0)


def test_when_a_topic_was_first_seen_is_carried_from_look_to_look(installed: Installed, topic_family: str) -> None:
    topic = f"{topic_family}.a"
    create_topic(installed.settings.kafka.bootstrap_servers, topic)
    first = observe_topics(installed.stream, installed.settings, installed.instance, [topic])
    installed.report(first)
    again = observe_topics(installed.stream, installed.settings, installed.instance, [topic])
    installed.report(again)
    assert told(again[0])["first_seen"] == told(first[0])["first_seen"]
    asked = AssetRecordsFilter(names.topics_key(installed.stream), asset_partitions=[topic])
    assert len(installed.instance.fetch_observations(asked, limit=10).records) == 2


def test_the_ledger_is_shown_once_there_is_one(installed: Installed, topic_family: str) -> None:
    topic = f"{topic_family}.a"
    create_topic(installed.settings.kafka.bootstrap_servers, topic, partitions=3)
    assert observe_ledger(installed.stream, installed.settings) == []

    installed.subscribe(topic)

    (event,) = observe_ledger(installed.stream, installed.settings)
    figures = told(event)
    assert (figures["batches"], figures["partitions"], figures["epoch"]) == (1, 3, 1)
    assert figures["path"].endswith("order_books/ledger")
    assert 0 <= figures["positions_age_seconds"] < 3600
    installed.report([event])
