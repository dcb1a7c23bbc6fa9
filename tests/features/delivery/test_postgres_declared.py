"""Wrong Postgres tables are refused at their declaration; equal values have one form in a proof."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from lockstep.declare.row_key import find_value_type
from lockstep.delivery import Delivery, PostgresTable, RowSource
from lockstep.errors import DeclarationError
from lockstep.features.delivery.prove_postgres import encode_values
from tests.features.delivery.postgres_rows import Current, to_current
from tests.support.kept_stream import Row, keeping


def test_equal_values_have_one_form_in_a_proof() -> None:
    assert encode_values([Decimal("1.00")]) == encode_values([Decimal(1)])
    long = Decimal("1" * 38)
    assert encode_values([long]) != encode_values([long + 1])
    assert encode_values([1]) != encode_values(["1"])


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("table", {"table": "Large Moves"}),
        ("table", {"table": "a.b.c"}),
        ("table", {"table": "x" * 64}),
        ("connection", {"connection": "postgresql://user:" + "password@host/db"}),
        ("removed", {"removed": "value"}),
        ("transaction_rows", {"transaction_rows": 0}),
        ("transaction_seconds", {"transaction_seconds": 21.0}),
        ("new_columns", {"new_columns": "add"}),
        ("key", {"key": "name"}),
    ],
)
def test_a_wrong_field_of_a_table_is_refused_by_name(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match=rf"PostgresTable\.{field}") as refused:
        PostgresTable(**{"table": "moves", "connection": "env:DB", **options})
    assert "password" not in str(refused.value)


class Floating(msgspec.Struct):
    number: float
    note: str | None
    xmin: int = 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": ("nothing",)}, "is not a field of Row"),
        ({"key": ("name",), "removed": "value"}, "is not an optional field"),
        ({"key": ("value",), "removed": "value", "select": to_current}, "is optional"),
    ],
)
def test_rows_that_do_not_fit_their_table_are_refused_when_declared(options: dict[str, Any], problem: str) -> None:
    select = options.pop("select", None)
    target = PostgresTable(table="moves", connection="env:DB", **options)
    delivery = Delivery(name="moves", target=target, select=select)
    with pytest.raises(DeclarationError, match=problem):
        dataclasses.replace(keeping(), deliveries=(delivery,))


def untyped(row: Row, origin: RowSource) -> Any:
    """A function without a Struct as its return type."""
    del origin
    return row


def test_a_function_names_the_struct_that_it_makes() -> None:
    assert find_value_type(to_current, Row) is Current
    assert find_value_type(None, Row) is Row
    with pytest.raises(DeclarationError, match="a table has its columns from it"):
        find_value_type(untyped, Row)


def test_types_and_names_that_no_table_has_are_refused_when_declared() -> None:
    for key, problem in (("number", "which is no key"), ("note", "is optional")):
        with pytest.raises(DeclarationError, match=problem):
            PostgresTable(table="moves", connection="env:DB", key=(key,)).check_rows(
                msgspec.defstruct("Plain", [("number", float), ("note", str | None)])
            )
    with pytest.raises(DeclarationError, match="cannot name a column in Postgres"):
        PostgresTable(table="moves", connection="env:DB").check_rows(Floating)
