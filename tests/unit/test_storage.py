"""The storage of files, on a folder of this machine."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from lockstep.storage import FileStatus, LocalStorage, NotWritten, PendingFile, Scratch, find_storage, local
from tests.support.small_disk import SmallDisk

STORAGE = LocalStorage()


def test_a_file_is_created_once_whoever_asks(tmp_path: Path) -> None:
    path = tmp_path / "start-1.json"
    won = list[int]()

    def create(number: int) -> None:
        try:
            STORAGE.create(path, b"%d" % number)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [STORAGE.read(path)] == [b"%d" % number for number in won]


def test_a_full_disk_is_named_by_the_file_that_was_wanted_and_leaves_nothing(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", tmp_path / "disk.log", megabytes=1) as disk:
        STORAGE.create(disk.seen / "small.json")
        disk.fill()
        with pytest.raises(NotWritten) as refused:
            STORAGE.create_whole(disk.seen / "7.json", b"x" * 10_000)
        assert (refused.value.errno, refused.value.filename) == (errno.ENOSPC, str(disk.seen / "7.json"))
        with pytest.raises(OSError, match="No space left") as full:
            STORAGE.replace(disk.seen / "small.json", b"x" * 10_000)
        assert full.value.filename == str(disk.seen / "small.json")
        pending = STORAGE.open_pending(disk.seen / "rows.parquet")
        with pytest.raises(OSError, match="No space left") as full:
            write_and_finish(pending)
        assert full.value.filename == str(disk.seen / "rows.parquet")
        pending.abandon()
        disk.empty()
        assert not {"7.json", "rows.parquet"} & set(STORAGE.list_names(disk.seen))


def write_and_finish(pending: PendingFile) -> None:
    pending.sink.write(b"x" * 5_000)
    pending.finish()


def test_a_sync_that_fails_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = STORAGE.open_pending(tmp_path / "rows.parquet")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error") as broken:
        pending.finish()
    assert broken.value.filename == str(tmp_path / "rows.parquet")
    pending.abandon()


def refuse(descriptor: int) -> None:
    del descriptor
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_readers_see_the_old_or_the_new_content_and_no_draft_stays(tmp_path: Path) -> None:
    path = tmp_path / "control" / "liveness-1.json"
    stop = threading.Event()
    STORAGE.replace(path, b"0" * 10_000)
    seen = set[bytes]()

    def read() -> None:
        while not stop.is_set():
            seen.add(STORAGE.read(path))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        STORAGE.replace(path, b"%d" % (number % 10) * 10_000)
    stop.set()
    reader.join()
    assert {(len(content), len(set(content))) for content in seen} == {(10_000, 1)}
    assert STORAGE.list_names(path.parent) == [path.name]


def test_a_pending_file_is_whole_when_finished_in_a_folder_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "commit_hour=2026-01-01T00" / "rows.parquet"
    pending = STORAGE.open_pending(path)
    pending.sink.write(b"abc")
    pending.sink.write(b"def")
    assert (pending.is_open, pending.finish(), pending.is_open) == (True, 6, False)
    assert (STORAGE.read(path), STORAGE.read_range(path, 2, 3), STORAGE.read_range(path, 4, 9)) == (
        *(b"abcdef", b"cde", b"ef"),
    )
    pending.abandon()
    assert STORAGE.exists(path)


def test_a_pending_file_can_be_finished_under_another_name(tmp_path: Path) -> None:
    paths = [tmp_path / "begun.parquet", tmp_path / "none.parquet", tmp_path / "finished.parquet"]
    pending = STORAGE.open_pending(paths[0])
    pending.sink.write(b"abc")
    assert (pending.finish("finished.parquet"), STORAGE.read(paths[2])) == (3, b"abc")
    sizes = [None if status is None else status.size for status in STORAGE.get_statuses(paths)]
    assert sizes == [None, None, 3]


def test_every_folder_that_is_made_for_a_file_has_its_name_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = set[Path]()
    monkeypatch.setattr(local, "_sync", synced.add)
    STORAGE.open_pending(tmp_path / "a=1" / "b=2" / "c=3" / "d=4" / "one.parquet").finish()
    folders = [tmp_path / "a=1", tmp_path / "a=1" / "b=2", tmp_path / "a=1" / "b=2" / "c=3"]
    assert synced == {tmp_path, *folders, folders[-1] / "d=4"}


def test_an_abandoned_file_is_gone_and_a_used_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pending = STORAGE.open_pending(path)
    pending.sink.write(b"abc")
    with pytest.raises(FileExistsError):
        STORAGE.open_pending(path)
    pending.abandon()
    assert not STORAGE.exists(path)


def test_what_is_absent_is_told_apart_from_what_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "none"
    for read in (STORAGE.read, STORAGE.sync, lambda path: STORAGE.read_range(path, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read(path)
    with pytest.raises(FileNotFoundError):
        STORAGE.move(path, tmp_path / "other")
    assert (STORAGE.get_status(path), STORAGE.delete(path), STORAGE.list_names(path)) == (None, None, [])
    STORAGE.create(path)
    assert (STORAGE.read(path), STORAGE.delete(path), STORAGE.exists(path)) == (b"", 0, False)


def test_files_are_listed_sorted_moved_and_counted(tmp_path: Path) -> None:
    for name in ("b/2.state", "a/1.state", "a/1.other"):
        STORAGE.replace(tmp_path / name, name.encode())
    assert STORAGE.find_files(tmp_path, "*/*.state") == [tmp_path / "a/1.state", tmp_path / "b/2.state"]
    STORAGE.move(tmp_path / "a/1.state", tmp_path / "b/1.state")
    assert sorted(STORAGE.list_names(tmp_path / "b")) == ["1.state", "2.state"]
    path = tmp_path / "b" / "1.state"
    assert STORAGE.get_status(path) == FileStatus(9, path.stat().st_mtime)
    assert find_storage(path).uri(path) == str(path)


def test_a_folder_is_deleted_although_another_deletion_was_faster_at_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two deletions could stop at a file that the other had deleted, and files would stay."""
    rmtree = shutil.rmtree
    calls = list[Path]()

    def overtaken(folder: Path) -> None:
        calls.append(folder)
        if len(calls) == 1:
            raise FileNotFoundError(folder / "1")
        rmtree(folder)

    monkeypatch.setattr(shutil, "rmtree", overtaken)
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "2").write_bytes(b"2")
    find_storage(tmp_path).delete_folder(tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


def test_scratch_leaves_no_name_behind_while_its_pages_are_still_read(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "local")
    with scratch.open_file("spill-") as (file, path):
        with file, pa.ipc.new_file(file, pa.schema({"n": pa.int64()})) as writer:
            writer.write_table(pa.table({"n": range(1000)}))
        with pa.memory_map(str(path)) as mapped:
            rows = pa.ipc.open_file(mapped).read_all()
    assert list(scratch.folder.iterdir()) == []
    assert rows["n"].to_pylist() == list(range(1000))
    with pytest.raises(ZeroDivisionError), scratch.open_file("spill-"):
        raise ZeroDivisionError
    assert list(scratch.folder.iterdir()) == []


def test_a_file_is_created_whole_by_one_of_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    storage = find_storage(tmp_path)

    def create(content: bytes) -> bool:
        try:
            storage.create_whole(path, content * 10_000)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, (b"a", b"b", b"c", b"d")))
    assert won.count(True) == 1
    assert path.read_bytes() == b"abcd"[won.index(True) :][:1] * 10_000
    assert list(tmp_path.iterdir()) == [path]
