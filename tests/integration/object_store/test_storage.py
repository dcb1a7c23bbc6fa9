"""Access to stored files in an object store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import PermissionDeniedError

from lockstep.errors import EnvironmentProblem, StoreFailed, StoreRefused
from lockstep.features.copies.copied_files import copy_file
from lockstep.features.localdev.processes import find_free_ports
from lockstep.operations.doctor.diagnosis import Level
from lockstep.operations.doctor.object_store import check_object_store
from lockstep.storage import NeedsFileSystem, NotWritten, find_storage
from lockstep.storage import object_store as module
from lockstep.store_clients import repeat_unanswered
from lockstep.verify.files import find_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.link import Link
    from tests.support.object_store import ObjectStore


def test_an_object_is_created_once_whoever_asks(prefix: Path) -> None:
    storage = find_storage(prefix)
    wins = list[tuple[Path, int]]()
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
    storage = find_storage(prefix)
    folder = prefix / "table"
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
    storage = find_storage(prefix)
    path = prefix / "rows.parquet"
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
    storage = find_storage(prefix)
    path = prefix / "rows.parquet"
    rows = pa.table({"number": range(1_000_000)})
    pending = storage.open_pending(path)
    pq.write_table(rows, pending.sink, row_group_size=100_000)
    size = pending.finish()
    for limit in (size, size - 1):
        monkeypatch.setattr(module, "READ_WHOLE_BYTES", limit)
        assert pq.read_metadata(storage.open_source(path)).num_rows == rows.num_rows
        with pq.ParquetFile(storage.open_source(path), pre_buffer=False) as parquet:
            assert parquet.read_row_group(7).equals(rows.slice(700_000, 100_000))


def test_a_request_is_repeated_whose_answer_breaks_off(prefix: Path, link: Link) -> None:
    """Answers to each kind of request break off for 0.3 s."""
    storage = find_storage(prefix)
    large = bytes(9_000_000)

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
    """The store then no longer has the parts of the upload, so the request for its end cannot be repeated."""
    content = bytes(20_000_000)
    link.breaks_each = 6  # after the start and four parts
    assert upload(prefix / "large", content) == len(content)
    link.breaks_each = 0
    assert find_storage(prefix).read(prefix / "large") == content


def test_a_refusal_is_an_answer_although_the_request_was_repeated_before_it(caplog: pytest.LogCaptureFixture) -> None:
    """The client's error states the number of its retries; the refused request must not be repeated for it."""
    asked = list[str]()
    for answer in (FileExistsError, StoreRefused):

        def ask(refusal: type[OSError] = answer) -> None:
            asked.append(refusal.__name__)
            raise refusal(17, "refused", "s3://bucket/object") from OSError(
                "PUT after 1 retries, max_retries: 100, retry_timeout: 3s"
            )

        with pytest.raises(answer):
            repeat_unanswered(ask, wait_seconds=60)
    assert (asked, caplog.messages) == (["FileExistsError", "StoreRefused"], [])


def test_requests_for_several_files_are_sent_at_the_same_time(prefix: Path) -> None:
    """Answers arrive in the order of the files, with an error in the place of its file."""
    storage = find_storage(prefix)
    first = threading.Barrier(8)
    last = threading.Barrier(8)

    def read(number: int) -> bytes:
        if number < 8:
            first.wait(120)
        elif number >= 32:
            last.wait(120)
        return storage.read(prefix / str(number))

    for number in range(40):
        storage.create(prefix / str(number), b"%d" % number)
    assert list(storage.map_files(read, range(40))) == [b"%d" % number for number in range(40)]
    answers = storage.map_files(storage.read, [prefix / "1", prefix / "none", prefix / "2"])
    assert next(answers) == b"1"
    with pytest.raises(FileNotFoundError, match="none"):
        next(answers)


def test_files_are_deleted_by_one_request_for_a_thousand(prefix: Path, object_store: ObjectStore, link: Link) -> None:
    """Single deletions take two requests each, and an hour of a stream leaves three thousand files."""
    storage = find_storage(prefix)
    folder = object_store.find_file(prefix / "log")
    folder.mkdir(parents=True)
    paths = [prefix / "log" / f"{number}.json" for number in range(2_100)]
    for number in range(2_100):
        (folder / f"{number}.json").write_bytes(b"x" * (number % 3))
    assert len(storage.list_names(prefix / "log")) == len(list(storage.walk_files(prefix))) == 2_100
    link.asked.clear()
    sizes = storage.delete_files([prefix / "none", *paths[:100]])
    assert sizes == [None, *(number % 3 for number in range(100))]
    assert sum(not line.startswith("HEAD") for line in link.asked) == 1
    link.asked.clear()
    storage.delete_folder(prefix / "log")
    assert sum(line.startswith("POST") for line in link.asked) == 2
    assert storage.list_names(prefix / "log") == []
    assert storage.delete_files([]) == []


def test_a_file_is_copied_by_a_look_and_a_request_for_each_piece(prefix: Path, tmp_path: Path, link: Link) -> None:
    content = bytes(range(256)) * 8192
    for size, requests in ((0, 3), (1000, 2), (len(content), 2)):
        find_storage(prefix).replace(prefix / "file", content[:size])
        link.asked.clear()
        copied = copy_file(prefix / "file", tmp_path / "file")
        assert (copied.size, (tmp_path / "file").read_bytes()) == (size, content[:size])
        assert len(link.asked) <= requests, link.asked


def test_arrows_client_keeps_its_connections(prefix: Path, link: Link) -> None:
    """Each new connection would need a TLS handshake."""
    find_storage(prefix).create(prefix / "a", b"abc")
    link.connections = 0
    assert [find_size(prefix / "a") for _ in range(10)] == [3] * 10
    assert link.connections == 1


def upload(path: Path, content: bytes) -> int:
    pending = find_storage(path).open_pending(path)
    pending.sink.write(content)
    return pending.finish()


def test_errors_are_those_of_files_and_name_the_object(prefix: Path) -> None:
    storage = find_storage(prefix)
    path = prefix / "none.json"
    for act in (storage.read, lambda asked: storage.read_range(asked, 0, 1)):
        with pytest.raises(FileNotFoundError) as missing:
            act(path)
        assert missing.value.filename == f"s3://{'/'.join(path.parts[1:])}"
    with pytest.raises(FileNotFoundError):
        pq.read_metadata(storage.open_source(path))
    storage.create(path)
    with pytest.raises(FileExistsError):
        storage.create_whole(path, b"again")
    nowhere = Path("s3:/no-such-bucket/x")
    for ask in (find_storage(nowhere).list_names, find_storage(nowhere).create, find_storage(nowhere).read):
        with pytest.raises(StoreFailed, match=r"NoSuchBucket.*\n.*create the bucket, or correct table_root"):
            ask(nowhere)


def test_a_store_that_refuses_the_credentials_says_which(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        with monkeypatch.context() as patched:
            patched.setenv(variable, "wrong")
            storage = module.ObjectStorage(prefix.parts[1])
        asked: tuple[Callable[[Path], object], ...] = (
            storage.get_status,
            storage.list_names,
            storage.read,
            storage.create,
            storage.delete_folder,
        )
        for ask in asked:
            with pytest.raises(PermissionError, match="AWS_ACCESS_KEY_ID"):
                ask(prefix)
        with pytest.raises(NotWritten):
            storage.create_whole(prefix / "0.json", b"")


def test_a_store_that_does_not_answer_is_named_and_waited_for(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = find_free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setitem(module.RETRIES, "retry_timeout", timedelta(seconds=0.1))
    with pytest.raises(StoreFailed, match=rf"HEAD http://127\.0\.0\.1:{port}/.*\n.*AWS_ENDPOINT_URL"):
        module.ObjectStorage(prefix.parts[1], wait_seconds=0).get_status(prefix)
    assert caplog.messages == []
    with pytest.raises(StoreFailed):
        module.ObjectStorage(prefix.parts[1], wait_seconds=2).get_status(prefix)
    (warning,) = caplog.messages
    assert "no answer yet" in warning


def test_an_endpoint_without_tls_is_refused_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    with pytest.raises(EnvironmentProblem, match="AWS_ALLOW_HTTP=true"):
        find_storage(Path("s3:/one-more-bucket/x"))


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
