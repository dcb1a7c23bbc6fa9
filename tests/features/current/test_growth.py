"""A growing topic moves sessions: the current table has the rows of the states in each partition."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec
from deltalake import DeltaTable

from lockstep import OnGrowth, Sequence, Strict, Topics
from lockstep.features.current.prove import prove_current
from lockstep.features.current.refresh import refresh_current
from lockstep.verify.report import InvariantStatus
from tests.correctness.verify.shelves import Change, Line, Shelves, shelf_stream

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


def make_stream(pattern: str) -> AnyStream:
    stream = shelf_stream(Shelves(), Strict(evidence=Sequence(), on_growth=OnGrowth.RESTART_SESSIONS))
    return dataclasses.replace(stream, topics=Topics(pattern=pattern), current=True)


def encode(kind: str, number: int, price: int | None) -> bytes:
    return msgspec.json.encode(Change(kind, number, number, [Line("a", 1, None if price is None else Decimal(price))]))


def test_a_session_that_moved_has_its_rows_in_the_newer_partition(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("shelves")
    runs = runs.of(make_stream(feed.pattern))

    def read_prices() -> dict[tuple[int, str], int]:
        """Run, refresh and prove. Return the price by partition and session."""
        runs.run()
        refresh_current(runs.stream, runs.folders)
        (proof,) = prove_current(runs.stream, runs.folders, runs.settings.kafka)
        assert (proof.status, proof.reason) == (InvariantStatus.PROVEN, "")
        rows = DeltaTable(runs.folders.current).to_pyarrow_table().to_pylist()
        return {(row["_partition"], row["_session"]): int(row["price"]) for row in rows}

    for session in ("stays", "moves"):
        feed.send(topic, [encode("snapshot", 1, 10), encode("update", 2, 11)], key=session, partition=0)
    assert read_prices() == {(0, "stays"): 11, (0, "moves"): 11}
    feed.grow(topic, partitions=2)
    feed.send(topic, [encode("snapshot", 1, 20), encode("update", 2, 21)], key="moves", partition=1)
    feed.send(topic, [encode("snapshot", 3, 12)], key="stays", partition=0)
    assert read_prices() == {(0, "stays"): 12, (0, "moves"): 11, (1, "moves"): 21}
    feed.send(topic, [encode("update", 3, None)], key="moves", partition=1)
    assert read_prices() == {(0, "stays"): 12, (0, "moves"): 11}
