"""Pins the versions of lookup tables: once per batch, also if the batch is retried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lockstep.declare.lookup import Lookup
from lockstep.declare.stream import AnyStream
from lockstep.engine.executor.lookup_table import LookupUnusable, check_lookup_columns, open_lookup
from lockstep.model.lookup_version import LookupVersion
from lockstep.storage import FileStatus, find_storage
from lockstep.table.delta_log import make_entry_path, refresh_delta_table
from lockstep.table.layout import StreamFolders


def find_lookup_tables(stream: AnyStream, root: Path) -> dict[str, Path]:
    """The folder of each lookup's table, by name."""
    return {lookup.name: lookup.find_table(root) for lookup in stream.lookups}


def find_newest_versions(stream: AnyStream, folders: StreamFolders) -> tuple[LookupVersion, ...]:
    """The newest version of each lookup, as the first batch of a new run would read it.

    Raises:
        LookupUnusable: A table is missing, has other columns than declared, or is one of the stream's own.
    """
    return tuple(find_newest_version(lookup, folders) for lookup in stream.lookups)


def find_newest_version(lookup: Lookup[Any], folders: StreamFolders) -> LookupVersion:
    """The newest version of one lookup.

    Raises:
        LookupUnusable: As of `find_newest_versions`.
    """
    table = lookup.find_table(folders.root)
    own = folders.table.parent
    if find_storage(table).resolve(table).is_relative_to(find_storage(own).resolve(own)):
        problem = "is a table of the stream itself, which a batch cannot read before it is committed"
        raise LookupUnusable(lookup.name, table, None, problem, "correct Lookup.path")
    (version,) = LookupPins((lookup,), folders.root).pin(0)
    return version


class _OpenedTable(msgspec.Struct):
    """A handle on a table, and the entry of its version when it was read: of another table in its place it differs."""

    table: DeltaTable
    entry: FileStatus | None


class LookupPins:
    """The newest versions of a stream's lookup tables.

    Checking a table whose version has not changed costs two requests about files; a new version costs the reading of
    its entry.
    """

    def __init__(self, lookups: Sequence[Lookup[Any]], root: Path) -> None:
        self._lookups = lookups
        self._root = root
        self._opened: dict[str, _OpenedTable] = {}
        self._number = -1
        self._pinned: tuple[LookupVersion, ...] = ()
        self._entries: tuple[FileStatus | None, ...] = ()

    @property
    def entries(self) -> tuple[FileStatus | None, ...]:
        """The log entries of the pinned versions; None if a log was cleaned up behind its checkpoint."""
        return self._entries

    def pin(self, number: int) -> tuple[LookupVersion, ...]:
        """The versions for a batch: the newest when it is planned first, and the same whenever it is planned again.

        Args:
            number: Number of the batch.

        Raises:
            LookupUnusable: A table cannot be read, or has other columns than declared.
        """
        if number != self._number:
            self._pinned = tuple(self._find_newest(lookup) for lookup in self._lookups)
            self._entries = tuple(self._opened[lookup.name].entry for lookup in self._lookups)
            self._number = number
        return self._pinned

    def forget(self) -> None:
        """Pin the newest versions again, of tables that are opened again: a version could not be read."""
        self._opened.clear()
        self._number = -1

    def _find_newest(self, lookup: Lookup[Any]) -> LookupVersion:
        path = lookup.find_table(self._root)
        try:
            opened = self._refresh(lookup, path)
        except OSError as error:  # from reading an entry: opening a table raises named errors
            raise LookupUnusable(lookup.name, path, None, str(error)) from error
        return LookupVersion(name=lookup.name, version=opened.version(), table_id=str(opened.metadata().id))

    def _refresh(self, lookup: Lookup[Any], path: Path) -> DeltaTable:
        """The table at its newest version."""
        opened = self._opened.get(lookup.name)
        storage = find_storage(path)
        if opened is not None and storage.get_status(make_entry_path(path, opened.table.version())) == opened.entry:
            if storage.get_status(make_entry_path(path, opened.table.version() + 1)) is None:
                return opened.table
            table = _read_new_entries(lookup, path, opened.table)
        else:  # the first time; or another table is in its place, whose entry of that version differs
            table = open_lookup(lookup, path)
        entry = storage.get_status(make_entry_path(path, table.version()))
        self._opened[lookup.name] = _OpenedTable(table, entry)
        return table


def _read_new_entries(lookup: Lookup[Any], path: Path, table: DeltaTable) -> DeltaTable:
    try:
        refresh_delta_table(table)
    except (DeltaError, OSError):  # if it cannot be opened again either, that error names the cause
        return open_lookup(lookup, path)
    check_lookup_columns(lookup, path, table)
    return table
