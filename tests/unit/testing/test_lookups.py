"""Lookups in the test harness: rows of a test, changed between messages, in every hook that may read them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from lockstep import Envelope, EventTime, FuzzyWindow, Kind, Lookup, Record, Stream, Topics, Transform
from lockstep.declare.lookup import LookupNotBound
from lockstep.errors import LockstepError
from lockstep.testing import ChangedLookup, SentMessage, run
from tests.support.feed import snapshot, update
from tests.support.weighing_stream import Weight, weighing


class Plant(msgspec.Struct, frozen=True):
    name: str
    site: str


PLANTS = Lookup("plants", "plants", key="name", row=Plant)


class Measured(msgspec.Struct):
    kind: str
    second: int


class Memory(msgspec.Struct):
    due_us: int | None
    opened_at: str


class Seen(msgspec.Struct, frozen=True):
    hook: str
    site: str


def find_site() -> str:
    plant = PLANTS.get("p")
    return "nowhere" if plant is None else plant.site


class Hooked(Transform[Measured, Memory, Seen]):
    """A transform that emits a row for each hook, with the values of the lookup."""

    def envelope(self, message: Measured, record: Record) -> Envelope:
        kind = {"snapshot": Kind.SNAPSHOT, "end": Kind.END}.get(message.kind, Kind.UPDATE)
        return Envelope("p", kind, event_time_us=message.second * 1_000_000)

    def on_snapshot(self, message: Measured, record: Record, previous: Memory | None) -> Memory:
        return Memory((message.second + 10) * 1_000_000, find_site())

    def on_update(self, state: Memory, message: Measured, record: Record) -> Iterable[Seen]:
        yield Seen("update", find_site())

    def deadline(self, state: Memory) -> int | None:
        return state.due_us

    def on_timer(self, state: Memory, deadline_us: int) -> Iterable[Seen]:
        state.due_us = None
        yield Seen("timer", find_site())

    def on_late(self, state: Memory, message: Measured, record: Record) -> Iterable[Seen]:
        yield Seen("late", find_site())

    def on_end(self, state: Memory) -> Iterable[Seen]:
        yield Seen("end", f"{state.opened_at} to {find_site()}")


HOOKED = Stream(
    name="hooked",
    topics=Topics(pattern=r"t\..+"),
    transform=Hooked(),
    integrity=FuzzyWindow(lateness=timedelta(seconds=5)),
    event_time=EventTime(max_skew=timedelta(hours=1)),
    lookups=(PLANTS,),
)
NORTH, SOUTH = (ChangedLookup("plants", [Plant("p", site)]) for site in ("north", "south"))


def test_every_hook_that_emits_rows_sees_the_rows_of_its_batch() -> None:
    sent = (
        Measured("snapshot", 100),
        Measured("update", 101),
        SOUTH,
        Measured("update", 120),
        Measured("update", 102),
        NORTH,
        Measured("end", 121),
    )
    ran = run(HOOKED, *sent, lookups={"plants": [Plant("p", "east")]}, key="p")
    assert ran.rows == [
        Seen("update", "east"),
        Seen("timer", "south"),
        Seen("update", "south"),
        Seen("late", "south"),
        Seen("end", "east to north"),
    ]
    assert ran == run(HOOKED, *sent, lookups={"plants": [Plant("p", "east")]}, key="p", split=1)


class TimedByLookup(Hooked):
    def deadline(self, state: Memory) -> int | None:
        return None if find_site() == "north" else state.due_us


def test_the_time_of_a_timer_is_no_matter_of_a_lookup() -> None:
    with pytest.raises(LookupNotBound, match="lookup plants"):
        run(replace(HOOKED, transform=TimedByLookup()), Measured("snapshot", 1), lookups={"plants": []})


def test_rows_are_the_same_for_every_split() -> None:
    stream = weighing(r"t\..+")
    rows = {"weights": [Weight("a", 3)]}
    messages = [SentMessage[object](value=each) for each in (snapshot(1, a=1), update(2, a=1, b=1), update(3, a=2))]
    ran = run(stream, *messages, key="s", lookups=rows)  # type: ignore[arg-type]  # bytes, as a producer sends them
    assert [(row.name, row.value) for row in ran.rows] == [("a", 4), ("b", 0), ("a", 10)]
    assert ran == run(stream, *messages, key="s", lookups=rows, split=1)  # type: ignore[arg-type]  # see above


def test_a_lookup_without_rows_says_what_the_test_lacks() -> None:
    with pytest.raises(LookupNotBound, match=r"in a test: run\(\.\.\., lookups=\{'plants': \[\.\.\.\]\}\)"):
        run(HOOKED, Measured("snapshot", 1))


@pytest.mark.parametrize(
    ("lookups", "said"),
    [
        ({"plant": []}, "the stream has no lookup 'plant'\n  next: use one of its lookups: plants"),
        ({"plants": [Weight("a", 1)]}, r"lookup plants: Weight\(name='a', factor=1\) is no Plant"),
        ({"plants": [Plant("p", "a"), Plant("p", "b")]}, "lookup plants: two rows have the key 'p'"),
    ],
)
def test_rows_that_no_table_could_have_are_refused(lookups: dict[str, list[msgspec.Struct]], said: str) -> None:
    with pytest.raises(LockstepError, match=said):
        run(HOOKED, Measured("snapshot", 1), lookups=lookups)


PAGE = (Path(__file__).parents[3] / "docs" / "lookups.md").read_text()


def test_the_stream_of_the_page_does_what_its_test_says(monkeypatch: pytest.MonkeyPatch) -> None:
    declared, tested = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("trades_of_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(declared, module.__name__, "exec"), vars(module))  # noqa: S102  # our own page
    test: dict[str, object] = {}
    exec(compile(tested.replace("assets.trades", module.__name__), "the test", "exec"), test)  # noqa: S102  # as above
    (run_it,) = (each for name, each in test.items() if name.startswith("test_"))
    assert callable(run_it)
    run_it()
