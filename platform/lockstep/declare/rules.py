"""Data-quality rules of a stream's rows. Declared here; they run from a later release on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad a broken rule is."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A statement that must hold for every row.

    Attributes:
        severity: How bad it is when it does not.
    """

    severity: Severity = Severity.CRITICAL


@dataclass(frozen=True)
class NotNull(Rule):
    """The column is never null.

    Attributes:
        column: A field of the row type.
    """

    column: str


@dataclass(frozen=True)
class Between(Rule):
    """The column lies between two bounds, both allowed.

    Attributes:
        column: A field of the row type.
        low: Smallest value allowed.
        high: Largest value allowed.
    """

    column: str
    low: float
    high: float
