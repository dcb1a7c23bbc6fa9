"""A stream is copied while it writes, restored elsewhere and continued there; a killed copy is not a backup."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Limits
from lockstep.features.compaction.run import compact_stream
from lockstep.features.copies import backup
from lockstep.features.copies.backup import (
    BackupManifest,
    BackupOvertaken,
    make_backup,
    restore_backup,
)
from lockstep.features.copies.copied_files import CopyDamaged, CopyInProgress, lock_copy, read_manifest
from lockstep.features.copies.relocate import export_savepoint, read_export
from lockstep.features.history.savepoint import make_savepoint
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.plan_frame import Refused
from lockstep.operations.repair import repair_stream
from lockstep.operations.stream_table import NoTable
from lockstep.verify.verify import verify_stream
from tests.integration.cli.conftest import platform_in
from tests.support.feed import folded, session, update

if TYPE_CHECKING:
    from lockstep.features.localdev.broker import Broker
    from lockstep.table.layout import StreamFolders
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

ROOT = Path(__file__).parents[3]


def elsewhere(runs: LocalRuns, folder: Path) -> LocalRuns:
    """Return the same stream with another table root."""
    return dataclasses.replace(runs, root=folder, reports=[])


def assert_proven(runs: LocalRuns) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes)


def test_a_second_backup_copies_what_is_new_and_a_restored_stream_goes_on(broker: Broker, tmp_path: Path) -> None:
    made = platform_in(tmp_path, broker)
    target = tmp_path / "copies"
    topic = made.feed.create("values")
    made.feed.send(topic, session(3))
    made.runs.run()
    first = msgspec.json.decode(made.call("backup", "adding", str(target), "--json").stdout)
    made.feed.send(topic, [update(5, a=1), update(6, b=1)])
    made.runs.run()
    planned = msgspec.json.decode(made.call("backup", "adding", str(target), "--plan", "--json").stdout)
    second = make_backup(made.runs.folders, target)
    assert planned["copied_files"] == second.copied_files == second.files - first["files"]
    assert make_backup(made.runs.folders, target).copied_files == 0

    other = elsewhere(made.runs, tmp_path / "new")
    restored = restore_backup(other.folders, target)
    assert (restored.batch, restored.files) == (2, second.files)
    assert repair_stream(other.folders, apply=False).whole
    assert_proven(other)
    made.feed.send(topic, [update(7, a=2)])
    other.run()
    values = [*session(3), update(5, a=1), update(6, b=1), update(7, a=2)]
    assert other.rows(topic) == folded([(at, "s", value) for at, value in enumerate(values)])
    assert_proven(other)
    refused = made.call("restore", "adding", str(target), "--yes")
    assert refused.exit_code == 1
    assert "there is something already" in refused.stderr


@pytest.mark.slow
def test_each_backup_beside_a_writer_and_a_compaction_is_proven(feed: Feed, runs: LocalRuns, tmp_path: Path) -> None:
    topic = feed.create("values")
    feed.send(topic, session(200))
    writer = threading.Thread(target=runs.with_limits(Limits(batch_messages=4)).run)
    writer.start()
    taken = 0
    is_closed = False
    while writer.is_alive():
        try:
            copied = make_backup(runs.folders, tmp_path / "copy")
        except NoTable:  # not yet
            continue
        taken += 1
        if copied.batch >= 5 and not is_closed:
            is_closed = True
            close_hour(runs.folders)
            compact_stream(runs.folders)
        other = elsewhere(runs, tmp_path / f"restored-{taken}")
        restore_backup(other.folders, tmp_path / "copy")
        assert repair_stream(other.folders, apply=False).whole
        assert_proven(other)
        shutil.rmtree(other.root)
    writer.join()
    assert is_closed


@pytest.fixture
def copied(feed: Feed, runs: LocalRuns, tmp_path: Path) -> Path:
    """A backup of a stream with two batches."""
    topic = feed.create("values")
    for values in (session(3), [update(5, a=1)]):
        feed.send(topic, values)
        runs.run()
    make_backup(runs.folders, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_copy_that_is_not_whole_is_refused_by_name_and_leaves_nothing(copied: Path, runs: LocalRuns) -> None:
    other = elsewhere(runs, copied.parent / "new")
    data = next((copied / "files").glob("table/commit_hour=*/*.parquet"))
    kept = data.read_bytes()
    data.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(CopyDamaged, match=data.name):
        restore_backup(other.folders, copied)
    data.unlink()
    with pytest.raises(CopyDamaged, match="gone from the backup"):
        restore_backup(other.folders, copied)
    (copied / "manifest.json").unlink()
    with pytest.raises(CopyDamaged, match=r"there is no manifest\.json"):
        restore_backup(other.folders, copied)
    assert list((other.root / "tables").iterdir()) == []


def test_a_file_that_is_gone_from_the_backup_is_copied_again(copied: Path, runs: LocalRuns) -> None:
    lost = next((copied / "files").glob("table/commit_hour=*/*.parquet"))
    lost.unlink()
    assert make_backup(runs.folders, copied).copied_files == 1
    other = elsewhere(runs, copied.parent / "new")
    restore_backup(other.folders, copied)
    assert_proven(other)


def test_a_backup_does_not_replace_an_exported_savepoint(copied: Path, runs: LocalRuns) -> None:
    exported = copied.parent / "exported"
    make_savepoint(runs.folders, "move", who="ann", why="new disk")
    export_savepoint(runs.handle, "move", exported)
    with pytest.raises(CopyDamaged, match="not that of a backup") as refused:
        make_backup(runs.folders, exported)
    assert refused.value.next_step == "name another folder for adding: a backup deletes files that are not its own"
    assert read_export(exported, "adding").savepoint == "move"


def test_a_stream_that_lacks_a_file_is_not_backed_up_and_the_earlier_backup_stays(
    copied: Path, runs: LocalRuns
) -> None:
    before = (copied / "manifest.json").read_bytes()
    next(runs.folders.table.glob("commit_hour=*/*.parquet")).unlink()
    with pytest.raises(BackupOvertaken, match="1 files are missing"):
        make_backup(runs.folders, copied)
    with lock_copy(copied), pytest.raises(CopyInProgress), lock_copy(copied):
        raise AssertionError
    assert (copied / "manifest.json").read_bytes() == before
    with pytest.raises(Refused):
        restore_backup(runs.folders, copied)


@pytest.mark.slow
@pytest.mark.parametrize("files", [0, 3, 9])
@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_a_kill_leaves_nothing_that_passes_as_whole(copied: Path, runs: LocalRuns, verb: str, files: int) -> None:
    other = elsewhere(runs, copied.parent / "new")
    runs.run()
    before = read_manifest(copied, BackupManifest)
    (runs.folders.table / "commit_hour=2020-01-01T00").mkdir()
    for number in range(12):  # so that a backup has something to copy
        (runs.folders.table / "commit_hour=2020-01-01T00" / f"orphan-{number}.parquet").write_bytes(b"x")
    root = runs.folders.root if verb == "backup" else other.folders.root
    program = KILLED.format(verb=verb, root=root, copy=copied, files=files)
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if verb == "backup":
        assert read_manifest(copied, BackupManifest) == before
        restore_backup(other.folders, copied)
        assert repair_stream(other.folders, apply=False).whole
        make_backup(runs.folders, copied)
        assert not list(copied.rglob("*.partial"))
    else:
        assert not other.folders.table.parent.exists()
        restore_backup(other.folders, copied)
        assert [path.name for path in other.folders.root.iterdir()] == ["adding"]
    assert_proven(other)


KILLED = """
import os, signal
from pathlib import Path
from lockstep.features.copies import backup
from lockstep.table.layout import StreamFolders
copy, left = backup.copy_file, [{files}]
def copy_and_die(*args, **more):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return copy(*args, **more)
backup.copy_file = copy_and_die
folders = StreamFolders("adding", Path("{root}"))
backup.make_backup(folders, Path("{copy}")) if "{verb}" == "backup" else backup.restore_backup(folders, Path("{copy}"))
"""


def test_of_two_restores_one_ends_and_the_other_is_refused(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower restore is refused without a report of damage; the faster ends even if a draft cannot be deleted."""
    made = platform_in(tmp_path, broker)
    target = tmp_path / "copy"
    topic = made.feed.create("values")
    made.feed.send(topic, session(3))
    made.runs.run()
    make_backup(made.runs.folders, target)
    other = elsewhere(made.runs, tmp_path / "new")
    open_logs = vars(backup)["_open_logs"]
    rmtree = shutil.rmtree
    other.folders.root.mkdir(parents=True)

    def delete_and_fail(folder: Path) -> None:
        rmtree(folder)
        if folder == slower[0]:
            raise OSError(errno.ENOTEMPTY, "a file was added meanwhile", str(folder))

    def restore_meanwhile(drafted: StreamFolders, source: Path) -> object:
        slower.append(drafted.root)
        with monkeypatch.context() as patch:
            patch.setattr(backup, "_open_logs", open_logs)
            patch.setattr(shutil, "rmtree", delete_and_fail)
            assert restore_backup(other.folders, target).batch == 1
        opened: object = open_logs(drafted, source)
        return opened

    slower = list[Path]()
    monkeypatch.setattr(backup, "_open_logs", restore_meanwhile)
    with pytest.raises(Refused, match="something already"):
        restore_backup(other.folders, target)
    assert_proven(other)
