"""Strict: in order, none missing, none repeated.

Promises: every message of a session is applied, in order, exactly once, as its evidence proves.
Refuses: gaps, repeats, broken links, unknown sessions, undecodable messages, unproven holes.
Costs: one comparison a message; a producer that numbers, links or sums what it sends. With `repeats=DROP` a
digest of each message, and the newest ones in the state of the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lockstep.errors import DeclarationError
from lockstep.integrity.buffering import BufferingUntilSnapshot
from lockstep.integrity.contract import Fault, IntegrityClass, OnGrowth, SessionStart
from lockstep.integrity.evidence import Checksum, Evidence, LogOnly, Sequence
from lockstep.integrity.repeats import REMEMBERED, DroppingRepeats, Repeats
from lockstep.integrity.time import PartitionTime
from lockstep.integrity.verdict import Gate, Judgement


@dataclass(frozen=True, kw_only=True)
class Strict(IntegrityClass):
    """In order, none missing, none repeated.

    Attributes:
        evidence: `Sequence()`, `Linked()`, `Checksum()` or `LogOnly()`.
        on_growth: What the growth of a topic by partitions does.
        repeats: What a message does that came before, with the same number and content.
        buffer_until_snapshot: For feeds whose snapshot is fetched beside the stream (over REST): the updates of a
            session before its snapshot wait for it (10,000 at most). Those that it covers, whose numbers are not
            above its own, are dropped and counted, before it and directly after it; the others are applied after
            it, if none is missing.
    """

    evidence: Evidence
    on_growth: OnGrowth = OnGrowth.VIOLATION
    repeats: Repeats = Repeats.VIOLATION
    buffer_until_snapshot: bool = False

    answers: ClassVar[Mapping[Fault, Judgement]] = dict.fromkeys(Fault, Judgement.VIOLATION)

    def __post_init__(self) -> None:
        """Refuse what is not evidence, such as the class instead of a value, and what it cannot support."""
        if not isinstance(self.evidence, Evidence):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need no checker
            raise DeclarationError(
                "Strict.evidence", self.evidence, "is not evidence", "for example Strict(evidence=Sequence())"
            )
        if self.repeats is Repeats.DROP and isinstance(self.evidence, Checksum):
            problem = f"needs numbers, and {type(self.evidence).__name__} has none: a repeat cannot be told"
            raise DeclarationError("Strict.repeats", self.repeats, problem, "evidence=Sequence() or Linked()")
        self._check_round()
        if self.buffer_until_snapshot:
            self._check_buffer()

    def _check_round(self) -> None:
        """Refuse to take a message of the next round for a repeat of one in this."""
        wraps_at = self.evidence.wraps_at if isinstance(self.evidence, Sequence) else None
        if wraps_at is not None and self.repeats is Repeats.DROP and wraps_at < 2 * REMEMBERED:
            problem = f"is less than twice the {REMEMBERED} messages among which repeats are told by their numbers"
            raise DeclarationError("Sequence.wraps_at", wraps_at, problem, "repeats=Repeats.VIOLATION")

    def _check_buffer(self) -> None:
        """Refuse to wait for a snapshot that cannot be compared, or that never comes."""
        field = "Strict.buffer_until_snapshot"
        if isinstance(self.evidence, Checksum):
            problem = (
                f"needs numbers, and {type(self.evidence).__name__} has none: what a snapshot covers cannot be told"
            )
            raise DeclarationError(field, value=True, problem=problem, next_step="evidence=Sequence() or Linked()")
        if self.session_start is SessionStart.FIRST_MESSAGE:
            problem = "waits for a snapshot, and sessions begin at their first message"
            raise DeclarationError(field, value=True, problem=problem, next_step="leave one of the two out")

    @property
    def in_order(self) -> bool:
        """See `IntegrityClass.in_order`."""
        return not (isinstance(self.evidence, Sequence) and self.evidence.wraps_at)

    @property
    def waits_for_snapshot(self) -> bool:
        """See `IntegrityClass.waits_for_snapshot`."""
        return self.buffer_until_snapshot

    def gate(self, time: PartitionTime) -> Gate:
        """See `IntegrityClass.gate`."""
        del time
        wraps_at = self.evidence.wraps_at if isinstance(self.evidence, Sequence) else None
        gate = BufferingUntilSnapshot(self.evidence, wraps_at) if self.buffer_until_snapshot else self.evidence
        return DroppingRepeats(gate) if self.repeats is Repeats.DROP else gate

    def promise(self) -> str:
        """See `IntegrityClass.promise`."""
        evidence = type(self.evidence).__name__
        only = " (the log only: what the producer lost is not seen)" if isinstance(self.evidence, LogOnly) else ""
        dropped = "; identical repeats dropped" if self.repeats is Repeats.DROP else ""
        waits = "; updates wait for their snapshot" if self.buffer_until_snapshot else ""
        return f"strict: in order, none missing, none repeated, by {evidence}{only}{dropped}{waits}"
