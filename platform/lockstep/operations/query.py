"""SQL over tables."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError, TableError, name_stream
from lockstep.feature import load_parts
from lockstep.operations.stream_table import NoTable, has_table
from lockstep.table import delta_log
from lockstep.table.head import FIRST_GENERATION, Head
from lockstep.table.layout import DerivedFolders, StreamFolders, require_root

_EXPLAINS = r"explain\s+(?:(?:analyze|verbose|format\s+\w+)\s+)*"
READS = re.compile(rf"\s*(?:describe\b|(?:{_EXPLAINS})?[\s(]*(?:select|with|values)\b)", re.IGNORECASE)
"""The start of a query, and of an explained query: COPY would write files, also if EXPLAIN ANALYZE runs it."""
PLAIN: dict[pa.DataType, pa.DataType] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
"""DataFusion's own text types, which other libraries do not support yet."""
OF_FILES = ("External error", "Object Store error", "IO error", "Parquet error")
"""The start of DataFusion's error about an unreadable file; errors of the SQL start otherwise."""


Valid = Mapping[int, int]
"""Last batch that counts of each generation: `Head.valid_batches`."""


class WrongQuery(LockstepError):
    """The SQL is invalid, or names a missing table or column.

    Attributes:
        sql: The query.
    """

    def __init__(self, sql: str, reason: str, tables: Mapping[str, DeltaTable]) -> None:
        listed = ", ".join(sorted(tables)) or "none yet"
        super().__init__(f"the query failed: {reason}", next_step=f"correct the SQL; tables: {listed}")
        self.sql = sql


def run_sql(
    tables: Mapping[str, DeltaTable],
    sql: str,
    until: Mapping[str, Valid] | None = None,
    views: Mapping[str, str] | None = None,
) -> pa.Table:
    """The whole result of a read-only query.

    Args:
        tables: The tables by name.
        sql: The query.
        until: Newest visible batch of each generation, in tables with columns `generation` and `batch`.
        views: Queries over the tables by name.

    Raises:
        WrongQuery: With DataFusion's message and the existing tables.
        TableError: A file of a table cannot be read.
    """
    # COPY would write files, also under EXPLAIN ANALYZE.
    if not READS.match(sql):
        raise WrongQuery(sql, "it does not start with SELECT, WITH, VALUES or DESCRIBE, or EXPLAIN of these", tables)
    builder = QueryBuilder()
    for name, table in tables.items():
        _register(builder, name, table, (until or {}).get(name))
    # After the tables, which they read.
    for name, query in (views or {}).items():
        builder.execute(f'CREATE VIEW "{name}" AS {query}').read_all()
    try:
        rows = pa.table(builder.execute(sql).read_all())
    except Exception as error:  # what fails while rows are read is a bare Exception of DataFusion
        if str(error).startswith(OF_FILES):
            step = f"lockstep repair STREAM lists missing or damaged files; tables: {', '.join(sorted(tables))}"
            raise TableError(f"the tables cannot be read: {error}", next_step=step) from error
        raise WrongQuery(sql, str(error), tables) from error
    # DataFusion's own text types are unknown to other libraries.
    fields = [pa.field(field.name, PLAIN.get(field.type, field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _register(builder: QueryBuilder, name: str, table: DeltaTable, until: Valid | None) -> None:
    if until is None:
        builder.register(name, table)
        return
    builder.register(f"{name}__all", table)
    counts = " OR ".join(f"generation = {generation} AND batch <= {last}" for generation, last in until.items())
    view = f'CREATE VIEW "{name}" AS SELECT * FROM "{name}__all" WHERE {counts}'  # noqa: S608  # a stream's name is checked
    builder.execute(view).read_all()


class AsOf(msgspec.Struct, frozen=True):
    """Time or version to read.

    Attributes:
        version: A version of the output table; None for the newest.
        time: The newest version at that time; None for now.
    """

    version: int | None = None
    time: datetime | None = None


class QueryResult(msgspec.Struct, frozen=True):
    """Rows of a query.

    Attributes:
        sql: The query.
        versions: Version of each table that was read, by name.
        columns: Names of the columns, in order.
        types: Their Arrow types.
        rows: The rows; each a list of values in the order of the columns.
        more: Whether the limit left rows out.
        notes: Rows that the tables do not have any more, by stream.
    """

    sql: str
    versions: dict[str, int]
    columns: list[str]
    types: list[str]
    rows: list[list[object]]
    more: bool
    notes: tuple[str, ...] = ()


def query_sql(
    sql: str, streams: Iterable[str], root: Path, as_of: AsOf, *, limit: int | None, derived: Iterable[str] = ()
) -> QueryResult:
    """Run SQL over the tables of all streams: `<stream>`, `<stream>_ledger`, `<stream>_quarantine`, `<stream>_late`.

    Those of their shadows likewise, the derived tables, and tables that features add. The table of a stream or a
    derived table has precedence over another table of the same name.

    Args:
        sql: A read-only query.
        streams: Names of the declared streams, or their declarations by name.
        root: The table root.
        as_of: Time to read; a version belongs to one table and is refused here.
        limit: Maximum number of rows; None for all.
        derived: Names of the declared derived tables.

    Raises:
        WrongQuery: The SQL is invalid, or a table is missing.
        LockstepError: A version was named, or the table did not exist at that time.
    """
    if as_of.version is not None:
        raise LockstepError(
            "a version belongs to one table, and SQL may name several",
            next_step="lockstep query TABLE --version N, or SQL with --at TIME",
        )
    declared = list(streams)
    parts = dict[str, _Tables]()
    further = chain.from_iterable(list_tables(declared, root) for list_tables in load_parts("table_listers"))
    for stream in [*declared, *further]:
        if as_of.time is not None and stream not in sql:
            continue  # what its table was then may not be known
        parts[stream] = _tables(StreamFolders(stream, root), as_of)
    named = (name for name in derived if as_of.time is None or name in sql)
    folder_of = {name: DerivedFolders(name, root).table for name in named}
    others = {name: _opened(folder, as_of) for name, folder in folder_of.items() if delta_log.has_log(folder)}
    declarations: Mapping[str, AnyStream] = {}
    if isinstance(streams, Mapping):
        declarations = cast("Mapping[str, AnyStream]", streams)
    with ExitStack() as stack:
        further_tables = _find_further(parts, declarations, _Query(sql, root, as_of), stack)
        return _result(_add_further(_join(parts, others, sql), further_tables), sql, limit)


class QueriedStream(msgspec.Struct, frozen=True):
    """A stream in a query.

    Attributes:
        folders: Its folders.
        declared: Its declaration; None if it is unknown.
        version: The version of its table.
        head: The head of this version.
        is_now: Whether the version is the newest.
        sql: The query.
    """

    folders: StreamFolders
    declared: AnyStream | None
    version: int
    head: Head
    is_now: bool
    sql: str


class QueriedTable(msgspec.Struct, frozen=True):
    """A table that a feature adds to a query.

    Attributes:
        name: Its name.
        sql: The query that it is a view of; empty if it is among the tables.
        tables: Further tables by name.
    """

    name: str
    sql: str
    tables: dict[str, DeltaTable]


class _Query(NamedTuple):
    sql: str
    root: Path
    as_of: AsOf


def _find_further(
    parts: Mapping[str, _Tables], known: Mapping[str, AnyStream], query: _Query, stack: ExitStack
) -> Iterator[QueriedTable]:
    """The tables that features add for the streams of a query."""
    for stream, part in parts.items():
        if not part.tables:
            continue
        folders = StreamFolders(stream, query.root)
        version = part.tables[stream].version()
        head = delta_log.read_head(folders.table, version)
        if head is not None:
            asked = QueriedStream(folders, known.get(stream), version, head, query.as_of == AsOf(), query.sql)
            for find_tables in load_parts("query_tables"):
                yield from find_tables(asked, stack)


def _add_further(found: _Tables, further: Iterable[QueriedTable]) -> _Tables:
    """Add tables of features; others of the same name have precedence."""
    tables = dict(found.tables)
    views = dict[str, str]()
    for table in further:
        if table.name not in found.tables:
            tables |= table.tables
            if table.sql:
                views[table.name] = table.sql
    return msgspec.structs.replace(found, tables=tables, views=views)


def _join(parts: Mapping[str, _Tables], derived: Mapping[str, DeltaTable], sql: str) -> _Tables:
    """All tables by name: of a stream `a_ledger` and the ledger of a stream `a` it is that of the stream."""
    own = {stream: part.tables[stream] for stream, part in parts.items() if part.tables} | dict(derived)
    tables = dict[str, DeltaTable]()
    until = dict[str, Valid]()
    notes = list[str]()
    for stream, part in parts.items():
        tables |= part.tables
        until |= {name: valid for name, valid in part.until.items() if name not in own}
        if stream in sql:
            notes += part.notes
        hidden = sorted((part.tables.keys() & own.keys()) - {stream})
        notes += [f"{name} is a separate table, not that of {stream}" for name in hidden if name in sql]
    return _Tables(tables | own, until, tuple(notes))


def query_stream(stream: str, root: Path, as_of: AsOf, *, limit: int | None) -> QueryResult:
    """Rows of one stream's table in their own order: topic, partition, emit offset, row.

    Raises:
        NoTable: The stream has never run.
        TableRootMissing: The table root does not exist.
        LockstepError: The version does not exist.
    """
    tables = _tables(StreamFolders(stream, root), as_of)
    if not tables.tables:
        raise NoTable(stream, root)
    at_most = "" if limit is None else f" LIMIT {limit + 1}"
    sql = f'SELECT * FROM "{stream}" ORDER BY "_topic", "_topic_id", "_partition", "_emit_offset", "_row"{at_most}'  # noqa: S608  # a stream's name is checked
    with name_stream(stream):
        return _result(tables, sql, limit)


def query_derived(name: str, root: Path, as_of: AsOf, *, limit: int | None) -> QueryResult:
    """Rows of a derived table, in any order.

    Raises:
        LockstepError: The table was never made, or the version does not exist.
    """
    folder = DerivedFolders(name, root).table
    if not delta_log.has_log(folder):
        require_root(root)
        raise LockstepError(f"{name} has no table in {root} yet", next_step=f"lockstep derive {name}")
    at_most = "" if limit is None else f" LIMIT {limit + 1}"
    return _result(_Tables({name: _opened(folder, as_of)}, {}), f'SELECT * FROM "{name}"{at_most}', limit)  # noqa: S608  # a name is checked


class _Tables(msgspec.Struct, frozen=True):
    """Tables by name, the visible batches of each side table that shows less than it has, dropped rows, and views."""

    tables: dict[str, DeltaTable]
    until: dict[str, Valid]
    notes: tuple[str, ...] = ()
    views: dict[str, str] = {}


def _result(tables: _Tables, sql: str, limit: int | None) -> QueryResult:
    shown = run_sql(tables.tables, sql, tables.until, tables.views)
    more = limit is not None and shown.num_rows > limit
    if more:
        shown = shown.slice(0, limit)
    return QueryResult(
        sql=sql,
        versions={name: table.version() for name, table in tables.tables.items()},
        columns=shown.column_names,
        types=[str(field.type) for field in shown.schema],
        rows=list_rows(shown),
        more=more,
        notes=tables.notes,
    )


def list_rows(table: pa.Table) -> list[list[object]]:
    """The rows; a time outside of Python's calendar, which SQL may compute, as its number since 1970."""
    columns = [_list_values(column) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _list_values(column: pa.ChunkedArray[Any]) -> list[object]:
    try:
        return list(column.to_pylist())
    except OverflowError:
        return [_to_value(scalar) for scalar in column]


def _to_value(scalar: Any) -> object:
    try:
        return scalar.as_py()
    except OverflowError:
        if isinstance(scalar, pa.MapScalar):
            return [tuple(map(_to_value, entry.values())) for entry in scalar.values or ()]
        if isinstance(scalar, pa.StructScalar):
            return {name: _to_value(each) for name, each in scalar.items()}
        if isinstance(scalar, pa.ListScalar):
            return [*map(_to_value, scalar.values or ())]
        return scalar.value


def _tables(folders: StreamFolders, as_of: AsOf) -> _Tables:
    """The output table as of a version or a time; of the side tables, which keep their rows, the batches that count.

    Their own old versions are deleted soon: the files of a batch are compacted, the rows stay.
    """
    if not has_table(folders):
        return _Tables({}, {})
    output = _opened(folders.table, as_of)
    folder_of = {"ledger": folders.ledger, "quarantine": folders.quarantine, "late": folders.late}
    sides = dict[str, DeltaTable]()
    for name, folder in folder_of.items():
        if delta_log.has_log(folder):
            sides[f"{folders.stream}_{name}"] = delta_log.open_delta_table(folder)
    head = delta_log.read_head(folders.table, output.version())
    dropped = _list_dropped(folders, head)
    notes = tuple(f"{folders.stream}: {each} were dropped" for each in dropped)
    until = dict[str, Valid]()
    if as_of != AsOf() or (head is not None and head.lineage):
        valid = head.valid_batches if head is not None else {FIRST_GENERATION: 0}
        until = dict.fromkeys(sides, valid)
    return _Tables({folders.stream: output, **sides}, until, notes)


def _list_dropped(folders: StreamFolders, head: Head | None) -> Iterator[str]:
    """What retention has dropped: rows as of a head, messages of quarantine and late table as of now."""
    newest = delta_log.find_top_version(folders.table)
    now = head
    if newest is not None:
        now = delta_log.read_head(folders.table, newest)
    if head is not None and head.retention is not None:
        yield head.retention.describe()
    if now is not None and now.quarantine_retention is not None:
        yield now.quarantine_retention.describe()


def _opened(folder: Path, as_of: AsOf) -> DeltaTable:
    version = as_of.version
    if as_of.time is not None:
        version = find_version_at(folder, as_of.time)
    try:
        return delta_log.open_delta_table(folder, version=version)
    except DeltaError as error:
        if version is None:
            raise
        newest = delta_log.open_delta_table(folder).version()
        reason = str(error).splitlines()[0]
        raise LockstepError(
            f"{folder} cannot be read as of version {version}: {reason}", next_step=f"its newest version is {newest}"
        ) from error


def find_version_at(table: Path, moment: datetime) -> int:
    """The newest version of a table at a time, by the clock of its writer; before its creation version 0, without rows.

    Raises:
        LockstepError: The entries of that time are deleted.
    """
    # Not by Delta's search: it takes the oldest entry for that of any earlier time.
    versions = delta_log.list_versions(table)
    after = bisect_right(versions, moment, key=lambda version: _find_time(table, version))
    # Before its creation a table had no rows, as at its first version.
    if after == 0 and versions[:1] == [0]:
        return 0
    if after == 0 or (after < len(versions) and versions[after] != versions[after - 1] + 1):
        since = _find_time(table, versions[after]) + timedelta(seconds=1)  # it is printed without fractions
        raise LockstepError(
            f"the rows of {table} at {moment:%Y-%m-%d %H:%M:%S} UTC are not known: housekeeping has deleted that part "
            "of its log",
            next_step=f"the next time that is known: --at {since:%Y-%m-%dT%H:%M:%S}; or --version, of a savepoint",
        )
    return versions[after - 1]


def _find_time(table: Path, version: int) -> datetime:
    entry = delta_log.read_entry(table, version)
    written_at = None if entry is None else entry.written_at
    return written_at or datetime.max.replace(tzinfo=UTC) - timedelta(days=1)  # of an entry that is cut: the newest
