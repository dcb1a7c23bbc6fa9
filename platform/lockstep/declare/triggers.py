"""When a batch begins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lockstep.errors import DeclarationError, NotYet


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
    """A batch ends when its files reach a size, or after a time. Declared; does not run yet.

    Attributes:
        target: Wanted file size, for example "128 MB".
        at_most: The longest a message waits.
    """

    target: str
    at_most: timedelta = timedelta(minutes=60)

    def __post_init__(self) -> None:
        """Refused until it runs."""
        raise NotYet("Stream.trigger", f"FileSize({self.target!r})", "use Every(seconds=...) and the compaction job")
