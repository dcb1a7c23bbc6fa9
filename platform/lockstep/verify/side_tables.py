"""Quarantine and late rows expected and found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, cast

from lockstep.model.record import Record, read_headers
from lockstep.verify.erasure import NONE_ERASED, REDACTED, ErasedSessions
from lockstep.verify.gates.base import GateAnswer
from lockstep.verify.ledger import Row
from lockstep.verify.report import ViolationKind, ViolationPlace, Violations

VALUE_BYTES_MAX = 1_000_000
"""Longer values are truncated in quarantine, with their true size."""
CRASHES_WORKER = "each worker that was given it died"
"""The quarantine's cause in that case."""
SHOWN_CHARACTERS = 120
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Kinds(NamedTuple):
    """The violation kinds of a side table."""

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


class ExpectedSideRows:
    """Rows of a side table of one partition, by offset.

    Attributes:
        compared: Number of rows compared with their messages.
    """

    def __init__(
        self,
        place: ViolationPlace,
        rows: Iterable[Row],
        violations: Violations,
        kinds: Kinds = IN_QUARANTINE,
        erased: ErasedSessions = NONE_ERASED,
    ) -> None:
        self._place, self._violations, self._kinds, self._erased = place, violations, kinds, erased
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
        """Whether a message killed each worker that processed it: it must not be decoded here either."""
        row = self._rows.get(offset)
        return row is not None and row["cause"] == "undecodable" and row["found"] == CRASHES_WORKER

    def count(self, batch: int) -> int:
        """The number of rows of a batch."""
        return self._by_batch[batch]

    def outside(self, inside: range) -> list[int]:
        """Offsets in quarantine outside of a range."""
        return sorted(offset for offset in self._rows if offset not in inside)

    def expect(self, record: Record, cause: str, session: str | None) -> None:
        """Expect a message here, unchanged."""
        row = self._rows.get(record.offset)
        if row is None:
            self._violations.add(self._kinds.missing, self._place, record.offset, cause, "not there")
            return
        self.compared += 1
        wanted = self._wanted(row, record, cause, session)
        for name, value in wanted.items():
            if row[name] != value:
                expected, found = f"{name} {_short(value)}", _short(row[name])
                self._violations.add(self._kinds.changed, self._place, record.offset, expected, found)
                return

    def _wanted(self, row: Row, record: Record, cause: str, session: str | None) -> dict[str, object]:
        """The columns that a message must have here: of an erased one nothing but place and cause."""
        if row["expected"] == REDACTED and self._erased.has_message(session, record.key, record.offset):
            return {"topic": record.topic, "cause": cause, "session": None} | dict.fromkeys(("key", "value"))
        return _as_kept(record) | {"cause": cause} | ({"session": _as_text(session)} if session is not None else {})

    def refuse(self, offset: int, *, with_rows: bool) -> None:
        """Expect a message not to be here."""
        if offset in self._rows:
            in_both = with_rows and self._kinds is IN_QUARANTINE
            kind = ViolationKind.QUARANTINE_AND_ROWS if in_both else self._kinds.extra
            found = f"there as {self._rows[offset]['cause']!r}"
            self._violations.add(kind, self._place, offset, "not there", found)

    def unread(self, offset: int) -> None:
        """Report a row of an offset that holds no message, or was never read."""
        found = f"there as {self._rows[offset]['cause']!r}"
        self._violations.add(self._kinds.extra, self._place, offset, "no message was read there", found)


def _as_kept(record: Record) -> dict[str, object]:
    value = record.value
    return {
        "topic": record.topic,
        "key": record.key,
        "value": value[:VALUE_BYTES_MAX] if value is not None else None,
        "value_bytes": len(value or b""),
        "headers": [{"name": name, "value": content} for name, content in read_headers(record.source)],
        "timestamp": _as_time(record.timestamp_ms),
    }


def _as_time(milliseconds: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None  # outside of the calendar


def _as_text(session: str) -> str:
    """A session in a column of text, which holds no lone surrogates."""
    return session.encode("utf-8", "backslashreplace").decode()


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "..."


class ReadPastViolation(Exception):  # ends the fold of a partition: the stream read past a violation
    """The log contains a violation of the class, and the stream continued.

    Attributes:
        cause: The violation.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Marked(NamedTuple):
    """Counts and violations at a moment."""

    counts: Counter[str]
    compared: tuple[int, int]
    violations: tuple[int, Counter[ViolationKind]]


class SideTableCheck:
    """The side tables of one partition.

    Attributes:
        kept: Its quarantine.
        late: Its late table.
        counts: Messages of the current range, by the names of the ledger's columns.
        given_up: Messages before this offset are quarantined, whatever they are.
    """

    def __init__(self, kept: ExpectedSideRows, late: ExpectedSideRows, violations: Violations) -> None:
        self.kept, self.late, self._violations = kept, late, violations
        self.counts: Counter[str] = Counter()
        self.given_up = 0

    def keep(self, record: Record, cause: str, session: str | None) -> None:
        """Expect a message in quarantine."""
        self.counts["quarantined"] += 1
        self.kept.expect(record, cause, session)
        self.late.refuse(record.offset, with_rows=False)

    def keep_late(self, record: Record, session: str) -> None:
        """Expect a message in the late table."""
        self.counts["late"] += 1
        self.late.expect(record, "late", session)
        self.kept.refuse(record.offset, with_rows=False)

    def expect_in_no_side_table(self, offset: int, *, with_rows: bool = False) -> None:
        """Expect a message in neither."""
        self.kept.refuse(offset, with_rows=with_rows)
        self.late.refuse(offset, with_rows=with_rows)

    def drop(self, offset: int) -> None:
        """Count a dropped message."""
        self.counts["dropped"] += 1
        self.expect_in_no_side_table(offset)

    def savepoint(self) -> Marked:
        """A marker of all counts and violations."""
        compared = self.kept.compared, self.late.compared
        return Marked(self.counts.copy(), compared, self._violations.savepoint())

    def rollback(self, marked: Marked) -> None:
        """Restore counts and violations to a marker."""
        self.counts.clear()
        self.counts.update(marked.counts)
        self.kept.compared, self.late.compared = marked.compared
        self._violations.rollback(marked.violations)

    def judge(self, answer: GateAnswer, offset: int, cause: str) -> GateAnswer:
        """The class's answer to a message that cannot be applied.

        Raises:
            PastViolation: It stops the stream, and the stream continued.
        """
        if offset < self.given_up:
            return GateAnswer.QUARANTINE
        if answer is GateAnswer.STOP:
            self.stop_unless_kept(offset, cause)
        return answer

    def stop_unless_kept(self, offset: int, cause: str) -> None:
        """Stop the fold, unless another policy was in force then."""
        if not self.kept.holds(offset):
            raise ReadPastViolation(cause)
