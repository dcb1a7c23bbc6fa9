"""Minor compaction: the many files of an open hour, while batches continue, are rewound, or close the hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.features.compaction.plan import OPEN_FILES_MAX, OPEN_PREFIX, plan_bins, plan_open_hour, plan_table
from lockstep.features.compaction.run import (
    CompactionBudget,
    CompactionResult,
    Rewriter,
    compact_in_process,
    compact_stream,
)
from lockstep.features.retention.housekeeping import find_replaced_data_files
from lockstep.table.commit import raise_rewind_floor
from lockstep.table.live_files import COMPACTED_PREFIX, LiveFiles
from tests.features.compaction.test_plan import HOURS, TARGET, file, head
from tests.support.protocol_run import ProtocolRun, folders_in, stored_offsets
from tests.support.stream_table import (
    HOUR,
    NEXT_HOUR,
    StreamTable,
    files_on_disk,
    identities,
    live_files,
    read_file,
    stored_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lockstep.features.compaction.rewrite import RewriteTask
    from lockstep.features.compaction.run import Outcome

A0 = ("a", 0)
B0 = ("b", 0)


def compact(table: StreamTable, *, rewriter: Rewriter | None = None) -> CompactionResult:
    return compact_stream(table.folders, rewriter=rewriter, open_files_max=2)


def fill(table: StreamTable, batches: int = 2) -> None:
    for _ in range(batches):
        table.batch({A0: 9, B0: 4}, {("c", 0): 5})


def test_files_of_an_open_hour_are_compacted_once_they_are_many() -> None:
    files = [file(str(n), 1, HOURS[2], n) for n in range(OPEN_FILES_MAX)]
    assert plan_open_hour(files, head(), target_bytes=TARGET * 100) == ()
    files.append(file("one more", 1, HOURS[2], OPEN_FILES_MAX))
    (part,) = plan_table(files, head(), target_bytes=TARGET * 100).bins
    assert (part.commit_hour, part.is_minor, len(part.files)) == (HOURS[2], True, OPEN_FILES_MAX + 1)


def test_what_a_minor_compaction_made_is_left_alone_until_the_hour_is_closed() -> None:
    files = [file(f"{OPEN_PREFIX}-{n}", 10, HOURS[2], n) for n in range(5)] + [file("large", 60, HOURS[2])]
    assert plan_open_hour(files, head(), target_bytes=TARGET, files_max=1) == ()
    (part,) = plan_bins(files, head(closed=HOURS[2]), target_bytes=TARGET)
    assert [each.path for each in part.files] == [each.path for each in files[:5]]


def test_the_open_hour_becomes_one_file_in_order_and_is_rewritten_once_more_when_closed(table: StreamTable) -> None:
    fill(table)
    before = stored_rows(table.folders)
    first = compact(table)
    (path,) = live_files(table.folders)
    places = identities(read_file(table.folders, path))
    assert path.startswith(f"commit_hour={HOUR}/{OPEN_PREFIX}-")
    assert sorted(set(places)) == places
    assert (before, first.minor_bins, first.minor_bytes) == (stored_rows(table.folders), 1, first.bytes_before)
    fill(table)
    assert compact(table).rows == len(stored_rows(table.folders)) - first.rows
    table.close()
    last = compact(table)
    assert (last.minor_bins, last.files_before, last.rows) == (0, 2, len(stored_rows(table.folders)))
    (path,) = live_files(table.folders)
    assert path.startswith(f"commit_hour={HOUR}/{COMPACTED_PREFIX}-")
    assert compact(table).bins == 0


def test_batches_that_land_meanwhile_come_after_the_file_in_the_order_of_the_hour(table: StreamTable) -> None:
    fill(table)
    compact(table, rewriter=meanwhile(lambda: fill(table)))
    live = LiveFiles(table.folders.table).at(0)
    ordered = sorted(live, key=lambda each: each.added_ms)
    assert [OPEN_PREFIX in each.path for each in ordered] == [True, False, False, False, False]


def test_a_close_meanwhile_changes_nothing_and_a_faster_compaction_wins(table: StreamTable) -> None:
    fill(table)
    before = stored_rows(table.folders)
    assert compact(table, rewriter=meanwhile(table.close)).minor_bins == 1
    other = StreamTable(table.folders.root.parent / "other")
    fill(other)

    def close_and_compact() -> None:
        other.close()
        compact(other)

    lost = compact(other, rewriter=meanwhile(close_and_compact))
    assert (lost.bins, lost.bins_lost) == (0, 1)
    assert all(COMPACTED_PREFIX in path for path in live_files(other.folders))
    assert len(files_on_disk(other.folders)) == 4 + 1
    assert before == stored_rows(table.folders) == stored_rows(other.folders)


def meanwhile(act: Callable[[], object]) -> Rewriter:
    def rewrite(tasks: Sequence[RewriteTask]) -> Sequence[Outcome]:
        outcomes = compact_in_process().rewrite(tasks)
        act()
        return outcomes

    return Rewriter(rewrite)


@pytest.mark.parametrize("to_batch", [2, 5], ids=["before the minor compaction", "after it"])
def test_a_rewind_brings_back_what_was_live_and_housekeeping_deletes_none_of_it(tmp_path: Path, to_batch: int) -> None:
    run = ProtocolRun(folders_in(tmp_path))
    run.claim()
    for _ in range(4):
        run.batch()
    compact_stream(run.folders, open_files_max=2)
    for _ in range(4):
        run.batch()
    run.head = run.output.commit(raise_rewind_floor(1, 2)).head
    assert find_replaced_data_files(run.folders, run.head) == []
    run.rewind(to_batch)
    assert stored_offsets(run.folders) == list(range(2 * to_batch))
    run.claim()
    for _ in range(3):
        run.batch()
    assert compact_stream(run.folders, open_files_max=2).minor_bins == 1
    assert stored_offsets(run.folders) == list(range(2 * to_batch + 6))


def test_a_rewind_meanwhile_makes_a_minor_compaction_come_too_late(tmp_path: Path) -> None:
    run = ProtocolRun(folders_in(tmp_path))
    run.claim()
    for _ in range(4):
        run.batch()
    done = compact_stream(run.folders, open_files_max=2, rewriter=meanwhile(lambda: run.rewind(3)))
    assert (done.bins, done.bins_lost) == (0, 1)
    assert stored_offsets(run.folders) == list(range(6))


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (CompactionBudget(bytes=1), "bytes are rewritten"),
        (CompactionBudget(seconds=0), "seconds have passed"),
        (CompactionBudget(find_hindrance=lambda: "the stream lags"), "the stream lags"),
    ],
    ids=["bytes", "seconds", "lag"],
)
def test_a_run_ends_with_its_budget_after_one_set_of_bins_and_the_next_goes_on(
    table: StreamTable, budget: CompactionBudget, reason: str
) -> None:
    for hour in (HOUR, NEXT_HOUR):
        table.batch({A0: 9}, {B0: 4}, hour=hour)
    table.close(NEXT_HOUR)
    first = compact_stream(table.folders, budget=budget)
    assert (first.bins, first.bins_postponed) == (1, 1)
    assert reason in first.postponed_because
    assert compact_stream(table.folders, budget=budget).bins == 1
    assert compact_stream(table.folders, budget=budget).bins == 0
