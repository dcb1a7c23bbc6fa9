"""The stored order to stop a delivery: no run delivers, by Dagster or by hand, until it is started again.

<table root>/_deliveries/<name>.stopped.json
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lockstep.features.delivery.events import FOLDER, record_event
from lockstep.storage import find_storage

ORDER_SECONDS = 2.0
"""How often a run reads the order."""


class StopOrder(msgspec.Struct, frozen=True):
    """An order to stop.

    Attributes:
        at: Time (UTC).
    """

    at: datetime


def is_stopped(root: Path, name: str) -> bool:
    """Whether a delivery is stopped."""
    path = _make_path(root, name)
    return find_storage(path).exists(path)


def stop_delivery(root: Path, name: str, batch: int) -> bool:
    """Stop a delivery; a run in progress ends after its write. Returns False if it is stopped already.

    Args:
        root: The table root.
        name: Its name.
        batch: The batch up to which it has delivered, for the history.
    """
    if is_stopped(root, name):
        return False
    path = _make_path(root, name)
    find_storage(path).replace(path, msgspec.json.encode(StopOrder(datetime.now(UTC))))
    record_event(root, name, "stopped", batch)
    return True


def start_delivery(root: Path, name: str, batch: int) -> bool:
    """Take the order back: the next run delivers. Returns False if the delivery is not stopped. As `stop_delivery`."""
    path = _make_path(root, name)
    if find_storage(path).delete(path) is None:
        return False
    record_event(root, name, "started", batch)
    return True


class StopSwitch:
    """Ends a run: by the event of its process, or by the stored order, which is read every two seconds."""

    def __init__(self, event: threading.Event, root: Path, name: str) -> None:
        self._event = event
        self._root = root
        self._name = name
        self._read_at = -ORDER_SECONDS
        self.is_ordered = False

    def is_set(self) -> bool:
        """Whether the run is to end."""
        if self._event.is_set():
            return True
        if not self.is_ordered and time.monotonic() - self._read_at >= ORDER_SECONDS:
            self._read_at = time.monotonic()
            self.is_ordered = is_stopped(self._root, self._name)
        return self.is_ordered

    def wait(self, seconds: float) -> bool:
        """Wait for the event of the process; returns whether the run is to end."""
        self._event.wait(seconds)
        return self.is_set()


def _make_path(root: Path, name: str) -> Path:
    return root / FOLDER / f"{name}.stopped.json"
