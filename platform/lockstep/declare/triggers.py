"""When a batch begins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from lockstep.errors import DeclarationError


class Trigger:
    """When the next batch begins, and whether the stream ever ends by itself."""


@dataclass(frozen=True)
class Every(Trigger):
    """A batch every so many seconds, for ever; at once when the batch before left a backlog.

    Attributes:
        seconds: Time from the start of a batch to the start of the next; at least 0.05.
    """

    seconds: float = 5.0

    def __post_init__(self) -> None:
        """Refuse a pace that only burns CPU: an empty batch costs some 10 ms of Kafka look-ups."""
        if not _is_pace(self.seconds):
            raise DeclarationError("Every.seconds", self.seconds, "is not between 0.05 and 3600", "Every(seconds=5)")


def _is_pace(seconds: object) -> bool:
    return isinstance(seconds, (int, float)) and 0.05 <= seconds <= 3600  # noqa: PLR2004  # both are in the message


@dataclass(frozen=True)
class AvailableNow(Trigger):
    """Read up to the ends seen at the start, in as many batches as that takes, then end."""


@dataclass(frozen=True)
class FileSize(Trigger):
    """A batch when its rows fill a file, or when a message has waited long enough.

    Until then messages wait in Kafka, which keeps them safer than a file that is half written: a
    stop has nothing to finish, a kill nothing to repeat. Sizes are learned from the batches
    before; files of a steady stream lie within a fifth of the target, so they need no compaction.
    The first batch of a run takes what is there.

    Attributes:
        target: Wanted size of a file: a number and kB, MB or GB (or KiB, MiB, GiB), "128 MB".
        at_most: The longest a message waits before its batch begins.
    """

    target: str
    at_most: timedelta = timedelta(minutes=60)

    def __post_init__(self) -> None:
        """Refuse a size or a time that cannot be kept."""
        if _bytes(self.target) is None:
            problem = "is not a size from 64 kB to 8 GB"
            raise DeclarationError("FileSize.target", self.target, problem, 'a number and a unit: FileSize("128 MB")')
        if not _is_wait(self.at_most):
            problem = "is not a time from a second to a day"
            raise DeclarationError("FileSize.at_most", self.at_most, problem, "timedelta(minutes=60)")

    @property
    def target_bytes(self) -> int:
        """The target in bytes."""
        return _bytes(self.target) or 0


def _is_wait(at_most: object) -> bool:
    return isinstance(at_most, timedelta) and timedelta(seconds=1) <= at_most <= timedelta(days=1)


_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?) ?(?P<unit>[kKMG]i?)B")
_UNITS = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "ki": 2**10, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_LEAST_BYTES, _MOST_BYTES = 64_000, 8_000_000_000


def _bytes(size: object) -> int | None:
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    found = int(float(match["number"]) * _UNITS[match["unit"]]) if match is not None else 0
    return found if _LEAST_BYTES <= found <= _MOST_BYTES else None
