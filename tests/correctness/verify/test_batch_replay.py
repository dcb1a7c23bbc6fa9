"""A handwritten fold whose rows do not replay is found at the batch, even if later rows correct it.

The engine writes the rows that the fold emits, so only the replay can see it. Plain dicts find the differing batches.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from deltalake import DeltaTable

from lockstep import Envelope, InitialState, MapState, NoIntegrity, Record, TableFold, Transform
from lockstep.verify import batch_replay
from lockstep.verify.report import InvariantStatus, ViolationKind
from tests.correctness.verify.shelves import Change, Item, ItemRow, Line, Price, Producer, Shelves, shelf_stream
from tests.support.offline_proof import prove
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.offline_stream import Sent

Table = dict[tuple[str, int], Item]
SHELVES = Shelves()


class ShelvesByHand(Transform[Change, Table, ItemRow]):
    """The rows of `Shelves`, except for one mistake: some rows, or all of a kind, are wrong or missing."""

    key = ("name", "place")
    removed = "price"

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def envelope(self, message: Change, record: Record) -> Envelope:
        """Return the envelope of `Shelves`."""
        return SHELVES.envelope(message, record)

    def on_snapshot(self, message: Change, record: Record, previous: Table | None) -> InitialState[Table, ItemRow]:
        """Return the difference to the previous table."""
        table = SHELVES.on_snapshot(message, record, previous)
        before = previous or {}
        changed = [SHELVES.emit(message, key, item, before.get(key)) for key, item in table.items()]
        gone = [SHELVES.emit(message, key, None, before[key]) for key in before if key not in table]
        if self.mistake == "no removals":
            gone = []
        if self.mistake == "nothing":
            changed = gone = []
        if self.mistake == "another value" and message.number % 3 == 0:
            changed = [msgspec.structs.replace(row, ratio=0.25) for row in changed]
        return InitialState(table, changed + gone)

    def on_update(self, state: Table, message: Change, record: Record) -> Iterable[ItemRow]:
        """Return the changed items."""
        rows = list(SHELVES.on_update(state, message, record))
        return rows[1:] if self.mistake == "a row less" and message.number % 4 == 0 else rows

    def on_end(self, state: Table) -> Iterable[ItemRow]:
        """Remove all items."""
        return [] if self.mistake == "no end" else [SHELVES.emit(None, key, None, item) for key, item in state.items()]


MISTAKES = ("none", "no removals", "nothing", "another value", "a row less", "no end")
EXAMPLES = 120
USUAL = 2 * len(MISTAKES)


def find_differing_batches(offline: Offline, sent: list[list[Sent]]) -> list[int]:
    """Return the batches after which the rows of the table do not replay to the states."""
    rows = (
        DeltaTable(offline.folders.table)
        .to_pyarrow_table()
        .sort_by([("_emit_offset", "ascending"), ("_row", "ascending")])
    )
    listed = rows.to_pylist()
    tables: dict[str, Table] = {}
    current: dict[tuple[str, str, int], tuple[object, object]] = {}
    differing = []
    until = 0
    for number, batch in enumerate(sent, 1):
        for session, value in batch:
            apply(tables, session, msgspec.json.decode(value, type=Change))
        until += len(batch)
        while listed and listed[0]["_emit_offset"] < until:
            row = listed.pop(0)
            current[row["_session"], row["name"], row["place"]] = (row["price"], row["ratio"])
        found = {key: values for key, values in current.items() if values[0] is not None}
        if found != {
            (session, *key): (item.price, item.ratio) for session, each in tables.items() for key, item in each.items()
        }:
            differing.append(number)
    return differing


def apply(tables: dict[str, Table], session: str, message: Change) -> None:
    """Apply a message to plain dicts; under `NoIntegrity` the first message of a session opens it."""
    if message.kind == "end":
        tables.pop(session, None)
        return
    if message.kind == "snapshot" or session not in tables:
        tables[session] = {}
    for line in message.lines:
        if line.price is None:
            tables[session].pop((line.name, line.place), None)
        else:
            tables[session][line.name, line.place] = Item(line.price, line.ratio)


def write(seed: int, root: Path) -> tuple[Offline, list[list[Sent]]]:
    rng = random.Random(seed)  # noqa: S311  # reproducible
    offline = Offline(shelf_stream(ShelvesByHand(MISTAKES[seed % len(MISTAKES)]), NoIntegrity()), root)
    producer = Producer(rng, SHELVES)
    sent = [producer.send(rng.choice((1, 3, 10))) for _ in range(rng.randrange(2, 9))]
    offline.run(*({"t": batch} for batch in sent))
    return offline, sent


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < USUAL else pytest.mark.slow) for seed in range(EXAMPLES)]
)
def test_the_first_batch_after_which_the_rows_do_not_replay_is_named(seed: int, tmp_path: Path) -> None:
    offline, sent = write(seed, tmp_path)
    differing = find_differing_batches(offline, sent)
    found = prove(offline)
    assert {each.kind for each in found.violations} <= {ViolationKind.REPLAY_DIFFERS}
    assert (found.status is InvariantStatus.PROVEN) == (not differing), found.violations
    if differing:
        assert f"in the state after batch {differing[0]}" in found.violations[0].expected
        assert "the fold itself emits rows that do not replay" in found.next_step
    else:
        assert found.invariants[-1].checked.endswith(f"and after {len(sent)} batches")


def test_without_room_for_the_rows_the_end_is_compared_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_replay, "ROWS_MAX", 1)
    offline, sent = write(MISTAKES.index("nothing"), tmp_path)
    found = prove(offline)
    differing = find_differing_batches(offline, sent)
    assert differing[-1] == len(sent)
    assert len(differing) > 2
    named = {int(batch) for each in found.violations for batch in re.findall(r"after batch (\d+)", each.expected)}
    assert named - {1} == {len(sent)}


class Spot(msgspec.Struct, frozen=True, array_like=True):
    """A key of two parts."""

    name: str
    place: int


class PriceRow(msgspec.Struct):
    """A row with a value that is not a Struct."""

    name: str
    place: int
    price: Price | None


class SpotShelves(TableFold[Change, Spot, Decimal, PriceRow]):
    """Prices by a key that is a Struct."""

    key = ("name", "place")
    removed = "price"

    def envelope(self, message: Change, record: Record) -> Envelope:
        """Return the envelope of `Shelves`."""
        return SHELVES.envelope(message, record)

    def changes(self, message: Change) -> Iterable[tuple[Spot, Decimal | None]]:
        """Return the prices."""
        return [(Spot(line.name, line.place), line.price) for line in message.lines]

    def emit(self, message: Change | None, key: Spot, new: Decimal | None, previous: Decimal | None) -> PriceRow:
        """Return the new price."""
        return PriceRow(key.name, key.place, new)


class NamedState(msgspec.Struct):
    """A state with a table in it."""

    items: MapState[str, Item]


class NamedRow(msgspec.Struct):
    """A row by name."""

    name: str
    price: Price | None
    ratio: float | None


class NamedShelves(Transform[Change, NamedState, NamedRow]):
    """Items by name, handwritten, in a table that is stored row by row."""

    key = ("name",)
    removed = "price"

    def envelope(self, message: Change, record: Record) -> Envelope:
        """Return the envelope of `Shelves`."""
        return SHELVES.envelope(message, record)

    def on_snapshot(
        self, message: Change, record: Record, previous: NamedState | None
    ) -> InitialState[NamedState, NamedRow]:
        """Change the previous table in place, row by row."""
        state = previous or NamedState(MapState())
        named = {line.name for line in message.lines if line.price is not None}
        gone = [self._change(state, name, None) for name in list(state.items) if name not in named]
        return InitialState(state, [*gone, *self.on_update(state, message, record)])

    def on_update(self, state: NamedState, message: Change, record: Record) -> Iterable[NamedRow]:
        """Return a row for each line."""
        return [self._change(state, line.name, line) for line in message.lines]

    def on_end(self, state: NamedState) -> Iterable[NamedRow]:
        """Remove all names."""
        return [self._change(state, name, None) for name in list(state.items)]

    def list_rows(self, state: NamedState) -> Iterable[tuple[str, Item]]:
        """Return the rows of the table."""
        return state.items.items()

    @staticmethod
    def _change(state: NamedState, name: str, line: Line | None) -> NamedRow:
        if line is None or line.price is None:
            state.items.pop(name, None)
            return NamedRow(name, None, None)
        state.items[name] = Item(line.price, line.ratio)
        return NamedRow(name, line.price, line.ratio)


@pytest.mark.parametrize("fold", [SpotShelves(), NamedShelves()])
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed < 2 else pytest.mark.slow) for seed in range(6)])
def test_keys_and_states_of_every_kind_are_replayed(fold: Transform[Any, Any, Any], seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)  # noqa: S311  # reproducible
    offline = Offline(shelf_stream(fold, NoIntegrity()), tmp_path)
    producer = Producer(rng, SHELVES)
    batches = [{"t": producer.send(rng.choice((1, 3, 10)))} for _ in range(6)]
    offline.run(*batches[:3])
    offline.run(*batches[3:])
    found = prove(offline)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
    assert found.invariants[-1].checked.endswith("and after 6 batches")
