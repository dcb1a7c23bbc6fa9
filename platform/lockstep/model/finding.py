"""Finding and Hole: evidence with its exact place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Self

import msgspec

if TYPE_CHECKING:
    from lockstep.model.position import Position


TEXT_MAX = 2_000
CUT = " ..."
"""Most characters of a text that shows a value, and how a longer one ends."""

HIDDEN = "<session>"
"""Replaces the name of a session."""


def escape_surrogates(text: str) -> str:
    """Write lone surrogates as escapes: a producer may send them, and neither a commit nor a table holds them."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


class Finding(msgspec.Struct, frozen=True):
    """One violation, as committed with the halt and shown to operators.

    Attributes:
        cause: A short, stable name: one of `Fault`, or of a verdict: "gap", "broken link", "unknown session", ...
        topic_id: Kafka's topic id; a re-created topic has another.
        offset: First offset concerned.
        until: First offset after those concerned.
        session: The session, if any.
        expected: What would have kept the promise.
        found: The value or state that was found.
        detail: Further text for people, for example the error text of a fold.
        traceback: The traceback of an error of the stream's own code.
    """

    cause: str
    topic: str
    topic_id: str
    partition: int
    offset: int
    until: int
    session: str | None = None
    expected: str | None = None
    found: str | None = None
    detail: str = ""
    traceback: str = ""

    def __post_init__(self) -> None:
        """Make the texts fit for a commit and a table.

        What shows a value is cut: a commit, each event of it and the quarantine would hold megabytes of a large one.
        """
        for name in ("cause", "session", "expected", "found", "detail", "traceback"):
            text: str | None = getattr(self, name)
            if text and not text.isascii():
                msgspec.structs.force_setattr(self, name, escape_surrogates(text))
        for name in ("expected", "found", "detail"):
            value: str | None = getattr(self, name)
            if value and len(value) > TEXT_MAX:
                msgspec.structs.force_setattr(self, name, f"{value[: TEXT_MAX - len(CUT)]}{CUT}")

    @classmethod
    def at(  # noqa: PLR0913  # the parts of the evidence
        cls,
        position: Position,
        cause: str,
        *,
        offset: int | None = None,
        until: int | None = None,
        session: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        detail: str = "",
    ) -> Self:
        """A violation in the partition of a position; at its next offset by default, and of no more than that place."""
        if offset is None:
            offset = position.next_offset
        if until is None:
            until = offset
        return cls(
            cause=cause,
            topic=position.topic,
            topic_id=position.topic_id,
            partition=position.partition,
            offset=offset,
            until=until,
            session=session,
            expected=expected,
            found=found,
            detail=detail,
        )

    def without_session(self) -> Finding:
        """The violation without the name of its session, for places that no erasure reaches: its offset is enough."""
        if not self.session:
            return self
        # Texts of errors quote it as Python does.
        spellings = {self.session, repr(self.session)[1:-1], ascii(self.session)[1:-1]}
        alternatives = "|".join(re.escape(spelling) for spelling in sorted(spellings, key=len, reverse=True))
        name = re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)")
        texts = {part: getattr(self, part) for part in ("expected", "found", "detail", "traceback")}
        hidden = {part: name.sub(HIDDEN, text) for part, text in texts.items() if text}
        return msgspec.structs.replace(self, session=None, **hidden)

    def __str__(self) -> str:
        """One line: a value in it, which anybody may have sent, makes no second line of a log."""
        text = f"{self.cause} at {self.topic}/{self.partition} offset {self.offset}"
        if self.until > self.offset + 1:
            text += f" to {self.until - 1}"
        if self.session is not None:
            text += f", session {self.session!r}"
        if self.expected is not None:
            text += f": expected {self.expected}, found {self.found}"
        if self.detail:
            text += f" ({self.detail})"
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


class Hole(msgspec.Struct, frozen=True):
    """Offsets inside a range that held no message, with the proven cause.

    Attributes:
        start: First missing offset.
        until: First offset after them.
        cause: "marker" (a transaction's control record), "aborted", "expired", "corrupt" (a record on the broker that
            cannot be read), or "unproven".
    """

    start: int
    until: int
    cause: str
