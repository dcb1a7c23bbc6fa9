"""How far a run of garbage goes: the messages after one that cannot be decoded, decoded and nothing else.

A halt that names one message at a time would have an operator resume once a message. The finding names the range
from the first to the last undecodable message that was seen, and says how far it was looked.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lockstep.declare.decoders.causes import Cause
from lockstep.engine.fold import DECODE_ERRORS, decoded
from lockstep.engine.kept import Message
from lockstep.engine.program import Program
from lockstep.engine.work import Opener, Work
from lockstep.errors import LockstepError
from lockstep.integrity.acceptance import UNDECODABLE
from lockstep.integrity.finding import Finding
from lockstep.kafka.reader import Range, Run

AHEAD_MESSAGES_MAX, AHEAD_BYTES_MAX = 10_000, 64_000_000
"""A halt waits for this look: at some microseconds a message it costs less than the look at Kafka that follows."""


class Garbage(msgspec.Struct):
    """What was seen of a run of garbage.

    Attributes:
        until: First offset after the last undecodable message.
        looked: First offset that was not looked at.
        messages: Messages looked at, the first one included.
        undecodable: Those that cannot be decoded.
    """

    until: int
    looked: int
    messages: int = 1
    undecodable: int = 1


def with_range(finding: Finding | None, work: Work, opener: Opener) -> Finding | None:
    """A finding of an undecodable message with the range of all that follow as planned; others as they are."""
    if finding is None or finding.cause != UNDECODABLE or finding.detail == Cause.KILLS_ITS_WORKER:
        return finding
    seen = Garbage(until=finding.until, looked=finding.until)
    for message in _following(finding, work, opener):
        decodes = _decodes(message, opener.program)
        if decodes is None:
            break
        offset = message.offset() or 0
        seen.messages, seen.looked = seen.messages + 1, offset + 1
        if not decodes:
            seen.undecodable, seen.until = seen.undecodable + 1, offset + 1
    if seen.undecodable == 1:
        return finding
    told = (
        f"{seen.undecodable} of {seen.messages} messages cannot be decoded; looked as far as offset {seen.looked - 1}"
    )
    return msgspec.structs.replace(finding, until=seen.until, detail=f"{finding.detail}; {told}")


def _following(finding: Finding, work: Work, opener: Opener) -> Iterator[Message]:
    """The messages after the first one, as far as one look goes."""
    position, size = work.planned.position, 0
    until = min(work.planned.until, finding.until + AHEAD_MESSAGES_MAX)
    for run in opener.log.ahead(Range(position.topic, position.partition, finding.until, until)):
        if not isinstance(run, Run):
            return
        for message in run.messages:
            size += len(message.value() or b"")
            if size > AHEAD_BYTES_MAX:
                return
            yield message


def _decodes(message: Message, program: Program) -> bool | None:
    """Whether a message can be decoded; None where that cannot be told now."""
    try:
        decoded(message.value(), program)
    except LockstepError:
        return None  # the registry does not answer: it says nothing of the message
    except DECODE_ERRORS:
        return False
    except Exception:  # noqa: BLE001  # the user's decoder: what it raises is no verdict, and no reason not to halt
        return None
    return True
