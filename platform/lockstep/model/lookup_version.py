"""Which version of a lookup table a batch reads."""

from __future__ import annotations

import msgspec


class LookupVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A pinned version of a lookup table.

    Attributes:
        name: Name of the lookup, as declared.
        version: Version of its Delta table.
        table_id: Delta's id of that table: a folder may hold another table later.
    """

    name: str
    version: int
    table_id: str
