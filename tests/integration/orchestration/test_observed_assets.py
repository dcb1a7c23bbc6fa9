"""Topics and ledger as Dagster shows them: a real Kafka, a real table and a real instance."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from dagster import (
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    DeleteDynamicPartitionsRequest,
    TableMetadataValue,
)
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from assets.order_books import order_books
from lockstep import Topics
from lockstep.engine.driver.subscription import find_first_position
from lockstep.features.history.rewind import rewind_stream
from lockstep.features.localdev.producer import create_topic, produce
from lockstep.kafka.admin import ClusterAdmin, ClusterView
from lockstep.kafka.client import make_admin_client
from lockstep.model.finding import Finding
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.inspect.topics import read_topics
from lockstep.operations.stream_handle import StreamHandle
from lockstep.orchestration import names
from lockstep.orchestration.observed_assets import CHANGES_A_LOOK, observe_ledger
from lockstep.orchestration.restart_policy import RestartCursor
from lockstep.orchestration.table_asset import make_table_metadata
from lockstep.orchestration.topics_sensor import Observed, observe_assets
from lockstep.settings import KafkaSettings, Settings
from lockstep.table import ledger, side_tables
from lockstep.table.commit import BatchCommit, OutputLog, Writer, commit_batch, commit_claim
from lockstep.table.create import open_tables
from lockstep.table.head import Desired, HaltedTopic
from lockstep.table.layout import StreamFolders
from lockstep.table.positions import LedgerStamp, make_kept_row, make_unchanged_row, read_position
from tests.support.feed import Feed
from tests.support.installation import messages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lockstep.declare.stream import AnyStream
    from lockstep.features.localdev.broker import Broker

NEW_CURSOR = RestartCursor()


class Installed:
    """A stream with a separate table on a separate Dagster instance."""

    def __init__(self, stream: AnyStream, settings: Settings, instance: DagsterInstance) -> None:
        self.stream = stream
        self.settings = settings
        self.instance = instance
        self.admin = ClusterAdmin(make_admin_client(settings.kafka), 15.0)

    def subscribe(self, topic: str) -> None:
        """Commit a first batch that holds the topic's partitions, as a run does."""
        folders = StreamFolders(self.stream.name, self.settings.table_root)
        output = open_tables(folders, make_table_schema(self.stream.types.row), self.admin.cluster_id())
        writer = Writer(epoch=1, generation=1)
        output.commit(commit_claim(0, output.table_id, lambda _: None))
        stamp = self._stamp(1)
        view = self._view(topic)
        rows = [
            make_unchanged_row(stamp, find_first_position(view.topics[topic], key, ends), ends)
            for key, ends in view.ends.items()
        ]
        file = ledger.write_ledger(folders.ledger, rows)
        batch = BatchCommit(number=1, commit_hour="2026-01-01T00", files=(), ledger=file, full_ledger_at=1.0)
        output.commit(commit_batch(writer, batch))
        side_tables.SideLog(folders.ledger).catch_up((file,), 1, after=0)

    def read_to_ends(self, topic: str) -> None:
        """Commit the batch after the first, which reads a topic to its ends, as a run does."""
        folders = self.handle.folders
        stamp = self._stamp(2)
        output = OutputLog(folders.table)
        view = self._view(topic)
        rows = [
            make_unchanged_row(stamp, find_first_position(view.topics[topic], key, ends, ends.stable_end), ends)
            for key, ends in view.ends.items()
        ]
        file = ledger.write_ledger(folders.ledger, [msgspec.structs.replace(row, start=0, joined_at=0) for row in rows])
        batch = BatchCommit(number=2, commit_hour="2026-01-01T00", files=(), ledger=file, full_ledger_at=2.0)
        output.commit(commit_batch(Writer(epoch=1, generation=1), batch))
        side_tables.SideLog(folders.ledger).catch_up((file,), 2, after=1)

    def end(self, topic: str) -> None:
        """Delete the topic, and commit the batch in which a run has noticed it."""
        Feed(self.settings.kafka.bootstrap_servers, "").delete(topic)
        folders = self.handle.folders
        stamp = self._stamp(2)
        kept = [make_kept_row(stamp, read_position(row), retired=True) for row in self.handle.positions.values()]
        end = {"lifecycle": "deleted", "ending": "deleted", "last_end": 0, "last_end_age_seconds": 4.4}
        file = ledger.write_ledger(folders.ledger, [msgspec.structs.replace(row, **end) for row in kept])
        batch = BatchCommit(number=2, commit_hour="2026-01-01T00", files=(), ledger=file, full_ledger_at=2.0)
        OutputLog(folders.table).commit(commit_batch(Writer(epoch=1, generation=1), batch))
        side_tables.SideLog(folders.ledger).catch_up((file,), 2, after=1)

    @retry(retry=retry_if_result(lambda view: view.unavailable), wait=wait_fixed(0.1), stop=stop_after_delay(15))
    def _view(self, topic: str) -> ClusterView:
        """Return the offsets of all partitions; new partitions may have no leader yet."""
        return self.admin.view([topic])

    def _stamp(self, number: int) -> LedgerStamp:
        now = datetime.now(UTC)
        return LedgerStamp(
            generation=1, batch=number, epoch=1, committed_at=now, batch_seconds=0.1, restart_cause="test"
        )

    @property
    def handle(self) -> StreamHandle:
        """The stream, as one tick of the sensor opens it."""
        return StreamHandle(self.stream, self.settings)

    def look(self, cursor: RestartCursor = NEW_CURSOR) -> Observed:
        """Observe the assets like a tick of the sensor, and report the events to the instance."""
        seen = observe_assets(self.handle, self.instance, cursor)
        for request in seen.partitions:
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        for event in seen.events:
            self.instance.report_runless_asset_event(event)
        return seen

    def ledger(self, lag_messages: int) -> AssetMaterialization | AssetObservation | None:
        """Observe the ledger, report the events to the instance, and return the last event."""
        events = observe_ledger(self.handle, self.instance, lag_messages=lag_messages)
        for event in events:
            self.instance.report_runless_asset_event(event)
        return events[-1] if events else None


def told(event: AssetObservation | AssetMaterialization) -> dict[str, Any]:
    return {name: value.value for name, value in event.metadata.items()}


def table_of(event: AssetObservation | AssetMaterialization) -> list[dict[str, Any]]:
    """Return an event's table of all topics."""
    shown = event.metadata["all_topics"]
    assert isinstance(shown, TableMetadataValue)
    return [dict(record.data) for record in shown.records]


def of_all(seen: Observed) -> AssetObservation | AssetMaterialization:
    """Return the last event of all topics, which Dagster shows with the asset."""
    return [event for event in seen.events if event.asset_key == names.make_topics_key(order_books)][-1]


@pytest.fixture
def installed(broker: Broker, topic_family: str, tmp_path: Path) -> Iterator[Installed]:
    stream = dataclasses.replace(order_books, topics=Topics(pattern=rf"{topic_family}\..+"))
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Installed(stream, Settings(kafka=kafka, table_root=tmp_path / "tables"), instance)


def test_all_topics_are_shown_in_one_table_on_the_asset_itself(installed: Installed, topic_family: str) -> None:
    servers = installed.settings.kafka.bootstrap_servers
    read = f"{topic_family}.a"
    new = f"{topic_family}.b"
    create_topic(servers, read, partitions=2, retention_hours=2)
    installed.subscribe(read)
    produce(servers, new, messages()[:3])

    whole = of_all(installed.look())

    assert (whole.asset_key, whole.partition) == (names.make_topics_key(installed.stream), None)
    assert [(row["topic"], row["state"], row["partitions"], row["lag"]) for row in table_of(whole)] == [
        (read, "idle", 2, 0),
        (new, "new", 1, 3),
    ]
    empty, full = table_of(whole)
    assert (empty["retention"], empty["messages"], empty["oldest"], empty["newest"]) == ("2.0 h", 0, None, None)
    assert (full["retention"], full["messages"]) == ("unlimited", 3)
    assert full["oldest"] <= full["newest"]
    assert (empty["freshness"], full["freshness"]) == (None, None)  # nothing of them is committed
    figures = told(whole)
    assert list(figures)[:2] == ["all_topics", "lag_messages"]
    assert (figures["lag_messages"], figures["topics"], figures["topics_idle"], figures["topics_new"]) == (3, 2, 1, 1)


def test_a_topic_gets_an_event_of_its_own_only_when_its_state_changes(installed: Installed, topic_family: str) -> None:
    topic = f"{topic_family}.a"
    create_topic(installed.settings.kafka.bootstrap_servers, topic, partitions=2)

    seen = installed.look()
    (request,) = seen.partitions
    assert (request.partitions_def_name, list(request.partition_keys)) == ("order_books_topics", [topic])
    *own, _ = seen.events
    assert [(event.partition, told(event)["state"]) for event in own] == [(topic, "new")]

    again = installed.look()
    assert ([event.partition for event in again.events], again.partitions) == ([None], [])

    installed.subscribe(topic)
    read = installed.look()
    (changed,) = [event for event in read.events if event.partition == topic]
    assert (told(changed)["state"], told(changed)["lag_messages"]) == ("idle", 0)
    assert isinstance(own[0], AssetObservation)
    assert isinstance(changed, AssetMaterialization)  # its partition is filled
    assert installed.instance.get_materialized_partitions(names.make_topics_key(installed.stream)) == {topic}
    assert {event.partition for event in installed.look().events} == {None}
    assert told(changed)["first_seen"] == told(own[0])["first_seen"]


def test_the_end_of_a_topic_is_an_event_with_its_evidence_and_the_last_of_its_partition(
    installed: Installed, topic_family: str
) -> None:
    topic = f"{topic_family}.a"
    create_topic(installed.settings.kafka.bootstrap_servers, topic)
    installed.subscribe(topic)
    installed.look()
    installed.end(topic)
    ended = observe_assets(installed.handle, installed.instance, NEW_CURSOR)
    (event,) = [each for each in ended.events if each.partition == topic]
    evidence = "read to its end at offset 0, as observed 4 s before"
    assert (told(event)["state"], told(event)["ending"]) == ("deleted", evidence)
    assert [(row["state"], row["ending"]) for row in table_of(of_all(ended))] == [("deleted", evidence)]
    (request,) = ended.partitions
    assert (type(request), list(request.partition_keys)) == (DeleteDynamicPartitionsRequest, [topic])
    installed.instance.report_runless_asset_event(event)
    installed.instance.delete_dynamic_partition(request.partitions_def_name, topic)
    again = observe_assets(installed.handle, installed.instance, NEW_CURSOR)
    assert ([each.partition for each in again.events if each.partition], again.partitions) == ([], [])


def test_many_changes_are_written_down_over_several_looks(installed: Installed, topic_family: str) -> None:
    topics = [f"{topic_family}.{number:02}" for number in range(CHANGES_A_LOOK + 3)]
    for topic in topics:
        create_topic(installed.settings.kafka.bootstrap_servers, topic)

    first = installed.look()
    assert len([event for event in first.events if event.partition]) == CHANGES_A_LOOK
    assert first.sweep.behind

    second = installed.look(RestartCursor(sweep=first.sweep))
    *own, _ = second.events
    assert sorted(str(event.partition) for event in own) == topics[CHANGES_A_LOOK:]
    assert len(table_of(of_all(second))) == len(topics)
    assert not second.sweep.behind
    assert installed.look(RestartCursor(sweep=second.sweep)).events == []


def test_the_command_line_and_dagster_say_the_same_of_each_topic(installed: Installed, topic_family: str) -> None:
    servers = installed.settings.kafka.bootstrap_servers
    read, old, new = (f"{topic_family}.{name}" for name in ("read", "old", "new"))
    create_topic(servers, read)
    installed.subscribe(read)
    create_topic(servers, new)
    produce(servers, old, messages()[:1])

    whole = of_all(installed.look())

    listed = read_topics(installed.handle).topics
    assert [(row["topic"], row["state"], row["lag"]) for row in table_of(whole)] == [
        (topic.topic, topic.state.value, topic.lag_messages) for topic in listed
    ]


def test_the_ledger_is_materialized_by_a_new_batch_or_while_nothing_waits(
    installed: Installed, topic_family: str
) -> None:
    topic = f"{topic_family}.a"
    create_topic(installed.settings.kafka.bootstrap_servers, topic, partitions=3)
    assert installed.ledger(lag_messages=0) is None

    installed.subscribe(topic)

    first = installed.ledger(lag_messages=5)
    assert isinstance(first, AssetMaterialization)
    figures = told(first)
    assert next(iter(figures)) == "lag_messages"
    assert (figures["lag_messages"], figures["batches"], figures["partitions"], figures["epoch"]) == (5, 1, 3, 1)
    assert figures["path"].endswith("order_books/ledger")
    assert 0 <= figures["newest_batch_age_seconds"] < 3600
    assert isinstance(installed.ledger(lag_messages=5), AssetObservation)  # no new batch
    assert isinstance(installed.ledger(lag_messages=0), AssetMaterialization)


@pytest.mark.parametrize("halts", ["nothing", "a topic", "the stream"])
def test_the_ledger_of_a_halted_stream_is_not_up_to_date(installed: Installed, topic_family: str, halts: str) -> None:
    topic = f"{topic_family}.a"
    create_topic(installed.settings.kafka.bootstrap_servers, topic)
    installed.subscribe(topic)
    found = (Finding(cause="gap", topic=topic, topic_id="id", partition=0, offset=0, until=1),)
    changes: dict[str, dict[str, Any]] = {
        "a topic": {"halted_topics": (HaltedTopic(topic, "id", 1, found),)},
        "the stream": {"desired": Desired.HALTED, "findings": found},
    }
    handle = installed.handle
    vars(handle)["head"] = msgspec.structs.replace(handle.require_head(), **changes.get(halts, {}))
    events = observe_ledger(handle, installed.instance, lag_messages=0)
    expected = [AssetObservation, AssetMaterialization] if halts == "nothing" else [AssetObservation]
    assert [type(event) for event in events] == expected


def test_a_rewound_table_is_a_new_batch_whose_topics_have_their_lag_again(
    installed: Installed, topic_family: str
) -> None:
    topic = f"{topic_family}.a"
    servers = installed.settings.kafka.bootstrap_servers
    create_topic(servers, topic, partitions=1)
    produce(servers, topic, messages()[:3])
    installed.subscribe(topic)
    installed.read_to_ends(topic)
    first = installed.ledger(lag_messages=0)
    assert isinstance(first, AssetMaterialization)
    assert told(first)["batches"] == 2
    assert [row["lag"] for row in table_of(of_all(installed.look()))] == [0]

    rewind_stream(installed.handle, "1", who="ann", why="wrong rows")

    rewound = installed.ledger(lag_messages=3)
    assert isinstance(rewound, AssetMaterialization)
    figures = told(rewound)
    assert (figures["generation"], figures["batches"], figures["epoch"]) == (2, 3, 2)
    assert figures["desired"].startswith("stopped (rewound to batch 1: wrong rows")
    assert isinstance(installed.ledger(lag_messages=3), AssetObservation)
    assert [row["lag"] for row in table_of(of_all(installed.look()))] == [3]
    assert make_table_metadata(installed.stream, installed.settings.table_root).keys() >= {"dagster/column_schema"}
