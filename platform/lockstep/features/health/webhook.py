"""Sends notifications of alarms to a webhook: an address that is a secret, and that may fail at any time."""

from __future__ import annotations

import time
from enum import Enum
from http import HTTPStatus
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec
from typing_extensions import override

from lockstep.errors import SettingsError
from lockstep.kafka.secrets import fetch_secret
from lockstep.operations.alarms import AlarmSeverity
from lockstep.time_limit import describe_silence, run_within

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


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would repeat the notification, as a GET, at an address that no setting names."""

    @override
    def redirect_request(self, *_: object) -> None:
        return None


class Webhook:
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
        self.reference, self.problem = reference, ""
        self._seconds = 0.0

    def send(self, note: Notification) -> bool:
        """Send one notification; returns whether it was taken."""
        if not self.problem and self._seconds >= SENDING_SECONDS_MAX:
            self.problem = f"it is slow: {self._seconds:.0f} s were spent on those before"
        if self.problem:
            return False
        began = time.monotonic()
        self.problem = _post_in_time(self.reference, note)
        self._seconds += time.monotonic() - began
        return not self.problem


def _post_in_time(reference: str, note: Notification) -> str:
    """As `_post`, whose timeout each byte of an answer restarts."""
    try:
        return run_within(POST_SECONDS_MAX, lambda: _post(reference, note))
    except TimeoutError:
        return describe_silence("it", POST_SECONDS_MAX)


def _post(reference: str, note: Notification) -> str:
    """Why a notification was not taken; empty when it was."""
    try:
        address = fetch_secret(SETTING, reference)
    except SettingsError as error:
        return error.problem
    if not address.startswith(("http://", "https://")):
        return f"{SETTING} refers to {reference}, which holds no http:// or https:// address"
    try:
        request = Request(address, msgspec.json.encode(note), {"Content-Type": "application/json"})  # noqa: S310
        with build_opener(_NoRedirect).open(request, timeout=POST_SECONDS_MAX) as answer:
            return "" if answer.status < HTTPStatus.MULTIPLE_CHOICES else f"it answered {answer.status}"
    except HTTPError as error:
        error.close()
        return f"it answered {error.code}"
    except (OSError, HTTPException, ValueError) as error:  # their texts may hold the address
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return describe_silence("it", POST_SECONDS_MAX)
        return f"it could not be reached ({type(reason).__name__})"
