"""A receiver of alerts: stores each row of a webhook once, as a line of a file.

python -m lockstep.features.localdev.alert_receiver FILE PORT
"""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES_MAX = 16_000_000
"""Of a request: more than a webhook may be declared to send."""


class AlertRow(msgspec.Struct, frozen=True):
    """A delivered row.

    Attributes:
        id: Its identity, by which a repetition is found.
        session: Its session.
        value: The value, as it was sent.
    """

    id: str
    session: str
    value: msgspec.Raw


class AlertRequest(msgspec.Struct, frozen=True):
    """The rows of a request."""

    rows: list[AlertRow]


class StoredAlerts:
    """The stored rows: a line of JSON each, on disk before they count."""

    def __init__(self, path: Path) -> None:
        """Read the earlier rows. A kill may have cut the last line, which was not acknowledged and is dropped."""
        self._path = path
        path.touch()
        whole, newline, _ = path.read_bytes().rpartition(b"\n")
        os.truncate(path, len(whole) + len(newline))
        self._ids = {msgspec.json.decode(line, type=AlertRow).id for line in whole.splitlines()}

    def add(self, rows: Sequence[AlertRow]) -> None:
        """Store rows that are not there yet."""
        new = {row.id: row for row in rows if row.id not in self._ids}
        size = self._path.stat().st_size
        try:
            with self._path.open("ab") as file:
                file.writelines(msgspec.json.encode(row) + b"\n" for row in new.values())
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # the disk is full: the next request must not continue a part of a line
            os.truncate(self._path, size)
            raise
        self._ids.update(new)


class AlertServer(HTTPServer):
    """A server with stored rows; it answers one request at a time."""

    def __init__(self, port: int, alerts: StoredAlerts) -> None:
        super().__init__(("127.0.0.1", port), AlertHandler)
        self.alerts = alerts


class AlertHandler(BaseHTTPRequestHandler):
    """Accepts requests of a webhook."""

    server: AlertServer
    timeout = 10.0  # of a client that stops in the middle of a request

    def do_POST(self) -> None:
        """Store the rows, then acknowledge them."""
        try:
            size = int(self.headers["Content-Length"] or "")
            request = msgspec.json.decode(self.rfile.read(size), type=AlertRequest) if 0 < size <= BYTES_MAX else None
        except (ValueError, TypeError, msgspec.DecodeError):
            request = None
        if request is not None:
            self.server.alerts.add(request.rows)
        self.send_response(204 if request is not None else 400)
        self.end_headers()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """No line for each request."""


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal."""
    AlertServer(int(arguments[1]), StoredAlerts(Path(arguments[0]))).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
