"""An entry of the fault matrix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Tier(Enum):
    """The frequency and the needs of a fault's tests."""

    PURE = "T0"
    """No Kafka, no Spark."""
    CORE = "T1"
    """A real broker, and Spark if it matters: with every change."""
    WHOLE = "T2"
    """Minutes, or strace: in `make test-all`."""


@dataclass(frozen=True)
class Fault:
    """An entry of the matrix.

    Attributes:
        id: Its number.
        what: The fault.
        expected: The outcome, in addition to the common outcome: no loss, doubling, reordering or silence.
        tier: The highest tier that its proof needs.
        proven_by: Tests, by file below tests and name.
        left: The part that is not proven or not built; empty for none.
    """

    id: str
    what: str
    expected: str
    tier: Tier
    proven_by: tuple[str, ...]
    left: str = ""
