"""What happens between the messages of a test, and how it is cut into batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self


class Event:
    """Something that happens between two messages. It ends the batch before it."""


@dataclass(frozen=True)
class _Named(Event):
    name: str

    def __str__(self) -> str:
        return self.name


CRASH: Final = _Named("CRASH")
"""The batch so far was worked and not committed: it is worked again."""
RESTART: Final = _Named("RESTART")
"""The run ends after the batch so far; the next one starts from the ledger, on a machine without hot state."""
RENUMBER: Final = _Named("RENUMBER")
"""The topic is deleted and made anew: its offsets begin at 0 again, under another topic id."""


@dataclass(frozen=True)
class NewTopic(Event):
    """The messages that follow are of another topic, with state of its own.

    Attributes:
        name: Its name.
    """

    name: str


@dataclass(frozen=True)
class Idle(Event):
    """Nothing came for `EventTime.idle_advance`: the watermark of the topic goes on by the clock.

    Attributes:
        watermark_us: Up to where, in microseconds since 1970 (UTC).
    """

    watermark_us: int


@dataclass(frozen=True)
class Split:
    """How messages are cut into batches.

    Attributes:
        messages: Of a batch, at most; None for all up to the next event.
        crashes: Each batch is worked, thrown away, and worked again; then the run ends, and the next one starts
            from what the ledger says, without the hot copy of the state.
    """

    messages: int | None
    crashes: bool = True

    def __post_init__(self) -> None:
        """Refuse a batch of nothing."""
        if self.messages is not None and self.messages < 1:
            raise ValueError(f"a batch of {self.messages} messages: at least 1")

    @classmethod
    def of(cls, given: int | Self | None) -> Split:
        """What `run` was given."""
        if given is None:
            return Split(None, crashes=False)
        return Split(given) if isinstance(given, int) else given
