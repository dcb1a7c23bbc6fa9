"""Versions of lookup tables, read again as the ledger names them; a version that is gone proves nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lockstep.declare.lookup import Lookup, LookupRows, bind_lookups
from lockstep.verify.files import open_table
from lockstep.verify.ledger import LedgerRange, ReadVersion

VERSIONS_KEPT = 4
"""Partitions are folded a piece of the log at a time, so that they may be at different versions."""
_UNREADABLE = (DeltaError, pa.ArrowException, OSError, msgspec.ValidationError, ValueError)


class NotReproducible(Exception):  # not an error: the proof reports the ranges that it does not prove
    """A batch cannot be folded again: a version or a message that it read is gone or has changed."""


class LookupVersions:
    """The lookup tables of a stream, in the versions that its batches have read."""

    def __init__(self, lookups: Sequence[Lookup[Any]], root: Path) -> None:
        """Read nothing yet.

        Args:
            lookups: The declared lookups.
            root: The table root.
        """
        self._lookups = lookups
        self._root = root
        self._gone: dict[ReadVersion, str] = {}
        self._loaded: OrderedDict[ReadVersion, LookupRows] = OrderedDict()

    def find_first_reproducible(self, ranges: Sequence[LedgerRange]) -> tuple[int, str]:
        """The first range from which on every version is there, and why those before are not; no version is loaded."""
        for index in range(len(ranges), 0, -1):
            row = ranges[index - 1]
            previous = ranges[index - 2] if index > 1 else None
            if may_fold(row, previous) and (reason := self._find_gone(row)):
                return index, reason
        return 0, ""

    def load(self, row: LedgerRange) -> dict[str, LookupRows]:
        """The rows of all lookups that a batch read.

        Raises:
            NotReproducible: One of them cannot be read any more.
        """
        found = dict[str, LookupRows]()
        for lookup in self._lookups:
            read = _find_read(lookup, row)
            if read is not None:
                found[lookup.name] = self._load(lookup, read, row)
        return found

    def _find_gone(self, row: LedgerRange) -> str:
        """Why a range cannot be folded again; empty if it can, judged without reading rows."""
        for lookup in self._lookups:
            read = _find_read(lookup, row)
            if read is None:
                return f"batch {row.batch} names no version of lookup {lookup.name}: it was declared later"
            if reason := self._find_missing(lookup, read):
                return _say(lookup, read, row, reason)
        return ""

    def _find_missing(self, lookup: Lookup[Any], read: ReadVersion) -> str:
        # Once for each version: many batches read the same one.
        if read not in self._gone:
            try:
                rows = _open(lookup.find_table(self._root), read).to_pyarrow_dataset()
                rows.count_rows()  # reads the footers of all files
                absent = sorted(set(lookup.row.__struct_fields__) - set(rows.schema.names))
                self._gone[read] = ""
                if absent:
                    self._gone[read] = f"no column {', '.join(absent)}"
            except _UNREADABLE as error:
                self._gone[read] = str(error).splitlines()[0]
        return self._gone[read]

    def _load(self, lookup: Lookup[Any], read: ReadVersion, row: LedgerRange) -> LookupRows:
        if read not in self._loaded:
            try:
                rows = _read(lookup, lookup.find_table(self._root), read)
            except _UNREADABLE as error:
                raise NotReproducible(_say(lookup, read, row, str(error).splitlines()[0])) from error
            self._loaded[read] = rows
            while len(self._loaded) > VERSIONS_KEPT:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(read)
        return self._loaded[read]


class RangeLookups:
    """The lookups of the range that the proof of a partition is in."""

    def __init__(self, versions: LookupVersions) -> None:
        self._versions = versions
        self._rows: dict[str, LookupRows] = {}

    def begin(self, row: LedgerRange, before: LedgerRange | None) -> None:
        """Let the fold read the versions that a range read; nothing if the range called no code of the stream.

        Raises:
            NotReproducible: That cannot be read any more.
        """
        self._rows.clear()
        if may_fold(row, before):
            self._rows.update(self._versions.load(row))

    def bind(self) -> AbstractContextManager[None]:
        """While the partition is folded; others are folded in between."""
        return bind_lookups(self._rows)


def may_fold(row: LedgerRange, before: LedgerRange | None) -> bool:
    """Whether a range has messages, or advances the watermark by the clock; other rows only repeat a position.

    Args:
        row: The range.
        before: The one before it in its partition, if any.
    """
    if row.messages or before is None or row.planned_at is None:
        return row.messages > 0
    return row.watermark != before.watermark


NO_LOOKUPS = RangeLookups(LookupVersions((), Path()))


def _find_read(lookup: Lookup[Any], row: LedgerRange) -> ReadVersion | None:
    return next((each for each in row.lookups if each.name == lookup.name), None)


def _say(lookup: Lookup[Any], read: ReadVersion, row: LedgerRange, reason: str) -> str:
    version = f"version {read.version} of lookup {lookup.name}"
    return f"batch {row.batch} is not reproducible: {version} ({lookup.path}) cannot be read any more ({reason})"


def _open(folder: Path, read: ReadVersion) -> DeltaTable:
    table = open_table(folder, version=read.version)
    if (found := str(table.metadata().id)) != read.table_id:
        raise ValueError(f"the folder holds another table now, {found}, not {read.table_id}")
    return table


def _read(lookup: Lookup[Any], folder: Path, read: ReadVersion) -> LookupRows:
    """The rows by key, as the declaration of today reads them."""
    table = _open(folder, read).to_pyarrow_table(columns=list(lookup.row.__struct_fields__))
    rows = [_make_row(lookup.row, row) for row in table.to_pylist() if row[lookup.key] is not None]
    by_key = {getattr(row, lookup.key): row for row in rows}
    if len(by_key) != len(rows):
        raise ValueError(f"{len(rows)} rows have {len(by_key)} keys")
    return by_key


def _make_row(kind: type[msgspec.Struct], values: dict[str, object]) -> msgspec.Struct:
    """A row; columns have the names of the fields, not their names in JSON."""
    return msgspec.convert({each.encode_name: values[each.name] for each in msgspec.structs.fields(kind)}, kind)
