"""Housekeeping deletes only files that cannot be needed: readers, rewinds and writers continue."""

from __future__ import annotations

import errno
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from deltalake import DeltaTable

from lockstep.control.heartbeat import RUN_FILE
from lockstep.errors import TableError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.copies.copied_files import PARTIAL
from lockstep.features.history.savepoint import make_savepoint
from lockstep.features.retention import housekeeping
from lockstep.features.retention.housekeeping import (
    HousekeepingFailed,
    HousekeepingResult,
    find_replaced_data_files,
    run_housekeeping,
)
from lockstep.operations.repair import repair_stream
from lockstep.storage import LocalStorage
from lockstep.table import checkpoint, delta_log, ledger
from lockstep.table.commit import OLDEST_FILE_SECONDS, OutputLog, raise_rewind_floor
from lockstep.table.parquet import list_named_files
from tests.support.protocol_run import ProtocolRun, folders_in, stored_offsets

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.layout import StreamFolders

DAY = 24 * 3600.0
RETENTION = 3 * DAY
BATCHES, BATCH_SECONDS = 60, 4 * 3600.0
"""Ten days of batches, six per day."""
FLOOR = int(BATCHES - RETENTION // BATCH_SECONDS + 2)
"""The first batch younger than the retention."""


@pytest.fixture(scope="module")
def ten_days(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    """Ten days of batches with due log checkpoints; the files are as old as their batches."""
    made = ProtocolRun(folders_in(tmp_path_factory.mktemp("ten-days")))
    made.claim()
    set_age(set(every_file(made.folders)), BATCHES * BATCH_SECONDS)
    for number in range(BATCHES):
        began = set(every_file(made.folders))
        made.batch(full=True)
        for table in (made.folders.table, made.folders.ledger):
            checkpoint.write_checkpoint_if_due(table, delta_log.list_versions(table)[-1])
        made.clock += timedelta(seconds=BATCH_SECONDS)
        set_age(set(every_file(made.folders)) - began, (BATCHES - number) * BATCH_SECONDS)
    return made


@pytest.fixture
def run(ten_days: ProtocolRun, tmp_path: Path) -> ProtocolRun:
    return ten_days.copied(tmp_path / "copy")


def every_file(folders: StreamFolders) -> list[Path]:
    return [path for path in (folders.root / folders.stream).rglob("*") if path.is_file()]


def set_age(files: set[Path], seconds: float) -> None:
    then = time.time() - seconds
    for path in files:
        os.utime(path, (then, then))


def keep(run: ProtocolRun, *, seconds: float = RETENTION, plan_only: bool = False) -> HousekeepingResult:
    return run_housekeeping(run.folders, retention_seconds=seconds, plan_only=plan_only)


def files_of(done: HousekeepingResult) -> dict[str, int]:
    return {step.step: step.files for step in done.steps}


def test_the_log_keeps_what_the_retention_needs_and_each_version_of_it_can_be_loaded(run: ProtocolRun) -> None:
    versions = delta_log.list_versions(run.folders.table)
    done = keep(run)
    left = delta_log.list_versions(run.folders.table)
    assert files_of(done)["log of table"] == len(versions) + 1 - len(left) + 1  # one more by the floor; a checkpoint
    assert done.rewind_floor == FLOOR
    for batch in range(done.rewind_floor, BATCHES + 1):
        head = delta_log.find_head_of_batch(run.folders.table, batch)
        assert head is not None
        assert DeltaTable(run.folders.table, version=head.batch_version).version() == head.batch_version
    assert left[0] > versions[0]


def test_drafts_of_entries_that_killed_processes_left_go_and_young_ones_stay(run: ProtocolRun) -> None:
    log = run.folders.table / "_delta_log"
    old = {log / f".{99:020d}.json.{'ab' * 16}.tmp", log / f"{99:020d}.json#1"}
    young = log / f".{100:020d}.json.{'cd' * 16}.tmp"
    for draft in (*old, young):
        draft.write_bytes(b"{}")
    set_age(old, 2 * housekeeping.RECENT_SECONDS)

    keep(run)

    assert {draft for draft in (*old, young) if draft.exists()} == {young}


def test_the_stream_goes_on_after_it(run: ProtocolRun) -> None:
    before = stored_offsets(run.folders)
    known = ledger.read_positions(run.folders, run.output.base().head)
    keep(run)
    assert (stored_offsets(run.folders), ledger.read_positions(run.folders, run.output.base().head)) == (before, known)
    successor = ProtocolRun(run.folders)
    successor.claim()
    successor.clock = run.clock
    successor.batch()
    assert len(stored_offsets(run.folders)) == len(before) + 2
    checks = repair_stream(run.folders, apply=False).checks
    assert {check.condition for check in checks if check.check != "state"} == {"ok"}


def test_a_plan_deletes_nothing_and_says_what_a_run_deletes(run: ProtocolRun) -> None:
    before = every_file(run.folders)
    head = run.output.base()
    planned = keep(run, plan_only=True)
    assert (every_file(run.folders), run.output.base()) == (before, head)
    done = keep(run)
    assert sum(files_of(planned).values()) in {sum(files_of(done).values()) - more for more in (0, 1)}
    assert sum(files_of(planned).values()) > 0  # a run first writes a log checkpoint and may delete one more file
    assert sum(files_of(keep(run)).values()) == 0


def test_a_run_that_died_in_the_middle_leaves_a_log_that_can_be_read(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored_offsets(run.folders)
    left = [5]

    class Killed(BaseException):
        """Simulates kill -9."""

    def delete(storage: LocalStorage, path: Path) -> int:
        del storage
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        path.unlink()
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete", delete)
        with pytest.raises(Killed):
            keep(run)
    assert stored_offsets(run.folders) == before
    keep(run)
    assert stored_offsets(run.folders) == before


def test_data_files_that_compaction_replaced_go_after_the_retention(run: ProtocolRun) -> None:
    before = stored_offsets(run.folders)
    compact_stream(run.folders)  # nothing to compact: one file per hour
    assert files_of(keep(run))["replaced data files"] == 0
    for file in {*run.folders.table.rglob("rows-*.parquet")}:
        orphan = file.with_name(f"rows-{'0' * 31}{len(file.name) % 10}.parquet")
        orphan.write_bytes(file.read_bytes())
        age = time.time() - file.stat().st_mtime
        set_age({orphan}, age)
    old = (BATCHES - FLOOR + 1) * BATCH_SECONDS + OLDEST_FILE_SECONDS
    expected = sum(1 for number in range(BATCHES) if (BATCHES - number) * BATCH_SECONDS >= old)
    assert files_of(keep(run))["replaced data files"] == expected
    assert stored_offsets(run.folders) == before
    assert stored_offsets_at(run, keep(run).rewind_floor) == before[: 2 * keep(run).rewind_floor]


def stored_offsets_at(run: ProtocolRun, batch: int) -> list[int]:
    head = delta_log.find_head_of_batch(run.folders.table, batch)
    assert head is not None
    table = DeltaTable(run.folders.table, version=head.batch_version).to_pyarrow_table()
    return sorted(int(str(offset)) for offset in table.column("_offset").to_pylist())


def test_files_that_are_live_at_the_floor_stay_although_compaction_replaced_them(tmp_path: Path) -> None:
    made = ProtocolRun(folders_in(tmp_path))
    made.claim()
    for number in range(6):
        if number == 3:
            made.clock += timedelta(hours=1)
        made.batch(full=True)
    set_age(set(every_file(made.folders)), 30 * DAY)
    small = set(made.folders.table.rglob("rows-*.parquet"))
    assert compact_stream(made.folders).files_before == 3
    keep(made)  # the newest entry is from the compaction: no batch is as young, so the floor is the last batch
    assert set(made.folders.table.rglob("rows-*.parquet")) == small
    made.clock += timedelta(hours=1)
    made.batch(full=True)
    set_age({path for path in every_file(made.folders) if path.suffix == ".json"}, 30 * DAY)
    made.batch(full=True)
    keep(made)
    assert len(set(made.folders.table.rglob("rows-*.parquet"))) == len(small) - 3 + 2
    assert len(stored_offsets(made.folders)) == 16


def test_files_that_compaction_replaced_after_the_batch_of_the_floor_stay(tmp_path: Path) -> None:
    """No newer version names them, but a rewind to the floor restores that version."""
    made = ProtocolRun(folders_in(tmp_path))
    made.claim()
    for _ in range(3):
        made.batch(full=True)
    made.clock += timedelta(hours=1)
    made.batch(full=True)
    assert compact_stream(made.folders).files_before == 3
    made.head = made.output.base().head
    made.batch(full=True)
    set_age(set(made.folders.table.rglob("*.parquet")), 30 * DAY)
    floor = made.output.commit(raise_rewind_floor(made.head.generation, 4)).head
    assert find_replaced_data_files(made.folders, floor) == []
    past = made.output.commit(raise_rewind_floor(made.head.generation, 5)).head
    assert len(find_replaced_data_files(made.folders, past)) == 3


def test_files_that_a_rewind_brought_back_stay_until_the_floor_has_passed_it(tmp_path: Path) -> None:
    """Small files replaced by compaction are live only in the rewind's version, which a rewind may restore."""
    made = ProtocolRun(folders_in(tmp_path))
    made.claim()
    for _ in range(3):
        made.batch(full=True)
    made.clock += timedelta(hours=1)
    made.batch(full=True)
    assert compact_stream(made.folders).files_before == 3
    made.batch(full=True)
    made.rewind(2)
    made.rewind(5)
    assert [(each.batch, each.to_batch) for each in made.head.rewinds] == [(6, 2), (7, 5)]
    set_age(set(made.folders.table.rglob("*.parquet")), 30 * DAY)
    head = made.output.commit(raise_rewind_floor(made.head.generation, 5)).head
    for path in find_replaced_data_files(made.folders, head):
        path.unlink()
    assert stored_offsets_at(made, 6) == [0, 1, 2, 3]
    past = made.output.commit(raise_rewind_floor(made.head.generation, 7)).head
    gone = find_replaced_data_files(made.folders, past)
    assert {path.name for path in gone} == {path.name for path in live_at(made, 6)}


def live_at(run: ProtocolRun, batch: int) -> list[Path]:
    head = delta_log.find_head_of_batch(run.folders.table, batch)
    assert head is not None
    return [path for path, _ in list_named_files(run.folders.table, head.batch_version)]


def test_a_file_of_a_batch_under_way_stays(run: ProtocolRun) -> None:
    batch = run.prepared()
    keep(run)
    keep(run, seconds=1)
    run.forward(run.commit(batch).head)
    assert stored_offsets(run.folders)[-1] == 2 * BATCHES + 1


def test_what_a_commit_names_must_be_there(run: ProtocolRun) -> None:
    """A driver that slept for days between its tasks and its commit restarts from the last commit."""
    batch = run.prepared()
    gone = run.folders.state / "gone.state"
    with pytest.raises(TableError, match=f"{gone} is missing; nothing was committed"):
        run.commit(msgspec.structs.replace(batch, needs={gone: 10}))
    gone.parent.mkdir(exist_ok=True)
    gone.write_bytes(b"short")
    with pytest.raises(TableError, match="has 5 bytes, fewer than 10"):
        run.commit(msgspec.structs.replace(batch, needs={gone: 10}))
    run.commit(batch)


def test_a_savepoint_that_gets_no_checkpoint_on_a_full_disk_can_still_be_loaded(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_savepoint(run.folders, "before", who="a test", why="kept", at="7")
    (kept,) = run.output.base().head.savepoints
    rows = DeltaTable(run.folders.table, version=kept.version).file_uris()

    def fill_disk(table: Path, version: int | None = None) -> None:
        if version is not None:
            raise OSError(errno.ENOSPC, "No space left on device", str(table))
        checkpoint.write_checkpoint(table)

    with monkeypatch.context() as full:
        full.setattr(housekeeping, "write_checkpoint", fill_disk)
        with pytest.raises(HousekeepingFailed, match=r"log checkpoints of savepoints: .*No space left"):
            keep(run)
    assert DeltaTable(run.folders.table, version=kept.version).file_uris() == rows
    before = len(delta_log.list_versions(run.folders.table))
    keep(run)  # the disk has space again
    assert len(delta_log.list_versions(run.folders.table)) < before
    assert DeltaTable(run.folders.table, version=kept.version).file_uris() == rows


def test_a_step_that_fails_does_not_keep_the_others_from_their_work(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> list[Path]:
        raise OSError("the disk does not answer")

    monkeypatch.setattr(housekeeping, "find_replaced_data_files", broken)
    with pytest.raises(HousekeepingFailed, match="replaced data files: the disk does not answer") as failed:
        keep(run)
    assert files_of(failed.value.result)["log of table"] > 0


def test_entries_that_another_clean_up_deletes_meanwhile_are_no_obstacle(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = delta_log.list_versions
    floors = list[int]()

    def list_before(table: Path) -> list[int]:
        found = listed(table)
        if not floors:
            floors.append(0)
            floors[0] = keep(run).rewind_floor
            assert delta_log.list_versions(table)[0] > found[len(found) // 2], "nothing deleted that is looked at"
        return found

    monkeypatch.setattr(delta_log, "list_versions", list_before)
    assert keep(run).rewind_floor == floors[0] == FLOOR


def test_a_silent_stream_keeps_the_entry_that_its_head_stands_in(run: ProtocolRun) -> None:
    set_age(set(every_file(run.folders)), 400 * DAY)
    keep(run)
    assert OutputLog(run.folders.table).base().head.batch == BATCHES
    assert ProtocolRun(run.folders).claim().batch == BATCHES


def test_the_number_of_entries_is_bounded_whatever_the_retention(run: ProtocolRun) -> None:
    head = delta_log.find_head_since(run.folders.table, 0.0, entries_max=10)
    assert head is not None
    assert head.batch == BATCHES - 9


@pytest.mark.parametrize(
    "days", [pytest.param(3, id="three days"), pytest.param(30, id="a month", marks=pytest.mark.slow)]
)
def test_the_log_stays_as_short_as_the_retention_through_hourly_runs(tmp_path: Path, days: int) -> None:
    """The oldest checkpoint advances: newer checkpoints are kept until the floor reaches them.

    The retention is a day.
    """
    folder = tmp_path / "_delta_log"
    entries = 60
    needed = 24 * 60
    folder.mkdir()
    newest = 0
    longest = 0
    for _ in range(days * 24):
        for version in range(newest, newest + entries):
            delta_log.make_entry_path(tmp_path, version).touch()
        newest += entries
        for version in range(newest - entries, newest, 20):
            made = folder / f"{version:020d}.checkpoint.parquet"
            made.touch()
            set_age({made}, 2 * 3600.0)
        for path in list(housekeeping._due_entries(tmp_path, lambda: newest - needed)):  # noqa: B023, SLF001
            path.unlink()
        longest = max(longest, len(delta_log.list_versions(tmp_path)))
        left = delta_log.list_versions(tmp_path)
        assert left == list(range(left[0], newest))
        made_so_far = delta_log.list_checkpoints(tmp_path)
        assert left[0] == 0 or min(made_so_far) <= newest - needed
        assert len(made_so_far) <= 8  # also in the first days, when no checkpoint is old enough to be the base
    assert longest < 1.4 * needed


def test_signs_of_life_of_old_epochs_go(run: ProtocolRun) -> None:
    run.folders.control.mkdir(exist_ok=True)
    for _ in range(housekeeping.EPOCHS_KEPT + 5):
        run.claim()
        (run.folders.control / f"liveness-{run.head.epoch}.json").write_text("{}")
    keep(run)
    left = sorted(int(path.stem.partition("-")[2]) for path in run.folders.control.glob("liveness-*.json"))
    assert left == list(range(run.head.epoch - housekeeping.EPOCHS_KEPT, run.head.epoch + 1))


def test_what_dead_runs_and_killed_processes_left_goes_and_what_may_be_in_use_stays(run: ProtocolRun) -> None:
    folders = run.folders
    day = 2 * housekeeping.DEAD_SECONDS
    ages = {
        folders.control / f"{'ab' * 16}{RUN_FILE}": day,
        folders.control / "liveness-1.4711.1.tmp": day,
        folders.root / folders.stream / "quality" / "last_check.4711.1.tmp": day,
        folders.state / f"g1-e1-b1.state.{'cd' * 16}{PARTIAL}": day,
        folders.control / f"{'ef' * 16}{RUN_FILE}": housekeeping.RECENT_SECONDS,
        folders.control / "liveness-2.4711.1.tmp": 1.0,
        folders.state / f"g1-e1-b2.state.{'ef' * 16}{PARTIAL}": 1.0,
    }
    for path, seconds in ages.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"{}")
        set_age({path}, seconds)
    done = files_of(keep(run))
    assert (done["control files"], done["unfinished files"], done["partly copied files"]) == (1, 2, 1)
    assert [path.exists() for path in ages] == [seconds != day for seconds in ages.values()]


def put_dropped(run: ProtocolRun) -> Path:
    """Make the folder of a shadow whose deletion was killed."""
    folder = run.folders.root / ".old_shadow.dropped"
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "one.state").write_bytes(b"s1")
    return folder


def test_what_a_killed_deletion_of_a_shadow_left_goes_and_no_other_folder(run: ProtocolRun) -> None:
    dropped = put_dropped(run)
    other = run.folders.root / ".Backup.dropped"
    other.mkdir()
    planned = keep(run, plan_only=True)
    assert (files_of(planned)["dropped shadows"], dropped.exists()) == (1, True)
    assert files_of(keep(run))["dropped shadows"] == 1
    assert (dropped.exists(), other.exists()) == (False, True)
