"""Decides whether a stream is to be started again for new topics. Pure: no Kafka, no Dagster, no clock.

A new topic is answered at once, and then nothing for a while: 200 topics within ten seconds cost two
restarts, the second for all but the first few. A run that did not bring the topics is asked for
again, later and later.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from lockstep.engine.liveness import Phase, Pulse
from lockstep.orchestration.topic_states import Sweep
from lockstep.table.head import Desired, Head

if TYPE_CHECKING:
    from collections.abc import Iterable

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 30.0, 600.0
"""Longer than a start, so that a run has subscribed its topics before it is judged."""
SUBSCRIBE_SECONDS = 60.0
"""A writer has claimed the table a few seconds before its first batch tells what it subscribes; on a machine
that starts several streams at once, half a minute."""
CURSOR_VERSION = 1


class Cursor(msgspec.Struct, frozen=True):
    """What the sensor remembers between looks.

    Attributes:
        version: Of this layout.
        pulse: Epoch and counter of the writer as they were at the last look.
        writer_at: When this writer was seen first, in seconds since 1970 (UTC).
        run_key: Of the run that was asked for last.
        asked: Digest of the topics it was asked for.
        awaited: One of these topics.
        attempt: How often in a row it was asked for the same topics.
        never_ending: Whether the first of these was to take over from a run that never ends.
        asked_at: When, in seconds since 1970 (UTC).
        sweep: How far the looks at all topics have come.
    """

    version: int = CURSOR_VERSION
    pulse: str = ""
    writer_at: float = 0.0
    run_key: str = ""
    asked: str = ""
    awaited: str = ""
    attempt: int = 0
    never_ending: bool = False
    asked_at: float = 0.0
    sweep: Sweep = Sweep()

    def encode(self) -> str:
        """As sorted JSON."""
        return msgspec.json.encode(self, order="sorted").decode()


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to see.

    Attributes:
        head: The head of the table; None while there is none.
        wanted: Topics that match the stream's pattern now.
        subscribed: Topics of the ledger.
        pulse: The last sign of life of the writer that holds the table.
        on_its_way: A run of the stream that was launched and does not work yet.
        unfinished: Run keys of runs that were asked for here and have not ended.
    """

    head: Head | None
    wanted: frozenset[str]
    subscribed: frozenset[str] = frozenset()
    pulse: Pulse | None = None
    on_its_way: str | None = None
    unfinished: frozenset[str] = frozenset()


class Restart(msgspec.Struct, frozen=True):
    """A run to ask for.

    Attributes:
        run_key: Dagster launches each key once, for ever: table, generation, topics, attempt.
        never_ending: Whether it takes over from a run that is never to end, and so must go on too.
        added: The topics it is for.
    """

    run_key: str
    never_ending: bool
    added: tuple[str, ...]


class Decision(msgspec.Struct, frozen=True):
    """What to do, what to remember, and what to say of it."""

    cursor: Cursor
    says: str
    restart: Restart | None = None


def read_cursor(text: str | None) -> tuple[Cursor, str]:
    """The cursor, and a warning when what was there cannot be read and was reset."""
    if not text:
        return Cursor(), ""
    try:
        cursor = msgspec.json.decode(text, type=Cursor)
    except msgspec.DecodeError as error:
        return Cursor(), f"the cursor cannot be read and begins anew: {error}"
    if cursor.version != CURSOR_VERSION:
        return Cursor(), f"the cursor is of version {cursor.version}, not {CURSOR_VERSION}, and begins anew"
    return cursor, ""


def decide(look: Look, cursor: Cursor, now: float) -> Decision:
    """Decide.

    1. A stream that has never run, was stopped or is halted is left alone.
    2. Nothing new, a run on its way, or an unknown writer: wait.
    3. Asked for not long ago, and the run has not failed: wait.
    4. Ask for a run.
    """
    first_look = _sign(look).partition(":")[0] != cursor.pulse.partition(":")[0]
    seen = msgspec.structs.replace(cursor, pulse=_sign(look), writer_at=now if first_look else cursor.writer_at)
    counts = f"{len(look.wanted)} topics wanted, {len(look.subscribed)} subscribed"
    added = tuple(sorted(look.wanted - look.subscribed))
    if look.head is None or look.head.desired is not Desired.RUNNING:
        return Decision(seen, f"{counts}; {_left_alone(look.head)}")
    if not added:
        return Decision(msgspec.structs.replace(seen, asked="", attempt=0), f"{counts}, none is new")
    waiting = _waiting(look, seen, now, added)
    if waiting:
        return Decision(seen, f"{counts}, {len(added)} new ({_some(added)}); {waiting}")
    never_ending = look.pulse is not None and look.pulse.never_ending and _lives(look, cursor)
    return _restart(look.head, seen, now, added, never_ending=never_ending)


def _restart(head: Head, cursor: Cursor, now: float, added: tuple[str, ...], *, never_ending: bool) -> Decision:
    asked = _digest(added)
    again = asked == cursor.asked
    attempt = cursor.attempt + 1 if again else 0
    # The run before has handed over to one that did not come: its successor is to go on as it did.
    never_ending = never_ending or (again and cursor.never_ending)
    run_key = f"{head.stream}-{head.table_id[:8]}-{head.generation}-{asked}-{attempt}"
    after = msgspec.structs.replace(
        cursor,
        run_key=run_key,
        asked=asked,
        awaited=added[0],
        attempt=attempt,
        never_ending=never_ending,
        asked_at=now,
    )
    restart = Restart(run_key, never_ending, added)
    return Decision(after, f"{len(added)} new topics: {_some(added)}", restart)


def _left_alone(head: Head | None) -> str:
    if head is None:
        return "the stream has no table yet: materialize it once"
    return f"the stream is {head.desired.value} ({head.reason}) and is left alone"


def _waiting(look: Look, cursor: Cursor, now: float, added: tuple[str, ...]) -> str:
    """What there is to wait for; empty when there is nothing."""
    if look.on_its_way is not None:
        return f"run {look.on_its_way} is on its way"
    since = now - cursor.asked_at
    if since < 0:  # a clock that was set back must not silence the sensor
        since = PAUSE_SECONDS_MAX
    # Until it has subscribed them, it will take every topic that is there by then.
    if cursor.run_key in look.unfinished and cursor.awaited in added and since < PAUSE_SECONDS_MAX:
        return f"the run asked for {since:.0f} s ago has not subscribed yet"
    pause = _pause(cursor, added)
    if since < pause:
        return f"asked for a run not long ago, waiting {pause - since:.0f} s"
    return _writer_is_new(look, cursor, now)


def _pause(cursor: Cursor, added: tuple[str, ...]) -> float:
    again = _digest(added) == cursor.asked
    return min(PAUSE_SECONDS * 2.0**cursor.attempt, PAUSE_SECONDS_MAX) if again else PAUSE_SECONDS


def _writer_is_new(look: Look, cursor: Cursor, now: float) -> str:
    """Whether a writer was seen too short a time to judge it: it may be gone, or about to subscribe; why."""
    since = now - cursor.writer_at
    if look.pulse is None or look.pulse.phase is Phase.ENDED or not 0 <= since < SUBSCRIBE_SECONDS:
        return ""
    return "whether its last run lives, and what it subscribes, is seen at the next looks"


def _lives(look: Look, cursor: Cursor) -> bool:
    """Whether the writer counted on since the last look, some seconds ago."""
    ended = look.pulse is None or look.pulse.phase is Phase.ENDED
    return not ended and _sign(look) != cursor.pulse


def _sign(look: Look) -> str:
    if look.head is None or look.pulse is None:
        return ""
    return f"{look.head.epoch}:{look.pulse.counter}"


def _digest(topics: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(topics).encode()).hexdigest()[:12]


def _some(topics: tuple[str, ...], most: int = 5) -> str:
    more = f" and {len(topics) - most} more" if len(topics) > most else ""
    return ", ".join(topics[:most]) + more
