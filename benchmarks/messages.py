"""The messages of the workload as Python types, the same for every system, and the output row.

Measured on these messages (decode + fold + columns, CPU microseconds a message, best and median of
races on a shared 2-core machine): changed columns as `UNSET` defaults with rows as tuples 3.6 / 4.5;
as a `TypedDict` with rows as dictionaries 3.7 / 5.1; with rows as Structs changed by attribute
4.0 / 5.5: one race of 40 samples each, so dictionaries are no clear loser. `gc=False` declares that no
message can be part of a cycle; whether it saves time here is undecided (best -12 %, median +5 %).
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class Row(msgspec.Struct, frozen=True, gc=False):
    """A whole row, as a snapshot carries it."""

    id: int
    status: str
    name: str
    v0: float
    v1: float
    v2: float
    v3: float
    q: int
    flag: bool


class RowChange(msgspec.Struct, frozen=True, gc=False):
    """The changed columns of a row, as an update carries them; the others are UNSET."""

    id: int
    status: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    v0: float | UnsetType = UNSET
    v1: float | UnsetType = UNSET
    v2: float | UnsetType = UNSET
    v3: float | UnsetType = UNSET
    q: int | UnsetType = UNSET
    flag: bool | UnsetType = UNSET


class Snapshot(msgspec.Struct, frozen=True, gc=False, tag="snapshot", tag_field="type"):
    """Sets all rows of a session; `ts` is event time in microseconds since 1970 (UTC)."""

    session: str
    seq: int
    ts: int
    source: str
    rows: list[Row]


class Update(msgspec.Struct, frozen=True, gc=False, tag="update", tag_field="type"):
    """Changes some columns of some rows of a session; `seq` grows by one a message."""

    session: str
    seq: int
    ts: int
    source: str
    rows: list[RowChange]


class Change(msgspec.Struct, frozen=True, gc=False):
    """An output row: one changed row, before and after. The system adds the provenance columns."""

    id: int
    status: str
    name: str
    v0: float
    v1: float
    v2: float
    v3: float
    q: int
    flag: bool
    previous_status: str
    previous_name: str
    previous_v0: float
    previous_v1: float
    previous_v2: float
    previous_v3: float
    previous_q: int
    previous_flag: bool


Message = Snapshot | Update
