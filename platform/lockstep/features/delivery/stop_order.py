"""The stored order to stop a delivery: no run delivers, by Dagster or by hand, until it is started again.

<table root>/_deliveries/<name>.stopped.json
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lockstep.declare.delivery_target import TargetRefused
from lockstep.features.delivery.events import FOLDER, record_event
from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage

ORDER_SECONDS = 2.0
"""How often a run reads the order."""


class RebuildOrder(msgspec.Struct, frozen=True):
    """A rebuild that has stopped its delivery.

    Attributes:
        replaces: All rows are replaced.
        accept_dropped: Also if retention has dropped some.
        stays_stopped: An operator had stopped the delivery before.
        retracts: The rows of undone batches are deleted.
    """

    replaces: bool
    accept_dropped: bool
    stays_stopped: bool = False
    retracts: bool = False


class StopOrder(msgspec.Struct, frozen=True):
    """An order to stop.

    Attributes:
        at: Time (UTC).
        rebuild: The rebuild that gave it; None for that of an operator. It stays if the process of the rebuild is
            killed.
    """

    at: datetime
    rebuild: RebuildOrder | None = None


def read_order(root: Path, name: str) -> StopOrder | None:
    """Read the order to stop a delivery; None without one."""
    path = _make_path(root, name)
    try:
        return decode_json(find_storage(path).read(path), StopOrder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError:  # the delivery stays stopped
        return StopOrder(datetime.fromtimestamp(0, UTC))


def is_stopped(root: Path, name: str) -> bool:
    """Whether a delivery is stopped."""
    path = _make_path(root, name)
    return find_storage(path).exists(path)


def stop_delivery(root: Path, name: str, batch: int) -> bool:
    """Stop a delivery; a run in progress ends after its write. Returns False if it is stopped already.

    The order of a rebuild that has not ended is replaced: it will not be resumed.

    Args:
        root: The table root.
        name: Its name.
        batch: The batch up to which it has delivered, for the history.
    """
    known = read_order(root, name)
    if known is not None and known.rebuild is None:
        return False
    _write(root, name, StopOrder(datetime.now(UTC)))
    record_event(root, name, "stopped", batch)
    return True


def start_delivery(root: Path, name: str, batch: int) -> bool:
    """Take the order back: the next run delivers. Returns False if the delivery is not stopped.

    Args:
        root: The table root.
        name: Its name.
        batch: The batch up to which it has delivered, for the history.

    Raises:
        TargetRefused: A rebuild has not ended.
    """
    known = read_order(root, name)
    if known is None:
        return False
    if known.rebuild is not None:
        step = f"lockstep delivery rebuild {name} ends it; to give it up, lockstep delivery stop {name}, then start"
        raise TargetRefused(name, f"its rebuild of {known.at:%Y-%m-%d %H:%M:%S} UTC has not ended", next_step=step)
    _delete(root, name, batch)
    return True


@contextmanager
def stop_for_rebuild(root: Path, name: str, batch: int, rebuild: RebuildOrder) -> Iterator[None]:
    """Stop a delivery while a rebuild runs. A rebuild that is killed leaves the order; a newer rebuild replaces it.

    Args:
        root: The table root.
        name: Its name.
        batch: The batch up to which it has delivered, for the history.
        rebuild: The rebuild.
    """
    order = StopOrder(datetime.now(UTC), rebuild)
    _write(root, name, order)
    if not rebuild.stays_stopped:
        record_event(root, name, "stopped", batch)
    try:
        yield
    finally:
        is_newest = read_order(root, name) == order
        if is_newest and rebuild.stays_stopped:
            _write(root, name, StopOrder(order.at))
        elif is_newest:
            _delete(root, name, batch)


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


def _write(root: Path, name: str, order: StopOrder) -> None:
    path = _make_path(root, name)
    find_storage(path).replace(path, msgspec.json.encode(order))


def _delete(root: Path, name: str, batch: int) -> None:
    path = _make_path(root, name)
    find_storage(path).delete(path)
    record_event(root, name, "started", batch)


def _make_path(root: Path, name: str) -> Path:
    return root / FOLDER / f"{name}.stopped.json"
