"""The topics sensor on a real Dagster instance, with a real Kafka and a real table."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from dagster import DagsterInstance, Definitions, build_sensor_context, validate_run_config

from assets.order_books import order_books
from jobs.streaming import streaming_job
from lockstep import NewTopics, Topics
from lockstep.control.heartbeat import Heartbeat
from lockstep.features.localdev.producer import create_topic
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client
from lockstep.model.table_schema import make_table_schema
from lockstep.orchestration.definitions import make_stream_assets
from lockstep.orchestration.names import AUTOMATIC_TAG, CAUSE_TAG, EPOCH_TAG, TOPICS_TAG
from lockstep.orchestration.restart_policy import SUPERVISE_SECONDS, RestartCursor
from lockstep.orchestration.shared_tick import STARTS_MAX
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import KafkaSettings, Settings
from lockstep.table.commit import OutputLog, Writer, commit_claim, set_desired_state
from lockstep.table.create import open_tables
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders
from sensors.topics import topics_sensor
from tests.support.shared_ticks import read_own, share

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dagster import SensorExecutionData

    from lockstep.declare.stream import AnyStream
    from lockstep.features.localdev.broker import Broker


class Watched:
    """A stream with its sensor, on a separate instance."""

    def __init__(self, stream: AnyStream, settings: Settings, instance: DagsterInstance, *others: AnyStream) -> None:
        self.stream = stream
        self.settings = settings
        self.instance = instance
        streams = [stream, *others]
        jobs = [streaming_job(each) for each in streams]
        self.sensor = topics_sensor(streams, jobs, settings)
        self.definitions = Definitions(
            assets=[asset for each in streams for asset in make_stream_assets(each, settings, owners=())],
            jobs=jobs,
            sensors=[self.sensor],
            resources={"spark": SparkResource()},
        )

    def tick(self, cursor: str | None = None) -> SensorExecutionData:
        """Evaluate one tick, as the daemon does."""
        repository = self.definitions.get_repository_def()
        context = build_sensor_context(instance=self.instance, cursor=cursor, repository_def=repository)
        return self.sensor.evaluate_tick(context)

    def claim(self, desired: Desired | None = None, stream: AnyStream | None = None) -> OutputLog:
        """Make the tables and claim them, like a first run; the run is bounded by default."""
        cluster = ClusterAdmin(make_admin_client(self.settings.kafka), 15.0).cluster_id()
        folders = StreamFolders((stream or self.stream).name, self.settings.table_root)
        output = open_tables(folders, make_table_schema(self.stream.types.row), cluster)
        output.commit(commit_claim(0, output.table_id, lambda _: None, desired=desired))
        return output


@pytest.fixture
def watched(broker: Broker, topic_family: str, tmp_path: Path) -> Iterator[Watched]:
    """A stream that reads only the topics of this test."""
    stream = dataclasses.replace(order_books, topics=Topics(pattern=rf"{topic_family}\..+"))
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Watched(stream, Settings(kafka=kafka, table_root=tmp_path / "tables"), instance)


def test_a_stream_that_never_ran_is_not_started(watched: Watched) -> None:
    tick = watched.tick()
    assert tick.run_requests == []
    assert "no table yet: launch its job once" in str(tick.skip_message)


def test_a_failed_read_is_no_news_and_keeps_the_cursor(tmp_path: Path) -> None:
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:9", timeout_seconds=0.2)
    settings = Settings(kafka=nowhere, table_root=tmp_path)
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        tick = Watched(order_books, settings, instance).tick(share(RestartCursor(attempt=2).encode()))
    assert tick.run_requests == []
    assert "Kafka did not answer" in str(tick.skip_message)
    assert tick.cursor == share(RestartCursor(attempt=2).encode())


def test_a_quiet_look_says_what_it_looked_at(watched: Watched) -> None:
    watched.claim()
    assert str(watched.tick().skip_message) == "order_books: 0 topics wanted, 0 subscribed, none is new"


def test_a_new_topic_gets_a_run_that_can_be_launched(watched: Watched, topic_family: str) -> None:
    watched.claim()
    create_topic(watched.settings.kafka.bootstrap_servers, f"{topic_family}.a")

    tick = watched.tick()

    (request,) = tick.run_requests or []
    assert request.job_name == "order_books_stream"
    assert request.tags[TOPICS_TAG] == f"{topic_family}.a"
    assert request.tags[CAUSE_TAG] == f"new topics: {topic_family}.a"
    job = watched.definitions.resolve_job_def("order_books_stream")
    config = validate_run_config(job, request.run_config)
    assert config["ops"]["order_books__table"]["config"]["available_now"] is True
    assert (request.tags[AUTOMATIC_TAG], request.tags[EPOCH_TAG]) == ("topics sensor", "1")
    cursor, warning = RestartCursor.read(read_own(tick.cursor))
    assert (cursor.attempt, warning) == (0, "")
    assert time.time() - cursor.asked_at < 60

    again = watched.tick(tick.cursor)
    assert again.run_requests == []
    assert "not long ago" in str(again.skip_message)


def test_a_stream_that_is_to_be_running_gets_a_never_ending_run_after_the_supervisor_had_its_time(
    watched: Watched, topic_family: str
) -> None:
    watched.claim(Desired.RUNNING)
    create_topic(watched.settings.kafka.bootstrap_servers, f"{topic_family}.a")

    first = watched.tick()
    assert first.run_requests == []
    assert "the supervisor starts one" in str(first.skip_message)
    cursor, _ = RestartCursor.read(read_own(first.cursor))
    before = msgspec.structs.replace(cursor, pulse_at=time.time() - SUPERVISE_SECONDS)
    later = watched.tick(share(before.encode()))

    (request,) = later.run_requests or []
    config = validate_run_config(watched.definitions.resolve_job_def("order_books_stream"), request.run_config)
    assert config["ops"]["order_books__table"]["config"]["available_now"] is False


@pytest.mark.parametrize("declared", NewTopics)
def test_new_topics_are_left_to_a_run_that_adopts_them_and_not_to_another(
    watched: Watched, topic_family: str, declared: NewTopics
) -> None:
    topics = dataclasses.replace(watched.stream.topics, new_topics=declared)
    watched = Watched(dataclasses.replace(watched.stream, topics=topics), watched.settings, watched.instance)
    watched.claim(Desired.RUNNING)
    create_topic(watched.settings.kafka.bootstrap_servers, f"{topic_family}.a")
    control = StreamFolders(watched.stream.name, watched.settings.table_root).control
    with Heartbeat(control, 1, never_ending=True, run_id="the writer"):
        tick = watched.tick(share(RestartCursor(pulse="1:0").encode()))
    adopts = "the run adopts them" in str(tick.skip_message)
    assert (adopts, len(tick.run_requests or [])) == ((True, 0) if declared is NewTopics.ADOPT else (False, 1))


def test_a_run_that_is_on_its_way_is_waited_for(watched: Watched, topic_family: str) -> None:
    watched.claim()
    create_topic(watched.settings.kafka.bootstrap_servers, f"{topic_family}.a")
    run = watched.instance.create_run_for_job(watched.definitions.resolve_job_def("order_books_stream"))

    tick = watched.tick()

    assert tick.run_requests == []
    assert f"run {run.run_id} is on its way" in str(tick.skip_message)


def test_a_stream_that_a_person_stopped_stays_stopped(watched: Watched, topic_family: str) -> None:
    writer = Writer(epoch=1, generation=1)
    watched.claim().commit(set_desired_state(writer, Desired.STOPPED, "terminated in Dagster"))
    create_topic(watched.settings.kafka.bootstrap_servers, f"{topic_family}.a")

    tick = watched.tick()

    assert tick.run_requests == []
    assert "is stopped (terminated in Dagster)" in str(tick.skip_message)


def test_an_unreadable_cursor_is_reset_and_the_look_goes_on(watched: Watched) -> None:
    watched.claim()
    tick = watched.tick(share('"not a cursor"'))
    assert "none is new" in str(tick.skip_message)
    cursor, warning = RestartCursor.read(read_own(tick.cursor))
    assert (cursor.run_key, cursor.pulse, warning) == ("", "1:", "")


def test_a_topic_of_many_streams_starts_few_of_them_in_a_tick_and_the_others_in_the_next(
    watched: Watched, topic_family: str
) -> None:
    others = [dataclasses.replace(watched.stream, name=f"stream_{number}") for number in range(STARTS_MAX)]
    watched = Watched(watched.stream, watched.settings, watched.instance, *others)
    for stream in (watched.stream, *others):
        watched.claim(stream=stream)
    create_topic(watched.settings.kafka.bootstrap_servers, f"{topic_family}.a")
    first = watched.tick()
    second = watched.tick(first.cursor)
    asked = [[request.job_name for request in tick.run_requests or ()] for tick in (first, second)]
    assert [len(jobs) for jobs in asked] == [STARTS_MAX, 1]
    assert {*asked[0], *asked[1]} == {f"{stream.name}_stream" for stream in (watched.stream, *others)}
