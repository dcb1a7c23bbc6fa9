"""One diagnosis: level, finding, next step."""

from __future__ import annotations

from enum import Enum

import msgspec


class Level(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Diagnosis(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    Attributes:
        check: What was looked at.
        level: "ok", "warning" or "error".
        found: What was found, and what follows from it.
        next_step: What to do; empty when there is nothing to do.
    """

    check: str
    level: Level
    found: str
    next_step: str = ""


def make_ok(check: str, found: str) -> Diagnosis:
    """As it should be."""
    return Diagnosis(check, Level.OK, found)


def make_warning(check: str, found: str, next_step: str) -> Diagnosis:
    """It works, and will hurt some day."""
    return Diagnosis(check, Level.WARNING, found, next_step)


def make_error(check: str, found: str, next_step: str) -> Diagnosis:
    """It does not work, or a promise cannot be kept."""
    return Diagnosis(check, Level.ERROR, found, next_step)
