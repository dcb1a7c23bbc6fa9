"""Erased sessions of one partition: the rows that the proof must not find any more.

The ledger row of an erasure names the session by a digest, and counts its rows by batch. The digest is computed here
again: the proof shares no code with the erasure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from lockstep.verify.ledger import LedgerChain, LedgerRange, RowPosition

MARK = "erased:"
"""Start of the name of an erased session in the ledger; its digest follows."""
_CHARACTERS = 32


class ErasedSessions:
    """The erased sessions of one partition."""

    def __init__(self, table_id: str, chain: LedgerChain) -> None:
        """Read them from the ledger rows of the partition.

        Args:
            table_id: Delta's id of the output table.
            chain: The ledger rows.
        """
        self._table_id = table_id
        self._digests: dict[str, str] = {}
        self._ends: dict[str, RowPosition] = {}
        self._counts: list[tuple[int, int, int]] = []
        self._read(chain)

    def _read(self, chain: LedgerChain) -> None:
        for row in chain.erasing:
            for erased in row.erased:
                # Of two erasures of one session the later one counts: it reaches further.
                self._ends[erased.digest] = chain.end_of(row.batch)
                self._counts.append((erased.start, erased.batch, erased.rows))
        self._counts.sort()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._ends)

    def has_row(self, session: str, position: RowPosition) -> bool:
        """Whether a row was erased."""
        end = self._ends.get(self._digest(session))
        return end is not None and position < end

    def has_message(self, session: str | None, key: bytes | None, offset: int) -> bool:
        """Whether a quarantined or late message was erased: without a session, its key counts."""
        if session is None:
            session = (key or b"").decode("utf-8", "surrogateescape")
        return self.has_row(session, (offset, 0))

    def find_sessions(self, row: LedgerRange, sessions: Iterable[str]) -> list[str]:
        """Those of some sessions that a ledger row erases."""
        digests = {erased.digest for erased in row.erased}
        if not digests:
            return []
        marks = {MARK + digest for digest in digests}
        return [session for session in sessions if session in marks or self._digest(session) in digests]

    def find_mark(self, session: str) -> str | None:
        """The name in place of a session in the ledger; None if it was not erased."""
        # Hashing each session costs time, and most partitions have no erasure.
        if not self._ends:
            return None
        digest = self._digest(session)
        return MARK + digest if digest in self._ends else None

    def name_skips(self, skips: Mapping[str, int], known: Iterable[str]) -> Mapping[str, int]:
        """Skipped sessions, with the names of known sessions instead of the marks of erased ones."""
        if not any(name.startswith(MARK) for name in skips):
            return skips
        names = {self.find_mark(session): session for session in known}
        return {names.get(name, name): before for name, before in skips.items()}

    def take_count(self, until: int, dropped_up_to: int) -> int:
        """The number of erased rows before an offset, once; without those of batches that retention dropped."""
        rows = 0
        while self._counts and self._counts[0][0] < until:
            _, batch, erased = self._counts.pop(0)
            if batch > dropped_up_to:
                rows += erased
        return rows

    def count_at(self, offset: int, batch: int) -> int:
        """The number of erased rows that timers emitted at an offset, up to a batch."""
        return sum(rows for start, by, rows in self._counts if start == offset and by <= batch)

    def describe(self) -> str:
        """Describe them in the scope of the proof; empty for none."""
        if not self._ends:
            return ""
        return f"{len(self._ends)} erased sessions are left out, by their digests"

    def _digest(self, session: str) -> str:
        if session not in self._digests:
            named = f"{self._table_id}\n{session}".encode("utf-8", "surrogatepass")
            self._digests[session] = sha256(named).hexdigest()[:_CHARACTERS]
        return self._digests[session]
