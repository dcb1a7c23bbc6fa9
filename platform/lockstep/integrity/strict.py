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
from lockstep.integrity.contract import Fault, IntegrityClass, OnGrowth
from lockstep.integrity.evidence import Checksum, Evidence, LogOnly, Sequence
from lockstep.integrity.repeats import DroppingRepeats, Repeats
from lockstep.integrity.time import PartitionTime
from lockstep.integrity.verdict import Gate, Judgement


@dataclass(frozen=True, kw_only=True)
class Strict(IntegrityClass):
    """In order, none missing, none repeated.

    Attributes:
        evidence: `Sequence()`, `Linked()`, `Checksum()` or `LogOnly()`.
        on_growth: What the growth of a topic by partitions does.
        repeats: What a message does that came before, with the same number and content.
    """

    evidence: Evidence
    on_growth: OnGrowth = OnGrowth.VIOLATION
    repeats: Repeats = Repeats.VIOLATION

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

    @property
    def in_order(self) -> bool:
        """See `IntegrityClass.in_order`."""
        return not (isinstance(self.evidence, Sequence) and self.evidence.wraps_at)

    def gate(self, time: PartitionTime) -> Gate:
        """See `IntegrityClass.gate`."""
        del time
        return DroppingRepeats(self.evidence) if self.repeats is Repeats.DROP else self.evidence

    def promise(self) -> str:
        """See `IntegrityClass.promise`."""
        evidence = type(self.evidence).__name__
        only = " (the log only: what the producer lost is not seen)" if isinstance(self.evidence, LogOnly) else ""
        dropped = "; identical repeats dropped" if self.repeats is Repeats.DROP else ""
        return f"strict: in order, none missing, none repeated, by {evidence}{only}{dropped}"
