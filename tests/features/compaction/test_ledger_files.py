"""Closed hours of the ledger become one file each: order, rows and the lookup of positions stay."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lockstep.errors import TableError
from lockstep.features.compaction import ledger_files
from lockstep.features.compaction.ledger_files import NamedFile, compact_ledger, find_replaced, plan_ledger
from lockstep.model.position import TopicIdPartition
from lockstep.storage import FileStatus, LocalStorage
from lockstep.table import delta_log, ledger, live_names, side_files, side_tables
from lockstep.table.foreign_commits import refresh
from lockstep.table.ledger import LedgerFileName
from lockstep.table.parquet import DataFileWriter
from lockstep.table.side_files import REPLACED_SECONDS, list_live_files
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.table.ledger import LedgerRow

BATCHES_AN_HOUR = 6
HOURS = 4


@pytest.fixture(scope="module")
def some_hours(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    """Hours of batches with a full set of positions in the first batch of each hour; the newest hour is open."""
    made = ProtocolRun(folders_in(tmp_path_factory.mktemp("some-hours")))
    made.claim()
    for _ in range(HOURS):
        batches_of_an_hour(made)
    return made


@pytest.fixture
def run(some_hours: ProtocolRun, tmp_path: Path) -> ProtocolRun:
    return some_hours.copied(tmp_path / "copy")


def batches_of_an_hour(run: ProtocolRun) -> None:
    for number in range(BATCHES_AN_HOUR):
        run.batch(full=number == 0)
    run.clock += timedelta(hours=1)


def rows_of(run: ProtocolRun) -> list[LedgerRow]:
    return ledger.read_ledger(run.folders.ledger)


def positions_of(run: ProtocolRun) -> dict[TopicIdPartition, LedgerRow]:
    return ledger.read_positions(run.folders, run.output.base().head)


def age(folder: Path, seconds: float = REPLACED_SECONDS + 60) -> None:
    """Set the time of all files back."""
    then = time.time() - seconds
    for path in folder.glob("*.parquet"):
        os.utime(path, (then, then))


def test_closed_hours_become_one_file_each_and_no_row_changes(run: ProtocolRun) -> None:
    before = rows_of(run)
    known = positions_of(run)
    done = compact_ledger(run.folders, run.head)
    assert (done.hours, done.files_before, done.files_after) == (HOURS - 1, (HOURS - 1) * BATCHES_AN_HOUR, HOURS - 1)
    assert (rows_of(run), positions_of(run)) == (before, known)
    assert len(DeltaTable(run.folders.ledger).file_uris()) == HOURS - 1 + BATCHES_AN_HOUR
    again = compact_ledger(run.folders, run.head)
    assert (again.hours, again.replaced_deleted) == (0, 0)


@pytest.mark.parametrize(("group_rows", "merged_rows"), [(4, 50_000), (100_000, 4)])
def test_rows_stand_in_the_order_of_their_batches(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch, group_rows: int, merged_rows: int
) -> None:
    """The order in the file itself: readers of the product sort the rows."""
    monkeypatch.setattr(ledger_files, "GROUP_ROWS", group_rows)
    monkeypatch.setattr(side_files, "MERGED_ROWS", merged_rows)
    compact_ledger(run.folders, run.head)
    (first, *_) = sorted(
        file.path for file in list_live_files(DeltaTable(run.folders.ledger)) if file.path.startswith("compacted-")
    )
    stored = pq.ParquetFile(run.folders.ledger / first)
    assert stored.num_row_groups == -(-BATCHES_AN_HOUR // group_rows)
    assert stored.read(["batch"])["batch"].to_pylist() == list(range(1, BATCHES_AN_HOUR + 1))
    assert f"-b1-{BATCHES_AN_HOUR}-" in first


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.slice(1),
        lambda rows: rows.take(list(reversed(range(len(rows))))),
        lambda rows: rows.set_column(0, rows.schema.field(0), pa.array([99] * len(rows), pa.int64())),
    ],
    ids=["a row less", "another order", "another value"],
)
def test_a_file_with_other_rows_than_its_inputs_is_refused(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch, change: Callable[[pa.Table], pa.Table]
) -> None:
    before = rows_of(run)
    files = sorted(run.folders.ledger.glob("*.parquet"))
    right = DataFileWriter.write
    monkeypatch.setattr(DataFileWriter, "write", lambda writer, rows: right(writer, change(rows)))
    with pytest.raises(TableError, match="does not hold the rows of its inputs"):
        compact_ledger(run.folders, run.head)
    assert (rows_of(run), sorted(run.folders.ledger.glob("*.parquet"))) == (before, files)


def test_a_range_of_batches_may_begin_and_end_within_a_compacted_file(run: ProtocolRun) -> None:
    compact_ledger(run.folders, run.head)
    newest = HOURS * BATCHES_AN_HOUR
    parts = (1, BATCHES_AN_HOUR - 1, BATCHES_AN_HOUR, BATCHES_AN_HOUR + 1)
    ends = [hour * BATCHES_AN_HOUR + part for hour in (0, HOURS - 2) for part in parts]
    for first in (0, *ends):
        for last in (*ends, newest, None):
            rows = ledger.read_ledger(run.folders.ledger, first_batch=first, last_batch=last)
            assert [row.batch for row in rows] == list(range(max(1, first), (last or newest) + 1))


def test_rows_are_read_a_row_group_at_a_time(run: ProtocolRun, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows_of(run)
    monkeypatch.setattr(ledger_files, "GROUP_ROWS", 4)
    compact_ledger(run.folders, run.head)
    parts = list(ledger.iterate_rows(run.folders.ledger, first_batch=2, last_batch=HOURS * BATCHES_AN_HOUR - 1))
    assert {len(part) for part in parts} <= {1, 2, 3, 4}
    assert sorted((row for part in parts for row in part), key=lambda row: row.batch) == before[1:-1]


def test_nothing_is_touched_from_the_newest_full_set_of_positions_on(tmp_path: Path) -> None:
    """Readers of positions open these files by their names."""
    made = ProtocolRun(folders_in(tmp_path))
    made.claim()
    for number in range(4):
        made.batch(full=number == 1)
        made.clock += timedelta(minutes=50)
    planned = plan_ledger(list_live_files(DeltaTable(made.folders.ledger)), made.head)
    assert planned == ()
    made.batch(full=True)
    (part,) = plan_ledger(list_live_files(DeltaTable(made.folders.ledger)), made.head)
    assert [file.name.first for file in part.files] == [1, 2]


def test_a_clock_that_went_back_changes_no_order(tmp_path: Path) -> None:
    made = ProtocolRun(folders_in(tmp_path))
    made.claim()
    for hours in (0, 1, -1, 2, 3):
        made.clock += timedelta(hours=hours)
        made.batch(full=True)
        made.batch(full=True)
    before = rows_of(made)
    compact_ledger(made.folders, made.head)
    assert rows_of(made) == before
    assert [row.batch for row in before] == list(range(1, 11))


def test_batches_go_on_beside_a_compaction_and_none_is_lost(run: ProtocolRun) -> None:
    head = run.head
    problems = list[Exception]()

    def write() -> None:
        try:
            for _ in range(3):
                batches_of_an_hour(run)
        except Exception as error:  # noqa: BLE001  # reported to the thread of the test
            problems.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        compact_ledger(run.folders, head)
        head = run.head
    writer.join()
    compact_ledger(run.folders, run.head)
    assert problems == []
    assert [row.batch for row in rows_of(run)] == list(range(1, (HOURS + 3) * BATCHES_AN_HOUR + 1))
    assert positions_of(run)[TopicIdPartition("id", 0)].batch == run.head.batch


def test_two_compactions_at_once_leave_every_row_once(run: ProtocolRun) -> None:
    before = rows_of(run)
    threads = [threading.Thread(target=compact_ledger, args=(run.folders, run.head)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows_of(run) == before
    compacted = [file for file in list_live_files(DeltaTable(run.folders.ledger)) if file.path.startswith("compacted-")]
    assert len(compacted) == HOURS - 1


def test_replaced_files_stay_for_readers_under_way_and_go_later(run: ProtocolRun) -> None:
    before = rows_of(run)
    compact_ledger(run.folders, run.head)
    files = len(list(run.folders.ledger.glob("*.parquet")))
    assert compact_ledger(run.folders, run.head).replaced_deleted == 0
    age(run.folders.ledger)
    assert compact_ledger(run.folders, run.head).replaced_deleted == (HOURS - 1) * BATCHES_AN_HOUR
    assert len(list(run.folders.ledger.glob("*.parquet"))) == files - (HOURS - 1) * BATCHES_AN_HOUR
    assert rows_of(run) == before


def test_of_many_compacted_files_only_those_that_contain_a_replaced_one_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of a year has thousands of files, and each status is a request to the storage."""

    def named(generation: int, first: int, last: int) -> NamedFile:
        name = LedgerFileName("2026-01-01T00", generation, first, last)
        return tmp_path / f"{name.prefix('file')}.parquet", name

    compacted = [named(1, first, first + 9) for first in range(0, 1_000, 10)] + [named(2, 500, 509)]
    for path, _ in compacted:
        path.touch()
    age(tmp_path)
    os.utime(compacted[3][0])
    replaced = [named(1, 0, 0), named(1, 29, 29), named(1, 40, 49), named(2, 505, 505)]
    kept = [named(1, 30, 30), named(1, 45, 50), named(1, 1_000, 1_000), named(2, 499, 499), named(0, 5, 5)]
    asked = list[Path]()
    get_status = LocalStorage.get_status

    def counted(storage: LocalStorage, path: Path) -> FileStatus | None:
        asked.append(path)
        return get_status(storage, path)

    monkeypatch.setattr(LocalStorage, "get_status", counted)
    found = find_replaced(reversed(compacted), [*replaced, *kept, *replaced])
    assert found == [path for path, _ in (*replaced, *replaced)]
    assert asked == [compacted[at][0] for at in (0, 2, 4, -1, 3)]


def test_a_file_that_a_writer_is_about_to_commit_is_never_deleted_however_old_it_is(run: ProtocolRun) -> None:
    compact_ledger(run.folders, run.head)
    batch = run.prepared()
    age(run.folders.ledger, 90 * 24 * 3600)
    assert compact_ledger(run.folders, run.head).replaced_deleted > 0
    run.forward(run.commit(batch).head)
    assert rows_of(run)[-1].batch == run.head.batch == batch.number


def test_a_compaction_that_died_before_its_commit_is_done_by_the_next(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(run)

    class Killed(BaseException):
        """Simulates kill -9."""

    def killed(*_: object) -> bool:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ledger_files, "commit_replacement", killed)
        with pytest.raises(Killed):
            compact_ledger(run.folders, run.head)
    assert compact_ledger(run.folders, run.head).hours == HOURS - 1
    age(run.folders.ledger)
    compact_ledger(run.folders, run.head)
    assert rows_of(run) == before
    live = {file.path for file in list_live_files(DeltaTable(run.folders.ledger))}
    assert {path.name for path in run.folders.ledger.glob("*.parquet")} == live


def test_a_writer_whose_batches_are_shorter_than_a_look_at_all_files_does_not_hold_it_up(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer commits during each refresh of the live files."""
    looks: list[Path] = []

    def slow(handle: DeltaTable, table: Path) -> None:
        refresh(handle, table)
        looks.append(table)
        run.forward(run.commit(run.prepared()).head)

    monkeypatch.setattr(live_names, "refresh", slow)
    assert compact_ledger(run.folders, run.head).hours == HOURS - 1 == len(looks)
    assert [row.batch for row in rows_of(run)] == list(range(1, run.head.batch + 1))


def test_files_that_another_compaction_took_are_found_in_its_entries(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = run.folders.ledger
    handle = DeltaTable(table)
    before = {file.path for file in list_live_files(DeltaTable(table))}
    names = live_names.LiveNames(table, handle)
    version = handle.version()
    assert names.find_missing(before, version) == []
    compact_ledger(run.folders, run.head)
    after = DeltaTable(table)
    taken = before - {file.path for file in list_live_files(after)}
    assert len(taken) == (HOURS - 1) * BATCHES_AN_HOUR
    assert after.version() - version <= live_names.FOLLOWED_MAX
    monkeypatch.setattr(live_names, "refresh", pytest.fail)
    assert names.find_missing(before, after.version()) == sorted(taken)


def test_a_damaged_file_is_named_and_nothing_of_its_hour_is_committed(run: ProtocolRun) -> None:
    live = list_live_files(DeltaTable(run.folders.ledger))
    first = run.folders.ledger / min(live, key=lambda file: file.name.first).path
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(bytes(content))
    version = DeltaTable(run.folders.ledger).version()
    with pytest.raises(TableError, match=first.name):
        compact_ledger(run.folders, run.head)
    assert DeltaTable(run.folders.ledger).version() == version


def test_a_ledger_that_lacks_the_last_batch_is_brought_forward_first(run: ProtocolRun) -> None:
    landed = run.commit(run.prepared())
    compact_ledger(run.folders, landed.head)
    assert rows_of(run)[-1].batch == landed.head.batch
    assert not side_tables.SideLogs(run.folders).catch_up(landed.head)


def test_its_entry_says_what_was_proven(run: ProtocolRun) -> None:
    compact_ledger(run.folders, run.head)
    newest = delta_log.make_entry_path(run.folders.ledger, DeltaTable(run.folders.ledger).version()).read_text()
    assert '\\"verdict\\":\\"equal\\"' in newest
