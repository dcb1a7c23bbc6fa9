"""`ColumnFold`: the effect of field names, message by message; and impossible declarations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import ColumnFold, TableFields
from lockstep.errors import DeclarationError
from lockstep.testing import run
from tests.support.gauges import GAUGES, End, Gauge, GaugeChange, Gauges, Message, Part, Snapshot, Update, Whole

if TYPE_CHECKING:
    from typing import Any

OPENED = Snapshot(1, 5, [Whole("x", "a", 1.5, 3, is_open=True)])


def test_an_update_changes_the_columns_that_it_has_and_emits_the_row_before_and_after() -> None:
    ran = run(GAUGES["changes"], OPENED, Update(2, 6, [Part("x", level=2.5)]), key="s")
    assert ran.rows == [
        GaugeChange(1.5, None, "x", "a", None, 3, is_open=True, previous_is_open=None),
        GaugeChange(2.5, 1.5, "x", "a", "a", 3, is_open=True, previous_is_open=True),
    ]
    assert ran.states == {"s": {"x": Gauge("a", 2.5, 3, is_open=True)}}
    assert [(row.session, row.sequence, row.event_time_us) for row in ran.proven] == [("s", 1, 5), ("s", 2, 6)]
    assert [row.cause for row in ran.proven] == ["snapshot", "update"]


def test_an_update_that_changes_nothing_emits_a_row_only_where_that_is_declared() -> None:
    same = Update(2, 6, [Part("x", level=1.5), Part("x")])
    assert [len(run(GAUGES[name], OPENED, same, key="s").rows) for name in ("changes", "all")] == [1, 3]


def test_a_repeated_snapshot_of_300_rows_costs_no_row_and_one_that_differs_only_its_difference() -> None:
    rows = [Whole(f"row {n}", "a", n / 2, n, is_open=True) for n in range(300)]
    changed = [*rows[:-1], Whole("new", "b", 1.0, 1, is_open=False)]
    ran = run(GAUGES["changes"], *(Snapshot(n, 5, sent) for n, sent in enumerate((rows, rows, changed))), key="s")
    assert [len(message.rows) for message in ran.folded] == [300, 0, 2]
    assert ran.rows[300:] == [
        GaugeChange(1.0, None, "new", "b", None, 1, is_open=False, previous_is_open=None),
        GaugeChange(None, 149.5, "row 299", None, "a", None, is_open=None, previous_is_open=True),
    ]


def test_a_new_row_needs_all_columns_and_has_none_before() -> None:
    whole = Update(2, 6, [Part("y", "b", 1.0, 2, is_open=False)])
    assert run(GAUGES["changes"], OPENED, whole, key="s").rows[1:] == [
        GaugeChange(1.0, None, "y", "b", None, 2, is_open=False, previous_is_open=None)
    ]
    partly = run(GAUGES["changes"], OPENED, Update(2, 6, [Part("y", "b")]), key="s")
    assert partly.finding is not None
    assert partly.finding.detail == "ValueError: the new row 'y' lacks columns"


class Nameless(msgspec.Struct):
    text: str


class OtherChange(msgspec.Struct, frozen=True):
    name: str
    before_text: str


class NoKey(msgspec.Struct, tag="update"):
    number: int
    at: int
    rows: list[Nameless]


class WithoutFields(ColumnFold[Message, str, Gauge, GaugeChange]):
    """A fold without its fields."""


class OtherRow(ColumnFold[Message, str, Gauge, OtherChange]):
    """A fold with a field of its row that has no value."""

    fields = Gauges.fields


class NoKeyInRows(ColumnFold[Snapshot | NoKey, str, Gauge, GaugeChange]):
    """A fold whose updates have rows without a key."""

    fields = replace(Gauges.fields, end=None)


class NoNumber(Gauges):
    fields = replace(Gauges.fields, sequence="count")


class NoRows(Gauges):
    fields = replace(Gauges.fields, rows="at")


class ForeignSnapshot(Gauges):
    fields = TableFields(snapshot=Nameless, end=Gauges.fields.end, rows="rows", key="name")


class NamedGauge(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    level: float
    count: int
    is_open: bool


class NamedChange(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class NamedState(ColumnFold[Message, str, NamedGauge, GaugeChange]):
    fields = Gauges.fields


class NamedRow(ColumnFold[Message, str, Gauge, NamedChange]):
    fields = Gauges.fields


class LooseRow(msgspec.Struct):
    name: str
    text: str
    level: int
    count: int
    is_open: bool


class LooseSnapshot(msgspec.Struct, tag="snapshot"):
    number: int
    at: int
    rows: list[LooseRow]


class LooseLevels(ColumnFold[LooseSnapshot | Update | End, str, Gauge, GaugeChange]):
    """A fold whose snapshot rows have ints for the floats of the state, which a loaded state would not have."""

    fields = replace(Gauges.fields, snapshot=LooseSnapshot)


@pytest.mark.parametrize(
    ("declared", "field", "problem"),
    [
        (LooseLevels, "LooseLevels: LooseRow.level", "is of another type than Gauge.level: <class 'float'>"),
        (WithoutFields, "WithoutFields: fields", "is not set"),
        (OtherRow, "OtherRow: OtherChange.before_text", "has no value"),
        (NoKeyInRows, "NoKeyInRows: Nameless.name", "is not there"),
        (NoNumber, "NoNumber: fields.sequence", "is not a field of Snapshot"),
        (NoRows, "NoRows: fields.rows", "is not a list of a Struct in Snapshot"),
        (NamedState, "NamedState: NamedGauge.text", "is keyword-only"),
        (NamedRow, "NamedRow: NamedChange.name", "is keyword-only"),
        (ForeignSnapshot, "ForeignSnapshot: fields.snapshot", "is not a message type of it"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_by_field(declared: type[Any], field: str, problem: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declared()
    assert (refused.value.field, problem in str(refused.value)) == (field, True)
