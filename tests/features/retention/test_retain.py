"""Retention drops whole closed hours, records that in the head, and disturbs neither writer nor rewind."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep.errors import TableError
from lockstep.features.compaction.run import Rewriter, compact_in_process, compact_stream
from lockstep.features.retention import rows as retention
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.features.retention.rows import Retained, drop_old_rows, find_oldest_hour, plan_retention
from lockstep.operations.inspect.history import read_history
from lockstep.operations.query import AsOf, query_sql
from lockstep.table import ledger
from lockstep.table.commit import OLDEST_FILE_SECONDS
from lockstep.table.head import Head
from tests.features.export.declared import make_stream
from tests.support.protocol_run import ProtocolRun, entries, folders_in, stored_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lockstep.features.compaction.rewrite import RewriteTask
    from lockstep.features.compaction.run import Outcome
    from lockstep.table.layout import StreamFolders
    from lockstep.table.live_files import LiveFile

HOURS = 8
KEEP = timedelta(hours=3)
BATCHES_AN_HOUR = 3


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    """Eight hours of three batches of two rows each."""
    run = ProtocolRun(folders_in(tmp_path_factory.mktemp("hours")))
    run.claim()
    for _ in range(HOURS):
        for _ in range(BATCHES_AN_HOUR):
            run.batch(full=True)
        run.clock += timedelta(hours=1)
    return run


@pytest.fixture
def run(written: ProtocolRun, tmp_path: Path) -> ProtocolRun:
    return written.copied(tmp_path / "copy")


def test_rows_of_old_hours_are_dropped_and_the_writer_goes_on(run: ProtocolRun) -> None:
    plan = plan_retention(run.folders, KEEP)
    assert (plan.before_hour, plan.hours, len(plan.files), plan.rows) == ("2026-01-01T04", 4, 12, 24)
    assert stored_offsets(run.folders) == list(range(48))
    done = drop_old_rows(run.folders, KEEP, cause="GDPR, by me")
    assert plan == done.plan
    assert stored_offsets(run.folders) == list(range(24, 48))
    assert done.retention is not None
    assert (done.retention.hour, done.retention.batch, done.retention.cause) == ("2026-01-01T04", 12, "GDPR, by me")
    run.batch(full=True)  # the run has read nothing since
    assert run.head.retention == done.retention
    assert stored_offsets(run.folders) == list(range(24, 50))


def test_what_is_dropped_is_dropped_once(run: ProtocolRun) -> None:
    first = drop_old_rows(run.folders, KEEP, cause="first")
    version = run.output.base().version
    again = drop_old_rows(run.folders, KEEP, cause="again")
    assert (again.retention, again.plan.files) == (first.retention, ())
    assert version == run.output.base().version
    further = drop_old_rows(run.folders, timedelta(hours=1), cause="further")
    assert further.retention is not None
    assert (further.plan.hours, further.retention.batch) == (2, 18)


def test_history_and_queries_say_what_was_dropped(run: ProtocolRun) -> None:
    done = drop_old_rows(run.folders, KEEP, cause="GDPR, by me")
    text = "rows of hours before 2026-01-01T04 (GDPR, by me)"
    newest = read_history(run.folders, 1).events[-1]
    assert (newest.event, newest.detail) == ("rows dropped", text)
    found = query_sql("SELECT count(*) FROM readings", ["readings"], run.folders.root, AsOf(), limit=None)
    assert (found.rows, found.notes) == ([[24]], (f"readings: {text} were dropped",))
    assert done.plan.rows == 24


def test_the_open_hour_stays_whatever_the_clock_says(run: ProtocolRun) -> None:
    assert plan_retention(run.folders, timedelta(hours=1)).before_hour == "2026-01-01T06"
    head = Head(stream="s", cluster_id="c", hour="2026-01-01T07")
    assert find_oldest_hour(head, "2031-01-01T00", KEEP) == "2026-01-01T04"
    assert find_oldest_hour(head, "2026-01-01T05", KEEP) == "2026-01-01T02"
    assert find_oldest_hour(Head(stream="s", cluster_id="c"), "2026-01-01T05", KEEP) == ""
    assert find_oldest_hour(head, "2026-01-01T05", timedelta.max) == "1926-01-01T05"


def test_a_compaction_between_plan_and_commit_makes_a_new_plan(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = retention._find_last_batch  # noqa: SLF001  # between plan and commit
    compactions = []

    def compact_first(folders: StreamFolders, head: Head, files: tuple[LiveFile, ...]) -> int:
        compactions.append(compact_stream(run.folders).bins)
        return find(folders, head, files)

    monkeypatch.setattr(retention, "_find_last_batch", compact_first)
    done = drop_old_rows(run.folders, KEEP, cause="test")
    assert compactions == [7, 0]
    assert (len(done.plan.files), done.plan.rows, done.retention and done.retention.batch) == (4, 24, 12)
    assert stored_offsets(run.folders) == list(range(24, 48))


def test_a_compaction_of_dropped_hours_comes_too_late(run: ProtocolRun) -> None:
    def retain_meanwhile() -> Rewriter:
        inner = compact_in_process()

        def rewrite(tasks: Sequence[RewriteTask]) -> Sequence[Outcome]:
            outcomes = inner.rewrite(tasks)
            drop_old_rows(run.folders, KEEP, cause="test")
            return outcomes

        return Rewriter(rewrite, at_once=100)

    result = compact_stream(run.folders, rewriter=retain_meanwhile())
    assert (result.bins, result.bins_lost) == (3, 4)
    assert stored_offsets(run.folders) == list(range(24, 48))


def test_the_ledger_is_read_from_the_last_retention_on_and_as_far_as_needed(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[int, int]]()
    read = ledger.read_columns

    def note(folder: Path, columns: list[str], *, first_batch: int, last_batch: int) -> object:
        asked.append((first_batch, last_batch))
        return read(folder, columns, first_batch=first_batch, last_batch=last_batch)

    drop_old_rows(run.folders, timedelta(hours=5), cause="first")
    monkeypatch.setattr(retention, "BATCHES_A_READ", BATCHES_AN_HOUR)
    monkeypatch.setattr(ledger, "read_columns", note)
    done = drop_old_rows(run.folders, KEEP, cause="second")
    assert done.retention is not None
    assert (done.retention.batch, asked) == (12, [(7, 9), (10, 12), (13, 15)])


def test_rows_that_the_ledger_does_not_know_are_not_dropped(run: ProtocolRun, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def to_pylist(self) -> list[object]:
            return []

    monkeypatch.setattr(ledger, "read_columns", lambda *_, **__: Nothing())
    with pytest.raises(TableError, match="no batch in the ledger; nothing was dropped"):
        drop_old_rows(run.folders, KEEP, cause="test")
    assert stored_offsets(run.folders) == list(range(48))


def test_housekeeping_drops_rows_by_declaration_and_deletes_the_files_when_no_rewind_needs_them(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = make_stream(retention=KEEP)

    def keep(*, plan_only: bool = False) -> dict[str, int]:
        done = run_housekeeping(run.folders, retention_seconds=3600, stream=declared, plan_only=plan_only)
        return {step.step: step.files for step in done.steps}

    assert keep(plan_only=True)["rows past retention"] == 12
    assert stored_offsets(run.folders) == list(range(48))
    done = keep()
    assert (done["rows past retention"], done["replaced data files"]) == (12, 0)
    floor = run.output.base().head.rewind_floor
    version = next(entry.version for entry in entries(run.folders) if entry.head and entry.head.batch > floor)
    assert DeltaTable(run.folders.table, version=version).to_pyarrow_table().num_rows > 0  # a rewind needs the files
    run.clock -= timedelta(hours=1)
    run.claim()
    run.batch(full=True)
    now = time.time()
    for path in run.folders.table.glob("commit_hour=*/*.parquet"):
        os.utime(path, (now - 2 * OLDEST_FILE_SECONDS,) * 2)
    monkeypatch.setattr(time, "time", lambda: now + 100 * 3600)
    later = keep()
    assert (later["rows past retention"], later["replaced data files"]) == (0, 12)
    assert stored_offsets(run.folders) == list(range(24, 50))


def test_a_retention_of_a_stream_without_batches_does_nothing(tmp_path: Path) -> None:
    run = ProtocolRun(folders_in(tmp_path))
    run.claim()
    done: Retained = drop_old_rows(run.folders, KEEP, cause="test")
    assert (done.plan.before_hour, done.retention) == ("", None)


def test_the_mark_of_a_rewind_in_the_newest_hour_does_not_hide_the_batches_that_are_dropped(run: ProtocolRun) -> None:
    """The last dropped batch is found by its rows, and the mark has none; the proof would miss the others."""
    run.batch()
    run.rewind(run.head.batch - 1)  # removes one file, and adds the mark
    run.claim()
    before = run.head.batch
    run.clock += timedelta(hours=9)
    run.batch()
    done = drop_old_rows(run.folders, KEEP, cause="a test")
    assert done.retention is not None
    assert (done.plan.rows, done.retention.batch) == (48, 24)
    assert before > 24
