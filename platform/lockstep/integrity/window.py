"""FuzzyWindow: any order within a bound of lateness. Declared; does not run yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lockstep.errors import NotYet
from lockstep.integrity.contract import IntegrityClass
from lockstep.integrity.verdict import Gate


@dataclass(frozen=True, kw_only=True)
class FuzzyWindow(IntegrityClass):
    """Any order within the bound; what is later goes to the late table.

    Attributes:
        lateness: The bound, in event time.
        reorder: Buffer messages and release them in order.
    """

    lateness: timedelta
    reorder: bool = False

    def __post_init__(self) -> None:
        """Refused until it runs."""
        raise NotYet("Stream.integrity", "FuzzyWindow", "use Strict(evidence=...) or NoIntegrity()")

    def gate(self) -> Gate:
        """See `IntegrityClass.gate`."""
        raise NotYet("Stream.integrity", "FuzzyWindow", "use Strict(evidence=...) or NoIntegrity()")

    def promise(self) -> str:
        """See `IntegrityClass.promise`."""
        return f"fuzzy window: any order within {self.lateness}"
