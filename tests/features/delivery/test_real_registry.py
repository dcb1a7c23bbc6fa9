"""Streams and deliveries through a real schema registry: ids, imports, compatibility, and a registry that is killed."""

from __future__ import annotations

import io
import json
import shutil
from typing import TYPE_CHECKING, Any

import fastavro
import msgspec
import pytest
import requests

from lockstep.declare.decoders.schema_registry import HttpRegistry
from lockstep.decoders import Avro
from lockstep.delivery import RowSource, TargetInterrupted, TargetRefused
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import make_registry
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.features.delivery.avro_deliveries import Avros, to_noted
from tests.features.delivery.delivering import (
    PARTITIONS,
    assert_delivered,
    create_target,
    read_encoded,
    read_rows,
    send,
)
from tests.support.adding_stream import Reading
from tests.support.decoders.readings import SNAPSHOT, UPDATE
from tests.support.decoders.registered import frame
from tests.support.decoders.streams import avro_panels
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import read_table, rows_of
from tests.support.real_registry import TIMEOUT_SECONDS, RealRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.feed import Feed

pytestmark = pytest.mark.slow  # 142 MB to fetch, and 10 s of CPU to start


class Worded(msgspec.Struct):
    """A reading whose value is a text: readers of numbers cannot read it."""

    name: str
    value: str
    total: int


Worded.__name__ = Reading.__name__


def to_worded(row: Reading, origin: RowSource) -> Worded:
    del origin
    return Worded(row.name, str(row.value), row.total)


class Inner(msgspec.Struct):
    seq: int


class Outer(msgspec.Struct):
    inner: Inner
    id: str


def make_outer(inner: object) -> dict[str, object]:
    """The schema of `Outer`, with the schema of `Inner` or its name."""
    fields = [{"name": "inner", "type": inner}, {"name": "id", "type": "string"}]
    return {"type": "record", "name": "Outer", "namespace": "acme", "fields": fields}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    running = RealRegistry.start(tmp_path_factory.mktemp("registry"))
    yield running
    running.kill()
    shutil.rmtree(running.folder / "lib")  # 150 MB: pytest keeps the folder after a failure


@pytest.fixture
def source(feed: Feed, runs: LocalRuns) -> str:
    """A topic of two partitions with the rows of two sessions."""
    topic = feed.create("values", 2)
    send(feed, topic, "pq", 3)
    runs.run()
    return topic


@pytest.fixture
def avros(feed: Feed, runs: LocalRuns, registry: RealRegistry, source: str) -> Avros:
    del source
    return Avros(feed, runs, registry.url, create_target(feed), TIMEOUT_SECONDS)


def read_by_other_means(avros: Avros) -> None:
    """Compare each row of the table with its message, decoded by fastavro with the schema that the registry returns."""

    def read(value: bytes) -> Any:
        assert value[0] == 0
        address = f"{avros.url}/schemas/ids/{int.from_bytes(value[1:5], 'big')}"
        schema = json.loads(requests.get(address, timeout=TIMEOUT_SECONDS).json()["schema"])
        return fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)

    arrived = read_encoded(avros.feed.bootstrap_servers, avros.target, PARTITIONS, read)
    assert_delivered(arrived, read_rows(avros.runs.folders))


def test_a_stream_reads_messages_of_registered_schemas(
    feed: Feed, registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_REGISTRY__URL", registry.url)
    topic = feed.create("values")
    snapshots = registry.register("snapshots-value", json.dumps(SNAPSHOT))
    updates = registry.register("updates-value", json.dumps(UPDATE))
    feed.send(topic, [frame(SNAPSHOT, {"seq": 1, "values": {"a": 1.0}}, snapshots)])
    feed.send(topic, [frame(UPDATE, {"seq": 2, "id": "a", "value": 1.5}, updates)])
    runs = LocalRuns(avro_panels(feed.pattern), feed.bootstrap_servers, tmp_path)
    assert runs.run() is RunOutcome.ENDED
    assert rows_of(read_table(runs.folders.table), topic, ("id", "value", "previous")) == [("a", 1.5, 1.0)]
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka, make_registry(runs.settings.registry))
    assert report.status is InvariantStatus.PROVEN, (report.violations, report.notes)


def test_a_schema_that_imports_another_is_read_with_it(registry: RealRegistry) -> None:
    inner = {"type": "record", "name": "Inner", "namespace": "acme", "fields": [{"name": "seq", "type": "long"}]}
    outer = make_outer("acme.Inner")
    registry.register("inner-value", json.dumps(inner))
    imported = {"name": "acme.Inner", "subject": "inner-value", "version": 1}
    schema_id = registry.register("outer-value", json.dumps(outer), references=[imported])
    decode = Avro().build_with(HttpRegistry(registry.url), Outer)
    assert decode(frame(make_outer(inner), {"inner": {"seq": 7}, "id": "a"}, schema_id)) == Outer(Inner(7), "a")


def test_rows_are_delivered_and_read_by_another_client(avros: Avros, registry: RealRegistry, source: str) -> None:
    assert avros.deliver(transaction_rows=5).rows == 12
    read_by_other_means(avros)
    registry.require_compatibility(f"{avros.target}-value", "BACKWARD")
    send(avros.feed, source, "pq", 2, first=5)
    avros.runs.run()
    with pytest.raises(TargetRefused, match="does not take the schema"):
        avros.deliver(select=to_worded)
    assert avros.deliver().rows == 8
    read_by_other_means(avros)
    send(avros.feed, source, "pq", 1, first=7)
    avros.runs.run()
    assert avros.deliver(select=to_noted).rows == 4, "a further optional field is compatible"


def test_a_registry_that_is_killed_interrupts_and_its_successor_continues(
    avros: Avros, registry: RealRegistry, source: str
) -> None:
    """The successor has no schemas and assigns other ids."""
    assert avros.deliver().rows == 12
    send(avros.feed, source, "pq", 2, first=5)
    avros.runs.run()
    registry.kill()
    try:
        with pytest.raises(TargetInterrupted, match=str(registry.port)):
            avros.deliver()
    finally:
        registry.resume()
    for number in range(3):
        registry.register("other-value", json.dumps({"type": "fixed", "name": "other", "size": number + 1}))
    assert avros.deliver().rows == 8
    assert avros.prove().status is InvariantStatus.PROVEN
