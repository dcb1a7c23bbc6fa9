"""A webhook receiver: a server on loopback that stores its requests and fails as a test sets it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lockstep.delivery import Delivery, Webhook
from lockstep.features.delivery.deliver import DeliveryRun, run_delivery
from lockstep.features.delivery.targets import DeclaredDelivery
from lockstep.settings import Settings
from tests.support.offline_stream import Offline

URL = "DELIVERED_WEBHOOK"
AUTHORIZATION = "DELIVERED_AUTHORIZATION"
CANARY = "canary-42"
SECRET = f"Bearer {CANARY}"


@dataclasses.dataclass
class Arrival:
    """A request.

    Attributes:
        rows: Its rows.
        key: Its idempotency key.
        headers: Its headers.
        status: Status of the response, 0 without a response.
    """

    rows: list[dict[str, Any]]
    key: str
    headers: dict[str, str]
    status: int = 0

    @property
    def ids(self) -> list[str]:
        """Return the ids of its rows."""
        return [row["id"] for row in self.rows]


Behave = Callable[["Handler", Arrival], None]


class Handler(BaseHTTPRequestHandler):
    """Answers requests by the `behave` function of its server."""

    def do_POST(self) -> None:
        """Read the request and answer it."""
        assert isinstance(self.server, Receiver)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        arrival = Arrival(body["rows"], self.headers["Idempotency-Key"], dict(self.headers))
        self.server.arrivals.append(arrival)
        with contextlib.suppress(OSError):
            self.server.behave(self, arrival)

    def answer(self, arrival: Arrival, status: int, **headers: str) -> None:
        """Answer with a status."""
        arrival.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def accept(handler: Handler, arrival: Arrival) -> None:
    """Accept the request."""
    handler.answer(arrival, 204)


class Receiver(ThreadingHTTPServer):
    """The server of the receiver."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.arrivals = list[Arrival]()
        self.behave: Behave = accept

    @property
    def url(self) -> str:
        """Return its address, which is a secret."""
        return f"http://127.0.0.1:{self.server_port}/{CANARY}"

    def list_accepted(self) -> list[dict[str, Any]]:
        """Return the rows of accepted requests, repetitions included."""
        accepted = list[dict[str, Any]]()
        for each in self.arrivals:
            if 200 <= each.status < 300:  # status codes of acceptance
                accepted += each.rows
        return accepted

    def list_ids(self) -> list[str]:
        """Return the ids of the accepted rows."""
        return [row["id"] for row in self.list_accepted()]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def declare(offline: Offline, **options: Any) -> DeclaredDelivery:
    """Declare a delivery named alerts from a stream to the receiver."""
    names = {"request_rows", "request_bytes", "timeout_seconds"} & options.keys()
    given = {name: options.pop(name) for name in names}
    target = Webhook(url=f"env:{URL}", authorization=f"env:{AUTHORIZATION}", **given)
    delivery = Delivery(name="alerts", target=target, **options)
    return DeclaredDelivery(delivery, dataclasses.replace(offline.stream, deliveries=(delivery,)))


def deliver(offline: Offline, declared: DeclaredDelivery, *, accepts: bool = False) -> DeliveryRun:
    """Deliver the current rows."""
    return run_delivery(declared, Settings(table_root=offline.folders.root), stop=threading.Event(), accepts=accepts)
