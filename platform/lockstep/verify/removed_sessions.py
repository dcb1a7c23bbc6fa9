"""Sessions that a feature has removed from a partition: the proof must find none of their rows, and all others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from lockstep.feature import load_parts
from lockstep.verify.ledger import LedgerChain, LedgerRange, RowPosition

REDACTED = "erased with its session"
"""In `expected` of a quarantined or late message of which only place and cause remain."""


class RemovedSessions(Protocol):
    """The removed sessions of one partition."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        ...

    def has_row(self, session: str, position: RowPosition) -> bool:
        """Whether a row was removed."""
        ...

    def has_message(self, session: str | None, key: bytes | None, offset: int) -> bool:
        """Whether a quarantined or late message was removed; without a session its key counts."""
        ...

    def find_sessions(self, row: LedgerRange, sessions: Iterable[str]) -> list[str]:
        """Find the sessions that a ledger row removes."""
        ...

    def find_mark(self, session: str) -> str | None:
        """Find the name that replaces a removed session in the ledger; None for a session that was not removed."""
        ...

    def name_skips(self, skips: Mapping[str, int], known: Iterable[str]) -> Mapping[str, int]:
        """Replace the marks of removed sessions in skipped sessions by the names of known ones."""
        ...

    def take_count(self, until: int, dropped_up_to: int) -> int:
        """Take the number of removed rows before an offset, without those of batches that retention dropped."""
        ...

    def count_at(self, offset: int, batch: int) -> int:
        """Count the removed rows that timers emitted at an offset, up to a batch."""
        ...

    def describe(self) -> str:
        """Describe them in the scope of the proof; empty for none."""
        ...


class _NoneRemoved:
    """A partition from which no session was removed."""

    def __bool__(self) -> bool:
        return False

    def has_row(self, session: str, position: RowPosition) -> bool:
        return False

    def has_message(self, session: str | None, key: bytes | None, offset: int) -> bool:
        return False

    def find_sessions(self, row: LedgerRange, sessions: Iterable[str]) -> list[str]:
        return []

    def find_mark(self, session: str) -> str | None:
        return None

    def name_skips(self, skips: Mapping[str, int], known: Iterable[str]) -> Mapping[str, int]:
        return skips

    def take_count(self, until: int, dropped_up_to: int) -> int:
        return 0

    def count_at(self, offset: int, batch: int) -> int:
        return 0

    def describe(self) -> str:
        return ""


NONE_REMOVED: RemovedSessions = _NoneRemoved()


def read_removed(table_id: str, chain: LedgerChain) -> RemovedSessions:
    """Read the removed sessions of a partition from its ledger rows.

    A table from which a session was removed names the feature in its head, and cannot be read without it.
    """
    for read in load_parts("removed_sessions"):
        removed: RemovedSessions = read(table_id, chain)
        if removed:
            return removed
    return NONE_REMOVED
