"""Side tables follow the output table: at most the last batch is missing, and a start adds it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from deltalake import DeltaTable

from lockstep.errors import TableError
from lockstep.features.compaction.ledger_files import compact_ledger
from lockstep.table import delta_log, ledger, side_tables
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.foreign_commits import ForeignCommit
from lockstep.table.quarantine import QuarantineRow, write_quarantine
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.head import SideBatch
    from lockstep.table.layout import StreamFolders


@pytest.fixture
def folders(tmp_path: Path) -> StreamFolders:
    return folders_in(tmp_path)


@pytest.fixture
def run(folders: StreamFolders) -> ProtocolRun:
    """Return a run with one batch, and its ledger moved forward."""
    claimed = ProtocolRun(folders)
    claimed.claim()
    claimed.batch()
    return claimed


def batches_in_ledger(folders: StreamFolders) -> list[int]:
    return [row.batch for row in ledger.read_ledger(folders.ledger)]


def test_before_the_first_batch_there_is_nothing_to_bring_forward(folders: StreamFolders) -> None:
    fresh = ProtocolRun(folders)
    assert not fresh.forward(fresh.head)
    assert batches_in_ledger(folders) == []


def test_a_ledger_that_is_behind_by_one_is_brought_forward(folders: StreamFolders, run: ProtocolRun) -> None:
    landed = run.commit(run.prepared())
    assert batches_in_ledger(folders) == [1]
    assert run.forward(landed.head)
    assert batches_in_ledger(folders) == [1, 2]


def test_a_log_kept_open_follows_where_housekeeping_deleted_what_it_had_read(
    folders: StreamFolders, run: ProtocolRun
) -> None:
    """While the topics were silent, compactions added entries, and a log checkpoint made earlier entries needless."""
    kept = side_tables.SideLogs(folders)
    for _ in range(3):
        for _ in range(2):
            kept.catch_up(run.commit(run.prepared(full=True)).head)
        run.clock += timedelta(hours=1)
    compact_ledger(folders, run.head)
    newest = DeltaTable(folders.ledger).version()
    write_checkpoint(folders.ledger)
    for version in range(newest):
        delta_log.make_entry_path(folders.ledger, version).unlink()
    assert newest - dict(kept.list_versions())[folders.ledger] > 1
    assert kept.catch_up(run.commit(run.prepared(full=True)).head)
    assert batches_in_ledger(folders) == list(range(1, 9))


def test_an_addition_to_a_table_that_few_batches_add_to_names_the_one_before(run: ProtocolRun) -> None:
    """The batch of the previous addition shows whether the table lacks only the last addition."""
    added: list[SideBatch | None] = []
    for number in range(2, 7):
        row = QuarantineRow(
            generation=1, batch=number, topic_id="id", topic="t", partition=0, offset=number, session="s", cause="gap",
            expected="1", found="2", timestamp=None, key=b"k", value=b"v", value_bytes=1, headers=[],
        )  # fmt: skip
        files = (write_quarantine(run.folders.quarantine, [row], label=f"g1-e1-b{number}"),) if number % 2 else ()
        run.forward(run.commit(msgspec.structs.replace(run.prepared(), quarantine=files)).head)
        added.append(run.head.quarantine)
    assert [(each.batch, each.after) for each in added if each is not None] == [(3, 0), (3, 0), (5, 3), (5, 3)]
    assert DeltaTable(run.folders.quarantine).to_pyarrow_table()["batch"].to_pylist() in ([3, 5], [5, 3])


def test_a_log_kept_open_follows_batch_by_batch_and_what_others_bring_forward(
    folders: StreamFolders, run: ProtocolRun
) -> None:
    kept = side_tables.SideLog(folders.ledger)
    for number in (2, 3, 4):
        head = run.commit(run.prepared()).head
        assert head.ledger is not None
        if number == 3:
            assert side_tables.SideLog(folders.ledger).catch_up([head.ledger], number, after=number - 1)
        assert kept.catch_up([head.ledger], number, after=number - 1) is (number != 3)
    assert batches_in_ledger(folders) == [1, 2, 3, 4]


def test_a_ledger_that_is_level_is_left_alone(folders: StreamFolders, run: ProtocolRun) -> None:
    version = DeltaTable(folders.ledger).version()
    assert not run.forward(run.head)
    assert DeltaTable(folders.ledger).version() == version


def test_a_ledger_that_is_behind_by_two_is_refused(folders: StreamFolders, run: ProtocolRun) -> None:
    run.commit(run.prepared())
    run.commit(run.prepared())
    with pytest.raises(TableError) as refused:
        run.forward(run.head)
    assert refused.value.problem == (
        f"{folders.ledger} holds batch 1, the output table batch 3: they differ by more than the last addition"
    )
    assert batches_in_ledger(folders) == [1]


def test_a_ledger_that_is_ahead_is_refused(folders: StreamFolders, run: ProtocolRun) -> None:
    before = run.head
    run.batch()
    with pytest.raises(TableError, match="holds batch 2, the output table batch 1"):
        run.forward(before)
    del folders


def test_a_ledger_file_that_is_gone_is_refused(folders: StreamFolders, run: ProtocolRun) -> None:
    landed = run.commit(run.prepared())
    assert landed.head.ledger is not None
    (folders.ledger / landed.head.ledger.path).unlink()
    with pytest.raises(TableError, match=r"is named by the last batch but is missing or has another size"):
        run.forward(landed.head)


def test_a_ledger_file_that_was_cut_is_refused(folders: StreamFolders, run: ProtocolRun) -> None:
    landed = run.commit(run.prepared())
    assert landed.head.ledger is not None
    path = folders.ledger / landed.head.ledger.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TableError, match="another size"):
        run.forward(landed.head)


def test_a_run_that_died_between_the_two_commits_is_completed_by_the_next(
    folders: StreamFolders, run: ProtocolRun
) -> None:
    run.commit(run.prepared(rows=5))
    successor = ProtocolRun(folders)
    successor.claim()
    assert batches_in_ledger(folders) == [1, 2]
    assert successor.next_offset() == 7
    successor.batch(rows=1)
    assert successor.next_offset() == 8


def test_several_processes_may_bring_it_forward_at_once(folders: StreamFolders, run: ProtocolRun) -> None:
    for _ in range(5):
        head = run.commit(run.prepared()).head
        with ThreadPoolExecutor(3) as pool:
            done = list(pool.map(lambda _, head=head: side_tables.SideLogs(folders).catch_up(head), range(3)))
        assert done.count(True) == 1
    assert batches_in_ledger(folders) == [1, 2, 3, 4, 5, 6]


def test_a_log_checkpoint_of_the_ledger_by_somebody_else_does_no_harm_and_a_commit_is_refused(
    folders: StreamFolders, run: ProtocolRun
) -> None:
    """A foreign commit may be of any kind: a RESTORE removes batches from the ledger."""
    DeltaTable(folders.ledger).create_checkpoint()
    run.batch()
    assert batches_in_ledger(folders) == [1, 2]
    DeltaTable(folders.ledger).alter.set_table_properties({"delta.logRetentionDuration": "interval 31 days"})
    with pytest.raises(ForeignCommit, match="is SET TBLPROPERTIES"):
        run.batch()


def test_who_looks_beside_a_writer_that_has_gone_on_meanwhile_is_no_alarm(
    folders: StreamFolders, run: ProtocolRun
) -> None:
    """Compaction and housekeeping read a head, and the writer commits more before they read the side tables."""
    looked = run.head
    run.batch()
    run.batch()
    side_tables.catch_up_alongside_writer(folders, looked)
    late = run.commit(run.prepared())
    side_tables.catch_up_alongside_writer(folders, late.head)
    assert batches_in_ledger(folders) == [1, 2, 3, 4]
    run.folders.table.joinpath("_delta_log", f"{late.version:020d}.json").unlink()
    with pytest.raises(TableError, match="holds batch 4"):
        side_tables.catch_up_alongside_writer(folders, msgspec.structs.replace(late.head, batch=3))
