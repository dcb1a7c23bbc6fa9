"""The deletion of a savepoint: the plan names the loss; only the planned savepoint is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.errors import TableError
from lockstep.features.history.rewind_commit import drop_savepoint
from lockstep.features.history.savepoint import list_savepoints, make_savepoint, prepare_deletion
from lockstep.operations.plan_frame import Refused
from lockstep.table.commit import raise_rewind_floor
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.history.savepoint import SavepointDeletion, SavepointList
    from lockstep.operations.plan_frame import Prepared

NAME = "kept"


@pytest.fixture
def run(tmp_path: Path) -> ProtocolRun:
    """A run of four batches with a savepoint of batch 2."""
    run = ProtocolRun(folders_in(tmp_path))
    run.claim()
    for _ in range(4):
        run.batch()
    make_savepoint(run.folders, NAME, who="ann", why="a test", at="2")
    return run


def prepare(run: ProtocolRun) -> Prepared[SavepointDeletion, SavepointList]:
    return prepare_deletion(run.folders, NAME, who="ann", why="released")


def name_savepoints(run: ProtocolRun) -> list[str]:
    return [each.name for each in list_savepoints(run.folders).savepoints]


def test_the_savepoint_that_was_shown_is_deleted(run: ProtocolRun) -> None:
    prepared = prepare(run)
    assert (prepared.plan.savepoint.batch, name_savepoints(run)) == (2, [NAME])
    assert prepared.commit().savepoints == ()


@pytest.mark.parametrize(("floor", "note"), [(1, "stays restorable"), (3, "cannot be restored afterwards")])
def test_the_plan_tells_whether_the_batch_stays_restorable(run: ProtocolRun, floor: int, note: str) -> None:
    run.output.commit(raise_rewind_floor(run.head.generation, floor))
    (found,) = prepare(run).plan.describe().notes
    assert note in found


def test_another_savepoint_of_the_name_is_not_deleted(run: ProtocolRun) -> None:
    prepared = prepare(run)
    run.output.commit(drop_savepoint(NAME, "a test"))
    make_savepoint(run.folders, NAME, who="bob", why="another", at="3")
    with pytest.raises(Refused, match="the plan has changed since it was shown: savepoint was"):
        prepared.commit()
    assert name_savepoints(run) == [NAME]


def test_a_savepoint_that_is_gone_is_named(run: ProtocolRun) -> None:
    prepared = prepare(run)
    run.output.commit(drop_savepoint(NAME, "a test"))
    with pytest.raises(TableError, match=NAME):
        prepared.commit()
