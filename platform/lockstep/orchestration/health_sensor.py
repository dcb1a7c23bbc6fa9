"""I/O of the health sensor: reads health, notifies the webhook, and turns the decision into a `SensorResult`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from dagster import SensorResult, SkipReason

from lockstep.operations.inspect.health import read_health
from lockstep.operations.webhook import send_notification
from lockstep.orchestration.health_check import find_newest_materialization, make_health_evaluation
from lockstep.orchestration.health_policy import HealthCursor, HealthLook, decide_health

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from lockstep.operations.tables import StreamHandle


NOTES_A_LOOK = 10
"""Notifications that one look sends; the next one continues. A webhook may take seconds for each."""


def observe_health(handle: StreamHandle, instance: DagsterInstance, cursor: HealthCursor) -> tuple[SensorResult, str]:
    """Look at a stream; gives the result of the tick, and why the webhook took nothing, if so.

    1. Read health, and the newest materialization of the table.
    2. Decide what is announced.
    3. Send what waits for the webhook; what it does not take waits for the next look.
    """
    health, newest = read_health(handle), find_newest_materialization(handle.stream, instance)  # 1
    reference = handle.settings.health.secrets.get("webhook", "")
    look = HealthLook(
        stream=handle.stream.name,
        alarms=health.alarms,
        unknown=health.unknown,
        has_run=health.facts.has_table or health.facts.is_unreadable,
        materialization=0 if newest is None else newest.storage_id,
        notifies=bool(reference),
    )
    decision = decide_health(look, cursor, time.time())  # 2
    after, problem = send_waiting(decision.cursor, reference)  # 3
    announced = [each.alarm for each in after.raised]
    events = [make_health_evaluation(handle.stream, health.facts, announced, newest)] if decision.evaluates else []
    left = f"; webhook: {problem}, {len(after.waiting)} waiting" if problem else ""
    result = SensorResult(asset_events=events, skip_reason=SkipReason(f"{decision.says}{left}"), cursor=after.encode())
    return result, problem


def send_waiting(cursor: HealthCursor, reference: str) -> tuple[HealthCursor, str]:
    """Send notifications, oldest first, until the webhook does not take one.

    Returns:
        The cursor without those that were taken, and why one was not; empty when all were.
    """
    for sent, note in enumerate(cursor.waiting[:NOTES_A_LOOK]):
        if problem := send_notification(reference, note):
            return msgspec.structs.replace(cursor, waiting=cursor.waiting[sent:]), problem
    return msgspec.structs.replace(cursor, waiting=cursor.waiting[NOTES_A_LOOK:]), ""
