"""State files are deleted only when they cannot be needed: idle partitions, rewinds, kills in between."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from lockstep import Kind
from lockstep.engine.driver.committer import Committer
from lockstep.engine.driver.startup import WriterClaim, WriterStartup
from lockstep.errors import Fenced
from lockstep.features.copies import backup
from lockstep.features.copies.backup import make_backup, restore_backup
from lockstep.features.history.savepoint import drop_named_savepoint, make_savepoint
from lockstep.features.retention.housekeeping import StepResult, run_housekeeping
from lockstep.features.retention.unreachable_state import find_unreachable_state, raise_floor
from lockstep.operations.inspect.state import NotRetained, StateFilter, read_states
from lockstep.operations.repair import repair_stream
from lockstep.table import side_tables
from lockstep.table.commit import OutputLog, raise_rewind_floor
from lockstep.table.layout import StreamFolders
from tests.support.kept_stream import keeping, message, plain_fold
from tests.support.offline_rewind import rewind
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.table.commit import Committed
    from lockstep.table.head import Head
    from tests.support.kept_stream import Sent

OLD = 40 * 3600
BATCHES = 14
"""Enough batches for a small state to be rewritten whole: earlier chains are then unreachable."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Offline:
    """One partition is silent after its first batch, a second until the last; a third has deltas and state bases."""
    made = Offline(keeping(), tmp_path_factory.mktemp("original"))
    large = message(Kind.SNAPSHOT, 1, **{f"name{number}": number for number in range(30)})
    made.run(
        {"kept.idle": [("i", message(Kind.SNAPSHOT, 1, x=1))]},
        {"kept.seldom": [("s", message(Kind.SNAPSHOT, 1, x=1))]},
        {"kept.busy": [("b", message(Kind.SNAPSHOT, 1, x=1)), ("large", large)]},
        *({"kept.busy": [("b", message(Kind.UPDATE, seq, x=1))]} for seq in range(2, BATCHES - 3)),
        {"kept.seldom": [("s", message(Kind.SNAPSHOT, 2, x=2, larger=1))]},
    )
    return made


@pytest.fixture
def stream(original: Offline, tmp_path: Path) -> Offline:
    return original.copied(tmp_path)


def cleaned(stream: Offline, *, keep_seconds: float) -> tuple[int, StepResult]:
    """Return the rewind floor after housekeeping, and the result of its state step."""
    done = run_housekeeping(stream.folders, retention_seconds=keep_seconds)
    (state,) = (step for step in done.steps if step.step == "state")
    return done.rewind_floor, state


def age(stream: Offline) -> None:
    """Set the time of all state files far back."""
    then = time.time() - OLD
    for path in stream.folders.state.iterdir():
        os.utime(path, (then, then))


def values(stream: Offline, topic: str, session: str, at: int | None = None) -> object:
    wanted = StateFilter(topic=topic, session=session)
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
    assert all(check.condition == "ok" for check in repair_stream(stream.folders, apply=False).checks)
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
    for path in find_unreachable_state(stream.folders, floor):
        path.unlink()
    for batch in range(middle, BATCHES):
        assert values(stream, "kept.busy", "b", batch) == {"x": min(batch - 2, BATCHES - 4)}
        assert values(stream, "kept.idle", "i", batch) == {"x": 1}
        assert values(stream, "kept.seldom", "s", batch) == ({"x": 1} if batch < BATCHES - 1 else {"x": 2, "larger": 1})
    with pytest.raises(NotRetained, match=f"those of {middle} to {BATCHES - 1} are kept"):
        values(stream, "kept.busy", "b", middle - 1)


@pytest.mark.parametrize("target", [4, 7])
def test_the_state_of_a_batch_to_which_a_rewind_went_back_is_kept_until_the_floor_has_passed_the_rewind(
    stream: Offline, target: int
) -> None:
    """The floor has passed the batch, and the newest state has another base: only the rewind needs the state."""
    age(stream)
    before = values(stream, "kept.busy", "b", target)
    rewound = rewind(stream, target)
    assert rewind(stream, BATCHES - 1) == rewound + 1
    head = OutputLog(stream.folders.table).base().head
    floor = OutputLog(stream.folders.table).commit(raise_rewind_floor(head.generation, BATCHES - 1)).head
    for path in find_unreachable_state(stream.folders, floor):
        path.unlink()
    assert values(stream, "kept.busy", "b", rewound) == before
    past = OutputLog(stream.folders.table).commit(raise_rewind_floor(head.generation, rewound + 1)).head
    assert find_unreachable_state(stream.folders, past) != []


def floor_at(folders: StreamFolders, batch: int) -> Head:
    return OutputLog(folders.table).commit(raise_rewind_floor(1, batch)).head


@pytest.mark.parametrize("kept_by", ["the rewind floor", "a savepoint"])
def test_a_backup_has_the_state_to_which_it_can_be_rewound_though_a_clean_up_deletes_it_meanwhile(
    stream: Offline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_by: str
) -> None:
    age(stream)
    if kept_by == "the rewind floor":
        floor_at(stream.folders, 5)
    else:
        make_savepoint(stream.folders, "kept", who="ann", why="a release", at="5")
        floor_at(stream.folders, BATCHES - 1)  # the clean-up does not raise it: only the savepoint changes
    for path in find_unreachable_state(stream.folders, OutputLog(stream.folders.table).base().head):
        path.unlink()
    copy = backup._copy  # noqa: SLF001  # before the first copy
    deleted = list[int]()

    def copy_late(*arguments: Any) -> object:
        monkeypatch.setattr(backup, "_copy", copy)
        if kept_by == "a savepoint":
            drop_named_savepoint(stream.folders, "kept", who="ann", why="released")
        deleted.append(cleaned(stream, keep_seconds=0)[1].files)
        return copy(*arguments)

    monkeypatch.setattr(backup, "_copy", copy_late)
    make_backup(stream.folders, tmp_path / "copy")
    assert deleted[0] > 0
    restored = StreamFolders(stream.folders.stream, tmp_path / "restored")
    restore_backup(restored, tmp_path / "copy")
    run_housekeeping(restored, retention_seconds=72 * 3600.0)
    head = OutputLog(restored.table).base().head
    assert (head.rewind_floor, head.savepoints) == (BATCHES - 1, ())


UNDER_WAY = {
    "the next batch of the epoch that holds the table": "g1-e2-b14",
    "a batch that it may come to while this clean-up works": "g1-e2-b18",
    "a successor that claims while this clean-up works": "g1-e3-b14",
}
OVER = {
    "the next batch, by an epoch that is fenced": "g1-e1-b14",
    "another attempt of a committed batch": "g1-e1-b13",
    "another attempt of an old batch": "g1-e1-b2",
}


def orphan(stream: Offline, label: str) -> Path:
    path = stream.folders.state / f"{label}-{'0' * 32}.state"
    path.write_bytes(b"lockstep")
    return path


@pytest.mark.parametrize("days", [-40, 0, 40])
def test_what_may_still_be_committed_stays_and_what_cannot_goes_whatever_the_clocks_show(
    stream: Offline, days: int
) -> None:
    stream.claim()
    kept, over = [[orphan(stream, label) for label in labels.values()] for labels in (UNDER_WAY, OVER)]
    then = time.time() + days * 24 * 3600
    for path in stream.folders.state.iterdir():
        os.utime(path, (then, then))
    cleaned(stream, keep_seconds=0)
    assert [path.exists() for path in (*kept, *over)] == [True] * 3 + [False] * 3


def test_files_of_builds_that_did_not_say_who_wrote_them_go_once_the_writer_is_one_that_says(stream: Offline) -> None:
    stream.claim()
    old = orphan(stream, "state")
    cleaned(stream, keep_seconds=0)
    assert old.exists()
    stream.run({"kept.busy": [("b", message(Kind.UPDATE, BATCHES - 3, x=1))]})
    cleaned(stream, keep_seconds=0)
    assert not old.exists()


def before_the_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call a function after the tasks of the next driver and before its commit."""
    commit = Committer.commit
    acted = list[object]()

    def after_a_sleep(*batch: Any, **more: Any) -> tuple[Committed, float]:
        if not acted:
            acted.append(act())
        return commit(*batch, **more)

    monkeypatch.setattr(Committer, "commit", after_a_sleep)


NEXT: dict[str, list[Sent]] = {"kept.busy": [("b", message(Kind.UPDATE, BATCHES - 3, x=1))]}


@pytest.mark.parametrize("days", [-3, 3])
def test_a_driver_that_slept_for_days_between_its_tasks_and_its_commit_commits(
    stream: Offline, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """The same holds for a clock that is off by days in either direction: it sets the age of the files."""

    def sleep() -> None:
        then = time.time() - days * 24 * 3600
        for path in (*stream.folders.state.iterdir(), *stream.folders.table.rglob("*.parquet")):
            os.utime(path, (then, then))
        cleaned(stream, keep_seconds=0)

    before_the_commit(monkeypatch, sleep)
    stream.run(NEXT)
    assert values(stream, "kept.busy", "b") == {"x": BATCHES - 3}
    assert all(check.condition == "ok" for check in repair_stream(stream.folders, apply=False).checks)


def test_a_driver_that_is_fenced_in_its_sleep_loses_its_files_and_its_successor_none(
    stream: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_commit(monkeypatch, lambda: (stream.claim(), cleaned(stream, keep_seconds=0)))
    with pytest.raises(Fenced):
        stream.run(NEXT)
    mine = {*stream.folders.state.glob("g1-e2-b14-*"), *stream.folders.table.rglob("rows-g1-e2-b14-*")}
    assert {path.suffix for path in mine} == {".parquet"}  # the floor decides about data files
    monkeypatch.undo()
    before_the_commit(monkeypatch, lambda: cleaned(stream, keep_seconds=0))
    stream.run({"kept.busy": [("b", message(Kind.UPDATE, BATCHES - 2, x=1))]})
    assert values(stream, "kept.busy", "b") == {"x": BATCHES - 2}
    cleaned(stream, keep_seconds=0)
    assert not any(path.exists() for path in mine)
    assert all(check.condition == "ok" for check in repair_stream(stream.folders, apply=False).checks)


def test_a_run_that_warms_up_while_its_stream_is_cleaned_up_finds_its_state(
    stream: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = WriterStartup.claim

    def cleaned_meanwhile(startup: WriterStartup, cancelled: Callable[[], bool]) -> WriterClaim:
        cleaned(stream, keep_seconds=0)
        return claim(startup, cancelled)

    monkeypatch.setattr(WriterStartup, "claim", cleaned_meanwhile)
    stream.run(NEXT)
    assert values(stream, "kept.busy", "b") == {"x": BATCHES - 3}


def test_a_batch_within_the_time_to_keep_does_not_lose_its_state(stream: Offline) -> None:
    age(stream)
    floor, state = cleaned(stream, keep_seconds=72 * 3600)
    assert (floor, state.files) == (0, 0)  # a rewind may return to before the first batch


def test_a_clock_that_is_days_ahead_ends_no_rewind(stream: Offline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention counts from the newest batch: by the clock alone, no batch would be recent."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10 * 24 * 3600)
    floor, state = cleaned(stream, keep_seconds=72 * 3600)
    assert (floor, state.files) == (0, 0)


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
    """Ends the run immediately, as kill -9 does."""


def test_a_ledger_that_lags_behind_the_head_is_brought_forward_first(
    stream: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = OutputLog(stream.folders.table).base().head.batch
    forward = side_tables.SideLogs.catch_up

    def killed_at_the_new_batch(logs: side_tables.SideLogs, head: Head) -> bool:
        if head.batch > before:
            raise Killed
        return forward(logs, head)

    with monkeypatch.context() as patch:
        patch.setattr(side_tables.SideLogs, "catch_up", killed_at_the_new_batch)
        with pytest.raises(Killed):
            stream.run({"kept.busy": [("b", message(Kind.UPDATE, BATCHES - 3, x=1))]})
    assert OutputLog(stream.folders.table).base().head.batch == before + 1
    age(stream)
    cleaned(stream, keep_seconds=0)
    assert values(stream, "kept.busy", "b") == {"x": BATCHES - 3}
    assert all(check.condition == "ok" for check in repair_stream(stream.folders, apply=False).checks)
