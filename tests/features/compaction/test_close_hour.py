"""A closed hour: nothing is committed to it any more, and a running writer uses the next hour."""

from __future__ import annotations

import threading

import msgspec
import pytest

from lockstep.engine.driver.planner import choose_commit_hour
from lockstep.errors import LockstepError
from lockstep.features.compaction.run import compact_stream
from lockstep.model.table_schema import IDENTITY
from lockstep.operations.lifecycle import close_hour
from lockstep.table.commit import HourClosed
from lockstep.table.layout import StreamFolders
from tests.support.stream_table import HOUR, NEXT_HOUR, StreamTable, live_files, stored_rows

A0 = ("a", 0)
B0 = ("b", 0)


def test_the_hour_of_the_newest_batch_is_closed(table: StreamTable) -> None:
    table.batch({A0: 5})
    assert close_hour(table.folders) == HOUR
    assert table.output.base().head.closed_hour == HOUR
    with pytest.raises(HourClosed, match=HOUR):
        table.batch({A0: 5})
    table.batch({A0: 5}, hour=NEXT_HOUR)


def test_closing_changes_nothing_else_in_the_head(table: StreamTable) -> None:
    table.batch({A0: 5})
    before = table.output.base()
    close_hour(table.folders)
    after = table.output.base()
    assert before.version + 1 == after.version
    assert msgspec.structs.replace(before.head, closed_hour=HOUR) == after.head


def test_closing_a_closed_hour_commits_nothing(table: StreamTable) -> None:
    table.batch({A0: 5})
    table.batch({A0: 5}, hour=NEXT_HOUR)
    version = table.output.base().version
    assert close_hour(table.folders, HOUR) == HOUR
    assert version == table.output.base().version
    close_hour(table.folders)
    close_hour(table.folders)
    assert version + 1 == table.output.base().version


@pytest.mark.parametrize("hour", ["2026-01-01", "2026-01-01T24", "yesterday"])
def test_what_is_no_hour_is_refused(table: StreamTable, hour: str) -> None:
    table.batch({A0: 5})
    with pytest.raises(LockstepError, match="is not an hour"):
        close_hour(table.folders, hour)


def test_an_hour_that_has_not_begun_is_refused(table: StreamTable) -> None:
    table.batch({A0: 5})
    with pytest.raises(LockstepError, match=f"{NEXT_HOUR} has not started"):
        close_hour(table.folders, NEXT_HOUR)


def test_without_a_batch_or_a_table_there_is_nothing_to_close(table: StreamTable) -> None:
    with pytest.raises(LockstepError, match="no batch yet"):
        close_hour(table.folders)
    with pytest.raises(LockstepError, match="no table yet"):
        close_hour(StreamFolders("other", table.folders.root))


def test_a_writer_beside_closes_and_compactions_loses_no_row_and_writes_none_twice(table: StreamTable) -> None:
    table.batch({A0: 3}, {B0: 3})
    done = threading.Event()
    thread = threading.Thread(target=close_and_compact, args=(table.folders, done))
    rows = len(stored_rows(table.folders))
    hours = [HOUR]
    thread.start()
    try:
        for _ in range(20):
            hour, written = batch_in_an_open_hour(table)
            hours.append(hour)
            rows += written
    finally:
        done.set()
        thread.join()
    close_hour(table.folders)
    compact_stream(table.folders)
    places = [[row[name] for name in IDENTITY] for row in stored_rows(table.folders)]
    assert sorted(hours) == hours
    assert len(set(hours)) == len(live_files(table.folders))
    assert rows == len(places) == len(set(map(tuple, places)))


def batch_in_an_open_hour(table: StreamTable) -> tuple[str, int]:
    """Write a batch as the engine does, and plan it again if its hour was closed. Return its hour and row count."""
    while True:
        head = table.output.base().head
        hour = choose_commit_hour(HOUR, head.hour, head.closed_hour)
        files = [table.file({A0: 3}, hour), table.file({B0: 3}, hour)]
        try:
            table.try_batch(files, hour)
        except HourClosed:
            continue
        return hour, sum(file.rows for file in files)


def close_and_compact(folders: StreamFolders, done: threading.Event) -> None:
    while not done.is_set():
        close_hour(folders)
        compact_stream(folders)
