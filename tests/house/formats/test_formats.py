"""The formats on disk as one text: a change of a format is a difference of `formats.txt`.

`pytest tests/house/formats --write-golden` rewrites the text. A format that cannot be read any more needs a line in
CHANGELOG.md.
"""

from __future__ import annotations

import types
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from lockstep import (
    Checksum,
    Envelope,
    FuzzyWindow,
    Kind,
    Linked,
    LogOnly,
    NoIntegrity,
    Once,
    Ordered,
    Record,
    Repeats,
    Sequence,
    SessionStart,
    Strict,
    Suspend,
)
from lockstep.control.handover import CommitRequest, ResumeRequest, RetireRequest, StopRequest
from lockstep.control.heartbeat import HeartbeatRecord, RunHeartbeat
from lockstep.control.start_request import StartRequest
from lockstep.declare.delivery_target import DeliveryToken
from lockstep.features.copies.backup import BackupManifest
from lockstep.features.copies.copied_files import BegunCopy
from lockstep.features.copies.mirror import PositionEvidence
from lockstep.features.copies.relocate import ExportedPositions, SavepointManifest
from lockstep.features.current.history import CurrentBase
from lockstep.features.delivery.dead_letters import DeadLetter
from lockstep.features.delivery.events import DeliveryHistory
from lockstep.features.delivery.stop_order import StopOrder
from lockstep.features.delivery.webhook_request import WebhookRow
from lockstep.features.delivery.webhook_target import WebhookState
from lockstep.features.derived.derive import CheckpointNote
from lockstep.features.export.dataset import ExportOptions, ExportSource, HourManifest
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.suspension import mark_lost, mark_suspended
from lockstep.model.record import Link
from lockstep.model.table_schema import make_provenance_schema
from lockstep.operations.growth import GrowthSample
from lockstep.state.changelog import SegmentHeader
from lockstep.state.codec import StateSchema
from lockstep.state.timers import BufferedMessage
from lockstep.table import ledger, quarantine
from lockstep.table.follower_positions import FollowerPosition
from lockstep.table.head import Head
from tests.support.gate_feed import KEPT, Content

if TYPE_CHECKING:
    import pyarrow as pa

    from lockstep.integrity.base import IntegrityClass
    from lockstep.integrity.gate_states import GateState

GOLDEN = Path(__file__).with_name("formats.txt")
DOCUMENTS: tuple[type[msgspec.Struct], ...] = (
    *(Head, HeartbeatRecord, RunHeartbeat, StopRequest, CommitRequest, RetireRequest, ResumeRequest),
    StartRequest,
    *(BegunCopy, BackupManifest, SavepointManifest, ExportedPositions, PositionEvidence),
    *(ExportOptions, ExportSource, HourManifest, CheckpointNote, FollowerPosition, GrowthSample),
    *(CurrentBase, DeadLetter, DeliveryHistory, DeliveryToken, StopOrder, WebhookRow, WebhookState),
)
"""Files of JSON, the head in the log among them."""
PACKED: tuple[type[msgspec.Struct], ...] = (SegmentHeader, BufferedMessage)
"""Parts of a state file, in MessagePack."""
TABLES: dict[str, pa.Schema] = {
    "ledger": ledger.SCHEMA,
    "quarantine and late table": quarantine.SCHEMA,
    "provenance columns of the output table": make_provenance_schema(),
}
DEPTH_MAX = 3
"""A type that contains itself is filled to this depth."""


def fill(kind: Any, depth: int = 0) -> object:
    """Return a value of a type with every field set: no `None`, no empty container."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return kind(**{each.name: fill(each.type, depth + 1) for each in fields})
    arguments = get_args(kind)
    origin = get_origin(kind)
    if origin in {Union, types.UnionType}:
        return fill(next(each for each in arguments if each is not types.NoneType), depth)
    if origin is dict:
        return {fill(arguments[0], depth): fill(arguments[1], depth)}
    if origin in {list, tuple}:
        return _fill_array(origin, arguments, depth)
    if hasattr(kind, "_fields"):  # a named tuple
        return kind(*(fill(each, depth) for each in get_type_hints(kind).values()))
    return fill_plain(kind)


def _fill_array(origin: Any, arguments: tuple[Any, ...], depth: int) -> object:
    """Fill one element of a list, or every element of a tuple of fixed length."""
    if origin is list or arguments[-1] is Ellipsis:
        return origin([fill(arguments[0], depth)] if depth < DEPTH_MAX else [])
    return tuple(fill(each, depth) for each in arguments)


def fill_plain(kind: Any) -> object:
    """Return a value of a type without parts."""
    if issubclass(kind, Enum):
        return next(iter(kind))
    values = {bool: True, int: 7, float: 0.5, str: "text", bytes: b"\x01", datetime: datetime(2026, 1, 2, tzinfo=UTC)}
    return values[kind]


def show_document(kind: type[msgspec.Struct]) -> str:
    """Return the JSON of a document with every field set."""
    return msgspec.json.format(msgspec.json.encode(fill(kind)), indent=1).decode()


def show_packed(kind: type[msgspec.Struct]) -> str:
    """Return the parts of a MessagePack value with every field set."""
    return show_value(msgspec.msgpack.encode(fill(kind)))


def show_value(encoded: bytes) -> str:
    """Return bytes of MessagePack in hexadecimal, their number, and their content without types."""
    return f"{len(encoded)} bytes {encoded.hex()}\n  {msgspec.msgpack.decode(encoded, strict=False)!r}"


def show_schema(schema: pa.Schema) -> str:
    return "\n".join(f"{each.name}: {each.type}{'' if each.nullable else ' not null'}" for each in schema)


SNAPSHOT = Kind.SNAPSHOT
PART = Kind.SNAPSHOT_PART
UPDATE = Kind.UPDATE
SEQUENCE = Sequence()
AT_FIRST = SessionStart.FIRST_MESSAGE
Sent = tuple[Kind, int | None]
NUMBERED: list[Sent] = [(SNAPSHOT, 300), (UPDATE, 301)]
PLAIN: list[Sent] = [(SNAPSHOT, None), (UPDATE, None)]
EARLY: list[Sent] = [(UPDATE, 301), (UPDATE, 302)]
WINDOW = FuzzyWindow(lateness=timedelta(minutes=1))
REORDER = FuzzyWindow(lateness=timedelta(minutes=1), reorder=True)
GATES: dict[str, tuple[IntegrityClass, list[Sent]]] = {
    "Strict by Sequence": (Strict(evidence=SEQUENCE), NUMBERED),
    "Strict by Linked, after a snapshot": (Strict(evidence=Linked()), NUMBERED[:1]),
    "Strict by Linked, after an update": (Strict(evidence=Linked()), NUMBERED),
    "Strict by Checksum": (Strict(evidence=Checksum()), PLAIN),
    "Strict by LogOnly": (Strict(evidence=LogOnly()), PLAIN),
    "Strict with dropped repeats": (Strict(evidence=SEQUENCE, repeats=Repeats.DROP), NUMBERED),
    "Strict, buffered until the snapshot": (Strict(evidence=SEQUENCE, buffer_until_snapshot=True), EARLY),
    "Strict by Linked, buffered until the snapshot": (Strict(evidence=Linked(), buffer_until_snapshot=True), EARLY),
    "Strict, directly after that snapshot": (
        Strict(evidence=SEQUENCE, buffer_until_snapshot=True),
        [*EARLY, (SNAPSHOT, 302)],
    ),
    "Strict in a snapshot of several messages": (
        Strict(evidence=Checksum()),
        [(SNAPSHOT, None), (PART, None), (PART, None)],
    ),
    "Strict with suspension": (Strict(evidence=SEQUENCE, on_violation=Suspend()), NUMBERED),
    "Strict with suspension, suspended": (
        Strict(evidence=SEQUENCE, on_violation=Suspend()),
        [*NUMBERED, (UPDATE, 310)],
    ),
    "Strict with suspension, in a snapshot of several messages": (
        Strict(evidence=Checksum(), on_violation=Suspend()),
        [(SNAPSHOT, None), (PART, None)],
    ),
    "Strict with all of it": (
        Strict(evidence=Linked(), repeats=Repeats.DROP, buffer_until_snapshot=True, on_violation=Suspend()),
        [(SNAPSHOT, 300), (PART, 300)],
    ),
    "Ordered by number": (Ordered(), NUMBERED),
    "Ordered by offset": (Ordered(), PLAIN),
    "Once": (Once(keep_ids=10), NUMBERED),
    "NoIntegrity with numbers": (NoIntegrity(), NUMBERED),
    "NoIntegrity without numbers": (NoIntegrity(), PLAIN),
    "FuzzyWindow": (WINDOW, NUMBERED),
    "FuzzyWindow in order, by number": (REORDER, [*NUMBERED, (UPDATE, 303)]),
    "FuzzyWindow in order, by time": (REORDER, PLAIN),
    "FuzzyWindow in order, from the first message": (
        FuzzyWindow(lateness=timedelta(minutes=1), reorder=True, session_start=AT_FIRST),
        [(UPDATE, None)],
    ),
}


def make_state(integrity: IntegrityClass, sent: list[Sent]) -> GateState:
    """Return the gate state of a session after messages at offsets from 1,000."""
    time = PartitionTime()
    spread = any(kind is PART for kind, _ in sent)
    gate = integrity.gate_for(0, time, spread=spread)
    state: GateState = None
    for offset, (kind, number) in enumerate(sent, start=1_000):
        link = None if number is None else Link(number, first=number, previous=None)
        envelope = Envelope("s", kind, sequence=number, link=link, event_time_us=1_700_000_000_000_000)
        record = Record(topic="t", topic_id="id", partition=0, offset=offset, source=Content(b"value"))
        after, verdict = gate.check(state, envelope, record)
        if verdict.judgement in KEPT:
            state = after
    return state


def show_gates() -> str:
    """Return the stored value of a session without user state, for a gate state of each kind."""
    schema = StateSchema[Any](int)
    states = {name: make_state(*scenario) for name, scenario in GATES.items()}
    active = states["Strict with suspension"]
    suspended = mark_suspended(active, 1_005)
    states["Strict with suspension, suspended by the transform"] = suspended
    states["Strict with suspension, suspended and counted as lost"] = mark_lost(suspended)
    states["Strict with suspension, suspended in a snapshot"] = mark_suspended(active, 1_005, broken=True)
    left = Strict(evidence=Linked(), session_start=AT_FIRST).make_state_adapter(0)
    states["Strict from the first message, left by another class"] = left(states["Strict by Sequence"])
    shown = {name: show_value(schema.encode("s", state, None)) for name, state in states.items()}
    return "\n".join(f"{name}: {value}" for name, value in shown.items())


def show_formats() -> str:
    """Return the whole text."""
    sections = {f"document {kind.__name__}": show_document(kind) for kind in DOCUMENTS}
    sections |= {f"packed {kind.__name__}": show_packed(kind) for kind in PACKED}
    sections |= {f"table: {name}": show_schema(schema) for name, schema in TABLES.items()}
    sections["state of a session: [gate, user's state]"] = show_gates()
    return "\n".join(f"== {name}\n{text}\n" for name, text in sections.items())


def test_the_formats_on_disk_are_those_of_the_golden_text(request: pytest.FixtureRequest) -> None:
    shown = show_formats()
    if request.config.getoption("--write-golden"):
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text()


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_document_is_in_the_text(kind: type[msgspec.Struct]) -> None:
    """A field that is omitted at its default would change without a difference."""
    names = {each.encode_name for each in msgspec.structs.fields(kind)}
    assert names <= msgspec.json.decode(show_document(kind)).keys()
