"""The door to stored files, on an object store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import PermissionDeniedError

from lockstep.errors import EnvironmentProblem
from lockstep.operations.doctor.diagnosis import Level
from lockstep.operations.doctor.object_store import check_object_store
from lockstep.storage import NeedsFileSystem, NotWritten, find_storage
from lockstep.storage import object_store as module

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.link import Link
    from tests.support.object_store import ObjectStore


def test_an_object_is_created_once_whoever_asks(prefix: Path) -> None:
    storage, wins = find_storage(prefix), list[tuple[Path, int]]()
    paths = [prefix / f"{number}.json" for number in range(100)]

    def create(racer: int) -> None:
        for path in paths:
            try:
                storage.create_whole(path, b"%d" % racer)
            except FileExistsError:
                continue
            wins.append((path, racer))

    with ThreadPoolExecutor(6) as racers:
        list(racers.map(create, range(6)))
    assert sorted(path for path, _ in wins) == sorted(paths)
    assert all(storage.read(path) == b"%d" % racer for path, racer in wins)


def test_objects_are_read_listed_moved_and_deleted_as_files_are(prefix: Path, object_store: ObjectStore) -> None:
    storage, folder = find_storage(prefix), prefix / "table"
    assert (storage.exists(folder), storage.list_names(folder), storage.get_status(folder / "a")) == (False, [], None)
    for name in ("a.json", "b-1.json", "_delta_log/0.json", "commit_hour=2026-01-01T00/rows é.parquet"):
        storage.create(folder / name, name.encode())
    storage.replace(folder / "a.json", b"0123456789")
    assert sorted(storage.list_names(folder)) == ["_delta_log", "a.json", "b-1.json", "commit_hour=2026-01-01T00"]
    assert storage.find_files(folder, "*.json") == [folder / "a.json", folder / "b-1.json"]
    assert [path.name for path in storage.find_files(folder, "commit_hour=*/*.parquet")] == ["rows é.parquet"]
    assert len(storage.find_files(folder, "**/*.json")) == 3
    assert {name: found.size for name, found in storage.walk_files(folder)}["a.json"] == 10
    assert storage.read_range(folder / "a.json", 8, 10) == b"89"
    assert storage.read_range(folder / "a.json", 10, 5) == storage.read_range(folder / "a.json", 2, 0) == b""
    storage.move(folder / "a.json", folder / "c.json")
    storage.copy(folder / "c.json", folder / "d.json")
    assert (storage.exists(folder / "a.json"), storage.read(folder / "d.json")) == (False, b"0123456789")
    assert (storage.delete(folder / "d.json"), storage.delete(folder / "d.json")) == (10, None)
    assert storage.exists(folder)
    storage.delete_folder(folder)
    assert not any(path.is_file() for path in object_store.find_file(folder).rglob("*"))


def test_a_pending_object_is_there_when_it_is_finished_and_an_abandoned_one_never(prefix: Path) -> None:
    storage, path = find_storage(prefix), prefix / "rows.parquet"
    content = bytes(range(256)) * 80_000  # in several parts
    pending = storage.open_pending(path)
    pending.sink.write(content)
    assert pending.is_open
    assert not storage.exists(path)
    assert (pending.finish(), pending.is_open) == (len(content), False)
    assert storage.read(path) == content
    abandoned = storage.open_pending(prefix / "never.parquet")
    abandoned.sink.write(b"x")
    abandoned.abandon()
    named = storage.open_pending(prefix / "begun.parquet")
    named.sink.write(b"abc")
    assert named.finish("named.parquet") == 3
    assert storage.list_names(prefix) == ["named.parquet", "rows.parquet"]
    paths = [prefix / f"{name}.parquet" for name in ("begun", "named", "never", "rows")]
    sizes = [None if status is None else status.size for status in storage.get_statuses(paths)]
    assert sizes == [None, 3, None, len(content)]
    assert storage.get_statuses([]) == []


def test_a_file_too_large_to_be_read_whole_is_read_by_parts(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, path = find_storage(prefix), prefix / "rows.parquet"
    rows, pending = pa.table({"number": range(1_000_000)}), storage.open_pending(path)
    pq.write_table(rows, pending.sink, row_group_size=100_000)
    size = pending.finish()
    for limit in (size, size - 1):
        monkeypatch.setattr(module, "READ_WHOLE_BYTES", limit)
        assert pq.read_metadata(storage.open_source(path)).num_rows == rows.num_rows
        with pq.ParquetFile(storage.open_source(path), pre_buffer=False) as parquet:
            assert parquet.read_row_group(7).equals(rows.slice(700_000, 100_000))


def test_a_request_is_repeated_whose_answer_breaks_off(prefix: Path, link: Link) -> None:
    """Whichever it is: each answer breaks off, until none does."""
    storage, large = find_storage(prefix), bytes(9_000_000)

    asked: tuple[tuple[Callable[[], object], object], ...] = (
        (lambda: storage.replace(prefix / "table" / "small", b"small"), None),
        (lambda: upload(prefix / "large", large), len(large)),
        (lambda: storage.read(prefix / "large") == large, True),
        (lambda: storage.read_range(prefix / "large", 9, 5), bytes(5)),
        (lambda: cast("pa.NativeFile", storage.open_source(prefix / "large")).read() == large, True),
        (lambda: sorted(storage.list_names(prefix)), ["large", "table"]),
        (lambda: sorted(name for name, _ in storage.walk_files(prefix)), ["large", "table/small"]),
        (lambda: storage.exists(prefix / "table"), True),
        (lambda: storage.copy(prefix / "large", prefix / "copy"), None),
        (lambda: storage.delete(prefix / "copy"), len(large)),
        (lambda: storage.delete_folder(prefix / "table"), None),
        (lambda: storage.list_names(prefix), ["large"]),
        (lambda: storage.get_status(prefix / "none"), None),
    )
    for ask, answer in asked:
        link.breaks_each = 1
        threading.Timer(0.3, setattr, (link, "breaks_each", 0)).start()
        assert ask() == answer


def test_an_upload_is_complete_where_the_answer_to_its_end_breaks_off(prefix: Path, link: Link) -> None:
    """It then has no parts any more, and its end cannot be repeated."""
    content = bytes(20_000_000)
    link.breaks_each = 6  # after the begin, and four parts
    assert upload(prefix / "large", content) == len(content)
    link.breaks_each = 0
    assert find_storage(prefix).read(prefix / "large") == content


def upload(path: Path, content: bytes) -> int:
    pending = find_storage(path).open_pending(path)
    pending.sink.write(content)
    return pending.finish()


def test_errors_are_those_of_files_and_name_the_object(prefix: Path) -> None:
    storage, path = find_storage(prefix), prefix / "none.json"
    for act in (storage.read, lambda asked: storage.read_range(asked, 0, 1)):
        with pytest.raises(FileNotFoundError) as missing:
            act(path)
        assert missing.value.filename == f"s3://{'/'.join(path.parts[1:])}"
    with pytest.raises(FileNotFoundError):
        pq.read_metadata(storage.open_source(path))
    storage.create(path)
    with pytest.raises(FileExistsError):
        storage.create_whole(path, b"again")
    with pytest.raises(OSError, match="NoSuchBucket"):
        find_storage(Path("s3:/no-such-bucket/x")).list_names(Path("s3:/no-such-bucket/x"))


def test_what_an_object_store_lacks_is_refused_by_name(prefix: Path) -> None:
    storage = find_storage(prefix)
    storage.create(prefix / "folder" / "file")
    for act in (
        lambda: storage.move(prefix / "folder", prefix / "other"),
        lambda: storage.lock(prefix / "lock"),
        lambda: storage.point(prefix / "current", prefix / "folder"),
    ):
        with pytest.raises(NeedsFileSystem, match="object store"):
            act()


def test_the_doctor_tries_a_store_and_finds_one_that_lets_two_writers_win(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {found.level for found in check_object_store(prefix)} == {Level.OK}
    assert find_storage(prefix).list_names(prefix) == []
    put = obstore.put

    def put_over(*given: Any, mode: str = "overwrite", **how: Any) -> object:
        del mode
        return put(*given, **how)

    monkeypatch.setattr(obstore, "put", put_over)
    wrong = {found.check for found in check_object_store(prefix) if found.level is Level.ERROR}
    assert wrong == {"exclusive creation"}


def test_a_store_that_refuses_or_is_gone_is_named(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionDeniedError("<Code>AccessDenied</Code><Message>no right</Message>")

    monkeypatch.setattr(obstore, "put", refuse)
    with pytest.raises(NotWritten, match="AccessDenied: no right"):
        find_storage(prefix).create_whole(prefix / "0.json", b"")
    monkeypatch.setattr(module, "S3Store", refuse)
    with pytest.raises(EnvironmentProblem, match="AWS_REGION"):
        find_storage(Path("s3:/another-bucket/x"))
