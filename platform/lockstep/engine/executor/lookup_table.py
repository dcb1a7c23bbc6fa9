"""Reads lookup tables: their columns are checked on the driver, their rows are loaded in each worker.

A version is loaded whole: 1.3 us a row, once per version and worker. Reading single keys from Parquet would cost
milliseconds for each message whose key is not cached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.table import SUPPORTED_READER_FEATURES
from msgspec.structs import fields

from lockstep.addresses import to_uri
from lockstep.declare.lookup import Lookup, LookupRows, make_row_index
from lockstep.errors import EnvironmentProblem
from lockstep.model.columns import Column, ColumnKind, make_columns
from lockstep.model.lookup_version import LookupVersion
from lockstep.storage import FileStatus
from lockstep.table.delta_log import open_delta_table

VERSIONS_KEPT = 2
"""A batch that is tried again may follow one with a newer version."""
_UNREADABLE = (DeltaError, pa.ArrowException, OSError)
_UNCONVERTIBLE = (msgspec.ValidationError, ValueError, OverflowError)
"""Of a value that is none of its type, or a time beyond Python's calendar."""
_Loaded = tuple[LookupVersion, FileStatus | None]
"""A version, and its log entry if it is known: a table that was restored has other rows in the same version."""
_MAPPED = "delta.columnMapping.mode"
_MAPPING = "columnMapping"


class LookupUnusable(EnvironmentProblem):
    """A lookup table is missing, cannot be read, or is not as declared. It proves nothing about any message.

    Attributes:
        lookup: Name of the lookup.
        table: Folder of its table.
        version: The version concerned; None if no version could be opened.
    """

    def __init__(self, lookup: str, table: Path, version: int | None, problem: str, next_step: str = "") -> None:
        place = to_uri(table) if version is None else f"{to_uri(table)}, version {version}"
        super().__init__(
            f"lookup {lookup} ({place}): {problem}",
            next_step=next_step or "correct the table, or the declaration of the lookup; the batch is tried again",
        )
        self.lookup = lookup
        self.table = table
        self.version = version


def open_lookup(lookup: Lookup[Any], table: Path, version: int | None = None) -> DeltaTable:
    """A handle on the table of a lookup, whose columns are those of the declaration.

    Args:
        lookup: The lookup.
        table: Folder of its table.
        version: A version; None opens the newest.

    Raises:
        LookupUnusable: The table or version is missing, or lacks a column, or has it with another type.
    """
    try:
        opened = open_delta_table(table, version=version)
    except _UNREADABLE as error:
        step = "create the table, or correct Lookup.path" if isinstance(error, TableNotFoundError) else ""
        raise LookupUnusable(lookup.name, table, version, _first_line(error), step) from error
    check_lookup_columns(lookup, table, opened)
    return opened


def check_lookup_columns(lookup: Lookup[Any], table: Path, opened: DeltaTable) -> None:
    """Compare the columns of a table with the fields of a lookup's row.

    Raises:
        LookupUnusable: Names each column that is missing or of another type, with the type found and the one wanted.
    """
    types = {field.name: field.type for field in pa.schema(cast("pa.Schema", opened.schema().to_arrow()))}
    problems = [_compare(column, types.get(column.name)) for column in make_columns(lookup.row)]
    wrong = [problem for problem in problems if problem]
    if wrong:
        raise LookupUnusable(lookup.name, table, opened.version(), "; ".join(wrong))
    if missing := set(opened.protocol().reader_features or ()) - SUPPORTED_READER_FEATURES - {_MAPPING}:
        problem = f"has what cannot be read: {', '.join(sorted(missing))}"
        step = "copy it to a table without these features"
        raise LookupUnusable(lookup.name, table, opened.version(), problem, step)
    if opened.metadata().configuration.get(_MAPPED, "none") != "none":
        problem = "maps its columns to other names in its files"
        step = "copy it to a table without column mapping"
        raise LookupUnusable(lookup.name, table, opened.version(), problem, step)


def _compare(column: Column, found: pa.DataType | None) -> str:
    """The difference of a column from the declaration; empty if each of its values has the declared type."""
    if found is None:
        return f"there is no column {column.name} (wanted {column.type.arrow})"
    if found == column.type.arrow or _is_narrower(column.type.kind, found, column.type.arrow):
        return ""
    return f"column {column.name} is {found}, wanted {column.type.arrow}"


def _is_narrower(kind: ColumnKind, found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether all values of a type are also values of another type."""
    if pa.types.is_integer(wanted):
        return pa.types.is_signed_integer(found) and found.bit_width <= wanted.bit_width
    if kind is ColumnKind.DECIMAL and pa.types.is_decimal(found) and pa.types.is_decimal(wanted):
        return bool(found.scale <= wanted.scale and found.precision - found.scale <= wanted.precision - wanted.scale)
    return kind is ColumnKind.FLOAT and pa.types.is_float32(found)


def load_lookup(lookup: Lookup[Any], table: Path, pinned: LookupVersion) -> dict[object, msgspec.Struct]:
    """The rows of a version, by key.

    Raises:
        LookupUnusable: The version is gone, is of another table, has too many rows, a key twice, or a value that is
            none of its declared type.
    """
    opened = open_lookup(lookup, table, pinned.version)

    def refuse(problem: str, next_step: str = "") -> LookupUnusable:
        return LookupUnusable(lookup.name, table, pinned.version, problem, next_step)

    table_id = str(opened.metadata().id)
    if table_id != pinned.table_id:
        problem = f"the folder holds another table now ({table_id}, not {pinned.table_id})"
        raise refuse(problem, "nothing: it is read again")
    try:
        rows, twice = make_row_index(_read_rows(lookup, opened), lookup.key)
    except FileNotFoundError as error:
        step = "keep the files of older versions for longer than a batch takes (vacuum); the batch is tried again"
        raise refuse(_first_line(error), step) from error
    except (*_UNREADABLE, *_UNCONVERTIBLE, _WrongRows) as error:
        raise refuse(_first_line(error)) from error
    if twice:
        raise refuse(f"{len(twice)} keys occur more than once, such as {lookup.key} = {twice[0]!r}")
    return rows


class _WrongRows(Exception):  # not an error by itself: the caller knows the table
    """The rows are too many, or not of their type."""


def _read_rows(lookup: Lookup[Any], opened: DeltaTable) -> Iterator[msgspec.Struct]:
    """The rows in no order, column by column: twice as fast as row by row, and each value is checked."""
    kinds = {item.name: item.type for item in fields(lookup.row)}
    count = 0
    for batch in opened.to_pyarrow_dataset().to_batches(columns=list(kinds)):
        count += batch.num_rows
        if count > lookup.rows_max:
            raise _WrongRows(f"more than {lookup.rows_max} rows; raise Lookup(rows_max=...) where memory allows it")
        keyed = batch.filter(batch[lookup.key].is_valid())  # no message can refer to a row without a key
        columns = [_convert(name, keyed[name], kind) for name, kind in kinds.items()]
        if _has_keywords(lookup.row):
            yield from _by_name(lookup.row, kinds, columns)
        else:
            yield from map(lookup.row, *columns)


def _convert(name: str, values: pa.Array[Any], kind: object) -> list[object]:
    try:
        return msgspec.convert(values.to_pylist(), list[kind])  # type: ignore[valid-type]  # a type that is given
    except _UNCONVERTIBLE as error:
        raise _WrongRows(f"column {name}: {error}") from error


def _has_keywords(row: type[msgspec.Struct]) -> bool:
    """Whether a row is made from its columns by name only, as one with `kw_only=True`."""
    return row.__match_args__ != row.__struct_fields__


def _by_name(
    row: type[msgspec.Struct], names: Collection[str], columns: Sequence[Sequence[object]]
) -> Iterator[msgspec.Struct]:
    for values in zip(*columns, strict=True):
        yield row(**dict(zip(names, values, strict=True)))


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


class LookupCache:
    """The rows of the newest versions that this worker has loaded."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[Path, Lookup[Any]], dict[_Loaded, LookupRows]] = {}

    def load(
        self,
        lookups: Iterable[Lookup[Any]],
        tables: Mapping[str, Path],
        pinned: Iterable[LookupVersion],
        entries: Iterable[FileStatus | None] = (),
    ) -> dict[str, LookupRows]:
        """The rows of all lookups of a batch, by name.

        Args:
            lookups: The declared lookups.
            tables: Their folders, by name.
            pinned: Their versions.
            entries: The log entries of these versions, if they are known.

        Raises:
            LookupUnusable: One cannot be loaded.
        """
        declared = {lookup.name: lookup for lookup in lookups}
        rows = dict[str, LookupRows]()
        for version, entry in zip_longest(pinned, entries):  # without entries each is None
            name = version.name
            rows[name] = self._find(declared[name], tables[name], (version, entry))
        return rows

    def _find(self, lookup: Lookup[Any], table: Path, wanted: _Loaded) -> LookupRows:
        versions = self._loaded.setdefault((table, lookup), {})
        rows = versions.pop(wanted, None)
        if rows is None:
            # Before the new version is loaded: a worker must not have one version more in memory.
            while len(versions) >= VERSIONS_KEPT:
                del versions[next(iter(versions))]
            rows = load_lookup(lookup, table, wanted[0])
        versions[wanted] = rows  # the last entry was used last
        return rows
