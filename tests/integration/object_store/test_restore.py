"""A backup and a savepoint in an object store, which cannot rename folders: restored completely or not at all."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.errors import TableError
from lockstep.features.copies import backup as backup_module
from lockstep.features.copies.backup import make_backup, restore_backup
from lockstep.features.copies.relocate import export_savepoint, import_savepoint
from lockstep.features.history.savepoint import make_savepoint
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.lifecycle import reset_new
from lockstep.operations.plan_frame import Refused
from lockstep.operations.stream_table import NoTable, open_table
from lockstep.storage import find_storage
from lockstep.storage.object_store import ObjectStorage
from lockstep.table import create
from lockstep.table.create import open_tables
from lockstep.table.delta_log import has_log
from lockstep.table.layout import StreamFolders
from tests.integration.object_store.conftest import assert_proven, rows
from tests.support.adding_stream import Reading
from tests.support.feed import folded, session
from tests.support.local_runs import read_in_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstep.storage import FileStatus
    from tests.integration.cli.conftest import Platform
    from tests.support.link import Link
    from tests.support.local_runs import LocalRuns

VALUES = session(9)


@pytest.fixture
def topic(made: Platform) -> str:
    """A topic whose first eight of ten messages are read in four batches."""
    topic = made.feed.create("values")
    read_in_batches(made.feed, made.runs, topic, VALUES[:8])
    return topic


@pytest.fixture
def backup(made: Platform, topic: str, tmp_path: Path) -> Path:  # noqa: ARG001  # it is read
    make_backup(made.runs.folders, tmp_path / "backup")
    return tmp_path / "backup"


@pytest.fixture
def elsewhere(made: Platform, prefix: Path) -> LocalRuns:
    """The same stream with another table root."""
    return dataclasses.replace(made.runs, root=made.folder / "elsewhere", tables=prefix / "elsewhere", reports=[])


def fold(values: list[bytes]) -> list[tuple[object, ...]]:
    return folded([(offset, "s", value) for offset, value in enumerate(values)])


def assert_goes_on(made: Platform, topic: str, runs: LocalRuns, since: int = 0) -> None:
    """Assert that the remaining messages are read, and that each row exists once."""
    made.feed.send(topic, VALUES[8:])
    runs.run()
    assert rows(runs, topic) == sorted((row for row in fold(VALUES) if int(str(row[0])) >= since), key=repr)
    assert_proven(runs)
    assert find_storage(runs.folders.root).list_names(runs.folders.root) == [runs.stream.name]


def test_a_restored_stream_goes_on(made: Platform, topic: str, backup: Path, elsewhere: LocalRuns) -> None:
    restore_backup(elsewhere.folders, backup)
    with pytest.raises(Refused, match="something already"):
        restore_backup(elsewhere.folders, backup)
    assert_goes_on(made, topic, elsewhere)


def test_a_stream_moves_from_a_folder_into_a_store_and_back(made: Platform, elsewhere: LocalRuns) -> None:
    topic = made.feed.create("values")
    for at, (name, tables) in enumerate((("folder", None), ("store", elsewhere.tables), ("back", None))):
        runs = dataclasses.replace(made.runs, root=made.folder / name, tables=tables, reports=[])
        if at:
            restore_backup(runs.folders, made.folder / f"backup{at - 1}")
        made.feed.send(topic, VALUES[3 * at : 3 * at + 3])
        runs.run()
        make_backup(runs.folders, made.folder / f"backup{at}")
        assert_proven(runs)
        assert rows(runs, topic) == sorted(fold(VALUES[: 3 * at + 3]), key=repr)


def test_an_imported_savepoint_goes_on(made: Platform, topic: str, elsewhere: LocalRuns, tmp_path: Path) -> None:
    make_savepoint(made.runs.folders, "now", who="ann", why="move")
    export_savepoint(made.runs.handle, "now", tmp_path / "savepoint")
    import_savepoint(elsewhere.handle, tmp_path / "savepoint", who="ann", why="move")
    assert_goes_on(made, topic, elsewhere, since=8)


class Killed(BaseException):
    """The process ends without cleanup."""


def is_first(target: Path) -> bool:
    return target.name.endswith((".parquet", ".state", ".json"))


def is_entry_of_the_table(target: Path) -> bool:
    return target.parent.parent.name == "table" and target.name.endswith(".json")


def is_first_entry_of_the_table(target: Path) -> bool:
    return is_entry_of_the_table(target) and target.name == f"{0:020d}.json"


def die_at(patch: pytest.MonkeyPatch, below: Path, at: Callable[[Path], bool]) -> None:
    """Kill the process before it writes an object below a folder; its cleanup fails too."""
    copy = ObjectStorage.copy
    create = ObjectStorage.create_whole

    def die(path: Path) -> None:
        if path.is_relative_to(below) and at(path):
            raise Killed

    def copying(self: ObjectStorage, path: Path, into: Path) -> None:
        die(into)
        copy(self, path, into)

    def creating(self: ObjectStorage, path: Path, content: bytes) -> None:
        die(path)
        create(self, path, content)

    def kill(*_: object) -> None:
        raise Killed

    patch.setattr(ObjectStorage, "copy", copying)
    patch.setattr(ObjectStorage, "create_whole", creating)
    for name in ("delete", "delete_folder"):
        patch.setattr(ObjectStorage, name, kill)


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(is_first, marks=pytest.mark.slow),
        is_entry_of_the_table,
        pytest.param(is_first_entry_of_the_table, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_seen_of_a_restore_that_was_killed_and_no_run_starts(
    made: Platform,
    topic: str,
    backup: Path,
    elsewhere: LocalRuns,
    monkeypatch: pytest.MonkeyPatch,
    at: Callable[[Path], bool],
) -> None:
    folders = elsewhere.folders
    with monkeypatch.context() as patch:
        die_at(patch, folders.table.parent, at)
        with pytest.raises(Killed):
            restore_backup(folders, backup)
    assert not has_log(folders.table)
    with pytest.raises(TableError, match="is being restored or imported"):
        elsewhere.run()
    with pytest.raises(TableError, match="is being restored or imported"):
        reset_new(elsewhere.stream.name, elsewhere.settings)
    with pytest.raises(NoTable, match="is being restored or imported"):
        open_table(folders)
    with pytest.raises(Refused, match="is being restored or imported, or that was killed"):
        restore_backup(folders, backup)
    find_storage(folders.root).delete_folder(folders.table.parent)
    restore_backup(folders, backup)
    assert_goes_on(made, topic, elsewhere)


def test_of_a_first_start_and_a_restore_at_the_same_time_none_mixes_its_files_with_the_other(
    made: Platform, topic: str, backup: Path, elsewhere: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start checks for a restore just before it, and creates its tables just after the restore's check."""
    walk = ObjectStorage.walk_files
    refuse = vars(create)["refuse_incoming"]
    looks = list[StreamFolders]()

    def refuse_the_second_time(folders: StreamFolders) -> None:
        looks.append(folders)
        if len(looks) > 1:
            refuse(folders)

    def start_meanwhile(self: ObjectStorage, folder: Path) -> Iterator[tuple[str, FileStatus]]:
        if ".restoring-" in str(folder) and not looks:
            with pytest.raises(TableError, match="is being restored or imported"):
                open_tables(elsewhere.folders, make_table_schema(Reading), elsewhere.cluster_id())
        return walk(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(create, "refuse_incoming", refuse_the_second_time)
        patch.setattr(ObjectStorage, "walk_files", start_meanwhile)
        with pytest.raises(Refused):
            restore_backup(elsewhere.folders, backup)
    assert len(looks) == 2
    assert find_storage(elsewhere.folders.root).list_names(elsewhere.folders.root) == []
    restore_backup(elsewhere.folders, backup)
    assert_goes_on(made, topic, elsewhere)


@pytest.mark.slow
def test_a_stream_that_started_just_before_a_restore_is_left_as_it_is(
    made: Platform, topic: str, backup: Path, elsewhere: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore finds no stream, and announces itself only after the run has claimed the table."""
    create_whole = ObjectStorage.create_whole

    def create_late(self: ObjectStorage, path: Path, content: bytes) -> None:
        if path == elsewhere.folders.incoming:
            monkeypatch.undo()
            ConsumerGroup(elsewhere.settings.kafka, elsewhere.stream.name).forget()
            elsewhere.run()
        create_whole(self, path, content)

    monkeypatch.setattr(ObjectStorage, "create_whole", create_late)
    with pytest.raises(Refused):
        restore_backup(elsewhere.folders, backup)
    assert_goes_on(made, topic, elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["incoming", "ledger/_delta_log/00000000000000000000.json"])
def test_a_restore_knows_what_it_has_created_itself(
    made: Platform,
    topic: str,
    backup: Path,
    elsewhere: LocalRuns,
    link: Link,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """The client repeats a request without an answer; `incoming` must not count as another restore's and stay."""
    create_whole = ObjectStorage.create_whole
    lost = list[Path]()

    def create_and_lose_the_answer(self: ObjectStorage, path: Path, content: bytes) -> None:
        if path == elsewhere.folders.table.parent / name:
            lost.append(path)
            link.breaks_each = 1
            threading.Timer(0.3, setattr, (link, "breaks_each", 0)).start()
        create_whole(self, path, content)

    monkeypatch.setattr(ObjectStorage, "create_whole", create_and_lose_the_answer)
    restore_backup(elsewhere.folders, backup)
    assert len(lost) == 1
    assert_goes_on(made, topic, elsewhere)


@pytest.mark.slow
def test_a_restore_to_a_stream_that_started_while_it_copied_does_not_keep_it_from_starting(
    made: Platform, topic: str, backup: Path, elsewhere: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore must not create `incoming`: after a kill, it would advise deleting a live stream's objects."""
    create_whole = ObjectStorage.create_whole
    open_logs = vars(backup_module)["_open_logs"]
    created = list[Path]()

    def record(self: ObjectStorage, path: Path, content: bytes) -> None:
        created.append(path)
        create_whole(self, path, content)

    def start_meanwhile(drafted: StreamFolders, source: Path) -> object:
        ConsumerGroup(elsewhere.settings.kafka, elsewhere.stream.name).forget()
        elsewhere.run()
        opened: object = open_logs(drafted, source)
        return opened

    monkeypatch.setattr(ObjectStorage, "create_whole", record)
    monkeypatch.setattr(backup_module, "_open_logs", start_meanwhile)
    with pytest.raises(Refused, match="something already"):
        restore_backup(elsewhere.folders, backup)
    assert elsewhere.folders.incoming not in created
    assert_goes_on(made, topic, elsewhere)


def test_of_two_restores_the_slower_one_is_refused_and_does_not_call_the_backup_damaged(
    made: Platform, topic: str, backup: Path, elsewhere: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faster restore deletes the other draft, as after a kill."""
    open_logs = vars(backup_module)["_open_logs"]

    def restore_meanwhile(drafted: StreamFolders, source: Path) -> object:
        monkeypatch.setattr(backup_module, "_open_logs", open_logs)
        restore_backup(elsewhere.folders, backup)
        opened: object = open_logs(drafted, source)
        return opened

    monkeypatch.setattr(backup_module, "_open_logs", restore_meanwhile)
    with pytest.raises(Refused, match="something already"):
        restore_backup(elsewhere.folders, backup)
    assert_goes_on(made, topic, elsewhere)


@pytest.mark.slow
def test_a_restore_whose_objects_an_operator_has_deleted_leaves_the_stream_that_began_since(
    made: Platform, topic: str, backup: Path, elsewhere: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator considers the slow restore dead and deletes its objects; then the stream starts."""
    walk = ObjectStorage.walk_files
    starts = list[Path]()

    def start_meanwhile(self: ObjectStorage, folder: Path) -> Iterator[tuple[str, FileStatus]]:
        if ".restoring-" in str(folder) and not starts:
            starts.append(folder)
            self.delete_folder(elsewhere.folders.table.parent)
            ConsumerGroup(elsewhere.settings.kafka, elsewhere.stream.name).forget()
            open_tables(elsewhere.folders, make_table_schema(Reading), elsewhere.cluster_id())
        return walk(self, folder)

    monkeypatch.setattr(ObjectStorage, "walk_files", start_meanwhile)
    with pytest.raises(Refused):
        restore_backup(elsewhere.folders, backup)
    assert has_log(elsewhere.folders.table)
    elsewhere.run()
    assert_goes_on(made, topic, elsewhere)


def test_a_first_start_notices_that_a_restore_has_deleted_its_tables(
    made: Platform, topic: str, backup: Path, elsewhere: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore announces itself after the start's first check, and has ended at its second check."""
    make: Callable[..., None] = create.create_table
    walk = ObjectStorage.walk_files
    made_tables = list[Path]()

    def make_amid_a_restore(folder: Path, *given: object, **named: object) -> None:
        def make_now(self: ObjectStorage, of: Path) -> Iterator[tuple[str, FileStatus]]:
            if ".restoring-" in str(of):
                make(folder, *given, **named)
            return walk(self, of)

        made_tables.append(folder)
        if len(made_tables) > 1:
            make(folder, *given, **named)
            return
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStorage, "walk_files", make_now)
            with pytest.raises(Refused):
                restore_backup(elsewhere.folders, backup)

    with monkeypatch.context() as patch:
        patch.setattr(create, "create_table", make_amid_a_restore)
        with pytest.raises(TableError, match="deleted meanwhile"):
            open_tables(elsewhere.folders, make_table_schema(Reading), elsewhere.cluster_id())
    ConsumerGroup(elsewhere.settings.kafka, elsewhere.stream.name).forget()
    elsewhere.run()
    assert_goes_on(made, topic, elsewhere)
