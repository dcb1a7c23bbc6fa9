"""The quarantine and late tables: messages that a stream could not apply."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import pyarrow as pa

from lockstep.model.table_schema import make_row_schema
from lockstep.table.head import SideFile
from lockstep.table.parquet import write_file

VALUE_BYTES_MAX = 1_000_000
"""Larger values are truncated: `value_bytes` is the true size, and Kafka has the rest for as long as it retains it."""

KILLED_WORKER = "each worker that was given it died"
"""`found` of a message that must not be decoded again."""
UNKNOWN_SCHEMA = "the schema registry knows no schema id "
"""Start of `found` of a message that could not be decoded then: its schema may have been registered since."""
NOT_STORABLE = "state not storable"
"""The cause of a message after which the state of its session could not be stored."""
ERASED = "erased with its session"
"""Value of `expected` of a message of an erased session: of the message only its place and its cause are left."""


class Header(msgspec.Struct, frozen=True):
    """A header of a Kafka record."""

    name: str
    value: bytes | None


class QuarantineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message in quarantine.

    Attributes:
        generation: Generation of the batch.
        batch: Number of the batch that read it.
        topic_id: Kafka's topic id.
        topic: Its name.
        partition: Partition number.
        offset: Offset of the message.
        session: The session, if known.
        cause: Why: "undecodable", "transform raised", "suspended", "unknown session", "gap", ...
        expected: What would have been accepted.
        found: The value or state that was found, or the error's text.
        timestamp: Kafka's timestamp (UTC).
        key: The record's key, as bytes.
        value: The record's value, as bytes; truncated at a megabyte.
        value_bytes: Size of the whole value.
        headers: The record's headers.
    """

    generation: int
    batch: int
    topic_id: str
    topic: str
    partition: int
    offset: int
    session: str | None
    cause: str
    expected: str | None
    found: str | None
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    value_bytes: int
    headers: list[Header]


SCHEMA = make_row_schema(QuarantineRow)
HIDDEN = frozenset({"session", "expected", "found"})
"""Columns without bounds in the log and the head: both outlive an erased session's messages."""


def write_quarantine(folder: Path, rows: Sequence[QuarantineRow], *, label: str = "") -> SideFile:
    """Write a file of the quarantine, synced and not yet committed; `label` names the batch that writes it."""
    prefix = f"quarantine-{label}" if label else "quarantine"
    table = pa.Table.from_pylist([msgspec.to_builtins(row, builtin_types=(bytes, datetime)) for row in rows], SCHEMA)
    file = write_file(folder, table, prefix=prefix, hidden=HIDDEN)
    return SideFile(path=file.path, size=file.size, rows=file.rows, statistics=file.statistics)
