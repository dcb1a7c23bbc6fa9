"""Commands that read what a stream has made: query, state, positions."""

from __future__ import annotations

import csv
import sys
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.commands.app import AsJson, Panel, StreamName, all_streams, command, folders_of, settings, stream_of
from lockstep.commands.output import answer, grid, records, tell

if TYPE_CHECKING:
    from lockstep.operations.positions import Positions
    from lockstep.operations.query import QueryResult
    from lockstep.operations.state import SessionStates

TABLE_ROWS = 100
"""Rows that people are shown when they name no limit; scripts get all."""


class Form(Enum):
    """How positions are printed."""

    TABLE = "table"
    JSON = "json"
    SPARK = "spark"


@command('query "SELECT side, count(*) FROM order_books GROUP BY side"', Panel.LOOK)
def query(
    what: Annotated[
        str, typer.Argument(metavar="STREAM|SQL", help="A stream, or SQL over <stream>, <stream>_ledger, _quarantine.")
    ],
    version: Annotated[int | None, typer.Option(min=0, help="A version of the table; with STREAM.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(help="The rows as of a time (UTC).", formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help=f"Most rows; {TABLE_ROWS} for the table, else all.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values with a header.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Query rows, of now, of a version or of a time. Needs no Spark: the engine is DataFusion."""
    most = limit if limit is not None or as_csv or as_json else TABLE_ROWS
    found = _asked(what, version, at, most)
    if as_csv:
        _csv(found)
    else:
        answer(found, _rows, as_json=as_json)
    if found.more:
        tell(f"the first {len(found.rows)} rows; more with --limit")


@command("state order_books --topic order_books.spot_btcusdt --session BTCUSDT", Panel.LOOK)
def state(
    stream: StreamName,
    topic: Annotated[str | None, typer.Option(help="Only sessions of this topic.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only sessions of this partition.")] = None,
    session: Annotated[str | None, typer.Option(help="This session, decoded.")] = None,
    at: Annotated[int | None, typer.Option("--at", metavar="BATCH", min=0, help="As of this committed batch.")] = None,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """List the sessions that have a state; with --session show it, as JSON, at the committed position or at a batch.

    Reads durable files only. The struct of a state is the stream's own.
    """
    from lockstep.operations.state import Wanted, read_states

    found = read_states(stream_of(stream), settings().table_root, Wanted(topic, partition, session), at)
    answer(found, _sessions, as_json=as_json or session is not None)


@command("positions order_books --format spark", Panel.LOOK)
def positions(
    stream: StreamName,
    form: Annotated[Form, typer.Option("--format", help="spark: startingOffsets of its Kafka source.")] = Form.TABLE,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Print the committed positions, for another reader of the same topics to start from."""
    from lockstep.operations.positions import read_positions, spark_offsets

    found = read_positions(folders_of(stream))
    if form is Form.SPARK and not as_json:
        sys.stdout.write(spark_offsets(found) + "\n")
    else:
        answer(found, _positions, as_json=as_json or form is Form.JSON)


def _asked(what: str, version: int | None, at: datetime | None, limit: int | None) -> QueryResult:
    from lockstep.declare.stream import NAME
    from lockstep.operations.query import AsOf, query_sql, query_stream

    as_of = AsOf(version=version, time=None if at is None else at.replace(tzinfo=UTC))
    streams, root = all_streams(), settings().table_root
    if NAME.fullmatch(what):
        return query_stream(stream_of(what).name, root, as_of, limit=limit)
    return query_sql(what, streams, root, as_of, limit=limit)


def _rows(found: QueryResult) -> RenderableType:
    return records(found.columns, found.rows)


def _csv(found: QueryResult) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(found.columns)
    writer.writerows(found.rows)


def _sessions(found: SessionStates) -> RenderableType:
    rows = ((s.topic, s.partition, s.session, s.position, s.stored_bytes) for s in found.sessions)
    return grid(("topic", "partition", "session", "position", "stored bytes"), rows)


def _positions(found: Positions) -> RenderableType:
    rows = ((p.topic, p.partition, p.next_offset) for p in found.partitions)
    return grid(("topic", "partition", "next offset"), rows)
