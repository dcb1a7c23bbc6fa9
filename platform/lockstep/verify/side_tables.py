"""Quarantine and late rows expected and found."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np

from lockstep.model.record import Record, read_headers
from lockstep.verify.gates.base import GateAnswer, is_readable_time
from lockstep.verify.ledger import Row
from lockstep.verify.removed_sessions import NONE_REMOVED, REDACTED, RemovedSessions
from lockstep.verify.report import ViolationKind, ViolationPlace, Violations
from lockstep.verify.row_spool import PartitionRows

VALUE_BYTES_MAX = 1_000_000
"""Longer values are truncated in quarantine, with their true size."""
CRASHES_WORKER = "each worker that was given it died"
"""The quarantine's cause in that case."""
UNKNOWN_SCHEMA = "the schema registry knows no schema id "
"""Likewise; the id follows."""
FRAME_BYTES = 5
"""A schema registry's frame: a zero byte, and the id."""
NOT_STORABLE = "state not storable"
"""The quarantine's cause of a message after which the state of its session could not be stored."""
SHOWN_CHARACTERS = 120
BLOCK_ROWS = 32
"""Rows that are read together: a value takes up to 1 MB."""
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
    """Rows of a side table of one partition, by offset: the offsets in memory, the rows in a scratch file.

    Attributes:
        compared: Number of rows compared with their messages.
        dropped_up_to: Last batch of which retention has dropped the rows.
    """

    def __init__(
        self,
        place: ViolationPlace,
        rows: PartitionRows | None,
        violations: Violations,
        kinds: Kinds = IN_QUARANTINE,
        removed: RemovedSessions = NONE_REMOVED,
        *,
        dropped_up_to: int = 0,
    ) -> None:
        self._place = place
        self._violations = violations
        self._kinds = kinds
        self._removed = removed
        self.dropped_up_to = dropped_up_to
        self._rows = rows
        self._block = (0, list[Row]())
        offsets = np.zeros(0, np.int64)
        batches = offsets
        if rows is not None:
            offsets = rows.read_numbers("offset")
            batches = rows.read_numbers("batch")
        self._offsets = array("q", offsets.tobytes())
        self._by_batch = Counter[int](batches.tolist())
        self.compared = 0
        for again in (np.flatnonzero(np.diff(offsets) == 0) + 1).tolist():
            violations.add(kinds.doubled, place, self._offsets[again], "one row", f"again in batch {batches[again]}")

    def holds(self, offset: int) -> bool:
        """Whether a message is in quarantine."""
        return self._find(offset) is not None

    def is_undecoded(self, record: Record) -> bool:
        """Whether a message is not to be decoded here either.

        It killed each worker that processed it; or the registry did not know its schema then, which it may know now.
        """
        row = self._read(record.offset)
        if row is None or row["cause"] != "undecodable":
            return False
        schema_id = int.from_bytes((record.value or b"")[1:FRAME_BYTES], "big")
        return row["found"] in {CRASHES_WORKER, f"{UNKNOWN_SCHEMA}{schema_id}"}

    def is_unstorable(self, offset: int) -> bool:
        """Whether a message is in quarantine as one after which the state of its session could not be stored."""
        row = self._read(offset)
        return row is not None and row["cause"] == NOT_STORABLE

    def count(self, batch: int) -> int | None:
        """The number of rows of a batch; None where retention has dropped them."""
        return None if batch <= self.dropped_up_to else self._by_batch[batch]

    def outside(self, inside: range) -> list[int]:
        """Offsets in quarantine outside of a range."""
        return sorted({offset for offset in self._offsets if offset not in inside})

    def find_batches(self) -> set[int]:
        """The batches of its rows."""
        return set(self._by_batch)

    def expect(self, record: Record, cause: str, session: str | None, batch: int) -> None:
        """Expect a message here, unchanged, and by this batch, unless retention has dropped those of the batch."""
        if batch <= self.dropped_up_to:
            return
        row = self._read(record.offset)
        if row is None:
            self._violations.add(self._kinds.missing, self._place, record.offset, cause, "not there")
            return
        self.compared += 1
        wanted = self._wanted(row, record, cause, session) | {"batch": batch}
        for name, value in wanted.items():
            if row[name] != value:
                expected = f"{name} {_short(value)}"
                self._violations.add(self._kinds.changed, self._place, record.offset, expected, _short(row[name]))
                return

    def _wanted(self, row: Row, record: Record, cause: str, session: str | None) -> dict[str, object]:
        """The columns that a message must have here: of a removed one nothing but place and cause."""
        # An erasure has removed the message, and left its place and its cause.
        if row["expected"] == REDACTED and self._removed.has_message(session, record.key, record.offset):
            return {"topic": record.topic, "cause": cause, "session": None} | dict.fromkeys(("key", "value"))
        if session is None and row["session"] is not None:  # it is stored under its key
            session = (record.key or b"").decode(errors="replace")
        shown_session = None
        if session is not None:
            shown_session = _as_text(session)
        return _as_quarantined(record) | {"cause": _as_text(cause), "session": shown_session}

    def refuse(self, offset: int, *, with_rows: bool) -> None:
        """Expect a message not to be here."""
        row = self._read(offset)
        if row is not None:
            in_both = with_rows and self._kinds is IN_QUARANTINE
            kind = ViolationKind.QUARANTINE_AND_ROWS if in_both else self._kinds.extra
            self._violations.add(kind, self._place, offset, "not there", f"there as {row['cause']!r}")

    def unread(self, offset: int) -> None:
        """Report a row of an offset that holds no message, or was never read."""
        row = self._read(offset)
        if row is not None:
            stored = f"there as {row['cause']!r}"
            self._violations.add(self._kinds.extra, self._place, offset, "no message was read there", stored)

    def _find(self, offset: int) -> int | None:
        """The index of the row of an offset: the last of several."""
        number = bisect_right(self._offsets, offset) - 1
        if number < 0 or self._offsets[number] != offset:
            return None
        return number

    def _read(self, offset: int) -> Row | None:
        """The row of an offset; the fold asks in order of offsets, mostly."""
        number = self._find(offset)
        if number is None or self._rows is None:
            return None
        first, rows = self._block
        # The fold asks in order of offsets, mostly: a block serves many of its questions.
        if not first <= number < first + len(rows):
            first = number - number % BLOCK_ROWS
            rows = self._rows.read(first, first + BLOCK_ROWS)
            self._block = first, rows
        return rows[number - first]


def _as_quarantined(record: Record) -> dict[str, object]:
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
    if not is_readable_time(milliseconds * 1000):
        return None
    return _EPOCH + timedelta(milliseconds=milliseconds)


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
    times_us: tuple[int, int] | None


class SideTableCheck:
    """The side tables of one partition.

    Attributes:
        quarantine: Its quarantine.
        late: Its late table.
        counts: Messages of the current range, by the names of the ledger's columns.
        given_up: Messages before this offset are quarantined unseen.
        batch: The batch of the current range.
        is_dropped: Whether retention has dropped messages that this range quarantined.
    """

    def __init__(self, quarantine: ExpectedSideRows, late: ExpectedSideRows, violations: Violations) -> None:
        self.quarantine = quarantine
        self.late = late
        self._violations = violations
        self.counts: Counter[str] = Counter()
        self.given_up = self.batch = 0
        self.is_dropped = False
        self._times_us: tuple[int, int] | None = None

    def may_hold(self, offset: int) -> bool:
        """Whether a message is in quarantine, or may have been there."""
        return self.is_dropped or self.quarantine.holds(offset)

    def keep(self, record: Record, cause: str, session: str | None) -> None:
        """Expect a message in quarantine."""
        self.counts["quarantined"] += 1
        self.quarantine.expect(record, cause, session, self.batch)
        self.late.refuse(record.offset, with_rows=False)

    def keep_late(self, record: Record, session: str) -> None:
        """Expect a message in the late table."""
        self.counts["late"] += 1
        self.late.expect(record, "late", session, self.batch)
        self.quarantine.refuse(record.offset, with_rows=False)

    def expect_in_no_side_table(self, offset: int, *, with_rows: bool = False) -> None:
        """Expect a message in neither."""
        self.quarantine.refuse(offset, with_rows=with_rows)
        self.late.refuse(offset, with_rows=with_rows)

    def add_to_count(self, name: str, number: int) -> None:
        """Add to a count of the current range."""
        self.counts[name] += number

    def drop(self, offset: int) -> None:
        """Count a dropped message."""
        self.counts["dropped"] += 1
        self.expect_in_no_side_table(offset)

    def savepoint(self) -> Marked:
        """A marker of all counts and violations."""
        compared = self.quarantine.compared, self.late.compared
        return Marked(self.counts.copy(), compared, self._violations.savepoint(), self._times_us)

    def rollback(self, marked: Marked) -> None:
        """Restore counts and violations to a marker."""
        self.counts.clear()
        self.counts.update(marked.counts)
        self.quarantine.compared, self.late.compared = marked.compared
        self._violations.rollback(marked.violations)
        self._times_us = marked.times_us

    def note_time(self, at_us: int | None) -> None:
        """Note the event time of an applied message, if it has one."""
        if at_us is not None:
            low, high = self._times_us or (at_us, at_us)
            self._times_us = (min(low, at_us), max(high, at_us))

    def take_times(self) -> tuple[int | None, int | None]:
        """Lowest and highest event time of the messages applied since the last call; None without any."""
        low, high = self._times_us or (None, None)
        self._times_us = None
        return low, high

    def judge(self, answer: GateAnswer, offset: int, cause: str) -> GateAnswer:
        """The class's answer to a message that cannot be applied.

        Raises:
            PastViolation: It stops the stream, and the stream continued.
        """
        if offset < self.given_up:
            return GateAnswer.QUARANTINE
        if answer is GateAnswer.STOP:
            self.stop_unless_quarantined(offset, cause)
        return answer

    def stop_unless_quarantined(self, offset: int, cause: str) -> None:
        """Stop the fold, unless another policy was in force then."""
        if not self.may_hold(offset):
            raise ReadPastViolation(cause)
