"""A local store is used only by one process at a time, only in its boot, and only as it was written."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.boot import read_boot_id
from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.operations.doctor.machine import check_local_root
from lockstep.state import local_store_pool
from lockstep.state.changelog import RestoreKind, StateFileWriter, StateVersion
from lockstep.state.entry_order import sort_changes
from lockstep.state.local_store import (
    KeyCollision,
    LocalStore,
    LocalStoreCorrupt,
    StoreFile,
    find_whole_file,
)
from lockstep.state.local_store_pool import (
    STORE_VERSION,
    STORES_MAX,
    UNUSED_SECONDS,
    IdleFiles,
    LocalStorePool,
    compute_stores_max,
)
from lockstep.state.restore import LocalStateUnusable
from tests.support.small_disk import SmallDisk
from tests.unit.state.home import OTHER_BOOT, Home, put

VALUES = {f"session-{number}": number for number in range(50)}


def filled(home: Home) -> StateVersion:
    version = home.batch(home.start(), put(VALUES))
    return home.batch(version, put({"session-7": 700}))


def expected() -> dict[str, int]:
    return VALUES | {"session-7": 700}


def test_a_copy_of_the_same_state_is_used_as_it_is(home: Home) -> None:
    restored = home.restored(filled(home))
    assert (restored.kind, restored.segments) == (RestoreKind.CURRENT, 0)


def test_an_earlier_copy_is_rolled_forward_by_what_it_misses(home: Home) -> None:
    version = home.batch(home.start(), put(VALUES))
    earlier = home.store_files()[0].read_bytes()
    for value in (1, 2, 3):
        version = home.batch(version, put({"session-7": value}))
    home.store_files()[0].write_bytes(earlier)
    restored = home.restored(version)
    assert (restored.kind, restored.segments) == (RestoreKind.ROLLED_FORWARD, 3)
    assert home.values(version, list(VALUES)) == VALUES | {"session-7": 3}


def test_a_copy_of_a_batch_that_was_not_committed_is_rebuilt(home: Home) -> None:
    version = filled(home)
    home.batch(version, put({"session-7": 666, "session-8": 666, "never": 666}))
    assert home.restored(version).kind is RestoreKind.REBUILT
    assert home.values(version, [*VALUES, "never"]) == expected()


def test_a_copy_is_emptied_for_an_empty_state(home: Home) -> None:
    filled(home)
    version = home.batch(home.start(), put({"other": 1}))
    assert home.values(version, [*VALUES, "other"]) == {"other": 1}


def test_a_store_that_was_not_used_for_a_week_is_removed_and_one_in_use_is_not(home: Home) -> None:
    """It is of a topic that is gone; if the topic returns, it is restored from the durable files."""
    versions = [home.batch(home.start(partition), put(VALUES)) for partition in range(3)]
    long_ago = time.time() - UNUSED_SECONDS - 60
    with home.open(versions[1]) as used:
        used.load("session-7")
        for partition in (0, 1):
            os.utime(next(home.local_root.rglob(f"*-{partition}.lock")), (long_ago, long_ago))
        dataclasses.replace(home, idle=IdleFiles(files_max=0)).local_stores()  # as a new process
        assert sorted(path.name[-6:] for path in home.local_root.rglob("*.l*")) == [
            "1.lmdb",
            "1.lock",
            "2.lmdb",
            "2.lock",
        ]
    assert home.values(versions[0], list(VALUES)) == VALUES


def test_unused_stores_are_looked_for_once_an_hour(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []
    monkeypatch.setattr(local_store_pool, "delete_unused_stores", lambda folder, _: looks.append(folder))
    for _ in range(3):
        home.local_stores()
    monkeypatch.setattr(local_store_pool, "SWEEP_SECONDS", 0.0)
    home.local_stores()
    assert len(looks) == 2


def test_a_copy_of_another_boot_is_not_used_and_is_removed(home: Home) -> None:
    version = filled(home)
    (home.local_root / "keep me").mkdir()
    home.boot = OTHER_BOOT
    assert home.restored(version).kind is RestoreKind.REBUILT
    assert home.values(version, list(VALUES)) == expected()
    assert sorted(path.name for path in home.local_root.iterdir()) == [f"boot-{OTHER_BOOT}", "keep me"]


def test_stores_of_two_streams_lie_apart(home: Home) -> None:
    version = filled(home)
    other = Home(home.durable.with_name("other"), home.local_root)
    filled(other)
    assert home.restored(version).kind is RestoreKind.CURRENT
    assert len(home.store_files()) == 2


def test_nothing_stays_on_a_system_without_boots(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lockstep.boot._BOOT_ID", tmp_path / "none")
    home.boot = ""
    version = filled(home)
    assert home.values(version, list(VALUES)) == expected()
    assert read_boot_id() is None
    assert not home.local_root.exists()


def test_this_kernel_names_its_boot() -> None:
    assert read_boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_on_a_full_disk_a_private_store_elsewhere_serves_and_with_room_one_is_kept_again(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "hot", tmp_path / "disk.log", megabytes=1) as disk:
        disk.fill()
        local_stores = LocalStorePool(disk.seen, tmp_path / "state", boot=OTHER_BOOT)
        with closing(local_stores.open("topic-id", 0)) as store:
            assert store.is_private
        disk.empty()
        with closing(local_stores.open("topic-id", 0)) as store:
            assert not store.is_private


def test_a_topic_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    folder = LocalStorePool(tmp_path / "hot", tmp_path / "state", boot=OTHER_BOOT)
    folder.open("../../../outside", 0).close()
    inside = [path for path in tmp_path.rglob("*outside*") if path.is_file()]
    assert len(inside) == 2
    assert all(path.is_relative_to(tmp_path / "hot" / f"boot-{OTHER_BOOT}" / f"v{STORE_VERSION}") for path in inside)


def test_nobody_else_may_write_to_the_folders_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        LocalStorePool(tmp_path / "hot" / "state", tmp_path / "durable", boot=OTHER_BOOT).open("topic-id", 0).close()
    finally:
        os.umask(before)
    made = {path.name: stat.filemode(path.stat().st_mode) for path in (tmp_path / "hot", *tmp_path.rglob("hot/**/*"))}
    assert {mode[1:] for name, mode in made.items() if not name.startswith("topic-id")} == {"rwx------"}
    assert {mode for name, mode in made.items() if name.startswith("topic-id")} == {"-rw-------"}


def test_a_folder_that_another_user_made_in_a_shared_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    durable = tmp_path / "durable"
    theirs = shared / "lockstep"
    theirs.mkdir(parents=True)
    shared.chmod(0o1777)
    LocalStorePool(theirs / "state", durable, boot=OTHER_BOOT).open("topic-id", 0).close()
    if os.geteuid() == 0:
        os.chown(theirs, 12_345, 12_345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(EnvironmentProblem, match=f"{theirs} belongs to another user"):
        LocalStorePool(theirs / "state", durable, boot=OTHER_BOOT)
    (diagnosis,) = check_local_root(theirs)
    assert diagnosis.next_step == "set local_root to a folder of the user that runs lockstep"


def test_a_local_root_that_this_user_cannot_write_is_named_before_it_is_used() -> None:
    """For a folder of root in `/tmp`, a run must not end with a Java stack, nor the doctor ask for rights to it."""
    said = subprocess.run([sys.executable, "-c", CANNOT_WRITE], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.splitlines() == [
        "/root-only/lockstep/state cannot be written by this user (uid 12345): / is another user's, or read-only",
        "set local_root to a folder of the user that runs lockstep",
    ]


CANNOT_WRITE = """
import os
from pathlib import Path
from lockstep.operations.doctor.machine import check_local_root
if os.geteuid() == 0:
    os.setuid(12_345)
os.geteuid = lambda: 12_345
(found,) = check_local_root(Path("/root-only/lockstep/state"))
print(found.found, found.next_step, sep="\\n")
"""

HOLD = """
import sys
from pathlib import Path
from tests.unit.state.home import Home
home = Home(Path(sys.argv[1]), Path(sys.argv[2]))
copy = home.local_stores().open("topic-id", 0)
print("private" if copy.is_private else "held", flush=True)
sys.stdin.read()
copy.close()
"""


def test_while_another_process_uses_a_copy_a_private_one_serves(home: Home) -> None:
    version = filled(home)
    command = [sys.executable, "-c", HOLD, str(home.durable), str(home.local_root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        before = home.store_files()[0].read_bytes()
        later = home.batch(version, put({"session-9": 900}))
        assert home.restored(later).kind is RestoreKind.REBUILT
        assert home.values(later, list(VALUES)) == expected() | {"session-9": 900}
        assert home.store_files()[0].read_bytes() == before
        other.communicate("")
    assert home.restored(later).kind is RestoreKind.ROLLED_FORWARD


def test_a_lock_ends_with_its_process(home: Home) -> None:
    version = filled(home)
    command = [sys.executable, "-c", HOLD, str(home.durable), str(home.local_root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    assert home.restored(version).kind is RestoreKind.CURRENT


def test_a_copy_that_two_uses_in_a_row_died_with_is_made_anew(home: Home) -> None:
    version = filled(home)
    lock = next(home.local_root.rglob("*.lock"))
    for deaths, kind in ((0, RestoreKind.CURRENT), (1, RestoreKind.CURRENT), (2, RestoreKind.REBUILT)):
        lock.write_bytes(bytes([deaths]))
        assert home.restored(version).kind is kind
        assert lock.read_bytes() == b"\0"


DAMAGES = {
    "empty": lambda data: data[:0],
    "one byte": lambda data: data[:1],
    "only the first page": lambda data: data[:4096],
    "only the meta pages": lambda data: data[:8192],
    "half": lambda data: data[: len(data) // 2],
    "one page short": lambda data: data[:-4096],
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: bytes(range(256)) * (len(data) // 256),
    "another file": lambda data: b"PK" + data[2:],
    "zeros behind the meta pages": lambda data: data[:8192] + bytes(len(data) - 8192),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_copy_is_rebuilt_without_a_word(home: Home, damage: Callable[[bytes], bytes]) -> None:
    version = filled(home)
    copy = home.store_files()[0]
    copy.write_bytes(damage(copy.read_bytes()))
    assert home.values(version, [*VALUES, "unknown"]) == expected()
    assert home.restored(version).kind is RestoreKind.CURRENT


def test_a_whole_file_fits_and_one_cut_short_does_not(home: Home) -> None:
    filled(home)
    copy = home.store_files()[0]
    assert find_whole_file(copy) is not None
    copy.write_bytes(copy.read_bytes()[:-1])
    assert find_whole_file(copy) is None


FLIP = """
import os, sys
from pathlib import Path
from tests.unit.state.test_local_store import VALUES, expected, filled
from tests.unit.state.home import Home

home = Home(Path(sys.argv[1]), Path(sys.argv[2]))
version = filled(home)
copy, lock = home.store_files()[0], next(home.local_root.rglob("*.lock"))
good, wrong, rebuilt, died = copy.read_bytes(), 0, 0, 0

def attempt():
    pid = os.fork()
    if pid == 0:
        try:
            right = home.values(version, [*VALUES, "unknown"]) == expected()
            os._exit(0 if right else 3)
        except BaseException:
            os._exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

for position in range(0, len(good), 211):
    damaged = bytearray(good)
    damaged[position] ^= 1 << position % 8
    copy.write_bytes(damaged)
    lock.write_bytes(b"\\0")
    for _ in range(3):
        code = attempt()
        died += code < 0
        if code >= 0:
            break
    wrong += code != 0
    rebuilt += copy.read_bytes() != bytes(damaged)
print(wrong, rebuilt, died)
"""


def test_a_flipped_bit_is_harmless_or_found_within_three_attempts(home: Home) -> None:
    """The reads run in separate processes: a damaged tree may kill its reader, as it may kill a worker."""
    command = [sys.executable, "-c", FLIP, str(home.durable), str(home.local_root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    wrong, rebuilt, _ = map(int, done.stdout.split())
    assert wrong == 0
    assert rebuilt > 0


def _close(store: LocalStore) -> None:
    store.file.close()


KEYS = st.sampled_from([b"", b"a", b"ab", b"b", b"\xf9a\xff", b"x" * 510, b"x" * 511, b"y" * 600])
VALUE = st.binary(max_size=3)


@given(stored=st.dictionaries(KEYS, VALUE), changes=st.dictionaries(KEYS, st.none() | VALUE))
def test_items_after_changes_are_those_of_a_store_with_the_changes(
    stored: dict[bytes, bytes], changes: dict[bytes, bytes | None]
) -> None:
    store = LocalStore(StoreFile(None, None), _close)
    store.apply(list(stored.items()), b"stamp")
    ahead = list(store.items(sort_changes(list(changes.items()))))
    store.apply(list(changes.items()), b"stamp")
    after = list(store.items())
    store.close()
    assert after == ahead == sort_changes(after)
    assert dict(after) == {key: value for key, value in (stored | changes).items() if value is not None}


def test_keys_out_of_order_are_found_behind_changes_too(tmp_path: Path) -> None:
    path = tmp_path / "copy"
    store = LocalStore(StoreFile(path, None), _close)
    store.apply([(b"first", b"1"), (b"other", b"2")], None)
    store.close()
    swapped = path.read_bytes().replace(b"kfirst", b"*").replace(b"kother", b"kfirst").replace(b"*", b"kother")
    path.write_bytes(swapped)
    store = LocalStore(StoreFile(path, None), _close)
    with pytest.raises(LocalStoreCorrupt, match="out of order"):
        list(store.items([(b"first", b"3"), (b"other", b"4")]))
    store.close()


def test_two_sessions_with_one_hash_are_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "x" * 600
    other = "y" * 600
    version = home.batch(home.start(), put({long: 1, other: 2}))
    monkeypatch.setattr("lockstep.state.local_store.make_store_key", lambda _: b"h" + bytes(32))
    home.store_files()[0].unlink()
    with pytest.raises(LocalStateUnusable, match="have the same hash") as raised:
        home.values(version, [long, other])
    assert isinstance(raised.value, LockstepError)
    assert isinstance(raised.value.__cause__, KeyCollision)


def test_a_local_folder_that_cannot_be_written_is_named(home: Home) -> None:
    version = filled(home)
    shutil.rmtree(home.local_root)
    home.local_root.write_text("a file in the way")
    with pytest.raises(LocalStateUnusable, match=r"(?s)Not a directory.*local_root"):
        home.values(version, ["session-1"])


def test_what_cannot_be_kept_hot_is_still_durable(home: Home) -> None:
    version = filled(home)
    with home.open(version) as state:
        put({"session-1": 100})(state)
        writer = StateFileWriter.open(home.durable)
        later = state.write(writer, 9)
        writer.close()
        state.close()
        shutil.rmtree(home.local_root)
        home.local_root.write_text("a file in the way")
        state.publish_local()
    home.local_root.unlink()
    assert home.values(later, list(VALUES)) == expected() | {"session-1": 100}


@pytest.mark.parametrize(("handles", "stores"), [(10, 1), (1_024, 256), (20_000, STORES_MAX), (-1, STORES_MAX)])
def test_open_stores_are_bounded_by_file_handles(handles: int, stores: int) -> None:
    assert compute_stores_max(handles) == stores


def test_a_lock_is_free_again_beside_a_forked_child(home: Home) -> None:
    store = home.local_stores().open("topic-id", 0)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        store.close()
        lock = os.open(next(home.local_root.rglob("*.lock")), os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(lock)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
