"""What a second gate is made of. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, NoReturn

import msgspec

from lockstep.declare.place import Place
from lockstep.declare.record import Record

Memory = int | bool | list[int] | dict[str, Any] | None
"""What a class remembers of a session, as it is stored; None for a session that is not known."""


class Answer(Enum):
    """What a class does about a message that it cannot apply, or about offsets that are gone."""

    STOP = "stop"
    SUSPEND = "suspend"
    QUARANTINE = "quarantine"
    COUNT = "count"


class What(Enum):
    """What a rule says of one message."""

    ACCEPT = "accept"
    DROP = "drop"
    WAIT = "wait"
    """Into quarantine, and the session waits for a snapshot, whatever the policy is."""
    REFUSE = "refuse"
    """The promise is broken: the policy says what follows."""
    HOLD = "hold"
    """Held back in the state until something else comes."""
    LATE = "late"
    """Into the late table, and nothing else happens."""
    ASIDE = "aside"
    """Into quarantine, and nothing else happens."""


class Ruling(NamedTuple):
    """What a rule says, with what is remembered of the session if the message is accepted or held back.

    Attributes:
        what: What becomes of the message.
        memory: What is remembered then.
        cause: Why; empty where nothing was remarked.
        before: Offsets of messages held back that are applied before it, in order.
        after: Offsets of those that are applied after it.
        freed: Offsets of those that will not be applied.
        stale: Offsets of those that a snapshot covers: dropped, and counted.
    """

    what: What
    memory: Memory = None
    cause: str = ""
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()


Rule = Callable[[Memory, Place, Record], Ruling]
"""From what is remembered, the message's place and its record to a ruling."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """An integrity class, as its second gate sees it.

    Attributes:
        rule: What it says of one message.
        undecodable: What it does about a message that cannot be decoded.
        raised: What it does about one on which the transform raises.
        hole: What it does about a hole that nothing explains.
        expired: What it does about offsets that were gone before they were read.
        grew: What it does when a topic gets another partition.
        bears: Whether a broken promise suspends the session instead of stopping the stream.
        passes_unknown: Whether an update of an unknown session opens it.
        of_one_partition: Whether a session in two partitions has lost its order.
        release: What waits no longer, by the watermark; None for a class in which nothing waits for that.
        bears_all: Whether nothing that a message says of itself breaks the promise.
        by_time: Whether messages are compared with the watermark.
        at_first: Whether any update begins a session that is unknown or waits.
    """

    rule: Rule
    undecodable: Answer
    raised: Answer
    hole: Answer
    expired: Answer
    grew: Answer
    bears: bool
    passes_unknown: bool = False
    of_one_partition: bool = True
    release: Callable[[Memory], Ruling] | None = None
    bears_all: bool = False
    by_time: bool = False
    at_first: bool = False

    @property
    def suspends(self) -> bool:
        """Whether sessions may be suspended: then the offset that opened each is stored beside its memory."""
        return Answer.SUSPEND in (self.undecodable, self.raised, self.hole, self.expired, self.grew)

    @property
    def needs_no_snapshot(self) -> bool:
        """Whether sessions never wait: each may begin with any message."""
        return self.passes_unknown and not self.suspends


class NotProvable(Exception):  # no error: the reason why a proof ends here
    """The class, or a part of it, has no second gate: what it decided is not proven.

    Attributes:
        reason: Why, in a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def refuse(cause: str) -> Ruling:
    """The promise is broken."""
    return Ruling(What.REFUSE, None, cause)


def not_provable(what: str) -> NoReturn:
    """Say that a proof of something is not there yet."""
    raise NotProvable(f"{what} cannot be proven yet: no second gate knows it")
