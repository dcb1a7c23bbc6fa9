"""Sessions that a worker keeps decoded equal the stored sessions; otherwise they are decoded again."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.state.decoded_sessions import SessionCache
from lockstep.state.local_store_pool import MemoryBudget
from tests.unit.state.home import Home, drop, put

if TYPE_CHECKING:
    from lockstep.state.changelog import StateVersion
    from lockstep.state.store import PartitionState
    from tests.unit.state.home import Fold, Panel


A, B = "a", "b"
"""Two sessions."""


@pytest.fixture
def keeping(home: Home) -> Home:
    return replace(home, decoded=SessionCache())


def state_of(home: Home, version: StateVersion, session: str) -> Panel:
    """Return the object that a batch works on."""
    with home.open(version) as state:
        entry = state.load(session)
        assert entry is not None
        state.publish_local()  # as a task without changes does
    return entry.state


def test_the_next_batch_goes_on_with_the_same_objects(keeping: Home) -> None:
    version = keeping.batch(keeping.start(), put({A: 1, B: 2}))
    first = state_of(keeping, version, A)
    after = keeping.batch(version, put({A: 3}))
    assert state_of(keeping, after, A) is first
    assert first.value == 3


def test_a_session_that_a_batch_does_not_touch_stays_decoded_and_is_not_written(keeping: Home) -> None:
    version = keeping.batch(keeping.start(), put({A: 1, B: 2}))
    first = state_of(keeping, version, B)
    version = keeping.batch(version, put({A: 3}))
    with keeping.open(version) as state:
        entry = state.load(B)
        assert entry is not None
        assert (entry.state is first, state.changed()) == (True, [])


def test_a_batch_that_was_not_committed_leaves_no_trace(keeping: Home) -> None:
    version = keeping.batch(keeping.start(), put({A: 1, B: 2}))
    keeping.batch(version, put({A: 100}))
    assert keeping.values(keeping.batch(version, put({B: 5})), [A, B]) == {A: 1, B: 5}


def test_a_task_that_failed_in_the_middle_leaves_no_trace(keeping: Home) -> None:
    version = keeping.batch(keeping.start(), put({A: 1}))
    with keeping.open(version) as state:
        put({A: 100})(state)
    assert keeping.values(version, [A]) == {A: 1}


def test_without_the_local_store_nothing_is_kept(keeping: Home) -> None:
    version = keeping.batch(keeping.start(), put({A: 1}))
    first = state_of(keeping, version, A)
    shutil.rmtree(keeping.local_root)
    assert state_of(keeping, version, A) is not first
    assert keeping.values(version, [A]) == {A: 1}


def test_a_removed_session_stays_removed(keeping: Home) -> None:
    version = keeping.batch(keeping.start(), put({A: 1, B: 2}))
    version = keeping.batch(version, drop(A))
    assert keeping.values(version, [A, B]) == {B: 2}
    version = keeping.batch(version, put({A: 7}))
    assert keeping.values(version, [A, B]) == {A: 7, B: 2}


def test_a_session_removed_before_its_batch_has_loaded_it_stays_removed(keeping: Home) -> None:
    version = keeping.batch(keeping.start(), put({A: 1, B: 2}))

    def fold(state: PartitionState[Panel]) -> None:
        put({B: 3})(state)
        drop(A)(state)

    assert keeping.values(keeping.batch(version, fold), [A, B]) == {B: 3}


def test_what_was_spilled_is_decoded_again(keeping: Home) -> None:
    version = keeping.batch(keeping.start(), put({f"s{n}": n for n in range(50)}))
    local_stores = keeping.local_stores()
    local_stores.budget = MemoryBudget(3_000)
    with keeping.open(version, local_stores) as state:
        put({f"s{n}": -n for n in range(50)})(state)
        assert len(state.entries) < 50
        entry = state.load("s1")
        assert entry is not None
        assert entry.state.value == -1


def test_a_cache_holds_no_more_than_its_bytes_and_gives_up_the_oldest(home: Home) -> None:
    keeping = replace(home, decoded=SessionCache(bytes_max=3_000))
    versions = [keeping.batch(keeping.start(partition), put_text(A, "x" * 1_000)) for partition in range(3)]
    with keeping.open(versions[0]) as oldest, keeping.open(versions[2]) as newest:
        assert [len(state.find_decoded()) for state in (oldest, newest)] == [0, 1]


def test_sessions_below_a_folder_are_discarded(keeping: Home) -> None:
    version = keeping.batch(keeping.start(), put({A: 1}))
    for folder, held in ((keeping.durable / "other", 1), (keeping.durable.parent, 0)):
        keeping.decoded.discard_below(folder)
        with keeping.open(version) as state:
            assert len(state.find_decoded()) == held
            state.publish_local()


def put_text(session: str, text: str) -> Fold:
    def fold(state: PartitionState[Panel]) -> None:
        put({session: 1})(state)
        state.entries[session].state.text = text

    return fold


@dataclass
class Step:
    """One batch: its values, the sessions that it removes, and the events after it."""

    values: dict[str, int]
    removed: set[str]
    commits: bool
    loses_local_store: bool


SESSIONS = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.lists(
    st.builds(
        Step,
        st.dictionaries(SESSIONS, st.integers(0, 3)),
        st.sets(SESSIONS, max_size=1),
        st.booleans(),
        st.integers(0, 9).map(lambda number: number == 0),
    ),
    max_size=30,
)


@given(STEPS)
def test_any_history_of_batches_reads_as_a_plain_dict(steps: list[Step]) -> None:
    with TemporaryDirectory() as folder:
        home = Home(Path(folder) / "durable", Path(folder) / "hot", decoded=SessionCache())
        home.durable.mkdir()
        version = home.start()
        expected = dict[str, int]()
        for step in steps:

            def fold(state: PartitionState[Panel], step: Step = step) -> None:
                put(step.values)(state)
                drop(*step.removed)(state)

            after = home.batch(version, fold)
            if step.commits:
                version = after
                expected |= step.values
                for session in step.removed:
                    expected.pop(session, None)
            if step.loses_local_store:
                shutil.rmtree(home.local_root, ignore_errors=True)
        assert home.values(version, ["a", "b", "c", "d"]) == expected
