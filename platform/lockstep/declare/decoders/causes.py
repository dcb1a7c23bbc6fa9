"""Why a value could not be decoded: a fixed list of causes, for verdicts, counts and people.

Decoders of msgspec raise its errors, told apart here when one was raised: telling costs nothing
for the messages that are right.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Cause(StrEnum):
    """What is wrong with a value."""

    NO_VALUE = "no value"
    TOO_LARGE = "message too large"
    MALFORMED = "malformed"
    TRUNCATED = "truncated"
    TRAILING = "trailing bytes"
    TOO_DEEP = "nested too deeply"
    WRONG_TYPE = "wrong type"
    MISSING_FIELD = "missing field"
    UNKNOWN_MAGIC_BYTE = "unknown magic byte"
    UNKNOWN_SCHEMA_ID = "unknown schema id"
    UNFIT_SCHEMA = "unfit schema"
    KILLS_ITS_WORKER = "kills its worker"


class Undecodable(ValueError):
    """A value is not a message of the stream. A verdict on the value; never raised for anything around it.

    Attributes:
        cause: Which of the known causes.
    """

    def __init__(self, cause: Cause, problem: str) -> None:
        super().__init__(problem)
        self.cause = cause


def cause_of(error: Exception) -> Cause:
    """The cause of an error that a decoder raised."""
    if isinstance(error, Undecodable):
        return error.cause
    if isinstance(error, msgspec.ValidationError):
        return Cause.MISSING_FIELD if "missing required field" in str(error) else Cause.WRONG_TYPE
    if isinstance(error, RecursionError):
        return Cause.TOO_DEEP
    return _of_text(str(error)) if isinstance(error, msgspec.DecodeError) else Cause.MALFORMED


def _of_text(problem: str) -> Cause:
    """What msgspec says of JSON and MessagePack that it cannot read."""
    if "truncated" in problem:
        return Cause.TRUNCATED
    return Cause.TRAILING if "trailing" in problem else Cause.MALFORMED
