"""Finding and Hole: evidence with its exact place."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One violation, as committed with the halt and shown to operators.

    Attributes:
        cause: A short, stable name: "gap", "broken link", "unknown session", "undecodable",
            "transform raised", "checksum", "hole", "expired", "truncated", "re-created", ...
        topic: Name of the topic.
        topic_id: Kafka's topic id; a re-created topic has another.
        partition: Partition number.
        offset: First offset concerned.
        until: First offset after those concerned.
        session: The session, if any.
        expected: What would have kept the promise.
        found: What was found instead.
        detail: Further text for people, for example the error text of a fold.
        traceback: Where the stream's own code raised, as Python prints it; empty for anything else.
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

    @property
    def last_good_offset(self) -> int | None:
        """The offset before it: everything up to it is in the table or accounted for. None at the start of the log."""
        return self.offset - 1 if self.offset else None

    def __str__(self) -> str:
        where = f"{self.topic}/{self.partition} offset {self.offset}"
        if self.until > self.offset + 1:
            where += f" to {self.until - 1}"
        if self.session is not None:
            where += f", session {self.session!r}"
        compared = f": expected {self.expected}, found {self.found}" if self.expected is not None else ""
        return f"{self.cause} at {where}{compared}{f' ({self.detail})' if self.detail else ''}"


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


Key = tuple[str, int]

"""(topic id, partition)."""
