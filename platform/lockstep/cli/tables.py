"""Contents of the tables: rows, differences, states of sessions, positions."""

from __future__ import annotations

import csv
import sys
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    AsJson,
    Panel,
    StreamName,
    find_stream_or_exit,
    list_all_derived,
    list_all_streams,
    load_settings_or_exit,
    open_handle,
    parse_time,
    register_command,
)
from lockstep.cli.output import make_grid, make_lines, make_records, print_answer, print_note, style_text

if TYPE_CHECKING:
    from lockstep.operations.inspect.state import SessionStates
    from lockstep.operations.inspect.streams import Positions
    from lockstep.operations.query import QueryResult


TABLE_ROWS = 100
"""Rows shown on a terminal without a limit; scripts get all."""
PLAN_COLUMNS = ["plan_type", "plan"]
"""Of the answer to EXPLAIN, whose text has lines."""


class Form(Enum):
    """Output format of positions."""

    TABLE = "table"
    JSON = "json"
    SPARK = "spark"


@register_command('query "SELECT side, count(*) FROM order_books GROUP BY side"', Panel.INSPECT)
def query(
    what: Annotated[
        str,
        typer.Argument(
            metavar="TABLE|SQL", help="A stream, shadow or derived table, or SQL over them and <stream>_ledger, ..."
        ),
    ],
    version: Annotated[int | None, typer.Option(min=0, help="A version of the table; with TABLE.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(parser=parse_time, metavar="TIME", help="The rows as of a time, UTC without a zone."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help=f"Most rows; {TABLE_ROWS} for the table, else all.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values with a header.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Query rows with SQL, as of now, a version or a time.

    Needs no Spark: the engine is DataFusion.
    """
    most = limit if limit is not None or as_csv or as_json else TABLE_ROWS
    found = _asked(what, version, at, most)
    if as_csv:
        _csv(found)
    else:
        print_answer(found, _rows, as_json=as_json)
    for note in found.notes:
        print_note(note)
    if found.more:
        print_note(f"the first {len(found.rows)} rows; more with --limit")


@register_command("state order_books --topic order_books.spot_btcusdt --session BTCUSDT", Panel.INSPECT)
def state(
    stream: StreamName,
    topic: Annotated[str | None, typer.Option(help="Only sessions of this topic.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only sessions of this partition.")] = None,
    session: Annotated[str | None, typer.Option(help="This session, decoded.")] = None,
    at: Annotated[int | None, typer.Option("--at", metavar="BATCH", min=0, help="As of this committed batch.")] = None,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """List the sessions that have a state; with --session show it as JSON, at the committed position or at a batch.

    Reads durable files only. The structure of a state is the stream's own.
    """
    from lockstep.operations.inspect.state import StateFilter, read_states

    found = read_states(
        find_stream_or_exit(stream), load_settings_or_exit().table_root, StateFilter(topic, partition, session), at
    )
    print_answer(found, _sessions, as_json=as_json or session is not None)


@register_command("positions order_books --format spark", Panel.INSPECT)
def positions(
    stream: StreamName,
    form: Annotated[Form, typer.Option("--format", help="spark: startingOffsets of its Kafka source.")] = Form.TABLE,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Print the committed positions, for another reader of the same topics to start from."""
    from lockstep.operations.inspect.streams import format_spark_offsets, read_positions

    found = read_positions(open_handle(stream))
    if form is Form.SPARK and not as_json:
        sys.stdout.write(format_spark_offsets(found) + "\n")
    else:
        print_answer(found, _positions, as_json=as_json or form is Form.JSON)


def _asked(what: str, version: int | None, at: datetime | None, limit: int | None) -> QueryResult:
    from lockstep.declare.naming import NAME
    from lockstep.operations.query import AsOf, query_derived, query_sql, query_stream

    as_of = AsOf(version=version, time=at)
    streams = list_all_streams()
    derived = list_all_derived()
    root = load_settings_or_exit().table_root
    if what in derived:
        return query_derived(what, root, as_of, limit=limit)
    if NAME.fullmatch(what):
        return query_stream(find_stream_or_exit(what).name, root, as_of, limit=limit)
    return query_sql(what, streams, root, as_of, limit=limit, derived=derived)


def _rows(found: QueryResult) -> RenderableType:
    if found.columns == PLAN_COLUMNS:
        return make_lines(*(style_text(f"{kind}:\n{plan}") for kind, plan in found.rows))
    return make_records(found.columns, found.rows)


def _csv(found: QueryResult) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(found.columns)
    writer.writerows(found.rows)


def _sessions(found: SessionStates) -> RenderableType:
    rows = ((s.topic, s.partition, s.session, s.position, s.stored_bytes) for s in found.sessions)
    return make_grid(("topic", "partition", "session", "position", "stored bytes"), rows)


def _positions(found: Positions) -> RenderableType:
    rows = ((p.topic, p.partition, p.next_offset) for p in found.partitions)
    return make_grid(("topic", "partition", "next offset"), rows)
