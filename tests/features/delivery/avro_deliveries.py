"""Deliveries in Avro from one stream to one topic, by any schema registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.declare.decoders.schema_registry import HttpRegistry
from lockstep.decoders import Avro
from lockstep.delivery import RowFormat, RowSource
from lockstep.features.delivery.deliver import DeliveryRun
from lockstep.features.delivery.prove import prove_deliveries
from lockstep.settings import RegistrySettings, Settings
from lockstep.verify.report import FollowerProof
from tests.features.delivery.delivering import (
    PARTITIONS,
    assert_delivered,
    declare,
    read_encoded,
    read_rows,
    run,
)
from tests.support.adding_stream import Reading

if TYPE_CHECKING:
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


class NotedReading(msgspec.Struct):
    """A later version of `Reading`, of the same name, with a note."""

    name: str
    value: int
    total: int
    note: str | None = None


NotedReading.__name__ = Reading.__name__


def to_noted(row: Reading, origin: RowSource) -> NotedReading:
    """Add a note."""
    return NotedReading(row.name, row.value, row.total, origin.session)


@dataclass
class Avros:
    """Deliveries in Avro from one stream to one topic.

    Attributes:
        feed: The client of the broker.
        runs: The stream.
        url: The address of the registry.
        target: The topic.
        registry_seconds: Time limit of a request to the registry.
    """

    feed: Feed
    runs: LocalRuns
    url: str
    target: str
    registry_seconds: float = 20

    @property
    def settings(self) -> Settings:
        registry = RegistrySettings(url=self.url, timeout_seconds=self.registry_seconds)
        return self.runs.settings.model_copy(update={"registry": registry})

    def deliver(self, **options: Any) -> DeliveryRun:
        declared = declare(self.runs.stream, self.target, **{"format": RowFormat.AVRO, **options})
        return run(declared, self.settings)

    def prove(self, **options: Any) -> FollowerProof:
        declared = declare(self.runs.stream, self.target, format=RowFormat.AVRO, **options)
        (proof,) = prove_deliveries(declared.stream, self.runs.folders, self.settings.kafka)
        return proof

    def check(self, kind: type[msgspec.Struct] = Reading) -> None:
        """Assert that a consumer decodes each row of the table once."""
        decode = Avro().build_with(HttpRegistry(self.url), kind)

        def read(value: bytes) -> Any:
            return msgspec.to_builtins(decode(value))

        arrived = read_encoded(self.feed.bootstrap_servers, self.target, PARTITIONS, read)
        assert_delivered(arrived, read_rows(self.runs.folders))
