"""Which topics a stream reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from lockstep.errors import DeclarationError, NotYet


class Adopt(Enum):
    """How a running stream takes up new topics."""

    RESTART = "restart"
    """The topics sensor starts a new run, which takes over at a batch boundary."""
    LIVE = "live"
    """The running loop takes them up itself. Declared; does not run yet."""


@dataclass(frozen=True, kw_only=True)
class Topics:
    r"""The topics of a stream, by name.

    Attributes:
        pattern: Regular expression that a whole topic name must match: `sensors\..+`.
        exclude: Topics that also match this one are left out.
        inactive_after: A topic without messages for so long is shown as drained.
        adopt: How new topics come into a running stream.
    """

    pattern: str
    exclude: str | None = None
    inactive_after: timedelta = timedelta(days=7)
    adopt: Adopt = Adopt.RESTART

    def __post_init__(self) -> None:
        """Check both expressions, that they name some topics and not all."""
        _check_expression("Topics.pattern", self.pattern)
        if self.exclude is not None:
            _check_expression("Topics.exclude", self.exclude)
        if not _is_positive(self.inactive_after):
            raise DeclarationError(
                "Topics.inactive_after", self.inactive_after, "is not a positive timedelta", "timedelta(days=7)"
            )
        if self.adopt is Adopt.LIVE:
            raise NotYet("Topics.adopt", "LIVE", "use Adopt.RESTART: the topics sensor restarts the stream")

    def select(self, names: Iterable[str]) -> frozenset[str]:
        """The topics of the stream among all topics of a cluster; internal ones never match."""
        wanted, unwanted = re.compile(self.pattern), re.compile(self.exclude) if self.exclude else None
        return frozenset(
            name
            for name in names
            if wanted.fullmatch(name) and not name.startswith("__") and not (unwanted and unwanted.fullmatch(name))
        )


def _is_positive(duration: object) -> bool:
    return isinstance(duration, timedelta) and duration > timedelta(0)


def _check_expression(field: str, value: str) -> None:
    try:
        matches_nothing = re.compile(value).fullmatch("")
    except (re.error, TypeError) as error:
        raise DeclarationError(
            field, value, f"is not a regular expression: {error}", r"for example r'sensors\..+'"
        ) from error
    if matches_nothing:
        raise DeclarationError(
            field, value, "matches the empty name, so it would match anything", r"give a prefix: r'sensors\..+'"
        )
