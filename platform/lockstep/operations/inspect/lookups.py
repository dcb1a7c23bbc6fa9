"""Status of lookup tables: the version that the newest batch read, and the newest one. Reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.addresses import to_uri
from lockstep.engine.driver.lookup_pins import find_newest_version
from lockstep.engine.executor.lookup_table import LookupUnusable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.declare.lookup import Lookup
    from lockstep.model.lookup_version import LookupVersion
    from lockstep.operations.stream_handle import StreamHandle
    from lockstep.table.ledger import LedgerRow


class LookupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One lookup table.

    Attributes:
        name: Name of the lookup.
        table: Folder of the table.
        read_version: The version that the newest batch read; None if no batch has read this table yet.
        newest_version: The version that the next batch reads; None if the table cannot be read.
        problem: Why the table cannot be read; empty when it can.
    """

    name: str
    table: str
    read_version: int | None = None
    newest_version: int | None = None
    problem: str = ""


def read_lookups(handle: StreamHandle) -> tuple[LookupStatus, ...]:
    """Status of the lookup tables of a stream, as declared."""
    read = _find_read(handle.positions.values())
    return tuple(_read_one(handle, each, read.get(each.name)) for each in handle.stream.lookups)


def _find_read(rows: Iterable[LedgerRow]) -> dict[str, LookupVersion]:
    """The versions of the newest batch that read some."""
    reading = (row for row in rows if row.lookups is not None)
    newest = max(reading, key=lambda row: (row.generation, row.batch), default=None)
    if newest is None:
        return {}
    return {each.name: each for each in newest.lookups or ()}


def _read_one(handle: StreamHandle, lookup: Lookup[Any], read: LookupVersion | None) -> LookupStatus:
    status = LookupStatus(
        name=lookup.name,
        table=to_uri(lookup.find_table(handle.folders.root)),
        read_version=None if read is None else read.version,
    )
    try:
        newest = find_newest_version(lookup, handle.folders)
    except LookupUnusable as error:
        return msgspec.structs.replace(status, problem=error.problem)
    if read is not None and read.table_id != newest.table_id:  # another table in the folder: no version of it was read
        status = msgspec.structs.replace(status, read_version=None)
    return msgspec.structs.replace(status, newest_version=newest.version)
