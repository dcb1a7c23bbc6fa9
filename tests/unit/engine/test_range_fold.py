"""The fold of one range: sessions suspended at gaps of the log, a message that fails half-way, a full quarantine."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from typing_extensions import override

from lockstep import Envelope, FuzzyWindow, LogOnly, Record, Strict, Suspend
from lockstep.engine.executor import rejects
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.engine.executor.fold import RangeFold
from lockstep.engine.executor.outcome import BufferFull, MessageFailed
from lockstep.engine.executor.rejects import Exclusions
from lockstep.model.finding import Finding
from lockstep.model.position import Position
from lockstep.state.changelog import make_state_version
from lockstep.state.local_store_pool import LocalStorePool
from lockstep.state.store import PartitionState
from lockstep.testing.script import InLog
from tests.support.adding_stream import POISON, Adding, Snapshot, Update, adding
from tests.support.meter_stream import Close, Start, meters

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.declare.stream import AnyStream

Sent = dict[int, Snapshot | Update | bytes]
SUSPENDING = cast("AnyStream", adding("t", Strict(evidence=LogOnly(), on_violation=Suspend())))
START = Position(topic="t", topic_id="id", partition=0, next_offset=0)


class Unnamed(Adding):
    """A fold that does not know the session of its poison."""

    @override
    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        if POISON in message.values.values():
            raise ValueError("no session")
        return super().envelope(message, record)


UNNAMED = cast("AnyStream", adding("t", Strict(evidence=LogOnly(), on_violation=Suspend()), Unnamed()))
REORDERING = cast("AnyStream", adding("t", FuzzyWindow(lateness=timedelta(seconds=10), reorder=True)))


def fold(
    folder: Path,
    messages: Sent,
    reached: int,
    position: Position = START,
    without: Exclusions | None = None,
    stream: AnyStream = SUSPENDING,
) -> RangeFold:
    """Fold messages of one session, given by offset."""
    compiled = compile_stream(stream)
    version = make_state_version(1, position)
    pool = LocalStorePool(folder / "local", folder / "state")
    with PartitionState[object].open(version, durable=folder, local_stores=pool, schema=compiled.state) as state:
        folded = RangeFold(compiled, position, state, without)
        folded.fold([InLog(at, b"s", encode(message)) for at, message in messages.items()])
        folded.finish(reached)
    return folded


def encode(message: Snapshot | Update | bytes) -> bytes:
    return message if isinstance(message, bytes) else msgspec.json.encode(message)


def rejected(folded: RangeFold) -> list[int]:
    return [row.offset for row in folded.judge.quarantined.rows]


def update(value: int) -> Update:
    return Update(1, {"x": value})


GAP = Exclusions(suspend_at=(4,))
"""An unexplained hole before offset 4."""
BEGUN: Sent = {0: Snapshot(1, {"x": 0}), 1: update(1)}


def test_behind_a_gap_a_session_waits_for_its_next_snapshot(tmp_path: Path) -> None:
    folded = fold(tmp_path, {**BEGUN, 4: update(1), 5: Snapshot(1, {"x": 0}), 6: update(1)}, 7, without=GAP)
    assert (rejected(folded), folded.counts.with_rows) == ([4], 2)


def test_a_gap_at_the_end_of_a_range_suspends_for_the_next_one(tmp_path: Path) -> None:
    assert fold(tmp_path, BEGUN, 4, without=GAP).sessions.suspended_from == 4


def test_a_gap_within_what_an_operator_gave_up_ends_that_no_sooner(tmp_path: Path) -> None:
    given_up = msgspec.structs.replace(START, suspended_from=6)
    folded = fold(tmp_path, {**BEGUN, 4: Snapshot(1, {"x": 0}), 5: update(1)}, 6, given_up, GAP)
    assert (rejected(folded), folded.sessions.suspended_from) == ([0, 1, 4, 5], 6)


def test_behind_a_refused_message_of_an_unknown_session_each_one_waits_for_its_next_snapshot(tmp_path: Path) -> None:
    sent = {**BEGUN, 2: update(POISON), 3: update(1), 4: Snapshot(1, {"x": 0}), 5: update(1)}
    failed = fold(tmp_path / "first", sent, 6, stream=UNNAMED).outcome
    assert isinstance(failed, MessageFailed)
    folded = fold(tmp_path / "again", sent, 6, without=Exclusions().with_failed(failed), stream=UNNAMED)
    assert (rejected(folded), folded.counts.with_rows) == ([2, 3], 2)


@pytest.mark.parametrize(
    ("sent", "opened", "closed"),
    [
        ([Start(1, 0)], {"s"}, set()),
        ([Start(1, 0), Close(2, 1)], set(), {"s"}),  # it may start in another partition now
        ([Start(1, 0), Close(2, 1), Start(1, 2)], {"s"}, set()),
    ],
)
def test_a_session_is_open_or_closed_as_its_range_ends(
    tmp_path: Path, sent: list[Start | Close], opened: set[str], closed: set[str]
) -> None:
    messages: Sent = {at: msgspec.json.encode(message) for at, message in enumerate(sent)}
    sessions = fold(tmp_path, messages, len(sent), stream=cast("AnyStream", meters)).sessions
    assert (sessions.opened, sessions.closed) == (opened, closed)


@pytest.mark.parametrize("value", [1, 2**63])  # the second value does not fit its column
def test_the_rows_of_a_message_that_fails_half_way_are_not_encoded(tmp_path: Path, value: int) -> None:
    folded = fold(tmp_path, {**BEGUN, 2: Update(1, {"y": value, "x": POISON})}, 3)
    assert isinstance(folded.outcome, MessageFailed)
    assert folded.outcome.finding.detail == "ZeroDivisionError: poison"
    assert sum(batch.num_rows for batch in folded.batches) == 1


REFUSED = Finding.at(START, "transform raised", offset=4, until=5)
FILLING: dict[str, tuple[AnyStream, Sent, Exclusions]] = {
    "garbage": (SUSPENDING, {**BEGUN, 4: b"{"}, Exclusions()),
    "refused by an earlier fold": (SUSPENDING, {**BEGUN, 4: update(POISON)}, Exclusions(refused={4: REFUSED})),
    "of a suspended session": (SUSPENDING, {**BEGUN, 4: update(1)}, GAP),
    "late": (REORDERING, {0: Snapshot(5, {}), 4: Update(3, {})}, Exclusions()),
    "freed by a snapshot": (REORDERING, {0: Snapshot(1, {}), 1: Update(3, {}), 4: Snapshot(9, {})}, GAP),
}


@pytest.mark.parametrize("filling", FILLING)
def test_a_range_ends_behind_the_message_with_which_its_quarantine_or_late_table_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filling: str
) -> None:
    monkeypatch.setattr(rejects, "KEPT_BYTES_MAX", 0)
    stream, messages, without = FILLING[filling]
    folded = fold(tmp_path, {**messages, 5: b"{"}, 6, without=without, stream=stream)
    assert (folded.outcome, len(folded.judge.quarantined.rows + folded.judge.late.rows)) == (BufferFull(5), 1)
