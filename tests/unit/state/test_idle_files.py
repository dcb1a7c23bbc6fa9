"""Files of local stores that a process leaves open: others may use, change, replace or remove them meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lockstep.state import local_store_pool
from lockstep.state.changelog import RestoreKind, StateVersion
from lockstep.state.local_store import StoreFile, StoreLock
from lockstep.state.local_store_pool import IdleFiles
from lockstep.state.restore import LocalStateUnusable
from tests.unit.state.home import Home, put

VALUES = {f"session-{number}": number for number in range(50)}


@pytest.fixture
def kept(home: Home) -> Home:
    """Return a machine on which this process leaves the files open."""
    home.idle = IdleFiles()
    return home


def count_opened(home: Home, version: StateVersion) -> int:
    """Return the number of files that the next use of a partition opens."""
    opened = list[Path | None]()

    class Counted(StoreFile):
        def __init__(self, path: Path | None, lock: StoreLock | None, scratch: Path | None = None) -> None:
            opened.append(path)
            super().__init__(path, lock, scratch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_store_pool, "StoreFile", Counted)
        home.values(version, ["session-7"])
    return len(opened)


def test_a_file_is_opened_once(kept: Home) -> None:
    version = kept.batch(kept.start(), put(VALUES))
    for value in range(3):
        version = kept.batch(version, put({"session-7": value}))
        assert kept.restored(version).kind is RestoreKind.CURRENT
        assert count_opened(kept, version) == 0
    assert kept.values(version, list(VALUES)) == VALUES | {"session-7": 2}
    assert len(kept.idle) == 1


def test_files_below_a_folder_are_closed(kept: Home) -> None:
    version = kept.batch(kept.start(), put(VALUES))
    kept.idle.close_below(kept.durable)
    assert count_opened(kept, version) == 0
    kept.idle.close_below(kept.local_root.parent)
    assert len(kept.idle) == 0
    assert count_opened(kept, version) == 1


OTHER = """
import sys
from pathlib import Path
from lockstep.model.position import SegmentRef
from lockstep.state.changelog import StateVersion
from tests.unit.state.home import Home, put
import msgspec
home = Home(Path(sys.argv[1]), Path(sys.argv[2]))
version = msgspec.json.decode(sys.argv[3], type=StateVersion)
for number in range(200):
    version = home.batch(version, put({f"session-{number % 50}": 1_000 + number, f"new-{number}": number}))
print(msgspec.json.encode(version).decode())
"""


def go_on_elsewhere(home: Home, version: StateVersion) -> StateVersion:
    """Fold batches of the partition in another process, which uses and changes the same file."""
    arguments = [str(home.durable), str(home.local_root), msgspec.json.encode(version).decode()]
    command = [sys.executable, "-c", OTHER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return msgspec.json.decode(done.stdout, type=StateVersion)


def test_what_another_process_has_changed_meanwhile_is_seen(kept: Home) -> None:
    version = kept.batch(kept.start(), put(VALUES))
    for _ in range(2):
        version = go_on_elsewhere(kept, version)
        assert kept.restored(version).kind is RestoreKind.CURRENT
        expected = {f"session-{number}": 1_150 + number for number in range(50)}
        assert kept.values(version, [*VALUES, "new-199"]) == expected | {"new-199": 199}
        version = kept.batch(version, put({"session-7": 7}))
        assert kept.values(version, ["session-7", "session-8"]) == {"session-7": 7, "session-8": 1_158}


def test_a_lock_is_free_while_its_file_is_idle(kept: Home) -> None:
    version = kept.batch(kept.start(), put(VALUES))
    before = kept.store_files()[0].read_bytes()
    go_on_elsewhere(kept, version)
    assert kept.store_files()[0].read_bytes() != before  # otherwise a private store was used


def lose_lock(home: Home) -> None:
    next(home.local_root.rglob("*.lock")).unlink()


def lose_file(home: Home) -> None:
    home.store_files()[0].unlink()


def lose_folder(home: Home) -> None:
    shutil.rmtree(home.local_root)


def replace_file(home: Home) -> None:
    (copy,) = home.store_files()
    content = copy.read_bytes()
    copy.unlink()
    copy.write_bytes(content)


def shorten_file(home: Home) -> None:
    (copy,) = home.store_files()
    os.truncate(copy, copy.stat().st_size // 2)


def die_twice(home: Home) -> None:
    next(home.local_root.rglob("*.lock")).write_bytes(b"\2")


CURRENT = RestoreKind.CURRENT
REBUILT = RestoreKind.REBUILT
CHANGES = [
    (lose_lock, CURRENT),
    (lose_file, REBUILT),
    (lose_folder, REBUILT),
    (replace_file, CURRENT),
    (shorten_file, REBUILT),
    (die_twice, REBUILT),
]


@pytest.mark.parametrize(("change", "kind"), CHANGES)
def test_what_has_become_of_a_file_is_seen(kept: Home, change: Callable[[Home], None], kind: RestoreKind) -> None:
    version = kept.batch(kept.start(), put(VALUES))
    change(kept)
    assert kept.restored(version).kind is kind
    version = kept.batch(version, put({"session-7": 700}))
    assert kept.values(version, list(VALUES)) == VALUES | {"session-7": 700}
    assert len(kept.store_files()) == 1
    assert next(kept.local_root.rglob("*.lock")).read_bytes() == b"\0"


def test_a_lock_is_free_after_an_error(kept: Home) -> None:
    version = kept.batch(kept.start(), put(VALUES))
    (copy,) = kept.store_files()
    copy.unlink()
    copy.mkdir()  # cannot be read
    with pytest.raises(LocalStateUnusable):
        kept.values(version, ["session-7"])
    copy.rmdir()
    assert kept.values(version, list(VALUES)) == VALUES
    assert len(kept.idle) == 1  # a private store would not be idle


def test_a_forked_process_does_not_share_the_locks_of_its_parent(kept: Home) -> None:
    version = kept.batch(kept.start(), put(VALUES))
    (ready, tell), (wait, end) = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.close(end)
        is_private = kept.local_stores().open("topic-id", 0).is_private
        os.write(tell, b"0" if is_private else b"1")
        os.read(wait, 1)
        os._exit(0)
    assert os.read(ready, 1) == b"1"  # the child has the lock
    assert kept.local_stores().open("topic-id", 0).is_private
    os.close(end)
    assert os.waitpid(child, 0)[1] == 0
    for handle in (ready, tell, wait):
        os.close(handle)
    assert kept.values(version, list(VALUES)) == VALUES


def count_handles(home: Home) -> int:
    """Return the number of open handles of files on the machine's local disk."""
    found = (os.path.realpath(handle) for handle in Path("/proc/self/fd").iterdir())
    return sum(path.startswith(str(home.local_root)) for path in found)


def test_the_number_of_open_files_is_bounded(home: Home) -> None:
    home.idle = IdleFiles(files_max=5)
    home.stores_max = 7
    for _ in range(2):
        pool = home.local_stores()
        stores = [pool.open("topic-id", partition) for partition in range(12)]
        assert sum(store.is_open for store in stores) + len(home.idle) <= 7
        assert count_handles(home) <= 7 * local_store_pool.HANDLES_EACH
        for store in stores:
            store.close()
        assert len(home.idle) == 5
        assert 5 <= count_handles(home) <= 5 * local_store_pool.HANDLES_EACH
    while home.idle.close_first():
        pass
    assert count_handles(home) == 0


def test_a_file_that_is_large_or_was_not_used_for_long_is_closed(kept: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    version = kept.batch(kept.start(), put(VALUES))
    monkeypatch.setattr(local_store_pool, "IDLE_SECONDS", 0.0)
    assert count_opened(kept, version) == 1
    monkeypatch.undo()
    assert count_opened(kept, version) == 0
    monkeypatch.setattr(local_store_pool, "IDLE_BYTES_MAX", 1_000)
    kept.values(version, [])
    kept.values(version, ["session-7"])
    assert len(kept.idle) == 0
