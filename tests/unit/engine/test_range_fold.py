"""The fold of one range: sessions suspended at gaps of the log, and a message that fails half-way."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from lockstep import LogOnly, Strict, Suspend
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.engine.executor.fold import RangeFold
from lockstep.engine.executor.outcome import MessageFailed
from lockstep.engine.executor.rejects import Exclusions
from lockstep.model.position import Position
from lockstep.state.changelog import make_state_version
from lockstep.state.local_store_pool import LocalStorePool
from lockstep.state.store import PartitionState
from lockstep.testing.script import InLog
from tests.support.adding_stream import POISON, Snapshot, Update, adding

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.declare.stream import AnyStream

SUSPENDING = cast("AnyStream", adding("t", Strict(evidence=LogOnly(), on_violation=Suspend())))
START = Position(topic="t", topic_id="id", partition=0, next_offset=0)


def fold(
    folder: Path, messages: dict[int, Snapshot | Update], reached: int, position: Position = START, gap_end: int = 0
) -> RangeFold:
    """The fold of messages of one session, by offset, with a gap that nothing explains before an offset."""
    compiled, address = compile_stream(SUSPENDING), make_state_version(1, position)
    pool = LocalStorePool(folder / "local", folder / "state")
    with PartitionState[object].open(address, durable=folder, local_stores=pool, schema=compiled.state) as state:
        folded = RangeFold(compiled, position, state, Exclusions(suspend_at=(gap_end,) if gap_end else ()))
        folded.fold([InLog(at, b"s", msgspec.json.encode(message)) for at, message in messages.items()])
        folded.finish(reached)
    return folded


def rejected(folded: RangeFold) -> list[int]:
    return [row.offset for row in folded.judge.kept.rows]


def update(value: int) -> Update:
    return Update(1, {"x": value})


BEGUN = {0: Snapshot(1, {"x": 0}), 1: update(1)}


def test_behind_a_gap_a_session_waits_for_its_next_snapshot(tmp_path: Path) -> None:
    folded = fold(tmp_path, {**BEGUN, 4: update(1), 5: Snapshot(1, {"x": 0}), 6: update(1)}, 7, gap_end=4)
    assert (rejected(folded), folded.counts.with_rows) == ([4], 2)


def test_a_gap_at_the_end_of_a_range_suspends_for_the_next_one(tmp_path: Path) -> None:
    assert fold(tmp_path, BEGUN, 4, gap_end=4).sessions.suspended_from == 4


def test_a_gap_within_what_an_operator_gave_up_ends_that_no_sooner(tmp_path: Path) -> None:
    given_up = msgspec.structs.replace(START, suspended_from=6)
    folded = fold(tmp_path, {**BEGUN, 4: Snapshot(1, {"x": 0}), 5: update(1)}, 6, given_up, gap_end=4)
    assert (rejected(folded), folded.sessions.suspended_from) == ([0, 1, 4, 5], 6)


@pytest.mark.parametrize("value", [1, 2**63])  # the second one does not fit its column
def test_the_rows_of_a_message_that_fails_half_way_are_not_encoded(tmp_path: Path, value: int) -> None:
    folded = fold(tmp_path, {**BEGUN, 2: Update(1, {"y": value, "x": POISON})}, 3)
    assert isinstance(folded.outcome, MessageFailed)
    assert folded.outcome.finding.detail == "ZeroDivisionError: poison"
    assert sum(batch.num_rows for batch in folded.batches) == 1
