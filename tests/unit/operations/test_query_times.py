"""The version of a table at a time is never the version of another time, also after deletions from its log."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from lockstep.errors import LockstepError
from lockstep.operations.query import find_version_at
from lockstep.table import delta_log
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
LATER = timedelta(hours=1)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table with the versions 0 to 3."""
    folders = folders_in(tmp_path)
    run = ProtocolRun(folders)
    run.claim()
    run.batch()
    run.batch()
    return folders.table


def delete(table: Path, *versions: int) -> None:
    """Delete entries as housekeeping does, which keeps the entries of savepoints."""
    for version in versions:
        delta_log.make_entry_path(table, version).unlink()


def test_a_table_has_its_newest_version_and_none_before_its_creation(table: Path) -> None:
    assert find_version_at(table, datetime.now(UTC) + LATER) == 3
    assert find_version_at(table, LONG_AGO) == 0


@pytest.mark.parametrize(("deleted", "moment_of", "next_version"), [((0, 1), None, 2), ((2,), 1, 3)])
def test_a_time_whose_entries_are_deleted_is_refused_with_the_next_one(
    table: Path, deleted: tuple[int, ...], moment_of: int | None, next_version: int
) -> None:
    entry = None if moment_of is None else delta_log.read_entry(table, moment_of)
    moment = LONG_AGO if entry is None or entry.written_at is None else entry.written_at
    delete(table, *deleted)
    with pytest.raises(LockstepError, match="housekeeping has deleted") as refused:
        find_version_at(table, moment)
    (known,) = re.findall(r"--at (\S+);", refused.value.next_step)
    assert find_version_at(table, datetime.fromisoformat(known).replace(tzinfo=UTC)) >= next_version
