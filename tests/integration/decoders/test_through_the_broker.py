"""Avro and Protobuf from a real broker into a Delta table, with an HTTP registry that may be unavailable."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from lockstep import Ordered
from lockstep.declare.decoders import schema_registry
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import make_job, make_registry
from lockstep.engine.driver.shared_spark import StreamJobs
from lockstep.engine.driver.spark_job import SparkRunner
from lockstep.errors import RegistryUnreachable, SettingsError
from lockstep.features.copies.rebuild import rebuild_state
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations.quarantine import QuarantineFilter, list_quarantine
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.decoders.panel_pb2 import Snapshot as ProtoSnapshot
from tests.support.decoders.panel_pb2 import Update as ProtoUpdate
from tests.support.decoders.readings import SNAPSHOT, UPDATE
from tests.support.decoders.registered import (
    FIRST_ID,
    HttpSchemas,
    frame,
    guid_header,
    http_schemas,
    protobuf_frame,
)
from tests.support.decoders.streams import BEST_EFFORT, avro_panels, protobuf_panels
from tests.support.feed import Feed, ProducerRecord
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import entries, read_table, read_until, rows_of

PANEL = Path(__file__).parents[2] / "support" / "decoders" / "panel.proto"

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import SparkContext

    from lockstep.declare.stream import AnyStream

COLUMNS = ("_offset", "_session", "_sequence", "id", "value", "previous")
ROWS = [(1, "s", 2, "a", 1.5, 1.0), (2, "s", 3, "b", 2.5, None), (3, "s", 4, "a", 3.5, 1.5)]
"""Rows of a snapshot with a = 1.0 and three updates."""
SECONDS = "LOCKSTEP_REGISTRY__TIMEOUT_SECONDS"
IMPATIENCE_SECONDS = 5


@pytest.fixture
def schemas(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpSchemas]:
    """A registry, configured by environment variables as in an installation."""
    with http_schemas() as running:
        monkeypatch.setenv("LOCKSTEP_REGISTRY__URL", running.url)
        monkeypatch.setenv(SECONDS, "30")
        yield running


@contextmanager
def impatience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECONDS, str(IMPATIENCE_SECONDS))
        yield


def runs_of(stream: AnyStream, feed: Feed, tmp_path: Path) -> LocalRuns:
    return LocalRuns(stream, feed.bootstrap_servers, tmp_path)


def avro_messages(schemas: HttpSchemas) -> list[bytes]:
    """Return a snapshot and three updates, each kind with a separate schema."""
    first = schemas.register("snapshots", json.dumps(SNAPSHOT))
    second = schemas.register("updates", json.dumps(UPDATE))
    updates = [{"seq": seq, "id": name, "value": value} for _, _, seq, name, value, _ in ROWS]
    snapshot = frame(SNAPSHOT, {"seq": 1, "values": {"a": 1.0}}, first)
    return [snapshot, *(frame(UPDATE, update, second) for update in updates)]


def rows(runs: LocalRuns, topic: str) -> list[tuple[object, ...]]:
    return rows_of(read_table(runs.folders.table), topic, COLUMNS)


def test_avro_of_two_schemas_becomes_rows(feed: Feed, schemas: HttpSchemas, tmp_path: Path) -> None:
    topic = feed.create("values")
    feed.send(topic, avro_messages(schemas))
    runs = runs_of(avro_panels(feed.pattern), feed, tmp_path)
    assert runs.run() is RunOutcome.ENDED
    assert rows(runs, topic) == ROWS


def test_ids_in_headers_are_read_and_the_proof_and_a_rebuild_read_them_too(
    feed: Feed, schemas: HttpSchemas, tmp_path: Path
) -> None:
    """The body has no frame: without its header the message cannot be decoded."""
    topic = feed.create("values")
    snapshot, *updates = avro_messages(schemas)
    bare = [
        ProducerRecord("s", value[5:], headers=(("trace", b"1"), ("__value_schema_id", guid_header(schema_id))))
        for value, schema_id in ((snapshot, FIRST_ID), (updates[0], FIRST_ID + 1), (updates[1], FIRST_ID + 1))
    ]
    feed.append(topic, bare)
    feed.send(topic, updates[2:])
    runs = runs_of(avro_panels(feed.pattern), feed, tmp_path)
    assert runs.run() is RunOutcome.ENDED
    assert rows(runs, topic) == ROWS
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka, make_registry(runs.settings.registry))
    assert report.status is InvariantStatus.PROVEN, (report.violations, report.notes)
    for file in runs.folders.state.iterdir():
        file.unlink()
    assert rebuild_state(runs.handle).files


def test_protobuf_of_two_messages_of_a_schema_becomes_rows(feed: Feed, schemas: HttpSchemas, tmp_path: Path) -> None:
    schema_id = schemas.register("panels", PANEL.read_text(), "PROTOBUF")
    updates = [ProtoUpdate(seq=seq, id=name, value=value) for _, _, seq, name, value, _ in ROWS]
    snapshot = ProtoSnapshot(seq=1, values={"a": 1.0}).SerializeToString()
    topic = feed.create("values")
    feed.send(topic, [protobuf_frame(snapshot, (0,), schema_id)])
    feed.send(topic, [protobuf_frame(update.SerializeToString(), (1,), schema_id) for update in updates])
    runs = runs_of(protobuf_panels(feed.pattern), feed, tmp_path)
    assert runs.run() is RunOutcome.ENDED
    assert rows(runs, topic) == ROWS


def test_a_registry_that_is_away_halts_nothing_and_loses_nothing(
    feed: Feed, schemas: HttpSchemas, tmp_path: Path
) -> None:
    topic = feed.create("values")
    feed.send(topic, avro_messages(schemas))
    runs = runs_of(avro_panels(feed.pattern), feed, tmp_path)
    schemas.refusing = [(503, b"")] * 1_000
    with impatience(), pytest.raises(RegistryUnreachable, match="gave no schema: HTTP 503"):
        runs.run()
    log = entries(runs.folders.table)
    assert "halted" not in str(log)
    schemas.refusing.clear()
    assert runs.run() is RunOutcome.ENDED
    assert rows(runs, topic) == ROWS


def test_a_task_says_by_name_what_the_registry_did(feed: Feed, schemas: HttpSchemas, tmp_path: Path) -> None:
    """The tasks of Spark's runner run in this process. A raised error of a task would become an error of Spark."""
    topic = feed.create("values")
    feed.send(topic, avro_messages(schemas))
    runs = runs_of(avro_panels(feed.pattern), feed, tmp_path)
    with impatience():
        job = make_job(runs.stream, runs.settings, runs.folders)
    through_spark = SparkRunner(StreamJobs(cast("SparkContext", TasksInThisProcess()), "run"), job)
    schemas.refusing = [(503, b"")] * 1_000
    with pytest.raises(RegistryUnreachable) as silent:
        runs.run(around=lambda _: through_spark)
    assert (
        silent.value.problem
        == f"the schema registry {schemas.url} gave no schema: HTTP 503, for {IMPATIENCE_SECONDS} s"
    )
    assert silent.value.next_step.startswith(f"see whether {schemas.url}/schemas/types answers")
    schemas.refusing.clear()
    assert runs.run(around=lambda _: through_spark) is RunOutcome.ENDED
    assert rows(runs, topic) == ROWS


class TasksInThisProcess:
    """The runner's part of a Spark context, without Spark: tasks run in sequence."""

    master = "local[1]"
    defaultParallelism = 1  # noqa: N815  # Spark's name

    def accumulator(self, value: list[object], _: object) -> TasksInThisProcess:
        self.value = value
        return self

    def add(self, more: list[object]) -> None:
        self.value += more

    def addJobTag(self, _: str) -> None:  # noqa: N802  # Spark's name
        """Do nothing: no job is cancelled."""

    removeJobTag = addJobTag  # noqa: N815  # Spark's name

    def parallelize(self, tasks: list[bytes], count: int) -> TasksInThisProcess:
        assert len(tasks) == count
        self._tasks = tasks
        return self

    def foreachPartition(self, work: Callable[[Iterator[bytes]], None]) -> None:  # noqa: N802  # Spark's name
        for task in self._tasks:
            work(iter([task]))


def test_a_registry_that_is_away_for_a_moment_is_not_even_noticed(
    feed: Feed, schemas: HttpSchemas, tmp_path: Path
) -> None:
    topic = feed.create("values")
    feed.send(topic, avro_messages(schemas))
    schemas.refusing = [(401, b"")]  # the registry's client does not repeat it, so the batch is repeated
    runs = runs_of(avro_panels(feed.pattern), feed, tmp_path)
    assert runs.run() is RunOutcome.ENDED
    assert rows(runs, topic) == ROWS


@pytest.mark.parametrize(
    ("bad", "found", "cause"),
    [
        (
            b'{"seq": 5}',
            "a frame starts with 0x00, this with 0x7b; it resembles JSON (docs/decoders.md)",
            "unknown magic byte",
        ),
        (b"\x00\x00\x00\x00\x01abc", "the schema registry knows no schema id 1", "unknown schema id"),
    ],
)
def test_a_message_that_is_none_halts_a_strict_stream_with_its_cause(
    feed: Feed, schemas: HttpSchemas, tmp_path: Path, bad: bytes, found: str, cause: str
) -> None:
    topic = feed.create("values")
    feed.send(topic, [*avro_messages(schemas), bad])
    runs = runs_of(avro_panels(feed.pattern), feed, tmp_path)
    with pytest.raises(IntegrityLost) as lost:
        runs.run()
    (finding,) = lost.value.findings
    assert (finding.cause, finding.offset, finding.found, finding.detail) == ("undecodable", 4, found, cause)
    assert rows(runs, topic) == ROWS


def test_a_schema_that_is_registered_later_changes_neither_the_proof_nor_a_rebuild(
    feed: Feed, schemas: HttpSchemas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "UNKNOWN_SECONDS", 0.0)  # the worker asks again
    topic = feed.create("values")
    messages = avro_messages(schemas)
    unknown = FIRST_ID + 2
    feed.send(topic, [*messages, frame(UPDATE, {"seq": 5, "id": "a", "value": 4.5}, unknown), messages[0]])
    runs = runs_of(avro_panels(feed.pattern, Ordered()), feed, tmp_path)
    assert runs.run() is RunOutcome.ENDED
    (group,) = list_quarantine(runs.folders, QuarantineFilter()).groups
    assert (group.cause, group.first_offset) == ("undecodable", 4)
    assert schemas.register("later", json.dumps(UPDATE)) == unknown
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka, make_registry(runs.settings.registry))
    assert report.status is InvariantStatus.PROVEN, (report.violations, report.notes)
    for file in runs.folders.state.iterdir():
        file.unlink()
    assert rebuild_state(runs.handle).files
    feed.send(topic, [frame(UPDATE, {"seq": 2, "id": "a", "value": 7.5}, unknown)])
    assert runs.run() is RunOutcome.ENDED
    assert rows(runs, topic) == [*ROWS, (6, "s", 2, "a", 7.5, 1.0)]


def test_best_effort_sets_it_aside_and_goes_on(feed: Feed, schemas: HttpSchemas, tmp_path: Path) -> None:
    topic = feed.create("values")
    snapshot, *updates = avro_messages(schemas)
    feed.send(topic, [snapshot, b"garbage", b"\x00\x00\x00\x00\x01", *updates])
    runs = runs_of(avro_panels(feed.pattern, BEST_EFFORT), feed, tmp_path)
    assert runs.run() is RunOutcome.ENDED
    assert [row[1:] for row in rows(runs, topic)] == [row[1:] for row in ROWS]
    assert [report.counts.quarantined for report in runs.reports] == [2]
    assert read_until(runs.folders.ledger, topic) == 6


def test_a_run_without_a_registry_is_refused_before_anything_is_read(
    feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCKSTEP_REGISTRY__URL", raising=False)
    with pytest.raises(SettingsError, match=r"Avro\(\) needs a schema registry and none is set"):
        runs_of(avro_panels(feed.pattern), feed, tmp_path).run()
