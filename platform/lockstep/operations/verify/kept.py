"""The quarantine of one partition, compared with what the fold says must be in it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import cast

from lockstep.declare.record import Record
from lockstep.operations.verify.proof import Place, ViolationKind, Violations
from lockstep.operations.verify.stored_tables import Row

VALUE_BYTES_MAX = 1_000_000
"""Longer values are cut in quarantine, with their true size beside them."""
KILLS_ITS_WORKER = "each worker that was given it died"
"""What the quarantine says then."""
SHOWN_CHARACTERS = 120
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class KeptMessages:
    """Quarantine rows of one partition, by offset.

    Attributes:
        compared: How many rows were compared with their messages.
    """

    def __init__(self, place: Place, rows: Iterable[Row], violations: Violations) -> None:
        self._place, self._violations = place, violations
        self._rows: dict[int, Row] = {}
        self.compared = 0
        for row in rows:
            offset = cast("int", row["offset"])
            if offset in self._rows:
                found = f"again in batch {row['batch']}"
                violations.add(ViolationKind.QUARANTINE_DOUBLED, place, offset, "one row", found)
            self._rows[offset] = row

    def holds(self, offset: int) -> bool:
        """Whether a message is in quarantine."""
        return offset in self._rows

    def killed(self, offset: int) -> bool:
        """Whether a message ended each worker that was given it: it must not be decoded here either."""
        row = self._rows.get(offset)
        return row is not None and row["cause"] == "undecodable" and row["found"] == KILLS_ITS_WORKER

    def count(self, start: int, until: int) -> int:
        """How many there are at offsets [start, until)."""
        return sum(1 for offset in self._rows if start <= offset < until)

    def outside(self, inside: range) -> list[int]:
        """Offsets in quarantine that are not in a range."""
        return sorted(offset for offset in self._rows if offset not in inside)

    def expect(self, record: Record, cause: str, session: str | None) -> None:
        """A message that must be here, as it came."""
        row = self._rows.get(record.offset)
        if row is None:
            self._violations.add(ViolationKind.QUARANTINE_MISSING, self._place, record.offset, cause, "not there")
            return
        self.compared += 1
        wanted = _as_kept(record) | {"cause": cause} | ({"session": session} if session is not None else {})
        for name, value in wanted.items():
            if row[name] != value:
                expected, found = f"{name} {_short(value)}", _short(row[name])
                self._violations.add(ViolationKind.QUARANTINE_CHANGED, self._place, record.offset, expected, found)
                return

    def refuse(self, offset: int, *, with_rows: bool) -> None:
        """A message that must not be here."""
        if offset in self._rows:
            kind = ViolationKind.QUARANTINE_AND_ROWS if with_rows else ViolationKind.QUARANTINE_EXTRA
            found = f"in quarantine as {self._rows[offset]['cause']!r}"
            self._violations.add(kind, self._place, offset, "not in quarantine", found)

    def unread(self, offset: int) -> None:
        """A row of an offset that holds no message, or was never read."""
        found = f"in quarantine as {self._rows[offset]['cause']!r}"
        self._violations.add(ViolationKind.QUARANTINE_EXTRA, self._place, offset, "no message was read there", found)


def _as_kept(record: Record) -> dict[str, object]:
    value = record.value
    return {
        "topic": record.topic,
        "key": record.key,
        "value": value[:VALUE_BYTES_MAX] if value is not None else None,
        "value_bytes": len(value or b""),
        "headers": [{"name": name, "value": content} for name, content in record.headers],
        "timestamp": _EPOCH + timedelta(milliseconds=record.timestamp_ms),
    }


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "..."
