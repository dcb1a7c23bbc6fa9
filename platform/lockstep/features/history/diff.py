"""Compares the rows of two streams of the same topics: a stream and the same with another fold, or another class.

Rows are matched by topic id, partition, offset and row number, over the offsets that both streams have read. The engine
is DataFusion; the rows of one side are held in memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.schema import DataType

from lockstep.errors import LockstepError
from lockstep.html_page import Bar, Fact, Page, Section, TableOf, draw_bars, render_page
from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import IDENTITY
from lockstep.operations.query import list_rows, run_sql
from lockstep.operations.stream_table import open_table
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_positions

LEFT = "left_rows"
RIGHT = "right_rows"
LEDGER = "ledger"
NOT_COMPARED = frozenset({*IDENTITY, "commit_hour"})
"""What matches two rows, and the hour of a commit, which is a matter of the clock."""
SAMPLES = 20


class ColumnDifference(msgspec.Struct, frozen=True):
    """A column whose values differ.

    Attributes:
        column: Its name.
        rows: Number of rows in which they differ.
    """

    column: str
    rows: int


class DifferentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row that one stream lacks, or that differs.

    Attributes:
        kind: "missing" on the right, "added" on the right, or "changed".
        topic: Topic name.
        partition: Partition number.
        emit_offset: Offset with which the row was emitted.
        row: Number of the row of that offset.
        values: The differing values by column, left and right; all of a missing or added row.
    """

    kind: str
    topic: str
    partition: int
    emit_offset: int
    row: int
    values: dict[str, tuple[object, object]]


class StreamDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of two streams.

    Attributes:
        left: Name of one stream.
        right: Name of the other.
        left_batch: Last batch of the one.
        right_batch: Last batch of the other.
        partitions: Partitions that both have read.
        equal: Rows that are equal.
        missing: Rows of the left stream that the right one lacks.
        added: Rows of the right stream that the left one lacks.
        changed: Rows that differ.
        columns: In which columns changed rows differ, the most frequent first.
        samples: Some rows that differ, in their order.
        notes: The parts that were not compared.
        next_step: What to do with this result.
    """

    left: str
    right: str
    left_batch: int
    right_batch: int
    partitions: int
    equal: int
    missing: int
    added: int
    changed: int
    columns: tuple[ColumnDifference, ...]
    samples: tuple[DifferentRow, ...]
    notes: tuple[str, ...]
    next_step: str

    @property
    def is_equal(self) -> bool:
        """Whether all compared rows are equal."""
        return not (self.missing or self.added or self.changed)


class _Side(msgspec.Struct, frozen=True):
    """One stream as of its last batch."""

    head: Head
    table: DeltaTable
    positions: Mapping[TopicIdPartition, LedgerRow]
    starts: Mapping[TopicIdPartition, int]

    @property
    def types(self) -> dict[str, DataType]:
        """Delta's types of the columns, by name."""
        return {field.name: field.type for field in self.table.schema().fields}


def compare_streams(
    left: StreamFolders, right: StreamFolders, *, topic: str | None = None, samples: int = SAMPLES
) -> StreamDiff:
    """Compare the rows of two streams, as of the last batch of each.

    Args:
        left: Folders of one stream.
        right: Folders of the other.
        topic: Compare only this topic.
        samples: Maximum number of rows that are shown.

    Raises:
        NoTable: One of them has never run.
        LockstepError: They have read no offset in common.
        WrongQuery: A column is of a type that the engine cannot compare.
    """
    one = _open_side(left)
    other = _open_side(right)
    shared = [key for key, row in one.positions.items() if key in other.positions and topic in {None, row.topic}]
    bounds = {key: _find_bounds(key, one, other) for key in shared}
    if not any(since < until for since, until in bounds.values()):
        raise LockstepError(
            f"{left.stream} and {right.stream} have read no offset in common",
            next_step="run both over the same topics, then compare again",
        )
    columns = [name for name, is_comparable in _find_common(one, other) if is_comparable]
    tables = {LEFT: one.table, RIGHT: other.table}
    joined = _make_join(bounds, columns)
    (counts,) = run_sql(tables, f"{joined} {_make_counts(columns)}").to_pylist()
    shown: list[dict[str, object]] = []
    if samples:
        shown = _list_samples(run_sql(tables, f"{joined} {_make_samples(columns, samples)}"))
    compared = [ColumnDifference(name, counts[f"c{number}"] or 0) for number, name in enumerate(columns)]
    differing = [column for column in compared if column.rows]
    differing.sort(key=lambda column: (-column.rows, column.column))
    is_equal = not (counts["missing"] or counts["added"] or counts["changed"])
    return StreamDiff(
        left=left.stream,
        right=right.stream,
        left_batch=one.head.batch,
        right_batch=other.head.batch,
        partitions=len(bounds),
        equal=counts["both"] - counts["changed"],
        missing=counts["missing"],
        added=counts["added"],
        changed=counts["changed"],
        columns=tuple(differing),
        samples=tuple(_make_sample(row, columns) for row in shown),
        notes=tuple(_find_notes(one, other, shared)),
        next_step=find_next_step(one.head, other.head, is_equal=is_equal),
    )


def _open_side(folders: StreamFolders) -> _Side:
    base = open_table(folders).base()
    table = delta_log.open_delta_table(folders.table, version=base.version)
    positions = read_positions(folders, base.head)
    return _Side(base.head, table, positions, _find_starts(folders, base.head, positions))


def _find_starts(
    folders: StreamFolders, head: Head, positions: Mapping[TopicIdPartition, LedgerRow]
) -> dict[TopicIdPartition, int]:
    """The first offset of each partition that was read. Batches that the ledger lacks yet may be the first."""
    valid = head.valid_batches.items()
    counts = " OR ".join(f"generation = {generation} AND batch <= {last}" for generation, last in valid)
    sql = f"SELECT topic_id, partition, min(start) AS start FROM {LEDGER} WHERE {counts} GROUP BY 1, 2"  # noqa: S608
    rows = run_sql({LEDGER: delta_log.open_delta_table(folders.ledger)}, sql).to_pylist()
    starts = {(row["topic_id"], row["partition"]): row["start"] for row in rows}
    return {key: min(row.start, starts.get(key, row.start)) for key, row in positions.items()}


def _find_bounds(key: TopicIdPartition, one: _Side, other: _Side) -> tuple[int, int]:
    """The offsets of a partition that both have read, but for those in between that Kafka did not have any more."""
    until = min(one.positions[key].until, other.positions[key].until)
    return max(one.starts[key], other.starts[key]), until


def _make_join(bounds: Mapping[TopicIdPartition, tuple[int, int]], columns: Sequence[str]) -> str:
    """The rows of both sides within the bounds, matched; `d0`, `d1`, ... tell which columns differ."""
    values = ", ".join(
        f"('{topic_id}', {partition}, {since}, {until})" for (topic_id, partition), (since, until) in bounds.items()
    )
    both = " AND ".join(f'l."{name}" = r."{name}"' for name in IDENTITY)
    keys = ", ".join(f'coalesce(l."{name}", r."{name}") AS "{name}"' for name in IDENTITY)
    # Numbered, as the name of a column may hold any character. Two nulls are equal, which `<>` does not find.
    pairs = ", ".join(
        f'l."{name}" AS "l{number}", r."{name}" AS "r{number}", l."{name}" IS DISTINCT FROM r."{name}" AS "d{number}"'
        for number, name in enumerate(columns)
    )
    here = 'b.topic_id = t."_topic_id" AND b.partition = t."_partition"'
    inside = f'{here} AND t."_emit_offset" >= b.since AND t."_emit_offset" < b.until'
    left_side = f"l AS (SELECT t.* FROM {LEFT} t JOIN bounds b ON {inside})"  # noqa: S608  # of this module's own names
    right = f"r AS (SELECT t.* FROM {RIGHT} t JOIN bounds b ON {inside})"  # noqa: S608  # as above
    fields = f'{keys}, l."_row" IS NOT NULL AS has_left, r."_row" IS NOT NULL AS has_right, {pairs}'
    j = f"SELECT {fields} FROM l FULL OUTER JOIN r ON {both}"  # noqa: S608  # of names in the tables' schemas
    return f"WITH bounds(topic_id, partition, since, until) AS (VALUES {values}), {left_side}, {right}, j AS ({j})"


def _make_counts(columns: Sequence[str]) -> str:
    counts = [
        _count("has_left AND has_right", "both"),
        _count("NOT has_right", "missing"),
        _count("NOT has_left", "added"),
        _count(f"has_left AND has_right AND ({_any_differs(columns)})", "changed"),
        *(_count(f'has_left AND has_right AND "d{number}"', f"c{number}") for number in range(len(columns))),
    ]
    return f"SELECT {', '.join(counts)} FROM j"  # noqa: S608  # of numbered names


def _count(condition: str, name: str) -> str:
    return f'count(CASE WHEN {condition} THEN 1 END) AS "{name}"'


def _any_differs(columns: Sequence[str]) -> str:
    return " OR ".join(f'"d{number}"' for number in range(len(columns))) or "false"


def _make_samples(columns: Sequence[str], samples: int) -> str:
    differs = f"NOT has_left OR NOT has_right OR {_any_differs(columns)}"
    order = ", ".join(f'"{name}"' for name in IDENTITY)
    return f"SELECT * FROM j WHERE {differs} ORDER BY {order} LIMIT {samples}"  # noqa: S608  # of numbered names


def _list_samples(found: pa.Table) -> list[dict[str, object]]:
    return [dict(zip(found.column_names, row, strict=True)) for row in list_rows(found)]


def _make_sample(row: Mapping[str, object], columns: Sequence[str]) -> DifferentRow:
    kind = "changed"
    if not row["has_left"]:
        kind = "added"
    elif not row["has_right"]:
        kind = "missing"
    # Of a row that one side lacks, all values are shown.
    values: dict[str, tuple[object, object]] = {}
    for number, name in enumerate(columns):
        if kind != "changed" or row[f"d{number}"]:
            values[name] = (row[f"l{number}"], row[f"r{number}"])
    side = "l" if row["has_left"] else "r"
    topic = row[f"{side}{columns.index('_topic')}"]
    return DifferentRow(
        kind=kind,
        topic=str(topic),
        partition=int(str(row["_partition"])),
        emit_offset=int(str(row["_emit_offset"])),
        row=int(str(row["_row"])),
        values=values,
    )


def _find_notes(one: _Side, other: _Side, shared: Collection[TopicIdPartition]) -> Iterator[str]:
    if unlike := [name for name, is_comparable in _find_common(one, other) if not is_comparable]:
        yield f"of another type in {other.head.stream}, not compared: {', '.join(unlike)}"
    for side, rest in ((one, other), (other, one)):
        if alone := len(side.positions) - len(shared):
            yield f"{alone} partitions of {side.head.stream} were not compared"
        if later := sum(side.starts[key] > rest.starts[key] for key in shared):
            yield f"{side.head.stream} started later in {later} partitions: offsets before that were not compared"
        if extra := [name for name in side.types if name not in rest.types]:
            yield f"only {side.head.stream} has the columns {', '.join(extra)}"
        if side.head.retention is not None:
            yield f"{side.head.stream} has dropped rows of hours before {side.head.retention.hour}: they seem missing"


def _find_common(one: _Side, other: _Side) -> list[tuple[str, bool]]:
    """The columns of both, and whether they are compared: the engine finds the text "1" and the number 1 equal."""
    types = one.types
    other_types = other.types
    shared = [name for name in types if name in other_types and name not in NOT_COMPARED]
    return [(name, _are_alike(types[name], other_types[name])) for name in shared]


def _are_alike(one: DataType, other: DataType) -> bool:
    """Whether two types are equal, or of the same kind of numbers, which differ in their range only."""
    if one == other:
        return True
    # Delta's name of a decimal has its precision in parentheses.
    kind = _NUMBERS.get(one.type.partition("(")[0])
    other_kind = _NUMBERS.get(other.type.partition("(")[0])
    return kind is not None and kind == other_kind


_NUMBERS = dict.fromkeys(("byte", "short", "integer", "long"), "integer") | {
    "float": "float",
    "double": "float",
    "decimal": "decimal",
}
"""Kinds of numbers, by Delta's types."""


def find_next_step(one: Head, other: Head, *, is_equal: bool) -> str:
    """What to do with the result of a comparison. Pure.

    Args:
        one: Head of one stream.
        other: Head of the other, in either order if one of them is a shadow.
        is_equal: Whether all compared rows are equal.
    """
    for stream, shadow in ((one, other), (other, one)):
        if shadow.origin is None or shadow.origin.stream != stream.stream:
            continue
        drop = f"lockstep shadow drop {stream.stream} --name {shadow.stream}"
        promote = f"lockstep shadow promote {stream.stream} {shadow.stream} --plan"
        if is_equal:
            return (
                f"{promote}; if the new code was to change rows, it starts too late (after batch "
                f"{shadow.origin.batch}) or runs other code (lockstep shadow list {stream.stream}): {drop}, then begin "
                "another shadow"
            )
        return f"if these are the rows you want, lockstep verify {shadow.stream}, then {promote}; else {drop}"
    return f"lockstep verify {one.stream}, lockstep verify {other.stream}: each against Kafka"


def write_diff_page(found: StreamDiff, file: Path | None = None) -> Path:
    """Write the differences as one HTML page that fetches nothing; returns its file.

    Args:
        found: The differences.
        file: The file; by default a temporary one.
    """
    if file is None:
        number, name = tempfile.mkstemp(prefix=f"lockstep-diff-{found.left}-{found.right}-", suffix=".html")
        os.close(number)
        file = Path(name)
    find_storage(file).replace(file, render_page(make_diff_page(found)).encode())
    return file.absolute()


def make_diff_page(found: StreamDiff) -> Page:
    """The page of a comparison. Pure."""
    counts = (("equal", found.equal), ("missing", found.missing), ("added", found.added), ("changed", found.changed))
    bars = [Bar(name, float(rows), f"{rows:,}") for name, rows in counts]
    changed = [(column.column, f"{column.rows:,}") for column in found.columns]
    rows: list[tuple[str, ...]] = []
    for row in found.samples:
        message = f"{row.topic}/{row.partition}@{row.emit_offset}"
        for column, (left, right) in row.values.items():
            rows.append((row.kind, message, str(row.row), column, str(left), str(right)))
    sides = ("kind", "message", "row", "column", found.left, found.right)
    sections = [Section("Rows", charts=[draw_bars(bars, "rows")], note="; ".join(found.notes))]
    if changed:
        sections.append(Section("Changed columns", tables=[TableOf(("column", "rows"), changed)]))
    if rows:
        note = f"The first {len(found.samples)} rows that differ, in the order of the messages."
        sections.append(Section("Samples", tables=[TableOf(sides, rows)], note=note))
    differing = found.missing + found.added + found.changed
    verdict = "All compared rows are equal." if found.is_equal else f"{differing:,} rows differ."
    return Page(
        title=f"{found.left} and {found.right}",
        verdict=verdict,
        is_good=found.is_equal,
        facts=[
            Fact(found.left, f"batch {found.left_batch}"),
            Fact(found.right, f"batch {found.right_batch}"),
            Fact("partitions", str(found.partitions)),
            Fact("compared", "the offsets that both have read"),
        ],
        sections=sections,
    )
