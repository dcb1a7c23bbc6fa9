"""The quarantine of one partition, or its late table, compared with what the fold says must be in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, cast

from lockstep.declare.record import Record
from lockstep.operations.verify.proof import Place, ViolationKind, Violations
from lockstep.operations.verify.stored_tables import Row

VALUE_BYTES_MAX = 1_000_000
"""Longer values are cut in quarantine, with their true size beside them."""
KILLS_ITS_WORKER = "each worker that was given it died"
"""What the quarantine says then."""
SHOWN_CHARACTERS = 120
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Kinds(NamedTuple):
    """How violations of a side table are called."""

    missing: ViolationKind
    extra: ViolationKind
    doubled: ViolationKind
    changed: ViolationKind


IN_QUARANTINE = Kinds(
    ViolationKind.QUARANTINE_MISSING,
    ViolationKind.QUARANTINE_EXTRA,
    ViolationKind.QUARANTINE_DOUBLED,
    ViolationKind.QUARANTINE_CHANGED,
)
IN_LATE = Kinds(
    ViolationKind.LATE_MISSING, ViolationKind.LATE_EXTRA, ViolationKind.LATE_DOUBLED, ViolationKind.LATE_CHANGED
)


class KeptMessages:
    """Rows of a side table that are of one partition, by offset.

    Attributes:
        compared: How many rows were compared with their messages.
    """

    def __init__(self, place: Place, rows: Iterable[Row], violations: Violations, kinds: Kinds = IN_QUARANTINE) -> None:
        self._place, self._violations, self._kinds = place, violations, kinds
        self._rows: dict[int, Row] = {}
        self._by_batch: Counter[int] = Counter()
        self.compared = 0
        for row in rows:
            self._by_batch[cast("int", row["batch"])] += 1
            offset = cast("int", row["offset"])
            if offset in self._rows:
                found = f"again in batch {row['batch']}"
                violations.add(kinds.doubled, place, offset, "one row", found)
            self._rows[offset] = row

    def holds(self, offset: int) -> bool:
        """Whether a message is in quarantine."""
        return offset in self._rows

    def killed(self, offset: int) -> bool:
        """Whether a message ended each worker that was given it: it must not be decoded here either."""
        row = self._rows.get(offset)
        return row is not None and row["cause"] == "undecodable" and row["found"] == KILLS_ITS_WORKER

    def count(self, batch: int) -> int:
        """How many a batch put here."""
        return self._by_batch[batch]

    def outside(self, inside: range) -> list[int]:
        """Offsets in quarantine that are not in a range."""
        return sorted(offset for offset in self._rows if offset not in inside)

    def expect(self, record: Record, cause: str, session: str | None) -> None:
        """A message that must be here, as it came."""
        row = self._rows.get(record.offset)
        if row is None:
            self._violations.add(self._kinds.missing, self._place, record.offset, cause, "not there")
            return
        self.compared += 1
        wanted = _as_kept(record) | {"cause": cause} | ({"session": session} if session is not None else {})
        for name, value in wanted.items():
            if row[name] != value:
                expected, found = f"{name} {_short(value)}", _short(row[name])
                self._violations.add(self._kinds.changed, self._place, record.offset, expected, found)
                return

    def refuse(self, offset: int, *, with_rows: bool) -> None:
        """A message that must not be here."""
        if offset in self._rows:
            in_both = with_rows and self._kinds is IN_QUARANTINE
            kind = ViolationKind.QUARANTINE_AND_ROWS if in_both else self._kinds.extra
            found = f"there as {self._rows[offset]['cause']!r}"
            self._violations.add(kind, self._place, offset, "not there", found)

    def unread(self, offset: int) -> None:
        """A row of an offset that holds no message, or was never read."""
        found = f"there as {self._rows[offset]['cause']!r}"
        self._violations.add(self._kinds.extra, self._place, offset, "no message was read there", found)


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
