"""After a death at any step between write and commit, and with any local store, state is the committed state."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.state import changelog
from lockstep.state.changelog import RestoreKind, StateFileWriter, StateVersion, read_segment
from lockstep.state.entry_order import Change
from lockstep.state.restore import apply_stamped
from tests.unit.state.home import OTHER_BOOT, Home, drop, put

SESSIONS = ["a", "b", "c", "d", "x" * 600, "x" * 601]
DIES = ["never", "before the file", "before the local store", "before the commit"]
FOUND = ["as left", "none", "of another boot", "an earlier one", "in use by another"]


@dataclass(frozen=True)
class Batch:
    """One batch: its changes, the step at which it dies, and the local store that it finds."""

    puts: dict[str, int]
    removes: list[str]
    dies: str
    found: str


@dataclass
class Run:
    """The state under test, and the oracle: a dict that follows the commits."""

    home: Home
    version: StateVersion
    oracle: dict[str, int] = field(default_factory=dict)
    saved: Path | None = None

    def step(self, batch: Batch) -> None:
        self.find(batch.found)
        holder = self.home.local_stores().open("topic-id", 0) if batch.found == "in use by another" else None
        after = self.fold(batch)
        if after is not None:
            self.version = after
            self.oracle = {**{k: v for k, v in self.oracle.items() if k not in batch.removes}, **batch.puts}
        self.check()
        if holder is not None:
            holder.close()
            self.check()

    def fold(self, batch: Batch) -> StateVersion | None:
        """Fold as a task does; return None if it dies before the commit."""
        with self.home.open(self.version) as state:
            drop(*batch.removes)(state)
            put(batch.puts)(state)
            if batch.dies == "before the file":
                return None
            writer = StateFileWriter.open(self.home.durable)
            after = state.write(writer, self.version.next_offset + 1)
            writer.close()
            if batch.dies == "before the local store":
                return None
            state.publish_local()
        return None if batch.dies == "before the commit" else after

    def find(self, found: str) -> None:
        """Put the local store into the condition in which the batch finds it."""
        if found == "none":
            shutil.rmtree(self.home.local_root, ignore_errors=True)
        if found == "of another boot":
            self.home.boot = OTHER_BOOT if self.home.boot != OTHER_BOOT else Home.boot
        if found == "an earlier one" and self.saved is not None and self.home.store_files():
            shutil.copy(self.saved, self.home.store_files()[0])
        if found == "as left" and self.home.store_files():
            self.saved = Path(shutil.copy(self.home.store_files()[0], self.home.durable.with_name("saved")))

    def check(self) -> None:
        assert self.home.values(self.version, [*SESSIONS, "unknown"]) == self.oracle


BATCHES = st.builds(
    Batch,
    puts=st.dictionaries(st.sampled_from(SESSIONS), st.integers(0, 1 << 40), max_size=3),
    removes=st.lists(st.sampled_from(SESSIONS), max_size=2),
    dies=st.sampled_from(DIES),
    found=st.sampled_from(FOUND),
)


@given(batches=st.lists(BATCHES, max_size=12))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_state_is_what_was_committed(batches: list[Batch]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as small:
        small.setattr(changelog, "CHAIN_MAX", 6)
        small.setattr(changelog, "BLOCK_BYTES", 700)
        home = Home(Path(folder) / "state", Path(folder) / "hot")
        run = Run(home, home.start())
        for batch in batches:
            run.step(batch)
        shutil.rmtree(home.local_root, ignore_errors=True)
        run.check()


class Killed(BaseException):
    """The end of the process."""


def killed_after_two(blocks: Iterator[list[Change]]) -> Iterator[list[Change]]:
    yield from islice(blocks, 2)
    raise Killed


def test_a_local_store_left_between_two_blocks_of_its_rebuild_is_rebuilt(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block is a separate transaction: under the stamp of the last block it would count as the whole state."""
    monkeypatch.setattr(changelog, "BLOCK_BYTES", 1)
    version = home.batch(home.start(), put({"a": 1, "b": 2, "c": 3}))
    assert version.segment is not None
    blocks = read_segment(home.durable, version.segment, version).blocks()
    store = home.local_stores().open("topic-id", 0)
    stamp = store.stamp()
    assert stamp is not None
    store.reset()
    with pytest.raises(Killed):
        apply_stamped(store, killed_after_two(blocks), stamp)
    store.close()
    assert home.restored(version).kind is RestoreKind.REBUILT
    assert home.values(version, ["a", "b", "c"]) == {"a": 1, "b": 2, "c": 3}
