"""The current rows in SQL: `<stream>_current` of `lockstep query`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from lockstep.declare.stream import AnyStream
from lockstep.features.current.columns import PLACE, find_current_columns
from lockstep.features.current.history import CurrentBase
from lockstep.features.current.refresh import judge_current, read_current_version
from lockstep.features.current.state_rows import read_state_rows
from lockstep.model.table_schema import COMMIT_HOUR
from lockstep.operations.inspect.state import NotRetained
from lockstep.operations.query import QueriedStream, QueriedTable
from lockstep.operations.stream_table import open_table
from lockstep.table import delta_log, ledger
from lockstep.table.commit import Base

_VIEW = """\
SELECT {columns}
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY {identity}
        ORDER BY _emit_offset DESC, _row DESC
    ) AS age
    FROM (
        SELECT {columns}, -1 AS _emit_offset, 0 AS _row, false AS is_removed
        FROM {current}
        UNION ALL
        SELECT {columns}, _emit_offset, _row, {removed} IS NULL AS is_removed
        FROM {changes}
        WHERE commit_hour >= {since}
    ) AS both_tables
) AS numbered
WHERE age = 1 AND NOT is_removed"""


def make_view(base: CurrentBase, *, current: str, changes: str, since: str) -> str:
    """The query of the current rows of now: those of a current table, and the changes since its refresh.

    A row of `since` or a later hour is newer than all rows of earlier hours. So the newest of them is the current row
    of its key; a key without such a row has the row of the current table.

    Args:
        base: The metadata of the current table.
        current: Name of the current table in SQL.
        changes: Name of the table of the stream in SQL.
        since: The hour of the refresh, or an earlier hour, as an expression of SQL.
    """
    columns = (*PLACE, *base.key, *base.values, COMMIT_HOUR)
    return _VIEW.format(
        columns=_quote(*columns),
        identity=_quote(*PLACE[1:], *base.key),
        removed=_quote(base.removed),
        current=current,
        changes=changes,
        since=since,
    )


def _quote(*names: str) -> str:
    return ", ".join(f'"{name}"' for name in names)


def find_current_rows(asked: QueriedStream, stack: ExitStack) -> Iterator[QueriedTable]:
    """The current rows of a stream in the version of a query, if the query names them.

    Those of now are the rows of the current table with the changes since. Without a current table of this history, and
    for an earlier version, they are made from the states.

    Args:
        asked: The stream, its version and the query.
        stack: Keeps files until the query has ended.

    Raises:
        NotRetained: The states of an earlier version are not kept any more.
    """
    stream = asked.declared
    name = f"{asked.folders.stream}_current"
    if name not in asked.sql or stream is None or stream.replay_key is None:
        return
    now = Base(version=asked.version, head=asked.head)
    current = read_current_version(asked.folders)
    base = current.base
    if asked.is_now and base is not None and judge_current(stream, asked.folders, current, now) is None:
        rows = f"{name}__rows"
        table = delta_log.open_delta_table(asked.folders.current, version=current.version)
        changes = f'"{asked.folders.stream}"'
        sql = make_view(base, current=f'"{rows}"', changes=changes, since=f"'{base.hour}'")
        yield QueriedTable(name=name, sql=sql, tables={rows: table})
    else:
        yield QueriedTable(name=name, sql="", tables={name: _make_table(stream, asked, stack)})


def _make_table(stream: AnyStream, asked: QueriedStream, stack: ExitStack) -> DeltaTable:
    """Make the rows of the states in a folder of the query."""
    folders = asked.folders
    newest = open_table(folders).base().head
    batch = asked.head.batch
    if not newest.may_rewind_to(batch):
        raise NotRetained(folders.stream, batch, newest.rewind_floor, newest.batch)
    columns = find_current_columns(stream)
    positions = ledger.read_positions(folders, asked.head).values()
    tables = read_state_rows(stream, folders.state, positions, columns, asked.head.hour)
    made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-current-")))
    write_deltalake(made, pa.concat_tables([columns.schema.empty_table(), *tables]))
    return delta_log.open_delta_table(made)
