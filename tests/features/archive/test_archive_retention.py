"""Retention of an archive: whole files, oldest first; proof and status know the dropped batches."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.features.archive.retention import drop_old_messages, find_old_files, list_dropped_files
from lockstep.features.archive.status import read_archive_status
from lockstep.table.ledger import LedgerFileName
from lockstep.table.side_files import SideTableFile
from tests.features.archive.archiving import make_offline, read_values, run_batches, send
from tests.support.feed import update
from tests.support.offline_proof import prove
from tests.support.offline_rewind import rewind

if TYPE_CHECKING:
    from pathlib import Path

ALL = timedelta(hours=-1)
"""Every file is older than the hour after the newest batch."""


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=10))
def test_no_batch_of_a_file_that_stays_is_dropped(drawn: list[tuple[int, int]]) -> None:
    files = list[SideTableFile]()
    batch = 1
    for number, (hour, more) in enumerate(drawn):
        name = LedgerFileName(f"2026-01-01T0{hour}", 0, batch, batch + more)
        files.append(SideTableFile(str(number), 1, 1, name, 0))
        batch += more + hour % 2
    old = find_old_files(files, "2026-01-01T02")
    kept = [file for file in files if file not in old]
    assert all(file.name.hour < "2026-01-01T02" for file in old)
    assert max((file.name.last for file in old), default=0) < min((file.name.first for file in kept), default=99)


def test_dropped_messages_are_gone_for_readers_and_the_proof_says_so(tmp_path: Path) -> None:
    offline = make_offline(tmp_path)
    values = run_batches(offline, 5)
    assert drop_old_messages(offline.folders, timedelta(hours=1)) == ()
    assert len(drop_old_messages(offline.folders, ALL)) == 3
    assert drop_old_messages(offline.folders, ALL) == ()
    assert len(list_dropped_files(offline.folders.archive)) == 3
    offline.run(send([update(7, a=1)]))
    assert read_values(offline) == [(len(values), update(7, a=1))]
    report = prove(offline)
    assert report.status.value == "proven", report.violations
    assert "archived messages of batches up to 3 were dropped by retention" in report.notes
    status = read_archive_status(offline.stream, offline.folders)
    (partition,) = status.partitions
    assert (status.rows, status.files, status.dropped_up_to) == (1, 1, 3)
    assert (partition.archived_from, partition.archived_until, partition.position) == (6, 7, 7)


@pytest.mark.parametrize("batch", [1, 2])
def test_messages_that_a_rewind_reads_again_are_not_dropped(tmp_path: Path, batch: int) -> None:
    offline = make_offline(tmp_path)
    values = run_batches(offline, 5)
    rewind(offline, batch)
    assert drop_old_messages(offline.folders, ALL) == ()
    offline.run(*(send(values[at : at + 2]) for at in range(2 * batch, len(values), 2)))
    assert len(drop_old_messages(offline.folders, ALL)) == 3
