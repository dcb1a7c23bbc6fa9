"""The 42 bad inputs of strangers, broken producers and other programs, and the expected result of each.

Each name has one or more messages. A message has offset 2 of a separate topic. A snapshot and an update of its session
precede it, and another snapshot and update follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from lockstep import Envelope, InitialState, Kind, Limits, Ordered, Record, Sequence, Stream, Strict, Topics, Transform

AT = 2
"""The offset of the bad message."""
BYTES_MAX = 3_000_000
UNDECODABLE = "undecodable"
RAISED = "transform raised"
UNKNOWN = "unknown session"
UNFIT = "value not storable"


class Snapshot(msgspec.Struct, tag="snapshot", tag_field="type"):
    """All rows of a session."""

    session: str
    seq: int
    rows: dict[str, int]
    version: Literal[1] = 1


class Update(msgspec.Struct, tag="update", tag_field="type"):
    """One changed row of a session."""

    session: str
    seq: int
    id: str
    size: int
    price: float
    note: str = ""
    time_us: int | None = None
    version: Literal[1] = 1


class Book(msgspec.Struct):
    """The state of a session."""

    rows: dict[str, int]


class Reading(msgspec.Struct):
    """One row."""

    id: str
    size: int
    price: float
    note: str


class Reader(Transform[Snapshot | Update, Book, Reading]):
    """A transform that reads the session from the message and refuses unknown rows."""

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        """The session is in the body."""
        if isinstance(message, Snapshot):
            return Envelope(message.session, Kind.SNAPSHOT, sequence=message.seq)
        return Envelope(message.session, Kind.UPDATE, sequence=message.seq, event_time_us=message.time_us)

    def on_snapshot(
        self, message: Snapshot | Update, record: Record, previous: Book | None
    ) -> InitialState[Book, Reading]:
        """Return a row for each row of the snapshot."""
        rows = message.rows if isinstance(message, Snapshot) else {}
        return InitialState(Book(dict(rows)), [Reading(name, size, 0.0, "") for name, size in rows.items()])

    def on_update(self, state: Book, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Raise KeyError for an unknown row."""
        if isinstance(message, Update):
            _ = state.rows[message.id]
            state.rows[message.id] = message.size
            yield Reading(message.id, message.size, message.price, message.note)


def tolerant(pattern: str) -> Stream[Snapshot | Update, Book, Reading]:
    """Return a stream that keeps messages that it cannot apply in quarantine."""
    limits = Limits(message_bytes=BYTES_MAX)
    return Stream(
        name="tolerant", topics=Topics(pattern=pattern), transform=Reader(), integrity=Ordered(), limits=limits
    )


def strict(pattern: str) -> Stream[Snapshot | Update, Book, Reading]:
    """Return a stream that halts on a message that it cannot apply."""
    limits = Limits(message_bytes=BYTES_MAX)
    integrity = Strict(evidence=Sequence())
    return Stream(name="strict", topics=Topics(pattern=pattern), transform=Reader(), integrity=integrity, limits=limits)


Row = tuple[str, int, float, str]
ROW: Row = ("a", 1, 0.5, "")
"""The row of `update()`."""


@dataclass(frozen=True)
class Bad:
    """A message and its expected result: rows, or a row in quarantine with a reason.

    Attributes:
        value: Its value.
        rows: The resulting rows; empty if it is kept in quarantine.
        cause: The cause in quarantine.
        found: A part of the reason in quarantine.
        key: Its key.
        session: The session of the messages around it.
        headers: Its headers.
        timestamp_ms: Kafka's timestamp; None for now.
        event_time: Expected event time of its row, as ISO text.
        gzip: Whether it is sent in a compressed batch.
        topic: Name of its topic, if the name is the bad input.
        halts: Whether a strict class halts.
    """

    value: bytes | None
    rows: tuple[Row, ...] = ()
    cause: str = UNDECODABLE
    found: str = ""
    key: str | bytes | None = "s"
    session: str = "s"
    headers: list[tuple[str, str | bytes | None]] = field(default_factory=list)
    timestamp_ms: int | None = None
    event_time: str | None = None
    gzip: bool = False
    topic: str = ""

    @property
    def kept(self) -> bool:
        """Whether it is kept in quarantine."""
        return not self.rows


def snapshot(seq: int, session: str = "s") -> bytes:
    return json.dumps({"type": "snapshot", "session": session, "seq": seq, "rows": {"a": 9}}).encode()


def update(seq: int = 3, session: str = "s", **other: object) -> bytes:
    body = {"type": "update", "session": session, "seq": seq, "id": "a", "size": 1, "price": 0.5, **other}
    return json.dumps(body).encode()


def sized(size: int) -> bytes:
    """Return an update of exactly this size in bytes."""
    return update(note="x" * (size - len(update(note=""))))


def swapped(old: bytes, new: bytes) -> bytes:
    """Make an update with one part of its text replaced."""
    assert old in update()
    return update().replace(old, new)


def deep(levels: int) -> bytes:
    return update(foreign=0).replace(b'"foreign": 0', b'"foreign": ' + b"[" * levels + b"]" * levels)


def good(value: bytes, row: Row = ROW, **other: object) -> Bad:
    return Bad(value, (row,), **other)  # type: ignore[arg-type]  # by name


TEN_KB = "s" * 10_000
PATH = "../../../../tmp/\x00/C:\\*?\n"
HEADERS: list[tuple[str, str | bytes | None]] = [(f"name{number}", b"value") for number in range(10_000)]
NOTE = "x" * 2_000_000

INPUTS: Mapping[str, tuple[Bad, ...]] = {
    "null value": (Bad(None, found="no value (null)"),),
    "empty": (Bad(b"", found="truncated"),),
    "the text null": (Bad(b"null", found="got `null`"),),
    "whitespace": (Bad(b" \r\n\t ", found="truncated"),),
    "truncated JSON": (Bad(update()[:-9], found="truncated"),),
    "trailing text": (Bad(update() + b" and more", found="trailing characters"),),
    "two documents": (Bad(update() + update(4), found="trailing characters"),),
    "array root": (Bad(b"[" + update() + b"]", found="got `array`"),),
    "scalar root": (Bad(b"42", found="got `int`"),),
    "byte order mark": (Bad(b"\xef\xbb\xbf" + update(), found="invalid character"),),
    "UTF-16": (Bad(update().decode().encode("utf-16"), found="invalid character"),),
    "invalid UTF-8": (Bad(update(note="X").replace(b"X", b"\xff\xfe"), found="can't decode byte 0xff"),),
    "lone surrogate": (Bad(update(note="\ud800"), found="truncated"), Bad(update(note="\udc00 x"), found="")),
    "NUL character": (good(update(note="a\x00b"), ("a", 1, 0.5, "a\x00b")),),
    "duplicate keys": (good(swapped(b'"size": 1', b'"size": 1, "size": 7'), ("a", 7, 0.5, "")),),
    "wrong-case keys": (Bad(swapped(b'"size"', b'"Size"'), found="missing required field `size`"),),
    "extra field": (good(update(foreign={"x": [1, None]})),),
    "missing required field": (Bad(swapped(b', "price": 0.5', b""), found="missing required field `price`"),),
    "wrong type": (Bad(update(id=5), found="Expected `str`, got `int` - at `$.id`"),),
    "number as string": (Bad(update(size="1"), found="Expected `int`, got `str` - at `$.size`"),),
    "float for an integer": (
        Bad(update(size=1.5), found="got `float` - at `$.size`"),
        Bad(update(size=1.0), found="got `float` - at `$.size`"),
    ),
    "integer beyond 64 bits": (Bad(update(size=2**63), cause=UNFIT, found="9223372036854775808"),),
    "integer of 5,000 digits": (Bad(swapped(b'"size": 1', b'"size": ' + b"9" * 5_000), found="out of range"),),
    "NaN": (Bad(update(price=float("nan")), found="invalid character"),),
    "Infinity": (
        Bad(update(price=float("inf")), found="invalid character"),
        Bad(update(price=float("-inf")), found="invalid"),
    ),
    "1e999": (Bad(swapped(b"0.5", b"1e999"), found="out of range"),),
    "nested 2,000 and 100,000 deep": (
        Bad(deep(2_000), found="recursion depth"),
        Bad(deep(100_000), found="recursion depth"),
    ),
    "string of 2 MB": (good(update(note=NOTE), ("a", 1, 0.5, NOTE)),),
    "message at and above the size limit": (
        good(sized(BYTES_MAX), ("a", 1, 0.5, "x" * (BYTES_MAX - len(update(note=""))))),
        Bad(sized(BYTES_MAX + 1), found=f"{BYTES_MAX + 1} bytes, more than the limit of {BYTES_MAX}"),
    ),
    "gzip bomb": (Bad(sized(50_000_000), gzip=True, found="50000000 bytes, more than the limit"),),
    "null key": (good(update(), key=None),),
    "key that is not the session": (good(update(), key="another"), good(update(), key=b"\xff\x00")),
    "session of 10 kB or with path characters": (
        good(update(session=TEN_KB), session=TEN_KB),
        good(update(session=PATH), session=PATH),
    ),
    "unknown kind or version": (
        Bad(update(type="delete"), found="Invalid value 'delete' - at `$.type`"),
        Bad(update(version=2), found="Invalid enum value 2 - at `$.version`"),
    ),
    "update before a snapshot": (Bad(update(1, session="new"), cause=UNKNOWN, found="without snapshot"),),
    "second snapshot in a session": (good(snapshot(3), ("a", 9, 0.0, "")),),
    "unknown row id": (Bad(update(id="b"), cause=RAISED, found="KeyError: 'b'"),),
    "time before 1970 or in the year 9999": (
        good(update(time_us=-5), event_time="1969-12-31T23:59:59.999995+00:00"),
        good(update(time_us=253_402_300_799_000_000), event_time="9999-12-31T23:59:59+00:00"),
        good(update(), timestamp_ms=253_402_300_799_000),
    ),
    "10,000 headers": (good(update(), headers=HEADERS), Bad(b"garbage", headers=HEADERS, found="malformed")),
    "topic names that clash or look like a pattern": (
        good(update(), topic="a_b.c-d"),
        good(update(), topic="..-_.$".replace("$", "end")),
    ),
    "topic name of 200 characters": (good(update(), topic="long."),),
    "foreign data": (
        Bad(b"\x00\x00\x00\x01\x02" + update(), found="resembles a schema registry's frame of schema id 258"),
        Bad(b"\x89PNG\r\n\x1a\n" + bytes(range(256)), found="malformed"),
        Bad(b"2026-01-31 09:00:00 INFO started", found="got `int`"),
        Bad(b'{"level": "info"}', found="missing required field `type`"),
    ),
}
"""By name, in the order of the design."""
