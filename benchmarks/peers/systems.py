"""The peers, and the promise that each keeps on the workload as it is written here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers import bytewax, quix, structured_streaming
from benchmarks.peers.build import build_java
from benchmarks.systems import System


@dataclass(frozen=True)
class Promise:
    """The guarantees of a peer.

    Attributes:
        order: The order of a session's messages that it keeps.
        exactly_once: The effects that are exactly once.
        recovery: The source of its state after a failure.
    """

    order: str
    exactly_once: str
    recovery: str


@dataclass(frozen=True)
class Peer:
    """Another system on the workload.

    Attributes:
        system: The command of a run.
        prepare: Builds it; raises EnvironmentProblem if that is not possible.
        promise: Its guarantees.
        ratio_max: The most that lockstep's CPU time to this peer's may be.
    """

    system: System
    prepare: Callable[[], object]
    promise: Promise
    ratio_max: float = 1.0


_KEYED = "of a partition, by an exchange"

_FLINK = Promise(
    _KEYED,
    "state, offsets and plain Parquet files, by a checkpoint every 5 s",
    "the last checkpoint, incremental with RocksDB",
)
_CHANGELOG = Promise(
    "of a partition, without an exchange",
    "state, offsets and rows in a topic, by a transaction every 5 s",
    "the changelog topic, or the local store's part of it",
)
_PYSPARK = Promise(
    "none: the fold sorts each session by offset in memory",
    "state, offsets and rows of a micro-batch, by a commit of a Delta table",
    "the checkpoint's changelog of RocksDB",
)
_BYTEWAX = Promise(
    _KEYED,
    "state, offsets and plain Parquet files, by an epoch every 5 s",
    "the recovery store (SQLite), which holds whole sessions, on a local disk",
)

FLINK_RATIO_MAX = 0.65

PEERS = {
    peer.system.name: peer
    for peer in (
        Peer(System("flink-heap", "benchmarks.peers.flink", "rows", ("hashmap",)), build_java, _FLINK, FLINK_RATIO_MAX),
        Peer(System("flink-rocksdb", "benchmarks.peers.flink", "rows", ("rocksdb",)), build_java, _FLINK),
        Peer(System("kafka-streams", "benchmarks.peers.kafka_streams", rows=None), build_java, _CHANGELOG),
        Peer(System("quix", "benchmarks.peers.quix", rows=None), quix.build, _CHANGELOG),
        Peer(
            System("pyspark", "benchmarks.peers.structured_streaming", "table"),
            structured_streaming.find_jars,
            _PYSPARK,
        ),
        Peer(System("bytewax", "benchmarks.peers.bytewax", "rows"), bytewax.build, _BYTEWAX),
    )
}


def make_promises() -> str:
    """The promises as a table in Markdown, a row each."""
    names: dict[Promise, list[str]] = {}
    for name, peer in PEERS.items():
        names.setdefault(peer.promise, []).append(name)
    lines = ["| peer | order | exactly once | state recovered from |", "|---|---|---|---|"]
    for promise, keepers in names.items():
        lines.append(f"| {', '.join(keepers)} | {promise.order} | {promise.exactly_once} | {promise.recovery} |")
    return "\n".join(lines) + "\n"
