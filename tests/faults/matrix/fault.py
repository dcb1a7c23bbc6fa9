"""One line of the fault matrix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Tier(Enum):
    """When the tests of a fault are run, and what they need."""

    PURE = "T0"
    """No Kafka, no Spark."""
    CORE = "T1"
    """A real broker, Spark where it matters: with every change."""
    WHOLE = "T2"
    """Minutes, or strace: in `make test-all`."""


@dataclass(frozen=True)
class Fault:
    """One line of the matrix.

    Attributes:
        id: Its number.
        what: What goes wrong.
        expected: What must be true then, beside that nothing is lost, doubled, reordered or unsaid.
        tier: The highest tier that its proof needs.
        proven_by: Tests, by file below tests and name.
        left: What of it is not proven, or not built; empty for nothing.
    """

    id: str
    what: str
    expected: str
    tier: Tier
    proven_by: tuple[str, ...]
    left: str = ""
