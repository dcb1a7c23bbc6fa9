"""Rules about the rows of a stream, for `Stream(rules=...)`: inline, or evaluated by the hourly check."""

from lockstep.declare.rules import (
    Expectation,
    InRange,
    InSet,
    Matches,
    NotNull,
    OnViolation,
    Predicate,
    References,
    Scope,
    Severity,
    Unique,
    list_violated,
)

__all__ = [
    "Expectation",
    "InRange",
    "InSet",
    "Matches",
    "NotNull",
    "OnViolation",
    "Predicate",
    "References",
    "Scope",
    "Severity",
    "Unique",
    "list_violated",
]
