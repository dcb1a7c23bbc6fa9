"""Retention of an archive: whole files are dropped, oldest first; proof and status report the dropped batches."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.features.archive.readers import find_unread
from lockstep.features.archive.retention import HELD_LEAST, drop_old_messages, find_old_files, list_dropped_files
from lockstep.features.archive.status import read_archive_status
from lockstep.model.position import TopicIdPartition
from lockstep.table.archive import ArchivedEnd
from lockstep.table.commit import OutputLog, Proposal
from lockstep.table.commit_kinds import DESIRE
from lockstep.table.head import Origin
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerFileName
from lockstep.table.positions import LedgerStamp, make_blank_row
from lockstep.table.side_files import SideTableFile
from tests.features.archive.archiving import make_offline, read_values, run_batches, send
from tests.support.feed import update
from tests.support.offline_proof import prove
from tests.support.offline_rewind import rewind

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.offline_stream import Offline

ALL = timedelta(hours=-1)
"""The cutoff is an hour after the newest batch: every file is older."""


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=10),
    st.none() | st.integers(0, 20),
    st.sampled_from([f"2026-01-01T0{hour}" for hour in range(4)]),
)
@example([(0, 0)], 1, "2026-01-01T00")
def test_no_batch_of_a_file_that_stays_is_dropped(
    drawn: list[tuple[int, int]], unread_from: int | None, held_from: str
) -> None:
    files = list[SideTableFile]()
    batch = 1
    for number, (hour, more) in enumerate(drawn):
        name = LedgerFileName(f"2026-01-01T0{hour}", 0, batch, batch + more)
        files.append(SideTableFile(str(number), 1, 1, name, 0))
        batch += more + hour % 2
    old = find_old_files(files, "2026-01-01T02", unread_from=unread_from, held_from=held_from)
    kept = [file for file in files if file not in old]
    assert all(file.name.hour < "2026-01-01T02" for file in old)
    assert max((file.name.last for file in old), default=0) < min((file.name.first for file in kept), default=99)
    if unread_from is not None:
        assert all(file.name.last < unread_from or file.name.hour < held_from for file in old)


ROW = make_blank_row(
    LedgerStamp(
        generation=1,
        batch=1,
        epoch=1,
        committed_at=datetime(2026, 1, 1, tzinfo=UTC),
        batch_seconds=0.0,
        restart_cause=None,
    )
)
PLACES = st.tuples(st.sampled_from("ab"), st.integers(0, 1))
ARCHIVED = st.dictionaries(PLACES, st.tuples(st.none() | st.integers(1, 5), st.booleans()))
"""End of the archive in each partition, and whether its topic is gone."""
READ = st.dictionaries(PLACES, st.tuples(st.integers(0, 5), st.booleans()))
"""Position of each partition, and whether its topic is retired."""


@given(ARCHIVED, READ)
@example({("a", 1): (3, False)}, {("a", 0): (0, False)})
@example({("b", 0): (3, False)}, {("a", 0): (0, False)})
def test_a_reader_needs_the_archived_offsets_after_its_positions(
    archived: dict[tuple[str, int], tuple[int | None, bool]], read: dict[tuple[str, int], tuple[int, bool]]
) -> None:
    """Compared with a plain table: each archived offset, by the position of its partition, or by its topic."""
    unread = find_unread(
        {TopicIdPartition(*key): ArchivedEnd(*end) for key, end in archived.items()},
        {TopicIdPartition(*key): replace(ROW, until=at, retired=gone) for key, (at, gone) in read.items()},
    )
    for place, (until, has_gone) in archived.items():
        at, gone = read.get(place, (0, has_gone))
        needed = set[int]() if gone else set(range(at, until or 0))
        assert (TopicIdPartition(*place) in unread) is bool(needed)
        assert set(range(unread.get(TopicIdPartition(*place), 99), until or 0)) == needed


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
    assert status.readers == ()


@pytest.mark.parametrize("batch", [1, 2])
def test_messages_that_a_rewind_reads_again_are_not_dropped(tmp_path: Path, batch: int) -> None:
    offline = make_offline(tmp_path)
    values = run_batches(offline, 5)
    rewind(offline, batch)
    assert len(drop_old_messages(offline.folders, ALL)) == batch
    (reader,) = read_archive_status(offline.stream, offline.folders).readers
    assert (reader.stream, reader.first_batch) == (offline.stream.name, batch + 1)
    assert drop_old_messages(offline.folders, ALL) == ()
    offline.run(*(send(values[at : at + 2]) for at in range(2 * batch, len(values), 2)))
    assert len(drop_old_messages(offline.folders, ALL)) == 3 - batch


def add_table(offline: Offline, name: str, origin: str) -> None:
    """Add a shadow of an earlier table of a stream."""
    folders = offline.folders
    shutil.copytree(folders.root / folders.stream, folders.root / name)
    table = StreamFolders(name, folders.root).table
    named = Origin(stream=origin, table_id="t", batch=1, digest="", code="", code_digest="", at=0.0, cause="")
    OutputLog(table).commit(Proposal(kind=DESIRE, next_head=lambda base: replace(base.head, origin=named)))


def test_a_damaged_shadow_counts_as_a_reader_that_has_read_nothing(tmp_path: Path) -> None:
    """Otherwise housekeeping and the status would fail each hour."""
    offline = make_offline(tmp_path)
    run_batches(offline, 5)
    rewind(offline, 1)
    add_table(offline, "earlier", offline.stream.name)
    for name, origin in (("fix", offline.stream.name), ("another", "readings")):
        add_table(offline, name, origin)
        table = StreamFolders(name, offline.folders.root).table
        foreign = {"delta.logRetentionDuration": "interval 1 days"}
        DeltaTable(table).alter.set_table_properties(foreign)
    assert drop_old_messages(offline.folders, ALL) == ()
    shadow, stream = read_archive_status(offline.stream, offline.folders).readers
    assert (shadow.stream, shadow.first_batch) == ("fix", 1)
    assert "not a commit of lockstep" in shadow.problem
    assert (stream.stream, stream.first_batch, stream.problem) == (offline.stream.name, 2, "")
    assert len(drop_old_messages(offline.folders, ALL - HELD_LEAST)) == 3


def test_retention_waits_for_a_reader_no_longer_than_its_time_and_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offline = make_offline(tmp_path)
    run_batches(offline, 5)
    rewind(offline, 1)
    assert len(drop_old_messages(offline.folders, ALL - HELD_LEAST)) == 3
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert record.args == (offline.stream.name, 2, 3, offline.stream.name)
