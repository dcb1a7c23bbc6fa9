"""Successive releases of a stream: rows equal the plain fold, and a wrong change is refused before any harm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import TableError
from lockstep.features.compaction.run import compact_stream
from lockstep.operations.inspect.plan import plan_next_batch, plan_restart
from lockstep.operations.inspect.state import NotRetained, StateFilter, read_states
from lockstep.state.codec import MigrationFailed, StateTypeChanged
from lockstep.table.commit import OutputLog, commit_closed_hour
from tests.support.evolving_streams import (
    Failing,
    First,
    FromRows,
    InRows,
    Narrow,
    Renamed,
    Required,
    Retyped,
    Second,
    Third,
    Unmigrated,
    Wider,
    release,
)
from tests.support.feed import folded, session, snapshot, update
from tests.support.plain_reader import entries, heads, named_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep import Transform
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.table.layout import StreamFolders
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

Sent = list[tuple[str, bytes]]


class Killed(BaseException):
    """Ends the run immediately, like kill -9, without cleanup."""


def killed_after_the_fold(runner: Runner) -> Runner:
    """Write state files and hot copies, then kill the run before its commit."""

    def run(plan: Any) -> Any:
        runner(plan)
        raise Killed

    return run


class Told:
    """A topic with its sent messages, and runs of releases over it."""

    def __init__(self, feed: Feed, runs: LocalRuns) -> None:
        self.feed, self.runs, self.sent = feed, runs, list[tuple[int, str, bytes]]()
        self.topic = feed.create("values")

    def send(self, *messages: tuple[str, bytes]) -> None:
        for key, value in messages:
            self.feed.send(self.topic, [value], key=key)
            self.sent.append((len(self.sent), key, value))

    def run(self, transform: Transform[Any, Any, Any], around: Callable[[Runner], Runner] = lambda r: r) -> RunOutcome:
        return self.of(transform).run(around=around)

    def of(self, transform: Transform[Any, Any, Any]) -> LocalRuns:
        return self.runs.of(release(self.feed.pattern, transform))

    def check(self) -> None:
        assert folded(self.sent) == self.runs.rows(self.topic)


@pytest.fixture
def told(feed: Feed, runs: LocalRuns) -> Told:
    return Told(feed, runs)


def test_releases_with_other_states_go_on_from_one_another_after_a_kill(told: Told) -> None:
    told.send(*(("a", value) for value in session(4)), *(("b", value) for value in session(3, first=10)))
    told.send(("c", snapshot(1, x=1)), ("d", snapshot(1, x=4)))
    told.run(First())
    told.send(("a", update(6, a=100)), ("b", update(14, b=5)))
    with pytest.raises(Killed):
        told.run(First(), around=killed_after_the_fold)
    with pytest.raises(Killed):
        told.run(Second(), around=killed_after_the_fold)
    assert told.run(Second()) is RunOutcome.ENDED
    told.check()
    told.send(("a", update(7, z=1)), ("c", update(2, x=1)))
    told.run(Third())
    told.check()
    told.send(*((key, update(seq, x=9)) for key, seq in (("a", 8), ("b", 15), ("c", 3), ("d", 2))))
    told.run(Third())
    told.check()
    (state,) = read_states(told.of(Third()).stream, told.runs.root / "tables", StateFilter(session="d")).sessions
    assert state.state == {"held": {"x": 13}, "total": 13, "note": "third"}


def test_a_state_moves_into_rows_and_back(told: Told) -> None:
    told.send(*(("a", value) for value in session(4)), ("b", snapshot(1, x=1)), ("c", snapshot(1, x=4)))
    told.run(First())
    told.send(("a", update(6, a=100)), ("b", update(2, y=5)))
    with pytest.raises(Killed):
        told.run(InRows(), around=killed_after_the_fold)
    told.run(InRows())
    told.check()
    told.send(("a", update(7, z=1)), ("b", snapshot(3, x=9)), ("b", update(4, y=1, x=1)))
    told.run(InRows())
    told.check()
    stream = told.of(InRows()).stream
    root = told.runs.root / "tables"
    shown = {name: read_states(stream, root, StateFilter(session=name)).sessions[0].state for name in "abc"}
    assert shown["b"] == {"held": {"x": 10, "y": 1}, "note": ""}
    assert shown["c"] == {"held": {"x": 4}, "note": "migrated"}
    assert [item.session for item in read_states(stream, root, StateFilter()).sessions] == ["a", "b", "c"]
    told.send(("a", update(8, z=1)), ("b", update(5, y=1)), ("c", update(2, x=1)))
    told.run(FromRows())
    told.check()


def test_a_state_that_cannot_be_read_is_refused_before_the_run_claims(told: Told) -> None:
    told.send(("a", snapshot(1, x=1)))
    told.run(First())
    before = heads(told.runs.folders.table)[-1]
    with pytest.raises(
        StateTypeChanged, match=r"(?s)values: stored dict.*declared no such field.*held: stored no such"
    ):
        told.run(Unmigrated())
    assert heads(told.runs.folders.table)[-1] == before
    found = plan_restart(told.of(Unmigrated()).stream, told.runs.settings)
    assert "written by another state type" in found.refused
    assert "override migrate(old)" in found.next_step
    batch = plan_next_batch(told.of(Unmigrated()).stream, told.runs.settings)
    assert (batch.refused, batch.next_step) == (found.refused, found.next_step)
    migrating = plan_restart(told.of(Second()).stream, told.runs.settings)
    assert (migrating.refused, migrating.next_step, len(migrating.changes)) == ("", "", 3)


def test_a_migration_that_fails_ends_the_run_and_judges_no_message(told: Told) -> None:
    told.send(("a", snapshot(1, x=1)))
    told.run(First())
    told.send(("a", update(2, x=1)))
    with pytest.raises(MigrationFailed, match=r"^\S+/0: migrate.. failed on .* session 'a': KeyError: 'held'"):
        told.run(Failing())
    assert heads(told.runs.folders.table)[-1]["desired"] == "bounded"
    told.run(Second())
    told.check()


def test_columns_are_added_by_one_commit_and_older_rows_have_null_in_them(told: Told) -> None:
    told.send(*(("a", value) for value in session(3)))
    told.run(First())
    wider = told.of(Wider())
    assert plan_restart(wider.stream, told.runs.settings).changes == (
        "table: column unit (string) is added; column weight (int64) is added; column value may be null",
    )
    told.send(("a", update(5, a=1, zero=0)))
    told.run(Wider())
    told.run(Wider())
    rows = (
        DeltaTable(told.runs.folders.table)
        .to_pyarrow_table()
        .sort_by([("_offset", "ascending"), ("_row", "ascending")])
    )
    assert rows.select(["name", "value", "unit", "weight"]).to_pylist()[-3:] == [
        {"name": "b", "value": -4, "unit": None, "weight": None},
        {"name": "a", "value": 8, "unit": "V", "weight": 7},
        {"name": "zero", "value": None, "unit": "V", "weight": 7},
    ]
    kinds = [entry["commitInfo"]["lockstep.kind"] for entry in commits(told)]
    assert kinds.count("schema") == 2
    assert len(named_files(told.runs.folders.table)) == 2


def test_files_of_before_and_after_a_new_column_are_compacted_together(told: Told) -> None:
    told.send(*(("a", value) for value in session(3)))
    told.run(First())
    told.send(("a", update(5, a=1, zero=0)))
    told.run(Wider())
    folders = told.runs.folders
    OutputLog(folders.table).commit(commit_closed_hour(heads(folders.table)[-1]["hour"]))
    before = by_place(folders)
    result = compact_stream(folders)
    assert (result.files_before, result.files_after, result.rows) == (2, 1, 8)
    assert by_place(folders) == before
    told.send(("a", update(6, a=1)))
    told.run(Wider())


def by_place(folders: StreamFolders) -> list[dict[str, Any]]:
    order: Any = [("_offset", "ascending"), ("_row", "ascending")]
    return DeltaTable(folders.table).to_pyarrow_table().sort_by(order).to_pylist()


def commits(told: Told) -> list[dict[str, Any]]:
    return [action for entry in entries(told.runs.folders.table) for action in entry if "commitInfo" in action]


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (Narrow(), r"total: the table has it \(int64\), the row type does not"),
        (Renamed(), r"sum_of_all: new and neither optional.*total: the table has it"),
        (Retyped(), "total: table int64, declared string"),
        (Required(), "unit: new and neither optional nor with a default"),
    ],
    ids=["dropped", "renamed", "retyped", "required"],
)
def test_columns_that_go_or_change_are_refused_by_name(told: Told, transform: Any, said: str) -> None:
    told.send(*(("a", value) for value in session(1)))
    told.run(First())
    before = heads(told.runs.folders.table)[-1]
    with pytest.raises(TableError, match=said):
        told.run(transform)
    refused = plan_restart(told.of(transform).stream, told.runs.settings).refused
    assert re.search(said, refused)
    assert heads(told.runs.folders.table)[-1] == before


def test_the_state_of_every_retained_batch_can_be_read(told: Told) -> None:
    told.send(("a", snapshot(1, x=1)))
    told.run(First())
    for seq in range(2, 6):
        told.send(("a", update(seq, x=1)))
        told.run(First())
    stream = told.of(First()).stream
    root = told.runs.root / "tables"
    shown = [read_states(stream, root, StateFilter(session="a"), at).sessions[0].state for at in (1, 3, 5, None)]
    assert shown == [{"values": {"x": value}} for value in (1, 3, 5, 5)]
    assert read_states(stream, root, StateFilter(), 2).batch == 2
    with pytest.raises(NotRetained, match="those of 0 to 5 are kept"):
        read_states(stream, root, StateFilter(), 6)
