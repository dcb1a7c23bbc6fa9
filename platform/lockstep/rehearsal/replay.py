"""What a live feed sends, and when: recordings again and again, each time as new sessions. Pure.

A session is always replayed from its snapshot, in the order of the recording, under a key that was never used
before. So whatever evidence a recording carries (links, checksums) holds in every replay, and a feed that was
killed half-way goes on with new sessions: nothing continues what nobody saw end.

Now and then a topic appears that was not there before. It is fed with one session and then falls silent.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, count, cycle, repeat
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from lockstep.rehearsal.recordings import Recorded

SESSION_MESSAGES_MAX = 2_000
"""A part of a recording from its snapshot on is a recording. At a few messages a second and topic such a
session takes some ten minutes, so that sessions begin while one looks on; and little is kept in memory."""
FIRST_NEW_TOPIC_SECONDS, NEW_TOPIC_SECONDS = 180.0, 1_800.0
"""Soon enough to be seen in a first look around; then seldom, as each costs a restart of a stream."""


class Due(msgspec.Struct, frozen=True):
    """A message to send.

    Attributes:
        at_seconds: When, counted from the start of the feed.
        topic: Where to.
        key: The session, as the message key.
        value: As it was recorded.
    """

    at_seconds: float
    topic: str
    key: bytes
    value: bytes


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be fed.

    Attributes:
        recordings: Messages by topic, from a snapshot on; one session each.
        run: Sets the sessions of this feed apart from those of all others.
        messages_per_second: Of all topics together.
        taken: Topics that were there before.
        new_topic_seconds: Time until the first new topic, and between later ones.
    """

    recordings: Mapping[str, Sequence[Recorded]]
    run: str
    messages_per_second: float
    taken: Collection[str] = ()
    new_topic_seconds: tuple[float, float] = (FIRST_NEW_TOPIC_SECONDS, NEW_TOPIC_SECONDS)


def replay(plan: Plan) -> Iterator[Due]:
    """All messages, for ever: the topics take turns, one message each."""
    turns = deque(_endless(topic, messages, plan.run) for topic, messages in plan.recordings.items())
    new_topics, births = _new_topics(plan), _births(plan)
    birth = next(births)
    for number in count():
        at = number / plan.messages_per_second
        if at >= birth:
            birth = next(births)
            turns.append(next(new_topics))
        topic, key, value = _next(turns)
        yield Due(at, topic, key, value)


def _next(turns: deque[Iterator[tuple[str, bytes, bytes]]]) -> tuple[str, bytes, bytes]:
    """The message whose turn it is; a topic that has none left loses its turn for good."""
    while True:
        turn = turns.popleft()
        message = next(turn, None)
        if message is not None:
            turns.append(turn)
            return message


def _endless(topic: str, messages: Sequence[Recorded], run: str) -> Iterator[tuple[str, bytes, bytes]]:
    for number in count(1):
        yield from _session(topic, messages, f"{run}.{number}")


def _session(topic: str, messages: Sequence[Recorded], which: str) -> Iterator[tuple[str, bytes, bytes]]:
    for message in messages[:SESSION_MESSAGES_MAX]:
        yield topic, f"{message.book}.{which}".encode(), message.value


def _new_topics(plan: Plan) -> Iterator[Iterator[tuple[str, bytes, bytes]]]:
    """One session each on a topic of its own, named after a recording and a number not yet taken."""
    taken = {*plan.taken, *plan.recordings}
    for original, messages in cycle(plan.recordings.items()):
        topic = next(name for number in count(2) if (name := f"{original}_{number}") not in taken)
        taken.add(topic)
        yield _session(topic, messages, f"{plan.run}.1")


def _births(plan: Plan) -> Iterator[float]:
    """Times at which new topics appear."""
    first, pause = plan.new_topic_seconds
    at = first
    for wait in chain((0.0,), repeat(pause)):
        at += wait
        yield at
