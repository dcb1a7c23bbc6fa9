"""Decides which alarms are announced, and when the check is evaluated. Pure: no files, no Dagster, no clock.

An alarm is announced once two snapshots in a row have it: an election of leaders, a handover, a lost answer and a
restart pass by unannounced. An alarm that a snapshot could not judge stays as it was: an unknown headroom ends no
alarm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lockstep.features.health.webhook import Notification, NotificationEvent
from lockstep.operations.alarms import Alarm, AlarmKind
from lockstep.orchestration.sensor_cursor import SensorCursor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


LOCKSTEP_KINDS: frozenset[str] = frozenset(AlarmKind)
"""Kinds of alarms that an installation without extensions has."""
REFRESH_SECONDS = 1_800.0
"""An evaluation without news is repeated so often: its figures stay recent, at 50 events a day."""
WAITING_MAX = 100
"""Notifications that wait for a webhook which does not take them; older notifications are dropped."""


class RaisedAlarm(msgspec.Struct, frozen=True):
    """An announced alarm.

    Attributes:
        alarm: As of the last snapshot that could judge it.
        since: When it was announced, in seconds since 1970 (UTC).
    """

    alarm: Alarm
    since: float


class HealthCursor(SensorCursor, frozen=True, kw_only=True):
    """State of the health sensor between snapshots.

    Attributes:
        seen: Alarms that only the last snapshot has.
        raised: Announced alarms.
        reported: The text of the last evaluation, without figures.
        reported_at: Its time, in seconds since 1970 (UTC).
        materialization: Storage id of the table's newest materialization then; Dagster shows an evaluation with it.
        waiting: Notifications that the webhook has not taken yet, oldest first.
    """

    seen: tuple[str, ...] = ()
    raised: tuple[RaisedAlarm, ...] = ()
    reported: str = ""
    reported_at: float = 0.0
    materialization: int = 0
    waiting: tuple[Notification, ...] = ()


class HealthSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a decision.

    Attributes:
        stream: Name of the stream.
        alarms: Alarms of the snapshot.
        unknown: Alarms that the snapshot could neither raise nor rule out.
        has_run: Whether the stream has a table, readable or not.
        materialization: Storage id of the table's newest materialization; 0 without one.
        is_hidden: Whether Dagster shows a run that left the check out, in place of the last evaluation.
        notifies: Whether there is a webhook.
        certain: Alarms for which one snapshot is enough.
    """

    stream: str
    alarms: tuple[Alarm, ...]
    unknown: tuple[str, ...]
    has_run: bool = True
    materialization: int = 0
    is_hidden: bool = False
    notifies: bool = False
    certain: frozenset[str] = frozenset()


class HealthDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Actions, new cursor and explanation.

    Attributes:
        cursor: The new cursor.
        evaluates: Whether the check is to be evaluated.
        says: Explanation for display.
    """

    cursor: HealthCursor
    evaluates: bool
    says: str


def decide_health(look: HealthSnapshot, cursor: HealthCursor, now: float) -> HealthDecision:
    """Decide what to announce.

    1. Announce alarms of this snapshot and the snapshot before; keep those that it could not judge.
    2. Note the alarms that started, changed and ended for the webhook.
    3. Evaluate the check after a change, after a materialization of the table, after a run that left it out, and at
       times; never while an alarm waits for its second snapshot, as the check would pass.

    Args:
        look: Inputs.
        cursor: Cursor of the snapshot before.
        now: Time of this machine, in seconds since 1970 (UTC).
    """
    raised_before = {raised.alarm.kind: raised for raised in cursor.raised}
    new = [alarm for alarm in look.alarms if alarm.kind not in raised_before]
    twice = look.certain.union(cursor.seen)
    raised = tuple(_raised(look, raised_before, twice, now))  # 1
    seen = tuple(alarm.kind for alarm in new if alarm.kind not in twice)
    notes = (*cursor.waiting, *_compare(look.stream, raised_before.values(), raised, now))[-WAITING_MAX:]  # 2
    fingerprint = _fingerprint(raised, look.unknown)
    # A clock that went back makes it due, too: it would else be silent until that time.
    is_due = (
        fingerprint != cursor.reported
        or look.materialization != cursor.materialization
        or look.is_hidden
        or not 0 <= now - cursor.reported_at < REFRESH_SECONDS
    )
    # While an alarm waits for its second snapshot, an evaluation would pass.
    evaluates = look.has_run and not seen and is_due  # 3
    after = msgspec.structs.replace(cursor, seen=seen, raised=raised, waiting=notes if look.notifies else ())
    if evaluates:
        after = msgspec.structs.replace(
            after, reported=fingerprint, reported_at=now, materialization=look.materialization
        )
    return HealthDecision(cursor=after, evaluates=evaluates, says=_explain(look, raised, seen))


def _raised(
    look: HealthSnapshot, known: dict[str, RaisedAlarm], seen: frozenset[str], now: float
) -> Iterator[RaisedAlarm]:
    for alarm in look.alarms:
        if alarm.kind in known:
            # The new figures, and the time of its first announcement.
            yield RaisedAlarm(alarm, known[alarm.kind].since)
        elif alarm.kind in seen:
            yield RaisedAlarm(alarm, now)
    yield from (raised for kind, raised in known.items() if _is_unknown(kind, look.unknown))


def _is_unknown(kind: str, unknown: Collection[str]) -> bool:
    """Whether an alarm can be neither raised nor ruled out; of an extension, while any alarm of lockstep is unknown."""
    return kind in unknown or (bool(unknown) and kind not in LOCKSTEP_KINDS)


def _compare(
    stream: str, before: Iterable[RaisedAlarm], after: Iterable[RaisedAlarm], now: float
) -> Iterator[Notification]:
    """The notifications of changed alarms."""
    old = {raised.alarm.kind: raised for raised in before}
    new = {raised.alarm.kind: raised for raised in after}
    for kind, raised in new.items():
        if kind not in old:
            yield _note(stream, NotificationEvent.BEGAN, raised, now)
        elif old[kind].alarm.severity is not raised.alarm.severity:
            yield _note(stream, NotificationEvent.CHANGED, raised, now)
    for kind, raised in old.items():
        if kind not in new:
            yield _note(stream, NotificationEvent.ENDED, raised, now)


def _note(stream: str, event: NotificationEvent, raised: RaisedAlarm, now: float) -> Notification:
    alarm = raised.alarm
    text = f"lockstep {stream}, {alarm.severity.value}: {alarm.problem}; next: {alarm.next_step}"
    if event is NotificationEvent.ENDED:
        text = f"lockstep {stream}, resolved: {alarm.kind} has ended"
    return Notification(
        text=text,
        event=event,
        stream=stream,
        alarm=alarm.kind,
        severity=alarm.severity,
        problem=alarm.problem,
        next_step=alarm.next_step,
        since=raised.since,
        at=now,
    )


def _fingerprint(raised: Iterable[RaisedAlarm], unknown: Iterable[str]) -> str:
    """Alarms, their severities and the unknown alarms, without figures."""
    alarms = sorted(f"{announced.alarm.kind} {announced.alarm.severity.value}" for announced in raised)
    return "; ".join([*alarms, *sorted(f"{kind} unknown" for kind in unknown)]) or "healthy"


def _explain(look: HealthSnapshot, raised: tuple[RaisedAlarm, ...], seen: tuple[str, ...]) -> str:
    if not look.has_run:
        return "the stream has no table yet: there is nothing to judge"
    lists = (("seen once", seen), ("unknown", look.unknown))
    parts = [f"{announced.alarm.severity.value}: {announced.alarm.kind}" for announced in raised] or ["no alarm"]
    parts += [f"{what}: {', '.join(kinds)}" for what, kinds in lists if kinds]
    return "; ".join(parts)
