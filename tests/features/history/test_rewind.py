"""A rewind is one commit: a claim, a batch and the restored table; of competing commits one wins."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest
from deltalake import DeltaTable

from lockstep.errors import Fenced, TableError
from lockstep.features.history.rewind_commit import (
    SAVEPOINTS_MAX,
    add_savepoint,
    commit_rewind,
    drop_savepoint,
    find_savepoint,
)
from lockstep.model.finding import Finding
from lockstep.operations.past_batches import NotRewindable, check_rewindable, read_head_of_batch
from lockstep.table import delta_log, ledger, transactions
from lockstep.table.commit import (
    Base,
    HourClosed,
    OutputLog,
    commit_closed_hour,
    raise_rewind_floor,
    set_desired_state,
)
from lockstep.table.foreign_commits import ForeignCommit
from lockstep.table.head import Desired, Erasure, Lineage, Origin, Promotion, Retention, Savepoint
from lockstep.table.torn_entry import find_torn_version
from tests.support.protocol_run import HOUR, ProtocolRun, folders_in, stored_offsets

if TYPE_CHECKING:
    from pathlib import Path


RETAINED = Retention("2025-12-31T23", 1, 1.0, "old rows (a test)")
RETAINED_LATER = Retention("2026-01-01T02", 3, 2.0, "older rows (a test)")
PROMOTED = Promotion(shadow="first", to_batch=0, first=1, batch=2)
PROMOTED_LATER = Promotion(shadow="second", to_batch=2, first=3, batch=4)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    """A run with four commits of two rows."""
    run = ProtocolRun(folders_in(tmp_path_factory.mktemp("original")))
    run.claim()
    for _ in range(4):
        run.batch()
    return run


@pytest.fixture
def run(original: ProtocolRun, tmp_path: Path) -> ProtocolRun:
    return original.copied(tmp_path / "copy")


def savepoint(run: ProtocolRun, name: str, batch: int) -> Savepoint:
    head = delta_log.find_head_of_batch(run.folders.table, batch)
    assert head is not None
    return Savepoint(name, batch, head.batch_version, 0.0, "a test")


def test_a_rewind_is_the_next_batch_of_a_new_generation_and_leaves_the_stream_stopped(run: ProtocolRun) -> None:
    before = run.head
    landed = run.rewind(2)
    head = landed.head
    assert (head.batch, head.batch_version, head.epoch) == (5, landed.version, before.epoch + 1)
    assert (head.generation, head.lineage) == (2, (Lineage(1, 2),))
    assert head.valid_batches == {1: 2, 2: 5}
    assert (head.desired, head.reason) == (Desired.STOPPED, "rewound to batch 2: wrong rows (a test)")
    assert stored_offsets(run.folders) == [0, 1, 2, 3]
    handle = DeltaTable(run.folders.table)
    numbers = {
        name: handle.transaction_version(name)
        for name in (transactions.BATCH, transactions.EPOCH, transactions.VERSION)
    }
    assert numbers == {transactions.BATCH: 5, transactions.EPOCH: head.epoch, transactions.VERSION: landed.version}
    assert find_torn_version(run.folders.table) is None


def test_a_hold_outlives_a_rewind(run: ProtocolRun) -> None:
    run.head = run.output.commit(set_desired_state(run.writer, Desired.HELD, "the disk (ann)")).head
    head = run.rewind(2).head
    assert (head.desired, head.reason) == (Desired.HELD, "the disk (ann)")


@pytest.mark.parametrize("resumes_as", list(Desired))
def test_a_hold_of_a_halted_stream_outlives_a_rewind_and_nothing_else_does(
    run: ProtocolRun, resumes_as: Desired
) -> None:
    """An operator held the halted stream: the hold starts with the resumption."""
    finding = Finding(cause="gap", topic="t", topic_id="id", partition=0, offset=4, until=5, session="s")
    rewind = run.prepared_rewind(2)
    halted = msgspec.structs.replace(
        run.head, desired=Desired.HALTED, reason=str(finding), findings=(finding,), resumes_as=resumes_as
    )
    head = commit_rewind(rewind).next_head(Base(version=run.output.base().version, head=halted))
    assert head.desired is (Desired.HELD if resumes_as is Desired.HELD else Desired.STOPPED)
    assert head.findings == ()


def test_a_hold_that_was_released_before_a_rewind_does_not_come_back(run: ProtocolRun) -> None:
    """A release changes only the desired state, not the state to resume into."""
    released = msgspec.structs.replace(run.head, desired=Desired.BOUNDED, resumes_as=Desired.HELD)
    head = commit_rewind(run.prepared_rewind(2)).next_head(Base(version=9, head=released))
    assert head.desired is Desired.STOPPED


@pytest.mark.parametrize(("before", "since"), [(None, RETAINED), (RETAINED, None), (RETAINED, RETAINED_LATER)])
def test_what_retention_dropped_after_the_target_comes_back_with_a_rewind(
    run: ProtocolRun, before: Retention | None, since: Retention | None
) -> None:
    """The rows return: if the head counted them as dropped, the proof would expect none of them."""
    rewind = run.prepared_rewind(2)
    rewind = msgspec.structs.replace(rewind, target=msgspec.structs.replace(rewind.target, retention=before))
    now = msgspec.structs.replace(run.head, retention=since)
    rewind = msgspec.structs.replace(rewind, seen=msgspec.structs.replace(rewind.seen, retention=since))
    assert commit_rewind(rewind).next_head(Base(version=9, head=now)).retention == before


@pytest.mark.parametrize(("before", "since"), [(None, PROMOTED), (PROMOTED, None), (PROMOTED, PROMOTED_LATER)])
def test_a_promotion_after_the_target_is_undone_with_a_rewind(
    run: ProtocolRun, before: Promotion | None, since: Promotion | None
) -> None:
    rewind = run.prepared_rewind(2)
    rewind = msgspec.structs.replace(rewind, target=msgspec.structs.replace(rewind.target, promotion=before))
    now = msgspec.structs.replace(run.head, promotion=since)
    head = commit_rewind(rewind).next_head(Base(version=9, head=now))
    assert head.promotion == before
    assert head.inherited_up_to == (0 if before is None else before.first)


def test_the_next_run_goes_on_where_the_target_ended(run: ProtocolRun) -> None:
    run.rewind(2)
    after = ProtocolRun(run.folders)
    after.claim()
    after.batch(rows=3)
    assert stored_offsets(run.folders) == [0, 1, 2, 3, 4, 5, 6]
    assert [row.start for row in ledger.read_ledger(run.folders.ledger)] == [0, 2, 4, 6, 4, 4]


def test_a_rewind_is_taken_back_by_another_to_a_batch_that_it_undid(run: ProtocolRun) -> None:
    run.rewind(1)
    run.rewind(4)
    assert stored_offsets(run.folders) == list(range(8))
    assert run.head.valid_batches == {1: 4, 3: 6}


def test_a_rewind_forgets_the_generations_that_its_target_did_not_know(run: ProtocolRun) -> None:
    """Their batches counted up to the second rewind and are undone by the third."""
    run.rewind(2)
    run.claim()
    run.batch()
    run.batch()
    run.rewind(6)
    assert run.head.valid_batches == {1: 2, 2: 6, 3: 8}
    run.rewind(4)
    assert run.head.lineage == (Lineage(1, 4),)
    assert run.head.valid_batches == {1: 4, 4: 9}
    assert stored_offsets(run.folders) == list(range(8))


def test_positions_as_of_a_batch_leave_out_what_a_rewind_before_it_undid(run: ProtocolRun) -> None:
    run.rewind(2)
    run.claim()
    run.batch(rows=1)
    positions = ledger.read_positions_at(run.folders, 6)
    assert [(row.generation, row.until) for row in positions.values()] == [(2, 5)]
    assert [row.until for row in ledger.read_positions_at(run.folders, 4).values()] == [8]


def test_positions_as_of_a_batch_leave_out_a_partition_that_a_rewind_before_it_undid(run: ProtocolRun) -> None:
    """A read from its undone position would skip the messages before it."""
    row = msgspec.structs.replace(next(iter(ledger.read_positions(run.folders, run.head).values())), batch=5)
    appeared = [row, msgspec.structs.replace(row, partition=1)]
    batch = msgspec.structs.replace(run.prepared(rows=0), ledger=ledger.write_ledger(run.folders.ledger, appeared))
    run.forward(run.commit(batch).head)
    assert [partition for _, partition in ledger.read_positions_at(run.folders, 5)] == [0, 1]
    run.rewind(2)
    assert [partition for _, partition in ledger.read_positions_at(run.folders, 6)] == [0]


def test_what_was_written_for_an_earlier_generation_cannot_be_committed(run: ProtocolRun) -> None:
    prepared = run.prepared()
    ProtocolRun(run.folders).rewind(2)
    with pytest.raises(Fenced):
        run.commit(prepared)
    assert stored_offsets(run.folders) == [0, 1, 2, 3]


def test_a_batch_that_lands_first_refuses_the_rewind_by_name(run: ProtocolRun) -> None:
    rewind = ProtocolRun(run.folders).prepared_rewind(2)
    run.batch()
    with pytest.raises(NotRewindable, match="batch 5 was committed since it was planned after batch 4"):
        run.output.commit(commit_rewind(rewind))
    assert stored_offsets(run.folders) == list(range(10))


def test_of_many_rewinds_at_once_one_wins_and_the_others_change_nothing(run: ProtocolRun) -> None:
    runs = [ProtocolRun(run.folders) for _ in range(4)]
    rewinds = [each.prepared_rewind(1 + number % 3) for number, each in enumerate(runs)]
    together = threading.Barrier(len(runs))

    def go(number: int) -> bool:
        together.wait()
        try:
            runs[number].output.commit(commit_rewind(rewinds[number]))
        except Fenced:
            return False
        return True

    with ThreadPoolExecutor(len(runs)) as pool:
        won = list(pool.map(go, range(len(runs))))
    assert won.count(True) == 1
    assert stored_offsets(run.folders) == list(range(2 * (1 + won.index(True) % 3)))
    head = run.output.base().head
    assert (head.batch, head.generation, head.epoch) == (5, 2, run.head.epoch + 1)


def test_a_harmless_commit_in_between_does_not_stop_it(run: ProtocolRun) -> None:
    rewind = run.prepared_rewind(2, "2026-01-01T01")
    OutputLog(run.folders.table).commit(commit_closed_hour(HOUR))
    landed = run.output.commit(commit_rewind(rewind))
    assert (landed.head.closed_hour, landed.head.hour) == (HOUR, "2026-01-01T01")


def test_a_rewind_into_an_hour_that_was_closed_is_planned_again(run: ProtocolRun) -> None:
    rewind = run.prepared_rewind(2)
    OutputLog(run.folders.table).commit(commit_closed_hour(HOUR))
    with pytest.raises(HourClosed):
        run.output.commit(commit_rewind(rewind))


def test_a_floor_that_was_raised_meanwhile_refuses_the_rewind(run: ProtocolRun) -> None:
    rewind = run.prepared_rewind(2)
    OutputLog(run.folders.table).commit(raise_rewind_floor(1, 3))
    with pytest.raises(NotRewindable, match="the rewind floor is batch 3"):
        run.output.commit(commit_rewind(rewind))
    assert len(stored_offsets(run.folders)) == 8


def test_a_file_that_is_gone_refuses_the_rewind(run: ProtocolRun) -> None:
    gone = run.folders.state / "gone.state"
    rewind = run.prepared_rewind(2)
    with pytest.raises(TableError, match=r"gone\.state is missing; nothing was committed"):
        run.output.commit(commit_rewind(msgspec.structs.replace(rewind, needs={gone: 1})))


def test_a_vacuum_that_has_begun_refuses_the_rewind(run: ProtocolRun) -> None:
    rewind = run.prepared_rewind(2)
    (run.folders.table / f"commit_hour={HOUR}" / "orphan.parquet").write_bytes(b"")
    table = DeltaTable(run.folders.table)
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(ForeignCommit, match="VACUUM"):
        run.output.commit(commit_rewind(rewind))


def test_a_savepoint_below_the_floor_can_be_rewound_to_until_it_is_deleted(run: ProtocolRun) -> None:
    run.output.commit(add_savepoint(savepoint(run, "release", 1)))
    run.output.commit(raise_rewind_floor(1, 4))
    head = run.output.base().head
    assert [head.may_rewind_to(batch) for batch in range(6)] == [False, True, False, False, True, False]
    assert head.kept_versions == {1: 2}
    dropped = run.output.commit(drop_savepoint("release", "a test")).head
    with pytest.raises(NotRewindable, match="files of earlier batches may be deleted"):
        check_rewindable(dropped, 1)


def test_the_start_needs_no_files_but_all_messages_and_an_empty_state(run: ProtocolRun) -> None:
    run.output.commit(raise_rewind_floor(1, 4))
    head = run.output.base().head
    assert read_head_of_batch(run.folders, head, 0).files_version is None
    erasure = Erasure(digest="d", topic="", batch=3, version=4, at=0.0, cause="a test")
    with pytest.raises(NotRewindable, match="batch 3 erased a session, whose messages would be read again"):
        check_rewindable(msgspec.structs.replace(head, erasure=erasure), 0)
    origin = Origin(stream="o", table_id="t", batch=1, digest="d", code="", code_digest="", at=0.0, cause="a test")
    with pytest.raises(NotRewindable, match="took over state and positions"):
        check_rewindable(msgspec.structs.replace(head, origin=origin), 0)


def test_a_batch_whose_files_may_be_deleted_is_kept_by_no_savepoint(run: ProtocolRun) -> None:
    late = savepoint(run, "late", 1)
    run.output.commit(raise_rewind_floor(1, 2))
    with pytest.raises(NotRewindable, match="files of earlier batches may be deleted"):
        run.output.commit(add_savepoint(late))
    with pytest.raises(NotRewindable, match="the last batch is 4"):
        run.output.commit(add_savepoint(msgspec.structs.replace(late, batch=5)))
    assert run.output.base().head.savepoints == ()


def test_savepoints_have_names_of_their_own_and_a_limit(run: ProtocolRun) -> None:
    run.output.commit(add_savepoint(savepoint(run, "s", 1)))
    with pytest.raises(TableError, match="has a savepoint s already"):
        run.output.commit(add_savepoint(savepoint(run, "s", 2)))
    with pytest.raises(TableError, match="no savepoint 'other'"):
        find_savepoint(run.output.base().head, "other")
    for number in range(SAVEPOINTS_MAX - 1):
        run.output.commit(add_savepoint(savepoint(run, f"s{number}", 1)))
    with pytest.raises(TableError, match="the maximum"):
        run.output.commit(add_savepoint(savepoint(run, "more", 1)))


def test_a_floor_forgets_the_rewinds_before_it(run: ProtocolRun) -> None:
    run.rewind(2)
    assert [each.batch for each in run.head.rewinds] == [5]
    assert run.output.commit(raise_rewind_floor(2, 4)).head.rewinds == run.head.rewinds
    assert run.output.commit(raise_rewind_floor(2, 5)).head.rewinds == ()


def test_a_writer_goes_on_beside_a_savepoint(run: ProtocolRun) -> None:
    OutputLog(run.folders.table).commit(add_savepoint(savepoint(run, "s", 3)))
    assert run.batch().head.savepoints[0].name == "s"


def test_a_time_of_which_only_the_entry_of_a_savepoint_is_left_names_no_batch(run: ProtocolRun) -> None:
    folder = run.folders.table
    at = {version: entry.written_at for version in range(2, 6) if (entry := delta_log.read_entry(folder, version))}
    between = at[3]
    last = at[5]
    assert between is not None
    assert last is not None
    for version in (3, 4):  # as housekeeping does for a savepoint of batch 1
        delta_log.make_entry_path(folder, version).unlink()
    assert delta_log.find_head_at(folder, between) is None
    found = delta_log.find_head_at(folder, last)
    assert found is not None
    assert found.batch == 4
