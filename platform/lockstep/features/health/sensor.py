"""I/O of the health sensor: reads health, notifies the webhook, and turns the decision into a `SensorResult`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from dagster import SensorResult, SkipReason

from lockstep.features.health.asset_check import (
    find_hidden_checks,
    find_newest_materialization,
    list_last_results,
    make_health_evaluation,
    request_first_checks,
)
from lockstep.features.health.policy import HealthCursor, HealthSnapshot, decide_health
from lockstep.features.health.webhook import AlarmWebhook, Notification, NotificationEvent
from lockstep.operations.alarms import AlarmKind, AlarmSeverity
from lockstep.operations.inspect.health import read_health
from lockstep.operations.stream_handle import SharedCluster, StreamHandle
from lockstep.orchestration.names import HEALTH
from lockstep.orchestration.shared_tick import KAFKA_SECONDS_MAX, TICK_SECONDS_MAX, poll_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster import AssetCheckEvaluation, DagsterInstance, SensorEvaluationContext

    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings


NOTES_A_LOOK = 10
"""Notifications that one tick sends; the next tick continues. A webhook may take seconds for each."""


OUTAGE_SECONDS = 15.0
"""A tick to which Kafka does not answer asks again after this time, so that an outage is announced within a minute."""


class HealthWatcher:
    """Watches the health of the streams and requests checks that never ran; starts no stream."""

    def __init__(self, streams: Sequence[AnyStream], settings: Settings) -> None:
        """Watch these streams, with one client for all of them."""
        self._streams = streams
        self._settings = settings
        self._cluster = SharedCluster(settings.kafka, KAFKA_SECONDS_MAX)
        self._outages = OutageNotes()

    def tick(self, context: SensorEvaluationContext) -> SensorResult:
        """Read the health of each stream, and announce its alarms in Dagster and at the webhook."""
        webhook = AlarmWebhook(self._settings.health.secrets.get("webhook", ""))

        def watch(stream: AnyStream, cursor: HealthCursor) -> SensorResult:
            # One client of Kafka for all streams: each has threads and connections.
            handle = StreamHandle(stream, self._settings, kafka_seconds_max=KAFKA_SECONDS_MAX, shared=self._cluster)
            return observe_health(handle, context.instance, cursor, webhook, self._outages, is_kafka_away=is_away)

        self._cluster.invalidate()
        is_away = self._cluster.stays_away(OUTAGE_SECONDS)
        # Dagster gives up a tick of 60 seconds: the repeated question has used half of them.
        seconds_max = TICK_SECONDS_MAX / 2 if is_away else TICK_SECONDS_MAX
        # First checks wait in Dagster's queue, and delay no alarm.
        starts_max = len(self._streams)
        result = poll_streams(
            context, self._streams, HealthCursor, watch, seconds_max=seconds_max, starts_max=starts_max
        )
        if webhook.problem:
            context.log.warning("the webhook did not take all, it is tried again: %s", webhook.problem)
        return result


class OutageNotes:
    """Passes on notifications of an outage of Kafka for the first stream alone: it is one outage for all of them."""

    def __init__(self) -> None:
        """Nothing was sent."""
        self._sent = set[tuple[NotificationEvent, AlarmSeverity]]()

    def send(self, note: Notification, webhook: AlarmWebhook) -> bool:
        """Send one notification, unless it was sent for another stream; returns whether it was taken."""
        if note.alarm != AlarmKind.KAFKA:
            return webhook.send(note)
        # Another stream has sent it in this outage.
        if (note.event, note.severity) in self._sent:
            return True
        if not webhook.send(note):
            return False
        # An end makes the next start news, and a start the next end.
        self._sent = {sent for sent in self._sent if _is_end(sent[0]) is _is_end(note.event)}
        self._sent.add((note.event, note.severity))
        return True


def _is_end(event: NotificationEvent) -> bool:
    return event is NotificationEvent.ENDED


def observe_health(
    handle: StreamHandle,
    instance: DagsterInstance,
    cursor: HealthCursor,
    webhook: AlarmWebhook,
    outages: OutageNotes,
    *,
    is_kafka_away: bool = False,
) -> SensorResult:
    """Evaluate the health of a stream.

    1. Read health, the newest materialization of the table, and which checks' last results Dagster does not show.
    2. Decide which alarms are announced.
    3. Send the waiting notifications to the webhook; those that it does not take wait for the next tick.
    4. Return the decision, and the hidden results of the other checks again; request checks that never ran.

    Args:
        handle: The stream.
        instance: Dagster.
        cursor: Cursor of the tick before.
        webhook: Takes notifications.
        outages: Knows the notifications that were sent of an outage of Kafka.
        is_kafka_away: Kafka was asked twice, and did not answer.
    """
    health = read_health(handle)  # 1
    newest = find_newest_materialization(handle.stream, instance)
    hidden = find_hidden_checks(handle.stream, instance)
    look = HealthSnapshot(
        stream=handle.stream.name,
        alarms=health.alarms,
        unknown=health.unknown,
        has_run=health.facts.has_table or health.facts.is_unreadable,
        materialization=0 if newest is None else newest.storage_id,
        is_hidden=HEALTH in hidden,
        notifies=bool(webhook.reference),
        certain=frozenset({AlarmKind.KAFKA}) if is_kafka_away else frozenset(),
    )
    decision = decide_health(look, cursor, time.time())  # 2
    after = send_waiting(decision.cursor, webhook, outages)  # 3
    # 4
    events: list[AssetCheckEvaluation] = []
    if decision.evaluates:
        announced = [raised.alarm for raised in after.raised]
        events.append(make_health_evaluation(handle.stream, health.facts, announced, newest))
    events += list_last_results(handle.stream, hidden - {HEALTH}, instance)
    first = request_first_checks(handle.stream, instance, newest)
    if first is not None:
        # Dagster refuses a reason to skip together with a run.
        return SensorResult(run_requests=[first], asset_events=events, cursor=after.encode())
    reason = decision.says
    if after.waiting and webhook.problem:
        reason += f"; webhook: {webhook.problem}, {len(after.waiting)} waiting"
    return SensorResult(run_requests=[], asset_events=events, skip_reason=SkipReason(reason), cursor=after.encode())


def send_waiting(cursor: HealthCursor, webhook: AlarmWebhook, outages: OutageNotes) -> HealthCursor:
    """Send notifications, oldest first, until the webhook refuses one; returns the cursor without those it took."""
    for sent, note in enumerate(cursor.waiting[:NOTES_A_LOOK]):
        if not outages.send(note, webhook):
            return msgspec.structs.replace(cursor, waiting=cursor.waiting[sent:])
    return msgspec.structs.replace(cursor, waiting=cursor.waiting[NOTES_A_LOOK:])
