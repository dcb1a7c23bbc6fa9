"""Messages of a test as text: a line each, with what goes wrong on the way and what happens between them.

    snapshot a 1 {"values": {"x": 1}}
    gap
    update a 2 {"name": "x"}
    CRASH
    update a 3 @90 {"name": "x"}

docs/testing.md describes the language.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from lockstep.errors import LockstepError
from lockstep.testing.events import CRASH, RENUMBER, RESTART, Event, Idle, NewTopic
from lockstep.testing.messages import AnySent, Sent

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
class Line:
    """A message as its line says.

    Attributes:
        kind: The first word.
        session: The key.
        number: The producer's number.
        second: The second that the line names, or one more than that of the line before.
        fields: What it holds beside.
    """

    kind: str
    session: str
    number: int
    second: int
    fields: dict[str, Any] = field(default_factory=dict)


Encode = Callable[[Line], bytes]
Steps = list[AnySent | Event]


def as_json(line: Line) -> bytes:
    """The usual encoding: `{"type": KIND, "number": NUMBER, ...fields}`."""
    return msgspec.json.encode({"type": line.kind, "number": line.number, **line.fields})


def parse(text: str, encode: Encode = as_json) -> Steps:
    """The messages and events of a text, for `run`.

    Args:
        text: A line a message or event; empty lines and those that begin with # say nothing.
        encode: Makes the bytes of a message of its line.

    Raises:
        LockstepError: A line is none of the language; it names the line and what it may be.
    """
    reading = _Reading(encode)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            try:
                reading.line(line.strip())
            except ValueError as error:
                raise _wrong(number, line.strip(), str(error)) from error
    if reading.waits is not None:
        raise _wrong(len(text.splitlines()), reading.waits, "wants a message after it")
    return reading.steps


class _Reading:
    """What was read so far.

    Attributes:
        steps: The messages and events.
        waits: `gap` or `swap`, while what it is about has not come.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self.steps: Steps = []
        self.waits: str | None = None
        self._second = 0

    def line(self, line: str) -> None:
        """Read a line. Raises ValueError with what is wrong."""
        word, _, rest = line.partition(" ")
        if word in _EVENTS or word in {"NEW_TOPIC", "IDLE"}:
            self._refuse_waiting(word)
            self.steps.append(self._event(word, rest))
        elif word in _FAULTS:
            self._fault(word, rest)
        elif word in {"garbage", "null"}:
            self._add(self._sent(GARBAGE if word == "garbage" else None, _one(rest, f"{word} SESSION")))
        else:
            self._message(line)

    def _event(self, word: str, rest: str) -> Event:
        if word == "NEW_TOPIC":
            return NewTopic(_one(rest, "NEW_TOPIC NAME"))
        if word == "IDLE":
            found = re.fullmatch(r"@(\d+)", rest)
            if found is None:
                raise ValueError("IDLE names a second: IDLE @90")
            return Idle(int(found[1]) * 1_000_000)
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
        found = _MESSAGE.fullmatch(text)
        if found is None:
            raise ValueError(f"not a line of the language: {_FORMS}")
        self._second = self._second + 1 if found["second"] is None else int(found["second"])
        fields = _fields(found["fields"])
        line = Line(found["kind"], found["session"], int(found["number"]), self._second, fields)
        self._add(self._sent(self._encode(line), line.session))

    def _add(self, sent: AnySent) -> None:
        """A message: lost after `gap`; before the one that came before it after `swap`."""
        waits, self.waits = self.waits, None
        if waits == "swap":
            before = self._last("swap")
            self.steps[-1:] = [sent, before]
        elif waits is None:
            self.steps.append(sent)

    def _sent(self, value: bytes | None, session: str) -> AnySent:
        return AnySent(value=value, key=session, timestamp_ms=max(self._second, 0) * SECOND_MS)

    def _last(self, word: str) -> AnySent:
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, Sent):
            raise ValueError(f"`{word}` wants a message before it")  # noqa: TRY004  # of the text, not of a type
        return last

    def _refuse_waiting(self, word: str) -> None:
        if self.waits is not None:
            raise ValueError(f"`{self.waits}` wants a message after it, not {word}")


def _fields(text: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"the fields are no JSON: {error}") from error


def _one(rest: str, form: str) -> str:
    if not rest or " " in rest:
        raise ValueError(f"the form is `{form}`")
    return rest


def _nothing(word: str, rest: str) -> None:
    if rest:
        raise ValueError(f"nothing stands behind {word}")


def _wrong(number: int, line: str, problem: str) -> LockstepError:
    return LockstepError(f"line {number}, {line!r}: {problem}", next_step="docs/testing.md lists the lines there are")
