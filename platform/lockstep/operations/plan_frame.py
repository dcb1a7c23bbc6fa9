"""The frame of the plans that change the past of a stream: a plan is data, and obstacles refuse it by name."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep.errors import LockstepError


class Obstacle(msgspec.Struct, frozen=True):
    """A reason why a plan is refused.

    Attributes:
        kind: The kind of reason, the same text each time.
        problem: The reason in one sentence, with names and figures.
        next_step: The remedy.
    """

    kind: str
    problem: str
    next_step: str


class Refused(LockstepError):
    """A plan is refused; nothing was changed.

    Attributes:
        stream: Name of the stream.
        obstacles: All reasons.
    """

    def __init__(self, stream: str, plan: str, obstacles: Iterable[Obstacle]) -> None:
        """Name all reasons, with the remedy of the first.

        Args:
            stream: Name of the stream.
            plan: The refused plan, such as "the rewind".
            obstacles: The reasons, at least one.
        """
        self.stream = stream
        self.obstacles = tuple(obstacles)
        problems = "; ".join(each.problem for each in self.obstacles)
        super().__init__(f"{plan} of stream {stream} is refused: {problems}", next_step=self.obstacles[0].next_step)
