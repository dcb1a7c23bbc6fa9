"""What every integrity class declares, and the policies on a violation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from lockstep.errors import NotYet
from lockstep.integrity.verdict import Gate, Judgement


class Policy:
    """What happens to the stream on a violation."""


@dataclass(frozen=True)
class Halt(Policy):
    """Commit what came before, commit the halt with its evidence, end, and wait for an operator."""


@dataclass(frozen=True)
class Suspend(Policy):
    """Send the session's messages to quarantine until its next snapshot. Does not run yet.

    Attributes:
        accept_loss: Record the lost range as accepted when the snapshot comes.
    """

    accept_loss: bool = False

    def __post_init__(self) -> None:
        """Refused until quarantine exists."""
        raise NotYet("on_violation", "Suspend", "use Halt()")


@dataclass(frozen=True, kw_only=True)
class IntegrityClass(ABC):
    """A promise about the messages of a stream.

    Attributes:
        on_violation: What happens when the promise cannot be kept.
    """

    on_violation: Policy = Halt()  # a frozen value without parts

    undecodable: ClassVar[Judgement] = Judgement.VIOLATION
    """The verdict on a message that cannot be decoded."""
    unproven_hole: ClassVar[Judgement] = Judgement.VIOLATION
    """The verdict on missing offsets without a proven cause."""
    passes_unknown_sessions: ClassVar[bool] = False
    """Whether an update of an unknown session opens it."""

    @abstractmethod
    def gate(self) -> Gate:
        """The gate that judges the messages of this class."""

    @abstractmethod
    def promise(self) -> str:
        """The promise in one sentence, with its evidence, for people."""
