"""Followers by their positions: standing, lag, alarm, plan and proof agree with a model of batches as a tree."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import Objectives
from lockstep.errors import LockstepError
from lockstep.operations.alarms import AlarmKind, HealthFacts, judge_health
from lockstep.operations.followers import (
    DeclaredFollowers,
    FollowerStanding,
    UnknownFollower,
    compute_lag,
    forget_follower,
    list_effects,
    read_followers,
    record_failure,
)
from lockstep.table.delta_log import read_entry
from lockstep.table.follower_positions import (
    FollowerName,
    FollowerPosition,
    Reads,
    SourceHistory,
    find_generation,
    make_history,
    make_position_path,
    make_unread_history,
    read_follower_positions,
    read_position,
    write_position,
)
from lockstep.table.head import Desired, Erasure, Head, Lineage
from lockstep.verify.followers import judge_claim
from lockstep.verify.report import InvariantStatus
from tests.support.adding_stream import adding
from tests.support.every_commit import EveryCommit
from tests.support.examples import scale_examples

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LIMIT = timedelta(hours=3)
STREAM = replace(adding("x"), objectives=Objectives(follower_lag=LIMIT))
NAME = FollowerName("derived", "activity")


@dataclass
class BatchTree:
    """A table as a tree of batches: each knows the batch before it; a rewind moves to any earlier batch."""

    table_id: str = "first"
    parents: dict[int, int] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)
    current: int = 0
    newest: int = 0
    generation: int = 1
    erasure: int = 0
    version: int = 0

    def add(self, parent: int) -> None:
        self.newest += 1
        self.version += 1
        self.parents[self.newest] = parent
        self.generations[self.newest] = self.generation
        self.current = self.newest

    def batch(self, _: int) -> None:
        self.add(self.current)

    def rewind(self, choice: int) -> None:
        """Rewind as the first batch of a generation; the target may be an undone batch."""
        targets = range(max(1, self.erasure), self.newest + 1)
        target = targets[choice % len(targets)]
        self.generation += 1
        self.add(target)

    def erase(self, _: int) -> None:
        self.add(self.current)
        self.erasure = self.newest

    def quiet(self, _: int) -> None:
        """Commit without a batch."""
        self.version += 1

    def replace(self, _: int) -> None:
        """Reset the stream: another table."""
        self.__init__(table_id=f"{self.table_id}+")  # type: ignore[misc]  # a new table in its place

    def path(self) -> list[int]:
        """Return the batches that count, oldest first."""
        found = list[int]()
        at = self.current
        while at:
            found.append(at)
            at = self.parents[at]
        return found[::-1]

    def head(self) -> Head:
        lasts = {self.generations[batch]: batch for batch in self.path()}
        lineage = [Lineage(generation, last) for generation, last in lasts.items() if generation < self.generation]
        erasure = Erasure(digest="d", topic="", batch=self.erasure, version=1, at=0.0, cause="")
        return Head(
            stream="adding",
            cluster_id="c",
            table_id=self.table_id,
            generation=self.generation,
            lineage=tuple(lineage),
            batch=self.current,
            batch_version=self.version,
            erasure=erasure if self.erasure else None,
            rewind_floor=1,
        )

    def read(self, up_to: int | None = None) -> SourceHistory:
        """Read up to the newest batch, or up to another batch that counts."""
        head = self.head()
        batch = self.current if up_to is None else up_to
        return SourceHistory(
            stream="adding",
            table_id=self.table_id,
            generation=self.generation,
            erasure=self.erasure,
            version=self.version,
            token="",
            batch=batch,
            batch_generation=find_generation(head, batch),
            committed_at=NOW.timestamp(),
        )


STEPS = st.lists(
    st.tuples(st.sampled_from(("rewind", "batch", "rewind", "erase", "quiet")), st.integers(0, 30)), max_size=12
)


def make_position(read: SourceHistory, **changes: object) -> FollowerPosition:
    given: dict[str, object] = {
        "kind": NAME.kind,
        "name": NAME.name,
        "command": "lockstep derive activity",
        "reads": Reads.COMMITS,
        "rebuilds": True,
        "sources": (read,),
        "last_run": NOW,
    }
    return msgspec.convert(msgspec.to_builtins(given | changes), FollowerPosition)


def raise_alarms(position: FollowerPosition, head: Head) -> list[str]:
    (read,) = position.sources
    facts = HealthFacts(stream="adding", desired=Desired.STOPPED, followers=(compute_lag(position, read, head, NOW),))
    return [alarm.problem for alarm in judge_health(facts, STREAM) if alarm.kind == AlarmKind.FOLLOWER]


@settings(max_examples=scale_examples(400), deadline=None)
@given(before=STEPS, after=STEPS, choice=st.integers(0, 30), replaces=st.booleans(), hours=st.integers(0, 6))
def test_a_position_is_judged_as_the_tree_of_batches_says(
    *, before: list[tuple[str, int]], after: list[tuple[str, int]], choice: int, replaces: bool, hours: int
) -> None:
    tree = BatchTree()
    for step, argument in (("batch", 0), *before):
        getattr(tree, step)(argument)
    path = tree.path()
    held = path[: len(path) - choice % len(path)]
    read = tree.read(held[-1])
    for step, argument in ([("replace", 0)] if replaces else []) + [("batch", 0), *after]:
        getattr(tree, step)(argument)
    head = tree.head()
    counting = tree.path()
    position = make_position(read, last_run=NOW - timedelta(hours=hours))
    lag = compute_lag(position, read, head, NOW)
    status, reason = judge_claim(read, head, tree.version, None)
    if replaces:
        expected = (FollowerStanding.REPLACED, InvariantStatus.NOT_PROVEN)
    elif not set(held) <= set(counting):
        expected = (FollowerStanding.UNDONE, InvariantStatus.NOT_PROVEN)
    elif read.erasure != tree.erasure:
        expected = (FollowerStanding.ERASED, InvariantStatus.NOT_PROVEN)
    else:
        expected = (FollowerStanding.FOLLOWS, InvariantStatus.PROVEN)
    assert (lag.standing, status) == expected
    assert bool(reason) == (status is not InvariantStatus.PROVEN)
    if lag.standing is FollowerStanding.FOLLOWS:
        assert (lag.unread_batches == 0) == (held[-1] == tree.current)
    is_late = lag.is_behind and hours > LIMIT / timedelta(hours=1)
    assert bool(raise_alarms(position, head)) == is_late
    failed = msgspec.structs.replace(position, failure="DeriveFailed")
    (problem,) = raise_alarms(failed, head)
    assert "failed with DeriveFailed" in problem


@settings(max_examples=scale_examples(200), deadline=None)
@given(
    steps=STEPS,
    beyond=st.sampled_from(("version", "batch", "generation", "erasure")),
    by=st.integers(1, 9),
)
def test_a_claim_beyond_the_table_is_a_violation_and_a_claim_behind_it_is_not(
    steps: list[tuple[str, int]], beyond: str, by: int
) -> None:
    tree = BatchTree()
    for step, argument in (("batch", 0), *steps):
        getattr(tree, step)(argument)
    read = tree.read()
    assert judge_claim(read, tree.head(), tree.version, None)[0] is InvariantStatus.PROVEN
    changed = msgspec.structs.replace(read, **{beyond: getattr(read, beyond) + by})
    assert judge_claim(changed, tree.head(), tree.version, None)[0] is InvariantStatus.VIOLATED
    tree.batch(0)
    assert judge_claim(read, tree.head(), tree.version, None)[0] is InvariantStatus.PROVEN


CHANGES = ("batch", "quiet", "hour", "compact", "close", "floor", "rewind", "promote", "erase")


@settings(max_examples=scale_examples(40), deadline=None)
@given(before=st.lists(st.sampled_from(CHANGES), max_size=3), after=st.lists(st.sampled_from(CHANGES), max_size=3))
def test_the_proof_and_the_alarm_agree_on_tables_that_the_library_wrote(before: list[str], after: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        made = EveryCommit(Path(root))
        for step in ("batch", "batch", *before):
            made.step(step)
        read = make_history(made.run.folders, made.run.output.base())
        for step in after:
            made.step(step)
        base = made.run.output.base()
        entry = read_entry(made.run.folders.table, read.version)
        status, reason = judge_claim(read, base.head, base.version, entry)
        standing = compute_lag(make_position(read), read, base.head, NOW).standing
        follows = standing is FollowerStanding.FOLLOWS
        assert status is (InvariantStatus.PROVEN if follows else InvariantStatus.NOT_PROVEN), reason
        if not set(after) & {"rewind", "promote", "erase"}:
            assert follows
        if "erase" in after:
            assert not follows
        another = msgspec.structs.replace(read, token=f"not {read.token}")
        if entry is not None:
            assert judge_claim(another, base.head, base.version, entry)[0] is InvariantStatus.VIOLATED


def test_an_export_is_behind_by_batches_below_the_floor_alone() -> None:
    tree = BatchTree()
    for _ in range(9):
        tree.batch(0)
    read = tree.read(3)
    position = make_position(read, reads=Reads.HOURS, rebuilds=False, last_run=NOW - timedelta(days=9))
    for floor, unread in ((1, 0), (4, 0), (5, 1), (9, 5)):
        head = msgspec.structs.replace(tree.head(), rewind_floor=floor)
        assert compute_lag(position, read, head, NOW).unread_batches == unread
        assert bool(raise_alarms(position, head)) == bool(unread)


def test_a_failed_run_is_recorded_and_keeps_the_position(tmp_path: Path) -> None:
    unread = make_position(make_unread_history("adding"))
    with pytest.raises(ZeroDivisionError), record_failure(tmp_path, unread):
        raise ZeroDivisionError("of session ann")
    first = read_position(tmp_path, NAME)
    assert first is not None
    assert (first.sources, first.failure) == (unread.sources, "ZeroDivisionError")
    assert "ann" not in make_position_path(tmp_path, NAME).read_text()
    read = make_position(BatchTree().read(0))
    write_position(tmp_path, read)
    with pytest.raises(LockstepError), record_failure(tmp_path, unread):
        raise LockstepError("no answer", next_step="wait")
    second = read_position(tmp_path, NAME)
    assert second is not None
    assert (second.sources, second.failure) == (read.sources, "LockstepError")
    make_position_path(tmp_path, NAME).write_bytes(b"{")
    with pytest.raises(ZeroDivisionError), record_failure(tmp_path, unread):
        raise ZeroDivisionError
    assert read_follower_positions(tmp_path).damaged == ()


def test_a_follower_without_a_declaration_is_listed_until_it_is_forgotten(tmp_path: Path) -> None:
    write_position(tmp_path, make_position(make_unread_history("adding")))
    nothing = DeclaredFollowers((), (), tmp_path)
    (found,) = read_followers(nothing)
    assert (found.kind, found.name, found.sources) == ("derived", "activity", ("adding",))
    assert found.problem == "not declared: lockstep forget derived activity"
    assert forget_follower(tmp_path, NAME) == NAME
    assert read_followers(nothing) == ()
    with pytest.raises(UnknownFollower, match="no follower derived activity has a position"):
        forget_follower(tmp_path, NAME)


PATHS = st.lists(st.sampled_from(("..", ".", "derived", "books")), max_size=3).map("/".join)


@settings(max_examples=scale_examples(300), deadline=None)
@given(kind=PATHS, name=PATHS)
def test_no_name_leads_to_another_file(kind: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tables"
        write_position(root, make_position(make_unread_history("adding")))
        others = [root / "books.json", root / "derived.json", root.parent / "books.json"]
        for other in others:
            other.write_text("{}")
        with pytest.raises(UnknownFollower):
            forget_follower(root, FollowerName(kind, name))
        assert all(other.exists() for other in others)
        assert len(read_follower_positions(root).read) == 1


def test_a_damaged_position_can_be_forgotten_and_is_in_each_plan(tmp_path: Path) -> None:
    path = make_position_path(tmp_path, NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    (effect,) = list_effects("adding", tmp_path)
    assert (effect.name, effect.effect) == (
        "activity",
        "unknown: its position cannot be read, so it may follow this stream",
    )
    forget_follower(tmp_path, NAME)
    assert list_effects("adding", tmp_path) == ()


@pytest.mark.parametrize(
    ("rebuilds", "reads", "undone_after", "effect"),
    [
        (True, Reads.HOURS, 4, "its next run rebuilds it; until then it shows the previous rows"),
        (True, Reads.COMMITS, None, "its next run rebuilds it; until then it shows the previous rows"),
        (False, Reads.COMMITS, 4, "holds rows of batches 5 to 6, which are undone: its next run is refused"),
        (False, Reads.HOURS, 6, "keeps its rows: none of them is undone"),
        (False, Reads.HOURS, None, "keeps its rows: the erasure is refused if they are of the session"),
        (False, Reads.COMMITS, None, "keeps its rows: the notes tell how those of the session are erased"),
    ],
)
def test_a_plan_lists_the_effect_on_each_follower(
    tmp_path: Path, *, rebuilds: bool, reads: Reads, undone_after: int | None, effect: str
) -> None:
    tree = BatchTree()
    for _ in range(6):
        tree.batch(0)
    write_position(tmp_path, make_position(tree.read(), rebuilds=rebuilds, reads=reads))
    (found,) = list_effects("adding", tmp_path, undone_after=undone_after)
    assert (found.effect, found.next_step) == (effect, "lockstep derive activity")
    assert list_effects("other", tmp_path, undone_after=undone_after) == ()
