"""Messages, events, text notation.

snapshot a 1 {"values": {"x": 1}}
    gap
    update a 2 {"name": "x"}
    CRASH
    update a 3 @90 {"name": "x"}

docs/testing.md describes the language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Generic, Never, Self, TypeVar, cast

import msgspec

from lockstep import Json
from lockstep.declare.transform import M
from lockstep.decoders import Decoder, MessagePack
from lockstep.errors import LockstepError
from lockstep.integrity.base import EPOCH
from lockstep.model.record import TimestampType

M_co = TypeVar("M_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class SentMessage(Generic[M_co]):
    """A message with more than its value.

    Attributes:
        value: A message of the stream, or raw bytes; None for no value.
        key: Its key; by default the key of the whole test.
        timestamp_ms: Kafka's timestamp, milliseconds since 1970 (UTC).
        headers: Its headers.
    """

    value: M_co | bytes | None
    key: str | bytes | None = None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True)
class InLog:
    """A message in the form of a client library (`KafkaMessage`), at its offset."""

    at: int
    sent_key: bytes | None
    sent_value: bytes | None
    timestamp_ms: int = 0
    sent_headers: Sequence[tuple[str, bytes | None]] = ()

    def offset(self) -> int:
        """Its position among the messages of the test, from 0."""
        return self.at

    def key(self) -> bytes | None:
        """The key."""
        return self.sent_key

    def value(self) -> bytes | None:
        """The value."""
        return self.sent_value

    def headers(self) -> object:
        """Pairs of name and value, or None."""
        return list(self.sent_headers) or None

    def timestamp(self) -> tuple[int, int]:
        """Type and milliseconds."""
        return int(TimestampType.CREATE_TIME), self.timestamp_ms

    def leader_epoch(self) -> int | None:
        """A test has no broker."""
        return None


AnySent = SentMessage[Never]
"""A message as bytes: of any stream."""


class _Header(msgspec.Struct):
    name: str
    value: bytes | None


class _Line(msgspec.Struct):
    value: bytes | None
    key: bytes | None = None
    timestamp: datetime | None = None
    headers: list[_Header] = []
    value_bytes: int | None = None


def read_messages(file: str | Path) -> list[AnySent]:
    """The messages of a file written by `lockstep message --out` or `lockstep quarantine export`, for `run`.

    Args:
        file: JSON lines: key, value and headers in base64, a timestamp.

    Raises:
        LockstepError: The file is none of these; or a value is truncated, as in quarantine beyond a megabyte.
    """
    path = Path(file)
    try:
        lines = msgspec.json.Decoder(_Line).decode_lines(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        next_step = "lockstep message STREAM --out FILE, or lockstep quarantine export STREAM FILE.jsonl"
        raise LockstepError(f"{path}: no messages can be read: {error}", next_step=next_step) from error
    for number, line in enumerate(lines, 1):
        if line.value_bytes is not None and line.value_bytes > len(line.value or b""):
            problem = (
                f"{path}, line {number}: {len(line.value or b'')} of {line.value_bytes} bytes of the value are left"
            )
            raise LockstepError(problem, next_step="lockstep message STREAM TOPIC/PARTITION@OFFSET reads it from Kafka")
    return [_sent(line) for line in lines]


def _sent(line: _Line) -> AnySent:
    time_ms = 0
    if line.timestamp is not None:
        time_ms = (line.timestamp - EPOCH) // timedelta(milliseconds=1)
    headers = tuple((header.name, header.value) for header in line.headers)
    return AnySent(value=line.value, key=line.key, timestamp_ms=time_ms, headers=headers)


_ENCODERS: dict[type[Decoder], Callable[[object], bytes]] = {
    Json: msgspec.json.encode,
    MessagePack: msgspec.msgpack.encode,
}


def to_log(at: int, message: M | bytes | SentMessage[M], key: str | bytes | None, decoder: Decoder) -> InLog:
    """A message as stored in the topic, at an offset.

    Typed messages are encoded, so that the stream's decoder is tested as well.

    Raises:
        LockstepError: The message is typed, and the stream's decoder has no encoder here.
    """
    if isinstance(message, SentMessage):
        sent = cast("SentMessage[object]", message)
        key = key if sent.key is None else sent.key
    else:
        sent = SentMessage[object](value=message)
    return InLog(
        at,
        _encoded_key(key),
        _encoded_value(sent.value, decoder),
        sent.timestamp_ms,
        sent.headers,
    )


def _encoded_key(key: str | bytes | None) -> bytes | None:
    if isinstance(key, str):
        return key.encode()
    return key


def _encoded_value(value: object, decoder: Decoder) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    encode = _ENCODERS.get(type(decoder))
    if encode is None:
        raise LockstepError(
            f"a {type(value).__name__} cannot be encoded for {type(decoder).__name__}",
            next_step="give the message as the bytes that a producer would send",
        )
    return encode(value)


class Event:
    """An event between two messages. It ends the batch before it."""


@dataclass(frozen=True)
class _Named(Event):
    name: str

    def __str__(self) -> str:
        return self.name


CRASH: Final = _Named("CRASH")
"""The batch is processed but not committed: it is processed again."""
RESTART: Final = _Named("RESTART")
"""The run ends after the batch; the next one starts from the ledger, on a machine without a local store."""
RENUMBER: Final = _Named("RENUMBER")
"""The topic is re-created: its offsets restart at 0, under another topic id."""


@dataclass(frozen=True)
class NewTopic(Event):
    """The following messages are of another topic, with separate state.

    Attributes:
        name: Its name.
    """

    name: str


@dataclass(frozen=True)
class Idle(Event):
    """No messages for `EventTime.idle_advance`: the clock advances the watermark of the topic.

    Attributes:
        watermark_us: The new watermark, in microseconds since 1970 (UTC).
    """

    watermark_us: int


@dataclass(frozen=True)
class ChangedLookup(Event):
    """The table of a lookup has changed: the following batches read these rows.

    Attributes:
        name: Name of the lookup.
        rows: All of its rows.
    """

    name: str
    rows: Iterable[msgspec.Struct]


@dataclass(frozen=True)
class Split:
    """How messages are split into batches.

    Attributes:
        messages: Maximum per batch; None for all up to the next event.
        crashes: Each batch is processed, discarded, and processed again; then the next run starts from the ledger,
            without the local store.
    """

    messages: int | None
    crashes: bool = True

    def __post_init__(self) -> None:
        """Refuse an empty batch."""
        if self.messages is not None and self.messages < 1:
            raise ValueError(f"a batch of {self.messages} messages: at least 1")

    @classmethod
    def of(cls, given: int | Self | None) -> Split:
        """The split for an argument of `run`."""
        if given is None:
            return Split(None, crashes=False)
        if isinstance(given, int):
            return Split(given)
        return given


GARBAGE: Final = b"\xff not a message"
SECOND_MS: Final = 1_000
_MESSAGE: Final = re.compile(
    r"(?P<kind>[a-z_]+) (?P<session>\S+) (?P<number>-?\d+)(?: @(?P<second>-?\d+))?(?: (?P<fields>\{.*\}))?"
)
_FAULTS: Final = ("gap", "repeat", "swap")
_EVENTS: Final[dict[str, Event]] = {"CRASH": CRASH, "RESTART": RESTART, "RENUMBER": RENUMBER}
_FORMS: Final = (
    "KIND SESSION NUMBER [@SECOND] [{fields}], `gap`, `repeat`, `swap`, `garbage SESSION`, `null SESSION`, CRASH, "
    "RESTART, RENUMBER, `NEW_TOPIC NAME` or `IDLE @SECOND`"
)


@dataclass(frozen=True)
class ScriptLine:
    """A parsed line of a message.

    Attributes:
        kind: The first word.
        session: The key.
        number: The producer's number.
        second: The second of the line; by default that of the preceding line plus one.
        fields: Its other fields.
    """

    kind: str
    session: str
    number: int
    second: int
    fields: dict[str, Any] = field(default_factory=dict)


Encode = Callable[[ScriptLine], bytes]
Steps = list[AnySent | Event]


def to_json(line: ScriptLine) -> bytes:
    """The usual encoding: `{"type": KIND, "number": NUMBER, ...fields}`."""
    return msgspec.json.encode({"type": line.kind, "number": line.number, **line.fields})


def parse(text: str, encode: Encode = to_json) -> Steps:
    """The messages and events of a text, for `run`.

    Args:
        text: One message or event per line; empty lines and lines that start with # are ignored.
        encode: Makes the bytes of a message from its line.

    Raises:
        LockstepError: A line is invalid; the error names the line and the valid forms.
    """
    reading = _Reading(encode)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.strip().startswith("#"):
            try:
                reading.line(line.strip())
            except ValueError as error:
                raise _wrong(number, line.strip(), str(error)) from error
    if reading.waits is not None:
        raise _wrong(len(text.splitlines()), reading.waits, "wants a message after it")
    return reading.steps


class _Reading:
    """The lines read so far.

    Attributes:
        steps: The messages and events.
        waits: `gap` or `swap`, until the message it applies to.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self.steps: Steps = []
        self.waits: str | None = None
        self._second = 0

    def line(self, line: str) -> None:
        """Read a line. Raises ValueError with the problem."""
        word, _, rest = line.partition(" ")
        if word in _EVENTS or word in {"NEW_TOPIC", "IDLE"}:
            self._refuse_waiting(word)
            self.steps.append(self._event(word, rest))
        elif word in _FAULTS:
            self._fault(word, rest)
        elif word in {"garbage", "null"}:
            value = GARBAGE if word == "garbage" else None
            self._add(self._sent(value, _one(rest, f"{word} SESSION")))
        else:
            self._message(line)

    def _event(self, word: str, rest: str) -> Event:
        if word == "NEW_TOPIC":
            return NewTopic(_one(rest, "NEW_TOPIC NAME"))
        if word == "IDLE":
            match = re.fullmatch(r"@(\d+)", rest)
            if match is None:
                raise ValueError("IDLE names a second: IDLE @90")
            return Idle(int(match[1]) * 1_000_000)
        _nothing(word, rest)
        return _EVENTS[word]

    def _fault(self, word: str, rest: str) -> None:
        _nothing(word, rest)
        self._refuse_waiting(word)
        if word != "repeat":
            self.waits = word
            return
        self.steps.append(self._last("repeat"))

    def _message(self, text: str) -> None:
        match = _MESSAGE.fullmatch(text)
        if match is None:
            raise ValueError(f"not a line of the language: {_FORMS}")
        self._second += 1
        if match["second"] is not None:
            self._second = int(match["second"])
        fields = _fields(match["fields"])
        line = ScriptLine(match["kind"], match["session"], int(match["number"]), self._second, fields)
        self._add(self._sent(self._encode(line), line.session))

    def _add(self, sent: AnySent) -> None:
        """Add a message: dropped after `gap`; inserted before the previous message after `swap`."""
        waits = self.waits
        self.waits = None
        if waits == "swap":
            previous = self._last("swap")
            self.steps[-1:] = [sent, previous]
        elif waits is None:
            self.steps.append(sent)

    def _sent(self, value: bytes | None, session: str) -> AnySent:
        return AnySent(value=value, key=session, timestamp_ms=max(self._second, 0) * SECOND_MS)

    def _last(self, word: str) -> AnySent:
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, SentMessage):
            raise ValueError(f"`{word}` wants a message before it")  # noqa: TRY004  # of the text, not of a type
        return last

    def _refuse_waiting(self, word: str) -> None:
        if self.waits is not None:
            raise ValueError(f"`{self.waits}` wants a message after it, not {word}")


def _fields(text: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"the fields are not JSON: {error}") from error


def _one(rest: str, form: str) -> str:
    if not rest or " " in rest:
        raise ValueError(f"the form is `{form}`")
    return rest


def _nothing(word: str, rest: str) -> None:
    if rest:
        raise ValueError(f"nothing may follow {word}")


def _wrong(number: int, line: str, problem: str) -> LockstepError:
    return LockstepError(f"line {number}, {line!r}: {problem}", next_step="docs/testing.md lists the lines there are")
