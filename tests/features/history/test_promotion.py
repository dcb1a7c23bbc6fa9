"""A promotion is one commit of the restored batch, files and columns of a shadow; of competing promotions one wins."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from lockstep.errors import LockstepError, TableError
from lockstep.features.copies.backup import make_backup, restore_backup
from lockstep.features.history.promotion_commit import PromotionCommit, commit_promotion
from lockstep.features.quality.increment import find_matching_versions
from lockstep.model.table_schema import ABSENT_UP_TO
from lockstep.operations.repair import repair_stream
from lockstep.table import delta_log
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit import Base, HourClosed, OutputLog, commit_closed_hour
from lockstep.table.head import (
    Desired,
    FoldCode,
    Lineage,
    PolicyChange,
    Promotion,
    Retention,
    Rewind,
    ViolationPolicy,
)
from lockstep.table.parquet import DataFile
from lockstep.table.torn_entry import find_torn_version
from tests.support.protocol_run import HOUR, ProtocolRun, folders_in, stored_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lockstep.table.head import Head


RETAINED = Retention("2025-12-31T23", 1, 1.0, "old rows (a test)")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProtocolRun, ProtocolRun]:
    """A stream of four batches of two rows, and a shadow of three batches."""
    made = []
    for name, batches in (("readings", 4), ("readings_shadow", 3)):
        run = ProtocolRun(folders_in(tmp_path_factory.mktemp(name), name))
        run.claim()
        for _ in range(batches):
            run.batch()
        made.append(run)
    return made[0], made[1]


@pytest.fixture
def run(originals: tuple[ProtocolRun, ProtocolRun], tmp_path: Path) -> ProtocolRun:
    return originals[0].copied(tmp_path / "stream")


@pytest.fixture
def shadow(originals: tuple[ProtocolRun, ProtocolRun], tmp_path: Path) -> ProtocolRun:
    return originals[1].copied(tmp_path / "shadow")


def copied(shadow: ProtocolRun, run: ProtocolRun) -> Iterator[DataFile]:
    table = shadow.folders.table
    for file in delta_log.read_live_files(table, DeltaTable(table).version()).values():
        path = f"commit_hour={HOUR}/promoted-g2-e2-b8-{file.path[-40:]}"
        shutil.copy(table / file.path, run.folders.table / path)
        yield DataFile(path, file.size, file.rows, file.statistics, HOUR)


def planned(run: ProtocolRun, shadow: ProtocolRun, *more: Field) -> PromotionCommit:
    target = delta_log.find_head_of_batch(run.folders.table, 2)
    assert target is not None
    after = msgspec.structs.replace(run.head, generation=2, batch=7)
    return PromotionCommit(
        table=run.folders.table,
        seen=run.head,
        target=target,
        shadow=shadow.head,
        generation=2,
        batch=8,
        commit_hour=HOUR,
        files=tuple(copied(shadow, run)),
        fields=(*DeltaTable(shadow.folders.table).schema().fields, *more),
        ledger=run.ledger_file(6, 0, after),
        quarantine=(),
        late=(),
        at=1.0,
        cause="a fix (a test)",
        needs={},
    )


def test_a_savepoint_is_promoted_to_though_the_entries_after_it_are_deleted(
    run: ProtocolRun, shadow: ProtocolRun
) -> None:
    plan = planned(run, shadow)
    newest = run.output.base().version
    kept = {plan.target.batch_version, newest}
    for version in kept:
        write_checkpoint(run.folders.table, version)
    for version in set(delta_log.list_versions(run.folders.table)) - kept:
        delta_log.make_entry_path(run.folders.table, version).unlink()
    assert newest - plan.target.batch_version > 1
    run.output.commit(commit_promotion(plan))
    assert len(stored_offsets(run.folders)) == 2 * 2 + 3 * 2


def test_a_clean_up_in_the_middle_of_a_promotion_to_a_savepoint_is_no_obstacle(
    run: ProtocolRun, shadow: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(run, shadow)
    newest = run.output.base().version
    listed = delta_log.list_versions
    for version in (plan.target.batch_version, newest):
        write_checkpoint(run.folders.table, version)
    between = range(plan.target.batch_version + 1, newest)
    assert between

    def list_before(table: Path) -> list[int]:
        found = listed(table)
        for version in between:
            delta_log.make_entry_path(run.folders.table, version).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(delta_log, "list_versions", list_before)
    run.output.commit(commit_promotion(plan))
    assert len(stored_offsets(run.folders)) == 2 * 2 + 3 * 2


def test_a_promotion_is_the_restored_batch_with_the_rows_of_the_shadow(run: ProtocolRun, shadow: ProtocolRun) -> None:
    before = run.head
    landed = run.output.commit(commit_promotion(planned(run, shadow)))
    head = landed.head
    assert (head.batch, head.batch_version, head.epoch) == (8, landed.version, before.epoch + 1)
    assert (head.generation, head.lineage, head.desired) == (2, (Lineage(1, 2),), Desired.STOPPED)
    assert head.promotion == Promotion(shadow="readings_shadow", to_batch=2, first=5, batch=8)
    assert (head.batch_before, head.inherited_up_to) == (4, 5)
    assert sorted(stored_offsets(run.folders)) == sorted([0, 1, 2, 3, 0, 1, 2, 3, 4, 5])
    assert find_torn_version(run.folders.table) is None
    assert OutputLog(run.folders.table).base().head == head
    assert run.forward(head)
    assert not run.forward(head)


def promoted(run: ProtocolRun, plan: PromotionCommit, **changed: object) -> Head:
    """Return the head after a promotion of the stream's head with some changes."""
    base = run.output.base()
    head = msgspec.structs.replace(base.head, **changed)
    return commit_promotion(plan).next_head(Base(version=base.version, head=head))


def test_a_promotion_into_an_hour_that_was_closed_is_planned_again(run: ProtocolRun, shadow: ProtocolRun) -> None:
    plan = planned(run, shadow)
    OutputLog(run.folders.table).commit(commit_closed_hour(HOUR))
    with pytest.raises(HourClosed, match=f"hour {HOUR} is closed"):
        run.output.commit(commit_promotion(plan))


@pytest.mark.parametrize("gone", ["a copied data file", "a file that it brings back"])
def test_a_file_that_is_gone_refuses_the_promotion(
    run: ProtocolRun, shadow: ProtocolRun, tmp_path: Path, gone: str
) -> None:
    """Otherwise the table would become unreadable."""
    plan = planned(run, shadow)
    before = run.output.base()
    if gone == "a copied data file":
        (run.folders.table / plan.files[-1].path).unlink()
    else:
        plan = msgspec.structs.replace(plan, needs={tmp_path / "gone.state": 1})
    with pytest.raises(TableError, match=r"is missing; nothing was committed"):
        run.output.commit(commit_promotion(plan))
    assert run.output.base() == before


@pytest.mark.parametrize(("before", "since"), [(None, RETAINED), (RETAINED, None)])
def test_what_retention_dropped_after_the_target_comes_back_with_a_promotion(
    run: ProtocolRun, shadow: ProtocolRun, before: Retention | None, since: Retention | None
) -> None:
    plan = planned(run, shadow)
    target = msgspec.structs.replace(plan.target, retention=before)
    plan = msgspec.structs.replace(plan, target=target, seen=msgspec.structs.replace(plan.seen, retention=since))
    assert promoted(run, plan, retention=since).retention == before


def test_a_promotion_is_a_rewind_whose_version_stays_loadable(run: ProtocolRun, shadow: ProtocolRun) -> None:
    """It has files that are neither in the floor's version nor in the version of a later rewind."""
    landed = run.output.commit(commit_promotion(planned(run, shadow)))
    assert landed.head.rewinds == (Rewind(8, landed.version, 2, 4, "a fix (a test)"),)
    assert landed.head.kept_versions == {8: landed.version}


def test_a_halted_stream_that_was_held_stays_held_after_a_promotion(run: ProtocolRun, shadow: ProtocolRun) -> None:
    plan = planned(run, shadow)
    assert promoted(run, plan, desired=Desired.HALTED, resumes_as=Desired.HELD).desired is Desired.HELD
    assert promoted(run, plan, desired=Desired.HALTED, resumes_as=Desired.RUNNING).desired is Desired.STOPPED


def test_code_and_policies_of_the_shadow_begin_with_batches_of_the_stream(
    run: ProtocolRun, shadow: ProtocolRun
) -> None:
    """Batch 2 of the shadow becomes batch 6; batches of the stream count up to batch 4."""
    halts = ViolationPolicy()
    suspends = ViolationPolicy(suspends=True)
    plan = planned(run, shadow)
    of_shadow = msgspec.structs.replace(
        plan.shadow, code=FoldCode("new", 2), policies=(PolicyChange(1, halts), PolicyChange(2, suspends))
    )
    plan = msgspec.structs.replace(plan, shadow=of_shadow)
    head = promoted(run, plan, code=FoldCode("old", 1), policies=(PolicyChange(1, halts), PolicyChange(5, suspends)))
    assert head.code == FoldCode("new", 6)
    assert head.policies == (PolicyChange(1, halts), PolicyChange(6, suspends))
    assert promoted(run, plan, code=FoldCode("new", 3)).code == FoldCode("new", 3)


def test_a_column_that_the_shadow_got_later_is_absent_up_to_that_batch_of_the_stream(
    run: ProtocolRun, shadow: ProtocolRun
) -> None:
    """Column `venue` exists since the start of the shadow, batch 5; `later` since its batch 3, now batch 7."""
    later = Field("later", PrimitiveType("string"), metadata={ABSENT_UP_TO: 2})
    run.output.commit(commit_promotion(planned(run, shadow, Field("venue", PrimitiveType("string")), later)))
    fields = {field.name: field.metadata for field in DeltaTable(run.folders.table).schema().fields}
    assert (fields["venue"][ABSENT_UP_TO], fields["later"][ABSENT_UP_TO]) == (5, 6)


def test_a_ledger_that_lacks_a_promotion_is_behind_and_nothing_is_lost(
    run: ProtocolRun, shadow: ProtocolRun, tmp_path: Path
) -> None:
    """A kill between the commit and the side tables: a start, a repair or a restore brings the ledger forward."""
    before = run.output.base()
    head = run.output.commit(commit_promotion(planned(run, shadow))).head
    assert find_matching_versions(run.folders).table == before.version
    make_backup(run.folders, tmp_path / "copy")
    found = {check.check: check.condition for check in repair_stream(run.folders, apply=False).checks}
    assert found["ledger"] == "repairable"
    repaired = {check.check: check.condition for check in repair_stream(run.folders, apply=True).checks}
    assert repaired["ledger"] == "repaired"
    assert not run.forward(head)
    assert find_matching_versions(run.folders).batch == head.batch
    restored = folders_in(tmp_path / "restored")
    restore_backup(restored, tmp_path / "copy")
    assert find_matching_versions(restored).batch == head.batch


def test_columns_of_the_shadow_come_with_the_same_commit(run: ProtocolRun, shadow: ProtocolRun) -> None:
    write_checkpoint(run.folders.table)
    landed = run.output.commit(commit_promotion(planned(run, shadow, Field("venue", PrimitiveType("string")))))
    table = DeltaTable(run.folders.table)
    (added,) = (field for field in table.schema().fields if field.name == "venue")
    assert (table.version(), added.metadata[ABSENT_UP_TO]) == (landed.version, 5)
    assert table.to_pyarrow_table()["venue"].null_count == 10
    assert DeltaTable(run.folders.table, version=landed.version - 1).to_pyarrow_table().num_rows == 8


def test_of_promotions_and_a_batch_at_once_one_wins(run: ProtocolRun, shadow: ProtocolRun) -> None:
    first = planned(run, shadow)
    second = planned(run, shadow)
    batch = run.prepared()
    others = [OutputLog(run.folders.table) for _ in range(2)]

    def promote(output: OutputLog, plan: PromotionCommit) -> bool:
        try:
            output.commit(commit_promotion(plan))
        except LockstepError:
            return False
        return True

    def write() -> bool:
        try:
            run.commit(batch)
        except LockstepError:
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(promote, *each) for each in zip(others, (first, second), strict=True)]
        asked.append(pool.submit(write))
        won = [each.result() for each in asked]
    assert sum(won) == 1
    head = OutputLog(run.folders.table).base().head
    assert head.batch == (5 if won[2] else 8)
    assert len(stored_offsets(run.folders)) == 10
