"""Two operators at the same time: each command succeeds, or its error names the other command and the next step."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lockstep import Every, Limits
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import Overtaken, TableError
from lockstep.features.history import promote as promotion
from lockstep.features.history import shadow as operation
from lockstep.features.history.promote import promote_shadow
from lockstep.features.history.rewind import find_target, plan_rewind, rewind_stream
from lockstep.features.history.shadow import begin_shadow, drop_shadow, make_pin
from lockstep.operations.past_batches import NotRewindable
from lockstep.operations.plan_frame import Refused
from lockstep.operations.retire import retire_topic
from tests.support.feed import session
from tests.support.local_runs import read_in_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstep.features.history.rewind import PlannedRewind
    from lockstep.features.history.shadow import ShadowShown
    from lockstep.operations.stream_handle import StreamHandle
    from lockstep.table.head import Head
    from lockstep.table.layout import StreamFolders
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

NAME = "adding_shadow"
WAIT_SECONDS_MAX = 120.0


def head_of(runs: LocalRuns) -> Head:
    return runs.handle.require_head()


def begin(runs: LocalRuns, start: str, who: str = "ann") -> ShadowShown:
    return begin_shadow(runs.handle, NAME, start, code="", who=who, why="a fix")


@pytest.fixture
def running(feed: Feed, runs: LocalRuns) -> Iterator[LocalRuns]:
    """A continuous run with three read topics."""
    for name in ("a", "b", "c"):
        feed.send(feed.create(name), session(2))
    stop = threading.Event()
    going = threading.Thread(target=runs.run, kwargs={"trigger": Every(seconds=0.2), "stop": stop})
    going.start()
    try:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not runs.reports:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield runs
    finally:
        stop.set()
        going.join()


def test_a_live_writer_retires_what_several_operators_ask_for_at_once(feed: Feed, running: LocalRuns) -> None:
    """A request must not replace another operator's request."""
    topics = [f"{feed.family}.{name}" for name in "abc"]
    refused = list[BaseException]()

    def retire(topic: str) -> None:
        try:
            retire_topic(running.handle, topic, who=f"operator of {topic}", why="done")
        except BaseException as error:  # noqa: BLE001  # it is what the test asserts
            refused.append(error)

    operators = [threading.Thread(target=retire, args=(topic,)) for topic in topics]
    for each in operators:
        each.start()
    for each in operators:
        each.join()
    assert refused == []
    rows = running.handle.positions.values()
    assert {row.topic for row in rows if row.retired} == set(topics)


def test_a_retirement_beside_another_one_without_a_writer_says_so(feed: Feed, runs: LocalRuns) -> None:
    one = feed.create("one")
    other = feed.create("other")
    for topic in (one, other):
        feed.send(topic, session(2))
    runs.run()
    late = runs.handle
    assert {row.topic for row in late.subscribed} == {one, other}  # read before the other retirement commits
    retire_topic(runs.handle, one, who="ann", why="done")
    with pytest.raises(Overtaken, match=r"retirement of .*other.* of stream adding: .* claimed the table") as lost:
        retire_topic(late, other, who="bob", why="done")
    assert "lockstep history adding" in lost.value.next_step
    with pytest.raises(Refused, match="is not read"):
        retire_topic(runs.handle, one, who="bob", why="done")
    retire_topic(runs.handle, other, who="bob", why="done")


def test_a_rewind_beside_another_one_says_so(feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_batches(feed, runs, feed.create("values"), session(5))
    prepare = plan_rewind

    def prepare_slowly(handle: StreamHandle, to: str) -> PlannedRewind:
        prepared = prepare(handle, to)
        monkeypatch.undo()
        rewind_stream(runs.handle, "2", who="bob", why="faster")
        return prepared

    monkeypatch.setattr("lockstep.features.history.rewind.plan_rewind", prepare_slowly)
    with pytest.raises(Overtaken, match=r"rewind to batch 1 of stream adding: .* claimed the table") as lost:
        rewind_stream(runs.handle, "1", who="ann", why="wrong")
    assert "lockstep history adding" in lost.value.next_step


@pytest.mark.parametrize(
    "step",
    [
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("read_head_of_batch", "_make_plan", "_copy_positions", "_copy_side")
        ),
        "_copy_data",
    ],
)
@pytest.mark.parametrize("begins_again", [False, True])
def test_a_promotion_of_a_shadow_that_is_dropped_meanwhile_changes_nothing(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, step: str, *, begins_again: bool
) -> None:
    read_in_batches(feed, runs, feed.create("values"), session(5))
    begin(runs, "1")
    shadow = runs.of(dataclasses.replace(runs.stream, name=NAME))
    shadow.run()
    before = head_of(runs)
    usual = getattr(promotion, step)

    def dropped_first(*arguments: object, **named: object) -> object:
        monkeypatch.undo()
        drop_shadow("adding", NAME, runs.settings, who="bob")
        if begins_again:
            begin(runs, "2", who="bob")
        return usual(*arguments, **named)

    monkeypatch.setattr(promotion, step, dropped_first)
    with pytest.raises(
        Refused, match=f"promotion of {NAME} .*it was dropped meanwhile; nothing was changed"
    ) as refused:
        promote_shadow(runs.handle, NAME, who="ann", why="the fix")
    assert refused.value.next_step == "lockstep shadow list adding lists its shadows"
    after = head_of(runs)
    assert (after.batch, after.generation, after.epoch) == (before.batch, before.generation, before.epoch)
    assert not list(runs.folders.table.rglob("promoted-*"))


def test_of_two_shadows_of_one_name_one_begins_and_its_batch_is_kept(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losing start must not move the savepoint to its batch, as the winner's promotion would be refused."""
    read_in_batches(feed, runs, feed.create("values"), session(5))
    keep = operation._keep_batch  # noqa: SLF001  # between the savepoint and the tables

    def keep_then_lose(folders: StreamFolders, name: str, batch: int, who: str) -> None:
        monkeypatch.undo()
        begin(runs, "1", who="bob")
        keep(folders, name, batch, who)

    monkeypatch.setattr(operation, "_keep_batch", keep_then_lose)
    with pytest.raises(TableError, match="is a shadow of adding already") as lost:
        begin(runs, "2")
    assert "choose another --name" in lost.value.next_step
    assert [(each.name, each.batch) for each in head_of(runs).savepoints] == [(make_pin(NAME), 1)]
    assert runs.of(dataclasses.replace(runs.stream, name=NAME)).run() is RunOutcome.ENDED
    promote_shadow(runs.handle, NAME, who="ann", why="the fix", accept_behind=True)


def test_a_rewind_into_a_promotion_that_was_undone_names_the_batches_that_there_are(
    feed: Feed, runs: LocalRuns
) -> None:
    read_in_batches(feed, runs, feed.create("values"), session(5))
    begin(runs, "1")
    runs.of(dataclasses.replace(runs.stream, name=NAME)).with_limits(Limits(batch_messages=1)).run()
    promote_shadow(runs.handle, NAME, who="ann", why="the fix")
    promoted = head_of(runs).promotion
    assert promoted is not None
    inside = promoted.first + 1
    texts = []
    for _ in range(2):  # in force, and undone
        with pytest.raises(NotRewindable) as refused:
            find_target(runs.folders, head_of(runs), str(inside))
        texts.append((refused.value.problem, refused.value.next_step))
        rewind_stream(runs.handle, "1", who="ann", why="worse than before")
    assert head_of(runs).promotion is None
    assert texts[0] == texts[1]
    assert f"batches {promoted.first} to {promoted.batch} are one commit, the promotion of {NAME}" in texts[1][0]
    assert f"batch {promoted.to_batch}, from which the shadow started, or to batch {promoted.batch}" in texts[1][1]
    rewind_stream(runs.handle, str(promoted.batch), who="ann", why="it was better")
