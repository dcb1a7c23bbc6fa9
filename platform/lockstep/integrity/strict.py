"""Strict: in order, none missing, none repeated.

Promises: every message of a session is applied, in order, exactly once, as its evidence proves.
Refuses: gaps, repeats, broken links, unknown sessions, undecodable messages, unproven holes.
Costs: one comparison a message; a producer that numbers, links or sums what it sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lockstep.errors import DeclarationError
from lockstep.integrity.contract import Fault, IntegrityClass, OnGrowth
from lockstep.integrity.evidence import Evidence, LogOnly
from lockstep.integrity.verdict import Gate, Judgement


@dataclass(frozen=True, kw_only=True)
class Strict(IntegrityClass):
    """In order, none missing, none repeated.

    Attributes:
        evidence: `Sequence()`, `Linked()`, `Checksum()` or `LogOnly()`.
        on_growth: What the growth of a topic by partitions does.
    """

    evidence: Evidence
    on_growth: OnGrowth = OnGrowth.VIOLATION

    answers: ClassVar[Mapping[Fault, Judgement]] = dict.fromkeys(Fault, Judgement.VIOLATION)

    def __post_init__(self) -> None:
        """Refuse anything that is not evidence, such as the class instead of a value."""
        if not isinstance(self.evidence, Evidence):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need no checker
            raise DeclarationError(
                "Strict.evidence", self.evidence, "is not evidence", "for example Strict(evidence=Sequence())"
            )

    def gate(self) -> Gate:
        """See `IntegrityClass.gate`."""
        return self.evidence

    def promise(self) -> str:
        """See `IntegrityClass.promise`."""
        evidence = type(self.evidence).__name__
        only = " (the log only: what the producer lost is not seen)" if isinstance(self.evidence, LogOnly) else ""
        return f"strict: in order, none missing, none repeated, by {evidence}{only}"
