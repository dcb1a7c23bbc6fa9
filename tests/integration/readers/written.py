"""A table as the engine writes it, its expected rows, and each reader's rows as plain Python."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from lockstep.features.compaction.run import compact_stream
from lockstep.operations.lifecycle import close_hour
from tests.integration.readers.orders import order, orders
from tests.support.feed import Feed
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from pyspark.sql import Row

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reading.md"
IDENTITY = ("_partition", "_emit_offset", "_row")
PARTITIONS = 2

Rows = list[dict[str, Any]]


def snippet(reader: str) -> str:
    """Return the page's code for a reader."""
    return read_block(f"python {reader}")


def read_block(name: str) -> str:
    """Return a block of the page by its language and name."""
    found = re.findall(r"^```(\w+ .+?)$\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return cast("dict[str, str]", dict(found))[name]


def run_snippet(reader: str, **given: object) -> Any:
    """Run the page's code and return its `frame`."""
    scope = dict(given)
    exec(compile(snippet(reader), str(PAGE), "exec"), scope)  # noqa: S102  # our own page
    return scope.get("frame")


@dataclass(frozen=True)
class Written:
    """A stream's growing table.

    Attributes:
        runs: Runs of the stream into it.
        feed: Feeds its topic.
        topic: The topic, of two partitions.
        sent: Messages sent to each partition, for all tables that share the topic.
        seen: Messages of each partition that are in this table.
    """

    runs: LocalRuns
    feed: Feed
    topic: str
    sent: list[int]
    seen: list[int]

    @classmethod
    def begin(cls, bootstrap_servers: str, root: Path) -> Written:
        """Create an empty stream over a new topic."""
        feed = Feed(bootstrap_servers, f"readers_{uuid.uuid4().hex[:8]}")
        runs = LocalRuns(orders(feed.pattern), bootstrap_servers, root)
        return cls(runs, feed, feed.create("orders", partitions=PARTITIONS), [0], [0])

    def more(self, messages: int) -> None:
        """Send a number of messages to each partition and run the stream to their end."""
        numbers = range(self.sent[0], self.sent[0] + messages)
        for partition in range(PARTITIONS):
            values = [msgspec.json.encode(order(number)) for number in numbers]
            self.feed.send(self.topic, values, key=f"s{partition}", partition=partition)
        self.sent[0] += messages
        self.catch_up()

    def catch_up(self) -> None:
        """Run the stream to the end of its topic, which all copies of the table share."""
        self.runs.run()
        self.seen[0] = self.sent[0]

    def compact(self) -> None:
        """Close the hours so far and compact them."""
        close_hour(self.runs.folders)
        assert compact_stream(self.runs.folders).bins > 0

    def expected(self) -> Rows:
        """Return all rows: the user's columns and the proof's columns that do not depend on the clock."""
        return [
            {
                **cast("dict[str, Any]", plain(order(number))),
                "_topic": self.topic,
                "_partition": partition,
                "_offset": number,
                "_emit_offset": number,
                "_row": 0,
                "_session": f"s{partition}",
                "_sequence": number,
                "_event_time": None,
                "_cause": "update",
            }
            for partition in range(PARTITIONS)
            for number in range(self.seen[0])
            if number % 100
        ]


def plain(value: Any) -> Any:
    """A message as plain values: Structs as dicts, enums as their values."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(inner) for name, inner in msgspec.structs.asdict(value).items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return getattr(value, "value", value)


def sorted_rows(rows: Rows) -> Rows:
    """Sort rows, without the columns that depend on the clock and the broker."""
    kept = [{name: row[name] for name in row if name not in {"_topic_id", "commit_hour"}} for row in rows]
    return sorted(kept, key=lambda row: [row[name] for name in IDENTITY])


def of_spark(frame: Any) -> Rows:
    """Return rows of Spark, which has bytes as bytearray and times without a zone in the process's zone."""
    return [_of_spark_row(row) for row in frame.collect()]


def _of_spark_row(row: Row) -> dict[str, Any]:
    values = row.asDict(recursive=True)
    return {name: _of_spark_value(value) for name, value in values.items()}


def _of_spark_value(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def of_arrow(frame: Any) -> Rows:
    """Return rows of Arrow, which has maps as pairs."""
    return [row | ({"counts": dict(row["counts"])} if "counts" in row else {}) for row in frame.to_pylist()]


def of_polars(frame: Any) -> Rows:
    """Return rows of Polars, whose values are plain."""
    return list(frame.iter_rows(named=True))


def of_duckdb(frame: Any) -> Rows:
    """Return rows of duckdb, which has times in the zone of its session."""
    rows = [dict(zip(frame.columns, values, strict=True)) for values in frame.fetchall()]
    return [row | ({"at": row["at"].astimezone(UTC)} if "at" in row else {}) for row in rows]


READERS: Mapping[str, Callable[[Any], Rows]] = {
    "spark": of_spark,
    "deltalake": of_arrow,
    "polars": of_polars,
    "duckdb": of_duckdb,
}
