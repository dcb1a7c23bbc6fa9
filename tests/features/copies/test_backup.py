"""A backup during housekeeping is complete or absent."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from deltalake import DeltaTable

from lockstep.errors import LockstepError
from lockstep.features.copies import backup
from lockstep.features.copies.backup import BackupManifest, BackupOvertaken, make_backup, restore_backup
from lockstep.features.copies.copied_files import (
    CopyDamaged,
    CopyInProgress,
    copy_file,
    lock_copy,
    read_manifest,
    write_manifest,
)
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.table import delta_log, torn_entry
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.quarantine import QuarantineRow, write_quarantine
from tests.support.protocol_run import ProtocolRun, folders_in, stored_offsets

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

AGE_SECONDS = 3 * 3600.0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    """Forty batches, written some hours ago."""
    run = ProtocolRun(folders_in(tmp_path_factory.mktemp("written")))
    run.claim()
    for _ in range(40):
        run.batch(full=True)
    for path in run.folders.root.rglob("*"):
        os.utime(path, (time.time() - AGE_SECONDS,) * 2)
    return run


@pytest.fixture
def idle(written: ProtocolRun, tmp_path: Path) -> ProtocolRun:
    """A copy of those batches."""
    return written.copied(tmp_path / "tables")


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call a function before the first file is copied."""
    copy = backup._copy  # noqa: SLF001  # before the first copy

    def copy_after(*arguments: Any) -> Any:
        monkeypatch.setattr(backup, "_copy", copy)
        act()
        return copy(*arguments)

    monkeypatch.setattr(backup, "_copy", copy_after)


def test_a_log_that_is_cleaned_up_while_it_is_copied_is_no_backup(
    idle: ProtocolRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, lambda: run_housekeeping(idle.folders, retention_seconds=72 * 3600.0))
    with pytest.raises(BackupOvertaken, match=r"the log of ledger up to version \d+ is not whole"):
        make_backup(idle.folders, tmp_path / "copy")
    make_backup(idle.folders, tmp_path / "copy")
    restored = folders_in(tmp_path / "restored")
    restore_backup(restored, tmp_path / "copy")
    assert stored_offsets(restored) == stored_offsets(idle.folders)


def test_a_log_that_does_not_go_back_to_the_moment_any_more_is_no_backup(
    idle: ProtocolRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_on() -> None:
        for _ in range(5):
            idle.batch(full=True)
        write_checkpoint(idle.folders.table)
        for version in delta_log.list_versions(idle.folders.table)[:-1]:
            delta_log.make_entry_path(idle.folders.table, version).unlink()

    meanwhile(monkeypatch, go_on)
    with pytest.raises(BackupOvertaken, match=r"a log was cleaned up|is not whole"):
        make_backup(idle.folders, tmp_path / "copy")


def test_a_moment_is_of_one_batch_whatever_is_committed_while_it_is_chosen(
    idle: ProtocolRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start cannot bring side tables forward that are two batches behind the head."""
    find = torn_entry.find_newest_version
    looks = list[object]()

    def find_and_go_on(table: Path) -> int | None:
        found = find(table)
        looks.append(table)
        if table == idle.folders.ledger and len(looks) < 8:
            for _ in range(2):
                idle.batch()
        return found

    monkeypatch.setattr(torn_entry, "find_newest_version", find_and_go_on)
    report = make_backup(idle.folders, tmp_path / "copy")
    assert report.batch == idle.head.batch > 40
    restored = folders_in(tmp_path / "restored")
    restore_backup(restored, tmp_path / "copy")
    assert stored_offsets(restored) == stored_offsets(idle.folders)


def test_batches_that_follow_each_other_faster_than_a_moment_is_chosen_are_no_backup(
    idle: ProtocolRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_held", lambda *_: 1)  # the side tables seem to end at batch 1
    with pytest.raises(BackupOvertaken, match=r"batches overtook \d+ attempts"):
        make_backup(idle.folders, tmp_path / "copy")


def test_a_stream_that_lacks_a_file_is_neither_planned_nor_copied(idle: ProtocolRun, tmp_path: Path) -> None:
    """The plan reports the missing file, and so does the backup before it copies any other file."""
    (gone, *_) = sorted(idle.folders.table.rglob("*.parquet"))
    gone.unlink()
    for plan_only in (True, False):
        with pytest.raises(BackupOvertaken, match=rf"1 files are missing: table/.*{gone.name}"):
            make_backup(idle.folders, tmp_path / "copy", plan_only=plan_only)
    assert list((tmp_path / "copy").rglob("*.parquet")) == []


def test_of_two_backups_to_one_folder_the_later_one_counts_on_no_file_that_the_earlier_deletes(
    idle: ProtocolRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_backup(idle.folders, tmp_path / "copy")

    def lock_late(folder: Path) -> AbstractContextManager[None]:
        """Finish another backup, after a clean-up, before this backup locks the folder."""
        monkeypatch.setattr(backup, "lock_copy", lock_copy)
        run_housekeeping(idle.folders, retention_seconds=72 * 3600.0)
        assert make_backup(idle.folders, folder).deleted
        return lock_copy(folder)

    monkeypatch.setattr(backup, "lock_copy", lock_late)
    make_backup(idle.folders, tmp_path / "copy")
    restored = folders_in(tmp_path / "restored")
    restore_backup(restored, tmp_path / "copy")
    assert stored_offsets(restored) == stored_offsets(idle.folders)


def test_a_folder_to_which_another_process_writes_is_left_alone(idle: ProtocolRun, tmp_path: Path) -> None:
    make_backup(idle.folders, tmp_path / "copy")
    before = sorted((tmp_path / "copy").rglob("*"))
    idle.batch()
    with lock_copy(tmp_path / "copy"), pytest.raises(CopyInProgress, match="another process writes to"):
        make_backup(idle.folders, tmp_path / "copy")
    assert sorted((tmp_path / "copy").rglob("*")) == before
    assert make_backup(idle.folders, tmp_path / "copy").batch == 41


def test_a_restore_that_a_backup_overtakes_says_so(
    idle: ProtocolRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_backup(idle.folders, tmp_path / "copy")

    def copy_late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(backup, "copy_file", copy_file)
        run_housekeeping(idle.folders, retention_seconds=72 * 3600.0)
        assert make_backup(idle.folders, tmp_path / "copy").deleted
        return copy_file(*arguments, **named)

    monkeypatch.setattr(backup, "copy_file", copy_late)
    restored = folders_in(tmp_path / "restored")
    with pytest.raises(CopyDamaged, match="a backup was made to it meanwhile"):
        restore_backup(restored, tmp_path / "copy")
    restore_backup(restored, tmp_path / "copy")
    assert stored_offsets(restored) == stored_offsets(idle.folders)


def test_a_file_that_has_changed_is_copied_again_though_it_is_as_large(idle: ProtocolRun, tmp_path: Path) -> None:
    """For example after a restore of the stream's folder from elsewhere."""
    make_backup(idle.folders, tmp_path / "copy")
    (path, *_) = sorted(idle.folders.table.rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[::-1])
    assert make_backup(idle.folders, tmp_path / "copy").copied_files == 1
    copy = tmp_path / "copy" / "files" / path.relative_to(idle.folders.root / idle.folders.stream)
    assert copy.read_bytes() == path.read_bytes()


def test_a_file_that_the_folder_has_lost_is_copied_again(idle: ProtocolRun, tmp_path: Path) -> None:
    make_backup(idle.folders, tmp_path / "copy")
    (gone, cut, *_) = sorted((tmp_path / "copy").rglob("*.parquet"))
    gone.unlink()
    cut.write_bytes(b"cut")
    assert make_backup(idle.folders, tmp_path / "copy").copied_files == 2
    restored = folders_in(tmp_path / "restored")
    restore_backup(restored, tmp_path / "copy")
    assert stored_offsets(restored) == stored_offsets(idle.folders)


def test_a_file_that_has_changed_in_the_folder_is_not_restored(idle: ProtocolRun, tmp_path: Path) -> None:
    make_backup(idle.folders, tmp_path / "copy")
    (path, *_) = sorted((tmp_path / "copy").rglob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    restored = folders_in(tmp_path / "restored")
    with pytest.raises(CopyDamaged, match="not as it was written"):
        restore_backup(restored, tmp_path / "copy")
    assert not restored.table.parent.exists()


def test_a_side_file_that_its_table_does_not_hold_yet_is_copied_or_there_is_no_backup(
    idle: ProtocolRun, tmp_path: Path
) -> None:
    row = QuarantineRow(
        generation=1, batch=41, topic_id="id", topic="t", partition=0, offset=80, session="s", cause="gap",
        expected="1", found="2", timestamp=None, key=b"k", value=b"v", value_bytes=1, headers=[],
    )  # fmt: skip
    file = write_quarantine(idle.folders.quarantine, [row], label="g1-e1-b41")
    idle.commit(msgspec.structs.replace(idle.prepared(), quarantine=(file,)))
    make_backup(idle.folders, tmp_path / "copy")
    restored = folders_in(tmp_path / "restored")
    restore_backup(restored, tmp_path / "copy")
    assert DeltaTable(restored.quarantine).to_pyarrow_table()["found"].to_pylist() == ["2"]
    (idle.folders.quarantine / file.path).unlink()
    with pytest.raises(BackupOvertaken, match=rf"1 files are missing: quarantine/{file.path}"):
        make_backup(idle.folders, tmp_path / "other copy")


@pytest.mark.parametrize("table", ["table", "ledger", "quarantine"])
def test_a_backup_without_the_log_of_a_table_is_not_restored(idle: ProtocolRun, tmp_path: Path, table: str) -> None:
    make_backup(idle.folders, tmp_path / "copy")
    document = read_manifest(tmp_path / "copy", BackupManifest)
    files = tuple(file for file in document.files if not file.path.startswith(f"{table}/_delta_log/"))
    assert len(files) < len(document.files)
    write_manifest(tmp_path / "copy", msgspec.structs.replace(document, files=files))
    restored = folders_in(tmp_path / "restored")
    with pytest.raises(CopyDamaged, match=f"{table}: its log is not whole"):
        restore_backup(restored, tmp_path / "copy")
    assert not restored.table.parent.exists()


def test_a_backup_whose_log_cannot_be_read_is_not_restored(idle: ProtocolRun, tmp_path: Path) -> None:
    """An earlier release may have written it."""
    make_backup(idle.folders, tmp_path / "copy")
    entry = f"ledger/_delta_log/{0:020d}.json"
    document = read_manifest(tmp_path / "copy", BackupManifest)
    files = tuple(file for file in document.files if "ledger/_delta_log" not in file.path or file.path == entry)
    assert len(files) < len(document.files)
    write_manifest(tmp_path / "copy", msgspec.structs.replace(document, files=files[:-1]))
    with pytest.raises(CopyDamaged):
        restore_backup(folders_in(tmp_path / "restored"), tmp_path / "copy")


@pytest.mark.parametrize("gone", ["", "table", "ledger", "state", "table/_delta_log"])
def test_a_table_that_vanishes_in_the_middle_is_a_named_error(
    idle: ProtocolRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    root = idle.folders.root / idle.folders.stream
    meanwhile(monkeypatch, lambda: shutil.rmtree(root / gone, ignore_errors=True))
    if gone == "state":  # this run has none
        assert make_backup(idle.folders, tmp_path / "copy").batch == 40
        return
    with pytest.raises(LockstepError):
        make_backup(idle.folders, tmp_path / "copy")
    assert not (tmp_path / "copy" / "manifest.json").exists()
