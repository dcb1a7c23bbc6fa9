"""Derived tables of the adding stream, importable by name, and their expected content by plain Python."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from deltalake import DeltaTable

from lockstep import Envelope, Record
from lockstep.derived import Derived, Watermark
from tests.support.adding_stream import Adding, Snapshot, Update, adding
from tests.support.evolving_streams import Wider
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from lockstep.declare.stream import AnyStream
    from tests.support.feed import Feed

WINDOW = timedelta(seconds=10)
DELAY = timedelta(seconds=5)
START = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Timed(Adding):
    """The adding fold, with the time of the record as event time."""

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        """The session is the key."""
        return msgspec.structs.replace(super().envelope(message, record), event_time_us=record.timestamp_ms * 1000)


class TimedWider(Wider):
    """A later release, whose rows have more columns."""

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        """The session is the key."""
        return msgspec.structs.replace(super().envelope(message, record), event_time_us=record.timestamp_ms * 1000)


def keep_rows(rows: DataFrame) -> DataFrame:
    """Keep all rows and columns."""
    return rows.where("total IS NOT NULL")


def keep_none(rows: DataFrame) -> DataFrame:
    """Select a partition that no file has: no file is opened."""
    return rows.where("commit_hour = 'none'")


def count_windows(rows: DataFrame) -> DataFrame:
    """Count the rows of each session in windows of event time."""
    from pyspark.sql import functions as sf

    grouped = rows.groupBy(sf.window("_event_time", "10 seconds").alias("w"), "_session").count()
    return grouped.select(sf.col("w.start").alias("start"), "_session", "count")


def count_values(rows: DataFrame) -> DataFrame:
    """Count the rows of each name."""
    return rows.groupBy("name").count()


def join_sessions(rows: DataFrame, others: DataFrame) -> DataFrame:
    """Join the rows of two streams by session and event time."""
    left = rows.select("_session", "_event_time", "value")
    right = others.selectExpr("_session AS s", "_event_time AS t", "value AS other")
    return left.join(right, (left["_session"] == right["s"]) & (left["_event_time"] == right["t"])).drop("s", "t")


def give_rows(rows: DataFrame) -> list[int]:
    """Return a list instead of a DataFrame."""
    return [len(rows.columns)]


def fail_at_runs(rows: DataFrame) -> DataFrame:
    """Raise an error at each run."""
    return rows.limit(1 // 0)


def activity(stream: AnyStream | None = None, name: str = "activity", **changed: Any) -> Derived:
    """Make the derived table of a stream's windows."""
    made: dict[str, Any] = {
        "name": name,
        "sources": (stream or adding("x"),),
        "derive": count_windows,
        "watermark": Watermark("_event_time", DELAY),
    }
    return Derived(**(made | changed))


def send_each_second(feed: Feed, topic: str, sent: list[tuple[str, bytes]], first: int = 0) -> None:
    """Send messages, one for each second of event time."""
    from tests.support.feed import ProducerRecord

    at = int(START.timestamp() * 1000)
    feed.append(topic, [ProducerRecord(key, value, at + 1000 * (first + n)) for n, (key, value) in enumerate(sent)])


def expected_windows(table: Path) -> Counter[tuple[datetime, str, int]]:
    """Count the rows of a stream's table in the windows that the watermark has closed."""
    times = DeltaTable(table).to_pyarrow_table(columns=["_event_time", "_session"]).to_pylist()
    if not times:
        return Counter()
    closed = max(row["_event_time"] for row in times) - DELAY
    counted = Counter((EPOCH + (row["_event_time"] - EPOCH) // WINDOW * WINDOW, row["_session"]) for row in times)
    return Counter((start, name, count) for (start, name), count in counted.items() if start + WINDOW <= closed)


def stored_windows(table: Path) -> Counter[tuple[datetime, str, int]]:
    """Return the windows in the derived table, each with its number of occurrences."""
    return Counter((row["start"], row["_session"], row["count"]) for row in read_table(table).to_pylist())
