"""Files of state are deleted when nothing can need them, not before: idle partitions, rewinds, deaths in between."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from lockstep import Kind
from lockstep.operations.clean_state import raise_floor, unreachable_state
from lockstep.operations.housekeeping import StepResult, run_housekeeping
from lockstep.operations.repair import repair
from lockstep.operations.state import NotRetained, Wanted, read_states
from lockstep.table import demands, side
from lockstep.table.commit import OutputLog
from tests.state.kept_stream import keeping, message, plain_fold
from tests.state.offline import Offline

if TYPE_CHECKING:
    from lockstep.table.head import Head
    from lockstep.table.layout import StreamFolders
    from tests.state.kept_stream import Sent

OLD = 40 * 3600
BATCHES = 14
"""A small state is soon written whole again: the chains before are unreachable then."""


@pytest.fixture
def stream(tmp_path: Path) -> Offline:
    """One partition is silent after its first batch, one until the last; one goes on, with deltas and state bases."""
    made = Offline(keeping(), tmp_path)
    large = message(Kind.SNAPSHOT, 1, **{f"name{number}": number for number in range(30)})
    made.run(
        {"kept.idle": [("i", message(Kind.SNAPSHOT, 1, x=1))]},
        {"kept.seldom": [("s", message(Kind.SNAPSHOT, 1, x=1))]},
        {"kept.busy": [("b", message(Kind.SNAPSHOT, 1, x=1)), ("large", large)]},
        *({"kept.busy": [("b", message(Kind.UPDATE, seq, x=1))]} for seq in range(2, BATCHES - 3)),
        {"kept.seldom": [("s", message(Kind.SNAPSHOT, 2, x=2, larger=1))]},
    )
    return made


def cleaned(stream: Offline, *, keep_seconds: float) -> tuple[int, StepResult]:
    """The rewind floor after housekeeping, and what it did to the state."""
    done = run_housekeeping(stream.folders, retention_seconds=keep_seconds)
    (state,) = (step for step in done.steps if step.step == "state")
    return done.rewind_floor, state


def age(stream: Offline) -> None:
    """As if everything had been written long ago."""
    then = time.time() - OLD
    for path in stream.folders.state.iterdir():
        os.utime(path, (then, then))


def values(stream: Offline, topic: str, session: str, at: int | None = None) -> object:
    wanted = Wanted(topic=topic, session=session)
    (shown,) = read_states(stream.stream, stream.root / "tables", wanted, at).sessions
    return cast("dict[str, object]", shown.state)["values"]


def files(stream: Offline) -> int:
    return len(list(stream.folders.state.iterdir()))


def test_unreachable_files_go_and_no_partition_loses_its_state(stream: Offline) -> None:
    age(stream)
    before = files(stream)
    floor, state = cleaned(stream, keep_seconds=0)
    assert floor == BATCHES - 1
    assert state.files > BATCHES // 3
    assert files(stream) == before - state.files
    assert cleaned(stream, keep_seconds=0)[1].files == 0
    assert all(check.condition == "ok" for check in repair(stream.folders, apply=False).checks)
    assert values(stream, "kept.idle", "i") == {"x": 1}
    further: dict[str, list[Sent]] = {
        "kept.idle": [("i", message(Kind.UPDATE, 2, x=5))],
        "kept.busy": [("b", message(Kind.UPDATE, BATCHES - 3, x=1))],
    }
    stream.run(further)
    for topic, session in (("kept.idle", "i"), ("kept.busy", "b")):
        sent = [(key.decode(), value or b"") for key, value in told(stream, topic)]
        assert values(stream, topic, session) == plain_fold(sent)[1][session]


def told(stream: Offline, topic: str) -> list[tuple[bytes, bytes | None]]:
    return [(sent.sent_key or b"", sent.sent_value) for sent in stream.log.topics[topic]]


@pytest.mark.parametrize("middle", [6, 7, 8, 9])
def test_the_state_of_each_batch_from_the_floor_on_can_still_be_read(stream: Offline, middle: int) -> None:
    age(stream)
    floor = floor_at(stream.folders, middle)
    assert floor.rewind_floor == middle
    for path in unreachable_state(stream.folders, floor):
        path.unlink()
    for batch in range(middle, BATCHES):
        assert values(stream, "kept.busy", "b", batch) == {"x": min(batch - 2, BATCHES - 4)}
        assert values(stream, "kept.idle", "i", batch) == {"x": 1}
        assert values(stream, "kept.seldom", "s", batch) == ({"x": 1} if batch < BATCHES - 1 else {"x": 2, "larger": 1})
    with pytest.raises(NotRetained, match=f"those of {middle} to {BATCHES - 1} are kept"):
        values(stream, "kept.busy", "b", middle - 1)


def floor_at(folders: StreamFolders, batch: int) -> Head:
    return OutputLog(folders.table).commit(demands.floor(1, batch)).head


def test_young_files_stay_whoever_wrote_them(stream: Offline) -> None:
    orphan = stream.folders.state / "state-of-a-batch-under-way.state"
    orphan.write_bytes(b"lockstep")
    before = files(stream)
    assert cleaned(stream, keep_seconds=0)[1].files == 0
    assert files(stream) == before


def test_a_batch_within_the_time_to_keep_does_not_lose_its_state(stream: Offline) -> None:
    age(stream)
    floor, state = cleaned(stream, keep_seconds=72 * 3600)
    assert (floor, state.files) == (1, 0)


def test_a_clean_up_that_died_after_the_floor_harms_nothing_and_is_finished_by_the_next(stream: Offline) -> None:
    age(stream)
    before = files(stream)
    raise_floor(stream.folders, 0)
    assert files(stream) == before
    stream.run({"kept.busy": [("b", message(Kind.UPDATE, BATCHES - 3, x=1))]})
    assert values(stream, "kept.busy", "b") == {"x": BATCHES - 3}
    assert OutputLog(stream.folders.table).base().head.rewind_floor == BATCHES - 1
    assert cleaned(stream, keep_seconds=0)[1].files > 0
    assert values(stream, "kept.busy", "b") == {"x": BATCHES - 3}


class Killed(BaseException):
    """The run ends at once, as by kill -9."""


def test_a_ledger_that_lags_behind_the_head_is_brought_forward_first(
    stream: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = OutputLog(stream.folders.table).base().head.batch
    forward = side.SideLogs.forward

    def killed_at_the_new_batch(logs: side.SideLogs, head: Head) -> bool:
        if head.batch > before:
            raise Killed
        return forward(logs, head)

    with monkeypatch.context() as patch:
        patch.setattr(side.SideLogs, "forward", killed_at_the_new_batch)
        with pytest.raises(Killed):
            stream.run({"kept.busy": [("b", message(Kind.UPDATE, BATCHES - 3, x=1))]})
    assert OutputLog(stream.folders.table).base().head.batch == before + 1
    age(stream)
    cleaned(stream, keep_seconds=0)
    assert values(stream, "kept.busy", "b") == {"x": BATCHES - 3}
    assert all(check.condition == "ok" for check in repair(stream.folders, apply=False).checks)
