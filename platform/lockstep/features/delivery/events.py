"""The history of a delivery: its newest events, for people.

    <table root>/_deliveries/<name>.json

No decision depends on it: the position is in the target. It only notices that a target went back.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lockstep.model.decoding import decode_json
from lockstep.operations.plan_frame import Description, Records
from lockstep.storage import find_storage

FOLDER = "_deliveries"
"""Not the name of a stream: those start with a letter."""
EVENTS_MAX = 200


class DeliveryEvent(msgspec.Struct, frozen=True):
    """An event of a delivery.

    Attributes:
        at: Time (UTC).
        event: Such as "claimed", "halted", "accepted", "restored", "stopped", "started", "erasure".
        batch: The batch up to which rows were delivered.
        detail: What happened.
    """

    at: datetime
    event: str
    batch: int
    detail: str


class DeliveryHistory(msgspec.Struct, frozen=True):
    """The newest events of a delivery, newest first.

    Attributes:
        name: Name of the delivery.
        events: The events.
        claim: Number of the newest claim that was written to the target: a target with an earlier claim was restored
            from a backup, or replaced.
    """

    name: str
    events: tuple[DeliveryEvent, ...] = ()
    claim: int = 0

    @property
    def started_after(self) -> int | None:
        """The batch of the oldest event, if rows were delivered before: a target without a position has lost it."""
        return self.events[-1].batch if self.claim and self.events else None

    def describe(self) -> Description:
        """Return its description."""
        return Description(
            title=f"{self.name}: delivery", records=(Records.of("events", self.events, "at event batch detail"),)
        )


def read_history(root: Path, name: str) -> DeliveryHistory:
    """Read the newest events; none if the file is missing or damaged."""
    path = _make_path(root, name)
    try:
        return decode_json(find_storage(path).read(path), DeliveryHistory)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return DeliveryHistory(name)


def record_event(root: Path, name: str, event: str, batch: int, detail: str = "") -> None:
    """Add an event; an event that repeats the newest one, such as a halt that is found again, is not added."""
    history = read_history(root, name)
    known = history.events
    if known and (known[0].event, known[0].batch, known[0].detail) == (event, batch, detail):
        return
    newest = DeliveryEvent(datetime.now(UTC), event, batch, detail)
    _write(root, msgspec.structs.replace(history, events=(newest, *known)[:EVENTS_MAX]))


def record_claim(root: Path, name: str, claim: int) -> None:
    """Note a claim whose token is in the target."""
    _write(root, msgspec.structs.replace(read_history(root, name), claim=claim))


def _write(root: Path, history: DeliveryHistory) -> None:
    path = _make_path(root, history.name)
    find_storage(path).replace(path, msgspec.json.encode(history))


def _make_path(root: Path, name: str) -> Path:
    return root / FOLDER / f"{name}.json"
