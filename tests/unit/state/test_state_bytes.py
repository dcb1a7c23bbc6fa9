"""The size of state files follows the changed rows, with bases and merged deltas, over many batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep import MapState
from lockstep.state.changelog import StateVersion, count_change_bytes
from lockstep.state.codec import StateSchema
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.store import PartitionState
from tests.unit.state.home import Home

BATCHES = 200
RATIO_MAX = 1.5
SESSION_BYTES_MAX = 200


class Row(msgspec.Struct, frozen=True):
    """A row of a book, with numbers that vary."""

    price: float
    quantity: float
    orders: int
    changed_us: int


SCHEMA: StateSchema[Any] = StateSchema(MapState[int, Row])


class Writer:
    """A writer of batches that counts the bytes of their changes and of their files."""

    def __init__(self, folder: Path, sessions: int, rows: int) -> None:
        (folder / "durable").mkdir()
        self.home = Home(folder / "durable", folder / "hot", schema=SCHEMA)
        self.random = random.Random(52)  # noqa: S311  # of a test
        self.sessions = [f"session-{number}" for number in range(sessions)]
        self.rows = rows
        self.encoded = 0
        self.touched = 0
        self.version: StateVersion = self.home.batch(self.home.start(), self._fill)
        self.before = self.file_bytes()

    def update(self, changes: int) -> None:
        """Fold a batch of changes of random rows in random sessions."""

        def fold(state: PartitionState[Any]) -> None:
            touched = set()
            for _ in range(changes):
                session = self.random.choice(self.sessions)
                touched.add(session)
                entry: Any = state.entries.get(session) or state.load(session)
                entry.state[self.random.randrange(self.rows)] = self._row()
            self.touched += len(touched)
            self.encoded += sum(map(count_change_bytes, state.changed()))

        self.version = self.home.batch(self.version, fold)

    def file_bytes(self) -> int:
        """Return the bytes of all state files, also of batches that nothing needs any more."""
        return sum(path.stat().st_size for path in self.home.durable.iterdir())

    def _fill(self, state: PartitionState[Any]) -> None:
        for session in self.sessions:
            rows = {number: self._row() for number in range(self.rows)}
            state.entries[session] = SessionEntry(0, MapState(rows))

    def _row(self) -> Row:
        some = self.random
        price = round(some.uniform(90, 110), 2)
        return Row(
            price, some.randrange(1, 10_000) / 100, some.randrange(1, 40), 1_700_000_000_000_000 + some.getrandbits(40)
        )


@pytest.mark.parametrize(
    ("sessions", "rows", "changes"),
    [(25, 200, 62), (25, 200, 312), (25, 2_000, 62), (2_000, 5, 300), (2_000, 5, 20), (1, 20_000, 10)],
)
def test_state_files_follow_the_changed_rows(tmp_path: Path, sessions: int, rows: int, changes: int) -> None:
    writer = Writer(tmp_path, sessions, rows)
    for _ in range(BATCHES):
        writer.update(changes)
    written = writer.file_bytes() - writer.before
    assert written <= RATIO_MAX * writer.encoded + SESSION_BYTES_MAX * writer.touched


def test_a_batch_of_one_row_takes_the_header_of_a_segment(tmp_path: Path) -> None:
    """The header has schema, chain and index, and exceeds the goal of a batch that touches a few sessions."""
    writer = Writer(tmp_path, 100, 5)
    for _ in range(BATCHES):
        writer.update(1)
    assert writer.file_bytes() - writer.before <= 1_000 * BATCHES
