"""Rows in Avro: a consumer with the schema registry reads them, and a refusal of the registry is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lockstep.declare.decoders.schema_registry import HttpRegistry
from lockstep.decoders import Avro
from lockstep.delivery import RowFormat, RowSource, TargetInterrupted, TargetRefused
from lockstep.features.delivery.diagnoses import check_deliveries
from lockstep.features.delivery.position import DeliveryHalted
from lockstep.verify.report import InvariantStatus
from tests.features.delivery.avro_deliveries import Avros, NotedReading, to_noted
from tests.features.delivery.delivering import (
    PARTITIONS,
    create_target,
    declare,
    read_encoded,
    send,
)
from tests.support.adding_stream import Reading
from tests.support.decoders.registered import FIRST_ID, HttpSchemas, http_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


def to_large_noted(row: Reading, origin: RowSource) -> NotedReading:
    """Make a value that exceeds a long, except for the first offset."""
    return NotedReading(row.name, row.value << 64 if origin.offset else row.value, row.total)


@pytest.fixture
def schemas() -> Iterator[HttpSchemas]:
    with http_schemas() as running:
        yield running


@pytest.fixture
def source(feed: Feed, runs: LocalRuns) -> str:
    """A topic of two partitions with rows of two sessions."""
    topic = feed.create("values", 2)
    send(feed, topic, "pq", 3)
    runs.run()
    return topic


@pytest.fixture
def target(feed: Feed, source: str) -> str:
    del source
    return create_target(feed)


@pytest.fixture
def avros(feed: Feed, runs: LocalRuns, schemas: HttpSchemas, target: str) -> Avros:
    return Avros(feed, runs, schemas.url, target)


def test_rows_are_delivered_with_the_registered_schema_and_proven(
    avros: Avros, schemas: HttpSchemas, source: str
) -> None:
    assert avros.deliver(transaction_rows=5).rows == 12
    avros.check()
    send(avros.feed, source, "pq", 2, first=5)
    avros.runs.run()
    assert avros.deliver().rows == 8
    avros.check()
    assert (avros.prove().status, avros.prove().reason) == (InvariantStatus.PROVEN, "")
    assert schemas.register("other", '"string"') == FIRST_ID + 1, "one schema was registered"
    schemas.forget()
    send(avros.feed, source, "pq", 1, first=7)
    avros.runs.run()
    assert avros.deliver().rows == 4
    assert avros.prove().status is InvariantStatus.PROVEN, "also after the registry has given another id"


def test_a_new_optional_field_is_a_further_schema_that_readers_of_both_can_read(avros: Avros, source: str) -> None:
    avros.deliver()
    send(avros.feed, source, "pq", 2, first=5)
    avros.runs.run()
    assert avros.deliver(select=to_noted).rows == 8
    decode = Avro().build_with(HttpRegistry(avros.url), NotedReading)

    def read(value: bytes) -> Any:
        return msgspec.to_builtins(decode(value))

    arrived = read_encoded(avros.feed.bootstrap_servers, avros.target, PARTITIONS, read)
    assert {each.value["note"] for each in arrived} == {None, "p", "q"}
    assert avros.prove(select=to_noted).status is InvariantStatus.NOT_PROVEN


def test_a_registry_that_refuses_or_fails_is_named_and_no_row_is_written(avros: Avros, schemas: HttpSchemas) -> None:
    declared = declare(avros.runs.stream, avros.target, format=RowFormat.AVRO)

    def diagnose(asking: Avros = avros) -> str:
        findings = check_deliveries({declared.stream.name: declared.stream}, asking.settings)
        return " ".join(each.found for each in findings)

    assert "the first run registers the schema" in diagnose()
    assert "the first run registers the schema" in diagnose(), "the doctor registers nothing"
    schemas.incompatible = {f"{avros.target}-value"}
    for is_read_only, words in ((True, "HTTP 403: this account may not"), (False, "READER_FIELD_MISSING")):
        schemas.is_read_only = is_read_only
        with pytest.raises(TargetRefused, match=words) as refused:
            avros.deliver()
        assert "lockstep delivery schema readings" in refused.value.next_step
    schemas.refusing = [(503, b"{}")] * 100
    impatient = replace(avros, registry_seconds=2)
    assert "HTTP 503" in diagnose(impatient)
    with pytest.raises(TargetInterrupted, match="HTTP 503"):
        impatient.deliver()
    schemas.refusing.clear()
    schemas.incompatible.clear()
    with pytest.raises(DeliveryHalted, match="Avro cannot hold it: Python int too large"):
        avros.deliver(select=to_large_noted)
    assert read_encoded(avros.feed.bootstrap_servers, avros.target, PARTITIONS, len) == []
    assert avros.deliver().rows == 12
    avros.check()
    assert f"has the schema of its rows, as {avros.target}-value" in diagnose()
    with pytest.raises(TargetRefused, match="has values of the format avro, and json is declared"):
        avros.deliver(format=RowFormat.JSON)
    schemas.is_write_only = True
    assert avros.deliver().rows == 0, "an account that may register and not read delivers"
