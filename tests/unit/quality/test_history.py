"""The history of checks: two at once lose no point."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from lockstep.quality import check
from lockstep.quality.check import POINT_SECONDS, POINTS_FOLDER, Checked, Coverage, keep_result, make_result_path
from lockstep.quality.check import read_last_check as read_result
from lockstep.quality.increment import TableVersions
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.layout import StreamFolders


@pytest.fixture
def folders(tmp_path: Path) -> StreamFolders:
    run = ProtocolRun(folders_in(tmp_path))
    run.claim()
    run.batch()
    return run.folders


def make_checked(folders: StreamFolders, version: int) -> Checked:
    coverage = Coverage(full=True, reason="asked for", since=None, files=1, rows=2, size=3)
    versions = TableVersions(version, 1, 1)
    return Checked(stream=folders.stream, versions=versions, coverage=coverage, partitions=(), results=())


def history_of(folders: StreamFolders) -> list[int]:
    last = read_result(folders)
    assert last is not None
    return [point.version for point in last.history]


@pytest.mark.parametrize("others", [1, 3])
def test_checks_that_replace_the_result_meanwhile_stay_in_its_history(
    folders: StreamFolders, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    waiting = iter(range(10, 10 + others))

    def read_before_another_writes(where: StreamFolders) -> object:
        before = read_result(where)
        if (version := next(waiting, None)) is not None:
            keep_result(where, make_checked(where, version), ())
        return before

    keep_result(folders, make_checked(folders, 1), ())
    monkeypatch.setattr(check, "read_last_check", read_before_another_writes)
    keep_result(folders, make_checked(folders, 2), ())
    assert sorted(history_of(folders)) == [1, 2, *range(10, 10 + others)]


def test_the_file_of_an_old_point_is_deleted_and_the_point_stays(
    folders: StreamFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_result(folders, make_checked(folders, 1), ())
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * POINT_SECONDS)
    keep_result(folders, make_checked(folders, 2), ())
    assert list((make_result_path(folders).parent / POINTS_FOLDER).iterdir()) == []
    keep_result(folders, make_checked(folders, 3), ())
    assert len(history_of(folders)) == 3
