"""Decides whether to restart a stream for new topics. Pure: no Kafka, no Dagster, no clock.

The first new topic gets a run at once, and then there is a pause: 200 topics within ten seconds cost two
restarts, the second for all but the first few. A run that did not subscribe the topics is requested
again, at growing intervals, and so are topics that appear and vanish: a restart for each time would be a storm.
A writer that adopts new topics has a minute for it before it is replaced.
The desired state decides which kind of run is requested, independent of the run that lives now: a
never-ending one for `running`, a bounded one for `bounded`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from lockstep.control.heartbeat import HeartbeatRecord, Phase
from lockstep.errors import format_some
from lockstep.operations.durations import compute_back_off
from lockstep.orchestration.observation_policy import ObservationCursor
from lockstep.orchestration.sensor_cursor import SensorCursor
from lockstep.table.head import Desired, Head

if TYPE_CHECKING:
    from collections.abc import Iterable


PAUSE_SECONDS = 30.0
PAUSE_SECONDS_MAX = 600.0
"""Longer than a start, so that a run has subscribed its topics before it is judged."""
SUBSCRIBE_SECONDS = 60.0
"""A writer claims the table a few seconds before its first batch shows its subscription; on a machine
that starts several streams at once, half a minute."""
SUPERVISE_SECONDS = 60.0
"""The supervisor replaces a dead writer, and the new run reads the new topics, too. If there is no
supervisor (its sensor may be turned off), this sensor requests a run after this time."""
ADOPT_SECONDS = 60.0
"""A run that adopts topics has subscribed them after its second poll, at an interval of seconds, and a batch."""


class RestartCursor(SensorCursor, frozen=True):
    """State of the sensor between evaluations.

    Attributes:
        pulse: Epoch and counter of the writer at the last evaluation.
        pulse_at: When they were first seen, in seconds since 1970 (UTC).
        writer_at: When this writer was first seen, in seconds since 1970 (UTC).
        run_key: Key of the last requested run.
        asked: Digest of its topics.
        awaited: One of these topics.
        attempt: Number of consecutive requests for the same topics.
        asked_at: Time of the last request, in seconds since 1970 (UTC).
        new: A topic that was new at the last evaluation.
        new_at: When it was first seen, in seconds since 1970 (UTC).
        sweep: Progress of the observations of all topics.
    """

    pulse: str = ""
    pulse_at: float = 0.0
    writer_at: float = 0.0
    run_key: str = ""
    asked: str = ""
    awaited: str = ""
    attempt: int = 0
    asked_at: float = 0.0
    new: str = ""
    new_at: float = 0.0
    sweep: ObservationCursor = ObservationCursor()


class SensorObservation(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a decision.

    Attributes:
        head: The head of the table; None while there is none.
        wanted: Topics in Kafka that match the stream's pattern.
        subscribed: Topics of the ledger; a run polls its retired topics itself.
        adopts: Whether the stream's never-ending runs adopt new topics.
        pulse: The last heartbeat of the writer that holds the table.
        on_its_way: A run of the stream that was launched and does not write yet.
        may_start: Whether few enough other streams start.
        unfinished: Run keys of runs requested here that have not ended.
        host: Group of the run that runs the stream with others; empty for a stream that runs alone.
    """

    head: Head | None
    wanted: frozenset[str]
    subscribed: frozenset[str] = frozenset()
    adopts: bool = False
    pulse: HeartbeatRecord | None = None
    on_its_way: str | None = None
    may_start: bool = True
    unfinished: frozenset[str] = frozenset()
    host: str = ""


class RestartRequest(msgspec.Struct, frozen=True):
    """A run to request.

    Attributes:
        run_key: Dagster launches each key only once: table, generation, topics, time of the last request, attempt.
        epoch: The epoch that held the table at the decision.
        never_ending: Whether it runs until it is stopped, as the desired state demands.
        added: The new topics.
    """

    run_key: str
    epoch: int
    never_ending: bool
    added: tuple[str, ...]


class RestartDecision(msgspec.Struct, frozen=True):
    """The run to request, the new cursor, and the text for Dagster."""

    cursor: RestartCursor
    says: str
    restart: RestartRequest | None = None


def decide_restart(observation: SensorObservation, cursor: RestartCursor, now: float) -> RestartDecision:
    """Decide whether to request a run.

    1. Leave a stream alone that has never run, or was stopped, held or halted.
    2. No new topic, a host, a run in progress, an unknown writer, one that the supervisor replaces, or one that adopts:
       wait.
    3. A recent request whose run has not failed: wait.
    4. Request a run.
    """
    added = tuple(sorted(observation.wanted - observation.subscribed))
    seen = _note_new(_seen(observation, cursor, now), added, now)
    counts = f"{len(observation.wanted)} topics wanted, {len(observation.subscribed)} subscribed"
    if observation.head is None or observation.head.desired not in {Desired.RUNNING, Desired.BOUNDED}:  # 1
        return RestartDecision(seen, f"{counts}; {_left_alone(observation.head)}")
    if not added:  # 2
        return RestartDecision(_forget_old_request(seen, now), f"{counts}, none is new")
    waiting = (
        _hosted(observation)
        or _waiting(observation, seen, now, added)
        or _supervised(observation, cursor, now - seen.pulse_at)
        or _adopting(observation, seen, now)
        or _waiting_for_slot(observation)
    )
    if waiting:  # 2, 3
        return RestartDecision(seen, f"{counts}, {len(added)} new ({format_some(added)}); {waiting}")
    return _restart(observation.head, seen, now, added)  # 4


def _waiting_for_slot(observation: SensorObservation) -> str:
    return "" if observation.may_start else "waits until fewer other streams start"


def _seen(observation: SensorObservation, cursor: RestartCursor, now: float) -> RestartCursor:
    """The cursor with the writer's heartbeat at this evaluation."""
    sign = _sign(observation)
    same_epoch = sign.partition(":")[0] == cursor.pulse.partition(":")[0]
    return msgspec.structs.replace(
        cursor,
        pulse=sign,
        pulse_at=cursor.pulse_at if sign == cursor.pulse else now,
        writer_at=cursor.writer_at if same_epoch else now,
    )


def _note_new(cursor: RestartCursor, added: tuple[str, ...], now: float) -> RestartCursor:
    """The cursor with the time since when one of the new topics is new: others may appear and be adopted meanwhile."""
    if cursor.new in added:
        return cursor
    return msgspec.structs.replace(cursor, new=added[0] if added else "", new_at=now)


def _forget_old_request(cursor: RestartCursor, now: float) -> RestartCursor:
    """The cursor without its last request, if that is long ago: topics of a younger one may only be gone for now."""
    if 0 <= now - cursor.asked_at < 2 * PAUSE_SECONDS_MAX:
        return cursor
    return msgspec.structs.replace(cursor, asked="", attempt=0)


def _restart(head: Head, cursor: RestartCursor, now: float, added: tuple[str, ...]) -> RestartDecision:
    asked = _digest(added)
    attempt = cursor.attempt + 1 if asked == cursor.asked else 0
    # The time of the request before: Dagster launches no key a second time, and topics may come back unread.
    last_asked = int(cursor.asked_at)
    run_key = f"{head.stream}-{head.table_id[:8]}-{head.generation}-{asked}-{last_asked}-{attempt}"
    after = msgspec.structs.replace(
        cursor,
        run_key=run_key,
        asked=asked,
        awaited=added[0],
        attempt=attempt,
        asked_at=now,
    )
    restart = RestartRequest(run_key, head.epoch, head.desired is Desired.RUNNING, added)
    return RestartDecision(after, f"{len(added)} new topics: {format_some(added)}", restart)


def _left_alone(head: Head | None) -> str:
    if head is None:
        return "the stream has no table yet: launch its job once, or: lockstep start"
    return f"the stream is {head.desired.value} ({head.reason}) and is left alone"


def _waiting(observation: SensorObservation, cursor: RestartCursor, now: float, added: tuple[str, ...]) -> str:
    """Reason to wait; empty without one."""
    if observation.on_its_way is not None:
        return f"run {observation.on_its_way} is on its way"
    since = now - cursor.asked_at
    if since < 0:  # a clock that was set back must not stop the sensor
        since = PAUSE_SECONDS_MAX
    # Until it has subscribed them, it will take every topic that exists by then.
    if cursor.run_key in observation.unfinished and cursor.awaited in added and since < PAUSE_SECONDS_MAX:
        return f"the run asked for {since:.0f} s ago has not subscribed yet"
    pause = _pause(cursor, added)
    if since < pause:
        return f"asked for a run not long ago, waiting {pause - since:.0f} s"
    return _writer_is_new(observation, cursor, now)


def _pause(cursor: RestartCursor, added: tuple[str, ...]) -> float:
    again = _digest(added) == cursor.asked
    if again:
        # Topics that appear and vanish would otherwise restart the stream each time.
        return compute_back_off(cursor.attempt, PAUSE_SECONDS, PAUSE_SECONDS_MAX)
    return PAUSE_SECONDS


def _writer_is_new(observation: SensorObservation, cursor: RestartCursor, now: float) -> str:
    """Reason why a writer was seen too briefly to judge: it may be dead, or about to subscribe."""
    since = now - cursor.writer_at
    if observation.pulse is None or observation.pulse.phase is Phase.ENDED or not 0 <= since < SUBSCRIBE_SECONDS:
        return ""
    return "the next evaluations show whether its last run lives, and its subscription"


def _hosted(observation: SensorObservation) -> str:
    """Reason to leave new topics to the host of a stream that runs: it adopts them, and starts the stream."""
    is_running = observation.head is not None and observation.head.desired is Desired.RUNNING
    if observation.host and is_running:
        return f"the host {observation.host} adopts them"
    return ""


def _supervised(observation: SensorObservation, before: RestartCursor, still_seconds: float) -> str:
    """Reason to leave a dead writer to the supervisor; empty without one."""
    if observation.head is None or observation.head.desired is not Desired.RUNNING or _lives(observation, before):
        return ""
    if 0 <= still_seconds < SUPERVISE_SECONDS:
        return "no writer sends heartbeats: the supervisor starts one"
    return ""


def _adopting(observation: SensorObservation, cursor: RestartCursor, now: float) -> str:
    """Reason to leave new topics to the writer; empty if it does not adopt any, or has not read them for long."""
    seconds = cursor.new_at + ADOPT_SECONDS - now
    # A writer that adopts topics has a minute for it before it is replaced.
    adopts = (
        observation.adopts
        and observation.pulse is not None
        and observation.pulse.never_ending
        and observation.pulse.phase is not Phase.ENDED
    )
    if adopts and 0 < seconds <= ADOPT_SECONDS:
        return f"the run adopts them, or is replaced in {seconds:.0f} s"
    return ""


def _lives(observation: SensorObservation, cursor: RestartCursor) -> bool:
    """Whether the writer's counter moved since the last evaluation, some seconds ago."""
    ended = observation.pulse is None or observation.pulse.phase is Phase.ENDED
    return not ended and _sign(observation) != cursor.pulse


def _sign(observation: SensorObservation) -> str:
    if observation.head is None:
        return ""
    if observation.pulse is None:
        return f"{observation.head.epoch}:"
    return f"{observation.head.epoch}:{observation.pulse.counter}"


def _digest(topics: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(topics).encode()).hexdigest()[:12]
