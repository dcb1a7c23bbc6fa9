"""Sends notifications of alarms to a webhook: an address that is a secret, and that may fail at any time."""

from __future__ import annotations

import time
from enum import Enum

import msgspec

from lockstep.errors import SettingsError
from lockstep.http_request import SCHEMES, send_json
from lockstep.kafka.secrets import fetch_secret
from lockstep.operations.alarms import AlarmSeverity

POST_SECONDS_MAX = 5.0
"""Timeout of one request: a sensor with other work waits for it."""
SENDING_SECONDS_MAX = 10.0
"""Time for all requests of a tick: Dagster gives up one of 60 seconds, and all that it sent would be sent again."""
SETTING = "health.secrets webhook"


class NotificationEvent(Enum):
    """The change of an alarm."""

    BEGAN = "began"
    CHANGED = "changed"
    """Its severity has changed."""
    ENDED = "ended"


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request, as JSON. Stream, alarm and `since` identify an alarm over its life.

    Attributes:
        text: One line for people, as chat services show it.
        event: "began", "changed" or "ended".
        stream: The stream.
        alarm: Its kind.
        severity: "warning" or "error".
        problem: One sentence with the figures and the place; of an alarm that ended, the last sentence.
        next_step: The command to run next.
        since: Its start, in seconds since 1970 (UTC).
        at: When this happened, in seconds since 1970 (UTC).
    """

    text: str
    event: NotificationEvent
    stream: str
    alarm: str
    severity: AlarmSeverity
    problem: str
    next_step: str
    since: float
    at: float


class AlarmWebhook:
    """The webhook during one tick: it is not asked again after a notification that it did not take, or when it is slow.

    Attributes:
        reference: Location of its address: `health.secrets`; empty without a webhook.
        problem: Why it did not take a notification, without the address; empty otherwise.
    """

    def __init__(self, reference: str) -> None:
        """Sends nothing yet.

        Args:
            reference: Location of its address.
        """
        self.reference = reference
        self.problem = ""
        self._seconds = 0.0

    def send(self, note: Notification) -> bool:
        """Send one notification; returns whether it was taken."""
        if not self.problem and self._seconds >= SENDING_SECONDS_MAX:
            self.problem = f"it is slow: {self._seconds:.0f} s were spent on those before"
        if self.problem:
            return False
        began = time.monotonic()
        self.problem = _post(self.reference, note)
        self._seconds += time.monotonic() - began
        return not self.problem


def _post(reference: str, note: Notification) -> str:
    """Why a notification was not taken; empty when it was."""
    try:
        address = fetch_secret(SETTING, reference)
    except SettingsError as error:
        return error.problem
    if not address.startswith(SCHEMES):
        return f"{SETTING} refers to {reference}, which holds no http:// or https:// address"
    return send_json(address, msgspec.json.encode(note), POST_SECONDS_MAX).problem
