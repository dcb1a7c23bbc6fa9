"""Once: every message exactly once, in any order. Declared; does not run yet."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.errors import NotYet
from lockstep.integrity.contract import IntegrityClass
from lockstep.integrity.verdict import Gate


@dataclass(frozen=True, kw_only=True)
class Once(IntegrityClass):
    """Every message exactly once, in any order.

    Attributes:
        keep_ids: How many message ids of a session are remembered; older repeats are not seen.
    """

    keep_ids: int

    def __post_init__(self) -> None:
        """Refused until it runs."""
        raise NotYet("Stream.integrity", "Once", "use Strict(evidence=...) or NoIntegrity()")

    def gate(self) -> Gate:
        """See `IntegrityClass.gate`."""
        raise NotYet("Stream.integrity", "Once", "use Strict(evidence=...) or NoIntegrity()")

    def promise(self) -> str:
        """See `IntegrityClass.promise`."""
        return "once: every message exactly once, in any order"
