"""What becomes of messages that are not applied: counted, and compared with the table in which they are kept."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from lockstep.declare.record import Record
from lockstep.operations.verify.kept import KeptMessages
from lockstep.operations.verify.proof import ViolationKind, Violations
from lockstep.operations.verify.second_gate.contract import Answer


class PastViolation(Exception):  # ends the fold of a partition: what the class forbids was read past
    """The log holds what the class forbids, and the stream went on.

    Attributes:
        cause: What.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Marked(NamedTuple):
    """What was counted and noted up to a moment."""

    counts: Counter[str]
    compared: tuple[int, int]
    violations: tuple[int, Counter[ViolationKind]]


class Aside:
    """The side tables of one partition.

    Attributes:
        kept: Its quarantine.
        late: Its late table.
        counts: Messages of the current range, by the names of the ledger's columns.
        given_up: What lies before this offset is kept in quarantine, whatever it is.
    """

    def __init__(self, kept: KeptMessages, late: KeptMessages, violations: Violations) -> None:
        self.kept, self.late, self._violations = kept, late, violations
        self.counts: Counter[str] = Counter()
        self.given_up = 0

    def keep(self, record: Record, cause: str, session: str | None) -> None:
        """A message that must be in quarantine."""
        self.counts["quarantined"] += 1
        self.kept.expect(record, cause, session)
        self.late.refuse(record.offset, with_rows=False)

    def keep_late(self, record: Record, session: str) -> None:
        """A message that must be in the late table."""
        self.counts["late"] += 1
        self.late.expect(record, "late", session)
        self.kept.refuse(record.offset, with_rows=False)

    def nowhere(self, offset: int, *, with_rows: bool = False) -> None:
        """A message that must be in neither."""
        self.kept.refuse(offset, with_rows=with_rows)
        self.late.refuse(offset, with_rows=with_rows)

    def drop(self, offset: int) -> None:
        """A message that is counted and no more."""
        self.counts["dropped"] += 1
        self.nowhere(offset)

    def marked(self) -> Marked:
        """All counts and violations, to go back to."""
        compared = self.kept.compared, self.late.compared
        return Marked(self.counts.copy(), compared, self._violations.marked())

    def back(self, marked: Marked) -> None:
        """Forget what was counted and noted since."""
        self.counts.clear()
        self.counts.update(marked.counts)
        self.kept.compared, self.late.compared = marked.compared
        self._violations.back(marked.violations)

    def answer(self, answer: Answer, offset: int, cause: str) -> Answer:
        """What the class does about a message that it cannot apply.

        Raises:
            PastViolation: It stops the stream, and the stream went on.
        """
        if offset < self.given_up:
            return Answer.QUARANTINE
        if answer is Answer.STOP:
            self.stop_unless_kept(offset, cause)
        return answer

    def stop_unless_kept(self, offset: int, cause: str) -> None:
        """The stream stops here, unless another policy was in force then."""
        if not self.kept.holds(offset):
            raise PastViolation(cause)
