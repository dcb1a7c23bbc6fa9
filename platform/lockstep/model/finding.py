"""Finding and Hole: evidence with its exact place."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One violation, as it is committed with the halt and shown to people.

    Attributes:
        cause: A short, stable name: "gap", "broken link", "unknown session", "undecodable",
            "transform raised", "checksum", "hole", "expired", "truncated", "re-created", ...
        topic: Name of the topic.
        topic_id: Kafka's id of this life of the topic.
        partition: Partition number.
        offset: First offset concerned.
        until: First offset after those concerned.
        session: The session, where there is one.
        expected: What would have kept the promise.
        found: What came instead.
        detail: More for people, for example the error text of a fold.
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
        """The offset before it: all up to there is in the table or accounted for. None where nothing precedes."""
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
        cause: "marker" (a transaction's control record), "aborted", "expired", "corrupt" (the broker has something
            there that nobody can read), or "unproven".
    """

    start: int
    until: int
    cause: str


Key = tuple[str, int]

"""(topic id, partition)."""
