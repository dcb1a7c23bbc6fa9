"""The peers, and the promise that each keeps on the workload as it is written here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers import bytewax, quix, structured_streaming
from benchmarks.peers.build import build_java
from benchmarks.systems import System


@dataclass(frozen=True)
class Peer:
    """Another system on the workload.

    Attributes:
        system: How it is run.
        prepare: Builds it; raises EnvironmentProblem where it cannot be had.
        order: What order of a session's messages it keeps.
        exactly_once: What is exactly once.
        recovery: What state is recovered from after a failure.
        ratio_max: The most that lockstep's CPU time to this peer's may be.
    """

    system: System
    prepare: Callable[[], object]
    order: str
    exactly_once: str
    recovery: str
    ratio_max: float = 1.0


_KEYED = "of a partition, kept by the exchange by session"
_OF_A_PARTITION = "of a partition, without an exchange"
_CHANGELOG = "the changelog topic, or the local store's part of it"

FLINK_RATIO_MAX = 0.65

PEERS = {
    peer.system.name: peer
    for peer in (
        Peer(
            System("flink-heap", "benchmarks.peers.flink", "rows", ("hashmap",)),
            build_java,
            _KEYED,
            "state, offsets and files, by a checkpoint every 5 s; plain Parquet files, no table",
            "the last checkpoint",
            FLINK_RATIO_MAX,
        ),
        Peer(
            System("flink-rocksdb", "benchmarks.peers.flink", "rows", ("rocksdb",)),
            build_java,
            _KEYED,
            "as flink-heap",
            "the last checkpoint, which is incremental",
        ),
        Peer(
            System("kafka-streams", "benchmarks.peers.kafka_streams", rows=None),
            build_java,
            _OF_A_PARTITION,
            "state, offsets and rows, by a transaction every 5 s; rows end in a topic",
            _CHANGELOG,
        ),
        Peer(
            System("pyspark", "benchmarks.peers.structured_streaming", "table"),
            structured_streaming.find_jars,
            "none: the fold sorts each session by offset in memory",
            "state, offsets and rows of a micro-batch, in one commit of a Delta table",
            "the checkpoint's changelog of the state store (RocksDB)",
        ),
        Peer(
            System("quix", "benchmarks.peers.quix", rows=None),
            quix.build,
            _OF_A_PARTITION,
            "as kafka-streams",
            _CHANGELOG,
        ),
        Peer(
            System("bytewax", "benchmarks.peers.bytewax", "rows"),
            bytewax.build,
            _KEYED,
            "state, offsets and files, by an epoch every 5 s; plain Parquet files, no table",
            "the recovery store (SQLite), which holds whole sessions, on a local disk",
        ),
    )
}


def make_promises() -> str:
    """The promises as a table in Markdown."""
    lines = ["| peer | order | exactly once | state recovered from |", "|---|---|---|---|"]
    lines += [f"| {name} | {peer.order} | {peer.exactly_once} | {peer.recovery} |" for name, peer in PEERS.items()]
    return "\n".join(lines) + "\n"
