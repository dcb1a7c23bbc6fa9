"""One diagnosis: level, finding, next step."""

from __future__ import annotations

from enum import Enum

import msgspec


class Level(Enum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Diagnosis(msgspec.Struct, frozen=True):
    """Result of one check.

    Attributes:
        check: Name of the check.
        level: "ok", "warning" or "error".
        found: The finding and its consequence.
        next_step: Remedy; empty when none is needed.
    """

    check: str
    level: Level
    found: str
    next_step: str = ""


def make_ok(check: str, found: str) -> Diagnosis:
    """A diagnosis without a problem."""
    return Diagnosis(check, Level.OK, found)


def make_warning(check: str, found: str, next_step: str) -> Diagnosis:
    """A diagnosis of something that works now and will cause trouble."""
    return Diagnosis(check, Level.WARNING, found, next_step)


def make_error(check: str, found: str, next_step: str) -> Diagnosis:
    """A diagnosis of something that does not work, or that breaks a promise of the class."""
    return Diagnosis(check, Level.ERROR, found, next_step)
