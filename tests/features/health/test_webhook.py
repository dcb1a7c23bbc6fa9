"""Notifications to failing addresses: the problem is reported, the address is not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from lockstep.features.health import webhook as of_webhook
from lockstep.features.health.webhook import AlarmWebhook, Notification, NotificationEvent
from lockstep.operations.alarms import AlarmKind, AlarmSeverity

VARIABLE = "WEBHOOK_OF_A_TEST"
CANARY = "canary-42"
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
    webhook = AlarmWebhook(f"env:{VARIABLE}")
    assert (webhook.send(NOTE), webhook.problem) == (False, expected)


class SlowReceiver(BaseHTTPRequestHandler):
    """Accepts every notification after a delay."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.05)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[AlarmWebhook]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowReceiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{server.server_port}/")
        yield AlarmWebhook(f"env:{VARIABLE}")
        server.shutdown()


def test_a_slow_webhook_gets_the_rest_at_the_next_tick(slow: AlarmWebhook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tick would be abandoned with its cursors, and all notifications sent again each time."""
    monkeypatch.setattr(of_webhook, "SENDING_SECONDS_MAX", 0.08)
    clock = iter((0.0, 0.05, 0.05, 0.10, 0.10, 0.15))
    monkeypatch.setattr(of_webhook, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert [slow.send(NOTE) for _ in range(4)] == [True, True, False, False]
    assert slow.problem == "it is slow: 0 s were spent on those before"
    assert AlarmWebhook(slow.reference).send(NOTE)


class DrippingReceiver(SlowReceiver):
    """Accepts every notification and responds byte by byte."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with contextlib.suppress(OSError):
            for letter in b"HTTP/1.1 204 No Content\r\n\r\n":
                time.sleep(0.02)
                self.wfile.write(bytes([letter]))


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_webhook, "POST_SECONDS_MAX", 0.1)
    with ThreadingHTTPServer(("127.0.0.1", 0), DrippingReceiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{server.server_port}/")
        webhook = AlarmWebhook(f"env:{VARIABLE}")
        assert (webhook.send(NOTE), webhook.problem) == (False, "it did not answer within 0.1 s")
        server.shutdown()
