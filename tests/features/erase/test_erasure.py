"""An erasure is one commit: its demands on the base, and the parts of the head that it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.errors import Fenced, TableError
from lockstep.features.erase.commit import (
    ErasureCommit,
    ErasureOvertaken,
    commit_erasure,
    finish_erasure,
)
from lockstep.features.erase.commit_kinds import ERASE
from lockstep.features.history.rewind_commit import add_savepoint
from lockstep.table import delta_log
from lockstep.table.commit import Base, HourClosed, OutputLog, commit_closed_hour
from lockstep.table.head import Erasure, Savepoint
from lockstep.table.session_digest import compute_session_digest
from tests.support.protocol_run import HOUR, ProtocolRun, folders_in, stored_offsets

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = compute_session_digest("table", "s")
KEPT = Savepoint("kept", 1, 2, 0.0, "a test")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    """A run with three commits of two rows."""
    run = ProtocolRun(folders_in(tmp_path_factory.mktemp("original")))
    run.claim()
    for _ in range(3):
        run.batch()
    return run


@pytest.fixture
def run(original: ProtocolRun, tmp_path: Path) -> ProtocolRun:
    return original.copied(tmp_path / "copy")


def planned(run: ProtocolRun, *drops: str) -> ErasureCommit:
    """Return an erasure that removes no rows: rewritten files are not tested here."""
    after = msgspec.structs.replace(run.head, epoch=run.head.epoch + 1)
    file = run.ledger_file(run.next_offset(), 0, after)
    return ErasureCommit(
        seen=run.head,
        digest=DIGEST,
        topic="",
        commit_hour=HOUR,
        ledger=file,
        adds=(),
        removes=(),
        needs={run.folders.ledger / file.path: file.size},
        drops=drops,
        at=1.0,
        cause="asked for (a test)",
    )


def anything(base: Base) -> None:
    """Accept any base."""
    del base


def test_an_erasure_is_the_next_batch_and_nothing_before_it_can_be_had_back(run: ProtocolRun) -> None:
    run.rewind(1)
    run.claim()
    run.output.commit(add_savepoint(KEPT))
    before = run.output.base()
    landed = run.output.commit(commit_erasure(planned(run, "kept"), anything))
    head = landed.head
    assert (head.batch, head.batch_version, head.epoch) == (5, landed.version, before.head.epoch + 1)
    assert (before.head.rewinds, before.head.savepoints) != ((), ())
    assert (head.rewind_floor, head.rewinds, head.savepoints, head.full_ledger_batch) == (5, (), (), 5)
    assert head.erasure == Erasure(
        digest=DIGEST, topic="", batch=5, version=landed.version, at=1.0, cause="asked for (a test)"
    )
    entry = delta_log.read_entry(run.folders.table, landed.version)
    assert entry is not None
    assert (entry.kind, entry.cause) == (ERASE.name, "")  # a cause in the log would outlive the head
    assert run.forward(head)


def test_a_batch_or_a_savepoint_that_comes_first_refuses_the_erasure(run: ProtocolRun) -> None:
    plan = planned(run)
    OutputLog(run.folders.table).commit(add_savepoint(KEPT))
    with pytest.raises(ErasureOvertaken, match="batch 3 or a savepoint was committed since"):
        run.output.commit(commit_erasure(plan, anything))
    accepting = planned(run, "kept")
    run.batch()
    with pytest.raises(ErasureOvertaken, match="batch 4 or a savepoint was committed since"):
        run.output.commit(commit_erasure(accepting, anything))
    assert run.output.base().head.erasure is None


@pytest.mark.parametrize("overtaken_by", ["a claim", "a rewind"])
def test_another_writer_that_comes_first_fences_the_erasure(run: ProtocolRun, overtaken_by: str) -> None:
    plan = planned(run)
    other = ProtocolRun(run.folders)
    if overtaken_by == "a claim":
        other.claim()
    else:
        other.rewind(2)
    with pytest.raises(Fenced):
        run.output.commit(commit_erasure(plan, anything))
    assert run.output.base().head.erasure is None


def test_an_erasure_into_an_hour_that_was_closed_is_planned_again(run: ProtocolRun) -> None:
    plan = planned(run)
    OutputLog(run.folders.table).commit(commit_closed_hour(HOUR))
    with pytest.raises(HourClosed, match=f"hour {HOUR} is closed"):
        run.output.commit(commit_erasure(plan, anything))


def test_a_file_that_is_gone_refuses_the_erasure(run: ProtocolRun, tmp_path: Path) -> None:
    plan = msgspec.structs.replace(planned(run), needs={tmp_path / "gone.state": 1})
    with pytest.raises(TableError, match=r"gone\.state is missing; nothing was committed"):
        run.output.commit(commit_erasure(plan, anything))
    assert stored_offsets(run.folders) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("digest", "batch", "finished"),
    [(DIGEST, 4, True), (DIGEST, 3, False), (compute_session_digest("table", "other"), 4, False)],
)
def test_an_erasure_is_finished_by_the_one_who_worked_on_it(
    run: ProtocolRun, digest: str, batch: int, *, finished: bool
) -> None:
    """A process suspended for days may resume during another erasure, whose side tables are not rewritten."""
    run.output.commit(commit_erasure(planned(run), anything))
    head = run.output.commit(finish_erasure(digest, batch)).head
    assert head.erasure is not None
    assert head.erasure.is_finished is finished


def test_a_digest_stands_for_one_session_of_one_table() -> None:
    """The digest from one table does not find the session in another table."""
    named = [("a", "s"), ("b", "s"), ("a", "t"), ("a", "\ns"), ("a", "\ud800")]
    assert len({compute_session_digest(*each) for each in named}) == len(named)
    assert compute_session_digest("a", "s") == compute_session_digest("a", "s")
