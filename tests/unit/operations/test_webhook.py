"""Notifications to addresses that take nothing: why is said, the address is not."""

from __future__ import annotations

import pytest

from lockstep.operations.health import AlarmKind, AlarmSeverity
from lockstep.operations.webhook import Notification, NotificationEvent, Webhook

VARIABLE, CANARY = "WEBHOOK_OF_A_TEST", "canary-42"
NOTE = Notification(
    text="adding, error: 5 min",
    event=NotificationEvent.BEGAN,
    stream="adding",
    alarm=AlarmKind.HEADROOM,
    severity=AlarmSeverity.ERROR,
    problem="5 min",
    next_step="lockstep start adding",
    since=1.0,
    at=1.0,
)
REFERS = f"health.secrets webhook refers to env:{VARIABLE}, "


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("", f"{REFERS}and there is nothing on this machine"),
        (f"{CANARY}\nof two lines", f"{REFERS}which holds control characters or more than one line"),
        (f"file:///{CANARY}", f"{REFERS}which holds no http:// or https:// address"),
        (f"{CANARY} of no scheme", f"{REFERS}which holds no http:// or https:// address"),
        (f"http://[::1/{CANARY}", "it could not be reached (ValueError)"),
        (f"http://127.0.0.1:{CANARY}/", "it could not be reached (InvalidURL)"),
        (f"http://127.0.0.1:9/{CANARY}", "it could not be reached (ConnectionRefusedError)"),
    ],
)
def test_an_address_that_takes_nothing_is_said_without_it(
    address: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, address)
    webhook = Webhook(f"env:{VARIABLE}")
    assert (webhook.send(NOTE), webhook.problem) == (False, expected)
