"""Ordered: in order, may skip, repeats dropped. Declared; does not run yet."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.errors import NotYet
from lockstep.integrity.contract import IntegrityClass
from lockstep.integrity.verdict import Gate


@dataclass(frozen=True, kw_only=True)
class Ordered(IntegrityClass):
    """In order; may skip; repeats and late messages are dropped and counted."""

    def __post_init__(self) -> None:
        """Refused until it runs."""
        raise NotYet("Stream.integrity", "Ordered", "use Strict(evidence=...) or NoIntegrity()")

    def gate(self) -> Gate:
        """See `IntegrityClass.gate`."""
        raise NotYet("Stream.integrity", "Ordered", "use Strict(evidence=...) or NoIntegrity()")

    def promise(self) -> str:
        """See `IntegrityClass.promise`."""
        return "ordered: in order, may skip, repeats dropped"
